//! Comparisons of made-up runs: noise is noise, a change is a change, and unlike things are refused.

use super::*;
use crate::baseline::Band;
use crate::report::samples;
use proptest::prelude::*;

/// Samples of a slice: enough for its p99, and all slices together for p99.9.
const SLICE: u32 = 1_200;

/// A run whose samples and slices scatter by `noise` around `factor` times the usual, from a seed.
fn run(factor: f64, noise: f64, seed: u64) -> Report {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut report = samples::pingpong();
    report.environment.clock.step_ns = 1.0;
    report.results.truncate(3);
    for row in &mut report.results {
        let mut all = Recorder::new();
        row.repeats.clear();
        for _ in 0..12 {
            let mood = 1.0 + noise * (random() - 0.5);
            let mut slice = Recorder::new();
            let mut sum = 0.0;
            for _ in 0..SLICE {
                // A long tail: one in two hundred takes ten times as long.
                let tail = if random() < 0.005 {
                    10.0
                } else {
                    1.0 + 0.3 * random()
                };
                let nanos = 2_000.0 * factor * mood * tail;
                sum += nanos;
                slice.record(nanos as u64);
            }
            all.merge(&slice);
            row.repeats.push(Repeat {
                mean: Some(sum / f64::from(SLICE)),
                ..Repeat::of(&slice)
            });
        }
        let means: Vec<f64> = row.repeats.iter().filter_map(|repeat| repeat.mean).collect();
        row.rtt_ns = crate::stats::Percentiles {
            mean: crate::stats::mean(&means),
            ..all.percentiles()
        };
        row.half_rtt_ns = row.rtt_ns.scaled(0.5);
        row.histogram = all.encoded();
        row.samples = all.samples();
    }
    report
}

fn compared(a: &Report, b: &Report) -> Vec<Line> {
    assert_eq!(differs(a, b), None);
    lines(a, b)
}

fn findings(lines: &[Line]) -> Vec<Finding> {
    lines.iter().map(|line| line.finding).collect()
}

#[test]
fn runs_that_differ_by_their_own_noise_are_the_same() {
    let mut called = 0;
    let mut all = 0;
    for seed in 1..=20 {
        let lines = compared(&run(1.0, 0.1, seed), &run(1.0, 0.1, seed + 1_000));
        assert_eq!(lines.len(), 3 * 5);
        called += lines.iter().filter(|line| line.finding != Finding::Same).count();
        all += lines.len();
    }
    assert!(called * 100 <= all, "{called} of {all} lines are false alarms");
}

#[test]
fn a_change_beyond_the_noise_is_found_in_either_direction() {
    let (base, slow, fast) = (run(1.0, 0.04, 7), run(1.15, 0.04, 8), run(0.85, 0.04, 9));
    assert!(
        findings(&compared(&base, &slow))
            .iter()
            .all(|f| *f == Finding::Worse)
    );
    assert!(
        findings(&compared(&base, &fast))
            .iter()
            .all(|f| *f == Finding::Better)
    );
    let line = &compared(&base, &slow)[0];
    assert!(line.change.unwrap() > line.threshold.unwrap(), "{line:?}");
    assert!((line.change.unwrap() - 0.15).abs() < 0.03, "{line:?}");
}

#[test]
fn the_noisier_the_runs_the_more_it_takes() {
    let threshold = |noise: f64| {
        compared(&run(1.0, noise, 3), &run(1.0, noise, 4))[0]
            .threshold
            .unwrap()
    };
    assert!(threshold(0.02) < threshold(0.2) && threshold(0.2) < threshold(0.8));
    // The same change, lost in the noise.
    let lines = compared(&run(1.0, 0.8, 5), &run(1.1, 0.8, 6));
    assert!(findings(&lines).iter().all(|f| *f == Finding::Same), "{lines:?}");
}

#[test]
fn a_tail_alone_is_found() {
    let (a, mut b) = (run(1.0, 0.04, 1), run(1.0, 0.04, 2));
    let row = &mut b.results[0];
    let mut all = Recorder::decoded(&row.histogram).unwrap();
    (0..700).for_each(|_| all.record(50_000));
    row.histogram = all.encoded();
    row.rtt_ns.max = all.percentiles().max;
    for repeat in &mut row.repeats {
        repeat.p99 = Some(50_000.0);
    }
    let lines = compared(&a, &b);
    let of = |figure: &str| {
        lines
            .iter()
            .find(|line| line.figure == figure && line.bytes == 1)
            .unwrap()
            .finding
    };
    assert_eq!(
        (of("p50"), of("p99"), of("p999")),
        (Finding::Same, Finding::Worse, Finding::Worse)
    );
}

#[test]
fn a_machine_that_moved_between_the_runs_excuses_that_much() {
    let (a, mut b) = (run(1.0, 0.04, 1), run(1.15, 0.04, 2));
    for row in &mut b.results {
        row.reference.cache_line_half_rtt_ns = Some(52.0 * 1.2);
    }
    assert!(findings(&compared(&a, &b)).iter().all(|f| *f == Finding::Same));
    for row in &mut b.results {
        row.reference.band = Some(Band::Far);
    }
    let lines = compared(&a, &b);
    assert!(findings(&lines).iter().all(|f| *f == Finding::NotComparable));
    assert!(
        lines[0]
            .reason
            .as_ref()
            .unwrap()
            .contains("near in the first run and far")
    );
}

#[test]
fn streams_are_compared_by_the_time_for_each_message() {
    let streams = |factor: f64| {
        let mut report = samples::stream();
        for row in &mut report.results {
            let each = 1e9 / row.messages_per_second.unwrap() * factor;
            row.messages_per_second = Some(1e9 / each);
            row.repeats = (0..10)
                .map(|n| Repeat {
                    mean: Some(each * (1.0 + 0.002 * f64::from(n))),
                    ..Repeat::default()
                })
                .collect();
        }
        report
    };
    let lines = compared(&streams(1.0), &streams(1.2));
    assert_eq!(findings(&lines), [Finding::Worse; 4]);
    assert_eq!(
        findings(&compared(&streams(1.0), &streams(1.001))),
        [Finding::Same; 4]
    );
}

#[test]
fn unlike_things_are_refused_with_what_differs() {
    type Change = fn(&mut Report);
    let changes: [(&str, Change); 10] = [
        ("the rails differ (shm and udp:lo)", |r| {
            r.rail = "udp:lo".to_owned()
        }),
        ("the sizes differ", |r| r.results[1].bytes = 16),
        ("the windows differ", |r| r.window = 7),
        ("the calls differ", |r| r.posted = true),
        ("the kinds of memory differ", |r| r.plain = true),
        ("the modes of progress differ", |r| {
            r.environment.mode = "dedicated".to_owned()
        }),
        ("the cores differ (0,1 and 0,3)", |r| {
            r.environment.ranks[1].core = Some(3)
        }),
        ("the processors differ", |r| {
            r.environment.host.cpu_model = Some("another".to_owned());
        }),
        ("the stamps differ", |r| {
            r.results[0].verified = Some(crate::verify::Verified::default())
        }),
        ("no rows", |r| r.results.clear()),
    ];
    let a = run(1.0, 0.1, 1);
    for (word, change) in changes {
        let mut b = a.clone();
        change(&mut b);
        let said = differs(&a, &b).unwrap();
        assert!(said.contains(word), "{said}");
    }
    assert!(
        differs(&a, &samples::stream())
            .unwrap()
            .contains("the loads differ")
    );
}

#[test]
fn ranks_of_repetitions_leave_one_percent_outside() {
    assert_eq!(
        (depth(7), depth(8), depth(10), depth(20), depth(100)),
        (0, 1, 1, 4, 37)
    );
    assert!(depth(499).abs_diff(depth(501)) <= 2 && depth(100_000) < 50_000);
    assert_eq!(by_repeats(&[3.0, 1.0, 2.0]), (1.0, 3.0));
    assert_eq!(by_repeats(&[]), (0.0, 0.0));
    let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
    assert_eq!(by_repeats(&twenty), (4.0, 17.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn strange_figures_never_upset_it(values in prop::collection::vec(prop::num::f64::ANY, 0..20),
                                      samples in prop::collection::vec(any::<u64>(), 0..50)) {
        let mut a = run(1.0, 0.1, 1);
        let mut recorder = Recorder::new();
        samples.iter().for_each(|value| recorder.record(*value));
        a.results[0].histogram = recorder.encoded();
        a.results[1].histogram = "garbage".to_owned();
        a.results[0].repeats = values.iter().map(|value| Repeat { mean: Some(*value), p50: Some(*value), ..Repeat::default() }).collect();
        let b = run(1.0, 0.1, 2);
        let _ = (lines(&a, &b), lines(&b, &a));
        depth(values.len());
    }
}

#[test]
fn doubts_of_the_runs_stand_above_the_lines_and_what_one_has_alone_is_named() {
    let doubt = |code: &str, text: &str| Caveat {
        code: code.to_owned(),
        text: text.to_owned(),
    };
    let (mut a, mut b) = (run(1.0, 0.04, 7), run(1.15, 0.04, 8));
    let both = doubt("virtual", "this is a virtual machine \u{1b}[2J with a name");
    a.environment.doubts = vec![both.clone(), doubt("steal", "the hypervisor took 10 ms")];
    let throttled = "the quota of processor time of rank 0's control group was used up in 35 of 41 periods";
    b.environment.doubts = vec![
        both.clone(),
        doubt("steal", "the hypervisor took 70 ms"),
        doubt("throttled", throttled),
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, report: &Report| {
        let path = folder.path().join(name);
        std::fs::write(&path, report.json()).unwrap();
        path
    };
    let comparison = files(&file("a", &a), &file("b", &b)).unwrap();
    assert_eq!(comparison.doubts.both, [both]);
    assert_eq!(
        (comparison.doubts.first.len(), comparison.doubts.second.len()),
        (1, 2)
    );
    assert_eq!(comparison.finding(), Finding::Worse);
    let text = comparison.table();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (doubts, lines) = words.split_once(" size ").unwrap();
    for part in [
        "doubt, both: this is a virtual machine",
        "doubt, first: the hypervisor took 10 ms",
        "doubt, second: the hypervisor took 70 ms",
        throttled,
    ] {
        assert!(doubts.contains(part), "{part}: {text}");
    }
    assert!(lines.contains("one run alone has these doubts, and a change may come from them: throttled"));
    assert!(
        !text.contains('\u{1b}') && text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    // The same reports: nothing changed, and nothing is reported.
    let same = files(&file("a", &a), &file("a2", &a)).unwrap();
    assert!(same.table().contains("doubt, both:") && !same.table().contains("alone"));
}
