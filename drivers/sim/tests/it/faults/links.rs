//! What a direction does to every frame: loss, copies, damage, order, delay, length, bandwidth, closed ways.

use std::time::Duration;

use doorbell_fabric::datagram::{Channel, Datagram, FrameId, Receive, Transmit};
use doorbell_fabric::event::{EventKind, Scope};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Body;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Burst, Change, Faults, Part, Plane, SimConfig, SimNet, Stats};

use super::two::{Two, assert_rate, number, two};

const FRAMES: u64 = 20_000;

#[test]
fn without_faults_everything_arrives_in_order_after_the_delay() {
    let mut two = two(1, Faults::NONE);
    let stats = two.run(1000);
    assert!(two.got.iter().map(|(_, bytes)| number(bytes)).eq(0..1000));
    let expected = Stats {
        frames_sent: 1000,
        frames_delivered: 1000,
        ..Stats::default()
    };
    assert_eq!(stats, expected);
    assert_eq!(two.net.held(), 0);
}

#[test]
fn loss() {
    for p in [0.01, 0.3] {
        let mut two = two(
            2,
            Faults {
                loss: p,
                ..Faults::NONE
            },
        );
        let stats = two.run(FRAMES);
        assert_rate(stats.lost, FRAMES, p);
        assert_eq!(two.got.len() as u64, FRAMES - stats.lost);
        assert_eq!(stats.frames_delivered, FRAMES - stats.lost);
    }
}

#[test]
fn duplication() {
    let mut two = two(
        3,
        Faults {
            duplicate: 0.05,
            ..Faults::NONE
        },
    );
    let stats = two.run(FRAMES);
    assert_rate(stats.duplicated, FRAMES, 0.05);
    assert_eq!(two.got.len() as u64, FRAMES + stats.duplicated);
    let mut numbers: Vec<u64> = two.got.iter().map(|(_, bytes)| number(bytes)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.into_iter().eq(0..FRAMES));
}

#[test]
fn corruption_flips_one_to_three_bits() {
    let mut two = two(
        4,
        Faults {
            corrupt: 0.1,
            ..Faults::NONE
        },
    );
    let stats = two.run(FRAMES);
    assert_rate(stats.corrupted, FRAMES, 0.1);
    let mut flips = [0; 4];
    // No reordering: the nth frame is the nth that was sent.
    for (n, (_, bytes)) in (0_u64..).zip(&two.got) {
        let sent = n.to_le_bytes().repeat(4);
        let differing: u32 = sent.iter().zip(bytes).map(|(a, b)| (a ^ b).count_ones()).sum();
        flips[differing as usize] += 1;
    }
    // Two flips of one bit leave no trace: with 256 bits, in a few of the corrupted frames.
    assert!(stats.corrupted - flips[1..].iter().sum::<u64>() < 30, "{flips:?}");
    assert!(flips[1] > 500 && flips[2] > 500 && flips[3] > 500, "{flips:?}");
}

#[test]
fn reordering_holds_frames_back_within_its_window() {
    let window = Duration::from_micros(10);
    let mut two = two(
        5,
        Faults {
            reorder: 0.2,
            reorder_window: window,
            ..Faults::NONE
        },
    );
    let stats = two.run(FRAMES);
    assert_rate(stats.reordered, FRAMES, 0.2);
    assert_eq!(two.got.len() as u64, FRAMES);
    let late = two
        .got
        .windows(2)
        .filter(|pair| number(&pair[1].1) < number(&pair[0].1))
        .count();
    assert!(late > 1000, "{late} frames arrive after a later one");
    for (at, bytes) in &two.got {
        let sent = number(bytes) * 1_000;
        let held = at.nanos() - sent - 1_000;
        assert!(held <= 10_000 + 1_000, "held back for {held} ns");
    }
}

#[test]
fn delay_and_jitter_are_spread_evenly() {
    let faults = Faults {
        delay: Duration::from_micros(20),
        jitter: Duration::from_nanos(900),
        ..Faults::NONE
    };
    let net = SimNet::new(
        6,
        SimConfig {
            faults,
            ..SimConfig::default()
        },
    );
    let (mut a, mut b) = (net.attach_datagram(), net.attach_datagram());
    let to_b = a.open(&b.address(), b.incarnation()).unwrap();
    let mut total = 0;
    for _ in 0..5_000 {
        let (tx, _) = a.split();
        assert_eq!(tx.reserve(Channel::Priority, 1), 1);
        tx.post(Channel::Priority, to_b, b"x", Body::Empty).unwrap();
        let sent = net.now();
        tx.doorbell();
        net.advance_to_next_event();
        assert_eq!(b.split().1.poll(Channel::Priority, 9), 1);
        let took = net.now().since(sent).as_nanos() as u64;
        assert!((20_000..=20_900).contains(&took), "{took}");
        total += took;
    }
    let mean = total / 5_000;
    assert!((20_430..=20_470).contains(&mean), "{mean}");
}

#[test]
fn the_mtu_cut_takes_long_frames_only() {
    let mut two = two(
        7,
        Faults {
            mtu: Some(100),
            ..Faults::NONE
        },
    );
    for length in [99, 100, 101, 1472] {
        two.post(&vec![0; length]);
    }
    two.play();
    let lengths: Vec<usize> = two.got.iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!((lengths, two.net.total().cut), (vec![99, 100], 2));
}

#[test]
fn bandwidth_paces_frames_holds_the_ring_and_overflows_the_queue() {
    let faults = Faults {
        bandwidth: Some(100_000_000),
        queue: 20_000,
        ..Faults::NONE
    };
    let mut two = two(8, faults);
    let (tx, _) = two.a.split();
    assert_eq!(tx.reserve(Channel::Data, 64), 64);
    for _ in 0..64 {
        tx.post(Channel::Data, two.to_b, &[0; 64], Body::Bytes(&[0; 936]))
            .unwrap();
    }
    tx.doorbell();
    assert_eq!(tx.reaped(Channel::Data), FrameId(0));
    two.net.advance_to(Time::from_nanos(10_000));
    assert_eq!(
        two.a.split().0.reaped(Channel::Data),
        FrameId(1),
        "1000 bytes at 100 MB/s take 10 us"
    );
    two.play();
    let stats = two.net.total();
    assert_eq!(
        stats.queue_dropped,
        64 - 21,
        "20 kB wait, and the one that crosses the line"
    );
    assert_eq!(two.got.len(), 21);
    assert_eq!(two.got[20].0, Time::from_nanos(21 * 10_000 + 1_000));
    assert_eq!(
        two.a.split().0.reaped(Channel::Data),
        FrameId(64),
        "dropped frames are let go of, too"
    );
}

#[test]
fn a_slow_receiver_overruns_its_ring_and_only_that() {
    let mut two = two(9, Faults::NONE);
    let places = two.net.config().data_ring as u64;
    for n in 0..places + 10 {
        two.post(&n.to_le_bytes());
    }
    while two.net.advance_to_next_event().is_some() {}
    assert_eq!(two.net.total().overrun, 10);
    two.take();
    assert!(two.got.iter().map(|(_, bytes)| number(bytes)).eq(0..places));
}

#[test]
fn pairs_and_planes_have_faults_of_their_own() {
    let net = SimNet::new(10, SimConfig::default());
    let west = net.add_plane("west");
    net.change(Change::Faults(
        west,
        Faults {
            loss: 1.0,
            ..Faults::NONE
        },
    ));
    let all_lost = Some(Faults {
        loss: 1.0,
        ..Faults::NONE
    });
    net.change(Change::PairFaults {
        plane: Plane::FIRST,
        from: 0,
        to: 1,
        faults: all_lost,
    });
    let passes = |plane, from: u32, to: u32| {
        let (mut a, mut b) = (
            net.attach_datagram_rank(from, plane),
            net.attach_datagram_rank(to, plane),
        );
        let to_b = a.open(&b.address(), b.incarnation()).unwrap();
        let (tx, _) = a.split();
        tx.reserve(Channel::Data, 1);
        tx.post(Channel::Data, to_b, b"x", Body::Empty).unwrap();
        tx.doorbell();
        while net.advance_to_next_event().is_some() {}
        b.split().1.poll(Channel::Data, 1) == 1
    };
    assert!(!passes(Plane::FIRST, 0, 1) && passes(Plane::FIRST, 1, 0) && passes(Plane::FIRST, 0, 2));
    assert!(!passes(west, 1, 0));
    net.change(Change::PairFaults {
        plane: Plane::FIRST,
        from: 0,
        to: 1,
        faults: None,
    });
    assert!(passes(Plane::FIRST, 0, 1));
    assert_eq!((net.stats(west).lost, net.stats(Plane::FIRST).lost), (1, 1));
}

#[test]
fn closed_paths_drop_frames_and_only_the_own_link_is_reported() {
    let mut two = two(11, Faults::NONE);
    let deliver = |two: &mut Two| {
        let before = two.got.len();
        two.post(b"x");
        two.play();
        two.got.len() - before
    };
    let (plane, from, to) = (Plane::FIRST, 0, 1);
    let breaks = [
        (
            Change::Cut { plane, from, to },
            Change::Heal { plane, from, to },
            false,
        ),
        (Change::LinkDown(plane, 1), Change::LinkUp(plane, 1), false),
        (Change::LinkDown(plane, 0), Change::LinkUp(plane, 0), true),
        (Change::PlaneDown(plane), Change::PlaneUp(plane), true),
    ];
    for (n, (down, up, told)) in (1..).zip(breaks) {
        assert_eq!(deliver(&mut two), 1);
        two.net.change(down);
        assert_eq!(
            (deliver(&mut two), two.net.total().unreachable),
            (0, n),
            "{down:?}"
        );
        two.net.change(up);
        two.play();
        let events: Vec<_> = std::iter::from_fn(|| two.a.event())
            .map(|e| (e.scope, e.kind))
            .collect();
        let expected = [
            (Scope::Rail, EventKind::LinkDown),
            (Scope::Rail, EventKind::LinkUp),
        ];
        assert_eq!(events, expected[..if told { 2 } else { 0 }], "{down:?}");
    }
    two.net.change(Change::Cut {
        plane,
        from: to,
        to: from,
    });
    assert_eq!(deliver(&mut two), 1, "the other direction is not this one");
}

#[test]
fn a_late_frame_of_an_old_life_reaches_the_new_one() {
    let mut two = two(
        12,
        Faults {
            delay: Duration::from_micros(100),
            ..Faults::NONE
        },
    );
    two.post(b"late");
    two.net.restart(1);
    two.b = two.net.attach_datagram_rank(1, Plane::FIRST);
    two.play();
    assert_eq!(two.got.len(), 1);
    two.net.change(Change::NicDeath(Plane::FIRST, 1));
    two.post(b"nobody");
    two.play();
    assert_eq!((two.got.len(), two.net.total().unreachable), (1, 1));
    assert_eq!(two.b.event().map(|event| event.kind), Some(EventKind::DeviceGone));
}

#[test]
fn a_segment_written_again_before_it_was_reaped_goes_out_wrong() {
    let mut two = two(
        13,
        Faults {
            bandwidth: Some(1_000_000),
            ..Faults::NONE
        },
    );
    let region = Region::new(4).unwrap();
    let (tx, _) = two.a.split();
    for text in [b"good", b"late"] {
        region.write(0, text);
        tx.reserve(Channel::Data, 1);
        tx.post(Channel::Data, two.to_b, b"", Body::Region(&region.whole()))
            .unwrap();
        tx.doorbell();
    }
    two.play();
    let texts: Vec<&[u8]> = two.got.iter().map(|(_, bytes)| &bytes[..]).collect();
    assert_eq!(
        texts,
        [b"late", b"late"],
        "the device reads when it sends, not at the doorbell"
    );
}

#[test]
fn losses_come_in_bursts_of_the_stated_length_and_share() {
    let burst = Burst {
        begin: 0.01,
        end: 0.2,
        loss: 1.0,
    };
    let mut two = two(
        14,
        Faults {
            burst: Some(burst),
            ..Faults::NONE
        },
    );
    let stats = two.run(FRAMES);
    assert_eq!(stats.lost, stats.lost_in_bursts);
    let share = stats.lost as f64 / FRAMES as f64;
    assert!(
        (0.035..=0.061).contains(&share),
        "begin / (begin + end) is 0.048: {share}"
    );
    let numbers: Vec<u64> = two.got.iter().map(|(_, bytes)| number(bytes)).collect();
    let gaps: Vec<u64> = numbers
        .windows(2)
        .map(|pair| pair[1] - pair[0] - 1)
        .filter(|&gap| gap > 0)
        .collect();
    let mean = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
    assert!((4.0..=6.0).contains(&mean), "1 / end is 5 frames: {mean}");
}

#[test]
fn one_direction_is_lossy_and_the_other_is_not() {
    let mut two = two(15, Faults::NONE);
    two.net.change(Change::PairFaults {
        plane: Plane::FIRST,
        from: 0,
        to: 1,
        faults: Some(Faults {
            loss: 0.5,
            ..Faults::NONE
        }),
    });
    let stats = two.run(2_000);
    assert_rate(stats.lost, 2_000, 0.5);
    std::mem::swap(&mut two.a, &mut two.b);
    two.to_b = two.a.open(&two.b.address(), two.b.incarnation()).unwrap();
    let before = two.got.len();
    assert_eq!(two.run(2_000).lost, stats.lost);
    assert_eq!(two.got.len() - before, 2_000);
}

#[test]
fn a_held_frame_is_overtaken_by_at_most_so_many() {
    let faults = Faults {
        reorder: 0.1,
        overtake: 64,
        ..Faults::NONE
    };
    let mut two = two(16, faults);
    let stats = two.run(FRAMES);
    assert_rate(stats.reordered, FRAMES, 0.1);
    let numbers: Vec<u64> = two.got.iter().map(|(_, bytes)| number(bytes)).collect();
    assert_eq!(numbers.len() as u64, FRAMES);
    let mut most = 0;
    let mut late = 0_u64;
    for (at, &number) in numbers.iter().enumerate() {
        // Frames behind it that were sent later and came earlier. Nothing is held longer than 64 + those that
        // were held themselves when they passed.
        let before = &numbers[at.saturating_sub(200)..at];
        let overtakers = before.iter().filter(|&&other| other > number).count();
        late += u64::from(overtakers > 0);
        most = most.max(overtakers);
    }
    assert!((40..=75).contains(&most), "{most}");
    assert!(late > stats.reordered * 9 / 10, "{late} of {}", stats.reordered);
}

#[test]
fn a_held_frame_that_nothing_follows_comes_in_the_end() {
    let faults = Faults {
        reorder: 1.0,
        overtake: 64,
        reorder_window: Duration::from_micros(50),
        ..Faults::NONE
    };
    let mut two = two(17, faults);
    two.post(b"alone...");
    two.play();
    assert_eq!(two.got.len(), 1);
    assert_eq!(two.got[0].0, Time::from_nanos(51_000));
    assert_eq!(two.net.held(), 0);
}

#[test]
fn truncation_keeps_a_true_beginning() {
    let mut two = two(
        18,
        Faults {
            truncate: 0.1,
            ..Faults::NONE
        },
    );
    let stats = two.run(FRAMES);
    assert_rate(stats.truncated, FRAMES, 0.1);
    let mut short = 0;
    for (n, (_, bytes)) in (0_u64..).zip(&two.got) {
        assert!(n.to_le_bytes().repeat(4).starts_with(bytes));
        short += u64::from(bytes.len() < 32);
    }
    assert_eq!(short, stats.truncated);
}

#[test]
fn added_bytes_stand_behind_the_true_ones_and_stay_below_the_mtu() {
    let mut two = two(
        19,
        Faults {
            lengthen: 1.0,
            ..Faults::NONE
        },
    );
    let stats = two.run(1_000);
    assert_eq!(stats.lengthened, 1_000);
    for (n, (_, bytes)) in (0_u64..).zip(&two.got) {
        assert!(bytes.starts_with(&n.to_le_bytes().repeat(4)));
        assert!((33..=96).contains(&bytes.len()), "{}", bytes.len());
    }
    let mtu = two.net.config().mtu;
    two.post(&vec![0; mtu]);
    two.play();
    assert_eq!(two.got[1_000].1.len(), mtu);
    assert_eq!(two.net.total().lengthened, 1_000);
}

#[test]
fn flipped_bits_stay_in_their_part() {
    for (part, hit) in [(Part::Head(8), 0..8), (Part::Body(24), 24..32)] {
        let faults = Faults {
            corrupt: 1.0,
            corrupt_part: part,
            ..Faults::NONE
        };
        let mut two = two(20, faults);
        assert_eq!(two.run(500).corrupted, 500);
        for (n, (_, bytes)) in (0_u64..).zip(&two.got) {
            let sent = n.to_le_bytes().repeat(4);
            let wrong = (0..32).filter(|&at| sent[at] != bytes[at]);
            assert!(wrong.clone().all(|at| hit.contains(&at)), "{part:?}: {wrong:?}");
        }
        two.post(&[7; 4]);
        two.play();
        let came = &two.got[500].1;
        assert_eq!(
            came == &[7; 4],
            part == Part::Body(24),
            "a frame without such a part is left alone"
        );
    }
}

#[test]
fn a_change_comes_at_its_virtual_time() {
    let mut two = two(21, Faults::NONE);
    let lossy = |loss| Change::Faults(Plane::FIRST, Faults { loss, ..Faults::NONE });
    two.net.at(Time::from_nanos(100_500), lossy(1.0));
    two.net.at(Time::from_nanos(200_500), lossy(0.0));
    two.run(300);
    let expected = (0..101).chain(201..300);
    assert!(two.got.iter().map(|(_, bytes)| number(bytes)).eq(expected));
}
