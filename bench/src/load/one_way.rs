//! One way: how long a message takes in one direction. That needs both ranks' clocks, and how far they may be
//! apart is part of the result; where it is not known, there is no figure.
//!
//! * **One machine, one clock.** Both ranks read the same counter. A reading may be off by its own cost and
//!   by the clock's step, and that is the bound.
//! * **Two clocks.** Each exchange has four readings: it left at t0, arrived at t1, the answer left at t2 and
//!   arrived at t3. The follower's clock is ahead by ((t1 - t0) + (t2 - t3)) / 2, off by at most half of the
//!   time that both were on their way, ((t3 - t0) - (t2 - t1)) / 2, whatever each direction took (RFC 5905,
//!   section 8). The exchange with the shortest way bounds it best; what the clocks drift apart meanwhile is
//!   added.
//!
//! ```text
//!   leader    t0 ─────────┐                ┌──────► t3
//!   follower              └──► t1    t2 ───┘
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Order, POISON, Session};
use crate::error::BenchError;
use crate::link::{Link, filled, pattern};
use crate::stats::{Percentiles, Recorder};

/// What each direction took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OneWay {
    /// The way there, from the leader to the follower.
    pub there_ns: Percentiles,
    /// The way back, from the follower to the leader.
    pub back_ns: Percentiles,
    /// Every figure may be off by this much, in nanoseconds.
    pub bound_ns: f64,
    /// How the clocks were compared.
    pub clocks: String,
    /// Number of exchanges behind the figures.
    pub samples: u64,
}

/// Which clock a rank reads: equal words mean one clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity(pub String);

impl Identity {
    /// Returns the identity of the clock that this process reads: its source, the machine as it was booted,
    /// and the namespace of its time.
    pub fn own(clock: &doorbell_fabric::clock::Clock) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        // A machine without an identity shares its clock with no other process.
        let boot = if boot.is_empty() {
            format!("process {}", std::process::id())
        } else {
            boot
        };
        let source = clock.calibration().source;
        Self(format!("{source:?} {} {}", boot.trim(), namespace.display()))
    }
}

/// The readings that the follower noted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Noted {
    identity: Identity,
    ticks_per_second: f64,
    error_ppm: f64,
    /// Ticks when each message arrived, and when its answer left.
    times: Vec<[u64; 2]>,
}

/// The four readings of an exchange, in ticks of either side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readings {
    left: u64,
    arrived: u64,
    answered: u64,
    back: u64,
}

/// The clock of one side.
#[derive(Clone, Debug)]
pub(super) struct Side {
    identity: Identity,
    ticks_per_second: f64,
    error_ppm: f64,
}

/// Maximum number of exchanges for one size.
const EXCHANGES: u64 = 4_000;
/// The exchanges of one size take about this many nanoseconds at most.
const NANOS: f64 = 100e6;
/// The exchanges of one size are ended after this time, where they have become slower.
const LONGEST: Duration = Duration::from_millis(400);

impl<L: Link> Session<'_, L> {
    /// Measures one way for messages of `bytes` bytes, when an exchange takes about `each` nanoseconds. `Err`
    /// is the reason why there is no figure.
    pub(super) fn one_way(&mut self, bytes: usize, each: f64) -> Result<Result<OneWay, String>, BenchError> {
        let exchanges = super::warm::fitting(NANOS, each, 20, EXCHANGES);
        let out = pattern(self.link.rank(), bytes)?;
        let mut into = filled(bytes, POISON)?;
        let theirs = pattern(self.link.peer(), bytes)?;
        let mut own = Vec::with_capacity(exchanges as usize);
        self.order(Order::Note { bytes, exchanges })?;
        let until = self.clock.ticks() + self.clock.ticks_in(LONGEST);
        for _ in 0..exchanges {
            let left = self.clock.ticks_ordered();
            self.link.send(&out)?;
            self.link.recv(&mut into)?;
            own.push([left, self.clock.ticks_ordered()]);
            if left > until && self.link.ends_early() {
                break;
            }
        }
        self.link.settle(&mut into);
        self.check(&into, &theirs)?;
        if (own.len() as u64) < exchanges {
            self.link.send(&[])?;
        }
        let text = self.link.receive_control()?;
        let noted: Noted = serde_json::from_slice(&text).map_err(|_| self.disorder(&text))?;
        let exchanges = own.iter().zip(&noted.times);
        let readings: Vec<Readings> = exchanges
            .map(|([left, back], [arrived, answered])| Readings {
                left: *left,
                arrived: *arrived,
                answered: *answered,
                back: *back,
            })
            .collect();
        let far = Side {
            identity: noted.identity,
            ticks_per_second: noted.ticks_per_second,
            error_ppm: noted.error_ppm,
        };
        let calibration = self.clock.calibration();
        let near = Side {
            identity: self.identity.clone(),
            ticks_per_second: calibration.frequency_hz,
            error_ppm: calibration.error_ppm,
        };
        let reading = calibration.step_ns + crate::env::read_cost(self.clock);
        Ok(figures(&readings, &near, &far, reading))
    }

    /// Carries out the follower's side of [`Session::one_way`].
    pub(super) fn note(&mut self, ours: &[u8], into: &mut [u8], exchanges: u64) -> Result<(), BenchError> {
        let mut times = Vec::with_capacity(EXCHANGES as usize);
        self.link.note_times(Some(self.clock));
        // The other rank's number: no more is kept than any leader requests.
        for _ in 0..exchanges.min(EXCHANGES) {
            if self.link.recv(into)? == 0 {
                break;
            }
            let arrived = self.clock.ticks_ordered();
            let answered = self.clock.ticks_ordered();
            self.link.send(ours)?;
            times.push(self.link.noted().unwrap_or([arrived, answered]));
        }
        self.link.note_times(None);
        let calibration = self.clock.calibration();
        let noted = Noted {
            identity: self.identity.clone(),
            ticks_per_second: calibration.frequency_hz,
            error_ppm: calibration.error_ppm,
            times,
        };
        self.link.send_control(&super::json(&noted))
    }
}

/// The figures, or why there are none. `reading` is what one reading may be off by, in nanoseconds.
fn figures(all: &[Readings], near: &Side, far: &Side, reading: f64) -> Result<OneWay, String> {
    let (ahead, bound, clocks) = if near.identity == far.identity {
        (
            0.0,
            reading,
            "one clock of one machine; the bound is a reading's cost and step".to_owned(),
        )
    } else {
        let (ahead, bound) = offset(all, near, far).ok_or("no exchange was noted by both sides")?;
        let words = "two clocks; their difference is measured by the shortest exchange, the bound is half of its way \
                     and the drift";
        (ahead, bound + reading, words.to_owned())
    };
    let (mut there, mut back) = (Recorder::new(), Recorder::new());
    let base = Base::of(all, near, far);
    for readings in all {
        let [out, home] = base.ways(readings, ahead);
        if out < -bound || home < -bound {
            let nanos = out.min(home);
            return Err(format!(
                "a message arrived {:.0} ns before it left, and the clocks should agree within {bound:.0} ns",
                -nanos
            ));
        }
        there.record_exact(out.max(0.0));
        back.record_exact(home.max(0.0));
    }
    let (there_ns, back_ns) = (there.percentiles(), back.percentiles());
    let middle = |of: &Percentiles| of.p50.unwrap_or(0.0);
    let least = middle(&there_ns).min(middle(&back_ns));
    if bound >= least {
        return Err(format!(
            "the clocks agree within {bound:.0} ns only, and a message takes {least:.0} ns"
        ));
    }
    Ok(OneWay {
        there_ns,
        back_ns,
        bound_ns: bound,
        clocks,
        samples: there.samples(),
    })
}

/// Turns ticks of two clocks into nanoseconds since a reading of each: differences of large numbers lose
/// digits.
struct Base {
    near: (u64, f64),
    far: (u64, f64),
}

impl Base {
    fn of(all: &[Readings], near: &Side, far: &Side) -> Self {
        let (left, arrived) = all.first().map_or((0, 0), |first| (first.left, first.arrived));
        // One clock has one beginning, and two have nothing in common.
        let same = near.identity == far.identity;
        Self {
            near: (left, 1e9 / near.ticks_per_second),
            far: if same {
                (left, 1e9 / near.ticks_per_second)
            } else {
                (arrived, 1e9 / far.ticks_per_second)
            },
        }
    }

    /// The times of both ways when the follower's clock is `ahead`.
    fn ways(&self, readings: &Readings, ahead: f64) -> [f64; 2] {
        let since =
            |ticks: u64, (base, nanos): (u64, f64)| ticks.wrapping_sub(base).cast_signed() as f64 * nanos;
        let (left, back) = (since(readings.left, self.near), since(readings.back, self.near));
        let (arrived, answered) = (
            since(readings.arrived, self.far) - ahead,
            since(readings.answered, self.far) - ahead,
        );
        [arrived - left, back - answered]
    }
}

/// Returns how far the follower's clock is ahead of the bases, and how much that may be off, in nanoseconds.
fn offset(all: &[Readings], near: &Side, far: &Side) -> Option<(f64, f64)> {
    let base = Base::of(all, near, far);
    let way = |readings: &Readings| {
        let [there, back] = base.ways(readings, 0.0);
        (there + back) / 2.0
    };
    let best = all.iter().min_by(|a, b| way(a).total_cmp(&way(b)))?;
    let [there, back] = base.ways(best, 0.0);
    let over = all.last()?.back.saturating_sub(all.first()?.left) as f64 * 1e9 / near.ticks_per_second;
    let drift = over * (near.error_ppm + far.error_ppm + OSCILLATORS_PPM) * 1e-6;
    Some(((there - back) / 2.0, way(best).max(0.0) + drift))
}

/// Two oscillators differ by this many millionths when nothing else is known (IEEE 802.3: ±100 for Ethernet).
const OSCILLATORS_PPM: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn side(name: &str, ticks_per_second: f64) -> Side {
        Side {
            identity: Identity(name.to_owned()),
            ticks_per_second,
            error_ppm: 1.0,
        }
    }

    /// Exchanges between a clock at 1 GHz and one at `rate` that began `ahead` nanoseconds earlier.
    fn exchanges(there: f64, back: f64, jitter: f64, ahead: f64, rate: f64) -> Vec<Readings> {
        let far = |nanos: f64| ((nanos + ahead) * rate / 1e9) as u64;
        (0..200)
            .map(|n| {
                let left = 1e6 + f64::from(n) * 50_000.0;
                let more = jitter * f64::from(n % 7) / 7.0;
                let arrived = left + there + more;
                let answered = arrived + 30.0;
                Readings {
                    left: left as u64,
                    arrived: far(arrived),
                    answered: far(answered),
                    back: (answered + back + more) as u64,
                }
            })
            .collect()
    }

    #[test]
    fn one_clock_measures_each_direction() {
        let clock = side("a", 1e9);
        let all = exchanges(4_000.0, 6_000.0, 0.0, 0.0, 1e9);
        let one_way = figures(&all, &clock, &clock, 25.0).unwrap();
        assert_eq!(
            (one_way.there_ns.p50, one_way.back_ns.p50),
            (Some(4_000.0), Some(6_000.0))
        );
        assert_eq!((one_way.bound_ns, one_way.samples), (25.0, 200));
        assert!(one_way.clocks.contains("one clock"));
    }

    #[test]
    fn two_clocks_tell_it_within_a_bound_that_holds() {
        // Hours apart, at another rate, and ways of different length: the truth has to lie within the bound.
        for (there, back) in [(5_000.0, 5_000.0), (9_000.0, 1_000.0), (2_000.0, 8_000.0)] {
            let all = exchanges(there, back, 20_000.0, 3.6e12, 2.5e9);
            let one_way = figures(&all, &side("a", 1e9), &side("b", 2.5e9), 20.0).unwrap();
            let (found, bound) = (one_way.there_ns.min.unwrap(), one_way.bound_ns);
            assert!((found - there).abs() <= bound, "{found} ± {bound} is not {there}");
            assert!(bound < 5_000.0 + 2_000.0, "{bound}");
            assert!(one_way.clocks.contains("two clocks"));
        }
    }

    #[test]
    fn without_a_useful_bound_there_is_no_figure_and_a_reason() {
        // Without jitter, half of the way is all that is known.
        let all = exchanges(5_000.0, 5_000.0, 0.0, 1e9, 1e9);
        let text = figures(&all, &side("a", 1e9), &side("b", 1e9), 20.0).unwrap_err();
        assert!(
            text.contains("agree within") && text.contains("takes 5000 ns"),
            "{text}"
        );
        assert!(figures(&[], &side("a", 1e9), &side("b", 1e9), 20.0).is_err());
    }

    #[test]
    fn a_clock_that_is_not_one_is_noticed() {
        let clock = side("a", 1e9);
        let all = exchanges(4_000.0, 4_000.0, 0.0, -9_000.0, 1e9);
        let text = figures(&all, &clock, &clock, 25.0).unwrap_err();
        assert!(text.contains("5000 ns before it left"), "{text}");
    }

    #[test]
    fn the_clock_of_this_process_is_the_one_of_this_machine() {
        let clock = doorbell_fabric::clock::Clock::system();
        assert_eq!(Identity::own(&clock), Identity::own(&clock));
        assert!(Identity::own(&clock).0.len() > 20);
    }

    proptest! {
        #[test]
        fn strange_readings_never_upset_it(ticks in prop::collection::vec(any::<[u64; 4]>(), 0..20)) {
            let all: Vec<Readings> = ticks
                .into_iter()
                .map(|[left, arrived, answered, back]| Readings { left, arrived, answered, back })
                .collect();
            let _ = figures(&all, &side("a", 1e9), &side("a", 1e9), 1.0);
            let _ = figures(&all, &side("a", 1e9), &side("b", 2e9), 1.0);
        }
    }
}
