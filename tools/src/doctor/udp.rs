//! The chain of `udp:INTERFACE`: the interface, the kernel's buffers and offloads, ports, frames between two
//! real rails, the packet filter, and the way to a peer where one is named.

use std::net::{IpAddr, SocketAddr};

use doorbell::Config;
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::{Interface, InterfaceQuery, NextHop, NoRoute, headers, interface_state};
use doorbell_udp::{UdpConfig, UdpRail};
use rustix::io::Errno;

use super::chain::{Chain, Ended, Fix, Link, Walk};
use super::echo::{Answer, Echo};
use super::firewall::{self, Fate, Frames};
use super::frames;
use super::interface;
use super::limits::few_files;
use super::subnet;
use super::system::{System, bytes};

/// Descriptors of a process with two rails and little else.
const LEAST_FILES: u64 = 32;

/// The chain of a rail over the kernel's sockets, towards `peer` where one is named.
pub(super) fn chain(system: &System, config: &Config, name: &RailName, peer: Option<IpAddr>) -> Chain {
    let config = doorbell::drivers::udp_config(config);
    Walk::along(name.as_str(), |walk| {
        let found = interface::steps(walk, system, name, &config.interface_query())?.interface;
        let mut opened = || open(walk, system, name, &config);
        let (mut one, mut other) = (opened()?, opened()?);
        walk.ok(
            "ports",
            format!(
                "two rails have their pairs of ports: {} and {}",
                port(&one),
                port(&other)
            ),
        );
        buffers(walk, &one);
        walk.ok("offloads", one.granted().offloads());
        // First what has the reason why frames may not pass.
        filter(walk, system, &found, &config)?;
        let inside = Frames {
            // Packets of a host to itself go over its loopback, whatever their address.
            interface: "lo",
            is_ipv4: found.address.is_ipv4(),
            ports: ports(system, &config),
            longest: found.limit(&config.interface_query()),
        };
        frames_pass(walk, system, &inside, &mut one, &mut other)?;
        subnet::step(walk, system, &found, peer, true)?;
        match peer {
            Some(peer) => {
                way(walk, &found, peer, &config.interface_query())?;
                messages(walk, name, &found, peer);
                Ok(())
            }
            None => {
                walk.not_applicable("peer", "none is named: `--peer ADDRESS` checks the path to one");
                Ok(())
            }
        }
    })
}

fn port(rail: &UdpRail) -> String {
    use doorbell_fabric::rail::Rail as _;
    let address = rail.address().inet_of("udp");
    address.map_or_else(String::new, |address| address.port().to_string())
}

fn open(walk: &mut Walk, system: &System, name: &RailName, config: &UdpConfig) -> Result<UdpRail, Ended> {
    UdpRail::open(name, config).map_err(|error| match &error {
        RailError::System { source, .. } if has_no_files(source) => few_files(
            walk,
            system,
            LEAST_FILES,
            "too few of them are free for the sockets of a rail",
        ),
        _ => refused(walk, &error),
    })
}

/// Whether this process has as many descriptors as it may.
fn has_no_files(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::MFILE.raw_os_error())
}

/// A rail that its driver does not open.
pub(super) fn refused(walk: &mut Walk, error: &RailError) -> Ended {
    match error {
        RailError::Unusable { reason, remedy, .. } | RailError::Taken { reason, remedy, .. } => {
            let is_port = reason.contains("port");
            let mut fixes = vec![Fix::hand(remedy)];
            if is_port {
                fixes.insert(
                    0,
                    Fix::run(
                        "export DOORBELL_UDP_PORT=0",
                        "let the kernel choose the ports, at this end",
                    ),
                );
            }
            let step = if is_port { "ports" } else { "open" };
            walk.broken(
                step,
                reason,
                "what the rail needs is taken, or not permitted",
                fixes,
            )
        }
        error => walk.broken(
            "open",
            error.to_string(),
            error.help().cause,
            vec![Fix::hand(error.help().next)],
        ),
    }
}

/// Checks what the kernel keeps for a rail that does not look.
fn buffers(walk: &mut Walk, rail: &UdpRail) {
    let granted = rail.granted();
    let capped: Vec<&String> = granted
        .notes
        .iter()
        .filter(|note| note.contains("caps"))
        .collect();
    // The kernel counts double.
    let saw = format!(
        "{} to receive and {} to send",
        bytes(granted.receive_buffer as u64 / 2),
        bytes(granted.send_buffer as u64 / 2)
    );
    if capped.is_empty() {
        return walk.ok("buffers", saw);
    }
    walk.note(
        "buffers",
        format!("{saw}: less than requested, and bursts are lost sooner"),
        vec![Fix::run(
            "sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304",
            "let sockets have 4 MiB (CAP_NET_ADMIN does, too)",
        )],
    );
}

fn frames_pass(
    walk: &mut Walk,
    system: &System,
    inside: &Frames<'_>,
    one: &mut UdpRail,
    other: &mut UdpRail,
) -> Link {
    let life = other.incarnation();
    let came = match frames::exchange(one, other, life) {
        Ok(came) => came,
        Err(error) => return Err(refused(walk, &error)),
    };
    let saw = format!(
        "of {} frames each, {} of 64 bytes and {} of {} bytes came from one rail to another of this interface",
        came.sent, came.short, came.full, came.length
    );
    // A queue that is full loses some; a rule loses all of a kind.
    match (came.short * 2 > came.sent, came.full * 2 > came.sent) {
        (true, true) => {
            walk.proved("frames", saw);
            Ok(())
        }
        (short, _) => {
            let (what, which) = match short {
                true => ("long packets are dropped within this host", "long"),
                false => ("packets from this host to itself are dropped", "all"),
            };
            let is_up = interface_state("lo").is_ok_and(|(_, seen)| seen.flags & interface::UP != 0);
            let (cause, fix) = match firewall::judge(system, inside) {
                _ if !is_up => (
                    format!("{what}: the loopback is down"),
                    Fix::run(
                        "ip link set lo up",
                        "what a host sends to itself goes over its loopback",
                    ),
                ),
                Fate::Drops { rule, fix, .. } => (
                    format!("{what}: by {rule}"),
                    Fix::run(fix, "let the rail's packets pass before that rule"),
                ),
                Fate::MayDrop { rule, fix, .. } => (
                    format!("{what}: by {rule}, as far as it can be seen"),
                    Fix::run(fix, "let the rail's packets pass before that rule"),
                ),
                Fate::Passes(_) => (
                    format!(
                        "{what}: by what is no rule of nft, such as an MTU of the loopback or a queueing \
                         discipline"
                    ),
                    Fix::hand("look at `ip link show lo` and `tc qdisc show`"),
                ),
                Fate::Unknown { why, how } => (
                    format!("{what}: by a rule of the packet filter, perhaps ({why})"),
                    Fix::hand(format!("look for a rule that drops {which} packets, {how}")),
                ),
            };
            Err(walk.broken("frames", saw, cause, vec![fix]))
        }
    }
}

/// Checks what the packet filter does to frames from and to others.
fn filter(walk: &mut Walk, system: &System, found: &Interface, config: &UdpConfig) -> Link {
    let frames = Frames {
        interface: &found.name,
        is_ipv4: found.address.is_ipv4(),
        ports: ports(system, config),
        longest: found.limit(&config.interface_query()),
    };
    match firewall::judge(system, &frames) {
        Fate::Passes(saw) => walk.ok("firewall", saw),
        Fate::Drops { rule, way, fix } => {
            return Err(walk.broken(
                "firewall",
                format!("{rule} drops {}", way.what()),
                "the packet filter lets pass only what its rules list",
                vec![Fix::run(
                    fix,
                    "let the rail's ports pass (and at the peer; setting udp.port makes the range small)",
                )],
            ));
        }
        Fate::MayDrop { rule, way, .. } => walk.unknown(
            "firewall",
            format!(
                "{rule} may drop {}, depending on what is not looked at here",
                way.what()
            ),
            vec![Fix::hand(format!(
                "read it: `{} -a list ruleset`; `doorbell why PEER --probe` tries it",
                firewall::program()
            ))],
        ),
        Fate::Unknown { why, how } => walk.unknown("firewall", why, vec![Fix::hand(how)]),
    }
    Ok(())
}

/// The ports that rails may have.
fn ports(system: &System, config: &UdpConfig) -> (u16, u16) {
    if config.port > 0 {
        let last = u32::from(config.port) + 2 * u32::from(config.pairs) - 1;
        return (config.port, u16::try_from(last).unwrap_or(u16::MAX));
    }
    let told = system
        .text("/proc/sys/net/ipv4/ip_local_port_range")
        .unwrap_or_default();
    let mut ports = told.split_whitespace().filter_map(|word| word.parse().ok());
    (ports.next().unwrap_or(32_768), ports.next().unwrap_or(60_999))
}

/// The way to a peer: family, route, answers, and the longest packet.
pub(super) fn way(walk: &mut Walk, found: &Interface, peer: IpAddr, query: &InterfaceQuery) -> Link {
    route(walk, found, peer)?;
    let mut echo = match Echo::new(found, peer) {
        Ok(echo) => echo,
        Err(error) => {
            walk.unknown(
                "path",
                format!("no echo can be sent to {peer}: {error}"),
                vec![Fix::run(
                    "sysctl -w net.ipv4.ping_group_range='0 2147483647'",
                    "let users send echoes",
                )],
            );
            return Ok(());
        }
    };
    // The longest packet that a rail sends; IP has no longer ones.
    let full = (found.limit(query) + headers(found.address)).min(65_535);
    match echo.ask(64) {
        Answer::Came => {}
        Answer::Refused => {
            return Err(walk.broken(
                "path",
                format!("this host's kernel refuses to send an echo to {peer}"),
                "a rule of this host's packet filter drops what goes out: of the hooks output, postrouting \
                 or egress",
                vec![Fix::hand(format!(
                    "look for it, as root: `{} -a list ruleset`, `iptables-save`",
                    firewall::program()
                ))],
            ));
        }
        Answer::NoWay(why) => {
            return Err(walk.broken(
                "path",
                format!("{peer}: {why}"),
                "the peer's host is off, has another address, or is on another link",
                vec![Fix::hand(format!(
                    "look whether it is there: `ip neighbour show {peer}` here, `ip -br address` at the peer"
                ))],
            ));
        }
        Answer::Silence | Answer::TooLong => return silent(walk, peer, found),
    }
    match echo.ask(full) {
        Answer::Came => {
            walk.ok(
                "path",
                format!("{peer} answers packets of 64 and of {full} bytes that may not be cut up"),
            );
            Ok(())
        }
        Answer::Refused => {
            walk.unknown(
                "path",
                format!("{peer} answers short packets, and this host's kernel sends no long ones"),
                vec![Fix::hand(
                    "look for a rule of the hook output that drops long packets",
                )],
            );
            Ok(())
        }
        Answer::NoWay(why) => {
            walk.unknown(
                "path",
                format!("{peer} answers short packets, and long ones end in: {why}"),
                Vec::new(),
            );
            Ok(())
        }
        Answer::Silence | Answer::TooLong => {
            let longest = echo.longest(64, full);
            let mtu = as_set(longest);
            Err(walk.broken(
                "path",
                format!("{peer} answers packets of up to {longest} bytes, and this end sends up to {full}"),
                "the two ends, or what is between them, have different MTUs: short messages pass, long ones hang",
                vec![
                    Fix::run(
                        format!("ip link set {} mtu {mtu}", found.name),
                        "for all that this host sends there (better: raise the MTU of the narrow link)",
                    ),
                    Fix::run(
                        format!("export DOORBELL_UDP_MTU={mtu}"),
                        "for doorbell alone: let its packets be as short, where the job is started",
                    ),
                ],
            ))
        }
    }
}

/// The MTU behind the longest packet that passed: devices take a tag of four bytes more, which is no room to
/// be used.
fn as_set(longest: usize) -> usize {
    let usual = [1_500, 9_000];
    usual
        .into_iter()
        .find(|mtu| (*mtu..=mtu + 4).contains(&longest))
        .unwrap_or(longest)
}

/// Whether messages reach the peer, which echoes do not show: a firewall may treat them otherwise.
pub(super) fn messages(walk: &mut Walk, name: &RailName, found: &Interface, peer: IpAddr) {
    if matches!(found.next_hop(SocketAddr::new(peer, 0)), Ok(NextHop::Local)) {
        return walk.ok(
            "messages",
            format!("{peer} is this host, within which frames have passed"),
        );
    }
    walk.untried(
        "messages",
        format!("whether frames reach {peer} and come back was not tried: that takes a process there"),
        vec![Fix::hand(format!(
            "try it: `doorbell pingpong --serve --rail {}:INTERFACE` there, `doorbell why {peer} --probe \
             --rail {name}` here",
            name.kind()
        ))],
    );
}

fn silent(walk: &mut Walk, peer: IpAddr, found: &Interface) -> Link {
    let neighbour = neighbour(peer, &found.name);
    match (found.next_hop(SocketAddr::new(peer, 0)), neighbour) {
        (Ok(NextHop::OnLink), Some(false)) => Err(walk.broken(
            "path",
            format!("no host on the link of {} answers for {peer}", found.name),
            "the peer's host is off, has another address, or is on another link (VLAN, cable)",
            vec![Fix::hand(
                "look at the peer's addresses (`ip -br address`), and at the switch",
            )],
        )),
        _ => {
            walk.unknown(
                "path",
                format!("{peer} answers no echo: it is off, or a firewall drops echoes, which may still pass messages"),
                vec![Fix::hand(
                    "try messages: `doorbell pingpong --serve` there, `doorbell why PEER --probe` here",
                )],
            );
            Ok(())
        }
    }
}

/// Whether the link's neighbour with this address has answered, as the kernel's table has it; `None`: it is
/// not in there.
fn neighbour(peer: IpAddr, device: &str) -> Option<bool> {
    // IPv6 has no such file.
    let table = std::fs::read_to_string("/proc/net/arp").ok()?;
    let line = table.lines().skip(1).find(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.first().and_then(|word| word.parse().ok()) == Some(peer) && words.last() == Some(&device)
    })?;
    // Its flags: bit 1 is set where the address is known.
    let flags = line.split_whitespace().nth(2)?.strip_prefix("0x")?;
    Some(u32::from_str_radix(flags, 16).ok()? & 2 != 0)
}

pub(super) fn route(walk: &mut Walk, found: &Interface, peer: IpAddr) -> Link {
    if peer.is_ipv4() != found.address.is_ipv4() {
        let other = if peer.is_ipv4() { "ipv4" } else { "ipv6" };
        return Err(walk.broken(
            "route",
            format!("{peer} and {} are of two families of IP addresses", found.address),
            "the rail takes an IPv4 address unless udp.family names the other family",
            vec![Fix::run(
                format!("export DOORBELL_UDP_FAMILY={other}"),
                "use the other family, at both ends",
            )],
        ));
    }
    match found.next_hop(SocketAddr::new(peer, 0)) {
        Ok(way) => {
            walk.ok("route", format!("{peer} is reached {way}"));
            Ok(())
        }
        Err(NoRoute::Because(why)) => {
            let bits = if peer.is_ipv4() { 32 } else { 128 };
            Err(walk.broken(
                "route",
                format!("{peer}: {why}"),
                "the routing table leads elsewhere, or nowhere",
                vec![
                    Fix::run(
                        format!("ip route add {peer}/{bits} dev {}", found.name),
                        "where the peer is on this interface's link",
                    ),
                    Fix::hand(format!(
                        "where it is behind a router: `ip route add {peer}/{bits} via ROUTER dev {}`",
                        found.name
                    )),
                ],
            ))
        }
        Err(NoRoute::System(error)) => {
            walk.unknown(
                "route",
                format!("the routing table could not be queried: {error}"),
                Vec::new(),
            );
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::{Is, Verdict};
    use super::super::system::fake::Fake;
    use super::*;

    #[test]
    fn the_loopback_is_usable_and_its_own_peer() {
        let here = System::here();
        let peer = Some(IpAddr::from([127, 0, 0, 1]));
        // On a busy machine the loopback may lose some of the frames, but not every time.
        let all_arrive = (0..10).any(|_| {
            let chain = chain(&here, &Config::default(), &"udp:lo".parse().unwrap(), peer);
            assert_eq!(chain.verdict, Verdict::Usable, "{chain:#?}");
            let frames = chain.steps.iter().find(|step| step.step == "frames").unwrap();
            frames.saw.contains("32 of 64 bytes")
        });
        assert!(all_arrive, "frames are lost in each of ten tries");
    }

    #[test]
    fn ports_are_those_of_the_settings_or_the_kernels() {
        let fake = Fake::new();
        fake.file("/proc/sys/net/ipv4/ip_local_port_range", "40000\t50000\n");
        assert_eq!(ports(&fake.system(), &UdpConfig::default()), (40_000, 50_000));
        let set = UdpConfig {
            port: 56080,
            pairs: 4,
            ..UdpConfig::default()
        };
        assert_eq!(ports(&fake.system(), &set), (56080, 56087));
    }

    #[test]
    fn a_peer_of_the_other_family_is_named_with_the_setting() {
        let here = System::here();
        let peer = Some("::1".parse().unwrap());
        let chain = chain(&here, &Config::default(), &"udp:lo".parse().unwrap(), peer);
        let last = chain.steps.last().unwrap();
        assert_eq!((last.step, last.is), ("route", Is::Broken));
        assert_eq!(
            last.fixes[0].command.as_deref(),
            Some("export DOORBELL_UDP_FAMILY=ipv6")
        );
    }
}
