//! The steps that all rails over an interface begin with: it is there, up, connected, has an address, and
//! takes long enough packets.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::name::RailName;
use doorbell_inet::{
    Assigned, Details, FRAME_MIN, Family, Interface, InterfaceQuery, assigned, interface_state, name_of,
    own_name,
};

use super::chain::{Ended, Fix, Walk};
use super::system::System;

/// `IFF_UP` and `IFF_RUNNING` (linux/if.h).
pub(super) const UP: u32 = 1;
const RUNNING: u32 = 1 << 6;
/// Time for the kernel to show the link state that a driver has detected.
const SETTLES: Duration = Duration::from_millis(1_500);

/// An interface that carries frames.
pub(super) struct Found {
    pub(super) interface: Interface,
    pub(super) details: Details,
}

/// Walks the steps about the interface.
pub(super) fn steps(
    walk: &mut Walk,
    system: &System,
    name: &RailName,
    query: &InterfaceQuery,
) -> Result<Found, Ended> {
    let all = assigned().unwrap_or_default();
    // Without an address nothing is found; the steps before the address have to be reported first.
    let device = device(walk, &all, name)?;
    let state = state(walk, &device)?;
    let found = Interface::find(name, query);
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            return Err(no_address(
                walk,
                &device,
                &all,
                query,
                &error.to_string(),
                state.mac,
            ));
        }
    };
    walk.ok("address", format!("{}/{}", found.address, found.prefix));
    speed(walk, system, &device, found.index);
    mtu(walk, &found, query)?;
    Ok(Found {
        interface: found,
        details: state.details,
    })
}

/// The interface's name; by its address where that is what was named.
fn device(walk: &mut Walk, all: &[Assigned], name: &RailName) -> Result<String, Ended> {
    let object = name.object();
    if let Some(own) = own_name(all, object) {
        let other = if own == object {
            String::new()
        } else {
            format!(": another name of {own}")
        };
        walk.ok("interface", format!("{object} is there{other}"));
        return Ok(own.to_owned());
    }
    if let Some(one) = all.iter().find(|one| one.label.as_deref() == Some(object)) {
        walk.ok(
            "interface",
            format!("{object} is the label of an address of {}", one.interface),
        );
        return Ok(one.interface.clone());
    }
    let (bare, scope) = object
        .split_once('%')
        .map_or((object, None), |(bare, scope)| (bare, Some(scope)));
    let scope = scope.map(|scope| own_name(all, scope).unwrap_or(scope));
    let holder = bare.parse::<IpAddr>().ok().and_then(|address| {
        all.iter()
            .find(|one| one.address == Some(address) && scope.is_none_or(|scope| one.interface == scope))
    });
    if let Some(holder) = holder {
        walk.ok(
            "interface",
            format!("{object} is an address of {}", holder.interface),
        );
        return Ok(holder.interface.clone());
    }
    let mut names: Vec<&str> = all.iter().map(|one| one.interface.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    Err(walk.broken(
        "interface",
        format!("there is no interface {object}, and no interface has such an address"),
        "it is named otherwise, is in another network namespace, or its driver is not loaded",
        vec![Fix::hand(format!(
            "name one of {}; `ip -br address` shows them with their addresses",
            names.join(", ")
        ))],
    ))
}

/// What is known of an interface that is up.
struct State {
    details: Details,
    mac: Option<[u8; 6]>,
}

/// Whether it is up, and connected.
fn state(walk: &mut Walk, device: &str) -> Result<State, Ended> {
    let until = Instant::now() + SETTLES;
    let (details, flags) = loop {
        let (index, seen) = match interface_state(device) {
            Ok(found) => found,
            Err(error) => {
                return Err(walk.broken(
                    "up",
                    format!("the state of {device} cannot be read: {error}"),
                    "it has just gone, or the container forbids the query",
                    vec![Fix::hand(format!(
                        "`ip link show {device}` shows whether it is there"
                    ))],
                ));
            }
        };
        let details = Details::of(index).unwrap_or_default();
        // The flags follow the link state of the driver up to a second later.
        let agree = details.has_carrier == (seen.flags & RUNNING != 0);
        if agree || seen.flags & UP == 0 || Instant::now() > until {
            break (details, seen.flags);
        }
        thread::sleep(Duration::from_millis(20));
    };
    if flags & UP == 0 {
        return Err(walk.broken(
            "up",
            format!("{device} is down"),
            "it has not been set up since the start, or it was set down",
            vec![Fix::run(format!("ip link set {device} up"), "set it up")],
        ));
    }
    walk.ok("up", format!("{device} is up"));
    if flags & RUNNING == 0 {
        return Err(no_carrier(walk, device, &details));
    }
    walk.ok("carrier", "the link is there");
    Ok(State {
        mac: details.mac,
        details,
    })
}

fn no_carrier(walk: &mut Walk, device: &str, details: &Details) -> Ended {
    let (cause, fix) = match (
        details.kind.as_str(),
        details.lower.and_then(|index| name_of(index).ok()),
    ) {
        ("", _) => (
            "the cable is out, the other end is off, or the two do not agree on a speed",
            Fix::hand(format!(
                "look at the cable and at the port of the switch; `ethtool {device}` shows what each end offers"
            )),
        ),
        (_, Some(other)) => (
            "its other end, or what is below it, is down",
            Fix::run(
                format!("ip link set {other} up"),
                format!("set up {other}, which it hangs on"),
            ),
        ),
        ("veth", None) => (
            "its other end, in another network namespace, is down",
            Fix::hand("set the other end up, in its own namespace (`ip -n NAMESPACE link set NAME up`)"),
        ),
        _ => (
            "nothing that is up hangs on it: a bridge without ports, a tunnel without another end",
            Fix::hand(format!("`ip -d link show {device}` shows what it consists of")),
        ),
    };
    walk.broken(
        "carrier",
        format!("{device} is up, and has no link"),
        cause,
        vec![fix],
    )
}

/// No address of the family that is wanted.
fn no_address(
    walk: &mut Walk,
    device: &str,
    all: &[Assigned],
    query: &InterfaceQuery,
    why: &str,
    mac: Option<[u8; 6]>,
) -> Ended {
    let has = |four: bool| {
        all.iter()
            .filter(|one| one.interface == device)
            .filter_map(|one| one.address)
            .any(|address| address.is_ipv4() == four)
    };
    let (family, other, is_there) = match query.family {
        Family::V4 => ("IPv4", "ipv6", has(false)),
        Family::V6 => ("IPv6", "ipv4", has(true)),
    };
    let mut fixes = vec![Fix::run(
        format!("ip address add {} dev {device}", own_address(query.family, mac)),
        "give it a link-local address, which is valid on this link only, or one of your network instead",
    )];
    if is_there {
        fixes.push(Fix::run(
            format!("export DOORBELL_UDP_FAMILY={other}"),
            "use the address that it has, at both ends",
        ));
    }
    let cause = format!("nothing has given it an {family} address: no configuration, or no answer of DHCP");
    walk.broken("address", why, cause, fixes)
}

/// A link-local address made of a hardware address: RFC 3927, RFC 4291.
fn own_address(family: Family, mac: Option<[u8; 6]>) -> String {
    let [a, b, c, d, e, f] = mac.unwrap_or([2, 0, 0, 0, 7, 7]);
    match family {
        // 169.254.0.x and 169.254.255.x are not to be used.
        Family::V4 => format!("169.254.{}.{f}/16", 1 + e % 254),
        Family::V6 => format!("fe80::{:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}/64", a ^ 2),
    }
}

/// Speed and duplex, which only hardware has.
fn speed(walk: &mut Walk, system: &System, device: &str, index: u32) {
    // The /sys of another network namespace may show another interface of this name.
    let is_ours = system.number(&format!("/sys/class/net/{device}/ifindex")) == Some(u64::from(index));
    let told = |what: &str| {
        system
            .text(&format!("/sys/class/net/{device}/{what}"))
            .filter(|_| is_ours)
    };
    match (
        told("speed").and_then(|text| text.parse::<i64>().ok()),
        told("duplex").as_deref(),
    ) {
        (Some(speed), Some("half")) if speed > 0 => walk.note(
            "speed",
            format!("{speed} Mbit/s, half duplex: either end waits while the other one sends"),
            vec![Fix::run(
                format!("ethtool -s {device} autoneg on"),
                "let both ends agree (and at the switch too)",
            )],
        ),
        (Some(speed), duplex) if speed > 0 => walk.ok(
            "speed",
            format!("{speed} Mbit/s, {} duplex", duplex.unwrap_or("unknown")),
        ),
        _ => walk.not_applicable("speed", "a virtual link, or one that does not report its speed"),
    }
}

fn mtu(walk: &mut Walk, found: &Interface, query: &InterfaceQuery) -> super::chain::Link {
    let (link, used, longest) = (found.state.mtu, found.mtu(query), found.limit(query));
    if longest < FRAME_MIN {
        let fix = match link >= 576 {
            true => Fix::run(
                "unset DOORBELL_UDP_MTU",
                "do not limit packets to less than the link takes",
            ),
            false => Fix::run(
                format!("ip link set {} mtu 1500", found.name),
                "take packets as Ethernet does",
            ),
        };
        return Err(walk.broken(
            "mtu",
            format!("packets of {used} bytes leave {longest} for a frame, and {FRAME_MIN} are needed"),
            if link >= 576 {
                "udp.mtu is set too small"
            } else {
                "the MTU of the interface is too small"
            },
            vec![fix],
        ));
    }
    let by = if used < link {
        format!(" (udp.mtu; the link takes {link})")
    } else {
        String::new()
    };
    walk.ok("mtu", format!("packets of {used} bytes{by}, frames of {longest}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_the_link_alone_is_made_of_the_hardwares() {
        let mac = Some([0x52, 0x54, 0, 0x12, 0x34, 0xff]);
        assert_eq!(own_address(Family::V4, mac), "169.254.53.255/16");
        assert_eq!(own_address(Family::V6, mac), "fe80::5054:00ff:fe12:34ff/64");
        for [e, f] in [[0, 0], [253, 1], [254, 255], [255, 9]] {
            let four = own_address(Family::V4, Some([2, 0, 0, 0, e, f]));
            let third: u8 = four.split('.').nth(2).unwrap().parse().unwrap();
            assert!((1..=254).contains(&third), "{four}");
        }
    }

    #[test]
    fn the_loopback_has_what_it_needs() {
        let chain = Walk::along("udp:lo", |walk| {
            let name = "udp:lo".parse().unwrap();
            steps(walk, &System::here(), &name, &InterfaceQuery::default()).map(|_| walk.proved("end", ""))
        });
        assert_eq!(chain.verdict, super::super::chain::Verdict::Usable, "{chain:#?}");
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let chain = Walk::along("udp:nosuch0", |walk| {
            let name = "udp:nosuch0".parse().unwrap();
            steps(walk, &System::here(), &name, &InterfaceQuery::default()).map(|_| ())
        });
        let last = chain.steps.last().unwrap();
        assert!(
            last.step == "interface" && last.fixes[0].what.contains("lo"),
            "{last:?}"
        );
    }
}
