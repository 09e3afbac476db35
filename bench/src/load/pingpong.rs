//! Ping-pong, the leader's half: rounds of exchanges, each of them timed.

use super::row::Repeat;
use super::slices::Slice;
use super::warm::fitting;
use super::{Order, POISON, Session};
use crate::error::BenchError;
use crate::link::{Link, filled, pattern};
use crate::stats::Recorder;

/// The buffers of one size.
#[derive(Debug)]
pub(crate) struct Pingpong {
    out: Vec<u8>,
    into: Vec<u8>,
    theirs: Vec<u8>,
    /// The time at which each message of a round was in flight.
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

    /// Makes `exchanges` exchanges for the warm-up, fewer when they take more than `limit` nanoseconds;
    /// returns how many, and the time that they took, in nanoseconds.
    pub(crate) fn block<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        exchanges: u64,
        limit: f64,
    ) -> Result<(u64, f64), BenchError> {
        let mut recorder = Recorder::new();
        let until = self.begin(session, exchanges, limit)?;
        let nanos = self.round(session, exchanges, until, &mut recorder)?;
        self.end(session, exchanges - recorder.samples().min(exchanges))?;
        Ok((recorder.samples(), nanos))
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
        let rounds = fitting(SLICE_NANOS.min(left), each * round as f64, 1, 2_000);
        let rounds = wanted.map_or(rounds, |samples| rounds.min(samples.div_ceil(round).max(1)));
        let mut slice = Slice {
            samples: 0,
            nanos: 0.0,
            rounds: Vec::with_capacity(rounds as usize),
            recorder: Recorder::new(),
            half: None,
            memcpy: None,
            open: None,
            repeats: Vec::new(),
        };
        let limit = super::slices::limit(each * (rounds * round) as f64, SLICE_NANOS, left);
        // If a loop cannot end early, each round is a loop of its own.
        let (orders, of_each) = if session.link.ends_early() || session.verifier.is_some() {
            (1, rounds)
        } else {
            (rounds, 1)
        };
        let begun = session.clock.ticks();
        let elapsed = |session: &Session<'_, L>| {
            let ticks = session.clock.ticks().saturating_sub(begun);
            session.clock.ticks_to_nanos_f64(ticks)
        };
        for _ in 0..orders {
            let until = self.begin(session, of_each * round, limit)?;
            let before = slice.recorder.samples();
            for _ in 0..of_each {
                let before = slice.recorder.samples();
                let nanos = self.round(session, round, until, &mut slice.recorder)?;
                let done = slice.recorder.samples() - before;
                slice.rounds.extend((done > 0).then(|| nanos / done as f64));
                slice.nanos += nanos;
                if done < round {
                    break;
                }
            }
            let done = slice.recorder.samples() - before;
            self.end(session, of_each * round - done)?;
            if elapsed(session) > limit {
                break;
            }
        }
        slice.samples = slice.recorder.samples();
        slice.half = slice.recorder.mean().map(|rtt| rtt / 2.0);
        slice.repeats.push(Repeat::of(&slice.recorder));
        Ok(slice)
    }

    /// Ends the order, of which `left` exchanges are missing. The last message is compared, unless each
    /// carries a stamp and is looked at.
    fn end<L: Link>(&mut self, session: &mut Session<'_, L>, left: u64) -> Result<(), BenchError> {
        if session.verifier.is_some() {
            return session.end_serving(&mut self.into);
        }
        session.link.settle(&mut self.into);
        session.check(&self.into, &self.theirs)?;
        if left > 0 && session.link.ends_early() {
            session.link.send(&[])?;
            session.link.recv(&mut self.into)?;
            return Ok(());
        }
        // Its receiver counts what comes, and goes by the count: the rest is sent without waiting for each
        // answer, which takes a few time slices where an exchange takes one.
        (0..left).try_for_each(|_| session.link.send(&self.out))?;
        (0..left).try_for_each(|_| session.link.recv(&mut self.into).map(drop))
    }

    /// Orders the exchanges; returns until when they may last, in ticks.
    fn begin<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        exchanges: u64,
        limit: f64,
    ) -> Result<u64, BenchError> {
        self.into.fill(POISON);
        if session.verifier.is_some() {
            session.begin_serving(self.out.len(), exchanges)?;
        } else {
            session.order(Order::Echo {
                bytes: self.out.len(),
                exchanges,
            })?;
        }
        let limit = std::time::Duration::from_nanos(limit.clamp(0.0, 1e18) as u64);
        Ok(session
            .clock
            .ticks()
            .saturating_add(session.clock.ticks_in(limit)))
    }

    /// Makes a round in which every exchange is timed, ended when `until` has passed; the recorder is filled
    /// after it. The clock is read while a message is in flight, when there is nothing else to do: a sample
    /// lasts from one such moment to the next, so that no nanosecond is outside of them, and no reading makes
    /// one longer. What is before the first of these moments and what is behind the last is one exchange
    /// together.
    fn round<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        exchanges: u64,
        until: u64,
        recorder: &mut Recorder,
    ) -> Result<f64, BenchError> {
        if session.verifier.is_some() {
            return self.verified_round(session, exchanges, until, recorder);
        }
        let clock = session.clock;
        self.stamps.resize(exchanges as usize, 0);
        let mut done = 0;
        let start = clock.ticks();
        for stamp in &mut self.stamps {
            session.link.send(&self.out)?;
            let now = clock.ticks();
            *stamp = now;
            let found = session.link.recv(&mut self.into)?;
            if found != self.out.len() {
                session.check(&self.into[..found], &self.theirs)?;
            }
            done += 1;
            if now > until {
                break;
            }
        }
        let end = clock.ticks();
        let stamps = &self.stamps[..done];
        let nanos = |from: u64, to: u64| clock.ticks_to_nanos_f64(to.saturating_sub(from));
        for pair in stamps.windows(2) {
            recorder.record_exact(nanos(pair[0], pair[1]));
        }
        if let (Some(first), Some(last)) = (stamps.first(), stamps.last()) {
            recorder.record_exact(nanos(start, *first) + nanos(*last, end));
        }
        Ok(nanos(start, end))
    }

    /// A round with a number and a checksum in each message; ends early when one is lost. The clock is read
    /// when an answer has come, as the time between two of them is looked at anyway.
    fn verified_round<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        exchanges: u64,
        until: u64,
        recorder: &mut Recorder,
    ) -> Result<f64, BenchError> {
        let clock = session.clock;
        let start = clock.ticks();
        let mut last = start;
        for _ in 0..exchanges {
            let Some(now) = session.verified_exchange(&mut self.out, &self.plain, &mut self.into)? else {
                break;
            };
            recorder.record_exact(clock.ticks_to_nanos_f64(now.saturating_sub(last)));
            last = now;
            if now > until {
                break;
            }
        }
        Ok(clock.ticks_to_nanos_f64(last.saturating_sub(start)))
    }
}
