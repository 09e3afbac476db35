//! Sizes and switches of the udp rail.

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::{Family, InterfaceQuery, unusable};

use crate::sys::BATCH_MAX;

/// The rail's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// The address family that is used of an interface.
    pub family: Family,
    /// The port of the priority channel; the data channel has the next one. 0: the kernel chooses both.
    pub port: u16,
    /// Pairs of ports to try from `port` upwards before the rail is refused (several ranks of one host).
    pub pairs: u16,
    /// Largest IP packet, in bytes, when it is to be smaller than the interface's MTU.
    pub mtu: Option<usize>,
    /// Longest frame, in bytes, where the MTU allows longer ones: the loopback's 64 KiB would make every
    /// buffer of the layers above as long, and are no faster (see `examples/frames.rs`).
    pub frame: usize,
    /// Frames that can be posted between two doorbells on the priority channel.
    pub priority_ring: usize,
    /// Frames that can be posted between two doorbells on the data channel.
    pub data_ring: usize,
    /// Most messages received by one system call, from 1 to 64.
    pub batch: usize,
    /// Receive buffers of each channel that can be kept at a time; allocated when first needed.
    pub spare: usize,
    /// Peers that get connected sockets of their own, two descriptors each; later ones share the rail's own
    /// sockets.
    pub connected: usize,
    /// The kernel's receive buffer of each socket, in bytes.
    pub receive_buffer: usize,
    /// The kernel's send buffer of each socket, in bytes.
    pub send_buffer: usize,
    /// Whether runs of frames of one size to one peer are sent in one piece (`UDP_SEGMENT`), if the kernel
    /// has that.
    pub gso: bool,
    /// Whether runs of frames are received in one piece (`UDP_GRO`), if the kernel has that.
    pub gro: bool,
    /// Microseconds for which a receive may poll the device's queue (`SO_BUSY_POLL`; needs CAP_NET_ADMIN).
    /// Only for devices with hardware queues: the loopback and veth have nothing to poll.
    pub busy_poll: Option<u32>,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            family: Family::V4,
            port: 0,
            pairs: 64,
            mtu: None,
            // Four of them fill one 64 KiB piece of the kernel's.
            frame: RUN_BYTES / 4 / 16 * 16,
            priority_ring: 64,
            data_ring: 256,
            batch: 32,
            spare: 256,
            connected: 64,
            receive_buffer: 4 << 20,
            send_buffer: 4 << 20,
            gso: true,
            gro: true,
            busy_poll: None,
        }
    }
}

/// Longest run of frames in one piece: Linux accepts IPv4 packets of 0xfff0 bytes (`IP_MAX_MTU`), headers
/// included, for segmentation.
pub(crate) const RUN_BYTES: usize = 0xfff0 - 20 - 8;

impl UdpConfig {
    /// Returns what the rail requires of an interface.
    #[must_use]
    pub fn interface_query(&self) -> InterfaceQuery {
        InterfaceQuery {
            family: self.family,
            mtu: self.mtu,
            frame: self.frame,
        }
    }

    /// Checks every value.
    pub(crate) fn check(&self, name: &RailName) -> Result<(), RailError> {
        let rings = [self.priority_ring, self.data_ring];
        let reason = if rings.iter().any(|&ring| ring == 0 || ring > 1 << 14) {
            "the send rings hold between 1 and 16384 frames"
        } else if self.batch == 0 || self.batch > BATCH_MAX {
            "udp.batch is between 1 and 64 messages"
        } else if self.spare > 1 << 16 || self.connected > 1 << 14 {
            "at most 65536 buffers can be kept and 16384 peers be connected"
        } else if self.port == u16::MAX || self.pairs == 0 {
            "udp.port is at most 65534, and udp.pairs at least 1"
        } else if self.receive_buffer > 1 << 30 || self.send_buffer > 1 << 30 {
            "the kernel's buffers are at most 1 GiB"
        } else {
            return Ok(());
        };
        Err(unusable(name, reason, "change the udp.* settings"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_good_and_what_cannot_work_is_refused() {
        let name: RailName = "udp:lo".parse().unwrap();
        let good = UdpConfig::default();
        assert!(good.check(&name).is_ok());
        let bad = [
            UdpConfig {
                priority_ring: 0,
                ..good
            },
            UdpConfig {
                data_ring: 1 << 20,
                ..good
            },
            UdpConfig { batch: 0, ..good },
            UdpConfig { batch: 65, ..good },
            UdpConfig {
                spare: 1 << 20,
                ..good
            },
            UdpConfig {
                connected: 1 << 20,
                ..good
            },
            UdpConfig { port: 65_535, ..good },
            UdpConfig { pairs: 0, ..good },
            UdpConfig {
                receive_buffer: 2 << 30,
                ..good
            },
            UdpConfig {
                send_buffer: 2 << 30,
                ..good
            },
        ];
        for config in bad {
            let error = config.check(&name).unwrap_err().to_string();
            assert!(error.contains("udp:lo") && error.contains("settings"), "{error}");
        }
    }
}
