//! Ways that break without a death, and are made again.

use super::*;

const A: PeerIndex = PeerIndex(0);
const B: PeerIndex = PeerIndex(1);
const UP: EventKind = EventKind::PeerUp;
/// At the end that broke, and at the other one, which is told.
const SILENT: EventKind = EventKind::PeerDown(DownReason::Silent);
const GIVEN_UP: EventKind = EventKind::PeerDown(DownReason::Abandoned);

fn small() -> ShmConfig {
    ShmConfig {
        cells: 64,
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

/// What was told since the last call, about the other end.
fn events(world: &mut World) -> [Vec<EventKind>; 2] {
    [0, 1].map(|i| std::iter::from_fn(|| world.rails[i].event().map(|event| event.kind)).collect())
}

fn pass(world: &mut World, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        world.pump();
    }
}

/// Calls until both ends have told that the other is up; what was told.
fn revive(world: &mut World, who: &[usize]) -> [Vec<EventKind>; 2] {
    let mut told: [Vec<EventKind>; 2] = Default::default();
    let start = Instant::now();
    while told.iter().any(|kinds| kinds.last() != Some(&UP)) {
        for &i in who {
            world.rails[i].revive(if i == 0 { B } else { A });
        }
        pass(world, Duration::from_millis(2));
        for (all, more) in told.iter_mut().zip(events(world)) {
            all.extend(more);
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{told:?}");
    }
    told
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
        let told = revive(&mut world, &[round % 2]);
        let at = usize::from(round % 3 != 0);
        assert_eq!(told[at], [GIVEN_UP, UP], "round {round}");
        assert_eq!(told[1 - at], [UP], "round {round}");
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
        let told = revive(&mut world, [&[0, 1][..], &[0], &[1]][round % 3]);
        assert_eq!(told, [[UP], [UP]], "round {round}");
        world.seen[1].messages.clear();
        next = fill(&mut world, next, 1);
        world.until("it arrives", |world| !world.seen[1].messages.is_empty());
        assert_eq!(number(&world.seen[1].messages[0].1), next - 1);
    }
}

/// Nobody calls: both stay down. The one that gives up is noticed in good time.
#[test]
fn a_severed_way_is_noticed_and_stays_down() {
    let mut world = pair();
    pass(&mut world, Duration::from_millis(1100));
    world.rails[0].sever(Some(B));
    let start = Instant::now();
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

/// A sleeper is woken by the end of a way, and by a call.
#[test]
fn a_sleeper_is_woken_by_both() {
    let mut world = pair();
    for step in 0..2 {
        let woken = loop {
            match world.rails[1].arm().unwrap() {
                Armed::Ready => {}
                Armed::Sleep(_) => break true,
            }
            world.rails[1].disarm();
            world.pump();
            events(&mut world);
        };
        assert!(woken);
        match step {
            0 => world.rails[0].abandon(B),
            _ => world.rails[0].revive(B),
        }
        let mut wait = [rustix::event::PollFd::new(
            &world.rails[1].epoll,
            rustix::event::PollFlags::IN,
        )];
        let bound = rustix::time::Timespec {
            tv_sec: 5,
            tv_nsec: 0,
        };
        assert_eq!(rustix::event::poll(&mut wait, Some(&bound)).unwrap(), 1, "{step}");
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
        let told = world.event(0);
        assert_eq!(told, EventKind::PeerDown(reason));
        world.rails[0].revive(B);
        pass(&mut world, Duration::from_millis(20));
        assert_eq!(world.rails[0].event(), None);
        assert!(world.rails[0].peers[1].attempt.is_none());
    }
    // Severed first, dead then: the call finds nobody.
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

fn counts() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("doorbell-")).count();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let ours_too = descriptors.filter(|entry| {
        let link = entry
            .as_ref()
            .ok()
            .and_then(|entry| std::fs::read_link(entry.path()).ok());
        link.is_some_and(|link| link.to_string_lossy().contains("doorbell-"))
    });
    (maps.lines().count().min(ours), ours_too.count())
}

/// Run by `nothing_leaks` in a process of its own: other tests make lanes as well.
#[test]
fn a_hundred_severs() {
    if std::env::var_os("DOORBELL_TEST_ALONE").is_none() {
        return;
    }
    let mut world = pair();
    let mut next = 2;
    let mut before = None;
    for round in 0..100 {
        next = fill(&mut world, next, 20);
        match round % 4 {
            0 => world.rails[0].sever(Some(B)),
            1 => world.rails[1].sever(Some(A)),
            2 => world.rails[0].abandon(B),
            _ => (0..2).for_each(|i| world.rails[i].sever(Some(PeerIndex(1 - i as u32)))),
        }
        world.rails[0].reclaim(B, &mut |_, _| ());
        revive(&mut world, &[round % 2]);
        for i in 0..2 {
            let to = PeerIndex(1 - i as u32);
            world.rails[i].reclaim(to, &mut |_, _| ());
        }
        next = fill(&mut world, next, 1);
        world.until("it arrives", |world| world.rails[0].handed_over(B).0 == next - 1);
        let (maps, descriptors) = counts();
        let sockets = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let now = (maps, descriptors, sockets);
        println!("{now:?}");
        if round == 3 {
            before = Some(now);
        }
        assert!(before.is_none_or(|before| now <= before), "{before:?} {now:?}");
    }
}

#[test]
fn nothing_leaks() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "tests::again::a_hundred_severs",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("DOORBELL_TEST_ALONE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
}
