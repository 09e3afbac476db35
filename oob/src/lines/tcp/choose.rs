//! Selects the NICs that become modules, and the addresses at which they listen.
//!
//! Without a selection: the loopback only. With included NICs: those. With excluded NICs: all that lead out
//! of the host except those. A NIC that was selected by name stays selected as long as it exists, even if it
//! is renamed.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use doorbell_fabric::pairs::within;
use doorbell_inet::{ALTERNATIVE_MAX, Nic, NicAddress};

use crate::error::OobError;

/// Selects NICs: by name (`eth0`, `eth*`, `*`), or by a network that they have an address in (`10.0.0.0/8`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A choice by name; a star at the end matches any rest.
    Name(String),
    /// A choice by network: of any NIC, the addresses in this network.
    Network(IpAddr, u8),
}

impl Pattern {
    fn names(&self, nic: &Nic) -> bool {
        match self {
            Self::Name(name) => match name.strip_suffix('*') {
                Some(begin) => {
                    let mut names = std::iter::once(&nic.name).chain(&nic.alternatives);
                    names.any(|name| name.starts_with(begin))
                }
                None => nic.has_name(name),
            },
            Self::Network(..) => false,
        }
    }

    fn has(&self, ip: IpAddr) -> bool {
        match *self {
            Self::Network(network, prefix) => within(network, ip, prefix),
            Self::Name(_) => false,
        }
    }
}

impl FromStr for Pattern {
    type Err = OobError;

    fn from_str(text: &str) -> Result<Self, OobError> {
        let bad = |reason: &str| {
            Err(OobError::Setting {
                setting: "nics",
                given: text.to_owned(),
                reason: reason.to_owned(),
            })
        };
        if let Some((ip, prefix)) = text.split_once('/') {
            return match (ip.parse::<IpAddr>(), prefix.parse::<u8>()) {
                (Ok(ip), Ok(prefix)) if prefix <= if ip.is_ipv4() { 32 } else { 128 } => {
                    Ok(Self::Network(ip, prefix))
                }
                _ => bad("it is not a network; use the form 10.0.0.0/8 or fd00::/8"),
            };
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::Network(ip, if ip.is_ipv4() { 32 } else { 128 }));
        }
        let star = text.find('*').is_none_or(|at| at + 1 == text.len());
        let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b',');
        if text.is_empty() || text.len() > ALTERNATIVE_MAX || !star || !text.bytes().all(fits) {
            return bad(
                "it is neither a network nor the name of an interface; `ip link` lists the interfaces of this host",
            );
        }
        Ok(Self::Name(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => out.write_str(name),
            Self::Network(ip, prefix) => write!(out, "{ip}/{prefix}"),
        }
    }
}

/// The address families to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Families {
    /// IPv4 and IPv6.
    #[default]
    Both,
    /// Addresses of IPv4 only.
    V4,
    /// Addresses of IPv6 only.
    V6,
}

impl Families {
    fn has(self, ip: IpAddr) -> bool {
        match self {
            Self::Both => true,
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
        }
    }
}

/// The selection of NICs and families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    families: Families,
}

impl Chosen {
    /// Selects by inclusion or by exclusion, but not both.
    ///
    /// # Errors
    /// [`OobError::Setting`] when both are given.
    pub fn new(include: Vec<Pattern>, exclude: Vec<Pattern>, families: Families) -> Result<Self, OobError> {
        if !include.is_empty() && !exclude.is_empty() {
            return Err(OobError::Setting {
                setting: "nics",
                given: format!("{} and not {}", list(&include), list(&exclude)),
                reason: "give either the NICs to use or the NICs to leave out".to_owned(),
            });
        }
        Ok(Self {
            include,
            exclude,
            families,
        })
    }

    /// Whether only the loopback is selected, because nothing is named.
    #[must_use]
    pub fn is_loopback_only(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Returns the addresses of this NIC that are selected; none if it is not. `before`: whether it was
    /// selected at the last look.
    #[must_use]
    pub fn of(&self, nic: &Nic, before: bool) -> Vec<NicAddress> {
        let usable = |own: &&NicAddress| own.usable && self.families.has(own.ip);
        let own = nic.addresses.iter().filter(usable);
        let named = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.names(nic));
        let has = |patterns: &[Pattern], ip| patterns.iter().any(|pattern| pattern.has(ip));
        if self.is_loopback_only() {
            return own.filter(|_| nic.is_loopback()).copied().collect();
        }
        if self.include.is_empty() {
            let out = nic.is_loopback() || (named(&self.exclude) && !before);
            return own
                .filter(|own| !out && !has(&self.exclude, own.ip))
                .copied()
                .collect();
        }
        // A network selects only the addresses in it; a NIC without one is not selected.
        let networks = self
            .include
            .iter()
            .any(|pattern| matches!(pattern, Pattern::Network(..)));
        let all = named(&self.include) || (before && !networks);
        own.filter(|own| all || has(&self.include, own.ip))
            .copied()
            .collect()
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.include.is_empty(), self.exclude.is_empty()) {
            (true, true) => out.write_str("loopback only"),
            (false, _) => out.write_str(&list(&self.include)),
            (true, false) => write!(out, "all but {}", list(&self.exclude)),
        }
    }
}

fn list(patterns: &[Pattern]) -> String {
    let all: Vec<String> = patterns.iter().map(ToString::to_string).collect();
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: u32 = 8;

    fn nic(name: &str, flags: u32, addresses: &[(&str, u8)]) -> Nic {
        let of = |&(ip, prefix): &(&str, u8)| NicAddress {
            ip: ip.parse().unwrap(),
            prefix,
            usable: true,
        };
        Nic {
            index: 1,
            name: name.to_owned(),
            alternatives: Vec::new(),
            flags,
            addresses: addresses.iter().map(of).collect(),
        }
    }

    fn host() -> [Nic; 3] {
        [
            nic("lo", LOOPBACK, &[("127.0.0.1", 8), ("::1", 128)]),
            nic("eth0", 1, &[("10.0.0.1", 24), ("fe80::1", 64)]),
            nic("eth1", 1, &[("192.168.7.1", 24), ("10.9.0.1", 16)]),
        ]
    }

    fn chosen(include: &[&str], exclude: &[&str], families: Families) -> Vec<String> {
        let read = |all: &[&str]| all.iter().map(|text| text.parse().unwrap()).collect();
        let choice = Chosen::new(read(include), read(exclude), families).unwrap();
        let own = |nic: &Nic| choice.of(nic, false);
        host()
            .iter()
            .flat_map(own)
            .map(|own| own.ip.to_string())
            .collect()
    }

    #[test]
    fn loopback_alone_unless_others_are_named() {
        use Families::{Both, V4, V6};
        assert_eq!(chosen(&[], &[], Both), ["127.0.0.1", "::1"]);
        assert_eq!(chosen(&[], &[], V6), ["::1"]);
        assert_eq!(chosen(&["eth0"], &[], Both), ["10.0.0.1", "fe80::1"]);
        assert_eq!(chosen(&["eth0"], &[], V4), ["10.0.0.1"]);
        assert_eq!(chosen(&["10.0.0.0/8"], &[], Both), ["10.0.0.1", "10.9.0.1"]);
        assert_eq!(chosen(&["10.9.0.1"], &[], Both), ["10.9.0.1"]);
        assert_eq!(chosen(&["lo", "eth1"], &[], V4).len(), 3);
        assert_eq!(chosen(&[], &["eth1"], Both), ["10.0.0.1", "fe80::1"]);
        assert_eq!(chosen(&[], &["eth0", "192.168.0.0/16"], Both), ["10.9.0.1"]);
        assert_eq!(chosen(&["e*"], &[], V6), ["fe80::1"]);
        assert_eq!(chosen(&["*"], &[], Both).len(), 6);
    }

    #[test]
    fn an_alternative_name_names_a_nic_as_its_own_does() {
        let mut eth0 = nic("eth0", 1, &[("10.0.0.1", 24)]);
        eth0.alternatives = vec!["enp9s9".to_owned(), "the-longer-name-of-a-slot".to_owned()];
        for text in ["enp9s9", "enp*", "the-longer-name-of-a-slot", "eth0"] {
            let named = vec![text.parse().unwrap()];
            let choice = Chosen::new(named.clone(), Vec::new(), Families::Both).unwrap();
            assert_eq!(choice.of(&eth0, false).len(), 1, "{text}");
            let without = Chosen::new(Vec::new(), named, Families::Both).unwrap();
            assert!(without.of(&eth0, false).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_name_that_changes_takes_no_nic_away_and_an_address_that_is_not_ready_is_not_used() {
        let choice = Chosen::new(vec!["eth0".parse().unwrap()], Vec::new(), Families::Both).unwrap();
        let mut renamed = nic("net0", 1, &[("10.0.0.1", 24)]);
        assert!(choice.of(&renamed, false).is_empty());
        assert_eq!(choice.of(&renamed, true).len(), 1);
        renamed.addresses[0].usable = false;
        assert!(choice.of(&renamed, true).is_empty());
    }

    #[test]
    fn patterns_are_written_as_they_are_read_and_others_are_refused() {
        for text in ["eth0", "eth*", "10.0.0.0/8", "fd00::/8", "*"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        let long = "x".repeat(ALTERNATIVE_MAX + 1);
        for text in ["", "10.0.0.0/33", "a*b", long.as_str(), "x/8", "a b"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
        let both = Chosen::new(
            vec!["a".parse().unwrap()],
            vec!["b".parse().unwrap()],
            Families::Both,
        );
        assert!(both.unwrap_err().to_string().contains("either"));
    }
}
