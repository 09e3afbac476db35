//! Reports tests that cannot run here.
//!
//! A test that returns early has passed, as far as the harness can see. So the reason goes to the runner,
//! `cargo xtask test`, which then counts the test as skipped and lists the reason: one line in the file that
//! `DOORBELL_SKIP_FILE` names. The same line goes to stderr, where it is shown by `cargo test --
//! --show-output`.

use std::fs::File;
use std::io::Write;

/// Names the file that the runner reads.
pub const SKIP_FILE: &str = "DOORBELL_SKIP_FILE";

/// Prefix of the line on stderr. The runner looks for it too: a line that is not in the file was lost.
pub const MARK: &str = "doorbell-skip: ";

/// Reports that `test` does not run, and why. The test has to return after this.
///
/// Where a Debian package is missing, `reason` begins with `package NAME: `, so that the runner can install
/// it.
///
/// # Panics
/// If the runner's file cannot be written: the test would be counted as passed.
pub fn skipped(test: &str, reason: &str) {
    let line = format!("{test}: {reason}").replace('\n', " ");
    eprintln!("{MARK}{line}");
    if let Some(path) = std::env::var_os(SKIP_FILE) {
        // In one call, since tests of several processes write to it at once.
        let file = File::options().append(true).create(true).open(path);
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        if let Err(error) = written {
            panic!("{test} is skipped ({reason}), and the file in {SKIP_FILE} cannot be written: {error}");
        }
    }
}

/// Whether a program is on the path.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The reason for a skip where `program` of the Debian package `package` is not on the path.
pub fn lacking(program: &str, package: &str) -> Option<String> {
    (!is_installed(program)).then(|| format!("package {package}: {program} not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_here_is_named_with_its_package() {
        assert_eq!(lacking("sh", "dash"), None);
        assert_eq!(
            lacking("no-such-program", "nothing").as_deref(),
            Some("package nothing: no-such-program not found")
        );
    }
}
