//! C programs that know nothing of doorbell, on the library: alone, and under MPICH's launcher with 2 and 4
//! ranks, over shared memory and over UDP on the loopback. (`tools/tests` starts them under `doorbell run`.)

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

/// The command without the variables of the tests' own launcher.
fn alone(program: &Path) -> Command {
    let mut command = Command::new(program);
    for variable in [
        "PMI_FD",
        "PMI_RANK",
        "PMI_SIZE",
        "PTL_IFACE_NAME",
        "PTL_PROGRESS_THREAD",
        "PTL_HEADER",
    ] {
        command.env_remove(variable);
    }
    command
}

fn under_hydra(program: &Path, ranks: u32, variables: &[(&str, &str)]) -> Option<Command> {
    if !common::is_on_path("mpiexec.hydra") {
        common::skipped("package mpich: mpiexec.hydra not found");
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
fn with_a_thread_that_has_a_core_and_spins() {
    let Some(program) = common::compiled("triggered") else {
        return;
    };
    let variables = [
        ("DOORBELL_PROGRESS_CORE", "next"),
        ("DOORBELL_WAIT", "lowest-latency"),
    ];
    // Two cores for each.
    let whole = doorbell_fabric::cores::Topology::read().whole_cores();
    let ranks = if whole >= 4 { 2 } else { 1 };
    if whole >= 2
        && let Some(command) = under_hydra(&program, ranks, &variables)
    {
        passes(command);
    }
    // A core that is not there is refused, with the setting's name.
    let mut command = Command::new(&program);
    let out = command.env("DOORBELL_PROGRESS_CORE", "8000").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("core 8000"), "{said}");
}

#[test]
fn limits_are_exact_and_what_cannot_be_is_refused() {
    if let Some(program) = common::compiled("limits") {
        passes(alone(&program));
    }
}

#[test]
fn nothing_is_written_after_the_end_of_an_interface() {
    let Some(program) = common::compiled("fini") else {
        return;
    };
    passes(alone(&program));
    for rails in ["shm", "udp:lo"] {
        let Some(command) = under_hydra(&program, 2, &[("DOORBELL_RAILS", rails)]) else {
            return;
        };
        passes(command);
    }
}

#[test]
fn variables_that_say_nonsense_are_refused_by_name() {
    let Some(program) = common::compiled("variables") else {
        return;
    };
    for (name, value, takes) in [
        ("PTL_LIM_MAX_CTS", "abc", "a number from 0 to 1048576"),
        ("PTL_LIM_MAX_PT_INDEX", "-1", "a number from 1 to 511"),
        ("PTL_PROGRESS_THREAD", "maybe", "takes 1 for a thread"),
    ] {
        let mut command = alone(&program);
        command.arg(name).env(name, value);
        let out = ended(command);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        // One line for each of the two calls.
        assert_eq!(said.lines().count(), 2, "{said}");
        for line in said.lines() {
            assert!(line.contains(&format!("{name}={value:?}")), "{line}");
            assert!(line.contains(takes), "{line}");
        }
    }
    let mut empty = alone(&program);
    empty.env("PTL_PROGRESS_THREAD", "").env("PTL_LIM_MAX_MDS", "");
    passes(empty);
}

/// On other processors long double is no number of the x87, and the library computes with no other.
#[cfg(target_arch = "x86_64")]
#[test]
fn long_doubles_are_what_the_processor_makes_of_them() {
    if let Some(program) = common::compiled("long_double") {
        passes(alone(&program));
    }
}

#[test]
fn names_of_older_headers_are_there_and_do_what_they_say() {
    if let Some(program) = common::compiled("names") {
        passes(alone(&program));
    }
}

#[test]
fn a_program_of_another_header_is_named_at_its_first_call() {
    let Some(program) = common::compiled("other_header") else {
        return;
    };
    let run = |header: Option<&str>, code: &str| {
        let mut command = alone(&program);
        command
            .arg(code)
            .envs(header.map(|header| ("PTL_HEADER", header)));
        let out = ended(command);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{header:?}: {said}");
        said
    };
    let said = run(None, "0");
    assert_eq!(said.lines().count(), 1, "once: {said}");
    assert!(
        said.contains("another portals4.h") && said.contains("PTL_HEADER=2024"),
        "{said}"
    );
    assert_eq!(run(Some("2024"), "0"), "");
    let said = run(Some("2019"), "5");
    assert_eq!(said.lines().count(), 2, "at each call: {said}");
    assert!(said.contains("PTL_HEADER=\"2019\": it takes 2024"), "{said}");
    // With our header nothing is printed.
    let Some(program) = common::compiled("names") else {
        return;
    };
    assert_eq!(String::from_utf8_lossy(&ended(alone(&program)).stderr), "");
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

#[test]
fn a_peer_that_does_not_read_holds_up_no_other_call() {
    let Some(program) = common::compiled("slow") else {
        return;
    };
    if let Some(command) = under_hydra(&program, 2, &[("DOORBELL_RAILS", "shm")]) {
        passes(command);
    }
}

#[test]
fn signals_are_the_programs() {
    if let Some(program) = common::compiled("signals") {
        passes(alone(&program));
    }
}

#[test]
fn an_end_and_a_beginning_at_once_give_no_dead_handle() {
    if let Some(program) = common::compiled("again") {
        passes(alone(&program));
    }
}

/// Two network namespaces with a wire between them; gone with this.
struct Hosts([String; 2]);

impl Hosts {
    /// `None`, with the reason printed, where namespaces are not available.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let hosts = Self([format!("ptl{id}a"), format!("ptl{id}b")]);
        let [a, b] = &hosts.0;
        let made = ip(&["netns", "add", a])
            && ip(&["netns", "add", b])
            && ip(&[
                "link", "add", "pa", "netns", a, "type", "veth", "peer", "name", "pb", "netns", b,
            ])
            && hosts.up(a, "pa", "10.77.7.1/24")
            && hosts.up(b, "pb", "10.77.7.2/24")
            && has_carrier(a, "pa")
            && has_carrier(b, "pb");
        if !made {
            common::skipped("package iproute2: no network namespaces can be made here");
        }
        made.then_some(hosts)
    }

    fn up(&self, host: &str, interface: &str, address: &str) -> bool {
        ip(&["-n", host, "addr", "add", address, "dev", interface])
            && ip(&["-n", host, "link", "set", "lo", "up"])
            && ip(&["-n", host, "link", "set", interface, "up"])
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            ip(&["netns", "del", host]);
        }
    }
}

/// Waits until a link that was brought up is up.
fn has_carrier(host: &str, interface: &str) -> bool {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        let shown = Command::new("ip")
            .args(["-n", host, "link", "show", interface])
            .output();
        if shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains("state UP")) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

fn ip(arguments: &[&str]) -> bool {
    let run = Command::new("ip").args(arguments).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

#[test]
fn processes_of_two_hosts_meet_through_the_launcher() {
    if !common::is_on_path("mpiexec.hydra") {
        return common::skipped("package mpich: mpiexec.hydra not found");
    }
    let Some(hosts) = Hosts::new() else { return };
    for name in ["put", "independent"] {
        let Some(program) = common::compiled(name) else {
            return;
        };
        let mut command = alone(Path::new("mpiexec.hydra"));
        for (host, interface) in hosts.0.iter().zip(["pa", "pb"]) {
            if interface == "pb" {
                command.arg(":");
            }
            command.args(["-n", "1", "ip", "netns", "exec", host, "env"]);
            command.arg(format!("PTL_IFACE_NAME={interface}")).arg(&program);
        }
        passes(command);
    }
}
