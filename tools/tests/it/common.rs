//! What the tests of the program have in common.

use std::io::Write;

use assert_cmd::Command;

/// The program, without any setting of the environment it is tested in, and ended when it hangs.
pub(crate) fn doorbell() -> Command {
    let mut command = Command::cargo_bin("doorbell").unwrap();
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DOORBELL_") {
            command.env_remove(name);
        }
    }
    command
        .env("COLUMNS", "80")
        .timeout(std::time::Duration::from_secs(120));
    command
}

/// `doorbell run -n N …` of a shell script.
pub(crate) fn run_sh(ranks: u32, flags: &[&str], script: &str) -> Command {
    let mut command = doorbell();
    command
        .args(["run", "-n", &ranks.to_string()])
        .args(flags)
        .args(["--", "sh", "-c", script]);
    command
}

/// The one sentence on the standard error: no panic, no backtrace.
pub(crate) fn sentence(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Tells the runner of the tests what was left out (see `cargo xtask test --help`).
pub(crate) fn skipped(test: &str, reason: &str) {
    eprintln!("doorbell-skip: {test}: {reason}");
    if let Ok(path) = std::env::var("DOORBELL_SKIP_FILE") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let _ = file.and_then(|mut file| writeln!(file, "{test}: {reason}"));
    }
}
