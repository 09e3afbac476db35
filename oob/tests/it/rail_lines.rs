//! The transport `rail` without a core: two of them in one thread, and strangers that send to one over a
//! bare rail.
//!
//! reference: oob, sections 4 and 10.

use std::collections::BTreeMap;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use doorbell_fabric::message::{Body, Message, PeerIndex, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_oob::connect::{Hello, HelloKind};
use doorbell_oob::lines::rail::address::Place;
use doorbell_oob::lines::rail::wire::{HEAD, Head, Kind, PIECE_MAX, WINDOW};
use doorbell_oob::lines::rail::{Rails, Settings};
use doorbell_oob::lines::{Clock, Limits, Who};
use doorbell_oob::name::{Epoch, Name};
use doorbell_oob::runner::Carrier;
use doorbell_oob::transport::{Address, Attempt, Command, Event, LinkId, Loss, ModuleId, Path, Refusal};
use doorbell_oob::{Role, Session, Terms, session};
use doorbell_shm::{ShmConfig, ShmRail};

use crate::rails::shm;
use crate::side::{JOB, PATIENCE, frame, key, who};

const PURPOSE: u16 = 3;
const LONGEST: usize = 1 << 20;

/// A transport without a thread, and a book of its events.
struct End {
    rails: Rails,
    clock: Clock,
    addresses: Vec<Address>,
    paths: BTreeMap<Name, Vec<Path>>,
    links: BTreeMap<LinkId, Name>,
    came: Vec<usize>,
    refused: Vec<Refusal>,
    lost: Vec<Loss>,
    attempts: u64,
}

impl End {
    fn new(who: Who, clock: Clock) -> Self {
        let settings = Settings {
            limits: Limits {
                longest: LONGEST,
                ..Settings::default().limits
            },
            spin: true,
            ..Settings::default()
        };
        let mut end = Self {
            rails: Rails::start(settings, who, vec![Box::new(shm)]).unwrap(),
            clock,
            addresses: Vec::new(),
            paths: BTreeMap::new(),
            links: BTreeMap::new(),
            came: Vec::new(),
            refused: Vec::new(),
            lost: Vec::new(),
            attempts: 0,
        };
        end.turn();
        end
    }

    fn command(&mut self, command: Command) {
        self.rails.command(self.clock.now(), command);
    }

    fn reach(&mut self, rank: u32, addresses: &[Address]) {
        let (peer, addresses) = (Name::new(JOB, rank), addresses.to_vec());
        self.command(Command::Reach { peer, addresses });
        self.turn();
    }

    fn connect(&mut self, rank: u32) {
        self.attempts += 1;
        let peer = Name::new(JOB, rank);
        let path = self.paths[&peer][0].clone();
        self.command(Command::Connect {
            attempt: Attempt(self.attempts),
            peer,
            epoch: Epoch::UNKNOWN,
            module: path.module,
            addresses: path.addresses,
            deadline: self.clock.now() + PATIENCE,
        });
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        self.rails.tick(now);
        let _ = self.rails.poll(&mut Context::from_waker(Waker::noop()), now);
        while let Some(event) = self.rails.event() {
            match event {
                Event::ModuleUp { module, addresses } => {
                    assert_eq!(module, ModuleId(0));
                    self.addresses = addresses;
                }
                Event::Paths { peer, paths } => _ = self.paths.insert(peer, paths),
                Event::Connected { link, peer, .. } => assert!(self.links.insert(link, peer).is_none()),
                Event::Refused { why, .. } => self.refused.push(why),
                Event::Received { link, frame } => {
                    assert!(self.links.contains_key(&link));
                    self.came.push(frame.len());
                }
                Event::Lost { link, why } => {
                    assert!(self.links.remove(&link).is_some(), "once");
                    self.lost.push(why);
                }
                Event::Sent { .. } | Event::ModuleDown { .. } => {}
            }
        }
    }

    fn leave(&mut self) {
        self.rails.leave(self.clock.now());
    }
}

fn turns(ends: &mut [&mut End], what: &str, is: impl Fn(&[&mut End]) -> bool) {
    let begun = Instant::now();
    while !is(ends) {
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        ends.iter_mut().for_each(|end| end.turn());
    }
}

fn two() -> (End, End) {
    let clock = Clock::start();
    let (mut one, mut two) = (End::new(who(0), clock), End::new(who(1), clock));
    one.reach(1, &two.addresses.clone());
    two.reach(0, &one.addresses.clone());
    (one, two)
}

fn leave(mut one: End, mut two: End) {
    one.leave();
    two.leave();
    turns(&mut [&mut one, &mut two], "the end", |ends| {
        ends.iter().all(|end| end.rails.is_quiet())
    });
}

#[test]
fn five_hundred_times_both_connect_at_once_and_there_is_one_link() {
    let (mut one, mut two) = two();
    for round in 0..500 {
        // Which one is first by a little is left to chance.
        one.connect(1);
        (0..round % 5).for_each(|_| one.turn());
        two.connect(0);
        turns(&mut [&mut one, &mut two], "one link", |ends| {
            let settled = |end: &&mut End| end.links.len() == 1 && end.rails.guests() == 0;
            ends.iter().all(settled)
        });
        let word = frame(0, round as u32, vec![round as u8; 10].into());
        let link = *one.links.keys().next().unwrap();
        one.command(Command::Send { link, frame: word });
        turns(&mut [&mut one, &mut two], "a word", |ends| {
            !ends[1].came.is_empty()
        });
        two.came.clear();
        let link = *two.links.keys().next().unwrap();
        two.command(Command::Close {
            link,
            why: Loss::Closed,
        });
        turns(&mut [&mut one, &mut two], "no link", |ends| {
            ends.iter().all(|end| end.links.is_empty())
        });
    }
    let counted = [one.rails.counters(), two.rails.counters()];
    let ties = counted[0].sessions.meeting.ties + counted[1].sessions.meeting.ties;
    assert!(ties >= 100, "{counted:?}");
    assert!(
        one.refused
            .iter()
            .chain(&two.refused)
            .all(|why| *why == Refusal::Yielded)
    );
    assert_eq!(
        counted.map(|counted| (counted.garbage, counted.duplicates)),
        [(0, 0); 2]
    );
    leave(one, two);
}

#[test]
fn what_was_queued_before_a_close_is_sent_and_both_know() {
    let (mut one, mut two) = two();
    one.connect(1);
    turns(&mut [&mut one, &mut two], "a link", |ends| {
        ends.iter().all(|end| end.links.len() == 1)
    });
    let link = *one.links.keys().next().unwrap();
    for nth in 0..20 {
        let word = frame(0, nth, vec![7; 40_000].into());
        one.command(Command::Send { link, frame: word });
    }
    one.command(Command::Close {
        link,
        why: Loss::Finished,
    });
    turns(&mut [&mut one, &mut two], "the end", |ends| {
        ends.iter().all(|end| end.links.is_empty())
    });
    assert_eq!(
        (one.lost.as_slice(), two.lost.as_slice()),
        (&[Loss::Finished][..], &[Loss::Closed][..])
    );
    assert_eq!(two.came, [40_000 + 48; 20]);
    leave(one, two);
}

/// A process of the same user that has a rail, and is known as rank 9.
struct Stranger {
    rail: ShmRail,
    to: PeerIndex,
    /// What came: heads, and pieces.
    came: Vec<(Head, Vec<u8>)>,
}

impl Stranger {
    fn of(end: &mut End) -> Self {
        let mut rail = ShmRail::open(&"shm".parse().unwrap(), &ShmConfig::default()).unwrap();
        let theirs: Place = end.addresses[0].parse().unwrap();
        let own = Place {
            address: rail.address(),
            life: rail.incarnation(),
            host: theirs.host,
        };
        end.reach(9, &[own.to_string().into()]);
        let to = rail.open(&theirs.address, theirs.life).unwrap();
        Self {
            rail,
            to,
            came: Vec::new(),
        }
    }

    /// Sends the bytes, and lets `end` receive them.
    fn send(&mut self, end: &mut End, bytes: &[u8]) {
        let begun = Instant::now();
        while self.rail.send(self.to, bytes, Body::Empty) == Err(Refused::Full) {
            assert!(begun.elapsed() < PATIENCE, "never taken");
            self.receive(end);
        }
        self.rail.flush();
        let before = begun.elapsed();
        while begun.elapsed() < before + Duration::from_millis(2) {
            self.receive(end);
        }
    }

    fn receive(&mut self, end: &mut End) {
        struct Takes<'a>(&'a mut Vec<(Head, Vec<u8>)>);
        impl doorbell_fabric::message::Arrivals for Takes<'_> {
            fn message(&mut self, _: PeerIndex, inbound: doorbell_fabric::message::Inbound<'_>) {
                let mut bytes = vec![0; inbound.len()];
                inbound.copy_to(0, &mut bytes);
                let (head, piece) = Head::read(&bytes).expect("its message is well-formed");
                self.0.push((head, piece.to_vec()));
            }
            fn completed(
                &mut self,
                _: doorbell_fabric::message::OpId,
                _: Result<u64, doorbell_fabric::message::OpError>,
            ) {
            }
        }
        self.rail.progress(end.clock.now());
        self.rail.poll(64, &mut Takes(&mut self.came));
        end.turn();
    }

    fn piece(&mut self, end: &mut End, kind: Kind, line: u64, sequence: u64, piece: &[u8]) {
        let head = Head {
            kind,
            caller: true,
            line,
            sequence,
        };
        // The rail's own heads are short: head and piece in one would be too long for it.
        let begun = Instant::now();
        while self.rail.send(self.to, &head.bytes(), Body::Bytes(piece)) == Err(Refused::Full) {
            assert!(begun.elapsed() < PATIENCE, "never taken");
            self.receive(end);
        }
        self.rail.flush();
        (0..20).for_each(|_| self.receive(end));
    }

    /// Shakes hands for real over a line, in `longest`.
    fn member(&mut self, end: &mut End, line: u64, rank: u32, longest: usize) -> (Session, u64) {
        let terms = Terms {
            name: Name::new(JOB, rank),
            longest,
            ..Terms::new(key(7), PURPOSE, 5)
        };
        let mut session = Session::new(Role::Caller, &terms, Time::ZERO).unwrap();
        let call = session.take_outgoing();
        self.piece(end, Kind::Call, line, 0, &call);
        let begun = Instant::now();
        while !session.is_open() {
            assert!(begun.elapsed() < PATIENCE, "no answer");
            self.receive(end);
            for (head, piece) in std::mem::take(&mut self.came) {
                if (head.kind, head.line) == (Kind::Piece, line) {
                    session.receive(&piece).unwrap();
                }
            }
        }
        (session, 1)
    }
}

#[test]
fn garbage_and_lengths_that_cannot_be_are_dropped_and_counted() {
    let clock = Clock::start();
    let mut end = End::new(who(0), clock);
    let mut stranger = Stranger::of(&mut end);
    let limit = stranger.rail.capabilities().limits.head;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; HEAD], &[0xff; 64], b"x"] {
        stranger.send(&mut end, &garbage[..garbage.len().min(limit)]);
    }
    let mut good = Head {
        kind: Kind::Call,
        caller: true,
        line: 1,
        sequence: 0,
    }
    .bytes();
    good[4] = 9;
    stranger.send(&mut end, &good);
    assert_eq!(end.rails.counters().garbage, 5);
    let long = vec![7; PIECE_MAX + 1];
    stranger.piece(&mut end, Kind::Piece, 1, 1, &long);
    let counted = end.rails.counters();
    assert_eq!((counted.oversized, counted.garbage), (1, 5), "not even copied");
    // A piece of a line that does not exist is answered with that.
    stranger.piece(&mut end, Kind::Piece, 77, 3, b"x");
    (0..200).for_each(|_| stranger.receive(&mut end));
    let gone = stranger
        .came
        .iter()
        .any(|(head, _)| head.kind == Kind::Gone && head.line == 77);
    assert!(gone && end.rails.counters().stray == 1, "{:?}", stranger.came);
    // What is no handshake ends the line that it began, and is counted as tcp counts it.
    stranger.piece(&mut end, Kind::Call, 2, 0, b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(end.rails.counters().sessions.garbage, 1);
    // Pieces that leave out more than may be on the way.
    let terms = Terms::new(key(7), PURPOSE, 5);
    let mut session = Session::new(Role::Caller, &terms, Time::ZERO).unwrap();
    stranger.piece(&mut end, Kind::Call, 3, 0, &session.take_outgoing());
    stranger.piece(&mut end, Kind::Piece, 3, WINDOW + 1, b"x");
    assert_eq!(end.rails.counters().sessions.garbage, 2);
    assert_eq!(end.rails.guests(), 0);
    // And more of what is out of order than strangers may have.
    let mut session = Session::new(Role::Caller, &terms, Time::ZERO).unwrap();
    stranger.piece(&mut end, Kind::Call, 4, 0, &session.take_outgoing());
    for sequence in 2..6 {
        stranger.piece(&mut end, Kind::Piece, 4, sequence, &[7; 6000]);
    }
    assert_eq!(end.rails.counters().sessions.garbage, 3);
    end.leave();
}

#[test]
fn a_message_longer_than_the_limit_ends_the_link_before_memory_is_taken() {
    let clock = Clock::start();
    let mut end = End::new(who(0), clock);
    let mut stranger = Stranger::of(&mut end);
    let (mut session, mut sequence) = stranger.member(&mut end, 1, 9, 4 * LONGEST);
    let hello = Hello {
        version: 1,
        said: HelloKind::Call,
        from: Name::new(JOB, 9),
        epoch: Epoch(5),
        to: Name::new(JOB, 0),
        nonce: 1,
        heard: 0,
    };
    session.send(&hello.bytes()).unwrap();
    session.send(&vec![7; 2 * LONGEST]).unwrap();
    for piece in session.take_outgoing().chunks(16 << 10) {
        if end.lost.is_empty() {
            stranger.piece(&mut end, Kind::Piece, 1, sequence, piece);
        }
        sequence += 1;
    }
    assert_eq!(
        (end.lost.as_slice(), end.rails.counters().sessions.forged),
        (&[Loss::Protocol][..], 1)
    );
    assert!(end.came.is_empty(), "nothing of it was handed up");
    // It is notified, by the end of the line.
    (0..200).for_each(|_| stranger.receive(&mut end));
    assert!(
        stranger.came.iter().any(|(head, _)| head.kind == Kind::End),
        "{:?}",
        stranger.came.len()
    );
    // A record that was changed ends a link in the same way.
    let (mut session, mut sequence) = stranger.member(&mut end, 2, 9, LONGEST);
    let hello = Hello { nonce: 2, ..hello };
    session.send(&hello.bytes()).unwrap();
    session.send(b"a word").unwrap();
    let mut bytes = session.take_outgoing();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    stranger.piece(&mut end, Kind::Piece, 2, sequence, &bytes);
    sequence += 1;
    assert_eq!(
        (end.lost.len(), end.rails.counters().sessions.forged),
        (2, 2),
        "piece {sequence}"
    );
    end.leave();
}

#[test]
fn calls_without_end_are_limited_and_a_peer_that_fails_too_often_is_refused() {
    let clock = Clock::start();
    let mut end = End::new(who(0), clock);
    let mut stranger = Stranger::of(&mut end);
    let terms = Terms::new(key(7), PURPOSE, 5);
    for line in 0..200 {
        let mut session = Session::new(Role::Caller, &terms, Time::ZERO).unwrap();
        stranger.piece(&mut end, Kind::Call, line, 0, &session.take_outgoing());
        assert!(end.rails.guests() <= 4, "of one peer");
    }
    assert!(
        end.rails.counters().sessions.evicted >= 190,
        "{:?}",
        end.rails.counters()
    );
    let wrong = Terms::new(key(8), PURPOSE, 5);
    for line in 1000..1200 {
        let mut session = Session::new(Role::Caller, &wrong, Time::ZERO).unwrap();
        stranger.piece(&mut end, Kind::Call, line, 0, &session.take_outgoing());
    }
    let counted = end.rails.counters().sessions;
    assert!(counted.wrong_key >= 64 && counted.throttled >= 1, "{counted:?}");
    // An impostor has the key, and its hello names another process than its handshake.
    std::thread::sleep(Duration::from_millis(500));
    let (mut session, sequence) = stranger.member(&mut end, 5000, 9, LONGEST);
    let hello = Hello {
        version: 1,
        said: HelloKind::Call,
        from: Name::new(JOB, 3),
        epoch: Epoch(5),
        to: Name::new(JOB, 0),
        nonce: 1,
        heard: 0,
    };
    session.send(&hello.bytes()).unwrap();
    stranger.piece(&mut end, Kind::Piece, 5000, sequence, &session.take_outgoing());
    assert_eq!(end.rails.counters().sessions.impostors, 1);
    assert!(matches!(session.event(), Some(session::Event::Ready(_))));
    assert!(end.links.is_empty());
    end.leave();
}
