//! What is measured on this host: between two processes, over its loopback, and inside this one.

use doorbell_bench::baseline::Band;
use doorbell_bench::error::BenchError;
use doorbell_fabric::clock::Clock;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::Stop;

use super::asked::Asker;
use super::base::Base;
use super::{BAD_BASE_NS, DEDICATED_CORES};
use crate::probes::{
    Asked, Queue, Way, hand_over, hotel_nanos, matching_ratio, overlap_share, pml_nanos, raw_udp_nanos,
    ring_ratios, stack_nanos,
};

/// Bytes of the datagrams below the udp rail's 8: its own headers are part of what it costs.
const UDP_BYTES: usize = 8;

/// What the repetitions measured between two processes that share memory.
#[derive(Debug, Default)]
pub(super) struct Shm {
    pub(super) near: Vec<f64>,
    pub(super) far: Vec<f64>,
    pub(super) sibling: Vec<f64>,
    pub(super) rate_near: Vec<f64>,
    pub(super) rate_far: Vec<f64>,
    pub(super) rate_posted: Vec<f64>,
    pub(super) bandwidth: Vec<f64>,
    pub(super) bandwidth_regions: Vec<f64>,
    pub(super) dedicated: Vec<f64>,
    pub(super) put: Vec<f64>,
    pub(super) request: Vec<f64>,
    pub(super) request_rate: Vec<f64>,
    /// Repetitions whose bare exchange was too slow to compare with.
    pub(super) bad_bases: u32,
    /// Measurements during which the cores did not stay near or far.
    pub(super) unsteady: u32,
}

/// What they measured over the loopback.
#[derive(Debug, Default)]
pub(super) struct Loopback {
    pub(super) half: Vec<f64>,
    /// Repetitions whose raw ping-pong cannot be compared with.
    pub(super) bad_bases: u32,
    /// Why the udp rail could not be measured.
    pub(super) lacks: Option<String>,
}

/// What they measured in this process.
#[derive(Debug, Default)]
pub(super) struct Inside {
    pub(super) mailbox: Vec<f64>,
    pub(super) bad_bases: u32,
    pub(super) pml: Vec<f64>,
    pub(super) stack: Vec<f64>,
    pub(super) stack_posted: Vec<f64>,
    pub(super) hotel: Vec<f64>,
    pub(super) hotel_tick: Vec<f64>,
    pub(super) ring: Vec<f64>,
    pub(super) ring_slice: Vec<f64>,
    pub(super) posted: Vec<f64>,
    pub(super) unexpected: Vec<f64>,
    pub(super) posted_all: Vec<f64>,
    pub(super) unexpected_all: Vec<f64>,
    pub(super) overlap: Vec<f64>,
}

impl Shm {
    /// Measures one repetition.
    pub(super) fn measure(&mut self, asker: &Asker<'_>, cores: &[usize]) -> Result<(), Stop> {
        if cores.len() < 2 {
            return Ok(());
        }
        let inline = asker.shm(&["pingpong", "--sizes", "8"])?.reference;
        let base = inline.cache_line_half_rtt_ns.unwrap_or(f64::INFINITY);
        match (inline.band, inline.slice_ratio) {
            _ if base > BAD_BASE_NS => self.bad_bases += 1,
            _ if inline.unsteady => self.unsteady += 1,
            (Some(Band::Near), Some(ratio)) => self.near.push(ratio),
            (Some(Band::Far), Some(ratio)) => self.far.push(ratio),
            (Some(Band::Sibling), Some(ratio)) => self.sibling.push(ratio),
            _ => {}
        }
        let rate = asker.shm(&["rate", "--sizes", "8"])?;
        match (rate.reference.band, rate.messages_per_second) {
            _ if rate.reference.unsteady => self.unsteady += 1,
            (Some(Band::Near), Some(rate)) => self.rate_near.push(rate),
            (Some(Band::Far), Some(rate)) => self.rate_far.push(rate),
            _ => {}
        }
        let posted = asker.shm(&["rate", "--posted", "512", "--sizes", "8"])?;
        self.rate_posted.extend(posted.messages_per_second);
        let stream = asker.shm(&["stream", "--sizes", "1Mi", "--plain"])?;
        self.bandwidth.extend(stream.reference.slice_memcpy_share);
        let stream = asker.shm(&["stream", "--sizes", "1Mi"])?;
        self.bandwidth_regions.extend(stream.reference.slice_memcpy_share);
        for (layer, samples) in [("portals", &mut self.put), ("am", &mut self.request)] {
            let exchange = asker
                .shm(&["pingpong", "--layer", layer, "--sizes", "8"])?
                .reference;
            let base = exchange.cache_line_half_rtt_ns.unwrap_or(f64::INFINITY);
            match exchange.slice_ratio {
                _ if base > BAD_BASE_NS => self.bad_bases += 1,
                _ if exchange.unsteady => self.unsteady += 1,
                ratio => samples.extend(ratio),
            }
        }
        let rate = asker.shm(&["rate", "--layer", "am", "--sizes", "64"])?;
        self.request_rate.extend(rate.messages_per_second);
        if cores.len() >= DEDICATED_CORES {
            let words = ["pingpong", "--sizes", "8", "--mode", "dedicated"];
            let dedicated = asker.shm(&words)?.reference;
            let steady = !dedicated.unsteady && !inline.unsteady && dedicated.band == inline.band;
            let more = dedicated.slice_ratio.zip(inline.slice_ratio).filter(|_| steady);
            self.dedicated
                .extend(more.map(|(dedicated, inline)| dedicated - inline));
        }
        Ok(())
    }
}

impl Loopback {
    /// One repetition: the udp rail between two measurements of the sockets below it.
    pub(super) fn measure(&mut self, asker: &Asker<'_>, clock: &Clock, cores: &[usize]) -> Result<(), Stop> {
        let (&[first, second, ..], None) = (cores, &self.lacks) else {
            return Ok(());
        };
        let raw = || raw_udp_nanos(clock, [first, second], UDP_BYTES).map_err(ended);
        let before = raw()?;
        let pair = format!("{first},{second}");
        let words = ["pingpong", "--rail", "udp:lo", "--sizes", "8", "--cores", &pair];
        let half = match asker.here(&words)? {
            Ok(row) => row.half_rtt_ns.mean,
            Err(why) => {
                self.lacks = Some(why);
                return Ok(());
            }
        };
        match Base::raw(before, raw()?) {
            Some(base) => self.half.extend(half.map(|half| half / base.value)),
            None => self.bad_bases += 1,
        }
        Ok(())
    }
}

impl Inside {
    /// Measures one repetition; `check` is called between its parts and ends it by an error.
    pub(super) fn measure(
        &mut self,
        clock: &Clock,
        cores: &[usize],
        check: impl Fn() -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let [one, slice] = ring_ratios(clock).map_err(ended)?;
        self.ring.push(one);
        self.ring_slice.push(slice);
        for (way, samples) in [
            (Way::Waiting, &mut self.stack),
            (Way::Posted, &mut self.stack_posted),
        ] {
            check()?;
            samples.push(stack_nanos(clock, way).map_err(ended)?.nanos);
        }
        check()?;
        let [stay, tick] = hotel_nanos(clock).map_err(ended)?;
        self.hotel.push(stay);
        self.hotel_tick.push(tick);
        self.pml.push(pml_nanos(clock).map_err(ended)?);
        check()?;
        for (queue, asked, samples) in [
            (Queue::Posted, Asked::Few, &mut self.posted),
            (Queue::Unexpected, Asked::Few, &mut self.unexpected),
            (Queue::Posted, Asked::All, &mut self.posted_all),
            (Queue::Unexpected, Asked::All, &mut self.unexpected_all),
        ] {
            samples.push(matching_ratio(clock, queue, asked));
        }
        check()?;
        self.overlap.push(overlap_share().map_err(ended)?);
        if let [first, second, ..] = *cores {
            check()?;
            let measured = hand_over([first, second]).map_err(ended)?;
            if measured.bare_ns <= BAD_BASE_NS {
                self.mailbox.push(measured.exchanges());
            } else {
                self.bad_bases += 1;
            }
        }
        Ok(())
    }
}

fn ended(error: BenchError) -> Stop {
    Stop::Ended(ToolError::Bench(error))
}
