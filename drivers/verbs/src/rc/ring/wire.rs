//! What both ends send each other about a ring, in the order of sends.
//!
//! ```text
//!   receiver ── OFFER ──► sender            it may write to the ring
//!   receiver ── PAUSE ──► sender            nothing looks at the ring: it sends over the queue
//!   receiver ◄── PAUSED ── sender           behind everything that it has written
//!   receiver ── RESUME ──► sender
//! ```

/// A ring that the other end may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) address: u64,
    pub(crate) key: u32,
    /// The number of the first lap; not zero, as memory that was never written.
    pub(crate) first_lap: u32,
}

/// What is sent about a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Offer(Offer),
    Pause,
    Paused,
    Resume,
}
