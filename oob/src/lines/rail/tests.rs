//! Two transports over a rail that does all that the contract allows, seeded: any order, full now and then,
//! down and up again at any time, at one end before the other; and a stranger that sends nonsense over it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Inbound, Incarnation, MsgId, PeerIndex, Refused};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Armed;
use doorbell_fabric::time::Time;

use super::wire::HEAD;
use doorbell_testing::Random;

use super::{Endpoint, Rails, Settings};
use crate::bytes::Bytes;
use crate::key::JobKey;
use crate::lines::{self, Who};
use crate::name::{Epoch, Name};
use crate::runner::Carrier;
use crate::transport::{Address, Attempt, Command, Event, LinkId, Loss, Path};
use crate::wire::{Frame, Head, Kind, Lane, Seq};

const JOB: u64 = 5;
const PEER: PeerIndex = PeerIndex(0);

/// What goes one way.
#[derive(Default)]
struct OneWay {
    sent: u64,
    on_the_way: Vec<(u64, Vec<u8>)>,
}

struct Wire {
    dice: Random,
    up: bool,
    life: u32,
    calm: bool,
    /// The direction from the first side, and that from the second.
    ways: [OneWay; 2],
    events: [VecDeque<EventKind>; 2],
    lives: [VecDeque<u32>; 2],
}

impl Wire {
    fn post(&mut self, side: usize, kind: EventKind) {
        self.events[side].push_back(kind);
        self.lives[side].push_back(self.life);
    }

    /// Nothing of what was on the way arrives.
    fn cut(&mut self, knows: Option<usize>) {
        if !std::mem::replace(&mut self.up, false) {
            return;
        }
        for side in 0..2 {
            self.ways[side].on_the_way.clear();
            if knows != Some(side) {
                self.post(side, EventKind::PeerDown(DownReason::Abandoned));
            }
        }
    }
}

struct Fake {
    wire: Rc<RefCell<Wire>>,
    side: usize,
    name: RailName,
    can: Capabilities,
}

impl Endpoint for Fake {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.can
    }

    fn address(&self) -> RailAddress {
        RailAddress::native("sim", [self.side as u8])
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.side as u64)
    }

    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        Ok(PEER)
    }

    fn send(&mut self, _: PeerIndex, head: &[u8], body: &[u8]) -> Result<MsgId, Refused> {
        assert!(head.len() + body.len() <= self.can.limits.message);
        let wire = &mut *self.wire.borrow_mut();
        if !wire.up {
            return Err(Refused::PeerDown);
        }
        let full = wire.dice.one_in(4);
        let direction = &mut wire.ways[self.side];
        if full || direction.on_the_way.len() >= 100 {
            return Err(Refused::Full);
        }
        direction.sent += 1;
        direction.on_the_way.push((direction.sent, [head, body].concat()));
        Ok(MsgId(direction.sent))
    }

    fn flush(&mut self) {}

    fn poll(&mut self, budget: usize, each: &mut dyn FnMut(PeerIndex, Inbound<'_>)) -> usize {
        let mut shown = 0;
        while shown < budget {
            let wire = &mut *self.wire.borrow_mut();
            let count = wire.ways[1 - self.side].on_the_way.len() as u64;
            if count == 0 || wire.dice.one_in(8) {
                break;
            }
            let at = wire.dice.below(count) as usize;
            let (_, bytes) = wire.ways[1 - self.side].on_the_way.swap_remove(at);
            each(PEER, Inbound::whole(SharedBytes::of(&bytes)));
            shown += 1;
        }
        shown
    }

    fn handed_over(&mut self, _: PeerIndex) -> MsgId {
        let wire = self.wire.borrow();
        let direction = &wire.ways[self.side];
        let oldest = direction.on_the_way.iter().map(|(id, _)| id - 1).min();
        MsgId(oldest.unwrap_or(direction.sent))
    }

    fn forget(&mut self, _: PeerIndex) {}

    fn abandon(&mut self, _: PeerIndex) {
        self.wire.borrow_mut().cut(Some(self.side));
    }

    fn revive(&mut self, _: PeerIndex) {
        let wire = &mut *self.wire.borrow_mut();
        if !wire.up && (wire.calm || wire.dice.one_in(2)) {
            (wire.up, wire.life) = (true, wire.life + 1);
            (0..2).for_each(|side| wire.post(side, EventKind::PeerUp));
        }
    }

    fn progress(&mut self, _: Time) -> usize {
        0
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        Ok(Armed::Ready)
    }

    fn disarm(&mut self) {}

    fn event(&mut self) -> Option<RailEvent> {
        let wire = &mut *self.wire.borrow_mut();
        // An end may be notified late.
        if !wire.calm && wire.dice.one_in(3) {
            return None;
        }
        let kind = wire.events[self.side].pop_front()?;
        Some(RailEvent {
            at: Time::ZERO,
            scope: Scope::Peer(PEER),
            kind,
            life: Life(wire.lives[self.side].pop_front()?),
        })
    }

    fn close(&mut self, _: Time, _: Time) -> bool {
        true
    }
}

/// A link as its end sees it.
#[derive(Default)]
struct Book {
    given: u32,
    sent: u64,
    /// The number of the peer's link, and of the next frame, by the frames that came.
    came: Option<(u32, u32)>,
}

struct End {
    rails: Rails,
    side: usize,
    addresses: Vec<Address>,
    paths: Vec<Path>,
    links: BTreeMap<LinkId, Book>,
    attempts: u64,
    open: Option<Attempt>,
    received: u64,
    losses: u64,
}

fn name(side: usize) -> Name {
    Name::new(JOB, side as u32)
}

impl End {
    fn new(wire: &Rc<RefCell<Wire>>, side: usize) -> Self {
        let message = 200 + 100 * side;
        let fake = Fake {
            wire: wire.clone(),
            side,
            name: "sim:1".parse().unwrap(),
            can: can(message),
        };
        let who = Who {
            name: name(side),
            epoch: Epoch(9),
            key: Some(JobKey::from_bytes([3; 32])),
        };
        let settings = Settings {
            limits: lines::Limits {
                longest: 1 << 16,
                ..Settings::default().limits
            },
            spin: true,
            ..Settings::default()
        };
        Self {
            rails: Rails::of(settings, who, vec![Box::new(fake)]).unwrap(),
            side,
            addresses: Vec::new(),
            paths: Vec::new(),
            links: BTreeMap::new(),
            attempts: 0,
            open: None,
            received: 0,
            losses: 0,
        }
    }

    fn turn(&mut self, now: Time) {
        self.rails.tick(now);
        let _ = self.rails.poll(&mut Context::from_waker(Waker::noop()), now);
        while let Some(event) = self.rails.event() {
            self.happened(event);
        }
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::ModuleUp { addresses, .. } => self.addresses = addresses,
            Event::ModuleDown { .. } => panic!("the rail never reported that it is down"),
            Event::Paths { paths, .. } => self.paths = paths,
            Event::Connected {
                link, attempt, peer, ..
            } => {
                assert_eq!(peer, name(1 - self.side));
                assert!(self.links.insert(link, Book::default()).is_none());
                if attempt.is_some() {
                    assert_eq!(attempt, self.open.take());
                }
            }
            Event::Refused { attempt, why } => {
                assert_eq!(Some(attempt), self.open.take(), "each ends once");
                assert!(why.is_transient(), "{why:?}");
            }
            Event::Sent { link, frames } => {
                let book = self
                    .links
                    .get_mut(&link)
                    .expect("there is no event of a lost link");
                assert!(frames > book.sent && frames <= u64::from(book.given));
                book.sent = frames;
            }
            Event::Received { link, frame } => {
                let (head, body) = Head::read(&frame, Some(JOB), 1 << 16).unwrap();
                assert_eq!(body.len(), length(head.sequence.0));
                let book = self
                    .links
                    .get_mut(&link)
                    .expect("nothing comes over what is lost");
                let (of, next) = book.came.unwrap_or((head.tag, 0));
                assert_eq!(
                    (of, next),
                    (head.tag, head.sequence.0),
                    "one link's, in order, none left out"
                );
                book.came = Some((of, next + 1));
                self.received += 1;
            }
            Event::Lost { link, .. } => {
                assert!(self.links.remove(&link).is_some(), "once");
                self.losses += 1;
            }
        }
    }

    fn reach(&mut self, now: Time, addresses: Vec<Address>) {
        let peer = name(1 - self.side);
        self.rails.command(now, Command::Reach { peer, addresses });
    }

    fn connect(&mut self, now: Time) {
        if self.open.is_some() || self.paths.is_empty() {
            return;
        }
        self.attempts += 1;
        self.open = Some(Attempt(self.attempts));
        let command = Command::Connect {
            attempt: Attempt(self.attempts),
            peer: name(1 - self.side),
            epoch: Epoch::UNKNOWN,
            module: self.paths[0].module,
            addresses: self.paths[0].addresses.clone(),
            deadline: now + Duration::from_secs(5),
        };
        self.rails.command(now, command);
    }

    fn send(&mut self, now: Time) {
        if let Some((&link, book)) = self.links.iter_mut().next_back() {
            let frame = frame(self.side, link.0 as u32, book.given);
            book.given += 1;
            self.rails.command(now, Command::Send { link, frame });
        }
    }

    fn close(&mut self, now: Time) {
        if let Some(&link) = self.links.keys().next() {
            let why = Loss::Closed;
            self.rails.command(now, Command::Close { link, why });
        }
    }
}

fn can(message: usize) -> Capabilities {
    Capabilities {
        features: Features::default(),
        limits: Limits {
            head: 64,
            message,
            inline: 64,
            eager: message,
            fragment: message,
            get_from: usize::MAX,
            parts: 1,
            one_sided: 0,
        },
        estimate: Estimate {
            latency_ns: 1000,
            bandwidth: 1 << 30,
        },
    }
}

/// Each seventh frame is longer than the window.
fn length(nth: u32) -> usize {
    if nth.is_multiple_of(7) {
        30_000
    } else {
        nth as usize % 50
    }
}

/// The nth frame over a link, which has a number.
fn frame(side: usize, link: u32, nth: u32) -> Frame {
    let head = Head {
        kind: Kind::Data,
        lane: Lane::User,
        origin: name(side),
        epoch: Epoch(9),
        destination: name(1 - side),
        to_epoch: Epoch(9),
        tag: link,
        sequence: Seq(nth),
        back: 0,
        ack: None,
        gap: false,
        hops: 0,
    };
    Frame::new(&head, Some(JOB), Bytes::from(vec![7; length(nth)]))
}

/// Sends random bytes of a stranger to one side.
fn nonsense(wire: &mut Wire, side: usize) {
    let length = wire.dice.below(80) as usize;
    let mut bytes: Vec<u8> = (0..length).map(|_| wire.dice.below(256) as u8).collect();
    if length > HEAD && wire.dice.one_in(2) {
        // A head that makes sense, of a line that may be there.
        let kind = 1 + wire.dice.below(6) as u8;
        bytes[..8].copy_from_slice(&[b'o', b'o', b'b', b'r', 1, kind, wire.dice.below(2) as u8, 0]);
        bytes[8..15].fill(0);
        bytes[15] = 100 + bytes[15] % 100;
        bytes[16..23].fill(0);
        if kind == 3 || kind == 4 {
            bytes.truncate(HEAD);
        }
    }
    let direction = &mut wire.ways[1 - side];
    direction.sent += 1;
    direction.on_the_way.push((direction.sent, bytes));
}

/// A storm and the calm after it: how many frames came, and how many links were lost.
fn storm(seed: u64) -> (u64, u64) {
    let wire = Rc::new(RefCell::new(Wire {
        dice: Random::new(seed),
        up: true,
        life: 0,
        calm: false,
        ways: Default::default(),
        events: Default::default(),
        lives: Default::default(),
    }));
    let mut ends = [End::new(&wire, 0), End::new(&wire, 1)];
    let mut now = Time::ZERO;
    ends.iter_mut().for_each(|end| end.turn(now));
    let addresses = [ends[1].addresses.clone(), ends[0].addresses.clone()];
    for (end, addresses) in ends.iter_mut().zip(addresses) {
        end.reach(now, addresses);
    }
    let roll = |most| wire.borrow_mut().dice.below(most);
    for _ in 0..3_000 {
        now += Duration::from_micros(roll(3_000));
        let side = roll(2) as usize;
        match roll(200) {
            0 => wire.borrow_mut().cut(None),
            1..=9 => nonsense(&mut wire.borrow_mut(), side),
            10 => ends[side].close(now),
            11..=13 => ends[side].connect(now),
            14..=70 => ends[side].send(now),
            _ => {}
        }
        ends[side].turn(now);
    }
    wire.borrow_mut().calm = true;
    let mut quiet = 0;
    for _ in 0..20_000 {
        now += Duration::from_millis(1);
        ends.iter_mut().for_each(|end| end.turn(now));
        let linked = ends.iter().all(|end| !end.links.is_empty());
        let settled = |end: &End| {
            end.open.is_none() && end.links.values().all(|book| book.sent == u64::from(book.given))
        };
        quiet = if linked && ends.iter().all(settled) {
            quiet + 1
        } else {
            0
        };
        if !linked {
            ends[0].connect(now);
        }
        if quiet > 50 {
            break;
        }
    }
    assert!(
        quiet > 50,
        "seed {seed}: it never settled: {:?}",
        ends.map(|end| end.rails)
    );
    // What was on its way over a link that is over may still come; over this one, all of these do.
    (0..20).for_each(|_| ends[0].send(now));
    for _ in 0..2_000 {
        now += Duration::from_millis(1);
        ends.iter_mut().for_each(|end| end.turn(now));
    }
    let (&link, book) = ends[0].links.iter().next_back().expect("it stays");
    let came = ends[1].links.values().next_back().and_then(|book| book.came);
    assert_eq!(came, Some((link.0 as u32, book.given)), "seed {seed}");
    assert_eq!(book.sent, u64::from(book.given), "seed {seed}");
    ends.iter_mut().for_each(|end| end.rails.leave(now));
    for _ in 0..3_000 {
        now += Duration::from_millis(1);
        ends.iter_mut().for_each(|end| end.turn(now));
    }
    for end in &ends {
        assert!(
            end.rails.is_quiet() && end.links.is_empty(),
            "seed {seed}: {:?}",
            end.rails
        );
        assert_eq!(end.rails.guests(), 0, "seed {seed}");
    }
    let sum = |of: fn(&End) -> u64| ends.iter().map(of).sum();
    (sum(|end| end.received), sum(|end| end.losses))
}

#[test]
fn storms_over_a_rail_that_does_what_it_may() {
    let (mut received, mut lost) = (0, 0);
    for seed in 1..=40 {
        let (came, gone) = storm(seed);
        received += came;
        lost += gone;
    }
    // A storm that breaks nothing, or carries nothing, proves nothing.
    assert!(received > 5_000 && lost > 500, "{received} received, {lost} lost");
}
