//! The end of a PML with traffic under way, and regions as targets of the sender's writes.

use std::time::Duration;

use doorbell_pml::{Aborted, Payload, Protocol, Rank, Sent, Source, Target};
use doorbell_sim::{Change, SimConfig};

use crate::world::{Memory, World, bytes, empty, filled, pattern, recv_args, send_args, sim};

/// Closes rank 0, the others polling on; how long it took.
fn close(world: &mut World, limit: Duration) -> Duration {
    let started = world.net.now();
    let by = started + limit;
    loop {
        let now = world.net.now() + Duration::from_micros(1);
        world.net.advance_to(now);
        if world.pmls[0].close(now, by) {
            return now.since(started);
        }
        assert!(
            now < by + Duration::from_micros(2),
            "a close that goes on after its bound"
        );
        world.pmls[1].progress(now);
    }
}

fn shallow() -> SimConfig {
    let mut config = sim(true, true, true);
    config.queue_depth = 4;
    config
}

#[test]
fn a_close_pushes_out_what_was_accepted() {
    let mut world = World::new(2, shallow(), |_| ());
    for at in 0..50 {
        world.pmls[0].inject(Rank(1), 0, 1, &pattern(2000, at)).unwrap();
    }
    assert!(
        world.pmls[0].counters().sends_queued > 0,
        "some have to wait for the rail"
    );
    let took = close(&mut world, Duration::from_secs(1));
    assert!(took < Duration::from_secs(1), "{took:?}");
    for at in 0..50 {
        let into = empty(2000);
        let request = world.recv(1, Rank(0), 1, &into);
        assert_eq!(world.wait(1, request).unwrap().length, 2000);
        assert_eq!(bytes(&into), pattern(2000, at));
    }
    assert!(world.pmls[1].counters().peers_lost <= 1);
}

#[test]
fn a_close_ends_by_its_bound_whatever_is_under_way() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        for passes in [0, 1, 3, 10, 40] {
            for silent in [false, true] {
                let mut world = World::new(2, shallow(), |pml| pml.protocol = protocol);
                let from: Vec<Memory> = (0..6).map(|at| filled(100_000, at)).collect();
                let into: Vec<Memory> = (0..6).map(|_| empty(100_000)).collect();
                // In both directions, half of it never received, and one that waits for nothing.
                for at in 0..6u32 {
                    let args = send_args(1, at.into(), Payload::Region(from[at as usize].whole()));
                    let _ = world.pmls[0].send(args).unwrap();
                    let args = send_args(0, at.into(), Payload::Region(from[at as usize].whole()));
                    let _ = world.pmls[1].send(args).unwrap();
                }
                let mut theirs = Vec::new();
                for at in 0..3u32 {
                    let target = || Target::Region(into[at as usize].whole());
                    theirs.push(
                        world.pmls[1]
                            .recv(recv_args(Rank(0), at.into(), target()))
                            .unwrap(),
                    );
                    let target = Target::Region(into[at as usize + 3].whole());
                    let _ = world.pmls[0].recv(recv_args(Rank(1), at.into(), target)).unwrap();
                }
                let _ = world.pmls[0].recv(recv_args(Source::Any, 99, Target::Region(empty(8).whole())));
                world.passes(passes);
                if silent {
                    let plane = world.planes[0];
                    world.net.change(Change::Cut {
                        plane,
                        from: 1,
                        to: 0,
                    });
                    world.net.change(Change::Cut {
                        plane,
                        from: 0,
                        to: 1,
                    });
                }
                let limit = Duration::from_millis(2);
                let took = close(&mut world, limit);
                assert!(took <= limit + Duration::from_micros(1), "{took:?}");
                // The other side hears of it, and its requests end, well or badly; a PML that is dropped is no peer.
                drop(world.pmls.remove(0));
                let mut open = theirs;
                for _ in 0..200_000 {
                    let now = world.net.now() + Duration::from_micros(1);
                    world.net.advance_to(now);
                    world.pmls[0].progress(now);
                    open.retain(|request| world.pmls[0].test(*request).is_none());
                    if open.is_empty() {
                        break;
                    }
                }
                assert!(
                    open.is_empty(),
                    "{protocol:?}, {passes} passes, silent {silent}: {open:?}"
                );
            }
        }
    }
}

fn putting() -> SimConfig {
    sim(false, true, true)
}

#[test]
fn the_sender_writes_into_a_slice_of_a_region_and_nowhere_else() {
    for (offset, length) in [(0, 100_000), (1, 100_000), (4096, 65_537), (33, 70_001)] {
        let mut world = World::new(2, putting(), |_| ());
        let from = filled(length, 5);
        let into = empty(length + 8192);
        into.write(0, &vec![0xee; length + 8192]);
        let target = Target::Region(into.region().slice(offset, length).unwrap());
        let request = world.pmls[1].recv(recv_args(Rank(0), 1, target)).unwrap();
        let sent = world.send(0, 1, 1, &from);
        assert_eq!(world.wait(1, request).unwrap().length as usize, length);
        world.wait_sent(0, sent).unwrap();
        assert!(world.pmls[0].counters().puts > 0);
        let all = bytes(&into);
        assert_eq!(all[offset..offset + length], pattern(length, 5));
        let outside = all[..offset].iter().chain(&all[offset + length..]);
        assert!(outside.into_iter().all(|byte| *byte == 0xee), "offset {offset}");
    }
}

#[test]
fn a_region_that_its_owner_dropped_lives_until_the_sender_has_written() {
    let mut world = World::new(2, putting(), |_| ());
    let from = filled(200_000, 6);
    let into = empty(200_000);
    let request = world.pmls[1]
        .recv(recv_args(Rank(0), 1, Target::Region(into.whole())))
        .unwrap();
    drop(into);
    let sent = world.send(0, 1, 1, &from);
    assert_eq!(world.wait(1, request).unwrap().length, 200_000);
    world.wait_sent(0, sent).unwrap();
    let counters = world.pmls[0].counters();
    assert!(
        counters.puts > 0 && counters.frags_sent == 0,
        "the memory was there to be written"
    );
}

#[test]
fn a_region_is_free_again_when_its_receive_was_aborted() {
    for passes in 0..40 {
        let mut world = World::new(2, putting(), |_| ());
        let from = filled(200_000, 7);
        let into = empty(200_000);
        let target = Target::Region(into.whole());
        let request = world.pmls[1].recv(recv_args(Rank(0), 1, target)).unwrap();
        let sent = world.send(0, 1, 1, &from);
        world.passes(passes);
        let mut waited = 0;
        while world.pmls[1].abort(request) == Aborted::Wait {
            world.pass();
            waited += 1;
            assert!(waited < 10_000, "{passes} passes");
        }
        into.write(0, &vec![0xee; 200_000]);
        world.passes(1000);
        world.discard_all(1);
        world.wait_sent(0, sent).unwrap();
        world.passes(1000);
        assert!(bytes(&into).iter().all(|byte| *byte == 0xee), "{passes} passes");
        assert_eq!(
            (world.pmls[0].live_requests(), world.pmls[1].live_requests()),
            (0, 0),
            "{passes} passes"
        );
    }
}

#[test]
fn a_peer_that_dies_while_it_writes_leaves_a_request_that_ends() {
    for passes in 0..30 {
        let mut world = World::new(2, putting(), |_| ());
        let from = filled(400_000, 8);
        let into = empty(400_000);
        let target = Target::Region(into.whole());
        let request = world.pmls[1].recv(recv_args(Rank(0), 1, target)).unwrap();
        let sent: Sent = world.send(0, 1, 1, &from);
        let _ = sent;
        world.passes(passes);
        world.net.change(Change::RankDeath(0));
        if let Ok(status) = world.wait(1, request) {
            assert_eq!(status.length, 400_000);
            assert_eq!(bytes(&into), pattern(400_000, 8));
        }
        into.write(0, &vec![0xee; 400_000]);
        world.passes(1000);
        assert!(bytes(&into).iter().all(|byte| *byte == 0xee), "{passes} passes");
        assert_eq!(world.pmls[1].live_requests(), 0);
    }
}
