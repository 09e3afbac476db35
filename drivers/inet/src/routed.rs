//! Which interfaces routes lead to: the kernel's list of all routes, by rtnetlink(7).

use std::io;
use std::net::IpAddr;

use crate::interface_query::Family;
use crate::netlink::{attributes, dump};
use crate::route::{ROUTE, ip_of, name_of};

/// The flags of a hop that nothing can be sent over: it is gone, or its link is down (linux/rtnetlink.h,
/// `RTNH_F_DEAD`, `RTNH_F_LINKDOWN`).
const DOWN: u32 = 1 | 16;

/// Returns the names of the interfaces, the loopback aside, that routes of an address family lead to: those
/// to hosts and networks beyond this host. What is only link-local does not count, nor a route whose link is
/// down.
///
/// # Errors
/// When the routes cannot be listed.
pub fn routed(family: Family) -> io::Result<Vec<String>> {
    let number = match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    let mut body = vec![0; ROUTE];
    body[0] = number as u8;
    let mut found = Vec::new();
    for (kind, body) in dump(libc::RTM_GETROUTE, &body)? {
        if kind == libc::RTM_NEWROUTE && body.first() == Some(&(number as u8)) {
            found.extend(leads_to(&body));
        }
    }
    found.sort_unstable();
    found.dedup();
    let names = found.into_iter().map(name_of);
    Ok(names.filter(|name| name != "lo").collect())
}

/// Returns the interfaces that a route of a dump leads to.
fn leads_to(body: &[u8]) -> Vec<u32> {
    let (kind, flags) = (
        body.get(7).copied(),
        body.get(8..ROUTE).and_then(|flags| flags.first_chunk()),
    );
    let flags = flags.map_or(0, |flags| u32::from_ne_bytes(*flags));
    if kind != Some(libc::RTN_UNICAST) || flags & DOWN != 0 {
        return Vec::new();
    }
    let parts: Vec<_> = attributes(body.get(ROUTE..).unwrap_or(&[])).collect();
    let part = |wanted| {
        parts
            .iter()
            .find(|(what, _)| *what == wanted)
            .map(|(_, value)| *value)
    };
    let is_link_local = part(libc::RTA_DST).and_then(ip_of).is_some_and(|to| match to {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local() || six.is_multicast(),
    });
    if is_link_local {
        return Vec::new();
    }
    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let hops = part(libc::RTA_MULTIPATH).map_or_else(Vec::new, |hops| hops_of(hops).collect());
    part(libc::RTA_OIF)
        .and_then(number)
        .into_iter()
        .chain(hops)
        .collect()
}

/// Iterates over the interfaces of the hops of a route with several, but those whose link is down:
/// `rtnexthop` is length 2, flags 1, hops 1, interface 4, attributes.
fn hops_of(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let head = bytes.first_chunk::<8>()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]])).max(head.len());
        let is_down = u32::from(head[2]) & DOWN != 0;
        let index = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((index, is_down))
    })
    .filter_map(|(index, is_down)| (!is_down).then_some(index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    /// A route of the kernel's list.
    fn route(kind: u8, flags: u32, to: &[u8], through: u32) -> Vec<u8> {
        let mut body = vec![0; ROUTE];
        (body[0], body[7]) = (libc::AF_INET as u8, kind);
        body[8..].copy_from_slice(&flags.to_ne_bytes());
        attribute(&mut body, libc::RTA_DST, to);
        attribute(&mut body, libc::RTA_OIF, &through.to_ne_bytes());
        body
    }

    #[test]
    fn a_route_leads_to_the_interfaces_of_its_hops() {
        let unicast = libc::RTN_UNICAST;
        assert_eq!(leads_to(&route(unicast, 0, &[10, 0, 0, 0], 7)), [7]);
        let mut several = vec![0; ROUTE];
        several[7] = unicast;
        let hop = |index: u8, flags: u8| [12, 0, flags, 0, index, 0, 0, 0, 0, 0, 0, 0];
        let hops = [hop(3, 0), hop(4, 16), hop(5, 4)].concat();
        attribute(&mut several, libc::RTA_MULTIPATH, &hops);
        assert_eq!(leads_to(&several), [3, 5]);
        for cut in 0..several.len() {
            let _ = leads_to(&several[..cut]);
        }
    }

    #[test]
    fn what_is_down_or_of_this_link_or_this_host_leads_nowhere() {
        let none: [u32; 0] = [];
        for (kind, flags, to) in [
            (libc::RTN_LOCAL, 0, &[10, 0, 0, 1][..]),
            (libc::RTN_BLACKHOLE, 0, &[10, 0, 0, 0]),
            (libc::RTN_UNICAST, 16, &[10, 0, 0, 0]),
            (libc::RTN_UNICAST, 0, &[169, 254, 0, 0]),
            (
                libc::RTN_UNICAST,
                0,
                &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            ),
        ] {
            assert_eq!(leads_to(&route(kind, flags, to, 7)), none, "{kind} {flags}");
        }
    }

    #[test]
    fn the_list_of_the_kernel_is_read_and_has_no_loopback() {
        for family in [Family::V4, Family::V6] {
            let names = routed(family).unwrap();
            assert!(!names.iter().any(|name| name == "lo"), "{names:?}");
        }
    }
}
