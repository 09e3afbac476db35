//! A network namespace without a name.
//!
//! It lives as long as the process that holds it, and that one as long as our end of a pipe, so that nothing
//! is left behind, however we end. The holder's own mount of /sys shows the interfaces of its namespace, and
//! its own /dev/shm ends with it: what a killed peer leaves there takes no memory of the host.

use std::process::Command;
use std::time::Duration;

use doorbell_tools::process::{Held, Runner, Stop};

/// The process that keeps a namespace.
pub(super) struct Holder<'r> {
    runner: &'r Runner,
    held: Held,
    /// Whether it has a user namespace as well, because we are not root.
    user: bool,
}

/// Holds until its standard input ends: with us, or when we close it.
const HOLD: &str = "mount -t sysfs sysfs /sys && { [ ! -d /dev/shm ] || mount -t tmpfs -o mode=1777 shm /dev/shm; } && \
                    ip link set lo up && echo up && exec cat >/dev/null";
/// A namespace is made, and an interface set, within this time.
const PATIENCE: Duration = Duration::from_secs(10);

impl<'r> Holder<'r> {
    /// A new namespace; inside the user namespace of another one, if there is one.
    pub(super) fn new(runner: &'r Runner, beside: Option<&Self>) -> Result<Self, Stop> {
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
        command.args(["--net", "--mount", "--", "sh", "-c", HOLD]);
        let held = runner.hold("unshare", command, PATIENCE)?;
        Ok(Self {
            runner,
            held,
            user: !root,
        })
    }

    /// The process, by whose number others find the namespace.
    pub(super) fn id(&self) -> u32 {
        self.held.id()
    }

    /// The words that enter it; `user` from outside its user namespace, and not from inside: none can be
    /// entered twice.
    pub(super) fn words(&self, user: bool) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), "--target".to_owned(), self.id().to_string()];
        if user {
            words.extend(["--user", "--preserve-credentials"].map(str::to_owned));
        }
        words.extend(["--net", "--mount", "--"].map(str::to_owned));
        words
    }

    /// Returns the command that runs a program in it.
    pub(super) fn enter(&self) -> Command {
        let words = self.words(self.user);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// Runs a program in it that always succeeds, and returns its output.
    pub(super) fn must(&self, program: &str, arguments: &[&str]) -> Result<String, Stop> {
        let mut command = self.enter();
        command.arg(program).args(arguments);
        self.runner.run(program, command, PATIENCE)?.good(program)
    }

    /// `ip` in it, with arguments that have no spaces in them.
    pub(super) fn ip(&self, arguments: &str) -> Result<String, Stop> {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        self.must("ip", &arguments)
    }

    /// Removes what programs that were killed left in its shared memory.
    pub(super) fn tidy(&self) -> Result<(), Stop> {
        match self.must("find", &["/dev/shm", "-mindepth", "1", "-delete"]) {
            // It ends with the namespace, whatever is in it.
            Ok(_) | Err(Stop::Failed(_)) => Ok(()),
            Err(stop) => Err(stop),
        }
    }
}
