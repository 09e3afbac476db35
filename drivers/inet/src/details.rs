//! Attributes of an interface by netlink: hardware address, queues, attached XDP program.

use std::io;

use doorbell_fabric::ether::Mac;

use crate::netlink::{attributes, request};
use crate::sys;

/// How an XDP program is attached (linux/if_link.h, `XDP_ATTACHED_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// In the driver, before the kernel allocates a buffer (native).
    Driver,
    /// In the kernel's common code, after a buffer has been allocated.
    Generic,
    /// In the device itself.
    Device,
    /// In several of these modes at once.
    Several,
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// How it is attached.
    pub how: Attached,
    /// Its id in this system; 0 where there are several.
    pub id: u32,
}

/// Attributes of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Its hardware address, if it has six bytes.
    pub mac: Option<Mac>,
    /// The kernel's name of its kind (`veth`, `bridge`); empty for hardware.
    pub kind: String,
    /// Most receive queues that it supports.
    pub queues: u32,
    /// Most transmit queues that it supports.
    pub send_queues: u32,
    /// The interface below it, in the same network namespace.
    pub lower: Option<u32>,
    /// The XDP program on it.
    pub program: Option<Program>,
    /// The driver reports a carrier now. The kernel's interface flags follow up to a second later.
    pub has_carrier: bool,
}

/// Size of `ifinfomsg`.
const LINK: usize = 16;
/// Attributes in `IFLA_XDP`: how a program is attached, and its id (linux/if_link.h).
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;

impl Details {
    /// Requests the attributes of the interface with this index.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses the request.
    pub fn of(index: u32) -> io::Result<Self> {
        let mut body = vec![0; LINK];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        let answer = request(libc::RTM_GETLINK, libc::RTM_NEWLINK, &body)?;
        Ok(read(&answer.map_err(io::Error::from_raw_os_error)?))
    }
}

/// The queues that an interface uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Receive queues, each of which can have one AF_XDP socket.
    pub receive: u32,
    /// Number of transmit queues.
    pub send: u32,
}

/// Queries the queues of the interface `name` by ethtool.
///
/// # Errors
/// When the driver does not report them; drivers with one queue mostly do not.
pub fn channels(name: &str) -> io::Result<Channels> {
    sys::channels(name)
}

/// Whether the driver of the interface `name` has receive rules (`ethtool -n`), as far as it reports their
/// number; which fields they match is another matter.
///
/// # Errors
/// When there is no such interface.
pub fn has_rules(name: &str) -> io::Result<bool> {
    sys::has_rules(name)
}

fn read(body: &[u8]) -> Details {
    let (mut details, mut elsewhere) = (Details::default(), false);
    for (what, value) in attributes(body.get(LINK..).unwrap_or(&[])) {
        match what {
            libc::IFLA_ADDRESS => details.mac = Mac::try_from(value).ok(),
            libc::IFLA_LINK => details.lower = number(value),
            libc::IFLA_LINK_NETNSID => elsewhere = true,
            libc::IFLA_LINKINFO => details.kind = kind(value).unwrap_or_default(),
            libc::IFLA_NUM_RX_QUEUES => details.queues = number(value).unwrap_or(0),
            libc::IFLA_NUM_TX_QUEUES => details.send_queues = number(value).unwrap_or(0),
            libc::IFLA_CARRIER => details.has_carrier = value == [1],
            libc::IFLA_XDP => details.program = program(value),
            _ => {}
        }
    }
    // An index of another namespace means nothing here.
    details.lower = details.lower.filter(|_| !elsewhere);
    details
}

pub(crate) fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn kind(info: &[u8]) -> Option<String> {
    let (_, kind) = attributes(info).find(|(what, _)| *what == libc::IFLA_INFO_KIND)?;
    let text = kind.split(|byte| *byte == 0).next().unwrap_or(&[]);
    Some(String::from_utf8_lossy(text).into_owned())
}

pub(crate) fn program(xdp: &[u8]) -> Option<Program> {
    let find = |wanted| {
        attributes(xdp)
            .find(|(what, _)| *what == wanted)
            .map(|(_, value)| value)
    };
    let how = match find(IFLA_XDP_ATTACHED)?.first()? {
        1 => Attached::Driver,
        2 => Attached::Generic,
        3 => Attached::Device,
        4 => Attached::Several,
        _ => return None,
    };
    Some(Program {
        how,
        id: find(IFLA_XDP_PROG_ID).and_then(number).unwrap_or(0),
    })
}

/// Entry point for the fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzing(body: &[u8]) {
    let details = read(body);
    assert!(details.kind.len() <= 3 * body.len(), "a name out of nothing");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    #[test]
    fn the_loopback_has_an_address_of_zeroes_and_no_program() {
        let lo = Details::of(1).unwrap();
        assert_eq!((lo.mac, lo.program, lo.kind.as_str()), (Some([0; 6]), None, ""));
        assert!(lo.queues >= 1 && lo.has_carrier);
        assert!(Details::of(1 << 30).is_err());
        assert!(channels("nosuch0").is_err());
        assert!(has_rules("nosuch0").is_err());
        assert!(!has_rules("lo").unwrap(), "the loopback steers nothing");
    }

    #[test]
    fn programs_and_kinds_are_read_and_broken_answers_do_no_harm() {
        let (mut link, mut xdp, mut info) = (vec![0; LINK], Vec::new(), Vec::new());
        attribute(&mut info, libc::IFLA_INFO_KIND, b"veth\0");
        attribute(&mut xdp, IFLA_XDP_ATTACHED, &[2]);
        attribute(&mut xdp, IFLA_XDP_PROG_ID, &77u32.to_ne_bytes());
        attribute(&mut link, libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9]);
        attribute(&mut link, libc::IFLA_LINKINFO, &info);
        attribute(&mut link, libc::IFLA_XDP, &xdp);
        attribute(&mut link, libc::IFLA_NUM_RX_QUEUES, &4u32.to_ne_bytes());
        attribute(&mut link, libc::IFLA_NUM_TX_QUEUES, &2u32.to_ne_bytes());
        attribute(&mut link, libc::IFLA_LINK, &9u32.to_ne_bytes());
        attribute(&mut link, libc::IFLA_CARRIER, &[1]);
        let expected = Details {
            mac: Some([2, 0, 0, 0, 0, 9]),
            kind: "veth".to_owned(),
            queues: 4,
            send_queues: 2,
            lower: Some(9),
            program: Some(Program {
                how: Attached::Generic,
                id: 77,
            }),
            has_carrier: true,
        };
        assert_eq!(read(&link), expected);
        let mut away = link.clone();
        attribute(&mut away, libc::IFLA_LINK_NETNSID, &0u32.to_ne_bytes());
        assert_eq!(read(&away).lower, None);
        (0..link.len()).for_each(|cut| drop(read(&link[..cut])));
    }
}
