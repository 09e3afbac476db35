//! A usnic rail without hardware, from beginning to end: a model, an agent of its physical function, and two
//! processes, each with a function of its own; and what remains of it when the agent ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::lab_program;
use crate::launchers::example;

/// `doorbell`, or `doorbell-lab` for its command `model`.
fn doorbell(folder: &Path, words: &[&str]) -> Command {
    let mut command = match words {
        ["model", ..] => Command::new(lab_program()),
        _ => Command::new(env!("CARGO_BIN_EXE_doorbell")),
    };
    // Three busy processes on two cores would wait for each other.
    command
        .current_dir(folder)
        .env("DOORBELL_WAIT", "sleep")
        .args(words);
    command
}

/// A program that is ready when it has printed its first line.
struct Service {
    child: Child,
    said: String,
}

impl Service {
    fn start(folder: &Path, words: &[&str]) -> Self {
        let mut child = doorbell(folder, words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        // It goes on printing without a reader.
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        Self { child, said }
    }

    /// As a crash would.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(&mut self) -> Option<i32> {
        let id = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(id, Signal::TERM);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The port in "serving on 127.0.0.1:PORT, ...".
fn port(said: &str) -> String {
    let digits = said.split("127.0.0.1:").nth(1).unwrap_or_default();
    digits.chars().take_while(char::is_ascii_digit).collect()
}

/// A measurement between two processes with these rails, under way.
fn measured(
    folder: &Path,
    theirs: &[&str],
    ours: &[&str],
    more: impl FnOnce(&mut Command),
) -> (Service, Child) {
    let with = |rails: &[&str]| -> Vec<String> {
        let words = rails.iter().flat_map(|rail| ["--rail", rail]);
        words.map(str::to_owned).collect()
    };
    let theirs = with(theirs);
    let mut words = vec!["pingpong", "--serve", "--bind", "127.0.0.1:0"];
    words.extend(theirs.iter().map(String::as_str));
    let server = Service::start(folder, &words);
    let to = format!("127.0.0.1:{}", port(&server.said));
    let mut command = doorbell(folder, &["pingpong", "--connect", &to]);
    command
        .args(with(ours))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    more(&mut command);
    let child = command.spawn().unwrap();
    (server, child)
}

/// Returns the output of `doorbell doctor` about a rail, and its status.
fn doctor(folder: &Path, rail: &str, settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = doorbell(folder, &["doctor", rail]);
    command.env("COLUMNS", "1000").envs(settings.iter().copied());
    let output = command.output().unwrap();
    (output.status.code(), text(&output))
}

/// Each thing that is missing, in the order in which a user meets it: the report, and that its fix works.
#[test]
fn what_is_missing_is_named_with_the_command_that_starts_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let rail = "usnic:model/D/vf0";
    let reports = |settings: &[(&str, &str)], status: i32, words: &[&str]| {
        let (found, said) = doctor(here, rail, settings);
        assert!(
            found == Some(status) && words.iter().all(|word| said.contains(word)),
            "{words:?}: {said}"
        );
    };
    reports(&[], 1, &["D/vf0.sock", "doorbell-lab model vic --dir D"]);
    let early = doorbell(here, &["agent", "usnic", "--pf", "usnic:model/D/pf"])
        .output()
        .unwrap();
    assert_eq!(early.status.code(), Some(3), "{}", text(&early));
    assert!(
        text(&early).contains("doorbell-lab model vic --dir D"),
        "{}",
        text(&early)
    );
    let mut model = Service::start(here, &["model", "vic", "--dir", "D", "--vfs", "2"]);
    reports(
        &[],
        1,
        &["broken   rings", "doorbell agent usnic --pf model/D/pf"],
    );
    let early = doorbell(here, &["pingpong", "--rail", "usnic:model/D/vf*", "--sizes", "8"])
        .output()
        .unwrap();
    assert_eq!(early.status.code(), Some(3), "{}", text(&early));
    assert!(
        text(&early).contains("`doorbell agent usnic --pf model/D/pf`"),
        "{}",
        text(&early)
    );
    let mut agent = Service::start(here, &["agent", "usnic", "--pf", "usnic:model/D/pf"]);
    reports(&[], 0, &["vf0: usable", "another function of the model"]);
    // A process that comes right behind another one finds its functions free.
    for _ in 0..3 {
        reports(&[], 0, &["usable"]);
    }
    // The settings are those that a rail has.
    reports(
        &[("DOORBELL_USNIC_AGENT", "none.sock")],
        1,
        &["broken   agent", "none.sock"],
    );
    reports(
        &[("DOORBELL_USNIC_CONTROL", "direct")],
        1,
        &["usnic.control is direct", "broken   rings"],
    );
    reports(
        &[("DOORBELL_USNIC_ADDRESS", "10.0.0.5")],
        2,
        &["usnic.address", "10.0.0.5/24"],
    );
    reports(
        &[(
            "DOORBELL_USNIC_ADDRESS",
            "model/D/vf0=10.9.8.7/24 model/D/vf1=10.9.8.6/24",
        )],
        0,
        &["10.9.8.7", "usable"],
    );
    // One that is killed leaves its socket: the next one takes its place.
    agent.kill();
    assert!(here.join("D/agent.sock").exists());
    reports(
        &[],
        1,
        &[
            "broken   agent",
            "no process listens at D/agent.sock any more",
            "--pf model/D/pf",
        ],
    );
    let mut agent = Service::start(here, &["agent", "usnic", "--pf", "model/D/pf"]);
    reports(&[], 0, &["usable"]);
    model.kill();
    reports(
        &[],
        1,
        &[
            "broken   device",
            "no process listens at D/vf0.sock any more",
            "doorbell-lab model vic --dir D",
        ],
    );
    let mut model = Service::start(here, &["model", "vic", "--dir", "D", "--vfs", "1"]);
    assert!(!here.join("D/vf1.sock").exists(), "of the one that was killed");
    let (status, said) = doctor(here, "usnic:model/D/vf1", &[]);
    assert!(
        status == Some(1) && said.contains("the model there has vf0"),
        "{said}"
    );
    // The agent has outlived its physical function, and finds the next one.
    let begun = Instant::now();
    loop {
        let (status, said) = doctor(here, rail, &[]);
        if status == Some(0) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Without another function, a frame goes to itself and comes back by the switch.
    reports(&[], 0, &["usable", "to its own address"]);
    assert_eq!((agent.end(), model.end()), (Some(0), Some(0)));
}

#[test]
fn a_link_that_is_down_and_frames_that_are_lost_are_reported() {
    for (script, words) in [
        ("at 0s link down", ["broken   link", "script"]),
        ("always switch drop", ["broken   frames", "0 of 64 bytes"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        std::fs::write(here.join("faults"), script).unwrap();
        let _model = Service::start(here, &["model", "vic", "--dir", "D", "--script", "faults"]);
        let _agent = Service::start(here, &["agent", "usnic", "--pf", "model/D/pf"]);
        let (status, said) = doctor(here, "usnic:model/D/vf*", &[]);
        assert!(
            status == Some(1) && words.iter().all(|word| said.contains(word)),
            "{said}"
        );
    }
}

/// The agent's output has no reader any more: it ends as with a signal.
#[test]
fn an_agent_ends_when_its_output_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let _model = Service::start(here, &["model", "vic", "--dir", "D"]);
    let mut child = doorbell(here, &["agent", "usnic", "--pf", "model/D/pf"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert!(said.starts_with("agent of"), "{said}");
    // Reader and pipe are gone now.
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output).as_str()), (Some(0), ""));
    assert!(!here.join("D/agent.sock").exists());
}

/// Seconds after which a job is in the middle of it; the next where it was not, on a busy machine.
const MIDDLE: [u64; 3] = [2, 8, 32];

/// Whether a job has ended before it had its rails.
fn has_not_begun(said: &str) -> bool {
    said.contains("cannot be used")
}

/// Its process killed in the middle of a job: ranks report that the device is gone, and not that a cable is.
#[test]
fn a_model_that_is_killed_is_a_device_that_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let words = ["--no-reference", "--sizes", "8", "--seconds", "60"];
    let mut said = String::new();
    for seconds in MIDDLE {
        let mut model = Service::start(here, &["model", "vic", "--dir", "D"]);
        let _agent = Service::start(here, &["agent", "usnic", "--pf", "model/D/pf"]);
        let (_server, job) = measured(here, &["usnic:model/D/vf1"], &["usnic:model/D/vf0"], |measure| {
            measure.args(words);
        });
        std::thread::sleep(Duration::from_secs(seconds));
        model.kill();
        said = text(&job.wait_with_output().unwrap());
        if !has_not_begun(&said) {
            break;
        }
    }
    assert!(
        said.contains("the device of its last rail is gone") && said.contains("process that models it"),
        "{said}"
    );
}

#[test]
fn two_processes_exchange_messages_over_functions_of_a_model_and_go_on_without_their_agent() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let mut model = Service::start(here, &["model", "vic", "--dir", "D", "--vfs", "2"]);
    assert_eq!(model.said, "ready: pf, vf0, vf1 in D\n");
    let mut agent = Service::start(here, &["agent", "usnic", "--pf", "model/D/pf"]);
    assert!(agent.said.contains("D/agent.sock"), "{}", agent.said);
    // Another one is refused: the physical function is taken.
    let second = doorbell(here, &["agent", "usnic", "--pf", "model/D/pf"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(3), "{}", text(&second));
    let doctor = doorbell(here, &["doctor", "usnic:model/D/vf0"]).output().unwrap();
    let said = text(&doctor);
    assert!(
        doctor.status.success() && said.contains("usnic:model/D/vf0: usable"),
        "{said}"
    );
    let alone = ["usnic:model/D/vf1"];
    let verified = measured(here, &alone, &["usnic:model/D/vf0"], |measure| {
        measure.args(["--verify", "--sizes", "8,16Ki", "--samples", "10"]);
    });
    let output = verified.1.wait_with_output().unwrap();
    let said = text(&output);
    assert!(
        output.status.success() && said.contains("usnic:model/D/vf0"),
        "{said}"
    );
    drop(verified.0);
    // The agent goes in the middle of it, and the queue pairs with it: the other rail takes over.
    let both = (["usnic:model/D/vf1", "udp:lo"], ["usnic:model/D/vf0", "udp:lo"]);
    for seconds in MIDDLE {
        let (_server, drilled) = measured(here, &both.0, &both.1, |measure| {
            measure.args([
                "--no-reference",
                "--sizes",
                "8,16Ki",
                "--seconds",
                &(seconds + 1).to_string(),
            ]);
        });
        std::thread::sleep(Duration::from_secs(seconds));
        assert_eq!(agent.end(), Some(0));
        let drilled = drilled.wait_with_output().unwrap();
        assert!(!here.join("D/agent.sock").exists(), "nothing is left behind");
        if drilled.status.success() {
            break;
        }
        let said = text(&drilled);
        assert!(seconds < MIDDLE[2] && has_not_begun(&said), "{said}");
        agent = Service::start(here, &["agent", "usnic", "--pf", "model/D/pf"]);
    }
    assert_eq!(model.end(), Some(0));
}

/// `doorbell run` with a set of all functions of the model.
fn run_over_all(folder: &Path, ranks: &str, more: &[&str]) -> Output {
    let set = ["run", "--no-prefix", "-n", ranks, "--rail", "usnic:model/D/vf*"];
    doorbell(folder, &[&set[..], more].concat()).output().unwrap()
}

#[test]
fn each_rank_takes_a_function_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let _model = Service::start(here, &["model", "vic", "--dir", "D", "--vfs", "3"]);
    let _agent = Service::start(here, &["agent", "usnic", "--pf", "usnic:model/D/pf"]);
    let program = example("rails").display().to_string();
    let ended = run_over_all(here, "2", &["--", &program]);
    assert!(ended.status.success(), "{}", text(&ended));
    let mut lines: Vec<String> = text(&ended).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "rank 0: usnic:model/D/vf0; from 1",
            "rank 1: usnic:model/D/vf1; from 0"
        ]
    );
    let ended = run_over_all(here, "4", &["--", "touch", "started"]);
    let said = text(&ended);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(
        said.contains("3 of those that it stands for are free (usnic:model/D/vf0, usnic:model/D/vf1, ")
            && said.contains("`doorbell-lab model vic --dir D --vfs 4` has 4 functions"),
        "{said}"
    );
    assert!(!here.join("started").exists(), "{said}");
    // A function that another process has is no rank's: that of a rank that waits for another one.
    let mut waits = Command::new(&program);
    waits
        .current_dir(here)
        .env("DOORBELL_RANK", "0")
        .env("DOORBELL_SIZE", "2")
        .env("DOORBELL_ROOT", format!("@doorbell-waits-{}", std::process::id()))
        .env("DOORBELL_RAILS", "usnic:model/D/vf0");
    let child = waits.stderr(Stdio::null()).spawn().unwrap();
    let mut waits = Service {
        child,
        said: String::new(),
    };
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let shown = text(&run_over_all(here, "2", &["--show-binding"]));
        let is_out = shown.contains("without usnic:model/D/vf0: another process has it");
        if is_out && shown.contains("rails: usnic:model/D/vf1") && shown.contains("rails: usnic:model/D/vf2")
        {
            break;
        }
        assert!(
            waits.child.try_wait().unwrap().is_none() && Instant::now() < until,
            "{shown}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
