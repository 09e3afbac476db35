//! The record of the environment: what a figure was measured on, and every reason to doubt it.

mod caveats;
mod host;
mod ports;
mod watch;

use doorbell_fabric::clock::{Clock, Source};
use serde::{Deserialize, Serialize};

pub use caveats::{Caveat, caveats};
pub(crate) use caveats::{broken, injected};
pub use host::Host;
pub(crate) use ports::PortCounters;
pub use ports::PortRecord;
pub use watch::{Moved, Noise, Watch};

/// Everything that is known about where and how a measurement ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The version of doorbell.
    pub version: String,
    /// Name of the rail that carried the messages, and why it was chosen.
    pub rail_reason: String,
    /// All rails to the peer, the one of small messages first.
    #[serde(default)]
    pub rails: Vec<RailUse>,
    /// The kind of progress: `inline` or `dedicated`.
    pub mode: String,
    /// The machine that the leader runs on.
    pub host: Host,
    /// The leader's clock.
    pub clock: ClockRecord,
    /// What each rank ran on, and what disturbed it.
    pub ranks: Vec<RankRecord>,
    /// Whether a rank could not share the page of the bare exchange, and why.
    pub no_reference: Option<String>,
    /// Why there are no figures of single directions, when they were requested.
    #[serde(default)]
    pub no_one_way: Option<String>,
    /// Every reason to doubt the figures.
    pub doubts: Vec<Caveat>,
}

/// A rail to the peer, and what it does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailUse {
    /// The name of the rail.
    pub rail: String,
    /// The peer's rail at its other end.
    pub to: String,
    /// What it is for (`small messages, stripes`, `spare`), or how it is when it is not up.
    pub role: String,
}

/// A clock and its accuracy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// The source of the clock: `tsc` or `monotonic`.
    pub source: String,
    /// The frequency in ticks per second.
    pub frequency_hz: f64,
    /// Bound on the error of the frequency, in millionths.
    pub error_ppm: f64,
    /// The smallest step it was seen to make, in nanoseconds.
    pub step_ns: f64,
    /// What one reading costs, in nanoseconds. It is made while a message is under way.
    pub read_ns: f64,
    /// Drift against the system's raw clock over the run, in millionths, where it could be measured.
    pub drift_ppm: Option<f64>,
    /// Why this source was chosen.
    pub how: String,
}

impl ClockRecord {
    /// Records a clock as it is now: the drift is the one since its calibration.
    pub fn of(clock: &Clock) -> Self {
        let calibration = clock.calibration();
        let drift = clock.drift();
        let source = match calibration.source {
            Source::Tsc => "tsc",
            Source::Monotonic => "monotonic",
        };
        Self {
            source: source.to_owned(),
            frequency_hz: calibration.frequency_hz,
            error_ppm: calibration.error_ppm,
            step_ns: calibration.step_ns,
            read_ns: read_cost(clock),
            drift_ppm: (drift.bound_ppm.is_finite() && drift.bound_ppm < 100.0).then_some(drift.ppm),
            how: calibration.how.to_owned(),
        }
    }

    /// Formats the record as one line for the head of a table.
    pub fn line(&self) -> String {
        let drift = self
            .drift_ppm
            .map_or_else(String::new, |ppm| format!(", drift {ppm:+.1} ppm"));
        format!(
            "{} at {:.6} GHz ±{:.1} ppm{drift}, step {:.1} ns, a reading costs {:.1} ns",
            self.source,
            self.frequency_hz / 1e9,
            self.error_ppm,
            self.step_ns,
            self.read_ns
        )
    }
}

/// The cost of one reading, in nanoseconds: the best of a few rounds of back-to-back readings.
pub(crate) fn read_cost(clock: &Clock) -> f64 {
    const READS: u32 = 1_000;
    let round = || {
        let start = clock.ticks();
        for _ in 0..READS {
            std::hint::black_box(clock.ticks());
        }
        clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)) / f64::from(READS)
    };
    (0..10).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// One rank's part of the record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    /// The number of the rank.
    pub rank: u32,
    /// The number of its process.
    pub pid: u32,
    /// The core that its measuring thread was bound to; `None` when it was not bound.
    pub core: Option<usize>,
    /// The other cores that the thread might use while it was measured, because its cores were changed
    /// (`taskset`, a cpuset).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<Moved>,
    /// The core of its progress thread, in dedicated mode.
    pub progress_core: Option<usize>,
    /// Why its progress thread shares its core with another thread, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<String>,
    /// The name of its machine.
    pub hostname: String,
    /// What disturbed it during the measurement.
    pub noise: Noise,
    /// The captures that it wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captures: Vec<CaptureRecord>,
    /// The RDMA ports of its rails, with what their hardware counted during the measurement, of all programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRecord>,
}

/// A capture of a rail's frames.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureRecord {
    /// The file, on the rank's machine.
    pub file: String,
    /// The name of the rail.
    pub rail: String,
    /// The number of frames in it.
    pub frames: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The number of frames that are missing in it.
    pub lost: u64,
    /// Why frames are missing in it.
    pub error: Option<String>,
}

impl CaptureRecord {
    /// Ends the captures of a world, and returns them.
    pub fn of(world: &doorbell::World) -> Vec<Self> {
        // A world that has ended has reported why, and its captures ended with it.
        let captures = world.end_captures().unwrap_or_default();
        let record = |capture: doorbell::Capture| Self {
            file: capture.file.display().to_string(),
            rail: capture.rail,
            frames: capture.frames,
            bytes: capture.bytes,
            lost: capture.lost,
            error: capture.error,
        };
        captures.into_iter().map(record).collect()
    }

    /// Whether every frame is in it.
    pub fn is_whole(&self) -> bool {
        self.lost == 0 && self.error.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_described_in_one_line() {
        let record = ClockRecord::of(&Clock::start());
        assert!(record.frequency_hz > 1e6 && record.read_ns > 0.0 && record.read_ns < 10_000.0);
        let line = record.line();
        assert!(
            line.contains("GHz") && line.contains("step") && line.contains("costs"),
            "{line}"
        );
    }
}
