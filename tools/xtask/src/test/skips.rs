//! Tests that could not run, and why.
//!
//! A test finds out while it runs that the machine lacks something. It then appends one line, `name: reason`,
//! to the file named by `DOORBELL_SKIP_FILE` and returns; a file, because standard output is captured, and a
//! test program may be several processes. `doorbell_testing::skipped` does both. A test that passed and only
//! printed that it was skipped is found by what it printed (`printed`), and counts as skipped too.

use serde::Serialize;

/// One test that did not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Skip {
    /// The name of the test.
    pub(super) test: String,
    /// Why it did not run.
    pub(super) reason: String,
}

impl Skip {
    /// Returns the Debian package that is missing, when that is the reason.
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

/// What `doorbell_testing::skipped` prints, before the line that it writes to the file.
const MARK: &str = "doorbell-skip: ";

/// What a test prints that knows nothing of the file.
const ONLY_PRINTED: &str = "skipped: ";

/// Takes what passed tests printed out of a log of `cargo test -- --show-output`, and adds those to `skips`
/// that printed that they were skipped and are not in it. Returns the rest of the log, which is what cargo
/// prints by itself.
pub(super) fn printed(log: &str, skips: &mut Vec<Skip>) -> String {
    let mut rest = String::with_capacity(log.len());
    let mut lines = log.lines();
    while let Some(line) = lines.next() {
        // The heading is there twice: before what was printed, and before the list of names.
        let mut ahead = lines.clone();
        if line != HEADING || !ahead.any(|line| line == HEADING) {
            rest.push_str(line);
            rest.push('\n');
            continue;
        }
        let mut test = "";
        for line in lines.by_ref().take_while(|line| *line != HEADING) {
            let title = line.strip_prefix("---- ");
            if let Some(name) = title.and_then(|title| title.strip_suffix(" stdout ----")) {
                test = name;
            } else if let Some(line) = line.strip_prefix(MARK) {
                add(skips, parse(line));
            } else if let Some(reason) = line.strip_prefix(ONLY_PRINTED)
                && !skips.iter().any(|skip| skip.reason == reason)
            {
                let (test, reason) = (test.to_owned(), reason.to_owned());
                add(skips, vec![Skip { test, reason }]);
            }
        }
        // The names, each indented.
        while lines.clone().next().is_some_and(|line| line.starts_with("    ")) {
            lines.next();
        }
    }
    rest
}

/// The heading of the output of tests that passed.
const HEADING: &str = "successes:";

/// Adds those whose test is not there yet.
fn add(skips: &mut Vec<Skip>, more: Vec<Skip>) {
    for skip in more {
        if !skips.iter().any(|known| known.test == skip.test) {
            skips.push(skip);
        }
    }
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

    #[test]
    fn a_skip_that_was_only_printed_counts() {
        let log = "running 3 tests\ntest a::quiet ... ok\ntest a::named ... ok\n\nsuccesses:\n\n\
                   ---- a::quiet stdout ----\nskipped: only root can change its user\n\n\
                   ---- a::named stdout ----\ndoorbell-skip: named: no veth\ntest x ... ignored, y\n\n\
                   ---- a::lost stdout ----\ndoorbell-skip: lost: package strace: not found\n\n\n\
                   successes:\n    a::quiet\n    a::named\n    a::lost\n\n\
                   test result: ok. 3 passed; 0 failed; 0 ignored\n";
        let mut skips = parse("named: no veth\n");
        let rest = printed(log, &mut skips);
        let shown: Vec<String> = skips
            .iter()
            .map(|skip| format!("{}: {}", skip.test, skip.reason))
            .collect();
        assert_eq!(
            shown,
            [
                "named: no veth",
                "a::quiet: only root can change its user",
                "lost: package strace: not found"
            ]
        );
        assert_eq!(
            rest,
            "running 3 tests\ntest a::quiet ... ok\ntest a::named ... ok\n\n\n\
             test result: ok. 3 passed; 0 failed; 0 ignored\n"
        );
    }

    #[test]
    fn a_heading_that_stands_alone_is_left_where_it_is() {
        let log = "successes:\nskipped: x\n";
        let mut skips = Vec::new();
        assert_eq!((printed(log, &mut skips).as_str(), skips.len()), (log, 0));
    }
}
