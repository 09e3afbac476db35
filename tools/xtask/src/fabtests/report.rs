//! The results of all providers: a table for people, the same as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::OURS;
use super::outcome::{Test, Verdict};
use super::script::Set;
use super::source::Built;
use crate::error::Error;

/// The JSON of `cargo xtask fabtests` (`bench/schema/fabtests-1.schema.json`).
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: &'static str,
    /// The release of the tests.
    fabtests: String,
    /// The release of the libfabric that they ran over.
    libfabric: String,
    set: &'static str,
    /// How many hosts server and client are on.
    hosts: u32,
    providers: Vec<Row>,
}

/// The results over one provider.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    provider: String,
    passed: usize,
    failed: usize,
    /// Of these, the script counts each as failed: `fi_getinfo` refused the server.
    refused: usize,
    not_run: usize,
    excluded: usize,
    /// Tests of RDM endpoints, and how many of them passed.
    rdm: usize,
    rdm_passed: usize,
    tests: Vec<Test>,
}

impl Row {
    pub(super) fn new(provider: &str, tests: Vec<Test>) -> Self {
        let count = |result: Verdict| tests.iter().filter(|test| test.result == result).count();
        let rdm = || tests.iter().filter(|test| test.is_rdm());
        Self {
            provider: provider.to_owned(),
            passed: count(Verdict::Passed),
            failed: count(Verdict::Failed),
            refused: count(Verdict::Refused),
            not_run: count(Verdict::NotRun),
            excluded: count(Verdict::Excluded),
            rdm: rdm().count(),
            rdm_passed: rdm().filter(|test| test.result == Verdict::Passed).count(),
            tests,
        }
    }

    /// Returns the counts in a line.
    pub(super) fn line(&self) -> String {
        format!(
            "{} passed, {} failed, {} refused, {} not run, {} excluded",
            self.passed, self.failed, self.refused, self.not_run, self.excluded
        )
    }

    fn ended(&self, result: Verdict) -> impl Iterator<Item = &Test> {
        self.tests.iter().filter(move |test| test.result == result)
    }

    fn has_passed(&self, name: &str) -> bool {
        self.ended(Verdict::Passed).any(|test| test.name == name)
    }
}

impl Report {
    pub(super) fn new(set: Set, built: &Built, two_hosts: bool) -> Self {
        Self {
            schema: "doorbell.fabtests/1",
            fabtests: built.release.clone(),
            libfabric: built.libfabric.to_string(),
            set: set.word(),
            hosts: 1 + u32::from(two_hosts),
            providers: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, row: Row) {
        self.providers.push(row);
    }

    /// Whether nothing failed over our provider.
    pub(super) fn is_good(&self) -> bool {
        self.ours().is_none_or(|row| row.failed == 0)
    }

    fn ours(&self) -> Option<&Row> {
        self.providers.iter().find(|row| row.provider == OURS)
    }

    /// Returns the tests that pass over another provider and not over ours, with that provider.
    fn behind(&self) -> Vec<(&str, &str)> {
        let Some(ours) = self.ours() else {
            return Vec::new();
        };
        let others = || self.providers.iter().filter(|row| row.provider != OURS);
        let missing = ours
            .tests
            .iter()
            .filter(|test| test.is_rdm() && test.result != Verdict::Passed);
        missing
            .filter_map(|test| {
                let other = others().find(|row| row.has_passed(&test.name))?;
                Some((test.name.as_str(), other.provider.as_str()))
            })
            .collect()
    }

    pub(super) fn to_json(&self) -> Result<String, Error> {
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::Lab(error.to_string()))?;
        Ok(text + "\n")
    }

    pub(super) fn markdown(&self) -> String {
        let mut text = format!(
            "fabtests {}, set {}, over libfabric {}{}\n\n\
             | provider | passed | failed | refused | not run | excluded | of RDM |\n\
             |---|---|---|---|---|---|---|\n",
            self.fabtests,
            self.set,
            self.libfabric,
            if self.hosts > 1 { ", between two hosts" } else { "" }
        );
        for row in &self.providers {
            // Writing into memory cannot fail.
            _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} of {} |",
                row.provider,
                row.passed,
                row.failed,
                row.refused,
                row.not_run,
                row.excluded,
                row.rdm_passed,
                row.rdm
            );
        }
        for (result, word) in [
            (Verdict::Failed, "failed"),
            (
                Verdict::Refused,
                "refused by fi_getinfo, and counted as failed by the script,",
            ),
        ] {
            for row in &self.providers {
                for test in row.ended(result) {
                    _ = writeln!(text, "\n{word} over {}: {}", row.provider, test.name);
                    for line in &test.last_lines {
                        _ = writeln!(text, "    {line}");
                    }
                }
            }
        }
        for row in &self.providers {
            let in_part = row
                .tests
                .iter()
                .filter(|test| test.result == Verdict::Passed && test.skipped_parts > 0);
            for test in in_part {
                let (name, parts) = (&test.name, test.skipped_parts);
                _ = writeln!(
                    text,
                    "\npassed in part over {}: {name} skipped {parts}",
                    row.provider
                );
            }
        }
        let behind = self.behind();
        if !behind.is_empty() {
            text.push_str("\npassed over another provider, and not over ours:\n");
        }
        for (test, provider) in behind {
            _ = writeln!(text, "    {test} ({provider})");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    use libfabric_sys::Level;

    fn test(name: &str, result: Verdict) -> Test {
        Test {
            name: name.to_owned(),
            result,
            seconds: 1,
            skipped_parts: usize::from(name == "fi_cq_test"),
            last_lines: if matches!(result, Verdict::Failed | Verdict::Refused) {
                vec!["ret=-38".to_owned()]
            } else {
                Vec::new()
            },
        }
    }

    fn report() -> Report {
        let built = Built {
            release: "2.6.0".to_owned(),
            libfabric: Level::new(2, 6),
            programs: PathBuf::new(),
            library: PathBuf::new(),
            tests: PathBuf::new(),
        };
        Report::new(Set::Quick, &built, true)
    }

    #[test]
    fn a_failure_over_another_provider_is_shown_and_none_of_ours() {
        let mut report = report();
        report.add(Row::new("tcp", vec![test("fi_rdm", Verdict::Failed)]));
        let ours = vec![
            test("fi_rdm", Verdict::Passed),
            test("fi_cq_test", Verdict::Passed),
            test("fi_rdm_rma_trigger", Verdict::Refused),
        ];
        report.add(Row::new(OURS, ours));
        assert!(report.is_good());
        let text = report.markdown();
        assert!(text.contains("libfabric 2.6, between two hosts\n"), "{text}");
        assert!(text.contains("| tcp | 0 | 1 | 0 | 0 | 0 | 0 of 1 |"), "{text}");
        assert!(text.contains("failed over tcp: fi_rdm\n    ret=-38\n"), "{text}");
        assert!(
            text.contains("| doorbell | 2 | 0 | 1 | 0 | 0 | 2 of 3 |"),
            "{text}"
        );
        assert!(
            text.contains("by the script, over doorbell: fi_rdm_rma_trigger\n    ret=-38\n"),
            "{text}"
        );
        assert!(!text.contains("passed over another"), "{text}");
        assert!(
            text.contains("passed in part over doorbell: fi_cq_test skipped 1\n"),
            "{text}"
        );
    }

    #[test]
    fn what_passes_elsewhere_and_not_here_is_listed() {
        let mut report = report();
        let here = vec![
            test("fi_rdm", Verdict::Failed),
            test("fi_rma_bw -e rdm", Verdict::NotRun),
            test("fi_msg", Verdict::NotRun),
            test("fi_flood -e msg", Verdict::Refused),
        ];
        report.add(Row::new(OURS, here));
        let there = vec![
            test("fi_rma_bw -e rdm", Verdict::Passed),
            test("fi_msg", Verdict::Passed),
            test("fi_rdm", Verdict::Failed),
        ];
        report.add(Row::new("shm", there));
        assert!(!report.is_good());
        assert_eq!(report.behind(), [("fi_rma_bw -e rdm", "shm")]);
        let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        let schema = include_str!("../../../../bench/schema/fabtests-1.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<_> = validator
            .iter_errors(&json)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(json["providers"][0]["tests"][1]["result"], "not_run");
    }
}
