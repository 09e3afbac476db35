//! The chain of `xdp:INTERFACE`: what opening such a rail checks, one by one, then the opening itself, where
//! it was named: it attaches a program to the interface for a moment, and some devices take their link down
//! for that.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::Config;
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram, FrameId, Transmit};
use doorbell_fabric::discover::{Driver, Verdict as Found};
use doorbell_fabric::error::RailError;
use doorbell_fabric::message::{Body, Incarnation};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Rail;
use doorbell_inet::{Attached, channels, has_zero_copy};
use doorbell_xdp::{XdpConfig, XdpDriver, XdpRail, holder_of_program, locked_bytes};

use super::chain::{Chain, Fix, Link, Walk};
use super::interface::{self, Found as At};
use super::memlock;
use super::subnet;
use super::system::System;
use super::udp;

/// Capabilities by their numbers (linux/capability.h). What CAP_BPF allows was CAP_SYS_ADMIN's before, and
/// still is.
const NEEDED: [(&str, u32); 3] = [("CAP_NET_RAW", 13), ("CAP_NET_ADMIN", 12), ("CAP_BPF", 39)];
const BPF: u32 = 39;
const SYS_ADMIN: u32 = 21;
/// Time for a neighbour to answer, and for a frame to leave.
const PATIENCE: Duration = Duration::from_secs(3);

/// The chain of a rail past the kernel's stack. `tried`: whether it may be opened.
pub(super) fn chain(
    system: &System,
    config: &Config,
    name: &RailName,
    peer: Option<IpAddr>,
    tried: bool,
) -> Chain {
    let config = doorbell::drivers::xdp_config(config);
    Walk::along(name.as_str(), |walk| {
        if name.object() == "lo" {
            return Err(walk.end_without(
                "interface",
                "the loopback has one queue, which serves one process: `shm`, or `udp:lo`, is for ranks of one host",
            ));
        }
        let at = interface::steps(walk, system, name, &config.interface_query())?;
        kernel(walk, system)?;
        capabilities(walk, system)?;
        program(walk, &at)?;
        queues(walk, &at);
        mode(walk, &at);
        locked(walk, system, name, &config)?;
        allowed(walk, name, &config)?;
        if !tried {
            walk.unknown(
                "open",
                "not tried: it attaches a program to the interface for a moment, so it is opened only when it is named",
                vec![Fix::hand(format!("`doorbell doctor {name}`"))],
            );
            return Ok(());
        }
        subnet::step(walk, system, &at.interface, peer, false)?;
        let mut rail = open(walk, name, &config)?;
        match peer {
            None => walk.not_applicable("peer", "none is named: `--peer ADDRESS` sends a frame to one"),
            Some(peer) => {
                udp::way(walk, &at.interface, peer, &config.interface_query())?;
                send(walk, &mut rail, peer)?;
                udp::messages(walk, name, &at.interface, peer);
            }
        }
        Ok(())
    })
}

/// AF_XDP is there, and links to programs (Linux 5.9).
fn kernel(walk: &mut Walk, system: &System) -> Link {
    let release = system.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|word| word.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version != (0, 0) && version < (5, 9) {
        return Err(walk.broken(
            "kernel",
            format!("Linux {release}"),
            "programs are attached by links, which Linux has from 5.9 on",
            vec![Fix::hand(
                "use Linux 5.9 or later, or name the udp rail of this interface",
            )],
        ));
    }
    match doorbell_xdp::has_sockets() {
        true => {
            walk.ok("kernel", format!("Linux {release} has AF_XDP"));
            Ok(())
        }
        false => Err(walk.broken(
            "kernel",
            format!("Linux {release} has no AF_XDP sockets"),
            "it was built without CONFIG_XDP_SOCKETS, or the container forbids them",
            vec![Fix::hand(
                "use a kernel with CONFIG_XDP_SOCKETS=y, or name the udp rail of this interface",
            )],
        )),
    }
}

fn capabilities(walk: &mut Walk, system: &System) -> Link {
    let has =
        |number| system.may(number) != Some(false) || number == BPF && system.may(SYS_ADMIN) == Some(true);
    let lacking: Vec<&str> = NEEDED
        .iter()
        .filter(|(_, number)| !has(*number))
        .map(|(name, _)| *name)
        .collect();
    if lacking.is_empty() {
        let foreign = system.is_in_user_namespace();
        if foreign {
            return Err(walk.broken(
                "rights",
                "all capabilities are there, in a user namespace of this container's own",
                "the kernel requires CAP_BPF in the first user namespace",
                vec![Fix::hand(
                    "start the container without a user namespace of its own, or name the udp rail",
                )],
            ));
        }
        walk.ok("rights", NEEDED.map(|(name, _)| name).join(", "));
        return Ok(());
    }
    let program =
        std::env::current_exe().map_or_else(|_| "doorbell".to_owned(), |path| path.display().to_string());
    let mut fixes = vec![
        Fix::run(
            format!("setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep '{program}'"),
            "as root, once for this program (and for the one that is the job)",
        ),
        Fix::hand("or run as root"),
    ];
    if let Some(runner) = system.container() {
        fixes = vec![Fix::hand(format!(
            "start the container ({runner}) with `--cap-add=NET_RAW --cap-add=NET_ADMIN --cap-add=BPF --cap-add=IPC_LOCK`"
        ))];
    }
    Err(walk.broken(
        "rights",
        format!("this process lacks {}", lacking.join(", ")),
        "an AF_XDP rail loads a program into the kernel and attaches it to the interface",
        fixes,
    ))
}

/// Whether another process has a program on the interface.
fn program(walk: &mut Walk, at: &At) -> Link {
    let device = &at.interface.name;
    let Some(program) = at.details.program else {
        walk.ok("program", format!("no XDP program is on {device}"));
        return Ok(());
    };
    let how = match program.how {
        Attached::Driver => "native",
        Attached::Generic => "generic",
        Attached::Device => "in the device",
        Attached::Several => "several",
    };
    let holder = holder_of_program(program.id);
    let fix = match holder
        .as_deref()
        .and_then(|text| text.strip_prefix("process ")?.split(' ').next())
    {
        Some(pid) => Fix::run(
            format!("kill {pid}"),
            "end the process that has it: the program goes with it",
        ),
        None => Fix::run(
            format!("ip link set dev {device} xdp off"),
            "remove it (xdpdrv or xdpgeneric instead of xdp, if it is attached in one of several modes)",
        ),
    };
    let by = holder.map_or("attached without a process that holds it".to_owned(), |holder| {
        format!("of {holder}")
    });
    Err(walk.broken(
        "program",
        format!("program {} ({how}) is on {device}, {by}", program.id),
        "an interface takes one program, and another one is attached: one rail fits an interface",
        vec![fix],
    ))
}

fn queues(walk: &mut Walk, at: &At) {
    let (device, details) = (&at.interface.name, &at.details);
    match channels(device) {
        Ok(now) if now.receive > 0 => {
            let noun = if now.receive == 1 { "queue" } else { "queues" };
            let saw = format!("{} {noun} to receive, {} to send", now.receive, now.send);
            if now.receive <= 64 {
                return walk.ok("queues", saw);
            }
            walk.note(
                "queues",
                format!("{saw}; a rail serves 64"),
                vec![Fix::run(
                    format!("ethtool -L {device} combined 64"),
                    "have no more than a rail serves",
                )],
            );
        }
        _ => walk.ok(
            "queues",
            format!(
                "{} to receive, {} to send, as it was made",
                details.queues, details.send_queues
            ),
        ),
    }
}

fn mode(walk: &mut Walk, at: &At) {
    match (has_zero_copy(at.interface.index), at.details.kind.as_str()) {
        (Ok(true), _) => walk.ok("mode", "its driver has zero-copy"),
        (Ok(false), "") => walk.note(
            "mode",
            "its driver has no zero-copy: the kernel copies each frame",
            vec![Fix::hand(
                "a newer kernel may have it for this driver; frames pass without",
            )],
        ),
        (Ok(false), kind) => walk.ok(
            "mode",
            format!(
                "a virtual link ({kind}): the kernel copies each frame, and there is no device that could not"
            ),
        ),
        (Err(_), _) => walk.unknown(
            "mode",
            "this kernel does not report what the driver can do (Linux 6.3 does)",
            Vec::new(),
        ),
    }
}

fn locked(walk: &mut Walk, system: &System, name: &RailName, config: &XdpConfig) -> Link {
    match locked_bytes(name, config) {
        Ok(needed) => memlock::step(walk, system, needed as u64),
        Err(error) => Err(refused(walk, "queues", &error)),
    }
}

/// Everything else that the driver knows before anything is made.
fn allowed(walk: &mut Walk, name: &RailName, config: &XdpConfig) -> Link {
    let driver = XdpDriver { config: *config };
    let listed = driver
        .probe()
        .unwrap_or_default()
        .into_iter()
        .find(|one| one.rail == *name);
    match listed.or_else(|| driver.named(name)).map(|one| one.verdict) {
        Some(Found::Rejected { reason, remedy }) => Err(walk.broken(
            "driver",
            reason,
            "the driver refuses such a rail before it makes anything",
            vec![Fix::quoted(&remedy)],
        )),
        _ => {
            walk.ok("driver", "nothing else prevents it");
            Ok(())
        }
    }
}

fn refused(walk: &mut Walk, step: &'static str, error: &RailError) -> super::chain::Ended {
    walk.refused(step, error, "the kernel or the driver refuses it")
}

fn open(walk: &mut Walk, name: &RailName, config: &XdpConfig) -> Result<XdpRail, super::chain::Ended> {
    match XdpRail::open(name, config) {
        Ok(rail) => {
            walk.proved(
                "open",
                format!("opened, and its program attached: {}", rail.granted()),
            );
            Ok(rail)
        }
        Err(error) => Err(refused(walk, "open", &error)),
    }
}

/// A frame through the real queue, to the peer's discard port (RFC 863).
fn send(walk: &mut Walk, rail: &mut XdpRail, peer: IpAddr) -> Link {
    const DISCARD: u16 = 9;
    let address = RailAddress::inet("udp", SocketAddr::new(peer, DISCARD));
    let index = match Datagram::open(rail, &address, Incarnation(1)) {
        Ok(index) => index,
        Err(error) => return Err(refused(walk, "frame", &error)),
    };
    let (clock, until) = (Clock::system(), Instant::now() + PATIENCE);
    while !rail.is_resolved(index) {
        if Instant::now() > until {
            return Err(walk.broken(
                "frame",
                format!("the hardware address of the next hop to {peer} is not known"),
                "no host on the link answers for it",
                vec![Fix::hand(format!(
                    "`ip neighbour show {peer}`; look whether the peer is up"
                ))],
            ));
        }
        rail.progress(clock.now());
        thread::sleep(Duration::from_millis(2));
    }
    let (tx, _) = rail.split();
    let posted = (tx.reserve(Channel::Priority, 1) == 1)
        .then(|| {
            tx.post(Channel::Priority, index, b"doorbell doctor", Body::Bytes(&[]))
                .ok()
        })
        .flatten();
    tx.doorbell();
    let Some(frame) = posted else {
        return Err(walk.broken(
            "frame",
            "the queue takes no frame",
            "its ring is stuck",
            vec![Fix::hand("look at `dmesg`")],
        ));
    };
    while tx.reaped(Channel::Priority) < frame && Instant::now() < until {
        tx.doorbell();
        thread::yield_now();
    }
    if tx.reaped(Channel::Priority).max(FrameId(0)) < frame {
        return Err(walk.broken(
            "frame",
            "the device has not sent a frame that it was given",
            "the driver's queue does not run in this mode",
            vec![Fix::run(
                "export DOORBELL_XDP_MODE=generic",
                "let the kernel's common code send",
            )],
        ));
    }
    walk.ok(
        "frame",
        format!("a frame for {peer} left through the rail's own queue"),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::chain::Verdict;
    use super::super::system::fake::Fake;
    use super::*;

    #[test]
    fn the_loopback_is_none_for_it_and_that_is_no_fault() {
        let chain = chain(
            &System::here(),
            &Config::default(),
            &"xdp:lo".parse().unwrap(),
            None,
            true,
        );
        assert_eq!(chain.verdict, Verdict::NotApplicable);
    }

    #[test]
    fn missing_rights_are_named_with_what_gives_them() {
        let fake = Fake::new();
        let walked = || Walk::along("xdp:x", |walk| capabilities(walk, &fake.system()));
        assert_eq!(walked().verdict, Verdict::Untried);
        // Raw sockets, and what CAP_BPF was before.
        fake.file(
            "/proc/self/status",
            &format!("CapEff:\t{:016x}\n", 1u64 << 13 | 1 << 21),
        );
        let chain = walked();
        assert_eq!(chain.steps[0].saw, "this process lacks CAP_NET_ADMIN");
        assert!(
            chain.steps[0].fixes[0]
                .command
                .as_deref()
                .unwrap()
                .starts_with("setcap cap_net_raw")
        );
        fake.file("/.dockerenv", "");
        assert!(walked().steps[0].fixes[0].what.contains("--cap-add=BPF"));
        fake.file("/proc/self/status", "CapEff:\tffffffffffffffff\n")
            .file("/proc/self/uid_map", "0 1000 1");
        assert!(walked().steps[0].saw.contains("user namespace"));
    }

    #[test]
    fn an_old_kernel_gets_the_version_that_is_needed() {
        let fake = Fake::new();
        fake.file("/proc/sys/kernel/osrelease", "5.4.0-generic");
        let chain = Walk::along("xdp:x", |walk| kernel(walk, &fake.system()));
        assert!(chain.verdict == Verdict::Broken && chain.steps[0].fixes[0].what.contains("5.9"));
    }
}
