//! Sizes and switches of rails over queue pairs.

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::unusable;

/// Fewest and most entries of a queue.
const ENTRIES: std::ops::RangeInclusive<usize> = 64..=16_384;

/// What can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Frames of the data channel that can wait to be sent: a power of two. The priority channel has a
    /// quarter.
    pub send: usize,
    /// Frames of the data channel that can wait to be received: a power of two. The priority channel has a
    /// quarter.
    pub receive: usize,
    /// Received frames that can be kept out of the queues at a time.
    pub spare: usize,
    /// The place in the port's table of the one GID that is used; `None`: all that can be, best first.
    pub gid_index: Option<u8>,
    /// The service level of InfiniBand, or the priority of Ethernet.
    pub service_level: u8,
    /// The DSCP and ECN bits of packets.
    pub traffic_class: u8,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            send: 256,
            receive: 1024,
            spare: 256,
            gid_index: None,
            service_level: 0,
            traffic_class: 0,
        }
    }
}

impl VerbsConfig {
    /// Checks the values.
    pub(crate) fn check(&self, name: &RailName) -> Result<(), RailError> {
        for (setting, value) in [("verbs.send", self.send), ("verbs.receive", self.receive)] {
            if !ENTRIES.contains(&value) || !value.is_power_of_two() {
                return Err(unusable(
                    name,
                    format!("{setting} is {value}"),
                    "set it to a power of two from 64 to 16384",
                ));
            }
        }
        if self.service_level > 15 {
            return Err(unusable(
                name,
                format!("verbs.service_level is {}", self.service_level),
                "set it to 0 to 15",
            ));
        }
        Ok(())
    }
}
