//! What the help of the program shows.

use crate::common::sentence;
use crate::lab;

#[test]
fn the_help_names_the_programs_users_and_shows_its_own_commands() {
    let out = lab().arg("--help").assert().success();
    let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    assert!(
        text.contains("develop and evaluate doorbell") && text.contains("compare-peers"),
        "{text}"
    );
    assert!(
        !text.contains("pingpong   ") && !text.contains("exec-rank"),
        "{text}"
    );
    for command in [
        "budgets",
        "compare-peers",
        "scaling",
        "raw-udp",
        "model",
        "acm-load",
    ] {
        let out = lab().args([command, "--help"]).assert().success();
        let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
        assert!(text.contains(&format!("doorbell-lab {command}")), "{text}");
    }
}

/// It measures doorbell by starting itself.
#[test]
fn it_has_the_commands_of_doorbell() {
    let words = [
        "pingpong",
        "--sizes",
        "8",
        "--samples",
        "10",
        "--no-reference",
        "--json",
        "-",
    ];
    let out = lab().args(words).assert().success();
    let report: serde_json::Value = serde_json::from_slice(&out.get_output().stdout).unwrap();
    assert_eq!(report["rail"], "shm");
    let out = lab().arg("budget").assert().code(2);
    let said = sentence(&out.get_output().stderr);
    assert!(said.contains("budgets"), "{said}");
}
