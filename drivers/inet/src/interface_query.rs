//! What a rail requires of an interface, beside its name.

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;

/// Selects the address of an interface when a rail's name gives only the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// The interface's first IPv4 address.
    #[default]
    V4,
    /// The interface's first IPv6 address, link-local only when there is no other.
    V6,
}

/// The address family and the frame length that a rail requires of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceQuery {
    /// The family of the address.
    pub family: Family,
    /// Largest IP packet in bytes, where it is to be smaller than the interface's MTU.
    pub mtu: Option<usize>,
    /// Longest frame, in bytes, where the MTU allows longer ones.
    pub frame: usize,
}

impl Default for InterfaceQuery {
    /// Takes the first IPv4 address and the interface's own MTU.
    fn default() -> Self {
        Self {
            family: Family::V4,
            mtu: None,
            frame: PAYLOAD_MAX,
        }
    }
}

/// Longest UDP payload over IPv4; these drivers use the same limit over IPv6.
pub const PAYLOAD_MAX: usize = 65_507;

/// Shortest frame limit that the layers above can work with: two of their headers and some payload.
pub const FRAME_MIN: usize = 256;

/// Builds the error of a rail of which something is in use by another process, or another rail.
pub fn taken(name: &RailName, reason: impl Into<String>, remedy: impl Into<String>) -> RailError {
    RailError::Taken {
        rail: name.to_string(),
        reason: reason.into(),
        remedy: remedy.into(),
    }
}

/// Builds the error of a rail that cannot be used as it is named or configured.
pub fn unusable(name: &RailName, reason: impl Into<String>, remedy: impl Into<String>) -> RailError {
    RailError::Unusable {
        rail: name.to_string(),
        reason: reason.into(),
        remedy: remedy.into(),
    }
}
