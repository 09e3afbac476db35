//! Paths that break and come back, and which of them small messages take.

use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_pml::{LostReason, PathState, PmlError, Rank, Source};
use doorbell_sim::{Change, Faults, SimConfig};

use crate::world::{World, bytes, empty, pattern, sim};

const MS: Duration = Duration::from_millis(1);

fn world(planes: usize, configure: impl Fn(&mut SimConfig)) -> World {
    let mut config = sim(true, true, true);
    configure(&mut config);
    World::with_planes(2, planes, 11, config, |_| ())
}

fn state(world: &World, rank: usize, path: usize) -> PathState {
    let other = Rank(1 - rank as u32);
    world.pmls[rank].peer(other).unwrap().paths[path].state
}

fn states(world: &World, path: usize) -> [PathState; 2] {
    [0, 1].map(|rank| state(world, rank, path))
}

fn current(world: &World, rank: usize) -> usize {
    let paths = world.pmls[rank].peer(Rank(1 - rank as u32)).unwrap().paths;
    paths.iter().position(|path| path.current).unwrap()
}

/// Messages back and forth for this time, one every 100 microseconds; each arrives.
fn chat(world: &mut World, time: Duration) {
    let end = world.net.now() + time;
    let mut at = 0;
    while world.net.now() < end {
        for (from, to) in [(0, 1), (1, 0)] {
            let into = empty(8);
            let request = world.recv(to, Rank(from as u32), 1, &into);
            world.pmls[from]
                .inject(Rank(to as u32), 0, 1, &pattern(8, at))
                .unwrap();
            let mut steps = 0;
            while !world.pmls[to].is_done(request) {
                world.leap(Duration::from_micros(50));
                steps += 1;
                assert!(steps < 100_000, "message {at} never came");
            }
            world.pmls[to].test(request).unwrap().unwrap();
            assert_eq!(bytes(&into), pattern(8, at));
            at += 1;
        }
    }
}

fn sent_over(world: &World, plane: usize) -> u64 {
    world.net.stats(world.planes[plane]).messages_sent
}

fn slow(world: &World, plane: usize, by: Duration) {
    let faults = Faults {
        delay: by,
        ..Faults::NONE
    };
    world.net.change(Change::Faults(world.planes[plane], faults));
}

#[test]
fn small_messages_take_the_way_with_the_lowest_measured_latency() {
    let mut world = world(3, |_| ());
    slow(&world, 0, Duration::from_micros(900));
    slow(&world, 1, Duration::from_micros(100));
    slow(&world, 2, Duration::from_micros(400));
    chat(&mut world, 1500 * MS);
    assert_eq!((current(&world, 0), current(&world, 1)), (1, 1));
    // It changes: the quickest becomes the slowest.
    slow(&world, 1, Duration::from_micros(2000));
    chat(&mut world, 2000 * MS);
    assert_eq!((current(&world, 0), current(&world, 1)), (2, 2));
    let before = [0, 1, 2].map(|plane| sent_over(&world, plane));
    chat(&mut world, 500 * MS);
    let sent = [0, 1, 2].map(|plane| sent_over(&world, plane) - before[plane]);
    assert!(sent[2] > 10 * (sent[0] + sent[1]), "{sent:?}");
}

#[test]
fn equal_ways_take_turns() {
    let mut world = world(3, |_| ());
    slow(&world, 1, Duration::from_micros(500));
    chat(&mut world, 1500 * MS);
    let before = [0, 1, 2].map(|plane| sent_over(&world, plane));
    for at in 0..10_000 {
        world.pmls[0].inject(Rank(1), 0, 1, &pattern(8, at)).unwrap();
        let into = empty(8);
        let request = world.recv(1, Rank(0), 1, &into);
        world.wait(1, request).unwrap();
        assert_eq!(bytes(&into), pattern(8, at));
    }
    let sent = [0, 1, 2].map(|plane| sent_over(&world, plane) - before[plane]);
    assert!(sent[0].abs_diff(sent[2]) < 1000 && sent[0] > 4000, "{sent:?}");
    assert!(sent[1] < 250, "{sent:?}");
}

#[test]
fn without_traffic_no_peer_is_probed() {
    let mut world = world(2, |_| ());
    chat(&mut world, 300 * MS);
    world.leap(200 * MS);
    let before = world.pmls[0].counters().probes;
    world.leap(5000 * MS);
    assert_eq!(world.pmls[0].counters().probes, before);
}

#[test]
fn a_way_that_came_back_is_probed_and_used_again_within_five_seconds() {
    let mut world = world(2, |_| ());
    for change in [
        (
            Change::PlaneDown(world.planes[0]),
            Change::PlaneUp(world.planes[0]),
        ),
        (
            Change::LinkDown(world.planes[0], 1),
            Change::LinkUp(world.planes[0], 1),
        ),
        (
            Change::Cut {
                plane: world.planes[0],
                from: 0,
                to: 1,
            },
            Change::Heal {
                plane: world.planes[0],
                from: 0,
                to: 1,
            },
        ),
    ] {
        world.net.change(change.0);
        chat(&mut world, 1000 * MS);
        assert!(!states(&world, 0).contains(&PathState::Up), "{change:?}");
        world.net.change(change.1);
        let back = world.net.now();
        while states(&world, 0) != [PathState::Up; 2] {
            chat(&mut world, 10 * MS);
            let took = world.net.now().since(back);
            assert!(
                took < 5000 * MS,
                "{change:?}: {:?} after {took:?}",
                states(&world, 0)
            );
        }
        let took = world.net.now().since(back);
        assert!(
            took > 400 * MS,
            "{change:?}: it has to prove itself, and was used after {took:?}"
        );
        let before = sent_over(&world, 0);
        chat(&mut world, 1000 * MS);
        assert!(sent_over(&world, 0) > before + 100, "{change:?}: its share");
    }
    assert_eq!(
        world
            .pmls
            .iter()
            .map(|pml| pml.counters().peers_lost)
            .sum::<u64>(),
        0
    );
}

/// One path returns and has yet to prove itself when the other one breaks: it is taken at once.
#[test]
fn a_way_that_returns_is_better_than_none() {
    let mut world = world(2, |_| ());
    chat(&mut world, 200 * MS);
    // The second time, it would have to prove itself for a second.
    for _ in 0..2 {
        world.net.change(Change::LinkDown(world.planes[0], 1));
        chat(&mut world, 500 * MS);
        world.net.change(Change::LinkUp(world.planes[0], 1));
        chat(&mut world, 250 * MS);
    }
    assert_eq!(states(&world, 0), [PathState::Returning; 2]);
    world.net.change(Change::LinkDown(world.planes[1], 0));
    world.net.change(Change::LinkDown(world.planes[1], 1));
    world.leap(MS);
    assert_eq!(states(&world, 0), [PathState::Up; 2]);
    let broken = world.net.now();
    chat(&mut world, MS);
    assert!(world.net.now().since(broken) < 50 * MS);
    world.net.change(Change::LinkUp(world.planes[1], 0));
    world.net.change(Change::LinkUp(world.planes[1], 1));
    chat(&mut world, 5000 * MS);
    assert_eq!(states(&world, 1), [PathState::Up; 2]);
}

#[test]
fn a_link_that_flaps_does_not_flap_the_way() {
    let mut world = world(2, |_| ());
    chat(&mut world, 200 * MS);
    for _ in 0..25 {
        world.net.change(Change::LinkDown(world.planes[0], 0));
        chat(&mut world, 200 * MS);
        world.net.change(Change::LinkUp(world.planes[0], 0));
        chat(&mut world, 200 * MS);
    }
    for pml in &world.pmls {
        let counters = pml.counters();
        assert_eq!(
            (counters.paths_down, counters.paths_returned),
            (1, 0),
            "ten seconds of it"
        );
    }
    chat(&mut world, 5000 * MS);
    assert_eq!(states(&world, 0), [PathState::Up; 2]);
}

/// The cable at one end: the other one sees silence, and nothing of its own would show it for long.
#[test]
fn the_other_path_notifies_the_peer_that_this_one_is_broken() {
    let mut world = world(2, |config| config.silence = Duration::from_secs(3600));
    chat(&mut world, 200 * MS);
    world.net.change(Change::LinkDown(world.planes[0], 0));
    chat(&mut world, 150 * MS);
    assert!(
        !states(&world, 0).contains(&PathState::Up),
        "{:?}",
        states(&world, 0)
    );
    assert_eq!(world.pmls[1].counters().paths_down, 1);
    world.net.change(Change::LinkUp(world.planes[0], 0));
    chat(&mut world, 3000 * MS);
    assert_eq!(states(&world, 0), [PathState::Up; 2]);
}

#[test]
fn the_only_way_may_lose_its_link_for_a_while() {
    let mut world = world(1, |_| ());
    chat(&mut world, 10 * MS);
    let into = empty(8);
    let request = world.recv(1, Rank(0), 1, &into);
    world.net.change(Change::PlaneDown(world.planes[0]));
    world.leap(100 * MS);
    world.pmls[0].inject(Rank(1), 0, 1, b"8 bytes!").unwrap();
    world.leap(3000 * MS);
    assert!(!world.pmls[1].is_done(request));
    world.net.change(Change::PlaneUp(world.planes[0]));
    world.leap(1500 * MS);
    world.wait(1, request).unwrap();
    assert_eq!(bytes(&into), *b"8 bytes!");
    chat(&mut world, 10 * MS);
}

#[test]
fn patience_ends_with_one_error_per_request_and_others_go_on() {
    let mut world = World::with_planes(3, 2, 11, sim(true, true, true), |_| ());
    let (one, two) = (empty(8), empty(8));
    let from_lost = world.recv(0, Rank(1), 1, &one);
    let from_other = world.recv(0, Rank(2), 1, &two);
    for plane in world.planes.clone() {
        world.net.change(Change::LinkDown(plane, 1));
    }
    world.leap(300 * MS);
    assert!(!world.pmls[0].is_done(from_lost));
    world.leap(7000 * MS);
    let ended = world.wait(0, from_lost);
    assert!(
        matches!(ended, Err(PmlError::PeerLost { rank: Rank(1), .. })),
        "{ended:?}"
    );
    assert_eq!(world.pmls[1].peer(Rank(0)).unwrap().lost, Some(LostReason::Link));
    world.pmls[2].inject(Rank(0), 0, 1, b"8 bytes!").unwrap();
    world.wait(0, from_other).unwrap();
    assert_eq!(world.pmls[0].live_requests(), 0);
    assert!(world.pmls[0].probe(Source::Any, 0, 0, u64::MAX).is_none());
}

#[test]
fn a_peer_that_is_silent_when_the_link_is_back_is_lost_for_its_silence_and_not_for_the_link() {
    let mut world = world(1, |_| ());
    chat(&mut world, 10 * MS);
    let plane = world.planes[0];
    world.net.change(Change::LinkDown(plane, 0));
    world.leap(200 * MS);
    for (from, to) in [(0, 1), (1, 0)] {
        world.net.change(Change::Cut { plane, from, to });
    }
    world.net.change(Change::LinkUp(plane, 0));
    world.leap(7000 * MS);
    let lost = |rank: usize, other| world.pmls[rank].peer(Rank(other)).unwrap().lost;
    assert_eq!(lost(0, 1), Some(LostReason::Peer(DownReason::Silent)));
}

#[test]
fn a_device_that_is_gone_is_not_called_any_more() {
    let mut world = world(2, |_| ());
    chat(&mut world, 100 * MS);
    world.net.change(Change::NicDeath(world.planes[0], 0));
    chat(&mut world, 3000 * MS);
    assert_eq!(state(&world, 0, 0), PathState::Down);
    assert_eq!(world.pmls[0].counters().calls, 0);
    assert_eq!(current(&world, 1), 1);
}

#[test]
fn a_way_that_is_on_its_way_back_is_used_at_once_when_the_last_one_breaks() {
    let mut world = World::with_planes(2, 2, 11, sim(true, true, true), |pml| {
        pml.patience = Duration::ZERO;
    });
    chat(&mut world, 100 * MS);
    let (first, second) = (world.planes[0], world.planes[1]);
    world.net.change(Change::PlaneDown(first));
    chat(&mut world, 100 * MS);
    world.net.change(Change::PlaneUp(first));
    let mut steps = 0;
    while states(&world, 0) != [PathState::Returning; 2] {
        world.leap(MS);
        steps += 1;
        assert!(steps < 1000, "{:?}", states(&world, 0));
    }
    world.net.change(Change::PlaneDown(second));
    // The first one has 500 ms to prove itself; there is no time for that now.
    chat(&mut world, 50 * MS);
    assert_eq!(states(&world, 0), [PathState::Up; 2]);
}

#[test]
fn a_device_that_is_gone_leaves_hope_for_a_way_that_lost_its_link() {
    let mut world = world(2, |_| ());
    chat(&mut world, 100 * MS);
    let (first, second) = (world.planes[0], world.planes[1]);
    world.net.change(Change::PlaneDown(first));
    chat(&mut world, 100 * MS);
    world.net.change(Change::NicDeath(second, 0));
    world.leap(500 * MS);
    world.net.change(Change::PlaneUp(first));
    world.leap(1500 * MS);
    chat(&mut world, 100 * MS);
}

#[test]
fn closing_waits_for_a_way_that_comes_back() {
    let mut world = world(1, |_| ());
    chat(&mut world, 10 * MS);
    let into = empty(8);
    let request = world.recv(1, Rank(0), 1, &into);
    let plane = world.planes[0];
    world.net.change(Change::PlaneDown(plane));
    world.leap(100 * MS);
    world.pmls[0].inject(Rank(1), 0, 1, b"8 bytes!").unwrap();
    let by = world.net.now() + 3000 * MS;
    let (mut steps, mut closed) = (0, false);
    while !closed {
        if steps == 1000 {
            world.net.change(Change::PlaneUp(plane));
        }
        let now = world.net.now() + MS;
        world.net.advance_to(now);
        world.pmls[1].progress(now);
        closed = world.pmls[0].close(now, by);
        steps += 1;
    }
    assert!(world.net.now() < by, "it ends as soon as it can");
    world.wait(1, request).unwrap();
    assert_eq!(bytes(&into), *b"8 bytes!");
}

#[test]
fn what_is_to_be_done_about_ways_is_a_deadline() {
    let mut world = world(2, |_| ());
    chat(&mut world, 300 * MS);
    world.leap(300 * MS);
    let plane = world.planes[0];
    world.net.change(Change::LinkDown(plane, 0));
    // The other end receives the word over the second path in a poll that has no clock.
    let now = world.net.now() + MS;
    world.net.advance_to(now);
    world.pmls[0].progress(now);
    world.net.advance_to(now + MS);
    let before = world.pmls[1].next_deadline();
    (0..16).for_each(|_| _ = world.pmls[1].poll()); // both rails are quiet, and polled rarely
    let after = world.pmls[1].next_deadline().unwrap();
    assert!(
        before.is_none_or(|before| before > after) && after <= now + Duration::from_nanos(1),
        "{before:?} {after:?}"
    );
    world.pmls[1].progress(now + MS);
    assert_eq!(state(&world, 1, 0), PathState::Down);
}
