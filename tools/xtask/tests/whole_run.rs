//! `cargo xtask test` as it is typed, over a small workspace that cargo builds: what is counted is what
//! happened.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A package whose tests pass, fail, are ignored, and find out that they cannot run.
const MIXED: &str = r#"
//! ```
//! assert_eq!(1 + 1, 2);
//! ```
#[test]
fn passes() {}

#[test]
fn fails() {
    panic!("on purpose");
}

#[test]
#[ignore = "takes a week"]
fn is_ignored() {}

#[test]
fn cannot_run_here() {
    let file = std::env::var_os("DOORBELL_SKIP_FILE").unwrap();
    std::fs::write(file, "small::cannot_run_here: package strace: it is not on PATH\n").unwrap();
}
"#;

/// A test that cannot run and reports it on its own output alone.
const ONLY_PRINTS: &str = r#"
#[test]
fn passes() {
    println!("test other ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored");
}

#[test]
fn prints_that_it_is_skipped() {
    println!("skipped: only root can change its user");
}
"#;

fn workspace(source: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let manifest = "[workspace]\n[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    std::fs::create_dir(root.path().join("src")).unwrap();
    std::fs::write(root.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::write(root.path().join("src/lib.rs"), source).unwrap();
    let lock = Command::new(env!("CARGO"))
        .current_dir(root.path())
        .args(["generate-lockfile", "--offline"])
        .output();
    let lock = lock.unwrap();
    assert!(lock.status.success(), "{}", String::from_utf8_lossy(&lock.stderr));
    root
}

fn command(root: &Path, ci: bool, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.current_dir(root).arg("test").args(arguments);
    command
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS")
        .env_remove("CI");
    if ci {
        command.env("CI", "true");
    }
    command
}

fn xtask(root: &Path, ci: bool, arguments: &[&str]) -> (Output, String) {
    let output = command(root, ci, arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn each_test_is_counted_once_and_listed_with_its_reason_or_its_command() {
    let root = workspace(MIXED);
    let (output, text) = xtask(root.path(), false, &["--only", "test", "--json", "result.json"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    // The example in the documentation counts too.
    assert_eq!(
        text.lines().last(),
        Some("2 passed, 1 failed, 2 skipped"),
        "{text}"
    );
    for wanted in [
        "small src/lib.rs: fails\n",
        "cargo test --lib -- --exact fails\n",
        "is_ignored: takes a week\n",
        "small::cannot_run_here: package strace: it is not on PATH\n",
        "on purpose",
    ] {
        assert!(text.contains(wanted), "{wanted:?} is missing in\n{text}");
    }
    let json = std::fs::read_to_string(root.path().join("result.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (json["passed"].as_u64(), json["good"].as_bool()),
        (Some(2), Some(false)),
        "{json:#}"
    );

    let (_, text) = xtask(root.path(), true, &["--only", "test"]);
    assert_eq!(
        text.lines().last(),
        Some("2 passed, 2 failed, 1 skipped"),
        "in CI\n{text}"
    );
}

#[test]
fn a_test_that_only_prints_that_it_is_skipped_has_not_passed() {
    let root = workspace(ONLY_PRINTS);
    let (output, text) = xtask(root.path(), false, &["--only", "test"]);
    assert_eq!(
        (output.status.code(), text.lines().last()),
        (Some(0), Some("1 passed, 0 failed, 1 skipped")),
        "{text}"
    );
    assert!(
        text.contains("prints_that_it_is_skipped: only root can change its user"),
        "{text}"
    );
}

/// Two tests that fail the first time; one of them for good.
const BESIDE_OTHERS: &str = r#"
#[test]
fn passes() {}

#[test]
fn fails_at_first() {
    let was_here = std::path::Path::new("was-here");
    assert!(was_here.exists() || std::fs::write(was_here, "").is_err(), "too late");
}

#[test]
fn fails() {
    panic!("on purpose");
}
"#;

#[test]
fn what_fails_is_run_once_more_alone_and_listed_if_it_passes() {
    let root = workspace(BESIDE_OTHERS);
    let (output, text) = xtask(root.path(), true, &["--only", "test"]);
    assert_eq!(
        (output.status.code(), text.lines().last()),
        (Some(1), Some("2 passed, 1 failed, 0 skipped")),
        "{text}"
    );
    let (alone, failed) = text
        .split_once("once more alone")
        .and_then(|(_, lists)| lists.split_once("\nfailed:\n"))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(alone.contains("-- --exact fails_at_first\n"), "{text}");
    assert!(
        failed.contains("-- --exact fails\n") && !failed.contains("fails_at_first"),
        "{text}"
    );
    assert!(
        text.contains("too late") && text.contains("on purpose"),
        "what both printed: {text}"
    );

    std::fs::remove_file(root.path().join("was-here")).unwrap();
    let good = BESIDE_OTHERS.replace("panic!(\"on purpose\");", "");
    std::fs::write(root.path().join("src/lib.rs"), good).unwrap();
    let (output, text) = xtask(root.path(), true, &["--only", "test"]);
    assert_eq!(
        (output.status.code(), text.lines().last()),
        (Some(0), Some("3 passed, 0 failed, 0 skipped")),
        "{text}"
    );
    assert!(
        text.contains("1 only alone") && text.contains("once more alone"),
        "{text}"
    );
}

#[test]
fn jobs_and_all_others_run_side_by_side_and_each_counts_once() {
    let root = workspace(MIXED);
    std::fs::create_dir_all(root.path().join("tests/it")).unwrap();
    let job = "#[test]\nfn waits() {\n    while !std::path::Path::new(\"seen\").exists() {\n        \
               std::thread::sleep(std::time::Duration::from_millis(10));\n    }\n}\n\n\
               #[test]\nfn breaks() {\n    panic!(\"in a job\");\n}\n";
    std::fs::write(root.path().join("tests/it/main.rs"), job).unwrap();
    // Without this one, the other never ends.
    let other = "#[test]\nfn is_beside() {\n    std::fs::write(\"seen\", \"\").unwrap();\n}\n";
    std::fs::write(root.path().join("tests/other.rs"), other).unwrap();
    let (output, text) = xtask(root.path(), false, &["--only", "test"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(
        text.lines().last(),
        Some("4 passed, 2 failed, 2 skipped"),
        "{text}"
    );
    for wanted in [
        "cargo test --lib -- --exact fails\n",
        "cargo test --test it -- --exact breaks\n",
        "in a job",
        "on purpose",
    ] {
        assert!(text.contains(wanted), "{wanted:?} is missing in\n{text}");
    }

    std::fs::write(root.path().join("tests/other.rs"), "nothing that compiles").unwrap();
    let (_, text) = xtask(root.path(), false, &["--only", "test"]);
    assert_eq!(
        text.lines().last(),
        Some("0 passed, 1 failed, 0 skipped"),
        "{text}"
    );
}

/// A workspace of two packages that do not use each other, with everything committed.
fn committed() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"one\", \"two\"]\n",
    );
    write(".gitignore", "target\n");
    for name in ["one", "two"] {
        let manifest = format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
        write(&format!("{name}/Cargo.toml"), &manifest);
        write(
            &format!("{name}/src/lib.rs"),
            &format!("#[test]\nfn of_{name}() {{}}\n"),
        );
    }
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let output = command.current_dir(root.path()).args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(env!("CARGO"), &["generate-lockfile", "--offline"]);
    run("git", &["init", "-q"]);
    run("git", &["add", "."]);
    let who = [
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@localhost",
        "-c",
        "commit.gpgsign=false",
    ];
    run("git", &[&who[..], &["commit", "-q", "-m", "first"]].concat());
    root
}

#[test]
fn after_a_change_only_what_it_can_break_is_tested() {
    let root = committed();
    let changed = |words: &[&str]| {
        let output = command(root.path(), false, &[&["--changed", "HEAD"], words].concat())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (
            output.status.code(),
            text,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    // The new file is not known to git yet.
    std::fs::create_dir(root.path().join("two/tests")).unwrap();
    std::fs::write(root.path().join("two/tests/new.rs"), "#[test]\nfn is_new() {}\n").unwrap();
    let (code, text, said) = changed(&["--only", "test"]);
    assert_eq!(
        (code, text.lines().last()),
        (Some(0), Some("2 passed, 0 failed, 0 skipped")),
        "of_two and is_new: {text}{said}"
    );
    assert!(
        said.contains("1 file has changed since HEAD; tested: two; not concerned: "),
        "{said}"
    );

    std::fs::remove_dir_all(root.path().join("two/tests")).unwrap();
    let (code, _, said) = changed(&["--only", "test"]);
    assert_eq!(code, Some(0), "there is nothing to test: {said}");
    assert!(
        said.contains("no package is concerned; not concerned: clippy, test, "),
        "{said}"
    );

    let (output, _) = xtask(root.path(), false, &["--changed", "no-such-branch"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot compare with \"no-such-branch\""), "{said}");
}

#[test]
fn passing_is_zero_and_no_tests_or_no_time_is_not() {
    let root = workspace("#[test]\nfn passes() {}\n");
    let (output, text) = xtask(root.path(), true, &["--only", "test"]);
    assert_eq!(
        (output.status.code(), text.lines().last()),
        (Some(0), Some("1 passed, 0 failed, 0 skipped")),
        "{text}"
    );

    let (output, text) = xtask(root.path(), false, &["--only", "test", "--limit", "0"]);
    assert_eq!(
        (output.status.code(), text.lines().last()),
        (Some(1), Some("0 passed, 1 failed, 0 skipped")),
        "{text}"
    );
    assert!(text.contains("still running at its limit"), "{text}");

    let (output, text) = xtask(root.path(), false, &["--only", "loom", "--fast"]);
    assert_eq!(
        (output.status.code(), text.lines().last()),
        (Some(1), Some("0 passed, 0 failed, 1 skipped")),
        "{text}"
    );

    std::fs::write(root.path().join("src/lib.rs"), "").unwrap();
    let (output, text) = xtask(root.path(), false, &["--only", "test"]);
    assert_eq!(
        (output.status.code(), text.lines().last()),
        (Some(1), Some("0 passed, 1 failed, 0 skipped")),
        "{text}"
    );
}

#[test]
fn a_run_that_is_interrupted_ends_its_children_and_still_counts() {
    let root = workspace(
        "#[test]\nfn hangs() {\n    std::thread::sleep(std::time::Duration::from_secs(3020));\n}\n",
    );
    let mut command = command(root.path(), false, &["--only", "test", "--only", "loom"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = root.path().join("target/xtask/test.log");
    let running = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("running 1 test"));
    let began = Instant::now();
    while !running() && began.elapsed() < Duration::from_secs(300) {
        std::thread::sleep(Duration::from_millis(20));
    }
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        (output.status.code(), text.lines().last()),
        (Some(1), Some("0 passed, 1 failed, 0 skipped")),
        "{text}"
    );
    assert!(text.contains("test: interrupted after"), "{text}");
}
