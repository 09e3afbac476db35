//! A connection over a rail: a session whose bytes go in numbered pieces. No rail and no clock in it.
//!
//! ```text
//!   orders ─► sealed, 64 KiB at most ─► piece(): 0, 1, 2 … ─► given() ─► the rail ─► handed(): frames that are sent
//!   events ◄─ opened ◄─ in order ◄─ ahead (the window at most) ◄─ take() ◄─ the rail
//! ```

use std::collections::{BTreeMap, VecDeque};

use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;

use super::wire::{Kind, WINDOW};
use crate::connect::Conn;
use crate::error::OobError;
use crate::net::{End, Order};
use crate::session::{Event, Peer, Role, Session, Terms};
use crate::transport::{LinkId, Loss};

/// Sealed bytes that may wait for the rail before more is sealed.
const SEALED: usize = 64 << 10;
/// Bytes that may wait to be put in order before the other side has proved the key.
const AHEAD: usize = 16 << 10;

/// The next piece of a line.
#[derive(Debug)]
pub(super) struct Next<'a> {
    pub(super) kind: Kind,
    pub(super) sequence: u64,
    pub(super) bytes: &'a [u8],
}

/// Where a line is: the module, by its place, and the peer as the rail numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Spot {
    pub(super) module: usize,
    pub(super) peer: PeerIndex,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) spot: Spot,
    /// Whether we have called, and the line's number at whoever called.
    pub(super) ours: bool,
    pub(super) number: u64,
    session: Session,
    orders: VecDeque<Order>,
    /// Sealed bytes, and how many of them the rail has.
    out: Vec<u8>,
    at: usize,
    /// The number of the next piece that goes out, and of the next that comes in.
    next: u64,
    expected: u64,
    /// Pieces that came before others; an empty one is the end.
    ahead: BTreeMap<u64, Vec<u8>>,
    waiting: usize,
    /// Where in the stream the frames end that the peer has not taken; bytes of the stream that left the session, and
    /// that the peer has taken.
    marks: VecDeque<u64>,
    taken_out: u64,
    handed: u64,
    sent: u64,
    sent_told: u64,
    /// We end: nothing more is sealed.
    leaving: bool,
    /// The end has its place in the stream.
    shut: bool,
    /// When the handshake, or the end, has taken too long.
    pub(super) deadline: Option<Time>,
    /// What the meeting calls it, as long as it knows of it.
    pub(super) conn: Option<Conn>,
    /// What the core calls it, if it is a link.
    pub(super) link: Option<LinkId>,
    /// Who is there, as the handshake says.
    pub(super) peer: Option<Peer>,
    /// Why it is being closed.
    pub(super) why: Option<Loss>,
    /// It is over for everybody; only what was to be said is said.
    pub(super) ghost: bool,
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
            ours,
            number,
            session: Session::new(role, terms, now)?,
            orders: VecDeque::new(),
            out: Vec::new(),
            at: 0,
            next: 0,
            expected: 0,
            ahead: BTreeMap::new(),
            waiting: 0,
            marks: VecDeque::new(),
            taken_out: 0,
            handed: 0,
            sent: 0,
            sent_told: 0,
            leaving: false,
            shut: false,
            deadline: Some(now + terms.handshake),
            conn: None,
            link: None,
            peer: None,
            why: None,
            ghost: false,
        })
    }

    /// Whether somebody has called us who has not proved the key.
    pub(super) fn is_guest(&self) -> bool {
        !self.ours && self.peer.is_none() && !self.ghost
    }

    pub(super) fn order(&mut self, order: Order) {
        if !self.leaving {
            self.orders.push_back(order);
        }
    }

    /// A piece came; an empty one is the end. True when it was news. What it meant is told by [`Line::event`], also after
    /// an error.
    pub(super) fn take(&mut self, sequence: u64, piece: &[u8]) -> Result<Came, End> {
        if sequence < self.expected || self.ahead.contains_key(&sequence) {
            return Ok(Came::Twice);
        }
        if sequence == self.expected {
            self.understand(piece)?;
            while let Some(next) = self.ahead.remove(&self.expected) {
                self.waiting -= next.len();
                self.understand(&next)?;
            }
            return Ok(Came::Next);
        }
        let most = if self.peer.is_some() { usize::MAX } else { AHEAD };
        if sequence - self.expected >= WINDOW || self.waiting + piece.len() > most {
            return Err(End::of(OobError::Stranger {
                what: "its pieces leave out more than may be on the way",
            }));
        }
        self.waiting += piece.len();
        self.ahead.insert(sequence, piece.to_vec());
        Ok(Came::Ahead)
    }

    fn understand(&mut self, piece: &[u8]) -> Result<(), End> {
        self.expected += 1;
        if piece.is_empty() {
            return match self.session.end() {
                Ok(()) => Err(End::closed()),
                Err(_) if self.leaving => Err(End::closed()),
                Err(error) => Err(End::of(error)),
            };
        }
        self.session.receive(piece).map_err(End::of)
    }

    pub(super) fn event(&mut self) -> Option<Event> {
        self.session.event()
    }

    /// What goes next, if anything does; of a stretch of the stream, `most` bytes.
    pub(super) fn piece(&mut self, most: usize) -> Result<Option<Next<'_>>, End> {
        self.seal()?;
        if self.at == self.out.len() && !self.session.outgoing().is_empty() {
            self.out = self.session.take_outgoing();
            self.taken_out += self.out.len() as u64;
            self.at = 0;
        }
        let rest = &self.out[self.at..];
        let kind = match (rest.is_empty(), self.ours && self.next == 0) {
            (false, true) => Kind::Call,
            (false, false) => Kind::Piece,
            (true, _) if self.leaving && !self.shut && !self.session.is_left() => Kind::End,
            (true, _) => return Ok(None),
        };
        Ok(Some(Next {
            kind,
            sequence: self.next,
            bytes: &rest[..rest.len().min(most)],
        }))
    }

    /// The rail has taken what [`Line::piece`] said.
    pub(super) fn given(&mut self, length: usize) {
        self.next += 1;
        self.at += length;
        self.shut |= length == 0;
    }

    /// The peer has taken so many bytes more. How many frames that makes, if there are more than were told.
    pub(super) fn handed(&mut self, length: usize) -> Option<u64> {
        self.handed += length as u64;
        while self.marks.front().is_some_and(|&mark| mark <= self.handed) {
            self.marks.pop_front();
            self.sent += 1;
        }
        let more = self.sent > self.sent_told;
        self.sent_told = self.sent;
        more.then_some(self.sent)
    }

    fn seal(&mut self) -> Result<(), End> {
        while self.out.len() - self.at + self.session.outgoing().len() < SEALED {
            let Some(order) = self.orders.pop_front() else {
                break;
            };
            match order {
                _ if self.leaving => {}
                Order::Say(bytes) => self.session.send(&bytes).map_err(End::of)?,
                Order::Frame(frame) => {
                    let sealed = self.session.send_parts(frame.head(), frame.body());
                    sealed.map_err(End::of)?;
                    let end = self.taken_out + self.session.outgoing().len() as u64;
                    self.marks.push_back(end);
                }
                Order::Leave => self.leave(),
            }
        }
        Ok(())
    }

    /// What was sealed is said, with the word that ends a session, and nothing more.
    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.session.close();
            self.orders.clear();
        }
    }

    /// Both sides have taken leave, and ours is said.
    pub(super) fn is_over(&self) -> bool {
        self.leaving && self.session.is_left() && self.is_said()
    }

    /// The rail has all that was to be said.
    pub(super) fn is_said(&self) -> bool {
        self.at == self.out.len() && self.session.outgoing().is_empty() && self.orders.is_empty()
    }

    /// Its time is over.
    pub(super) fn late(&self, terms: &Terms) -> End {
        if self.leaving || self.why.is_some() {
            return End::closed();
        }
        End::of(OobError::HandshakeLate {
            limit: terms.handshake,
        })
    }

    /// It is over: only what is sealed already goes out, such as a refusal, and the end.
    pub(super) fn haunt(&mut self) {
        self.orders.clear();
        self.ahead.clear();
        self.waiting = 0;
        self.leaving = true;
        self.ghost = true;
    }

    /// A ghost that has said everything.
    pub(super) fn is_at_rest(&self) -> bool {
        self.ghost && self.is_said() && (self.shut || self.session.is_left())
    }
}

/// What a piece was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// The one that was expected.
    Next,
    /// One before which others are missing.
    Ahead,
    /// One that was here already.
    Twice,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::key::JobKey;
    use crate::name::Name;
    use crate::wire::Frame;
    use crate::wire::{Head, Lane, Seq};

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

    /// All that one side has to say, in pieces of at most `most` bytes.
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
            assert!(matches!(to.take(sequence, &bytes), Ok(Came::Next)));
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
        two.peer = Some(Peer {
            name: Name::new(0, 0),
            incarnation: 9,
        });
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
            // As many as may be on the way: the last comes first.
            if window.len() == WINDOW as usize || one.piece(4096).unwrap().is_none() {
                for (at, (sequence, bytes)) in window.drain(..).rev().enumerate() {
                    let came = two.take(sequence, &bytes).unwrap();
                    assert!(at == 0 || came != Came::Twice);
                    assert!(matches!(two.take(sequence, &bytes), Ok(Came::Twice)));
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
        assert!(matches!(two.take(at + WINDOW - 1, &[0; 10]), Ok(Came::Ahead)));
        assert!(two.take(at + WINDOW, &[0; 10]).is_err(), "beyond the window");
        let mut stranger = line(false, 7);
        assert!(matches!(stranger.take(1, &[0; AHEAD]), Ok(Came::Ahead)));
        assert!(stranger.take(2, &[0]).is_err(), "more than strangers may have");
        assert_eq!(stranger.waiting, AHEAD);
    }

    #[test]
    fn the_end_is_told_in_its_place_and_what_was_cut_is_known() {
        let (mut one, mut two) = pair();
        one.order(Order::Frame(frame(vec![1; 10])));
        one.order(Order::Leave);
        one.order(Order::Frame(frame(vec![2; 10])));
        let said = pieces(&mut one, 1000);
        let (end, before) = said.split_last().unwrap();
        assert!(end.1.is_empty() && matches!(two.take(end.0, &end.1), Ok(Came::Ahead)));
        let mut last = Ok(Came::Next);
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
    fn a_wrong_key_is_told_to_both_and_the_refusal_goes_out_of_a_line_that_is_over() {
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
