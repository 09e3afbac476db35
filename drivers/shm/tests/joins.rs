//! Ten thousand joins and leaves: what the system holds for them is at the end as at the start. Alone in its
//! process, since descriptors and maps are counted.

use std::time::Duration;

use doorbell_fabric::message::*;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_shm::{ShmConfig, ShmRail};

/// Those of two rails that forget each other, and those of processes that come and go.
const MEETINGS: u32 = 9_500;
const PROCESSES: u32 = 500;

fn rail() -> ShmRail {
    ShmRail::open(&"shm".parse().unwrap(), &ShmConfig::default()).unwrap()
}

#[derive(Default)]
struct Seen(Vec<(PeerIndex, Vec<u8>)>);

impl Arrivals for Seen {
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        assert_eq!(inbound.copy_to(0, &mut bytes), bytes.len());
        self.0.push((peer, bytes));
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

struct Two {
    rails: [ShmRail; 2],
    seen: [Seen; 2],
    clock: Time,
}

impl Two {
    /// Both open each other.
    fn open(&mut self) -> [PeerIndex; 2] {
        let [a, b] = &mut self.rails;
        let to_b = Message::open(a, &b.address(), b.incarnation()).unwrap();
        [to_b, Message::open(b, &a.address(), a.incarnation()).unwrap()]
    }

    fn turn(&mut self) {
        self.clock += Duration::from_millis(6);
        for (rail, seen) in self.rails.iter_mut().zip(&mut self.seen) {
            rail.progress(self.clock);
            rail.poll(64, seen);
            while rail.event().is_some() {}
        }
    }
}

/// Descriptors, maps, and pages in memory of shared objects and of the heap (in KiB).
fn held() -> ([usize; 2], usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    (
        [
            std::fs::read_dir("/proc/self/fd").unwrap().count(),
            maps.lines()
                .filter(|line| line.contains("/memfd:doorbell-"))
                .count(),
        ],
        resident.trim().trim_end_matches(" kB").parse().unwrap(),
    )
}

#[test]
fn ten_thousand_joins_and_leaves_leave_nothing() {
    let mut two = Two {
        rails: [rail(), rail()],
        seen: Default::default(),
        clock: Time::ZERO,
    };
    two.turn();
    let (before, mut settled) = (held().0, 0);
    for round in 0..MEETINGS {
        let to = two.open();
        for (me, &peer) in to.iter().enumerate() {
            let body = Body::Bytes(&[7; 40]);
            two.rails[me].send(peer, &round.to_le_bytes(), body).unwrap();
        }
        while two.seen.iter().any(|seen| seen.0.is_empty()) {
            two.turn();
        }
        for (me, &peer) in to.iter().enumerate() {
            let expected = [&round.to_le_bytes()[..], &[7; 40]].concat();
            assert_eq!(two.seen[me].0.drain(..).collect::<Vec<_>>(), [(peer, expected)]);
            two.rails[me].forget(peer);
        }
        if round == 1000 {
            settled = held().1;
        }
    }
    for _ in 0..PROCESSES {
        two.rails[1] = rail();
        let to = two.open();
        two.rails[1].send(to[1], b"one of many", Body::Empty).unwrap();
        while two.seen[0].0.is_empty() {
            two.turn();
        }
        assert_eq!(
            two.seen[0].0.drain(..).collect::<Vec<_>>(),
            [(to[0], b"one of many".to_vec())]
        );
        two.rails[0].forget(to[0]);
        two.rails[1].forget(to[1]);
    }
    two.turn();
    let (after, resident) = held();
    assert_eq!(after, before, "descriptors, maps");
    assert!(
        resident < settled + 1024,
        "{settled} KiB after a thousand, {resident} after all"
    );
}
