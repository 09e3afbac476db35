//! Connections that break while both processes live, and are made again.

use doorbell_testing::Stopwatch;

use super::*;
use crate::handshake::PENDING_MAX;
use crate::rail::Peer;
use crate::reconnect::HelloVerdict;

const A: PeerIndex = PeerIndex(0);
const B: PeerIndex = PeerIndex(1);
const UP: EventKind = EventKind::PeerUp;
/// At the end that broke, and at the other one, which is notified.
const SILENT: EventKind = EventKind::PeerDown(DownReason::Silent);
const GIVEN_UP: EventKind = EventKind::PeerDown(DownReason::Abandoned);

fn small() -> ShmConfig {
    ShmConfig {
        cells: 256,
        data: 64 << 10,
        eager: 4096,
        fragment: 8192,
        ..ShmConfig::default()
    }
}

/// Two rails that have talked in both directions, and whose first events are forgotten.
fn pair() -> World {
    let mut world = World::new(2, &small());
    world.up(0, 1);
    world.up(1, 0);
    events(&mut world);
    world
}

/// The events since the last call, about the other end.
fn events(world: &mut World) -> [Vec<EventKind>; 2] {
    [0, 1].map(|i| {
        let reported = std::iter::from_fn(|| world.rails[i].event());
        let (epochs, mut kinds) = (&mut world.epochs[i], Vec::new());
        for event in reported {
            if event.kind == UP {
                let before = epochs.replace(event.life);
                let grows = before.is_none_or(|before| before.is_before(event.life));
                assert!(grows, "{event:?} after {before:?}");
            }
            kinds.push(event.kind);
        }
        kinds
    })
}

fn pass(world: &mut World, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        world.pump();
    }
}

/// Polls until both ends have reported the other as up; returns their events.
fn revive(world: &mut World, who: &[usize]) -> [Vec<EventKind>; 2] {
    let mut reported: [Vec<EventKind>; 2] = Default::default();
    let start = Instant::now();
    while reported.iter().any(|kinds| kinds.last() != Some(&UP)) {
        for &i in who {
            world.rails[i].revive(if i == 0 { B } else { A });
        }
        pass(world, Duration::from_millis(2));
        for (all, more) in reported.iter_mut().zip(events(world)) {
            all.extend(more);
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{reported:?}");
    }
    assert_eq!(
        world.epochs[0], world.epochs[1],
        "both ends report the same epoch"
    );
    reported
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Sends numbers from `from` on while there is room; the next number.
fn fill(world: &mut World, from: u64, most: u64) -> u64 {
    let body = [7; 100];
    let mut next = from;
    while next < from + most
        && let Ok(id) = world.rails[0].send(B, &next.to_le_bytes(), Body::Bytes(&body))
    {
        assert_eq!(id.0, next, "numbers go on");
        next += 1;
    }
    next
}

#[test]
fn severed_in_the_middle_of_a_stream() {
    let mut world = pair();
    // The first message was the greeting.
    let (mut next, mut taken, mut given) = (2, 0, 0);
    for round in 0..30 {
        next = fill(&mut world, next, 40);
        let now = Time::ZERO + world.start.elapsed();
        world.rails[1].progress(now);
        world.rails[1].poll(round, &mut world.seen[1]);
        if round % 3 == 0 {
            world.rails[1].sever(Some(A));
            assert_eq!(events(&mut world)[1], [SILENT]);
        } else {
            world.rails[0].sever(Some(B));
            assert_eq!(events(&mut world)[0], [SILENT]);
        }
        let reported = revive(&mut world, &[round % 2]);
        let at = usize::from(round % 3 != 0);
        assert_eq!(reported[at], [GIVEN_UP, UP], "round {round}");
        assert_eq!(reported[1 - at], [UP], "round {round}");
        let seen: Vec<u64> = world.seen[1]
            .messages
            .drain(..)
            .map(|(_, bytes)| number(&bytes))
            .collect();
        let mark = world.rails[0].handed_over(B).0;
        let mut back = Vec::new();
        world.rails[0].reclaim(B, &mut |id, bytes| {
            assert_eq!((id.0, bytes.len()), (number(bytes), 108));
            back.push(id.0);
        });
        // Exactly what was not taken: the one is where the other ends.
        let first = next - (seen.len() + back.len()) as u64;
        assert!(seen.iter().copied().eq(first..mark + 1), "{seen:?} {mark}");
        assert!(back.iter().copied().eq(mark + 1..next), "{back:?} {mark}");
        (taken, given) = (taken + seen.len(), given + back.len());
        next = fill(&mut world, next, 1);
        world.until("the new lane works", |world| {
            world.rails[0].handed_over(B).0 == next - 1
        });
        world.seen[1].messages.clear();
    }
    assert!(taken > 100 && given > 100, "{taken} {given}");
}

#[test]
fn both_ends_sever_at_once() {
    let mut world = pair();
    let mut next = 2;
    for round in 0..50 {
        next = fill(&mut world, next, 5);
        world.rails[0].sever(Some(B));
        world.rails[1].sever(Some(A));
        assert_eq!(events(&mut world), [[SILENT], [SILENT]]);
        world.rails[0].reclaim(B, &mut |_, _| ());
        let reported = revive(&mut world, [&[0, 1][..], &[0], &[1]][round % 3]);
        assert_eq!(reported, [[UP], [UP]], "round {round}");
        world.seen[1].messages.clear();
        next = fill(&mut world, next, 1);
        world.until("it arrives", |world| !world.seen[1].messages.is_empty());
        assert_eq!(number(&world.seen[1].messages[0].1), next - 1);
    }
}

/// Neither end connects: both stay down. The one that gives up is noticed in good time.
#[test]
fn a_severed_way_is_noticed_and_stays_down() {
    let mut world = pair();
    pass(&mut world, Duration::from_millis(1100));
    world.rails[0].sever(Some(B));
    let start = Stopwatch::of_thread();
    assert_eq!(world.event(1), GIVEN_UP);
    assert!(start.elapsed() < Duration::from_millis(100));
    assert_eq!(world.event(0), SILENT);
    pass(&mut world, Duration::from_millis(50));
    assert_eq!(events(&mut world), [vec![], vec![]]);
    for i in 0..2 {
        let to = PeerIndex(1 - i as u32);
        assert_eq!(world.rails[i].send(to, b"x", Body::Empty), Err(Refused::PeerDown));
        world.rails[i].sever(Some(PeerIndex(1 - i as u32)));
    }
    assert_eq!(events(&mut world), [vec![], vec![]], "told once");
}

/// Whether the descriptors that a sleeping rail waits for become readable within this many seconds.
fn readable(rail: &ShmRail, seconds: i64) -> usize {
    let flags = rustix::event::PollFlags::IN;
    let mut wait = [rustix::event::PollFd::new(&rail.epoll, flags)];
    let bound = rustix::time::Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut wait, Some(&bound)).unwrap()
}

/// A sleeper is woken by the end of a way, and by a call.
#[test]
fn a_sleeper_is_woken_by_both() {
    let mut world = pair();
    for step in 0..2 {
        world.until("sleep", |world| {
            events(world);
            let asleep = matches!(world.rails[1].arm().unwrap(), Armed::Sleep(_));
            if !asleep {
                world.rails[1].disarm();
            }
            asleep
        });
        assert_eq!(readable(&world.rails[1], 0), 0, "nothing wakes it before");
        match step {
            0 => world.rails[0].abandon(B),
            _ => world.rails[0].revive(B),
        }
        assert_eq!(readable(&world.rails[1], 5), 1, "{step}");
        world.rails[1].disarm();
    }
    assert_eq!(revive(&mut world, &[0])[0], [UP]);
}

/// One-sided reads end, leases of the peer are gone, and new ones work in the new life.
#[test]
fn reads_and_leases_are_of_one_life() {
    let mut world = pair();
    let region = Region::new(8192).unwrap();
    let expose = |world: &mut World| {
        let memory = Exposure::Region(region.whole());
        world.rails[0].expose(memory, Access::Read, Some(B)).unwrap()
    };
    if !world.rails[0].capabilities().features.get {
        return skipped(
            "reads_and_leases_are_of_one_life",
            "process_vm_readv is not allowed",
        );
    }
    let into = || Landing::Region(Region::new(8192).unwrap().whole());
    let old = expose(&mut world);
    world.rails[1].get(A, OpId(1), &old, into()).unwrap();
    world.rails[1].abandon(A);
    world.pump();
    assert_eq!(world.seen[1].ended, [(OpId(1), Err(OpError::NotDone))]);
    assert_eq!(
        world.rails[1].get(A, OpId(2), &old, into()),
        Err(Refused::PeerDown)
    );
    revive(&mut world, &[1]);
    world.rails[1].get(A, OpId(3), &old, into()).unwrap();
    world.until("it is refused", |world| world.seen[1].ended.len() == 2);
    assert_eq!(world.seen[1].ended[1], (OpId(3), Err(OpError::Denied)));
    let new = expose(&mut world);
    world.rails[1].get(A, OpId(4), &new, into()).unwrap();
    world.until("it is read", |world| world.seen[1].ended.len() == 3);
    assert_eq!(world.seen[1].ended[2], (OpId(4), Ok(0)));
}

/// A hello that waits while its lane is given up is no lane, and no news.
#[test]
fn a_lane_that_was_severed_on_its_way_is_not_taken() {
    let mut world = pair();
    world.rails[0].abandon(B);
    world.until("it is noticed", |world| events(world)[1] == [GIVEN_UP]);
    for _ in 0..5 {
        world.rails[0].revive(B);
        world.rails[0].abandon(B);
    }
    pass(&mut world, Duration::from_millis(50));
    assert_eq!(events(&mut world), [vec![], vec![]]);
    assert!(world.rails[1].refused() >= 5);
    assert_eq!(revive(&mut world, &[1]), [[UP], [UP]]);
}

/// A peer that closes, or dies, is not called.
#[test]
fn some_ends_are_for_good() {
    for dies in [false, true] {
        let mut world = pair();
        let mut gone = world.rails.pop().unwrap();
        world.seen.pop();
        if dies {
            // As the kernel does it: without a word.
            gone.peers.clear();
        } else {
            assert!(gone.close(Time::ZERO, Time::ZERO));
        }
        drop(gone);
        let reason = if dies {
            DownReason::Died
        } else {
            DownReason::Closed
        };
        let reported = world.event(0);
        assert_eq!(reported, EventKind::PeerDown(reason));
        world.rails[0].revive(B);
        pass(&mut world, Duration::from_millis(20));
        assert_eq!(world.rails[0].event(), None);
        assert!(world.rails[0].peers[1].attempt.is_none());
    }
    // Severed first, dead then: the hello reaches no process.
    let mut world = pair();
    world.rails[0].sever(Some(B));
    let mut gone = world.rails.pop().unwrap();
    world.seen.pop();
    gone.peers.clear();
    drop(gone);
    world.rails[0].revive(B);
    assert_eq!(world.event(0), SILENT);
    pass(&mut world, Duration::from_millis(20));
    assert!(world.rails[0].event().is_none() && world.rails[0].peers[1].is_over());
}

/// A hello may come after the close: it stays without answer, and no rail reports a peer up that is dead a
/// moment later.
#[test]
fn after_its_close_a_rail_takes_no_lane() {
    for met in [false, true] {
        let mut world = World::new(2, &small());
        if met {
            world.up(0, 1);
            world.up(1, 0);
            world.rails[0].sever(Some(B));
            world.until("it is noticed", |world| events(world)[1].contains(&GIVEN_UP));
        }
        assert!(world.rails[0].close(Time::ZERO, Time::ZERO));
        events(&mut world);
        if met {
            world.rails[1].revive(A);
        } else {
            world.rails[1].send(A, b"too late", Body::Empty).unwrap();
        }
        let refused = world.rails[0].refused();
        world.until("it is refused", |world| world.rails[0].refused() > refused);
        pass(&mut world, Duration::from_millis(20));
        let reported = events(&mut world);
        assert_eq!(reported[0], [], "{met}");
        assert!(!reported[1].contains(&UP), "{met} {reported:?}");
        assert!(world.seen[0].messages.is_empty() && world.rails[0].peers[1].rx.is_none());
        assert!(world.rails[0].peers.iter().all(Peer::is_over));
        let refused = world.rails[0].send(B, b"x", Body::Empty);
        assert_eq!(refused, Err(Refused::PeerDown));
    }
}

/// First contact is given up before it is taken: there was none, and nothing of it is delivered.
#[test]
fn a_first_lane_that_was_severed_on_its_way_is_not_taken() {
    let mut world = World::new(2, &small());
    world.rails[0].send(B, b"given back", Body::Empty).unwrap();
    world.rails[0].abandon(B);
    let mut back = 0;
    world.rails[0].reclaim(B, &mut |_, _| back += 1);
    assert_eq!(back, 1);
    pass(&mut world, Duration::from_millis(20));
    assert_eq!(events(&mut world), [vec![], vec![]]);
    assert!(world.seen[1].messages.is_empty() && world.rails[1].refused() == 1);
    let reported = revive(&mut world, &[0]);
    assert_eq!(reported[0], [UP]);
    assert_eq!(reported[1].last(), Some(&UP));
}

/// What was taken out of a lane and what is given back of it are all that went in.
#[test]
fn no_message_is_neither_taken_nor_given_back() {
    let mut world = pair();
    let mut next = 2;
    // Two lanes are retired, and the other end took some of each: of the second, more than was known until it
    // is given back.
    for taken in [20, 30] {
        next = fill(&mut world, next, 40);
        let now = Time::ZERO + world.start.elapsed();
        world.rails[1].progress(now);
        assert_eq!(world.rails[1].poll(taken, &mut world.seen[1]), taken);
        world.rails[0].sever(Some(B));
        if taken == 20 {
            revive(&mut world, &[0]);
        }
    }
    let mut back = Vec::new();
    world.rails[0].reclaim(B, &mut |id, _| back.push(id.0));
    let above: Vec<u64> = (world.rails[0].handed_over(B).0 + 1..next).collect();
    assert!(back.ends_with(&above), "{back:?} {above:?}");
}

/// A full list of strangers is no reason to refuse a peer that is known; of a stranger, one hello is kept.
#[test]
fn strangers_are_kept_once_and_obstruct_no_peer() {
    let (mut a, mut b) = (rail(&small()), rail(&small()));
    let to_b = Message::open(&mut a, &b.address(), b.incarnation()).unwrap();
    for round in 0..6 {
        if round == 0 {
            a.send(to_b, b"given back", Body::Empty).unwrap();
        } else {
            a.revive(to_b);
        }
        b.progress(Time::from_nanos(1_000_000_000 * (round + 1)));
        assert_eq!(b.pending_peers.len(), 1, "{round}");
        if round < 5 {
            a.abandon(to_b);
            a.reclaim(to_b, &mut |_, _| ());
        }
    }
    assert_eq!(b.refused(), 5);
    // The last of them is met.
    Message::open(&mut b, &a.address(), a.incarnation()).unwrap();
    assert!(b.pending_peers.is_empty());
    let start = Instant::now();
    let reported = |rail: &mut ShmRail| std::iter::from_fn(|| rail.event()).any(|event| event.kind == UP);
    let mut up = [false; 2];
    while up != [true; 2] {
        let now = Time::from_nanos(10_000_000_000) + start.elapsed();
        a.progress(now);
        b.progress(now);
        (up[0], up[1]) = (up[0] | reported(&mut a), up[1] | reported(&mut b));
        assert!(start.elapsed() < Duration::from_secs(60), "{up:?}");
    }
}

#[test]
fn a_full_list_of_strangers_is_in_no_known_peers_way() {
    let (mut a, mut b) = (rail(&small()), rail(&small()));
    let first = |to: &ShmRail| {
        let mut stranger = rail(&small());
        let peer = Message::open(&mut stranger, &to.address(), to.incarnation()).unwrap();
        stranger.send(peer, b"hello", Body::Empty).unwrap();
        stranger
    };
    let strangers: Vec<_> = (0..PENDING_MAX + 1).map(|_| first(&b)).collect();
    b.progress(Time::from_nanos(1_000_000));
    b.progress(Time::from_nanos(2_000_000));
    assert_eq!((b.pending_peers.len(), b.refused()), (PENDING_MAX, 1));
    Message::open(&mut b, &a.address(), a.incarnation()).unwrap();
    let to_b = Message::open(&mut a, &b.address(), b.incarnation()).unwrap();
    a.send(to_b, b"hello", Body::Empty).unwrap();
    b.progress(Time::from_nanos(3_000_000));
    let mut seen = Seen::default();
    assert_eq!(b.poll(8, &mut seen), 1);
    drop(strangers);
}

/// Every hello that there can be, with the lives of the moment: of a peer that is up (`true`) or down.
#[test]
fn a_hello_is_judged_by_both_lives() {
    use HelloVerdict::{Answer, Refuse, Take};
    const MAX: u32 = u32::MAX;
    let rows: &[([u32; 2], [u32; 2], HelloVerdict, HelloVerdict)] = &[
        // Our lives, [theirs, yours] of the hello, when we are up, when we are down.
        ([0, 0], [0, 0], Take, Take),
        ([0, 0], [1, 0], Answer, Take),
        ([0, 0], [MAX, 0], Answer, Take),
        ([0, 0], [0, 1], Refuse, Refuse),
        ([0, 0], [1, 1], Refuse, Refuse),
        ([1, 1], [1, 1], Take, Take),
        ([1, 1], [2, 1], Answer, Take),
        ([1, 1], [2, 0], Answer, Answer),
        ([1, 1], [1, 0], Refuse, Refuse),
        ([1, 1], [0, 1], Refuse, Refuse),
        ([1, 1], [0, 0], Refuse, Refuse),
        ([1, 1], [2, 2], Refuse, Refuse),
        ([1, 1], [0, 2], Refuse, Refuse),
        ([3, 1], [1, 2], Refuse, Refuse),
        ([3, 1], [2, 2], Answer, Answer),
        ([1, 3], [2, 1], Refuse, Refuse),
        ([MAX, MAX], [MAX, MAX], Take, Take),
        ([MAX, MAX], [MAX, 0], Refuse, Refuse),
        ([MAX, MAX], [0, MAX], Refuse, Refuse),
        ([MAX, 0], [MAX, MAX], Answer, Take),
        ([0, MAX], [MAX, MAX], Refuse, Refuse),
    ];
    for &(epochs, [theirs, peer_epoch], up, down) in rows {
        let mut peer = Peer::new([0; 16], Incarnation(1), 1);
        peer.epochs = epochs;
        assert_eq!(
            peer.classify_hello(theirs, peer_epoch),
            up,
            "up: {epochs:?} {theirs} {peer_epoch}"
        );
        peer.down = Some(DownReason::Silent);
        assert_eq!(
            peer.classify_hello(theirs, peer_epoch),
            down,
            "down: {epochs:?} {theirs} {peer_epoch}"
        );
    }
    // The last life ends for good.
    let mut peer = Peer::new([0; 16], Incarnation(1), 1);
    peer.epochs[0] = MAX - 1;
    peer.next_epoch();
    assert!(peer.epochs[0] == MAX && !peer.is_over());
    peer.next_epoch();
    assert!(peer.epochs[0] == MAX && peer.is_over());
}

mod alone;
mod random;
