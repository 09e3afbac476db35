//! What a BTL can refuse when it is made.

use doorbell_fabric::error::RailError;

/// Why a BTL cannot be made of a rail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BtlError {
    /// A setting is out of its bounds.
    #[error("btl: setting `{setting}` is {given}, and must be {bounds}")]
    Setting {
        /// The setting's name, as the field of [`BtlConfig`](crate::BtlConfig).
        setting: &'static str,
        /// What was given.
        given: String,
        /// What it may be.
        bounds: &'static str,
    },
    /// The rail's frames are too short to carry anything.
    #[error(
        "btl: frames of rail `{rail}` have {mtu} bytes, and {least} are needed; raise the MTU of the interface, or \
         use another rail"
    )]
    Mtu {
        /// The rail's name.
        rail: String,
        /// Its longest frame.
        mtu: usize,
        /// The least that works.
        least: usize,
    },
    /// Memory or random numbers are not available.
    #[error("btl: {0}")]
    Rail(#[from] RailError),
    /// The timers could not be made.
    #[error("btl: {0}; lower `max_peers`")]
    Timers(#[from] doorbell_hotel::HotelError),
    /// The table of operations could not be made.
    #[error("btl: {0}; lower `operations`")]
    Operations(#[from] doorbell_ring::RingError),
}
