//! Made-up reports for the tests of the views.

use super::{Overall, Report, SCHEMA};
use crate::baseline::Band;
use crate::env::{Caveat, Environment, RankRecord};
use crate::load::{Open, Reference, Rounds, Row};
use crate::plan::Kind;
use crate::stats::{Recorder, Spread};

/// A ping-pong of a few sizes with a long tail; the last size has too few samples for its percentiles.
pub(crate) fn pingpong() -> Report {
    let sizes: [(u64, u64); 5] = [
        (1, 200_000),
        (8, 200_000),
        (64, 20_000),
        (4096, 2_000),
        (4 << 20, 60),
    ];
    let results: Vec<Row> = sizes
        .into_iter()
        .map(|(bytes, samples)| latency(bytes, samples))
        .collect();
    report(Kind::Pingpong, results)
}

/// A stream of a few sizes.
pub(crate) fn stream() -> Report {
    let results = [8u64, 1024, 65_536, 1 << 20].into_iter().map(speed).collect();
    report(Kind::Stream, results)
}

/// Small messages of a few sizes in one direction.
pub(crate) fn rate() -> Report {
    let results = [8u64, 64, 1024, 4096].into_iter().map(speed).collect();
    report(Kind::Rate, results)
}

/// Open loops at two rates.
pub(crate) fn open() -> Report {
    let row = |asked: f64, base: f64| {
        let (mut intended, mut actual) = (Recorder::new(), Recorder::new());
        for n in 0..20_000u32 {
            let tail = (20_000.0 / f64::from(n + 1)).log10();
            actual.record_exact(base * (1.0 + 0.5 * tail));
            intended.record_exact(base * (1.2 + tail * tail));
        }
        Row {
            bytes: 64,
            pair: [0, 1],
            samples: intended.samples(),
            measured_ns: 20_000.0 / asked * 1e9,
            elapsed_ns: 25_000.0 / asked * 1e9,
            rtt_ns: intended.percentiles(),
            bytes_per_second: Some(64.0 * asked),
            messages_per_second: Some(asked),
            histogram: intended.encoded(),
            open: Some(Open {
                asked_per_second: asked,
                answered_per_second: Some(asked),
                sent: 20_000,
                late: 400,
                actual_rtt_ns: actual.percentiles(),
                actual_histogram: actual.encoded(),
                ..Open::default()
            }),
            ..Row::default()
        }
    };
    report(
        Kind::Pingpong,
        vec![row(100_000.0, 800.5), row(200_000.0, 950.25)],
    )
}

fn report(kind: Kind, results: Vec<Row>) -> Report {
    let rank = |rank: u32| RankRecord {
        rank,
        core: Some(rank as usize),
        ..RankRecord::default()
    };
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        kind,
        rail: "shm".to_owned(),
        window: kind.default_window(),
        layer: crate::layer::Layer::Pml,
        posted: false,
        plain: false,
        started_unix_ms: 1_700_000_000_123,
        reference: Overall::of(&results),
        environment: Environment {
            version: "0.1.0".to_owned(),
            rail_reason: "all ranks are on this machine <&>".to_owned(),
            mode: "inline".to_owned(),
            ranks: vec![rank(0), rank(1)],
            doubts: vec![Caveat {
                code: "virtual".to_owned(),
                text: "this is a virtual machine (KVM): the host moves its cores and its time".to_owned(),
            }],
            ..Environment::default()
        },
        results,
        rail_counts: [("shm.sent".to_owned(), 7)].into(),
    };
    report.environment.clock.source = "tsc".to_owned();
    report
}

fn latency(bytes: u64, samples: u64) -> Row {
    let base = 110.0 + bytes as f64 * 0.11;
    let mut recorder = Recorder::new();
    for n in 0..samples {
        // A tail that doubles with each decade of rarity.
        let rarity = (samples as f64 / (n + 1) as f64).log10();
        recorder.record_exact(base * (1.0 + 0.8 * rarity * rarity));
    }
    let rtt = recorder.percentiles();
    let half = rtt.scaled(0.5);
    Row {
        bytes,
        pair: [0, 1],
        samples,
        measured_ns: samples as f64 * rtt.mean.unwrap_or(0.0),
        half_rtt_ns: half,
        rtt_ns: rtt,
        bytes_per_second: half.mean.map(|ns| bytes as f64 * 1e9 / ns),
        messages_per_second: half.mean.map(|ns| 1e9 / ns),
        rounds: Rounds {
            count: 9,
            exchanges: 1000,
            nanos: Spread::of(&[base, base * 1.2]),
        },
        reference: Reference {
            cache_line_half_rtt_ns: Some(52.0),
            band: Some(Band::Near),
            ratio: half.mean.map(|ns| ns / 52.0),
            unsteady: bytes == 64,
            ..Reference::default()
        },
        histogram: recorder.encoded(),
        ..Row::default()
    }
}

fn speed(bytes: u64) -> Row {
    let each = 35.0 + bytes as f64 / 14.0;
    Row {
        bytes,
        pair: [0, 1],
        samples: 1_000_000,
        measured_ns: 1_000_000.0 * each,
        bytes_per_second: Some(bytes as f64 * 1e9 / each),
        messages_per_second: Some(1e9 / each),
        rounds: Rounds {
            count: 20,
            exchanges: 50_000,
            nanos: Spread::of(&[each, each * 1.1]),
        },
        reference: Reference {
            cache_line_half_rtt_ns: Some(52.0),
            band: Some(Band::Near),
            memcpy_bytes_per_second: Some(16e9),
            memcpy_share: Some(bytes as f64 * 1e9 / each / 16e9),
            ..Reference::default()
        },
        ..Row::default()
    }
}
