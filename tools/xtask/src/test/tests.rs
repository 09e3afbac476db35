//! Tests from what cargo printed to what a step counts.

use super::*;

fn step() -> Step {
    let work = Work::Cargo {
        calls: vec![Invocation::default()],
        tests: true,
    };
    Step {
        name: "test",
        about: "",
        slow: false,
        bound: Duration::ZERO,
        work,
    }
}

fn count(log: &str, skips: Vec<Skip>, trouble: Vec<Failure>, ci: bool) -> Outcome {
    count_tests(&step(), log, libtest::parse(log), &[], skips, trouble, ci)
}

fn trouble(what: &str) -> Vec<Failure> {
    vec![Failure {
        what: what.to_owned(),
        repeat: "cargo test".to_owned(),
    }]
}

const PASSED: &str = "     Running tests/a.rs (x/a-0)\ntest result: ok. 3 passed; 0 failed; 0 ignored\n";

#[test]
fn a_test_that_could_not_run_moves_from_passed_to_skipped() {
    let skips = skips::parse("a::b: no huge pages\n");
    let outcome = count(PASSED, skips, Vec::new(), true);
    assert_eq!(
        (outcome.passed, outcome.failures.len(), outcome.skips.len()),
        (2, 0, 1)
    );
}

#[test]
fn a_missing_package_is_a_failure_in_ci_only() {
    let skips = || skips::parse("a::b: package strace: not found\n");
    let outcome = count(PASSED, skips(), Vec::new(), true);
    assert_eq!(
        (outcome.passed, outcome.failures.len(), outcome.skips.len()),
        (2, 1, 0)
    );
    assert!(
        outcome.failures[0].repeat.ends_with("strace"),
        "{:?}",
        outcome.failures
    );
    let outcome = count(PASSED, skips(), Vec::new(), false);
    assert_eq!(
        (outcome.passed, outcome.failures.len(), outcome.skips.len()),
        (2, 0, 1)
    );
}

#[test]
fn a_step_in_which_no_test_ran_has_failed() {
    let empty = "     Running tests/a.rs (x/a-0)\ntest result: ok. 0 passed; 0 failed; 0 ignored\n";
    for log in ["", empty] {
        let outcome = count(log, Vec::new(), Vec::new(), false);
        assert_eq!((outcome.passed, outcome.failures.len()), (0, 1), "{log:?}");
        assert!(outcome.failures[0].what.contains("no test ran"));
    }
}

#[test]
fn what_does_not_compile_is_one_failure_with_its_output() {
    let outcome = count("error: no\n", Vec::new(), trouble("cargo ended with 101"), false);
    assert_eq!((outcome.passed, outcome.failures.len()), (0, 1));
    assert_eq!(outcome.log, ["error: no"]);
}

#[test]
fn failing_tests_explain_cargos_status_and_a_limit_is_listed_beside_them() {
    let log = "     Running tests/a.rs (x/a-0)\ntest b ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n";
    let outcome = count(log, Vec::new(), trouble("cargo ended with 101"), false);
    assert_eq!((outcome.passed, outcome.failures.len()), (1, 1));
    let outcome = count(log, Vec::new(), trouble("still running; killed"), false);
    assert_eq!((outcome.passed, outcome.failures.len()), (1, 2));
}

#[test]
fn a_test_that_passes_alone_is_no_failure_and_is_listed() {
    let log = "     Running tests/a.rs (x/a-0)\ntest b ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n\
               error: test failed, to rerun pass `-p x --test a`\n";
    let tally = || libtest::parse(log);
    let failed = tally().failed;
    assert_eq!(failed[0].alone().unwrap().join(" "), "-p x --test a -- --exact b");
    let none = Vec::new;
    let told = count_tests(
        &step(),
        log,
        tally(),
        &failed,
        none(),
        trouble("cargo ended with 101"),
        true,
    );
    assert_eq!((told.passed, told.failures.len(), told.alone.len()), (2, 0, 1));
    assert_eq!(told.alone[0].repeat, "cargo test -p x --test a -- --exact b");
    let killed = count_tests(
        &step(),
        log,
        tally(),
        &failed,
        none(),
        trouble("at its limit; killed"),
        true,
    );
    assert_eq!((killed.failures.len(), killed.alone.len()), (1, 1));
    let died =
        "     Running tests/a.rs (x/a-0)\ntest b ... ok\nerror: test failed, to rerun pass `-p x --test a`\n";
    assert!(
        libtest::parse(died).failed[0].alone().is_none(),
        "it is not known which it was"
    );
}

#[test]
fn only_chooses_steps_and_refuses_unknown_ones_with_the_names() {
    let plan = || {
        vec![
            step(),
            Step {
                name: "fmt",
                ..step()
            },
        ]
    };
    let names = |only: &[&str]| -> Result<Vec<&str>, Error> {
        let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
        Ok(choose(plan(), &only)?.iter().map(|step| step.name).collect())
    };
    assert_eq!(names(&[]).unwrap(), ["test", "fmt"]);
    assert_eq!(names(&["fmt"]).unwrap(), ["fmt"]);
    assert!(names(&["tset"]).unwrap_err().to_string().contains("test, fmt"));
}

#[test]
fn each_fuzzer_counts_and_one_that_cannot_be_built_is_skipped_or_in_ci_a_failure() {
    let found = |target: &str, failure: Option<&str>| fuzz::Found {
        target: target.to_owned(),
        executions: 5,
        failure: failure.map(str::to_owned),
        repeat: "cargo xtask fuzz".to_owned(),
        lines: vec!["it came twice".to_owned()],
    };
    let report = fuzz::Report {
        found: vec![found("a", None), found("b", Some("b breaks")), found("c", None)],
        skipped: None,
    };
    let outcome = count_fuzzers(report, true);
    assert_eq!((outcome.passed, outcome.skips.len()), (2, 0));
    assert_eq!(outcome.failures[0].what, "b breaks");
    assert_eq!(outcome.log, ["it came twice"]);
    let counts = |reason: &str, ci| {
        let report = fuzz::Report {
            found: Vec::new(),
            skipped: Some(reason.to_owned()),
        };
        let outcome = count_fuzzers(report, ci);
        (outcome.passed, outcome.failures.len(), outcome.skips.len())
    };
    assert_eq!(counts("package g++: no compiler", false), (0, 0, 1));
    assert_eq!(counts("package g++: no compiler", true), (0, 1, 0));
    assert_eq!(counts("no network", true), (0, 0, 1));
}

#[test]
fn what_guests_checked_is_counted_and_a_machine_without_a_lab_is_skipped() {
    let report = |guests: &str, skipped: &str| {
        let text =
            format!(r#"{{"schema": "s", "skipped": {skipped}, "accelerator": "", "guests": [{guests}]}}"#);
        count_guests(serde_json::from_str(&text).unwrap(), false)
    };
    let guest = r#"{"scenario": "s", "guest": "igb", "kernel": "7.2", "seconds": 1.0, "console": "/x",
        "checks": [{"what": "a", "failure": null}, {"what": "b", "failure": "no"}], "failure": "it hung"}"#;
    let outcome = report(guest, "null");
    assert_eq!(
        (outcome.passed, outcome.failures.len(), outcome.skips.len()),
        (1, 2, 0)
    );
    assert!(
        outcome.failures[0].what.contains("igb: b: no"),
        "{:?}",
        outcome.failures
    );
    assert!(outcome.failures[1].repeat.contains("--guest 'igb'"));
    let outcome = report("", "\"no mirror\"");
    assert_eq!(
        (outcome.passed, outcome.failures.len(), outcome.skips.len()),
        (0, 0, 1)
    );
}
