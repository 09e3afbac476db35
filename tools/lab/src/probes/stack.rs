//! PML and BTL with their driver taken out: two ranks on one thread, over a datagram rail that only copies
//! frames from one array to another. What that rail takes by itself, for as many frames of the same channels,
//! heads and bodies, is measured in turn and subtracted: what is left is fragments, window, acknowledgements
//! and matching, of both ends together.
//!
//! Twice: as a ping-pong of calls that wait, which is what a latency is made of, and as a stream of messages
//! in one direction, each received by a request that is posted, matched, completed and tested.
//!
//! `cargo xtask instructions` counts the same over several rails.

use std::hint::black_box;

use doorbell_bench::error::BenchError;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::message::{Body, PeerIndex};
use doorbell_pair::{End, Failed, Pair, Shape};

/// Messages for one look at the clock: two to four milliseconds.
const MESSAGES: u64 = 20_000;
/// Looks in turn, of which the best counts: where another tenant shares the core, half of them may take twice
/// as long.
const LOOKS: u32 = 30;
/// The same among idle peers: each count of them is looked at again in every round.
const LOOKS_AMONG: u32 = 10;
/// The latency that the copying rail declares, in nanoseconds.
const LATENCY: u64 = 100;

/// What one small message costs, in one of the two ways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    /// PML and BTL of both ends, without the driver, in nanoseconds.
    pub(crate) nanos: f64,
    /// What the copying rail took, which is not in it.
    #[cfg_attr(not(test), expect(dead_code, reason = "judged by the tests alone"))]
    pub(crate) driver_nanos: f64,
    /// Frames for each message, acknowledgements included.
    #[cfg_attr(not(test), expect(dead_code, reason = "judged by the tests alone"))]
    pub(crate) frames: f64,
}

/// How messages are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// There and back, by calls that wait.
    Waiting,
    /// One direction, by requests that are posted before and tested after.
    Posted,
}

/// Nanoseconds of PML and BTL for one 8-byte message: sent, received, matched, completed and acknowledged.
///
/// # Errors
/// When either refuses what it must not refuse.
pub(crate) fn stack_nanos(clock: &Clock, way: Way) -> Result<Stack, BenchError> {
    let mut pair = Pair::over(&[LATENCY]).map_err(failed)?;
    // What is posted for these is what is posted for all that follow: nothing depends on the time that passes
    // outside.
    messages(&mut pair, way).map_err(failed)?;
    let shapes = pair.shapes(|pair| messages(pair, way)).map_err(failed)?;
    let (mut all, mut driver) = (f64::INFINITY, f64::INFINITY);
    let before = pair.frames()[0];
    for _ in 0..LOOKS {
        let start = clock.ticks();
        messages(&mut pair, way).map_err(failed)?;
        all = all.min(clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)) / MESSAGES as f64);
        driver = driver.min(driver_nanos(clock, &shapes).map_err(failed)?);
    }
    let frames = (pair.frames()[0] - before) as f64 / (MESSAGES * u64::from(LOOKS)) as f64;
    // The best of each separately: a slow look at the driver must not be taken from a fast one at all of it.
    let driver_nanos = driver * frames;
    Ok(Stack {
        nanos: all - driver_nanos,
        driver_nanos,
        frames,
    })
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Thread {
        what: "PML and BTL without a driver",
        reason: error.to_string(),
    }
}

/// Sends as many messages as one look needs.
fn messages(pair: &mut Pair, way: Way) -> Result<(), Failed> {
    match way {
        Way::Waiting => (0..MESSAGES / 2).try_for_each(|_| pair.there_and_back()),
        Way::Posted => (0..MESSAGES).try_for_each(|_| pair.exchange()),
    }
}

/// A pair of ranks with idle peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Among {
    /// Half of a ping-pong of eight bytes, PML, BTL and the copying rail, in nanoseconds.
    pub(crate) half_ns: f64,
    /// A look for messages where there are none, in nanoseconds.
    pub(crate) look_ns: f64,
    /// By how much the process grew for each of the two ranks, in bytes of resident memory; `None` where the
    /// system does not report it. Right only in a process that did nothing before.
    pub(crate) resident_bytes: Option<f64>,
}

/// Returns what a pair of ranks takes that are connected to `idle` more.
///
/// # Errors
/// When PML or BTL refuses what it must not refuse.
pub(crate) fn among(clock: &Clock, idle: u32) -> Result<Among, BenchError> {
    let before = resident_bytes();
    let mut pair = Pair::among(&[LATENCY], idle).map_err(failed)?;
    let resident = before
        .zip(resident_bytes())
        .map(|(before, after)| (after - before) / 2.0);
    let (mut half, mut look) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..LOOKS_AMONG {
        let start = clock.ticks();
        for _ in 0..MESSAGES / 2 {
            pair.there_and_back().map_err(failed)?;
        }
        let between = clock.ticks();
        (0..MESSAGES).for_each(|_| pair.look());
        let each = |from: u64, to: u64| clock.ticks_to_nanos_f64(to.saturating_sub(from)) / MESSAGES as f64;
        half = half.min(each(start, between));
        look = look.min(each(between, clock.ticks()));
    }
    Ok(Among {
        half_ns: half,
        look_ns: look,
        resident_bytes: resident,
    })
}

/// Returns what of this process is in memory.
fn resident_bytes() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}

/// Returns what the copying rail takes for one of these frames by itself, in nanoseconds: posted, shown, and
/// looked at.
fn driver_nanos(clock: &Clock, shapes: &[Shape]) -> Result<f64, RailError> {
    const BYTES: [u8; 256] = [7; 256];
    let [mut near, mut far] = End::pair(0, LATENCY)?;
    let mut seen = 0u32;
    let start = clock.ticks();
    for shape in shapes {
        let (tx, _) = near.split();
        if tx.reserve(shape.channel, 1) == 1 {
            let (head, body) = (black_box(&BYTES[..shape.head]), &BYTES[..shape.body]);
            let body = if body.is_empty() {
                Body::Empty
            } else {
                Body::Bytes(body)
            };
            let posted = tx.post(shape.channel, PeerIndex(0), head, body);
            black_box(posted.is_ok());
        }
        tx.doorbell();
        let (_, rx) = far.split();
        for channel in [Channel::Priority, Channel::Data] {
            for i in 0..rx.poll(channel, 16) {
                if let Some(frame) = rx.frame(channel, i) {
                    black_box(frame.bytes.len());
                    seen += 1;
                }
            }
        }
    }
    let nanos = clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start));
    Ok(nanos / f64::from(seen.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_sane_and_acknowledgements_are_few() {
        for way in [Way::Waiting, Way::Posted] {
            let stack = stack_nanos(&Clock::start(), way).unwrap();
            assert!(stack.nanos > 1.0 && stack.nanos < 100_000.0, "{way:?}: {stack:?}");
            assert!(stack.driver_nanos > 0.0, "{way:?}: {stack:?}");
            // One frame for each message, and at most an acknowledgement for each second one.
            assert!((1.0..=1.6).contains(&stack.frames), "{way:?}: {stack:?}");
        }
    }

    #[test]
    fn frames_are_charged_as_they_are() {
        for way in [Way::Waiting, Way::Posted] {
            let mut pair = Pair::over(&[LATENCY]).unwrap();
            let before = pair.frames()[0];
            let shapes = pair.shapes(|pair| messages(pair, way)).unwrap();
            assert_eq!(shapes.len() as u64, pair.frames()[0] - before, "{way:?}");
            // Each message is a frame with its eight bytes in it; the others carry none.
            let bodies = shapes.iter().filter(|shape| shape.body > 0).count() as u64;
            assert!(bodies >= MESSAGES, "{way:?}: {bodies} of {}", shapes.len());
            assert!(
                shapes.iter().all(|shape| shape.head + shape.body <= 128),
                "{way:?}"
            );
            assert!(pair.shapes(|_| Ok(())).unwrap().is_empty());
        }
    }

    #[test]
    fn idle_peers_are_connected_and_cost_memory_alone() {
        let among = among(&Clock::start(), 100).unwrap();
        assert!(among.half_ns > 1.0 && among.look_ns > 0.1, "{among:?}");
        assert!(among.resident_bytes.unwrap() >= 0.0, "{among:?}");
    }

    #[test]
    fn small_messages_take_the_quickest_rail_or_all_that_are_equal() {
        let mut pair = Pair::over(&[2_000, 100, 1_000]).unwrap();
        (0..1_000).for_each(|_| pair.exchange().unwrap());
        let frames = pair.frames();
        assert!(frames[1] >= 1_000 && frames[0] + frames[2] < 100, "{frames:?}");
        let mut pair = Pair::over(&[100; 3]).unwrap();
        (0..999).for_each(|_| pair.there_and_back().unwrap());
        let frames = pair.frames();
        assert!(frames.iter().all(|frames| *frames >= 300), "{frames:?}");
    }
}
