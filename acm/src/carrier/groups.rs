//! The IP multicast groups that replace InfiniBand groups.
//!
//! A multicast GID *is* an IPv6 multicast address, and is used as one. Over IPv4 the group is `239.255.x.y`,
//! of the site-local block (RFC 2365, section 6.1), where x and y are the first two bytes of BLAKE2s of the
//! GID. Two groups may share an IPv4 address: every frame has the full GID of its group.

use std::net::Ipv4Addr;

use blake2::{Blake2s256, Digest};

use crate::address::Gid;

/// Returns the IPv4 group of a multicast GID.
///
/// ```
/// use doorbell_acm::carrier::ipv4_group;
/// let group = ipv4_group("ff15:4001:ffff:3:4::".parse()?);
/// assert_eq!(group.octets()[..2], [239, 255]);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[must_use]
pub fn ipv4_group(group: Gid) -> Ipv4Addr {
    let hash = Blake2s256::digest(group.0);
    Ipv4Addr::new(239, 255, hash[0], hash[1])
}

/// Whether a GID is a multicast GID.
pub(super) fn is_group(gid: Gid) -> bool {
    gid.0[0] == 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_the_same_on_all_hosts() {
        let of = |text: &str| ipv4_group(text.parse().unwrap());
        assert_eq!(of("ff15:4001:ffff:3:4::"), of("ff15:4001:ffff:3:4::"));
        assert_ne!(of("ff15:4001:ffff:3:4::"), of("ff15:4001:ffff:3:5::"));
        assert!(is_group("ff15::1".parse().unwrap()) && !is_group("fe80::1".parse().unwrap()));
    }
}
