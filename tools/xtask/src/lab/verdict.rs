//! What a guest said of its checks: lines that `guest/tell.sh` writes to the console.

use serde::{Deserialize, Serialize};

/// The words that begin these lines.
pub(super) const GOOD: &str = "LAB ok";
pub(super) const BAD: &str = "LAB failed";

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Check {
    /// What was checked.
    pub(crate) what: String,
    /// What was found instead, where it does not hold.
    pub(crate) failure: Option<String>,
}

/// The checks on a console, in their order.
pub(super) fn checks(console: &str) -> Vec<Check> {
    let lines = console.lines().map(|line| line.trim_end());
    lines.filter_map(check).collect()
}

fn check(line: &str) -> Option<Check> {
    // Words of the kernel may stand before it on the same line.
    let after = |word: &str| {
        let (_, rest) = line.split_once(word)?;
        rest.strip_prefix(": ")
    };
    if let Some(what) = after(GOOD) {
        return Some(Check {
            what: what.to_owned(),
            failure: None,
        });
    }
    let (what, found) =
        after(BAD).map(|rest| rest.split_once(" -- ").unwrap_or((rest, "it does not hold")))?;
    Some(Check {
        what: what.to_owned(),
        failure: Some(found.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_found_among_whatever_else_is_on_the_console() {
        let console = "[ 1.0] booted\r\nLAB ok: eth0 is up\r\n[ 2.0] igb: LAB failed: zero-copy is had -- exit 3: no\r\n\
                       LAB failed: bare\nLAB okay: no check\nLAB ok\n";
        let found = checks(console);
        let pairs: Vec<_> = found
            .iter()
            .map(|check| (check.what.as_str(), check.failure.as_deref()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("eth0 is up", None),
                ("zero-copy is had", Some("exit 3: no")),
                ("bare", Some("it does not hold")),
            ]
        );
    }
}
