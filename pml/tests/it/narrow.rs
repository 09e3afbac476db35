//! Failover to a rail that carries less in one message, and rails that cannot give back what they took.

use doorbell_pml::{LostReason, PmlError, Rank, Sent, Source};
use doorbell_sim::{Change, Plane, SimConfig};

use crate::world::{Memory, World, bytes, empty, filled, pattern, sim};
use crate::wrap::Tuned;

/// Two rails; one message of the second carries at most `room` bytes, head included.
pub(crate) fn narrow(seed: u64, room: usize, config: SimConfig, checksum: bool) -> World<Tuned> {
    let cut = move |rail: doorbell_sim::SimRail| {
        let second = rail.plane() != Plane::FIRST;
        let mut rail = Tuned::new(rail);
        if second {
            rail.can.limits.message = room;
            rail.can.limits.eager = rail.can.limits.eager.min(room);
            rail.can.limits.fragment = rail.can.limits.fragment.min(room / 2);
            rail.can.features.get = false;
            rail.can.features.put = false;
        }
        rail
    };
    World::wrapped(2, 2, seed, config, cut, |pml| {
        pml.checksum = checksum;
        pml.window = WINDOW;
        pml.hard_window = 2 * WINDOW;
    })
}

/// Just room for the messages of one failover, and a quarter that may not have been reported yet.
pub(crate) const WINDOW: u64 = 110_000;

const LONG: usize = 4000;

/// Whole messages that the first rail took are too long for the second: they are announced, and go in pieces.
/// `passes` before the first rail dies, some of them have arrived, and their watermark may not have come
/// back.
fn announced_again(seed: u64, passes: usize, received_early: bool) -> (u64, u64) {
    let checksum = passes % 2 == 1;
    let mut world = narrow(seed, 600, sim(true, true, true), checksum);
    let into: Vec<Memory> = (0..20).map(|_| empty(LONG)).collect();
    let mut receives = Vec::new();
    if received_early {
        receives.extend(into.iter().map(|into| world.recv(1, Rank(0), 1, into)));
    }
    for at in 0..20 {
        world.pmls[0].inject(Rank(1), 0, 1, &pattern(LONG, at)).unwrap();
    }
    world.passes(passes);
    world.net.change(Change::PlaneDown(world.planes[0]));
    world.until("the first rail is down", |world| {
        world.pmls[0].counters().paths_down == 1
    });
    if !received_early {
        receives.extend(into.iter().map(|into| world.recv(1, Rank(0), 1, into)));
    }
    for (at, request) in receives.into_iter().enumerate() {
        assert_eq!(world.wait(1, request).unwrap().length as usize, LONG);
        assert_eq!(
            bytes(&into[at]),
            pattern(LONG, at as u64),
            "message {at}, seed {seed}"
        );
    }
    world.passes(2000);
    assert!(
        world.pmls[1].probe(Source::Any, 0, 0, u64::MAX).is_none(),
        "nothing arrives twice"
    );
    assert_eq!(
        (world.pmls[0].live_requests(), world.pmls[1].live_requests()),
        (0, 0),
        "seed {seed}, {passes} passes: an announcement that is not answered keeps its bytes for ever"
    );
    // The bytes that were kept are given back: as much as before may be injected.
    let full = world.pmls[0].counters().window_full;
    for at in 0..20 {
        world.pmls[0].inject(Rank(1), 0, 3, &[at; 500]).unwrap();
        let into = empty(500);
        let request = world.recv(1, Rank(0), 3, &into);
        world.wait(1, request).unwrap();
    }
    assert_eq!(
        world.pmls[0].counters().window_full,
        full,
        "seed {seed}: the window shrank"
    );
    let limit = world.pmls[0].config().inject_limit;
    let whole = filled(limit, 1);
    world.pmls[0].inject(Rank(1), 0, 2, &bytes(&whole)).unwrap();
    (
        world.pmls[0].counters().resent,
        world.pmls[1].counters().drops.duplicate,
    )
}

#[test]
fn whole_messages_too_long_for_the_rail_that_is_left_are_announced_again() {
    let (mut resent, mut duplicates) = (0, 0);
    for seed in 0..10 {
        for passes in 0..8 {
            for received_early in [false, true] {
                let (again, twice) = announced_again(seed, passes, received_early);
                resent += again;
                duplicates += twice;
            }
        }
    }
    assert!(resent > 0, "the test has to produce some");
    assert!(duplicates > 0, "and some of them have to have arrived before");
}

fn is_lost(ended: &Result<(), PmlError>) -> bool {
    matches!(
        ended,
        Err(PmlError::PeerLost {
            reason: LostReason::NotReclaimable,
            ..
        })
    )
}

#[test]
fn a_rail_that_cannot_give_back_takes_its_peer_along() {
    for seed in 0..20 {
        let mut config = sim(true, true, true);
        config.capabilities.features.reclaim = false;
        let mut world = World::with_planes(3, 2, seed, config, |_| ());
        let from: Vec<Memory> = (0..30)
            .map(|at| filled([8, 3000, 90_000][at % 3], at as u64))
            .collect();
        let into: Vec<Memory> = (0..10).map(|_| empty(90_000)).collect();
        let any = empty(8);
        let anybody = world.recv(1, Source::Any, 9, &any);
        let receives: Vec<_> = into.iter().map(|into| world.recv(1, Rank(0), 1, into)).collect();
        let sends: Vec<Sent> = from.iter().map(|from| world.send(0, 1, 1, from)).collect();
        world.passes(seed as usize % 13);
        // Rank 0's card: the rails to rank 1 and to rank 2 are both gone, though a second network is there.
        world.net.change(Change::NicDeath(world.planes[0], 0));
        world.until("both sides know", |world| {
            let lost = |rank: usize, peer| world.pmls[rank].peer(Rank(peer)).unwrap().lost;
            lost(0, 1).is_some() && lost(0, 2).is_some() && lost(1, 0).is_some()
        });
        for sent in sends {
            let ended = world.wait_sent(0, sent);
            assert!(ended.is_ok() || is_lost(&ended), "seed {seed}: {ended:?}");
        }
        for (at, request) in receives.into_iter().enumerate() {
            match world.wait(1, request) {
                Ok(status) => {
                    let length = status.length as usize;
                    assert_eq!(
                        bytes(&into[at])[..length],
                        pattern(length, at as u64),
                        "seed {seed}, {at}"
                    );
                }
                Err(error) => assert!(is_lost(&Err(error)), "seed {seed}"),
            }
        }
        assert!(is_lost(&world.pmls[0].inject(Rank(1), 0, 1, b"x")));
        // What has ended is released at once: the memory may be used for something else.
        for into in &into {
            into.write(0, &[0xee; 90_000]);
        }
        world.passes(500);
        assert!(
            into.iter()
                .all(|into| bytes(into).iter().all(|byte| *byte == 0xee)),
            "seed {seed}"
        );
        // Others are not concerned.
        world.pmls[2].inject(Rank(1), 0, 9, b"from two").unwrap();
        assert_eq!(world.wait(1, anybody).unwrap().source, Rank(2));
        world.discard_all(1);
        for rank in 0..3 {
            assert_eq!(world.pmls[rank].live_requests(), 0, "rank {rank}, seed {seed}");
        }
    }
}
