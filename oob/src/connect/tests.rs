use std::collections::BTreeSet;

use doorbell_testing::Random;

use super::*;

const MODULE: ModuleId = ModuleId(0);

/// An item on its way to a side.
#[derive(Debug)]
enum InFlight {
    Dialled(Conn),
    Accept(Conn),
    Refuse(Conn),
    Bytes(Conn, [u8; HELLO]),
    End(Conn),
}

/// Two meetings and what is between them; connections are known by the dialler's side and number.
struct World {
    sides: [Meeting; 2],
    /// Each connection: its numbers at both sides, and the side that dialled it.
    pairs: Vec<([Option<Conn>; 2], usize)>,
    /// In order for each connection, in any order among them.
    in_flight: [Vec<InFlight>; 2],
    links: [Vec<(Conn, Option<Attempt>)>; 2],
    refused: [Vec<(Attempt, Refusal)>; 2],
    /// Whether each side can be dialled.
    listens: [bool; 2],
    seen: BTreeSet<(State, State)>,
    now: Time,
}

const LOW: Name = Name::new(7, 3);
const HIGH: Name = Name::new(7, 4);

impl World {
    fn new() -> Self {
        Self::of([
            Meeting::new(LOW, Epoch(1), 1, Limits::default()),
            Meeting::new(HIGH, Epoch(1), 1, Limits::default()),
        ])
    }

    fn of(sides: [Meeting; 2]) -> Self {
        Self {
            sides,
            pairs: Vec::new(),
            in_flight: [Vec::new(), Vec::new()],
            links: [Vec::new(), Vec::new()],
            refused: [Vec::new(), Vec::new()],
            listens: [true; 2],
            seen: BTreeSet::new(),
            now: Time::ZERO,
        }
    }

    fn connect(&mut self, side: usize, attempt: u64) {
        let peer = [HIGH, LOW][side];
        let deadline = self.now + Duration::from_secs(20);
        let before = self.sides[side].state(peer);
        self.sides[side].connect(
            self.now,
            Attempt(attempt),
            peer,
            Epoch::UNKNOWN,
            MODULE,
            vec!["there".into()],
            deadline,
        );
        self.acts(side, before);
    }

    fn other(&self, side: usize, conn: Conn) -> Option<Conn> {
        let pair = self.pairs.iter().find(|(pair, _)| pair[side] == Some(conn))?;
        pair.0[1 - side]
    }

    fn acts(&mut self, side: usize, before: State) {
        let peer = [HIGH, LOW][side];
        let after = self.sides[side].state(peer);
        if before != after {
            self.seen.insert((before, after));
        }
        while let Some(action) = self.sides[side].action() {
            match action {
                Action::Dial { conn, .. } => {
                    let mut pair = [None; 2];
                    pair[side] = Some(conn);
                    self.pairs.push((pair, side));
                    let item = if self.listens[1 - side] {
                        InFlight::Accept(conn)
                    } else {
                        InFlight::Refuse(conn)
                    };
                    let to = if self.listens[1 - side] { 1 - side } else { side };
                    self.in_flight[to].push(item);
                }
                Action::Send { conn, bytes } => {
                    if let Some(other) = self.other(side, conn) {
                        self.in_flight[1 - side].push(InFlight::Bytes(other, bytes));
                    }
                }
                Action::Up { conn, attempt, .. } => self.links[side].push((conn, attempt)),
                Action::Close { conn, .. } => {
                    self.links[side].retain(|&(link, _)| link != conn);
                    if let Some(other) = self.other(side, conn) {
                        self.in_flight[1 - side].push(InFlight::End(other));
                    }
                }
                Action::Refused { attempt, why } => self.refused[side].push((attempt, why)),
            }
        }
    }

    /// Lets the `nth` thing on its way to a side arrive, or what must come before it.
    fn arrive(&mut self, side: usize, nth: usize) {
        let of = |item: &InFlight| match *item {
            InFlight::Dialled(conn) | InFlight::Accept(conn) | InFlight::Refuse(conn) => conn,
            InFlight::Bytes(conn, _) | InFlight::End(conn) => conn,
        };
        let conn = of(&self.in_flight[side][nth]);
        let first = self.in_flight[side]
            .iter()
            .position(|item| of(item) == conn && !matches!(item, InFlight::Accept(_)));
        let nth = if matches!(self.in_flight[side][nth], InFlight::Accept(_)) {
            nth
        } else {
            first.unwrap_or(nth)
        };
        let before = self.sides[side].state([HIGH, LOW][side]);
        match self.in_flight[side].remove(nth) {
            InFlight::Accept(theirs) => {
                let here = self.sides[side].accepted(self.now, MODULE).expect("not crowded");
                if let Some(pair) = self
                    .pairs
                    .iter_mut()
                    .find(|(pair, by)| *by != side && pair[1 - side] == Some(theirs))
                {
                    pair.0[side] = Some(here);
                }
                self.in_flight[1 - side].push(InFlight::Dialled(theirs));
            }
            InFlight::Dialled(conn) => self.sides[side].dialled(self.now, conn),
            InFlight::Refuse(conn) => self.sides[side].ended(self.now, conn, Refusal::NotListening),
            InFlight::Bytes(conn, bytes) => self.sides[side].received(self.now, conn, &bytes),
            InFlight::End(conn) => {
                self.links[side].retain(|&(link, _)| link != conn);
                self.sides[side].ended(self.now, conn, Refusal::Broken);
            }
        }
        self.acts(side, before);
    }

    /// Until nothing is on its way; what comes first is the dice's.
    fn run(&mut self, dice: &mut Random) {
        for _ in 0..1000 {
            let (low, high) = (self.in_flight[0].len(), self.in_flight[1].len());
            if low + high == 0 {
                return;
            }
            let nth = dice.index(low + high);
            if nth < low {
                self.arrive(0, nth)
            } else {
                self.arrive(1, nth - low)
            }
        }
        panic!("it does not end: {:?}", self.in_flight);
    }

    fn wait(&mut self, dice: &mut Random) {
        while let Some(next) = self.sides.iter().filter_map(Meeting::next_deadline).min() {
            self.now = self.now.max(next);
            for side in 0..2 {
                let before = self.sides[side].state([HIGH, LOW][side]);
                self.sides[side].tick(self.now);
                self.acts(side, before);
            }
            self.run(dice);
        }
    }

    /// Both have one link, and it is the same connection.
    fn assert_one_link(&self) {
        let [low, high] = &self.links;
        assert_eq!((low.len(), high.len()), (1, 1), "{low:?} {high:?}");
        assert_eq!(
            self.other(0, low[0].0),
            Some(high[0].0),
            "not the same connection"
        );
        assert!(
            self.sides
                .iter()
                .zip([HIGH, LOW])
                .all(|(side, peer)| side.state(peer) == State::Connected)
        );
    }

    fn ended(&self, side: usize, attempt: u64) -> usize {
        let up = self.links[side]
            .iter()
            .filter(|(_, of)| *of == Some(Attempt(attempt)))
            .count();
        up + self.refused[side]
            .iter()
            .filter(|(of, _)| of.0 == attempt)
            .count()
    }
}

#[test]
fn one_calls_and_both_have_a_link() {
    let mut world = World::new();
    world.connect(0, 1);
    world.run(&mut Random::new(1));
    world.assert_one_link();
    assert_eq!(world.links[0][0].1, Some(Attempt(1)));
    assert_eq!(world.links[1][0].1, None);
}

#[test]
fn simultaneous_connects_a_thousand_times_leave_one_link_which_the_higher_name_made() {
    for seed in 1..=1000 {
        let mut dice = Random::new(seed);
        let mut world = World::new();
        world.connect(0, 1);
        if seed % 3 == 0 && !world.in_flight[1].is_empty() {
            world.arrive(1, 0);
        }
        world.connect(1, 1);
        world.run(&mut dice);
        world.assert_one_link();
        for side in 0..2 {
            assert_eq!(world.ended(side, 1), 1, "seed {seed}: an attempt ends once");
        }
        assert!(
            world
                .refused
                .iter()
                .flatten()
                .all(|&(_, why)| why == Refusal::Yielded),
            "seed {seed}: {:?}",
            world.refused
        );
        world.wait(&mut dice);
        world.assert_one_link();
    }
}

#[test]
fn peers_that_can_call_in_one_direction_only_are_connected() {
    for (deaf, seed) in [0, 1]
        .into_iter()
        .flat_map(|deaf| (1..50).map(move |seed| (deaf, seed)))
    {
        let mut dice = Random::new(seed);
        let mut world = World::new();
        world.listens[deaf] = false;
        world.connect(0, 1);
        world.connect(1, 1);
        world.run(&mut dice);
        world.wait(&mut dice);
        world.assert_one_link();
        assert_eq!((world.ended(0, 1), world.ended(1, 1)), (1, 1));
    }
}

#[test]
fn a_link_that_only_one_side_has_lost_is_replaced() {
    for (loser, first) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut dice = Random::new(7);
        let mut world = World::new();
        world.connect(first, 1);
        world.run(&mut dice);
        let (conn, _) = world.links[loser].remove(0);
        let peer = [HIGH, LOW][loser];
        world.sides[loser].ended(world.now, conn, Refusal::Broken);
        assert_eq!(world.sides[loser].state(peer), State::Closed);
        world.connect(loser, 2);
        world.run(&mut dice);
        world.assert_one_link();
        assert_eq!(world.links[loser][0].1, Some(Attempt(2)), "{loser} {first}");
    }
}

#[test]
fn a_better_way_takes_the_place_of_the_link() {
    for seed in 1..100 {
        let mut dice = Random::new(seed);
        let mut world = World::new();
        world.connect(0, 1);
        world.run(&mut dice);
        world.connect(0, 2);
        world.connect(1, 2);
        world.run(&mut dice);
        world.assert_one_link();
        assert_eq!((world.ended(0, 2), world.ended(1, 2)), (1, 1));
    }
}

#[test]
fn without_a_listener_every_address_is_tried_twice() {
    let mut world = World::new();
    world.listens[1] = false;
    world.connect(0, 1);
    world.run(&mut Random::new(1));
    assert_eq!(world.refused[0], [(Attempt(1), Refusal::NotListening)]);
    assert_eq!(world.pairs.len(), 2);
    assert_eq!(world.sides[0].state(HIGH), State::Failed);
}

#[test]
fn wrong_version_and_wrong_name_are_refused_with_the_reason() {
    let limits = Limits::default();
    let mut world = World::of([
        Meeting::new(LOW, Epoch(1), 1, limits),
        Meeting::new(HIGH, Epoch(1), 2, limits),
    ]);
    world.connect(0, 1);
    world.run(&mut Random::new(1));
    assert_eq!(world.refused[0], [(Attempt(1), Refusal::WrongVersion)]);
    assert_eq!(world.sides[1].counters().nacks, 2);

    let other = Meeting::new(Name::new(7, 9), Epoch(1), 1, limits);
    let mut world = World::of([Meeting::new(LOW, Epoch(1), 1, limits), other]);
    world.connect(0, 1);
    world.run(&mut Random::new(1));
    assert_eq!(world.refused[0], [(Attempt(1), Refusal::WrongName)]);
    assert!(world.links.iter().all(Vec::is_empty));
}

#[test]
fn an_older_life_is_refused_and_a_newer_one_takes_the_place() {
    let limits = Limits::default();
    let mut dice = Random::new(1);
    let mut world = World::of([
        Meeting::new(LOW, Epoch(5), 1, limits),
        Meeting::new(HIGH, Epoch(1), 1, limits),
    ]);
    world.connect(0, 1);
    world.run(&mut dice);
    world.assert_one_link();
    // An earlier life of the same name comes late.
    let high = std::mem::replace(&mut world.sides[1], Meeting::new(HIGH, Epoch(1), 1, limits));
    let mut late = World::of([Meeting::new(LOW, Epoch(4), 1, limits), high]);
    late.pairs.push(([None, None], 0));
    late.connect(0, 1);
    late.run(&mut dice);
    assert_eq!(late.refused[0], [(Attempt(1), Refusal::OutOfDate)]);
    // And a later one is taken, in place of the first.
    let high = late.sides.into_iter().nth(1).expect("two sides");
    let before = high.counters().links;
    let mut next = World::of([Meeting::new(LOW, Epoch(6), 1, limits), high]);
    next.connect(0, 1);
    next.run(&mut dice);
    assert_eq!(next.links[0].len(), 1);
    assert_eq!(next.sides[1].counters().links, before + 1);
}

#[test]
fn an_answer_from_an_older_life_than_is_known_is_not_taken() {
    let mut world = World::new();
    let deadline = Time::ZERO + Duration::from_secs(5);
    world.sides[0].connect(
        Time::ZERO,
        Attempt(1),
        HIGH,
        Epoch(2),
        MODULE,
        vec!["there".into()],
        deadline,
    );
    world.acts(0, State::Unconnected);
    world.run(&mut Random::new(1));
    assert_eq!(world.refused[0], [(Attempt(1), Refusal::OldEpoch)]);
}

#[test]
fn strangers_have_a_deadline_and_a_limit() {
    let limits = Limits {
        strangers: 2,
        ..Limits::default()
    };
    let mut meeting = Meeting::new(LOW, Epoch(1), 1, limits);
    let first = meeting.accepted(Time::ZERO, MODULE).expect("room");
    assert!(meeting.accepted(Time::ZERO, MODULE).is_some());
    assert!(meeting.accepted(Time::ZERO, MODULE).is_none(), "a third one");
    meeting.received(Time::ZERO, first, b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(
        meeting.action(),
        Some(Action::Close {
            conn: first,
            why: Loss::Protocol
        })
    );
    assert!(
        meeting.accepted(Time::ZERO, MODULE).is_some(),
        "there is room again"
    );
    meeting.tick(Time::ZERO + limits.hello);
    assert_eq!(meeting.strangers, 0);
    assert_eq!(meeting.counters().strangers, 3);
    assert_eq!(meeting.counters().crowded, 1);
    assert_eq!(meeting.next_deadline(), None);
}

#[test]
fn an_attempt_ends_at_its_deadline_without_an_answer() {
    let mut meeting = Meeting::new(LOW, Epoch(1), 1, Limits::default());
    let deadline = Time::ZERO + Duration::from_secs(3);
    meeting.connect(
        Time::ZERO,
        Attempt(1),
        HIGH,
        Epoch::UNKNOWN,
        MODULE,
        vec!["there".into()],
        deadline,
    );
    let Some(Action::Dial { conn, .. }) = meeting.action() else {
        panic!("a dial")
    };
    meeting.dialled(Time::ZERO, conn);
    assert!(matches!(meeting.action(), Some(Action::Send { .. })));
    assert_eq!(meeting.next_deadline(), Some(deadline));
    meeting.tick(deadline);
    assert_eq!(
        meeting.action(),
        Some(Action::Close {
            conn,
            why: Loss::Broken
        })
    );
    let refused = Action::Refused {
        attempt: Attempt(1),
        why: Refusal::TimedOut,
    };
    assert_eq!(meeting.action(), Some(refused));
    assert_eq!(meeting.state(HIGH), State::Failed);
}

#[test]
fn a_cancelled_attempt_ends_once_and_late_news_of_it_changes_nothing() {
    let mut meeting = Meeting::new(LOW, Epoch(1), 1, Limits::default());
    let deadline = Time::ZERO + Duration::from_secs(3);
    let address: Vec<Address> = vec!["there".into()];
    meeting.connect(
        Time::ZERO,
        Attempt(1),
        HIGH,
        Epoch::UNKNOWN,
        MODULE,
        address.clone(),
        deadline,
    );
    let Some(Action::Dial { conn, .. }) = meeting.action() else {
        panic!("a dial")
    };
    meeting.connect(
        Time::ZERO,
        Attempt(2),
        HIGH,
        Epoch::UNKNOWN,
        MODULE,
        address,
        deadline,
    );
    assert!(
        matches!(
            meeting.action(),
            Some(Action::Refused {
                attempt: Attempt(2),
                ..
            })
        ),
        "one at a time"
    );
    meeting.cancel(Time::ZERO, Attempt(1));
    assert!(matches!(meeting.action(), Some(Action::Close { .. })));
    let refused = Action::Refused {
        attempt: Attempt(1),
        why: Refusal::Cancelled,
    };
    assert_eq!(meeting.action(), Some(refused));
    meeting.dialled(Time::ZERO, conn);
    meeting.ended(Time::ZERO, conn, Refusal::Broken);
    meeting.received(Time::ZERO, conn, b"x");
    assert_eq!((meeting.action(), meeting.next_deadline()), (None, None));
}

/// One that has lost the tie waits for the peer's own call, takes it, and calls again when it does not come.
#[test]
fn the_loser_of_a_tie_waits_for_the_call_and_not_for_ever() {
    for comes in [true, false] {
        let limits = Limits::default();
        let mut meeting = Meeting::new(LOW, Epoch(1), 1, limits);
        let deadline = Time::ZERO + Duration::from_secs(20);
        meeting.connect(
            Time::ZERO,
            Attempt(1),
            HIGH,
            Epoch::UNKNOWN,
            MODULE,
            vec!["there".into()],
            deadline,
        );
        let Some(Action::Dial { conn, .. }) = meeting.action() else {
            panic!("a dial")
        };
        meeting.dialled(Time::ZERO, conn);
        let Some(Action::Send { bytes, .. }) = meeting.action() else {
            panic!("a call")
        };
        let call = Hello::read(&bytes).expect("a call");
        let from = Hello {
            from: HIGH,
            to: LOW,
            said: HelloKind::Nack(Nack::Tie),
            ..call
        };
        meeting.received(Time::ZERO, conn, &from.bytes());
        assert_eq!(meeting.state(HIGH), State::Yielding);
        assert!(matches!(meeting.action(), Some(Action::Close { .. })));
        if comes {
            let theirs = meeting.accepted(Time::ZERO, MODULE).expect("room");
            let call = Hello {
                said: HelloKind::Call,
                nonce: 9,
                ..from
            };
            meeting.received(Time::ZERO, theirs, &call.bytes());
            assert!(matches!(meeting.action(), Some(Action::Send { .. })));
            assert!(matches!(meeting.action(), Some(Action::Up { attempt: None, .. })));
            let refused = Action::Refused {
                attempt: Attempt(1),
                why: Refusal::Yielded,
            };
            assert_eq!(meeting.action(), Some(refused));
            assert_eq!(
                (meeting.state(HIGH), meeting.next_deadline()),
                (State::Connected, None)
            );
        } else {
            meeting.tick(Time::ZERO + limits.yielding);
            assert!(
                matches!(meeting.action(), Some(Action::Dial { .. })),
                "it calls again"
            );
            assert_eq!(meeting.state(HIGH), State::Connecting);
        }
    }
}

/// Every move of a peer that all those stories make, and no other.
#[test]
fn the_moves_of_a_peer() {
    let mut seen = BTreeSet::new();
    for seed in 1..=400 {
        let mut dice = Random::new(seed);
        let mut world = World::new();
        for round in 1..=6 {
            for side in 0..2 {
                world.listens[side] = dice.index(4) > 0;
            }
            for side in 0..2 {
                if dice.index(3) > 0 {
                    world.connect(side, round);
                }
                for _ in 0..dice.index(4) {
                    let count = world.in_flight[side].len();
                    if count > 0 {
                        world.arrive(side, dice.index(count));
                    }
                }
            }
            if dice.index(3) == 0 {
                // The network breaks everything that is open.
                for side in 0..2 {
                    for nth in 0..world.pairs.len() {
                        if let Some(conn) = world.pairs[nth].0[side] {
                            world.links[side].retain(|&(link, _)| link != conn);
                            let before = world.sides[side].state([HIGH, LOW][side]);
                            world.sides[side].ended(world.now, conn, Refusal::Broken);
                            world.acts(side, before);
                        }
                    }
                }
                let dials = |item: &InFlight| matches!(item, InFlight::Accept(_) | InFlight::Refuse(_));
                world
                    .in_flight
                    .iter_mut()
                    .for_each(|in_flight| in_flight.retain(dials));
            }
        }
        world.listens = [true; 2];
        world.run(&mut dice);
        world.wait(&mut dice);
        world.connect(0, 7);
        world.connect(1, 7);
        world.run(&mut dice);
        world.wait(&mut dice);
        world.assert_one_link();
        for side in 0..2 {
            assert!(
                (1..=7).all(|attempt| world.ended(side, attempt) <= 1),
                "seed {seed}"
            );
        }
        seen.extend(world.seen);
    }
    let moves: Vec<String> = seen
        .iter()
        .map(|(from, to)| format!("{from:?} -> {to:?}"))
        .collect();
    assert_eq!(moves.join("\n"), include_str!("moves.txt").trim_end());
}
