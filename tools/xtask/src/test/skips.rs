//! Tests that could not run, and why.
//!
//! A test finds out while it runs that the machine lacks something. It then appends one line, `name: reason`, to the
//! file named by `DOORBELL_SKIP_FILE` and returns; a file, because standard output is captured, and a test program
//! may be several processes.

use serde::Serialize;

/// One test that did not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Skip {
    /// The test.
    pub(super) test: String,
    /// Why not.
    pub(super) reason: String,
}

impl Skip {
    /// The Debian package that is missing, when that is the reason.
    pub(super) fn package(&self) -> Option<&str> {
        Some(self.reason.strip_prefix("package ")?.split_once(':')?.0)
    }
}

/// Reads a skip file; a test that wrote twice counts once, under its last reason.
pub(super) fn parse(text: &str) -> Vec<Skip> {
    let mut skips: Vec<Skip> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (test, reason) = line.split_once(": ").unwrap_or((line, "it gave no reason"));
        let skip = Skip {
            test: test.to_owned(),
            reason: reason.to_owned(),
        };
        match skips.iter_mut().find(|known| known.test == skip.test) {
            Some(known) => *known = skip,
            None => skips.push(skip),
        }
    }
    skips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_counts_once_and_paths_may_hold_colons() {
        let skips = parse(
            "shm::pull: process_vm_readv is refused\n\nshm::pull: still\nx\na: package strace: not found\n",
        );
        let pairs: Vec<(&str, &str)> = skips
            .iter()
            .map(|skip| (skip.test.as_str(), skip.reason.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("shm::pull", "still"),
                ("x", "it gave no reason"),
                ("a", "package strace: not found")
            ]
        );
        assert_eq!(skips[2].package(), Some("strace"));
        assert_eq!(skips[0].package(), None);
    }
}
