//! Registers descriptors with tokio.

use std::io;
use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// `AsyncFd::register` requires that the value owns its descriptor, keeps it open and never changes it, which
/// holds for every type that is registered here. The newer call states that by being unsafe, and this crate
/// has no unsafe code.
#[allow(deprecated)]
pub(crate) fn registered<T: AsRawFd>(what: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(what, Interest::READABLE)
}
