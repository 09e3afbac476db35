//! Peers that are forgotten: what ends, what still arrives, and whose number comes again.

use crate::forget::Acquaintance;
use crate::rail::Peer;

use super::*;

const A: PeerIndex = PeerIndex(0);
const B: PeerIndex = PeerIndex(1);
const CLOSED: EventKind = EventKind::PeerDown(DownReason::Closed);

/// Two rails and what arrived at each, with a clock of the test's.
struct Two {
    rails: [ShmRail; 2],
    seen: [Seen; 2],
    clock: Time,
}

impl Two {
    fn new() -> Self {
        Self {
            rails: [0, 1].map(|_| rail(&ShmConfig::default())),
            seen: Default::default(),
            clock: Time::ZERO,
        }
    }

    /// Opens the other one at `me`.
    fn open(&mut self, me: usize) -> PeerIndex {
        let (address, life) = (self.rails[1 - me].address(), self.rails[1 - me].incarnation());
        Message::open(&mut self.rails[me], &address, life).unwrap()
    }

    fn pass(&mut self, turns: usize) {
        for _ in 0..turns {
            self.clock += Duration::from_millis(6);
            for (rail, seen) in self.rails.iter_mut().zip(&mut self.seen) {
                rail.progress(self.clock);
                // The last of what was taken is published after some idle polls.
                for _ in 0..70 {
                    rail.poll(64, seen);
                }
            }
        }
    }

    fn events(&mut self, me: usize) -> Vec<EventKind> {
        std::iter::from_fn(|| self.rails[me].event())
            .map(|event| event.kind)
            .collect()
    }

    fn taken(&mut self, me: usize) -> Vec<Vec<u8>> {
        self.seen[me].messages.drain(..).map(|(_, bytes)| bytes).collect()
    }

    /// Sends one message in each direction, and waits for both.
    fn talk(&mut self, to: [PeerIndex; 2], text: &[u8]) {
        for (rail, peer) in self.rails.iter_mut().zip(to) {
            rail.send(peer, text, Body::Empty).unwrap();
        }
        self.pass(4);
        for (seen, peer) in self.seen.iter_mut().zip(to) {
            assert_eq!(
                seen.messages.drain(..).collect::<Vec<_>>(),
                [(peer, text.to_vec())]
            );
        }
    }
}

/// Entries of the rail's tables.
fn tables(rail: &ShmRail) -> [usize; 6] {
    [
        rail.peers.len(),
        rail.hot.len(),
        rail.cold.len(),
        rail.pending_peers.len(),
        rail.awaiting_hello.len(),
        rail.events.len(),
    ]
}

#[test]
fn to_the_peer_it_is_a_close_after_the_last_message() {
    let mut two = Two::new();
    let to = [two.open(0), two.open(1)];
    two.talk(to, b"hello");
    assert_eq!(
        (two.events(0), two.events(1)),
        (vec![EventKind::PeerUp], vec![EventKind::PeerUp])
    );
    for n in 0..5u8 {
        two.rails[0].send(to[0], &[n], Body::Bytes(&[n; 100])).unwrap();
    }
    two.rails[1].send(to[1], b"not received", Body::Empty).unwrap();
    two.rails[0].forget(to[0]);
    assert_eq!(
        two.rails[0].send(to[0], b"x", Body::Empty),
        Err(Refused::PeerDown)
    );
    assert_eq!(two.rails[0].handed_over(to[0]), MsgId(0));
    two.rails[0].reclaim(to[0], &mut |_, _| panic!("nothing is given back"));
    for call in [ShmRail::abandon, ShmRail::revive, ShmRail::forget] {
        call(&mut two.rails[0], to[0]);
    }
    two.pass(4);
    assert_eq!(two.taken(1).len(), 5);
    assert_eq!((two.events(0), two.events(1)), (vec![], vec![CLOSED]));
    assert!(two.taken(0).is_empty());
    // What it had sent is its own again.
    let mut back = 0;
    two.rails[1].reclaim(to[1], &mut |_, _| back += 1);
    assert_eq!(back, 1);
}

/// Nothing of the old peer is taken for the new one's: no message, no event, no count.
#[test]
fn a_number_that_comes_again_is_the_new_peers_alone() {
    let mut world = World::new(3, &ShmConfig::default());
    world.up(0, 1);
    world.up(1, 0);
    for n in 0..10u8 {
        world.rails[1].send(A, &[n], Body::Bytes(&[n; 50])).unwrap();
    }
    // An event that was not taken, and a lane that is not empty.
    world.rails[0].emit(1, EventKind::PeerUp);
    let mut new = rail(&ShmConfig::default());
    world.rails[0].forget(B);
    assert!(
        std::iter::from_fn(|| world.rails[0].event())
            .all(|event| { event.scope != doorbell_fabric::event::Scope::Peer(B) })
    );
    let again = Message::open(&mut world.rails[0], &new.address(), new.incarnation()).unwrap();
    assert_eq!(again, B, "its number is used again");
    let to_us = Message::open(&mut new, &world.rails[0].address(), world.rails[0].incarnation()).unwrap();
    world.seen[0].messages.clear();
    assert_eq!(world.rails[0].handed_over(B), MsgId(0));
    assert_eq!(
        world.rails[0].send(B, b"to the new one", Body::Empty),
        Ok(MsgId(1))
    );
    new.send(to_us, b"from the new one", Body::Empty).unwrap();
    let mut seen = Seen::default();
    world.until("both", |world| {
        new.progress(Time::ZERO + world.start.elapsed());
        new.poll(64, &mut seen);
        // The old one goes on as long as it has not noticed.
        let _ = world.rails[1].send(A, b"to a number that is gone", Body::Empty);
        !world.seen[0].messages.is_empty() && world.rails[0].handed_over(B) == MsgId(1)
    });
    assert_eq!(world.seen[0].messages, [(B, b"from the new one".to_vec())]);
    assert_eq!(seen.messages, [(to_us, b"to the new one".to_vec())]);
    let events: Vec<_> = std::iter::from_fn(|| world.rails[0].event())
        .filter(|event| event.scope == doorbell_fabric::event::Scope::Peer(B))
        .map(|event| event.kind)
        .collect();
    assert_eq!(events, [EventKind::PeerUp]);
}

/// In every order in which both can forget and open each other again; each time as if for the first time.
#[test]
fn two_that_forgot_each_other_meet_again() {
    let mut two = Two::new();
    let mut to = [two.open(0), two.open(1)];
    for round in 0..60u32 {
        two.talk(to, &round.to_le_bytes());
        let (first, waits) = (round as usize % 2, round as usize / 2 % 2 == 1);
        two.rails[first].forget(to[first]);
        if waits {
            two.pass(3);
            assert_eq!(two.events(1 - first).last(), Some(&CLOSED), "{round}");
        }
        match round % 5 {
            // The other one forgets too, before anything is opened again.
            0 => {
                two.rails[1 - first].forget(to[1 - first]);
                to = [two.open(0), two.open(1)];
            }
            // It forgets late: the first one calls already.
            1 => {
                to[first] = two.open(first);
                two.rails[first]
                    .send(to[first], b"called early", Body::Empty)
                    .unwrap();
                two.pass(3);
                assert!(
                    two.taken(1 - first).is_empty(),
                    "{round}: taken for the old one's"
                );
                assert_eq!(two.rails[1 - first].stranger(), None, "it is known still");
                two.rails[1 - first].forget(to[1 - first]);
                let name =
                    two.rails[1 - first].caller(&two.rails[first].address(), two.rails[first].incarnation());
                assert_eq!(two.rails[1 - first].stranger(), name, "{round}");
                to[1 - first] = two.open(1 - first);
                two.pass(3);
                assert_eq!(two.taken(1 - first), [b"called early"], "{round}");
            }
            // It forgets late, and no call comes meanwhile.
            2 => {
                to[first] = two.open(first);
                two.pass(2);
                two.rails[1 - first].forget(to[1 - first]);
                to[1 - first] = two.open(1 - first);
            }
            // It opens the other one before that does, and calls.
            3 => {
                two.rails[1 - first].forget(to[1 - first]);
                to[1 - first] = two.open(1 - first);
                two.rails[1 - first]
                    .send(to[1 - first], b"called", Body::Empty)
                    .unwrap();
                two.pass(2);
                to[first] = two.open(first);
                two.pass(2);
                assert_eq!(two.taken(first), [b"called"], "{round}");
            }
            // Both call at once.
            _ => {
                two.rails[1 - first].forget(to[1 - first]);
                to = [two.open(0), two.open(1)];
                for (rail, peer) in two.rails.iter_mut().zip(to) {
                    rail.send(peer, b"at once", Body::Empty).unwrap();
                }
                two.pass(3);
                assert_eq!(
                    [two.taken(0), two.taken(1)],
                    [[b"at once"], [b"at once"]],
                    "{round}"
                );
            }
        }
        two.pass(1);
        for me in 0..2 {
            let down = |kind: &EventKind| *kind != EventKind::PeerUp;
            assert!(!two.events(me).iter().any(down), "{round}");
        }
    }
}

/// A connection that is down has no lane for it: the peer's next call is answered so.
#[test]
fn one_that_was_forgotten_while_it_was_down_is_answered_so() {
    let mut two = Two::new();
    let to = [two.open(0), two.open(1)];
    two.talk(to, b"hello");
    two.rails[0].sever(Some(to[0]));
    two.pass(2);
    two.rails[0].forget(to[0]);
    assert_eq!(
        two.events(1).last(),
        Some(&EventKind::PeerDown(DownReason::Abandoned))
    );
    two.rails[1].revive(to[1]);
    two.pass(3);
    assert!(two.rails[1].peers[to[1].index()].is_over());
    assert_eq!(two.rails[0].stranger(), None, "it calls one that it knew");
    // And so it is if we have opened it again.
    let mut two = Two::new();
    let to = [two.open(0), two.open(1)];
    two.talk(to, b"hello");
    two.rails[0].sever(Some(to[0]));
    two.pass(2);
    two.rails[0].forget(to[0]);
    let again = two.open(0);
    two.rails[1].revive(to[1]);
    two.pass(3);
    assert!(two.rails[1].peers[to[1].index()].is_over());
    two.rails[1].forget(to[1]);
    let back = two.open(1);
    two.events(0);
    two.talk([again, back], b"as if for the first time");
}

/// What was under way before both forgot is of the old connection, wherever it was.
#[test]
fn what_was_on_its_way_is_not_shown_under_the_fresh_one() {
    let mut two = Two::new();
    let to = [two.open(0), two.open(1)];
    two.rails[0].send(to[0], b"old", Body::Empty).unwrap();
    two.rails[0].forget(to[0]);
    let to_b = two.open(0);
    two.rails[0].send(to_b, b"fresh", Body::Empty).unwrap();
    two.rails[1].forget(to[1]);
    let to_a = two.open(1);
    two.pass(3);
    assert_eq!(two.taken(1), [b"fresh"]);
    assert_eq!((two.events(0), two.events(1)), (vec![], vec![EventKind::PeerUp]));
    two.talk([to_b, to_a], b"and so on");
}

/// A first call that was not answered is taken back.
#[test]
fn one_that_never_answered_is_forgotten_too() {
    let mut two = Two::new();
    for round in 0..5 {
        let to_b = two.open(0);
        two.rails[0].send(to_b, b"a first call", Body::Empty).unwrap();
        if round % 2 == 1 {
            two.pass(1);
        }
        two.rails[0].forget(to_b);
    }
    // The last call still brings its message, as that of any process that has ended since.
    two.pass(1);
    let to_a = two.open(1);
    two.pass(2);
    assert_eq!(two.taken(1), [b"a first call"]);
    assert_eq!(two.events(1), [EventKind::PeerUp, CLOSED]);
    two.rails[1].forget(to_a);
    two.pass(2);
    assert_eq!([0, 1].map(|me| tables(&two.rails[me])), [[1, 0, 0, 0, 0, 0]; 2]);
}

#[test]
fn reads_end_and_their_number_waits_for_a_writer() {
    let mut world = World::new(3, &ShmConfig::default());
    world.up(0, 1);
    world.up(1, 0);
    if !world.rails[0].pulls_from_us(B) {
        return skipped("reads_end", "process_vm_readv is not allowed here");
    }
    let (source, target) = (Region::new(1 << 20).unwrap(), Region::new(1 << 20).unwrap());
    let whole = Exposure::Region(source.whole());
    let remote = world.rails[0].expose(whole, Access::Read, Some(B)).unwrap();
    world.rails[1].peers[0].memory.as_mut().unwrap().worth = u64::MAX;
    world.rails[1]
        .get(A, OpId(1), &remote, Landing::Region(target.whole()))
        .unwrap();
    let mut seen = Seen::default();
    world.rails[1].poll(1, &mut seen);
    let (us, number) = (world.rails[1].holder, world.rails[1].leases.coop_state().number());
    assert_ne!(number, 0, "there was no call");
    let theirs = world.rails[0].leases.coop_state();
    theirs.accept_request(us, number);
    theirs.set_owner_begun(1);
    // An owner in the middle of a write: the read is kept, and so is the number.
    world.rails[1].forget(A);
    let mut new = rail(&ShmConfig::default());
    let other = Message::open(&mut world.rails[1], &new.address(), new.incarnation()).unwrap();
    assert_eq!(other, PeerIndex(3));
    world.rails[1].poll(64, &mut seen);
    assert_eq!(seen.ended, []);
    world.rails[0].leases.coop_state().set_owner_ended(1);
    world.rails[1].progress(Time::ZERO + world.start.elapsed());
    world.rails[1].poll(64, &mut seen);
    assert_eq!(seen.ended, [(OpId(1), Err(OpError::NotDone))]);
    let newest = rail(&ShmConfig::default());
    let third = Message::open(&mut world.rails[1], &newest.address(), newest.incarnation()).unwrap();
    assert_eq!(third, A);
    // Memory that was exposed to it alone is so no more.
    world.rails[0].forget(B);
    assert!(world.rails[0].leases.borrowers().is_empty());
    new.progress(Time::ZERO);
}

/// The tables are at the end what they were at the start; the system's are counted in `tests/joins.rs`.
#[test]
fn joins_and_leaves_leave_nothing() {
    let mut two = Two::new();
    for round in 0..500u32 {
        let to = [two.open(0), two.open(1)];
        assert_eq!(to, [A, A], "{round}");
        two.talk(to, &round.to_le_bytes());
        for (rail, peer) in two.rails.iter_mut().zip(to) {
            rail.forget(peer);
        }
    }
    two.pass(2);
    for rail in &two.rails {
        assert_eq!(tables(rail), [1, 0, 0, 0, 0, 0], "the one number that was used");
        let place = &rail.peers[0];
        assert!(place.tx.is_none() && place.rx.is_none() && place.memory.is_none());
    }
}

#[test]
fn a_hello_is_judged_by_its_terms() {
    use Acquaintance::{Ended, Newer, Older, Same};
    // Ours, theirs as known; theirs and ours of the hello.
    for (terms, [theirs, ours], verdict) in [
        ([5, 0], [1, 0], Same),
        ([5, 0], [9, 5], Same),
        ([5, 0], [9, 4], Ended),
        ([5, 3], [3, 0], Same),
        ([5, 3], [3, 5], Same),
        ([5, 3], [3, 4], Ended),
        ([5, 3], [4, 0], Newer),
        ([5, 3], [4, 5], Newer),
        ([5, 3], [2, 5], Older),
        ([5, 3], [2, 0], Older),
        ([5, 3], [u32::MAX, 0], Newer),
    ] {
        let mut peer = Peer::new([0; 16], Incarnation(1), terms[0]);
        peer.terms[1] = terms[1];
        assert_eq!(
            peer.judge_terms(theirs, ours),
            verdict,
            "{terms:?} {theirs} {ours}"
        );
    }
}
