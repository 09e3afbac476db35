//! Waits on several objects: fi_trywait(3), wait sets and poll sets of fi_poll(3).
//!
//! | file | what it holds |
//! |---|---|
//! | `kind` | what clients wait on |
//! | `source` | an object that can be waited on or polled, of any of the three classes |
//! | `set` | wait sets |
//! | `poll_set` | poll sets |

mod kind;
mod poll_set;
mod set;
mod source;

use std::ffi::c_int;

use libfabric_sys::*;

pub(crate) use self::kind::WaitKind;
pub(crate) use self::poll_set::open_poll;
pub(crate) use self::set::{Joined, Member, WaitSet, open_set};
use self::source::Source;
use crate::errno::Errno;
use crate::fabric;
use crate::object::{self, find, taken};

/// Prepares a sleep on the descriptors of several objects: fi_trywait(3).
pub(crate) unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    // SAFETY: the table belongs to fabrics.
    let fabric = unsafe { fabric::of(fabric) };
    fabric.run("fi_trywait", || {
        let count = usize::try_from(count).map_err(|_| Errno(FI_EINVAL))?;
        for at in 0..count {
            // SAFETY: the caller has `count` pointers.
            let object = unsafe { taken(fids.wrapping_add(at).cast_const()) }.ok_or(Errno(FI_EINVAL))?;
            // SAFETY: null, or an open object.
            if unsafe { object::class(object) }? == FI_CLASS_WAIT {
                // SAFETY: as above.
                unsafe { find::<WaitSet>(object) }?.try_wait()?;
                continue;
            }
            // SAFETY: as above.
            unsafe { Source::find(object) }?.try_wait()?;
        }
        Ok(0)
    })
}
