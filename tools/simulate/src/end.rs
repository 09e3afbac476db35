//! What a player uses: a PML over a rail, or a world of the library.

use std::time::Duration;

use doorbell::{Error, Request, World};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::Message as Rail;
use doorbell_fabric::time::Time;
use doorbell_pml::{Payload, Pml, PmlError, Rank, RecvArgs, RequestId, SendArgs, SendMode, Sent, Target};
use doorbell_sim::SimNet;

use crate::books::Spec;
use crate::plan::{CONTEXTS, Message};

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
    Badly(Trouble),
}

/// Why a call or a request failed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// This rank is lost.
    Lost(u32),
    /// Anything else: a finding.
    Other(String),
}

impl Ended {
    /// What was received, or why nothing was.
    pub(crate) fn well(self) -> Result<Received, Trouble> {
        match self {
            Self::Well(received) => Ok(received),
            Self::Cancelled => Err(Trouble::Other("it was cancelled".to_owned())),
            Self::Badly(why) => Err(why),
        }
    }
}

/// One rank's end of a job. Errors are reported as text: but for the loss of a rank that died, any of them is
/// a finding.
pub(crate) trait End {
    type Request;

    fn receive(&mut self, spec: Spec, room: RegionSlice) -> Result<Self::Request, Trouble>;

    /// `None`: the bytes were taken, nothing is under way.
    fn send(&mut self, message: &Message, bytes: RegionSlice) -> Result<Option<Self::Request>, Trouble>;

    /// Sends bytes that are taken at once; `false` where that is not possible now.
    fn inject(&mut self, message: &Message, bytes: &[u8]) -> Result<bool, Trouble>;

    fn test(&mut self, request: &mut Self::Request) -> Option<Ended>;

    fn cancel(&mut self, request: &mut Self::Request) -> bool;

    fn explain(&self, request: &Self::Request) -> Option<String>;

    /// Whether a rank is lost to this one.
    fn has_lost(&self, _: u32) -> bool {
        false
    }

    /// Throws away what is kept of a rank.
    fn discard(&mut self, _: u32) {}

    /// One pass; whether it did anything.
    fn progress(&mut self, now: Time) -> bool;

    /// Whether something waits that only polling moves on.
    fn must_poll(&self) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Time>;

    /// Part of an orderly end; whether it is complete.
    fn close(&mut self, now: Time, by: Time) -> bool;

    /// What should not be there at the end.
    fn leftovers(&self) -> Option<String>;
}

impl<M: Rail> End for Pml<M> {
    type Request = RequestId;

    fn receive(&mut self, spec: Spec, room: RegionSlice) -> Result<RequestId, Trouble> {
        let args = RecvArgs {
            from: spec.from,
            context: spec.context,
            tag: spec.tag,
            ignore: spec.ignore,
            target: Target::Region(room),
            notify: false,
        };
        self.recv(args).map_err(trouble)
    }

    fn send(&mut self, message: &Message, bytes: RegionSlice) -> Result<Option<RequestId>, Trouble> {
        let args = SendArgs {
            to: Rank(message.to),
            context: message.context,
            tag: message.tag,
            payload: Payload::Region(bytes),
            mode: if message.synchronous {
                SendMode::Synchronous
            } else {
                SendMode::Standard
            },
            notify: false,
        };
        match Pml::send(self, args).map_err(trouble)? {
            Sent::Done => Ok(None),
            Sent::Pending(request) => Ok(Some(request)),
        }
    }

    fn inject(&mut self, message: &Message, bytes: &[u8]) -> Result<bool, Trouble> {
        match Pml::inject(self, Rank(message.to), message.context, message.tag, bytes) {
            Ok(()) => Ok(true),
            Err(PmlError::InjectFull { .. }) => Ok(false),
            Err(error) => Err(trouble(error)),
        }
    }

    fn test(&mut self, request: &mut RequestId) -> Option<Ended> {
        Some(match Pml::test(self, *request)? {
            Ok(status) => Ended::Well(Received {
                from: status.source.0,
                tag: status.tag,
                length: status.length as usize,
            }),
            Err(PmlError::Cancelled { .. }) => Ended::Cancelled,
            Err(error) => Ended::Badly(trouble(error)),
        })
    }

    fn cancel(&mut self, request: &mut RequestId) -> bool {
        Pml::cancel(self, *request)
    }

    fn explain(&self, request: &RequestId) -> Option<String> {
        Pml::explain(self, *request).map(text)
    }

    fn progress(&mut self, now: Time) -> bool {
        Pml::progress(self, now) > 0
    }

    fn must_poll(&self) -> bool {
        Pml::must_poll(self)
    }

    fn has_lost(&self, rank: u32) -> bool {
        self.lost(Rank(rank)).is_some()
    }

    fn discard(&mut self, rank: u32) {
        for context in 0..CONTEXTS {
            while let Some(kept) = self.claim(Rank(rank).into(), context, 0, u64::MAX) {
                // Claimed just now, so it is there.
                let _ = Pml::discard(self, kept.message);
            }
        }
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

/// A world. When it makes progress it moves the network's clock to the next event, however far that is; here
/// the others have something to do before.
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

    fn receive(&mut self, spec: Spec, room: RegionSlice) -> Result<Request<'w>, Trouble> {
        let from = match spec.from.rank() {
            None => doorbell::Source::Any,
            Some(rank) => doorbell::Source::Rank(rank.0),
        };
        self.world
            .irecv_region(from, doorbell::Tag::masked(spec.tag, spec.ignore), room)
            .map_err(other)
    }

    fn send(&mut self, message: &Message, bytes: RegionSlice) -> Result<Option<Request<'w>>, Trouble> {
        let request = if message.synchronous {
            self.world.issend_region(message.to, message.tag, bytes)
        } else {
            self.world.isend_region(message.to, message.tag, bytes)
        };
        request.map(Some).map_err(other)
    }

    /// A world has no send that is sure not to wait, and here no other rank acts while one waits.
    fn inject(&mut self, _: &Message, _: &[u8]) -> Result<bool, Trouble> {
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
            Err(error) => Ended::Badly(other(error)),
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

    /// Dropping it closes its connections.
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

pub(crate) fn trouble(error: PmlError) -> Trouble {
    match error {
        PmlError::PeerLost { rank, .. } => Trouble::Lost(rank.0),
        error => other(error),
    }
}

fn other(error: impl ToString) -> Trouble {
    Trouble::Other(text(error))
}

fn text(what: impl ToString) -> String {
    what.to_string()
}
