//! Open loop, the leader's half: messages leave at intended times, at a fixed interval, whether or not the
//! one before was answered. A peer or a machine that stalls receives requests meanwhile, too, and each of
//! those answers counts its time from when its request should have left. (A closed loop would not send during
//! the stall, and so would leave the slow moments out: "coordinated omission", described by Gil Tene, wrk2.)
//!
//! ```text
//!   intended   |     |     |     |     |        every 1 / rate
//!   left       |     | stall  || |     |        late ones at once, one after the other
//!   answered     |     |       |||   |     |
//!   latency from the intended time: what a user sees at that rate
//!   latency from the time of leaving: what the rail and the peer took
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use super::row::{Open, Repeat};
use super::slices::Slice;
use super::{Order, POISON, Session, saturation};
use crate::error::BenchError;
use crate::link::{Link, filled, pattern};
use crate::stats::Recorder;

/// A message that leaves this much later than intended, in nanoseconds, is late.
pub const LATE_NS: u64 = 1_000;
/// Messages under way at most, as long as they fit into [`UNDER_WAY_BYTES`].
const UNDER_WAY: usize = 256;
/// Bytes under way at most, as long as there are two messages.
const UNDER_WAY_BYTES: usize = 4 << 20;
/// The first message leaves this long after the order.
const LEAD: Duration = Duration::from_micros(20);
/// A run that takes more than twice as long as it was planned, and this, is cut.
const GRACE: Duration = Duration::from_millis(20);
/// Time for which late answers are awaited after a cut.
const SETTLE: Duration = Duration::from_millis(100);
/// A slice takes about this many nanoseconds at most.
const SLICE_NANOS: f64 = 250e6;
/// Repetitions that a slice is cut into, for comparisons.
const PARTS: usize = 5;

/// The open loop of one size.
#[derive(Debug)]
pub(crate) struct OpenLoop {
    out: Vec<u8>,
    plain: Vec<u8>,
    into: Vec<u8>,
    theirs: Vec<u8>,
    under_way: usize,
    per_second: f64,
}

/// What a run of the loop counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) sent: u64,
    pub(crate) late: u64,
    pub(crate) held: u64,
    pub(crate) unsent: u64,
    pub(crate) latest_ns: u64,
    /// Nanoseconds from the first intended time to the last intended one, and to the last answer.
    pub(crate) intended_ns: f64,
    pub(crate) answered_ns: f64,
}

impl Counted {
    /// Returns how long behind its intended time the last answer came, in nanoseconds.
    pub(crate) fn behind(&self) -> f64 {
        self.answered_ns - self.intended_ns
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.late += other.late;
        self.held += other.held;
        self.unsent += other.unsent;
        self.latest_ns = self.latest_ns.max(other.latest_ns);
        self.intended_ns += other.intended_ns;
        self.answered_ns += other.answered_ns;
    }
}

impl OpenLoop {
    pub(crate) fn new<L: Link>(link: &L, bytes: usize) -> Result<Self, BenchError> {
        let own = pattern(link.rank(), bytes)?;
        Ok(Self {
            out: own.clone(),
            plain: own,
            into: filled(bytes, POISON)?,
            theirs: pattern(link.peer(), bytes)?,
            under_way: (UNDER_WAY_BYTES / bytes.max(1)).clamp(2, UNDER_WAY),
            per_second: 1.0,
        })
    }

    /// Sets the rate from here on, in messages per second.
    pub(crate) fn set_rate(&mut self, per_second: f64) {
        self.per_second = per_second;
    }

    /// The highest rate that is sustained, in messages per second; `each` is what one exchange takes in a
    /// closed loop, in nanoseconds, and `seconds` what the row may take.
    pub(crate) fn find_knee<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        each: f64,
        seconds: f64,
    ) -> Result<saturation::Found, BenchError> {
        let trial = saturation::trial_nanos(seconds, each);
        let found = saturation::find(1e9 / each.max(1.0), |per_second| {
            if session.is_cut() {
                return Ok(false);
            }
            self.per_second = per_second;
            let count = (trial * 1e-9 * per_second).ceil().max(1.0) as u64;
            let counted = self.run(session, count, &mut [Recorder::new()], &mut Recorder::new())?;
            Ok(counted.sent == count && saturation::is_sustained(&counted, each))
        })?;
        Ok(found)
    }

    /// One slice, given the nanoseconds left and the samples still wanted.
    pub(crate) fn slice<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        left: f64,
        wanted: Option<u64>,
    ) -> Result<Slice, BenchError> {
        let most = (left.min(SLICE_NANOS) * 1e-9 * self.per_second).round().max(1.0) as u64;
        let count = wanted.map_or(most, |samples| samples.clamp(1, most));
        // Made before the loop: their memory must not be a stall in it.
        let mut parts: [Recorder; PARTS] = Default::default();
        let mut actual = Recorder::new();
        let counted = self.run(session, count, &mut parts, &mut actual)?;
        let repeats = parts.iter().filter(|part| part.samples() > 0).map(Repeat::of);
        let repeats = repeats.collect();
        let mut recorder = Recorder::new();
        parts.iter().for_each(|part| recorder.merge(part));
        Ok(Slice {
            samples: recorder.samples(),
            nanos: counted.answered_ns,
            rounds: Vec::new(),
            half: None,
            memcpy: None,
            recorder,
            open: Some((counted, actual)),
            repeats,
        })
    }

    /// Returns the record of everything that slices counted.
    pub(crate) fn report(&self, counted: &Counted, actual: &Recorder) -> Open {
        let nanos = counted.answered_ns;
        Open {
            asked_per_second: self.per_second,
            answered_per_second: (nanos > 0.0).then(|| actual.samples() as f64 / (nanos * 1e-9)),
            knee_per_second: None,
            knee_limit: None,
            sent: counted.sent,
            late: counted.late,
            held: counted.held,
            unsent: counted.unsent,
            latest_ns: counted.latest_ns,
            actual_rtt_ns: actual.percentiles(),
            actual_histogram: actual.encoded(),
        }
    }

    /// Sends `count` messages at the rate.
    fn run<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        count: u64,
        intended: &mut [Recorder],
        actual: &mut Recorder,
    ) -> Result<Counted, BenchError> {
        let bytes = self.out.len();
        if session.verifier.is_some() {
            session.begin_serving(bytes, count)?;
        } else {
            session.order(Order::Return { bytes })?;
        }
        session.link.begin_open(bytes, self.under_way)?;
        let counted = self.send_requests(session, count, intended, actual);
        let ended = counted.and_then(|counted| self.end(session).map(|()| counted));
        let counted = ended.and_then(|counted| self.settle(session).map(|()| counted));
        session.link.end_open();
        counted
    }

    /// Receives late answers after a cut, as long as there are receives for them.
    fn settle<L: Link>(&mut self, session: &mut Session<'_, L>) -> Result<(), BenchError> {
        if !session.is_cut() {
            return Ok(());
        }
        // Behind the follower's counts there is nothing of its messages any more.
        session.ask_tally()?;
        let clock = session.clock;
        let end = clock.ticks() + clock.ticks_in(SETTLE);
        let bytes = self.into.len();
        while clock.ticks() < end {
            if let (Some(found @ (None | Some(1..))), Some(verifier)) =
                (self.arrived(session)?, &mut session.verifier)
            {
                verifier.checker.look(&self.into[..found.unwrap_or(0)], bytes);
            }
        }
        Ok(())
    }

    /// Sends requests at the intended times until `count` answers are in, or none has come for the deadline.
    fn send_requests<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
        count: u64,
        intended: &mut [Recorder],
        actual: &mut Recorder,
    ) -> Result<Counted, BenchError> {
        let clock = session.clock;
        let nanos = |ticks: u64| clock.ticks_to_nanos(ticks);
        let step = clock.ticks_in(Duration::from_secs(1)) as f64 / self.per_second;
        let begin = clock.ticks() + clock.ticks_in(LEAD);
        let due = |n: u64| begin + (n as f64 * step) as u64;
        // A rate far above what can be sent must not make the run as many times longer.
        let end = due(count) + (due(count) - begin) + clock.ticks_in(GRACE);
        let planned = count;
        let mut count = count;
        let patience = clock.ticks_in(session.link.deadline());
        let mut left: VecDeque<u64> = VecDeque::with_capacity(self.under_way);
        let mut counted = Counted::default();
        let (mut answered, mut waits, mut is_held) = (0, begin, false);
        let mut last = begin;
        let each_part = count.div_ceil(intended.len() as u64);
        let (mut part, mut next_part) = (0, each_part);
        while answered < count {
            let now = clock.ticks();
            if now > end && counted.sent < count {
                counted.unsent = count - counted.sent;
                count = counted.sent;
                continue;
            }
            if counted.sent < count && now >= due(counted.sent) {
                if left.len() < self.under_way && self.put(session)? {
                    let late = nanos(now - due(counted.sent));
                    counted.late += u64::from(late > LATE_NS);
                    counted.held += u64::from(is_held && late > LATE_NS);
                    counted.latest_ns = counted.latest_ns.max(late);
                    counted.sent += 1;
                    is_held = false;
                    waits = if left.is_empty() { now } else { waits };
                    left.push_back(now);
                } else {
                    is_held = true;
                }
            }
            let Some(began) = left.front().copied() else {
                continue;
            };
            if self.take(session)? {
                last = clock.ticks();
                intended[part].record(nanos(last.saturating_sub(due(answered))));
                actual.record(nanos(last.saturating_sub(began)));
                left.pop_front();
                answered += 1;
                if answered >= next_part {
                    part = (part + 1).min(intended.len() - 1);
                    next_part += each_part;
                }
                waits = last;
            } else if now.saturating_sub(waits) > patience {
                lost(session)?;
                break;
            }
        }
        counted.intended_ns = clock.ticks_to_nanos_f64(due(planned.saturating_sub(1)) - begin);
        counted.answered_ns = clock.ticks_to_nanos_f64(last.saturating_sub(begin));
        Ok(counted)
    }

    /// Starts one message; `false` when the rail takes no more now.
    #[inline]
    fn put<L: Link>(&mut self, session: &mut Session<'_, L>) -> Result<bool, BenchError> {
        match &mut session.verifier {
            None => session.link.try_send(&self.out),
            Some(_) if !session.link.can_send()? => Ok(false),
            Some(verifier) => {
                verifier.stamper.restore(&mut self.out, &self.plain);
                verifier.stamper.stamp(&mut self.out);
                session.link.try_send(&self.out)
            }
        }
    }

    /// Takes one answer if it is there.
    #[inline]
    fn take<L: Link>(&mut self, session: &mut Session<'_, L>) -> Result<bool, BenchError> {
        let Some(found) = self.arrived(session)? else {
            return Ok(false);
        };
        let bytes = self.into.len();
        match &mut session.verifier {
            Some(verifier) => verifier.checker.look(&self.into[..found.unwrap_or(0)], bytes),
            None if found != Some(bytes) => session.check(&self.into[..found.unwrap_or(0)], &self.theirs)?,
            None => {}
        }
        Ok(true)
    }

    /// The length of what arrived, if anything did; no length when it was too long.
    #[inline]
    fn arrived<L: Link>(
        &mut self,
        session: &mut Session<'_, L>,
    ) -> Result<Option<Option<usize>>, BenchError> {
        match session.link.try_recv(&mut self.into) {
            Ok(found) => Ok(found.map(Some)),
            Err(error) if error.is_too_long() => Ok(Some(None)),
            Err(error) => Err(error),
        }
    }

    /// Ends the follower's loop: an empty message goes to and fro behind the others.
    fn end<L: Link>(&mut self, session: &mut Session<'_, L>) -> Result<(), BenchError> {
        if session.is_cut() {
            return Ok(());
        }
        let clock = session.clock;
        let patience = clock.ticks_in(session.link.deadline());
        let begin = clock.ticks();
        let mut is_told = false;
        loop {
            is_told = is_told || session.link.try_send(&[])?;
            match self.arrived(session)? {
                Some(Some(0)) => break,
                Some(found) => {
                    let bytes = self.into.len();
                    if let Some(verifier) = &mut session.verifier {
                        verifier.checker.look(&self.into[..found.unwrap_or(0)], bytes);
                    }
                }
                None if clock.ticks().saturating_sub(begin) > patience => return lost(session),
                None => {}
            }
        }
        if session.verifier.is_some() {
            return Ok(());
        }
        session.link.settle(&mut self.into);
        session.check(&self.into, &self.theirs)
    }
}

/// Handles a deadline without an answer: a result for stamped messages, an error for others.
#[cold]
fn lost<L: Link>(session: &mut Session<'_, L>) -> Result<(), BenchError> {
    let late = BenchError::Late {
        what: "the open loop",
        waited: session.link.deadline(),
    };
    if session.verifier.is_none() {
        return Err(late);
    }
    session.cut_by(late, false, None);
    Ok(())
}
