//! What the fuzzers found: read from what libFuzzer printed, shown, and passed to `cargo xtask test` as JSON.

use std::path::Path;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

/// Lines that are shown of a target that failed, at most; all of them stay in its log.
const SHOWN: usize = 40;

/// What one target came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// The name of the target.
    pub(crate) target: String,
    /// How many inputs it ran.
    pub(crate) executions: u64,
    /// What broke, if something did.
    pub(crate) failure: Option<String>,
    /// The command that shows it again.
    pub(crate) repeat: String,
    /// The lines that explain it.
    pub(crate) lines: Vec<String>,
}

/// What all of them came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The targets that ran.
    pub(crate) found: Vec<Found>,
    /// Why none ran, if none could.
    pub(crate) skipped: Option<String>,
}

impl Found {
    pub(super) fn passed(target: &str, executions: u64) -> Self {
        Self {
            target: target.to_owned(),
            executions,
            failure: None,
            repeat: String::new(),
            lines: Vec::new(),
        }
    }

    pub(super) fn failed(target: &str, what: String, repeat: String) -> Self {
        Self {
            failure: Some(what),
            repeat,
            ..Self::passed(target, 0)
        }
    }

    /// One line, and what explains a failure.
    pub(super) fn print(&self) {
        let verdict = if self.failure.is_none() { "ok" } else { "FAILED" };
        println!("{:12} {verdict:7} {} inputs", self.target, self.executions);
        self.lines.iter().for_each(|line| println!("    {line}"));
    }
}

impl Report {
    pub(super) fn of(mut found: Vec<Found>) -> Self {
        found.sort_by(|one, other| one.target.cmp(&other.target));
        Self { found, skipped: None }
    }

    pub(super) fn skipped(reason: String) -> Self {
        Self {
            found: Vec::new(),
            skipped: Some(reason),
        }
    }

    /// Whether nothing was found.
    pub(super) fn is_good(&self) -> bool {
        self.found.iter().all(|found| found.failure.is_none())
    }

    /// The failures, and the closing line.
    pub(super) fn print(&self) {
        if let Some(reason) = &self.skipped {
            return println!("skipped: {reason}");
        }
        let mut failed = 0;
        for found in &self.found {
            if let Some(what) = &found.failure {
                failed += 1;
                println!("{what}\n    {}", found.repeat);
            }
        }
        println!("{} targets, {failed} failed", self.found.len());
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Returns what a target came to, by how it ended and what it printed.
pub(super) fn read(target: &str, status: ExitStatus, text: &str, log: &Path) -> Found {
    let number = |line: &str| {
        line.strip_prefix("stat::number_of_executed_units:")?
            .trim()
            .parse()
            .ok()
    };
    let executions = text.lines().find_map(number);
    if let (true, Some(executions @ 1..)) = (status.success(), executions) {
        return Found::passed(target, executions);
    }
    let artifact = text
        .lines()
        .find_map(|line| line.split_once("Test unit written to ").map(|(_, path)| path));
    let (what, repeat) = match artifact {
        Some(path) => (
            format!("{target} breaks with the input {path}"),
            repeat(target, path),
        ),
        None => (
            format!(
                "{target} ended with {status}, and left no input; its output is {}",
                log.display()
            ),
            format!("cargo xtask fuzz {target}"),
        ),
    };
    // The output of the code, not libFuzzer's progress.
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with("INFO:"));
    Found {
        executions: executions.unwrap_or(0),
        lines: lines.take(SHOWN).map(str::to_owned).collect(),
        ..Found::failed(target, what, repeat)
    }
}

/// The command that runs one input again.
pub(super) fn repeat(target: &str, input: &str) -> String {
    format!("cargo xtask fuzz --replay {input} {target}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const GOOD: &str = "INFO: seed corpus: files: 3\n#2 INITED cov: 30\nDone 900 runs in 10 second(s)\n\
                        stat::number_of_executed_units: 900\nstat::average_exec_per_sec:     90\n";
    const BAD: &str = "#7 NEW cov: 30\nthread panicked at src/x.rs:1:\nit came twice\n\
                       artifact_prefix='a/'; Test unit written to a/crash-1234\n\
                       stat::number_of_executed_units: 7\n";

    #[test]
    fn a_run_that_ended_well_is_counted() {
        let found = read("a", ExitStatus::from_raw(0), GOOD, Path::new("x.log"));
        assert_eq!(found, Found::passed("a", 900));
        assert!(Report::of(vec![found]).is_good());
    }

    #[test]
    fn a_broken_target_is_named_with_its_input_and_how_to_run_it_again() {
        let found = read("a", ExitStatus::from_raw(77 << 8), BAD, Path::new("x.log"));
        assert_eq!(
            found.failure.as_deref(),
            Some("a breaks with the input a/crash-1234")
        );
        assert_eq!(found.repeat, "cargo xtask fuzz --replay a/crash-1234 a");
        assert!(
            found.lines.contains(&"it came twice".to_owned()) && found.lines.len() == 4,
            "{found:?}"
        );
        let report = Report::of(vec![found]);
        assert!(!report.is_good());
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }

    #[test]
    fn a_target_that_ran_nothing_or_was_killed_has_failed() {
        for (status, text) in [(0, ""), (0, "stat::number_of_executed_units: 0\n"), (9, GOOD)] {
            let found = read("a", ExitStatus::from_raw(status), text, Path::new("x.log"));
            assert!(found.failure.is_some_and(|what| what.contains("x.log")), "{text}");
        }
    }
}
