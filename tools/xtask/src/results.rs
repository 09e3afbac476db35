//! The results of programs of others as a table for the documentation, with the owners of the failures that
//! are not ours.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A test that fails for a reason of its own.
#[derive(Debug)]
pub(crate) struct Known {
    /// The client's name, or how the names of several begin.
    pub(crate) client: &'static str,
    /// The test's name, or how the names of several begin.
    pub(crate) test: &'static str,
    /// The project that is responsible for it.
    pub(crate) owner: &'static str,
    pub(crate) reason: &'static str,
}

/// One client over one network with one number of ranks.
#[derive(Debug)]
pub(crate) struct Row {
    client: String,
    /// The rails or the provider.
    network: String,
    ranks: u32,
    pub(crate) passed: usize,
    /// Tests that failed, and how.
    pub(crate) failed: BTreeMap<String, String>,
    /// Whether its failures count: those over other networks are shown for comparison.
    pub(crate) is_judged: bool,
    /// Why there is nothing.
    pub(crate) reason: Option<String>,
}

impl Row {
    pub(crate) fn new(client: impl ToString, network: String, ranks: u32) -> Self {
        Self {
            client: client.to_string(),
            network,
            ranks,
            passed: 0,
            failed: BTreeMap::new(),
            is_judged: true,
            reason: None,
        }
    }

    /// Creates the row of a client that is missing, or cannot be built.
    pub(crate) fn absent(client: impl ToString, reason: String) -> Self {
        Self {
            reason: Some(reason),
            ..Self::new(client, "–".to_owned(), 0)
        }
    }

    pub(crate) fn fail(&mut self, test: &str, how: String) {
        self.failed.insert(test.to_owned(), how);
    }
}

/// All rows of a run.
#[derive(Debug)]
pub(crate) struct Table {
    /// The title of the column with the network.
    title: &'static str,
    known: &'static [Known],
    rows: Vec<Row>,
}

impl Table {
    /// Creates a table without rows.
    pub(crate) fn new(title: &'static str, known: &'static [Known]) -> Self {
        Self {
            title,
            known,
            rows: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Whether no test failed but those that others own, in the rows that are judged.
    pub(crate) fn is_good(&self) -> bool {
        let mut failures = self
            .rows
            .iter()
            .filter(|row| row.is_judged)
            .flat_map(|row| row.failed.keys().map(|test| (&row.client, test)));
        failures.all(|(client, test)| self.known(client, test).is_some())
    }

    /// Returns the owner of a test's failure, if that is known.
    fn known(&self, client: &str, test: &str) -> Option<&'static Known> {
        self.known
            .iter()
            .find(|known| client.starts_with(known.client) && test.starts_with(known.test))
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "| client | {} | ranks | passed | failed |\n|---|---|---|---|---|\n",
            self.title
        );
        for row in &self.rows {
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
        let all: BTreeMap<(&String, &String), &String> = self
            .rows
            .iter()
            .flat_map(|row| row.failed.iter().map(|(test, how)| ((&row.client, test), how)))
            .collect();
        if !all.is_empty() {
            text.push_str("\n| client | test | owner | reason |\n|---|---|---|---|\n");
        }
        for ((client, test), how) in all {
            let (owner, reason) = match self.known(client, test) {
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

    const KNOWN: &[Known] = &[Known {
        client: "reference",
        test: "test_abort_",
        owner: "the test",
        reason: "it frees a handle",
    }];

    #[test]
    fn what_fails_without_a_known_owner_is_no_success() {
        let mut table = Table::new("network", KNOWN);
        table.add(Row::absent("gasnet", "no folder".to_owned()));
        let mut row = Row::new("reference", "shm".to_owned(), 2);
        row.passed = 3;
        row.fail("test_abort_EQWait", "exit status: 6".to_owned());
        table.add(row);
        assert!(table.is_good(), "{}", table.markdown());
        let shown = table.markdown();
        for line in [
            "| client | network | ranks |",
            "| gasnet | – | – | – | not run: no folder |",
            "| reference | shm | 2 | 3 of 4 | test_abort_EQWait |",
            "| reference | test_abort_EQWait | the test |",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
        let mut other = Row::new("openmpi", "tcp".to_owned(), 2);
        other.fail("ring", "exit status: 1".to_owned());
        other.is_judged = false;
        table.add(other);
        assert!(table.is_good(), "{}", table.markdown());
        let mut row = Row::new("openmpi", "shm".to_owned(), 2);
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
