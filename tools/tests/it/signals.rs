//! Signals that stop a job's processes, and those that were ignored when a program started.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::common::{doorbell, lab_program, sentence};
use doorbell_testing::skipped;

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn program() -> std::path::PathBuf {
    assert_cmd::cargo::cargo_bin("doorbell")
}

/// A program whose output is read, ended when the test ends without it.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end; its exit status, and what it wrote to the standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let until = Instant::now() + LIMIT;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut said = Vec::new();
        self.child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
        (self.child.wait().unwrap().code(), sentence(&said))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a shell's line at a terminal of its own.
fn at_a_terminal(test: &str, line: &str) -> Option<Output> {
    let there = Command::new("script").arg("--version").output();
    if !there.is_ok_and(|there| there.status.success()) {
        skipped(test, "package bsdutils: script not found");
        return None;
    }
    let out = assert_cmd::Command::new("script")
        .args(["-q", "-e", "-c", line, "/dev/null"])
        .timeout(LIMIT)
        .output()
        .unwrap();
    Some(out)
}

/// Ranks are in the background of the terminal, and one that may not write to it is stopped by the system.
#[test]
fn a_terminal_that_stops_writers_in_the_background_stops_no_rank() {
    const TEST: &str = "signals::a_terminal_that_stops_writers_in_the_background_stops_no_rank";
    let program = program();
    let program = program.display();
    for words in [
        "run -n 2 --no-prefix --bind none -- sh -c 'echo hi; echo ho >&2'",
        "pingpong --sizes 8 --samples 100 --no-reference",
    ] {
        let line = format!("stty tostop; exec {program} {words}");
        let Some(out) = at_a_terminal(TEST, &line) else {
            return;
        };
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(out.status.code(), Some(0), "{shown}");
        match words.starts_with("run") {
            true => assert!(
                shown.matches("hi").count() == 2 && shown.matches("ho").count() == 2,
                "{shown}"
            ),
            false => assert!(shown.contains('8'), "{shown}"),
        }
    }
}

#[test]
fn a_rank_that_is_stopped_is_reported_once_with_how_to_go_on() {
    let hosts: [&[&str]; 2] = [&[], &["--hosts", "localhost"]];
    for hosts in hosts {
        let mut command = Command::new(program());
        command.args(["run", "-n", "1", "--no-prefix"]).args(hosts);
        let mut job = Running::start(command.args(["--", "sh", "-c", "echo $$; kill -STOP $$; echo on"]));
        let rank: u32 = job.line().parse().unwrap();
        let mut err = BufReader::new(job.child.stderr.take().unwrap());
        let mut said = String::new();
        err.read_line(&mut said).unwrap();
        assert!(
            said.contains(&format!("rank 0 (process {rank}) was stopped by SIGSTOP"))
                && said.contains(&format!("`kill -CONT -{rank}`")),
            "{said}"
        );
        kill_process_group(Pid::from_raw(rank as i32).unwrap(), Signal::CONT).unwrap();
        assert_eq!(job.line(), "on");
        job.child.stderr = Some(err.into_inner());
        assert_eq!(job.end(), (Some(0), String::new()), "reported once");
    }
}

/// A process that is stopped takes no signal but SIGKILL: it has to be continued for its end.
#[test]
fn a_rank_that_is_stopped_ends_with_its_job() {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program());
    command.args([
        "run",
        "-n",
        "1",
        "--no-prefix",
        "--",
        "sh",
        "-c",
        "kill -STOP $$; sleep 100",
    ]);
    let mut job = Running::start(&mut command);
    let mut err = BufReader::new(job.child.stderr.take().unwrap());
    let mut said = String::new();
    err.read_line(&mut said).unwrap();
    assert!(said.contains("was stopped by SIGSTOP"), "{said}");
    job.signal(Signal::INT);
    job.child.stderr = Some(err.into_inner());
    assert_eq!(job.end().0, Some(130));
}

#[test]
fn a_remote_shell_that_is_stopped_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let shell = folder.path().join("shell");
    for (signal, advice) in [("STOP", "`kill -CONT -"), ("TTIN", "192.0.2.7 true`")] {
        std::fs::write(&shell, format!("kill -{signal} $$\n")).unwrap();
        let rsh = format!("sh {}", shell.display());
        let out = doorbell()
            .args([
                "run",
                "-n",
                "1",
                "--hosts",
                "192.0.2.7",
                "--start-timeout",
                "2",
                "--rsh",
                &rsh,
            ])
            .args(["--", "true"])
            .output()
            .unwrap();
        let said = sentence(&out.stderr);
        assert_eq!(out.status.code(), Some(5), "{said}");
        let stopped = format!("was stopped by SIG{signal}");
        assert!(
            said.contains("the remote shell of host 192.0.2.7")
                && said.contains(&stopped)
                && said.contains(advice),
            "{said}"
        );
        assert_eq!(said.matches(&stopped).count(), 1, "{said}");
    }
}

/// What `nohup` starts stays when its terminal goes.
#[test]
fn services_under_nohup_stay_when_the_terminal_goes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let under_nohup = |words: &[&str], here: &Path| {
        let mut command = Command::new("nohup");
        let program = if words[0] == "model" {
            lab_program()
        } else {
            program()
        };
        Running::start(command.arg(program).args(words).current_dir(here))
    };
    let model = ["model", "vic", "--dir", "D", "--vfs", "1"];
    let acm = ["acm", "serve", "--socket", &at("acm.sock"), "--config", &at("")];
    let agent = ["agent", "usnic", "--pf", "model/D/pf"];
    let mut services = Vec::new();
    for words in [&model[..], &acm, &agent] {
        let mut service = under_nohup(words, folder.path());
        assert!(!service.line().is_empty(), "{words:?}");
        services.push((words, service));
    }
    for (_, service) in &services {
        service.signal(Signal::HUP);
    }
    std::thread::sleep(Duration::from_millis(500));
    // The agent before its model.
    for (words, mut service) in services.into_iter().rev() {
        assert!(
            service.child.try_wait().unwrap().is_none(),
            "{words:?} ended by SIGHUP"
        );
        service.signal(Signal::TERM);
        let (code, said) = service.end();
        assert_eq!(code, Some(0), "{words:?}: {said}");
    }
}

/// A shell without job control has its background commands ignore SIGINT: Ctrl-C is for what is in the
/// foreground.
#[test]
fn a_job_that_ignores_an_interrupt_goes_on() {
    for words in [
        &[
            "run",
            "-n",
            "1",
            "--no-prefix",
            "--",
            "sh",
            "-c",
            "echo up; exec sleep 100",
        ][..],
        &[
            "run",
            "-n",
            "1",
            "--no-prefix",
            "--hosts",
            "localhost",
            "--",
            "sh",
            "-c",
            "echo up; exec sleep 100",
        ],
        &["pingpong", "--serve", "--bind", "127.0.0.1:0"],
    ] {
        let mut command = Command::new("env");
        command
            .args(["--default-signal", "--ignore-signal=INT"])
            .arg(program());
        let mut job = Running::start(command.args(words));
        assert!(!job.line().is_empty(), "{words:?}");
        job.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(500));
        assert!(
            job.child.try_wait().unwrap().is_none(),
            "{words:?} ended by SIGINT"
        );
        job.signal(Signal::TERM);
        let (code, said) = job.end();
        assert!(matches!(code, Some(0 | 143)), "{words:?}: {code:?} {said}");
    }
}

/// The system forgets the children of a process that ignores SIGCHLD, and a launcher has to wait for its own.
#[test]
fn a_launcher_that_was_started_with_sigchld_ignored_knows_how_its_ranks_end() {
    for hosts in [&[][..], &["--hosts", "localhost"]] {
        let out = assert_cmd::Command::new("env")
            .arg("--ignore-signal=CHLD")
            .arg(program())
            .args(["run", "-n", "2"])
            .args(hosts)
            .args(["--", "sh", "-c", "exit 7"])
            .timeout(LIMIT)
            .assert()
            .code(7);
        assert!(sentence(&out.get_output().stderr).contains("ended with exit status 7"));
    }
}
