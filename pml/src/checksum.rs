//! The checksum of a message, end to end: from the sender's memory to the receiver's, over everything between
//! them.
//!
//! What a rail checks, it checks between its own two ends. What is damaged in a buffer between, or by a
//! device that checks wrongly, or by a sender that writes its memory too early, it does not see. The sender
//! computes CRC-32C over the bytes as they lie in its memory when the message begins, the receiver over what
//! lies in its room when all have come, as Open MPI's `csum` PML does. Every message shows whether it has
//! one, so ranks need not agree on the setting. A message that does not fit its room is not checked: the
//! receiver does not have its bytes.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Inbound;

use crate::args::Target;
use crate::convertor::{Cursor, Origin, to_usize};
use crate::core::Core;
use crate::receive::Landing;
use crate::request::RequestIndex;
use crate::request::{Memory, Outcome, Slot, mark};
use crate::unexpected::Envelope;

/// Bytes copied at a time: memory that others may write is read once, and never by reference.
const BLOCK: usize = 4096;

/// Goes on with a checksum over more bytes.
fn append(mut sum: u32, bytes: SharedBytes<'_>) -> u32 {
    let mut block = [0; BLOCK];
    let mut at = 0;
    loop {
        let length = bytes.copy_to(at, &mut block);
        if length == 0 {
            return sum;
        }
        sum = crc32c::crc32c_append(sum, &block[..length]);
        at += length;
    }
}

impl Origin {
    /// Returns the checksum of all bytes to be sent.
    fn checksum(&self) -> u32 {
        self.checksum_behind(0)
    }

    /// Returns the checksum of all bytes to be sent, behind others that have this one.
    pub(crate) fn checksum_behind(&self, mut sum: u32) -> u32 {
        let mut block = [0; BLOCK];
        let (mut cursor, mut at) = (Cursor::default(), 0);
        loop {
            let length = self.pack(&mut cursor, at, &mut block);
            if length == 0 {
                return sum;
            }
            sum = crc32c::crc32c_append(sum, &block[..length]);
            at += length as u64;
        }
    }
}

impl Target {
    /// Returns the checksum of the first `length` bytes of the buffer.
    fn checksum(&self, length: usize) -> u32 {
        match self {
            Self::Loan(loan) => append(0, loan.as_shared().take(length)),
            Self::Region(slice) => append(0, slice.as_shared().take(length)),
            Self::Parts(_) | Self::Strided(_) => {
                let (mut left, mut sum) = (length, 0);
                for piece in (0..).map_while(|index| self.piece(index)) {
                    sum = append(sum, piece.as_shared().take(left));
                    left = left.saturating_sub(piece.len());
                }
                sum
            }
        }
    }
}

/// The checksums of a message.
#[derive(Debug, Default)]
pub(crate) struct Checksums {
    /// The checksum of the whole message as it was sent, if it has one.
    announced: Option<u32>,
    /// As it arrived.
    found: u32,
}

impl Checksums {
    /// The checksum that was sent, if there is one.
    pub(crate) fn announced(&self) -> Option<u32> {
        self.announced
    }

    /// Notes the checksum that is sent, if there is one.
    pub(crate) fn set_announced(&mut self, checksum: Option<u32>) {
        self.announced = checksum;
    }

    /// The checksum of what arrived, once it was computed.
    pub(crate) fn found(&self) -> u32 {
        self.found
    }
}

impl Memory {
    /// Computes the checksum of `length` bytes of the room from `offset` on.
    fn checksum(&self, slot: &Slot, offset: usize, length: usize) -> u32 {
        let mut block = [0; BLOCK];
        let (mut done, mut sum) = (0, 0);
        while done < length {
            let part = &mut block[..BLOCK.min(length - done)];
            if !self.read_special(offset + done, part) {
                break;
            }
            sum = crc32c::crc32c_append(sum, part);
            done += part.len();
        }
        if done > 0 {
            return sum;
        }
        match self.target(slot) {
            Some(Target::Region(slice)) => append(0, slice.as_shared().skip(offset).take(length)),
            Some(target) => target.checksum(length),
            None => append(0, slot.room().part(offset, length).as_shared()),
        }
    }
}

impl Core {
    /// The checksum that a send carries: of its bytes as they were when it began. `None` when it carries
    /// none.
    pub(crate) fn checksum_of(&mut self, index: RequestIndex) -> Option<u32> {
        if !self.config.checksum {
            return None;
        }
        let record = self.requests.record(index);
        let origin = record.memory.origin();
        Some(
            *record
                .checksums
                .announced
                .get_or_insert_with(|| origin.checksum()),
        )
    }

    /// Returns how a receive ends whose bytes are all there.
    pub(crate) fn judge(&mut self, index: RequestIndex) -> Outcome {
        let (slot, record) = self.requests.both(index);
        if !slot.is(mark::RECORD) {
            return Outcome::Ok;
        }
        if record.progress.until() < slot.length() {
            return Outcome::Truncated;
        }
        let Some(announced) = record.checksums.announced else {
            return Outcome::Ok;
        };
        let found = record.memory.checksum(slot, 0, to_usize(slot.length()));
        record.checksums.found = found;
        self.count_checked(announced == found)
    }

    /// Whether a whole message in a piece of a multi-receive is what was sent.
    pub(crate) fn is_intact(&mut self, index: RequestIndex, found: &Landing, envelope: &Envelope) -> bool {
        let Some(announced) = envelope.checksum.filter(|_| found.length == envelope.length) else {
            return true;
        };
        let (slot, record) = self.requests.both(index);
        let there = record
            .memory
            .checksum(slot, to_usize(found.offset), to_usize(found.length));
        self.count_checked(announced == there) == Outcome::Ok
    }

    /// Whether the bytes of an operation, from a byte of its message on, are those that were sent.
    pub(crate) fn is_undamaged(&mut self, checksum: Option<u32>, inbound: &Inbound<'_>, at: usize) -> bool {
        let Some(announced) = checksum else { return true };
        let mut block = [0; BLOCK];
        let (mut from, mut sum) = (at, 0);
        loop {
            let length = inbound.copy_to(from, &mut block);
            if length == 0 {
                return self.count_checked(announced == sum) == Outcome::Ok;
            }
            sum = crc32c::crc32c_append(sum, &block[..length]);
            from += length;
        }
    }

    fn count_checked(&mut self, same: bool) -> Outcome {
        self.counters.checked += 1;
        if same {
            return Outcome::Ok;
        }
        self.counters.corrupt += 1;
        Outcome::Corrupt
    }
}
