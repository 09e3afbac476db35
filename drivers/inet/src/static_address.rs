//! The address that a virtual function is given by its settings: no kernel has one for it.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// The port where none is set for a function that has all of them. It and the next one are nobody's: IANA has them in the range for
/// private use, while devices and dissectors take some lower ones for tunnels' and RoCE's.
pub const PORT: u16 = 56080;

/// An address and its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticAddress {
    /// The function's own.
    pub ip: IpAddr,
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// Where packets for other networks go.
    pub gateway: Option<IpAddr>,
}

impl StaticAddress {
    /// Finds one function's address in a setting: `10.0.0.5/24`, or one for each of several functions, separated by blanks or commas:
    /// `WHOSE=10.0.0.5/24 OTHER=10.0.0.6/24`. `is_ours` says whether a name in front of `=` is this function's, or why it is none.
    ///
    /// # Errors
    /// Why none is found, as a part of a sentence; `setting` is what the setting is called, and `whose` the function.
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
                            "`{address}` is no address of a host with its network (the first of a network and the last are no host's)"
                        )
                    })?;
                if found.replace(address).is_some() {
                    return Err(format!("{setting}.address gives {whose} more than one address"));
                }
            }
        }
        let (ip, prefix) =
            found.ok_or("no IP address is set for this function, and no kernel has one for it")?;
        Self { ip, prefix, gateway }.checked(setting)
    }

    /// This address, where its gateway can be one; `setting` is what the settings are called.
    ///
    /// # Errors
    /// Why it can be none, as a part of a sentence.
    pub fn checked(self, setting: &str) -> Result<Self, String> {
        let Self { ip, prefix, gateway } = self;
        match gateway {
            Some(gateway) if gateway.is_ipv4() != ip.is_ipv4() => Err(format!(
                "{setting}.gateway is of the other family than the function's address"
            )),
            Some(gateway) if !self.may_lead_by(gateway) => Err(format!(
                "{setting}.gateway {gateway} is not in the function's network {ip}/{prefix}, where it would be asked for"
            )),
            _ => Ok(self),
        }
    }

    /// Whether a setting can be one for [`find`](Self::find) at all, whichever functions there are: each entry an address with its network,
    /// of IPv4 where only that will do, behind a name that `is_function` knows, or behind none.
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

    /// Whether a gateway can be on the link: in the function's network, unless there is nobody else in that, or of the link alone.
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

    /// The next hop on the way to `to`.
    #[must_use]
    pub fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        if self.is_near(to) { Some(to) } else { self.gateway }
    }
}

/// Entries of a setting, between blanks or commas.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(|one: char| one.is_whitespace() || one == ',')
        .filter(|entry| !entry.is_empty())
}

/// Whether an address of IPv4 is that of its network, or of all hosts of it: in networks of one or two hosts there are none such.
fn is_network_s(ip: IpAddr, prefix: u8) -> bool {
    let IpAddr::V4(ip) = ip else { return false };
    let host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    let own = ip.to_bits() & host;
    prefix < 31 && (own == 0 || own == host)
}

/// An address of one host, with the length of its network's prefix.
fn parse(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, prefix) = text.split_once('/')?;
    let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let is_host =
        !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback() && ip != IpAddr::from([255; 4]);
    (is_host && (1..=most).contains(&prefix) && !is_network_s(ip, prefix)).then_some((ip, prefix))
}

/// A function has a network of its own, as a network namespace has: what it shares with the interfaces of its host is a wire.
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
                _ => Err("nobody".to_owned()),
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
            ("three=10.0.0.5/24", None, "is nobody"),
            ("10.0.0.5", None, "no address of a host"),
            ("10.0.0.0/24", None, "no address of a host"),
            ("10.0.0.255/24", None, "no address of a host"),
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
