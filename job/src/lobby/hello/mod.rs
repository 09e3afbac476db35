//! The first contact with a member of another host, in the frames of the rails that both have: nothing
//! listens for it.
//!
//! ```text
//!   caller                                       callee
//!   Call   where the answer goes, session's call ─►       the token is in the session's key
//!          ◄─ Answer  the session's answer
//!   Card   the session's proof, its card         ─►       opens the caller
//!          ◄─ Reply   its card, the key of the connections
//!   opens the callee
//! ```
//!
//! An address names up to three doors of its member ([`Doors`]): sockets or queues that its rails have
//! anyway. Frames of hellos have a number of the member's as their connection, which follows from its token:
//! a process without the address cannot send one that is looked at. Their contents are sealed by a session
//! (`doorbell_oob::Session`) whose key is the token too, so that a changed or repeated frame opens nothing.
//!
//! The caller alone repeats its last message, over all rails and to each door in turn, until the next one of
//! the callee arrives, or the time is over; the callee answers a repeated message with its own last one.
//! Where two call each other at once, the call of the lower identity counts.

mod doors;
mod frame;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_oob::{Event, JobKey, Role, Session, Terms};

pub(super) use self::doors::{Doors, LENGTH};
pub(super) use self::frame::LONGEST;
use self::frame::{Arriving, Frame, PARTS, PIECE, Stage};
use super::address::PeerId;
use super::card::{Bad, Card, Name};
use super::desk::News;
use crate::meet::{Key, RankInfo};
use crate::random;

/// What the sessions of hellos are for, beside those of `MEETING` and `SPAWN`.
const PURPOSE: u16 = 4;
/// The first pause before a message is repeated, and the longest: each is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));
/// Most calls of other processes that are kept. A new one takes the place of the oldest.
const ANSWERED: usize = 256;
/// Most own calls that are under way at once; others wait.
const CALLING: usize = 64;
/// How long a call that nothing answers keeps its place from those that wait.
const TURN: Duration = Duration::from_secs(1);
/// Length of the key before the card of a reply.
const KEY: usize = 32;

/// Counters of the hellos that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelloCounts {
    /// Callers that were answered.
    pub answered: u64,
    /// Frames that no member sends, or of no call that is under way.
    pub nonsense: u64,
    /// Messages that were sealed with another token, or were changed.
    pub wrong_token: u64,
    /// Cards of processes that cannot be met.
    pub unlike: u64,
}

/// Where to send messages of one call.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The number of the receiver's frames.
    door: u64,
    doors: Doors,
    /// How many messages were sent there.
    turn: u32,
}

impl Way {
    fn new(door: u64, doors: Doors) -> Self {
        Self { door, doors, turn: 0 }
    }
}

/// A member that is to be called.
struct Wish {
    to: PeerId,
    doors: Doors,
    /// When the call ends, of one that had begun.
    until: Option<Time>,
}

/// An own call.
struct Outgoing {
    to: PeerId,
    way: Way,
    session: Session,
    /// The message that is repeated, until `awaited` arrives.
    message: (Stage, Vec<u8>),
    awaited: Stage,
    arriving: Arriving,
    pause: Duration,
    next: Time,
    begun: Time,
    until: Time,
    /// Why the last message could not be sent at all.
    trouble: Option<String>,
}

/// A call of another process.
struct Incoming {
    call: u64,
    way: Way,
    session: Session,
    /// The last message, which answers repeated ones.
    last: (Stage, Vec<u8>),
    arriving: Arriving,
    /// The caller's card, once it has arrived and was not changed.
    card: Option<Vec<u8>>,
    /// The member that has sent it.
    peer: Option<PeerId>,
}

/// A hello frame on its way out.
pub(super) struct Post<'a> {
    /// The doors of the receiver.
    pub(super) doors: &'a Doors,
    /// The number of its frames.
    pub(super) door: u64,
    /// How many messages were sent there before.
    pub(super) turn: u32,
    /// The bytes of the frame.
    pub(super) bytes: &'a [u8],
}

/// The hellos of a member, without its rails.
pub(super) struct Hellos {
    /// The identity on other hosts.
    own: PeerId,
    /// The number of this host.
    here: u64,
    doors: Doors,
    card: Card,
    /// How long a call goes on without an answer.
    limit: Duration,
    /// Our number of the acquaintance with each member: the same until it is forgotten.
    bonds: HashMap<PeerId, u64>,
    last_bond: u64,
    /// Members that are met, and are called to learn whether they have come back.
    checked: HashSet<PeerId>,
    waiting: VecDeque<Wish>,
    calling: HashMap<u64, Outgoing>,
    answered: VecDeque<Incoming>,
    news: Vec<News>,
    counts: HelloCounts,
}

impl Hellos {
    /// Begins with the identity in the member's address, doors, and what is on its card; a call ends after
    /// `limit`.
    ///
    /// # Errors
    /// For a card that is too long, and where there are no random numbers.
    pub(super) fn new(own: PeerId, doors: Doors, info: RankInfo, limit: Duration) -> Result<Self, String> {
        let (here, own) = (own.host(), own.seen_from_afar());
        let card = Card::new(Name::Peer(own), info);
        let longest = PARTS * PIECE - 1024;
        let written = card.written(None, 0)?;
        if written.len() > longest {
            let length = written.len();
            return Err(format!(
                "its card for other hosts has {length} bytes, and {longest} have room: name fewer rails"
            ));
        }
        Ok(Self {
            own,
            here,
            doors,
            card,
            limit,
            bonds: HashMap::new(),
            last_bond: random::number().map_err(|error| error.to_string())?,
            checked: HashSet::new(),
            waiting: VecDeque::new(),
            calling: HashMap::new(),
            answered: VecDeque::new(),
            news: Vec::new(),
            counts: HelloCounts::default(),
        })
    }

    /// Returns the number that the frames to this member have.
    pub(super) fn door(&self) -> u64 {
        door_of(&self.own)
    }

    /// Returns this member's doors.
    pub(super) fn doors(&self) -> &Doors {
        &self.doors
    }

    /// Returns the counters.
    pub(super) fn counts(&self) -> HelloCounts {
        self.counts
    }

    /// Begins a call, unless there is one.
    pub(super) fn begin(&mut self, to: PeerId, doors: Doors) {
        if !self.is_wanted(&to) {
            let until = None;
            self.waiting.push_back(Wish { to, doors, until });
        }
    }

    /// Does the same for a member that is met, which may have ended and come back: its card has another
    /// number of the acquaintance then. Where nothing answers, the acquaintance stays.
    pub(super) fn begin_again(&mut self, to: PeerId, doors: Doors) {
        if self.bonds.contains_key(&to) && !self.is_wanted(&to) {
            self.checked.insert(to);
            self.begin(to, doors);
        }
    }

    /// Whether a call to a member is under way, or waits for its turn.
    pub(super) fn is_wanted(&self, to: &PeerId) -> bool {
        self.is_calling(to) || self.waiting.iter().any(|wish| wish.to == *to)
    }

    /// Forgets a member: a call to it ends, and a later one begins another acquaintance.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.end_call(peer);
        self.answered.retain(|known| known.peer != Some(*peer));
        self.bonds.remove(peer);
        self.news.retain(|news| !news.is_about(&Name::Peer(*peer)));
    }

    /// Forgets a member that has ended, unless there are news of it: then it has come back.
    pub(super) fn over(&mut self, peer: &PeerId) {
        let name = Name::Peer(*peer);
        let is_met =
            |news: &News| matches!(news, News::Called(_) | News::Answered(_)) && news.is_about(&name);
        if !self.news.iter().any(is_met) {
            self.forget(peer);
        }
    }

    fn end_call(&mut self, peer: &PeerId) {
        self.calling.retain(|_, call| call.to != *peer);
        self.waiting.retain(|wish| wish.to != *peer);
        self.checked.remove(peer);
    }

    /// Takes the news since the last call, in order.
    pub(super) fn take(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Returns when [`Hellos::serve`] is due.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let is_due = !self.waiting.is_empty() && self.calling.len() < CALLING;
        let due = is_due.then_some(Time::ZERO);
        let calls = self.calling.values().map(|call| call.next.min(call.until));
        calls.chain(due).min()
    }

    /// Begins calls, repeats what is due, and ends calls whose time is over. `post` sends a frame, or returns
    /// why no rail can.
    pub(super) fn serve(&mut self, now: Time, post: &mut dyn FnMut(Post<'_>) -> Result<(), String>) {
        self.make_room(now);
        while self.calling.len() < CALLING
            && let Some(wish) = self.waiting.pop_front()
        {
            let to = wish.to;
            if let Err(reason) = self.call(wish, now) {
                self.fail(to, reason);
            }
        }
        let due = |call: &Outgoing| call.next <= now || call.until <= now;
        if !self.calling.values().any(due) {
            return;
        }
        let mut over = Vec::new();
        for (number, call) in self.calling.iter_mut().filter(|(_, call)| due(call)) {
            if call.until <= now {
                over.push(*number);
                continue;
            }
            let (stage, message) = &call.message;
            call.trouble = send(*number, &mut call.way, *stage, message, post).err();
            call.next = now + call.pause;
            call.pause = (call.pause * 2).min(PAUSES.1);
        }
        for number in over {
            if let Some(call) = self.calling.remove(&number) {
                self.fail(call.to, self.silence(&call));
            }
        }
    }

    /// Calls that nothing has answered for a while begin again behind those that wait for their places.
    fn make_room(&mut self, now: Time) {
        if self.waiting.is_empty() || self.calling.len() < CALLING {
            return;
        }
        let is_silent = |call: &Outgoing| call.awaited == Stage::Answer && now.since(call.begun) >= TURN;
        let silent = self.calling.iter().find(|(_, call)| is_silent(call));
        let silent = silent.map(|(number, _)| *number);
        if let Some(call) = silent.and_then(|number| self.calling.remove(&number)) {
            self.waiting.push_back(Wish {
                to: call.to,
                doors: call.way.doors,
                until: Some(call.until),
            });
        }
    }

    fn call(&mut self, wish: Wish, now: Time) -> Result<(), String> {
        let Wish { to, doors, until } = wish;
        let number = random::number().map_err(|error| error.to_string())?;
        let back = frame::Back::new(self.door(), &self.doors);
        let mut session = self.session(Role::Caller, &to, number, &back, now)?;
        let message = back.before(&session.take_outgoing());
        let call = Outgoing {
            to,
            way: Way::new(door_of(&to), doors),
            session,
            message: (Stage::Call, message),
            awaited: Stage::Answer,
            arriving: Arriving::default(),
            pause: PAUSES.0,
            next: now,
            begun: now,
            until: until.unwrap_or(now + self.limit),
            trouble: None,
        };
        self.calling.insert(number, call);
        Ok(())
    }

    /// A session in whose key are the token of the callee, the number of the call, and where its answer goes:
    /// under another number, or with another place, a call that was recorded is one with a wrong token.
    fn session(
        &self,
        role: Role,
        callee: &PeerId,
        call: u64,
        back: &frame::Back,
        now: Time,
    ) -> Result<Session, String> {
        let key = base(callee).derive(&format!("hello {call:016x} {back}"));
        let mut terms = Terms::new(Some(key), PURPOSE, 0);
        terms.handshake = self.limit;
        Session::new(role, &terms, now).map_err(|error| error.to_string())
    }

    fn silence(&self, call: &Outgoing) -> String {
        let doors: Vec<String> = call.way.doors.sockets().map(|door| door.to_string()).collect();
        let doors = doors.join(" and ");
        if let Some(trouble) = &call.trouble {
            return format!("no rail of this process leads to {doors}: {trouble}");
        }
        let limit = self.limit;
        match call.awaited {
            Stage::Reply => format!("it did not send its card within {limit:?}, though it has answered"),
            _ => format!(
                "nothing has answered at {doors} within {limit:?}: its process has ended or makes no calls, a \
                 firewall drops packets of UDP, or the address was changed"
            ),
        }
    }

    fn fail(&mut self, peer: PeerId, reason: String) {
        if self.checked.remove(&peer) {
            // It may be busy: another number of the acquaintance would end that one for it.
            return;
        }
        self.bonds.remove(&peer);
        self.news.push(News::Failed(Name::Peer(peer), reason));
    }

    /// Handles a frame that came for this member.
    pub(super) fn on_frame(
        &mut self,
        bytes: &[u8],
        now: Time,
        post: &mut dyn FnMut(Post<'_>) -> Result<(), String>,
    ) {
        let Some(frame) = Frame::parse(bytes) else {
            self.counts.nonsense += 1;
            return;
        };
        match frame.stage {
            Stage::Call => self.on_call(&frame, now, post),
            Stage::Card => self.on_card(&frame, post),
            Stage::Answer | Stage::Reply => self.on_answer(&frame, now, post),
        }
    }

    fn on_call(
        &mut self,
        frame: &Frame<'_>,
        now: Time,
        post: &mut dyn FnMut(Post<'_>) -> Result<(), String>,
    ) {
        if let Some(known) = self.answered.iter_mut().find(|known| known.call == frame.call) {
            if known.last.0 == Stage::Answer {
                let _ = send(known.call, &mut known.way, Stage::Answer, &known.last.1, post);
            }
            return;
        }
        let Some((back, doors, call)) = frame.whole().and_then(frame::read_call) else {
            self.counts.nonsense += 1;
            return;
        };
        let Ok(mut session) = self.session(Role::Answerer, &self.own, frame.call, &back, now) else {
            return;
        };
        if session.receive(call).is_err() || session.outgoing().is_empty() {
            self.counts.wrong_token += 1;
            return;
        }
        let mut incoming = Incoming {
            call: frame.call,
            way: Way::new(back.door(), doors),
            last: (Stage::Answer, session.take_outgoing()),
            session,
            arriving: Arriving::default(),
            card: None,
            peer: None,
        };
        let _ = send(
            frame.call,
            &mut incoming.way,
            Stage::Answer,
            &incoming.last.1,
            post,
        );
        if self.answered.len() == ANSWERED {
            self.answered.pop_front();
        }
        self.answered.push_back(incoming);
    }

    fn on_card(&mut self, frame: &Frame<'_>, post: &mut dyn FnMut(Post<'_>) -> Result<(), String>) {
        let Some(at) = self.answered.iter().position(|known| known.call == frame.call) else {
            self.counts.nonsense += 1;
            return;
        };
        let known = &mut self.answered[at];
        if known.last.0 == Stage::Reply {
            if frame.is_last() {
                let _ = send(known.call, &mut known.way, Stage::Reply, &known.last.1, post);
            }
            return;
        }
        if known.card.is_none() {
            let Some(message) = known.arriving.add(frame) else {
                return;
            };
            match read_card(&mut known.session, &message) {
                Some(card) => known.card = Some(card),
                None => {
                    self.counts.wrong_token += 1;
                    self.answered.remove(at);
                    return;
                }
            }
        }
        if let Some(mut known) = self.answered.remove(at)
            && self.reply(&mut known, post)
        {
            self.answered.push_back(known);
        }
    }

    /// Answers a caller's card with this member's. Returns whether the call is kept.
    fn reply(&mut self, known: &mut Incoming, post: &mut dyn FnMut(Post<'_>) -> Result<(), String>) -> bool {
        let Some(bytes) = &known.card else { return false };
        let (bond, news, key) = match Card::read(bytes, &self.card) {
            Ok(mut card) => {
                let Some(peer) = self.elsewhere(&card) else {
                    self.counts.unlike += 1;
                    return false;
                };
                known.peer = Some(peer);
                if self.own < peer && self.is_calling(&peer) {
                    // This member's own call counts. Should it fail, the next repeated card is answered.
                    return true;
                }
                let Ok(key) = random::bytes() else { return true };
                self.end_call(&peer);
                card.key = Some(Key::of_bytes(key));
                card.toward = Some(Name::Peer(self.own));
                self.counts.answered += 1;
                (self.bond(&peer), Some(News::Called(card)), key)
            }
            Err(_) => {
                // It finds the reason in our card.
                self.counts.unlike += 1;
                (0, None, [0; KEY])
            }
        };
        let written = self.card.written(None, bond);
        let sealed = written.is_ok_and(|card| known.session.send_parts(&key, &card).is_ok());
        if sealed {
            known.last = (Stage::Reply, known.session.take_outgoing());
            let _ = send(known.call, &mut known.way, Stage::Reply, &known.last.1, post);
            self.news.extend(news);
        }
        sealed
    }

    /// Returns the member of a card, if it is one of another host.
    fn elsewhere(&self, card: &Card) -> Option<PeerId> {
        match card.name {
            Name::Peer(peer) if peer.host() != self.here && peer != self.own => Some(peer),
            _ => None,
        }
    }

    fn is_calling(&self, peer: &PeerId) -> bool {
        self.calling.values().any(|call| call.to == *peer)
    }

    /// Returns our number of the acquaintance with a member.
    fn bond(&mut self, peer: &PeerId) -> u64 {
        let last = &mut self.last_bond;
        *self.bonds.entry(*peer).or_insert_with(|| {
            *last = last.wrapping_add(1);
            *last
        })
    }

    fn on_answer(
        &mut self,
        frame: &Frame<'_>,
        now: Time,
        post: &mut dyn FnMut(Post<'_>) -> Result<(), String>,
    ) {
        let Some(call) = self
            .calling
            .get_mut(&frame.call)
            .filter(|call| call.awaited == frame.stage)
        else {
            // Answers to repeated messages come after the first one.
            return;
        };
        let Some(message) = call.arriving.add(frame) else {
            return;
        };
        let Some(mut call) = self.calling.remove(&frame.call) else {
            return;
        };
        if call.session.receive(&message).is_err() {
            self.counts.wrong_token += 1;
            self.fail(
                call.to,
                "its answer was sealed with another token, or changed on its way".to_owned(),
            );
            return;
        }
        if frame.stage == Stage::Reply {
            match self.read_reply(&mut call) {
                Ok(card) => {
                    self.checked.remove(&call.to);
                    // A call of that member that waited for this one to end does not count any more.
                    let is_waiting = |known: &Incoming| known.last.0 != Stage::Reply;
                    self.answered
                        .retain(|known| known.peer != Some(call.to) || !is_waiting(known));
                    self.news.push(News::Answered(card));
                }
                Err(reason) => self.fail(call.to, reason),
            }
            return;
        }
        // That the session is open.
        let _ = call.session.event();
        let bond = self.bond(&call.to);
        let card = self.card.written(None, bond).map_err(|_| ());
        if card
            .and_then(|card| call.session.send(&card).map_err(|_| ()))
            .is_err()
        {
            self.fail(call.to, "this process's card cannot be sealed".to_owned());
            return;
        }
        call.message = (Stage::Card, call.session.take_outgoing());
        call.awaited = Stage::Reply;
        call.pause = PAUSES.0;
        call.next = now + call.pause;
        let (stage, message) = &call.message;
        call.trouble = send(frame.call, &mut call.way, *stage, message, post).err();
        self.calling.insert(frame.call, call);
    }

    /// Reads the card and the key of the connections of a callee.
    fn read_reply(&self, call: &mut Outgoing) -> Result<Card, String> {
        let Some(Event::Message(message)) = call.session.event() else {
            return Err("it has closed the call without its card".to_owned());
        };
        let (key, card) = message.split_first_chunk::<KEY>().ok_or("its card is missing")?;
        let mut card = Card::read(card, &self.card).map_err(Bad::text)?;
        if card.name != Name::Peer(call.to) {
            return Err("its card has another name".to_owned());
        }
        card.key = Some(Key::of_bytes(*key));
        card.toward = Some(Name::Peer(self.own));
        Ok(card)
    }
}

/// Reads the proof and the card of a caller, which come as one message.
fn read_card(session: &mut Session, message: &[u8]) -> Option<Vec<u8>> {
    session.receive(message).ok()?;
    match (session.event(), session.event()) {
        (Some(Event::Ready(_)), Some(Event::Message(card))) => Some(card),
        _ => None,
    }
}

/// Sends a message of a call. Returns why no rail can, if so.
fn send(
    call: u64,
    way: &mut Way,
    stage: Stage,
    message: &[u8],
    post: &mut dyn FnMut(Post<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let mut outcome = Ok(());
    frame::frames(call, stage, message, |bytes| {
        let posted = post(Post {
            doors: &way.doors,
            door: way.door,
            turn: way.turn,
            bytes,
        });
        outcome = std::mem::replace(&mut outcome, Ok(())).and(posted);
    });
    way.turn = way.turn.wrapping_add(1);
    outcome
}

/// The key from which all that the hellos of a member need is derived: its token.
fn base(member: &PeerId) -> JobKey {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&member.token());
    JobKey::from_bytes(bytes)
}

/// Returns the number that the frames of hellos to a member have.
fn door_of(member: &PeerId) -> u64 {
    let derived = base(member).derive("door");
    derived.expose()[..8]
        .iter()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}
