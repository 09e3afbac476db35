//! Acknowledgements of what we sent: what has arrived is let go, what must be lost is sent again.
//!
//! A transmission is taken for lost when enough later ones *of the same channel* have arrived (one, until the network
//! is seen to reorder), or when one has that was made much later; for the priority channel, that may be one of the data
//! channel. Else the two channels overtake each other all the time, and by as much as waits in the queues of a peer that
//! was busy elsewhere, which means nothing. A frame of kind ACK says everything that has arrived; the number on a
//! segment keeps silent about what came behind a gap, so that only the oldest segment is judged by it.
//!
//! Sources: RFC 2018 (selective acknowledgement), RFC 8985 (loss by later transmissions); reference: vic, section 6.4.

use doorbell_fabric::datagram::Channel;
use doorbell_fabric::memory::SharedBytes;

use crate::core::Core;
use crate::peer::{Peer, about};
use crate::pool::Id;
use crate::record::Event;
use crate::segment::{Segment, State};
use crate::seq::Seq;
use crate::transmit::place;
use crate::wire::Kind;

/// By so many delays of acknowledgements round trips are longer although no queue stands on the way: the peer's and ours, and
/// what the bursts of one pass take (two flows that share a link become equal: `tests/rates.rs`).
const NOISE: u64 = 4;

/// A peer that takes so many times as long to answer as one that looks all the time was busy.
const BUSY: u64 = 3;

/// What one acknowledgement tells of the segments that it is about.
#[derive(Default)]
struct Told {
    /// How many are news.
    newly: u32,
    /// The round trip of the last of those that went once.
    trip: Option<u64>,
    /// The latest that went again: channel, transmission, when that was.
    again: Option<(Channel, u64, u64)>,
}

impl Told {
    #[inline]
    fn add(&mut self, segment: &Segment, peer: &mut Peer, now: u64) {
        self.newly += 1;
        if segment.again {
            let known = self.again.map_or(0, |(_, order, _)| order);
            if segment.order > known {
                self.again = Some((segment.channel, segment.order, segment.sent_at));
            }
        } else {
            peer.saw(segment.channel, segment.order, segment.sent_at);
            self.trip = Some(now.saturating_sub(segment.sent_at));
        }
    }

    /// Of a segment that went twice nobody knows which has arrived. It was not the second when others have arrived with
    /// it that went once (the peer was away, and looks at all of it now), nor when the answer came far sooner than any
    /// before (those may have waited for something to ride on; what goes again asks for an answer at once).
    #[inline]
    fn judge(&self, peer: &mut Peer, now: u64) {
        let Some((channel, order, sent_at)) = self.again.filter(|_| self.trip.is_none()) else {
            return;
        };
        if now.saturating_sub(sent_at) >= peer.rtt.least() / 4 {
            peer.saw(channel, order, sent_at);
        }
    }
}

impl Peer {
    /// A transmission has arrived: what that tells about its channel.
    #[inline]
    fn saw(&mut self, channel: Channel, order: u64, sent_at: u64) {
        let at = place(channel);
        self.seen[at] = self.seen[at].max(order);
        self.newest[at] = self.newest[at].max(sent_at);
    }
}

impl Core {
    /// The number on a segment.
    #[inline(always)]
    pub(crate) fn on_ack(&mut self, peer: PeerIndex, ack: Seq) {
        let state = &self.peers[peer];
        let new = ack.plus(1).after(state.una_seq);
        if new == 0 {
            return;
        }
        if self.is_ack_right(peer, ack, new) {
            self.acknowledge(peer, new as u32);
            let una = self.peers[peer].una;
            if una != Id::NONE && self.segments[una].state == State::Posted {
                self.find_lost(peer, false, 1);
            }
        }
    }

    fn is_ack_right(&mut self, peer: PeerIndex, ack: Seq, new: i32) -> bool {
        if new < 0 {
            self.counters.acks_old += 1;
            return false;
        }
        if ack.after(self.peers[peer].unsent_seq) >= 0 {
            self.counters.acks_bad += 1;
            self.record(peer, Event::BadAck);
            return false;
        }
        true
    }

    /// A frame of kind ACK: number, bitmap of what came behind the gap, count of duplicates.
    #[inline(never)]
    pub(crate) fn on_explicit_ack(
        &mut self,
        peer: PeerIndex,
        ack: Seq,
        duplicates: u32,
        bitmap: SharedBytes<'_>,
    ) {
        let new = ack.plus(1).after(self.peers[peer].una_seq);
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
    fn acknowledge(&mut self, peer: PeerIndex, n: u32) {
        let now = self.now;
        let state = &mut self.peers[peer];
        let (mut told, mut again) = (Told::default(), false);
        let mut index = state.una;
        let mut left = n;
        while left > 0 {
            left -= 1;
            let segment = &mut self.segments[index];
            if segment.state != State::Sacked {
                state.flight -= u32::from(segment.state == State::Posted);
                told.add(segment, state, now);
            }
            again |= segment.again;
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
        state.una = if index == state.unsent { Id::NONE } else { index };
        if state.head == Id::NONE {
            state.tail = Id::NONE;
        }
        told.judge(state, now);
        // Where a gap was closed, what came behind it may have arrived long ago.
        if let Some(trip) = told.trip.filter(|_| !again) {
            state.rtt.sample(trip);
        }
        self.progressed(peer, told.newly);
        self.make_ready(peer);
    }

    /// `n` more segments have arrived.
    #[inline(always)]
    fn progressed(&mut self, peer: PeerIndex, n: u32) {
        let (now, attended, most) = (self.now, self.attended, self.config.window);
        let (noise, bounds) = (NOISE * self.ack_delay, &self.bounds);
        let state = &mut self.peers[peer];
        (state.waiting, state.progressed) = (attended, now);
        state.rtt.answered();
        state.resends.answered(now, || BUSY * state.rtt.prompt(bounds));
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
    fn mark_arrived(&mut self, peer: PeerIndex, bitmap: SharedBytes<'_>) -> u32 {
        let now = self.now;
        let state = &mut self.peers[peer];
        let mut bytes = [0; 512];
        let length = bitmap.copy_to(0, &mut bytes);
        let (mut index, mut told) = (state.una, Told::default());
        for bit in 0..8 * length {
            if index == Id::NONE || index == state.unsent {
                break;
            }
            let segment = &mut self.segments[index];
            let news = matches!(segment.state, State::Posted | State::Resend);
            // Bit 0 would be the number that the acknowledgement says is missing.
            if news && bit > 0 && bytes[bit / 8] >> (bit % 8) & 1 == 1 {
                state.flight -= u32::from(segment.state == State::Posted);
                segment.state = State::Sacked;
                told.add(segment, state, now);
            }
            index = segment.next;
        }
        told.judge(state, now);
        if let Some(trip) = told.trip {
            state.rtt.sample(trip);
        }
        if told.newly > 0 {
            self.progressed(peer, told.newly);
        }
        told.newly
    }

    /// Takes for lost what later transmissions have overtaken, at most so many. Without a gap, those behind the first
    /// that is not lost are not looked at.
    fn find_lost(&mut self, peer: PeerIndex, gap: bool, most: u32) {
        let state = &self.peers[peer];
        let patience = state.resends.patience();
        let window = state.rtt.reordering(&self.bounds);
        // Peers look at the priority channel first: what arrives there first says nothing about the other.
        let (seen, [priority, data]) = (state.seen, state.newest);
        let newest = [priority.max(data), data];
        let (mut index, unsent) = (state.una, state.unsent);
        let (mut lost, mut bursts, mut burst) = (0, 0, false);
        while index != Id::NONE && index != unsent && lost < most {
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
            let state = &mut self.peers[peer];
            state.flight -= lost;
            state.congestion.lost(bursts);
            self.record(peer, Event::Overtaken { segments: lost });
        }
    }

    /// Nothing new, and nothing behind a gap: the peer has sent again what it said before, because something reached it
    /// a second time. If our oldest should long have arrived, it did not: it is sent again at once, once.
    #[cold]
    fn on_duplicate_ack(&mut self, peer: PeerIndex) {
        let state = &self.peers[peer];
        let (una, wait) = (state.una, 2 * state.rtt.smooth().unwrap_or(u64::MAX / 4));
        if una == Id::NONE {
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
    pub(crate) fn lose(&mut self, index: Id<Segment>) {
        let segment = &mut self.segments[index];
        segment.state = State::Resend;
        self.peers[segment.peer].flight -= 1;
        self.resends.push_back(index);
    }

    /// Whether resends were in vain: then nothing was lost, and what was concluded from the loss is taken back.
    fn judge_resends(&mut self, peer: PeerIndex, duplicates: u32) {
        let (now, bounds) = (self.now, &self.bounds);
        let state = &mut self.peers[peer];
        state.resends.answered(now, || BUSY * state.rtt.prompt(bounds));
        let vain = state.resends.told(duplicates);
        if vain > 0 {
            state.congestion.undo();
            self.counters.resends_vain += u64::from(vain);
            self.record(peer, Event::Vain { segments: vain });
        } else if state.una == Id::NONE {
            state.resends.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::message::PeerIndex;

    use super::*;
    use crate::key::Link;

    fn peer() -> Peer {
        let link = || Link {
            connection: 1,
            first: Seq(0),
        };
        let mut peer = Peer::new(PeerIndex(0), link(), link(), 32, None);
        peer.rtt.shortest(40_000);
        peer
    }

    #[test]
    fn of_what_went_twice_the_second_is_seen_unless_others_came_with_it_or_it_was_too_soon() {
        let again = Some((Channel::Data, 7, 100_000));
        for (trip, now, seen) in [
            (None, 140_000, 7),
            (None, 110_000, 7),
            (None, 109_999, 0),
            (Some(300_000), 140_000, 0),
        ] {
            let (told, mut peer) = (
                Told {
                    newly: 2,
                    trip,
                    again,
                },
                peer(),
            );
            told.judge(&mut peer, now);
            let newest = if seen > 0 { 100_000 } else { 0 };
            let at = place(Channel::Data);
            assert_eq!((peer.seen[at], peer.newest[at]), (seen, newest), "{trip:?} {now}");
        }
    }
}
