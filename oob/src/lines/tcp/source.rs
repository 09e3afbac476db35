//! Where a call over TCP comes from, as far as limits are concerned.

use std::net::IpAddr;

/// A source of connections, within which a peer can change its address at will: an IPv4 address, or an IPv6
/// network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::lines) struct Source(u128);

impl Source {
    /// Returns the source of an address; `None` for addresses of this host, where limits would only let every
    /// user lock out the others.
    pub(super) fn of(ip: IpAddr, host: &[IpAddr]) -> Option<Self> {
        let ip = ip.to_canonical();
        if ip.is_loopback() || host.contains(&ip) {
            return None;
        }
        Some(Self(match ip {
            IpAddr::V4(four) => u128::from(four.to_bits()),
            IpAddr::V6(six) => six.to_bits() >> 64 << 64,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ipv6_a_network_is_one_source_and_this_host_is_none() {
        let of = |text: &str| Source::of(text.parse().unwrap(), &["fd00::7".parse().unwrap()]);
        assert_eq!(of("fd00::1"), of("fd00::2"));
        assert_ne!(of("fd00::1"), of("fd00:0:0:1::1"));
        assert_ne!(of("198.18.0.1"), of("198.18.0.2"));
        assert_eq!((of("fd00::7"), of("::1"), of("127.0.0.9")), (None, None, None));
    }
}
