//! `doorbell run`: environment, output, exit statuses, signals, deadlines, and nothing left behind.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{doorbell, run_sh, sentence};
use crate::launchers::example_of;
use doorbell_testing::skipped;
use rustix::process::{Pid, Signal, kill_process};

fn lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(bytes)
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

#[test]
fn each_rank_finds_itself_in_its_environment() {
    let out = run_sh(3, &[], "echo $DOORBELL_RANK/$DOORBELL_SIZE ${DOORBELL_ROOT%-*}")
        .assert()
        .success();
    let expected: Vec<String> = (0..3)
        .map(|rank| format!("[{rank}] {rank}/3 @doorbell"))
        .collect();
    assert_eq!(lines(&out.get_output().stdout), expected);
}

#[test]
fn two_jobs_do_not_share_a_root() {
    let root = || {
        run_sh(1, &["--no-prefix"], "echo $DOORBELL_ROOT")
            .output()
            .unwrap()
            .stdout
    };
    assert_ne!(root(), root());
}

#[test]
fn lines_are_whole_and_streams_stay_apart() {
    let script =
        "for i in 1 2 3 4 5 6 7 8 9; do printf 'a b '; printf 'c %s\\n' $i; echo e$i >&2; done; printf end";
    let out = run_sh(4, &[], script).assert().success();
    let (stdout, stderr) = (lines(&out.get_output().stdout), lines(&out.get_output().stderr));
    for rank in 0..4 {
        for i in 1..=9 {
            assert!(stdout.contains(&format!("[{rank}] a b c {i}")), "{stdout:?}");
            assert!(stderr.contains(&format!("[{rank}] e{i}")), "{stderr:?}");
        }
        assert!(stdout.contains(&format!("[{rank}] end")));
    }
    assert_eq!((stdout.len(), stderr.len()), (40, 36));
}

#[test]
fn without_prefix_the_bytes_are_those_of_the_rank() {
    let out = run_sh(1, &["--no-prefix"], "printf 'x\\ny'").assert().success();
    assert_eq!(out.get_output().stdout, b"x\ny");
}

#[test]
fn rails_are_passed_on_and_unknown_ones_refused() {
    let out = run_sh(1, &["--rail", "shm", "--rail", "udp:lo"], "echo $DOORBELL_RAILS")
        .assert()
        .success();
    assert_eq!(lines(&out.get_output().stdout), ["[0] shm,udp:lo"]);
    let out = run_sh(1, &["--rail", "smh"], "true").assert().code(2);
    assert!(sentence(&out.get_output().stderr).contains("`shm`"));
    // No rank starts with a rail that this machine does not have.
    let out = run_sh(2, &["--rail", "shm", "--rail", "udp:ol"], "echo ran")
        .assert()
        .code(3);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("rail `udp:ol` cannot be used: this machine has no such rail")
            && said.contains("udp:lo")
            && said.trim().lines().count() == 1,
        "{said}"
    );
    assert!(out.get_output().stdout.is_empty());
    // One that is there and cannot be used is the ranks' to refuse.
    run_sh(1, &["--rail", "sim:7"], "true").assert().success();
}

#[test]
fn the_first_failure_is_the_job_s_and_ends_the_others() {
    let begun = Instant::now();
    let out = run_sh(3, &[], "test $DOORBELL_RANK = 1 && exit 7; exec sleep 100")
        .assert()
        .code(7);
    assert!(begun.elapsed() < Duration::from_secs(30));
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("rank 1 ended with exit status 7; ending the other 2 ranks"),
        "{said}"
    );
}

/// As in a container whose first process the runtime started: session and parent have no numbers here.
#[test]
fn a_failed_job_ends_whole_where_its_session_is_out_of_sight() {
    let apart = [
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--",
    ];
    if !Command::new("unshare")
        .args(apart)
        .arg("true")
        .status()
        .is_ok_and(|it| it.success())
    {
        return skipped(
            "a_failed_job_ends_whole_where_its_session_is_out_of_sight",
            "no process namespace can be made here",
        );
    }
    let out = assert_cmd::Command::new("unshare")
        .args(apart)
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args([
            "run",
            "-n",
            "2",
            "--",
            "sh",
            "-c",
            "sleep 100 & test $DOORBELL_RANK = 1 && exit 7; wait",
        ])
        .timeout(Duration::from_secs(30))
        .assert()
        .code(7);
    let said = sentence(&out.get_output().stderr);
    assert!(said.contains("rank 1 ended with exit status 7"), "{said}");
}

/// One number names different processes to the two ranks: the page that they share otherwise is not looked
/// for.
#[test]
fn ranks_in_different_pid_namespaces_leave_strangers_descriptors_alone() {
    let apart = "unshare --user --map-root-user --pid --fork --mount-proc";
    if !Command::new("sh")
        .args(["-c", &format!("{apart} true")])
        .status()
        .is_ok_and(|it| it.success())
    {
        return skipped(
            "ranks_in_different_pid_namespaces_leave_strangers_descriptors_alone",
            "no process namespace can be made here",
        );
    }
    let doorbell = assert_cmd::cargo::cargo_bin("doorbell");
    let words = "pingpong --rail udp:lo --sizes 8 --seconds 0.1";
    let script = format!(
        "test $DOORBELL_RANK = 1 && exec {apart} {program} {words}; exec {program} {words}",
        program = doorbell.display()
    );
    let out = run_sh(2, &["--no-prefix"], &script).assert().code(0);
    let said =
        String::from_utf8_lossy(&out.get_output().stdout).into_owned() + &sentence(&out.get_output().stderr);
    assert!(said.contains("different pid namespaces"), "{said}");
}

/// `unshare --pid` without `--fork`: the launcher stays outside, and its ranks are inside.
#[test]
fn a_launcher_outside_of_its_ranks_pid_namespace_prints_how_to_enter_it() {
    let apart = ["--user", "--map-root-user", "--pid", "--"];
    if !Command::new("unshare")
        .args(apart)
        .arg("true")
        .status()
        .is_ok_and(|it| it.success())
    {
        return skipped(
            "a_launcher_outside_of_its_ranks_pid_namespace_prints_how_to_enter_it",
            "no process namespace can be made here",
        );
    }
    let out = assert_cmd::Command::new("unshare")
        .args(apart)
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["run", "-n", "1", "--", "true"])
        .timeout(Duration::from_secs(30))
        .assert()
        .failure();
    let said = sentence(&out.get_output().stderr);
    assert!(said.contains("unshare --pid --fork"), "{said}");
}

/// A rank that loses a peer ends because of that peer, and often before it: the job ends with the peer's
/// error.
#[test]
fn the_cause_is_the_job_s_failure_and_not_its_consequence() {
    let script = "test $DOORBELL_RANK = 1 && exit 4; sleep 0.2; exit 6";
    let out = run_sh(2, &[], script).assert().code(6);
    let said = sentence(&out.get_output().stderr);
    assert!(said.contains("rank 0 ended with exit status 6"), "{said}");
    // Where no cause shows, the consequence stands.
    let out = run_sh(2, &[], "test $DOORBELL_RANK = 1 && exit 4; exec sleep 100")
        .assert()
        .code(4);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("rank 1 ended with exit status 4; ending the other rank"),
        "{said}"
    );
}

/// Rank 0 does not listen where the others call: without the launcher, they would go on calling until the
/// job's time is up.
#[test]
fn the_others_do_not_wait_for_a_rank_0_that_failed_before_it_listened() {
    let begun = Instant::now();
    let script = "test $DOORBELL_RANK = 0 && { sleep 0.3; exit 9; }; exec \"$0\" pingpong --sizes 8";
    let out = run_sh(2, &[], script)
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .env("DOORBELL_JOB_TIMEOUT", "100 s")
        .assert()
        .code(9);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("rank 0 ended with exit status 9; ending the other rank"),
        "{said}"
    );
}

#[test]
fn a_killed_rank_is_named_with_its_signal() {
    let out = run_sh(2, &[], "test $DOORBELL_RANK = 0 && kill -SEGV $$; exec sleep 100")
        .assert()
        .code(128 + 11);
    let said = sentence(&out.get_output().stderr);
    assert!(said.contains("rank 0 was killed by SIGSEGV (11)"), "{said}");
}

#[test]
fn ranks_that_ignore_the_request_to_end_are_killed() {
    let begun = Instant::now();
    let script =
        "test $DOORBELL_RANK = 1 && { sleep 0.5; exit 3; }; trap '' TERM; while :; do sleep 0.1; done";
    run_sh(2, &[], script).assert().code(3);
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_secs(2) && took < Duration::from_secs(30),
        "{took:?}"
    );
}

#[test]
fn a_job_beyond_its_time_is_ended() {
    let out = run_sh(2, &["--timeout", "0.5"], "exec sleep 100")
        .assert()
        .code(5);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("did not end within 0.5 s; ending the 2 ranks"),
        "{said}"
    );
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let out = doorbell()
        .args(["run", "-n", "1", "--", "/no/such/program"])
        .assert()
        .code(127);
    let said = sentence(&out.get_output().stderr);
    assert!(
        said.contains("/no/such/program") && said.contains("check the name"),
        "{said}"
    );
    doorbell()
        .args(["run", "-n", "1", "--", "/etc/passwd"])
        .assert()
        .code(126);
}

#[test]
fn rank_0_reads_what_is_piped_in() {
    let out = run_sh(2, &[], "cat").write_stdin("hello\n").assert().success();
    assert_eq!(lines(&out.get_output().stdout), ["[0] hello"]);
}

#[test]
fn binding_can_be_seen_by_the_rank() {
    let script = "grep Cpus_allowed_list /proc/self/status | cut -f2";
    let out = run_sh(1, &["--bind", "core"], script).assert().success();
    let bound = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
    assert!(
        bound.trim().trim_start_matches("[0] ").parse::<usize>().is_ok(),
        "{bound}"
    );
}

#[test]
fn the_number_of_ranks_is_checked() {
    for n in ["0", "1025", "-3", "two", ""] {
        let out = doorbell().args(["run", "-n", n, "--", "true"]).assert().code(2);
        sentence(&out.get_output().stderr);
    }
}

#[test]
fn many_ranks_at_once() {
    let out = run_sh(64, &[], "echo $DOORBELL_RANK").assert().success();
    assert_eq!(lines(&out.get_output().stdout).len(), 64);
}

/// Many more ranks than cores meet, exchange messages and end.
#[test]
fn two_hundred_ranks_greet_each_other() {
    let started = Instant::now();
    let out = doorbell()
        .args(["run", "--no-prefix", "--timeout", "120", "-n", "200", "--"])
        .arg(example_of("doorbell", "hello"))
        .assert()
        .success();
    let said = lines(&out.get_output().stdout);
    for rank in 0..200 {
        let line = format!("rank {rank}: hello from rank {}", (rank + 199) % 200);
        assert!(said.contains(&line), "{line}: {said:?}");
    }
    assert_eq!(said.len(), 200);
    assert!(started.elapsed() < Duration::from_secs(120));
}

/// Starts the launcher with a script whose ranks print their process ids, and returns those; signals are as a
/// terminal's shell leaves them.
fn started(script: &str, ranks: usize) -> (Child, Vec<u32>) {
    let mut child = Command::new("env")
        .arg("--default-signal")
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args([
            "run",
            "--no-prefix",
            "-n",
            &ranks.to_string(),
            "--",
            "sh",
            "-c",
            script,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let pids = (0..ranks)
        .map(|_| {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            line.trim().parse().unwrap()
        })
        .collect();
    child.stdout = Some(out.into_inner());
    (child, pids)
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32).unwrap()
}

/// Whether it has ended: no process, or a zombie that its new parent has not reaped yet.
fn is_gone(number: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

fn all_gone(pids: &[u32]) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        if pids.iter().all(|number| is_gone(*number)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn signals_to_the_launcher_reach_the_ranks() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (mut child, pids) = started("echo $$; exec sleep 100", 2);
        kill_process(pid(child.id()), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(all_gone(&pids));
    }
}

#[test]
fn ranks_may_end_well_after_a_signal() {
    let (mut child, pids) = started("trap 'exit 0' TERM; echo $$; while :; do sleep 0.05; done", 2);
    kill_process(pid(child.id()), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(all_gone(&pids));
}

#[test]
fn a_second_signal_means_it() {
    let (mut child, pids) = started("trap '' INT; echo $$; while :; do sleep 0.05; done", 2);
    kill_process(pid(child.id()), Signal::INT).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    kill_process(pid(child.id()), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert!(all_gone(&pids));
}

#[test]
fn ranks_do_not_outlive_a_killed_launcher() {
    let (mut child, pids) = started("echo $$; exec sleep 100", 3);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(all_gone(&pids));
}

#[test]
fn what_ranks_started_does_not_outlive_a_killed_launcher() {
    // In the rank's group; in a session of its own and reparented; in the group without the environment.
    let script = "sleep 100 & a=$!; setsid sh -c 'sleep 100 & echo $!' > $0.b.$$; env -i sleep 100 & c=$!; \
                  echo $a $(cat $0.b.$$) $c $$; exec sleep 100";
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["run", "--no-prefix", "-n", "2", "--", "sh", "-c", script])
        .arg(folder.path().join("pid"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut pids: Vec<u32> = Vec::new();
    for _ in 0..2 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        pids.extend(line.split_whitespace().map(|word| word.parse::<u32>().unwrap()));
    }
    assert_eq!(pids.len(), 8);
    assert!(pids.iter().all(|number| !is_gone(*number)));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(all_gone(&pids), "{pids:?}");
}

#[test]
fn what_ranks_started_is_ended_with_a_failed_job_and_left_alone_otherwise() {
    for (code, gone) in [(3, true), (0, false)] {
        let script = format!("setsid sleep 30 >/dev/null 2>&1 & echo $!; sleep 0.2; exit {code}");
        let out = run_sh(1, &["--no-prefix"], &script).assert().code(code);
        let text = String::from_utf8_lossy(&out.get_output().stdout).into_owned();
        let number = text.trim().parse().unwrap();
        assert_eq!(is_gone(number), gone);
        let _ = kill_process(pid(number), Signal::KILL);
    }
}

/// A measurement that would take a minute, under way; signals are as a terminal's shell leaves them.
fn measuring() -> (Child, Vec<u32>) {
    let child = Command::new("env")
        .arg("--default-signal")
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["pingpong", "--sizes", "8", "--seconds", "60"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pids = under_way(child.id());
    (child, pids)
}

/// The keeper and the two ranks of a launcher, when all are past the start of their program.
fn under_way(launcher: u32) -> Vec<u32> {
    let tasks = format!("/proc/{launcher}/task/{launcher}/children");
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let text = std::fs::read_to_string(&tasks).unwrap_or_default();
        let pids: Vec<u32> = text
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        let ready = |number: &u32| {
            let line = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            !line.split(|byte| *byte == 0).any(|word| word == b"exec-rank")
        };
        if pids.len() == 3 && pids.iter().all(ready) {
            std::thread::sleep(Duration::from_millis(300));
            return pids;
        }
        assert!(Instant::now() < until, "the ranks did not start: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_measurement_ends_whole_by_every_signal() {
    for (signal, code) in [
        (Signal::INT, 130),
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        let (mut child, pids) = measuring();
        kill_process(pid(child.id()), signal).unwrap();
        let ended = child.wait().unwrap();
        let mut said = Vec::new();
        child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
        assert_eq!(ended.code(), Some(code), "{}", String::from_utf8_lossy(&said));
        assert!(all_gone(&pids));
    }
    let (mut child, pids) = measuring();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(all_gone(&pids));
}

#[test]
fn a_job_is_stopped_and_continued_with_its_launcher() {
    let (mut child, pids) = measuring();
    let all = |state: char| {
        let until = Instant::now() + Duration::from_secs(10);
        let stopped = |number: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T'))
                == (state == 'T')
        };
        // The keeper, first of them, sleeps on.
        while !pids[1..].iter().chain([&child.id()]).all(stopped) {
            assert!(Instant::now() < until, "{state}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    kill_process(pid(child.id()), Signal::TSTP).unwrap();
    all('T');
    kill_process(pid(child.id()), Signal::CONT).unwrap();
    all('R');
    assert!(child.try_wait().unwrap().is_none());
    kill_process(pid(child.id()), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(all_gone(&pids));
}

#[test]
fn a_reader_that_goes_away_ends_the_job_without_a_panic() {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["run", "-n", "2", "--", "sh", "-c", "while :; do echo line; done"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    // The ranks get SIGPIPE, as they would without a launcher.
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
    let mut said = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
    sentence(&said);
}

#[test]
fn nothing_is_left_in_shared_memory() {
    let files = || {
        std::fs::read_dir("/dev/shm").map(|files| files.flatten().map(|f| f.file_name()).collect::<Vec<_>>())
    };
    let is_ours = |name: &std::ffi::OsString| name.to_string_lossy().contains("doorbell");
    run_sh(2, &[], "test $DOORBELL_RANK = 0 && kill -KILL $$; exec sleep 100")
        .assert()
        .code(137);
    let left: Vec<_> = files().unwrap_or_default().into_iter().filter(is_ours).collect();
    assert!(left.is_empty(), "{left:?}");
}
