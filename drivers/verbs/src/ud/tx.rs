//! The sending half: frames are copied into registered memory, and one doorbell announces those of a batch.

use doorbell_fabric::datagram::{Channel, FrameId, Transmit};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{Body, PeerIndex, Refused};
use doorbell_inet::{for_each_part, has_too_many_parts};

use super::layout::Places;
use crate::sys::{AddressHandle, Destination, Handles, Sender, Wc};
use crate::ways::SendsBy;

/// One in this many sends reports when it is done, and the last of each batch.
const SIGNAL: u64 = 16;
/// Completions that are taken off a queue at a time.
const BATCH: usize = 16;

/// What the sending half counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Frames that were handed to the device.
    pub sent: u64,
    /// Doorbells that were rung: calls that post a list of frames.
    pub doorbells: u64,
    /// Frames dropped because the way to the peer is not known (yet), or the queues are off.
    pub unresolved: u64,
    /// Frames that the device refused, or ended with an error.
    pub failed: u64,
    /// Completions that cannot be true.
    pub nonsense: u64,
}

/// Where a peer's frames go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) pairs: [u32; 2],
    pub(crate) key: u32,
}

/// The frames of one channel.
pub(crate) struct Queue {
    /// `None` when the device was let go of.
    sender: Option<Sender>,
    places: Places,
    /// Frames prepared, announced and done so far.
    prepared: u64,
    announced: u64,
    done: u64,
    /// Frames that may still be posted.
    room: usize,
    /// Frames posted so far, with those that were dropped.
    posted: u64,
}

impl Queue {
    pub(crate) fn new(sender: Sender, places: Places) -> Self {
        Self {
            sender: Some(sender),
            places,
            prepared: 0,
            announced: 0,
            done: 0,
            room: 0,
            posted: 0,
        }
    }

    /// Frames that may still be prepared.
    #[inline]
    pub(crate) fn free(&self) -> usize {
        self.places.sends - (self.prepared - self.done) as usize
    }

    /// Takes completions; returns whether the queue pair is broken.
    #[inline]
    pub(crate) fn reap(&mut self, counts: &mut SendCounts) -> bool {
        let mut found = [Wc::zeroed(); BATCH];
        loop {
            let Some(sender) = &self.sender else { return false };
            let Ok(count) = sender.pair().sent().poll(&mut found) else {
                return true;
            };
            let mut is_broken = false;
            for completion in &found[..count] {
                is_broken |= self.complete(completion, counts);
            }
            if is_broken || count < BATCH {
                return is_broken;
            }
        }
    }

    /// One completion: everything up to its frame is done. Returns whether it is an error.
    #[inline]
    fn complete(&mut self, completion: &Wc, counts: &mut SendCounts) -> bool {
        let done = completion.wr_id;
        if done <= self.done || done > self.announced {
            counts.nonsense += 1;
            return false;
        }
        let failed = completion.status != crate::sys::numbers::SUCCESS;
        counts.failed += u64::from(failed);
        self.done = done;
        failed
    }

    /// Where the bytes of the next frame go.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        self.places.frame(self.prepared)
    }

    /// Prepares the next frame, whose bytes are in their place.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        (place, length): (usize, usize),
        to: Destination,
        counts: &mut SendCounts,
    ) {
        let count = self.prepared + 1;
        let signalled = count.is_multiple_of(SIGNAL);
        let sender = self.sender.as_mut();
        match sender.map(|sender| sender.prepare(count, (place, length), to, signalled)) {
            Some(Ok(())) => self.prepared = count,
            _ => counts.failed += 1,
        }
    }

    /// Announces what was prepared; returns whether all of it was taken.
    #[inline]
    pub(crate) fn announce(&mut self, handles: &Handles, counts: &mut SendCounts) -> bool {
        let waiting = self.prepared - self.announced;
        if waiting == 0 {
            return true;
        }
        let taken = self.sender.as_mut().map_or(0, |sender| {
            sender.signal_last();
            sender.announce(handles) as u64
        });
        self.announced += taken;
        // What was not taken is lost, as frames may be.
        self.prepared = self.announced;
        counts.sent += taken;
        counts.doorbells += 1;
        counts.failed += waiting - taken;
        taken == waiting
    }

    /// Starts over with an empty queue pair.
    pub(crate) fn restart(&mut self) {
        (self.announced, self.done) = (self.prepared, self.prepared);
    }

    /// Lets go of the queue pair.
    fn release(&mut self) {
        self.sender = None;
        self.restart();
    }
}

/// The sending half of a rail of datagrams.
pub struct UdTx {
    pub(super) queues: [Queue; 2],
    pub(super) handles: Handles,
    pub(super) peers: Vec<To>,
    memory: RegionSlice,
    limit: usize,
    /// The queues are off: what is posted is lost.
    pub(super) is_off: bool,
    /// A queue pair has to be set up again.
    pub(super) is_broken: bool,
    /// What was counted.
    pub(super) counts: SendCounts,
}

impl UdTx {
    pub(super) fn new(queues: [Queue; 2], memory: RegionSlice, limit: usize) -> Self {
        Self {
            queues,
            handles: Handles::default(),
            peers: Vec::new(),
            memory,
            limit,
            is_off: false,
            is_broken: false,
            counts: SendCounts::default(),
        }
    }

    #[inline]
    fn reap(&mut self, channel: usize) {
        self.is_broken |= self.queues[channel].reap(&mut self.counts);
    }

    /// Whether nothing can be posted before the device has sent something, which wakes no sleeper.
    pub(super) fn is_starved(&mut self) -> bool {
        (0..2).for_each(|channel| self.reap(channel));
        !self.is_off && self.queues.iter().any(|queue| queue.free() == 0)
    }

    /// Whether the device has sent everything, or never will.
    pub(super) fn is_settled(&mut self) -> bool {
        (0..2).for_each(|channel| self.reap(channel));
        self.is_off || self.is_broken || self.queues.iter().all(|queue| queue.done == queue.prepared)
    }

    /// Lets go of the device: what is posted from now on is lost.
    pub(super) fn release(&mut self) {
        self.is_off = true;
        self.queues.iter_mut().for_each(Queue::release);
        self.handles = Handles::default();
    }

    /// Announces everything that was prepared: no address handle is in use behind this.
    pub(super) fn announce_all(&mut self) {
        for queue in &mut self.queues {
            self.is_broken |= !queue.announce(&self.handles, &mut self.counts);
        }
    }
}

impl SendsBy for UdTx {
    fn replace(&mut self, peer: u32, handle: Option<AddressHandle>) -> Option<AddressHandle> {
        self.announce_all();
        self.handles.set(peer, handle)
    }
}

impl Transmit for UdTx {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        let channel = channel.index();
        if self.queues[channel].free() < n {
            self.reap(channel);
        }
        let queue = &mut self.queues[channel];
        queue.room = n.min(queue.free());
        queue.room
    }

    #[inline]
    fn post(
        &mut self,
        channel: Channel,
        peer: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<FrameId, Refused> {
        let length = head.len() + body.len();
        if length > self.limit || has_too_many_parts(&body) {
            return Err(Refused::TooLong);
        }
        let to = self.peers.get(peer.index()).ok_or(Refused::PeerDown)?;
        let queue = &mut self.queues[channel.index()];
        queue.room = queue.room.checked_sub(1).ok_or(Refused::Full)?;
        queue.posted += 1;
        let id = FrameId(queue.posted);
        let is_lost = self.is_off || self.is_broken || !self.handles.has(peer.0);
        if is_lost {
            self.counts.unresolved += 1;
            return Ok(id);
        }
        let place = queue.place();
        let mut at = place;
        for_each_part(head, body, |bytes| at += self.memory.write_shared(at, bytes));
        let destination = Destination {
            peer: peer.0,
            pair: to.pairs[channel.index()],
            key: to.key,
        };
        queue.prepare((place, at - place), destination, &mut self.counts);
        Ok(id)
    }

    #[inline]
    fn doorbell(&mut self) {
        if !self.is_off {
            self.announce_all();
        }
    }

    /// The bytes were copied when a frame was posted.
    #[inline]
    fn reaped(&mut self, channel: Channel) -> FrameId {
        FrameId(self.queues[channel.index()].posted)
    }
}
