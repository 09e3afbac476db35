//! Loops whose messages carry stamps ([`crate::verify`]): both sides look at every message. They are loops of their
//! own, so that the others stay as short as they are; what the stamps cost is measured and stated with the result.
//!
//! An order ends with an empty message, which goes the way of the others: what was delivered too often, or too late,
//! stands before it and is looked at, too. Where the rail loses a message that is waited for, the wait's deadline ends
//! the measurement, and what was counted so far is its result.

use super::{Order, Session};
use crate::error::BenchError;
use crate::link::{Flow, Link, Sinks};
use crate::stats::median;
use crate::verify::{Tally, Verified, Verifier};

impl<L: Link> Session<'_, L> {
    /// From here on, messages carry stamps. `spoil`: see [`crate::verify::Stamper::new`].
    pub(crate) fn verify(&mut self, spoil: Option<u64>) {
        let (own, peer) = (self.link.rank(), self.link.peer());
        self.verifier = Some(Box::new(Verifier::new(own, peer, spoil)));
    }

    /// Whether a stamped message was lost for good: then the measurement has to end.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Has the follower answer up to `exchanges` messages until an empty one comes.
    pub(super) fn begin_serving(&mut self, bytes: usize, exchanges: u64) -> Result<(), BenchError> {
        let first = self.next;
        // A question that comes twice is answered twice, and each answer has a number of its own.
        self.next += 2 * exchanges;
        if let Some(verifier) = &mut self.verifier {
            verifier.begin(first);
        }
        self.order(Order::Serve { bytes, first })
    }

    /// Ends [`Session::begin_serving`]: what is still on its way is looked at.
    pub(super) fn end_serving(&mut self, into: &mut [u8]) -> Result<(), BenchError> {
        let Some(verifier) = self.verifier.as_mut().filter(|_| !self.cut) else {
            return Ok(());
        };
        let bytes = into.len();
        let ended = self.link.send(&[]).and_then(|()| {
            until_empty(self.link, into, |found| {
                verifier.checker.look(found, bytes);
                Ok(())
            })
        });
        self.cut = or_lost(ended)?;
        Ok(())
    }

    /// One exchange; `false` when the answer did not come within the deadline.
    pub(super) fn verified_exchange(
        &mut self,
        out: &mut [u8],
        plain: &[u8],
        into: &mut [u8],
    ) -> Result<bool, BenchError> {
        let Some(verifier) = self.verifier.as_mut().filter(|_| !self.cut) else {
            return Ok(false);
        };
        verifier.stamper.restore(out, plain);
        verifier.stamper.stamp(out);
        let bytes = out.len();
        let found = self.link.send(out).and_then(|()| fitting(self.link.recv(into)));
        match found {
            Ok(found) => verifier.checker.look(&into[..found.unwrap_or(0)], bytes),
            Err(error) => self.cut = or_lost(Err(error))?,
        }
        Ok(!self.cut)
    }

    /// The follower's side of [`Session::begin_serving`].
    pub(super) fn serve_verified(
        &mut self,
        into: &mut [u8],
        ours: &mut [u8],
        first: u64,
    ) -> Result<(), BenchError> {
        let Some(verifier) = self.verifier.as_mut() else {
            return Ok(());
        };
        verifier.begin(first);
        let Verifier { stamper, checker } = &mut **verifier;
        let bytes = into.len();
        loop {
            match fitting(self.link.recv(into)) {
                Ok(Some(0)) => return or_lost(self.link.send(&[])).map(drop),
                Ok(found) => checker.look(&into[..found.unwrap_or(0)], bytes),
                Err(error) => return or_lost(Err(error)).map(drop),
            }
            stamper.stamp(ours);
            if or_lost(self.link.send(ours))? {
                return Ok(());
            }
        }
    }

    /// A block of a stream; the time in nanoseconds.
    pub(super) fn verified_block(
        &mut self,
        buffers: &mut Sinks,
        plain: &[u8],
        count: u64,
        flow: Flow,
    ) -> Result<f64, BenchError> {
        let first = self.next;
        self.next += count;
        self.order(Order::Inspect {
            bytes: plain.len(),
            count,
            flow,
            first,
        })?;
        let Some(verifier) = self.verifier.as_mut() else {
            return Ok(0.0);
        };
        verifier.begin(first);
        let stamper = &mut verifier.stamper;
        let mut fill = |body: &mut [u8]| {
            stamper.restore(body, plain);
            stamper.stamp(body);
        };
        let start = self.clock.ticks();
        let mut answer = [0];
        let done = self
            .link
            .stream_out_each(buffers, count, flow, &mut fill)
            .and_then(|()| self.link.send(&[]))
            .and_then(|()| self.link.recv(&mut answer).map(drop));
        let ticks = self.clock.ticks().saturating_sub(start);
        self.cut = or_lost(done)?;
        Ok(self.clock.ticks_to_nanos_f64(ticks))
    }

    /// The follower's side of [`Session::verified_block`].
    pub(super) fn inspect(
        &mut self,
        sinks: &mut Sinks,
        count: u64,
        flow: Flow,
        first: u64,
    ) -> Result<(), BenchError> {
        let Some(verifier) = self.verifier.as_mut() else {
            return Ok(());
        };
        verifier.begin(first);
        let (checker, bytes) = (&mut verifier.checker, sinks.bytes());
        let mut look = |body: &[u8]| checker.look(body, bytes);
        let seen = self.link.stream_in_each(sinks, count, flow, &mut look);
        if or_lost(seen)? {
            return Ok(());
        }
        self.link.send(&[1])
    }

    /// What this side counted.
    pub(super) fn take_tally(&mut self) -> Tally {
        self.verifier
            .as_mut()
            .map_or_else(Tally::default, |verifier| verifier.take())
    }

    /// Both sides' counts since the last time; `None` when messages carry no stamps.
    pub(super) fn verdict(&mut self, cost_ns: f64) -> Result<Option<Verified>, BenchError> {
        if self.verifier.is_none() {
            return Ok(None);
        }
        self.order(Order::Tally)?;
        let said = self.link.hear()?;
        let far: Tally = serde_json::from_slice(&said).map_err(|_| self.disorder(&said))?;
        let near = self.take_tally();
        Ok(Some(Verified::of(&near, &far, cost_ns)))
    }

    /// What a stamp and a look at it cost together for a message of `bytes` bytes, in nanoseconds.
    pub(super) fn stamp_cost(&self, bytes: usize) -> Result<f64, BenchError> {
        const ROUNDS: usize = 5;
        const BYTES: usize = 1 << 20;
        let own = self.link.rank();
        let mut body = crate::link::pattern(own, bytes)?;
        let mut verifier = Verifier::new(own, own, None);
        let many = (BYTES / bytes.max(1)).clamp(1, 1_000);
        let rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = self.clock.ticks();
                for _ in 0..many {
                    verifier.stamper.stamp(&mut body);
                    verifier.checker.look(std::hint::black_box(&body), bytes);
                }
                let ticks = self.clock.ticks().saturating_sub(start);
                self.clock.ticks_to_nanos_f64(ticks) / many as f64
            })
            .collect();
        Ok(median(&rounds).unwrap_or(0.0))
    }
}

/// Receives until an empty message comes; `look` is called with each before it, and with nothing for one that is too
/// long for `into`.
pub(crate) fn until_empty<L: Link>(
    link: &mut L,
    into: &mut [u8],
    mut look: impl FnMut(&[u8]) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    loop {
        match fitting(link.recv(into))? {
            Some(0) => return Ok(()),
            found => look(&into[..found.unwrap_or(0)])?,
        }
    }
}

/// The length of a message, or none when it was longer than its buffer.
pub(crate) fn fitting(received: Result<usize, BenchError>) -> Result<Option<usize>, BenchError> {
    match received {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_too_long() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a deadline passed: that means a lost message, which is a result; everything else stays an error.
fn or_lost(done: Result<(), BenchError>) -> Result<bool, BenchError> {
    match done {
        Ok(()) => Ok(false),
        Err(error) if error.is_timeout() => Ok(true),
        Err(error) => Err(error),
    }
}
