//! A network namespace without a name.
//!
//! It lives as long as the process that holds it, and that one as long as our end of a pipe, so that nothing is left
//! behind, however we end. The holder's own mount of /sys shows the interfaces of its namespace.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use doorbell_bench::report::printable;

/// The process that keeps a namespace.
#[derive(Debug)]
pub(super) struct Holder {
    child: Child,
    /// Whether it has a user namespace as well, because we are not root.
    user: bool,
}

/// Holds until its standard input ends: with us, or when we want it.
const HOLD: &str = "mount -t sysfs sysfs /sys && ip link set lo up && echo up && exec cat >/dev/null";

impl Holder {
    /// A new namespace; inside the user namespace of another one, if there is one.
    pub(super) fn new(beside: Option<&Self>) -> Result<Self, String> {
        let root = rustix::process::geteuid().is_root();
        let mut command = match beside.filter(|other| other.user) {
            Some(other) => {
                let pid = other.id().to_string();
                let mut command = Command::new("nsenter");
                command.args([
                    "--target",
                    &pid,
                    "--user",
                    "--preserve-credentials",
                    "--",
                    "unshare",
                ]);
                command
            }
            None => Command::new("unshare"),
        };
        if !root && beside.is_none() {
            command.args(["--user", "--map-root-user"]);
        }
        let mut child = command
            .args(["--net", "--mount", "--", "sh", "-c", HOLD])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare could not be started: {error}"))?;
        let mut line = String::new();
        // It says one line or ends.
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        if line.trim() != "up" {
            let mut said = String::new();
            let _ = child.wait();
            if let Some(err) = &mut child.stderr {
                let _ = err.take(4096).read_to_string(&mut said);
            }
            return Err(printable(said.trim()));
        }
        Ok(Self { child, user: !root })
    }

    /// The process, by whose number others find the namespace.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The words that enter it; `user` from outside its user namespace, and not from inside: none can be entered twice.
    pub(super) fn words(&self, user: bool) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), "--target".to_owned(), self.id().to_string()];
        if user {
            words.extend(["--user", "--preserve-credentials"].map(str::to_owned));
        }
        words.extend(["--net", "--mount", "--"].map(str::to_owned));
        words
    }

    /// What runs a program in it.
    pub(super) fn enter(&self) -> Command {
        let words = self.words(self.user);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// `ip` in it, with arguments that have no spaces in them.
    pub(super) fn ip(&self, arguments: &str) -> Result<String, String> {
        must(self.enter().arg("ip").args(arguments.split(' ')))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The end of its standard input is its end.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// What a program that always succeeds has to say.
pub(super) fn must(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).process_group(0).output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(printable(String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{name}: {error}")),
    }
}
