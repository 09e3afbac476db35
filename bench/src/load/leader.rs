//! The even rank of a pair: carries out a plan and makes its rows.

use super::open::OpenLoop;
use super::pingpong::Pingpong;
use super::row::{Hiccups, Rounds, Row};
use super::slices::{Heap, Slice, Slices, Target};
use super::stream::Stream;
use super::warm::Warming;
use super::{Progress, Session};
use crate::error::BenchError;
use crate::link::{Flow, Link};
use crate::plan::{Asked, Kind, Plan, RATE_MIN, SHARES};
use crate::stats::{Spread, mean};

/// One of the loads that a leader runs.
enum Load {
    Pingpong(Pingpong),
    Stream(Stream),
    Open(OpenLoop),
}

/// Carries out `plan` with the follower at the other end; returns one row per size, up to the one in which a
/// stamped message was lost for good.
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
        rows.append(&mut one_size(session, plan, size.bytes(), progress)?);
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
) -> Result<Vec<Row>, BenchError> {
    let mut load = match plan.kind {
        Kind::Pingpong => Load::Pingpong(Pingpong::new(session.link, bytes, plan.verify)?),
        Kind::Stream | Kind::Rate => {
            let flow = Flow {
                window: plan.window,
                posted: plan.posted,
                plain: plan.plain,
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
    let warmed = warming.best();
    let mut rows = match plan.open {
        None => vec![one_row(session, plan, &mut load, bytes, warmed, progress)?],
        Some(asked) => open_rows(session, plan, asked, bytes, warmed, progress)?,
    };
    for row in &mut rows {
        row.warm_up = warming.record();
        if let Some(verified) = &mut row.verified {
            verified.cost_ns = cost;
        }
    }
    if let (true, [row]) = (plan.one_way, &mut rows[..]) {
        match session.one_way(bytes, row.rtt_ns.mean.unwrap_or(warmed))? {
            Ok(one_way) => row.one_way = Some(one_way),
            Err(reason) => {
                session.no_one_way.get_or_insert(reason);
            }
        }
    }
    Ok(rows)
}

/// Measures the rows of an open loop: one at the requested rate, or some below the knee.
fn open_rows<L: Link>(
    session: &mut Session<'_, L>,
    plan: &Plan,
    asked: Asked,
    bytes: usize,
    each: f64,
    progress: &mut dyn Progress,
) -> Result<Vec<Row>, BenchError> {
    let mut load = OpenLoop::new(session.link, bytes)?;
    let (knee, rates) = match asked {
        Asked::PerSecond(rate) => (None, vec![rate]),
        Asked::Knee => {
            let found = load.find_knee(session, each, plan.seconds)?;
            let rates = SHARES.map(|share| (found.per_second * share).max(RATE_MIN));
            (Some(found), rates.to_vec())
        }
    };
    let mut load = Load::Open(load);
    let of = rates.len() as f64;
    let mut rows = Vec::with_capacity(rates.len());
    for rate in rates {
        if session.is_cut() && !rows.is_empty() {
            break;
        }
        if let Load::Open(load) = &mut load {
            load.set_rate(rate);
        }
        let mut part = Part {
            whole: progress,
            before: rows.len() as f64,
            of,
        };
        let mut row = one_row(session, plan, &mut load, bytes, each, &mut part)?;
        if let (Some(open), Some(knee)) = (&mut row.open, knee) {
            open.knee_per_second = Some(knee.per_second);
            open.knee_limit = Some(knee.limit);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Measures one of the rows of a size.
struct Part<'a> {
    whole: &'a mut dyn Progress,
    before: f64,
    of: f64,
}

impl Progress for Part<'_> {
    fn size(&mut self, index: usize, of: usize, bytes: usize) {
        self.whole.size(index, of, bytes);
    }

    fn share(&mut self, done: f64) {
        self.whole.share((self.before + done) / self.of);
    }
}

/// Measures slices until the row has enough.
fn one_row<L: Link>(
    session: &mut Session<'_, L>,
    plan: &Plan,
    load: &mut Load,
    bytes: usize,
    mut each: f64,
    progress: &mut dyn Progress,
) -> Result<Row, BenchError> {
    let target = plan
        .samples
        .map_or(Target::Time(plan.seconds * 1e9), Target::Samples);
    let mut slices = Slices::new(target);
    let start = session.clock.ticks();
    let clock = session.clock;
    let elapsed = || clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start));
    let mut before = session.reference()?;
    while !slices.done(elapsed()) && !session.is_cut() {
        let left = slices.left(elapsed());
        let slice = load.slice(session, each, left, plan.samples)?;
        // The band may have changed since the warm-up: the next slice is planned with what this one took.
        // With the median where there is one: after a single stall, the mean would plan a slice of a few
        // exchanges.
        let middle = slice.recorder.at(0.5).or_else(|| mean(&slice.rounds));
        each = middle.unwrap_or(each).max(1.0);
        let after = session.reference()?;
        session.look_around();
        slices.take(before, slice, after);
        before = after;
        progress.share(slices.share(elapsed()));
    }
    let exchanges = load.round_of(each, slices.left(0.0), session.link.ends_early());
    let elapsed_ns = elapsed();
    let (heap, reference) = slices.finish();
    let pair = [session.link.rank(), session.link.peer()];
    let mut row = Row {
        bytes: bytes as u64,
        pair,
        samples: heap.samples,
        measured_ns: heap.nanos,
        elapsed_ns,
        reference,
        ..match load {
            Load::Pingpong(_) => latencies(&heap, bytes),
            Load::Stream(_) => speeds(&heap, bytes),
            Load::Open(load) => asked(load, &heap, bytes),
        }
    };
    row.relate();
    row.rounds.exchanges = exchanges;
    row.repeats = heap.repeats;
    if plan.verify {
        row.verified = session.verdict(0.0)?;
    }
    Ok(row)
}

fn warm<L: Link>(session: &mut Session<'_, L>, load: &mut Load, bytes: usize) -> Result<Warming, BenchError> {
    let mut warming = Warming::new(bytes);
    while let Some(exchanges) = warming.next().filter(|_| !session.is_cut()) {
        let (exchanges, nanos) = match load {
            Load::Pingpong(load) => load.block(session, exchanges, warming.limit())?,
            Load::Stream(load) => load.block(session, exchanges, warming.limit())?,
            // Warm already: a closed loop went before.
            Load::Open(_) => break,
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
            Self::Open(load) => load.slice(session, left, wanted),
        }
    }

    fn round_of(&self, each: f64, left: f64, ends_early: bool) -> u64 {
        match self {
            Self::Pingpong(_) => Pingpong::round_of(each, left),
            Self::Stream(load) => load.messages(each, left, ends_early),
            Self::Open(_) => 1,
        }
    }
}

/// Makes a row of latencies.
fn latencies(heap: &Heap, bytes: usize) -> Row {
    let rtt = heap.recorder.percentiles();
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

/// Makes a row of an open loop.
fn asked(load: &OpenLoop, heap: &Heap, bytes: usize) -> Row {
    let (counted, actual) = &heap.open;
    let open = load.report(counted, actual);
    Row {
        rtt_ns: heap.recorder.percentiles(),
        bytes_per_second: open.answered_per_second.map(|n| n * bytes as f64),
        messages_per_second: open.answered_per_second,
        overflow: heap.recorder.overflow(),
        histogram: heap.recorder.encoded(),
        open: Some(open),
        ..Row::default()
    }
}

/// Makes a row of streams.
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

fn hiccups(heap: &Heap) -> Option<Hiccups> {
    let middle = heap.recorder.at(0.5)?;
    let count = heap.recorder.above(middle as u64 + HICCUP_NS);
    let longest = heap.recorder.percentiles().max.unwrap_or(middle) - middle;
    Some(Hiccups {
        count,
        max_ns: if count > 0 { longest as u64 } else { 0 },
    })
}
