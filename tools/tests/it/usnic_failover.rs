//! Three rails of unlike kinds between two processes: shared memory, a usnic rail over a model, and the
//! kernel's loopback. Each is taken away and given back while stamped messages pass; none is lost, none comes
//! twice, and every rail is used again.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::counters::{Reader, Value, find};
use doorbell_vic::{Kind, Model, Options};
use rustix::process::Signal;

use crate::hosts::{AMPLE, Running, SOON, at};
use doorbell_testing::netns::Lab;

/// Set in a process that is a rank, to the file whose appearance stops it.
const ROLE: &str = "DOORBELL_TEST_FAILOVER";
const TAG: u64 = 7;
/// In the place of a number: nothing follows.
const END: u64 = u64::MAX;
/// Lengths in turn: eager, in several segments, by rendezvous.
const SIZES: [usize; 6] = [8, 64, 1_000, 20_000, 65_536, 400_000];
/// This many messages one way, then one back.
const RUN: u64 = 16;
/// How often the shared memory breaks: first after some messages and then again at each return, so that it is
/// away; once more after a time in which it carries, and then for the rest of the test.
const FAULTS: (usize, u64, usize) = (4, 3_000, 80);

/// The bytes of a message: its number, and a piece of a table that depends on it.
struct Stamps(Vec<u8>);

impl Stamps {
    fn new() -> Self {
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let table = (0..(512 << 10) / 8).flat_map(|_| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()
        });
        Self(table.collect())
    }

    fn length(number: u64) -> usize {
        SIZES[(number % SIZES.len() as u64) as usize]
    }

    fn rest(&self, number: u64) -> &[u8] {
        let at = (number * 37 % 65_536) as usize;
        &self.0[at..at + Self::length(number) - 8]
    }
}

/// A rank of the job; without its orders, this is no test.
#[test]
fn rank() {
    let Some(stop) = std::env::var_os(ROLE) else {
        return;
    };
    let world = doorbell::init().unwrap();
    if world.rank() == 0 {
        sends(&world, Path::new(&stop));
    } else {
        receives(&world);
    }
}

fn sends(world: &doorbell::World, stop: &Path) {
    let (stamps, mut answer) = (Stamps::new(), [0; 8]);
    let mut bytes = vec![0; 1 << 20];
    let mut number = 0u64;
    loop {
        let length = Stamps::length(number);
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..length].copy_from_slice(stamps.rest(number));
        world.send(1, TAG, &bytes[..length]).unwrap();
        number += 1;
        if number.is_multiple_of(RUN) {
            world.recv(1, TAG, &mut answer).unwrap();
            assert_eq!(u64::from_le_bytes(answer), number, "the other side has them all");
            if stop.exists() {
                break;
            }
        }
    }
    world.send(1, TAG, &END.to_le_bytes()).unwrap();
    world.recv(1, TAG, &mut answer).unwrap();
    assert_eq!(u64::from_le_bytes(answer), number, "no more and no less");
    // For the test that started it.
    std::fs::write(stop.with_extension("count"), number.to_string()).unwrap();
}

fn receives(world: &doorbell::World) {
    let stamps = Stamps::new();
    let mut bytes = vec![0; 1 << 20];
    let mut number = 0u64;
    loop {
        let got = world.recv(0, TAG, &mut bytes).unwrap().len;
        let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        if stamp == END {
            break;
        }
        assert_eq!(stamp, number, "lost, twice, or out of order");
        assert_eq!(got, Stamps::length(number));
        assert!(
            bytes[8..got] == *stamps.rest(number),
            "message {number} is not whole"
        );
        number += 1;
        if number.is_multiple_of(RUN) {
            world.send(0, TAG, &number.to_le_bytes()).unwrap();
        }
    }
    world.send(0, TAG, &number.to_le_bytes()).unwrap();
}

/// Two ranks. Dropped, it leaves no process behind.
struct FailoverJob {
    ranks: Vec<Child>,
    stop: PathBuf,
    counters: Option<Reader>,
}

impl Drop for FailoverJob {
    fn drop(&mut self) {
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The faults of shared memory, as a setting.
fn faults() -> String {
    let (first, between, last) = FAULTS;
    let again = |times: usize| vec!["shm:1"; times].join(",");
    format!("shm:50,{},shm:{between},{}", again(first), again(last))
}

impl FailoverJob {
    fn start(lab: &Lab, folder: &Path) -> Self {
        let stop = folder.join("stop");
        let spawn = |rank: u32| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", lab.name(0)]);
            command.arg(std::env::current_exe().unwrap());
            command.args([
                "--exact",
                "usnic_failover::rank",
                "--nocapture",
                "--test-threads=1",
            ]);
            command.current_dir(folder).stdout(Stdio::null());
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with("DOORBELL_") {
                    command.env_remove(name);
                }
            }
            let rails = format!("shm,usnic:model/D/vf{rank},udp:lo");
            command
                .env(ROLE, &stop)
                .env("DOORBELL_RANK", rank.to_string())
                .env("DOORBELL_SIZE", "2")
                .env(
                    "DOORBELL_ROOT",
                    format!("@doorbell-failover-{}", std::process::id()),
                )
                .env("DOORBELL_RAILS", rails)
                .env("DOORBELL_FAULT_INJECT", faults())
                // Three rails may be away at a time.
                .env("DOORBELL_PATIENCE", "60 s")
                .env("DOORBELL_DEADLINE", "120 s")
                .env("DOORBELL_QUIET", "60 s")
                .env("DOORBELL_WAIT", "sleep");
            command.spawn().unwrap()
        };
        Self {
            ranks: (0..2).map(spawn).collect(),
            stop,
            counters: None,
        }
    }

    /// A count of rank 0; 0 before there is one.
    fn count(&mut self, name: &str) -> u64 {
        self.live();
        if self.counters.is_none() {
            let process = self.ranks[0].id();
            let mut readers = find(None).into_iter().filter_map(|path| Reader::open(&path).ok());
            self.counters = readers.find(|reader| reader.process() == process);
        }
        let read = self.counters.as_ref().and_then(|reader| reader.read().ok());
        match read.as_ref().and_then(|read| read.value(name)) {
            Some(Value::Counter(count) | Value::Gauge(count)) => *count,
            _ => 0,
        }
    }

    fn live(&mut self) {
        for (rank, child) in self.ranks.iter_mut().enumerate() {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("rank {rank} has ended: {status}; its own message is above");
            }
        }
    }

    /// Waits until a count is greater by `by` than it was when `from` was read.
    fn grows(&mut self, name: &str, by: u64, from: u64) {
        let began = Instant::now();
        while self.count(name) < from + by {
            assert!(
                began.elapsed() < AMPLE,
                "{name}: {from} was to grow by {by}: {}",
                self.explain()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until nothing is carried by a rail any more while another one carries.
    fn moves(&mut self, away: &[&str], to: &str) {
        let began = Instant::now();
        loop {
            let before: Vec<u64> = away.iter().map(|name| self.count(name)).collect();
            let from = self.count(to);
            self.grows(to, if to == SHM { 50 } else { 1 << 20 }, from);
            std::thread::sleep(Duration::from_millis(300));
            let after: Vec<u64> = away.iter().map(|name| self.count(name)).collect();
            if before == after {
                return;
            }
            assert!(
                began.elapsed() < AMPLE,
                "{away:?} and not {to} carries: {}",
                self.explain()
            );
        }
    }

    fn explain(&self) -> String {
        let read = self.counters.as_ref().and_then(|reader| reader.read().ok());
        let readings = read.iter().flat_map(|read| &read.readings);
        let alternatives = readings.filter(|one| {
            let name = &one.entry.name;
            name.starts_with("way.") || name.ends_with("bytes_sent") || name.ends_with(".sent")
        });
        alternatives
            .map(|one| format!("\n  {} {:?}", one.entry.name, one.value))
            .collect()
    }

    /// Ends it; how many messages passed.
    fn end(mut self) -> u64 {
        std::fs::write(&self.stop, "").unwrap();
        for (rank, child) in self.ranks.iter_mut().enumerate() {
            let by = Instant::now() + AMPLE;
            let status = loop {
                match child.try_wait().unwrap() {
                    Some(status) => break status,
                    None if Instant::now() > by => panic!("rank {rank} does not end"),
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            };
            assert!(
                status.success(),
                "rank {rank}: {status}; its own message is above"
            );
        }
        let count = std::fs::read_to_string(self.stop.with_extension("count")).unwrap();
        count.parse().unwrap()
    }
}

/// Messages of shared memory; bytes of the others.
const SHM: &str = "shm.sent";
const USNIC: &str = "usnic:model/D/vf0.bytes_sent";
const UDP: &str = "udp:lo.bytes_sent";
/// Bytes that show that a rail is used, and not only probed.
const USED: u64 = 200_000;

fn agent(folder: &Path) -> Running {
    let mut command = at(None, &["agent", "usnic", "--pf", "model/D/pf"]);
    command.current_dir(folder);
    let mut agent = Running::start(command);
    agent.says("agent.sock");
    agent
}

#[test]
fn usnic_udp_and_shm_take_over_from_each_other_and_each_is_used_again() {
    let test =
        "doorbell::it::usnic_failover::usnic_udp_and_shm_take_over_from_each_other_and_each_is_used_again";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        dir: Some(folder.path().join("D")),
        ..Options::default()
    };
    let model = Model::start(options).unwrap();
    let mut steers = agent(folder.path());
    let mut job = FailoverJob::start(&lab, folder.path());
    // Shared memory breaks early, and again whenever it is back: the two others carry.
    job.grows(USNIC, USED, 0);
    job.grows(UDP, USED, 0);
    // The adapter's link goes: the loopback carries.
    model.inject("at 0s link down").unwrap();
    job.moves(&[USNIC], UDP);
    // And that one: what remains is shared memory, which stays when it is back for the last time.
    lab.ip(0, "link set lo down");
    job.moves(&[USNIC, UDP], SHM);
    // Both are given back. Shared memory breaks once more, and they carry.
    let (usnic, udp) = (job.count(USNIC), job.count(UDP));
    lab.ip(0, "link set lo up");
    model.inject("at 0s link up").unwrap();
    job.grows(UDP, USED, udp);
    job.grows(USNIC, USED, usnic);
    let list = model.violations().list();
    assert!(list.is_empty(), "{:?}", &list[..list.len().min(5)]);
    // The agent goes, and the queue pairs with it; another one comes.
    steers.signal(Signal::TERM);
    assert_eq!(steers.ends(SOON), Some(0));
    job.moves(&[USNIC], UDP);
    let usnic = job.count(USNIC);
    let steers = agent(folder.path());
    job.grows(USNIC, USED, usnic);
    let passed = job.end();
    println!("{passed} messages");
    assert!(passed > 500, "{passed}");
    drop(steers);
    // A rail posts until it has seen that its pairs are off, of which it gets no notice before. Nothing else
    // is its own doing.
    let list = model.violations().list();
    let own: Vec<_> = list.iter().filter(|one| one.kind != Kind::NoQpEnable).collect();
    assert!(own.is_empty(), "{:?}", &own[..own.len().min(5)]);
}
