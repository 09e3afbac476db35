//! A writer of packet captures that any driver can use, in the format that Wireshark, tshark and tcpdump
//! read.
//!
//! ```text
//!   Writer::new ─► Section Header │ interface() ─► Interface Description │ packet() ─► Enhanced Packet │ …
//!                                                    name, nanoseconds     time, direction, number, comments
//! ```
//! A driver's frame has no headers of its own, so Ethernet, IPv4 or IPv6, and UDP headers are put before it,
//! from the two ends' addresses ([`Wrap::Udp`]). Whole Ethernet frames are written unchanged
//! ([`Wrap::None`]).
//!
//! Blocks are built in one buffer of fixed size: writing a packet allocates nothing, and takes a system call
//! only when the buffer is full. Errors never affect the traffic: after the first one nothing more is
//! written, packets are counted as lost, and [`Writer::take_error`] returns the error once.
//!
//! Reference: "PCAP Next Generation (pcapng) Capture File Format", draft-ietf-opsawg-pcapng, sections 4.1 to
//! 4.3. There is no dependency for it: the crates for this format allocate per packet.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;

use crate::memory::SharedBytes;
use crate::time::Time;

mod headers;
mod reader;
#[cfg(test)]
mod tests;

pub use headers::{HEADERS_MAX, MAC_PREFIX};
pub use reader::{Block, Blocks, Malformed, PacketBlock};

/// Bytes of a packet that are kept at most, headers included; its true length is written beside them.
pub const SNAP: usize = 65_536 + HEADERS_MAX;

/// Longest comments of one packet in bytes, all together; the rest is truncated.
pub const COMMENTS_MAX: usize = 1024;

const BUFFER: usize = 256 * 1024;
/// Everything of an Enhanced Packet Block that is neither packet nor comments; four comments' headers and
/// padding.
const OVERHEAD: usize = 256;
const COMMENTS: usize = 16;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED: u32 = 6;
const MAGIC: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;
const NANOSECONDS: u8 = 9;

const END: u16 = 0;
const COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_RESOLUTION: u16 = 9;
const APPLICATION: u16 = 4;
const FLAGS: u16 = 2;
const PACKET_ID: u16 = 5;

/// An interface of a capture, by [`Writer::interface`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interface(u32);

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// The packet was received.
    In = 1,
    /// The packet was sent.
    Out = 2,
}

/// The headers that are put before the bytes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrap {
    /// None: the bytes begin with an Ethernet header.
    None,
    /// Ethernet, IP and UDP headers from one address to the other.
    Udp {
        /// The sender of the frame.
        from: SocketAddr,
        /// The receiver of the frame.
        to: SocketAddr,
    },
}

/// A packet, as [`Writer::packet`] takes it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Where it was seen.
    pub interface: Interface,
    /// The time, on the clock whose epoch was passed to [`Writer::new`].
    pub at: Time,
    /// The direction of the packet.
    pub direction: Direction,
    /// The headers that it lacks.
    pub wrap: Wrap,
    /// The bytes of the packet, in pieces; each is read once.
    pub bytes: &'a [SharedBytes<'a>],
    /// A number that is the same wherever this packet is seen again; zero for none.
    pub id: u64,
    /// Remarks, one a piece: why it was dropped, which fault was injected. At most sixteen are kept.
    pub comments: &'a [&'a str],
}

/// Writes one capture.
///
/// ```
/// use doorbell_fabric::memory::SharedBytes;
/// use doorbell_fabric::pcapng::{Packet, Direction, Wrap, Writer};
/// use doorbell_fabric::time::Time;
///
/// let mut file = Vec::new();
/// let mut writer = Writer::new(&mut file, "an example", 0);
/// let eth0 = writer.interface("udp:eth0", "");
/// let wrap = Wrap::Udp { from: "10.0.0.1:4000".parse()?, to: "10.0.0.2:4000".parse()? };
/// writer.packet(&Packet {
///     interface: eth0,
///     at: Time::from_nanos(7),
///     direction: Direction::Out,
///     wrap,
///     bytes: &[SharedBytes::of(b"head"), SharedBytes::of(b"body")],
///     id: 1,
///     comments: &["the first one"],
/// });
/// writer.flush();
/// assert_eq!((writer.written(), writer.lost()), (1, 0));
/// let bytes = writer.bytes();
/// drop(writer);
/// assert_eq!(bytes, file.len() as u64);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub struct Writer<W: Write> {
    out: W,
    /// Never grows: what does not fit is written first.
    buffer: Vec<u8>,
    epoch: u64,
    interfaces: u32,
    /// Packets in the buffer.
    pending: u64,
    written: u64,
    bytes: u64,
    lost: u64,
    failed: bool,
    error: Option<io::Error>,
}

impl<W: Write> Writer<W> {
    /// Starts a capture. `application` names the program; `epoch` is the epoch of the clock of
    /// [`Packet::at`], in nanoseconds since 1970 (zero for a virtual clock).
    pub fn new(out: W, application: &str, epoch: u64) -> Self {
        let mut writer = Self {
            out,
            buffer: Vec::with_capacity(BUFFER),
            epoch,
            interfaces: 0,
            pending: 0,
            written: 0,
            bytes: 0,
            lost: 0,
            failed: false,
            error: None,
        };
        let start = writer.begin(SECTION);
        writer.add(&MAGIC.to_le_bytes());
        writer.add(&1_u16.to_le_bytes());
        writer.add(&0_u16.to_le_bytes());
        writer.add(&u64::MAX.to_le_bytes());
        writer.option(APPLICATION, clip(application, COMMENTS_MAX).as_bytes());
        writer.end(start);
        writer
    }

    /// Adds an interface; names and descriptions are cut off at [`COMMENTS_MAX`].
    pub fn interface(&mut self, name: &str, description: &str) -> Interface {
        self.make_room(2 * COMMENTS_MAX + OVERHEAD);
        let start = self.begin(INTERFACE);
        self.add(&ETHERNET.to_le_bytes());
        self.add(&0_u16.to_le_bytes());
        self.add(&(SNAP as u32).to_le_bytes());
        self.option(IF_NAME, clip(name, COMMENTS_MAX).as_bytes());
        if !description.is_empty() {
            self.option(IF_DESCRIPTION, clip(description, COMMENTS_MAX).as_bytes());
        }
        self.option(IF_RESOLUTION, &[NANOSECONDS]);
        self.end(start);
        self.interfaces += 1;
        Interface(self.interfaces - 1)
    }

    /// Writes one packet, or counts it as lost. An interface of another capture is one of these cases.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        if self.failed || packet.interface.0 >= self.interfaces {
            self.lost += 1;
            return;
        }
        let payload: usize = packet.bytes.iter().map(SharedBytes::len).sum();
        self.make_room(SNAP + COMMENTS_MAX + OVERHEAD);
        if self.failed {
            self.lost += 1;
            return;
        }
        let start = self.begin(ENHANCED);
        let at = packet.at.nanos().saturating_add(self.epoch);
        self.add(&packet.interface.0.to_le_bytes());
        self.add(&((at >> 32) as u32).to_le_bytes());
        self.add(&(at as u32).to_le_bytes());
        let lengths = self.buffer.len();
        self.add(&[0; 8]);
        let data = self.buffer.len();
        if let Wrap::Udp { from, to } = packet.wrap {
            headers::write(&mut self.buffer, from, to, payload);
        }
        let before = self.buffer.len() - data;
        self.payload(packet.bytes, SNAP - before);
        if let Wrap::Udp { .. } = packet.wrap {
            headers::seal(&mut self.buffer[data..]);
        }
        let kept = self.buffer.len() - data;
        let original = u32::try_from(before + payload).unwrap_or(u32::MAX);
        self.buffer[lengths..lengths + 4].copy_from_slice(&(kept as u32).to_le_bytes());
        self.buffer[lengths + 4..lengths + 8].copy_from_slice(&original.to_le_bytes());
        self.pad();
        let mut room = COMMENTS_MAX;
        for comment in packet.comments.iter().take(COMMENTS) {
            let text = clip(comment, room);
            room -= text.len();
            if !text.is_empty() {
                self.option(COMMENT, text.as_bytes());
            }
        }
        self.option(FLAGS, &u32::from(packet.direction as u8).to_le_bytes());
        if packet.id != 0 {
            self.option(PACKET_ID, &packet.id.to_le_bytes());
        }
        self.end(start);
        self.pending += 1;
    }

    /// Copies pieces, at most `room` bytes of them.
    fn payload(&mut self, pieces: &[SharedBytes<'_>], mut room: usize) {
        for piece in pieces {
            let piece = piece.take(room);
            room -= piece.len();
            let at = self.buffer.len();
            self.buffer.resize(at + piece.len(), 0);
            piece.copy_to(0, &mut self.buffer[at..]);
        }
    }

    /// Writes everything out.
    pub fn flush(&mut self) {
        self.write_out();
        if !self.failed
            && let Err(error) = self.out.flush()
        {
            self.fail(error);
        }
    }

    /// Packets that the writer below has taken, and those in the buffer.
    pub fn written(&self) -> u64 {
        self.written + self.pending
    }

    /// Bytes that the writer below has taken whole, heads of blocks included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packets that are not in the capture, because of an error.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The error that ended the capture, once.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Writes the buffer out when fewer than `length` bytes are free in it.
    #[inline]
    fn make_room(&mut self, length: usize) {
        if BUFFER - self.buffer.len() < length {
            self.write_out();
        }
    }

    #[cold]
    fn write_out(&mut self) {
        if !self.failed && !self.buffer.is_empty() {
            match self.out.write_all(&self.buffer) {
                Ok(()) => {
                    self.written += std::mem::take(&mut self.pending);
                    self.bytes += self.buffer.len() as u64;
                }
                Err(error) => self.fail(error),
            }
        }
        self.buffer.clear();
    }

    /// Ends the capture: a block may be written in part, and nothing after it could be read.
    fn fail(&mut self, error: io::Error) {
        self.failed = true;
        self.lost += std::mem::take(&mut self.pending);
        self.error = Some(error);
    }

    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Pads to a multiple of four, on which blocks start.
    #[inline]
    fn pad(&mut self) {
        self.buffer.resize(self.buffer.len().next_multiple_of(4), 0);
    }

    fn begin(&mut self, kind: u32) -> usize {
        let start = self.buffer.len();
        self.add(&kind.to_le_bytes());
        self.add(&[0; 4]);
        start
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.add(&code.to_le_bytes());
        self.add(&(value.len() as u16).to_le_bytes());
        self.add(value);
        self.pad();
    }

    fn end(&mut self, start: usize) {
        self.option(END, &[]);
        let length = ((self.buffer.len() - start + 4) as u32).to_le_bytes();
        self.add(&length);
        self.buffer[start + 4..start + 8].copy_from_slice(&length);
    }
}

/// Drop writes what is still buffered, and ignores an error.
impl<W: Write> Drop for Writer<W> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<W: Write> fmt::Debug for Writer<W> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Writer")
            .field("interfaces", &self.interfaces)
            .field("written", &self.written())
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

/// Returns at most `length` bytes of `text`, whole characters only.
fn clip(text: &str, length: usize) -> &str {
    let mut end = length.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

// Whatever a block holds, it fits into an empty buffer.
const _: () = assert!(SNAP + COMMENTS_MAX + OVERHEAD <= BUFFER && COMMENTS * 7 + 68 <= OVERHEAD);
