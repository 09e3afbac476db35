//! Two hosts for a test: network namespaces with a pair of virtual Ethernet interfaces between them, and
//! trouble on it.
//!
//! ```text
//!   Lab::pair      a: v0 10.77.0.1, fd77::1 ───────────────────────────── b: v0 10.77.0.2, fd77::2
//!   Lab::switched  a: v0 10.77.0.1 ── r0 ─ switch ─ r1 ── b: v0 10.77.0.2   its loss is beyond the kernels
//!   Lab::routed    a: v0 10.77.1.1, fd77:1::1 ── router ── narrow ────── b: v0 10.77.2.1, fd77:2::1
//!   Lab::four      a, b, c, d: v0 10.77.0.1 to .4, all on one switch
//!   Lab::multihomed  a: v0 10.77.0.1, v1 10.77.1.1 ── router ── b: v0 10.77.0.2, v1 10.77.1.2
//!   Lab::chain     a: v0 10.77.1.1 ── 10.77.1.2 v1 b v0 fd77:2::1 ── fd77:2::2 v1 c v0 10.77.3.1
//!                  c: v0 10.77.3.1 ── 10.77.3.2 v1 d
//! ```
//!
//! The namespaces are named with this process's id and go with the [`Lab`], also when a test panics.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::skip::{lacking as program_lacking, skipped};

/// Namespaces and what connects them.
#[derive(Debug)]
pub struct Lab {
    /// The two hosts, then the router or the switch.
    names: Vec<String>,
    routed: bool,
}

/// The interface of each host.
pub const INTERFACE: &str = "v0";

/// Returns why there can be no namespaces; found out once, because tests of one process run at the same time.
fn lacking() -> Option<&'static str> {
    static LACKING: OnceLock<Option<String>> = OnceLock::new();
    LACKING.get_or_init(look_for_lacks).as_deref()
}

fn look_for_lacks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".to_owned());
    }
    for (program, package) in [("ip", "iproute2"), ("nft", "nftables")] {
        if let Some(reason) = program_lacking(program, package) {
            return Some(reason);
        }
    }
    let name = format!("doorbell-{}-try", std::process::id());
    if let Err(error) = ip(&format!("netns add {name}")) {
        return Some(format!("no network namespaces here: {error}"));
    }
    let _ = ip(&format!("netns del {name}"));
    None
}

fn said(output: std::io::Result<Output>) -> Result<String, String> {
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn ip(arguments: &str) -> Result<String, String> {
    said(Command::new("ip").args(arguments.split(' ')).output())
}

impl Lab {
    /// Creates two hosts on one link with this MTU; `None` after reporting a skip if that is not possible.
    pub fn pair(test: &str, mtu: usize) -> Option<Self> {
        let lab = Self::hosts(test, 2, false)?;
        let [a, b] = [lab.name(0), lab.name(1)];
        lab.must(&format!(
            "link add v0 netns {a} mtu {mtu} type veth peer name v0 netns {b} mtu {mtu}"
        ));
        lab.on_one_link();
        Some(lab)
    }

    /// Creates two hosts connected by a switch that drops `permille` of 1,000 of the frames received on each
    /// of its ports. A rule at a host itself would drop too late: an XDP program there has taken the frame
    /// before.
    pub fn switched(test: &str, mtu: usize, permille: u32) -> Option<Self> {
        let lab = Self::hosts(test, 3, false)?;
        let switch = lab.name(2);
        lab.must(&format!("-n {switch} link add bridge type bridge"));
        let mut script = "add table netdev trouble\n".to_owned();
        for side in [0, 1] {
            let host = lab.name(side);
            lab.must(&format!(
                "link add v0 netns {host} mtu {mtu} type veth peer name r{side} netns {switch} mtu {mtu}"
            ));
            lab.must(&format!("-n {switch} link set r{side} master bridge up"));
            script.push_str(&format!(
                "add chain netdev trouble r{side} {{ type filter hook ingress device \"r{side}\" priority 0; }}\n\
                 add rule netdev trouble r{side} numgen random mod 1000 < {permille} counter drop\n"
            ));
        }
        lab.must(&format!("-n {switch} link set bridge up"));
        lab.on_one_link();
        lab.nft(2, &script);
        Some(lab)
    }

    /// Four hosts on one switch.
    pub fn four(test: &str, mtu: usize) -> Option<Self> {
        let lab = Self::hosts(test, 5, false)?;
        let switch = lab.name(4);
        lab.must(&format!("-n {switch} link add bridge type bridge"));
        lab.must(&format!("-n {switch} link set bridge up"));
        for host in 0..4 {
            let name = lab.name(host);
            lab.must(&format!(
                "link add v0 netns {name} mtu {mtu} type veth peer name r{host} netns {switch} mtu {mtu}"
            ));
            lab.must(&format!("-n {switch} link set r{host} master bridge up"));
            lab.address(host, INTERFACE, &[format!("10.77.0.{}/24", host + 1)]);
        }
        (0..4).for_each(|host| lab.wait_until_up(host, INTERFACE));
        Some(lab)
    }

    /// Two hosts with two interfaces each, in a network each; a router connects the networks, and each host
    /// routes by the source address, so that every interface reaches every one of the other host.
    pub fn multihomed(test: &str, mtu: usize) -> Option<Self> {
        let lab = Self::hosts(test, 3, false)?;
        let router = lab.name(2);
        for net in 0..2 {
            lab.must(&format!("-n {router} link add s{net} type bridge"));
            lab.address(2, &format!("s{net}"), &[format!("10.77.{net}.254/24")]);
        }
        for (host, net) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (name, address) = (lab.name(host), format!("10.77.{net}.{}", host + 1));
            let port = format!("p{host}{net}");
            lab.must(&format!(
                "link add v{net} netns {name} mtu {mtu} type veth peer name {port} netns {router} mtu {mtu}"
            ));
            lab.must(&format!("-n {router} link set {port} master s{net} up"));
            lab.address(host, &format!("v{net}"), &[format!("{address}/24")]);
            let table = 100 + net;
            lab.must(&format!("-n {name} rule add from {address} table {table}"));
            lab.must(&format!(
                "-n {name} route add 10.77.{net}.0/24 dev v{net} table {table}"
            ));
            lab.must(&format!(
                "-n {name} route add default via 10.77.{net}.254 table {table}"
            ));
        }
        lab.inside(2, || {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a router forwards");
        });
        for (host, net) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            lab.wait_until_up(host, &format!("v{net}"));
        }
        Some(lab)
    }

    /// Creates four hosts, each linked to the next: an IPv4 network, an IPv6-only link, and another IPv4
    /// network. No host routes between them.
    pub fn chain(test: &str, mtu: usize) -> Option<Self> {
        let lab = Self::hosts(test, 4, false)?;
        let addresses = [
            ["10.77.1.1/24", "10.77.1.2/24"],
            ["fd77:2::1/64", "fd77:2::2/64"],
            ["10.77.3.1/24", "10.77.3.2/24"],
        ];
        for (host, [here, there]) in addresses.into_iter().enumerate() {
            let (one, next) = (lab.name(host), lab.name(host + 1));
            lab.must(&format!(
                "link add v0 netns {one} mtu {mtu} type veth peer name v1 netns {next} mtu {mtu}"
            ));
            lab.address(host, "v0", &[here.to_owned()]);
            lab.address(host + 1, "v1", &[there.to_owned()]);
        }
        for host in 0..3 {
            lab.wait_until_up(host, "v0");
            lab.wait_until_up(host + 1, "v1");
        }
        Some(lab)
    }

    /// Gives both hosts their addresses on one link.
    fn on_one_link(&self) {
        for side in [0, 1] {
            let addresses = [
                format!("10.77.0.{}/24", side + 1),
                format!("fd77::{}/64", side + 1),
            ];
            self.address(side, INTERFACE, &addresses);
        }
        (0..2).for_each(|side| self.wait_until_up(side, INTERFACE));
    }

    /// Two hosts with a router between them that takes packets of `narrow` bytes at most to the second.
    pub fn routed(test: &str, mtu: usize, narrow: usize) -> Option<Self> {
        let lab = Self::hosts(test, 3, true)?;
        for side in [0, 1] {
            let (host, router) = (lab.name(side), lab.name(2));
            let (net, mtu) = (side + 1, if side == 0 { mtu } else { narrow });
            // Only the router knows the MTU of the narrow link.
            lab.must(&format!(
                "link add v0 netns {host} mtu {mtu} type veth peer name r{side} netns {router} mtu {mtu}"
            ));
            lab.address(
                side,
                INTERFACE,
                &[format!("10.77.{net}.1/24"), format!("fd77:{net}::1/64")],
            );
            lab.address(
                2,
                &format!("r{side}"),
                &[format!("10.77.{net}.254/24"), format!("fd77:{net}::fe/64")],
            );
            lab.must(&format!("-n {host} route add default via 10.77.{net}.254"));
            lab.must(&format!("-n {host} -6 route add default via fd77:{net}::fe"));
        }
        lab.inside(2, || {
            for (file, value) in [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")] {
                std::fs::write(format!("/proc/sys/net/{file}"), value).expect("a router forwards");
            }
        });
        (0..2).for_each(|side| lab.wait_until_up(side, INTERFACE));
        (0..2).for_each(|side| lab.wait_until_up(2, &format!("r{side}")));
        Some(lab)
    }

    fn hosts(test: &str, count: usize, routed: bool) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if let Some(reason) = lacking() {
            skipped(test, reason);
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |host| format!("doorbell-{}-{number}-{host}", std::process::id());
        let mut lab = Self {
            names: Vec::new(),
            routed,
        };
        let hosts = if count > 3 {
            ["a", "b", "c", "d", "r"]
        } else {
            ["a", "b", "r", "", ""]
        };
        for host in hosts.into_iter().take(count) {
            lab.must(&format!("netns add {}", name(host)));
            lab.names.push(name(host));
            lab.must(&format!("-n {} link set lo up", name(host)));
        }
        Some(lab)
    }

    fn must(&self, arguments: &str) {
        if let Err(error) = ip(arguments) {
            panic!("ip {arguments}: {error}");
        }
    }

    fn address(&self, host: usize, interface: &str, addresses: &[String]) {
        let name = self.name(host);
        for address in addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            self.must(&format!("-n {name} address add {address} dev {interface}{nodad}"));
        }
        self.must(&format!("-n {name} link set {interface} up"));
    }

    /// The kernel takes up to a second to report a link.
    pub fn wait_until_up(&self, host: usize, interface: &str) {
        let start = Instant::now();
        let arguments = format!("-n {} -o link show {interface} up", self.name(host));
        while !ip(&arguments).is_ok_and(|line| line.contains("state UP")) {
            assert!(
                start.elapsed().as_secs() < 60,
                "never happened: {interface} is up"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The namespace of a host, as `ip netns` names it.
    pub fn name(&self, host: usize) -> &str {
        &self.names[host]
    }

    /// The IPv4 address of a host.
    pub fn ipv4(&self, side: u8) -> IpAddr {
        if self.routed {
            [10, 77, side + 1, 1].into()
        } else {
            [10, 77, 0, side + 1].into()
        }
    }

    /// Runs `work` in a thread of its own inside a host.
    ///
    /// # Panics
    /// When `work` does.
    pub fn inside<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> T {
        let here = thread::scope(|scope| scope.spawn(|| self.enter(host).then(work)).join());
        match here {
            Ok(result) => result.expect("the namespace is there"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Moves the calling thread into a host, for good; returns whether that was possible.
    pub fn enter(&self, host: usize) -> bool {
        let file = File::open(format!("/var/run/netns/{}", self.name(host)));
        file.is_ok_and(|file| {
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))
                .is_ok()
        })
    }

    /// `ip` inside a host: `lab.ip(1, "link set v0 down")`.
    pub fn ip(&self, host: usize, arguments: &str) {
        self.must(&format!("-n {} {arguments}", self.name(host)));
    }

    /// Runs a command that may fail, and returns whether it succeeded.
    pub fn can(&self, host: usize, arguments: &str) -> bool {
        ip(&format!("-n {} {arguments}", self.name(host))).is_ok()
    }

    /// Many commands of `ip` inside a host, in one process.
    pub fn ip_batch(&self, host: usize, commands: impl IntoIterator<Item = String>) {
        let script: Vec<String> = commands.into_iter().collect();
        let begun = Command::new("ip")
            .args(["-n", self.name(host), "-batch", "-"])
            .stdin(std::process::Stdio::piped())
            .spawn();
        let mut ip = begun.expect("`ip` starts");
        let mut input = ip.stdin.take().expect("it is piped");
        let written = input.write_all((script.join("\n") + "\n").as_bytes());
        drop(input);
        let ended = ip.wait().expect("`ip` ends");
        assert!(written.is_ok() && ended.success(), "{written:?}, {ended}");
    }

    /// Drops `permille` of 1,000 of the packets received at both hosts, at random: each is a kernel buffer,
    /// which may be a run of many frames. Replaces the previous rule; 0 removes it.
    pub fn lose(&self, permille: u32) {
        (0..2).for_each(|host| self.drop_at(host, &format!("numgen random mod 1000 < {permille}")));
    }

    /// Silently drops IP packets of more than `length` bytes received at `host`: a path with an MTU black
    /// hole. Disables merged runs of frames.
    pub fn drop_longer(&self, host: usize, length: usize) {
        for host in 0..2 {
            // Without ethtool runs of short frames are dropped too, which is worse trouble of the same kind.
            let off = "-K v0 tx-udp-segmentation off gso off gro off";
            let command = ["netns", "exec", self.name(host), "ethtool"];
            let _ = Command::new("ip").args(command).args(off.split(' ')).output();
        }
        // The rule's length includes the Ethernet header.
        self.drop_at(host, &format!("meta length > {length}"));
    }

    /// Drops every UDP-over-IPv4 frame received at `host`, and nothing else, until [`Lab::lose`] ends it.
    pub fn drop_udp(&self, host: usize) {
        self.drop_at(host, "ip protocol udp");
    }

    fn drop_at(&self, host: usize, what: &str) {
        let script = format!(
            "add table netdev trouble\nflush table netdev trouble\n\
             add chain netdev trouble in {{ type filter hook ingress device \"{INTERFACE}\" priority 0; }}\n\
             add rule netdev trouble in {what} counter drop\n"
        );
        self.nft(host, &script);
    }

    /// `nft` inside a host.
    pub fn nft(&self, host: usize, script: &str) {
        let command = ["netns", "exec", self.name(host), "nft", script];
        if let Err(error) = said(Command::new("ip").args(command).output()) {
            panic!("nft {script}: {error}");
        }
    }

    /// Returns how many buffers the trouble at `host` has dropped.
    pub fn dropped(&self, host: usize) -> u64 {
        let command = [
            "netns",
            "exec",
            self.name(host),
            "nft",
            "list",
            "table",
            "netdev",
            "trouble",
        ];
        let text = said(Command::new("ip").args(command).output()).unwrap_or_default();
        let mut words = text.split_whitespace().skip_while(|&word| word != "packets");
        words.nth(1).and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.names {
            // A panic here during another would end the process; what is left has a dead process's id in its
            // name.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
