//! Back-pressure: bounded memory at the receiver, and never a deadlock.

use doorbell_pml::{Rank, Sent, Waiting};

use crate::world::{Memory, World, bytes, empty, filled, pattern, sim};

fn tight() -> World {
    World::new(2, sim(false, false, true), |config| {
        config.window = 16 << 10;
        config.hard_window = 32 << 10;
    })
}

#[test]
fn above_the_window_only_announcements_travel_and_above_the_hard_one_nothing() {
    let mut world = tight();
    let from = filled(1000, 1);
    let sends: Vec<Sent> = (0..1000).map(|_| world.send(0, 1, 1, &from)).collect();
    world.passes(500);
    let counters = *world.pmls[1].counters();
    // 15 whole messages of 1064 bytes fill the window; announcements of 64 bytes fill the rest of the hard
    // one.
    assert_eq!(counters.unexpected, 15 + (32 * 1024 - 15 * 1064) / 64);
    assert_eq!(world.pmls[0].counters().sent_eager, 15);
    let Sent::Pending(last) = sends[999] else {
        panic!("it cannot have left")
    };
    assert_eq!(world.pmls[0].explain(last).unwrap().waiting, Waiting::Credit);
    assert!(!world.pmls[0].must_poll(), "polling does not bring credit");
    let into = empty(1000);
    for _ in 0..1000 {
        let request = world.recv(1, Rank(0), 1, &into);
        world.wait(1, request).unwrap();
    }
    for sent in sends {
        world.wait_sent(0, sent).unwrap();
    }
    assert_eq!((world.drops(0), world.drops(1)), (0, 0));
}

#[test]
fn a_flood_and_a_long_message_against_it_do_not_deadlock() {
    // Rank 0 sends a flood, then receives; rank 1 sends a long message first, and only then receives the
    // flood.
    for length in [1000, 100_000] {
        let mut world = tight();
        let from: Vec<Memory> = (0..2000).map(|at| filled(500, at)).collect();
        let flood: Vec<Sent> = from.iter().map(|from| world.send(0, 1, 1, from)).collect();
        let (there, here) = (filled(length, 9), empty(length));
        let receive = world.recv(0, Rank(1), 2, &here);
        let long = world.ssend(1, 0, 2, &there);
        world.wait_sent(1, long).unwrap();
        world.wait(0, receive).unwrap();
        assert_eq!(bytes(&here), pattern(length, 9));
        for at in 0..2000 {
            let into = empty(500);
            let request = world.recv(1, Rank(0), 1, &into);
            world.wait(1, request).unwrap();
            assert_eq!(bytes(&into), pattern(500, at), "{at}");
        }
        for sent in flood {
            world.wait_sent(0, sent).unwrap();
        }
    }
}

#[test]
fn floods_in_both_directions_do_not_deadlock() {
    let mut world = tight();
    let from = filled(700, 3);
    let mut sends: Vec<(usize, Sent)> = Vec::new();
    for _ in 0..1000 {
        sends.push((0, world.send(0, 1, 1, &from)));
        sends.push((1, world.send(1, 0, 1, &from)));
    }
    let into = [empty(700), empty(700)];
    for _ in 0..1000 {
        for rank in [0, 1] {
            let request = world.recv(rank, Rank(1 - rank as u32), 1, &into[rank]);
            world.wait(rank, request).unwrap();
            assert_eq!(bytes(&into[rank]), pattern(700, 3));
        }
    }
    for (rank, sent) in sends {
        world.wait_sent(rank, sent).unwrap();
    }
}

#[test]
fn a_full_rail_keeps_the_order() {
    let mut config = sim(true, true, true);
    config.queue_depth = 3;
    let mut world = World::new(2, config, |_| ());
    let from: Vec<Memory> = (0..200)
        .map(|at| filled(if at % 5 == 0 { 20_000 } else { 16 }, at))
        .collect();
    let sends: Vec<Sent> = from.iter().map(|from| world.send(0, 1, 1, from)).collect();
    assert!(world.pmls[0].counters().sends_queued > 190);
    for (at, from) in from.iter().enumerate() {
        let into = empty(from.len());
        let request = world.recv(1, Rank(0), 1, &into);
        world.wait(1, request).unwrap();
        assert_eq!(bytes(&into), pattern(from.len(), at as u64));
    }
    for sent in sends {
        world.wait_sent(0, sent).unwrap();
    }
}
