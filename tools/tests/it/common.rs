//! What the tests of the program have in common.

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
