//! The measurements: rounds after a warm-up, and the row of each size.

use std::time::{Duration, Instant};

use crate::Result;
use crate::link::Link;
use crate::order::{BOUNCE, SINK};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Half round trips.
    Latency,
    /// Messages a second in one direction.
    Stream,
}

/// The time that a round or a block takes, about.
const ROUND: Duration = Duration::from_millis(20);
/// The warm-up is doorbell's own (bench/src/load/warm.rs): blocks of this time, until `WARM_STEADY` of them
/// in a row were not `WARM_BETTER` better than the best one, with caps.
const WARM_BLOCK: Duration = Duration::from_millis(4);
const WARM_STEADY: u32 = 4;
const WARM_BETTER: f64 = 0.02;
const WARM_BLOCKS_MAX: u32 = 60;
const WARM_MAX: Duration = Duration::from_millis(400);
const SAMPLES_MAX: usize = 1 << 20;

impl Kind {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "latency" => Some(Self::Latency),
            "stream" => Some(Self::Stream),
            _ => None,
        }
    }
}

/// Measures one size.
pub(crate) fn row(link: &Link, kind: Kind, bytes: usize, seconds: f64) -> Result<String> {
    match kind {
        Kind::Latency => latency(link, bytes, seconds),
        Kind::Stream => stream(link, bytes, seconds),
    }
}

fn latency(link: &Link, bytes: usize, seconds: f64) -> Result<String> {
    let mut each = warmed(|count| bounce(link, bytes, count, &mut Vec::new()), 4)?;
    let (begun, mut total, mut samples) = (Instant::now(), 0.0, Vec::with_capacity(SAMPLES_MAX));
    while begun.elapsed().as_secs_f64() < seconds && samples.len() < SAMPLES_MAX {
        let count = fitting(ROUND, each).min(SAMPLES_MAX - samples.len());
        let took = bounce(link, bytes, count, &mut samples)?;
        each = took / count as f64;
        total += took;
    }
    let mean = total / samples.len().max(1) as f64 / 2.0;
    samples.sort_by(f64::total_cmp);
    let of = |quantile| percentile(&samples, quantile);
    Ok(format!(
        "row latency bytes={bytes} mean_ns={mean:.2} p50_ns={} p90_ns={} p99_ns={} p999_ns={} p9999_ns={} samples={}",
        of(0.5),
        of(0.9),
        of(0.99),
        of(0.999),
        of(0.9999),
        samples.len()
    ))
}

fn stream(link: &Link, bytes: usize, seconds: f64) -> Result<String> {
    // Whole windows, and two of them at least: the answer at the end is to be nothing beside them.
    let least = 2 * link.window;
    let mut each = warmed(|count| sink(link, bytes, count), link.window)?;
    let (begun, mut total, mut messages) = (Instant::now(), 0.0, 0);
    while begun.elapsed().as_secs_f64() < seconds {
        let count = fitting(ROUND, each).max(least);
        let took = sink(link, bytes, count)?;
        each = took / count as f64;
        total += took;
        messages += count;
    }
    let rate = messages as f64 / total * 1e9;
    Ok(format!("row stream bytes={bytes} per_second={rate:.2}"))
}

/// A round of exchanges; its nanoseconds. Every exchange is timed from one moment at which its message is
/// under way to the next; what is before the first and behind the last is one exchange together.
fn bounce(link: &Link, bytes: usize, count: usize, samples: &mut Vec<f64>) -> Result<f64> {
    link.give([BOUNCE, count as u64, bytes as u64])?;
    let begun = Instant::now();
    let (mut first, mut last) = (Duration::ZERO, begun);
    for turn in 0..count {
        link.send(bytes)?;
        let now = Instant::now();
        match turn {
            0 => first = now - begun,
            _ => samples.push(nanos(now - last)),
        }
        last = now;
        link.receive(turn)?;
    }
    let end = Instant::now();
    samples.push(nanos(first + (end - last)));
    Ok(nanos(end - begun))
}

/// A block of messages in one direction, and the report of their end; its nanoseconds.
fn sink(link: &Link, bytes: usize, count: usize) -> Result<f64> {
    link.give([SINK, count as u64, bytes as u64])?;
    let begun = Instant::now();
    for _ in 0..count {
        link.send(bytes)?;
    }
    link.take()?;
    Ok(nanos(begun.elapsed()))
}

/// Blocks until they stop getting better; nanoseconds of an exchange or message in the best one.
fn warmed(mut block: impl FnMut(usize) -> Result<f64>, least: usize) -> Result<f64> {
    let (mut best, mut each, mut spent) = (f64::INFINITY, f64::INFINITY, 0.0);
    let (mut blocks, mut idle) = (0, 0);
    while idle < WARM_STEADY && blocks < WARM_BLOCKS_MAX && spent < nanos(WARM_MAX) {
        let count = fitting(WARM_BLOCK, each).max(least);
        let took = block(count)?;
        each = took / count as f64;
        let better = each < best * (1.0 - WARM_BETTER);
        idle = if better { 0 } else { idle + 1 };
        best = best.min(each);
        spent += took;
        blocks += 1;
    }
    Ok(best)
}

/// As many as fit into a time.
fn fitting(time: Duration, each_ns: f64) -> usize {
    const MOST: f64 = 1e6;
    (nanos(time) / each_ns.max(1.0)).clamp(1.0, MOST) as usize
}

/// A percentile of half round trips with ten samples beyond it; a dash where there are fewer.
fn percentile(sorted: &[f64], quantile: f64) -> String {
    if (sorted.len() as f64) * (1.0 - quantile) + 1e-6 < 10.0 {
        return "-".to_owned();
    }
    format!(
        "{:.1}",
        sorted[((sorted.len() - 1) as f64 * quantile) as usize] / 2.0
    )
}

fn nanos(time: Duration) -> f64 {
    time.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_need_ten_samples_beyond_them() {
        let samples: Vec<f64> = (0..1_000).map(f64::from).collect();
        assert_eq!(percentile(&samples, 0.5), "249.5");
        assert_eq!(percentile(&samples, 0.99), "494.5");
        assert_eq!(percentile(&samples, 0.999), "-");
    }

    #[test]
    fn a_warm_up_ends_when_blocks_stop_getting_better() {
        let mut blocks = 0;
        let best = warmed(
            |count| {
                blocks += 1;
                Ok(if blocks < 3 { 200.0 } else { 100.0 } * count as f64)
            },
            4,
        );
        assert_eq!((best.unwrap(), blocks), (100.0, 3 + WARM_STEADY as usize));
    }
}
