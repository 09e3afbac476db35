//! The settings of the conduit and the names that the environment has for them (gasnet.md section 2).
//!
//! The crate reads no environment: [`Settings::parse`] takes pairs of names and values, from wherever the
//! caller has them. Names that do not begin with `GASNET_PORTAL_` or `GASNET_EXITTIMEOUT` are passed over, so
//! that all of an environment can be given; an unknown name with the prefix is refused, so that a slip of the
//! pen does not go unnoticed.
//!
//! | name (after `GASNET_PORTAL_`) | default | what it is |
//! |---|---|---|
//! | `MSG_LIMIT` | 250, at least 12 | send tickets: operations of this process under way |
//! | `NUM_TMPMD` | 1024, at least 2 | temporary descriptors over callers' memory (one is kept for replies) |
//! | `PACKED_LONG` | 1 | a short Long travels with its header |
//! | `FLOW_CONTROL` | 1 | requests take credits |
//! | `DYNAMIC_CREDITS` | 1 | credits migrate |
//! | `SB_CHUNKS` | 2048 | chunks of the send buffer of requests |
//! | `RPL_CHUNKS` | 256 | chunks of the send buffer of replies |
//! | `SAFE_LIMIT`, `AM_LIMIT`, `SYS_LIMIT` | 12, 8, 0 | events of each queue in one poll; 0: no limit |
//! | `MAX_CRED_PER_NODE` | 400 | most credits lent to one process |
//! | `EPOCH_DURATION` | 1024 | requests received in an epoch |
//! | `CRED_PER_NODE`, `BANKED_CREDITS`, `AMRECV_SPACE` | by the job's size | the credits at the start ([`Shares`](crate::credit::Shares)) |
//! | `CREDIT_STATS` | 0 | the caller writes [`Conduit::statistics`](crate::Conduit::statistics) to a file at the end |
//! | `ACCEL` | 0 | the vendor's accelerated mode: 1 is refused, there is none here |
//! | `PUTGET_BOUNCE_LIMIT`, `PUT_BOUNCE_LIMIT`, `GET_BOUNCE_LIMIT` | the chunk, the chunk less 8 | largest put, get that is copied through a chunk |
//! | `CHUNK_SIZE` | 2048 | 1024 or 2048 |
//! | `CHUNKS_PER_BUFFER` | 1024 | chunks of one receive buffer |
//! | `REVOKE_LIMIT`, `LENDER_LIMIT`, `NUM_SCAVENGE` | 32, 32, 6 | constants in the original: credits taken from, granted to one process in an epoch; revocations under way |
//! | `THREAD` | 0 | the thread number in the match bits of puts and gets |
//!
//! `GASNET_EXITTIMEOUT` (seconds) sets the wait of an exit; else it is `GASNET_EXITTIMEOUT_MIN` (5) and
//! `GASNET_EXITTIMEOUT_FACTOR` (0.25) for each process, at most `GASNET_EXITTIMEOUT_MAX` (360). None is
//! longer than a year.

use std::time::Duration;

use thiserror::Error;

use crate::credit::{Chunk, CreditConfig, Limits};

/// Prefix of the conduit's variables.
pub const PREFIX: &str = "GASNET_PORTAL_";
/// Prefix of the exit timeout's variables.
pub const EXIT_PREFIX: &str = "GASNET_EXITTIMEOUT";

/// How the conduit is set. All processes of a job must have the same, but for the limits of polls and
/// bounces.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Send tickets: the value of `MSG_LIMIT`.
    pub message_limit: u32,
    /// Temporary descriptors: the value of `NUM_TMPMD`.
    pub temporaries: u32,
    /// Whether a short Long travels with its header: `PACKED_LONG`.
    pub packed_long: bool,
    /// Whether requests take credits: `FLOW_CONTROL`.
    pub flow_control: bool,
    /// Whether credits migrate: `DYNAMIC_CREDITS`.
    pub dynamic_credits: bool,
    /// Chunks of the send buffer of requests: `SB_CHUNKS`.
    pub request_chunks: u32,
    /// Chunks of the send buffer of replies: `RPL_CHUNKS`.
    pub reply_chunks: u32,
    /// `SAFE_LIMIT`; 0: no limit.
    pub safe_limit: u32,
    /// `AM_LIMIT`; 0: no limit.
    pub am_limit: u32,
    /// `SYS_LIMIT`; 0: no limit.
    pub sys_limit: u32,
    /// `CRED_PER_NODE`, where it is set.
    pub credits_per_node: Option<u16>,
    /// `BANKED_CREDITS`, where it is set.
    pub banked_credits: Option<u32>,
    /// `AMRECV_SPACE` in bytes, where it is set.
    pub receive_space: Option<u64>,
    /// `CREDIT_STATS`: whether the caller writes the statistics.
    pub credit_stats: bool,
    /// `PUT_BOUNCE_LIMIT` or `PUTGET_BOUNCE_LIMIT` in bytes, where set; never above the chunk.
    pub put_bounce: Option<u32>,
    /// `GET_BOUNCE_LIMIT` or `PUTGET_BOUNCE_LIMIT` in bytes, where set; never above the chunk less 8.
    pub get_bounce: Option<u32>,
    /// The size of a chunk: `CHUNK_SIZE`.
    pub chunk: Chunk,
    /// Chunks of one receive buffer: `CHUNKS_PER_BUFFER`.
    pub chunks_per_buffer: u32,
    /// The limits of the credit state.
    pub credits: Limits,
    /// The value of `THREAD`.
    pub thread: u8,
    /// How long an exit waits for the others.
    pub exit: ExitTimes,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            message_limit: 250,
            temporaries: 1024,
            packed_long: true,
            flow_control: true,
            dynamic_credits: true,
            request_chunks: 2048,
            reply_chunks: 256,
            safe_limit: 12,
            am_limit: 8,
            sys_limit: 0,
            credits_per_node: None,
            banked_credits: None,
            receive_space: None,
            credit_stats: false,
            put_bounce: None,
            get_bounce: None,
            chunk: Chunk::Large,
            chunks_per_buffer: 1024,
            credits: Limits::DEFAULT,
            thread: 0,
            exit: ExitTimes::default(),
        }
    }
}

/// How long an exit waits for the others, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExitTimes {
    /// `GASNET_EXITTIMEOUT`: a fixed time that overrides the others.
    pub fixed: Option<f64>,
    /// The longest wait in seconds, `GASNET_EXITTIMEOUT_MAX`.
    pub most: f64,
    /// The shortest wait in seconds, `GASNET_EXITTIMEOUT_MIN`.
    pub least: f64,
    /// `GASNET_EXITTIMEOUT_FACTOR`, for each process.
    pub factor: f64,
}

impl Default for ExitTimes {
    fn default() -> Self {
        Self {
            fixed: None,
            most: 360.0,
            least: 5.0,
            factor: 0.25,
        }
    }
}

impl ExitTimes {
    /// The timeout in a job of `nodes` processes.
    #[must_use]
    pub fn wait(&self, nodes: u32) -> Duration {
        let seconds = self
            .fixed
            .unwrap_or_else(|| (self.least + self.factor * f64::from(nodes)).min(self.most));
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

impl Settings {
    /// Reads the settings from an environment.
    ///
    /// # Errors
    /// [`SettingsError`], which names the variable, its value and the valid values.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        for (name, value) in pairs {
            if let Some(short) = name.strip_prefix(PREFIX) {
                settings.set(name, short, value)?;
            } else if let Some(short) = name.strip_prefix(EXIT_PREFIX) {
                settings.set_exit(name, short, value)?;
            }
        }
        settings.checked()
    }

    /// Whether the settings can work together.
    ///
    /// # Errors
    /// [`SettingsError::Range`], [`SettingsError::Chunks`].
    pub fn checked(self) -> Result<Self, SettingsError> {
        let within = |name: &'static str, value: u32, least: u32, most: u32| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(SettingsError::Range {
                name,
                value: u64::from(value),
                least: u64::from(least),
                most: u64::from(most),
            })
        };
        within("MSG_LIMIT", self.message_limit, 12, 1 << 20)?;
        within("NUM_TMPMD", self.temporaries, 2, 1 << 20)?;
        within("SB_CHUNKS", self.request_chunks, 1, 1 << 13)?;
        within("RPL_CHUNKS", self.reply_chunks, 1, 1 << 16)?;
        within("CHUNKS_PER_BUFFER", self.chunks_per_buffer, 2, 1 << 20)?;
        let bytes = u64::from(self.request_chunks) * self.chunk.bytes() as u64;
        if bytes > u64::from(crate::match_bits::REPLY_LID) {
            return Err(SettingsError::Chunks { bytes });
        }
        let ExitTimes {
            fixed,
            most,
            least,
            factor,
        } = self.exit;
        for (short, seconds) in [
            ("", fixed.unwrap_or(0.0)),
            ("_MAX", most),
            ("_MIN", least),
            ("_FACTOR", factor),
        ] {
            if !is_wait(seconds) {
                let name = format!("{EXIT_PREFIX}{short}");
                return Err(SettingsError::value(&name, &seconds.to_string(), SECONDS));
            }
        }
        Ok(self)
    }

    /// The credit configuration of process `me` of `nodes`.
    #[must_use]
    pub const fn terms(&self, nodes: u32, me: u32) -> CreditConfig {
        CreditConfig {
            nodes,
            me,
            chunk: self.chunk,
            chunks_per_buffer: self.chunks_per_buffer,
            spares: 1,
            flow_control: self.flow_control,
            dynamic: self.dynamic_credits,
            per_node: self.credits_per_node,
            banked: self.banked_credits,
            space: self.receive_space,
            limits: self.credits,
        }
    }

    /// Largest put that is copied through a chunk, in bytes.
    #[must_use]
    pub fn put_bounce_limit(&self) -> usize {
        let most = self.chunk.bytes();
        self.put_bounce.map_or(most, |limit| most.min(limit as usize))
    }

    /// Largest get through a chunk, in bytes: the original keeps the destination in its last eight.
    #[must_use]
    pub fn get_bounce_limit(&self) -> usize {
        let most = self.chunk.bytes() - 8;
        self.get_bounce.map_or(most, |limit| most.min(limit as usize))
    }

    fn set(&mut self, name: &str, short: &str, value: &str) -> Result<(), SettingsError> {
        match short {
            "MSG_LIMIT" => self.message_limit = number(name, value)?,
            "NUM_TMPMD" => self.temporaries = number(name, value)?,
            "PACKED_LONG" => self.packed_long = truth(name, value)?,
            "FLOW_CONTROL" => self.flow_control = truth(name, value)?,
            "DYNAMIC_CREDITS" => self.dynamic_credits = truth(name, value)?,
            "SB_CHUNKS" => self.request_chunks = number(name, value)?,
            "RPL_CHUNKS" => self.reply_chunks = number(name, value)?,
            "SAFE_LIMIT" => self.safe_limit = number(name, value)?,
            "AM_LIMIT" => self.am_limit = number(name, value)?,
            "SYS_LIMIT" => self.sys_limit = number(name, value)?,
            "MAX_CRED_PER_NODE" => self.credits.most_per_node = number(name, value)?,
            "EPOCH_DURATION" => self.credits.epoch = number(name, value)?,
            "CRED_PER_NODE" => self.credits_per_node = Some(number(name, value)?),
            "BANKED_CREDITS" => self.banked_credits = Some(number(name, value)?),
            "AMRECV_SPACE" => self.receive_space = Some(number(name, value)?),
            "CREDIT_STATS" => self.credit_stats = truth(name, value)?,
            "ACCEL" if truth(name, value)? => return Err(SettingsError::Accel),
            "ACCEL" => {}
            "PUTGET_BOUNCE_LIMIT" => {
                let limit = number(name, value)?;
                // The variables for one direction take precedence, in any order.
                self.put_bounce.get_or_insert(limit);
                self.get_bounce.get_or_insert(limit);
            }
            "PUT_BOUNCE_LIMIT" => self.put_bounce = Some(number(name, value)?),
            "GET_BOUNCE_LIMIT" => self.get_bounce = Some(number(name, value)?),
            "CHUNK_SIZE" => {
                let bytes: u32 = number(name, value)?;
                self.chunk = Chunk::of(bytes as usize)
                    .ok_or_else(|| SettingsError::value(name, value, "1024 or 2048"))?;
            }
            "CHUNKS_PER_BUFFER" => self.chunks_per_buffer = number(name, value)?,
            "REVOKE_LIMIT" => self.credits.revoke = number(name, value)?,
            "LENDER_LIMIT" => self.credits.lend = number(name, value)?,
            "NUM_SCAVENGE" => self.credits.fan_out = number(name, value)?,
            "THREAD" => self.thread = number(name, value)?,
            _ => {
                return Err(SettingsError::Unknown {
                    name: name.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn set_exit(&mut self, name: &str, short: &str, value: &str) -> Result<(), SettingsError> {
        let seconds = || {
            let seconds = value.trim().parse::<f64>().ok();
            seconds
                .filter(|seconds| is_wait(*seconds))
                .ok_or_else(|| SettingsError::value(name, value, SECONDS))
        };
        match short {
            "" => self.exit.fixed = Some(seconds()?),
            "_MAX" => self.exit.most = seconds()?,
            "_MIN" => self.exit.least = seconds()?,
            "_FACTOR" => self.exit.factor = seconds()?,
            _ => {
                return Err(SettingsError::Unknown {
                    name: name.to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// Why settings are refused.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SettingsError {
    /// There is no such setting.
    #[error("{name} is not a setting of the conduit: docs/active-messages.md lists them")]
    Unknown {
        /// The name, as it was given.
        name: String,
    },
    /// A value that cannot be read.
    #[error("{name}={value:?}: it takes {takes}")]
    Value {
        /// The name of the variable.
        name: String,
        /// The value that was given.
        value: String,
        /// The valid values.
        takes: &'static str,
    },
    /// A number outside its range.
    #[error("GASNET_PORTAL_{name}={value} is outside {least} to {most}")]
    Range {
        /// The variable, without its prefix.
        name: &'static str,
        /// The value that was given.
        value: u64,
        /// The smallest valid value.
        least: u64,
        /// The largest valid value.
        most: u64,
    },
    /// The send buffer is larger than LIDs can name.
    #[error(
        "a send buffer of {bytes} bytes is larger than the 8388608 that a Long's header can address: lower GASNET_PORTAL_SB_CHUNKS or GASNET_PORTAL_CHUNK_SIZE"
    )]
    Chunks {
        /// The size that was given.
        bytes: u64,
    },
    /// The vendor's accelerated mode was requested.
    #[error("GASNET_PORTAL_ACCEL=1: there is no accelerated mode; unset it, or set it to 0")]
    Accel,
}

impl SettingsError {
    fn value(name: &str, value: &str, takes: &'static str) -> Self {
        Self::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            takes,
        }
    }
}

/// What the exit's wait may be.
const SECONDS: &str = "seconds, 0 or more and at most a year (31536000)";

fn is_wait(seconds: f64) -> bool {
    (0.0..=31_536_000.0).contains(&seconds)
}

/// A whole number that fits, with K, M or G for powers of 1,024.
fn number<T: TryFrom<u64>>(name: &str, value: &str) -> Result<T, SettingsError> {
    let takes =
        "a whole number that fits, optionally with the suffix K, M or G for 1024, 1024\u{b2}, 1024\u{b3}";
    let text = value.trim();
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = digits.trim().parse::<u64>().ok();
    let number = number.and_then(|number| number.checked_mul(1 << shift));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| SettingsError::value(name, value, takes))
}

/// Yes or no, as GASNet's own reader takes it.
fn truth(name: &str, value: &str) -> Result<bool, SettingsError> {
    match value.trim().to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "true" | "on" => Ok(true),
        "0" | "n" | "no" | "false" | "off" => Ok(false),
        _ => Err(SettingsError::value(name, value, "1 or 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults of the reference's table.
    #[test]
    fn an_empty_environment_gives_the_defaults() -> Result<(), SettingsError> {
        let settings = Settings::parse([("PATH", "/bin"), ("GASNET_OTHER", "x")])?;
        assert_eq!(settings, Settings::default());
        assert_eq!(
            (
                settings.message_limit,
                settings.temporaries,
                settings.request_chunks,
                settings.reply_chunks
            ),
            (250, 1024, 2048, 256)
        );
        assert_eq!(
            (settings.safe_limit, settings.am_limit, settings.sys_limit),
            (12, 8, 0)
        );
        assert_eq!(
            (settings.credits.most_per_node, settings.credits.epoch),
            (400, 1024)
        );
        assert_eq!(
            (
                settings.credits.revoke,
                settings.credits.lend,
                settings.credits.fan_out
            ),
            (32, 32, 6)
        );
        assert!(
            settings.packed_long
                && settings.flow_control
                && settings.dynamic_credits
                && !settings.credit_stats
        );
        assert_eq!(
            (settings.put_bounce_limit(), settings.get_bounce_limit()),
            (2048, 2040)
        );
        Ok(())
    }

    #[test]
    fn every_name_is_read() -> Result<(), SettingsError> {
        let pairs = [
            ("MSG_LIMIT", "12"),
            ("NUM_TMPMD", "2"),
            ("PACKED_LONG", "0"),
            ("FLOW_CONTROL", "no"),
            ("DYNAMIC_CREDITS", "off"),
            ("SB_CHUNKS", "4"),
            ("RPL_CHUNKS", "3"),
            ("SAFE_LIMIT", "1"),
            ("AM_LIMIT", "2"),
            ("SYS_LIMIT", "3"),
            ("MAX_CRED_PER_NODE", "100"),
            ("EPOCH_DURATION", "16"),
            ("CRED_PER_NODE", "10"),
            ("BANKED_CREDITS", "11"),
            ("AMRECV_SPACE", "2M"),
            ("CREDIT_STATS", "1"),
            ("ACCEL", "0"),
            ("PUT_BOUNCE_LIMIT", "100"),
            ("PUTGET_BOUNCE_LIMIT", "50"),
            ("CHUNK_SIZE", "1K"),
            ("CHUNKS_PER_BUFFER", "8"),
            ("REVOKE_LIMIT", "5"),
            ("LENDER_LIMIT", "6"),
            ("NUM_SCAVENGE", "7"),
            ("THREAD", "9"),
        ];
        let names: Vec<(String, &str)> = pairs
            .iter()
            .map(|(name, value)| (format!("{PREFIX}{name}"), *value))
            .collect();
        let settings = Settings::parse(names.iter().map(|(name, value)| (name.as_str(), *value)))?;
        assert_eq!(
            settings,
            Settings {
                message_limit: 12,
                temporaries: 2,
                packed_long: false,
                flow_control: false,
                dynamic_credits: false,
                request_chunks: 4,
                reply_chunks: 3,
                safe_limit: 1,
                am_limit: 2,
                sys_limit: 3,
                credits_per_node: Some(10),
                banked_credits: Some(11),
                receive_space: Some(2 << 20),
                credit_stats: true,
                put_bounce: Some(100),
                get_bounce: Some(50),
                chunk: Chunk::Small,
                chunks_per_buffer: 8,
                credits: Limits {
                    most_per_node: 100,
                    epoch: 16,
                    revoke: 5,
                    lend: 6,
                    fan_out: 7,
                    ..Limits::DEFAULT
                },
                thread: 9,
                exit: ExitTimes::default(),
            }
        );
        Ok(())
    }

    #[test]
    fn the_exit_waits_as_long_as_it_should() -> Result<(), SettingsError> {
        type Set = fn(&mut ExitTimes);
        let wrong: [(&str, Set); 4] = [
            ("GASNET_EXITTIMEOUT=\"", |times| times.fixed = Some(1e20)),
            ("GASNET_EXITTIMEOUT_MAX=\"", |times| times.most = f64::NAN),
            ("GASNET_EXITTIMEOUT_MIN=\"", |times| times.least = -1.0),
            ("GASNET_EXITTIMEOUT_FACTOR=\"", |times| {
                times.factor = f64::INFINITY
            }),
        ];
        for (name, set) in wrong {
            let mut settings = Settings::default();
            set(&mut settings.exit);
            let said = settings.checked().map_err(|error| error.to_string());
            assert!(
                said.as_ref().is_err_and(|text| text.starts_with(name)),
                "{said:?}"
            );
        }
        let times = ExitTimes::default();
        assert_eq!(times.wait(4), Duration::from_secs(6));
        assert_eq!(times.wait(100_000), Duration::from_secs(360));
        let settings = Settings::parse([
            ("GASNET_EXITTIMEOUT_MAX", "3"),
            ("GASNET_EXITTIMEOUT_MIN", "1"),
            ("GASNET_EXITTIMEOUT_FACTOR", "0.5"),
        ])?;
        assert_eq!(settings.exit.wait(2), Duration::from_secs(2));
        assert_eq!(settings.exit.wait(200), Duration::from_secs(3));
        let fixed = Settings::parse([("GASNET_EXITTIMEOUT", "0.25")])?;
        assert_eq!(fixed.exit.wait(1000), Duration::from_millis(250));
        Ok(())
    }

    #[test]
    fn slips_are_named() {
        let refused = |name: &'static str, value: &'static str| {
            Settings::parse([(name, value)]).map_err(|error| error.to_string())
        };
        for (name, value, says) in [
            (
                "GASNET_PORTAL_MSG_LIMT",
                "12",
                "GASNET_PORTAL_MSG_LIMT is not a setting",
            ),
            ("GASNET_PORTAL_MSG_LIMIT", "11", "MSG_LIMIT=11 is outside 12"),
            ("GASNET_PORTAL_NUM_TMPMD", "1", "NUM_TMPMD=1 is outside 2"),
            (
                "GASNET_PORTAL_MSG_LIMIT",
                "many",
                "MSG_LIMIT=\"many\": it takes a whole number",
            ),
            ("GASNET_PORTAL_CRED_PER_NODE", "65536", "a whole number that fits"),
            (
                "GASNET_PORTAL_AMRECV_SPACE",
                "99999999999G",
                "a whole number that fits",
            ),
            ("GASNET_PORTAL_PACKED_LONG", "2", "it takes 1 or 0"),
            ("GASNET_PORTAL_ACCEL", "1", "no accelerated mode"),
            ("GASNET_PORTAL_CHUNK_SIZE", "512", "1024 or 2048"),
            ("GASNET_PORTAL_SB_CHUNKS", "8192", "lower GASNET_PORTAL_SB_CHUNKS"),
            ("GASNET_EXITTIMEOUT_MAX", "-1", "seconds, 0 or more"),
            ("GASNET_EXITTIMEOUT", "NaN", "seconds, 0 or more"),
            ("GASNET_EXITTIMEOUT", "1e20", "at most a year"),
            ("GASNET_EXITTIMEOUT_FACTOR", "inf", "at most a year"),
            ("GASNET_EXITTIMEOUT_MOST", "1", "is not a setting"),
        ] {
            let said = refused(name, value);
            assert!(
                said.as_ref().is_err_and(|text| text.contains(says)),
                "{name}={value}: {said:?}"
            );
        }
    }
}
