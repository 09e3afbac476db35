//! Sizes and switches of the usnic rail, the address that a function is given, and what the reference leaves
//! open.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use doorbell_fabric::error::RailError;
use doorbell_fabric::ether::Mac;
use doorbell_fabric::name::RailName;
use doorbell_inet::{StaticAddress, unusable};
use doorbell_packet::{Bounds, LINK};

use crate::layout::{Layout, RING_MOST};
use crate::rail_name::Object;
use crate::remedies;

/// The longest IP packet: usNIC's MTU is 68 to 9000.
pub(crate) const MTU_MAX: usize = 9_000;
/// An MTU that every Ethernet device has.
pub(crate) const MTU: usize = 1_500;
/// Bytes of a tag that may come with Ethernet's header.
const TAG: usize = 4;
/// The function does not set the room for frames below this many bytes: lines of 64.
const LINE: usize = 64;

/// The owner of filters and of the switches of queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// The agent, where its socket is there; else the function itself.
    #[default]
    Auto,
    /// The agent, and no other way.
    Agent,
    /// The function's own command block, as on a vNIC that is owned whole. A real usNIC function may refuse
    /// it (error 3).
    Direct,
    /// The physical function, which this process opens for itself.
    Proxy,
}

/// What is done with commands that the reference does not say a virtual function takes `[U]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VfCommands {
    /// The commands are tried, and may be refused (errors 3 and 5).
    #[default]
    Try,
    /// The commands are not sent: no public driver sends them to a usNIC function.
    Skip,
    /// The commands have to work: as on a vNIC that is owned whole.
    Need,
}

/// How commands are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commands {
    /// Commands go to the command block, and to the ring (devcmd2) where only that is there.
    #[default]
    Auto,
    /// Commands go to the command block.
    Devcmd,
    /// Commands go to the ring.
    Devcmd2,
}

/// What can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsnicConfig {
    /// The function's own IPv4 address: `10.0.0.5/24`, or one for each of several functions, separated by
    /// blanks or commas: `0000:3b:00.1=10.0.0.5/24 model/D/vf1=10.0.0.6/24`. A modelled function without one
    /// gets `10.86.0.(number + 1)/24`.
    pub address: Option<String>,
    /// Where packets for other networks go.
    pub gateway: Option<IpAddr>,
    /// The port of the priority channel; the data channel has the next one.
    pub port: u16,
    /// Largest IP packet, in bytes.
    pub mtu: usize,
    /// Frames of the data channel that can wait to be received, and to be sent: powers of two.
    pub receive_ring: usize,
    /// Entries of each send ring; see `receive_ring`.
    pub send_ring: usize,
    /// Received frames that can be kept out of the rings at a time.
    pub spare: usize,
    /// Whether the device makes and checks checksums.
    pub checksum: bool,
    /// The owner of the filters that steer frames to the function's queues.
    pub control: Control,
    /// The agent's socket; by default beside the model's sockets, or `/run/doorbell/usnic-BDF.sock` of the
    /// physical function.
    pub agent: Option<PathBuf>,
    /// Whether OPEN, INIT, NOTIFY and ENABLE are given to the function's own command block.
    pub vf_commands: VfCommands,
    /// How the function takes commands.
    pub commands: Commands,
    /// The number by which the physical function's firmware knows this one; by itself the device and function
    /// number of its address, less one, which is another one inside of a virtual machine.
    pub function: Option<u32>,
    /// Whether interrupts may wake a sleeper. Without, one who sleeps looks every millisecond.
    pub interrupts: bool,
    /// Whether ARP comes by a filter of its own. Without it, the rail cannot answer requests for its address,
    /// and neighbours have to be learned from peers that send first.
    pub arp: bool,
    /// The hardware address, where neither the function nor its physical one reports one.
    pub mac: Option<Mac>,
}

/// The port where none is set, since all are the function's.
pub const PORT: u16 = doorbell_inet::PORT;

impl Default for UsnicConfig {
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
            control: Control::Auto,
            agent: None,
            vf_commands: VfCommands::Try,
            commands: Commands::Auto,
            function: None,
            interrupts: true,
            arp: true,
            mac: None,
        }
    }
}

impl UsnicConfig {
    /// Bytes of rings and frames that a rail locks, for the device to reach.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        self.layout().bytes() as u64
    }

    /// Bytes that the device may write of a received frame.
    pub(crate) fn room(&self) -> usize {
        (self.mtu + LINK + TAG).next_multiple_of(LINE)
    }

    /// Returns how the memory is cut up.
    pub(crate) fn layout(&self) -> Layout {
        Layout::new(self.send_ring, self.receive_ring, self.spare, self.room())
    }

    /// The number of a function at its physical one.
    pub(crate) fn index_of(&self, object: &Object) -> u32 {
        self.function.unwrap_or_else(|| object.index())
    }

    /// The address of one function.
    pub(crate) fn address_of(&self, name: &RailName, object: &Object) -> Result<StaticAddress, RailError> {
        let wrong = |reason: String| {
            let remedy = if reason.contains("usnic.gateway") {
                "unset the gateway, or set it to one of that network: `unset DOORBELL_USNIC_GATEWAY`"
                    .to_owned()
            } else {
                let object = remedies::quoted(std::path::Path::new(&object.to_string()));
                format!(
                    "set usnic.address to one, as in `export DOORBELL_USNIC_ADDRESS={object}=10.0.0.5/24`"
                )
            };
            unusable(name, reason, remedy)
        };
        let text = self.address.as_deref().unwrap_or_default();
        let is_ours = |whose: &str| {
            Object::parse(whose)
                .map(|whose| whose == *object)
                .map_err(|_| "no PCI address and no function of a model".to_owned())
        };
        let label = object.to_string();
        let found = StaticAddress::find(text, self.gateway, ("usnic", &label), is_ours);
        let given = match (found, object) {
            (Err(_), Object::Model { .. }) if text.trim().is_empty() => {
                modelled(object.index(), self.gateway)
                    .checked("usnic")
                    .map_err(wrong)?
            }
            (found, _) => found.map_err(wrong)?,
        };
        if !given.ip.is_ipv4() {
            return Err(wrong(
                "usNIC steers by IPv4 addresses only, and this one is IPv6".to_owned(),
            ));
        }
        Ok(given)
    }

    /// Checks every other value.
    pub(crate) fn check(&self, name: &RailName) -> Result<(), RailError> {
        Bounds {
            setting: "usnic",
            rings: [self.receive_ring, self.send_ring],
            ring_most: RING_MOST,
            spare: self.spare,
            port: self.port,
            mtu: self.mtu,
            mtu_most: MTU_MAX,
            mtu_reason: "usNIC takes IP packets of 576 to 9000 bytes here",
        }
        .check(name)
    }
}

/// Returns what a modelled function has where nothing is set: no other hosts are on its link.
fn modelled(index: u32, gateway: Option<IpAddr>) -> StaticAddress {
    StaticAddress {
        ip: Ipv4Addr::new(10, 86, (index / 254) as u8, (index % 254) as u8 + 1).into(),
        prefix: 16,
        gateway,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: Option<&str>, object: &str) -> Result<String, String> {
        let config = UsnicConfig {
            address: text.map(str::to_owned),
            ..UsnicConfig::default()
        };
        let name = format!("usnic:{object}").parse().unwrap();
        let object = Object::parse(object).unwrap();
        config
            .address_of(&name, &object)
            .map(|given| format!("{}/{}", given.ip, given.prefix))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn each_function_has_its_address() {
        let both = Some("0000:3b:00.1=10.0.0.5/24 model/D/vf1=10.0.0.6/24");
        assert_eq!(of(both, "0000:3b:00.1").unwrap(), "10.0.0.5/24");
        assert_eq!(of(both, "model/D/vf1").unwrap(), "10.0.0.6/24");
        assert_eq!(of(None, "model/D/vf0").unwrap(), "10.86.0.1/16");
        assert_eq!(of(None, "model/D/vf300").unwrap(), "10.86.1.47/16");
        for (text, object, word) in [
            (None, "0000:3b:00.1", "no IP address is set"),
            (both, "model/D/vf0", "no IP address is set"),
            (Some("fd00::5/64"), "0000:3b:00.1", "IPv4 addresses only"),
            (
                Some("eth0=10.0.0.5/24"),
                "0000:3b:00.1",
                "no PCI address and no function",
            ),
        ] {
            let said = of(text, object).unwrap_err();
            assert!(
                said.contains(word) && said.contains("DOORBELL_USNIC_ADDRESS"),
                "{said}"
            );
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let name: RailName = "usnic:0000:3b:00.1".parse().unwrap();
        let good = UsnicConfig::default;
        assert!(good().check(&name).is_ok());
        let bad = [
            UsnicConfig {
                receive_ring: 100,
                ..good()
            },
            UsnicConfig {
                send_ring: 8192,
                ..good()
            },
            UsnicConfig {
                spare: 1 << 20,
                ..good()
            },
            UsnicConfig { port: 0, ..good() },
            UsnicConfig { mtu: 9_001, ..good() },
        ];
        for config in bad {
            assert!(config.check(&name).unwrap_err().to_string().contains("usnic.*"));
        }
    }

    #[test]
    fn the_room_for_a_frame_takes_its_headers_and_a_tag() {
        for mtu in [576, 1500, 8_972, 9_000] {
            let config = UsnicConfig {
                mtu,
                ..UsnicConfig::default()
            };
            assert!(
                config.room() >= mtu + 18
                    && config.room() <= config.layout().chunk
                    && config.room() < 1 << 14
            );
        }
    }
}
