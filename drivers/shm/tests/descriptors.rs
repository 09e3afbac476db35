//! A process that has no descriptors left for a moment while it meets its peers, and one that has none for
//! good.

mod common;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::*;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_shm::{ShmConfig, ShmRail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use common::{parsed, published};

const ROLE: &str = "DOORBELL_TEST_SHORT";
const HERE: &str = "short at ";
const SHORT: &str = "short now";
const OUTCOME: &str = "outcome ";
/// Peers of the process.
const PEERS: usize = 24;
/// How long a passing shortage lasts, in which nothing may be lost.
const PASSING: Duration = Duration::from_millis(300);
/// Ends a test that hangs.
const GUARD: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Count(usize);

impl Arrivals for Count {
    fn message(&mut self, _: PeerIndex, _: Inbound<'_>) {
        self.0 += 1;
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// A rail that sends one message to each of its peers, as soon as it can.
struct Sender {
    rail: ShmRail,
    unsent: Vec<PeerIndex>,
    seen: Count,
    lost: Vec<(PeerIndex, DownReason)>,
}

impl Sender {
    fn turn(&mut self, now: Time) {
        let Self { rail, unsent, .. } = self;
        unsent.retain(|&peer| rail.send(peer, &[1; 16], Body::Empty) == Err(Refused::Full));
        self.rail.progress(now);
        self.rail.poll(64, &mut self.seen);
        while let Some(event) = self.rail.event() {
            if let (Scope::Peer(peer), EventKind::PeerDown(reason)) = (event.scope, event.kind) {
                self.lost.push((peer, reason));
            }
        }
    }
}

fn open() -> ShmRail {
    let config = ShmConfig {
        cells: 16,
        data: 128 << 10,
        ..ShmConfig::default()
    };
    ShmRail::open(&"shm".parse().unwrap(), &config).unwrap()
}

/// Opens descriptors until but `left` are free.
fn hog(left: usize) -> Vec<File> {
    let limit = Rlimit {
        current: Some(256),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    all.truncate(all.len() - left);
    all
}

/// What a started process does; without a role, this is no test.
#[test]
fn short() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (left, for_good) = role.split_once(' ').unwrap();
    let (left, for_good) = (left.parse().unwrap(), for_good == "true");
    let mut rail = open();
    println!("\n{HERE}{}", published(&rail));
    let peers: Vec<PeerIndex> = std::io::stdin()
        .lines()
        .map(Result::unwrap)
        .take_while(|line| !line.is_empty())
        .map(|line| {
            let (address, life) = parsed(&line);
            Message::open(&mut rail, &address, life).unwrap()
        })
        .collect();
    let mut sender = Sender {
        rail,
        unsent: peers.clone(),
        seen: Count::default(),
        lost: Vec::new(),
    };
    let (start, mut held) = (Instant::now(), hog(left));
    println!("{SHORT}");
    loop {
        sender.turn(Time::ZERO + start.elapsed());
        if start.elapsed() > PASSING && !for_good {
            held.clear();
        }
        let has_all = sender.seen.0 == PEERS && sender.unsent.is_empty();
        let rail = &mut sender.rail;
        let all_taken = has_all && peers.iter().all(|&peer| rail.handed_over(peer) == MsgId(1));
        let lost = sender.lost.len();
        if all_taken || lost == PEERS || start.elapsed() > GUARD {
            let alike = sender
                .lost
                .iter()
                .all(|&(peer, reason)| reason == DownReason::Resources && sender.rail.was_out_of_files(peer));
            println!(
                "{OUTCOME}{} {lost} {alike} {}",
                sender.seen.0,
                start.elapsed().as_millis()
            );
            // The others have what it sent when it ends.
            let _ = std::io::stdin().lines().next();
            std::process::exit(0);
        }
    }
}

/// A started process. Dropped, it leaves none behind.
struct Other {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Other {
    fn start(left: usize, for_good: bool) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "short", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{left} {for_good}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The rest of the next line that begins so.
    fn reads(&mut self, with: &str) -> String {
        let rest = |line: std::io::Result<String>| line.unwrap().strip_prefix(with).map(str::to_owned);
        self.lines.find_map(rest).unwrap()
    }
}

/// Meets a process that has but `left` descriptors. Returns what it got and how many peers it lost, whether
/// all of them for want of descriptors, and the milliseconds; and what its peers got and lost.
fn meet(left: usize, for_good: bool) -> ([u64; 2], bool, u64, [usize; 2]) {
    let mut other = Other::start(left, for_good);
    let address = other.reads(HERE);
    let mut peers: Vec<Sender> = (0..PEERS)
        .map(|_| {
            let mut rail = open();
            let (address, life) = parsed(&address);
            let unsent = vec![Message::open(&mut rail, &address, life).unwrap()];
            Sender {
                rail,
                unsent,
                seen: Count::default(),
                lost: Vec::new(),
            }
        })
        .collect();
    let mut lines: String = peers.iter().map(|peer| published(&peer.rail) + "\n").collect();
    lines.push('\n');
    other
        .child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    other.reads(SHORT);
    let (start, outcome) = (
        Instant::now(),
        std::thread::spawn(move || (other.reads(OUTCOME), other)),
    );
    while !outcome.is_finished() {
        let now = Time::ZERO + start.elapsed();
        peers.iter_mut().for_each(|peer| peer.turn(now));
    }
    let (line, _other) = outcome.join().unwrap();
    while !for_good && peers.iter().any(|peer| peer.seen.0 == 0) && start.elapsed() < GUARD {
        let now = Time::ZERO + start.elapsed();
        peers.iter_mut().for_each(|peer| peer.turn(now));
    }
    let got = peers.iter().map(|peer| peer.seen.0).sum();
    let lost = peers.iter().map(|peer| peer.lost.len()).sum();
    let words: Vec<&str> = line.split(' ').collect();
    let [got_there, lost_there, ms] = [0, 1, 3].map(|at| words[at].parse().unwrap());
    ([got_there, lost_there], words[2] == "true", ms, [got, lost])
}

#[test]
fn a_passing_shortage_of_descriptors_loses_no_peer() {
    // With each number that is left, another step is the one that finds none.
    for left in 0..8 {
        let (there, _, ms, here) = meet(left, false);
        assert_eq!(
            (there, here),
            ([PEERS as u64, 0], [PEERS, 0]),
            "{left} left, {ms} ms: got and lost"
        );
    }
}

#[test]
fn a_lasting_shortage_loses_them_within_a_bound() {
    let ([_, lost], alike, ms, _) = meet(0, true);
    assert!(
        lost == PEERS as u64 && alike,
        "{lost} lost, for want of descriptors: {alike}"
    );
    assert!((5_000..20_000).contains(&ms), "{ms} ms");
}
