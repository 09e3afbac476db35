//! One row of a report: everything that is known about one message size.

use serde::{Deserialize, Serialize};

use crate::bare::Band;
use crate::stats::{Percentiles, Spread};
use crate::verify::Verified;

/// The result of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Message size.
    pub bytes: u64,
    /// The two ranks.
    pub pair: [u32; 2],
    /// Samples behind the percentiles (`pingpong`), or messages (`stream`, `rate`).
    pub samples: u64,
    /// Half round trips; the mean is the headline figure, from whole rounds. Empty for `stream` and `rate`.
    pub half_rtt_ns: Percentiles,
    /// Full round trips.
    pub rtt_ns: Percentiles,
    /// Bytes per second in one direction.
    pub bytes_per_second: Option<f64>,
    /// Messages per second in one direction.
    pub messages_per_second: Option<f64>,
    /// The rounds behind the means.
    pub rounds: Rounds,
    /// What the machine allowed at the same time.
    pub reference: Reference,
    /// Stalls seen inside the loop.
    pub hiccups: Hiccups,
    /// Samples above one minute.
    pub overflow: u64,
    /// What the receivers found when every message carried a stamp, the warm-up's included; `None` without.
    #[serde(default)]
    pub verified: Option<Verified>,
    /// The warm-up, which is in none of the figures above.
    pub warm_up: WarmUp,
    /// All samples: HdrHistogram V2 (deflate, base64) of full round trips in nanoseconds; empty for `stream` and
    /// `rate`.
    pub histogram: String,
}

/// Whole rounds, timed by two clock readings each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// How many.
    pub count: u64,
    /// Exchanges or messages in each.
    pub exchanges: u64,
    /// Nanoseconds per exchange (full round trip) or per message, over the rounds.
    pub nanos: Spread,
}

/// What the machine allowed, measured between the slices of the same row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Half round trip of the bare cache-line exchange: the median over the row.
    pub cache_line_half_rtt_ns: Option<f64>,
    /// Before the row's first slice.
    pub before_ns: Option<f64>,
    /// After its last slice.
    pub after_ns: Option<f64>,
    /// The band in which all slices of the row were taken.
    pub band: Option<Band>,
    /// Half round trip as a multiple of the bare one: the median over the slices.
    pub ratio: Option<f64>,
    /// Slices that were thrown away and repeated because the band changed under them.
    pub repeated: u32,
    /// Whether the band would not stay: the row was cut short, or holds fewer samples than asked for.
    pub unsteady: bool,
    /// What one copy per message allows, in bytes per second.
    pub memcpy_bytes_per_second: Option<f64>,
    /// Streaming bandwidth as a share of that: the median over the slices.
    pub memcpy_share: Option<f64>,
}

/// Exchanges that took more than 10 µs longer than the median.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hiccups {
    /// How many.
    pub count: u64,
    /// The longest excess over the median, in nanoseconds.
    pub max_ns: u64,
}

/// The warm-up of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WarmUp {
    /// Blocks.
    pub blocks: u32,
    /// Exchanges or messages in all of them.
    pub exchanges: u64,
    /// Nanoseconds per exchange or message in the first block.
    pub first_ns: Option<f64>,
    /// The same in the last block.
    pub last_ns: Option<f64>,
    /// Whether it ended because improvement stopped, and not by its cap.
    pub steady: bool,
}
