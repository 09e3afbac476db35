//! The loads that every stack has to carry, and the figures that each may report.

use std::time::Duration;

use doorbell_bench::stats::Percentiles;
use serde::Serialize;

use crate::probes::Overlap;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// One message to and fro: half round trips.
    Latency,
    /// One direction, a window of non-blocking messages outstanding: messages and bytes per second.
    Stream,
    /// One direction, by blocking sends and receives: messages per second.
    Blocking,
    /// A receive behind the receiver's own computation.
    Overlap,
    /// A put into the other's memory to and fro: half round trips.
    Put,
    /// An active message to and fro: half round trips.
    Am,
}

impl Kind {
    /// Its name, as in the JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Stream => "stream",
            Self::Blocking => "blocking",
            Self::Overlap => "overlap",
            Self::Put => "put",
            Self::Am => "am",
        }
    }

    /// Whether half round trips are reported.
    pub(crate) fn is_latency(self) -> bool {
        matches!(self, Self::Latency | Self::Put | Self::Am)
    }
}

/// One kind of load, with its sizes.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    pub(crate) sizes: Vec<u64>,
    /// Time per size.
    pub(crate) seconds: f64,
    /// How many messages are outstanding.
    pub(crate) window: u32,
    /// The time after which a stack counts as hung, if one is set.
    pub(crate) limit: Option<Duration>,
}

/// What a stack needs beside the time that it measures: to start, to connect, to warm up, to wait for what
/// was lost.
const BESIDE: Duration = Duration::from_secs(20);
/// And some of that for each size.
const EACH: Duration = Duration::from_secs(4);

impl Load {
    /// After this time a stack hangs.
    pub(crate) fn deadline(&self) -> Duration {
        let sizes = u32::try_from(self.sizes.len()).unwrap_or(u32::MAX);
        let usual = BESIDE + (EACH + Duration::from_secs_f64(self.seconds * 4.0)).saturating_mul(sizes);
        self.limit.unwrap_or(usual)
    }
}

/// The figures that a stack reported about one size; `None` is what it did not report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub(crate) bytes: u64,
    /// Half round trips.
    pub(crate) half_rtt_ns: Percentiles,
    /// Messages in one direction.
    pub(crate) messages_per_second: Option<f64>,
    /// A receive alone, a computation alone, and both at once.
    pub(crate) overlap: Option<Overlap>,
}

/// Returns the steps of the computation that a receive of `bytes` bytes is put behind: the same for every
/// stack, so that the times of both together can be compared. They take about as long as a copy of the bytes.
pub(crate) fn steps(bytes: u64) -> u64 {
    const LEAST: u64 = 1_000;
    LEAST + bytes / 8
}
