//! Settings of a BTL: every parameter of the usNIC BTL that applies (reference: vic, section 6.2), and what
//! is new.
//!
//! What has no counterpart here: device and queue selection (`max_btls`, `if_include`, `sd_num`, `cq_num`, …)
//! is the driver's; statistics are [`Counters`](crate::Counters), which the owner reads; `rndv_eager_limit`
//! and `pack_lazy_threshold` are the PML's.

use std::fmt::Display;
use std::time::Duration;

use crate::error::BtlError;

/// Settings of one [`Btl`](crate::Btl). Sizes are bytes, unless noted otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct BtlConfig {
    /// Segments of one peer that may be accepted and not acknowledged; both ends need the same. A power of
    /// two, 64 to 4,096 (usNIC: 4,096).
    pub window: u32,
    /// Segments of all peers together, each with room for one frame, made when first needed. At least twice
    /// what the longest message takes (default 16,384).
    pub segments: usize,
    /// Peers, all lives together (default 4,096; at most 2²⁰).
    pub max_peers: usize,
    /// Messages under reassembly, of all peers together, each with room for [`BtlConfig::eager_limit`], made
    /// when first needed (usNIC: 2,048; default 512, which may take 75 MiB). The last is for messages that do
    /// not come ahead of their turn.
    pub max_reassemblies: usize,
    /// One-sided operations under way: of ours, and as many reads of peers (default 1,024). Of each peer's
    /// puts, those that come in several segments, 40 may have begun.
    pub operations: usize,
    /// Pieces of memory exposed at a time (default 4,096).
    pub exposures: usize,
    /// Longest message, head included (usNIC `eager_limit`: 150 KiB).
    pub eager_limit: usize,
    /// Frames of messages up to here take the priority channel (usNIC `priority_limit`: 768).
    pub priority_limit: usize,
    /// Retransmission time-out before there is a measurement (usNIC `retrans_timeout`: 5 ms).
    pub retrans_timeout: Duration,
    /// Least retransmission time-out (200 µs).
    pub retrans_least: Duration,
    /// The first of the segments that wait for an answer is retransmitted after two round trips already, at
    /// least this (20 µs; `retrans_least` turns it off): nothing follows the last segment of a burst that
    /// would reveal its loss. It is no sign of congestion. The next wait is twice as long, and so are those
    /// after it when the peer was busy.
    pub retrans_tail: Duration,
    /// Most, which also bounds the back-off (250 ms).
    pub retrans_most: Duration,
    /// Resends of one pass (usNIC: 16; default 64: a device that takes a run of frames in one piece may lose
    /// all of it, and shorter runs would be lost as easily).
    pub max_resends_per_iteration: usize,
    /// How long an acknowledgement waits for a frame to ride on (50 µs); the time is that of `progress`.
    pub ack_delay: Duration,
    /// An acknowledgement is sent at once when this many segments came without one (16); of short ones, which
    /// take the priority channel, four times as many.
    pub ack_every: u32,
    /// Segments under way at the beginning (32).
    pub initial_window: u32,
    /// Segments that one peer may send before it is the next one's turn (44: at an MTU of 1500, the
    /// longest run that a socket takes in one piece).
    pub quantum: u32,
    /// A peer that acknowledges nothing for this long although something is due is down, and everything
    /// outstanding fails. A peer that computes and does not poll is silent as well, so this is the longest
    /// time that a program may stay away (60 s).
    pub give_up: Duration,
    /// A peer that owes answers, and proves alive elsewhere
    /// ([`Message::proved_alive`](doorbell_fabric::message::Message::proved_alive)) while it is silent here,
    /// is down here after sixteen retransmission time-outs, at least 100 ms and at most this (1 s). So is one
    /// of which the driver reports that no process is there, after this; and the check of a new connection
    /// has failed after it.
    pub silence: Duration,
    /// An idle peer that was up is probed when nothing came of it for this long, so that its end is noticed
    /// (10 s); when it stays silent for [`BtlConfig::give_up`] then, it is down.
    pub keep_alive: Duration,
    /// Time-outs in a row after which a peer is suspect, and probed with two sizes again (3).
    pub suspect_after: u32,
    /// Whether a peer is checked with two sizes before it is used (usNIC `connectivity_check`: yes).
    pub connectivity_check: bool,
    /// Longest time between two probes of the check (usNIC `connectivity_ack_timeout`: 250 ms). The first
    /// come faster: 1 ms, and twice as long each time.
    pub connectivity_ack_timeout: Duration,
    /// Probes until the check has failed, when only one of the two sizes is answered, or, before a peer's
    /// first use, none although frames of it arrive (usNIC `connectivity_error_num_retries`: 40). A peer of
    /// which nothing at all arrives may not be polling yet, and one that was used may be cut off for a while:
    /// they have until [`BtlConfig::give_up`].
    pub connectivity_error_num_retries: u32,
    /// Frames carry a MAC of eight bytes, against an attacker who can read and write on the path; both ends
    /// need the same (no).
    pub frame_mac: bool,
    /// Events that the flight recorder keeps, for the explanation of a failure (256; at most 65,536; 0 for
    /// none).
    pub recorder: usize,
    /// The number of the first segment; both ends need the same. `None` for one that the job's key gives. For
    /// tests.
    pub first_sequence: Option<u32>,
}

impl Default for BtlConfig {
    fn default() -> Self {
        Self {
            window: 4096,
            segments: 16 * 1024,
            max_peers: 4096,
            max_reassemblies: 512,
            operations: 1024,
            exposures: 4096,
            eager_limit: 150 * 1024,
            priority_limit: 768,
            retrans_timeout: Duration::from_millis(5),
            retrans_least: Duration::from_micros(200),
            retrans_tail: Duration::from_micros(20),
            retrans_most: Duration::from_millis(250),
            max_resends_per_iteration: 64,
            ack_delay: Duration::from_micros(50),
            ack_every: 16,
            initial_window: 32,
            quantum: 44,
            give_up: Duration::from_secs(60),
            silence: Duration::from_secs(1),
            keep_alive: Duration::from_secs(10),
            suspect_after: 3,
            connectivity_check: true,
            connectivity_ack_timeout: Duration::from_millis(250),
            connectivity_error_num_retries: 40,
            frame_mac: false,
            recorder: 256,
            first_sequence: None,
        }
    }
}

impl BtlConfig {
    /// Whether all settings are within their bounds.
    ///
    /// # Errors
    /// [`BtlError::Setting`] with the first that is not.
    pub fn validate(&self) -> Result<(), BtlError> {
        fn inside<T: PartialOrd + Display>(
            setting: &'static str,
            given: T,
            least: T,
            most: T,
            bounds: &'static str,
        ) -> Result<(), BtlError> {
            if given >= least && given <= most {
                return Ok(());
            }
            Err(bad(setting, given.to_string(), bounds))
        }
        fn bad(setting: &'static str, given: String, bounds: &'static str) -> BtlError {
            BtlError::Setting {
                setting,
                given,
                bounds,
            }
        }
        fn time(
            setting: &'static str,
            given: Duration,
            least: Duration,
            most: Duration,
            bounds: &'static str,
        ) -> Result<(), BtlError> {
            if given >= least && given <= most {
                return Ok(());
            }
            Err(bad(setting, format!("{given:?}"), bounds))
        }
        const MICRO: Duration = Duration::from_micros(1);
        const HOUR: Duration = Duration::from_secs(3600);
        if !(64..=4096).contains(&self.window) || !self.window.is_power_of_two() {
            let bounds = "a power of two from 64 to 4096";
            return Err(bad("window", self.window.to_string(), bounds));
        }
        inside("segments", self.segments, 64, 1 << 20, "from 64 to 1048576")?;
        inside("max_peers", self.max_peers, 1, 1 << 20, "from 1 to 1048576")?;
        inside(
            "max_reassemblies",
            self.max_reassemblies,
            1,
            1 << 16,
            "from 1 to 65536",
        )?;
        inside("operations", self.operations, 1, 1 << 16, "from 1 to 65536")?;
        inside("recorder", self.recorder, 0, 1 << 16, "from 0 to 65536")?;
        inside("exposures", self.exposures, 1, 1 << 24, "from 1 to 16777216")?;
        inside(
            "eager_limit",
            self.eager_limit,
            256,
            16 << 20,
            "from 256 bytes to 16 MiB",
        )?;
        inside(
            "priority_limit",
            self.priority_limit,
            0,
            65_535,
            "from 0 to 65535 bytes",
        )?;
        inside(
            "max_resends_per_iteration",
            self.max_resends_per_iteration,
            1,
            4096,
            "from 1 to 4096",
        )?;
        inside("ack_every", self.ack_every, 1, 2048, "from 1 to 2048")?;
        inside("initial_window", self.initial_window, 2, 4096, "from 2 to 4096")?;
        inside("quantum", self.quantum, 1, 4096, "from 1 to 4096")?;
        inside("suspect_after", self.suspect_after, 1, 1000, "from 1 to 1000")?;
        inside(
            "connectivity_error_num_retries",
            self.connectivity_error_num_retries,
            1,
            100_000,
            "from 1 to 100000",
        )?;
        time(
            "retrans_least",
            self.retrans_least,
            MICRO,
            HOUR,
            "from 1 µs to 1 h",
        )?;
        let below = "from 1 µs to `retrans_least`";
        time(
            "retrans_tail",
            self.retrans_tail,
            MICRO,
            self.retrans_least,
            below,
        )?;
        let above = "from `retrans_least` to 1 h";
        time("retrans_most", self.retrans_most, self.retrans_least, HOUR, above)?;
        let between = "from `retrans_least` to `retrans_most`";
        time(
            "retrans_timeout",
            self.retrans_timeout,
            self.retrans_least,
            self.retrans_most,
            between,
        )?;
        let short = "less than `retrans_least`, or the other end sends again what has arrived";
        time(
            "ack_delay",
            self.ack_delay,
            Duration::ZERO,
            self.retrans_least - MICRO / 10,
            short,
        )?;
        time(
            "give_up",
            self.give_up,
            self.retrans_most,
            24 * HOUR,
            "from `retrans_most` to 24 h",
        )?;
        time(
            "silence",
            self.silence,
            self.retrans_least,
            24 * HOUR,
            "from `retrans_least` to 24 h",
        )?;
        time(
            "keep_alive",
            self.keep_alive,
            self.retrans_least,
            24 * HOUR,
            "from `retrans_least` to 24 h",
        )?;
        time(
            "connectivity_ack_timeout",
            self.connectivity_ack_timeout,
            MICRO,
            HOUR,
            "from 1 µs to 1 h",
        )
    }
}

/// A setting in nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_errors_name_the_setting() {
        BtlConfig::default().validate().unwrap();
        type Change = fn(&mut BtlConfig);
        let wrong: [(&str, Change); 8] = [
            ("window", |c| c.window = 1000),
            ("segments", |c| c.segments = 1),
            ("eager_limit", |c| c.eager_limit = 1),
            ("retrans_timeout", |c| c.retrans_timeout = Duration::from_secs(9)),
            ("retrans_tail", |c| c.retrans_tail = Duration::from_millis(1)),
            ("retrans_most", |c| c.retrans_most = Duration::ZERO),
            ("ack_delay", |c| c.ack_delay = Duration::from_millis(1)),
            ("give_up", |c| c.give_up = Duration::ZERO),
        ];
        for (setting, change) in wrong {
            let mut config = BtlConfig::default();
            change(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(&format!("`{setting}`")), "{error}");
        }
    }
}
