//! Peers that come and go under traffic, as processes of their own: each sends as fast as it can, some leave
//! in order and some are killed, and the next one gets the number of one that is gone.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::*;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_shm::{ShmConfig, ShmRail};

use doorbell_testing::Stopwatch;

use common::{parsed, published};

const PARENT: &str = "DOORBELL_TEST_PARENT";
const NUMBER: &str = "DOORBELL_TEST_NUMBER";
/// What a child prints before its address.
const HERE: &str = "child at ";
/// Children at a time, and in all.
const AT_A_TIME: usize = 3;
const CHILDREN: u64 = 24;
/// Messages of a child before it leaves.
const COUNT: u64 = 3_000;

fn rail() -> ShmRail {
    ShmRail::open(&"shm".parse().unwrap(), &ShmConfig::default()).unwrap()
}

/// Every message contains the number of its sender, and its own.
#[derive(Default)]
struct Seen(Vec<(PeerIndex, [u64; 2])>);

impl Arrivals for Seen {
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let word = |at| u64::from_le_bytes(inbound.read::<8>(at).unwrap());
        let (number, count) = (word(0), word(8));
        assert_eq!(inbound.len(), 16 + count as usize % 200);
        self.0.push((peer, [number, count]));
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// What a started process does; without a parent, this is no test. Odd ones leave in order.
#[test]
fn child() {
    let Ok(parent) = std::env::var(PARENT) else { return };
    let number: u64 = std::env::var(NUMBER).unwrap().parse().unwrap();
    let (start, mut rail, mut seen) = (Instant::now(), rail(), Seen::default());
    let (address, life) = parsed(&parent);
    let to = Message::open(&mut rail, &address, life).unwrap();
    println!("\n{HERE}{}", published(&rail));
    std::io::stdout().flush().unwrap();
    let mut count = 0u64;
    while start.elapsed() < Duration::from_secs(100) {
        let head = [number.to_le_bytes(), count.to_le_bytes()].concat();
        let body = vec![7; count as usize % 200];
        let leaves = number % 2 == 1 && count == COUNT;
        if !leaves && rail.send(to, &head, Body::Bytes(&body)).is_ok() {
            count += 1;
        } else {
            rail.progress(Time::ZERO + start.elapsed());
            rail.poll(64, &mut seen);
            std::thread::yield_now();
        }
        if leaves && rail.handed_over(to) == MsgId(COUNT) {
            rail.forget(to);
            return;
        }
    }
}

/// A child under way. Dropped, it leaves no process behind.
struct Running {
    child: Child,
    /// Kept open, since it prints at its end.
    _output: Lines<BufReader<ChildStdout>>,
    number: u64,
    /// The name of its rail's socket.
    socket: String,
    /// Its messages so far.
    arrived: u64,
    killed: Option<Stopwatch>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(rail: &mut ShmRail, number: u64) -> (PeerIndex, Running) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(PARENT, published(rail))
        .env(NUMBER, number.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let here = lines.find_map(|line| line.unwrap().strip_prefix(HERE).map(str::to_owned));
    let here = here.unwrap();
    let (address, life) = parsed(&here);
    let peer = Message::open(rail, &address, life).unwrap();
    let running = Running {
        child,
        _output: lines,
        number,
        socket: format!("doorbell-shm-{}", here.split_once(':').unwrap().0),
        arrived: 0,
        killed: None,
    };
    (peer, running)
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn sockets() -> String {
    std::fs::read_to_string("/proc/net/unix").unwrap()
}

/// One test alone in this process, as it counts descriptors.
#[test]
fn peers_come_and_go_under_traffic() {
    if std::env::var_os(PARENT).is_some() {
        return;
    }
    let mut rail = rail();
    let (begun, mut seen) = (Instant::now(), Seen::default());
    let mut running: HashMap<PeerIndex, Running> = HashMap::new();
    let (mut next, mut gone, mut highest) = (0, Vec::new(), 0);
    let mut noticed = Vec::new();
    let descriptors = open_descriptors();
    while gone.len() < CHILDREN as usize {
        assert!(begun.elapsed() < Duration::from_secs(100), "{} gone", gone.len());
        while running.len() < AT_A_TIME && next < CHILDREN {
            let (peer, child) = start(&mut rail, next);
            highest = highest.max(peer.index());
            assert!(running.insert(peer, child).is_none(), "a number that is in use");
            next += 1;
        }
        let now = Time::ZERO + begun.elapsed();
        rail.progress(now);
        rail.poll(64, &mut seen);
        for (peer, [number, count]) in seen.0.drain(..) {
            let child = running.get_mut(&peer).expect("a message of a peer that is gone");
            assert_eq!((number, count), (child.number, child.arrived), "of {peer:?}");
            child.arrived += 1;
            // Even ones are killed in the middle of their stream, at a point that differs.
            if number.is_multiple_of(2) && child.arrived == 100 + 173 * number {
                child.child.kill().unwrap();
                child.child.wait().unwrap();
                child.killed = Some(Stopwatch::of_thread());
            }
            // And ours to them is lost with them, or not.
            let _ = rail.send(peer, &[0; 16], Body::Empty);
        }
        while let Some(event) = rail.event() {
            let (EventKind::PeerDown(reason), Scope::Peer(peer)) = (event.kind, event.scope) else {
                continue;
            };
            let mut child = running.remove(&peer).expect("an event of a peer that is gone");
            if child.number.is_multiple_of(2) {
                assert_eq!(reason, DownReason::Died);
                noticed.push(child.killed.as_ref().expect("it was killed").elapsed());
            } else {
                assert_eq!((reason, child.arrived), (DownReason::Closed, COUNT));
            }
            rail.forget(peer);
            child.child.wait().unwrap();
            gone.push(child.socket.clone());
        }
    }
    // In time that this thread had the processor; on a busy machine that of starting others is among it.
    noticed.sort_unstable();
    let median = noticed[noticed.len() / 2];
    assert!(median < Duration::from_millis(100), "{noticed:?}");
    // Reused, and not one for each.
    assert_eq!(highest, AT_A_TIME - 1);
    assert_eq!(open_descriptors(), descriptors);
    let left: Vec<_> = gone.iter().filter(|name| sockets().contains(*name)).collect();
    assert!(left.is_empty(), "{left:?}");
}
