//! The addresses that are resolved: host names, IP addresses, GIDs and LIDs.
//!
//! On the wire an address is a type and 64 bytes, padded with zeros, in network byte order.
//!
//! reference: acm, section 4.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Bytes of an address on the wire.
pub const INFO: usize = 64;
/// Maximum bytes of a name: one of [`INFO`] is its terminator.
pub const NAME_MAX: usize = INFO - 1;

/// A host name: 1 to 63 bytes of text, compared without regard to the case of ASCII letters.
#[derive(Clone, Eq)]
pub struct Name(Box<str>);

/// Why a text is not a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The text is empty.
    #[error("a name has at least one character")]
    Empty,
    /// The text is too long.
    #[error("a name has at most {NAME_MAX} bytes")]
    TooLong,
    /// The text has characters that a terminal or a configuration file would misinterpret.
    #[error("a name is UTF-8 without spaces, control characters and commas")]
    NotText,
}

impl Name {
    /// Creates a name from text.
    ///
    /// ```
    /// use doorbell_acm::address::Name;
    /// assert_eq!(Name::new("Node1")?, Name::new("node1")?);
    /// # Ok::<(), doorbell_acm::address::InvalidName>(())
    /// ```
    ///
    /// # Errors
    /// When the text is empty, longer than [`NAME_MAX`] bytes, or has characters that no host name has.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let unfit = |c: char| c.is_control() || c.is_whitespace() || c == ',';
        match text.len() {
            0 => Err(InvalidName::Empty),
            NAME_MAX.. if text.len() > NAME_MAX => Err(InvalidName::TooLong),
            _ if text.contains(unfit) => Err(InvalidName::NotText),
            _ => Ok(Self(text.into())),
        }
    }

    /// Returns the text as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0
            .bytes()
            .for_each(|byte| state.write_u8(byte.to_ascii_lowercase()));
        state.write_u8(0xff);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// An IP address in text form, with its interface if it is link-local: `fe80::1%eth0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopedIp {
    /// The IP address.
    pub ip: IpAddr,
    /// The name or the number of the interface.
    pub zone: Option<String>,
}

/// Why the zone of an IP address is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidZone {
    /// The address is not link-local, so it has no zone.
    #[error("only a link-local address (fe80::…) has an interface after a %")]
    NotOfALink,
    /// The zone is not the name of an interface.
    #[error("the text after the % is not the name of an interface: {0}")]
    NotAnInterface(&'static str),
}

impl ScopedIp {
    /// Parses an IP address; returns `None` if the text is not one, and may be a name.
    ///
    /// ```
    /// use doorbell_acm::address::ScopedIp;
    /// let found = ScopedIp::read("fe80::1%eth0")?.ok_or("not an address")?;
    /// assert_eq!((found.ip, found.zone.as_deref()), ("fe80::1".parse()?, Some("eth0")));
    /// assert_eq!(ScopedIp::read("node1")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When it is an address with an invalid zone.
    pub fn read(text: &str) -> Result<Option<Self>, InvalidZone> {
        let (ip, zone) = match text.split_once('%') {
            Some((ip, zone)) => (ip, Some(zone)),
            None => (text, None),
        };
        let Ok(ip) = ip.parse::<IpAddr>() else {
            return Ok(None);
        };
        if let Some(zone) = zone {
            if !is_of_a_link(ip) {
                return Err(InvalidZone::NotOfALink);
            }
            crate::config::interface_name(zone).map_err(InvalidZone::NotAnInterface)?;
        }
        let zone = zone.map(str::to_owned);
        Ok(Some(Self { ip, zone }))
    }
}

/// Whether an address is link-local.
#[must_use]
pub const fn is_of_a_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
        IpAddr::V4(_) => false,
    }
}

/// A port's global identifier: 16 bytes, written as an IPv6 address is.
///
/// Without InfiniBand (RoCE v2), a GID *is* an address of the interface: an IPv6 address, or an IPv4 address
/// mapped into IPv6.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of all zeros, which means none.
    pub const NONE: Self = Self([0; 16]);

    /// Returns the GID that RoCE v2 derives from an IP address.
    ///
    /// ```
    /// use doorbell_acm::address::Gid;
    /// assert_eq!(Gid::of_ip([10, 0, 0, 1].into()).to_string(), "::ffff:10.0.0.1");
    /// ```
    #[must_use]
    pub fn of_ip(ip: IpAddr) -> Self {
        Self(match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        })
    }

    /// Returns the IP address that the GID is, without InfiniBand.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether the GID is all zeros.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Gid {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse::<Ipv6Addr>()?.octets()))
    }
}

/// The type of an address, with its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Kind {
    /// A host name.
    Name = 1,
    /// An IPv4 address.
    V4 = 2,
    /// An IPv6 address.
    V6 = 3,
    /// A GID. The original uses it internally only; clients may use it here.
    Gid = 4,
    /// A LID: the local identifier of a port in an InfiniBand subnet.
    Lid = 5,
}

impl Kind {
    /// Lists all types of addresses.
    pub const ALL: [Self; 5] = [Self::Name, Self::V4, Self::V6, Self::Gid, Self::Lid];

    /// Returns the number on the wire.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Returns the type with a number, if there is one.
    #[must_use]
    pub fn of(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// An address of any type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host name.
    Name(Name),
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address.
    V6(Ipv6Addr),
    /// A GID of a port.
    Gid(Gid),
    /// A LID other than 0.
    Lid(u16),
}

impl Address {
    /// Returns the type of the address.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Name(_) => Kind::Name,
            Self::V4(_) => Kind::V4,
            Self::V6(_) => Kind::V6,
            Self::Gid(_) => Kind::Gid,
            Self::Lid(_) => Kind::Lid,
        }
    }

    /// Returns the IP address, if it is one.
    #[must_use]
    pub const fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::V4(ip) => Some(IpAddr::V4(*ip)),
            Self::V6(ip) => Some(IpAddr::V6(*ip)),
            _ => None,
        }
    }

    /// Returns the canonical form: an IPv4-mapped IPv6 address becomes the IPv4 address.
    #[must_use]
    pub fn canonical(&self) -> Self {
        match self.ip() {
            Some(ip) => ip.into(),
            None => self.clone(),
        }
    }

    /// Returns the 64 bytes on the wire.
    #[must_use]
    pub fn info(&self) -> [u8; INFO] {
        let mut info = [0; INFO];
        let mut put = |bytes: &[u8]| info[..bytes.len()].copy_from_slice(bytes);
        match self {
            Self::Name(name) => put(name.as_str().as_bytes()),
            Self::V4(ip) => put(&ip.octets()),
            Self::V6(ip) => put(&ip.octets()),
            Self::Gid(gid) => put(&gid.0),
            Self::Lid(lid) => put(&lid.to_be_bytes()),
        }
        info
    }

    /// Parses the 64 bytes on the wire. Bytes after the address are ignored, since clients do not always
    /// clear them. An IPv4-mapped IPv6 address becomes the IPv4 address.
    ///
    /// ```
    /// use doorbell_acm::address::{Address, Kind};
    /// let one = Address::V4([10, 0, 0, 1].into());
    /// assert_eq!(Address::from_info(Kind::V4, &one.info()), Some(one.clone()));
    /// let mapped = Address::V6("::ffff:10.0.0.1".parse()?);
    /// assert_eq!(Address::from_info(Kind::V6, &mapped.info()), Some(one));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn from_info(kind: Kind, info: &[u8; INFO]) -> Option<Self> {
        Some(match kind {
            Kind::Name => {
                let end = info.iter().position(|byte| *byte == 0)?;
                Self::Name(Name::new(std::str::from_utf8(&info[..end]).ok()?).ok()?)
            }
            Kind::V4 => Self::V4(Ipv4Addr::from(*info.first_chunk::<4>()?)),
            Kind::V6 => IpAddr::V6(Ipv6Addr::from(*info.first_chunk::<16>()?)).into(),
            Kind::Gid => Self::Gid(Gid(*info.first_chunk::<16>()?)),
            Kind::Lid => Self::Lid(u16::from_be_bytes(*info.first_chunk::<2>()?)),
        })
    }
}

impl From<IpAddr> for Address {
    /// An IPv4-mapped IPv6 address becomes the IPv4 address.
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip),
            IpAddr::V6(ip) => Self::V6(ip),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::V4(ip) => ip.fmt(f),
            Self::V6(ip) => ip.fmt(f),
            Self::Gid(gid) => gid.fmt(f),
            Self::Lid(lid) => lid.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_case_and_checked() {
        let hash = |name: &Name| {
            let mut state = std::hash::DefaultHasher::new();
            name.hash(&mut state);
            state.finish()
        };
        let (one, other) = (Name::new("Node-1").unwrap(), Name::new("nODE-1").unwrap());
        assert_eq!(one, other);
        assert_eq!(hash(&one), hash(&other));
        assert_ne!(one, Name::new("node-2").unwrap());
        assert_eq!(Name::new(""), Err(InvalidName::Empty));
        assert_eq!(Name::new(&"a".repeat(64)), Err(InvalidName::TooLong));
        assert!(Name::new(&"a".repeat(63)).is_ok());
        for bad in ["a b", "a\n", "a,b", "a\u{1b}"] {
            assert_eq!(Name::new(bad), Err(InvalidName::NotText), "{bad:?}");
        }
    }

    #[test]
    fn an_address_of_a_link_may_have_its_interface_behind_it() {
        let read =
            |text| ScopedIp::read(text).map(|found| found.map(|found| (found.ip.to_string(), found.zone)));
        let of = |ip: &str, zone: Option<&str>| Ok(Some((ip.to_owned(), zone.map(str::to_owned))));
        assert_eq!(read("fe80::1%eth0"), of("fe80::1", Some("eth0")));
        assert_eq!(read("fe80::1%2"), of("fe80::1", Some("2")));
        assert_eq!(read("fe80::1"), of("fe80::1", None));
        assert_eq!(read("10.0.0.1"), of("10.0.0.1", None));
        for name in ["node1", "node%1", "", "%eth0"] {
            assert_eq!(read(name), Ok(None), "{name}");
        }
        for bad in ["10.0.0.1%eth0", "fd00::1%eth0", "::1%lo"] {
            assert_eq!(read(bad), Err(InvalidZone::NotOfALink), "{bad}");
        }
        let longer = format!("fe80::1%{}", "x".repeat(doorbell_inet::ALTERNATIVE_MAX + 1));
        for bad in ["fe80::1%", "fe80::1%a b", longer.as_str(), "fe80::1%a%b/c"] {
            assert!(matches!(read(bad), Err(InvalidZone::NotAnInterface(_))), "{bad}");
        }
    }

    #[test]
    fn addresses_survive_the_wire() {
        let all = [
            Address::Name(Name::new("node1").unwrap()),
            Address::V4([10, 0, 0, 1].into()),
            Address::V6("fe80::1".parse().unwrap()),
            Address::Gid("fe80::2".parse().unwrap()),
            Address::Lid(0x1234),
        ];
        for address in all {
            let back = Address::from_info(address.kind(), &address.info());
            assert_eq!(back, Some(address));
        }
        assert_eq!(Address::Lid(0x1234).info()[..3], [0x12, 0x34, 0]);
        assert_eq!(Address::from_info(Kind::Name, &[b'a'; INFO]), None, "no end");
        assert_eq!(Address::from_info(Kind::Name, &[0; INFO]), None, "no name");
        assert_eq!(Kind::of(0), None);
        assert_eq!(Kind::of(6), None);
    }
}
