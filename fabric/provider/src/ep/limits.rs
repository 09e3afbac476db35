//! The limits, as getinfo reports them and as calls keep them.

use libfabric_sys::{FI_EINVAL, FI_LOG_CORE};

use crate::errno::{Errno, Result};
use crate::log;

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
/// The most entries of a completion queue that a client may want.
pub(crate) const ENTRIES: usize = 1 << 24;
/// The most addresses of an address vector that a client may announce.
pub(crate) const ADDRESSES: usize = 1 << 24;
/// The most events of an event queue that a client may want.
pub(crate) const EVENTS: usize = 1 << 20;
/// A buffer for many messages is released when it has fewer bytes than this, unless the client sets another
/// number.
pub(crate) const MIN_MULTI: u64 = 64;
/// Endpoints of a domain, which their addresses number.
pub(crate) const ENDPOINTS: usize = doorbell_job::lobby::ENDPOINTS as usize;
/// Completion queues of a domain: one number less than there are stands for none.
pub(crate) const QUEUES: u16 = u16::MAX;
/// Counters of a domain, as above.
pub(crate) const COUNTERS: u16 = u16::MAX;

/// Checks a size that a client wants. Nothing is allocated by one that is refused.
///
/// # Errors
/// `FI_EINVAL` for a larger one than is possible, which is a warning.
pub(crate) fn check(what: &str, wanted: usize, most: usize) -> Result<()> {
    if wanted <= most {
        return Ok(());
    }
    log::warn(
        FI_LOG_CORE,
        &format!("{what} of {wanted} is refused: at most {most} is possible"),
    );
    Err(Errno(FI_EINVAL))
}
