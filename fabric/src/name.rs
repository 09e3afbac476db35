//! Names of rails: `shm`, `udp:eth0`, `verbs:mlx5_0:1`, `usnic:0000:3b:00.2`, `sim:42`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::RailError;

/// Every kind of driver that design and documentation name, built in or not.
pub const KINDS: [&str; 9] = [
    "shm", "udp", "xdp", "usnic", "igbvf", "verbs", "ofi", "portals", "sim",
];

/// The kinds whose rails can be named in a list of rails, which refusals suggest: the others have no driver,
/// or no rails between processes.
pub const NAMED_KINDS: [&str; 6] = ["shm", "udp", "xdp", "usnic", "igbvf", "verbs"];

/// A rail's configured name: the driver's kind and what it is to use. In files and messages it is its text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RailName {
    text: String,
    kind: usize,
}

impl RailName {
    /// The kind of driver, the part before the first colon.
    pub fn kind(&self) -> &str {
        &self.text[..self.kind]
    }

    /// Returns the name of its wire protocol: rails reach each other when both have the same. Mostly the
    /// kind; `udp`, `xdp`, `usnic` and `igbvf` all put the same frames into UDP.
    ///
    /// ```
    /// # use doorbell_fabric::name::RailName;
    /// let wire = |text: &str| text.parse::<RailName>().map(|name| name.wire().to_owned());
    /// assert_eq!((wire("xdp:eth0")?.as_str(), wire("shm")?.as_str()), ("udp", "shm"));
    /// # Ok::<(), doorbell_fabric::error::RailError>(())
    /// ```
    pub fn wire(&self) -> &str {
        match self.kind() {
            "udp" | "xdp" | "usnic" | "igbvf" => "udp",
            // Datagrams, with the BTL above them.
            "verbs" if self.object().ends_with(":ud") => "verbs-ud",
            // The planes of a simulated network do not reach each other.
            "sim" => self.as_str(),
            kind => kind,
        }
    }

    /// Returns what the driver is to use (interface, device, seed): the part after the first colon, or empty.
    pub fn object(&self) -> &str {
        self.text.get(self.kind + 1..).unwrap_or("")
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Longest name, in bytes: longer than any device's, short enough for a line.
pub const NAME_MAX: usize = 128;

impl FromStr for RailName {
    type Err = RailError;

    /// Reads a name; the kind must be one of [`KINDS`]. Names are shown on terminals and occur in lists and
    /// file names, so they hold no blanks, commas and control characters.
    fn from_str(text: &str) -> Result<Self, RailError> {
        let odd = |c: char| c.is_whitespace() || c.is_control() || c == ',';
        if text.len() > NAME_MAX || text.contains(odd) {
            let shown: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
            return Err(RailError::misuse(
                "rail",
                &shown,
                "is longer than 128 bytes, or holds blanks, commas or control characters",
            ));
        }
        let kind = text.find(':').unwrap_or(text.len());
        if !KINDS.contains(&&text[..kind]) {
            return Err(RailError::unknown_kind(text));
        }
        Ok(Self {
            text: text.to_owned(),
            kind,
        })
    }
}

impl TryFrom<String> for RailName {
    type Error = RailError;

    fn try_from(text: String) -> Result<Self, RailError> {
        text.parse()
    }
}

impl From<RailName> for String {
    fn from(name: RailName) -> String {
        name.text
    }
}

impl fmt::Display for RailName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_splits_at_its_first_colon() {
        let name: RailName = "usnic:0000:3b:00.2".parse().unwrap();
        assert_eq!((name.kind(), name.object()), ("usnic", "0000:3b:00.2"));
        let name: RailName = "shm".parse().unwrap();
        assert_eq!(
            (name.kind(), name.object(), name.to_string().as_str()),
            ("shm", "", "shm")
        );
    }

    #[test]
    fn an_unknown_kind_is_refused_with_the_nearest_one() {
        let error = "smh".parse::<RailName>().unwrap_err().to_string();
        assert!(error.contains("smh") && error.contains("shm"), "{error}");
    }

    #[test]
    fn a_name_travels_as_its_text() {
        let name: RailName = "udp:eth0".parse().unwrap();
        let text = serde_json::to_string(&name).unwrap();
        assert_eq!(text, "\"udp:eth0\"");
        assert_eq!(serde_json::from_str::<RailName>(&text).unwrap(), name);
        assert!(serde_json::from_str::<RailName>("\"tcp:eth0\"").is_err());
    }

    #[test]
    fn names_that_would_spoil_a_line_are_refused() {
        for text in [
            "udp:eth0 ",
            "udp:\u{1b}[2J",
            "shm,udp",
            "udp:a\nb",
            "udp:\u{2028}",
            "",
        ] {
            let error = text.parse::<RailName>().unwrap_err().to_string();
            assert!(!error.contains(['\u{1b}', '\n']), "{error:?}");
        }
        assert!(format!("udp:{}", "x".repeat(200)).parse::<RailName>().is_err());
    }
}
