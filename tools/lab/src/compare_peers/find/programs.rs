//! What programs print about themselves, and the version in it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use doorbell_tools::process::{Runner, Stop};

use super::homes::Where;
use crate::place::without_settings;

/// A program that prints its version does so within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns what a program prints with these arguments; nothing when it cannot be run.
pub(super) fn said(
    runner: &Runner,
    at: Where<'_>,
    program: &Path,
    arguments: &[&str],
) -> Result<Option<String>, Stop> {
    let mut command = Command::new(program);
    command.args(arguments);
    without_settings(&mut command);
    if let Some(home) = at.home() {
        home.set(&mut command);
    }
    match runner.run(&program.to_string_lossy(), command, PATIENCE) {
        Ok(ended) => Ok(Some(ended.out + &ended.err)),
        Err(Stop::Failed(_)) => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// The first version number of a text: digits with a point between them.
pub(super) fn number(text: &str) -> Option<String> {
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '-' | '('));
    let mut words = words.map(|word| word.trim_start_matches('v').trim_end_matches(['.', ',']));
    let plain = |word: &&str| {
        let mut parts = word.split('.');
        let first = parts.next().is_some_and(all_digits);
        let mut more = parts.peekable();
        first && more.peek().is_some() && more.all(|part| part.starts_with(|c: char| c.is_ascii_digit()))
    };
    words.find(plain).map(str::to_owned)
}

fn all_digits(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, version) in [
            (
                "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/",
                "4.1.4",
            ),
            (
                "HYDRA build details:\n    Version:                                 4.0.2\n",
                "4.0.2",
            ),
            (
                "# Version 1.13.1\n# Git branch '<unknown>', revision 0000000\n",
                "1.13.1",
            ),
            (
                "fi_info: 1.17.0\nlibfabric: 1.17.0\nlibfabric api: 1.17\n",
                "1.17.0",
            ),
            ("prog v5.0.3rc1, built", "5.0.3rc1"),
        ] {
            assert_eq!(number(text).as_deref(), Some(version), "{text}");
        }
        assert_eq!(number("no number. at 3 all"), None);
    }
}
