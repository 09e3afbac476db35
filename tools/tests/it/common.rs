//! What the tests of the program have in common.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use assert_cmd::Command;

/// The program, as [`clean`] has it.
pub(crate) fn doorbell() -> Command {
    clean(assert_cmd::cargo::cargo_bin("doorbell"))
}

/// The program `doorbell-lab` beside `doorbell`, built if it is not fresh.
pub(crate) fn lab_program() -> PathBuf {
    static FRESH: OnceLock<PathBuf> = OnceLock::new();
    let program = || assert_cmd::cargo::cargo_bin("doorbell").with_file_name("doorbell-lab");
    FRESH
        .get_or_init(|| built(program(), &["-p", "doorbell-lab"]))
        .clone()
}

/// A program below cargo's folder of a profile, built by these words unless it is fresh.
pub(crate) fn built(program: PathBuf, words: &[&str]) -> PathBuf {
    if !is_fresh(&program) {
        let mut build = std::process::Command::new(env!("CARGO"));
        build.args(["build", "--locked"]).args(words);
        let doorbell = assert_cmd::cargo::cargo_bin("doorbell");
        let profile = doorbell.parent().and_then(Path::file_name).unwrap();
        if profile != "debug" {
            build.arg("--profile").arg(profile);
        }
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
    }
    program
}

/// Whether a program is younger than all sources that cargo built it from, which it lists beside it. The
/// program that is tested is no measure: it may be linked before the examples or after them, and to build
/// them for nothing takes minutes from the tests.
pub(crate) fn is_fresh(example: &Path) -> bool {
    let made = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    let Some(built) = made(example) else { return false };
    let Ok(listed) = std::fs::read_to_string(example.with_extension("d")) else {
        return false;
    };
    let sources = listed.split_once(": ").map_or("", |(_, sources)| sources);
    // A space of a path is written with a backslash.
    let sources = sources.replace("\\ ", "\0");
    let mut sources = sources.split_whitespace().map(|source| source.replace('\0', " "));
    sources.all(|source| made(Path::new(&source)).is_some_and(|changed| changed <= built))
}

/// A program without any setting of the environment it is tested in, and ended when it hangs.
pub(crate) fn clean(program: PathBuf) -> Command {
    let mut command = Command::new(program);
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
