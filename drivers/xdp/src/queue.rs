//! One queue of the device: a socket and its rings.
//!
//! ```text
//!   fill     ── chunks to be filled ──►  ┌────────┐  ◄── frames to be sent ──  send       (first queue only)
//!   receive  ◄── frames that came ─────  │ kernel │  ─── chunks released ───►  completion (first queue only)
//!                                        └────────┘
//! ```
//!
//! All queues use one memory of frames; each has a fill and a completion ring of its own, because the kernel
//! wants it so.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use doorbell_fabric::memory::RegionSlice;
use doorbell_ring::indexed::{Consumer, Producer, bytes_of};

use crate::sys::{self, RingOf};

/// What errors call the two kinds of rings.
pub(crate) const FRAMES: &str = "AF_XDP ring of frames";
pub(crate) const CHUNKS: &str = "AF_XDP ring of chunks";

/// Bytes of an entry in the rings of frames: address, length, options (linux/if_xdp.h, `xdp_desc`).
pub(crate) const DESCRIPTOR: usize = 16;
/// Bytes of an entry in the rings of chunks: the chunk's address.
pub(crate) const ADDRESS: usize = 8;
const _: () = assert!(size_of::<libc::xdp_desc>() == DESCRIPTOR);

/// The bit in a descriptor's options that the frame goes on in the next one.
pub(crate) const GOES_ON: u32 = libc::XDP_PKT_CONTD;

/// A descriptor's fields.
#[inline]
pub(crate) fn pack(address: u64, length: u32, options: u32) -> [u8; DESCRIPTOR] {
    let mut bytes = [0; DESCRIPTOR];
    bytes[..8].copy_from_slice(&address.to_ne_bytes());
    bytes[8..12].copy_from_slice(&length.to_ne_bytes());
    bytes[12..].copy_from_slice(&options.to_ne_bytes());
    bytes
}

/// The address, the length and the options of a descriptor.
#[inline]
pub(crate) fn unpack(bytes: &[u8; DESCRIPTOR]) -> (u64, u32, u32) {
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (low, high) = (word(0), word(4));
    let address = if cfg!(target_endian = "little") {
        u64::from(high) << 32 | u64::from(low)
    } else {
        u64::from(low) << 32 | u64::from(high)
    };
    (address, word(8), word(12))
}

pub(crate) type Frames = Consumer<DESCRIPTOR>;
pub(crate) type Sends = Producer<DESCRIPTOR>;
pub(crate) type Fills = Producer<ADDRESS>;
pub(crate) type Completions = Consumer<ADDRESS>;

/// A socket that is not bound yet, and its rings.
pub(crate) struct Queue {
    pub(crate) socket: OwnedFd,
    pub(crate) receive: Frames,
    pub(crate) fill: Fills,
    pub(crate) send: Sends,
    pub(crate) completion: Completions,
}

/// Entries of the rings of one queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) receive: usize,
    pub(crate) fill: usize,
    pub(crate) send: usize,
}

/// A step that the system refused.
pub(crate) type Refusal = (Cow<'static, str>, io::Error);

fn at<T>(step: &'static str, result: io::Result<T>) -> Result<T, Refusal> {
    result.map_err(|error| (step.into(), error))
}

impl Queue {
    /// Makes a socket with its rings. The first one of a rail registers the memory, in chunks of this many
    /// bytes.
    pub(crate) fn new(memory: Option<(&RegionSlice, u32)>, sizes: Sizes) -> Result<Self, Refusal> {
        let socket = at("make an AF_XDP socket", sys::socket())?;
        let fd = socket.as_fd();
        if let Some((memory, chunk)) = memory {
            at("register the memory of frames", sys::register(fd, memory, chunk))?;
        }
        let (receive, send) = (sizes.receive as u32, sizes.send as u32);
        for (option, entries) in [
            (libc::XDP_UMEM_FILL_RING, sizes.fill as u32),
            (libc::XDP_UMEM_COMPLETION_RING, send),
            (libc::XDP_RX_RING, receive),
            (libc::XDP_TX_RING, send),
        ] {
            at("make a ring", sys::set_number(fd, option, entries))?;
        }
        let offsets = at("read where the rings are", sys::offsets(fd))?;
        let map = |which, length| at("map a ring", sys::map(fd, which, length));
        let wrong =
            |error: doorbell_ring::RingError| ("lay out a ring".into(), io::Error::other(error.to_string()));
        let area = map(
            RingOf::Receive,
            bytes_of::<DESCRIPTOR>(offsets.receive.entries, sizes.receive),
        )?;
        let receive = Frames::new(FRAMES, area, sizes.receive, offsets.receive).map_err(wrong)?;
        let area = map(
            RingOf::Send,
            bytes_of::<DESCRIPTOR>(offsets.send.entries, sizes.send),
        )?;
        let send = Sends::new(FRAMES, area, sizes.send, offsets.send).map_err(wrong)?;
        let area = map(
            RingOf::Fill,
            bytes_of::<ADDRESS>(offsets.fill.entries, sizes.fill),
        )?;
        let fill = Fills::new(CHUNKS, area, sizes.fill, offsets.fill).map_err(wrong)?;
        let area = map(
            RingOf::Completion,
            bytes_of::<ADDRESS>(offsets.completion.entries, sizes.send),
        )?;
        let completion = Completions::new(CHUNKS, area, sizes.send, offsets.completion).map_err(wrong)?;
        Ok(Self {
            socket,
            receive,
            fill,
            send,
            completion,
        })
    }

    /// Has it serve a queue of an interface.
    pub(crate) fn bind(
        &self,
        (interface, queue): (u32, u32),
        flags: u16,
        shared: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        sys::bind(self.socket.as_fd(), (interface, queue), flags, shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_have_the_kernels_layout() {
        let packed = pack(0x0102_0304_0506_0708, 0x0a0b_0c0d, GOES_ON);
        assert_eq!(unpack(&packed), (0x0102_0304_0506_0708, 0x0a0b_0c0d, 1));
        assert_eq!(packed[..8], 0x0102_0304_0506_0708u64.to_ne_bytes());
        assert_eq!(packed[8..12], 0x0a0b_0c0du32.to_ne_bytes());
    }
}
