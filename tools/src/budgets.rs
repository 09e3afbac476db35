//! `doorbell budgets`: what the design promises, measured in one run and judged.
//!
//! Measurements between two processes are made by this program's own `pingpong`, `rate` and `stream`: what is judged
//! is what every user can measure. Everything is repeated in turn, so that the machine's moods meet all rows alike.

use std::process::{Command, ExitCode};

use doorbell_bench::bare::Band;
use doorbell_bench::budgets::{
    Bound, Budget, Judged, Queue, Verdicts, Way, hand_over, hotel_nanos, matching_ratio, overlap_share,
    pml_nanos, raw_udp_nanos, ring_ratios, stack_nanos,
};
use doorbell_bench::error::BenchError;
use doorbell_bench::pin;
use doorbell_bench::report::Report;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::error::Exit;

use crate::cli::BudgetsArgs;
use crate::error::ToolError;
use crate::{out, outputs};

/// A bare exchange slower than this, in nanoseconds, is a bad base, and not a good result.
const BAD_BASE_NS: f64 = 400.0;
/// The same for a raw half round trip over UDP: a few microseconds when nothing disturbs it.
const BAD_UDP_BASE_NS: f64 = 10_000.0;
/// And so is one that moves by more than this factor while the rail is measured.
const BASE_MOVES: f64 = 1.5;
/// Cores for two ranks in dedicated mode.
const DEDICATED_CORES: usize = 4;
/// Bytes of the datagrams below the udp rail's 8: its own headers are part of what it costs.
const UDP_BYTES: usize = 8;

const NEAR: Budget = Budget {
    name: "8 B half round trip, shm, near",
    unit: "x",
    limit: 1.3,
    bound: Bound::AtMost,
    how: "tag-matched, inline, two processes on two cores, mean over rounds of 1,000 exchanges, as a multiple of the \
          bare cache-line exchange measured before and after each slice; near: 36 to 100 ns",
};
const FAR: Budget = Budget {
    name: "8 B half round trip, shm, far",
    unit: "x",
    limit: 1.15,
    bound: Bound::AtMost,
    how: "the same while the two cores are far apart: the bare exchange takes more than 100 ns",
};
const SIBLING: Budget = Budget {
    name: "8 B half round trip, shm, sibling",
    unit: "x",
    limit: 0.0,
    bound: Bound::None,
    how: "the same while the two cores are hardware threads of one core: the bare exchange takes up to 36 ns",
};
const DEDICATED: Budget = Budget {
    name: "8 B half round trip, dedicated",
    unit: "exchanges",
    limit: 4.0,
    bound: Bound::AtMost,
    how: "half round trip in dedicated mode less the one inline, in bare exchanges (half round trips of one line)",
};
const MAILBOX: Budget = Budget {
    name: "dedicated: the mailbox alone",
    unit: "exchanges",
    limit: 4.0,
    bound: Bound::AtMost,
    how: "a command through the mailbox to a thread on another core and its completion by one cache line, in bare \
          exchanges (half round trips of one line) between the same cores",
};
const RATE_NEAR: Budget = Budget {
    name: "message rate, 8 B, near",
    unit: "msg/s",
    limit: 29e6,
    bound: Bound::Above,
    how: "shm, one pair, one direction, blocking sends and receives; the best installed peer reaches 25 to 29 million",
};
const RATE_FAR: Budget = Budget {
    name: "message rate, 8 B, far",
    bound: Bound::None,
    ..RATE_NEAR
};
const RATE_POSTED: Budget = Budget {
    name: "message rate, 8 B, posted",
    bound: Bound::None,
    how: "the same with 512 non-blocking sends and receives outstanding and waited for together, near or far",
    ..RATE_NEAR
};
const BANDWIDTH: Budget = Budget {
    name: "bandwidth, 1 MiB, shm",
    unit: "x",
    limit: 0.9,
    bound: Bound::AtLeast,
    how: "64 outstanding, as a share of what one memcpy per message of that size allows on one core, measured before \
          and after each slice",
};
const PML: Budget = Budget {
    name: "PML, one 8 B message",
    unit: "ns",
    limit: 100.0,
    bound: Bound::AtMost,
    how: "send, and receive with match and completion, over a rail that costs nothing; best of three rounds of 200,000",
};
const STACK: Budget = Budget {
    name: "BTL + PML, one 8 B message",
    how: "ping-pong by calls that wait, two ranks on one thread over a datagram rail that only copies frames: sent, \
          received, matched and acknowledged; what that rail takes by itself for as many frames is subtracted; best of \
          thirty rounds of 20,000",
    ..PML
};
const STACK_POSTED: Budget = Budget {
    name: "BTL + PML, 8 B, posted",
    bound: Bound::None,
    how: "the same in one direction, received by requests that are posted, completed and tested",
    ..STACK
};
const HOTEL: Budget = Budget {
    name: "hotel, 4,096 rooms, in and out",
    unit: "ns",
    limit: 10.0,
    bound: Bound::AtMost,
    how: "check-in and check-out of one guest while 4,095 others stay, deadlines 200 to 460 µs away; best of \
          fifteen rounds of 200,000",
};
const HOTEL_TICK: Budget = Budget {
    name: "hotel, 4,096 rooms, empty tick",
    limit: 0.0,
    bound: Bound::None,
    how: "a tick by which time moves on and nothing expires, with 4,095 guests; it costs only what expires",
    ..HOTEL
};
const UDP: Budget = Budget {
    name: "8 B half round trip, udp:lo",
    unit: "x",
    limit: 1.15,
    bound: Bound::AtMost,
    how: "tag-matched, inline, two processes on two cores, mean over rounds of 1,000 exchanges, as a multiple of a raw \
          busy ping-pong over connected UDP sockets between the same cores, measured before and after it",
};
const RING: Budget = Budget {
    name: "SPSC ring, one value",
    unit: "x",
    limit: 0.97,
    bound: Bound::AtLeast,
    how: "push and pop on one thread, as a share of rtrb's rate, in turn with it, the best of five turns each",
};
const RING_SLICE: Budget = Budget {
    name: "SPSC ring, 64 values",
    how: "64 values pushed and popped by slice, as a share of rtrb's rate, in turn with it",
    ..RING
};
const POSTED: Budget = Budget {
    name: "matching, 100,000 posted",
    unit: "x",
    limit: 2.0,
    bound: Bound::AtMost,
    how: "a message with a fully given tag finds its entry, and the entry is posted again: time with 100,000 entries \
          over time with one",
};
const UNEXPECTED: Budget = Budget {
    name: "matching, 100,000 unexpected",
    how: "a receive with a fully given tag finds its kept message, and the message is kept again: time with 100,000 \
          over time with one",
    ..POSTED
};
const OVERLAP: Budget = Budget {
    name: "overlap, 4 MiB, dedicated",
    unit: "of 1",
    limit: 0.0,
    bound: Bound::None,
    how: "share of a 4 MiB receive that is hidden behind as much computation; 1 is all of it",
};

/// Everything that the repetitions measured.
#[derive(Debug, Default)]
struct Samples {
    near: Vec<f64>,
    far: Vec<f64>,
    sibling: Vec<f64>,
    rate_near: Vec<f64>,
    rate_far: Vec<f64>,
    rate_posted: Vec<f64>,
    bandwidth: Vec<f64>,
    dedicated: Vec<f64>,
    mailbox: Vec<f64>,
    pml: Vec<f64>,
    udp: Vec<f64>,
    /// Repetitions whose raw ping-pong was too slow, or did not stay as it was.
    bad_udp_bases: u32,
    /// Why the udp rail could not be measured.
    no_udp: Option<String>,
    stack: Vec<f64>,
    stack_posted: Vec<f64>,
    hotel: Vec<f64>,
    hotel_tick: Vec<f64>,
    ring: Vec<f64>,
    ring_slice: Vec<f64>,
    posted: Vec<f64>,
    unexpected: Vec<f64>,
    overlap: Vec<f64>,
    /// Repetitions whose bare exchange was too slow to compare with.
    bad_bases: u32,
}

/// `doorbell budgets`.
pub(crate) fn budgets(args: &BudgetsArgs) -> Result<ExitCode, ToolError> {
    let named: Vec<outputs::Named<'_>> = args
        .json
        .as_deref()
        .map(|name| ("--json", name))
        .into_iter()
        .collect();
    outputs::check(&named)?;
    let cores = pin::allowed();
    let clock = Clock::start();
    let mut samples = Samples::default();
    for repetition in 1..=args.repetitions {
        out::pass(&format!("repetition {repetition} of {}", args.repetitions));
        between_processes(&cores, &mut samples)?;
        over_udp(&clock, &cores, &mut samples)?;
        in_process(&clock, &cores, &mut samples)?;
    }
    out::pass("");
    let verdicts = Verdicts::new(judge(&samples, &cores));
    if !args.json.as_deref().is_some_and(outputs::is_stdout) {
        out::print(&verdicts.table())?;
    }
    if let Some(name) = &args.json {
        outputs::write(name, &verdicts.json(), &mut std::io::stdout().lock())?;
    }
    let exit = if verdicts.missed() {
        Exit::Verdict
    } else {
        Exit::Done
    };
    Ok(exit.into())
}

fn between_processes(cores: &[usize], samples: &mut Samples) -> Result<(), ToolError> {
    if cores.len() < 2 {
        return Ok(());
    }
    let inline = child(&["pingpong", "--sizes", "8", "--seconds", "0.2"])?;
    let row = &inline.results[0];
    let base = row.reference.cache_line_half_rtt_ns.unwrap_or(f64::INFINITY);
    match (row.reference.band, row.reference.ratio) {
        _ if base > BAD_BASE_NS => samples.bad_bases += 1,
        (Some(Band::Near), Some(ratio)) => samples.near.push(ratio),
        (Some(Band::Far), Some(ratio)) => samples.far.push(ratio),
        (Some(Band::Sibling), Some(ratio)) => samples.sibling.push(ratio),
        _ => {}
    }
    let rate = child(&["rate", "--sizes", "8", "--seconds", "0.2"])?;
    let row = &rate.results[0];
    match (row.reference.band, row.messages_per_second) {
        (Some(Band::Near), Some(rate)) => samples.rate_near.push(rate),
        (Some(Band::Far), Some(rate)) => samples.rate_far.push(rate),
        _ => {}
    }
    let posted = child(&["rate", "--posted", "512", "--sizes", "8", "--seconds", "0.2"])?;
    samples.rate_posted.extend(posted.results[0].messages_per_second);
    let stream = child(&["stream", "--sizes", "1Mi", "--seconds", "0.2"])?;
    samples.bandwidth.extend(stream.results[0].reference.memcpy_share);
    if cores.len() >= DEDICATED_CORES {
        let dedicated = child(&[
            "pingpong",
            "--sizes",
            "8",
            "--seconds",
            "0.2",
            "--mode",
            "dedicated",
        ])?;
        let ratios = (
            dedicated.results[0].reference.ratio,
            inline.results[0].reference.ratio,
        );
        if let (Some(dedicated), Some(inline)) = ratios {
            samples.dedicated.push(dedicated - inline);
        }
    }
    Ok(())
}

/// The udp rail between two looks at the sockets below it.
fn over_udp(clock: &Clock, cores: &[usize], samples: &mut Samples) -> Result<(), ToolError> {
    let (&[first, second, ..], None) = (cores, &samples.no_udp) else {
        return Ok(());
    };
    let before = raw_udp_nanos(clock, [first, second], UDP_BYTES)?;
    let pair = format!("{first},{second}");
    let args = [
        "pingpong",
        "--rail",
        "udp:lo",
        "--sizes",
        "8",
        "--seconds",
        "0.2",
        "--cores",
        &pair,
    ];
    let half = match child(&args) {
        Ok(report) => report.results[0].half_rtt_ns.mean,
        // A rail that is not there is a row that is not judged; everything else is an error.
        Err(ToolError::Bench(BenchError::Child {
            said,
            exit: Exit::Rail,
            ..
        })) => {
            samples.no_udp = Some(said.trim_start_matches("doorbell: ").to_owned());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let after = raw_udp_nanos(clock, [first, second], UDP_BYTES)?;
    let (least, most) = (before.min(after), before.max(after));
    if most > BAD_UDP_BASE_NS || most > BASE_MOVES * least {
        samples.bad_udp_bases += 1;
    } else {
        samples.udp.extend(half.map(|half| half / before.midpoint(after)));
    }
    Ok(())
}

fn in_process(clock: &Clock, cores: &[usize], samples: &mut Samples) -> Result<(), ToolError> {
    let [one, slice] = ring_ratios(clock)?;
    samples.stack.push(stack_nanos(clock, Way::Waiting)?.nanos);
    samples.stack_posted.push(stack_nanos(clock, Way::Posted)?.nanos);
    let [stay, tick] = hotel_nanos(clock)?;
    samples.hotel.push(stay);
    samples.hotel_tick.push(tick);
    samples.ring.push(one);
    samples.ring_slice.push(slice);
    samples.pml.push(pml_nanos(clock)?);
    samples.posted.push(matching_ratio(clock, Queue::Posted));
    samples.unexpected.push(matching_ratio(clock, Queue::Unexpected));
    samples.overlap.push(overlap_share()?);
    if let [first, second, ..] = *cores {
        let measured = hand_over([first, second])?;
        if measured.bare_ns <= BAD_BASE_NS {
            samples.mailbox.push(measured.exchanges());
        } else {
            samples.bad_bases += 1;
        }
    }
    Ok(())
}

fn judge(samples: &Samples, cores: &[usize]) -> Vec<Judged> {
    let alone = (cores.len() < 2).then(|| "there is one core only".to_owned());
    let few = (cores.len() < DEDICATED_CORES).then(|| {
        format!(
            "two ranks in dedicated mode need {DEDICATED_CORES} cores, and {} can be used here",
            cores.len()
        )
    });
    let udp = samples.no_udp.clone().or(alone.clone()).or_else(|| {
        samples.udp.is_empty().then(|| {
            format!(
                "the raw ping-pong below it was above {:.0} µs or did not stay as it was, {} times",
                BAD_UDP_BASE_NS / 1e3,
                samples.bad_udp_bases
            )
        })
    });
    let band = |values: &[f64], band: &str| {
        let mut other = format!("the two cores were never {band} in this run");
        if samples.bad_bases > 0 {
            let bad = samples.bad_bases;
            other.push_str(&format!(
                " ({bad} repetitions had a bare exchange above {BAD_BASE_NS} ns)"
            ));
        }
        alone.clone().or(values.is_empty().then_some(other))
    };
    vec![
        NEAR.judge(&samples.near, band(&samples.near, "near")),
        FAR.judge(&samples.far, band(&samples.far, "far")),
        SIBLING.judge(&samples.sibling, band(&samples.sibling, "threads of one core")),
        DEDICATED.judge(&samples.dedicated, few.clone()),
        MAILBOX.judge(&samples.mailbox, alone.clone()),
        RATE_NEAR.judge(&samples.rate_near, band(&samples.rate_near, "near")),
        RATE_FAR.judge(&samples.rate_far, band(&samples.rate_far, "far")),
        RATE_POSTED.judge(&samples.rate_posted, alone.clone()),
        BANDWIDTH.judge(&samples.bandwidth, alone.clone()),
        UDP.judge(&samples.udp, udp),
        PML.judge(&samples.pml, None),
        STACK.judge(&samples.stack, None),
        STACK_POSTED.judge(&samples.stack_posted, None),
        HOTEL.judge(&samples.hotel, None),
        HOTEL_TICK.judge(&samples.hotel_tick, None),
        RING.judge(&samples.ring, None),
        RING_SLICE.judge(&samples.ring_slice, None),
        POSTED.judge(&samples.posted, None),
        UNEXPECTED.judge(&samples.unexpected, None),
        OVERLAP.judge(&samples.overlap, few),
    ]
}

/// Runs one of our own measurements and reads its report.
fn child(args: &[&str]) -> Result<Report, ToolError> {
    let own = std::env::current_exe().map_err(|source| ToolError::System {
        what: "find this program",
        source,
    })?;
    let ended = Command::new(own)
        .args(args)
        .args(["--json", "-"])
        .env_remove("DOORBELL_RANK")
        .output()
        .map_err(|source| ToolError::System {
            what: "start a measurement",
            source,
        })?;
    let failed = |status: String, said: String, exit: Exit| {
        ToolError::Bench(BenchError::Child {
            command: format!("doorbell {}", args.join(" ")),
            status,
            said,
            exit,
        })
    };
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let exit = exit_of(ended.status.code());
        return Err(failed(ended.status.to_string(), said.trim().to_owned(), exit));
    }
    let report: Report = serde_json::from_slice(&ended.stdout).map_err(|error| {
        failed(
            "a report that is none".to_owned(),
            error.to_string(),
            Exit::System,
        )
    })?;
    if report.results.is_empty() {
        return Err(failed(
            "an empty report".to_owned(),
            "no row".to_owned(),
            Exit::System,
        ));
    }
    Ok(report)
}

fn exit_of(code: Option<i32>) -> Exit {
    match code {
        Some(2) => Exit::Usage,
        Some(3) => Exit::Rail,
        Some(4) => Exit::PeerLost,
        Some(5) => Exit::TimedOut,
        _ => Exit::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_bench::budgets::Verdict;

    #[test]
    fn rows_that_cannot_be_judged_here_say_why() {
        let samples = Samples {
            near: vec![1.2],
            mailbox: vec![3.0],
            rate_far: vec![9e6],
            ..Samples::default()
        };
        let rows = judge(&samples, &[0, 1]);
        let row = |name: &str| rows.iter().find(|row| row.name.contains(name)).unwrap();
        assert_eq!(row("shm, near").verdict, Verdict::Met);
        assert!(row("shm, far").reason.as_ref().unwrap().contains("never far"));
        assert!(
            row("half round trip, dedicated")
                .reason
                .as_ref()
                .unwrap()
                .contains("need 4 cores")
        );
        assert_eq!(row("mailbox").verdict, Verdict::Met);
        assert!(row("udp:lo").reason.as_ref().unwrap().contains("did not stay"));
        assert_eq!(row("rate, 8 B, far").verdict, Verdict::NotJudged);
        assert!(
            judge(&samples, &[0])[0]
                .reason
                .as_ref()
                .unwrap()
                .contains("one core")
        );
    }
}
