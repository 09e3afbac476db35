//! Peers with keys of their own, and peers that are forgotten: what the other end finds, what is kept, and
//! that nothing of an old connection comes up in a fresh one.

use std::time::Duration;

use crate::common::{End, RACK, World, rings};
use doorbell_btl::{Btl, BtlConfig, InUse, JobKey};
use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{
    Access, Body, Exposure, Landing, Message, OpError, OpId, PeerIndex, Refused, Remote,
};
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Faults, SimNet};

/// Two ends without a job's key that have not opened each other.
fn apart(seed: u64, faults: Faults, config: &BtlConfig) -> World {
    let net = SimNet::new(seed, rings(faults));
    let end = || {
        let driver = net.attach_datagram();
        let life = driver.incarnation();
        End {
            btl: Btl::new(driver, config.clone(), life).unwrap(),
            ..End::new(net.attach_datagram(), config, 1)
        }
    };
    World {
        ends: vec![end(), end()],
        net,
        peers: Vec::new(),
    }
}

/// End `i` opens the other one, with this key.
fn meet(world: &mut World, i: usize, key: u8) -> PeerIndex {
    let there = &world.ends[1 - i].btl;
    let (address, life) = (there.address(), there.incarnation());
    let end = &mut world.ends[i];
    end.btl.set_key_of(&address, life, JobKey::from_bytes([key; 32]));
    let peer = end.btl.open(&address, life).unwrap();
    end.lives.remove(&peer);
    peer
}

fn pass(world: &mut World, time: Duration) {
    let by = world.now() + time;
    while world.now() < by {
        world.step();
    }
}

fn send(world: &mut World, i: usize, to: PeerIndex, bytes: &[u8]) {
    assert!(world.ends[i].try_send(to, bytes).is_some());
    world.ends[i].flush();
}

/// Each end sends a message to the other, and both arrive.
fn talk(world: &mut World, to: [PeerIndex; 2]) {
    let before = [0, 1].map(|i: usize| world.ends[i].sink.total());
    (0..2).for_each(|i| send(world, i, to[i], b"hello"));
    world.until("both arrive", Duration::from_secs(2), |world| {
        (0..2).all(|i| world.ends[i].sink.total() == before[i] + 1)
    });
}

fn events(end: &mut End) -> Vec<(PeerIndex, EventKind)> {
    let all = end.events.drain(..);
    let of_peers = all.filter_map(|event| match event.scope {
        Scope::Peer(peer) => Some((peer, event.kind)),
        Scope::Rail => None,
    });
    of_peers.collect()
}

const CLOSED: EventKind = EventKind::PeerDown(DownReason::Closed);

#[test]
fn two_ends_with_one_key_talk_and_two_with_two_keys_do_not() {
    for frame_mac in [false, true] {
        let config = BtlConfig {
            frame_mac,
            ..BtlConfig::default()
        };
        let mut world = apart(1, RACK, &config);
        let address = world.ends[1].btl.address();
        let life = world.ends[1].btl.incarnation();
        assert!(world.ends[0].btl.open(&address, life).is_err(), "there is no key");
        assert_eq!(world.ends[0].btl.caller(&address, life), None);
        let to = [meet(&mut world, 0, 1), meet(&mut world, 1, 1)];
        talk(&mut world, to);

        let mut world = apart(2, RACK, &config);
        let to = [meet(&mut world, 0, 1), meet(&mut world, 1, 2)];
        (0..2).for_each(|i| send(&mut world, i, to[i], b"hello"));
        pass(&mut world, Duration::from_secs(2));
        for end in &world.ends {
            let counters = end.btl.counters();
            assert_eq!(end.sink.total(), 0);
            assert!(counters.dropped_unknown > 10, "{counters:?}");
            assert_eq!(counters.dropped_unknown, counters.frames_received);
        }
        // A call is reported by the name that the caller's key gives it.
        let there = &world.ends[0].btl;
        let (address, life) = (there.address(), there.incarnation());
        let name = world.ends[1].btl.caller(&address, life);
        let called: Vec<_> = std::iter::from_fn(|| world.ends[1].btl.stranger()).collect();
        assert!(!called.is_empty() && called.iter().all(|caller| Some(*caller) != name));
    }
}

/// A key set before the job's holds beside it, for the one peer.
#[test]
fn a_pairs_key_holds_instead_of_the_jobs() {
    let mut world = apart(3, RACK, &BtlConfig::default());
    for end in &mut world.ends {
        end.btl.set_key(JobKey::from_bytes([9; 32]));
    }
    let to = [meet(&mut world, 0, 1), meet(&mut world, 1, 1)];
    talk(&mut world, to);
    // Opened again, it is the same peer; and a later key changes nothing.
    assert_eq!(meet(&mut world, 0, 5), to[0]);
    talk(&mut world, to);
}

#[test]
fn they_reconnect_with_their_own_key() {
    for frame_mac in [false, true] {
        let config = BtlConfig {
            frame_mac,
            ..BtlConfig::default()
        };
        let mut world = apart(4, RACK, &config);
        let to = [meet(&mut world, 0, 1), meet(&mut world, 1, 1)];
        for round in 0..3 {
            talk(&mut world, to);
            world.ends[round % 2].btl.sever(None);
            world.ends[round % 2].btl.revive(to[round % 2]);
            let revivals = round as u64 + 1;
            world.until("both are up", Duration::from_secs(1), |world| {
                (0..2).all(|i| world.ends[i].btl.counters().revivals == revivals)
            });
        }
        talk(&mut world, to);
    }
}

#[test]
fn a_peer_that_is_forgotten_finds_the_connection_closed() {
    for frame_mac in [false, true] {
        let config = BtlConfig {
            frame_mac,
            ..BtlConfig::default()
        };
        let mut world = apart(5, RACK, &config);
        let to = [meet(&mut world, 0, 1), meet(&mut world, 1, 1)];
        talk(&mut world, to);
        world.ends.iter_mut().for_each(|end| drop(events(end)));
        // What was accepted before arrives before.
        let before = world.ends[1].sink.total();
        (0..50).for_each(|_| assert!(world.ends[0].try_send(to[0], &[7; 5000]).is_some()));
        world.ends[0].btl.forget(to[0]);
        assert_eq!(
            world.ends[0].btl.send(to[0], b"", Body::Empty),
            Err(Refused::PeerDown)
        );
        world.until("it is closed", Duration::from_millis(100), |world| {
            world.ends[1].is_down(to[1]).is_some()
        });
        assert_eq!(world.ends[1].sink.total(), before + 50);
        pass(&mut world, Duration::from_millis(50));
        assert_eq!(events(&mut world.ends[1]), [(to[1], CLOSED)]);
        assert_eq!(events(&mut world.ends[0]), [], "it was forgotten");
        assert_eq!(world.ends[0].btl.in_use(), InUse::default());
        // The other end forgets as well; both numbers are free again, and a fresh key makes a fresh
        // connection.
        world.ends[1].btl.forget(to[1]);
        assert_eq!(world.ends[1].btl.in_use(), InUse::default());
        let again = [meet(&mut world, 0, 2), meet(&mut world, 1, 2)];
        assert_eq!(again, to);
        talk(&mut world, again);
        assert_eq!(events(&mut world.ends[0]), [(to[0], EventKind::PeerUp)]);
        assert_eq!(events(&mut world.ends[1]), [(to[1], EventKind::PeerUp)]);
    }
}

/// The other end goes on sending into a connection that is gone here: its frames are a stranger's.
#[test]
fn frames_of_an_old_connection_are_a_strangers() {
    let mut world = apart(6, RACK, &BtlConfig::default());
    let to = [meet(&mut world, 0, 1), meet(&mut world, 1, 1)];
    talk(&mut world, to);
    pass(&mut world, Duration::from_millis(5));
    // It does not poll, so it does not find the BYE.
    world.ends[1].polls = false;
    world.ends[0].btl.forget(to[0]);
    pass(&mut world, Duration::from_millis(1100));
    assert_eq!(
        world.ends[0].btl.in_use(),
        InUse::default(),
        "it was waited for a second"
    );
    let fresh = meet(&mut world, 0, 2);
    assert_eq!(fresh, to[0]);
    let (arrived, unknown) = (
        world.ends[0].sink.total(),
        world.ends[0].btl.counters().dropped_unknown,
    );
    for _ in 0..20 {
        send(&mut world, 1, to[1], b"to none");
        pass(&mut world, Duration::from_millis(1));
    }
    assert_eq!(world.ends[0].sink.total(), arrived);
    assert!(world.ends[0].btl.counters().dropped_unknown >= unknown + 20);
    // It polls again, and finds the BYE that came before.
    world.ends[1].polls = true;
    pass(&mut world, Duration::from_millis(5));
    assert_eq!(world.ends[1].is_down(to[1]), Some(CLOSED));
    world.ends[1].btl.forget(to[1]);
    let back = meet(&mut world, 1, 2);
    talk(&mut world, [fresh, back]);
}

#[test]
fn both_forget_at_once_over_a_bad_network() {
    let faults = Faults {
        loss: 0.2,
        duplicate: 0.1,
        ..RACK
    };
    for seed in 0..50 {
        let mut world = apart(100 + seed, faults, &BtlConfig::default());
        for round in 0..4 {
            let to = [meet(&mut world, 0, round), meet(&mut world, 1, round)];
            assert_eq!(to, [PeerIndex(0); 2], "seed {seed}, round {round}");
            talk(&mut world, to);
            let first = seed as usize % 2;
            world.ends[first].btl.forget(to[first]);
            if seed % 3 > 0 {
                pass(&mut world, Duration::from_millis(seed));
            }
            world.ends[1 - first].btl.forget(to[1 - first]);
            pass(&mut world, Duration::from_millis(1100));
            for end in &mut world.ends {
                assert_eq!(end.btl.in_use(), InUse::default());
                let downs = events(end);
                let downs = downs
                    .iter()
                    .filter(|(_, kind)| matches!(kind, EventKind::PeerDown(_)));
                assert!(downs.clone().all(|(_, kind)| *kind == CLOSED) && downs.count() <= 1);
            }
        }
    }
}

/// What is under way when a peer is forgotten ends: operations, exposed memory, messages that are not whole.
#[test]
fn operations_end_when_their_peer_is_forgotten() {
    let mut world = apart(7, RACK, &BtlConfig::default());
    let to = [meet(&mut world, 0, 1), meet(&mut world, 1, 1)];
    talk(&mut world, to);
    let region = Region::new(1 << 20).unwrap();
    let exposed = world.ends[0]
        .btl
        .expose(Exposure::Region(region.whole()), Access::ReadWrite, Some(to[0]));
    assert!(exposed.is_ok());
    let there = Remote {
        key: 7.into(),
        address: 0.into(),
        length: (1 << 20).into(),
    };
    let end = &mut world.ends[0];
    end.btl
        .put(to[0], OpId(1), Body::Region(&region.whole()), &there)
        .unwrap();
    end.btl
        .get(to[0], OpId(2), &there, Landing::Region(region.whole()))
        .unwrap();
    end.btl.forget(to[0]);
    pass(&mut world, Duration::from_millis(100));
    let mut ended = world.ends[0].sink.ended.clone();
    ended.sort_by_key(|(op, _)| op.0);
    assert_eq!(ended.len(), 2);
    for (_, outcome) in ended {
        assert!(matches!(outcome, Err(OpError::NotDone | OpError::Indeterminate)));
    }
    assert_eq!(world.ends[0].btl.in_use(), InUse::default());
}

/// Ten thousand joins and leaves, some of peers that never answer: indices are used again.
#[test]
fn many_joins_and_leaves_take_no_more_room() {
    let config = BtlConfig {
        max_peers: 70,
        ..BtlConfig::default()
    };
    let mut world = apart(8, RACK, &config);
    let mut most = 0;
    for round in 0..10_000_u32 {
        let to = [meet(&mut world, 0, round as u8), meet(&mut world, 1, round as u8)];
        most = most.max(to[0].0).max(to[1].0);
        if round % 10 == 0 {
            talk(&mut world, to);
        }
        let first = round as usize / 10 % 2;
        world.ends[first].btl.forget(to[first]);
        world.turn();
        world.ends[1 - first].btl.forget(to[1 - first]);
        world.turn();
        world.ends.iter_mut().for_each(|end| end.events.clear());
    }
    assert!(most <= 66, "{most}");
    pass(&mut world, Duration::from_millis(1100));
    for end in &world.ends {
        assert_eq!(end.btl.in_use(), InUse::default());
    }
}

/// A peer of a job keeps its index.
#[test]
fn a_peer_under_the_jobs_key_is_only_given_up() {
    let mut world = World::new(9, 2, rings(RACK), &BtlConfig::default());
    let to = [world.to(0, 1), world.to(1, 0)];
    talk(&mut world, to);
    world.ends[0].btl.forget(to[0]);
    assert_eq!(
        world.ends[0].btl.send(to[0], b"", Body::Empty),
        Err(Refused::PeerDown)
    );
    assert_eq!(world.open(0, 1), to[0]);
    world.ends[0].btl.forget(PeerIndex(77));
}

/// An end that is closed right after it has forgotten a peer has sent its BYE.
#[test]
fn an_end_that_forgets_and_closes_is_not_missed() {
    let mut world = apart(10, RACK, &BtlConfig::default());
    let to = [meet(&mut world, 0, 1), meet(&mut world, 1, 1)];
    talk(&mut world, to);
    world.ends[0].btl.forget(to[0]);
    let by = world.now() + Duration::from_secs(1);
    world.until("it is closed", Duration::from_millis(100), |world| {
        let now = world.now();
        world.ends[0].btl.close(now, by)
    });
    assert_eq!(world.ends[1].is_down(to[1]), Some(CLOSED));
}
