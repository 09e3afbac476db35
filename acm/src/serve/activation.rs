//! Sockets opened by another program: systemd's socket activation.
//!
//! They are the descriptors from 3 on; the environment has their number and the process they are for. Taking
//! over a descriptor by number is safe only if nothing else owns it, so each is duplicated by the kernel
//! instead.

use std::os::fd::OwnedFd;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::error::ServeError;

/// The first descriptor passed.
const FIRST: i32 = 3;
/// Maximum number of descriptors passed; the original takes two.
const MOST: i32 = 16;

/// Returns duplicates of the sockets that were passed, given `LISTEN_FDS` and `LISTEN_PID`; none if they are
/// for another process.
///
/// # Errors
/// When they are for this process but cannot be duplicated.
pub fn inherited(fds: Option<&str>, pid: Option<&str>) -> Result<Vec<OwnedFd>, ServeError> {
    let own = getpid();
    let is_ours = pid.and_then(|pid| pid.parse().ok()) == Some(own.as_raw_nonzero().get());
    let Some(fds) = fds.filter(|_| is_ours) else {
        return Ok(Vec::new());
    };
    let count = fds.parse::<i32>().ok().filter(|count| (0..=MOST).contains(count));
    let count = count.ok_or_else(|| ServeError::Activation(format!("LISTEN_FDS is `{fds}`")))?;
    let refused = |error: rustix::io::Errno| ServeError::Activation(error.to_string());
    let process = pidfd_open(own, PidfdFlags::empty()).map_err(refused)?;
    (FIRST..FIRST + count)
        .map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).map_err(refused))
        .collect()
}
