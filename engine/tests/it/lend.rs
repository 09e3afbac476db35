//! Messages that are handed over without a copy, between threads and between processes.

use std::time::{Duration, Instant};

use crate::common::{MODES, config, in_both_modes, job, pattern};
use crate::processes::{ROLE, start_test};
use doorbell::config::Mode;
use doorbell::{Error, InPlace, LentCounts, Source, Tag, World};
use doorbell_testing::skipped;

const LONG: usize = 1 << 20;
/// Beyond this, no wait of these tests is right.
const PATIENCE: Duration = Duration::from_secs(20);

fn send(world: &World, to: u32, tag: u64, bytes: &[u8]) {
    let mut lent = world.lend(bytes.len()).unwrap();
    lent.copy_from_slice(bytes);
    lent.send(to, tag).unwrap();
}

/// Whether `received` is in place, as it has to be within the host, where reads are allowed.
fn is_right_place(test: &str, received: &InPlace<'_>) -> bool {
    if !received.is_shared() {
        skipped(test, "process_vm_readv is not allowed here");
    }
    received.is_shared()
}

/// Waits until the world's pieces are so.
fn until(world: &World, what: &str, is_so: impl Fn(LentCounts) -> bool) {
    let begun = Instant::now();
    while !is_so(world.lent()) {
        assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", world.lent());
        world.progress();
    }
}

#[test]
fn messages_of_all_lengths_are_received_in_place() {
    in_both_modes(2, |world| {
        let other = 1 - world.rank();
        for (round, length) in (0u64..).zip([0, 1, 8, 4095, 4096, 8191, 8192, 9000, 65_536, LONG, LONG + 1]) {
            let check = || {
                let received = world.recv_in_place(other, round).unwrap();
                let status = received.status();
                assert_eq!((status.source, status.tag, status.len), (other, round, length));
                assert!(received.bytes().to_vec() == pattern(other, length), "{length}");
            };
            if world.rank() == 1 {
                check();
            }
            send(&world, other, round, &pattern(world.rank(), length));
            if world.rank() == 0 {
                check();
            }
        }
        until(&world, "all are back", |counts| counts.sent == 0);
        let counts = world.lent();
        assert_eq!((counts.lent, counts.abandoned, counts.held), (0, 0, 0));
        assert!(counts.free > 0);
        world.barrier().unwrap();
    });
}

#[test]
fn messages_of_64_mib_are_handed_over() {
    const LENGTH: usize = 64 << 20;
    in_both_modes(2, |world| {
        for round in 0..3 {
            if world.rank() == 0 {
                let mut lent = world.lend(LENGTH).unwrap();
                lent[..8].copy_from_slice(&[round; 8]);
                lent[LENGTH - 8..].copy_from_slice(b"the last");
                lent.send(1, u64::from(round)).unwrap();
            } else {
                let received = world.recv_in_place(0, u64::from(round)).unwrap();
                let bytes = received.bytes();
                assert_eq!(bytes.len(), LENGTH);
                assert_eq!(
                    (bytes.read(0), bytes.read(LENGTH - 8)),
                    (Some([round; 8]), Some(*b"the last"))
                );
            }
        }
        world.barrier().unwrap();
    });
}

#[test]
fn long_ones_are_not_copied_and_come_back_when_they_are_dropped() {
    in_both_modes(2, |world| {
        if world.rank() == 0 {
            send(&world, 1, 1, &pattern(1, LONG));
            send(&world, 1, 2, &pattern(2, LONG));
            let is_copied = world.recv(1, 3, &mut [0]).unwrap().len == 1;
            if is_copied {
                return;
            }
            assert_eq!(world.lent().sent, 2, "they are read still");
            world.send(1, 3, &[]).unwrap();
            world.recv(1, 4, &mut []).unwrap();
            until(&world, "one is back", |counts| counts.sent == 1);
            world.send(1, 4, &[]).unwrap();
            until(&world, "both are back", |counts| counts.sent == 0);
            assert_eq!(world.lent().free, 2);
        } else {
            // In an order of its own: the later one is given back first.
            let second = world.recv_in_place(0, 2).unwrap();
            let first = world.recv_in_place(0, 1).unwrap();
            if !is_right_place("lend::long_ones_are_not_copied", &first) {
                return world.send(0, 3, &[1]).unwrap();
            }
            assert_eq!(world.lent().held, 2);
            assert_eq!(world.counters().unwrap().taken_in_place, 2);
            world.send(0, 3, &[]).unwrap();
            world.recv(0, 3, &mut []).unwrap();
            drop(second);
            world.send(0, 4, &[]).unwrap();
            world.recv(0, 4, &mut []).unwrap();
            assert!(first.bytes().to_vec() == pattern(1, LONG));
            drop(first);
            assert_eq!(world.lent().held, 0);
        }
        world.barrier().unwrap();
    });
}

#[test]
fn any_source_and_any_tag_match_posted_before_or_after() {
    in_both_modes(3, |world| {
        if world.rank() == 0 {
            for round in 0..6 {
                let received = world.recv_in_place(Source::Any, Tag::any()).unwrap();
                let source = received.status().source;
                assert_eq!(received.status().tag, 7 + u64::from(source), "{round}");
                assert!(received.bytes().to_vec() == pattern(source, LONG));
            }
            // One that has arrived before the call.
            world.barrier().unwrap();
            world.probe(2, 20).unwrap();
            let received = world.recv_in_place(Source::Any, 20).unwrap();
            assert_eq!(received.status().source, 2);
        } else {
            for _ in 0..3 {
                send(
                    &world,
                    0,
                    7 + u64::from(world.rank()),
                    &pattern(world.rank(), LONG),
                );
            }
            world.barrier().unwrap();
            if world.rank() == 2 {
                send(&world, 0, 20, &pattern(2, LONG));
            }
        }
        world.barrier().unwrap();
    });
}

#[test]
fn every_send_is_received_by_either_receive() {
    in_both_modes(2, |world| {
        let (other, rank) = (1 - world.rank(), world.rank());
        for (round, length) in (0u64..).zip([0, 8, 9000, 65_536, LONG]) {
            let tag = 10 * round;
            let mut into = vec![0; length];
            if rank == 0 {
                send(&world, other, tag, &pattern(1, length));
                world.send(other, tag + 1, &pattern(2, length)).unwrap();
                let region = world.region(length.max(1)).unwrap();
                region.write(0, &pattern(3, length));
                let slice = region.slice(0, length).unwrap();
                world.isend_region(other, tag + 2, slice).unwrap().wait().unwrap();
            } else {
                assert_eq!(world.recv(other, tag, &mut into).unwrap().len, length);
                assert!(into == pattern(1, length), "lent, received by a copy: {length}");
                let plain = world.recv_in_place(other, tag + 1).unwrap();
                assert!(!plain.is_shared() && plain.bytes().to_vec() == pattern(2, length));
                let region = world.recv_in_place(other, tag + 2).unwrap();
                assert!(region.bytes().to_vec() == pattern(3, length), "{length}");
            }
        }
        world.barrier().unwrap();
    });
}

#[test]
fn messages_to_oneself_are_received_in_place() {
    in_both_modes(1, |world| {
        for length in [8, 9000, LONG] {
            send(&world, 0, 1, &pattern(1, length));
            let received = world.recv_in_place(0, 1).unwrap();
            assert!(received.bytes().to_vec() == pattern(1, length));
            drop(received);
            until(&world, "it is back", |counts| counts.sent == 0);
        }
    });
}

#[test]
fn the_pool_is_bounded_and_its_error_names_the_setting() {
    for mode in MODES {
        let mut config = config(mode);
        config.lend.pieces.set(2);
        job(2, &config, |world| {
            if world.rank() == 1 {
                world.recv(0, 3, &mut []).unwrap();
                for tag in 1..3 {
                    let received = world.recv_in_place(0, tag).unwrap();
                    assert!(received.bytes().to_vec() == pattern(1, LONG));
                }
                world.barrier().unwrap();
                return;
            }
            // One is given back unsent, one is shorter than it was lent.
            drop(world.lend(LONG).unwrap());
            let mut first = world.lend(LONG + 100).unwrap();
            first.truncate(LONG);
            first.truncate(LONG + 100);
            assert_eq!(first.len(), LONG);
            first.copy_from_slice(&pattern(1, LONG));
            first.send(1, 1).unwrap();
            send(&world, 1, 2, &pattern(1, LONG));
            let error = world.lend(1).unwrap_err();
            assert!(matches!(error, Error::Full { .. }), "{error}");
            assert!(error.to_string().contains("lend.pieces"), "{error}");
            world.send(1, 3, &[]).unwrap();
            until(&world, "both are back", |counts| counts.sent == 0);
            // Pieces of another length are made in the place of those.
            let both = [world.lend(8).unwrap(), world.lend(8).unwrap()];
            assert!(world.lend(8).is_err() && world.lent().lent == 2);
            drop(both);
            world.barrier().unwrap();
        });
    }
}

#[test]
fn an_unknown_rank_is_an_error_and_gives_the_piece_back() {
    in_both_modes(1, |world| {
        let error = world.lend(LONG).unwrap().send(1, 1).unwrap_err();
        assert!(matches!(error, Error::NoSuchRank { rank: 1, size: 1 }), "{error}");
        assert_eq!((world.lent().lent, world.lent().free), (0, 1));
        let error = world.recv_in_place(1, 1).unwrap_err();
        assert!(matches!(error, Error::NoSuchRank { rank: 1, size: 1 }), "{error}");
        let limit = Duration::from_millis(10);
        let error = world.within(limit).recv_in_place(0, 1).unwrap_err();
        assert_eq!(error.code(), "timeout");
    });
}

#[test]
fn over_udp_it_is_an_ordinary_message() {
    for mode in MODES {
        let mut config = config(mode);
        config.set("rails.list", "udp:lo").unwrap();
        config.set("udp.port", "0").unwrap();
        job(2, &config, |world| {
            for (tag, length) in (0u64..).zip([8, 9000, LONG]) {
                if world.rank() == 0 {
                    send(&world, 1, tag, &pattern(1, length));
                } else {
                    let received = world.recv_in_place(0, tag).unwrap();
                    assert!(!received.is_shared() && received.bytes().to_vec() == pattern(1, length));
                }
            }
            world.barrier().unwrap();
            assert_eq!(world.lent().held, 0);
        });
    }
}

#[test]
fn a_world_that_ends_waits_for_its_receivers() {
    for mode in MODES {
        job(2, &config(mode), |world| {
            if world.rank() == 0 {
                send(&world, 1, 1, &pattern(1, LONG));
            } else {
                let received = world.recv_in_place(0, 1).unwrap();
                assert!(received.bytes().to_vec() == pattern(1, LONG));
            }
        });
    }
}

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let world = doorbell::init().unwrap();
    match role.as_str() {
        "lend-receiver-dies" => receiver_dies(&world),
        "lend-sender-dies" => sender_dies(&world),
        "lend-turns" => turns(&world),
        other => panic!("there is no role {other}"),
    }
}

fn die() -> ! {
    // SIGKILL: none of our code runs any more.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    unreachable!("a killed process goes on");
}

/// Rank 1 is killed with a message in its hands, and one that it has not received.
fn receiver_dies(world: &World) {
    if world.rank() == 1 {
        let received = world.recv_in_place(0, 1).unwrap();
        assert!(received.bytes().to_vec() == pattern(1, LONG));
        // Both are under way when it dies.
        world.recv(0, 9, &mut []).unwrap();
        die();
    }
    send(world, 1, 1, &pattern(1, LONG));
    send(world, 1, 2, &pattern(2, LONG));
    world.send(1, 9, &[]).unwrap();
    until(world, "both are given up", |counts| counts.abandoned == 2);
    assert_eq!((world.lent().sent, world.lent().lent), (0, 0));
    // The pool has all its pieces, and further sends fail as all others do.
    let pieces: Vec<_> = (0..64).map(|_| world.lend(4096).unwrap()).collect();
    drop(pieces);
    let sent = world.lend(LONG).unwrap().send(1, 3);
    let lost = matches!(&sent, Err(Error::PeerLost { peer: 1, .. }));
    assert!(
        lost || *world.config().progress.mode.get() == Mode::Dedicated,
        "{sent:?}"
    );
}

/// Rank 0 is killed while rank 1 reads what it has sent.
fn sender_dies(world: &World) {
    if world.rank() == 0 {
        send(world, 1, 1, &pattern(1, LONG));
        world.recv(1, 2, &mut []).unwrap();
        die();
    }
    let received = world.recv_in_place(0, 1).unwrap();
    world.send(0, 2, &[]).unwrap();
    let error = world.recv(0, 3, &mut []).unwrap_err();
    assert!(matches!(error, Error::PeerLost { peer: 0, .. }), "{error}");
    assert!(received.bytes().to_vec() == pattern(1, LONG), "it stays readable");
    drop(received);
    assert_eq!(world.lent().held, 0);
    let error = world.recv_in_place(0, 3).unwrap_err();
    assert!(matches!(error, Error::PeerLost { peer: 0, .. }), "{error}");
}

/// Messages of several lengths by turns, with some of them kept for a while.
fn turns(world: &World) {
    let other = 1 - world.rank();
    let mut kept = std::collections::VecDeque::new();
    for round in 0..100u64 {
        let length = [LONG, 70_000, 8, 8192][(round % 4) as usize];
        if world.rank() == 0 {
            send(world, other, round, &pattern(round as u32, length));
        }
        let received = world.recv_in_place(other, round).unwrap();
        assert!(
            received.bytes().to_vec() == pattern(round as u32, length),
            "{round}"
        );
        if world.rank() == 1 {
            send(world, other, round, &pattern(round as u32, length));
        }
        kept.push_back((round, received));
        if kept.len() > 5
            && let Some((round, oldest)) = kept.pop_front()
        {
            let length = [LONG, 70_000, 8, 8192][(round % 4) as usize];
            assert!(
                oldest.bytes().to_vec() == pattern(round as u32, length),
                "{round} later"
            );
        }
    }
    drop(kept);
    world.barrier().unwrap();
    until(world, "all are back", |counts| counts.sent == 0);
    assert_eq!(world.lent().abandoned, 0);
}

#[test]
fn two_processes_hand_messages_over() {
    for mode in MODES {
        start_test("lend::child", "lend-turns", 2, mode, &[]).succeeds();
    }
    let copies = &[("DOORBELL_SHM_CMA", "off")];
    start_test("lend::child", "lend-turns", 2, Mode::Inline, copies).succeeds();
}

#[test]
fn a_receiver_that_is_killed_costs_its_sender_a_piece_and_nothing_else() {
    for mode in MODES {
        let mut job = start_test("lend::child", "lend-receiver-dies", 2, mode, &[]);
        let status = job.wait();
        assert!(
            status[0].success() && !status[1].success(),
            "{mode:?}: {status:?}"
        );
    }
}

#[test]
fn what_a_killed_sender_has_handed_over_stays_readable() {
    for mode in MODES {
        let mut job = start_test("lend::child", "lend-sender-dies", 2, mode, &[]);
        let status = job.wait();
        assert!(
            !status[0].success() && status[1].success(),
            "{mode:?}: {status:?}"
        );
    }
}
