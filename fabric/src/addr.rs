//! Addresses of rails: IPv4, IPv6, or a driver's native bytes; one type for all, as published to peers.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Longest native address, in bytes.
pub const NATIVE_MAX: usize = 256;

/// Where a peer's rail can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Address {
    /// IPv4 or IPv6, with a port.
    Inet(SocketAddr),
    /// Bytes that only the driver understands; at most [`NATIVE_MAX`].
    Native(Vec<u8>),
}

/// An address together with the kind of rail that understands it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RailAddress {
    /// The driver's kind, as in [`RailName::kind`](crate::name::RailName::kind).
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

    /// The native bytes, when this is a native address of `kind`.
    pub fn native_of(&self, kind: &str) -> Option<&[u8]> {
        match &self.address {
            Address::Native(bytes) if self.kind == kind && bytes.len() <= NATIVE_MAX => Some(bytes),
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
