//! The examples, as users copy them: an error is one sentence, and the status is one that scripts may
//! compare.

use std::path::PathBuf;
use std::process::Command;

/// Returns an example's program. `cargo test` builds it beside this program, except when it builds a single
/// test.
fn example(name: &str) -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let program = folder.with_file_name("examples").join(name);
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(format!("{name}.rs"));
    let made = |path: &PathBuf| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    if made(&program) < made(&source) {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--locked", "-p", "doorbell", "--example", name]);
        assert!(build.status().unwrap().success());
    }
    program
}

#[test]
fn an_example_that_fails_prints_one_sentence_and_ends_with_the_errors_status() {
    for name in ["hello", "portals", "active_messages", "counter"] {
        let out = Command::new(example(name))
            .envs([("DOORBELL_RANK", "5"), ("DOORBELL_SIZE", "2")])
            .output()
            .unwrap();
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{name}: {stderr}");
        assert!(stderr.starts_with(&format!("{name}: ")), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("DOORBELL_RANK is 5"), "{stderr}");
    }
}

#[test]
fn examples_run_alone() {
    for name in ["hello", "portals", "active_messages", "counter"] {
        let out = Command::new(example(name)).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{name}: {stderr}");
    }
}

/// The calls in the README are those of the example that runs.
#[test]
fn the_readme_shows_calls_of_hello_as_they_are() {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(here.join(path)).unwrap();
    let hello = read("examples/hello.rs");
    let readme = read("../README.md");
    let (_, after) = readme.split_once("```rust\n").unwrap();
    let (shown, _) = after.split_once("```").unwrap();
    let indented: String = shown.lines().map(|line| format!("    {line}\n")).collect();
    assert!(shown.lines().count() >= 5 && hello.contains(&indented), "{shown}");
}
