//! Connections between real processes that break and are made again; and a peer that is killed meanwhile.

mod common;

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::message::*;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_shm::{ShmConfig, ShmRail};

use common::{parsed, published};

const PARENT: &str = "DOORBELL_TEST_PARENT";
/// Set for a child that never looks at its sockets.
const DEAF: &str = "DOORBELL_TEST_DEAF";
/// What a child prints before its address.
const HERE: &str = "child at ";

fn rail() -> ShmRail {
    ShmRail::open(&"shm".parse().unwrap(), &ShmConfig::default()).unwrap()
}

#[derive(Default)]
struct Seen(Vec<Vec<u8>>);

impl Arrivals for Seen {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        assert_eq!(inbound.copy_to(0, &mut bytes), bytes.len());
        self.0.push(bytes);
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// What a started process does: it sends back what it gets. Without a parent, this is no test.
#[test]
fn child() {
    let Ok(parent) = std::env::var(PARENT) else { return };
    let (start, mut rail, mut seen) = (Instant::now(), rail(), Seen::default());
    let (address, life) = parsed(&parent);
    let to = Message::open(&mut rail, &address, life).unwrap();
    println!("\n{HERE}{}", published(&rail));
    std::io::stdout().flush().unwrap();
    if std::env::var_os(DEAF).is_some() {
        std::thread::sleep(Duration::from_secs(60));
    }
    while start.elapsed() < Duration::from_secs(60) {
        rail.progress(Time::ZERO + start.elapsed());
        rail.poll(64, &mut seen);
        while rail.event().is_some() {}
        rail.reclaim(to, &mut |_, _| ());
        seen.0
            .retain(|bytes| rail.send(to, bytes, Body::Empty) == Err(Refused::Full));
        std::thread::yield_now();
    }
}

/// This process, and a child of it.
struct Pair {
    rail: ShmRail,
    child: Child,
    peer: PeerIndex,
    seen: Seen,
    start: Instant,
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pair {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(more: &[(&str, &str)]) -> Self {
        let mut rail = rail();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(PARENT, published(&rail))
            .envs(more.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let here = lines.find_map(|line| line.unwrap().strip_prefix(HERE).map(str::to_owned));
        let (address, life) = parsed(&here.unwrap());
        let peer = Message::open(&mut rail, &address, life).unwrap();
        Self {
            rail,
            child,
            peer,
            seen: Seen::default(),
            start: Instant::now(),
        }
    }

    fn pump(&mut self) -> Option<EventKind> {
        self.rail.progress(Time::ZERO + self.start.elapsed());
        self.rail.poll(64, &mut self.seen);
        self.rail.event().map(|event| event.kind)
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self, Option<EventKind>) -> bool) {
        let started = Instant::now();
        loop {
            let event = self.pump();
            if done(self, event) {
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{what} did not happen"
            );
        }
    }

    /// A message there and back.
    fn echo(&mut self, text: &[u8]) {
        self.rail.send(self.peer, text, Body::Empty).unwrap();
        self.until("the echo", |pair, _| {
            pair.seen.0.iter().any(|bytes| bytes == text)
        });
        self.seen.0.clear();
    }

    fn revive(&mut self) {
        self.until("the peer is up", |pair, event| {
            pair.rail.revive(pair.peer);
            event == Some(EventKind::PeerUp)
        });
    }
}

#[test]
fn a_stream_between_processes_is_severed_and_goes_on() {
    let mut pair = Pair::new();
    pair.echo(b"first");
    for round in 0..50u8 {
        let mut last = MsgId(0);
        for _ in 0..200 {
            last = pair
                .rail
                .send(pair.peer, &[round; 30], Body::Empty)
                .unwrap_or(last);
        }
        for _ in 0..round {
            pair.pump();
        }
        pair.rail.sever(Some(pair.peer));
        let silent = EventKind::PeerDown(DownReason::Silent);
        pair.until("it is reported", |_, event| event == Some(silent));
        let mark = pair.rail.handed_over(pair.peer);
        let mut given: Vec<u64> = Vec::new();
        pair.rail.reclaim(pair.peer, &mut |id, bytes| {
            // An echo before may have been taken, and not been reported yet.
            assert!(bytes == [round; 30] || id.0 < mark.0 + 3, "{id:?}");
            given.push(id.0);
        });
        // The other end may take some more until we poll again: what is not given back was taken, and the
        // watermark contains it.
        let taken = pair.rail.handed_over(pair.peer);
        assert!(taken >= mark, "{taken:?} {mark:?}");
        let above: Vec<u64> = (taken.0 + 1..=last.0).collect();
        assert_eq!(given, above, "all that is above the watermark");
        pair.revive();
        pair.echo(&[round, 1]);
    }
}

/// Killed at any moment of a revival: down it stays, or down it is again, within the bound, and nothing
/// hangs.
#[test]
fn a_peer_that_is_killed_while_it_is_called() {
    for micros in [0, 20, 50, 100, 200, 500, 1000, 3000] {
        let mut pair = Pair::new();
        pair.echo(b"first");
        pair.rail.abandon(pair.peer);
        pair.rail.revive(pair.peer);
        let started = Instant::now();
        let mut up = false;
        while started.elapsed() < Duration::from_micros(micros) {
            up |= pair.pump() == Some(EventKind::PeerUp);
        }
        pair.child.kill().unwrap();
        pair.child.wait().unwrap();
        let killed = Instant::now();
        let mut down = false;
        while killed.elapsed() < Duration::from_millis(100) && !down {
            match pair.pump() {
                Some(EventKind::PeerUp) => up = true,
                Some(EventKind::PeerDown(reason)) => {
                    assert_eq!(reason, DownReason::Died, "{micros} µs");
                    down = true;
                }
                _ => {}
            }
        }
        assert_eq!(down, up, "{micros} µs: down follows up for each peer");
        pair.rail.revive(pair.peer);
        for _ in 0..1000 {
            assert_eq!(pair.pump(), None);
        }
        let refused = pair.rail.send(pair.peer, b"nobody", Body::Empty);
        assert_eq!(refused, Err(Refused::PeerDown));
    }
}

/// A receiver that is killed before it has accepted our connection resets it: that is a death like any other.
#[test]
fn a_receiver_that_dies_before_it_has_read_our_hello_has_died() {
    let mut pair = Pair::with(&[(DEAF, "1")]);
    pair.rail.send(pair.peer, b"awaiting_hello", Body::Empty).unwrap();
    for _ in 0..1000 {
        assert_eq!(pair.pump(), None);
    }
    pair.child.kill().unwrap();
    pair.child.wait().unwrap();
    pair.until("its end is reported", |_, event| {
        assert!(
            matches!(event, None | Some(EventKind::PeerDown(DownReason::Died))),
            "{event:?}"
        );
        event.is_some()
    });
    let mut back = Vec::new();
    pair.rail
        .reclaim(pair.peer, &mut |_, bytes| back.push(bytes.to_vec()));
    assert_eq!(back, [b"awaiting_hello"]);
}
