//! Rails that die with others left, and peers without any.

use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_pml::{Aborted, LostReason, PmlError, Protocol, Rank, Sent, Source};
use doorbell_sim::{Change, SimConfig};

use crate::world::{Memory, World, bytes, empty, filled, pattern, sim};

fn two_rails(seed: u64, protocol: Protocol, config: SimConfig) -> World {
    World::with_planes(2, 2, seed, config, |pml| pml.protocol = protocol)
}

/// Sends messages of all lengths while the first rail dies at some time; each arrives once, intact, in order.
fn survive(seed: u64, protocol: Protocol, death: impl Fn(&World) -> Change) {
    let mut config = sim(true, true, true);
    config.faults.reorder = 0.2;
    let mut world = two_rails(seed, protocol, config);
    let length = |at: u64| [8, 64, 3000, 20_000, 90_000][(at % 5) as usize];
    let from: Vec<Memory> = (0..40).map(|at| filled(length(at), at)).collect();
    let into: Vec<Memory> = (0..40).map(|at| empty(length(at))).collect();
    let receives: Vec<_> = into[..20]
        .iter()
        .map(|into| world.recv(1, Rank(0), 1, into))
        .collect();
    let change = death(&world);
    world
        .net
        .at(world.net.now() + Duration::from_micros(seed % 60), change);
    let mut sends = Vec::new();
    for chunk in from.chunks(8) {
        sends.extend(
            chunk
                .iter()
                .map(|from| world.send(0, 1, 1, from))
                .collect::<Vec<Sent>>(),
        );
        world.passes(5);
    }
    let late = into[20..]
        .iter()
        .map(|into| world.recv(1, Rank(0), 1, into))
        .collect::<Vec<_>>();
    for (at, request) in receives.into_iter().chain(late).enumerate() {
        let status = world.wait(1, request).unwrap();
        assert_eq!(
            status.length as usize,
            length(at as u64),
            "message {at}, seed {seed}, {protocol:?}"
        );
        assert_eq!(
            bytes(&into[at]),
            pattern(length(at as u64), at as u64),
            "message {at}, seed {seed}"
        );
    }
    for sent in sends {
        world.wait_sent(0, sent).unwrap();
    }
    world.passes(1000);
    assert!(
        world.pmls[1].probe(Source::Any, 0, 0, u64::MAX).is_none(),
        "nothing arrives twice"
    );
    assert_eq!(
        world.pmls[0].live_requests() + world.pmls[1].live_requests(),
        0,
        "seed {seed}"
    );
}

#[test]
fn the_second_rail_carries_on_when_the_network_of_the_first_dies() {
    for seed in 0..40 {
        for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
            survive(seed, protocol, |world| Change::PlaneDown(world.planes[0]));
        }
    }
}

#[test]
fn the_second_rail_carries_on_when_the_link_or_card_of_one_side_dies() {
    for seed in 0..20 {
        for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
            for rank in [0, 1] {
                survive(seed, protocol, |world| Change::LinkDown(world.planes[0], rank));
                survive(seed, protocol, |world| Change::NicDeath(world.planes[0], rank));
            }
        }
    }
}

#[test]
fn duplicates_are_removed() {
    let mut duplicates = 0;
    for seed in 0..30 {
        let mut world = two_rails(seed, Protocol::Auto, sim(true, true, true));
        for at in 0..60 {
            world.pmls[0].inject(Rank(1), 0, 1, &pattern(16, at)).unwrap();
            if at == 30 {
                // They have arrived, and their watermark has not come back yet.
                world.passes(2);
                world.net.change(Change::PlaneDown(world.planes[0]));
            }
        }
        for at in 0..60 {
            let into = empty(16);
            let request = world.recv(1, Rank(0), 1, &into);
            world.wait(1, request).unwrap();
            assert_eq!(bytes(&into), pattern(16, at));
        }
        world.passes(1000);
        assert!(world.pmls[1].probe(Source::Any, 0, 0, u64::MAX).is_none());
        duplicates += world.pmls[1].counters().drops.duplicate;
    }
    assert!(duplicates > 0, "the test has to produce some");
}

#[test]
fn spread_uses_all_rails_and_keeps_the_order() {
    let mut config = sim(true, true, true);
    config.faults.reorder = 0.3;
    let mut world = World::with_planes(2, 3, 5, config, |pml| pml.spread = true);
    let from: Vec<Memory> = (0..100)
        .map(|at| filled(if at % 9 == 0 { 50_000 } else { 24 }, at))
        .collect();
    let sends: Vec<Sent> = from.iter().map(|from| world.send(0, 1, 1, from)).collect();
    for (at, from) in from.iter().enumerate() {
        let into = empty(from.len());
        let request = world.recv(1, Rank(0), 1, &into);
        world.wait(1, request).unwrap();
        assert_eq!(bytes(&into), pattern(from.len(), at as u64));
    }
    for sent in sends {
        world.wait_sent(0, sent).unwrap();
    }
    assert!(world.pmls[1].counters().held > 0);
}

#[test]
fn peer_lost_ends_what_names_the_peer_and_nothing_else() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        let mut config = sim(true, true, true);
        config.queue_depth = 8;
        let mut world = World::new(3, config, |pml| pml.protocol = protocol);
        let long: Vec<Memory> = (0..20).map(|at| filled(100_000, at)).collect();
        let (a, b, c) = (empty(8), empty(8), empty(100_000));
        world.pmls[1].inject(Rank(0), 0, 77, b"kept one").unwrap();
        world.passes(10);
        let named = world.recv(0, Rank(1), 1, &a);
        let any = world.recv(0, Source::Any, 1, &b);
        let transfer = world.recv(0, Rank(1), 2, &c);
        let theirs = world.send(1, 0, 2, &long[0]);
        let sends: Vec<Sent> = long.iter().map(|from| world.send(0, 1, 3, from)).collect();
        world.passes(3);
        world.net.change(Change::RankDeath(1));
        let _ = theirs;
        let lost = |ended: Result<_, PmlError>| {
            matches!(
                ended,
                Err(PmlError::PeerLost {
                    rank: Rank(1),
                    reason: LostReason::Peer(DownReason::Died)
                })
            )
        };
        assert!(lost(world.wait(0, named).map(|_| ())));
        let ended = world.wait(0, transfer).map(|_| ());
        assert!(ended.is_err(), "{protocol:?}: it cannot be complete");
        assert!(lost(ended), "{protocol:?}");
        for sent in sends {
            assert!(lost(world.wait_sent(0, sent)));
        }
        // Later ones end at once; what had arrived whole can still be received.
        let late = world.recv(0, Rank(1), 9, &a);
        assert!(lost(world.pmls[0].test(late).unwrap().map(|_| ())));
        assert!(lost(world.pmls[0].inject(Rank(1), 0, 1, b"x")));
        let kept = world.recv(0, Rank(1), 77, &a);
        assert_eq!(world.wait(0, kept).unwrap().length, 8);
        assert_eq!(bytes(&a), b"kept one");
        // A receive from any rank stays, and gets its message from another one.
        assert!(!world.pmls[0].is_done(any));
        world.pmls[2].inject(Rank(0), 0, 1, b"from two").unwrap();
        assert_eq!(world.wait(0, any).unwrap().source, Rank(2));
        assert_eq!(world.pmls[0].live_requests(), 0);
        assert_eq!(
            world.pmls[0].peer(Rank(1)).unwrap().lost,
            Some(LostReason::Peer(DownReason::Died))
        );
    }
}

#[test]
fn a_multi_receive_of_a_lost_peer_is_released() {
    let mut world = World::new(2, sim(true, true, true), |_| ());
    let buffer = empty(1000);
    let args = doorbell_pml::MultiArgs {
        from: Rank(1).into(),
        context: 0,
        tag: 1,
        ignore: 0,
        target: doorbell_pml::Target::Region(buffer.whole()),
        min_free: 10,
        notify: true,
    };
    let request = world.pmls[0].recv_multi(args).unwrap();
    world.pmls[1].inject(Rank(0), 0, 1, b"one").unwrap();
    world.passes(10);
    world.net.change(Change::RankDeath(1));
    assert!(matches!(
        world.wait(0, request),
        Err(PmlError::PeerLost { rank: Rank(1), .. })
    ));
    assert_eq!(world.pmls[0].next_delivery().unwrap().delivered, 3);
}

#[test]
fn aborting_during_a_failover_is_sound() {
    for seed in 0..30 {
        for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
            let mut world = two_rails(seed, protocol, sim(true, true, true));
            let (from, into) = (filled(100_000, 1), empty(100_000));
            let sent = world.send(0, 1, 1, &from);
            let request = world.recv(1, Rank(0), 1, &into);
            world.net.at(
                world.net.now() + Duration::from_micros(seed),
                Change::PlaneDown(world.planes[0]),
            );
            world.passes(seed as usize * 2 % 37);
            let mut waited = 0;
            while world.pmls[1].abort(request) == Aborted::Wait {
                world.pass();
                waited += 1;
                assert!(waited < 10_000);
            }
            into.write(0, &vec![0xee; 100_000]);
            world.passes(1000);
            world.discard_all(1);
            world.wait_sent(0, sent).unwrap();
            world.passes(1000);
            assert!(
                bytes(&into).iter().all(|byte| *byte == 0xee),
                "{protocol:?}, seed {seed}"
            );
        }
    }
}
