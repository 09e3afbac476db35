//! Sizes and switches of the xdp rail.

use std::fmt;

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::{Family, InterfaceQuery, PAYLOAD_MAX, unusable};

/// How frames get from the device's queue to the rail's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The device reads and writes the rail's memory itself.
    ZeroCopy,
    /// The driver hands its own buffers over, and the kernel copies.
    Native,
    /// The kernel makes a buffer of its own of each frame first, and copies: every interface can do it.
    Generic,
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::ZeroCopy => "zero-copy",
            Self::Native => "native, copies",
            Self::Generic => "generic, copies",
        })
    }
}

/// What can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// Which addresses of the interface.
    pub family: Family,
    /// The port of the priority channel; the data channel has the next one. 0: the kernel chooses both.
    pub port: u16,
    /// How many pairs of ports to try from `port` upwards, before the rail is refused.
    pub pairs: u16,
    /// Largest IP packet, in bytes, when it is to be smaller than the interface's MTU.
    pub mtu: Option<usize>,
    /// The mode that is wanted and no other; `None`: the best that the interface has, which is reported.
    pub mode: Option<Mode>,
    /// The only queue of the device that is used, where something else steers the rail's ports to it; `None`:
    /// all of them.
    pub queue: Option<u32>,
    /// Frames that can wait to be received, over all queues together: a power of two.
    pub receive_ring: usize,
    /// Frames that can wait to be sent: a power of two.
    pub send_ring: usize,
    /// Received frames that can be kept out of the rings at a time.
    pub spare: usize,
    /// Microseconds for which a receive may poll the device's queue itself (`SO_PREFER_BUSY_POLL`). Only for
    /// devices with hardware queues; costs a system call for each empty poll.
    pub busy_poll: Option<u32>,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self {
            family: Family::V4,
            port: 0,
            pairs: 64,
            mtu: None,
            mode: None,
            queue: None,
            receive_ring: 4096,
            send_ring: 1024,
            spare: 256,
            busy_poll: None,
        }
    }
}

impl XdpConfig {
    /// The conditions that an interface has to meet.
    #[must_use]
    pub fn interface_query(&self) -> InterfaceQuery {
        InterfaceQuery {
            family: self.family,
            mtu: self.mtu,
            frame: PAYLOAD_MAX,
        }
    }

    /// Checks every value.
    pub(crate) fn check(&self, name: &RailName) -> Result<(), RailError> {
        let ring = |entries: usize| entries.is_power_of_two() && (64..=1 << 15).contains(&entries);
        let reason = if !ring(self.receive_ring) || !ring(self.send_ring) {
            "its rings hold a power of two of frames, from 64 to 32768"
        } else if self.spare > 1 << 15 {
            "at most 32768 frames can be kept"
        } else if self.port == u16::MAX || self.pairs == 0 {
            "a pair of ports starts at 65534 at most, and at least one pair is tried"
        } else if self.busy_poll.is_some_and(|time| time == 0 || time > 1_000_000) {
            "busy polling lasts from 1 to 1000000 microseconds"
        } else {
            return Ok(());
        };
        Err(unusable(name, reason, "change the xdp.* and udp.* settings"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_good_and_what_cannot_work_is_refused() {
        let name: RailName = "xdp:eth0".parse().unwrap();
        let good = XdpConfig::default();
        assert!(good.check(&name).is_ok());
        let bad = [
            XdpConfig {
                receive_ring: 100,
                ..good
            },
            XdpConfig {
                receive_ring: 32,
                ..good
            },
            XdpConfig {
                send_ring: 1 << 16,
                ..good
            },
            XdpConfig {
                spare: 1 << 16,
                ..good
            },
            XdpConfig { port: 65_535, ..good },
            XdpConfig { pairs: 0, ..good },
            XdpConfig {
                busy_poll: Some(0),
                ..good
            },
        ];
        for config in bad {
            let error = config.check(&name).unwrap_err().to_string();
            assert!(
                error.contains("xdp:eth0") && error.contains("settings"),
                "{error}"
            );
        }
    }
}
