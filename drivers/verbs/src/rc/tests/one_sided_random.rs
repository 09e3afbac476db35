//! One-sided operations of both ends in random schedules, over devices that execute requests late: each ends
//! once, as its target saw it, and nothing is left behind.

use std::collections::BTreeMap;

use doorbell_fabric::event::EventKind;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{
    Access, AtomicOp, Body, Exposure, FenceScope, Landing, Message, OpError, OpId, PeerIndex, Refused,
    Remote, RemoteKey,
};
use doorbell_fabric::rail::Rail;
use doorbell_sim::conformance::{Collect, Pair};
use doorbell_testing::random::Random;

use zerocopy::{FromBytes, IntoBytes};

use super::{RcRail, connect, device_of, pair_over, small};
use crate::sys::model::{self, Windows};

/// Words of the memory that each end exposes; each put and each atomic has one of its own.
const WORDS: usize = 4096;
/// The first words are for atomics that add, all to one of them.
const SUMS: usize = 8;

/// What an operation is expected to have done.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// Its word has this value, or the one before.
    Put(usize, u64),
    /// It has added one.
    Add(usize),
    Get,
    /// It has to be refused.
    Guess,
    Fence,
}

/// The state of one end.
struct End {
    memory: Region,
    /// Exposures to the peer, newest last, and whether they are withdrawn.
    exposed: Vec<(Remote, bool)>,
    /// Those of the peer that a message has brought.
    known: Vec<Remote>,
    landing: Region,
    open: BTreeMap<u64, (Goal, Remote)>,
    next: u64,
    word: usize,
    added: [u64; SUMS],
    /// Additions that may have been executed.
    doubtful: [u64; SUMS],
}

impl End {
    fn new() -> Self {
        Self {
            memory: Region::new(WORDS * 8).expect("memory"),
            exposed: Vec::new(),
            known: Vec::new(),
            landing: Region::new(WORDS * 8).expect("memory"),
            open: BTreeMap::new(),
            next: 0,
            word: SUMS,
            added: [0; SUMS],
            doubtful: [0; SUMS],
        }
    }

    fn word_at(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(at * 8, &mut bytes);
        u64::from_ne_bytes(bytes)
    }
}

/// Takes the exposures that messages have brought.
fn learn(seen: &mut Collect, own: &mut End) {
    for (_, bytes) in seen.messages.drain(..) {
        if let Ok(remote) = Remote::read_from_bytes(&bytes) {
            own.known.push(remote);
        }
    }
}

fn act(random: &mut Random, rail: &mut RcRail, peer: PeerIndex, own: &mut End) {
    match random.below(12) {
        0 if own.exposed.iter().filter(|(_, gone)| !gone).count() < 20 => {
            let memory = Exposure::Region(own.memory.whole());
            match rail.expose(memory, Access::ReadWrite, Some(peer)) {
                Ok(remote) => {
                    own.exposed.push((remote, false));
                    let _ = rail.send(peer, remote.as_bytes(), Body::Empty);
                }
                Err(refused) => assert!(matches!(refused, Refused::Full | Refused::PeerDown)),
            }
        }
        1 if random.one_in(2) => {
            let count = own.exposed.len();
            if let Some((remote, gone)) = own.exposed.get_mut(random.index(count)) {
                *gone = true;
                rail.withdraw(RemoteKey(remote.key.get()));
            }
        }
        2 if random.one_in(4) => {
            if let Some(remote) = own.known.last() {
                let guessed = Remote {
                    key: (remote.key.get() ^ 1 << random.within(24..=31)).into(),
                    ..*remote
                };
                start(rail, peer, own, Goal::Guess, guessed);
            }
        }
        3 => start(rail, peer, own, Goal::Fence, nothing()),
        4..=6 => {
            if let Some(remote) = own.known.get(random.index(own.known.len())) {
                let remote = *remote;
                start(rail, peer, own, Goal::Get, remote);
            }
        }
        7..=8 => {
            if let Some(remote) = own.known.get(random.index(own.known.len())) {
                let sum = random.index(SUMS);
                let remote = *remote;
                start(rail, peer, own, Goal::Add(sum), remote);
            }
        }
        _ => {
            if own.word < WORDS
                && let Some(remote) = own.known.get(random.index(own.known.len()))
            {
                let goal = Goal::Put(own.word, random.next_u64() | 1);
                let remote = *remote;
                own.word += 1;
                start(rail, peer, own, goal, remote);
            }
        }
    }
}

fn nothing() -> Remote {
    Remote {
        key: 0.into(),
        address: 0.into(),
        length: 0.into(),
    }
}

fn start(rail: &mut RcRail, peer: PeerIndex, own: &mut End, goal: Goal, remote: Remote) {
    own.next += 1;
    let op = OpId(own.next);
    let part = |at: usize| remote.part(at as u64 * 8, 8).expect("inside");
    let started = match goal {
        Goal::Get => rail.get(peer, op, &remote, Landing::Region(own.landing.whole())),
        Goal::Put(at, value) => rail.put(peer, op, Body::Bytes(&value.to_ne_bytes()), &part(at)),
        Goal::Add(at) => rail.atomic(peer, op, &part(at), AtomicOp::Add(1)),
        Goal::Guess => rail.put(peer, op, Body::Bytes(&[0xff; 8]), &part(0)),
        Goal::Fence => rail.fence(FenceScope::Peer(peer), op),
    };
    match started {
        Ok(()) => {
            own.open.insert(op.0, (goal, remote));
        }
        Err(refused) => assert!(
            matches!(refused, Refused::Full | Refused::PeerDown),
            "{refused:?}"
        ),
    }
}

/// Looks at what has ended: of `own`, on the memory of `other`.
fn judge(seen: &mut Collect, own: &mut End, other: &End, may_break: bool) {
    for (op, outcome) in seen.ended.drain(..) {
        let (goal, _) = own.open.remove(&op.0).expect("each ends once");
        if let Goal::Fence = goal {
            assert_eq!(outcome, Ok(0));
            let before = own
                .open
                .range(..op.0)
                .filter(|(_, (goal, _))| !matches!(goal, Goal::Fence));
            assert_eq!(before.count(), 0, "a fence ends last");
            continue;
        }
        let is_allowed = match outcome {
            Ok(_) => !matches!(goal, Goal::Guess),
            Err(OpError::Denied) => matches!(goal, Goal::Guess) || may_break,
            Err(OpError::Withdrawn) => !matches!(goal, Goal::Guess),
            Err(OpError::Indeterminate) => !matches!(goal, Goal::Get),
            Err(OpError::NotDone) => may_break,
            Err(OpError::System(_)) => false,
        };
        assert!(is_allowed, "{goal:?} ended as {outcome:?}");
        match (goal, outcome) {
            (Goal::Put(at, value), Ok(_)) => assert_eq!(other.word_at(at), value, "it is there"),
            (Goal::Put(at, _), Err(OpError::Denied | OpError::Withdrawn | OpError::NotDone)) => {
                assert_eq!(other.word_at(at), 0, "nothing was touched");
            }
            (Goal::Add(at), Ok(_)) => own.added[at] += 1,
            (Goal::Add(at), Err(OpError::Indeterminate)) => own.doubtful[at] += 1,
            _ => {}
        }
    }
}

fn run(seed: u64, windows: Windows, may_break: bool) {
    let mut random = Random::new(seed);
    let pair: Pair<RcRail> = connect(pair_over(small(), |spec| spec.windows = windows));
    let mut pair = pair;
    let devices = [device_of(&pair.a), device_of(pair.b())];
    for (at, device) in (1..).zip(&devices) {
        model::put_off_requests(device, seed * 2 + at);
    }
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    let mut ends = [End::new(), End::new()];
    for turn in 0..1500 {
        let [a, b] = &mut ends;
        if turn < 1000 {
            if random.one_in(2) {
                act(&mut random, &mut pair.a, to_b, a);
            } else {
                act(&mut random, pair.b(), to_a, b);
            }
            if may_break && random.one_in(150) {
                match random.below(3) {
                    0 => pair.a.abandon(to_b),
                    1 => pair.b().abandon(to_a),
                    _ => model::break_pair(&devices[0], pair.a.core.one_sided_pair(to_b.0)),
                }
            }
        }
        if random.one_in(2) || turn >= 1000 {
            pair.turn();
        }
        while let Some(event) = pair.b().event() {
            assert!(
                may_break || !matches!(event.kind, EventKind::PeerDown(_)),
                "{event:?}"
            );
        }
        let is_fine = |event: &doorbell_fabric::event::RailEvent| {
            may_break || !matches!(event.kind, EventKind::PeerDown(_))
        };
        assert!(pair.events.iter().all(is_fine), "{:?}", pair.events);
        if may_break && turn % 10 == 0 {
            pair.a.revive(to_b);
            pair.b().revive(to_a);
        }
        judge(&mut pair.at_a, a, b, may_break);
        judge(&mut pair.at_b, b, a, may_break);
        learn(&mut pair.at_a, a);
        learn(&mut pair.at_b, b);
    }
    let [a, b] = &mut ends;
    for _ in 0..20_000 {
        if a.open.is_empty() && b.open.is_empty() {
            break;
        }
        pair.turn();
        judge(&mut pair.at_a, a, b, may_break);
        judge(&mut pair.at_b, b, a, may_break);
    }
    assert!(
        a.open.is_empty() && b.open.is_empty(),
        "{:?} {:?}",
        a.open,
        b.open
    );
    for (own, other) in [(&*a, &*b), (&*b, &*a)] {
        for at in 0..SUMS {
            let now = other.word_at(at);
            let range = own.added[at]..=own.added[at] + own.doubtful[at];
            assert!(range.contains(&now), "{now} of {range:?}");
        }
    }
    assert!(super::one_sided::is_whole(&pair.a) && super::one_sided::is_whole(pair.b()));
    // And after the withdrawal of everything, nothing is bound.
    for (remote, _) in &a.exposed {
        pair.a.withdraw(RemoteKey(remote.key.get()));
    }
    for (remote, _) in &b.exposed {
        pair.b().withdraw(RemoteKey(remote.key.get()));
    }
    devices
        .iter()
        .for_each(|device| assert_eq!(model::bound_windows(device), 0));
    drop(pair);
    devices
        .iter()
        .for_each(|device| assert_eq!(model::outcome(device).1, 0, "objects are left"));
}

#[test]
fn operations_in_random_schedules_end_once_each() {
    for seed in 0..2 {
        for windows in [Windows::None, Windows::Unchecked, Windows::Checked] {
            run(seed, windows, false);
        }
    }
}

#[test]
fn operations_in_random_schedules_with_breaks_end_once_each() {
    for seed in 100..102 {
        for windows in [Windows::None, Windows::Unchecked, Windows::Checked] {
            run(seed, windows, true);
        }
    }
}
