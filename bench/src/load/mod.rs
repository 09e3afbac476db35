//! The closed loops, and how the two ranks of a pair agree on them.
//!
//! The even rank of a pair leads: it sends an *order* over the control channel, the odd rank answers "ready"
//! and carries it out; nothing of that is inside the measured time. An order is bounded, so that the follower
//! needs no clock and no idea of the plan.
//!
//! ```text
//!   leader                                   follower
//!     order ───────────────────────────────►   prepares buffers
//!     ◄─────────────────────────────── ready
//!     measured loop  ◄───────────────►         the other half of it
//!     next order …                             checks what arrived
//! ```
//!
//! How the time is taken: every exchange is timed, end to end: each reading closes one sample and opens the
//! next, so no nanosecond is outside of some sample, a stall cannot hide between two of them, and every
//! figure of a row (mean, percentiles, maximum, histogram) is of the same exchanges. The clock is read while
//! a message is in flight and this side has nothing to do but wait. (Two cores that did nothing but exchange
//! a cache line, the shortest exchange there is, took 90 to 102 ns without a reading, 94 to 102 with one
//! while the message was in flight, and 103 to 109 with one behind the answer.)
//!
//! Every loop is bounded by time as well as by its count: where the two ranks lose a core in the middle of a
//! slice, an exchange takes a thousand times longer than planned. The leader then ends the loop by an empty
//! message; over links that do not look at what comes ([`Link::ends_early`]), orders are for a round or a few
//! milliseconds at most, and what is missing of a round is sent at once. Closed loops measure service time: a
//! stalled peer receives no request meanwhile. Open loops (`open`) send requests at a stated rate whatever
//! happens. With stamps (`verified`), every message is checked by its receiver.

mod follower;
mod leader;
mod one_way;
mod open;
mod pingpong;
mod row;
mod saturation;
mod slices;
mod stream;
#[cfg(test)]
mod tests;
mod verified;
mod warm;

use doorbell_fabric::clock::Clock;
use serde::{Deserialize, Serialize};

use crate::baseline::{Baseline, Place};
use crate::env::Watch;
use crate::error::BenchError;
use crate::link::{Flow, Link};
use crate::verify::{Tally, Verifier};

pub use follower::follow;
pub use leader::lead;
pub use one_way::{Identity, OneWay};
pub use open::LATE_NS;
pub use row::{Hiccups, Open, Reference, Repeat, Rounds, Row, WarmUp};
pub use saturation::KneeLimit;
pub(crate) use verified::{fitting, until_empty};

/// Receives the progress of a measurement.
pub trait Progress {
    /// A size begins: its index, of how many, in bytes.
    fn size(&mut self, index: usize, of: usize, bytes: usize);
    /// The share of the current size that is done, 0 to 1.
    fn share(&mut self, done: f64);
}

impl Progress for () {
    fn size(&mut self, _: usize, _: usize, _: usize) {}
    fn share(&mut self, _: f64) {}
}

/// An order of the leader to the follower.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// Open the page of the bare exchange.
    Page { place: Place },
    /// Answer that many rounds of the bare exchange.
    Bare { rounds: u32 },
    /// Return that many messages of that size.
    Echo { bytes: usize, exchanges: u64 },
    /// Receive that many messages, then send one byte.
    Sink { bytes: usize, count: u64, flow: Flow },
    /// Answer every stamped message of that size with one, both numbered from `first`, until an empty one
    /// comes; return that one, too.
    Serve { bytes: usize, first: u64 },
    /// Answer every message of that size with one, until an empty one comes; return that one, too.
    Return { bytes: usize },
    /// Return that many messages of that size, note the times, and send them.
    Note { bytes: usize, exchanges: u64 },
    /// Receive about that many stamped messages, numbered from `first`, until an empty one comes; then send
    /// one byte.
    Inspect {
        bytes: usize,
        count: u64,
        flow: Flow,
        first: u64,
    },
    /// Send the counts of stamped messages, and begin again at zero.
    Tally,
    /// Send a text of your own, made by the caller.
    Tell,
    /// End: there are no further orders.
    Quit,
}

impl Order {
    /// Returns the length of the messages that it is about.
    fn bytes(self) -> Option<usize> {
        match self {
            Self::Echo { bytes, .. }
            | Self::Sink { bytes, .. }
            | Self::Serve { bytes, .. }
            | Self::Return { bytes }
            | Self::Note { bytes, .. }
            | Self::Inspect { bytes, .. } => Some(bytes),
            Self::Page { .. } | Self::Bare { .. } | Self::Tally | Self::Tell | Self::Quit => None,
        }
    }
}

/// The follower's answer to an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Ready,
    Cannot(String),
}

/// One rank's half of a measurement.
#[derive(Debug)]
pub struct Session<'a, L> {
    /// The link to the other rank.
    pub link: &'a mut L,
    /// The clock of this rank.
    pub clock: &'a Clock,
    bare: Option<Baseline>,
    /// The other rank is on another host, or a stranger: no memory is shared with it beside its rail.
    apart: bool,
    /// Looks at the cores of this rank between two loops.
    watch: Option<&'a Watch>,
    /// Which clock `clock` is.
    identity: Identity,
    /// Why there is no figure of single directions, when they were requested.
    no_one_way: Option<String>,
    /// Counts the messages, when they carry stamps.
    verifier: Option<Box<Verifier>>,
    /// The number of the next stamped message of either direction.
    next: u64,
    /// A stamped message did not arrive within the deadline: the measurement ends there, with a result when
    /// one is lost.
    cut: Option<Cut>,
    /// What the follower counted, when it was requested before its turn.
    far: Option<Tally>,
}

/// How a measurement was cut short.
#[derive(Debug)]
struct Cut {
    /// The error of the deadline that passed.
    error: BenchError,
    /// Whether it passed while this side sent: messages that did not leave are not lost.
    sending: bool,
    /// Length of the stamped messages that may have come too late.
    bytes: Option<usize>,
}

impl<'a, L: Link> Session<'a, L> {
    /// Creates a session over a link.
    pub fn new(link: &'a mut L, clock: &'a Clock) -> Self {
        Self {
            link,
            clock,
            bare: None,
            apart: false,
            watch: None,
            identity: Identity::own(clock),
            no_one_way: None,
            verifier: None,
            next: 0,
            cut: None,
            far: None,
        }
    }

    /// Sets whether a network connects the ranks: then the bare exchange is left out, and refused.
    #[must_use]
    pub fn apart(mut self, apart: bool) -> Self {
        self.apart = apart;
        self
    }

    /// Adds a watch that looks at this rank's cores between two loops.
    #[must_use]
    pub fn watched(mut self, watch: &'a Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Looks at the cores of this rank: outside of everything that is measured.
    fn look_around(&self) {
        if let Some(watch) = self.watch {
            watch.look_at_cores();
        }
    }

    /// Makes the page of the bare exchange and has the follower open it; afterwards every row carries the
    /// reference. `Err` with the reason when the two ranks cannot share a page.
    ///
    /// # Errors
    /// When the peer is lost; that they cannot share one is the inner result.
    pub fn share_page(&mut self) -> Result<Result<(), String>, BenchError> {
        if self.apart {
            return Ok(Err(APART.to_owned()));
        }
        let bare = match Baseline::make() {
            Ok(bare) => bare,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let place = bare.place();
        match self.exchange(Order::Page { place })? {
            Answer::Ready => {
                self.bare = Some(bare);
                Ok(Ok(()))
            }
            Answer::Cannot(reason) => Ok(Err(reason)),
        }
    }

    /// Sends an order and takes the answer.
    fn exchange(&mut self, order: Order) -> Result<Answer, BenchError> {
        self.link.send_control(&json(&order))?;
        let text = self.link.receive_control()?;
        serde_json::from_slice(&text).map_err(|_| self.disorder(&text))
    }

    /// Sends an order that has to be followed.
    fn order(&mut self, order: Order) -> Result<(), BenchError> {
        match self.exchange(order)? {
            Answer::Ready => Ok(()),
            Answer::Cannot(reason) => Err(BenchError::Disorder {
                rank: self.link.peer(),
                what: reason,
            }),
        }
    }

    /// The bare half round trip now, in nanoseconds; `None` without a shared page.
    fn reference(&mut self) -> Result<Option<f64>, BenchError> {
        if self.bare.is_none() {
            return Ok(None);
        }
        self.order(Order::Bare { rounds: BARE_ROUNDS })?;
        let clock = self.clock;
        self.bare
            .as_mut()
            .map(|bare| bare.ping(clock, BARE_ROUNDS))
            .transpose()
    }

    /// Requests the follower's text, made by its caller, such as its part of the environment record.
    ///
    /// # Errors
    /// When the peer is lost.
    pub fn follower_text(&mut self) -> Result<Vec<u8>, BenchError> {
        self.order(Order::Tell)?;
        self.link.receive_control()
    }

    /// Sends the order that ends the follower.
    ///
    /// # Errors
    /// When the peer is lost.
    pub fn quit(&mut self) -> Result<(), BenchError> {
        self.order(Order::Quit)
    }

    /// Returns why there is no figure of single directions, when they were requested and could not be
    /// determined.
    pub fn no_one_way(&self) -> Option<&str> {
        self.no_one_way.as_deref()
    }

    fn disorder(&self, text: &[u8]) -> BenchError {
        BenchError::Disorder {
            rank: self.link.peer(),
            what: String::from_utf8_lossy(&text[..text.len().min(120)]).into_owned(),
        }
    }

    /// Checks that the last message of a loop is what the other side sends.
    fn check(&self, found: &[u8], expected: &[u8]) -> Result<(), BenchError> {
        if found == expected {
            return Ok(());
        }
        let same = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
        Err(BenchError::Damaged {
            from: self.link.peer(),
            expected: expected.len(),
            found: same,
            rail: self.link.rail().to_owned(),
        })
    }
}

/// Why there is no bare exchange between ranks that no launcher has started together.
const APART: &str = "the two ranks are programs of their own, and share no page";

/// Timed rounds of one look at the bare exchange: about a millisecond when near.
const BARE_ROUNDS: u32 = 5;

/// What a receive buffer holds before a loop, so that its last message is known to have arrived.
const POISON: u8 = 0xaa;

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // Plain enums and numbers: nothing in them can fail to be written.
    serde_json::to_vec(value).expect("orders are plain data")
}
