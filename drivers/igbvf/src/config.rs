//! Sizes and switches of the igbvf rail, and the address that a function is given.

use std::net::IpAddr;

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::{StaticAddress, unusable};
use doorbell_packet::{Bounds, LINK};
use doorbell_vfio::Bdf;

use crate::layout::Layout;

/// Bytes of the longest IP packet that the adapter takes: its longest frame without headers and the link's
/// checksum.
pub(crate) const MTU_MAX: usize = 9_216 - 18;
/// An MTU that every Ethernet device has.
pub(crate) const MTU: usize = 1_500;

/// What can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgbvfConfig {
    /// The function's own IP address: `10.0.0.5/24`, or one for each of several functions, separated by
    /// blanks: `0000:01:10.0=10.0.0.5/24 0000:01:10.2=10.0.0.6/24`. No kernel has it, so it cannot be read
    /// from there.
    pub address: Option<String>,
    /// Where packets for other networks go.
    pub gateway: Option<IpAddr>,
    /// The port of the priority channel; the data channel has the next one. The address is the rail's alone,
    /// so any will do.
    pub port: u16,
    /// Largest IP packet, in bytes.
    pub mtu: usize,
    /// Frames that can wait to be received: a power of two.
    pub receive_ring: usize,
    /// Frames of the data channel that can wait to be sent: a power of two.
    pub send_ring: usize,
    /// Received frames that can be kept out of the ring at a time.
    pub spare: usize,
    /// Whether the device makes and checks UDP's checksums.
    pub checksum: bool,
}

/// The port where none is set, since all are the function's.
pub const PORT: u16 = doorbell_inet::PORT;

impl Default for IgbvfConfig {
    fn default() -> Self {
        Self {
            address: None,
            gateway: None,
            port: PORT,
            mtu: MTU,
            receive_ring: 1024,
            send_ring: 512,
            spare: 256,
            checksum: true,
        }
    }
}

impl IgbvfConfig {
    /// Bytes of rings and frames that a rail locks, for the device to reach.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        self.layout().bytes() as u64
    }

    /// Returns how the memory is cut up.
    pub(crate) fn layout(&self) -> Layout {
        Layout::new(self.send_ring, self.receive_ring, self.spare, self.mtu + LINK)
    }

    /// The address of one function.
    pub(crate) fn address_of(&self, name: &RailName, bdf: Bdf) -> Result<StaticAddress, RailError> {
        let text = self.address.as_deref().unwrap_or_default();
        let is_ours = |whose: &str| {
            let whose: Result<Bdf, _> = whose.parse();
            whose
                .map(|whose| whose == bdf)
                .map_err(|_| "no PCI address".to_owned())
        };
        StaticAddress::find(text, self.gateway, ("igbvf", &bdf.to_string()), is_ours).map_err(|reason| {
            let remedy = format!("set igbvf.address to one, as in DOORBELL_IGBVF_ADDRESS={bdf}=10.0.0.5/24");
            unusable(name, reason, remedy)
        })
    }

    /// Checks every other value.
    pub(crate) fn check(&self, name: &RailName) -> Result<(), RailError> {
        Bounds {
            setting: "igbvf",
            rings: [self.receive_ring, self.send_ring],
            ring_most: 4096,
            spare: self.spare,
            port: self.port,
            mtu: self.mtu,
            mtu_most: MTU_MAX,
            mtu_reason: "the adapter takes IP packets of 576 to 9198 bytes",
        }
        .check(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, bdf: &str) -> Result<StaticAddress, String> {
        let config = IgbvfConfig {
            address: Some(text.to_owned()),
            ..IgbvfConfig::default()
        };
        let name = format!("igbvf:{bdf}").parse().unwrap();
        config
            .address_of(&name, bdf.parse().unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn each_function_has_its_address() {
        let both = "0000:01:10.0=10.0.0.5/24 0000:01:10.2=fd00::6/64";
        assert_eq!(
            of("10.0.0.5/24", "0000:01:10.0").unwrap().ip.to_string(),
            "10.0.0.5"
        );
        assert_eq!(of(both, "0000:01:10.0").unwrap().prefix, 24);
        assert_eq!(of(both, "0000:01:10.2").unwrap().ip.to_string(), "fd00::6");
        for (text, word) in [
            ("", "no IP address is set"),
            (both, "no IP address is set"),
            ("10.0.0.5", "not a host's address"),
            ("10.0.0.5/33", "not a host's address"),
            ("127.0.0.1/8", "not a host's address"),
            ("10.0.0.5/24 10.0.0.6/24", "more than one"),
            ("x=10.0.0.5/24", "no PCI address"),
        ] {
            let said = of(text, "0000:01:10.4").unwrap_err();
            assert!(
                said.contains(word) && said.contains("DOORBELL_IGBVF_ADDRESS"),
                "{text}: {said}"
            );
        }
    }

    #[test]
    fn a_gateway_is_on_the_link() {
        let name: RailName = "igbvf:0000:01:10.0".parse().unwrap();
        let with = |address: &str, gateway: &str| {
            let config = IgbvfConfig {
                address: Some(address.to_owned()),
                gateway: Some(gateway.parse().unwrap()),
                ..IgbvfConfig::default()
            };
            config
                .address_of(&name, "0000:01:10.0".parse().unwrap())
                .map_err(|error| error.to_string())
        };
        for (address, gateway) in [
            ("10.0.0.5/24", "10.0.0.1"),
            ("10.0.0.5/32", "10.1.0.1"),
            ("fd00::5/64", "fd00::1"),
            ("fd00::5/64", "fe80::1"),
        ] {
            assert!(with(address, gateway).is_ok(), "{address} {gateway}");
        }
        for (address, gateway) in [("10.0.0.5/24", "10.0.1.1"), ("fd00::5/64", "fd00:0:0:1::1")] {
            let said = with(address, gateway).unwrap_err();
            assert!(said.contains("is not in the function's network"), "{said}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let name: RailName = "igbvf:0000:01:10.0".parse().unwrap();
        let good = IgbvfConfig::default;
        assert!(good().check(&name).is_ok());
        let bad = [
            IgbvfConfig {
                receive_ring: 100,
                ..good()
            },
            IgbvfConfig {
                send_ring: 32,
                ..good()
            },
            IgbvfConfig {
                spare: 1 << 20,
                ..good()
            },
            IgbvfConfig { port: 0, ..good() },
            IgbvfConfig {
                mtu: 10_000,
                ..good()
            },
        ];
        for config in bad {
            assert!(config.check(&name).unwrap_err().to_string().contains("igbvf.*"));
        }
    }
}
