//! Nothing is allocated for a frame: counted by the allocator itself, over every way that a frame takes.

use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_testing::alloc::{self, Counting};
use doorbell_testing::netns::Lab;
use doorbell_xdp::{Mode, XdpConfig, XdpRail};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Frames alone and in batches, short and in several chunks, kept and not, on both channels, then quiet, and
/// sleeping in between.
fn exchange(a: &mut XdpRail, b: &mut XdpRail, to_b: PeerIndex, round: u64) {
    let message = [7; 9000];
    let longest = a.granted().longest;
    for channel in [Channel::Priority, Channel::Data] {
        for (count, length) in [(1, 8), (40, 64), (3, 1000), (1, 0), (8, longest - 4)] {
            let (tx, _) = a.split();
            assert_eq!(tx.reserve(channel, count), count);
            for _ in 0..count {
                tx.post(channel, to_b, b"head", Body::Bytes(&message[..length]))
                    .unwrap();
            }
            tx.doorbell();
            let (_, rx) = b.split();
            let (mut seen, begun) = (0, Instant::now());
            while seen < count {
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "never happened: frames arrive"
                );
                let shown = rx.poll(channel, 16);
                seen += shown;
                if shown > 0 {
                    drop(rx.keep(channel, 0).unwrap());
                }
            }
            assert!(a.split().0.reaped(channel).0 > 0);
        }
    }
    for n in 0..300 {
        let channel = if n % 2 == 0 {
            Channel::Priority
        } else {
            Channel::Data
        };
        b.split().1.poll(channel, 16);
    }
    for rail in [a, b] {
        // Before the next check of the link and the neighbours, which allocates: what it reads has any
        // length.
        rail.progress(Time::from_nanos(1 + round));
        let _ = rail.arm().unwrap();
        rail.disarm();
    }
}

#[test]
fn frames_allocate_nothing() {
    for (mtu, mode) in [(1500, Mode::Generic), (1500, Mode::Native), (9000, Mode::Generic)] {
        let Some(lab) = Lab::pair("frames_allocate_nothing", mtu) else {
            return;
        };
        let config = XdpConfig {
            mode: Some(mode),
            ..XdpConfig::default()
        };
        let open = |side| {
            let rail = lab.inside(side, || XdpRail::open(&"xdp:v0".parse().unwrap(), &config));
            rail.unwrap()
        };
        let (mut a, mut b) = (open(0), open(1));
        let (at_a, at_b) = (a.address(), b.address());
        let to_b = lab
            .inside(0, || Datagram::open(&mut a, &at_b, Incarnation(1)))
            .unwrap();
        lab.inside(1, || Datagram::open(&mut b, &at_a, Incarnation(1)))
            .unwrap();
        let begun = Instant::now();
        while !a.is_resolved(to_b) {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "never happened: the neighbour is known"
            );
            a.progress(Time::from_nanos(begun.elapsed().as_nanos() as u64));
        }
        // From here on nothing is due.
        for rail in [&mut a, &mut b] {
            rail.progress(Time::from_nanos(1 << 60));
        }
        (0..20).for_each(|round| exchange(&mut a, &mut b, to_b, round));
        let before = alloc::of_thread().allocations;
        (20..120).for_each(|round| exchange(&mut a, &mut b, to_b, round));
        assert_eq!(alloc::of_thread().allocations - before, 0, "{mode}, MTU {mtu}");
        assert_eq!((a.stats().sent, b.stats().received), (120 * 106, 120 * 106));
    }
}
