//! Filters: the buffer of ADD_FILTER (3.8), the table of an adapter, and which filter a frame meets (8.4).

use crate::devcmd::errno;
use crate::frame::{self, Parts};

/// The longest buffer (3.8).
pub(crate) const LONGEST: usize = 100;

/// Bits of the 5-tuple's flags.
mod tuple {
    pub(super) const PROTOCOL: u32 = 1;
    pub(super) const SOURCE: u32 = 2;
    pub(super) const DESTINATION: u32 = 4;
    pub(super) const SOURCE_PORT: u32 = 8;
    pub(super) const DESTINATION_PORT: u32 = 16;
}

/// The condition on a frame that a filter has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// Type 0: usNIC's own.
    UsnicId {
        vlan: Option<u16>,
        ethertype: Option<u16>,
        version: Option<u8>,
        id: Option<u32>,
    },
    /// Type 1: what is not given matches everything.
    Tuple {
        protocol: Option<u32>,
        source: Option<u32>,
        destination: Option<u32>,
        source_port: Option<u16>,
        destination_port: Option<u16>,
    },
    /// Type 2: VLAN and hardware address.
    MacVlan { vlan: Option<u16>, mac: Option<[u8; 6]> },
    /// Type 3, for IPv4: only the destination's part of it.
    VlanIp {
        vlan: Option<u16>,
        l3: Option<u16>,
        destination: Option<u32>,
        l4: Option<u32>,
        port: Option<u16>,
    },
}

/// A filter and the queue that it steers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilterRequest {
    pub(crate) wanted: Match,
    pub(crate) rq: u32,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Reads the buffer of ADD_FILTER: TLVs of a filter and an action, by their lengths. Filters above `highest`
/// are refused.
///
/// The error is a devcmd error number.
pub(crate) fn parse(buffer: &[u8], highest: u32) -> Result<FilterRequest, u8> {
    if buffer.len() > LONGEST {
        return Err(errno::INVALID);
    }
    let (mut wanted, mut rq, mut at) = (None, None, 0);
    while at < buffer.len() {
        let (kind, length) = u32_at(buffer, at)
            .zip(u32_at(buffer, at + 4))
            .ok_or(errno::INVALID)?;
        let end = at
            .checked_add(8)
            .and_then(|begin| begin.checked_add(length as usize));
        let value = end
            .and_then(|end| buffer.get(at + 8..end))
            .ok_or(errno::INVALID)?;
        match kind {
            0 if wanted.is_none() => wanted = Some(filter(value, highest)?),
            1 if rq.is_none() => rq = Some(action(value)?),
            _ => return Err(errno::INVALID),
        }
        at += 8 + value.len();
    }
    match (wanted, rq) {
        (Some(wanted), Some(rq)) => Ok(FilterRequest { wanted, rq }),
        _ => Err(errno::INVALID),
    }
}

fn filter(value: &[u8], highest: u32) -> Result<Match, u8> {
    let kind = u32_at(value, 0).ok_or(errno::INVALID)?;
    if kind > highest {
        return Err(errno::INVALID);
    }
    let fields = &value[4..];
    let read = match kind {
        0 => usnic_id(fields),
        1 => five_tuple(fields),
        2 => mac_vlan(fields),
        3 => vlan_ip(fields),
        _ => None,
    };
    read.ok_or(errno::INVALID)
}

fn usnic_id(fields: &[u8]) -> Option<Match> {
    let flags = u32_at(fields, 0)?;
    let (vlan, ethertype) = (u16_at(fields, 4)?, u16_at(fields, 6)?);
    let (version, id) = (*fields.get(8)?, u32_at(fields, 9)?);
    Some(Match::UsnicId {
        vlan: (flags & 1 != 0).then_some(vlan),
        ethertype: (flags & 2 != 0).then_some(ethertype),
        version: (flags & 4 != 0).then_some(version),
        id: (flags & 8 != 0).then_some(id),
    })
}

fn five_tuple(fields: &[u8]) -> Option<Match> {
    let flags = u32_at(fields, 0)?;
    let has = |bit| flags & bit != 0;
    let protocol = u32_at(fields, 4)?;
    if has(tuple::PROTOCOL) && protocol > 3 {
        return None;
    }
    let (source, destination) = (u32_at(fields, 8)?, u32_at(fields, 12)?);
    let (source_port, destination_port) = (u16_at(fields, 16)?, u16_at(fields, 18)?);
    Some(Match::Tuple {
        protocol: has(tuple::PROTOCOL).then_some(protocol),
        source: has(tuple::SOURCE).then_some(source),
        destination: has(tuple::DESTINATION).then_some(destination),
        source_port: has(tuple::SOURCE_PORT).then_some(source_port),
        destination_port: has(tuple::DESTINATION_PORT).then_some(destination_port),
    })
}

fn mac_vlan(fields: &[u8]) -> Option<Match> {
    let flags = u32_at(fields, 0)?;
    let vlan = u16_at(fields, 4)?;
    let mac: [u8; 6] = fields.get(6..12)?.try_into().ok()?;
    Some(Match::MacVlan {
        vlan: (flags & 1 != 0).then_some(vlan),
        mac: (flags & 2 != 0).then_some(mac),
    })
}

/// \[M\] The bits of its flags are not published: 1, 2, 4, 8, 16 in the order of the fields.
fn vlan_ip(fields: &[u8]) -> Option<Match> {
    let flags = u32_at(fields, 0)?;
    let has = |bit| flags & bit != 0;
    let (vlan, l3, destination) = (u16_at(fields, 4)?, u16_at(fields, 6)?, u32_at(fields, 8)?);
    let (l4, port) = (u32_at(fields, 24)?, u16_at(fields, 28)?);
    Some(Match::VlanIp {
        vlan: has(1).then_some(vlan),
        l3: has(2).then_some(l3),
        destination: has(4).then_some(destination),
        l4: has(8).then_some(l4),
        port: has(16).then_some(port),
    })
}

/// Steering to a queue; the newer form has flags, of which dropping is not modelled.
fn action(value: &[u8]) -> Result<u32, u8> {
    let (kind, rq) = u32_at(value, 0).zip(u32_at(value, 4)).ok_or(errno::INVALID)?;
    let steers = match kind {
        0 => true,
        1 => u32_at(value, 8).is_some_and(|flags| flags & 1 != 0 && flags & 4 == 0),
        _ => false,
    };
    if steers { Ok(rq) } else { Err(errno::INVALID) }
}

impl Match {
    /// Returns how many of its fields are given, if a frame has all of them.
    pub(crate) fn meets(&self, frame: &[u8], parts: &Parts) -> Option<u32> {
        let mut given = 0;
        let mut same = |wanted: Option<u64>, found: Option<u64>| {
            given += u32::from(wanted.is_some());
            wanted.is_none() || wanted == found
        };
        let id = |tci: u16| u64::from(tci & 0xfff);
        let vlan = parts.vlan.map(id);
        let ip = parts.ipv4.as_ref();
        let whole = ip.filter(|ip| !ip.is_fragment);
        let ports = whole.and_then(|ip| ip.ports);
        let good = match *self {
            Self::UsnicId {
                vlan: tag,
                ethertype,
                version,
                id: number,
            } => {
                let header = frame.get(parts.ip..).unwrap_or_default();
                // The header behind the type: its version, then the number. \[M\] The place of the number:
                // bytes 1 to 4.
                let found = header
                    .get(1..5)
                    .map(|bytes| u64::from(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])));
                same(tag.map(id), vlan)
                    & same(ethertype.map(u64::from), Some(u64::from(parts.ethertype)))
                    & same(
                        version.map(u64::from),
                        header.first().map(|byte| u64::from(*byte)),
                    )
                    & same(number.map(u64::from), found)
            }
            Self::Tuple {
                protocol,
                source,
                destination,
                source_port,
                destination_port,
            } => {
                let kind = ip.map(|ip| match ip.protocol {
                    frame::UDP => 0,
                    6 => 1,
                    _ => 2,
                });
                ip.is_some()
                    & match protocol {
                        // Any IPv4 will do; IPv6 is never here.
                        Some(2) => same(Some(0), Some(0)),
                        wanted => same(wanted.map(u64::from), kind),
                    }
                    & same(source.map(u64::from), ip.map(|ip| ip.source.into()))
                    & same(destination.map(u64::from), ip.map(|ip| ip.destination.into()))
                    & same(source_port.map(u64::from), ports.map(|ports| ports.0.into()))
                    & same(destination_port.map(u64::from), ports.map(|ports| ports.1.into()))
            }
            Self::MacVlan { vlan: tag, mac } => {
                let number = |mac: [u8; 6]| mac.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                same(tag.map(id), vlan) & same(mac.map(number), frame::mac(frame, 0).map(number))
            }
            Self::VlanIp {
                vlan: tag,
                l3,
                destination,
                l4,
                port,
            } => {
                same(tag.map(id), vlan)
                    & same(l3.map(u64::from), Some(u64::from(parts.ethertype)))
                    & same(destination.map(u64::from), ip.map(|ip| ip.destination.into()))
                    & same(l4.map(u64::from), ip.map(|ip| u64::from(ip.protocol)))
                    & same(port.map(u64::from), ports.map(|ports| ports.1.into()))
            }
        };
        good.then_some(given)
    }
}

/// A filter of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    pub(crate) id: u32,
    /// The function that it steers to.
    pub(crate) owner: usize,
    pub(crate) asked: FilterRequest,
}

/// The filters of an adapter.
#[derive(Debug)]
pub(crate) struct Filters {
    rows: Vec<Filter>,
    most: usize,
    /// The oldest wins, instead of the most specific.
    by_age: bool,
    next: u32,
}

impl Filters {
    pub(crate) fn new(most: usize, by_age: bool) -> Self {
        Self {
            rows: Vec::with_capacity(most.min(4096)),
            most,
            by_age,
            next: 1,
        }
    }

    /// Takes a filter: its number, or an error's.
    pub(crate) fn add(&mut self, owner: usize, asked: FilterRequest, twins: bool) -> Result<u32, u8> {
        // \[M\] The same match twice is refused to one function. Several may have it, or only one of them
        // would receive broadcasts.
        let is_twin = |row: &Filter| row.owner == owner && row.asked.wanted == asked.wanted;
        if !twins && self.rows.iter().any(is_twin) {
            return Err(errno::INVALID);
        }
        if self.rows.len() >= self.most {
            return Err(errno::NO_RESOURCES);
        }
        // Drivers keep 32 or 16 bits of it; it fits both, and is not 0.
        while self.next == 0 || self.rows.iter().any(|row| row.id == self.next) {
            self.next = (self.next + 1) & 0xffff;
        }
        let id = self.next;
        self.next = (id + 1) & 0xffff;
        self.rows.push(Filter { id, owner, asked });
        Ok(id)
    }

    /// Gives a function's filter up.
    pub(crate) fn remove(&mut self, owner: usize, id: u64) -> Result<(), u8> {
        let place = self
            .rows
            .iter()
            .position(|row| row.owner == owner && u64::from(row.id) == id);
        self.rows.remove(place.ok_or(errno::INVALID)?);
        Ok(())
    }

    /// Gives up all of one function, or all there are.
    pub(crate) fn clear(&mut self, owner: Option<usize>) {
        self.rows
            .retain(|row| owner.is_some_and(|owner| row.owner != owner));
    }

    /// The most specific filter that matches a frame, of one function or of all. \[M\] The most specific
    /// wins, then the oldest.
    pub(crate) fn best(&self, owner: Option<usize>, frame: &[u8], parts: &Parts) -> Option<&Filter> {
        let mine = self
            .rows
            .iter()
            .filter(|row| owner.is_none_or(|owner| row.owner == owner));
        let meeting = mine.filter_map(|row| Some((row.asked.wanted.meets(frame, parts)?, row)));
        meeting
            .max_by_key(|(given, row)| (if self.by_age { 0 } else { *given }, std::cmp::Reverse(row.id)))
            .map(|(_, row)| row)
    }

    /// Whether a queue of a function has one.
    pub(crate) fn has(&self, owner: usize, rq: usize) -> bool {
        self.rows
            .iter()
            .any(|row| row.owner == owner && row.asked.rq as usize == rq)
    }
}

#[cfg(test)]
mod tests;
