//! The limits of operations, as getinfo reports them.

/// Bytes that a call may take over at once: `inject_size`.
pub(crate) const INJECT: usize = 4096;
/// Pieces of memory of one operation: `iov_limit`.
pub(crate) const PIECES: usize = 4;
/// Bytes of a message: `max_msg_size`.
pub(crate) const MESSAGE: u64 = 1 << 40;
/// Sends under way of one endpoint: the size of `tx_attr`.
pub(crate) const SENDS: usize = 4096;
/// Receives under way that a client may count on: the size of `rx_attr`. More may be posted.
pub(crate) const RECEIVES: usize = 4096;
/// A buffer for many messages is released when it has fewer bytes than this, unless the client sets another
/// number.
pub(crate) const MIN_MULTI: u64 = 64;
