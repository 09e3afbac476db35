//! The counter file of a rank: other processes read it while the rank runs, and it is removed at the end.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{MODES, config, job};
use doorbell::World;
use doorbell_fabric::counters::{Reader, Snapshot, Value, find};

/// Names the part that a started process plays.
const ROLE: &str = "DOORBELL_TEST_SEEN_ROLE";

fn look(path: &Path) -> Snapshot {
    Reader::open(path).unwrap().read().unwrap()
}

fn number(snapshot: &Snapshot, name: &str) -> u64 {
    match snapshot.value(name) {
        Some(Value::Counter(number) | Value::Gauge(number)) => *number,
        other => panic!("{name}: {other:?}"),
    }
}

fn own(world: &World, name: &str) -> u64 {
    number(&look(world.counter_file().unwrap()), name)
}

/// Makes calls until the file shows the value: normally within a millisecond and some calls, but a test waits
/// longer before it fails.
fn until(world: &World, name: &str, least: u64) {
    let started = Instant::now();
    while own(world, name) < least {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{name} stays {}",
            own(world, name)
        );
        world.progress();
    }
}

const ROUNDS: u64 = 500;

#[test]
fn others_see_what_the_pml_and_the_rail_count() {
    for mode in MODES {
        job(2, &config(mode), |world| {
            let path = world.counter_file().unwrap().to_owned();
            let other = 1 - world.rank();
            let mut buffer = [0; 100_000];
            for at in 0..ROUNDS {
                let len = if at % 100 == 0 { buffer.len() } else { 8 };
                if world.rank() == 0 {
                    world.send(other, 1, &buffer[..len]).unwrap();
                } else {
                    world.recv(other, 1, &mut buffer).unwrap();
                }
            }
            if world.rank() == 0 {
                until(&world, "pml.sent_eager", ROUNDS * 99 / 100);
                until(&world, "pml.sent_rget", ROUNDS / 100);
                until(&world, "shm.sent", ROUNDS);
            } else {
                until(&world, "pml.arrived", ROUNDS);
                until(&world, "shm.received", ROUNDS);
                until(&world, "shm.pulls", ROUNDS / 100);
            }
            world.barrier().unwrap();
            let snapshot = look(&path);
            assert_eq!(snapshot.rank, world.rank());
            assert_eq!(snapshot.process, std::process::id());
            assert!(find(None).contains(&path), "{path:?} is not found");
            // All counters of the PML are in the file, with their values.
            let counters = world.counters().unwrap();
            assert!(number(&snapshot, "pml.sent_eager") <= counters.sent_eager);
            assert_eq!(number(&snapshot, "pml.drop.duplicate"), 0);
        });
    }
}

#[test]
fn a_peer_that_leaves_stays_in_the_totals() {
    let mut worlds = doorbell::local(2, &doorbell::Config::default()).unwrap();
    let (one, zero) = (worlds.pop().unwrap(), worlds.pop().unwrap());
    for at in 0..100 {
        zero.send(1, at, b"x").unwrap();
    }
    let mut byte = [0; 1];
    for at in 0..100 {
        one.recv(0, at, &mut byte).unwrap();
        one.send(0, at, b"y").unwrap();
        zero.recv(1, at, &mut byte).unwrap();
    }
    until(&zero, "shm.sent", 100);
    until(&zero, "shm.received", 100);
    drop(one);
    until(&zero, "pml.peers_lost", 1);
    assert!(own(&zero, "shm.sent") >= 100 && own(&zero, "shm.received") >= 100);
}

#[test]
fn the_ways_to_a_peer_that_is_gone_are_down() {
    let mut worlds = doorbell::local(2, &doorbell::Config::default()).unwrap();
    let (one, zero) = (worlds.pop().unwrap(), worlds.pop().unwrap());
    zero.send(1, 1, b"x").unwrap();
    one.recv(0, 1, &mut [0; 1]).unwrap();
    let before = ["state", "failures"].map(|what| own(&zero, &format!("way.1.shm/shm.{what}")));
    assert_eq!(before, [0, 0]);
    drop(one);
    until(&zero, "way.1.shm/shm.failures", 1);
    assert_eq!(
        own(&zero, "way.1.shm/shm.state"),
        doorbell::PathState::Down.number()
    );
    let paths = zero.paths(1).unwrap();
    assert!(
        paths
            .iter()
            .all(|way| way.state == "down" && way.role == "down" && !way.carries),
        "{paths:?}"
    );
    zero.progress();
    assert_eq!(own(&zero, "way.1.shm/shm.failures"), 1);
}

#[test]
fn each_candidate_that_lost_is_there_with_its_reason() {
    let mut config = doorbell::Config::default();
    config.set("rails.list", "shm").unwrap();
    let worlds = doorbell::local(2, &config).unwrap();
    let snapshot = look(worlds[0].counter_file().unwrap());
    let not_named = snapshot.value("way.1.udp:lo.not_named");
    assert_eq!(not_named, Some(&Value::Text("other rails were named".to_owned())));
    assert_eq!(
        snapshot.value("way.0.udp:lo.not_named"),
        None,
        "no rail leads to itself"
    );
}

/// Makes calls until the file shows the value, as [`until`] does.
fn shows(path: &Path, name: &str, least: u64, mut progress: impl FnMut()) {
    let started = Instant::now();
    while number(&look(path), name) < least {
        let now = number(&look(path), name);
        assert!(started.elapsed() < Duration::from_secs(20), "{name} stays {now}");
        progress();
    }
}

#[test]
fn others_see_what_portals_and_its_rails_count() {
    let mut jobs = doorbell::local_portals(2, &doorbell::Config::default()).unwrap();
    let one = jobs.pop().unwrap();
    let mut zero = jobs.pop().unwrap();
    let path = zero.counter_file().unwrap().to_owned();
    assert!(find(None).contains(&path), "{path:?} is not found");
    assert_eq!(look(&path).rank, 0);
    std::thread::scope(|s| {
        let other = s.spawn(move || {
            let mut one = one;
            (0..50).for_each(|_| one.barrier().unwrap());
            one
        });
        (0..50).for_each(|_| zero.barrier().unwrap());
        shows(&path, "shm.sent", 50, || _ = zero.progress());
        shows(&path, "shm.received", 50, || _ = zero.progress());
        assert_eq!(number(&look(&path), "way.1.shm/shm.state"), 0);
        // Its loss is there, too.
        drop(other.join().unwrap());
    });
    shows(&path, "portals.peers_lost", 1, || _ = zero.progress());
    shows(&path, "way.1.shm/shm.failures", 1, || _ = zero.progress());
    let down = doorbell::PathState::Down.number();
    assert_eq!(number(&look(&path), "way.1.shm/shm.state"), down);
    drop(zero);
    assert!(!path.exists());
}

#[test]
fn others_see_what_active_messages_and_their_credits_count() {
    use doorbell::am::{Handlers, Remote, Setup};
    let setup = |_| {
        let mut handlers = Handlers::new();
        let answer = |request: doorbell::am::Request<'_>| request.reply_short(201, &[]).unwrap();
        handlers.request(200, answer).unwrap();
        handlers.reply(201, |_| {}).unwrap();
        Setup::new(handlers, 4096)
    };
    let jobs = doorbell::local_am(2, &doorbell::Config::default(), setup).unwrap();
    std::thread::scope(|s| {
        for waiting in jobs {
            s.spawn(move || {
                let mut am = waiting.attach().unwrap();
                let path = am.counter_file().unwrap().to_owned();
                let other = 1 - am.rank();
                let to = Remote {
                    rank: other,
                    offset: 0,
                };
                for _ in 0..40 {
                    am.request_short(other, 200, &[]).unwrap();
                    am.request_medium(other, 200, &[], &[7; 100][..]).unwrap();
                    am.put(to, &[7; 8][..]).unwrap();
                }
                for (name, least) in [
                    ("am.request.short", 40),
                    ("am.request.medium", 40),
                    ("am.handled.requests", 80),
                    ("am.handled.replies", 80),
                    ("am.reply.short", 80),
                    ("am.puts", 40),
                    ("am.credit.taken", 80),
                    ("am.free.tickets", 1),
                    ("shm.sent", 160),
                ] {
                    shows(&path, name, least, || _ = am.progress());
                }
                am.barrier().unwrap();
                assert_eq!(look(&path).rank, am.rank());
                assert_eq!(number(&look(&path), "am.drop.hostile"), 0);
                assert_eq!(number(&look(&path), &format!("way.{other}.shm/shm.state")), 0);
            });
        }
    });
}

#[test]
fn with_off_there_is_no_file() {
    let mut config = doorbell::Config::default();
    config.set("counters.place", "off").unwrap();
    let worlds = doorbell::local(2, &config).unwrap();
    assert!(worlds.iter().all(|world| world.counter_file().is_none()));
    let jobs = doorbell::local_portals(2, &config).unwrap();
    assert!(jobs.iter().all(|job| job.counter_file().is_none()));
    worlds[0].send(1, 1, b"unseen").unwrap();
    worlds[1].recv(0, 1, &mut [0; 8]).unwrap();
}

/// The body of the started process; without a role, this is no test.
#[test]
fn child() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let world = doorbell::init().unwrap();
    for at in 0..7 {
        world.send(0, at, b"to myself").unwrap();
    }
    println!("\ncounters {}", world.counter_file().unwrap().display());
    // Waits, and so sleeps, until it is killed.
    let _ = world.recv(0, 99, &mut [0; 8]);
}

#[test]
fn a_rank_that_is_killed_leaves_nothing() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "seen::child", "--nocapture", "--test-threads=1"])
        .env(ROLE, "killed")
        .env("DOORBELL_DEADLINE", "60 s")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let path = lines.find_map(|line| line.unwrap().strip_prefix("counters ").map(PathBuf::from));
    let path = path.expect("the child prints the path");
    let started = Instant::now();
    while number(&look(&path), "pml.sent_self") < 7 {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    assert!(find(None).contains(&path));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!path.exists() && !find(None).contains(&path));
}
