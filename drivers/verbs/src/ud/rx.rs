//! The receiving half: frames lie where the device put them, behind the room for a routing header.

use std::sync::Arc;

use doorbell_fabric::datagram::{Channel, Frame, Receive};
use doorbell_fabric::memory::RegionSlice;
use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_inet::{Inbox, InboxFrame, KeptFrame, SpareChunks, UNKNOWN_PEER};
use rustc_hash::FxHashMap;

use super::layout::Places;
use crate::source::{From, GRH};
use crate::sys::{DatagramPair, Wc, numbers};

/// Completions that are taken off a queue at a time, and receives that are posted together at most.
const BATCH: usize = 16;

/// What the receiving half counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounts {
    /// Frames that were received.
    pub received: u64,
    /// Of these, frames of senders that are no peers.
    pub strangers: u64,
    /// Receives that ended with an error.
    pub failed: u64,
    /// Completions that cannot be true.
    pub nonsense: u64,
}

/// The buffers of one channel.
pub(super) struct Queue {
    /// `None` when the device was let go of.
    pair: Option<Arc<DatagramPair>>,
    places: Places,
    inbox: Inbox,
    spare: SpareChunks,
    /// Which buffers the device has.
    posted: Vec<bool>,
    /// Buffers that go back to it, `batch` of them together while frames come.
    back: Vec<(u64, usize)>,
    batch: usize,
}

impl Queue {
    pub(super) fn new(pair: &Arc<DatagramPair>, places: Places) -> Self {
        let (receives, all) = (places.receives as u32, places.buffers() as u32);
        Self {
            pair: Some(Arc::clone(pair)),
            places,
            inbox: Inbox::new(places.receives),
            spare: SpareChunks::new(receives..all),
            posted: vec![false; places.buffers()],
            back: (0..receives)
                .map(|number| (number.into(), places.buffer(number)))
                .collect(),
            // The device keeps most of a short queue while they wait.
            batch: BATCH.min(places.receives / 4).max(1),
        }
    }

    /// Posts what goes back; returns whether the device took it.
    fn refill(&mut self, limit: usize) -> bool {
        for (number, _) in &self.back {
            self.posted[*number as usize] = true;
        }
        let length = Places::receive_length(limit);
        let pair = self.pair.as_ref();
        let taken = pair.is_some_and(|pair| pair.receive(&self.back, length).is_ok());
        self.back.clear();
        taken
    }

    /// The queue pair was set up again, and has no receives: all that it had go back to it.
    pub(super) fn restart(&mut self, limit: usize) -> bool {
        for (number, posted) in self.posted.iter_mut().enumerate() {
            if std::mem::take(posted) {
                self.back.push((number as u64, self.places.buffer(number as u32)));
            }
        }
        self.refill(limit)
    }

    /// Takes completions off the queue. Returns whether the queue pair is broken.
    #[inline]
    fn take(
        &mut self,
        limit: usize,
        memory: &RegionSlice,
        peers: &FxHashMap<From, u32>,
        counts: &mut ReceiveCounts,
    ) -> bool {
        let mut found = [Wc::zeroed(); BATCH];
        let Some(pair) = &self.pair else { return false };
        let Ok(count) = pair.received().poll(&mut found) else {
            return true;
        };
        let mut is_broken = false;
        for completion in &found[..count] {
            is_broken |= self.complete(completion, limit, memory, peers, counts);
        }
        is_broken
    }

    #[inline]
    fn complete(
        &mut self,
        completion: &Wc,
        limit: usize,
        memory: &RegionSlice,
        peers: &FxHashMap<From, u32>,
        counts: &mut ReceiveCounts,
    ) -> bool {
        let number = completion.wr_id as usize;
        let is_ours = self.posted.get_mut(number).is_some_and(std::mem::take);
        if !is_ours {
            counts.nonsense += 1;
            return false;
        }
        let place = self.places.buffer(number as u32);
        if completion.status != numbers::SUCCESS {
            counts.failed += 1;
            // It goes back once the queue pair is set up again.
            self.posted[number] = true;
            return true;
        }
        let length = completion.byte_len as usize;
        if !(GRH..=GRH + limit).contains(&length) || !self.inbox.has_room() {
            counts.nonsense += 1;
            self.back.push((number as u64, place));
            return false;
        }
        let from = From::of(completion, memory.as_shared().skip(place).take(GRH));
        let from = peers.get(&from).copied().unwrap_or(UNKNOWN_PEER);
        counts.received += 1;
        counts.strangers += u64::from(from == UNKNOWN_PEER);
        self.inbox.push(InboxFrame {
            chunk: number as u32,
            queue: 0,
            kept: false,
            from,
            at: (place + GRH) as u32,
            length: (length - GRH) as u32,
        });
        false
    }
}

/// The receiving half of a rail of datagrams.
pub struct UdRx {
    pub(super) queues: [Queue; 2],
    pub(super) peers: FxHashMap<From, u32>,
    memory: RegionSlice,
    limit: usize,
    pub(super) is_off: bool,
    pub(super) is_broken: bool,
    pub(super) counts: ReceiveCounts,
}

impl UdRx {
    pub(super) fn new(queues: [Queue; 2], memory: RegionSlice, limit: usize) -> Self {
        Self {
            queues,
            peers: FxHashMap::default(),
            memory,
            limit,
            is_off: false,
            is_broken: false,
            counts: ReceiveCounts::default(),
        }
    }

    /// Posts all receives: at the start, and when a queue pair was set up again.
    pub(super) fn restart(&mut self, channel: usize) -> bool {
        self.queues[channel].restart(self.limit)
    }

    /// Lets go of the device. What has come and was not shown stays to be shown.
    pub(super) fn release(&mut self) {
        self.is_off = true;
        self.queues.iter_mut().for_each(|queue| queue.pair = None);
        self.peers.clear();
    }

    /// Whether a poll would show something; takes what has come.
    pub(super) fn has_more(&mut self) -> bool {
        (0..2).for_each(|channel| self.take(channel));
        self.queues.iter().any(|queue| queue.inbox.has_more())
    }

    #[inline]
    fn take(&mut self, channel: usize) {
        if !self.is_off && !self.is_broken {
            let queue = &mut self.queues[channel];
            self.is_broken |= queue.take(self.limit, &self.memory, &self.peers, &mut self.counts);
        }
    }
}

impl Receive for UdRx {
    type Kept = KeptFrame;

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let at = channel.index();
        let queue = &mut self.queues[at];
        let (places, back) = (&queue.places, &mut queue.back);
        let waits = queue
            .inbox
            .end_poll(|entry| back.push((entry.chunk.into(), places.buffer(entry.chunk))));
        if !waits && budget > 0 {
            self.take(at);
        }
        let queue = &mut self.queues[at];
        let nothing_came = !queue.inbox.has_more();
        if queue.back.len() >= queue.batch || nothing_came && !queue.back.is_empty() {
            let is_off = self.is_off || self.is_broken;
            if is_off {
                for (number, _) in queue.back.drain(..) {
                    queue.posted[number as usize] = true;
                }
            } else {
                self.is_broken |= !queue.refill(self.limit);
            }
        }
        queue.inbox.show(budget)
    }

    #[inline]
    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let entry = self.queues[channel.index()].inbox.shown(i)?;
        let bytes = self.memory.as_shared().skip(entry.at as usize);
        Some(Frame {
            from: (entry.from != UNKNOWN_PEER).then_some(PeerIndex(entry.from)),
            bytes: bytes.take(entry.length as usize),
        })
    }

    fn keep(&mut self, channel: Channel, i: usize) -> Result<KeptFrame, Refused> {
        let queue = &mut self.queues[channel.index()];
        let entry = *queue.inbox.shown(i).ok_or(Refused::BadMemory)?;
        let frame = self.memory.slice(entry.at as usize, entry.length as usize);
        let (kept, fresh) = queue.spare.swap(entry.chunk, frame.ok_or(Refused::BadMemory)?)?;
        queue.inbox.keep(i, fresh);
        Ok(kept)
    }
}
