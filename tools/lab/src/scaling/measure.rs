//! The measurements of all rounds, by curve and count.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use doorbell_fabric::clock::Clock;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};

use super::report::Key;
use super::{idle, ranks};
use crate::place::without_settings;
use crate::probes::{Asked, Queue, matching_nanos};

/// Figures of a point, one for each round; and why points are missing.
#[derive(Debug, Default)]
pub(super) struct Samples {
    figures: BTreeMap<(Key, u32), Vec<f64>>,
    /// What, how many, and why not; the first reason of each.
    pub(super) missing: BTreeMap<(&'static str, u32), String>,
}

impl Samples {
    /// The figures of a point.
    pub(super) fn of(&self, key: Key, count: u32) -> &[f64] {
        self.figures.get(&(key, count)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn add(&mut self, key: Key, count: u32, figure: f64) {
        self.figures.entry((key, count)).or_default().push(figure);
    }

    /// Measures ranks with `peers` idle peers, in a process of their own.
    pub(super) fn idle(&mut self, runner: &Runner, peers: u32) -> Result<(), Stop> {
        match idle::ask(runner, peers)? {
            Ok(figures) => figures
                .into_iter()
                .for_each(|(key, figure)| self.add(key, peers, figure)),
            Err(why) => self.lacks("idle peers", peers, why),
        }
        Ok(())
    }

    /// Measures matching with `entries` receives posted, and with as many messages kept.
    pub(super) fn queues(&mut self, clock: &Clock, entries: u32) {
        for (key, queue, asked) in [
            (Key::PostedFew, Queue::Posted, Asked::Few),
            (Key::PostedAll, Queue::Posted, Asked::All),
            (Key::UnexpectedFew, Queue::Unexpected, Asked::Few),
            (Key::UnexpectedAll, Queue::Unexpected, Asked::All),
        ] {
            self.add(
                key,
                entries,
                matching_nanos(clock, queue, asked, u64::from(entries)),
            );
        }
    }

    /// Measures jobs of `count` ranks.
    pub(super) fn ranks(&mut self, runner: &Runner, count: u32) -> Result<(), Stop> {
        for asked in [ranks::pairs(runner, count)?, ranks::world(runner, count)?] {
            match asked {
                Ok(figures) => figures
                    .into_iter()
                    .for_each(|(key, figure)| self.add(key, count, figure)),
                Err(why) => self.lacks("ranks", count, why),
            }
        }
        Ok(())
    }

    fn lacks(&mut self, what: &'static str, count: u32, why: String) {
        self.missing.entry((what, count)).or_insert(why);
    }
}

/// What a measurement gave, or why it gave nothing.
pub(super) type Given = Result<Vec<(Key, f64)>, String>;

/// Returns the path of this program.
pub(super) fn own() -> Result<PathBuf, ToolError> {
    std::env::current_exe().map_err(|source| ToolError::System {
        what: "find this program",
        source,
    })
}

/// Returns the standard output of one of our commands, or in one sentence why it failed; it is ended after
/// `limit`, and with us.
pub(super) fn said(
    runner: &Runner,
    mut command: Command,
    limit: Duration,
) -> Result<Result<String, String>, Stop> {
    // Under one of our launchers, a measurement is not a rank of that job.
    without_settings(&mut command);
    let ended = match runner.run("a measurement", command, limit) {
        Ok(ended) => ended,
        Err(Stop::Failed(why)) => return Ok(Err(why)),
        Err(stop) => return Err(stop),
    };
    let Some(how) = ended.failure() else {
        return Ok(Ok(ended.out));
    };
    let last = ended.err.lines().map(str::trim).rfind(|line| !line.is_empty());
    Ok(Err(last.map_or_else(
        || format!("it ended with {how} and printed nothing"),
        |line| line.trim_start_matches("doorbell: ").to_owned(),
    )))
}

/// The number behind `name=` in a line of a measurement.
pub(super) fn number(line: &str, name: &str) -> Option<f64> {
    let word = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_names() {
        assert_eq!(number("idle half_ns=1.5 look_ns=2", "look_ns"), Some(2.0));
        assert_eq!(number("idle half_ns=1.5", "half"), None);
        assert_eq!(number("idle half_ns=NaN", "half_ns"), None);
    }
}
