//! A strict reader of what the writer makes: little-endian captures of one section, in blocks that follow
//! each other without a gap. Bytes of a file are hostile input: everything is checked, nothing panics.

use thiserror::Error;

use super::{
    COMMENT, Direction, END, ENHANCED, ETHERNET, FLAGS, IF_DESCRIPTION, IF_NAME, IF_RESOLUTION, INTERFACE,
    MAGIC, NANOSECONDS, PACKET_ID, SECTION,
};
use crate::time::Time;

/// Why a capture cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("byte {at} of the capture: {what}; it was cut off, or written by another program")]
pub struct Malformed {
    /// Offset of the block.
    pub at: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// A block of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block<'a> {
    /// The head of the file.
    Section,
    /// The next interface: name and description.
    Interface {
        /// The name of the interface.
        name: &'a str,
        /// More about it; may be empty.
        description: &'a str,
    },
    /// A captured packet.
    Packet(PacketBlock<'a>),
}

/// A packet, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketBlock<'a> {
    /// The number of its interface, from zero.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub at: Time,
    /// The direction of the packet.
    pub direction: Direction,
    /// The bytes of the packet, from the Ethernet header on.
    pub bytes: &'a [u8],
    /// How long it was before it was cut off.
    pub original: u32,
    /// The number of the packet; zero for none.
    pub id: u64,
    /// The remarks about the packet.
    pub comments: Vec<&'a str>,
}

impl<'a> PacketBlock<'a> {
    /// The bytes behind the headers that [`Wrap::Udp`](super::Wrap::Udp) puts before a frame.
    pub fn payload(&self) -> Option<&'a [u8]> {
        let headers = match self.bytes.get(12..14)? {
            [0x08, 0x00] => 14 + 20 + 8,
            [0x86, 0xdd] => 14 + 40 + 8,
            _ => return None,
        };
        self.bytes.get(headers..)
    }
}

/// The blocks of a capture, first to last; ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct Blocks<'a> {
    bytes: &'a [u8],
    at: usize,
    interfaces: u32,
}

impl<'a> Blocks<'a> {
    /// Reads `bytes`, a whole file.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            interfaces: 0,
        }
    }

    fn block(&mut self) -> Result<Block<'a>, &'static str> {
        let rest = &self.bytes[self.at..];
        let kind = word(rest, 0).ok_or("the block ends in its head")?;
        let length = word(rest, 4).ok_or("the block ends in its head")? as usize;
        if length < 12 || !length.is_multiple_of(4) {
            return Err("the length of the block is impossible");
        }
        let block = rest.get(..length).ok_or("the block ends before its length")?;
        if word(block, length - 4) != Some(length as u32) {
            return Err("the two lengths of the block differ");
        }
        let body = &block[8..length - 4];
        let read = match (kind, self.at) {
            (SECTION, 0) => section(body)?,
            (_, 0) => return Err("the file does not begin with a section"),
            (INTERFACE, _) => {
                self.interfaces += 1;
                interface(body)?
            }
            (ENHANCED, _) => packet(body, self.interfaces)?,
            _ => return Err("the kind of the block is none of ours"),
        };
        self.at += length;
        Ok(read)
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<Block<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let at = self.at;
        Some(self.block().map_err(|what| {
            self.at = self.bytes.len();
            Malformed { at, what }
        }))
    }
}

fn section(body: &[u8]) -> Result<Block<'_>, &'static str> {
    if word(body, 0) != Some(MAGIC) || word(body, 4) != Some(1) {
        return Err("the section is not version 1.0, little-endian");
    }
    let options = body.get(16..).ok_or("the section is too short")?;
    each_option(options, |_, _| Ok(()))?;
    Ok(Block::Section)
}

fn interface(body: &[u8]) -> Result<Block<'_>, &'static str> {
    if word(body, 0) != Some(u32::from(ETHERNET)) {
        return Err("the interface is not Ethernet");
    }
    let (mut name, mut description, mut resolution) = ("", "", 6);
    let options = body.get(8..).ok_or("the interface is too short")?;
    each_option(options, |code, value| {
        match code {
            IF_NAME => name = text(value)?,
            IF_DESCRIPTION => description = text(value)?,
            IF_RESOLUTION => resolution = *value.first().ok_or("the resolution is empty")?,
            _ => {}
        }
        Ok(())
    })?;
    if resolution != NANOSECONDS {
        return Err("the interface does not count nanoseconds");
    }
    Ok(Block::Interface { name, description })
}

fn packet(body: &[u8], interfaces: u32) -> Result<Block<'_>, &'static str> {
    let short = "the packet is too short";
    let interface = word(body, 0)
        .filter(|&interface| interface < interfaces)
        .ok_or("the packet names no interface")?;
    let high = u64::from(word(body, 4).ok_or(short)?);
    let low = u64::from(word(body, 8).ok_or(short)?);
    let kept = word(body, 12).ok_or(short)? as usize;
    let original = word(body, 16).ok_or(short)?;
    if kept > original as usize {
        return Err("more of the packet was kept than there was");
    }
    let padded = kept.checked_next_multiple_of(4).ok_or(short)?;
    let rest = &body[20..];
    let (bytes, options) = rest.split_at_checked(padded).ok_or(short)?;
    let (mut direction, mut id, mut comments) = (None, 0, Vec::new());
    each_option(options, |code, value| {
        match code {
            COMMENT => comments.push(text(value)?),
            PACKET_ID => {
                id = u64::from_le_bytes(value.try_into().map_err(|_| "the number has a wrong length")?)
            }
            FLAGS => {
                direction = match word(value, 0).map(|flags| flags & 3) {
                    Some(1) => Some(Direction::In),
                    Some(2) => Some(Direction::Out),
                    _ => return Err("the packet has no direction"),
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(Block::Packet(PacketBlock {
        interface,
        at: Time::from_nanos(high << 32 | low),
        direction: direction.ok_or("the packet has no direction")?,
        bytes: &bytes[..kept],
        original,
        id,
        comments,
    }))
}

/// Shows every option to `each`; there must be an end, and nothing behind it.
fn each_option<'a>(
    mut options: &'a [u8],
    mut each: impl FnMut(u16, &'a [u8]) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    loop {
        let head = word(options, 0).ok_or("the options have no end")?;
        let (code, length) = (head as u16, (head >> 16) as usize);
        options = &options[4..];
        if code == END {
            return match (length, options.is_empty()) {
                (0, true) => Ok(()),
                _ => Err("something stands behind the options"),
            };
        }
        let (value, rest) = options
            .split_at_checked(length.next_multiple_of(4))
            .ok_or("an option is longer than its block")?;
        if value[length..].iter().any(|&byte| byte != 0) {
            return Err("the padding of an option is not zero");
        }
        each(code, &value[..length])?;
        options = rest;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn text(bytes: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(bytes).map_err(|_| "a text is not UTF-8")
}
