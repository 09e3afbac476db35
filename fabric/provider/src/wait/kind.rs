//! What clients wait on.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use libfabric_sys::*;

use super::set::WaitSet;
use crate::errno::{Errno, Result};
use crate::object::{find, give};

/// What clients wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// Nothing: a call that waits is refused, or spins.
    Nothing,
    /// What we choose, which is a descriptor.
    Chosen,
    /// A descriptor, for the client's own event loop.
    Descriptor,
    /// A wait set of the client.
    Set,
}

impl WaitKind {
    /// Returns what a number of libfabric stands for.
    ///
    /// # Errors
    /// `FI_ENOSYS` for kinds that are not offered.
    pub(crate) const fn of(kind: fi_wait_obj) -> Result<Self> {
        Ok(match kind {
            FI_WAIT_NONE | FI_WAIT_YIELD => Self::Nothing,
            FI_WAIT_UNSPEC => Self::Chosen,
            FI_WAIT_FD => Self::Descriptor,
            FI_WAIT_SET => Self::Set,
            _ => return Err(Errno(FI_ENOSYS)),
        })
    }

    /// Returns the wait set of an object of this kind; `None` for other kinds.
    ///
    /// # Safety
    /// The set is null, or open for as long as the reference is used.
    ///
    /// # Errors
    /// `FI_EINVAL` for null and for an object that is no wait set.
    pub(crate) unsafe fn set<'a>(self, set: *mut fid_wait) -> Result<Option<&'a WaitSet>> {
        if self != Self::Set {
            return Ok(None);
        }
        // SAFETY: by the contract of this function.
        unsafe { find::<WaitSet>(set.cast()) }.map(Some)
    }

    /// Answers the commands about a wait object: fi_control(3).
    ///
    /// # Safety
    /// The argument is that of the command.
    ///
    /// # Errors
    /// `FI_EINVAL` where there is no descriptor; `FI_ENOSYS` for other commands.
    pub(crate) unsafe fn control(
        self,
        command: c_int,
        argument: *mut c_void,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<c_int> {
        match command {
            FI_GETWAIT => {
                let descriptor = descriptor.ok_or(Errno(FI_EINVAL))?;
                // SAFETY: the argument of this command is a place for a descriptor.
                unsafe { give(argument.cast::<c_int>(), descriptor.as_raw_fd()) }?;
            }
            FI_GETWAITOBJ => {
                let kind = if descriptor.is_some() {
                    FI_WAIT_FD
                } else {
                    FI_WAIT_NONE
                };
                // SAFETY: the argument of this command is a place for a kind of wait object.
                unsafe { give(argument.cast::<fi_wait_obj>(), kind) }?;
            }
            _ => return Err(Errno(FI_ENOSYS)),
        }
        Ok(0)
    }
}
