//! The same loads over other layers than tagged messages: puts of a Portals interface, active messages.
//!
//! | layer | a ping-pong is | a stream is |
//! |---|---|---|
//! | `pml` | a tagged message to and fro | tagged messages ([`crate::world`]) |
//! | `portals` | a put into the other's memory, whose counting event is polled, to and fro | puts, a window of them not acknowledged |
//! | `am` | a request and the reply of its handler | requests, as many as there are credits |
//!
//! Half of an exchange is the figure everywhere: of `am` half of a request with its reply.

pub mod am;
mod control;
pub mod portals;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::plan::Plan;

/// What carries the messages of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Tagged messages of a world.
    #[default]
    Pml,
    /// Puts of a Portals interface.
    Portals,
    /// Active messages between the ranks.
    Am,
}

impl Layer {
    /// Returns the name of the layer, as in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pml => "pml",
            Self::Portals => "portals",
            Self::Am => "am",
        }
    }

    /// Returns the name of the layer in words, for tables.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Pml => "tagged messages",
            Self::Portals => "puts over a Portals interface, their counting event polled",
            Self::Am => "active messages: a request and its handler's reply are an exchange",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// Refuses what only tagged messages have.
pub(crate) fn check(plan: &Plan) -> Result<(), BenchError> {
    let asked = [(plan.posted, "`--posted`"), (plan.plain, "`--plain`")];
    match asked.into_iter().find(|(is, _)| *is && plan.layer != Layer::Pml) {
        Some((_, what)) => Err(BenchError::BadPlan {
            what,
            reason: format!(
                "it is for tagged messages, and `--layer {}` was given: leave one of them out",
                plan.layer
            ),
        }),
        None => Ok(()),
    }
}

/// Messages with stamps that may be under way: each has a place of its own.
const PLACES: u64 = 8;
/// Bytes that these places may take, if two of them fit.
const PLACES_BYTES: usize = 32 << 20;

/// Places for messages of up to `most` bytes.
fn places(most: usize) -> u64 {
    (PLACES_BYTES / most.max(1)).clamp(2, PLACES as usize) as u64
}

/// Puts messages with stamps into the order in which they were sent: a long one may end after others that
/// came later. A message whose number has passed is a duplicate, and is returned at once, so that it is
/// found.
#[derive(Debug)]
struct InOrder<T> {
    next: u64,
    early: BTreeMap<u64, T>,
}

impl<T> InOrder<T> {
    fn new() -> Self {
        Self {
            next: 0,
            early: BTreeMap::new(),
        }
    }

    /// One that has come; what is given back came twice.
    fn came(&mut self, number: u64, message: T) -> Option<T> {
        if number < self.next || self.early.contains_key(&number) {
            return Some(message);
        }
        self.early.insert(number, message);
        None
    }

    /// The one whose turn it is.
    fn turn(&mut self) -> Option<T> {
        let message = self.early.remove(&self.next)?;
        self.next += 1;
        Some(message)
    }
}

/// In an open loop, one of this many polls does what depends on the time.
const PROGRESS_EVERY: u32 = 64;

/// What has arrived is found within this time: it only waits to be looked at.
const LEFTOVER: Duration = Duration::from_millis(100);

/// Implements the part of a link whose streams with stamps are messages like any other, and whose field
/// `$job` has the deadlines.
macro_rules! one_by_one {
    ($job:ident) => {
        fn stream_out_each(
            &mut self,
            bodies: &mut Sinks,
            count: u64,
            _: Flow,
            fill: &mut dyn FnMut(&mut [u8]),
        ) -> Result<(), BenchError> {
            (0..count).try_for_each(|_| {
                let body = &mut bodies.buffers()[0];
                fill(body);
                self.send(body)
            })
        }

        fn stream_in_each(
            &mut self,
            sinks: &mut Sinks,
            _: u64,
            _: Flow,
            look: &mut dyn FnMut(&[u8]),
        ) -> Result<(), BenchError> {
            until_empty(self, &mut sinks.buffers()[0], |body| {
                look(body);
                Ok(())
            })
        }

        fn leftover(&mut self, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
            self.$job.set_deadline(LEFTOVER);
            let found = self.recv(into);
            self.$job.set_deadline(self.deadline);
            match found {
                Ok(found) => Ok(Some(found)),
                Err(error) if error.is_timeout() => Ok(None),
                Err(error) => Err(error),
            }
        }
    };
}
pub(crate) use one_by_one;
