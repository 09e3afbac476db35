//! The settings of the transport: where it listens, and every limit and time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use doorbell_fabric::cores::CoreSet;

use super::choose::Chosen;
use super::socket::KeepAlive;
use crate::error::OobError;
use crate::lines::Limits;

/// A range of ports to listen on: each address uses the first free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Any port that the system chooses.
    pub const ANY: Self = Self { first: 0, last: 0 };

    /// Creates a range, both ends included; `None` if it is empty or begins with 0.
    #[must_use]
    pub fn range(first: u16, last: u16) -> Option<Self> {
        (first != 0 && first <= last).then_some(Self { first, last })
    }

    /// Iterates over the ports.
    pub(super) fn each(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (0, _) => out.write_str("any"),
            (first, last) if first == last => write!(out, "{first}"),
            (first, last) => write!(out, "{first}-{last}"),
        }
    }
}

impl FromStr for Ports {
    type Err = OobError;

    /// Parses `7200-7299`, `7200`, or `any`.
    fn from_str(text: &str) -> Result<Self, OobError> {
        if text == "any" {
            return Ok(Self::ANY);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = first.parse().ok().zip(last.parse().ok());
        let range = range.and_then(|(first, last)| Self::range(first, last));
        range.ok_or_else(|| OobError::Setting {
            setting: "ports",
            given: text.to_owned(),
            reason: "it is not a range of ports; use the form FIRST-LAST, as in 7200-7299, or `any`"
                .to_owned(),
        })
    }
}

/// The settings of a `tcp` transport.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The NICs, addresses and families to use. The loopback only, by default.
    pub nics: Chosen,
    /// The ports to listen on.
    pub ports: Ports,
    /// Whether each module has a thread of its own, which sleeps in the kernel.
    pub threads: bool,
    /// The cores of these threads; `None`: those of the thread that starts the transport. A handle sets them
    /// where its own thread spins on one of the cores.
    pub cores: Option<CoreSet>,
    /// The limits of its connections.
    pub limits: Limits,
    /// How long one address may take to answer a connect.
    pub dial: Duration,
    /// How the kernel detects that a peer is gone.
    pub keep_alive: KeepAlive,
    /// How often a failed listener (an address that is not ready, a port in use) is retried.
    pub again: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nics: Chosen::default(),
            ports: Ports::ANY,
            threads: false,
            cores: None,
            limits: Limits::default(),
            dial: Duration::from_secs(2),
            keep_alive: KeepAlive::default(),
            again: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_they_are_read_and_others_are_refused() {
        for text in ["any", "7200", "7200-7299", "1-65535"] {
            assert_eq!(text.parse::<Ports>().unwrap().to_string(), text);
        }
        for text in ["", "0", "7-", "9-3", "0-9", "70000", "1-2-3", "-5"] {
            let said = text.parse::<Ports>().unwrap_err().to_string();
            assert!(said.contains("7200-7299"), "{said}");
        }
        assert_eq!(
            "5-7".parse::<Ports>().unwrap().each().collect::<Vec<_>>(),
            [5, 6, 7]
        );
        assert_eq!(Ports::ANY.each().collect::<Vec<_>>(), [0]);
    }
}
