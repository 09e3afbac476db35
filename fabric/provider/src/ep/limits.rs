//! The limits, as getinfo reports them and as calls keep them.

/// Bytes that a call may take over at once: `inject_size`.
pub(crate) const INJECT: usize = 4096;
/// Pieces of memory of one operation or registration: `iov_limit`.
pub(crate) const PIECES: usize = 4;
/// Bytes of a message: `max_msg_size`.
pub(crate) const MESSAGE: u64 = 1 << 40;
/// Sends under way of one endpoint, unless the client wants another number: the size of `tx_attr`.
pub(crate) const SENDS: usize = 1024;
/// Receives under way that a client may count on, unless it wants another number: the size of `rx_attr`. More
/// may be posted.
pub(crate) const RECEIVES: usize = 1024;
/// The largest number of either that a client may want.
pub(crate) const OPERATIONS: usize = 1 << 20;
/// A buffer for many messages is released when it has fewer bytes than this, unless the client sets another
/// number.
pub(crate) const MIN_MULTI: u64 = 64;
/// Endpoints of a domain, which their addresses number.
pub(crate) const ENDPOINTS: usize = doorbell_job::lobby::ENDPOINTS as usize;
/// Completion queues of a domain: one number less than there are stands for none.
pub(crate) const QUEUES: u16 = u16::MAX;
/// Counters of a domain, as above.
pub(crate) const COUNTERS: u16 = u16::MAX;
