//! Tests of the whole rail, both ends within one process and one thread.

use std::time::{Duration, Instant};

use doorbell_fabric::event::{DownReason, EventKind, Life};
use doorbell_fabric::memory::{ConstLoan, MutLoan, Region, SharedBytes};
use doorbell_fabric::message::*;
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_testing::skipped;

use crate::{ShmConfig, ShmRail};

mod both;
mod contract;
mod forget;
mod growth;
mod hostile;
mod late;
mod one_socket;
mod reconnect;
mod regions;
mod rooms;
mod runs;

/// Collects what arrives.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) messages: Vec<(PeerIndex, Vec<u8>)>,
    pub(crate) ended: Vec<(OpId, Result<u64, OpError>)>,
}

impl Arrivals for Seen {
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        assert_eq!(inbound.copy_to(0, &mut bytes), bytes.len());
        self.messages.push((peer, bytes));
    }

    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.ended.push((op, outcome));
    }
}

/// Some rails that have opened each other, with a clock that runs with the real one.
pub(crate) struct World {
    pub(crate) rails: Vec<ShmRail>,
    pub(crate) seen: Vec<Seen>,
    /// The last epoch in which each of the first two has reported the other as up.
    epochs: [Option<Life>; 2],
    start: Instant,
}

pub(crate) fn rail(config: &ShmConfig) -> ShmRail {
    ShmRail::open(&"shm".parse().unwrap(), config).unwrap()
}

impl World {
    pub(crate) fn new(ranks: usize, config: &ShmConfig) -> Self {
        let mut rails: Vec<_> = (0..ranks).map(|_| rail(config)).collect();
        let published: Vec<_> = rails
            .iter()
            .map(|rail| (rail.address(), rail.incarnation()))
            .collect();
        for rail in &mut rails {
            for (i, (address, incarnation)) in published.iter().enumerate() {
                assert_eq!(
                    Message::open(rail, address, *incarnation).unwrap(),
                    PeerIndex(i as u32)
                );
            }
        }
        Self {
            rails,
            seen: (0..ranks).map(|_| Seen::default()).collect(),
            epochs: [None; 2],
            start: Instant::now(),
        }
    }

    pub(crate) fn pump(&mut self) {
        let now = Time::ZERO + self.start.elapsed();
        for (rail, seen) in self.rails.iter_mut().zip(&mut self.seen) {
            rail.progress(now);
            rail.poll(64, seen);
        }
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < Duration::from_secs(60), "{what} did not happen");
            self.pump();
        }
    }

    pub(crate) fn event(&mut self, rank: usize) -> EventKind {
        let mut event = None;
        self.until("an event", |world| {
            event = world.rails[rank].event();
            event.is_some()
        });
        event.unwrap().kind
    }

    pub(crate) fn up(&mut self, from: usize, to: usize) {
        self.rails[from]
            .send(PeerIndex(to as u32), b"hello", Body::Empty)
            .unwrap();
        self.until("first contact", |world| {
            world.rails[from].handed_over(PeerIndex(to as u32)) == MsgId(1) && world.rails[from].is_up(to)
        });
        self.seen[to].messages.clear();
    }
}

impl ShmRail {
    fn is_up(&self, peer: usize) -> bool {
        self.peers[peer]
            .tx
            .as_ref()
            .is_some_and(|tx| matches!(tx.handshake, crate::tx::Handshake::Up(_)))
    }
}

#[test]
fn messages_of_every_length_and_kind_of_body_arrive() {
    let mut world = World::new(2, &ShmConfig::default());
    let longest = world.rails[0].capabilities().limits.message;
    let region = Region::new(300).unwrap();
    region.write(0, &[9; 300]);
    let bytes: Vec<u8> = (0..longest).map(|i| i as u8).collect();
    let parts = [
        ConstLoan::of_static(b"one"),
        ConstLoan::of_static(b""),
        ConstLoan::of_static(&[2; 40]),
    ];
    let mut sent = Vec::new();
    for len in [0, 1, 7, 8, 9, 16, 40, 63, 64, 1000, 4096, longest - 16] {
        let body = Body::Bytes(&bytes[..len]);
        while world.rails[0].send(PeerIndex(1), &[1; 16], body) == Err(Refused::Full) {
            world.pump();
        }
        sent.push([&[1; 16][..], &bytes[..len]].concat());
    }
    let whole = region.slice(10, 100).unwrap();
    for (head, body, expected) in [
        (&[3u8; 1][..], Body::Loan(parts[0]), b"\x03one".to_vec()),
        (
            &[3; 20],
            Body::Parts(&parts),
            [&[3; 20][..], b"one", &[2; 40]].concat(),
        ),
        (&[3; 4], Body::Parts(&parts[..2]), b"\x03\x03\x03\x03one".to_vec()),
        (
            &[4; 128],
            Body::Region(&whole),
            [&[4; 128][..], &[9; 100]].concat(),
        ),
        (&[], Body::Empty, vec![]),
    ] {
        while world.rails[0].send(PeerIndex(1), head, body) == Err(Refused::Full) {
            world.pump();
        }
        sent.push(expected);
    }
    world.until("delivery", |world| world.seen[1].messages.len() == sent.len());
    for ((_, got), expected) in world.seen[1].messages.iter().zip(&sent) {
        assert!(
            got == expected,
            "{} bytes differ from {}",
            got.len(),
            expected.len()
        );
    }
    let too_long = world.rails[0].send(PeerIndex(1), &[0; 17], Body::Bytes(&bytes[..longest - 16]));
    assert_eq!(too_long, Err(Refused::TooLong));
    assert_eq!(
        world.rails[0].send(PeerIndex(1), &[0; 129], Body::Empty),
        Err(Refused::TooLong)
    );
    assert_eq!(
        world.rails[0].send(PeerIndex(7), &[], Body::Empty),
        Err(Refused::PeerDown)
    );
}

#[test]
fn messages_sent_before_the_peer_has_opened_us_arrive_afterwards() {
    let (mut a, mut b) = (rail(&ShmConfig::default()), rail(&ShmConfig::default()));
    let to_b = Message::open(&mut a, &b.address(), b.incarnation()).unwrap();
    a.send(to_b, b"early", Body::Empty).unwrap();
    b.progress(Time::ZERO);
    let mut seen = Seen::default();
    assert_eq!(b.poll(8, &mut seen), 0);
    Message::open(&mut b, &a.address(), a.incarnation()).unwrap();
    assert_eq!(b.poll(8, &mut seen), 1);
    assert_eq!(seen.messages[0].1, b"early");
}

#[test]
fn a_full_lane_is_back_pressure_and_takes_nothing() {
    let mut world = World::new(
        2,
        &ShmConfig {
            cells: 8,
            ..ShmConfig::default()
        },
    );
    for _ in 0..8 {
        world.rails[0].send(PeerIndex(1), b"x", Body::Empty).unwrap();
    }
    assert_eq!(
        world.rails[0].send(PeerIndex(1), b"x", Body::Empty),
        Err(Refused::Full)
    );
    world.until("delivery", |world| world.seen[1].messages.len() == 8);
    world.until("room", |world| {
        world.rails[0].send(PeerIndex(1), b"y", Body::Empty).is_ok()
    });
    world.until("delivery", |world| world.seen[1].messages.len() == 9);
}

#[test]
fn a_close_is_reported_after_the_last_message() {
    let mut world = World::new(2, &ShmConfig::default());
    world.rails[0]
        .send(PeerIndex(1), b"last words", Body::Empty)
        .unwrap();
    let gone = world.rails.remove(0);
    let seen = world.seen.remove(0);
    drop((gone, seen));
    // What is left is rank 1, now the only rail of the test's world.
    assert_eq!(world.event(0), EventKind::PeerUp);
    assert_eq!(world.event(0), EventKind::PeerDown(DownReason::Closed));
    assert_eq!(world.seen[0].messages, [(PeerIndex(0), b"last words".to_vec())]);
    assert_eq!(
        world.rails[0].send(PeerIndex(0), b"x", Body::Empty),
        Err(Refused::PeerDown)
    );
}

#[test]
fn what_a_dead_peer_did_not_take_is_given_back() {
    let mut world = World::new(2, &ShmConfig::default());
    world.up(0, 1);
    for i in 0..5u8 {
        world.rails[0]
            .send(PeerIndex(1), &[i; 30], Body::Bytes(&[i; 100]))
            .unwrap();
    }
    drop(world.rails.remove(1));
    world.seen.remove(1);
    assert!(matches!(world.event(0), EventKind::PeerDown(_)));
    let mut back = Vec::new();
    world.rails[0].reclaim(PeerIndex(1), &mut |id, bytes| back.push((id, bytes.to_vec())));
    let expected: Vec<_> = (0..5u8)
        .map(|i| (MsgId(2 + u64::from(i)), vec![i; 130]))
        .collect();
    assert_eq!(back, expected);
}

#[test]
fn a_pull_brings_the_bytes_and_a_withdrawn_lease_brings_none() {
    let mut world = World::new(2, &ShmConfig::default());
    world.up(0, 1);
    if !world.rails[0].pulls_from_us(PeerIndex(1)) {
        skipped("a_pull_brings_the_bytes", "process_vm_readv is not allowed here");
        return;
    }
    let source = Region::new(1 << 20).unwrap();
    let pattern: Vec<u8> = (0..1 << 20).map(|i| ((i * 7) >> 3) as u8).collect();
    source.write(0, &pattern);
    let remote = world.rails[0]
        .expose(Exposure::Region(source.whole()), Access::Read, Some(PeerIndex(1)))
        .unwrap();
    let target = Region::new(1 << 20).unwrap();
    world.rails[1]
        .get(PeerIndex(0), OpId(1), &remote, Landing::Region(target.whole()))
        .unwrap();
    world.until("the pull", |world| !world.seen[1].ended.is_empty());
    assert_eq!(world.seen[1].ended, [(OpId(1), Ok(0))]);
    let mut got = vec![0; 1 << 20];
    target.read(0, &mut got);
    assert!(got == pattern);

    let part = remote.part(1000, 24).unwrap();
    assert_eq!(
        world.rails[1].get(PeerIndex(0), OpId(2), &part, Landing::Region(target.whole())),
        Err(Refused::BadMemory)
    );
    world.rails[0].withdraw(RemoteKey(remote.key.get()));
    world.rails[1]
        .get(
            PeerIndex(0),
            OpId(3),
            &part,
            Landing::Region(target.slice(0, 24).unwrap()),
        )
        .unwrap();
    world.until("the refusal", |world| world.seen[1].ended.len() == 2);
    assert_eq!(world.seen[1].ended[1], (OpId(3), Err(OpError::Denied)));
    let forged = Remote {
        key: 12345.into(),
        ..remote
    };
    world.rails[1]
        .get(
            PeerIndex(0),
            OpId(4),
            &forged.part(0, 8).unwrap(),
            Landing::Region(target.slice(0, 8).unwrap()),
        )
        .unwrap();
    world.until("the refusal", |world| world.seen[1].ended.len() == 3);
    assert_eq!(world.seen[1].ended[2], (OpId(4), Err(OpError::Denied)));
}

#[test]
fn a_lease_withdrawn_in_the_middle_is_noticed() {
    let mut world = World::new(2, &ShmConfig::default());
    world.up(0, 1);
    if !world.rails[0].pulls_from_us(PeerIndex(1)) {
        skipped(
            "a_lease_withdrawn_in_the_middle",
            "process_vm_readv is not allowed here",
        );
        return;
    }
    let source = Region::new(1 << 20).unwrap();
    let remote = world.rails[0]
        .expose(Exposure::Region(source.whole()), Access::Read, Some(PeerIndex(1)))
        .unwrap();
    let target = Region::new(1 << 20).unwrap();
    world.rails[1]
        .get(PeerIndex(0), OpId(1), &remote, Landing::Region(target.whole()))
        .unwrap();
    let mut seen = Seen::default();
    world.rails[1].poll(1, &mut seen);
    assert!(seen.ended.is_empty(), "a megabyte takes more than one piece");
    world.rails[0].withdraw(RemoteKey(remote.key.get()));
    world.until("the end", |world| !world.seen[1].ended.is_empty());
    assert_eq!(world.seen[1].ended, [(OpId(1), Err(OpError::Withdrawn))]);
}

#[test]
fn leases_are_bounded_and_then_back_pressure() {
    let mut world = World::new(2, &ShmConfig::default());
    world.up(0, 1);
    if !world.rails[0].pulls_from_us(PeerIndex(1)) {
        skipped("leases_are_bounded", "process_vm_readv is not allowed here");
        return;
    }
    let expose = |world: &mut World| {
        let bytes = Exposure::Read(ConstLoan::of_static(b"bytes"));
        world.rails[0].expose(bytes, Access::Read, Some(PeerIndex(1)))
    };
    let keys: Vec<_> = (0..1024).map(|_| expose(&mut world).unwrap().key.get()).collect();
    assert_eq!(expose(&mut world), Err(Refused::Full));
    let mut distinct = keys.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 1024);
    world.rails[0].withdraw(RemoteKey(keys[17]));
    assert!(expose(&mut world).is_ok());
    let write = world.rails[0].expose(Exposure::Write(MutLoan::EMPTY), Access::Write, Some(PeerIndex(1)));
    assert_eq!(write, Err(Refused::Unsupported));
}

#[test]
fn without_cma_nothing_is_exposed() {
    let mut world = World::new(
        2,
        &ShmConfig {
            cma: false,
            ..ShmConfig::default()
        },
    );
    world.up(0, 1);
    assert!(!world.rails[0].capabilities().features.get);
    let exposed = world.rails[0].expose(
        Exposure::Read(ConstLoan::of_static(b"x")),
        Access::Read,
        Some(PeerIndex(1)),
    );
    assert_eq!(exposed, Err(Refused::Unsupported));
}

#[test]
fn a_sleeper_is_woken_by_a_message_and_by_the_end_of_a_peer() {
    let mut world = World::new(2, &ShmConfig::default());
    world.up(0, 1);
    let readable = |rail: &mut ShmRail, wait: i64| match rail.arm().unwrap() {
        Armed::Ready => None,
        Armed::Sleep(descriptor) => {
            let mut look = [rustix::event::PollFd::from_borrowed_fd(
                descriptor,
                rustix::event::PollFlags::IN,
            )];
            let wait = rustix::time::Timespec {
                tv_sec: wait,
                tv_nsec: 0,
            };
            Some(rustix::event::poll(&mut look, Some(&wait)).unwrap() == 1)
        }
    };
    while world.rails[1].event().is_some() {}
    assert_eq!(readable(&mut world.rails[1], 0), Some(false));
    world.rails[0]
        .send(PeerIndex(1), b"wake up", Body::Empty)
        .unwrap();
    assert_eq!(
        readable(&mut world.rails[1], 0),
        None,
        "a message that came after arming is seen at once"
    );
    world.rails[1].disarm();
    world.until("delivery", |world| world.seen[1].messages.len() == 1);

    let (mut sender, receiver) = (world.rails.remove(0), &mut world.rails[0]);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| readable(receiver, 10));
        std::thread::sleep(Duration::from_millis(50));
        sender.send(PeerIndex(1), b"wake up", Body::Empty).unwrap();
        assert_ne!(sleeper.join().unwrap(), Some(false));
    });
    receiver.disarm();
    assert_eq!(receiver.poll(8, &mut world.seen[1]), 1);
    assert_eq!(readable(receiver, 0), Some(false));
    drop(sender);
    assert_eq!(readable(receiver, 10), Some(true));
}

#[test]
fn many_lanes_cool_down_and_a_cold_one_is_still_received() {
    let mut world = World::new(
        12,
        &ShmConfig {
            cells: 64,
            data: 4096,
            eager: 512,
            fragment: 512,
            ..ShmConfig::default()
        },
    );
    for from in 1..12 {
        world.up(from, 0);
    }
    assert_eq!(world.rails[0].hot.len(), 11);
    world.until("cooling", |world| world.rails[0].cold.len() > 3);
    let cold = world.rails[0].cold[0];
    world.seen[0].messages.clear();
    world.rails[cold as usize]
        .send(PeerIndex(0), b"still here", Body::Empty)
        .unwrap();
    world.until("delivery", |world| world.seen[0].messages.len() == 1);
    assert_eq!(world.seen[0].messages[0].0, PeerIndex(cold));
    assert!(world.rails[0].hot.contains(&cold));
}

#[test]
fn a_stranger_of_another_life_is_refused() {
    let (mut a, mut b) = (rail(&ShmConfig::default()), rail(&ShmConfig::default()));
    let to_b = Message::open(&mut a, &b.address(), Incarnation(b.incarnation().0 ^ 1)).unwrap();
    Message::open(&mut b, &a.address(), a.incarnation()).unwrap();
    a.send(to_b, b"for your predecessor", Body::Empty).unwrap();
    let mut seen = Seen::default();
    for step in 0..100 {
        let now = Time::from_nanos(step * 10_000_000);
        a.progress(now);
        b.progress(now);
        b.poll(8, &mut seen);
    }
    assert!(seen.messages.is_empty());
    assert!(
        b.refused() >= 1,
        "and once more, when the sender has probed the receiver's process"
    );
    assert!(matches!(a.event().unwrap().kind, EventKind::PeerDown(_)));
}
