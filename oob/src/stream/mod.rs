//! The stream from one process to another: what makes messages arrive once and in order, whatever way they take.
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
//! Acknowledgements go from end to end, so relays keep nothing. Every message carries how far its stream begins before it
//! (`back`): what the origin has given up is skipped by the receiver. All that is kept is bounded: at the origin by the
//! node's `pending`, at the destination by the window, which is what the receives have not taken yet. When that is full
//! the window closes, and the sender keeps its messages: nothing is lost for want of room.
//!
//! The streams know no names, no epochs and no links: whoever holds them begins a new one when the peer does.

mod rx;
#[cfg(test)]
mod tests;
mod tx;

pub(crate) use self::rx::{Arrival, Item, Rx};
pub(crate) use self::tx::{Message, Tx};

/// What a message counts for beyond its bytes.
pub(crate) const ENVELOPE: u32 = 64;

/// What a message of so many bytes counts for.
pub(crate) fn charge(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX).saturating_add(ENVELOPE)
}
