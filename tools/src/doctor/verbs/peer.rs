//! The way to a peer: its hardware address, the route, packets of full length, and a full datagram by the
//! rail's own queues.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram, Transmit};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::rail::Rail as _;
use doorbell_inet::{Family, Interface, InterfaceQuery, NextHop};
use doorbell_verbs::UdRail;

use super::live::HEADS;
use super::{At, Ended, Facts, Fix, Link, Walk, refused};
use crate::doctor::echo::{Answer, Echo};
use crate::doctor::udp;

/// Time for a neighbour to answer, and for a datagram to leave.
const PATIENCE: Duration = Duration::from_secs(3);

/// The steps towards a host, or to a GID, which is an address of a host on Ethernet.
pub(super) fn steps(walk: &mut Walk, at: &At<'_>, facts: &Facts, rail: &mut UdRail, to: IpAddr) -> Link {
    let to = to.to_canonical();
    let Some(unused) = rail.unused_at(to) else {
        walk.untried(
            "peer",
            format!("{to}: on InfiniBand the way to a GID takes a path record of the subnet's administration, which is not requested yet"),
            vec![Fix::hand("`saquery` and `ibping` of infiniband-diags try it")],
        );
        return Ok(());
    };
    let interface = interface(walk, at, facts, to)?;
    udp::route(walk, &interface, to)?;
    if matches!(interface.next_hop(SocketAddr::new(to, 0)), Ok(NextHop::Local)) {
        walk.ok(
            "messages",
            format!("{to} is this host, within which datagrams have passed"),
        );
        return Ok(());
    }
    let peer = match Datagram::open(rail, &unused, Incarnation(1)) {
        Ok(peer) => peer,
        Err(error) => return Err(refused(walk, "neighbour", &error)),
    };
    neighbour(walk, rail, peer, to)?;
    path(walk, facts, &interface, to)?;
    datagram(walk, rail, peer, to)?;
    walk.untried(
        "messages",
        format!("whether messages reach {to} and come back was not tried: that takes a process there"),
        vec![Fix::hand(format!(
            "try it: `doorbell pingpong --serve --rail verbs:DEVICE:PORT` there, `doorbell why {to} --probe --rail {}` here",
            at.name
        ))],
    );
    Ok(())
}

/// The interface of the port, with an address of the peer's family.
fn interface(walk: &mut Walk, at: &At<'_>, facts: &Facts, to: IpAddr) -> Result<Interface, Ended> {
    let name = facts.port.interface.as_deref().unwrap_or(at.device);
    let (family, word) = match to {
        IpAddr::V4(_) => (Family::V4, "IPv4"),
        IpAddr::V6(_) => (Family::V6, "IPv6"),
    };
    let query = InterfaceQuery {
        family,
        ..InterfaceQuery::default()
    };
    let found = format!("udp:{name}")
        .parse()
        .and_then(|rail| Interface::find(&rail, &query));
    found.map_err(|error| {
        walk.broken(
            "route",
            error.to_string(),
            format!("{to} is of {word}, and GIDs of {word} are made of such addresses of {name}"),
            vec![Fix::hand(format!(
                "give {name} an address of {word}, or name another address of the peer"
            ))],
        )
    })
}

/// The kernel resolves the hardware address of the next hop before a datagram can leave.
fn neighbour(walk: &mut Walk, rail: &mut UdRail, peer: PeerIndex, to: IpAddr) -> Link {
    let (clock, until) = (Clock::system(), Instant::now() + PATIENCE);
    while !rail.is_resolved(peer) {
        if Instant::now() > until {
            return Err(walk.broken(
                "neighbour",
                format!("the hardware address of the next hop to {to} is not known"),
                "no host on the link answers for it: it is off, has another address, or is on another link (VLAN, cable)",
                vec![Fix::hand(format!("`ip neighbour show {to}`; look whether the peer is up"))],
            ));
        }
        rail.progress(clock.now());
        thread::sleep(Duration::from_millis(2));
    }
    walk.ok(
        "neighbour",
        format!("the next hop to {to} has answered, and the device has a handle for it"),
    );
    Ok(())
}

/// Packets as long as those of full datagrams, by the kernel's own stack.
fn path(walk: &mut Walk, facts: &Facts, interface: &Interface, to: IpAddr) -> Link {
    let full = facts.port.mtu.unwrap_or(0) + HEADS;
    let mut echo = match Echo::new(interface, to) {
        Ok(echo) => echo,
        Err(error) => {
            walk.unknown(
                "path",
                format!("no echo can be sent to {to}: {error}"),
                Vec::new(),
            );
            return Ok(());
        }
    };
    match (echo.ask(64), echo.ask(full)) {
        (Answer::Came, Answer::Came) => {
            walk.ok(
                "path",
                format!("{to} answers packets of 64 and of {full} bytes that may not be cut up"),
            );
            Ok(())
        }
        (Answer::Came, Answer::Silence | Answer::TooLong) => {
            let longest = echo.longest(64, full);
            Err(walk.broken(
                "path",
                format!("{to} answers packets of up to {longest} bytes, and full datagrams are of {full}"),
                "the two ends, or what is between them, have different MTUs: short messages pass, long ones hang",
                vec![Fix::run(
                    format!("ip link set {} mtu {longest}", interface.name),
                    "for all that this host sends there (better: raise the MTU of the narrow link)",
                )],
            ))
        }
        (answer, _) => {
            let why = match answer {
                Answer::NoWay(why) => why,
                Answer::Refused => "this host's packet filter sends none".to_owned(),
                _ => "none is answered".to_owned(),
            };
            walk.unknown("path", format!("{to} and echoes: {why}"), Vec::new());
            Ok(())
        }
    }
}

/// A full datagram to a queue pair that no process has there.
fn datagram(walk: &mut Walk, rail: &mut UdRail, peer: PeerIndex, to: IpAddr) -> Link {
    let until = Instant::now() + PATIENCE;
    let clock = Clock::system();
    let bytes = vec![0; rail.capabilities().limits.message];
    let posted = {
        let (tx, _) = rail.split();
        let has_room = tx.reserve(Channel::Data, 1) == 1;
        let frame = has_room.then(|| tx.post(Channel::Data, peer, &bytes, Body::Bytes(&[])).ok());
        tx.doorbell();
        frame.flatten()
    };
    let Some(frame) = posted else {
        return Err(walk.broken(
            "datagram",
            "the queue takes no datagram",
            "its queue pair is stuck",
            vec![Fix::hand("look at `dmesg`")],
        ));
    };
    while rail.split().0.reaped(Channel::Data) < frame {
        if Instant::now() > until {
            return Err(walk.broken(
                "datagram",
                "the device has not sent a datagram that it was given",
                "its queue pair is stuck",
                vec![Fix::hand("look at `dmesg`")],
            ));
        }
        rail.split().0.doorbell();
        rail.progress(clock.now());
        thread::yield_now();
    }
    let errors = rail.stats().sent.failed;
    if errors > 0 {
        return Err(walk.broken(
            "datagram",
            format!(
                "a datagram of {} bytes for {to} ended with an error of the device",
                bytes.len()
            ),
            "the device refuses the way to it",
            vec![Fix::hand("look at `dmesg`")],
        ));
    }
    walk.ok(
        "datagram",
        format!(
            "one of {} bytes for {to} left through the rail's own queue",
            bytes.len()
        ),
    );
    Ok(())
}
