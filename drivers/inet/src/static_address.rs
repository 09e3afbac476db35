//! The configured IP address of a virtual function that the kernel does not manage.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// Default first port of a function that has all ports to itself. This port and the next are in IANA's
/// private range; devices and dissectors take some lower ones for tunnels and RoCE.
pub const PORT: u16 = 56080;

/// An IP address with its prefix length and gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticAddress {
    /// The function's own address.
    pub ip: IpAddr,
    /// Prefix length of its network, in bits.
    pub prefix: u8,
    /// The router for other networks.
    pub gateway: Option<IpAddr>,
}

impl StaticAddress {
    /// Finds one function's address in a setting: `10.0.0.5/24`, or one for each of several functions,
    /// separated by blanks or commas: `NAME=10.0.0.5/24 OTHER=10.0.0.6/24`. `is_ours` returns whether a name
    /// before `=` is this function's, or why it is not a function's name.
    ///
    /// # Errors
    /// The reason, as a part of a sentence; `setting` is the prefix of the settings' names, and `whose` the
    /// function.
    pub fn find(
        text: &str,
        gateway: Option<IpAddr>,
        (setting, whose): (&str, &str),
        is_ours: impl Fn(&str) -> Result<bool, String>,
    ) -> Result<Self, String> {
        let mut found = None;
        for entry in entries(text) {
            let (ours, address) = match entry.rsplit_once('=') {
                None => (true, entry),
                Some((name, address)) => (
                    is_ours(name).map_err(|why| format!("`{name}` in {setting}.address is {why}"))?,
                    address,
                ),
            };
            if ours {
                let address = parse(address)
                    .ok_or_else(|| {
                        format!(
                            "`{address}` is not a host's address with a prefix length (the first and the last address of a network are not hosts')"
                        )
                    })?;
                if found.replace(address).is_some() {
                    return Err(format!("{setting}.address gives {whose} more than one address"));
                }
            }
        }
        let (ip, prefix) =
            found.ok_or("no IP address is set for this function, and the kernel does not manage it")?;
        Self { ip, prefix, gateway }.checked(setting)
    }

    /// Returns this address if its gateway is possible; `setting` is the prefix of the settings' names.
    ///
    /// # Errors
    /// The reason, as a part of a sentence.
    pub fn checked(self, setting: &str) -> Result<Self, String> {
        let Self { ip, prefix, gateway } = self;
        match gateway {
            Some(gateway) if gateway.is_ipv4() != ip.is_ipv4() => Err(format!(
                "{setting}.gateway is of the other family than the function's address"
            )),
            Some(gateway) if !self.may_lead_by(gateway) => Err(format!(
                "{setting}.gateway {gateway} is not in the function's network {ip}/{prefix}, so it cannot be resolved"
            )),
            _ => Ok(self),
        }
    }

    /// Whether the syntax of a setting is valid for [`find`](Self::find), independent of the functions there
    /// are: each entry is an address with a prefix length, of IPv4 if `only_ipv4`, optionally after a name
    /// that `is_function` accepts.
    #[must_use]
    pub fn is_well_formed(text: &str, is_function: impl Fn(&str) -> bool, only_ipv4: bool) -> bool {
        entries(text).all(|entry| {
            let (is_named, address) = match entry.rsplit_once('=') {
                None => (true, entry),
                Some((name, address)) => (is_function(name), address),
            };
            is_named && parse(address).is_some_and(|(ip, _)| ip.is_ipv4() || !only_ipv4)
        })
    }

    /// Whether a gateway can be on the link: in the function's network, link-local, or any where the network
    /// has one host.
    fn may_lead_by(&self, gateway: IpAddr) -> bool {
        let alone = if self.ip.is_ipv4() { 32 } else { 128 };
        let of_the_link = matches!(gateway, IpAddr::V6(six) if six.is_unicast_link_local());
        self.is_near(gateway) || self.prefix == alone || of_the_link
    }

    /// Whether `to` can be reached without a gateway.
    fn is_near(&self, to: IpAddr) -> bool {
        let (own, to, bits) = match (self.ip, to) {
            (IpAddr::V4(own), IpAddr::V4(to)) => (u128::from(own.to_bits()), u128::from(to.to_bits()), 32),
            (IpAddr::V6(own), IpAddr::V6(to)) => (own.to_bits(), to.to_bits(), 128),
            _ => return false,
        };
        let host = bits - u32::from(self.prefix);
        own.checked_shr(host).unwrap_or(0) == to.checked_shr(host).unwrap_or(0)
    }

    /// Returns the next hop to `to`, or `None` where there is neither a network nor a gateway for it.
    #[must_use]
    pub fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        if self.is_near(to) { Some(to) } else { self.gateway }
    }
}

/// Splits a setting at blanks and commas.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(|one: char| one.is_whitespace() || one == ',')
        .filter(|entry| !entry.is_empty())
}

/// Whether an IPv4 address is its network's own or broadcast address; networks of one or two hosts have
/// neither.
fn is_network_s(ip: IpAddr, prefix: u8) -> bool {
    let IpAddr::V4(ip) = ip else { return false };
    let host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    let own = ip.to_bits() & host;
    prefix < 31 && (own == 0 || own == host)
}

/// Parses a host's address with its prefix length.
fn parse(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, prefix) = text.split_once('/')?;
    let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let is_host =
        !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback() && ip != IpAddr::from([255; 4]);
    (is_host && (1..=most).contains(&prefix) && !is_network_s(ip, prefix)).then_some((ip, prefix))
}

/// A network id for a function, distinct from those of network namespaces: the function shares only the wire
/// with its host's interfaces.
#[must_use]
pub fn network_of(function: &str) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    function.hash(&mut hasher);
    hasher.finish() | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, gateway: Option<&str>) -> Result<StaticAddress, String> {
        StaticAddress::find(
            text,
            gateway.map(|gateway| gateway.parse().unwrap()),
            ("igbvf", "one"),
            |name| match name {
                "one" => Ok(true),
                "two" => Ok(false),
                _ => Err("unknown".to_owned()),
            },
        )
    }

    #[test]
    fn each_function_has_its_address() {
        assert_eq!(of("10.0.0.5/24", None).unwrap().ip.to_string(), "10.0.0.5");
        for both in ["two=10.0.0.5/24 one=fd00::6/64", "two=10.0.0.5/24,one=fd00::6/64"] {
            assert_eq!(of(both, None).unwrap().ip.to_string(), "fd00::6");
        }
        for (text, gateway, word) in [
            ("two=10.0.0.5/24", None, "no IP address is set"),
            ("10.0.0.5/24 one=10.0.0.6/24", None, "more than one"),
            ("three=10.0.0.5/24", None, "is unknown"),
            ("10.0.0.5", None, "not a host's address"),
            ("10.0.0.0/24", None, "not a host's address"),
            ("10.0.0.255/24", None, "not a host's address"),
            ("10.0.0.5/24", Some("10.0.1.1"), "not in the function's network"),
            ("10.0.0.5/24", Some("fd00::1"), "other family"),
        ] {
            assert!(of(text, gateway).unwrap_err().contains(word), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_an_address_is_known_before_any_function_is() {
        let is = |text: &str| StaticAddress::is_well_formed(text, |name| name == "one", true);
        assert!(is("10.0.0.0/31") && is("10.0.1.0/23") && is("one=10.0.0.5/24,one=10.0.0.6/24"));
        assert!(is("") && is("10.0.0.5/24") && is("one=10.0.0.5/24 one=10.0.0.6/24"));
        for bad in [
            "10.0.0.5",
            "10.0.0.5/33",
            "10.0.0.0/24",
            "10.0.0.255/24",
            "two=10.0.0.5/24",
            "fd00::5/64",
            "one=",
            "10.0.0.5/24 x",
        ] {
            assert!(!is(bad), "{bad}");
        }
        assert!(StaticAddress::is_well_formed("fd00::5/64", |_| true, false));
    }

    #[test]
    fn what_is_near_needs_no_gateway() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = of("10.0.0.5/24", None).unwrap();
        assert_eq!(own.next_hop(ip("10.0.0.77")), Some(ip("10.0.0.77")));
        assert_eq!(own.next_hop(ip("10.0.1.77")), None);
        let own = of("10.0.0.5/24", Some("10.0.0.1")).unwrap();
        assert_eq!(own.next_hop(ip("10.0.1.77")), Some(ip("10.0.0.1")));
        let own = of("fd00::5/128", None).unwrap();
        assert_eq!(
            (own.next_hop(ip("fd00::5")).is_some(), own.next_hop(ip("fd00::6"))),
            (true, None)
        );
    }

    #[test]
    fn functions_have_networks_of_their_own() {
        assert_ne!(network_of("0000:01:10.0"), network_of("0000:01:10.2"));
        assert!(network_of("x") >> 63 == 1, "and none of a namespace");
    }
}
