//! The bytes of a slot: a send, as the queue of receives would have it, and behind it, at the slot's end,
//! what shows that it is whole.
//!
//! ```text
//!   ┌─────────────┬── a send: head, messages ──┬──────── tail, 16 bytes ────────┐
//!   │ not written │ length bytes               │ queued  length  0  check  lap  │
//!   └─────────────┴────────────────────────────┴────────────────────────────────┘
//! ```
//!
//! Little endian. One write brings send and tail together. RDMA promises no order within a write, and a peer
//! may write whenever it likes: so the send is copied, and the copy is believed if its check word fits.

use std::sync::atomic::{Ordering, fence};

use doorbell_fabric::memory::SharedBytes;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::rc::head::HEAD;

/// Slots of a ring: a power of two.
pub(crate) const SLOTS: usize = 16;
/// Bytes of a send at most, its head included.
pub(crate) const LONGEST: usize = 1024;
/// Bytes of a tail.
pub(crate) const TAIL: usize = size_of::<Tail>();
/// Bytes of a slot, and of a ring.
pub(crate) const SLOT: usize = LONGEST + TAIL;
pub(crate) const RING: usize = SLOTS * SLOT;
/// Where in a slot its tail and its lap are.
const AT_TAIL: usize = SLOT - TAIL;
const AT_LAP: usize = SLOT - size_of::<U32>();

/// What stands at the end of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Tail {
    /// Sends over the queue that were posted before, modulo 2^32.
    pub(crate) queued: U32,
    /// Bytes of the send.
    pub(crate) length: U16,
    reserved: U16,
    /// Of the bytes of the send and the other numbers.
    check: U32,
    /// How often the ring was gone through, from its first number on, modulo 2^32.
    lap: U32,
}
const _: () = assert!(TAIL == 16 && SLOT.is_multiple_of(16) && LONGEST <= u16::MAX as usize);

impl Tail {
    /// The tail of a send whose bytes are these.
    pub(crate) fn of(bytes: SharedBytes<'_>, queued: u32, lap: u32) -> Self {
        Self {
            queued: queued.into(),
            length: (bytes.len() as u16).into(),
            reserved: 0.into(),
            check: check(bytes, queued, lap).into(),
            lap: lap.into(),
        }
    }
}

/// Where the slot of a send begins, by the sends before it.
#[inline]
pub(crate) fn place(sends: u64) -> usize {
    (sends % SLOTS as u64) as usize * SLOT
}

/// Where in its slot a send of this length begins.
pub(crate) fn start(length: usize) -> usize {
    AT_TAIL - length.min(LONGEST)
}

/// The lap of a send, by the sends before it.
#[inline]
pub(crate) fn lap(first: u32, sends: u64) -> u32 {
    first.wrapping_add((sends / SLOTS as u64) as u32)
}

/// Whether the end of a slot has this lap's number: one load.
#[inline]
pub(crate) fn has_come(slot: SharedBytes<'_>, lap: u32) -> bool {
    slot.read(AT_LAP).map(u32::from_le_bytes) == Some(lap)
}

/// Copies a send out of its slot; returns its tail if it is whole, and what was copied is what was sent.
#[inline]
pub(crate) fn take(slot: SharedBytes<'_>, lap: u32, into: &mut [u8; LONGEST]) -> Option<Tail> {
    if !has_come(slot, lap) {
        return None;
    }
    // What was written before the number is seen after it.
    fence(Ordering::Acquire);
    let tail = Tail::read_from_bytes(&slot.read::<TAIL>(AT_TAIL)?).ok()?;
    let length = usize::from(tail.length.get());
    if !(HEAD..=LONGEST).contains(&length) {
        return None;
    }
    let copy = &mut into[..length];
    slot.copy_to(start(length), copy);
    // The peer may write it again meanwhile: what counts is the copy.
    (Tail::of(SharedBytes::of(copy), tail.queued.get(), lap) == tail).then_some(tail)
}

/// A word that other bytes, other lengths, another lap and another place among the sends hardly have. It
/// protects against what is half written, not against its writer, who may write what it likes.
fn check(bytes: SharedBytes<'_>, queued: u32, lap: u32) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: u64| (sum.rotate_left(29) ^ word).wrapping_mul(FACTOR);
    let mut sum = mix(
        mix(0x5bd1_e995, bytes.len() as u64),
        u64::from(queued) << 32 | u64::from(lap),
    );
    let mut at = 0;
    while let Some(word) = bytes.read(at).map(u64::from_le_bytes) {
        sum = mix(sum, word);
        at += 8;
    }
    let last = bytes.skip(at).read_short().unwrap_or(0);
    sum = mix(sum, u64::from_le(last));
    (sum ^ sum >> 32) as u32
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::memory::Region;

    use super::*;

    /// A slot with this send.
    fn written(bytes: &[u8], queued: u32, lap: u32) -> [u8; SLOT] {
        let mut slot = [0; SLOT];
        let at = start(bytes.len());
        slot[at..at + bytes.len()].copy_from_slice(bytes);
        slot[AT_TAIL..].copy_from_slice(Tail::of(SharedBytes::of(bytes), queued, lap).as_bytes());
        slot
    }

    fn taken(slot: &[u8; SLOT], lap: u32) -> Option<(Vec<u8>, u32)> {
        let mut into = [0; LONGEST];
        let tail = take(SharedBytes::of(slot), lap, &mut into)?;
        Some((into[..tail.length.get().into()].to_vec(), tail.queued.get()))
    }

    /// Both ends may be of different builds: the bytes may not change without a new version of contact.
    #[test]
    fn golden_slot() {
        let send: Vec<u8> = (0..21).collect();
        let slot = written(&send, 0x0102_0304, 0x0a0b_0c0d);
        let golden = [
            4, 3, 2, 1, 21, 0, 0, 0, 0xef, 0xde, 0x49, 0xf4, 0x0d, 0x0c, 0x0b, 0x0a,
        ];
        assert_eq!(slot[AT_TAIL..], golden);
        assert_eq!(slot[AT_TAIL - 21..AT_TAIL], send);
        assert!(slot[..AT_TAIL - 21].iter().all(|byte| *byte == 0));
        assert_eq!((SLOT, RING), (1040, 16640));
    }

    #[test]
    fn sends_of_all_lengths_come_out_as_they_were_put_in() {
        for length in [HEAD, 17, 24, 25, 31, 100, 500, 1023, LONGEST] {
            let send: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let slot = written(&send, u32::MAX, 7);
            assert_eq!(taken(&slot, 7), Some((send, u32::MAX)), "{length} bytes");
            assert_eq!(taken(&slot, 8), None, "of another lap");
        }
    }

    #[test]
    fn what_is_half_written_is_not_taken() {
        let old: Vec<u8> = vec![1; 200];
        let new: Vec<u8> = (0..200).map(|at| at as u8).collect();
        let (before, after) = (written(&old, 3, 4), written(&new, 9, 5));
        // The end comes first, and of the rest no more than this.
        for missing in [1, 8, 64, 100, 199, 200] {
            let mut torn = after;
            let at = start(200);
            torn[at..at + missing].copy_from_slice(&before[at..at + missing]);
            assert_eq!(taken(&torn, 5), None, "{missing} bytes are missing");
        }
        // The last word alone; every other word of the tail as it was.
        for length in (4..TAIL).step_by(4) {
            let mut torn = before;
            torn[SLOT - length..].copy_from_slice(&after[SLOT - length..]);
            assert_eq!(taken(&torn, 5), None, "the last {length} bytes have come");
        }
        assert_eq!(taken(&after, 5), Some((new, 9)));
    }

    #[test]
    fn every_bit_matters() {
        let slot = written(&[7; 60], 1, 1);
        for bit in 8 * start(60)..8 * SLOT {
            let mut other = slot;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(taken(&other, 1), None, "bit {bit}");
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_not_taken() {
        for length in [0, 1, HEAD as u16 - 1, LONGEST as u16 + 1, u16::MAX] {
            let mut slot = written(&[7; 60], 1, 1);
            slot[AT_TAIL + 4..AT_TAIL + 6].copy_from_slice(&length.to_le_bytes());
            assert_eq!(taken(&slot, 1), None, "{length} bytes");
        }
        assert_eq!(taken(&[0; SLOT], 0), None, "a slot that was never written");
    }

    #[test]
    fn laps_wrap() {
        assert_eq!(lap(u32::MAX, 15), u32::MAX);
        assert_eq!(lap(u32::MAX, 16), 0);
        assert_eq!((place(15), place(16), place(17)), (15 * SLOT, 0, SLOT));
    }

    /// A peer that never stops writing: what is believed is one of the sends that it wrote, whole.
    #[test]
    fn a_slot_that_is_rewritten_while_it_is_read_gives_one_of_its_sends_or_none() {
        let region = Region::new(SLOT).unwrap().whole();
        let sends = [vec![0x11; 1000], vec![0x22; 1000], vec![0x33; 400]];
        let slots = sends.clone().map(|send| written(&send, 1, 1));
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let mut seen = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for slot in &slots {
                        region.write(0, slot);
                    }
                }
            });
            let mut into = [0; LONGEST];
            for _ in 0..200_000 {
                let Some(tail) = take(region.as_shared(), 1, &mut into) else {
                    continue;
                };
                let copy = &into[..tail.length.get().into()];
                assert!(sends.iter().any(|send| send == copy), "a mixture was believed");
                seen += 1;
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(seen > 0, "the test is in vain");
    }
}
