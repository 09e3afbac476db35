//! What is counted or limited for a whole process: each of these runs in one of its own, started by `alone`.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsRawFd, OwnedFd};

use super::*;

const ALONE: &str = "DOORBELL_TEST_ALONE";

fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Runs a test of this module in a process of its own.
fn alone(test: &str) {
    let name = format!("tests::reconnect::alone::{test}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
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

#[test]
fn nothing_leaks() {
    alone("a_hundred_severs");
    alone("random_severs");
}

#[test]
fn a_lack_of_descriptors_passes() {
    alone("revived_with_few_descriptors");
    alone("met_with_few_descriptors");
    alone("refused_without_descriptors");
}

/// Our maps and memory objects, and descriptors of any kind.
pub(super) fn counts() -> [usize; 3] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = |line: &&str| line.contains("doorbell-");
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let links: Vec<_> = descriptors
        .map(|entry| std::fs::read_link(entry.unwrap().path()))
        .collect();
    let named = |link: &&std::io::Result<std::path::PathBuf>| {
        link.as_ref()
            .is_ok_and(|link| link.to_string_lossy().contains("doorbell-"))
    };
    [
        maps.lines().filter(ours).count(),
        links.iter().filter(named).count(),
        links.len(),
    ]
}

#[test]
fn a_hundred_severs() {
    if !is_alone() {
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
        let now = counts();
        assert!(now[0] > 0 && now[1] > 0, "{now:?}");
        if round == 3 {
            before = Some(now);
        }
        let Some(before) = before else { continue };
        // A connection that came to nothing is closed by later progress.
        world.until(&format!("round {round} is back to {before:?}"), |_| {
            let now = counts();
            (0..3).all(|i| now[i] <= before[i])
        });
    }
}

#[test]
fn random_severs() {
    if !is_alone() {
        return;
    }
    let least = counts();
    for seed in 0..40 {
        random::severs(seed);
        let now = counts();
        assert_eq!(now, least, "seed {seed}");
    }
}

/// While it lives, no more than this many descriptors can be opened.
struct Limit {
    before: Rlimit,
    _filled: Vec<OwnedFd>,
}

impl Limit {
    fn to(spare: u64) -> Self {
        let before = getrlimit(Resource::Nofile);
        let highest = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().parse().unwrap())
            .max()
            .unwrap_or(0);
        // No holes below it.
        let mut filled = Vec::new();
        loop {
            let one = rustix::io::dup(std::io::stdin()).unwrap();
            if one.as_raw_fd() > highest {
                break;
            }
            filled.push(one);
        }
        let limit = Rlimit {
            current: Some(highest as u64 + 1 + spare),
            maximum: before.maximum,
        };
        setrlimit(Resource::Nofile, limit).unwrap();
        Self {
            before,
            _filled: filled,
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).unwrap();
    }
}

/// Both ends are there again, talk, and sleep when they have nothing to do.
fn works(world: &mut World, case: &str) {
    let start = Instant::now();
    while world.rails.iter().any(|rail| rail.peers.iter().any(is_down)) {
        for (i, to) in [B, A].into_iter().enumerate() {
            world.rails[i].revive(to);
        }
        pass(world, Duration::from_millis(2));
        assert!(start.elapsed() < Duration::from_secs(60), "{case}: it stays down");
    }
    world.seen.iter_mut().for_each(|seen| seen.messages.clear());
    for (i, to) in [B, A].into_iter().enumerate() {
        world.rails[i].reclaim(to, &mut |_, _| ());
        world.rails[i].send(to, b"again", Body::Empty).unwrap();
    }
    world.until("both hear", |world| {
        world.seen.iter().all(|seen| !seen.messages.is_empty())
    });
    pass(world, Duration::from_millis(1));
    events(world);
    for rail in &mut world.rails {
        assert!(
            matches!(rail.arm().unwrap(), Armed::Sleep(_)),
            "{case}: it cannot sleep"
        );
        rail.disarm();
    }
}

fn is_down(peer: &Peer) -> bool {
    peer.down.is_some()
}

/// One end has too few descriptors for a moment of a revival, at any step of it.
#[test]
fn revived_with_few_descriptors() {
    if !is_alone() {
        return;
    }
    for (spare, steps, who) in
        (0..14).flat_map(|spare| (0..6).map(move |steps| (spare, steps % 3, steps / 3)))
    {
        let mut world = pair();
        world.rails[0].sever(Some(B));
        world.until("it is noticed", |world| events(world)[1] == [GIVEN_UP]);
        world.rails[who].revive(if who == 0 { B } else { A });
        let case = format!("{spare} {steps} {who}");
        let mut look = |at: usize| {
            let now = world.rails[at].now + Duration::from_millis(10);
            world.rails[at].progress(now);
        };
        for step in 0..steps {
            look((who + 1 + step) % 2);
        }
        let limit = Limit::to(spare);
        look((who + 1 + steps) % 2);
        look((who + 1 + steps) % 2);
        drop(limit);
        for rail in &world.rails {
            let stale = |peer: &Peer| peer.down.is_some() && (peer.rx.is_some() || peer.tx.is_some());
            assert!(!rail.peers.iter().any(stale), "{case}");
            assert!(!rail.peers.iter().any(Peer::is_over), "{case}");
        }
        world.start = Instant::now() - Duration::from_secs(1);
        works(&mut world, &case);
    }
}

/// The same at first contact.
#[test]
fn met_with_few_descriptors() {
    if !is_alone() {
        return;
    }
    for (spare, who) in (0..14).flat_map(|spare| [(spare, 0), (spare, 1)]) {
        let mut world = World::new(2, &small());
        world.rails[0].send(B, b"first", Body::Empty).unwrap();
        let case = format!("{spare} {who}");
        let mut look = |at: usize, time: u64| {
            world.rails[at].progress(Time::from_nanos(time * 1_000_000));
        };
        if who == 0 {
            look(1, 1);
        }
        let limit = Limit::to(spare);
        look(who, 2);
        drop(limit);
        look(1 - who, 3);
        for reported in events(&mut world).iter().flatten() {
            let lack = [UP, SILENT, GIVEN_UP, EventKind::PeerDown(DownReason::Resources)];
            assert!(lack.contains(reported), "{case}: {reported:?}");
        }
        for (i, to) in [B, A].into_iter().enumerate() {
            if world.rails[i].peers[to.index()].down.is_none() {
                world.rails[i].sever(Some(to));
            }
        }
        world.start = Instant::now() - Duration::from_secs(1);
        works(&mut world, &case);
    }
}

/// Whether the process is there cannot be queried: that is no proof of its death. It is queried again later,
/// and the peer is lost if descriptors lack for long.
#[test]
fn refused_without_descriptors() {
    if !is_alone() {
        return;
    }
    let second = 1_000_000_000;
    refused(&[], second, DownReason::Abandoned);
    let until_lost = [second, 5 * second, 10 * second];
    refused(&until_lost, 12 * second, DownReason::Resources);
}

/// A lane that its receiver has refused, whose sender looks for the reason at these times without
/// descriptors, and then at another one; it has them then unless it has looked for too long.
fn refused(without: &[u64], last: u64, expected: DownReason) {
    let (mut a, mut b) = (rail(&small()), rail(&small()));
    let other = Incarnation(b.incarnation().0 ^ 1);
    let to_b = Message::open(&mut a, &b.address(), other).unwrap();
    a.send(to_b, b"for your predecessor", Body::Empty).unwrap();
    b.progress(Time::from_nanos(1_000_000));
    assert_eq!(b.refused(), 1);
    let limit = Limit::to(0);
    for time in [2_000_000].iter().chain(without) {
        a.progress(Time::from_nanos(*time));
        assert!(a.event().is_none(), "{time}");
    }
    let limit = (expected == DownReason::Resources).then_some(limit);
    a.progress(Time::from_nanos(last));
    drop(limit);
    let reported = a.event().unwrap().kind;
    assert_eq!(reported, EventKind::PeerDown(expected));
    assert!(!a.peers[0].is_over());
}
