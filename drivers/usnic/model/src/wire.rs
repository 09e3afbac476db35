//! The messages of vfio-user, as bytes: little endian, a header of 16 bytes before each.
//!
//! Source: the vfio-user protocol specification 0.9.2, whose structures are those of linux/vfio.h.

/// Length of a header.
pub(crate) const HEADER: usize = 16;
/// The most bytes that one message carries, as agreed with the version.
pub(crate) const LONGEST_DATA: usize = 1 << 20;
/// The longest message that is taken.
pub(crate) const LONGEST: usize = HEADER + LONGEST_DATA + 64;
/// Descriptors that one message may carry, as agreed too.
pub(crate) const DESCRIPTORS: usize = 16;

/// The numbers of commands.
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const GET_INFO: u16 = 4;
    pub(crate) const GET_REGION_INFO: u16 = 5;
    pub(crate) const GET_IRQ_INFO: u16 = 7;
    pub(crate) const SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DMA_READ: u16 = 11;
    pub(crate) const DMA_WRITE: u16 = 12;
    pub(crate) const RESET: u16 = 13;
}

/// Flags of a header.
const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) number: u16,
    pub(crate) command: u16,
    /// Bytes that follow.
    pub(crate) length: usize,
    pub(crate) is_reply: bool,
    pub(crate) is_error: bool,
    pub(crate) wants_reply: bool,
}

impl Header {
    /// Reads one; `None` where its length cannot be.
    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        let size = u32_at(bytes, 4)? as usize;
        let flags = u32_at(bytes, 8)?;
        (HEADER..=LONGEST).contains(&size).then_some(Self {
            number: u16_at(bytes, 0)?,
            command: u16_at(bytes, 2)?,
            length: size.checked_sub(HEADER)?,
            is_reply: flags & TYPE == REPLY,
            is_error: flags & ERROR != 0,
            wants_reply: flags & NO_REPLY == 0,
        })
    }
}

/// Bytes of a message, in the order of its fields.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn message(self, number: u16, command: u16, flags: u32, error: u32) -> Vec<u8> {
        let size = (HEADER + self.0.len()) as u32;
        let header = Self::default()
            .u16(number)
            .u16(command)
            .u32(size)
            .u32(flags)
            .u32(error);
        header.bytes(&self.0).0
    }

    /// The answer to a message of this number.
    pub(crate) fn reply(self, number: u16, command: u16) -> Vec<u8> {
        self.message(number, command, REPLY, 0)
    }

    /// One of our requests.
    pub(crate) fn question(self, number: u16, command: u16) -> Vec<u8> {
        self.message(number, command, 0, 0)
    }
}

/// A refusal, with the error's number (errno).
pub(crate) fn refusal(number: u16, command: u16, error: i32) -> Vec<u8> {
    Writer::default().message(number, command, REPLY | ERROR, error.unsigned_abs())
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    part(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    part(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    part(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_these_bytes() {
        let reply = Writer::default().u32(0x0102_0304).reply(0x0a0b, command::RESET);
        assert_eq!(
            reply,
            [0x0b, 0x0a, 13, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1]
        );
        assert_eq!(
            refusal(1, 2, 22),
            [1, 0, 2, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]
        );
        let question = Writer::default().u64(1).question(7, command::DMA_READ);
        let header = Header::parse(question[..16].try_into().unwrap()).unwrap();
        assert_eq!((header.number, header.command, header.length), (7, 11, 8));
        assert!(!header.is_reply && !header.is_error && header.wants_reply);
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for (size, fits) in [
            (15, false),
            (16, true),
            (LONGEST as u32, true),
            (LONGEST as u32 + 1, false),
            (u32::MAX, false),
        ] {
            let bytes = Writer::default().u16(1).u16(2).u32(size).u64(0).0;
            assert_eq!(
                Header::parse(bytes[..].try_into().unwrap()).is_some(),
                fits,
                "{size}"
            );
        }
    }
}
