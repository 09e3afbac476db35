//! Datagrams over two queue pairs, one for each channel.
//!
//! | file | job |
//! |---|---|
//! | `layout` | how the memory is cut up |
//! | `open` | from a name to queue pairs that receive |
//! | `tx`, `rx` | the two halves |
//! | `rail` | peers, housekeeping and events |
//! | `unused` | an address at a host without a process, to try the way to it |

pub(crate) mod layout;
pub(crate) mod open;
mod rail;
mod rx;
#[cfg(test)]
mod tests;
pub(crate) mod tx;
mod unused;

pub(crate) use rail::ESTIMATE;
pub use rail::{QueueSizes, UdRail, UdStats};
pub use rx::{ReceiveCounts, UdRx};
pub use tx::{SendCounts, UdTx};

/// Bytes of memory that a rail locks, for frames of up to `mtu` bytes.
pub(crate) fn locked(config: &crate::config::VerbsConfig, mtu: usize) -> usize {
    layout::cut((config.send, config.receive, config.spare), mtu).1
}

/// Bytes that are requested to go with a request itself.
pub(crate) const INLINE: usize = open::INLINE;
