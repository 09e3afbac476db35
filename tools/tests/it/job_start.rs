//! A job whose ranks do not all join it: the others do not wait for one that has ended.

use std::time::{Duration, Instant};

use crate::common::{run_sh, sentence};

/// The time that ranks would wait for each other is longer than this by far.
const SOON: Duration = Duration::from_secs(60);

fn ends_early(ranks: u32, flags: &[&str], script: &str, said: &str) {
    let begun = Instant::now();
    let out = run_sh(ranks, flags, script)
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .env("DOORBELL_JOB_TIMEOUT", "100 s")
        .assert()
        .code(4);
    let text = sentence(&out.get_output().stderr);
    assert!(text.contains(said), "{text}");
    assert!(begun.elapsed() < SOON, "{:?}: {text}", begun.elapsed());
}

#[test]
fn a_rank_that_ended_well_before_it_joined_is_not_waited_for() {
    let joined = "exec \"$0\" pingpong --sizes 8 --samples 10";
    for (script, said) in [
        // Before the others wait for it, and while they do.
        (
            format!("test $DOORBELL_RANK = 1 && exit 0; sleep 0.3; {joined}"),
            "rank 1 ended with exit status 0",
        ),
        (
            format!("test $DOORBELL_RANK = 1 && {{ sleep 1; exit 0; }}; {joined}"),
            "rank 1 ended with exit status 0",
        ),
        // The one that the others would meet at.
        (
            format!("test $DOORBELL_RANK = 0 && exit 0; {joined}"),
            "rank 0 ended with exit status 0",
        ),
    ] {
        ends_early(2, &[], &script, said);
    }
}

#[test]
fn all_that_have_come_end_with_the_same_words() {
    let script = "test $DOORBELL_RANK = 2 && { sleep 1; exit 0; }; exec \"$0\" pingpong --sizes 8";
    let begun = Instant::now();
    let out = run_sh(3, &[], script)
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .env("DOORBELL_JOB_TIMEOUT", "100 s")
        .assert()
        .code(4);
    let text = sentence(&out.get_output().stderr);
    for rank in 0..2 {
        let said = format!("[{rank}] doorbell: rank 2 ended with exit status 0 before it had joined the job");
        assert!(text.contains(&said), "{text}");
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn between_hosts_it_is_the_same() {
    let script = "test $PMI_RANK = 1 && exit 0; exec \"$0\" pingpong --sizes 8";
    ends_early(2, &["--hosts", "localhost:2"], script, "rank 1 has put no value");
}

/// Only ranks that have not joined are missed: each may end in its own time.
#[test]
fn a_rank_that_ends_after_the_meeting_is_no_failure() {
    let script = "\"$0\" pingpong --sizes 8 --samples 10 --no-reference >/dev/null && \
                  { test $DOORBELL_RANK = 1 || sleep 1; }";
    run_sh(2, &[], script)
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .assert()
        .success();
}
