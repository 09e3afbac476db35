//! The bare exchange: the same two processes on the same two cores pass one cache line to and fro, with
//! nothing else in between. It is the floor under every shared-memory figure, and it moves: on virtual
//! machines the same two cores are at one moment near each other and at the next one far apart.
//!
//! It is measured in two ways by turns, spinning without a pause and spinning with a pause instruction in
//! between, because neither is the faster one everywhere; the faster one counts.
//!
//! ```text
//!   rank 0: line 0 := n ──────────────► rank 1 sees n
//!   rank 0 sees n ◄────────────── line 1 := n          one exchange; half of it is the reference
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use doorbell_fabric::clock::Clock;
use doorbell_fabric::error::RailError;
use doorbell_fabric::map::{Object, Protection, Words};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Up to this half round trip of the bare exchange, in nanoseconds, two "cores" are the hardware threads of
/// one core, and share its nearest cache.
pub const SIBLING_NS: f64 = 36.0;
/// Up to this half round trip, in nanoseconds, two cores are near each other.
pub const NEAR_NS: f64 = 100.0;

/// How far the two cores are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Band {
    /// A bare half round trip of at most [`SIBLING_NS`].
    Sibling,
    /// A bare half round trip above that, and of at most [`NEAR_NS`].
    Near,
    /// A bare half round trip above [`NEAR_NS`].
    Far,
}

impl Band {
    /// Returns the band of a bare half round trip.
    pub fn of(half_rtt_ns: f64) -> Self {
        if half_rtt_ns <= SIBLING_NS {
            Self::Sibling
        } else if half_rtt_ns <= NEAR_NS {
            Self::Near
        } else {
            Self::Far
        }
    }

    /// All bands, from the nearest.
    pub const ALL: [Self; 3] = [Self::Sibling, Self::Near, Self::Far];

    /// The band's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sibling => "sibling",
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// One side's view of the page with the two lines.
#[derive(Debug)]
pub struct Baseline {
    words: Words,
    // The maker keeps the object open so that the peer can find it under /proc.
    object: Object,
    outgoing: usize,
    incoming: usize,
    next: u64,
}

/// The place where a peer of this host finds the page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The maker's process, as its pid namespace numbers it.
    pub pid: u32,
    /// The number of that namespace; 0 where the system does not report it.
    pub namespace: u64,
    /// The descriptor in it.
    pub descriptor: i32,
    /// The number of the page's file: what else has the same process and descriptor by now is another file.
    pub serial: u64,
}

/// The number of this process's pid namespace; 0 where the system does not report it.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

/// Two cache lines and their prefetched neighbours lie between the two words.
const APART: usize = 256 / size_of::<u64>();
/// Exchanges per turn; a round has two.
const ROUND: u64 = 1_000;
/// Exchanges that are timed together: so few that most batches are not interrupted on a busy machine either.
const BATCH: u64 = 100;
/// Spins before the time slice is given away: two processes may be on one core.
const SPINS: u32 = 1 << 14;
/// A look takes a few milliseconds; one between processes on one core would take seconds, and ends after this
/// time, if the last [`SHARED`] exchanges all took time slices.
const LOOK: Duration = Duration::from_millis(50);
/// If this many exchanges in a row took time slices, the two processes share a core. On a busy machine only
/// some exchanges do, and the others are worth waiting for.
const SHARED: u32 = 32;
/// A look on a busy machine takes no longer than this.
const LOOK_MOST: Duration = Duration::from_secs(1);
/// A wait for an answer is given up after this: a time, and not a number of turns, because on a busy machine
/// each turn takes a time slice.
const PATIENCE: Duration = Duration::from_secs(10);

impl Baseline {
    /// Makes the page, as rank 0 does.
    ///
    /// # Errors
    /// When shared memory cannot be allocated.
    pub fn make() -> Result<Self, BenchError> {
        Self::over(Object::new("doorbell-bare", 1)?, 0, APART)
    }

    /// Opens the page that a peer on this host made; rank 1's side.
    ///
    /// # Errors
    /// When the peer is gone, belongs to another user, or is in another pid namespace: its number is that of
    /// a stranger here, whose files are left alone.
    pub fn open(place: Place) -> Result<Self, BenchError> {
        let failed = |source| RailError::memory("open the peer's page", "doorbell-bare", 1, source);
        if place.namespace != namespace() {
            return Err(failed(io::Error::other(
                "the two ranks are in different pid namespaces, where one number names different processes",
            ))
            .into());
        }
        let path = format!("/proc/{}/fd/{}", place.pid, place.descriptor);
        let stranger = || failed(io::Error::other("the process of that number has no such page"));
        // Before it is opened: of another file not even that.
        if std::fs::metadata(&path).map_err(failed)?.ino() != place.serial {
            return Err(stranger().into());
        }
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .map_err(failed)?;
        if file.metadata().map_err(failed)?.ino() != place.serial {
            return Err(stranger().into());
        }
        Self::over(Object::received(file.into(), 1)?, APART, 0)
    }

    fn over(object: Object, outgoing: usize, incoming: usize) -> Result<Self, BenchError> {
        let words = Words::of(object.map(Protection::ReadWrite)?.into())?;
        Ok(Self {
            words,
            object,
            outgoing,
            incoming,
            next: 0,
        })
    }

    fn lines(&self) -> Result<(&AtomicU64, &AtomicU64), BenchError> {
        let both = self.words.get(self.outgoing).zip(self.words.get(self.incoming));
        both.ok_or_else(|| RailError::hostile("shared a page without two cache lines").into())
    }

    /// Returns the place where the peer finds the page.
    pub fn place(&self) -> Place {
        let descriptor = self.object.as_fd().as_raw_fd();
        let own = std::fs::metadata(format!("/proc/self/fd/{descriptor}"));
        Place {
            pid: std::process::id(),
            namespace: namespace(),
            descriptor,
            serial: own.map_or(0, |file| file.ino()),
        }
    }

    /// Rank 0: makes `rounds` rounds of exchanges; returns the median half round trip of batches in
    /// nanoseconds, of the faster of the two ways. The peer calls [`Baseline::pong`] with the same number.
    /// Where the two share a core, an exchange takes some time slices: such a look ends after 50 ms, with
    /// what was measured until then.
    ///
    /// # Errors
    /// When the peer does not answer.
    pub fn ping(&mut self, clock: &Clock, rounds: u32) -> Result<f64, BenchError> {
        let (to, from) = self.lines()?;
        let mut halves = [const { Vec::new() }; 2];
        let begun = clock.ticks();
        let (limit, most) = (begun + clock.ticks_in(LOOK), begun + clock.ticks_in(LOOK_MOST));
        let mut late = 0;
        // Behind the last one, nothing is waited for at the other side.
        let last = self.next + 2 * u64::from(rounds) * ROUND;
        'turns: for batch in 0..2 * u64::from(rounds) * (ROUND / BATCH) {
            let turn = (batch / (ROUND / BATCH)) as u32;
            let first = self.next + batch * BATCH;
            let start = clock.ticks();
            let half = |exchanges: u64| {
                let nanos = clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start));
                nanos / (2 * exchanges) as f64
            };
            for n in first + 1..=first + BATCH {
                to.store(n, Ordering::Release);
                // The clock is read only where the answer took long.
                if wait_for(from, n, Pause::of(turn), NO_END)? != Came::Late {
                    late = 0;
                    continue;
                }
                late += 1;
                let now = clock.ticks();
                if n < last && ((late >= SHARED && now > limit) || now > most) {
                    // Whole batches know better, where only some exchanges were interrupted.
                    if late >= SHARED || halves.iter().all(Vec::is_empty) {
                        halves[turn as usize % 2].push(half(n - first));
                    }
                    // The other side answers it: what comes next must not be stored over it.
                    let end = end_of(self.next);
                    to.store(end, Ordering::Release);
                    wait_for(from, end, Pause::One, NO_END)?;
                    break 'turns;
                }
            }
            halves[turn as usize % 2].push(half(BATCH));
        }
        self.next = last;
        let medians = halves.iter().filter_map(|of_one| crate::stats::median(of_one));
        Ok(medians.reduce(f64::min).unwrap_or(0.0))
    }

    /// Rank 1: answers [`Baseline::ping`].
    ///
    /// # Errors
    /// When the peer falls silent.
    pub fn pong(&mut self, rounds: u32) -> Result<(), BenchError> {
        let (to, from) = self.lines()?;
        let end = end_of(self.next);
        'turns: for turn in 0..2 * rounds {
            let first = self.next + u64::from(turn) * ROUND;
            for n in first + 1..=first + ROUND {
                if wait_for(from, n, Pause::of(turn), end)? == Came::End {
                    to.store(end, Ordering::Release);
                    break 'turns;
                }
                to.store(n, Ordering::Release);
            }
        }
        self.next += 2 * u64::from(rounds) * ROUND;
        Ok(())
    }
}

/// Returns what ends the look that begins behind `next`: no number of an exchange, and that of no other look.
fn end_of(next: u64) -> u64 {
    next | 1 << 63
}

/// A word that ends no look.
const NO_END: u64 = u64::MAX;

/// How a word that was waited for came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    AtOnce,
    /// It came after time slices of other threads.
    Late,
    /// The end of the look came instead of it.
    End,
}

/// Measures the half round trip between two cores as it is now, in nanoseconds: two threads of this process,
/// one on each.
///
/// # Errors
/// When a core cannot be used, or memory cannot be allocated.
pub fn between(clock: &Clock, cores: [usize; 2]) -> Result<f64, BenchError> {
    const ROUNDS: u32 = 5;
    let ended = |reason: &str| BenchError::Thread {
        what: "the bare cache-line exchange",
        reason: reason.to_owned(),
    };
    // Now, and not while the other side waits.
    cores.into_iter().try_for_each(crate::pin::check)?;
    let mut near = Baseline::make()?;
    let mut far = Baseline::open(near.place())?;
    std::thread::scope(|scope| {
        let answering = scope.spawn(move || crate::pin::bind(cores[1]).and_then(|()| far.pong(ROUNDS)));
        let asking = scope.spawn(move || {
            crate::pin::bind(cores[0])?;
            near.ping(clock, ROUNDS)
        });
        let measured = asking.join().map_err(|_| ended("it panicked"))?;
        answering.join().map_err(|_| ended("its other side panicked"))??;
        measured
    })
}

/// How a side rests between two polls.
#[derive(Clone, Copy, PartialEq)]
enum Pause {
    No,
    One,
}

impl Pause {
    fn of(turn: u32) -> Self {
        if turn.is_multiple_of(2) {
            Self::No
        } else {
            Self::One
        }
    }
}

/// Spins until `word` is `n`, or `end`.
#[inline]
fn wait_for(word: &AtomicU64, n: u64, pause: Pause, end: u64) -> Result<Came, BenchError> {
    for _ in 0..SPINS {
        if word.load(Ordering::Acquire) == n {
            return Ok(Came::AtOnce);
        }
        if pause == Pause::One {
            std::hint::spin_loop();
        }
    }
    wait_longer(word, n, end)
}

#[cold]
fn wait_longer(word: &AtomicU64, n: u64, end: u64) -> Result<Came, BenchError> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        match word.load(Ordering::Acquire) {
            it if it == n => return Ok(Came::Late),
            it if it == end => return Ok(Came::End),
            _ => {}
        }
        std::thread::yield_now();
    }
    Err(BenchError::Silent {
        what: "the bare cache-line exchange",
    })
}

/// Serialises tests whose threads are bound to cores: otherwise each waits for the others' threads to give a
/// core away.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_stops_is_waited_for_some_seconds_and_no_longer() {
        let begun = Instant::now();
        let error = wait_longer(&AtomicU64::new(0), 1, NO_END).unwrap_err();
        assert!(matches!(error, BenchError::Silent { .. }), "{error}");
        assert!(begun.elapsed() < 2 * PATIENCE, "{:?}", begun.elapsed());
    }

    #[test]
    fn both_sides_exchange_through_the_page_of_one() {
        let mut near = Baseline::make().unwrap();
        let mut far = Baseline::open(near.place()).unwrap();
        let answering = std::thread::spawn(move || far.pong(2).and_then(|()| far.pong(1)));
        let clock = Clock::start();
        assert!(near.ping(&clock, 2).unwrap() > 0.0);
        assert!(near.ping(&clock, 1).unwrap() > 0.0);
        answering.join().unwrap().unwrap();
    }

    /// Bound to one core, an exchange takes two time slices: 10,000 of them would take a minute, and the next
    /// look has to find both sides where they belong.
    #[test]
    fn a_look_between_two_on_one_core_ends_and_the_next_one_works() {
        let _alone = alone();
        let core = crate::pin::allowed()[0];
        let mut near = Baseline::make().unwrap();
        let mut far = Baseline::open(near.place()).unwrap();
        let answering = std::thread::spawn(move || {
            crate::pin::bind(core).unwrap();
            (0..3).try_for_each(|_| far.pong(5))
        });
        let asking = std::thread::spawn(move || {
            crate::pin::bind(core).unwrap();
            let clock = Clock::start();
            let begun = Instant::now();
            let halves: Vec<f64> = (0..3).map(|_| near.ping(&clock, 5).unwrap()).collect();
            (halves, begun.elapsed())
        });
        let (halves, took) = asking.join().unwrap();
        answering.join().unwrap().unwrap();
        assert!(halves.iter().all(|half| *half > 0.0), "{halves:?}");
        assert!(took < PATIENCE, "{took:?}");
    }

    #[test]
    fn two_cores_have_an_exchange_between_them() {
        let _alone = alone();
        let cores = crate::pin::allowed();
        let clock = Clock::start();
        assert!(between(&clock, [cores[0], *cores.last().unwrap()]).unwrap() > 0.0);
        let error = between(&clock, [cores[0], 100_000]).unwrap_err();
        assert!(error.to_string().contains("100000"), "{error}");
    }

    #[test]
    fn a_place_that_is_not_a_page_is_refused() {
        let place = Place {
            descriptor: 1_000_000,
            ..Baseline::make().unwrap().place()
        };
        assert!(
            Baseline::open(place)
                .unwrap_err()
                .to_string()
                .contains("open the peer's page")
        );
    }

    #[test]
    fn what_has_the_number_of_a_page_by_chance_is_left_alone() {
        let (page, stranger) = (Baseline::make().unwrap(), Baseline::make().unwrap());
        let refused = |place: Place| Baseline::open(place).unwrap_err().to_string();
        let other = Place {
            descriptor: stranger.place().descriptor,
            ..page.place()
        };
        assert!(refused(other).contains("no such page"));
        let elsewhere = Place {
            namespace: page.place().namespace + 1,
            ..page.place()
        };
        assert!(refused(elsewhere).contains("different pid namespaces"));
    }

    #[test]
    fn every_half_round_trip_has_its_band() {
        assert_eq!(
            [27.0, 36.1, 100.0, 250.0].map(Band::of),
            [Band::Sibling, Band::Near, Band::Near, Band::Far]
        );
    }
}
