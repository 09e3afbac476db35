//! The data path makes no system call: one rank of a two-process job runs under strace, and its calls between
//! two marks are counted.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use doorbell::{Arithmetic, WindowAccess};
use doorbell_testing::skipped;

const ROLE: &str = "DOORBELL_TEST_ROLE";
const BEGIN: &str = "the steady state begins";
const END: &str = "the steady state ends";

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let world = doorbell::init().unwrap();
    let other = 1 - world.rank();
    let mut buffer = [0; 8];
    let region = world.region(64).unwrap();
    let windows = world.windows(region.whole(), WindowAccess::ALL).unwrap();
    // A message each way, and one of 1 MiB in place; then a put, a get and an addition, which the other rank
    // does while it waits.
    let mut exchange = |go_on: u8| -> u8 {
        if world.rank() == 0 {
            let target = windows.of(other);
            world.put(target, 0, &[go_on; 8]).unwrap();
            world.get(target, 0, &mut buffer).unwrap();
            world.fetch_accumulate(target, 8, Arithmetic::Sum, 1u64).unwrap();
            world.send(other, 1, &[go_on; 8]).unwrap();
            world.recv(other, 1, &mut buffer).unwrap();
            world.lend(1 << 20).unwrap().send(other, 2).unwrap();
            drop(world.recv_in_place(other, 2).unwrap());
        } else {
            world.recv(other, 1, &mut buffer).unwrap();
            world.send(other, 1, &buffer).unwrap();
            drop(world.recv_in_place(other, 2).unwrap());
            world.lend(1 << 20).unwrap().send(other, 2).unwrap();
        }
        buffer[0]
    };
    // The shm rail polls its sockets often for a second after a lane was opened.
    (0..2_000).for_each(|_| _ = exchange(1));
    let opened = Instant::now();
    while world.rank() == 0 && opened.elapsed() < Duration::from_millis(1_200) {
        exchange(1);
    }
    if world.rank() == 0 {
        std::io::stderr().write_all(BEGIN.as_bytes()).unwrap();
        let (started, mut rounds) = (Instant::now(), 0u64);
        // Bounded by time as well: on a busy machine a round may take a time slice.
        while rounds < 100_000 && started.elapsed() < Duration::from_secs(10) {
            exchange(1);
            rounds += 1;
        }
        let spent = started.elapsed().as_millis();
        std::io::stderr()
            .write_all(format!("{END} {rounds} {spent}").as_bytes())
            .unwrap();
        exchange(0);
    } else {
        while exchange(0) == 1 {}
    }
}

fn skip(reason: &str) {
    skipped("doorbell::system_calls::no_system_call_per_message", reason);
}

#[test]
fn no_system_call_per_message() {
    let works = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .stderr(Stdio::null())
        .status();
    let Ok(status) = works else {
        return skip("package strace: it is not installed");
    };
    if !status.success() {
        return skip("ptrace is not allowed here, so strace cannot trace");
    }
    let log = tempfile::NamedTempFile::new().unwrap();
    let program = std::env::current_exe().unwrap();
    let root = format!("@doorbell-test-strace-{}", std::process::id());
    let start = |rank: u32, traced: bool| {
        let mut command = if traced {
            Command::new("strace")
        } else {
            Command::new(&program)
        };
        if traced {
            // Without -s, strace cuts texts after 32 bytes, and with them the last digits of the times.
            command
                .args(["-f", "-s", "128", "-o"])
                .arg(log.path())
                .arg(&program);
        }
        command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, "exchange")
            .env("DOORBELL_RANK", rank.to_string())
            .env("DOORBELL_SIZE", "2")
            .env("DOORBELL_ROOT", &root)
            .env("DOORBELL_WAIT", "lowest-latency")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let mut ranks = [start(0, true), start(1, false)];
    assert!(ranks.iter_mut().all(|rank| rank.wait().unwrap().success()));
    let log = fs::read_to_string(log.path()).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let at = |mark: &str| lines.iter().position(|line| line.contains(mark)).unwrap();
    let (begin, end) = (at(BEGIN), at(END));
    let numbers = lines[end].split(END).nth(1).unwrap().split('"').next().unwrap();
    let mut numbers = numbers
        .split_whitespace()
        .map(|number| number.parse::<usize>().unwrap());
    let (rounds, spent_ms) = (numbers.next().unwrap(), numbers.next().unwrap());
    assert!(!lines[end].contains("\"..."), "cut: {}", lines[end]);
    let calls = end - begin - 1;
    println!("{calls} system calls in {rounds} exchanges and {spent_ms} ms");
    assert!(rounds > 100, "only {rounds} exchanges in {spent_ms} ms");
    // The shm rail checks its sockets every 5 ms, which is independent of messages: at most a few calls each
    // time.
    let housekeeping = 20 + spent_ms;
    assert!(
        calls <= housekeeping,
        "{calls} calls: {:#?}",
        &lines[begin..end.min(begin + 50)]
    );
}
