//! A skip reaches the runner's file, or the test fails. Each case is a process of its own: the file is named
//! by its environment.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Output};

use doorbell_testing::skip::{MARK, SKIP_FILE, skipped};

#[test]
#[ignore = "run by a_skip_reaches_the_file_or_the_test_fails"]
fn skips() {
    skipped("a::test", "package x: y not found\nat all");
}

fn child(file: &Path) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "skips", "--ignored", "--nocapture"]);
    command.env(SKIP_FILE, file).output().unwrap()
}

#[test]
fn a_skip_reaches_the_file_or_the_test_fails() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("skips-{}", std::process::id()));
    let line = "a::test: package x: y not found at all\n";
    for times in 1..3 {
        let output = child(&file);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), line.repeat(times));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(&format!("{MARK}{line}")), "{said}");
    }
    std::fs::remove_file(&file).unwrap();
    assert!(!child(Path::new("/no/such/folder")).status.success());
}
