//! Where the stacks run: two cores, and two hosts that are network namespaces of our own.
//!
//! ```text
//!   shared memory   one: lo                     whoever listens is heard by nobody else
//!   network         one: v0 10.79.0.1 ───────── two: v0 10.79.0.2
//! ```
//!
//! A namespace lives as long as the process that holds it, and that one as long as our end of a pipe: nothing has a name,
//! so nothing is left behind, however we end. The holder's own mount of /sys shows the interfaces of its namespace.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::error::ToolError;

/// The interface at both ends.
pub(crate) const INTERFACE: &str = "v0";
/// Bytes of a full frame without its Ethernet head.
pub(crate) const MTU: u32 = 1500;
/// An interface is up so soon after it was asked for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that asks.
    One,
    /// The one that answers.
    Two,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::One, Self::Two];

    /// Its address on the virtual cable.
    pub(crate) fn address(self) -> &'static str {
        match self {
            Self::One => "10.79.0.1",
            Self::Two => "10.79.0.2",
        }
    }
}

/// Through what the two processes talk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setting {
    /// Shared memory.
    Shm,
    /// A pair of virtual Ethernet interfaces, each in a namespace of its own.
    Network,
    /// The same, and so many percent of what arrives at each end is dropped.
    Loss(f64),
}

impl Setting {
    pub(crate) fn is_network(self) -> bool {
        self != Self::Shm
    }

    /// Its name for people.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Shm => "shared memory".to_owned(),
            Self::Network => "network".to_owned(),
            Self::Loss(percent) => format!("network, {percent} % loss"),
        }
    }

    /// Its name in the JSON.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Network => "network",
            Self::Loss(_) => "loss",
        }
    }
}

/// The place of a comparison.
#[derive(Debug)]
pub(crate) struct Place {
    /// The core of each side.
    pub(crate) cores: [usize; 2],
    /// For what is compiled and written on the way.
    pub(crate) folder: TempDir,
    /// The namespace of shared memory; none where the system allows none.
    alone: Result<Holder, String>,
    /// Those of the network, once they are wanted.
    hosts: Option<[Holder; 2]>,
}

impl Place {
    pub(crate) fn new(cores: [usize; 2], network: bool) -> Result<Self, ToolError> {
        let folder = tempfile::Builder::new().prefix("doorbell-peers-").tempdir();
        let folder = folder.map_err(|source| ToolError::System {
            what: "make a folder for temporary files (`TMPDIR` names where)",
            source,
        })?;
        Ok(Self {
            cores,
            folder,
            alone: Holder::new(None),
            hosts: network.then(cable).transpose().map_err(|why| {
                ToolError::Usage(format!(
                    "`--network` makes two network namespaces, and that failed: {why}; it takes root, or a kernel that \
                     lets users make namespaces, and the packages iproute2 and util-linux"
                ))
            })?,
        })
    }

    /// Why whoever listens would be heard by others; `None` where it is not.
    pub(crate) fn exposed(&self, setting: Setting) -> Option<&str> {
        match (&self.alone, setting) {
            (Err(why), Setting::Shm) => Some(why),
            _ => None,
        }
    }

    /// A program on one side, on no core in particular.
    pub(crate) fn command(&self, setting: Setting, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.holder(setting, side) {
            Some(holder) => {
                let mut command = holder.enter();
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        for (name, _) in std::env::vars_os() {
            // What they are told to do is what the table says, and nothing else.
            let name = name.to_string_lossy();
            let ours = [
                "DOORBELL_",
                "UCX_",
                "OMPI_",
                "PMIX_",
                "FI_",
                "MPIR_",
                "MPICH_",
                "HYDRA_",
            ];
            if ours.iter().any(|start| name.starts_with(start)) {
                command.env_remove(&*name);
            }
        }
        command
    }

    /// A program on one side, bound to that side's core with all its threads.
    pub(crate) fn bound(&self, setting: Setting, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(setting, side, "taskset");
        command.args(["-c", &self.core(side).to_string()]).arg(program);
        command
    }

    /// The core of a side.
    pub(crate) fn core(&self, side: Side) -> usize {
        self.cores[side as usize]
    }

    /// The address by which a side is reached.
    pub(crate) fn address(setting: Setting, side: Side) -> &'static str {
        match setting {
            Setting::Shm => "127.0.0.1",
            _ => side.address(),
        }
    }

    /// The words by which a shell script that runs on one side enters the namespace of a side. It is in the same user
    /// namespace already, and none can be entered twice.
    pub(crate) fn entrance(&self, side: Side) -> String {
        let holder = self.holder(Setting::Network, side);
        holder
            .map(|holder| holder.words(false).join(" "))
            .unwrap_or_default()
    }

    /// Drops so many percent of what arrives at either end, whatever it is; 0 ends it.
    pub(crate) fn lose(&self, percent: f64) -> Result<(), ToolError> {
        let permille = (percent * 10.0).round();
        let rule = if permille > 0.0 {
            format!("add rule netdev loss in numgen random mod 1000 < {permille} counter drop\n")
        } else {
            String::new()
        };
        let script = format!(
            "add table netdev loss\nflush table netdev loss\n\
             add chain netdev loss in {{ type filter hook ingress device \"{INTERFACE}\" priority 0; }}\n{rule}"
        );
        for side in Side::BOTH {
            let mut nft = self.command(Setting::Network, side, "nft");
            must(nft.arg(&script)).map_err(|why| {
                ToolError::Usage(format!(
                    "`--loss` needs a rule of nftables, and that failed: {why}; install the \
                                          package nftables"
                ))
            })?;
        }
        Ok(())
    }

    fn holder(&self, setting: Setting, side: Side) -> Option<&Holder> {
        match setting {
            Setting::Shm => self.alone.as_ref().ok(),
            _ => self.hosts.as_ref().map(|hosts| &hosts[side as usize]),
        }
    }
}

/// The process that keeps a namespace.
#[derive(Debug)]
struct Holder {
    child: Child,
    /// Whether it has a user namespace as well, because we are not root.
    user: bool,
}

/// Holds until its standard input ends: with us, or when we want it.
const HOLD: &str = "mount -t sysfs sysfs /sys && ip link set lo up && echo up && exec cat >/dev/null";

impl Holder {
    /// A new namespace; inside the user namespace of another one, if there is one.
    fn new(beside: Option<&Self>) -> Result<Self, String> {
        let root = rustix::process::geteuid().is_root();
        let mut command = match beside.filter(|other| other.user) {
            Some(other) => {
                let pid = other.child.id().to_string();
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
            return Err(doorbell_bench::report::printable(said.trim()));
        }
        Ok(Self { child, user: !root })
    }

    fn words(&self, user: bool) -> Vec<String> {
        let mut words = vec![
            "nsenter".to_owned(),
            "--target".to_owned(),
            self.child.id().to_string(),
        ];
        if user {
            words.extend(["--user", "--preserve-credentials"].map(str::to_owned));
        }
        words.extend(["--net", "--mount", "--"].map(str::to_owned));
        words
    }

    /// What runs a program in it.
    fn enter(&self) -> Command {
        let words = self.words(self.user);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    fn ip(&self, arguments: &str) -> Result<String, String> {
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

/// Two namespaces and the cable between them.
fn cable() -> Result<[Holder; 2], String> {
    let one = Holder::new(None)?;
    let two = Holder::new(Some(&one))?;
    one.ip(&format!(
        "link add {INTERFACE} mtu {MTU} type veth peer name {INTERFACE} mtu {MTU} netns {}",
        two.child.id()
    ))?;
    for (host, side) in [&one, &two].into_iter().zip(Side::BOTH) {
        host.ip(&format!("address add {}/24 dev {INTERFACE}", side.address()))?;
        host.ip(&format!("link set {INTERFACE} up"))?;
    }
    for host in [&one, &two] {
        let begun = Instant::now();
        while !host
            .ip(&format!("-o link show {INTERFACE} up"))?
            .contains("state UP")
        {
            if begun.elapsed() > PATIENCE {
                return Err(format!("{INTERFACE} did not come up within {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok([one, two])
}

/// What a program that always succeeds has to say.
fn must(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).process_group(0).output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(doorbell_bench::report::printable(
            String::from_utf8_lossy(&output.stderr).trim(),
        )),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// The program of a name on the PATH.
pub(crate) fn on_path(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// A TCP port that nobody uses in our own namespace at the moment; in namespaces of our own nobody uses any.
pub(crate) fn free_port() -> Result<u16, ToolError> {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
    socket
        .map(|address| address.port())
        .map_err(|source| ToolError::System {
            what: "find a free port",
            source,
        })
}
