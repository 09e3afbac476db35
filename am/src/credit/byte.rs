//! The credit byte of every active message: the epoch's bit, three of extra, four of number (gasnet.md
//! section 8).
//!
//! ```text
//!   bit   7      6 5 4           3 2 1 0
//!         E      extra           number
//!         epoch  request: lacked request: used
//!                reply: granted  reply: given back
//! ```

/// Largest value of the three extra bits: a request that lacks more reports this, and the next one that
/// stalls reports again.
pub const MOST_EXTRA: u8 = 7;
/// The most that the four bits of the number hold.
pub const MOST_CREDITS: u8 = 15;

/// The credit fields of an active message, in the lowest byte of its header data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditByte(u8);

impl CreditByte {
    /// The byte of messages that take no credits.
    pub const NOTHING: Self = Self(0);

    /// The byte of an epoch's end, extra credits and credits; `None` where a number does not fit its field.
    #[inline]
    pub const fn new(epoch: bool, extra: u8, credits: u8) -> Option<Self> {
        if extra > MOST_EXTRA || credits > MOST_CREDITS {
            return None;
        }
        Some(Self((epoch as u8) << 7 | extra << 4 | credits))
    }

    /// Makes a byte of numbers that are in range; what does not fit is cut off.
    #[inline]
    pub(super) const fn packed(epoch: bool, extra: u8, credits: u8) -> Self {
        Self((epoch as u8) << 7 | (extra & MOST_EXTRA) << 4 | (credits & MOST_CREDITS))
    }

    /// Decodes a byte from the wire: every byte means something.
    #[inline]
    pub const fn from_wire(byte: u8) -> Self {
        Self(byte)
    }

    /// Encodes the byte for the wire.
    #[inline]
    pub const fn wire(self) -> u8 {
        self.0
    }

    /// Whether the sender's epoch has ended since it last wrote.
    #[inline]
    pub const fn epoch(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// Returns the extra credits. In a request: those that it lacked when it was first tried. In a reply:
    /// those that are granted.
    #[inline]
    pub const fn extra(self) -> u8 {
        self.0 >> 4 & MOST_EXTRA
    }

    /// Credits that a request uses, or that a reply returns.
    #[inline]
    pub const fn credits(self) -> u8 {
        self.0 & MOST_CREDITS
    }
}
