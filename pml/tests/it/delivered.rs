//! Sends that end when the peer's process has all of them.

use std::time::Duration;

use doorbell_pml::{Payload, PmlError, Rank, RequestId, SendArgs, SendMode, Sent};
use doorbell_sim::Change;

use crate::world::{Memory, World, bytes, empty, filled, pattern, send_args, sim};

/// Of one message on the rail, of several, and of such as are announced first.
const LENGTHS: [usize; 5] = [0, 8, 3000, 20_000, 400_000];

fn send(world: &mut World, tag: u64, memory: &Memory) -> Sent {
    let args = SendArgs {
        mode: SendMode::Delivered,
        notify: true,
        ..send_args(1, tag, Payload::Loan(memory.loan()))
    };
    world.pmls[0].send(args).unwrap()
}

fn pending(sent: Sent) -> RequestId {
    match sent {
        Sent::Pending(id) => id,
        Sent::Done => panic!("it cannot be with the peer yet"),
    }
}

#[test]
fn it_ends_when_the_peer_has_taken_it_and_needs_no_receive() {
    let mut world = World::with_planes(2, 1, 3, sim(true, true, true), |_| ());
    let memory = filled(3000, 1);
    let id = pending(send(&mut world, 1, &memory));
    for _ in 0..2000 {
        let now = world.net.now() + Duration::from_micros(1);
        world.net.advance_to(now);
        world.pmls[0].progress(now);
    }
    assert!(!world.pmls[0].is_done(id), "the peer has made no call");
    world.wait(0, id).unwrap();
    assert_eq!(world.pmls[0].next_completion(), None);
    let into = empty(3000);
    let request = world.recv(1, Rank(0), 1, &into);
    world.wait(1, request).unwrap();
    assert_eq!(bytes(&into), pattern(3000, 1));
}

#[test]
fn within_a_host_it_ends_when_the_bytes_were_taken() {
    let mut config = sim(true, true, true);
    config.capabilities.features.within_host = true;
    let mut world = World::with_planes(2, 1, 3, config, |_| ());
    let memory = filled(3000, 1);
    assert_eq!(send(&mut world, 1, &memory), Sent::Done);
}

#[test]
fn to_oneself_it_ends_as_others_do() {
    let mut world = World::with_planes(2, 1, 4, sim(true, true, true), |_| ());
    for length in [8, 400_000] {
        let (memory, into) = (filled(length, 1), empty(length));
        let args = SendArgs {
            mode: SendMode::Delivered,
            ..send_args(0, 1, Payload::Loan(memory.loan()))
        };
        let sent = world.pmls[0].send(args).unwrap();
        world.passes(10);
        let request = world.recv(0, Rank(0), 1, &into);
        world.wait(0, request).unwrap();
        world.wait_sent(0, sent).unwrap();
        assert_eq!(bytes(&into), pattern(length, 1));
    }
}

#[test]
fn a_row_ends_together_when_the_peer_has_taken_it() {
    let mut world = World::with_planes(2, 1, 6, sim(true, true, true), |_| ());
    let memory = filled(3000, 1);
    let ids: Vec<RequestId> = (0..8)
        .map(|tag| pending(send(&mut world, tag, &memory)))
        .collect();
    let mut passes = 0;
    while !ids.iter().all(|id| world.pmls[0].is_done(*id)) {
        // There is always one more behind them.
        if passes % 5 == 0 && passes < 1000 {
            let _ = send(&mut world, 100, &memory);
        }
        world.pass();
        passes += 1;
        assert!(passes < 2000, "the row waits for what came behind it");
    }
}

#[test]
fn what_a_rail_gives_back_is_waited_for_again() {
    for seed in 0..40 {
        let mut world = World::with_planes(2, 3, seed, sim(seed % 2 == 0, seed % 3 == 0, true), |pml| {
            pml.patience = Duration::from_secs(3600);
        });
        let mut dice = doorbell_testing::Random::new(seed);
        let memories: Vec<Memory> = (0..30)
            .map(|at| filled(LENGTHS[at % LENGTHS.len()], at as u64))
            .collect();
        let rooms: Vec<Memory> = memories.iter().map(|memory| empty(memory.len())).collect();
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (at, memory) in memories.iter().enumerate() {
            let plane = world.planes[dice.below(3) as usize];
            match dice.below(6) {
                0 => world.net.change(Change::PlaneDown(plane)),
                1 | 2 => world
                    .planes
                    .clone()
                    .into_iter()
                    .for_each(|plane| world.net.change(Change::PlaneUp(plane))),
                _ => {}
            }
            sends.push(send(&mut world, at as u64, memory));
            receives.push(world.recv(1, Rank(0), at as u64, &rooms[at]));
            world.passes(dice.below(200) as usize);
        }
        world
            .planes
            .clone()
            .into_iter()
            .for_each(|plane| world.net.change(Change::PlaneUp(plane)));
        let is_over = |world: &World| {
            let sent = |sent: &Sent| matches!(sent, Sent::Pending(id) if !world.pmls[0].is_done(*id));
            !sends.iter().any(sent) && receives.iter().all(|id| world.pmls[1].is_done(*id))
        };
        let mut steps = 0;
        while !is_over(&world) {
            world.leap(Duration::from_millis(1));
            steps += 1;
            assert!(steps < 60_000, "seed {seed}: it never ended");
        }
        for sent in sends {
            world.wait_sent(0, sent).unwrap();
        }
        for (at, request) in receives.into_iter().enumerate() {
            world.wait(1, request).unwrap();
            assert_eq!(bytes(&rooms[at]), bytes(&memories[at]), "seed {seed}");
        }
    }
}

#[test]
fn it_ends_with_a_peer_that_is_lost() {
    let mut world = World::with_planes(2, 1, 5, sim(true, true, true), |pml| {
        pml.patience = Duration::from_millis(50);
    });
    let memory = filled(3000, 1);
    let id = pending(send(&mut world, 1, &memory));
    world.net.change(Change::PlaneDown(world.planes[0]));
    let mut steps = 0;
    while !world.pmls[0].is_done(id) {
        world.leap(Duration::from_millis(1));
        steps += 1;
        assert!(steps < 60_000, "it never ended");
    }
    let ended = world.pmls[0].test(id).unwrap();
    assert!(matches!(ended, Err(PmlError::PeerLost { .. })), "{ended:?}");
}
