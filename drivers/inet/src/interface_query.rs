//! What is asked of an interface, beside its name.

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;

/// Which of an interface's addresses a rail uses when its name gives only the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Its first IPv4 address.
    #[default]
    V4,
    /// Its first IPv6 address; one that is not link-local, if there is one.
    V6,
}

/// Which address, and how long frames may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceQuery {
    /// Which addresses of the interface.
    pub family: Family,
    /// Largest IP packet, in bytes, when it is to be smaller than the interface's MTU.
    pub mtu: Option<usize>,
    /// Longest frame, in bytes, where the MTU allows longer ones.
    pub frame: usize,
}

impl Default for InterfaceQuery {
    /// As the interface has it.
    fn default() -> Self {
        Self {
            family: Family::V4,
            mtu: None,
            frame: PAYLOAD_MAX,
        }
    }
}

/// Longest UDP payload over IPv4, and what these drivers use over IPv6.
pub const PAYLOAD_MAX: usize = 65_507;

/// Shortest frame that the layers above can work with: two of their headers and something in them.
pub const FRAME_MIN: usize = 256;

/// The error of a rail that cannot be used as it is named or configured.
pub fn unusable(name: &RailName, reason: impl Into<String>, remedy: impl Into<String>) -> RailError {
    RailError::Unusable {
        rail: name.to_string(),
        reason: reason.into(),
        remedy: remedy.into(),
    }
}
