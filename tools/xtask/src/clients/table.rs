//! The results as a table for the documentation.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::known::{self, Known};
use super::trees::Client;

/// One client over one network with one number of ranks.
#[derive(Debug)]
pub(crate) struct Row {
    client: Client,
    network: String,
    ranks: u32,
    pub(crate) passed: usize,
    /// Tests that failed, and how.
    pub(crate) failed: BTreeMap<String, String>,
    /// Why there is nothing.
    pub(crate) reason: Option<String>,
}

impl Row {
    pub(crate) fn new(client: Client, network: String, ranks: u32) -> Self {
        Self {
            client,
            network,
            ranks,
            passed: 0,
            failed: BTreeMap::new(),
            reason: None,
        }
    }

    /// Creates the row of a client that is missing, or cannot be built.
    pub(crate) fn absent(client: Client, reason: String) -> Self {
        Self {
            reason: Some(reason),
            ..Self::new(client, "–".to_owned(), 0)
        }
    }

    pub(crate) fn fail(&mut self, test: &str, how: String) {
        self.failed.insert(test.to_owned(), how);
    }

    /// Failures without another known owner.
    fn unknown(&self) -> impl Iterator<Item = (&String, &String)> {
        self.failed
            .iter()
            .filter(|(test, _)| known::of(self.client, test).is_none())
    }
}

/// All rows of a run.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

impl Table {
    pub(crate) fn add(&mut self, row: Row) {
        self.0.push(row);
    }

    /// Whether no test failed but those that others own.
    pub(crate) fn is_good(&self) -> bool {
        self.0.iter().all(|row| row.unknown().next().is_none())
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text =
            String::from("| client | network | ranks | passed | failed |\n|---|---|---|---|---|\n");
        for row in &self.0 {
            if let Some(reason) = &row.reason {
                _ = writeln!(
                    text,
                    "| {} | {} | – | – | not run: {reason} |",
                    row.client, row.network
                );
                continue;
            }
            let names: Vec<&str> = row.failed.keys().map(String::as_str).collect();
            let failed = if names.is_empty() {
                "–".to_owned()
            } else {
                names.join(", ")
            };
            _ = writeln!(
                text,
                "| {} | {} | {} | {} of {} | {failed} |",
                row.client,
                row.network,
                row.ranks,
                row.passed,
                row.passed + row.failed.len()
            );
        }
        let all: BTreeMap<(Client, &String), &String> = self
            .0
            .iter()
            .flat_map(|row| row.failed.iter().map(|(test, how)| ((row.client, test), how)))
            .collect();
        if !all.is_empty() {
            text.push_str("\n| client | test | owner | reason |\n|---|---|---|---|\n");
        }
        for ((client, test), how) in all {
            let (owner, reason) = match known::of(client, test) {
                Some(Known { owner, reason, .. }) => (*owner, *reason),
                None => ("not known", how.as_str()),
            };
            _ = writeln!(text, "| {client} | {test} | {owner} | {reason} |");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_without_a_known_owner_is_no_success() {
        let mut table = Table::default();
        table.add(Row::absent(Client::Gasnet, "no folder".to_owned()));
        let mut row = Row::new(Client::Reference, "shm".to_owned(), 2);
        row.passed = 3;
        row.fail("test_abort_EQWait", "exit status: 6".to_owned());
        table.add(row);
        assert!(table.is_good(), "{}", table.markdown());
        let shown = table.markdown();
        assert!(
            shown.contains("| gasnet | – | – | – | not run: no folder |"),
            "{shown}"
        );
        assert!(
            shown.contains("| reference | shm | 2 | 3 of 4 | test_abort_EQWait |"),
            "{shown}"
        );
        assert!(
            shown.contains("| reference | test_abort_EQWait | the test |"),
            "{shown}"
        );
        let mut row = Row::new(Client::OpenMpi, "shm".to_owned(), 2);
        row.fail("ring", "exit status: 1".to_owned());
        table.add(row);
        assert!(!table.is_good());
        assert!(
            table
                .markdown()
                .contains("| openmpi | ring | not known | exit status: 1 |")
        );
    }
}
