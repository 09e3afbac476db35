//! Descriptors that tokio waits for.

use std::io;
use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What tokio asks of those who register a descriptor (`AsyncFd::register`) is that it is theirs, open, and the same for as
/// long as they have it: all that are registered here own one descriptor and never change it. The newer call says so by
/// being unsafe, and there is nothing unsafe in this crate.
#[allow(deprecated)]
pub(crate) fn registered<T: AsRawFd>(what: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(what, Interest::READABLE)
}
