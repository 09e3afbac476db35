//! Names of rails: `shm`, `udp:eth0`, `verbs:mlx5_0:1`, `usnic:0000:3b:00.2`, `sim:42`.

use std::fmt;
use std::str::FromStr;

use crate::error::RailError;

/// Every kind of driver that design and documentation name, built in or not.
pub const KINDS: [&str; 9] = [
    "shm", "udp", "xdp", "usnic", "igbvf", "verbs", "ofi", "portals", "sim",
];

/// A rail's configured name: the driver's kind and what it is to use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RailName {
    text: String,
    kind: usize,
}

impl RailName {
    /// The kind of driver, the part before the first colon.
    pub fn kind(&self) -> &str {
        &self.text[..self.kind]
    }

    /// What the driver is to use (interface, device, seed): the part after the first colon, or empty.
    pub fn object(&self) -> &str {
        self.text.get(self.kind + 1..).unwrap_or("")
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for RailName {
    type Err = RailError;

    /// Reads a name; the kind must be one of [`KINDS`].
    fn from_str(text: &str) -> Result<Self, RailError> {
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
}
