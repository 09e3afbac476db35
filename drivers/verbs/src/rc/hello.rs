//! What both ends of a connection send each other before it is made.

use super::head::MOST_CREDITS;

/// Fewest sends that an end takes at the beginning: two prove the connection.
pub(crate) const FEWEST_CREDITS: usize = 2;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The number of the queue pair.
    pub(crate) pair: u32,
    /// The number of the first packet that it sends.
    pub(crate) psn: u32,
    /// Sends that it takes at the beginning.
    pub(crate) credits: u32,
    /// The longest send that it takes, in bytes.
    pub(crate) slot: u32,
    /// Where the other end writes its counters, and the key of that memory.
    pub(crate) page: (u64, u32),
}

/// How packets get to the other end, as both ends have agreed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) to: crate::sys::AhAttr,
    /// The path MTU, as its number.
    pub(crate) mtu: u8,
}

impl Hello {
    /// Whether an end like ours can have sent this.
    pub(crate) fn is_possible(&self, slot: usize) -> bool {
        let numbers = self.pair < 1 << 24 && self.psn < 1 << 24;
        let credits = (FEWEST_CREDITS as u64..=MOST_CREDITS).contains(&self.credits.into());
        numbers && credits && self.slot as usize == slot && self.page.0.is_multiple_of(8)
    }
}
