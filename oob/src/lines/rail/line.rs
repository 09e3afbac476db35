//! A connection over a rail: a session whose bytes go in numbered segments; sans I/O.
//!
//! ```text
//!   orders ─► sealed, 64 KiB at most ─► piece(): 0, 1, 2 … ─► given() ─► the rail ─► handed(): frames sent
//!   events ◄─ opened ◄─ in order ◄─ ahead (the window at most) ◄─ take() ◄─ the rail
//! ```

use std::collections::{BTreeMap, VecDeque};

use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;

use super::wire::{Kind, WINDOW};
use crate::error::OobError;
use crate::lines::stream::{End, Order, Stream};
use crate::session::{Event, Role, Terms};

/// Maximum sealed bytes that wait for the rail before more is sealed.
const SEALED: usize = 64 << 10;
/// Maximum bytes that wait to be reordered before the peer has proved the key.
const AHEAD: usize = 16 << 10;

/// The next segment of a line.
#[derive(Debug)]
pub(super) struct Next<'a> {
    pub(super) kind: Kind,
    pub(super) sequence: u64,
    pub(super) bytes: &'a [u8],
}

/// The place of a line: the index of the module, and the rail's index of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::lines) struct Spot {
    pub(super) module: usize,
    pub(super) peer: PeerIndex,
}

/// A connection over a rail.
#[derive(Debug)]
pub(in crate::lines) struct Line {
    pub(super) spot: Spot,
    /// The caller's number of the line.
    pub(super) number: u64,
    stream: Stream,
    orders: VecDeque<Order>,
    /// The number of the next segment to send, and of the next one expected.
    next: u64,
    expected: u64,
    /// Segments that arrived early; an empty one is the end.
    ahead: BTreeMap<u64, Vec<u8>>,
    waiting: usize,
    /// Whether the peer has proved the key.
    pub(super) proved: bool,
    /// Whether the end has its place in the stream.
    shut: bool,
    /// The time at which the handshake, or closing, has taken too long.
    pub(super) deadline: Option<Time>,
}

impl Line {
    pub(super) fn new(
        spot: Spot,
        (ours, number): (bool, u64),
        terms: &Terms,
        now: Time,
    ) -> Result<Self, OobError> {
        let role = if ours { Role::Caller } else { Role::Answerer };
        Ok(Self {
            spot,
            number,
            stream: Stream::new(role, terms, now)?,
            orders: VecDeque::new(),
            next: 0,
            expected: 0,
            ahead: BTreeMap::new(),
            waiting: 0,
            proved: false,
            shut: false,
            deadline: Some(now + terms.handshake),
        })
    }

    /// Whether we made the call.
    pub(super) fn is_ours(&self) -> bool {
        self.stream.is_caller()
    }

    pub(super) fn order(&mut self, order: Order) {
        if !self.stream.is_leaving() {
            self.orders.push_back(order);
        }
    }

    /// Takes a segment; an empty one is the end. [`Line::event`] returns what it meant, also after an error.
    pub(super) fn take(&mut self, sequence: u64, piece: &[u8]) -> Result<Arrival, End> {
        if sequence < self.expected || self.ahead.contains_key(&sequence) {
            return Ok(Arrival::Twice);
        }
        if sequence == self.expected {
            self.understand(piece)?;
            while let Some(next) = self.ahead.remove(&self.expected) {
                self.waiting -= next.len();
                self.understand(&next)?;
            }
            return Ok(Arrival::Next);
        }
        let most = if self.proved { usize::MAX } else { AHEAD };
        if sequence - self.expected >= WINDOW || self.waiting + piece.len() > most {
            return Err(End::of(OobError::Stranger {
                what: "its segments skip more than the window",
            }));
        }
        self.waiting += piece.len();
        self.ahead.insert(sequence, piece.to_vec());
        Ok(Arrival::Ahead)
    }

    fn understand(&mut self, piece: &[u8]) -> Result<(), End> {
        self.expected += 1;
        if piece.is_empty() {
            return Err(self.stream.ended());
        }
        self.stream.receive(piece)
    }

    pub(super) fn event(&mut self) -> Option<Event> {
        self.stream.event()
    }

    /// Returns the next segment to send, of at most `most` bytes.
    pub(super) fn piece(&mut self, most: usize) -> Result<Option<Next<'_>>, End> {
        while self.stream.backlog() < SEALED
            && let Some(order) = self.orders.pop_front()
        {
            self.stream.obey(order)?;
        }
        let ends = self.stream.is_leaving() && !self.shut && !self.stream.is_left();
        let calls = self.is_ours() && self.next == 0;
        let rest = self.stream.next();
        let kind = match rest.is_empty() {
            false if calls => Kind::Call,
            false => Kind::Piece,
            true if ends => Kind::End,
            true => return Ok(None),
        };
        Ok(Some(Next {
            kind,
            sequence: self.next,
            bytes: &rest[..rest.len().min(most)],
        }))
    }

    /// Confirms that the rail has taken what [`Line::piece`] returned.
    pub(super) fn given(&mut self, length: usize) {
        self.next += 1;
        self.stream.given(length);
        self.shut |= length == 0;
    }

    /// Takes the number of bytes that the peer has taken. Returns the number of frames sent so far, if it has
    /// grown.
    pub(super) fn handed(&mut self, length: usize) -> Option<u64> {
        self.stream.taken(length)
    }

    /// Closes the line: what was sealed is sent, then the record that closes a session, and nothing more.
    pub(super) fn leave(&mut self) {
        self.stream.leave();
        self.orders.clear();
    }

    /// Whether both sides have closed, and everything of ours is sent.
    pub(super) fn is_over(&self) -> bool {
        self.stream.is_leaving() && self.stream.is_left() && self.is_sent()
    }

    /// Whether the rail has everything that was to be sent.
    pub(super) fn is_sent(&self) -> bool {
        self.stream.backlog() == 0 && self.orders.is_empty()
    }

    /// Returns the end of a line whose time is over.
    pub(super) fn late(&self, terms: &Terms) -> End {
        self.stream.late(terms)
    }

    /// Ends the line: only what is already sealed is sent, such as a refusal, and the end.
    pub(super) fn haunt(&mut self) {
        self.orders.clear();
        self.ahead.clear();
        self.waiting = 0;
        self.stream.cut();
    }

    /// Whether an ended line has sent everything.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_sent() && (self.shut || self.stream.is_left())
    }
}

/// What a received segment was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The expected one.
    Next,
    /// One that arrived early.
    Ahead,
    /// A duplicate of an earlier one.
    Twice,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::key::JobKey;
    use crate::name::Name;
    use crate::transport::Loss;
    use crate::wire::{Frame, Head, Lane, Seq};

    const SPOT: Spot = Spot {
        module: 0,
        peer: PeerIndex(0),
    };

    fn terms(key: u8) -> Terms {
        Terms {
            longest: 1 << 20,
            ..Terms::new(Some(JobKey::from_bytes([key; 32])), 3, 9)
        }
    }

    fn line(ours: bool, key: u8) -> Line {
        Line::new(SPOT, (ours, 1), &terms(key), Time::ZERO).unwrap()
    }

    /// Everything that one side has to send, in segments of at most `most` bytes.
    fn pieces(line: &mut Line, most: usize) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(next) = line.piece(most).unwrap() {
            let (sequence, bytes) = (next.sequence, next.bytes.to_vec());
            assert!(bytes.len() <= most);
            line.given(bytes.len());
            all.push((sequence, bytes));
        }
        all
    }

    fn carry(from: &mut Line, to: &mut Line, most: usize) -> Vec<Event> {
        for (sequence, bytes) in pieces(from, most) {
            assert!(matches!(to.take(sequence, &bytes), Ok(Arrival::Next)));
            from.handed(bytes.len());
        }
        std::iter::from_fn(|| to.event()).collect()
    }

    fn pair() -> (Line, Line) {
        let (mut one, mut two) = (line(true, 7), line(false, 7));
        assert!(carry(&mut one, &mut two, 9).is_empty());
        let ready = carry(&mut two, &mut one, 9);
        assert!(matches!(ready[..], [Event::Ready(peer)] if peer.name == Name::new(0, 0)));
        assert_eq!(carry(&mut one, &mut two, 9).len(), 1);
        two.proved = true;
        (one, two)
    }

    fn frame(body: Vec<u8>) -> Frame {
        let head = Head {
            kind: crate::wire::Kind::Data,
            lane: Lane::User,
            origin: Name::new(1, 0),
            epoch: crate::name::Epoch(1),
            destination: Name::new(1, 1),
            to_epoch: crate::name::Epoch(1),
            tag: 200,
            sequence: Seq(1),
            back: 0,
            ack: None,
            gap: false,
            hops: 0,
        };
        Frame::new(&head, Some(1), Bytes::from(body))
    }

    #[test]
    fn long_frames_are_cut_and_joined_whatever_order_their_pieces_have() {
        let (mut one, mut two) = pair();
        let frames = [vec![1; 200_000], vec![2; 3], vec![3; 70_000]];
        for body in &frames {
            one.order(Order::Frame(frame(body.clone())));
        }
        let mut window = Vec::new();
        let mut said = Vec::new();
        let mut told = Vec::new();
        loop {
            window.extend(
                one.piece(4096)
                    .unwrap()
                    .map(|next| (next.sequence, next.bytes.to_vec())),
            );
            let Some((_, last)) = window.last() else { break };
            let length = last.len();
            let more = window.len() > said.len();
            if more {
                one.given(length);
                said.push(length);
            }
            // As many as may be in flight: the last one arrives first.
            if window.len() == WINDOW as usize || one.piece(4096).unwrap().is_none() {
                for (at, (sequence, bytes)) in window.drain(..).rev().enumerate() {
                    let came = two.take(sequence, &bytes).unwrap();
                    assert!(at == 0 || came != Arrival::Twice);
                    assert!(matches!(two.take(sequence, &bytes), Ok(Arrival::Twice)));
                }
                told.extend(said.drain(..).filter_map(|length| one.handed(length)));
            }
        }
        let lengths: Vec<usize> = std::iter::from_fn(|| two.event())
            .map(|event| match event {
                Event::Message(bytes) => bytes.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(lengths, frames.map(|body| body.len() + crate::wire::HEAD));
        assert_eq!(told.last(), Some(&3), "each is sent when it was taken: {told:?}");
    }

    #[test]
    fn what_leaves_out_too_much_ends_the_line_before_memory_is_taken() {
        let (_, mut two) = pair();
        let at = two.expected;
        assert!(matches!(two.take(at + WINDOW - 1, &[0; 10]), Ok(Arrival::Ahead)));
        assert!(two.take(at + WINDOW, &[0; 10]).is_err(), "beyond the window");
        let mut stranger = line(false, 7);
        assert!(matches!(stranger.take(1, &[0; AHEAD]), Ok(Arrival::Ahead)));
        assert!(
            stranger.take(2, &[0]).is_err(),
            "more than allowed before the proof"
        );
        assert_eq!(stranger.waiting, AHEAD);
    }

    #[test]
    fn the_end_is_reported_in_its_place_and_a_cut_is_known() {
        let (mut one, mut two) = pair();
        one.order(Order::Frame(frame(vec![1; 10])));
        one.order(Order::Leave);
        one.order(Order::Frame(frame(vec![2; 10])));
        let said = pieces(&mut one, 1000);
        let (end, before) = said.split_last().unwrap();
        assert!(end.1.is_empty() && matches!(two.take(end.0, &end.1), Ok(Arrival::Ahead)));
        let mut last = Ok(Arrival::Next);
        for (sequence, bytes) in before {
            last = two.take(*sequence, bytes);
        }
        assert!(
            matches!(
                last,
                Err(End {
                    loss: Loss::Closed,
                    ..
                })
            ),
            "in good order"
        );
        let events: Vec<Event> = std::iter::from_fn(|| two.event()).collect();
        assert!(
            matches!(events[..], [Event::Message(_), Event::Closed]),
            "{events:?}"
        );

        let (_, mut cut) = pair();
        let end = cut.take(cut.expected, &[]).unwrap_err();
        assert!(matches!(end.error, Some(OobError::Truncated)), "{end:?}");
    }

    #[test]
    fn a_wrong_key_is_reported_to_both_and_the_refusal_goes_out_of_a_line_that_is_over() {
        let (mut one, mut two) = (line(true, 7), line(false, 8));
        let said = pieces(&mut one, 1000);
        let end = two.take(0, &said[0].1).unwrap_err();
        assert!(matches!(end.error, Some(OobError::WrongKey)), "{end:?}");
        two.haunt();
        assert!(!two.is_at_rest());
        let said = pieces(&mut two, 1000);
        assert!(two.is_at_rest());
        let end = one.take(0, &said[0].1).unwrap_err();
        assert!(matches!(end.error, Some(OobError::WrongKey)), "{end:?}");
    }
}
