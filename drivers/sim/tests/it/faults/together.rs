//! All faults at once: the books balance, and a seed is a run.

use std::time::Duration;

use doorbell_sim::{Aim, Burst, Change, Effect, Faults, Part, Pick, Pipe, Plane, SimConfig, Stats};

use super::two::{Two, two};

fn everything(seed: u64) -> Two {
    let pipe = Pipe {
        bandwidth: 40_000_000,
        queue: 500,
    };
    let faults = Faults {
        loss: 0.02,
        burst: Some(Burst {
            begin: 0.01,
            end: 0.3,
            loss: 0.9,
        }),
        duplicate: 0.05,
        corrupt: 0.05,
        corrupt_part: Part::Anywhere,
        truncate: 0.03,
        lengthen: 0.03,
        reorder: 0.1,
        reorder_window: Duration::from_micros(30),
        overtake: 16,
        delay: Duration::from_micros(2),
        jitter: Duration::from_micros(1),
        mtu: Some(64),
        bandwidth: Some(50_000_000),
        queue: 4_000,
        trunk: Some((1, pipe)),
        port: Some(pipe),
        aim: Some(Aim {
            pick: Pick {
                shortest: 20,
                ..Pick::ALL
            },
            first: 5,
            every: 50,
            times: 100,
            effect: Effect::Replay(Duration::from_micros(200)),
        }),
    };
    let two = two(seed, faults);
    for (at, change) in [
        (1_000_000, Change::Pause(1)),
        (1_200_000, Change::Resume(1)),
        (1_250_000, Change::NicStall(Plane::FIRST, 0)),
        (1_400_000, Change::NicResume(Plane::FIRST, 0)),
        (1_500_000, Change::LinkDown(Plane::FIRST, 1)),
        (1_520_000, Change::LinkUp(Plane::FIRST, 1)),
    ] {
        two.net.at(doorbell_fabric::time::Time::from_nanos(at), change);
    }
    two
}

/// Some of 32 bytes, some too long for the path.
fn load(two: &mut Two) -> Stats {
    for n in 0..2_000_u64 {
        let repeat = if n % 97 == 0 { 9 } else { 4 };
        two.post(&n.to_le_bytes().repeat(repeat));
        two.net.advance_to(two.net.now() + Duration::from_nanos(800));
        two.take();
    }
    two.play();
    two.net.total()
}

#[test]
fn every_frame_is_accounted_for() {
    let mut seen = Stats::default();
    for seed in 0..20 {
        let mut two = everything(seed);
        let stats = load(&mut two);
        assert_eq!(
            stats.frames_sent + stats.duplicated + stats.replayed,
            stats.frames_delivered + stats.frames_dropped(),
            "seed {seed}: {stats:?}"
        );
        assert_eq!((stats.frames_sent, two.net.held()), (2_000, 0), "seed {seed}");
        assert_eq!(two.got.len() as u64, stats.frames_delivered, "seed {seed}");
        seen += stats;
    }
    let of_frames = [
        "reordered",
        "reserves_short",
        "frames_sent",
        "frames_delivered",
        "lost",
        "lost_in_bursts",
        "aimed",
        "duplicated",
        "corrupted",
        "truncated",
        "lengthened",
        "replayed",
        "cut",
        "queue_dropped",
        "trunk_dropped",
        "port_dropped",
        "unreachable",
        "overrun",
    ];
    for (name, count) in seen.named().filter(|(name, _)| of_frames.contains(name)) {
        assert!(count > 0, "{name} never happened: this test does not test it");
    }
}

#[test]
fn equal_seeds_are_equal_runs_and_others_are_not() {
    let run = |seed| {
        let mut two = everything(seed);
        load(&mut two);
        (two.net.trace_hash(), two.net.trace_count(), two.got)
    };
    assert!(run(7) == run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn a_capture_changes_nothing() {
    let plain = {
        let mut two = everything(9);
        load(&mut two);
        two.net.trace_hash()
    };
    let mut two = everything(9);
    two.net.dump(std::io::sink());
    load(&mut two);
    assert_eq!(two.net.trace_hash(), plain);
    assert!(
        two.net
            .end_dump()
            .is_some_and(|end| end.written > 3_000 && end.lost == 0)
    );
    assert_eq!(SimConfig::default().faults, Faults::NONE);
}
