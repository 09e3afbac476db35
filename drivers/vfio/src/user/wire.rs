//! The messages of vfio-user, as bytes: little endian, a header of 16 bytes before each.
//!
//! Source: the vfio-user protocol specification 0.9.2, which takes its structures from linux/vfio.h.

use crate::device::{Area, RegionInfo};

/// Length of a header.
pub(super) const HEADER: usize = 16;
/// Length of what describes a region, without its capabilities (`struct vfio_region_info`).
pub(super) const REGION_INFO: usize = 32;
/// The most bytes that one message carries, unless the server names less.
pub(super) const LONGEST_DATA: usize = 1 << 20;
/// The longest message that is believed.
pub(super) const LONGEST: usize = HEADER + LONGEST_DATA + 4096;
/// Most regions and kinds of interrupts that a PCI device has any use for: nine and five.
pub(super) const MOST: u32 = 64;

/// Commands of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    GetInfo = 4,
    GetRegionInfo = 5,
    GetIrqInfo = 7,
    SetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    Reset = 13,
}

impl Command {
    /// Returns what it does, for errors.
    pub(super) fn step(self) -> &'static str {
        match self {
            Self::Version => "agree on a version",
            Self::DmaMap => "map memory for it",
            Self::DmaUnmap => "unmap memory",
            Self::GetInfo => "describe itself",
            Self::GetRegionInfo => "describe a region",
            Self::GetIrqInfo => "describe its interrupts",
            Self::SetIrqs => "set up interrupts",
            Self::RegionRead => "read a region",
            Self::RegionWrite => "write a region",
            Self::Reset => "reset the function",
        }
    }
}

/// Flags of a header.
const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const ERROR: u32 = 1 << 5;

/// Flags of a device (linux/vfio.h).
const FLAGS_RESET: u32 = 1 << 0;
const FLAGS_PCI: u32 = 1 << 1;
/// Flags of a region.
const READ: u32 = 1 << 0;
const WRITE: u32 = 1 << 1;
const MMAP: u32 = 1 << 2;
const CAPS: u32 = 1 << 3;
/// The capability that lists what can be mapped.
const SPARSE: u16 = 1;

/// Bytes of a message, in the order of its fields.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// The message with its header.
    pub(super) fn message(self, number: u16, command: Command) -> Vec<u8> {
        let size = (HEADER + self.0.len()) as u32;
        let header = Self::default()
            .u16(number)
            .u16(command as u16)
            .u32(size)
            .u32(0)
            .u32(0);
        header.bytes(&self.0).0
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    part(bytes, at).map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    part(bytes, at).map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    part(bytes, at).map(u64::from_le_bytes)
}

/// The header of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// Bytes that follow the header.
    pub(super) length: usize,
    /// The error's number, 0 where none is named, if it is a refusal.
    pub(super) refusal: Option<i32>,
}

/// Validates the header of the reply to message `number`; the error describes the violation.
pub(super) fn reply(header: &[u8; HEADER], number: u16, command: Command) -> Result<Reply, &'static str> {
    let read16 = |at| u16_at(header, at).unwrap_or_default();
    let read32 = |at| u32_at(header, at).unwrap_or_default();
    let (size, flags) = (read32(4) as usize, read32(8));
    if flags & TYPE != REPLY {
        return Err("sent a message that is not a reply");
    }
    if read16(0) != number || read16(2) != command as u16 {
        return Err("replied to a request that was not sent");
    }
    if !(HEADER..=LONGEST).contains(&size) {
        return Err("sent a reply of an invalid length");
    }
    Ok(Reply {
        length: size - HEADER,
        refusal: (flags & ERROR != 0).then(|| i32::try_from(read32(12)).unwrap_or(0)),
    })
}

/// The description of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceInfo {
    pub(super) is_pci: bool,
    pub(super) is_resettable: bool,
    pub(super) regions: u32,
    pub(super) irqs: u32,
}

pub(super) fn device_info(payload: &[u8]) -> Option<DeviceInfo> {
    let flags = u32_at(payload, 4)?;
    Some(DeviceInfo {
        is_pci: flags & FLAGS_PCI != 0,
        is_resettable: flags & FLAGS_RESET != 0,
        regions: u32_at(payload, 8)?,
        irqs: u32_at(payload, 12)?,
    })
}

/// The description of a region: its attributes, its offset in the descriptor that came with it, and the
/// length of the whole description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) info: RegionInfo,
    pub(super) from: u64,
    pub(super) whole: usize,
}

/// Reads a description of a region; `None` where it is cut off or contradicts itself.
pub(super) fn region_info(payload: &[u8]) -> Option<Described> {
    let (whole, flags) = (u32_at(payload, 0)? as usize, u32_at(payload, 4)?);
    let (capabilities, length, from) = (
        u32_at(payload, 12)? as usize,
        u64_at(payload, 16)?,
        u64_at(payload, 24)?,
    );
    let has = |flag: u32| length > 0 && flags & flag != 0;
    let listed = if has(CAPS) && whole <= payload.len() {
        sparse(payload, capabilities)?
    } else {
        None
    };
    let areas = match listed {
        _ if !has(MMAP) => Vec::new(),
        Some(areas) => areas,
        None => vec![Area { at: 0, length }],
    };
    let info = RegionInfo {
        length,
        readable: has(READ),
        writable: has(WRITE),
        areas,
    };
    Some(Described { info, from, whole })
}

/// The areas that are listed; inner `None` where no capability lists any, outer where the chain is broken.
fn sparse(payload: &[u8], mut at: usize) -> Option<Option<Vec<Area>>> {
    let mut before = 0;
    while at != 0 {
        // Each is further on than the one before, and behind the fixed part: a chain that turns would never
        // end.
        if at <= before || at < REGION_INFO {
            return None;
        }
        before = at;
        if u16_at(payload, at)? == SPARSE {
            let count = u32_at(payload, at + 8)? as usize;
            let area = |number: usize| {
                let at = at + 16 + 16 * number;
                Some(Area {
                    at: u64_at(payload, at)?,
                    length: u64_at(payload, at + 8)?,
                })
            };
            let most = payload.len() / 16;
            let mut areas = (0..count.min(most + 1)).map(area).collect::<Option<Vec<_>>>()?;
            areas.retain(|area| area.length > 0);
            areas.sort_unstable_by_key(|area| area.at);
            return Some(Some(areas));
        }
        at = u32_at(payload, at + 4)? as usize;
    }
    Some(None)
}

/// Our side of the agreement on a version: what we can take, as JSON that ends with a zero.
pub(super) fn version() -> Writer {
    let capabilities = format!(
        "{{\"capabilities\":{{\"max_msg_fds\":16,\"max_data_xfer_size\":{LONGEST_DATA},\"migration\":{{\"pgsize\":4096}}}}}}\0"
    );
    Writer::default().u16(0).u16(1).bytes(capabilities.as_bytes())
}

/// What the other side can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Descriptors in one message.
    pub(super) descriptors: usize,
    /// Bytes read or written by one message.
    pub(super) data: usize,
}

/// Reads the other side's version; `None` where it is none that we speak, or no JSON.
pub(super) fn limits(payload: &[u8]) -> Option<Limits> {
    if u16_at(payload, 0)? != 0 {
        return None;
    }
    let text = payload.get(4..)?;
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    let said: serde_json::Value = if text.is_empty() {
        serde_json::Value::Null
    } else {
        serde_json::from_slice(text).ok()?
    };
    // The specification's defaults.
    let number = |name: &str, usual: u64| said["capabilities"][name].as_u64().unwrap_or(usual);
    Some(Limits {
        descriptors: number("max_msg_fds", 1).clamp(1, 16) as usize,
        data: number("max_data_xfer_size", LONGEST_DATA as u64).clamp(8, LONGEST_DATA as u64) as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_command_has_these_bytes() {
        let message = Writer::default().u32(0x0102_0304).message(0x0a0b, Command::Reset);
        let golden = [
            0x0b, 0x0a, 13, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, // number, command, size, flags, error
            4, 3, 2, 1,
        ];
        assert_eq!(message, golden);
    }

    fn header(number: u16, command: u16, size: u32, flags: u32, error: u32) -> [u8; HEADER] {
        let bytes = Writer::default()
            .u16(number)
            .u16(command)
            .u32(size)
            .u32(flags)
            .u32(error)
            .0;
        bytes.try_into().unwrap()
    }

    #[test]
    fn only_the_answer_to_the_question_is_a_reply() {
        let judge = |header: [u8; HEADER]| reply(&header, 7, Command::Reset);
        let good = Reply {
            length: 4,
            refusal: None,
        };
        assert_eq!(judge(header(7, 13, 20, 1, 99)), Ok(good));
        assert_eq!(judge(header(7, 13, 16, 0x21, 22)).unwrap().refusal, Some(22));
        assert_eq!(judge(header(7, 13, 16, 0x21, u32::MAX)).unwrap().refusal, Some(0));
        let cases = [
            (7, 13, 20, 0),
            (8, 13, 20, 1),
            (7, 12, 20, 1),
            (7, 13, 15, 1),
            (7, 13, u32::MAX, 1),
        ];
        for (number, command, size, flags) in cases {
            assert!(
                judge(header(number, command, size, flags, 0)).is_err(),
                "{number} {command} {size} {flags}"
            );
        }
    }

    /// A capability: its kind, where the next one is, and areas.
    type Listed<'a> = (u16, u32, &'a [(u64, u64)]);

    /// A region with these capabilities.
    fn described(flags: u32, first: u32, capabilities: &[Listed<'_>]) -> Vec<u8> {
        let mut tail = Writer::default();
        for (id, next, areas) in capabilities {
            tail = tail.u16(*id).u16(1).u32(*next).u32(areas.len() as u32).u32(0);
            for (at, length) in *areas {
                tail = tail.u64(*at).u64(*length);
            }
        }
        let whole = (REGION_INFO + tail.0.len()) as u32;
        let head = Writer::default()
            .u32(whole)
            .u32(flags)
            .u32(0)
            .u32(first)
            .u64(0x4000)
            .u64(0x1000);
        head.bytes(&tail.0).0
    }

    #[test]
    fn regions_are_whole_sparse_or_closed() {
        let areas = |flags, first, capabilities: &[Listed<'_>]| {
            let described = region_info(&described(flags, first, capabilities));
            described.map(|described| {
                described
                    .info
                    .areas
                    .iter()
                    .map(|area| (area.at, area.length))
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(areas(7, 0, &[]), Some(vec![(0, 0x4000)]));
        assert_eq!(areas(3, 0, &[]), Some(vec![]), "no flag, no map");
        let listed: &[_] = &[(0x2000, 0x1000), (0x1000, 0), (0, 0x1000)];
        let sorted = Some(vec![(0, 0x1000), (0x2000, 0x1000)]);
        assert_eq!(areas(15, 32, &[(1, 0, listed)]), sorted);
        assert_eq!(areas(15, 32, &[(3, 48, &[]), (1, 0, listed)]), sorted);
        assert_eq!(areas(11, 32, &[(1, 0, listed)]), Some(vec![]));
        assert_eq!(areas(15, 32, &[(3, 32, &[])]), None, "round in a circle");
        assert_eq!(areas(15, 16, &[(1, 0, listed)]), None, "inside the fixed part");
        assert_eq!(areas(15, 4096, &[(1, 0, listed)]), None, "beyond the end");
        let mut cut = described(15, 32, &[(1, 0, listed)]);
        cut.truncate(cut.len() - 8);
        let whole = cut.len() as u32;
        cut[..4].copy_from_slice(&whole.to_le_bytes());
        assert_eq!(region_info(&cut), None, "an area is cut off");
    }

    #[test]
    fn what_the_other_side_can_take_is_read_and_bounded() {
        let of = |text: &str| limits(&Writer::default().u16(0).u16(1).bytes(text.as_bytes()).0);
        let usual = Limits {
            descriptors: 1,
            data: LONGEST_DATA,
        };
        assert_eq!(of(""), Some(usual));
        assert_eq!(of("{}\0"), Some(usual));
        let said =
            of("{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":4096,\"x\":[]}}\0").unwrap();
        assert_eq!((said.descriptors, said.data), (8, 4096));
        let absurd = of("{\"capabilities\":{\"max_msg_fds\":0,\"max_data_xfer_size\":1e99}}\0").unwrap();
        assert_eq!((absurd.descriptors, absurd.data), (1, LONGEST_DATA));
        assert_eq!(of("{\0"), None);
        assert_eq!(limits(&[1, 0, 0, 0]), None, "another major version");
        assert_eq!(limits(&[]), None);
        assert!(limits(&version().0).is_some(), "we understand ourselves");
    }

    proptest! {
        #[test]
        fn whatever_comes_is_judged(bytes in prop::collection::vec(any::<u8>(), 0..200), first in 0u32..220) {
            let _ = (limits(&bytes), device_info(&bytes), region_info(&bytes));
            let mut with_chain = described(15, first, &[]);
            with_chain.extend(&bytes);
            let whole = with_chain.len() as u32;
            with_chain[..4].copy_from_slice(&whole.to_le_bytes());
            if let Some(described) = region_info(&with_chain) {
                prop_assert!(described.info.areas.len() <= with_chain.len() / 16);
            }
        }
    }
}
