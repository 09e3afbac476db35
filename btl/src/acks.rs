//! Acknowledgements of what we sent: what has arrived is let go, what must be lost is sent again.
//!
//! A transmission is taken for lost when enough later ones *of the same channel* have arrived (one, until the network
//! is seen to reorder), or when one has that was made much later; for the priority channel, that may be one of the data
//! channel. Else the two channels overtake each other all the time, and by as much as waits in the queues of a peer that
//! was busy elsewhere, which means nothing. A frame of kind ACK says everything that has arrived; the number on a
//! segment keeps silent about what came behind a gap, so that only the oldest segment is judged by it.
//!
//! Sources: RFC 2018 (selective acknowledgement), RFC 8985 (loss by later transmissions); reference: vic, section 6.4.

use doorbell_fabric::memory::SharedBytes;

use crate::core::Core;
use crate::peer::{Peer, about};
use crate::record::Event;
use crate::segment::{NONE, Segment, State};
use crate::seq::Seq;
use crate::transmit::place;
use crate::wire::Kind;

impl Peer {
    /// A segment has arrived: what its transmission tells about the channel, and its round trip. Of one that was made
    /// twice nobody knows which has arrived; but it was not the second when the answer came far sooner than any before
    /// (those may have waited for something to ride on, what goes again asks for an answer at once).
    #[inline]
    fn saw(&mut self, segment: &Segment, now: u64) -> Option<u64> {
        let trip = now.saturating_sub(segment.sent_at);
        if !segment.again || trip >= self.rtt.least() / 4 {
            let at = place(segment.channel);
            self.seen[at] = self.seen[at].max(segment.order);
            self.newest[at] = self.newest[at].max(segment.sent_at);
        }
        (!segment.again).then_some(trip)
    }
}

impl Core {
    /// The number on a segment.
    #[inline(always)]
    pub(crate) fn on_ack(&mut self, peer: u32, ack: Seq) {
        let state = &self.peers[peer as usize];
        let new = ack.plus(1).after(state.una_seq);
        if new == 0 {
            return;
        }
        if self.is_ack_right(peer, ack, new) {
            self.acknowledge(peer, new as u32);
            let una = self.peers[peer as usize].una;
            if una != NONE && self.segments[una].state == State::Posted {
                self.find_lost(peer, false, 1);
            }
        }
    }

    fn is_ack_right(&mut self, peer: u32, ack: Seq, new: i32) -> bool {
        if new < 0 {
            self.counters.acks_old += 1;
            return false;
        }
        if ack.after(self.peers[peer as usize].unsent_seq) >= 0 {
            self.counters.acks_bad += 1;
            self.record(peer, Event::BadAck);
            return false;
        }
        true
    }

    /// A frame of kind ACK: number, bitmap of what came behind the gap, count of duplicates.
    #[inline(never)]
    pub(crate) fn on_explicit_ack(&mut self, peer: u32, ack: Seq, duplicates: u32, bitmap: SharedBytes<'_>) {
        let new = ack.plus(1).after(self.peers[peer as usize].una_seq);
        if !self.is_ack_right(peer, ack, new) {
            return;
        }
        self.judge_resends(peer, duplicates);
        if new > 0 {
            self.acknowledge(peer, new as u32);
        }
        let gap = !bitmap.is_empty();
        let marked = if gap { self.mark_arrived(peer, bitmap) } else { 0 };
        if new == 0 && marked == 0 {
            self.counters.acks_duplicate += 1;
            if !gap {
                self.on_duplicate_ack(peer);
            }
        }
        self.find_lost(peer, gap, u32::MAX);
        self.make_ready(peer);
    }

    /// Lets go of the `n` oldest segments.
    #[inline(always)]
    fn acknowledge(&mut self, peer: u32, n: u32) {
        let now = self.now;
        let state = &mut self.peers[peer as usize];
        let (mut newly, mut sample) = (0, None);
        let mut index = state.una;
        let mut left = n;
        while left > 0 {
            left -= 1;
            let segment = &mut self.segments[index];
            if segment.state != State::Sacked {
                newly += 1;
                state.flight -= u32::from(segment.state == State::Posted);
                sample = state.saw(segment, now);
            }
            segment.state = State::Acked;
            let (next, ends, part) = (segment.next, segment.ends, segment.kind == Kind::Chunk);
            if ends != 0 {
                state.watermark = ends;
            }
            if ends != 0 || !part {
                // Everything up to here belongs to messages that are complete.
                loop {
                    let first = state.head;
                    state.head = self.segments[first].next;
                    state.listed -= 1;
                    self.segments.give(first);
                    if first == index {
                        break;
                    }
                }
            }
            index = next;
        }
        state.una_seq = state.una_seq.plus(n);
        if state.una_seq.after(state.urgent) > 0 {
            state.urgent = state.una_seq.previous();
        }
        state.una = if index == state.unsent { NONE } else { index };
        if state.head == NONE {
            state.tail = NONE;
        }
        if let Some(sample) = sample {
            state.rtt.sample(sample);
        }
        self.progressed(peer, newly);
        self.make_ready(peer);
    }

    /// `n` more segments have arrived.
    #[inline(always)]
    fn progressed(&mut self, peer: u32, n: u32) {
        let (now, attended, most) = (self.now, self.attended, self.config.window);
        let noise = 2 * self.ack_delay;
        let state = &mut self.peers[peer as usize];
        (state.waiting, state.progressed) = (attended, now);
        state.rtt.answered();
        let (rtt, suspect) = (&state.rtt, state.is(about::SUSPECT));
        let queueing = || rtt.queueing(noise);
        let shrunk = state.congestion.acknowledged(n, state.flight, queueing, most);
        if let Some((from, to)) = shrunk {
            self.record(peer, Event::Shrunk { from, to });
        }
        if suspect {
            self.clear_suspicion(peer);
        }
    }

    /// Marks what has arrived behind a gap; returns how many are news.
    #[cold]
    fn mark_arrived(&mut self, peer: u32, bitmap: SharedBytes<'_>) -> u32 {
        let now = self.now;
        let state = &mut self.peers[peer as usize];
        let mut bytes = [0; 512];
        let length = bitmap.copy_to(0, &mut bytes);
        let (mut index, mut marked, mut sample) = (state.una, 0, None);
        for bit in 0..8 * length {
            if index == NONE || index == state.unsent {
                break;
            }
            let segment = &mut self.segments[index];
            let news = matches!(segment.state, State::Posted | State::Resend);
            // Bit 0 would be the number that the acknowledgement says is missing.
            if news && bit > 0 && bytes[bit / 8] >> (bit % 8) & 1 == 1 {
                marked += 1;
                state.flight -= u32::from(segment.state == State::Posted);
                segment.state = State::Sacked;
                sample = state.saw(segment, now);
            }
            index = segment.next;
        }
        if let Some(sample) = sample {
            state.rtt.sample(sample);
        }
        if marked > 0 {
            self.progressed(peer, marked);
        }
        marked
    }

    /// Takes for lost what later transmissions have overtaken, at most so many. Without a gap, those behind the first
    /// that is not lost are not looked at.
    fn find_lost(&mut self, peer: u32, gap: bool, most: u32) {
        let state = &self.peers[peer as usize];
        let patience = state.resends.patience();
        let window = state.rtt.reordering(&self.bounds);
        // Peers look at the priority channel first: what arrives there first says nothing about the other.
        let (seen, [priority, data]) = (state.seen, state.newest);
        let newest = [priority.max(data), data];
        let (mut index, unsent) = (state.una, state.unsent);
        let (mut lost, mut bursts, mut burst) = (0, 0, false);
        while index != NONE && index != unsent && lost < most {
            let segment = &mut self.segments[index];
            let before = std::mem::replace(&mut burst, false);
            if segment.state == State::Posted {
                let at = place(segment.channel);
                let overtaken = seen[at] >= segment.order + patience;
                if overtaken || newest[at] >= segment.sent_at + window {
                    segment.state = State::Resend;
                    self.resends.push_back(index);
                    lost += 1;
                    bursts += u32::from(!before);
                    burst = true;
                } else if !gap {
                    break;
                }
            }
            index = segment.next;
        }
        if lost > 0 {
            self.counters.resends_fast += u64::from(lost);
            let state = &mut self.peers[peer as usize];
            state.flight -= lost;
            state.congestion.lost(bursts);
            self.record(peer, Event::Overtaken { segments: lost });
        }
    }

    /// Nothing new, and nothing behind a gap: the peer has sent again what it said before, because something reached it
    /// a second time. If our oldest should long have arrived, it did not: it is sent again at once, once.
    #[cold]
    fn on_duplicate_ack(&mut self, peer: u32) {
        let state = &self.peers[peer as usize];
        let (una, wait) = (state.una, 2 * state.rtt.smooth().unwrap_or(u64::MAX / 4));
        if una == NONE {
            return;
        }
        let segment = &self.segments[una];
        let overdue = self.now.saturating_sub(segment.sent_at) >= wait;
        if segment.state == State::Posted && !segment.again && overdue {
            self.lose(una);
            self.counters.resends_fast += 1;
            self.record(peer, Event::Missed);
        }
    }

    /// Takes one that is under way for lost.
    pub(crate) fn lose(&mut self, index: u32) {
        let segment = &mut self.segments[index];
        segment.state = State::Resend;
        self.peers[segment.peer as usize].flight -= 1;
        self.resends.push_back(index);
    }

    /// Whether resends were in vain: then nothing was lost, and what was concluded from the loss is taken back.
    fn judge_resends(&mut self, peer: u32, duplicates: u32) {
        let state = &mut self.peers[peer as usize];
        let vain = state.resends.told(duplicates);
        if vain > 0 {
            state.congestion.undo();
            self.counters.resends_vain += u64::from(vain);
            self.record(peer, Event::Vain { segments: vain });
        } else if state.una == NONE {
            state.resends.settle();
        }
    }
}
