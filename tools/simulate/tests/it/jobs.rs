//! A slice of what `cargo xtask simulate` runs: ten seeds of ten thousand messages, every class of faults
//! among them; and what a failure looks like.

use doorbell_fabric::pcapng::{Block, Blocks, Direction};
use doorbell_fabric::time::Time;
use doorbell_sim::{Change, Plane};
use doorbell_simulate::{Class, Kind, Outcome, SimulatedJob, Stack};

fn job(seed: u64, class: Class, messages: usize) -> SimulatedJob {
    SimulatedJob {
        seed,
        class,
        stack: Stack::of(seed),
        ranks: 8,
        messages,
        mtu: None,
        script: Vec::new(),
    }
}

fn good(job: &SimulatedJob) -> Outcome {
    match job.run(None) {
        Ok(outcome) => outcome,
        Err(failure) => panic!("{failure}"),
    }
}

fn slice(seeds: std::ops::RangeInclusive<u64>) {
    for seed in seeds {
        let class = Class::EACH[seed as usize % Class::EACH.len()];
        let outcome = good(&job(seed, class, 10_000));
        let faults = outcome.network;
        let rate = |count: u64| count as f64 / faults.frames_sent as f64;
        match class {
            Class::None => assert_eq!(faults.lost + faults.duplicated + faults.corrupted, 0),
            Class::Loss1 => assert!(rate(faults.lost) > 0.008),
            Class::Loss10 => assert!(rate(faults.lost) > 0.08),
            Class::Duplicate10 => assert!(rate(faults.duplicated) > 0.08),
            Class::Reorder64 => assert!(rate(faults.reordered) > 0.08),
            Class::Corrupt => assert!(faults.corrupted > 10),
            Class::All => assert!(faults.lost > 0 && faults.duplicated > 0 && faults.reordered > 0),
        }
    }
}

#[test]
fn ten_thousand_messages_with_each_of_five_seeds() {
    slice(1..=5);
}

#[test]
fn ten_thousand_messages_with_each_of_five_more() {
    slice(6..=10);
}

#[test]
fn equal_seeds_are_equal_runs() {
    for stack in [Stack::Worlds, Stack::Pml] {
        let run = |seed, class| {
            good(&SimulatedJob {
                stack,
                ..job(seed, class, 150)
            })
            .hash
        };
        for (seed, class) in (20..).zip(Class::EACH) {
            assert_eq!(run(seed, class), run(seed, class), "{class}");
        }
        assert_ne!(run(1, Class::All), run(2, Class::All));
        assert_ne!(run(1, Class::Loss1), run(1, Class::Loss10));
    }
}

#[test]
fn a_whole_job_can_be_captured_and_stays_the_same() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let job = job(5, Class::All, 100);
    let captured = job.capture(file.path()).unwrap();
    assert_eq!(captured.hash, good(&job).hash);
    let bytes = std::fs::read(file.path()).unwrap();
    let out = Blocks::of(&bytes).filter(|block| match block.as_ref().unwrap() {
        Block::Packet(packet) => packet.direction == Direction::Out,
        _ => false,
    });
    assert_eq!(out.count() as u64, captured.network.frames_sent);
}

/// Nothing passes from rank 2 to rank 5 any more, some time after the start.
#[test]
fn a_failure_names_what_is_lost_how_to_repeat_it_and_has_a_capture() {
    let cut = Change::Cut {
        plane: Plane::FIRST,
        from: 2,
        to: 5,
    };
    let broken = SimulatedJob {
        script: vec![(Time::from_nanos(400_000), cut)],
        ..job(3, Class::Loss1, 2_000)
    };
    let folder = tempfile::tempdir().unwrap();
    let failure = broken.run(Some(folder.path())).unwrap_err();
    assert!(matches!(failure.kind, Kind::Lost(_)), "{failure}");
    let text = failure.to_string();
    for part in [
        "cargo xtask simulate --seed 3 --fault loss1 --messages 2000 --stack pml",
        "rank 5: ",
        "Message { from: 2, to: 5,",
        "loss1-pml-3.pcapng",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let bytes = std::fs::read(failure.capture.as_ref().unwrap()).unwrap();
    let packets = Blocks::of(&bytes).filter_map(|block| match block.unwrap() {
        Block::Packet(packet) => Some(packet),
        _ => None,
    });
    let unreachable = packets
        .filter(|packet| packet.comments.iter().any(|text| text.contains("closed")))
        .count();
    assert!(
        unreachable > 5,
        "the capture shows what goes wrong: {unreachable}"
    );
}
