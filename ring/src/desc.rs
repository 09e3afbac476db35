//! Descriptor rings shared with a device.
//!
//! ```text
//!   Posts        we write descriptors ──────► memory ──────► the device reads them     (work, receive queues)
//!   Completions  we poll                ◄──── memory ◄────── the device writes them    (completion queues)
//! ```
//!
//! There is no index to read on the fast path. The device tells that an entry is new by a **colour bit** in
//! the entry itself, which flips every lap: 1 on the first lap over a zeroed ring, 0 on the second, and so
//! on; nothing has to be cleared after use. It writes the word with the colour last, so whoever sees the
//! colour sees the rest (reference: vic, sections 4.5 and 4.6). Devices that set a *done* bit in the posted
//! descriptor instead (Intel) are served by [`Posts::poll_done`].
//!
//! What a device can write is never read back as truth. Indices are private fields; what was posted is kept
//! in a private shadow; an entry is copied word by word, each word exactly once, and decoded from the copy.
//! All access is by atomic words, so not even a device (or a fake of one in another thread) that writes at
//! the wrong moment can cause undefined behaviour: it can only cause wrong bytes, and those are the decoder's
//! to refuse. Slot numbers that a device reports go through [`Posts::complete`], which refuses what is not
//! outstanding.
//!
//! Where the two sides tell each other by index words instead, as the kernel and a process do: [`indexed`].
//!
//! The ring neither knows a register nor rings a doorbell; it tells when one is due and with which index.

mod completions;
pub mod device;
pub mod indexed;
mod posts;

pub use completions::Completions;
pub use posts::{Doorbell, Posts};

use crate::error::{RingError, check_capacity};
use crate::storage::{Access, Area};
use crate::sync::Ordering;

/// One bit of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bit {
    byte: usize,
    mask: u8,
}

impl Bit {
    /// Bit `bit` (0 is the least significant) of byte `byte`.
    ///
    /// # Panics
    /// If `bit` is above 7; in a `const`, where layouts are written, that is a compile-time error.
    #[must_use]
    pub const fn new(byte: usize, bit: u32) -> Self {
        assert!(bit < 8, "a byte has bits 0 to 7");
        Self { byte, mask: 1 << bit }
    }

    /// Number of the 8-byte word that the bit lies in.
    const fn word(self) -> usize {
        self.byte / WORD
    }

    /// The bit within that word, as the word is loaded from memory on this machine.
    const fn in_word(self) -> u64 {
        let mut bytes = [0; WORD];
        bytes[self.byte % WORD] = self.mask;
        u64::from_ne_bytes(bytes)
    }

    const fn fits(self, size: usize) -> bool {
        self.byte < size
    }
}

/// What a kind of descriptor looks like, as far as a ring has to know. The size in bytes is the rings' const
/// parameter `N` (a multiple of 8).
///
/// ```
/// use doorbell_ring::desc::{Bit, Completions, Layout};
/// /// Completion entry of a VIC (reference: vic, section 4.5): colour is bit 7 of byte 15.
/// enum VicCompletion {}
/// impl Layout for VicCompletion {
///     const NAME: &'static str = "VIC completion queue";
///     const COLOUR: Option<Bit> = Some(Bit::new(15, 7));
/// }
/// let area = doorbell_ring::storage::Area::heap(64 * 16)?;
/// let mut queue = Completions::<VicCompletion, 16>::new(area, 64)?;
/// assert_eq!(queue.poll(), None);
/// # Ok::<(), doorbell_ring::RingError>(())
/// ```
pub trait Layout: 'static {
    /// Name of the ring in errors.
    const NAME: &'static str;
    /// Where the writer of the ring puts the colour; needed for [`Completions`].
    const COLOUR: Option<Bit> = None;
    /// The bit that the device sets in a posted descriptor when it is done with it, if it does that.
    const DONE: Option<Bit> = None;
}

/// Facts of a layout that are settled at compile time.
struct Facts<L, const N: usize>(std::marker::PhantomData<L>);

impl<L: Layout, const N: usize> Facts<L, N> {
    const WORDS: usize = {
        assert!(
            N > 0 && N.is_multiple_of(WORD),
            "a descriptor is a whole number of 8-byte words"
        );
        if let Some(colour) = L::COLOUR {
            assert!(colour.fits(N), "the colour bit lies outside the descriptor");
        }
        if let Some(done) = L::DONE {
            assert!(done.fits(N), "the done bit lies outside the descriptor");
        }
        N / WORD
    };
}

/// The memory of a ring of `N`-byte descriptors, word by word. Shared by both halves and the fake device.
struct Table<L, const N: usize> {
    area: Area,
    mask: u32,
    layout: std::marker::PhantomData<fn() -> L>,
}

impl<L: Layout, const N: usize> Table<L, N> {
    /// Takes `count` descriptors at the start of `area`.
    fn new(area: Area, count: usize, access: Access) -> Result<Self, RingError> {
        check_capacity(L::NAME, count, 2, 1 << 24)?;
        area.check(L::NAME, count * Facts::<L, N>::WORDS * WORD, WORD, access)?;
        Ok(Self {
            area,
            mask: count as u32 - 1,
            layout: std::marker::PhantomData,
        })
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> u32 {
        index & self.mask
    }

    /// The colour of the lap that `index` is in: set on laps 0, 2, 4 … over a zeroed ring.
    #[inline(always)]
    fn colour(&self, index: u32) -> bool {
        index & (self.mask + 1) == 0
    }

    /// Loads word `word` of the slot of `index`.
    #[inline(always)]
    fn load(&self, index: u32, word: usize, order: Ordering) -> u64 {
        // SAFETY: `new` checked that all slots lie inside, aligned; the index is masked and `word` is below
        // `WORDS` (kept by the callers in this module's files); words are only read here.
        unsafe { self.area.word(self.slot(index) as usize * N + word * WORD) }.load(order)
    }

    /// Stores word `word` of the slot of `index`.
    #[inline(always)]
    fn store(&self, index: u32, word: usize, value: u64, order: Ordering) {
        // SAFETY: as in `load`; `new` checked that the area may be written where a half does that.
        unsafe { self.area.word(self.slot(index) as usize * N + word * WORD) }.store(value, order);
    }

    /// Copies the slot of `index`, each word once, given that word `known` was loaded (with Acquire) already.
    #[inline(always)]
    fn copy(&self, index: u32, known: usize, value: u64) -> [u8; N] {
        let mut entry = [0; N];
        for (word, bytes) in entry.chunks_exact_mut(WORD).enumerate() {
            // Relaxed: ordered behind the Acquire of the known word.
            let loaded = if word == known {
                value
            } else {
                self.load(index, word, Ordering::Relaxed)
            };
            bytes.copy_from_slice(&loaded.to_ne_bytes());
        }
        entry
    }

    /// Writes the slot of `index`, word `last` after all others.
    #[inline(always)]
    fn write(&self, index: u32, entry: &[u8; N], last: usize) {
        let word_of = |word: usize| {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(&entry[word * WORD..(word + 1) * WORD]);
            u64::from_ne_bytes(bytes)
        };
        for word in (0..Facts::<L, N>::WORDS).filter(|word| *word != last) {
            self.store(index, word, word_of(word), Ordering::Relaxed);
        }
        // Release pairs with the reader's Acquire of this word: the others were written before. With Relaxed, the
        // reader could see the new colour beside words of the lap before.
        self.store(index, last, word_of(last), Ordering::Release);
    }
}

/// Sets or clears a bit of a descriptor.
#[inline(always)]
fn set<const N: usize>(entry: &mut [u8; N], bit: Bit, value: bool) {
    if value {
        entry[bit.byte] |= bit.mask;
    } else {
        entry[bit.byte] &= !bit.mask;
    }
}

const WORD: usize = 8;
