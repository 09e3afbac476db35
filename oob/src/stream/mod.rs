//! The stream from one process to another: it delivers messages once and in order, whatever path they take.
//!
//! ```text
//!   origin: Tx                                         destination: Rx
//!     base        sent     high       next               expected
//!      │ not yet   │ sent   │ never     │                   │
//!      │ acked     │ before │ sent      │      ──────►  got  │ held: beyond a gap
//!      ├───────────┼────────┼───────────┤                   ├──┬─┬──┬──┤
//!                  └ goes back to base when the path changes, and when nothing is heard
//! ```
//!
//! Acknowledgements are end to end, so relays keep no state. Every message carries how far before it its
//! stream begins (`back`): messages that the origin has given up are skipped by the receiver. All memory is
//! bounded: at the origin by the node's `pending`, at the destination by the window, which covers what
//! receives have not taken. When that is full the window closes, and the sender keeps its messages: nothing
//! is lost for lack of room.
//!
//! The streams know neither names nor epochs nor links: their owner starts a new one when the peer restarts.

mod rx;
#[cfg(test)]
mod tests;
mod tx;

pub(crate) use self::rx::{Arrival, Item, Rx};
pub(crate) use self::tx::{Message, Tx};

/// Overhead that is counted per message.
pub(crate) const ENVELOPE: u32 = 64;

/// Returns what a message of this length counts for.
pub(crate) fn charge(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX).saturating_add(ENVELOPE)
}
