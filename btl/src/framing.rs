//! Frames: how long they are, the CRC or MAC that each carries, and the buffers of those that are not
//! segments.

use doorbell_fabric::memory::SharedBytes;
use zerocopy::IntoBytes;

use crate::counters::Drop;
use crate::key::FrameMac;
use crate::wire::{BASIC, Basic, Kind, MAC, Parsed, VERSION, flag, parse};

/// Longest frame whose length fits the header's 16 bits.
pub(crate) const MOST_MTU: usize = 65_535;

/// The frames of a rail.
#[derive(Debug)]
pub(crate) struct Framing {
    /// Longest frame; and, of it, the bytes after the basic header, the own header included.
    mtu: usize,
    room: usize,
    /// Whether frames carry a CRC, and must.
    crc: bool,
    /// Bytes of the MAC that frames carry, and must; zero when they carry none.
    mac: usize,
    /// A frame that is not a segment, on its way out.
    plain: Vec<u8>,
    /// A frame that was received, copied once: what a CRC or MAC is checked over is what is used.
    private: Vec<u8>,
}

impl Framing {
    /// Frames of `mtu` bytes at most, with a CRC, a MAC, or neither.
    pub(crate) fn new(mtu: usize, crc: bool, mac: bool) -> Self {
        let mac = if mac { MAC } else { 0 };
        Self {
            mtu,
            room: mtu - BASIC - mac,
            crc,
            mac,
            plain: vec![0; mtu],
            // The other end's frames may be longer than ours.
            private: vec![0; MOST_MTU],
        }
    }

    /// Bytes of the longest frame.
    #[inline]
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Bytes of the longest frame after the basic header, the own header included.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Bytes of the MAC at the end of each frame.
    #[inline]
    pub(crate) fn mac(&self) -> usize {
        self.mac
    }

    /// Whether frames carry a CRC or a MAC, for which all of a frame is read.
    #[inline]
    pub(crate) fn seals(&self) -> bool {
        self.crc || self.mac > 0
    }

    /// Writes the MAC at the end of a frame, or, without one, the CRC into its header, if it must carry
    /// either.
    #[inline]
    pub(crate) fn seal(&self, frame: &mut [u8], macs: Option<&[FrameMac; 2]>) {
        if self.seals() {
            seal(frame, macs.map(|macs| &macs[0]));
        }
    }

    /// The first `length` bytes after the basic header of a frame that is not a segment, to be written.
    pub(crate) fn payload(&mut self, length: usize) -> &mut [u8] {
        &mut self.plain[BASIC..BASIC + length]
    }

    /// The frame that [`Framing::payload`] was written into, behind its header.
    pub(crate) fn finish(&mut self, header: &Basic, macs: Option<&[FrameMac; 2]>) -> &[u8] {
        let length = BASIC + usize::from(header.length.get()) + self.mac;
        let mut plain = std::mem::take(&mut self.plain);
        let frame = &mut plain[..length];
        frame[..BASIC].copy_from_slice(header.as_bytes());
        self.seal(frame, macs);
        self.plain = plain;
        &self.plain[..length]
    }

    /// The frame of a hello, as [`Framing::finish`], but with a CRC whatever the settings are.
    pub(crate) fn finish_hello(&mut self, header: &Basic) -> &[u8] {
        let frame = &mut self.plain[..BASIC + usize::from(header.length.get())];
        frame[..BASIC].copy_from_slice(header.as_bytes());
        seal(frame, None);
        frame
    }

    /// Whether a frame is to be copied and checked before anything of it is used.
    #[inline]
    pub(crate) fn must_check(&self, parsed: &Parsed) -> bool {
        self.crc || self.mac > 0 || parsed.flags & (flag::MAC | flag::CRC) != 0
    }

    /// Lends the buffer for a received frame, to be given back.
    pub(crate) fn lend_private(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.private)
    }

    /// Takes the buffer for a received frame back.
    pub(crate) fn return_private(&mut self, buffer: Vec<u8>) {
        self.private = buffer;
    }

    /// Checks CRC or MAC of a private copy, and reads its header again: what was checked is what counts.
    /// `macs` gives those of a frame of this kind.
    ///
    /// # Errors
    /// The reason to drop the frame.
    #[inline]
    pub(crate) fn verify<'a>(
        &self,
        bytes: &mut [u8],
        macs: impl FnOnce(Kind) -> Option<&'a [FrameMac; 2]>,
    ) -> Result<Parsed, Drop> {
        let parsed = parse(&SharedBytes::of(bytes))?;
        let has_mac = parsed.flags & flag::MAC != 0;
        if has_mac || self.mac > 0 {
            let theirs = macs(parsed.kind).map(|macs| &macs[1]).ok_or(Drop::Forged)?;
            let (frame, tag) = bytes.split_last_chunk::<MAC>().ok_or(Drop::Short)?;
            if !has_mac || frame.len() != BASIC + parsed.length || !theirs.holds(frame, tag) {
                return Err(Drop::Forged);
            }
        } else {
            verify_crc(&parsed, bytes)?;
        }
        Ok(parsed)
    }

    /// Checks a private copy of a hello for this door: its CRC, and that it is one.
    ///
    /// # Errors
    /// [`Drop::Corrupt`].
    pub(crate) fn verify_hello(&self, bytes: &mut [u8], door: u64) -> Result<(), Drop> {
        let parsed = parse(&SharedBytes::of(bytes))?;
        if !Self::is_hello(&parsed) || parsed.connection != door {
            return Err(Drop::Corrupt);
        }
        verify_crc(&parsed, bytes)
    }

    /// Whether a header is a hello's: nothing is set in it but what a hello has.
    pub(crate) fn is_hello(parsed: &Parsed) -> bool {
        let flags = VERSION << 4 | flag::CRC;
        parsed.kind == Kind::Hello && parsed.sequence.0 == 0 && parsed.flags == flags
    }
}

/// Checks the CRC of a private copy of a frame.
#[inline]
fn verify_crc(parsed: &Parsed, bytes: &mut [u8]) -> Result<(), Drop> {
    if parsed.flags & flag::CRC == 0 || bytes.len() != BASIC + parsed.length {
        return Err(Drop::Corrupt);
    }
    bytes[20..BASIC].fill(0);
    if crc32c::crc32c(bytes) != parsed.check {
        return Err(Drop::Corrupt);
    }
    Ok(())
}

/// Writes the MAC at the end of a frame, or, without one, the CRC into its header.
fn seal(frame: &mut [u8], mac: Option<&FrameMac>) {
    match mac {
        Some(mac) => {
            frame[19] |= flag::MAC;
            let at = frame.len() - MAC;
            let (bytes, tag) = frame.split_at_mut(at);
            tag.copy_from_slice(&mac.of(&[bytes]));
        }
        None => {
            frame[19] |= flag::CRC;
            let crc = crc32c::crc32c(frame);
            frame[20..BASIC].copy_from_slice(&crc.to_le_bytes());
        }
    }
}
