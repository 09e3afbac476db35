//! Processing of received acknowledgements: releases segments that have arrived, and finds those that are
//! lost.
//!
//! A transmission counts as lost when enough later ones *of the same channel* have arrived (one, until the
//! network is seen to reorder), or when a much later one has; for the priority channel, that may be one of
//! the data channel. Otherwise the channels overtake each other all the time, by as much as queues up at a
//! peer that is busy elsewhere, so that is no sign of a loss. A frame of kind ACK lists everything that has
//! arrived. The number on a segment does not cover what arrived behind a gap, so only the oldest segment is
//! judged by it.
//!
//! Sources: RFC 2018 (selective acknowledgement), RFC 8985 (loss by later transmissions); reference: vic,
//! section 6.4.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::PeerIndex;

use crate::core::Core;
use crate::peer::about;
use crate::record::Event;
use crate::send_window::Overtaking;
use crate::seq::Seq;

/// RTT noise, in multiples of `ack_delay`, that is not taken for queueing: the peer's delay and ours, and the
/// bursts of one pass (two flows that share a link become equal: `tests/it/rates.rs`).
const NOISE: u64 = 4;

/// A peer was busy if its answer took this many times as long as that of one that polls all the time.
const BUSY: u64 = 3;

impl Core {
    /// Handles the number on a segment.
    #[inline(always)]
    pub(crate) fn on_ack(&mut self, index: PeerIndex, ack: Seq) {
        let new = self.peers[index].send.covered(ack);
        if new == 0 {
            return;
        }
        if self.is_ack_right(index, ack, new) {
            self.acknowledge(index, new as u32);
            if self.peers[index].send.oldest_posted(&self.segments).is_some() {
                self.find_lost(index, false, 1);
            }
        }
    }

    /// Whether an acknowledgement of `new` segments more is no older than the last one, and of segments that
    /// were sent.
    #[inline(always)]
    fn is_ack_right(&mut self, index: PeerIndex, ack: Seq, new: i32) -> bool {
        if new >= 0 && self.peers[index].send.was_sent(ack) {
            return true;
        }
        self.count_wrong_ack(index, new);
        false
    }

    #[cold]
    #[inline(never)]
    fn count_wrong_ack(&mut self, index: PeerIndex, new: i32) {
        if new < 0 {
            self.counters.acks_old += 1;
        } else {
            self.counters.acks_bad += 1;
            self.record(index, Event::BadAck);
        }
    }

    /// Handles a frame of kind ACK: number, bitmap of what came behind the gap, count of duplicates.
    #[inline(never)]
    pub(crate) fn on_explicit_ack(
        &mut self,
        index: PeerIndex,
        ack: Seq,
        duplicates: u32,
        bitmap: SharedBytes<'_>,
    ) {
        let new = self.peers[index].send.covered(ack);
        if !self.is_ack_right(index, ack, new) {
            return;
        }
        self.judge_resends(index, duplicates);
        if new > 0 {
            self.acknowledge(index, new as u32);
        }
        let gap = !bitmap.is_empty();
        let marked = if gap { self.mark_arrived(index, bitmap) } else { 0 };
        if new == 0 && marked == 0 {
            self.counters.acks_duplicate += 1;
            if !gap {
                self.on_duplicate_ack(index);
            }
        }
        self.find_lost(index, gap, u32::MAX);
        self.make_ready(index);
    }

    /// Lets go of the `n` oldest segments.
    #[inline(always)]
    fn acknowledge(&mut self, index: PeerIndex, n: u32) {
        let now = self.clock.now();
        let peer = &mut self.peers[index];
        let acked = peer.send.acknowledge(&mut self.segments, n, now);
        peer.send.judge_resent(&acked, now, peer.rtt.least());
        // If a gap was closed, the segments behind it may have arrived long ago.
        if let Some(trip) = acked.trip.filter(|_| !acked.again) {
            peer.rtt.sample(trip);
        }
        self.progressed(index, acked.newly);
        self.make_ready(index);
    }

    /// `n` more segments have arrived.
    #[inline(always)]
    fn progressed(&mut self, index: PeerIndex, n: u32) {
        let now = self.clock.now();
        let (noise, bounds) = (NOISE * self.acks.delay(), &self.bounds);
        let peer = &mut self.peers[index];
        peer.liveness.acknowledge(self.clock.attended(), now);
        peer.rtt.answered();
        let rtt = &peer.rtt;
        peer.resends.answered(now, || BUSY * rtt.prompt(bounds));
        let queueing = || rtt.queueing(noise);
        let (flight, most) = (peer.send.flight(), self.config.window);
        let shrunk = peer.congestion.acknowledged(n, flight, queueing, most);
        let suspect = peer.is(about::SUSPECT);
        if let Some((from, to)) = shrunk {
            self.record(index, Event::Shrunk { from, to });
        }
        if suspect {
            self.clear_suspicion(index);
        }
    }

    /// Marks what has arrived behind a gap; returns how many are new.
    #[cold]
    fn mark_arrived(&mut self, index: PeerIndex, bitmap: SharedBytes<'_>) -> u32 {
        let now = self.clock.now();
        let mut bytes = [0; 512];
        let length = bitmap.copy_to(0, &mut bytes);
        let peer = &mut self.peers[index];
        let acked = peer.send.mark_arrived(&mut self.segments, &bytes[..length], now);
        peer.send.judge_resent(&acked, now, peer.rtt.least());
        if let Some(trip) = acked.trip {
            peer.rtt.sample(trip);
        }
        if acked.newly > 0 {
            self.progressed(index, acked.newly);
        }
        acked.newly
    }

    /// Takes for lost what later transmissions have overtaken, `most` segments at most. Without a gap, those
    /// behind the first that is not lost are not considered.
    fn find_lost(&mut self, index: PeerIndex, gap: bool, most: u32) {
        let peer = &mut self.peers[index];
        let overtaking = Overtaking {
            transmissions: peer.resends.patience(),
            time: peer.rtt.reordering(&self.bounds),
        };
        let lost = peer.send.find_lost(&mut self.segments, overtaking, gap, most);
        if lost.segments > 0 {
            self.counters.resends_fast += u64::from(lost.segments);
            peer.congestion.lost(lost.bursts);
            self.record(
                index,
                Event::Overtaken {
                    segments: lost.segments,
                },
            );
        }
    }

    /// Nothing new, and nothing behind a gap: the peer has sent again what it sent before, because something
    /// reached it a second time. If our oldest should long have arrived, it did not: it is sent again at
    /// once, once.
    #[cold]
    fn on_duplicate_ack(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let wait = 2 * peer.rtt.smooth().unwrap_or(u64::MAX / 4);
        let Some(oldest) = peer.send.oldest_posted(&self.segments) else {
            return;
        };
        let segment = &self.segments[oldest];
        let overdue = self.clock.now().saturating_sub(segment.sent_at()) >= wait;
        if !segment.was_sent_again() && overdue {
            peer.send.lose(&mut self.segments, oldest);
            self.counters.resends_fast += 1;
            self.record(index, Event::Missed);
        }
    }

    /// Whether resends were spurious: then nothing was lost, and what was concluded from the loss is taken
    /// back.
    fn judge_resends(&mut self, index: PeerIndex, duplicates: u32) {
        let (now, bounds) = (self.clock.now(), &self.bounds);
        let peer = &mut self.peers[index];
        let rtt = &peer.rtt;
        peer.resends.answered(now, || BUSY * rtt.prompt(bounds));
        let vain = peer.resends.told(duplicates);
        if vain > 0 {
            peer.congestion.undo();
            self.counters.resends_vain += u64::from(vain);
            self.record(index, Event::Vain { segments: vain });
        } else if !peer.send.awaits_ack() {
            peer.resends.settle();
        }
    }
}
