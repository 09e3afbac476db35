//! Addresses in text form: `10.0.0.1`, `fe80::1`, `fe80::1%eth0`, `node3`, `node[1-16]`, `10.0.0.[1-3,7]`.

use std::fmt;
use std::net::IpAddr;

use doorbell_acm::address::{Address, Name, ScopedIp, is_of_a_link};
use doorbell_inet::{Nic, nics};

use super::args::Format;
use crate::error::ToolError;

/// Maximum number of addresses that one word may mean.
const MOST: usize = 65_536;

/// An address, and the interface that follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address itself.
    pub address: Address,
    zone: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        self.zone.as_ref().map_or(Ok(()), |zone| write!(f, "%{zone}"))
    }
}

impl From<Address> for Place {
    fn from(address: Address) -> Self {
        Self { address, zone: None }
    }
}

impl Place {
    /// Returns the source of a path to this address: with an interface, this host's own link-local address
    /// there. A query has no field for the interface itself.
    ///
    /// # Errors
    /// When there is no such interface, or it has no such address.
    pub fn source(&self) -> Result<Option<Address>, ToolError> {
        let Some(zone) = &self.zone else { return Ok(None) };
        let nic = nic(self, zone)?;
        let own = nic
            .addresses
            .iter()
            .find(|own| own.usable && is_of_a_link(own.ip));
        let own = own.ok_or_else(|| {
            ToolError::Usage(format!(
                "cannot reach `{self}`: the interface {} has no link-local address (fe80::…); see `ip -6 addr`",
                nic.name
            ))
        })?;
        Ok(Some(own.ip.into()))
    }
}

/// Returns the interface with this name or number.
fn nic(of: &Place, zone: &str) -> Result<Nic, ToolError> {
    let all = nics().map_err(|source| ToolError::System {
        what: "list the interfaces of this host",
        source,
    })?;
    let number = zone.parse::<u32>().ok();
    let mut those = all.into_iter();
    let found = those.find(|nic| nic.has_name(zone) || number == Some(nic.index));
    found.ok_or_else(|| {
        ToolError::Usage(format!(
            "`{of}` is not on a link of this host: it has no interface {zone}; `ip -br link` lists the interfaces"
        ))
    })
}

/// Returns all addresses that the words mean, in order.
///
/// # Errors
/// With the text, and what is wrong with it.
pub fn all(words: &[String], format: Format) -> Result<Vec<Place>, ToolError> {
    let mut found = Vec::new();
    for word in words {
        for one in expand(word).map_err(|why| usage(word, &why))? {
            found.push(place(&one, format)?);
        }
    }
    Ok(found)
}

/// Returns an address of this host; with an interface, it has to be that one's.
///
/// # Errors
/// With the text, and what is wrong with it.
pub fn own(word: &str) -> Result<Address, ToolError> {
    let place = place(word, Format::Any)?;
    if let Some(zone) = &place.zone {
        let nic = nic(&place, zone)?;
        let ip = place.address.ip();
        if !nic.addresses.iter().any(|own| Some(own.ip) == ip) {
            return Err(ToolError::Usage(format!(
                "`{place}` is not an address of the interface {}; see `ip -6 addr`",
                nic.name
            )));
        }
    }
    Ok(place.address)
}

/// Parses one address.
///
/// # Errors
/// With the text, and what is wrong with it.
fn place(word: &str, format: Format) -> Result<Place, ToolError> {
    let ip = || match ScopedIp::read(word) {
        Ok(Some(found)) => Ok(Some(Place {
            address: found.ip.into(),
            zone: found.zone,
        })),
        Ok(None) => Ok(None),
        Err(error) => Err(error.to_string()),
    };
    let name = || {
        let name = Name::new(word).map(Address::Name);
        name.map(Place::from).map_err(|error| error.to_string())
    };
    let no_ip = || {
        word.parse::<IpAddr>()
            .err()
            .map_or_else(String::new, |error| error.to_string())
    };
    let found = match format {
        Format::Any => ip().and_then(|ip| ip.map_or_else(name, Ok)),
        Format::Ip => ip().and_then(|ip| ip.ok_or_else(no_ip)),
        Format::Name => name(),
        Format::Gid => word
            .parse()
            .map(|gid| Address::Gid(gid).into())
            .map_err(|_| "it is not a GID".to_owned()),
        Format::Lid => lid(word)
            .map(Place::from)
            .ok_or_else(|| "it is not a LID: a number from 1 to 65535, or 0x1 to 0xffff".to_owned()),
    };
    found.map_err(|why| usage(word, &why))
}

fn lid(word: &str) -> Option<Address> {
    let number = match word.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    };
    number.filter(|lid| *lid != 0).map(Address::Lid)
}

fn usage(word: &str, why: &str) -> ToolError {
    ToolError::Usage(format!(
        "`{word}` is not an address: {why}; give a name, an IPv4 or IPv6 address, or several as in `node[1-16]`"
    ))
}

/// Expands a word with ranges in brackets. An IPv6 address has no brackets, so they always are a range.
fn expand(word: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = word.split_once('[') else {
        return Ok(vec![word.to_owned()]);
    };
    let (ranges, after) = rest.split_once(']').ok_or("its bracket does not close")?;
    let mut found = Vec::new();
    let tails = expand(after)?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            text.parse::<u32>()
                .map_err(|_| format!("`{range}` is not a range of numbers"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("`{range}` ends before it begins"));
        }
        if (to - from) as usize >= MOST {
            return Err(format!("`{range}` has more than {MOST} numbers"));
        }
        // `node[01-16]`: as many digits as the first one has.
        let width = first.len();
        for number in from..=to {
            found.extend(tails.iter().map(|tail| format!("{before}{number:0width$}{tail}")));
            if found.len() > MOST {
                return Err(format!("it stands for more than {MOST} addresses"));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_all_their_numbers() {
        let of = |word: &str| expand(word).unwrap().join(" ");
        assert_eq!(of("node3"), "node3");
        assert_eq!(of("node[1-3]"), "node1 node2 node3");
        assert_eq!(of("node[08-10]x"), "node08x node09x node10x");
        assert_eq!(of("10.0.[1,3].[7-8]"), "10.0.1.7 10.0.1.8 10.0.3.7 10.0.3.8");
        for bad in [
            "node[",
            "node[]",
            "node[3-1]",
            "node[a-b]",
            "node[1-]",
            "a[0-99999]",
            "a[1-999][1-999]",
        ] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_are_what_they_look_like_unless_it_is_said() {
        let of = |word: &str, format| {
            let place = place(word, format).map_err(|error| error.to_string());
            place.map(|place| place.address)
        };
        assert!(matches!(of("10.0.0.1", Format::Any), Ok(Address::V4(_))));
        assert!(matches!(of("fe80::1", Format::Any), Ok(Address::V6(_))));
        assert!(matches!(of("node1", Format::Any), Ok(Address::Name(_))));
        assert!(matches!(of("10.0.0.1", Format::Name), Ok(Address::Name(_))));
        assert!(matches!(of("fe80::1", Format::Gid), Ok(Address::Gid(_))));
        assert_eq!(of("0x10", Format::Lid), Ok(Address::Lid(16)));
        for (bad, format) in [
            ("", Format::Any),
            ("a b", Format::Any),
            ("node1", Format::Ip),
            ("0", Format::Lid),
            ("10.0.0.1%lo", Format::Any),
            ("fe80::1%", Format::Any),
            ("fe80::1%a/b", Format::Ip),
        ] {
            let error = of(bad, format).unwrap_err();
            assert!(error.contains("is not an address"), "{error}");
        }
    }

    #[test]
    fn an_interface_behind_an_address_selects_where_a_path_begins() {
        let of = |word: &str| place(word, Format::Any).unwrap();
        let far = of("fe80::1%nothere0");
        assert_eq!(far.to_string(), "fe80::1%nothere0");
        let said = far.source().unwrap_err().to_string();
        assert!(said.contains("no interface nothere0"), "{said}");
        let said = own("fe80::1%lo").unwrap_err().to_string();
        assert!(said.contains("not an address of the interface lo"), "{said}");
        assert_eq!(of("fe80::1").source().unwrap(), None);
        assert_eq!(of("node1").source().unwrap(), None);
        // The loopback has no link-local address, by its name and by its number.
        for lo in ["fe80::1%lo", "fe80::1%1"] {
            let said = of(lo).source().unwrap_err().to_string();
            assert!(
                said.contains("the interface lo has no link-local address"),
                "{said}"
            );
        }
    }
}
