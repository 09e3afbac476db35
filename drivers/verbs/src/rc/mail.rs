//! Short datagrams, as contact and management have them: one queue pair, whose frames are copied in and out.

use std::sync::Arc;

use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::{Region, RegionSlice, SharedBytes};
use doorbell_fabric::name::RailName;

use crate::cm::LONGEST;
use crate::discover;
use crate::error::VerbsError;
use crate::ports::Port;
use crate::source::{From, GRH};
use crate::sys::{
    AddressHandle, Channel, DatagramPair, Destination, Domain, Event, Handles, Registered, Sender, Sizes, Wc,
    numbers,
};
use crate::ud::layout::Places;
use crate::ud::open::{INLINE, random_key, start};
use crate::ud::tx::{Queue, SendCounts};
use crate::ways::SendsBy;

/// Frames that wait to be sent, and to be received.
const FRAMES: (usize, usize) = (64, 256);
/// Completions that are taken off the queue at a time.
const BATCH: usize = 16;

/// What contact's datagrams have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MailCounts {
    pub(crate) sent: SendCounts,
    /// Receives that ended with an error, and completions that cannot be true.
    pub(crate) failed: u64,
    pub(crate) nonsense: u64,
    /// How often the queue pair was set up again.
    pub(crate) resets: u64,
    /// How often it was replaced by another one.
    pub(crate) renewed: u64,
}

/// What outlives a queue pair that is replaced: what peers know, and the way to them.
#[derive(Default)]
pub(crate) struct Kept {
    key: Option<u32>,
    handles: Handles,
    counts: MailCounts,
}

/// A queue pair of datagrams, its memory, and the handles of peers.
pub(crate) struct Mail {
    pair: Arc<DatagramPair>,
    queue: Queue,
    places: Places,
    memory: RegionSlice,
    /// Bytes of the longest datagram that the port carries: a longer receive never fails.
    limit: usize,
    key: u32,
    /// Frames that can wait to be received.
    receives: usize,
    handles: Handles,
    /// Which buffers the device has.
    posted: Vec<bool>,
    back: Vec<(u64, usize)>,
    is_broken: bool,
    /// It cannot be set up again, or its completions are lost: only another one helps.
    is_lost: bool,
    pub(crate) counts: MailCounts,
}

/// Bytes of memory that it locks, on a port of this MTU.
pub(crate) fn locked(mtu: usize) -> usize {
    Places::from(0, (FRAMES.0, FRAMES.1, 0), mtu.max(LONGEST)).1
}

/// Bytes of the longest datagram that is received on a port.
fn limit(port: &Port) -> usize {
    port.mtu().unwrap_or(256).max(LONGEST)
}

/// Bytes of memory that these numbers of sends and receives take on a port.
pub(crate) fn bytes(port: &Port, frames: (usize, usize)) -> usize {
    Places::from(0, (frames.0, frames.1, 0), limit(port)).1
}

impl Mail {
    /// Makes the queue pair of a rail, which receives from then on; with what is kept of a former one.
    ///
    /// # Errors
    /// If the system refuses a step.
    pub(crate) fn open(
        name: &RailName,
        (domain, channel): (&Arc<Domain>, &Arc<Channel>),
        port: &Port,
        kept: Kept,
    ) -> Result<Self, RailError> {
        let failed = |error: VerbsError| discover::rejected_by(name, &error);
        let bytes = bytes(port, FRAMES);
        let region = Region::new(bytes)?;
        let memory =
            Registered::new(domain, &region).map_err(|error| discover::rejected_for(name, &error, bytes))?;
        let key = match kept.key {
            Some(key) => key,
            None => random_key(name)?,
        };
        let mut mail = Self::over(&memory, channel, port, FRAMES, key).map_err(failed)?;
        (mail.handles, mail.counts) = (kept.handles, kept.counts);
        Ok(mail)
    }

    /// Makes the queue pair, with this Q_Key and for these numbers of sends and receives, over memory of as
    /// many [`bytes`].
    ///
    /// # Errors
    /// If the system refuses a step.
    pub(crate) fn over(
        memory: &Arc<Registered>,
        channel: &Arc<Channel>,
        port: &Port,
        frames: (usize, usize),
        key: u32,
    ) -> Result<Self, VerbsError> {
        let limit = limit(port);
        let (places, _) = Places::from(0, (frames.0, frames.1, 0), limit);
        let sizes = Sizes {
            sends: frames.0,
            receives: frames.1,
            inline: INLINE,
        };
        let pair = DatagramPair::new(memory, channel, sizes)?;
        start(&pair, port, key)?;
        let mut mail = Self {
            queue: Queue::new(Sender::new(&pair, frames.0), places),
            pair,
            places,
            memory: memory.memory().clone(),
            limit,
            key,
            receives: frames.1,
            handles: Handles::default(),
            posted: vec![false; frames.1],
            back: (0..frames.1)
                .map(|number| (number as u64, places.buffer(number as u32)))
                .collect(),
            is_broken: false,
            is_lost: false,
            counts: MailCounts::default(),
        };
        mail.refill();
        Ok(mail)
    }

    /// Destroys the queue pair, and keeps what another one needs.
    pub(crate) fn replace_pair(self) -> Kept {
        Kept {
            key: Some(self.key),
            handles: self.handles,
            counts: MailCounts {
                renewed: self.counts.renewed + 1,
                ..self.counts
            },
        }
    }

    /// Whether only another queue pair helps.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Acts on an event of the device about its queues; whether it is about them.
    pub(crate) fn on_event(&mut self, event: &Event) -> bool {
        if self.pair.is_meant(event) {
            self.is_broken = true;
            return true;
        }
        let is_queue = [self.pair.sent(), self.pair.received()];
        let is_meant = is_queue.into_iter().any(|queue| queue.is_meant(event));
        self.is_lost |= is_meant && event.kind == numbers::EVENT_CQ_ERR;
        self.is_broken |= self.is_lost;
        is_meant
    }

    /// The numbers that peers need: of the queue pair, and its Q_Key.
    pub(crate) fn numbers(&self) -> (u32, u32) {
        (self.pair.number(), self.key)
    }

    /// Takes the completions of sends, of which one may have failed.
    pub(crate) fn reap(&mut self) {
        if !self.is_broken {
            self.is_broken |= self.queue.reap(&mut self.counts.sent);
        }
    }

    /// Whether another frame can be sent now.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.queue.free() == 0 {
            self.is_broken |= self.queue.reap(&mut self.counts.sent);
        }
        self.queue.free() > 0
    }

    /// Sends a frame to a peer, if the way to it is known; returns whether it was sent. It may be lost.
    pub(crate) fn send(&mut self, peer: u32, (pair, key): (u32, u32), bytes: &[u8]) -> bool {
        if self.is_broken || !self.handles.has(peer) || !self.has_room() {
            self.counts.sent.unresolved += 1;
            return false;
        }
        let place = self.queue.place();
        self.memory.write(place, bytes);
        let to = Destination { peer, pair, key };
        let counts = &mut self.counts.sent;
        self.queue.prepare((place, bytes.len()), to, counts);
        let is_sent = self.queue.announce(&self.handles, counts);
        self.is_broken |= !is_sent;
        is_sent
    }

    /// Has the queue pair receive what is sent to a group.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn attach(&self, group: [u8; 16], lid: u16) -> Result<(), VerbsError> {
        self.pair.attach(group, lid)
    }

    /// Takes it out of a group.
    pub(crate) fn detach(&self, group: [u8; 16], lid: u16) {
        self.pair.detach(group, lid);
    }

    /// Whether the queue pair has to be set up again.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Requests one event when a frame comes.
    pub(crate) fn arm(&self) {
        self.pair.received().arm();
    }

    /// Takes what has come, with its sender.
    #[inline]
    pub(crate) fn receive(&mut self, mut each: impl FnMut(&From, &[u8])) {
        self.receive_with(usize::MAX, |completion, room, bytes| {
            each(&From::of(completion, room), bytes);
        });
    }

    /// Takes what has come, `most` frames at most, with its completion and the room in front of it. Returns
    /// how many completions there were.
    #[inline]
    pub(crate) fn receive_with(
        &mut self,
        most: usize,
        mut each: impl FnMut(&Wc, SharedBytes<'_>, &[u8]),
    ) -> usize {
        let mut found = [Wc::zeroed(); BATCH];
        let mut taken = 0;
        while taken < most && !self.is_broken {
            let room = BATCH.min(most - taken);
            let count = self.pair.received().poll(&mut found[..room]).unwrap_or_else(|_| {
                self.is_broken = true;
                0
            });
            for completion in &found[..count] {
                self.take(completion, &mut each);
            }
            taken += count;
            if count < room {
                break;
            }
        }
        if !self.is_broken && !self.back.is_empty() {
            self.refill();
        }
        taken
    }

    fn take(&mut self, completion: &Wc, each: &mut impl FnMut(&Wc, SharedBytes<'_>, &[u8])) {
        let number = completion.wr_id as usize;
        if !self.posted.get_mut(number).is_some_and(std::mem::take) {
            self.counts.nonsense += 1;
            return;
        }
        let place = self.places.buffer(number as u32);
        self.back.push((number as u64, place));
        if completion.status != numbers::SUCCESS {
            self.counts.failed += 1;
            self.is_broken = true;
            return;
        }
        let length = completion.byte_len as usize;
        if !(GRH..=GRH + self.limit).contains(&length) {
            self.counts.nonsense += 1;
            return;
        }
        let buffer = self.memory.as_shared().skip(place);
        // One byte more shows that a frame is too long.
        let mut bytes = [0; LONGEST + 1];
        let length = (length - GRH).min(bytes.len());
        buffer.copy_to(GRH, &mut bytes[..length]);
        each(completion, buffer.take(GRH), &bytes[..length]);
    }

    fn refill(&mut self) {
        for (number, _) in &self.back {
            self.posted[*number as usize] = true;
        }
        let length = Places::receive_length(self.limit);
        self.is_broken |= self.pair.receive(&self.back, length).is_err();
        self.back.clear();
    }

    /// The queue pair is set up again at the next look.
    pub(crate) fn doubt(&mut self) {
        self.is_broken = true;
    }

    /// Sets a queue pair up again that has failed. What it had is lost, as frames may be. If the system
    /// refuses that, it [is lost](Self::is_lost).
    pub(crate) fn mend(&mut self, port: &Port) {
        if !self.is_broken || self.is_lost {
            return;
        }
        self.counts.resets += 1;
        if start(&self.pair, port, self.key).is_err() {
            self.is_lost = true;
            return;
        }
        self.queue.restart();
        self.back.clear();
        self.posted.fill(false);
        let all = 0..self.receives as u32;
        self.back
            .extend(all.map(|number| (number.into(), self.places.buffer(number))));
        self.is_broken = false;
        self.refill();
    }
}

impl SendsBy for Mail {
    fn replace(&mut self, peer: u32, handle: Option<AddressHandle>) -> Option<AddressHandle> {
        self.handles.set(peer, handle)
    }
}
