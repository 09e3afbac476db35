//! Peers that are forgotten, and opened again.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{
    Access, Body, Exposure, Landing, Message as _, MsgId, OpError, OpId, PeerIndex, Refused,
};
use doorbell_fabric::rail::Rail as _;
use doorbell_sim::conformance::Collect;
use doorbell_sim::{Change, SimConfig, SimNet, SimRail};

struct End {
    rail: SimRail,
    seen: Collect,
}

impl End {
    fn send(&mut self, to: PeerIndex, text: &[u8]) -> Result<MsgId, Refused> {
        let sent = self.rail.send(to, text, Body::Empty);
        self.rail.flush();
        sent
    }

    /// The messages that were shown since the last call, each with the peer that sent it.
    fn take(&mut self) -> Vec<(PeerIndex, Vec<u8>)> {
        std::mem::take(&mut self.seen.messages)
    }

    fn events(&mut self) -> Vec<(Scope, EventKind)> {
        let next = || self.rail.event().map(|event| (event.scope, event.kind));
        std::iter::from_fn(next).collect()
    }
}

struct Ends {
    net: SimNet,
    all: Vec<End>,
}

fn ends(count: usize, config: SimConfig) -> Ends {
    let net = SimNet::new(3, config);
    let end = |_| End {
        rail: net.attach(),
        seen: Collect::default(),
    };
    let all = (0..count).map(end).collect();
    Ends { net, all }
}

impl Ends {
    fn open(&mut self, at: usize, to: usize) -> PeerIndex {
        let to = &self.all[to].rail;
        let (address, life) = (to.address(), to.incarnation());
        self.all[at].rail.open(&address, life).unwrap()
    }

    fn poll(&mut self) {
        for end in &mut self.all {
            end.rail.poll(usize::MAX, &mut end.seen);
        }
    }

    /// Plays everything that will ever happen.
    fn play(&mut self) {
        self.poll();
        while self.net.advance_to_next_event().is_some() {
            self.poll();
        }
        self.poll();
    }
}

fn down(peer: PeerIndex) -> (Scope, EventKind) {
    (Scope::Peer(peer), EventKind::PeerDown(DownReason::Closed))
}

#[test]
fn the_peer_finds_the_connection_down_and_nothing_goes_over_it() {
    let mut ends = ends(2, SimConfig::default());
    let (to_b, to_a) = (ends.open(0, 1), ends.open(1, 0));
    ends.all[0].send(to_b, b"before").unwrap();
    ends.play();
    ends.all[1].events();
    ends.all[0].send(to_b, b"lost").unwrap();
    ends.all[1].send(to_a, b"lost, too").unwrap();
    ends.all[0].rail.forget(to_b);
    ends.play();
    assert_eq!(ends.all[1].take(), [(to_a, b"before".to_vec())]);
    assert_eq!((ends.all[0].take(), ends.all[0].events()), (vec![], vec![]));
    assert_eq!(ends.all[1].events(), [down(to_a)]);
    assert_eq!(ends.all[0].send(to_b, b"x"), Err(Refused::PeerDown));
    assert_eq!(ends.all[1].send(to_a, b"x"), Err(Refused::PeerDown));
    let mut given = Vec::new();
    ends.all[1]
        .rail
        .reclaim(to_a, &mut |_, bytes| given.push(bytes.to_vec()));
    assert_eq!(given, [b"lost, too"]);
    // It does not come back, by whatever means.
    ends.all[1].rail.revive(to_a);
    ends.net.change(Change::LinkDown(ends.all[0].rail.plane(), 0));
    ends.play();
    ends.net.change(Change::LinkUp(ends.all[0].rail.plane(), 0));
    ends.all[1].rail.revive(to_a);
    ends.play();
    assert_eq!(ends.all[1].events(), []);
    assert_eq!(ends.all[1].send(to_a, b"x"), Err(Refused::PeerDown));
}

#[test]
fn a_peer_that_is_opened_again_is_a_fresh_one_whoever_forgets_first() {
    for first in [0, 1] {
        let mut ends = ends(2, SimConfig::default());
        let mut indices = [ends.open(0, 1), ends.open(1, 0)];
        for round in 0..6_u8 {
            for at in [0, 1] {
                ends.all[at].send(indices[at], &[at as u8, round]).unwrap();
            }
            ends.play();
            for at in [0, 1] {
                let other = 1 - at as u8;
                assert_eq!(ends.all[at].take(), [(indices[at], vec![other, round])]);
                // What is under way when it is forgotten belongs to the old one.
                ends.all[at].send(indices[at], b"old").unwrap();
            }
            if round % 2 == 0 {
                ends.play();
            }
            ends.all[first].rail.forget(indices[first]);
            indices[first] = ends.open(first, 1 - first);
            ends.all[first].send(indices[first], b"fresh").unwrap();
            if round % 3 == 0 {
                ends.play();
            }
            let last = 1 - first;
            let seen = ends.all[last].take();
            assert!(seen.iter().all(|(_, bytes)| bytes == b"old"), "{seen:?}");
            ends.all[last].rail.forget(indices[last]);
            assert_eq!(ends.all[last].rail.stranger().is_some(), round % 3 == 0);
            ends.all[last].events();
            indices[last] = ends.open(last, first);
            ends.play();
            assert_eq!(ends.all[last].take(), [(indices[last], b"fresh".to_vec())]);
            let old = ends.all[first].take();
            assert!(old.iter().all(|(_, bytes)| bytes == b"old"), "{old:?}");
            let events = [first, last].map(|at| ends.all[at].events());
            let downs = |events: &[(Scope, EventKind)]| {
                let down = |event: &&(Scope, EventKind)| matches!(event.1, EventKind::PeerDown(_));
                events.iter().filter(down).count()
            };
            assert_eq!(events.each_ref().map(|events| downs(events)), [0, 0]);
        }
    }
}

#[test]
fn indices_are_given_out_again() {
    let mut ends = ends(3, SimConfig::default());
    for _ in 0..100 {
        let (to_b, to_c) = (ends.open(0, 1), ends.open(0, 2));
        assert_ne!(to_b, to_c);
        assert!(to_b.0 < 2 && to_c.0 < 2);
        ends.all[0].send(to_c, b"x").unwrap();
        ends.all[0].rail.forget(to_b);
        ends.all[0].rail.forget(to_b); // without effect
        ends.all[0].rail.forget(to_c);
        ends.play();
    }
}

#[test]
fn operations_end_and_memory_is_withdrawn() {
    let config = SimConfig {
        execution: Duration::from_millis(1),
        ..SimConfig::default()
    };
    let mut ends = ends(2, config);
    let (to_b, to_a) = (ends.open(0, 1), ends.open(1, 0));
    let region = Region::new(64).unwrap();
    let expose = |end: &mut End, to| {
        let memory = Exposure::Region(region.whole());
        end.rail.expose(memory, Access::ReadWrite, Some(to)).unwrap()
    };
    let (of_a, of_b) = (expose(&mut ends.all[0], to_b), expose(&mut ends.all[1], to_a));
    let into = || Landing::Region(Region::new(64).unwrap().whole());
    ends.all[0].rail.get(to_b, OpId(1), &of_b, into()).unwrap();
    ends.all[1].rail.get(to_a, OpId(2), &of_a, into()).unwrap();
    ends.all[0].rail.forget(to_b);
    assert_eq!((ends.all[0].rail.exposed(), ends.all[1].rail.exposed()), (0, 0));
    ends.play();
    for (end, op) in ends.all.iter().zip([OpId(1), OpId(2)]) {
        let [(ended, outcome)] = &end.seen.ended[..] else {
            panic!("one ends: {:?}", end.seen.ended);
        };
        assert_eq!(*ended, op);
        assert!(
            matches!(outcome, Err(OpError::NotDone | OpError::Indeterminate)),
            "{outcome:?}"
        );
    }
}

#[test]
fn one_that_has_ended_is_forgotten_like_any_other() {
    let mut ends = ends(3, SimConfig::default());
    let (to_b, to_c) = (ends.open(0, 1), ends.open(0, 2));
    let _ = ends.open(1, 0);
    ends.all[0].send(to_b, b"x").unwrap();
    ends.net.change(Change::RankDeath(1));
    ends.all[0].rail.forget(to_b);
    ends.play();
    assert_eq!(ends.all[0].events(), []);
    ends.net.change(Change::RankDeath(2));
    ends.play();
    let died = EventKind::PeerDown(DownReason::Died);
    assert_eq!(ends.all[0].events(), [(Scope::Peer(to_c), died)]);
    ends.all[0].rail.forget(to_c);
    assert_eq!(ends.all[0].send(to_c, b"x"), Err(Refused::PeerDown));
}
