//! Nothing is allocated for a frame, and no message is sent for one: counted by the allocator itself, over
//! functions of a model whose queues are mapped.

use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_testing::alloc::{self, Counting};
use doorbell_usnic::{Control, UsnicConfig, UsnicRail};
use doorbell_vic::{Model, Options, Policy};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SOON: Duration = Duration::from_secs(20);

/// Frames alone and in runs, kept and not, on both channels, then quiet, and sleeping in between.
fn exchange(a: &mut UsnicRail, b: &mut UsnicRail, to_b: PeerIndex, clock: Instant) {
    let message = [7; 1000];
    for channel in [Channel::Priority, Channel::Data] {
        for (count, length) in [(1, 8), (40, 64), (3, 1000), (1, 0)] {
            let begun = Instant::now();
            while a.split().0.reserve(channel, count) < count {
                assert!(begun.elapsed() < SOON, "room comes back");
            }
            let (tx, _) = a.split();
            for _ in 0..count {
                tx.post(channel, to_b, b"head", Body::Bytes(&message[..length]))
                    .unwrap();
            }
            tx.doorbell();
            let (_, rx) = b.split();
            let mut seen = 0;
            while seen < count {
                assert!(begun.elapsed() < SOON, "{seen} of {count} frames came");
                let shown = rx.poll(channel, 16);
                seen += shown;
                if shown > 0 {
                    drop(rx.keep(channel, 0).unwrap());
                }
            }
        }
    }
    for rail in [a, b] {
        rail.progress(Time::from_nanos(clock.elapsed().as_nanos() as u64));
        let _ = rail.arm().unwrap();
        rail.disarm();
    }
}

#[test]
fn frames_allocate_nothing() {
    let model = Model::start(Options {
        policy: Policy::Permissive,
        ..Options::default()
    })
    .unwrap();
    let config = UsnicConfig {
        control: Control::Direct,
        ..UsnicConfig::default()
    };
    let open = |function: &str| {
        let name = format!("usnic:model/{}/{function}", model.dir().display());
        UsnicRail::open(&name.parse().unwrap(), &config).unwrap()
    };
    let (mut a, mut b) = (open("vf0"), open("vf1"));
    // The first to be opened has the model's one filter for ARP, and receives requests.
    let (to_a, to_b) = (a.address(), b.address());
    b.open(&to_a, Incarnation(1)).unwrap();
    let peer = a.open(&to_b, Incarnation(1)).unwrap();
    let clock = Instant::now();
    while !a.is_resolved(peer) {
        assert!(clock.elapsed() < SOON, "{a:?} {b:?}");
        for rail in [&mut a, &mut b] {
            rail.split().1.poll(Channel::Priority, 16);
            rail.progress(Time::from_nanos(clock.elapsed().as_nanos() as u64));
        }
    }
    // Once round both rings, so that everything has been used.
    (0..20).for_each(|_| exchange(&mut a, &mut b, peer, clock));
    let before = alloc::of_thread().allocations;
    (0..50).for_each(|_| exchange(&mut a, &mut b, peer, clock));
    assert_eq!(alloc::of_thread().allocations - before, 0);
}
