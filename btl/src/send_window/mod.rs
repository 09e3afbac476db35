//! The send window of one peer: its segments in the order of their numbers, what became of each, and its
//! messages.
//!
//! ```text
//!   head ─► acked … ─► una: posted, sacked, lost … ─► unsent: queued … ─► tail
//! ```
//! Acknowledged segments of a message that is not complete are kept, so that the message can be given back.
//! Segments are in a pool that all peers share ([`Segments`]), so an idle peer has none.

mod segment;

use doorbell_fabric::datagram::Channel;
use doorbell_fabric::message::{MsgId, PeerIndex};

pub(crate) use segment::{Segment, Segments};

use crate::pool::Id;
use crate::seq::Seq;
use crate::wire::Kind;
use segment::State;

/// Messages that a peer did not take, each in one piece, for `reclaim`.
pub(crate) type Untaken = Vec<(MsgId, Vec<u8>)>;

/// Everything that is kept of what was sent to one peer.
#[derive(Debug)]
pub(crate) struct SendWindow {
    /// The oldest segment that is kept, the oldest not acknowledged, the oldest not sent, the last.
    head: Id<Segment>,
    una: Id<Segment>,
    unsent: Id<Segment>,
    tail: Id<Segment>,
    /// Length of the list.
    listed: u32,
    /// Segments under way: posted, and neither acknowledged nor taken for lost.
    flight: u32,
    /// Number of the next segment that is made; of the oldest not acknowledged; of the oldest not sent.
    next: Seq,
    una_seq: Seq,
    unsent_seq: Seq,
    /// The last segment that requested an answer at once.
    urgent: Seq,
    /// Transmissions per channel: made, and the latest of which we know that it arrived.
    made: [u64; 2],
    seen: [u64; 2],
    /// When the latest transmission per channel was made of which we know that it arrived (ns).
    newest: [u64; 2],
    messages: Messages,
}

/// The messages of a peer, counted over all of its connections.
#[derive(Clone, Copy, Debug, Default)]
struct Messages {
    /// How many were accepted.
    accepted: u64,
    /// All up to here were taken by the peer's upper layer.
    watermark: u64,
    /// Messages up to here were given back.
    given: u64,
}

/// What one acknowledgement shows about the segments that it covers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acked {
    /// The number that are newly acknowledged.
    pub(crate) newly: u32,
    /// The round trip of the last of those that went once (ns).
    pub(crate) trip: Option<u64>,
    /// Whether one of them, new or not, was sent more than once.
    pub(crate) again: bool,
    /// The latest that went more than once: channel, transmission, when that was.
    resent: Option<(Channel, u64, u64)>,
}

/// Segments that were found lost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lost {
    /// How many segments there are.
    pub(crate) segments: u32,
    /// Runs of segments that were posted one after the other.
    pub(crate) bursts: u32,
}

/// How much later transmissions must have overtaken one that is taken for lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overtaking {
    /// Later ones of the same channel that must have arrived.
    pub(crate) transmissions: u64,
    /// Or by how much later one that arrived must have been made (ns).
    pub(crate) time: u64,
}

impl SendWindow {
    /// An empty window whose first segment will have the number `first`.
    pub(crate) fn new(first: Seq) -> Self {
        Self {
            head: Id::NONE,
            una: Id::NONE,
            unsent: Id::NONE,
            tail: Id::NONE,
            listed: 0,
            flight: 0,
            next: first,
            una_seq: first,
            unsent_seq: first,
            urgent: first.previous(),
            made: [0; 2],
            seen: [0; 2],
            newest: [0; 2],
            messages: Messages::default(),
        }
    }

    /// The window of the next connection to the same peer: the numbers of its messages go on.
    pub(crate) fn of_next_connection(&self, first: Seq) -> Self {
        Self {
            messages: self.messages,
            ..Self::new(first)
        }
    }

    /// Returns how many segments are kept.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.listed
    }

    /// Returns how many segments are under way: posted, and neither acknowledged nor taken for lost.
    #[inline]
    pub(crate) fn flight(&self) -> u32 {
        self.flight
    }

    /// The number of the next segment that is pushed.
    #[inline]
    pub(crate) fn next_seq(&self) -> Seq {
        self.next
    }

    /// Whether a segment was sent, whatever became of it.
    pub(crate) fn was_sent(&self, seq: Seq) -> bool {
        self.unsent_seq.after(seq) > 0
    }

    /// The oldest segment that was not sent.
    #[inline]
    pub(crate) fn unsent(&self) -> Option<Id<Segment>> {
        (self.unsent != Id::NONE).then_some(self.unsent)
    }

    /// Whether a segment was sent, and is not acknowledged.
    #[inline]
    pub(crate) fn awaits_ack(&self) -> bool {
        self.una != Id::NONE
    }

    /// The oldest segment that is not acknowledged, of those that were sent.
    #[inline]
    pub(crate) fn oldest<'a>(&self, segments: &'a Segments) -> Option<&'a Segment> {
        self.awaits_ack().then(|| &segments[self.una])
    }

    /// The oldest segment that is not acknowledged, if it is under way.
    #[inline]
    pub(crate) fn oldest_posted(&self, segments: &Segments) -> Option<Id<Segment>> {
        (self.awaits_ack() && segments[self.una].state == State::Posted).then_some(self.una)
    }

    /// Returns how many segments were sent and are not acknowledged without a gap.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.unsent_seq.after(self.una_seq).max(0) as u64
    }

    /// All messages up to here were taken by the peer's upper layer.
    #[inline]
    pub(crate) fn watermark(&self) -> u64 {
        self.messages.watermark
    }

    /// The number of the last message that was accepted and is kept for the peer. Where none is, the
    /// watermark: what was given back after a break does not count.
    pub(crate) fn accepted(&self) -> u64 {
        match self.head == Id::NONE {
            true => self.messages.watermark,
            false => self.messages.accepted,
        }
    }

    /// Counts a message that is accepted; returns its number.
    #[inline]
    pub(crate) fn accept(&mut self) -> u64 {
        self.messages.accepted += 1;
        self.messages.accepted
    }

    /// Puts a segment at the end, with the next number. Whether it is the next to be sent.
    #[inline(always)]
    pub(crate) fn push(&mut self, segments: &mut Segments, peer: PeerIndex, id: Id<Segment>) -> bool {
        let segment = &mut segments[id];
        segment.peer = peer;
        segment.seq = self.next;
        segment.state = State::Queued;
        segment.marks = 0;
        segment.next = Id::NONE;
        self.next = self.next.plus(1);
        self.listed += 1;
        let last = std::mem::replace(&mut self.tail, id);
        if last == Id::NONE {
            self.head = id;
        } else {
            segments[last].next = id;
        }
        let first = self.unsent == Id::NONE;
        if first {
            self.unsent = id;
        }
        first
    }

    /// The oldest segment that was not sent is going to be posted. Whether nothing was under way before it.
    #[inline(always)]
    pub(crate) fn advance(&mut self, segments: &Segments, id: Id<Segment>) -> bool {
        self.unsent = segments[id].next;
        self.unsent_seq = self.unsent_seq.plus(1);
        let idle = self.una == Id::NONE;
        if idle {
            self.una = id;
        }
        idle
    }

    /// A segment is posted, for the first time or again.
    #[inline(always)]
    pub(crate) fn post(&mut self, segment: &mut Segment, now: u64) {
        let at = segment.channel.index();
        self.made[at] += 1;
        segment.order = self.made[at];
        segment.state = State::Posted;
        segment.sent_at = now;
        self.flight += 1;
    }

    /// Whether a segment that closes a narrow window requests an answer at once, and counts it as doing so:
    /// one answer opens all of the window, so one request is enough.
    #[inline]
    pub(crate) fn ask_at_once(&mut self, seq: Seq) -> bool {
        let asks = self.una_seq.after(self.urgent) > 0;
        if asks {
            self.urgent = seq;
        }
        asks
    }

    /// Returns how many segments an acknowledgement of everything up to `ack` is about; negative when it is
    /// older than the last.
    #[inline(always)]
    pub(crate) fn covered(&self, ack: Seq) -> i32 {
        ack.plus(1).after(self.una_seq)
    }

    /// The `n` oldest segments have arrived; those whose messages are complete are given back.
    #[inline(always)]
    pub(crate) fn acknowledge(&mut self, segments: &mut Segments, n: u32, now: u64) -> Acked {
        let mut acked = Acked::default();
        let mut id = self.una;
        let mut left = n;
        while left > 0 {
            left -= 1;
            let segment = &mut segments[id];
            if segment.state != State::Sacked {
                self.flight -= u32::from(segment.state == State::Posted);
                self.add(&mut acked, segment, now);
            }
            acked.again |= segment.was_sent_again();
            segment.state = State::Acked;
            let (next, ends, part) = (segment.next, segment.ends, segment.kind == Kind::Chunk);
            if ends != 0 {
                self.messages.watermark = ends;
            }
            if ends != 0 || !part {
                // Everything up to here belongs to messages that are complete.
                loop {
                    let first = self.head;
                    self.head = segments[first].next;
                    self.listed -= 1;
                    segments.give(first);
                    if first == id {
                        break;
                    }
                }
            }
            id = next;
        }
        self.una_seq = self.una_seq.plus(n);
        if self.una_seq.after(self.urgent) > 0 {
            self.urgent = self.una_seq.previous();
        }
        self.una = if id == self.unsent { Id::NONE } else { id };
        if self.head == Id::NONE {
            self.tail = Id::NONE;
        }
        acked
    }

    /// Marks what has arrived behind a gap: `bits` has a bit for each number from the oldest that is not
    /// acknowledged.
    pub(crate) fn mark_arrived(&mut self, segments: &mut Segments, bits: &[u8], now: u64) -> Acked {
        let (mut id, mut acked) = (self.una, Acked::default());
        for bit in 0..8 * bits.len() {
            if id == Id::NONE || id == self.unsent {
                break;
            }
            let segment = &mut segments[id];
            let news = matches!(segment.state, State::Posted | State::Resend);
            // Bit 0 would be the number that the acknowledgement reports missing.
            if news && bit > 0 && bits[bit / 8] >> (bit % 8) & 1 == 1 {
                self.flight -= u32::from(segment.state == State::Posted);
                segment.state = State::Sacked;
                self.add(&mut acked, segment, now);
            }
            id = segment.next;
        }
        acked
    }

    #[inline]
    fn add(&mut self, acked: &mut Acked, segment: &Segment, now: u64) {
        acked.newly += 1;
        if segment.was_sent_again() {
            let known = acked.resent.map_or(0, |(_, order, _)| order);
            if segment.order > known {
                acked.resent = Some((segment.channel, segment.order, segment.sent_at));
            }
        } else {
            self.saw(segment.channel, segment.order, segment.sent_at);
            acked.trip = Some(now.saturating_sub(segment.sent_at));
        }
    }

    /// Karn's problem: an acknowledgement of a segment that was sent twice is ambiguous. It was not for the
    /// second when others have arrived with it that went once (the peer was away, and looks at all of it
    /// now), nor when it came far sooner than any before, the shortest of which took `least` (those may have
    /// waited for something to ride on; retransmissions request an answer at once).
    #[inline]
    pub(crate) fn judge_resent(&mut self, acked: &Acked, now: u64, least: u64) {
        let Some((channel, order, sent_at)) = acked.resent.filter(|_| acked.trip.is_none()) else {
            return;
        };
        if now.saturating_sub(sent_at) >= least / 4 {
            self.saw(channel, order, sent_at);
        }
    }

    /// A transmission has arrived: notes the latest of its channel.
    #[inline]
    fn saw(&mut self, channel: Channel, order: u64, sent_at: u64) {
        let at = channel.index();
        self.seen[at] = self.seen[at].max(order);
        self.newest[at] = self.newest[at].max(sent_at);
    }

    /// Takes for lost what later transmissions have overtaken, `most` segments at most. Without a gap, those
    /// behind the first that is not lost are not considered.
    pub(crate) fn find_lost(
        &mut self,
        segments: &mut Segments,
        overtaking: Overtaking,
        gap: bool,
        most: u32,
    ) -> Lost {
        // Peers poll the priority channel first: what arrives there first shows nothing about the other.
        let (seen, [priority, data]) = (self.seen, self.newest);
        let newest = [priority.max(data), data];
        let (mut id, unsent) = (self.una, self.unsent);
        let (mut lost, mut burst) = (Lost::default(), false);
        while id != Id::NONE && id != unsent && lost.segments < most {
            let segment = &mut segments[id];
            let (next, before) = (segment.next, std::mem::replace(&mut burst, false));
            if segment.state == State::Posted {
                let at = segment.channel.index();
                let overtaken = seen[at] >= segment.order + overtaking.transmissions;
                if overtaken || newest[at] >= segment.sent_at + overtaking.time {
                    segment.state = State::Resend;
                    segments.push_lost(id);
                    lost.segments += 1;
                    lost.bursts += u32::from(!before);
                    burst = true;
                } else if !gap {
                    break;
                }
            }
            id = next;
        }
        self.flight -= lost.segments;
        lost
    }

    /// Takes for lost, after a time-out, the oldest segment under way and all that are as late: something
    /// that was sent `time` later (ns) has arrived on the data channel, which is the one that peers look at
    /// last. (A lost burst of the priority channel with nothing behind it is found so: the oldest went again
    /// as data.) Returns whether the oldest was under way, and how many others there were.
    pub(crate) fn lose_late(&mut self, segments: &mut Segments, time: u64) -> (bool, u32) {
        let newest = self.newest[Channel::Data.index()];
        let (first, unsent, mut id) = (self.una, self.unsent, self.una);
        let (mut oldest, mut others) = (false, 0);
        while id != Id::NONE && id != unsent {
            let segment = &segments[id];
            let (next, late) = (segment.next, newest >= segment.sent_at + time);
            if segment.state == State::Posted && (late || id == first) {
                self.lose(segments, id);
                oldest |= id == first;
                others += u32::from(id != first);
            }
            id = next;
        }
        (oldest, others)
    }

    /// Takes a segment that is under way for lost.
    pub(crate) fn lose(&mut self, segments: &mut Segments, id: Id<Segment>) {
        segments[id].state = State::Resend;
        segments.push_lost(id);
        self.flight -= 1;
    }

    /// Copies the messages that the peer has not taken, each in one piece; each is given back once.
    pub(crate) fn take_back(&mut self, segments: &Segments) -> Untaken {
        let mut untaken = Untaken::new();
        let known = self.messages.watermark.max(self.messages.given);
        let (mut id, mut parts) = (self.head, Vec::new());
        while id != Id::NONE {
            let segment = &segments[id];
            if matches!(segment.kind, Kind::Frag | Kind::Chunk) {
                parts.extend_from_slice(segment.payload());
            }
            if segment.ends != 0 {
                let whole = std::mem::take(&mut parts);
                if segment.ends > known {
                    untaken.push((MsgId(segment.ends), whole));
                }
            }
            id = segment.next;
        }
        self.messages.given = self.messages.accepted;
        untaken
    }

    /// Gives all segments back: the connection has ended.
    pub(crate) fn clear(&mut self, segments: &mut Segments) {
        let mut id = self.head;
        while id != Id::NONE {
            let next = segments[id].next;
            segments.give(id);
            id = next;
        }
        (self.head, self.una, self.unsent, self.tail) = (Id::NONE, Id::NONE, Id::NONE, Id::NONE);
        (self.listed, self.flight) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(segments: &mut Segments, messages: u64) -> SendWindow {
        let mut window = SendWindow::new(Seq(u32::MAX - 1));
        for _ in 0..messages {
            let id = segments.take().unwrap();
            let ends = window.accept();
            let payload = segments[id].fill(Kind::Frag, Channel::Data, 1, ends);
            payload[0] = ends as u8;
            window.push(segments, PeerIndex(3), id);
        }
        window
    }

    fn send(window: &mut SendWindow, segments: &mut Segments, now: u64) {
        let id = window.unsent().unwrap();
        window.advance(segments, id);
        window.post(&mut segments[id], now);
    }

    #[test]
    fn of_what_went_twice_the_second_is_seen_unless_others_came_with_it_or_it_was_too_soon() {
        let resent = Some((Channel::Data, 7, 100_000));
        for (trip, now, seen) in [
            (None, 140_000, 7),
            (None, 110_000, 7),
            (None, 109_999, 0),
            (Some(300_000), 140_000, 0),
        ] {
            let mut window = SendWindow::new(Seq(0));
            let acked = Acked {
                newly: 2,
                trip,
                again: true,
                resent,
            };
            window.judge_resent(&acked, now, 40_000);
            let newest = if seen > 0 { 100_000 } else { 0 };
            let at = Channel::Data.index();
            assert_eq!(
                (window.seen[at], window.newest[at]),
                (seen, newest),
                "{trip:?} {now}"
            );
        }
    }

    #[test]
    fn segments_go_from_queued_to_free_and_messages_are_counted() {
        let mut segments = Segments::new(8, 64);
        let mut window = window(&mut segments, 4);
        (0..3).for_each(|_| send(&mut window, &mut segments, 1_000));
        assert_eq!(
            (window.len(), window.flight(), window.unacknowledged()),
            (4, 3, 3)
        );
        assert!(window.was_sent(Seq(0)) && !window.was_sent(Seq(1)));
        assert_eq!(window.covered(Seq(u32::MAX)), 2, "across the wrap");
        let acked = window.acknowledge(&mut segments, 2, 1_500);
        assert_eq!((acked.newly, acked.trip, acked.again), (2, Some(500), false));
        assert_eq!(
            (window.watermark(), window.flight(), segments.active()),
            (2, 1, 2)
        );
        let untaken = window.take_back(&segments);
        assert_eq!(untaken, [(MsgId(3), vec![3]), (MsgId(4), vec![4])]);
        assert!(window.take_back(&segments).is_empty(), "once");
        window.clear(&mut segments);
        assert_eq!((window.len(), window.flight(), segments.active()), (0, 0, 0));
        let next = window.of_next_connection(Seq(9));
        assert_eq!((next.watermark(), next.next_seq()), (2, Seq(9)));
    }

    #[test]
    fn what_later_transmissions_overtook_is_lost_in_bursts() {
        let mut segments = Segments::new(8, 64);
        let mut window = window(&mut segments, 6);
        (0..6).for_each(|n| send(&mut window, &mut segments, 1_000 + n));
        // The second and the fifth have arrived.
        let acked = window.mark_arrived(&mut segments, &[0b01_0010], 2_000);
        assert_eq!((acked.newly, window.flight()), (2, 4));
        let overtaking = Overtaking {
            transmissions: 1,
            time: u64::MAX / 2,
        };
        let lost = window.find_lost(&mut segments, overtaking, true, u32::MAX);
        assert_eq!((lost.segments, lost.bursts), (3, 2), "1; 3 and 4");
        assert_eq!(
            (segments.lost(), window.flight()),
            (3, 1),
            "the last is under way"
        );
        assert_eq!(window.oldest_posted(&segments), None);
        let first = segments.next_lost().unwrap();
        segments[first].send_again();
        window.post(&mut segments[first], 3_000);
        assert_eq!(window.oldest_posted(&segments), Some(first));
        assert_eq!(window.lose_late(&mut segments, 10_000), (true, 0));
        let acked = window.acknowledge(&mut segments, 6, 4_000);
        assert_eq!((acked.newly, acked.again, window.flight()), (4, true, 0));
    }
}
