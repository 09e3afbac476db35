//! The plan of a measurement: what is measured, and for how long.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::layer::{self, Layer};
use crate::size::Size;

/// The kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One message to and fro: latency.
    Pingpong,
    /// One direction, a window outstanding: bandwidth.
    Stream,
    /// Small messages in one direction, a large window: messages per second.
    Rate,
}

impl Kind {
    /// Returns the name of the kind, as in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pingpong => "pingpong",
            Self::Stream => "stream",
            Self::Rate => "rate",
        }
    }

    /// The sizes that are measured when none is named.
    pub fn default_sizes(self) -> Vec<Size> {
        let eight = Size::new(8).into_iter();
        match self {
            Self::Pingpong | Self::Stream => Size::all(),
            Self::Rate => eight.collect(),
        }
    }

    /// The number of messages outstanding when none is named.
    pub fn default_window(self) -> usize {
        match self {
            Self::Pingpong => 1,
            Self::Stream => 64,
            Self::Rate => 512,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kind of load.
    pub kind: Kind,
    /// The message sizes, in the order in which they are measured.
    pub sizes: Vec<Size>,
    /// Time per size, looks at the references included; warm-up and preparation of buffers come on top.
    pub seconds: f64,
    /// The samples per size, instead of a time.
    pub samples: Option<u64>,
    /// Messages outstanding, for `stream` and `rate`.
    pub window: usize,
    /// Whether short messages of streams are non-blocking requests, too.
    pub posted: bool,
    /// Whether long messages of streams, too, are sent out of ordinary memory and received into it, instead
    /// of regions.
    pub plain: bool,
    /// Whether the bare exchange is measured beside the load.
    pub reference: bool,
    /// Whether every message carries a stamp that its receiver checks.
    pub verify: bool,
    /// Damages every n-th message of the leaders, for `verify` to find.
    pub spoil: Option<u64>,
    /// Open loops for `pingpong`: messages leave at intended times.
    pub open: Option<Asked>,
    /// Whether `pingpong` measures each direction separately, too.
    pub one_way: bool,
    /// The layer that carries the messages.
    pub layer: Layer,
}

/// The rate of an open loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asked {
    /// Messages per second.
    PerSecond(f64),
    /// Shares of the highest rate that is sustained, which is searched for.
    Knee,
}

/// The shares of the knee that are measured.
pub const SHARES: [f64; 3] = [0.5, 0.8, 0.95];
/// Lowest rate of an open loop: a peer that receives requests less often than its waits last gives up.
pub const RATE_MIN: f64 = 1.0;
/// The highest rate of an open loop, in messages per second.
pub const RATE_MAX: f64 = 1e9;

/// Longest measurement of one size, in seconds.
const SECONDS_MAX: f64 = 3600.0;
/// The largest window allowed.
const WINDOW_MAX: usize = 1 << 16;

impl Plan {
    /// The defaults of a kind: every size, half a second each, with the reference.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            sizes: kind.default_sizes(),
            seconds: 0.5,
            samples: None,
            window: kind.default_window(),
            posted: false,
            plain: false,
            reference: true,
            verify: false,
            spoil: None,
            open: None,
            one_way: false,
            layer: Layer::Pml,
        }
    }

    /// Checks that the plan can be carried out.
    ///
    /// # Errors
    /// The setting that cannot be satisfied, and why.
    pub fn check(&self) -> Result<(), BenchError> {
        let bad = |what, reason: String| Err(BenchError::BadPlan { what, reason });
        if self.sizes.is_empty() {
            return bad("nothing", "no size is named".to_owned());
        }
        if !(self.seconds > 0.0 && self.seconds <= SECONDS_MAX) {
            return bad(
                "a time",
                format!(
                    "{} seconds is not above zero and at most {SECONDS_MAX}",
                    self.seconds
                ),
            );
        }
        if self.samples == Some(0) {
            return bad("no sample", "`--samples` has to be at least 1".to_owned());
        }
        if let Some(Asked::PerSecond(rate)) = self.open
            && !(RATE_MIN..=RATE_MAX).contains(&rate)
        {
            return bad(
                "a rate",
                format!("{rate} messages a second is not within {RATE_MIN} to {RATE_MAX}"),
            );
        }
        if self.kind != Kind::Pingpong && (self.open.is_some() || self.one_way) {
            return bad(
                "a stream",
                "open loops and single directions are for `pingpong`".to_owned(),
            );
        }
        if self.one_way && (self.open.is_some() || self.verify) {
            return bad("one way", "it needs a closed loop without stamps".to_owned());
        }
        if self.spoil.is_some() && !self.verify {
            return bad(
                "spoilt messages",
                "they are not looked for without `--verify`".to_owned(),
            );
        }
        layer::check(self)?;
        if self.spoil == Some(0) {
            return bad("spoilt messages", "`--spoil` has to be at least 1".to_owned());
        }
        if !(1..=WINDOW_MAX).contains(&self.window) {
            return bad(
                "a window",
                format!("{} is not within 1 to {WINDOW_MAX}", self.window),
            );
        }
        Ok(())
    }

    /// Returns the time for one size.
    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_cannot_be_carried_out_names_the_setting() {
        type Change = fn(&mut Plan);
        let cases: [(&str, Change); 10] = [
            ("leave one of them out", |p| {
                p.layer = Layer::Portals;
                p.posted = true;
            }),
            ("not within 1", |p| p.open = Some(Asked::PerSecond(0.5))),
            ("for `pingpong`", |p| p.one_way = true),
            ("--verify", |p| p.spoil = Some(5)),
            ("no size", |p| p.sizes.clear()),
            ("above zero", |p| p.seconds = 0.0),
            ("above zero", |p| p.seconds = f64::NAN),
            ("at most", |p| p.seconds = 1e9),
            ("at least 1", |p| p.samples = Some(0)),
            ("window", |p| p.window = 0),
        ];
        for (word, change) in cases {
            let mut plan = Plan::new(Kind::Stream);
            plan.check().unwrap();
            change(&mut plan);
            let error = plan.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
