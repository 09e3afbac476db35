//! After a warm-up no message costs an allocation, and an idle peer takes a few hundred bytes: counted by the
//! allocator itself.

use std::time::Duration;

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, Inbound, Incarnation, Landing, Message, OpError, OpId,
    PeerIndex,
};
use doorbell_fabric::rail::Rail;
use doorbell_testing::alloc::{self, Counting};

#[path = "common/lane.rs"]
mod lane;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts, and keeps nothing.
#[derive(Default)]
struct Sink {
    messages: u64,
    bytes: u64,
    ended: u64,
}

impl Arrivals for Sink {
    fn message(&mut self, _: PeerIndex, message: Inbound<'_>) {
        self.messages += 1;
        self.bytes += message.len() as u64;
    }

    fn completed(&mut self, _: OpId, outcome: Result<u64, OpError>) {
        self.ended += u64::from(outcome.is_ok());
    }
}

type Two = lane::Two<Sink>;

/// Time between two turns.
const STEP: Duration = Duration::from_micros(5);

impl Two {
    /// A round of everything, both ways: short and long messages, puts, gets, atomics, fences.
    fn round(&mut self, n: u64, region: &Region, remotes: &[doorbell_fabric::message::Remote; 2]) {
        let before = [0, 1].map(|i: usize| (self.sinks[i].messages, self.sinks[i].ended));
        for (i, remote) in remotes.iter().enumerate() {
            let (end, to) = (&mut self.ends[i], self.to[i]);
            for length in [0, 8, 64, 768, 1400, 1500, 20_000] {
                end.send(to, b"head", Body::Bytes(&[1; 20_000][..length]))
                    .unwrap();
            }
            end.send(to, b"head", Body::Region(&region.slice(0, 5000).unwrap()))
                .unwrap();
            let word = remote.part(5000, 8).unwrap();
            let remote = remote.part(0, 5000).unwrap();
            end.put(
                to,
                OpId(4 * n),
                Body::Region(&region.slice(0, 5000).unwrap()),
                &remote,
            )
            .unwrap();
            end.get(
                to,
                OpId(4 * n + 1),
                &remote,
                Landing::Region(region.slice(5000, 5000).unwrap()),
            )
            .unwrap();
            end.atomic(to, OpId(4 * n + 2), &word, AtomicOp::Add(1)).unwrap();
            end.fence(doorbell_fabric::message::FenceScope::Rail, OpId(4 * n + 3))
                .unwrap();
            end.flush();
        }
        let done = |two: &Self| {
            (0..2).all(|i| two.sinks[i].messages >= before[i].0 + 8 && two.sinks[i].ended >= before[i].1 + 4)
        };
        for _ in 0..1000 {
            if done(self) {
                return;
            }
            self.turn(STEP);
        }
        panic!("a round does not end: {:?}", self.ends[0].counters());
    }
}

#[test]
fn no_message_costs_an_allocation() {
    for (checked, frame_mac) in [(true, false), (false, false), (true, true)] {
        let config = BtlConfig {
            frame_mac,
            ..BtlConfig::default()
        };
        let mut two = Two::new(checked, &config);
        let region = Region::new(10_000).unwrap();
        let there = [Region::new(5008).unwrap(), Region::new(5008).unwrap()];
        let to = two.to;
        let remotes = [1, 0].map(|i: usize| {
            let memory = Exposure::Region(there[i].whole());
            two.ends[i]
                .expose(memory, Access::ReadWrite, Some(to[i]))
                .unwrap()
        });
        for n in 0..200 {
            two.round(n, &region, &remotes);
        }
        let before = alloc::of_thread().allocations;
        for n in 200..1200 {
            two.round(n, &region, &remotes);
        }
        assert_eq!(
            alloc::of_thread().allocations - before,
            0,
            "in 1,000 rounds of 24 messages and operations"
        );
        assert_eq!(two.ends.iter().map(|end| end.counters().resends).sum::<u64>(), 0);
    }
}

#[test]
fn an_idle_peer_takes_less_than_a_kibibyte() {
    const PEERS: usize = 10_000;
    let with = |max_peers: usize, opened: u32| {
        let before = alloc::of_thread().held;
        let [lane, _other] = lane::pair(true);
        let config = BtlConfig {
            max_peers,
            ..BtlConfig::default()
        };
        let mut btl = Btl::new(lane, config, Incarnation(1)).unwrap();
        btl.set_key(JobKey::from_bytes([1; 32]));
        for n in 0..opened {
            btl.open(&RailAddress::native("sim", n.to_le_bytes()), Incarnation(7))
                .unwrap();
        }
        let bytes = alloc::of_thread().held - before;
        assert!(btl.next_deadline().is_none(), "nothing is due");
        bytes
    };
    let (one, all) = (with(1, 1), with(PEERS, PEERS as u32));
    let each = (all - one) / PEERS as i64;
    println!("{each} bytes per idle peer, of 1,024; {one} bytes for a BTL with one");
    assert!(each <= 1024, "{each} bytes");
}

/// Ten thousand peers that join, exchange a message and leave: what is held at the end is what was held after
/// the first few.
#[test]
fn peers_that_have_left_take_no_memory() {
    let mut two = Two::new(true, &BtlConfig::default());
    let addresses = [two.ends[1].address(), two.ends[0].address()];
    let mut round = |n: u32| {
        // Another life of the process at the address each time.
        let mut key = [0; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        let to = [0, 1].map(|i: usize| {
            let life = Incarnation(2 - i as u64);
            two.ends[i].set_key_of(&addresses[i], life, JobKey::from_bytes(key));
            two.ends[i].open(&addresses[i], life).unwrap()
        });
        let before = [0, 1].map(|i: usize| two.sinks[i].messages);
        (0..2).for_each(|i| _ = two.ends[i].send(to[i], b"head", Body::Bytes(&[7; 3000])).unwrap());
        for _ in 0..1000 {
            if (0..2).all(|i| two.sinks[i].messages > before[i]) {
                break;
            }
            two.turn(STEP);
        }
        assert!((0..2).all(|i| two.sinks[i].messages == before[i] + 1));
        let first = n as usize % 2;
        two.ends[first].forget(to[first]);
        two.turn(STEP);
        two.ends[1 - first].forget(to[1 - first]);
        (0..3).for_each(|_| two.turn(Duration::from_millis(6)));
        assert!(to.iter().all(|peer| peer.0 <= 2), "{to:?}");
    };
    (0..100).for_each(&mut round);
    let before = alloc::of_thread().held;
    (100..10_100).for_each(&mut round);
    let more = alloc::of_thread().held - before;
    println!("{more} bytes more after 10,000 joins and leaves");
    assert!(more < 1024, "{more} bytes");
}

/// Hellos, wanted or not, cost no allocation: their places are made when the first door is opened.
#[test]
fn no_hello_of_a_stranger_costs_an_allocation() {
    let mut two = Two::new(true, &BtlConfig::default());
    two.ends[1].open_door(1);
    let (there, mut bytes, mut taken) = (two.ends[1].address(), Vec::with_capacity(1024), 0);
    let mut round = |n: u64| {
        for door in 0..3 {
            two.ends[0].send_hello(&there, door, &[7; 1000]).unwrap();
        }
        two.turn(STEP);
        while n.is_multiple_of(100) && two.ends[1].next_hello(&mut bytes) {
            taken += 1;
        }
    };
    (0..100).for_each(&mut round);
    let before = alloc::of_thread().allocations;
    (100..1100).for_each(&mut round);
    assert_eq!(alloc::of_thread().allocations - before, 0);
    assert!(taken > 500, "{taken} hellos");
}
