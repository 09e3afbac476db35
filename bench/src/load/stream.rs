//! Streams, the leader's half: blocks of messages in one direction, the last one answered; beside each slice,
//! the same bytes copied once by this core alone.

use std::hint::black_box;

use super::row::Repeat;
use super::slices::{Memcpy, Slice};
use super::warm::fitting;
use super::{Order, Session};
use crate::error::BenchError;
use crate::link::{Flow, Link, Sinks, pattern};
use crate::stats::Recorder;

/// The buffers of one size.
#[derive(Debug)]
pub(crate) struct Stream {
    out: Vec<u8>,
    sinks: Sinks,
    flow: Flow,
    /// Buffers for stamped messages; none when they carry no stamp.
    stamped: Option<Sinks>,
}

/// A slice takes about this many nanoseconds.
const SLICE_NANOS: f64 = 40e6;
/// Nanoseconds of a slice over a link whose blocks cannot end early: where the two ranks lose a core
/// meanwhile, a block takes a thousand times as long.
const SHORT_SLICE_NANOS: f64 = 8e6;
/// Blocks in a slice.
const BLOCKS: u64 = 2;
/// Bytes copied for one look at memcpy.
const COPIED: usize = 32 << 20;
/// Copies at most, for small messages.
const COPIES_MAX: usize = 20_000;

impl Stream {
    pub(crate) fn new<L: Link>(link: &L, bytes: usize, flow: Flow, verify: bool) -> Result<Self, BenchError> {
        let out = pattern(link.rank(), bytes)?;
        let mut stamped = verify.then(|| Sinks::new(bytes, flow.window)).transpose()?;
        stamped
            .iter_mut()
            .flat_map(Sinks::buffers)
            .for_each(|buffer| buffer.copy_from_slice(&out));
        Ok(Self {
            out,
            sinks: Sinks::new(bytes, flow.window)?,
            stamped,
            flow,
        })
    }

    /// Sends `count` messages and receives the answer to the last; returns how many were sent, and the time
    /// in nanoseconds. Where the link can end early, that is no more than about `limit` nanoseconds.
    pub(crate) fn block<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        count: u64,
        limit: f64,
    ) -> Result<(u64, f64), BenchError> {
        if let Some(buffers) = &mut self.stamped {
            let nanos = session.verified_block(buffers, &self.out, count, self.flow)?;
            return Ok((count, nanos));
        }
        session.order(Order::Sink {
            bytes: self.out.len(),
            count,
            flow: self.flow,
        })?;
        let mut answer = [0];
        let clock = session.clock;
        let start = clock.ticks();
        let mut go_on = || clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)) < limit;
        let sent = session.link.stream_out(&self.out, count, self.flow, &mut go_on)?;
        session.link.recv(&mut answer)?;
        let ticks = session.clock.ticks().saturating_sub(start);
        session.link.settle(&mut answer);
        session.check(&answer, &[1])?;
        Ok((sent, session.clock.ticks_to_nanos_f64(ticks)))
    }

    /// Messages in a block when one takes `each` nanoseconds: many windows, so that the answer at the end is
    /// nothing beside them, unless the nanoseconds that are left for the slice are too few for that.
    pub(crate) fn messages(&self, each: f64, left: f64, ends_early: bool) -> u64 {
        const MOST: u64 = 50_000_000;
        let slice = if ends_early {
            SLICE_NANOS
        } else {
            SHORT_SLICE_NANOS
        };
        let block = left / BLOCKS as f64;
        let least = (self.flow.window as u64 * 2)
            .max(64)
            .min(fitting(block, each, 1, MOST));
        fitting(block.min(slice / BLOCKS as f64), each, least, MOST)
    }

    /// One slice, given the expected time of a message, the nanoseconds left and the messages still wanted.
    pub(crate) fn slice<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        each: f64,
        left: f64,
        wanted: Option<u64>,
    ) -> Result<Slice, BenchError> {
        let early = session.link.ends_early();
        let count = self.messages(each, left, early);
        let count = wanted.map_or(count, |messages| count.min(messages.div_ceil(BLOCKS).max(1)));
        let before = self.memcpy(session);
        let mut slice = Slice {
            samples: 0,
            nanos: 0.0,
            rounds: Vec::with_capacity(BLOCKS as usize),
            recorder: Recorder::new(),
            half: None,
            memcpy: None,
            open: None,
            repeats: Vec::new(),
        };
        let limit = super::slices::limit(each * count as f64, SLICE_NANOS, left);
        for _ in 0..BLOCKS {
            let (sent, nanos) = self.block(session, count, limit)?;
            slice.rounds.push(nanos / sent.max(1) as f64);
            slice.nanos += nanos;
            slice.samples += sent;
        }
        let each = slice.nanos / slice.samples.max(1) as f64;
        slice.repeats.push(Repeat {
            mean: Some(each),
            ..Repeat::default()
        });
        let allowed = before.midpoint(self.memcpy(session));
        slice.memcpy = Some(Memcpy {
            bytes_per_second: allowed,
            share: self.out.len() as f64 / (each * 1e-9) / allowed,
        });
        Ok(slice)
    }

    /// Copies messages of this size into the same number of buffers that a receiver uses; bytes per second.
    fn memcpy<L: Link>(&mut self, session: &Session<'_, L>) -> f64 {
        let copies = (COPIED / self.out.len()).clamp(1, COPIES_MAX);
        let start = session.clock.ticks();
        let count = self.sinks.count();
        for copy in 0..copies {
            let sink = &mut self.sinks.buffers()[copy % count];
            sink.copy_from_slice(black_box(&self.out));
            black_box(sink);
        }
        let ticks = session.clock.ticks().saturating_sub(start);
        (copies * self.out.len()) as f64 / (session.clock.ticks_to_nanos_f64(ticks).max(1.0) * 1e-9)
    }
}
