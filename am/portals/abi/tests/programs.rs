//! C programs that know nothing of doorbell, on the library: alone, and under MPICH's launcher with 2 and 4 ranks, over
//! shared memory and over UDP on the loopback. (`tools/tests` starts them under `doorbell run`.)

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than any of them takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a command to its end, or kills it.
fn ended(mut command: Command) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > LIMIT {
            child.kill().unwrap();
            let out = child.wait_with_output().unwrap();
            panic!(
                "{command:?} does not end: {}",
                String::from_utf8_lossy(&out.stderr)
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn passes(command: Command) {
    let shown = format!("{command:?}");
    let out = ended(command);
    let said = [out.stdout, out.stderr].concat();
    assert!(
        out.status.success(),
        "{shown}: {}\n{}",
        out.status,
        String::from_utf8_lossy(&said)
    );
}

/// Without what the tests' own launcher says.
fn alone(program: &Path) -> Command {
    let mut command = Command::new(program);
    for variable in [
        "PMI_FD",
        "PMI_RANK",
        "PMI_SIZE",
        "PTL_IFACE_NAME",
        "PTL_PROGRESS_THREAD",
    ] {
        command.env_remove(variable);
    }
    command
}

fn under_hydra(program: &Path, ranks: u32, variables: &[(&str, &str)]) -> Option<Command> {
    if !common::is_on_path("mpiexec.hydra") {
        println!("skipped: package mpich: mpiexec.hydra not found");
        return None;
    }
    let mut command = alone(Path::new("mpiexec.hydra"));
    command.args(["-n", &ranks.to_string()]).arg(program);
    command.envs(variables.iter().copied());
    Some(command)
}

/// The programs that make a job of any size.
const STORIES: [&str; 7] = [
    "put",
    "get",
    "atomic",
    "triggered",
    "flow",
    "unexpected",
    "independent",
];

#[test]
fn every_story_alone() {
    for name in STORIES {
        if let Some(program) = common::compiled(name) {
            passes(alone(&program));
        }
    }
}

#[test]
fn every_story_with_two_and_four_ranks() {
    for name in STORIES {
        let Some(program) = common::compiled(name) else {
            return;
        };
        for ranks in [2, 4] {
            let Some(command) = under_hydra(&program, ranks, &[]) else {
                return;
            };
            passes(command);
        }
    }
}

#[test]
fn over_udp_and_without_the_thread() {
    for (name, variable, value) in [
        ("put", "DOORBELL_RAILS", "udp:lo"),
        ("get", "DOORBELL_RAILS", "udp:lo"),
        ("atomic", "PTL_IFACE_NAME", "lo"),
        ("triggered", "PTL_PROGRESS_THREAD", "0"),
    ] {
        let Some(program) = common::compiled(name) else {
            return;
        };
        let Some(command) = under_hydra(&program, 2, &[(variable, value)]) else {
            return;
        };
        passes(command);
    }
}

#[test]
fn limits_are_exact_and_what_cannot_be_is_refused() {
    if let Some(program) = common::compiled("limits") {
        passes(alone(&program));
    }
}

#[test]
fn abort_ends_every_wait() {
    if let Some(program) = common::compiled("abort") {
        passes(alone(&program));
        let mut without = alone(&program);
        without.env("PTL_PROGRESS_THREAD", "0");
        passes(without);
    }
}
