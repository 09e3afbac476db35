//! Nothing is allocated for a frame: counted by the allocator itself, over every way that a frame takes.

use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_testing::alloc::{self, Counting};
use doorbell_udp::{UdpConfig, UdpRail};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Frames alone and in runs, kept and not, on both channels, then quiet, and sleeping in between.
fn exchange(a: &mut UdpRail, b: &mut UdpRail, to_b: PeerIndex, round: u64) {
    let message = [7; 1000];
    for channel in [Channel::Priority, Channel::Data] {
        for (count, length) in [(1, 8), (40, 64), (3, 1000), (1, 0)] {
            let (tx, _) = a.split();
            assert_eq!(tx.reserve(channel, count), count);
            for _ in 0..count {
                tx.post(channel, to_b, b"head", Body::Bytes(&message[..length]))
                    .unwrap();
            }
            tx.doorbell();
            assert!(tx.reaped(channel).0 > 0);
            let (_, rx) = b.split();
            let mut seen = 0;
            while seen < count {
                let shown = rx.poll(channel, 16);
                seen += shown;
                if shown > 0 {
                    drop(rx.keep(channel, 0).unwrap());
                }
            }
        }
    }
    for n in 0..3000 {
        b.split().1.poll(
            if n % 2 == 0 {
                Channel::Priority
            } else {
                Channel::Data
            },
            16,
        );
    }
    for rail in [a, b] {
        rail.progress(Time::from_nanos(1 + round * 1_000_000));
        let _ = rail.arm().unwrap();
        rail.disarm();
    }
}

#[test]
fn frames_allocate_nothing() {
    for connected in [64, 0] {
        let config = UdpConfig {
            connected,
            ..UdpConfig::default()
        };
        let open = || UdpRail::open(&"udp:lo".parse().unwrap(), &config).unwrap();
        let (mut a, mut b) = (open(), open());
        let to_b = a.open(&b.address(), Incarnation(1)).unwrap();
        b.open(&a.address(), Incarnation(1)).unwrap();
        // The buffers that take the place of kept ones are made when first needed.
        (0..20).for_each(|round| exchange(&mut a, &mut b, to_b, round));
        let before = alloc::of_thread().allocations;
        (20..120).for_each(|round| exchange(&mut a, &mut b, to_b, round));
        assert_eq!(
            alloc::of_thread().allocations - before,
            0,
            "connected: {connected}"
        );
    }
}
