//! Sockets that another program opened for the service: systemd's socket activation.
//!
//! They are the descriptors from 3 on; the environment says how many, and for which process. Taking a descriptor by its
//! number would need a promise that nobody else has it; a duplicate of it, asked of the kernel, needs none.

use std::os::fd::OwnedFd;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::error::ServeError;

/// The first descriptor that is handed over.
const FIRST: i32 = 3;
/// More than any service is given; the original takes two.
const MOST: i32 = 16;

/// Duplicates of the sockets that were handed over, given what stands in `LISTEN_FDS` and `LISTEN_PID`; none where they
/// are for another process.
///
/// # Errors
/// When they are for this process, and cannot be had.
pub fn inherited(fds: Option<&str>, pid: Option<&str>) -> Result<Vec<OwnedFd>, ServeError> {
    let own = getpid();
    let is_ours = pid.and_then(|pid| pid.parse().ok()) == Some(own.as_raw_nonzero().get());
    let Some(fds) = fds.filter(|_| is_ours) else {
        return Ok(Vec::new());
    };
    let count = fds.parse::<i32>().ok().filter(|count| (0..=MOST).contains(count));
    let count = count.ok_or_else(|| ServeError::Activation(format!("there cannot be `{fds}` of them")))?;
    let refused = |error: rustix::io::Errno| ServeError::Activation(error.to_string());
    let process = pidfd_open(own, PidfdFlags::empty()).map_err(refused)?;
    (FIRST..FIRST + count)
        .map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).map_err(refused))
        .collect()
}
