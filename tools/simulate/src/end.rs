//! What a player plays on: a PML over a rail, or a world of the library that users add.

use std::time::Duration;

use doorbell::{Error, Request, World};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::Message as Rail;
use doorbell_fabric::time::Time;
use doorbell_pml::{
    Payload, Pml, PmlError, Rank, RecvArgs, RequestId, SendArgs, SendMode, Sent, Source, Target,
};
use doorbell_sim::SimNet;

use crate::books::Spec;
use crate::plan::Message;

/// A message that was received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) from: u32,
    pub(crate) tag: u64,
    pub(crate) length: usize,
}

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Well(Received),
    Cancelled,
    Badly(String),
}

impl Ended {
    /// What was received, or why nothing was.
    pub(crate) fn well(self) -> Result<Received, String> {
        match self {
            Self::Well(received) => Ok(received),
            Self::Cancelled => Err("it was cancelled".to_owned()),
            Self::Badly(why) => Err(why),
        }
    }
}

/// One rank's end of a job. Errors are told as text: any of them is a finding.
pub(crate) trait End {
    type Request;

    fn receive(&mut self, spec: Spec, room: RegionSlice) -> Result<Self::Request, String>;

    /// `None`: the bytes were taken, nothing is under way.
    fn send(&mut self, message: &Message, bytes: RegionSlice) -> Result<Option<Self::Request>, String>;

    /// Sends bytes that are taken at once; `false` where that is not possible now.
    fn inject(&mut self, message: &Message, bytes: &[u8]) -> Result<bool, String>;

    fn test(&mut self, request: &mut Self::Request) -> Option<Ended>;

    fn cancel(&mut self, request: &mut Self::Request) -> bool;

    fn explain(&self, request: &Self::Request) -> Option<String>;

    /// One pass; whether it did anything.
    fn progress(&mut self, now: Time) -> bool;

    fn next_deadline(&self) -> Option<Time>;

    /// Part of an orderly end; whether it is complete.
    fn close(&mut self, now: Time, by: Time) -> bool;

    /// What should not be there at the end.
    fn leftovers(&self) -> Option<String>;
}

impl<M: Rail> End for Pml<M> {
    type Request = RequestId;

    fn receive(&mut self, spec: Spec, room: RegionSlice) -> Result<RequestId, String> {
        let args = RecvArgs {
            from: spec.from,
            context: 0,
            tag: spec.tag,
            ignore: spec.ignore,
            target: Target::Region(room),
            notify: false,
        };
        self.recv(args).map_err(text)
    }

    fn send(&mut self, message: &Message, bytes: RegionSlice) -> Result<Option<RequestId>, String> {
        let args = SendArgs {
            to: Rank(message.to),
            context: 0,
            tag: message.tag,
            payload: Payload::Region(bytes),
            mode: if message.synchronous {
                SendMode::Synchronous
            } else {
                SendMode::Standard
            },
            notify: false,
        };
        match Pml::send(self, args).map_err(text)? {
            Sent::Done => Ok(None),
            Sent::Pending(request) => Ok(Some(request)),
        }
    }

    fn inject(&mut self, message: &Message, bytes: &[u8]) -> Result<bool, String> {
        match Pml::inject(self, Rank(message.to), 0, message.tag, bytes) {
            Ok(()) => Ok(true),
            Err(PmlError::InjectFull { .. }) => Ok(false),
            Err(error) => Err(text(error)),
        }
    }

    fn test(&mut self, request: &mut RequestId) -> Option<Ended> {
        Some(match Pml::test(self, *request)? {
            Ok(status) => Ended::Well(Received {
                from: status.source.0,
                tag: status.tag,
                length: status.length as usize,
            }),
            Err(PmlError::Cancelled) => Ended::Cancelled,
            Err(error) => Ended::Badly(text(error)),
        })
    }

    fn cancel(&mut self, request: &mut RequestId) -> bool {
        Pml::cancel(self, *request)
    }

    fn explain(&self, request: &RequestId) -> Option<String> {
        Pml::explain(self, *request).map(text)
    }

    fn progress(&mut self, now: Time) -> bool {
        Pml::progress(self, now) > 0 || self.must_poll()
    }

    fn next_deadline(&self) -> Option<Time> {
        Pml::next_deadline(self)
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        Pml::close(self, now, by)
    }

    fn leftovers(&self) -> Option<String> {
        let (open, drops) = (self.live_requests(), self.counters().drops);
        (open > 0 || drops.total() > 0).then(|| format!("{open} requests, and has dropped {drops:?}"))
    }
}

/// A world. When it makes progress it moves the network's clock to the next event, however far that is; here the others
/// have something to do before.
pub(crate) struct WorldEnd<'w> {
    pub(crate) world: &'w World,
    pub(crate) net: SimNet,
    /// The number of an alarm that stops the clock: no rank, as these have their own.
    pub(crate) alarm: u32,
    /// How far one pass may move the clock.
    pub(crate) pace: Duration,
}

impl<'w> End for WorldEnd<'w> {
    type Request = Request<'w>;

    fn receive(&mut self, spec: Spec, room: RegionSlice) -> Result<Request<'w>, String> {
        let from = match spec.from {
            Source::Any => doorbell::Source::Any,
            Source::Rank(rank) => doorbell::Source::Rank(rank.0),
        };
        self.world
            .irecv_region(from, doorbell::Tag::masked(spec.tag, spec.ignore), room)
            .map_err(text)
    }

    fn send(&mut self, message: &Message, bytes: RegionSlice) -> Result<Option<Request<'w>>, String> {
        let request = if message.synchronous {
            self.world.issend_region(message.to, message.tag, bytes)
        } else {
            self.world.isend_region(message.to, message.tag, bytes)
        };
        request.map(Some).map_err(text)
    }

    /// A world has no send that is sure not to wait, and here nobody else acts while one waits.
    fn inject(&mut self, _: &Message, _: &[u8]) -> Result<bool, String> {
        Ok(false)
    }

    fn test(&mut self, request: &mut Request<'w>) -> Option<Ended> {
        // A test makes progress by itself; here every rank has its turn for that.
        if !request.is_done() {
            return None;
        }
        Some(match request.test()? {
            Ok(status) => Ended::Well(Received {
                from: status.source,
                tag: status.tag,
                length: status.len,
            }),
            Err(Error::Cancelled) => Ended::Cancelled,
            Err(error) => Ended::Badly(text(error)),
        })
    }

    fn cancel(&mut self, request: &mut Request<'w>) -> bool {
        request.cancel()
    }

    fn explain(&self, _: &Request<'w>) -> Option<String> {
        None
    }

    fn progress(&mut self, _: Time) -> bool {
        self.net.set_alarm(self.alarm, Some(self.net.now() + self.pace));
        let work = self.world.progress();
        self.net.set_alarm(self.alarm, None);
        work > 0
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// The end of its life says goodbye.
    fn close(&mut self, _: Time, _: Time) -> bool {
        true
    }

    fn leftovers(&self) -> Option<String> {
        match self.world.counters() {
            Ok(counters) if counters.drops.total() == 0 => None,
            Ok(counters) => Some(format!("what it has dropped: {:?}", counters.drops)),
            Err(error) => Some(text(error)),
        }
    }
}

fn text(what: impl ToString) -> String {
    what.to_string()
}
