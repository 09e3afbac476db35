//! Bounds that the settings of all cards have.

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::unusable;

/// Bytes of Ethernet's header.
pub const LINK: usize = 14;

/// The settings to be checked, and what a card takes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The prefix of the settings' names: the rail's kind.
    pub setting: &'static str,
    /// Entries of the rings.
    pub rings: [usize; 2],
    /// Most entries that a ring can have.
    pub ring_most: usize,
    /// Received frames that can be kept at a time.
    pub spare: usize,
    /// The port of the priority channel.
    pub port: u16,
    /// Largest IP packet.
    pub mtu: usize,
    /// The largest that the card takes.
    pub mtu_most: usize,
    /// The error's text for an MTU that it does not take.
    pub mtu_reason: &'static str,
}

impl Bounds {
    /// Checks all of them.
    ///
    /// # Errors
    /// [`RailError::Unusable`] with the first that is out of bounds.
    pub fn check(&self, name: &RailName) -> Result<(), RailError> {
        let is_ring = |entries: usize| entries.is_power_of_two() && (64..=self.ring_most).contains(&entries);
        let reason = if !self.rings.into_iter().all(is_ring) {
            format!(
                "its rings hold a power of two of frames, from 64 to {}",
                self.ring_most
            )
        } else if self.spare > 1 << 14 {
            "at most 16384 frames can be kept".to_owned()
        } else if self.port == 0 || self.port == u16::MAX {
            "a pair of ports starts between 1 and 65534".to_owned()
        } else if !(576..=self.mtu_most).contains(&self.mtu) {
            self.mtu_reason.to_owned()
        } else {
            return Ok(());
        };
        let setting = self.setting;
        Err(unusable(
            name,
            reason,
            format!("change the {setting}.* settings, or udp.port and udp.mtu"),
        ))
    }
}
