//! The even rank of a pair: carries out a plan and makes its rows.

use super::pingpong::Pingpong;
use super::row::{Hiccups, Rounds, Row};
use super::slices::{Heap, Slice, Slices, Target};
use super::stream::Stream;
use super::warm::Warming;
use super::{Progress, Session};
use crate::error::BenchError;
use crate::link::{Flow, Link};
use crate::plan::{Kind, Plan};
use crate::stats::{Percentiles, Spread, mean};

/// One of the two loads.
enum Load {
    Pingpong(Pingpong),
    Stream(Stream),
}

/// Carries out `plan` with the follower at the other end; one row per size, up to the one in which a stamped message
/// was lost for good.
///
/// # Errors
/// When the plan cannot be carried out, the peer is lost, or messages arrive damaged.
pub fn lead<L: Link>(
    session: &mut Session<'_, L>,
    plan: &Plan,
    progress: &mut dyn Progress,
) -> Result<Vec<Row>, BenchError> {
    plan.check()?;
    if plan.verify {
        session.verify(plan.spoil);
    }
    let mut rows = Vec::with_capacity(plan.sizes.len());
    for (index, size) in plan.sizes.iter().enumerate() {
        progress.size(index, plan.sizes.len(), size.bytes());
        rows.push(one_size(session, plan, size.bytes(), progress)?);
        if session.is_cut() {
            break;
        }
    }
    Ok(rows)
}

fn one_size<L: Link>(
    session: &mut Session<'_, L>,
    plan: &Plan,
    bytes: usize,
    progress: &mut dyn Progress,
) -> Result<Row, BenchError> {
    let mut load = match plan.kind {
        Kind::Pingpong => Load::Pingpong(Pingpong::new(session.link, bytes, plan.verify)?),
        Kind::Stream | Kind::Rate => {
            let flow = Flow {
                window: plan.window,
                posted: plan.posted,
            };
            Load::Stream(Stream::new(session.link, bytes, flow, plan.verify)?)
        }
    };
    let cost = if plan.verify {
        session.stamp_cost(bytes)?
    } else {
        0.0
    };
    let warming = warm(session, &mut load, bytes)?;
    let target = plan
        .samples
        .map_or(Target::Time(plan.seconds * 1e9), Target::Samples);
    let mut slices = Slices::new(target);
    let mut each = warming.best();
    let start = session.clock.ticks();
    let clock = session.clock;
    let elapsed = || clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start));
    let mut before = session.reference()?;
    while !slices.done(elapsed()) && !session.is_cut() {
        let left = slices.left(elapsed());
        let slice = load.slice(session, each, left, plan.samples)?;
        // The band may have changed since the warm-up: the next slice is planned with what this one took.
        each = mean(&slice.rounds).unwrap_or(each);
        let after = session.reference()?;
        slices.take(before, slice, after);
        before = after;
        progress.share(slices.share(elapsed()));
    }
    let exchanges = load.round_of(each, slices.left(0.0));
    let (heap, reference) = slices.finish();
    let pair = [session.link.rank(), session.link.peer()];
    let mut row = Row {
        bytes: bytes as u64,
        pair,
        samples: heap.samples,
        reference,
        ..match plan.kind {
            Kind::Pingpong => latencies(&heap, bytes),
            Kind::Stream | Kind::Rate => speeds(&heap, bytes),
        }
    };
    row.rounds.exchanges = exchanges;
    if plan.verify {
        row.verified = session.verdict(cost)?;
    }
    row.warm_up = warming.record();
    Ok(row)
}

fn warm<L: Link>(session: &mut Session<'_, L>, load: &mut Load, bytes: usize) -> Result<Warming, BenchError> {
    let mut warming = Warming::new(bytes);
    while let Some(exchanges) = warming.next().filter(|_| !session.is_cut()) {
        let nanos = match load {
            Load::Pingpong(load) => load.block(session, exchanges)?,
            Load::Stream(load) => load.block(session, exchanges)?,
        };
        warming.block(exchanges, nanos);
    }
    Ok(warming)
}

impl Load {
    fn slice<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        each: f64,
        left: f64,
        wanted: Option<u64>,
    ) -> Result<Slice, BenchError> {
        match self {
            Self::Pingpong(load) => load.slice(session, each, left, wanted),
            Self::Stream(load) => load.slice(session, each, left, wanted),
        }
    }

    fn round_of(&self, each: f64, left: f64) -> u64 {
        match self {
            Self::Pingpong(_) => Pingpong::round_of(each, left),
            Self::Stream(load) => load.messages(each, left),
        }
    }
}

/// The part of a row that latencies make.
fn latencies(heap: &Heap, bytes: usize) -> Row {
    let rtt = Percentiles {
        mean: mean(&heap.rounds),
        ..heap.recorder.percentiles()
    };
    let half = rtt.scaled(0.5);
    let per_second = half.mean.filter(|ns| *ns > 0.0).map(|ns| 1e9 / ns);
    Row {
        half_rtt_ns: half,
        rtt_ns: rtt,
        bytes_per_second: per_second.map(|n| n * bytes as f64),
        messages_per_second: per_second,
        rounds: rounds(heap),
        hiccups: hiccups(heap),
        overflow: heap.recorder.overflow(),
        histogram: heap.recorder.encoded(),
        ..Row::default()
    }
}

/// The part of a row that streams make.
fn speeds(heap: &Heap, bytes: usize) -> Row {
    let per_second = (heap.nanos > 0.0).then(|| heap.samples as f64 / (heap.nanos * 1e-9));
    Row {
        bytes_per_second: per_second.map(|n| n * bytes as f64),
        messages_per_second: per_second,
        rounds: rounds(heap),
        ..Row::default()
    }
}

fn rounds(heap: &Heap) -> Rounds {
    Rounds {
        count: heap.rounds.len() as u64,
        exchanges: 0,
        nanos: Spread::of(&heap.rounds),
    }
}

/// Exchanges that took this much longer than the median are stalls, not latency.
const HICCUP_NS: u64 = 10_000;

fn hiccups(heap: &Heap) -> Hiccups {
    let Some(middle) = heap.recorder.at(0.5) else {
        return Hiccups::default();
    };
    let count = heap.recorder.above(middle as u64 + HICCUP_NS);
    let longest = heap.recorder.percentiles().max.unwrap_or(middle) - middle;
    Hiccups {
        count,
        max_ns: if count > 0 { longest as u64 } else { 0 },
    }
}
