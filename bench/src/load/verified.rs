//! Loops whose messages carry stamps ([`crate::verify`]): both sides check every message. They are loops of
//! their own, so that the others stay as short as they are; what the stamps cost is measured and stated with
//! the result.
//!
//! An order ends with an empty message, which goes the way of the others: messages that were delivered twice,
//! or too late, come before it and are checked, too. Where the rail loses a message that is waited for, the
//! wait's deadline ends the measurement, and what was counted so far is its result. A deadline passes also
//! where the other side is stopped or too slow: so both sides check what came too late before they count, and
//! where nothing is lost, the deadline is what is reported.

use std::time::Duration;

use super::{Cut, Order, Session, json};
use crate::error::BenchError;
use crate::link::{Flow, Link, Sinks, filled};
use crate::stats::median;
use crate::verify::{Tally, Verified, Verifier};

impl<L: Link> Session<'_, L> {
    /// Puts stamps on all messages from here on. `spoil`: see [`crate::verify::Stamper::new`].
    pub(crate) fn verify(&mut self, spoil: Option<u64>) {
        let (own, peer) = (self.link.rank(), self.link.peer());
        self.verifier = Some(Box::new(Verifier::new(own, peer, spoil)));
    }

    /// Whether a stamped message was lost for good: then the measurement has to end.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Takes a passed deadline for the end of the measurement, and returns every other error; `true` when it
    /// was one. `bytes`: see [`Cut::bytes`].
    fn cut_at<T>(
        &mut self,
        done: Result<T, BenchError>,
        sending: bool,
        bytes: Option<usize>,
    ) -> Result<bool, BenchError> {
        match done {
            Ok(_) => Ok(false),
            Err(error) if error.is_timeout() => {
                self.cut_by(error, sending, bytes);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the measurement by a deadline; the first one counts.
    pub(super) fn cut_by(&mut self, error: BenchError, sending: bool, bytes: Option<usize>) {
        self.cut.get_or_insert(Cut {
            error,
            sending,
            bytes,
        });
    }

    /// Has the follower answer up to `exchanges` messages until an empty one comes.
    pub(super) fn begin_serving(&mut self, bytes: usize, exchanges: u64) -> Result<(), BenchError> {
        let first = self.next;
        // A request that comes twice is answered twice, and each answer has a number of its own.
        self.next += 2 * exchanges;
        let now = self.clock.ticks();
        if let Some(verifier) = &mut self.verifier {
            verifier.begin(first);
            verifier.gaps.begin(now);
        }
        self.order(Order::Serve { bytes, first })
    }

    /// Ends [`Session::begin_serving`]: what is still on its way is looked at.
    pub(super) fn end_serving(&mut self, into: &mut [u8]) -> Result<(), BenchError> {
        let Some(verifier) = self.verifier.as_mut().filter(|_| self.cut.is_none()) else {
            return Ok(());
        };
        let bytes = into.len();
        let ended = self.link.send(&[]).and_then(|()| {
            until_empty(self.link, into, |found| {
                verifier.checker.look(found, bytes);
                Ok(())
            })
        });
        self.cut_at(ended, false, Some(bytes)).map(drop)
    }

    /// One exchange: when its answer came, in ticks, or `None` when it did not come within the deadline.
    pub(super) fn verified_exchange(
        &mut self,
        out: &mut [u8],
        plain: &[u8],
        into: &mut [u8],
    ) -> Result<Option<u64>, BenchError> {
        let Some(verifier) = self.verifier.as_mut().filter(|_| self.cut.is_none()) else {
            return Ok(None);
        };
        verifier.stamper.restore(out, plain);
        verifier.stamper.stamp(out);
        let bytes = out.len();
        if let Err(error) = self.link.send(out) {
            verifier.stamper.take_back();
            return self.cut_at(Err::<(), _>(error), true, Some(bytes)).map(|_| None);
        }
        match fitting(self.link.recv(into)) {
            Ok(found) => {
                verifier.checker.look(&into[..found.unwrap_or(0)], bytes);
                let now = self.clock.ticks();
                verifier.gaps.came(now);
                Ok(Some(now))
            }
            Err(error) => self.cut_at(Err::<(), _>(error), false, Some(bytes)).map(|_| None),
        }
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
        verifier.gaps.begin(self.clock.ticks());
        let Verifier {
            stamper,
            checker,
            gaps,
        } = &mut **verifier;
        let bytes = into.len();
        loop {
            match fitting(self.link.recv(into)) {
                Ok(Some(0)) => {
                    let sent = self.link.send(&[]);
                    return self.cut_at(sent, true, Some(bytes)).map(drop);
                }
                Ok(found) => {
                    checker.look(&into[..found.unwrap_or(0)], bytes);
                    gaps.came(self.clock.ticks());
                }
                Err(error) => return self.cut_at(Err::<(), _>(error), false, Some(bytes)).map(drop),
            }
            stamper.stamp(ours);
            if let Err(error) = self.link.send(ours) {
                stamper.take_back();
                return self.cut_at(Err::<(), _>(error), true, Some(bytes)).map(drop);
            }
        }
    }

    /// Runs a block of a stream; returns the time in nanoseconds.
    pub(super) fn verified_block(
        &mut self,
        buffers: &mut Sinks,
        plain: &[u8],
        count: u64,
        flow: Flow,
    ) -> Result<f64, BenchError> {
        let first = self.next;
        self.next += count;
        let asked = self.clock.ticks();
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
        // The other side counts what it waits for from here on.
        verifier.gaps.begin(asked);
        verifier.gaps.came(self.clock.ticks());
        let stamper = &mut verifier.stamper;
        let mut fill = |body: &mut [u8]| {
            stamper.restore(body, plain);
            stamper.stamp(body);
        };
        let start = self.clock.ticks();
        let mut answer = [0];
        let sent = self
            .link
            .stream_out_each(buffers, count, flow, &mut fill)
            .and_then(|()| self.link.send(&[]));
        if !self.cut_at(sent, true, None)? {
            let answered = self.link.recv(&mut answer);
            self.cut_at(answered, false, None)?;
        }
        let ticks = self.clock.ticks().saturating_sub(start);
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
        let clock = self.clock;
        let Verifier { checker, gaps, .. } = &mut **verifier;
        gaps.begin(clock.ticks());
        let bytes = sinks.bytes();
        let mut look = |body: &[u8]| {
            checker.look(body, bytes);
            gaps.came(clock.ticks());
        };
        let seen = self.link.stream_in_each(sinks, count, flow, &mut look);
        if self.cut_at(seen, false, Some(bytes))? {
            return Ok(());
        }
        self.link.send(&[1])
    }

    /// Returns what this side counted, with what came too late.
    pub(super) fn take_tally(&mut self) -> Result<Tally, BenchError> {
        let late = self.cut.as_ref().and_then(|cut| cut.bytes);
        if let (Some(bytes), Some(verifier)) = (late, self.verifier.as_mut()) {
            let mut into = filled(bytes.max(1), 0)?;
            loop {
                match self.link.leftover(&mut into) {
                    // The end of an order, which carries no stamp.
                    Ok(Some(0)) => {}
                    Ok(Some(found)) => verifier.checker.look(&into[..found], bytes),
                    Err(error) if error.is_too_long() => verifier.checker.look(&[], bytes),
                    Err(error) if error.is_timeout() => break,
                    Ok(None) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        let Some(verifier) = &mut self.verifier else {
            return Ok(Tally::default());
        };
        let longest = verifier.gaps.take();
        Ok(Tally {
            longest_gap_ns: self.clock.ticks_to_nanos(longest),
            ..verifier.take()
        })
    }

    /// Requests the follower's counts. After a cut they are waited for as long as the follower's own deadline
    /// may take, and the cut stays when they do not come.
    pub(super) fn ask_tally(&mut self) -> Result<(), BenchError> {
        let limit = 2 * self.link.deadline() + Duration::from_secs(1);
        if !self.is_cut() {
            self.order(Order::Tally)?;
            let text = self.link.receive_control()?;
            self.far = Some(serde_json::from_slice(&text).map_err(|_| self.disorder(&text))?);
            return Ok(());
        }
        let text = self
            .link
            .send_control(&json(&Order::Tally))
            .and_then(|()| self.link.receive_control_within(limit))
            .and_then(|_| self.link.receive_control_within(limit));
        match (text, &mut self.cut) {
            (Ok(text), _) => {
                self.far = Some(serde_json::from_slice(&text).map_err(|_| self.disorder(&text))?);
                Ok(())
            }
            (Err(error), cut) if error.is_timeout() => Err(cut.take().map_or(error, |cut| cut.error)),
            (Err(error), _) => Err(error),
        }
    }

    /// Both sides' counts since the last time; `None` when messages carry no stamps.
    ///
    /// # Errors
    /// The deadline that cut the measurement short, when nothing is wrong with the messages.
    pub(super) fn verdict(&mut self, cost_ns: f64) -> Result<Option<Verified>, BenchError> {
        if self.verifier.is_none() {
            return Ok(None);
        }
        if self.far.is_none() {
            self.ask_tally()?;
        }
        let far = self.far.take().unwrap_or_default();
        let near = self.take_tally()?;
        let verified = Verified::of(&near, &far, cost_ns);
        let judged = match &self.cut {
            // What waited to be sent when the deadline passed was given up: it may have left or not, and the
            // side that waited for it in vain took what came later out of its turn. Bytes that are wrong stay
            // wrong.
            Some(cut) if cut.sending => Verified {
                lost: 0,
                duplicated: 0,
                misordered: 0,
                ..verified
            },
            _ => verified,
        };
        match self.cut.take() {
            Some(cut) if judged.is_clean() => Err(cut.error),
            cut => {
                self.cut = cut;
                Ok(Some(judged))
            }
        }
    }

    /// Returns what a stamp and a look at it cost together for a message of `bytes` bytes, in nanoseconds.
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

/// Receives until an empty message comes; `look` is called with each before it, and with nothing for one that
/// is too long for `into`.
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
