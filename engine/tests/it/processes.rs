//! Jobs of real processes over shm. The test program starts itself, once per rank, and runs `child` there.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{MODES, pattern};
use doorbell::config::Mode;
use doorbell::{Error, Source, Tag, World};
use doorbell_testing::skipped;

/// Names the part that a started process plays.
pub(crate) const ROLE: &str = "DOORBELL_TEST_ROLE";

/// A running job. Dropped, it leaves no process behind.
pub(crate) struct Job(Vec<Child>);

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(role: &str, size: u32, mode: Mode, more: &[(&str, &str)]) -> Job {
    start_test("processes::child", role, size, mode, more)
}

/// Starts a job of ranks that each run one test of this program.
pub(crate) fn start_test(test: &str, role: &str, size: u32, mode: Mode, more: &[(&str, &str)]) -> Job {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let root = format!(
        "@doorbell-test-{}-{}",
        std::process::id(),
        JOBS.fetch_add(1, Ordering::Relaxed)
    );
    let mode = if mode == Mode::Dedicated {
        "dedicated"
    } else {
        "inline"
    };
    let spawn = |rank: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("DOORBELL_RANK", rank.to_string())
            .env("DOORBELL_SIZE", size.to_string())
            .env("DOORBELL_ROOT", &root)
            .env("DOORBELL_PROGRESS", mode)
            .env("DOORBELL_DEADLINE", "60 s")
            .envs(more.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    Job((0..size).map(spawn).collect())
}

impl Job {
    pub(crate) fn wait(&mut self) -> Vec<ExitStatus> {
        self.0.iter_mut().map(|child| child.wait().unwrap()).collect()
    }

    pub(crate) fn succeeds(mut self) {
        for (rank, status) in self.wait().into_iter().enumerate() {
            assert!(
                status.success(),
                "rank {rank}: {status}; its own message is above"
            );
        }
    }
}

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let world = doorbell::init().unwrap();
    match role.as_str() {
        "ping-pong" => ping_pong(&world),
        "all-to-all" => all_to_all(&world),
        "killed" => killed(&world),
        "idle" => idle(&world),
        other => panic!("there is no role {other}"),
    }
}

fn ping_pong(world: &World) {
    let other = 1 - world.rank();
    for size in [8, 30_000, 2_000_000] {
        let mut into = vec![0; size];
        for round in 0..20 {
            if world.rank() == 0 {
                world.send(other, round, &pattern(round as u32, size)).unwrap();
            }
            assert_eq!(world.recv(other, round, &mut into).unwrap().len, size);
            assert!(into == pattern(round as u32, size));
            if world.rank() == 1 {
                world.send(other, round, &into).unwrap();
            }
        }
    }
}

#[test]
fn two_processes_play_ping_pong() {
    for mode in MODES {
        start("ping-pong", 2, mode, &[]).succeeds();
    }
    start("ping-pong", 2, Mode::Inline, &[("DOORBELL_SHM_CMA", "off")]).succeeds();
    start("ping-pong", 2, Mode::Inline, &[("DOORBELL_WAIT", "sleep")]).succeeds();
}

fn all_to_all(world: &World) {
    let (rank, size) = (world.rank(), world.size());
    for round in 0..10u64 {
        let length = if round % 2 == 0 { 64 } else { 20_000 };
        let out: Vec<Vec<u8>> = (0..size).map(|to| pattern(rank * 100 + to, length)).collect();
        let mut into: Vec<Vec<u8>> = (0..size).map(|_| vec![0; length]).collect();
        world
            .scope(|s| {
                for (from, into) in (0..).zip(&mut into) {
                    drop(s.irecv(from, round, into)?);
                }
                for (to, out) in (0..).zip(&out) {
                    drop(s.isend(to, round, out)?);
                }
                Ok(())
            })
            .unwrap();
        for (from, into) in (0..).zip(&into) {
            assert!(
                *into == pattern(from * 100 + rank, length),
                "round {round}: from {from} to {rank}"
            );
        }
        world.barrier().unwrap();
    }
}

#[test]
fn sixteen_ranks_share_few_cores() {
    for mode in MODES {
        let started = Instant::now();
        start("all-to-all", 16, mode, &[]).succeeds();
        // Without fairness, each of these exchanges would cost time slices of ranks that only spin: minutes.
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{mode:?}: {:?}",
            started.elapsed()
        );
    }
}

/// Rank 1 is killed, while its peers wait for it in one of several ways.
fn killed(world: &World) {
    let mode = std::env::var("DOORBELL_TEST_WAY").unwrap();
    if world.rank() == 1 {
        world.send(0, 1, b"last words").unwrap();
        world.send(2, 1, b"last words").unwrap();
        if mode == "write" {
            // In the middle of the peers' long messages: matched, but not read.
            world.probe(0, 2).unwrap();
        }
        // SIGKILL: none of our code runs any more.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        unreachable!("a killed process goes on");
    }
    let mut into = [0; 10];
    world.recv(1, 1, &mut into).unwrap();
    let started = Instant::now();
    let error = match mode.as_str() {
        "read" => world.recv(1, 2, &mut into).map(drop),
        "write" => world.send(1, 2, &vec![1; 4_000_000]),
        "probe" => world.probe(1, 2).map(drop),
        "mprobe" => world.mprobe(1, 2).map(drop),
        _ => world.barrier(),
    };
    let error = error.unwrap_err();
    assert!(
        matches!(&error, Error::PeerLost { peer: 1, .. }),
        "{mode}: {error}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{mode}: noticed after {:?}",
        started.elapsed()
    );
    // The survivors go on, and know which rank is lost. The other one stays until it has our message.
    let other = 2 - world.rank();
    assert!(world.peer(1).unwrap().lost.is_some() && world.peer(other).unwrap().lost.is_none());
    world.send(other, 3, b"alive").unwrap();
    assert_eq!(
        world.recv(Source::Any, Tag::exact(3), &mut into).unwrap().source,
        other
    );
}

#[test]
fn a_killed_rank_is_a_typed_error_for_the_others_within_bounds() {
    for mode in MODES {
        for way in ["read", "write", "barrier", "probe", "mprobe"] {
            let mut job = start("killed", 3, mode, &[("DOORBELL_TEST_WAY", way)]);
            let status = job.wait();
            assert!(
                status[0].success() && status[2].success(),
                "{mode:?} {way}: {status:?}"
            );
            assert!(!status[1].success());
        }
    }
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn idle(world: &World) {
    if world.rank() == 1 {
        std::thread::sleep(Duration::from_millis(1_500));
        world.send(0, 1, b"wake up").unwrap();
        return;
    }
    let (wall, before) = (Instant::now(), processor_time());
    world.recv(1, 1, &mut [0; 7]).unwrap();
    let (waited, used) = (wall.elapsed(), processor_time() - before);
    assert!(waited > Duration::from_millis(1_000), "{waited:?}");
    assert!(
        used < waited / 4,
        "a rank that waited {waited:?} used {used:?} of the processor"
    );
}

#[test]
fn a_rank_that_waits_long_sleeps_and_wakes() {
    for mode in MODES {
        start("idle", 2, mode, &[]).succeeds();
    }
}

#[test]
fn a_rank_that_never_starts_is_named_by_those_that_did() {
    let root = format!("@doorbell-test-missing-{}", std::process::id());
    let builder = doorbell::Builder::new()
        .without_environment()
        .job(0, 3, &root)
        .set("job.timeout", "200 ms");
    let error = builder.build().unwrap_err();
    assert!(
        error.to_string().contains("ranks 1 and 2 did not come"),
        "{error}"
    );
    assert_eq!((error.code(), error.exit_code()), ("job.missing-ranks", 5));
}

/// The name of the meeting socket is local to a network namespace: a rank elsewhere fails with an error that
/// names the namespace of rank 0, instead of waiting for one that was not started.
#[test]
fn a_rank_in_another_network_namespace_fails_without_waiting() {
    let apart = Command::new("unshare").args(["--net", "true"]).status();
    if !apart.is_ok_and(|status| status.success()) {
        return skipped(
            "doorbell::it::processes::a_rank_in_another_network_namespace_fails_without_waiting",
            "this host allows no network namespaces",
        );
    }
    let root = format!("@doorbell-test-apart-{}", std::process::id());
    let here = std::env::current_exe().unwrap();
    let start = |rank: &str, mut command: Command| {
        let arguments = ["--exact", "processes::child", "--nocapture", "--test-threads=1"];
        command
            .args(arguments)
            .env(ROLE, "ping-pong")
            .env("DOORBELL_RANK", rank);
        command.env("DOORBELL_SIZE", "2").env("DOORBELL_ROOT", &root);
        // Longer than the test may take.
        command.env("DOORBELL_JOB_TIMEOUT", "600 s").stdout(Stdio::null());
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut away = Command::new("unshare");
    away.arg("--net").arg(&here);
    let zero = Job(vec![start("0", Command::new(&here))]);
    let out = start("1", away).wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{stderr}");
    let process = zero.0[0].id();
    assert!(
        stderr.contains(&format!("rank 0 (process {process}) is in network namespace")),
        "{stderr}"
    );
    assert!(stderr.contains("--rsh 'ip netns exec'"), "{stderr}");
}
