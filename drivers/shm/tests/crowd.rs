//! Many processes on one host, each of which sends each other a short message: what that takes of memory and
//! of descriptors, by the system's own account.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_fabric::message::*;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_shm::{ShmConfig, ShmRail};

use common::{parsed, published};

const ROLE: &str = "DOORBELL_TEST_CROWD";
/// What a process prints before its address, and once it has what all others sent.
const HERE: &str = "member at ";
const DONE: &str = "member has all";
/// How many there are.
const CROWD: usize = 64;
/// Resident shared memory of libfabric's shm provider in the same situation (1.17.0, 64 endpoints, one tagged
/// message of 8 bytes from each to each): the blocks of its files in `/dev/shm`.
const LIBFABRIC: usize = 247_804 << 10;

#[derive(Default)]
struct Count(usize);

impl Arrivals for Count {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        assert_eq!(inbound.read::<8>(16), Some([7; 8]));
        self.0 += 1;
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// What a started process does; without a role, this is no test.
#[test]
fn member() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let (start, mut seen) = (Instant::now(), Count::default());
    let mut rail = ShmRail::open(&"shm".parse().unwrap(), &ShmConfig::default()).unwrap();
    println!("\n{HERE}{}", published(&rail));
    std::io::stdout().flush().unwrap();
    let mine = published(&rail);
    let peers: Vec<PeerIndex> = std::io::stdin()
        .lines()
        .map(Result::unwrap)
        .take_while(|line| !line.is_empty())
        .filter(|line| *line != mine)
        .map(|line| {
            let (address, life) = parsed(&line);
            Message::open(&mut rail, &address, life).unwrap()
        })
        .collect();
    for &peer in &peers {
        rail.send(peer, &[1; 16], Body::Bytes(&[7; 8])).unwrap();
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Until the test closes it.
            let _ = std::io::stdin().read(&mut [0]);
            over.store(true, Ordering::Relaxed);
        });
        let mut told = false;
        while !over.load(Ordering::Relaxed) {
            assert!(start.elapsed() < Duration::from_secs(100), "{} arrived", seen.0);
            rail.progress(Time::ZERO + start.elapsed());
            rail.poll(64, &mut seen);
            let taken = |rail: &mut ShmRail| peers.iter().all(|&peer| rail.handed_over(peer) == MsgId(1));
            if !told && seen.0 == peers.len() && taken(&mut rail) {
                println!("{DONE}");
                std::io::stdout().flush().unwrap();
                told = true;
            }
            std::thread::yield_now();
        }
    });
}

/// A started process. Dropped, it leaves none behind.
struct Member {
    child: Child,
    input: ChildStdin,
    output: Box<dyn Iterator<Item = std::io::Result<String>>>,
    address: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Member {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "member", "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = Box::new(BufReader::new(child.stdout.take().unwrap()).lines());
        let mut member = Self {
            child,
            input,
            output,
            address: String::new(),
        };
        member.address = member.reads(HERE);
        member
    }

    /// The rest of the next line that begins so.
    fn reads(&mut self, with: &str) -> String {
        self.output
            .find_map(|line| line.unwrap().strip_prefix(with).map(str::to_owned))
            .unwrap()
    }

    fn open_descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .unwrap()
            .count()
    }

    /// Bytes of the process's maps of memfds whose name begins so, each page divided among its users.
    fn shared_memory(&self, name: &str) -> usize {
        let mut text = String::new();
        let mut file = fs::File::open(format!("/proc/{}/smaps", self.child.id())).unwrap();
        file.read_to_string(&mut text).unwrap();
        let (mut within, mut sum) = (false, 0);
        for line in text.lines() {
            if let Some(kib) = line.strip_prefix("Pss:") {
                let kib: usize = kib.trim().trim_end_matches(" kB").parse().unwrap();
                sum += if within { kib << 10 } else { 0 };
            } else if !line.split_once(' ').is_some_and(|(word, _)| word.ends_with(':')) {
                within = line.contains(&format!("/memfd:{name}"));
            }
        }
        sum
    }
}

#[test]
fn a_crowd_takes_less_than_libfabrics() {
    let mut crowd: Vec<Member> = (0..CROWD).map(|_| Member::start()).collect();
    let before: usize = crowd.iter().map(Member::open_descriptors).sum();
    let addresses: String = crowd.iter().map(|one| format!("{}\n", one.address)).collect();
    for one in &mut crowd {
        one.input.write_all(format!("{addresses}\n").as_bytes()).unwrap();
    }
    for one in &mut crowd {
        one.reads(DONE);
    }
    let sum = |name: &str| crowd.iter().map(|one| one.shared_memory(name)).sum::<usize>();
    let [lanes, control, leases, ready, all] = [
        "doorbell-lane",
        "doorbell-control",
        "doorbell-leases",
        "doorbell-ready",
        "doorbell-",
    ]
    .map(sum);
    let met = CROWD * (CROWD - 1);
    // One socket for each peer, once each pair has agreed on it.
    let held = || crowd.iter().map(Member::open_descriptors).sum::<usize>() - before;
    let waited = Instant::now();
    while held() > met && waited.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    let descriptors = held();
    println!(
        "{CROWD} processes, all to all: {all} bytes of shared memory ({lanes} of lanes, {} each, {control} of \
         control blocks, {leases} of leases, {ready} of ready bits); {descriptors} descriptors for {met} peers",
        lanes / met
    );
    assert_eq!(descriptors, met);
    assert!(all > 0 && all <= 2 * LIBFABRIC, "{all} bytes");
}
