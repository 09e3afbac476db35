//! One row of a report: the results for one message size.

use serde::{Deserialize, Serialize};

use super::one_way::OneWay;
use super::saturation::KneeLimit;
use crate::baseline::Band;
use crate::stats::{Percentiles, Recorder, Spread};
use crate::verify::Verified;

/// The result of one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The message size in bytes.
    pub bytes: u64,
    /// The two ranks.
    pub pair: [u32; 2],
    /// Exchanges behind every figure of the row (`pingpong`), or messages (`stream`, `rate`).
    pub samples: u64,
    /// The time in which they were measured, in nanoseconds.
    #[serde(default)]
    pub measured_ns: f64,
    /// The time that the whole row took, in nanoseconds: what was measured, the looks at the bare exchange in
    /// between, what was thrown away, and the orders. Without the warm-up.
    #[serde(default)]
    pub elapsed_ns: f64,
    /// Half round trips, of every exchange. Empty for `stream` and `rate`.
    pub half_rtt_ns: Percentiles,
    /// Full round trips of every exchange.
    pub rtt_ns: Percentiles,
    /// Bytes per second in one direction.
    pub bytes_per_second: Option<f64>,
    /// Messages per second in one direction.
    pub messages_per_second: Option<f64>,
    /// The same exchanges or messages, round by round.
    pub rounds: Rounds,
    /// What the machine allowed at the same time.
    pub reference: Reference,
    /// Stalls seen inside the loop; `None` where no exchange was timed by itself.
    pub hiccups: Option<Hiccups>,
    /// Samples above one minute.
    pub overflow: u64,
    /// What the receivers found when every message carried a stamp, the warm-up's included; `None` without.
    #[serde(default)]
    pub verified: Option<Verified>,
    /// The open loop, when it was one: then `rtt_ns` and `histogram` count from the intended times, and
    /// `half_rtt_ns` is empty, because half of a queue belongs to neither direction.
    #[serde(default)]
    pub open: Option<Open>,
    /// Each direction separately, when that was requested and could be determined.
    #[serde(default)]
    pub one_way: Option<OneWay>,
    /// The figures of each slice: repetitions, a few tens of milliseconds apart.
    #[serde(default)]
    pub repeats: Vec<Repeat>,
    /// The warm-up, which is in none of the figures above.
    pub warm_up: WarmUp,
    /// All samples: HdrHistogram V2 (deflate, base64) of full round trips in nanoseconds; empty for `stream`
    /// and `rate`.
    pub histogram: String,
}

impl Row {
    /// Returns what a full round trip is multiplied with to be shown: half of it for closed loops, all for
    /// open ones.
    pub fn share_shown(&self) -> f64 {
        if self.open.is_some() { 1.0 } else { 0.5 }
    }

    /// The samples with the extremes and the mean of `rtt_ns`: where every view takes them from. `None` where
    /// no exchange was timed by itself.
    pub fn recorded(&self) -> Option<Recorder> {
        Recorder::decoded_with(&self.histogram, &self.rtt_ns)
    }

    /// The reference beside this row's own figures: what the row shows is what its parts give.
    pub(super) fn relate(&mut self) {
        let over = |figure: Option<f64>, base: Option<f64>| Some(figure? / base.filter(|base| *base > 0.0)?);
        let reference = &mut self.reference;
        reference.ratio = over(self.half_rtt_ns.mean, reference.cache_line_half_rtt_ns);
        reference.memcpy_share = over(self.bytes_per_second, reference.memcpy_bytes_per_second);
    }
}

/// An open loop: what was requested, what was done, and the times from when messages really left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// Messages per second that were intended.
    pub asked_per_second: f64,
    /// Messages per second that were answered.
    pub answered_per_second: Option<f64>,
    /// The highest rate that was sustained, when it was searched for.
    pub knee_per_second: Option<f64>,
    /// How that search ended.
    pub knee_limit: Option<KneeLimit>,
    /// Number of messages that left.
    pub sent: u64,
    /// Number of messages that left more than [`LATE_NS`](super::LATE_NS) behind their time.
    pub late: u64,
    /// Number of late messages that had to wait because too many were in flight; the others are the
    /// generator's own.
    pub held: u64,
    /// Messages whose time had come and that never left, because the run took twice its time already: they
    /// are in no figure, and would have waited longer than those that are.
    pub unsent: u64,
    /// The most by which one was late, in nanoseconds.
    pub latest_ns: u64,
    /// Full round trips from when a message left.
    pub actual_rtt_ns: Percentiles,
    /// All of them, as [`Row::histogram`].
    pub actual_histogram: String,
}

impl Open {
    /// The time during which messages were requested, in seconds: the number of those that left and of those
    /// that did not, over the rate.
    pub fn asked_seconds(&self) -> f64 {
        (self.sent + self.unsent) as f64 / self.asked_per_second
    }

    /// Whether the generator kept its own times: at most a hundredth of the messages late by itself.
    pub fn kept_up(&self) -> bool {
        (self.late - self.held.min(self.late)) * 100 <= self.sent
    }

    /// Whether what was requested was answered, within a fiftieth.
    pub fn sustained(&self) -> bool {
        let answered = self.answered_per_second.unwrap_or(0.0);
        answered >= 0.98 * self.asked_per_second && self.held * 50 <= self.sent && self.unsent == 0
    }
}

/// One slice's figures, in nanoseconds: full round trips, or the time for each message of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// The mean of the slice.
    pub mean: Option<f64>,
    /// The median of the slice.
    pub p50: Option<f64>,
    /// The 90th percentile.
    pub p90: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

impl Repeat {
    /// The percentiles of a slice.
    pub fn of(recorder: &Recorder) -> Self {
        Self {
            mean: recorder.mean(),
            p50: recorder.at(0.5),
            p90: recorder.at(0.9),
            p99: recorder.at(0.99),
        }
    }
}

/// Rounds of the same exchanges or messages, each by its mean: how steady the row was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// The number of rounds.
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
    /// The half round trip before the row's first slice.
    pub before_ns: Option<f64>,
    /// The half round trip after its last slice.
    pub after_ns: Option<f64>,
    /// The band in which all slices of the row were taken.
    pub band: Option<Band>,
    /// The row's mean half round trip as a multiple of the bare one.
    pub ratio: Option<f64>,
    /// The median over the slices of the ratio of each slice to the looks before and behind it.
    #[serde(default)]
    pub slice_ratio: Option<f64>,
    /// Slices that were thrown away and repeated because the band changed under them.
    pub repeated: u32,
    /// Exchanges or messages in those slices.
    #[serde(default)]
    pub dropped: u64,
    /// The longest exchange in those slices, in nanoseconds: what is in no figure may have stalled as well.
    #[serde(default)]
    pub dropped_max_ns: Option<f64>,
    /// Whether the band would not stay: the row was cut short, or holds fewer samples than requested.
    pub unsteady: bool,
    /// What one copy per message allows, in bytes per second: the median over the row.
    pub memcpy_bytes_per_second: Option<f64>,
    /// The row's bandwidth as a share of that.
    pub memcpy_share: Option<f64>,
    /// The median over the slices of the share of each slice by the copies before and behind it.
    #[serde(default)]
    pub slice_memcpy_share: Option<f64>,
}

/// Exchanges that took more than 10 µs longer than the median.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hiccups {
    /// The number of stalls.
    pub count: u64,
    /// The longest excess over the median, in nanoseconds.
    pub max_ns: u64,
}

/// The warm-up of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WarmUp {
    /// The number of blocks.
    pub blocks: u32,
    /// Exchanges or messages in all of them.
    pub exchanges: u64,
    /// Nanoseconds per exchange or message in the first block.
    pub first_ns: Option<f64>,
    /// Nanoseconds per exchange or message in the last block.
    pub last_ns: Option<f64>,
    /// Whether it ended because improvement stopped, and not by its cap.
    pub steady: bool,
}
