//! Two processes for one test: the test program starts itself twice, and each of the two plays a part.
//!
//! libfabric looks for providers when it is first called, so the variables that name ours have to be there
//! before; and what is tested between two processes is tested between two processes.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use doorbell_testing::netns::Lab;
use libfabric_sys::{Library, LibraryError};

use crate::client::{Client, until};

/// How long a test may take at most, so that a hang is an error.
const BOUND: Duration = Duration::from_secs(300);
const ROLE: &str = "DOORBELL_TEST_ROLE";
const PLACE: &str = "DOORBELL_TEST_PLACE";

/// The part of one of the two processes.
pub(crate) struct Role {
    /// 0 or 1.
    pub(crate) number: usize,
    /// To the other one.
    line: UnixStream,
}

impl Role {
    /// Whether this is the first one.
    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Sends bytes to the other one, and receives as many.
    pub(crate) fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.line.write_all(bytes).unwrap();
        let mut theirs = vec![0; bytes.len()];
        self.line.read_exact(&mut theirs).unwrap();
        theirs
    }

    /// Wakes the other one, if it is still there.
    pub(crate) fn call(&mut self) {
        let _ = self.line.write_all(&[0]);
    }

    /// Waits until the other one has called; nothing makes progress meanwhile.
    pub(crate) fn wait(&mut self) {
        self.line.read_exact(&mut [0]).unwrap();
    }

    /// Waits until the other one has come here, too; the client makes progress meanwhile.
    pub(crate) fn meet(&mut self, client: &Client) {
        self.line.write_all(&[0]).unwrap();
        until("the other one does not come", || {
            client.advance();
            self.is_called().then_some(())
        });
        self.line.read_exact(&mut [0]).unwrap();
    }

    /// Whether the other one has sent something, or has gone.
    pub(crate) fn is_called(&self) -> bool {
        self.line.set_nonblocking(true).unwrap();
        let found = self.line.peek_one();
        self.line.set_nonblocking(false).unwrap();
        found
    }
}

trait Peek {
    fn peek_one(&self) -> bool;
}

impl Peek for UnixStream {
    fn peek_one(&self) -> bool {
        let flags = rustix::net::RecvFlags::PEEK;
        rustix::net::recv(self, &mut [0_u8; 1][..], flags).is_ok()
    }
}

/// The folder of the provider's library: that of the test program, where cargo puts both.
pub(crate) fn folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    assert!(
        folder.join("libdoorbell_fi.so").is_file(),
        "{} has no libdoorbell_fi.so",
        folder.display()
    );
    folder.to_path_buf()
}

/// The variables by which libfabric finds the provider, and the rails without a network.
pub(crate) fn variables(command: &mut Command) -> &mut Command {
    command
        .env("FI_PROVIDER_PATH", folder())
        .env("FI_PROVIDER", "doorbell")
        .env("FI_LOG_LEVEL", "warn")
        .env("DOORBELL_RAILS", "shm")
}

/// The installed libfabric; a test that has none is reported as skipped.
pub(crate) fn library(test: &str) -> Option<Library> {
    match Library::open() {
        Ok(library) => Some(library),
        Err(LibraryError::None { reason }) => {
            doorbell_testing::skipped(test, &format!("package libfabric-bin: {reason}"));
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// Runs a test in two processes. `test` is its whole name, with the module.
pub(crate) fn run(test: &str, part: impl FnOnce(Role, Library)) {
    run_and(test, &[], false, &here, part);
}

/// Runs a test in two processes that have these variables, too.
pub(crate) fn run_with(test: &str, variables: &[(&str, &str)], part: impl FnOnce(Role, Library)) {
    run_and(test, variables, false, &here, part);
}

/// Runs a test in two processes that have these variables, on the hosts of these numbers of a pair of hosts
/// with one link, `v0`, and returns what they have printed; nothing in one of them, and where there can be no
/// hosts.
pub(crate) fn run_on(
    test: &str,
    hosts: [usize; 2],
    variables: &[(&str, &str)],
    part: impl FnOnce(Role, Library),
) -> Option<[String; 2]> {
    run_built(test, hosts, variables, &|_| (), part)
}

/// Does the same between hosts that `build` has added something to.
pub(crate) fn run_built(
    test: &str,
    hosts: [usize; 2],
    variables: &[(&str, &str)],
    build: &dyn Fn(&Lab),
    part: impl FnOnce(Role, Library),
) -> Option<[String; 2]> {
    if std::env::var_os(ROLE).is_some() {
        run_and(test, variables, false, &here, part);
        return None;
    }
    let lab = Lab::pair(test, 1500)?;
    build(&lab);
    let there = |role: usize, command: &mut Command| lab.inside(hosts[role], || command.spawn().unwrap());
    let outputs = run_and(test, variables, false, &there, part)?;
    Some(outputs.map(|output| text(&output)))
}

/// Starts a process where this one is.
fn here(_: usize, command: &mut Command) -> Child {
    command.spawn().unwrap()
}

/// Runs a test in two processes, and returns what they have printed; nothing in one of them, and where
/// libfabric is not installed.
pub(crate) fn run_printed(test: &str, part: impl FnOnce(Role, Library)) -> Option<[String; 2]> {
    let outputs = run_and(test, &[], false, &here, part)?;
    Some(outputs.map(|output| text(&output)))
}

/// Runs a test in two processes, of which the second is killed by the first.
pub(crate) fn run_killed(test: &str, part: impl FnOnce(Role, Library)) {
    run_and(test, &[], true, &here, part);
}

fn run_and(
    test: &str,
    more: &[(&str, &str)],
    killed: bool,
    begin: &dyn Fn(usize, &mut Command) -> Child,
    part: impl FnOnce(Role, Library),
) -> Option<[Output; 2]> {
    if let Ok(role) = std::env::var(ROLE) {
        let library = Library::open().unwrap();
        let line = connect(&role, &std::env::var_os(PLACE).unwrap().into());
        let number = role.parse().unwrap();
        part(Role { number, line }, library);
        return None;
    }
    library(test)?;
    let place = tempfile::tempdir().unwrap();
    let mut children = [0, 1].map(|role| begin(role, &mut command(test, role, more, place.path())));
    let until = Instant::now() + BOUND;
    let mut ended = [None, None];
    while ended.iter().any(Option::is_none) {
        for (child, ended) in children.iter_mut().zip(&mut ended) {
            if ended.is_none() {
                *ended = child.try_wait().unwrap();
            }
        }
        let is_well = |status: &ExitStatus| status.success() || killed && status.signal().is_some();
        let failed = !ended.iter().flatten().all(is_well);
        if failed || Instant::now() > until {
            // The other one would wait for ever.
            children.iter_mut().for_each(|child| drop(child.kill()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let outputs = children.map(|child| child.wait_with_output().unwrap());
    for (output, role) in outputs.iter().zip(0..) {
        println!("part {role}: {}\n{}", output.status, text(output));
    }
    for (output, role) in outputs.iter().zip(0..) {
        let is_killed = role == 1 && killed && output.status.signal().is_some();
        assert!(
            output.status.success() || is_killed,
            "part {role} of {test} has failed"
        );
        assert!(
            is_killed || text(output).contains("1 passed"),
            "part {role} of {test} has run no test"
        );
    }
    Some(outputs)
}

/// What a program has printed.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn command(test: &str, role: usize, more: &[(&str, &str)], place: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // The test that starts it may have been requested although it is ignored.
    command.args([
        "--exact",
        test,
        "--include-ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    variables(&mut command)
        .envs(more.iter().copied())
        .env(ROLE, role.to_string())
        .env(PLACE, place.join("line"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn connect(role: &str, place: &PathBuf) -> UnixStream {
    if role == "0" {
        // The other one connects to what is there when it has its name.
        let listener = UnixListener::bind(place.with_extension("new")).unwrap();
        std::fs::rename(place.with_extension("new"), place).unwrap();
        return listener.accept().unwrap().0;
    }
    let until = Instant::now() + BOUND;
    loop {
        match UnixStream::connect(place) {
            Ok(line) => return line,
            Err(error) if Instant::now() > until => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
