//! Ping-pong, the leader's half: rounds with one clock reading, alternating with rounds that stamp every exchange.

use super::row::Repeat;
use super::slices::Slice;
use super::warm::fitting;
use super::{Order, POISON, Session};
use crate::error::BenchError;
use crate::link::{Link, filled, pattern};
use crate::stats::{Recorder, mean};

/// The buffers of one size.
#[derive(Debug)]
pub(crate) struct Pingpong {
    out: Vec<u8>,
    into: Vec<u8>,
    theirs: Vec<u8>,
    stamps: Vec<u64>,
    /// What `out` is before it is stamped; empty when it never is.
    plain: Vec<u8>,
}

/// Exchanges per round, for everything that is fast enough.
pub(crate) const ROUND: u64 = 1_000;
/// A round of slower exchanges takes about this many nanoseconds.
const ROUND_NANOS: f64 = 20e6;
/// A slice takes about this many nanoseconds.
const SLICE_NANOS: f64 = 50e6;

impl Pingpong {
    pub(crate) fn new<L: Link>(link: &L, bytes: usize, verify: bool) -> Result<Self, BenchError> {
        Ok(Self {
            plain: pattern(link.rank(), if verify { bytes } else { 0 })?,
            out: pattern(link.rank(), bytes)?,
            into: filled(bytes, POISON)?,
            theirs: pattern(link.peer(), bytes)?,
            stamps: Vec::new(),
        })
    }

    /// `exchanges` exchanges for the warm-up; the time that they took, in nanoseconds.
    pub(crate) fn block<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        exchanges: u64,
    ) -> Result<f64, BenchError> {
        self.begin(session, exchanges)?;
        let nanos = self.round(session, exchanges)?;
        self.end(session)?;
        Ok(nanos)
    }

    /// The number of exchanges of a round when one takes `each` nanoseconds and a slice may take `left`.
    pub(crate) fn round_of(each: f64, left: f64) -> u64 {
        if each * ROUND as f64 <= ROUND_NANOS {
            ROUND
        } else {
            let least = fitting(left / 2.0, each, 1, 10);
            fitting(ROUND_NANOS.min(left / 2.0), each, least, ROUND)
        }
    }

    /// One slice, given the expected time of an exchange, the nanoseconds left and the samples still wanted.
    pub(crate) fn slice<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        each: f64,
        left: f64,
        wanted: Option<u64>,
    ) -> Result<Slice, BenchError> {
        let round = Self::round_of(each, left);
        let pairs = fitting(SLICE_NANOS.min(left), each * (2 * round) as f64, 1, 1_000);
        let pairs = wanted.map_or(pairs, |samples| pairs.min(samples.div_ceil(round).max(1)));
        self.begin(session, pairs * 2 * round)?;
        let mut slice = Slice {
            samples: 0,
            nanos: 0.0,
            rounds: Vec::with_capacity(pairs as usize),
            recorder: Recorder::new(),
            half: None,
            memcpy: None,
            open: None,
            repeats: Vec::new(),
        };
        for _ in 0..pairs {
            let nanos = self.round(session, round)?;
            slice.rounds.push(nanos / round as f64);
            slice.nanos += nanos + self.stamped(session, round, &mut slice.recorder)?;
        }
        slice.samples = slice.recorder.samples();
        slice.half = mean(&slice.rounds).map(|rtt| rtt / 2.0);
        slice.repeats.push(Repeat {
            mean: mean(&slice.rounds),
            ..Repeat::of(&slice.recorder)
        });
        self.end(session)?;
        Ok(slice)
    }

    /// The last message is compared, unless each carries a stamp and is looked at.
    fn end<L: Link>(&mut self, session: &mut Session<'_, L>) -> Result<(), BenchError> {
        if session.verifier.is_some() {
            return session.end_serving(&mut self.into);
        }
        session.link.settle(&mut self.into);
        session.check(&self.into, &self.theirs)
    }

    fn begin<L: Link>(&mut self, session: &mut Session<'_, L>, exchanges: u64) -> Result<(), BenchError> {
        self.into.fill(POISON);
        if session.verifier.is_some() {
            return session.begin_serving(self.out.len(), exchanges);
        }
        session.order(Order::Echo {
            bytes: self.out.len(),
            exchanges,
        })
    }

    /// A round with one clock reading at each end.
    fn round<L: Link>(&mut self, session: &mut Session<'_, L>, exchanges: u64) -> Result<f64, BenchError> {
        if session.verifier.is_some() {
            return self.verified_round(session, exchanges, None);
        }
        let start = session.clock.ticks();
        for _ in 0..exchanges {
            self.exchange(session)?;
        }
        let ticks = session.clock.ticks().saturating_sub(start);
        Ok(session.clock.ticks_to_nanos_f64(ticks))
    }

    /// A round that stamps every exchange; the histogram is filled behind it.
    fn stamped<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        exchanges: u64,
        recorder: &mut Recorder,
    ) -> Result<f64, BenchError> {
        if session.verifier.is_some() {
            return self.verified_round(session, exchanges, Some(recorder));
        }
        self.stamps.resize(exchanges as usize + 1, 0);
        self.stamps[0] = session.clock.ticks();
        for at in 1..self.stamps.len() {
            self.exchange(session)?;
            self.stamps[at] = session.clock.ticks();
        }
        for pair in self.stamps.windows(2) {
            recorder.record(session.clock.ticks_to_nanos(pair[1].saturating_sub(pair[0])));
        }
        let all = self.stamps[self.stamps.len() - 1].saturating_sub(self.stamps[0]);
        Ok(session.clock.ticks_to_nanos_f64(all))
    }

    /// Either sort of round with a stamp on each message; ends early when one is lost.
    fn verified_round<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        exchanges: u64,
        mut recorder: Option<&mut Recorder>,
    ) -> Result<f64, BenchError> {
        let clock = session.clock;
        let start = clock.ticks();
        let mut last = start;
        for _ in 0..exchanges {
            if !session.verified_exchange(&mut self.out, &self.plain, &mut self.into)? {
                break;
            }
            if let Some(recorder) = recorder.as_deref_mut() {
                let now = clock.ticks();
                recorder.record(clock.ticks_to_nanos(now.saturating_sub(last)));
                last = now;
            }
        }
        Ok(clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)))
    }

    #[inline(always)]
    fn exchange<L: Link>(&mut self, session: &mut Session<'_, L>) -> Result<(), BenchError> {
        session.link.send(&self.out)?;
        let found = session.link.recv(&mut self.into)?;
        if found != self.out.len() {
            return session.check(&self.into[..found], &self.theirs);
        }
        Ok(())
    }
}
