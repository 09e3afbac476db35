//! Each test runs in a process of its own: libfabric looks for providers when it is first called, so the
//! variables that name ours have to be there before.

use std::path::PathBuf;
use std::process::{Command, Output};

use libfabric_sys::{Library, LibraryError};

/// Set in the process of a test.
const CHILD: &str = "DOORBELL_TEST_CHILD";

/// Returns the folder that cargo has put the provider into: that of this program.
pub(crate) fn folder() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let file = folder.join("libdoorbell_fi.so");
    assert!(file.is_file(), "{} is not there", file.display());
    folder
}

/// Sets the variables by which libfabric finds the provider, and no other one.
pub(crate) fn with_provider(command: &mut Command) -> &mut Command {
    command
        .env("FI_PROVIDER_PATH", folder())
        .env("FI_PROVIDER", "doorbell")
        .env("FI_LOG_LEVEL", "info")
        .env_remove("DOORBELL_RAILS")
        .env_remove("FI_DOORBELL_RAILS")
        .env_remove("DOORBELL_CONFIG")
}

/// Runs a test in a process of its own, with these variables. `test` is its whole name, with the module.
/// Returns what it has printed; nothing in that process itself, and where libfabric is not installed.
pub(crate) fn run_with(test: &str, variables: &[(&str, &str)], body: impl FnOnce(Library)) -> Option<String> {
    run_child(test, variables, || body(Library::open().unwrap()))
}

/// Runs a test in a process of its own, which loads libfabric itself if it needs it.
pub(crate) fn run_without_library(test: &str, body: impl FnOnce()) {
    run_child(test, &[], body);
}

fn run_child(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    if std::env::var_os(CHILD).is_some() {
        body();
        return None;
    }
    match Library::open() {
        Ok(_) => {}
        Err(LibraryError::None { reason }) => {
            doorbell_testing::skipped(test, &format!("package libfabric-bin: {reason}"));
            return None;
        }
        Err(other) => panic!("{other}"),
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1");
    with_provider(&mut command).envs(variables.iter().copied());
    let printed = text(&command.output().unwrap(), test);
    assert!(printed.contains("1 passed"), "{test} has run no test:\n{printed}");
    Some(printed)
}

/// Runs a test in a process of its own.
pub(crate) fn run(test: &str, body: impl FnOnce(Library)) {
    run_with(test, &[], body);
}

/// Returns what a process has printed, which must have ended well.
pub(crate) fn text(output: &Output, name: &str) -> String {
    let text = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).into_owned());
    let text = text.concat();
    assert!(output.status.success(), "{name}: {}\n{text}", output.status);
    text
}
