//! Datagrams over two queue pairs, one for each channel.
//!
//! | file | job |
//! |---|---|
//! | `layout` | how the memory is cut up |
//! | `open` | from a name to queue pairs that receive |
//! | `tx`, `rx` | the two halves |
//! | `ways` | address handles of peers |
//! | `rail` | peers, housekeeping and events |

mod layout;
pub(crate) mod open;
mod rail;
mod rx;
#[cfg(test)]
mod tests;
mod tx;
mod ways;

pub(crate) use rail::ESTIMATE;
pub use rail::{UdRail, UdStats};
pub use rx::{ReceiveCounts, UdRx};
pub use tx::{SendCounts, UdTx};
