//! What was measured between two hosts, for people and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::OURS;
use super::figures::{self, Figure};
use super::flap::{self, Flapped};
use crate::error::Error;

/// The JSON of `cargo xtask mpi-clients` with `--flap` or `--figures`
/// (`bench/schema/mpi-two-hosts-1.schema.json`).
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    schema: &'static str,
    /// The rails of our provider.
    rails: String,
    /// Which links were down when.
    pub(super) seed: Option<u64>,
    pub(super) flaps: Vec<Flapped>,
    pub(super) figures: Vec<Figure>,
    /// Programs that did not end well while figures were measured.
    pub(super) failures: Vec<String>,
}

impl Measured {
    pub(super) fn new(rails: Option<&str>) -> Self {
        Self {
            schema: "doorbell.mpi-two-hosts/1",
            rails: rails.unwrap_or_default().to_owned(),
            seed: None,
            flaps: Vec::new(),
            figures: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Whether everything over our provider is as it has to be.
    pub(super) fn is_good(&self) -> bool {
        let ours = format!(" over {OURS},");
        self.flaps.iter().all(Flapped::is_good)
            && self.figures.iter().all(Figure::is_good)
            && !self.failures.iter().any(|failure| failure.contains(&ours))
    }

    pub(super) fn markdown(&self) -> String {
        let mut text = format!("two hosts, rails of {OURS}: {}\n", self.rails);
        // Writing into memory cannot fail.
        if let Some(seed) = self.seed {
            _ = write!(text, "\nseed {seed}\n\n{}", flap::HEAD);
        }
        for flapped in &self.flaps {
            _ = writeln!(text, "{}", flapped.line());
        }
        if !self.figures.is_empty() {
            _ = write!(text, "\n{}", figures::HEAD);
        }
        for figure in &self.figures {
            _ = writeln!(text, "{}", figure.line());
        }
        for failure in &self.failures {
            _ = writeln!(text, "\nfailed: {failure}");
        }
        text
    }

    pub(super) fn to_json(&self) -> Result<String, Error> {
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::Lab(error.to_string()))?;
        Ok(text + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_over_our_provider_counts_and_the_json_keeps_its_schema() {
        let mut measured = Measured::new(Some("udp:v0,udp:v1"));
        measured.seed = Some(7);
        measured.flaps = flap::for_tests();
        measured.figures = figures::for_tests();
        measured.failures = vec!["mpich-5.0.2 over tcp, group: signal: 9".to_owned()];
        assert!(measured.is_good());
        let text = measured.markdown();
        for part in [
            "seed 7\n\n| MPI",
            "| latency | 8 |",
            "\nfailed: mpich-5.0.2 over tcp",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&measured.to_json().unwrap()).unwrap();
        let schema = include_str!("../../../../bench/schema/mpi-two-hosts-1.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<_> = validator
            .iter_errors(&json)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{errors:?}");
        measured.failures[0] = "mpich-5.0.2 over doorbell, group: signal: 9".to_owned();
        assert!(!measured.is_good());
    }
}
