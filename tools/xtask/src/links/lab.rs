//! Two hosts on this machine: network namespaces, a pair of virtual Ethernet interfaces between them, and
//! losses on it.
//!
//! ```text
//!   a: v0 10.79.0.1 ─────────────────────── b: v0 10.79.0.2
//!      v1 10.79.1.1 ─────────────────────── v1 10.79.1.2      and so on, for as many links as are requested
//!     ctl 10.79.255.1 ──────────────────── ctl 10.79.255.2    for launchers, where it is wanted
//! ```
//!
//! The namespaces carry the number of our process in their names. They go with the [`Lab`]; those of a
//! process that could not clean up, because it was killed, go when the next one begins.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;

/// What the names of our namespaces begin with.
const NAMES: &str = "doorbell-links-";
/// The first interface of each host.
pub(crate) const INTERFACE: &str = "v0";
/// The interface of each host on the link that is for launchers, and the number of its network.
pub(crate) const CONTROL: &str = "ctl";
const CONTROL_NET: usize = 255;
/// How long a link may take to come up after it was made.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// The one that sends requests.
    A,
    /// The one that answers them.
    B,
}

impl Host {
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Returns the first address of a host.
    pub(crate) fn address(self) -> &'static str {
        match self {
            Self::A => "10.79.0.1",
            Self::B => "10.79.0.2",
        }
    }

    /// Returns its address on the link for launchers.
    pub(crate) fn control(self) -> &'static str {
        match self {
            Self::A => "10.79.255.1",
            Self::B => "10.79.255.2",
        }
    }
}

/// What was dropped at a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Buffers of the kernel's: each a frame, or a run of frames.
    pub(crate) buffers: u64,
    /// The bytes of them all.
    pub(crate) bytes: u64,
}

/// The two namespaces.
#[derive(Debug)]
pub(crate) struct Lab {
    names: [String; 2],
}

impl Lab {
    /// Makes the hosts and `links` links between them. With `single`, frames travel one by one and not in
    /// runs: each loss is one frame.
    pub(crate) fn new(links: usize, mtu: usize, single: bool) -> Result<Self, Error> {
        sweep();
        let process = std::process::id();
        let lab = Self {
            names: ["a", "b"].map(|host| format!("{NAMES}{process}-{host}")),
        };
        for host in Host::BOTH {
            ip(&format!("netns add {}", lab.name(host)))?;
        }
        for host in Host::BOTH {
            ip(&format!("-n {} link set lo up", lab.name(host)))?;
        }
        (0..links).try_for_each(|link| lab.connect(&interface(link), link, mtu, single))?;
        Ok(lab)
    }

    /// Makes one more link, for what launchers send each other: it stays whole when others are cut.
    pub(crate) fn add_control(&self) -> Result<(), Error> {
        self.connect(CONTROL, CONTROL_NET, 1500, false)
    }

    fn connect(&self, interface: &str, net: usize, mtu: usize, single: bool) -> Result<(), Error> {
        let [a, b] = Host::BOTH.map(|host| self.name(host));
        ip(&format!(
            "link add {interface} netns {a} mtu {mtu} type veth peer name {interface} netns {b} mtu {mtu}"
        ))?;
        for (number, host) in (1..).zip(Host::BOTH) {
            let name = self.name(host);
            ip(&format!(
                "-n {name} address add 10.79.{net}.{number}/24 dev {interface}"
            ))?;
            ip(&format!("-n {name} link set {interface} up"))?;
            if single {
                let off = format!("-K {interface} tx-udp-segmentation off gso off gro off tso off");
                must(self.at(host, "ethtool").args(off.split(' ')))?;
            }
        }
        self.wait_until_both_up(interface)
    }

    /// Takes an interface down, or up again.
    pub(crate) fn set(&self, host: Host, link: usize, up: bool) -> Result<(), Error> {
        let (name, interface) = (self.name(host), interface(link));
        let how = if up { "up" } else { "down" };
        ip(&format!("-n {name} link set {interface} {how}")).map(drop)
    }

    /// Drops all frames of UDP that come in at a host over one link, or no more of them.
    pub(crate) fn deafen(&self, host: Host, link: usize, deaf: bool) -> Result<(), Error> {
        let interface = interface(link);
        let rule = if deaf {
            format!("add rule netdev deaf-{interface} in meta l4proto udp drop\n")
        } else {
            String::new()
        };
        let script = format!(
            "add table netdev deaf-{interface}\nflush table netdev deaf-{interface}\n\
             add chain netdev deaf-{interface} in {{ type filter hook ingress device \"{interface}\" priority 0; }}\n{rule}"
        );
        must(self.at(host, "nft").arg(&script)).map(drop)
    }

    pub(crate) fn name(&self, host: Host) -> &str {
        &self.names[host as usize]
    }

    /// Returns the command of a program at a host, without any of our settings from outside.
    pub(crate) fn at(&self, host: Host, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name(host)]).arg(program);
        let settings = std::env::vars_os().map(|(name, _)| name);
        for name in settings.filter(|name| name.to_string_lossy().starts_with("DOORBELL_")) {
            command.env_remove(name);
        }
        command
    }

    /// Waits until a link is up at both ends.
    pub(crate) fn wait_until_whole(&self, link: usize) -> Result<(), Error> {
        self.wait_until_both_up(&interface(link))
    }

    fn wait_until_both_up(&self, interface: &str) -> Result<(), Error> {
        let up = |host| self.wait_until_up(host, interface);
        Host::BOTH.into_iter().try_for_each(up)
    }

    fn wait_until_up(&self, host: Host, interface: &str) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            let line = ip(&format!("-n {} -o link show {interface} up", self.name(host)))?;
            if line.contains("state UP") {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let name = self.name(host);
                let text = format!("{interface} of {name} did not come up within {PATIENCE:?}: {line}");
                return Err(Error::Lab(text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Drops `permille` of a thousand buffers that come in at either host, whatever they hold; 0 ends it.
    /// Starts the counts at zero again.
    pub(crate) fn lose(&self, permille: u32) -> Result<(), Error> {
        // UDP is counted separately: the control connections of all programs are TCP.
        let rule = format!("numgen random mod 1000 < {permille} counter drop");
        let script = format!(
            "add table netdev loss\nflush table netdev loss\n\
             add chain netdev loss in {{ type filter hook ingress device \"{INTERFACE}\" priority 0; }}\n\
             add rule netdev loss in meta l4proto udp {rule}\n\
             add rule netdev loss in meta l4proto != udp {rule}\n"
        );
        Host::BOTH
            .into_iter()
            .try_for_each(|host| must(self.at(host, "nft").arg(&script)).map(drop))
    }

    /// Returns what of UDP was dropped at a host since the losses were set.
    pub(crate) fn dropped(&self, host: Host) -> Result<Dropped, Error> {
        let list = ["list", "table", "netdev", "loss"];
        must(self.at(host, "nft").args(list)).map(|text| first_counter(&text))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| remove(name));
    }
}

/// Returns the interface of a link, the same at both hosts.
pub(crate) fn interface(link: usize) -> String {
    format!("v{link}")
}

/// Returns the first `counter packets N bytes M` of a table: the rule for UDP is the first.
fn first_counter(table: &str) -> Dropped {
    let mut words = table.split_whitespace().skip_while(|&word| word != "packets");
    let mut number = || words.nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Dropped {
        buffers: number(),
        bytes: number(),
    }
}

/// Returns the process that made a namespace, by its name.
fn maker(name: &str) -> Option<u32> {
    let (process, host) = name.strip_prefix(NAMES)?.split_once('-')?;
    ["a", "b"].contains(&host).then(|| process.parse().ok())?
}

/// Removes what a killed run left behind.
fn sweep() {
    let listed = ip("netns list").unwrap_or_default();
    for line in listed.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        let left = |process| !Path::new(&format!("/proc/{process}")).exists();
        if maker(name).is_some_and(left) {
            remove(name);
        }
    }
}

/// Ends what runs in a namespace, and removes it. Failures here are ignored: there is nowhere to report them.
fn remove(name: &str) {
    let inside = ip(&format!("netns pids {name}")).unwrap_or_default();
    for process in inside.lines().filter_map(|line| line.trim().parse().ok()) {
        if let Some(process) = Pid::from_raw(process) {
            let _ = kill_process(process, Signal::KILL);
        }
    }
    let _ = ip(&format!("netns del {name}"));
}

fn ip(arguments: &str) -> Result<String, Error> {
    must(Command::new("ip").args(arguments.split(' ')))
}

/// Runs a program that has to succeed, and returns its output.
fn must(command: &mut Command) -> Result<String, Error> {
    // Ctrl-C is for us: what we do then needs these programs.
    std::os::unix::process::CommandExt::process_group(command, 0);
    let line = command_line(command);
    match command.output() {
        Ok(Output { status, stdout, .. }) if status.success() => {
            Ok(String::from_utf8_lossy(&stdout).into_owned())
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Error::Lab(format!("{line}: {}", said.trim())))
        }
        Err(source) => Err(Error::Start {
            program: line,
            source,
        }),
    }
}

/// Returns a command as a person would type it.
pub(crate) fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_name_their_makers() {
        assert_eq!(maker("doorbell-links-71-a"), Some(71));
        for other in [
            "doorbell-links-71-c",
            "doorbell-links-x-a",
            "doorbell-71-0-a",
            "a",
            "",
        ] {
            assert_eq!(maker(other), None, "{other}");
        }
    }

    #[test]
    fn the_counter_of_udp_is_read() {
        let table = "table netdev loss {\n\tchain in {\n\t\ttype filter hook ingress device \"v0\" priority filter;\n\
                     \t\tmeta l4proto 17 numgen random mod 1000 < 10 counter packets 12 bytes 3456 drop\n\
                     \t\tmeta l4proto != 17 numgen random mod 1000 < 10 counter packets 7 bytes 8 drop\n\t}\n}\n";
        let expected = Dropped {
            buffers: 12,
            bytes: 3456,
        };
        assert_eq!(first_counter(table), expected);
        assert_eq!(first_counter(""), Dropped::default());
    }
}
