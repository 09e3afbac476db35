//! Addresses of rails: IPv4, IPv6, or a driver's native bytes; one type for all, as published to peers.
//!
//! As text: `udp:10.0.0.1:56081`, `udp:[fe80::1%2]:56081`, `shm:2f0a…` (native bytes in hexadecimal). What a
//! peer publishes is hostile: reading an address takes no more than its longest form needs.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::RailError;

/// Longest native address, in bytes.
pub const NATIVE_MAX: usize = 256;

/// Longest kind, in bytes.
pub const KIND_MAX: usize = 16;

/// Where a peer's rail can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Address {
    /// IPv4 or IPv6, with a port.
    Inet(SocketAddr),
    /// Bytes that only the driver understands; at most [`NATIVE_MAX`].
    #[serde(deserialize_with = "native_bytes")]
    Native(Vec<u8>),
}

/// An address together with the kind of rail that understands it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RailAddress {
    /// The driver's kind, as in [`RailName::kind`](crate::name::RailName::kind); a newer peer may have kinds
    /// that we do not know.
    #[serde(deserialize_with = "kind")]
    pub kind: String,
    /// The address itself.
    pub address: Address,
}

impl RailAddress {
    /// An address of native bytes.
    pub fn native(kind: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            kind: kind.to_owned(),
            address: Address::Native(bytes.into()),
        }
    }

    /// An IPv4 or IPv6 address.
    pub fn inet(kind: &str, socket: SocketAddr) -> Self {
        Self {
            kind: kind.to_owned(),
            address: Address::Inet(socket),
        }
    }

    /// The native bytes, when this is a native address of `kind`.
    pub fn native_of(&self, kind: &str) -> Option<&[u8]> {
        match &self.address {
            Address::Native(bytes) if self.kind == kind && bytes.len() <= NATIVE_MAX => Some(bytes),
            _ => None,
        }
    }

    /// The socket address, when this is an IPv4 or IPv6 address of `kind`.
    pub fn inet_of(&self, kind: &str) -> Option<SocketAddr> {
        match &self.address {
            Address::Inet(socket) if self.kind == kind => Some(*socket),
            _ => None,
        }
    }
}

impl fmt::Display for RailAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:", self.kind)?;
        match &self.address {
            Address::Inet(socket) => write!(out, "{socket}"),
            Address::Native(bytes) => bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        }
    }
}

impl FromStr for RailAddress {
    type Err = RailError;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, RailError> {
        let shown = || -> String { text.chars().filter(|c| !c.is_control()).take(80).collect() };
        let bad = |reason| RailError::misuse("address", &shown(), reason);
        let (kind, rest) = text
            .split_once(':')
            .filter(|(kind, _)| is_kind(kind))
            .ok_or_else(|| bad("does not start with the kind of a rail and a colon"))?;
        if let Ok(socket) = rest.parse() {
            return Ok(Self::inet(kind, socket));
        }
        let bytes = from_hex(rest).ok_or_else(|| {
            bad("is neither an IP address with a port nor at most 256 bytes in hexadecimal")
        })?;
        Ok(Self::native(kind, bytes))
    }
}

/// Bytes in hexadecimal, two digits each.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.len() > 2 * NATIVE_MAX || !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
    digits.chunks_exact(2).map(byte).collect()
}

fn is_kind(kind: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !kind.is_empty() && kind.len() <= KIND_MAX && kind.bytes().all(plain)
}

fn kind<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let kind = String::deserialize(from)?;
    if is_kind(&kind) {
        return Ok(kind);
    }
    Err(de::Error::custom("not the kind of a rail"))
}

/// Reads bytes as a list of numbers or as bytes, and stops at the first one too many.
fn native_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    struct Bounded;

    impl<'de> Visitor<'de> for Bounded {
        type Value = Vec<u8>;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(out, "at most {NATIVE_MAX} bytes")
        }

        fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            if bytes.len() > NATIVE_MAX {
                return Err(E::invalid_length(bytes.len(), &self));
            }
            Ok(bytes.to_vec())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u8>, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = list.next_element()? {
                if bytes.len() == NATIVE_MAX {
                    return Err(de::Error::invalid_length(NATIVE_MAX + 1, &self));
                }
                bytes.push(byte);
            }
            Ok(bytes)
        }
    }

    from.deserialize_seq(Bounded)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_three_forms_look_as_documented() {
        let shown = |address: RailAddress| address.to_string();
        let four = RailAddress::inet("udp", "10.0.0.1:56081".parse().unwrap());
        let six = RailAddress::inet("udp", "[fe80::1%2]:56081".parse().unwrap());
        assert_eq!(shown(four.clone()), "udp:10.0.0.1:56081");
        assert_eq!(shown(six.clone()), "udp:[fe80::1%2]:56081");
        assert_eq!(shown(RailAddress::native("shm", [0x2f, 0x0a])), "shm:2f0a");
        assert_eq!(shown(RailAddress::native("shm", [])), "shm:");
        assert!(four.inet_of("udp").is_some() && four.inet_of("xdp").is_none());
        assert!(six.native_of("udp").is_none());
        let native = RailAddress::native("shm", [1]);
        assert_eq!(
            (native.native_of("shm"), native.native_of("sim")),
            (Some(&[1u8][..]), None)
        );
        assert!(native.inet_of("shm").is_none());
    }

    #[test]
    fn text_that_is_no_address_is_refused_and_not_echoed_raw() {
        let long = format!("shm:{}", "00".repeat(NATIVE_MAX + 1));
        let texts = [
            "",
            "shm",
            ":00",
            "SHM:00",
            "shm:0",
            "shm:+1",
            "shm:0g",
            "udp:10.0.0.1",
            "udp:10.0.0.1:99999",
            "udp:[fe80::1",
            "udp:host:1",
            "a\u{1b}[2J:00",
            "akindthatistoolong:00",
            &long,
        ];
        for text in texts {
            let error = text.parse::<RailAddress>().expect_err(text);
            assert!(error.code() == "misuse" && !error.to_string().contains('\u{1b}'));
        }
    }

    #[test]
    fn hostile_data_is_refused_without_being_collected() {
        let with = |kind: &str, address: &str| {
            serde_json::from_str::<RailAddress>(&format!(r#"{{"kind":{kind:?},"address":{address}}}"#))
        };
        assert!(with("shm", r#"{"native":[1,2,255]}"#).is_ok());
        assert!(with("udp", r#"{"inet":"127.0.0.1:1"}"#).is_ok());
        let list = |length: usize| format!(r#"{{"native":[{}]}}"#, vec!["7"; length].join(","));
        assert!(with("shm", &list(NATIVE_MAX)).is_ok());
        assert!(with("shm", &list(NATIVE_MAX + 1)).is_err());
        for address in [
            r#"{"native":[256]}"#,
            r#"{"native":[-1]}"#,
            r#"{"native":"00"}"#,
            r#"{"native":null}"#,
            r#"{"inet":"127.0.0.1"}"#,
            r#"{"inet":"localhost:1"}"#,
            r#"{"carrier":"pigeon"}"#,
            r#"{"native":[1],"inet":"127.0.0.1:1"}"#,
            "[]",
            "7",
        ] {
            assert!(with("shm", address).is_err(), "{address}");
        }
        for kind in ["", "SHM", "shm:", "a kind", "abcdefghijklmnopq"] {
            assert!(with(kind, r#"{"native":[]}"#).is_err(), "{kind}");
        }
    }

    fn any_address() -> impl Strategy<Value = RailAddress> {
        let four = (any::<u32>(), any::<u16>())
            .prop_map(|(ip, port)| SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(ip), port)));
        let six = (any::<u128>(), any::<u16>(), any::<u32>()).prop_map(|(ip, port, scope)| {
            SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope))
        });
        let inet = prop_oneof![four, six].prop_map(Address::Inet);
        let native = prop::collection::vec(any::<u8>(), 0..=NATIVE_MAX).prop_map(Address::Native);
        ("[a-z][a-z0-9]{0,15}", prop_oneof![inet, native])
            .prop_map(|(kind, address)| RailAddress { kind, address })
    }

    proptest! {
        #[test]
        fn an_address_survives_text(address in any_address()) {
            prop_assert_eq!(address.to_string().parse::<RailAddress>().unwrap(), address);
        }

        #[test]
        fn no_text_hurts_its_reader(text in "\\PC{0,80}") {
            if let Ok(address) = text.parse::<RailAddress>() {
                prop_assert!(address.to_string().parse::<RailAddress>().is_ok());
            }
        }

        #[test]
        fn an_address_survives_data(address in any_address()) {
            // Standard library addresses travel as text, which has no place for a scope.
            let mut address = address;
            if let Address::Inet(SocketAddr::V6(six)) = &mut address.address {
                six.set_scope_id(0);
            }
            let text = serde_json::to_string(&address).unwrap();
            prop_assert_eq!(serde_json::from_str::<RailAddress>(&text).unwrap(), address);
        }
    }
}
