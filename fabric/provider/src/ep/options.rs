//! The options of an endpoint, cancelling, and the sizes that are left.

use std::ffi::{c_int, c_void};

use libfabric_sys::*;

use super::limits;
use super::object::of;
use crate::errno::{Errno, Result};
use crate::log;
use crate::ops::Mark;
use crate::refuse::{self, Table};

pub(super) static EP: Table<fi_ops_ep> = Table::new(fi_ops_ep {
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    rx_size_left: Some(rx_size_left),
    tx_size_left: Some(tx_size_left),
    ..refuse::EP
});

unsafe extern "C" fn cancel(ep: *mut fid, context: *mut c_void) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { of(ep.cast()) };
    endpoint.run("fi_cancel", |state| {
        state.cancel(endpoint.number(), context.expose_provenance());
        Ok(0)
    })
}

/// An option of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// A buffer for many messages is released when it has fewer bytes.
    MinMulti,
    /// Bytes that may be injected.
    Inject,
    /// Bytes of a message, a read or a write, which cannot be set.
    Message,
    /// Bytes of an atomic, which cannot be set.
    Atomic,
    /// Whether messages may pass through shared memory.
    SharedMemory,
}

impl Named {
    /// # Errors
    /// `FI_ENOPROTOOPT` for options that are not known here.
    fn of(level: c_int, option: c_int) -> Result<Self> {
        Ok(match (level, option) {
            (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) => Self::MinMulti,
            (FI_OPT_ENDPOINT, FI_OPT_INJECT_MSG_SIZE | FI_OPT_INJECT_TAGGED_SIZE) => Self::Inject,
            (FI_OPT_ENDPOINT, FI_OPT_INJECT_RMA_SIZE | FI_OPT_INJECT_ATOMIC_SIZE) => Self::Inject,
            (FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE | FI_OPT_MAX_TAGGED_SIZE | FI_OPT_MAX_RMA_SIZE) => {
                Self::Message
            }
            (FI_OPT_ENDPOINT, FI_OPT_MAX_ATOMIC_SIZE) => Self::Atomic,
            (FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED) => Self::SharedMemory,
            _ => return Err(Errno(FI_ENOPROTOOPT)),
        })
    }
}

unsafe extern "C" fn getopt(
    ep: *mut fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { of(ep.cast()) };
    endpoint.run("fi_getopt", |state| {
        let bytes = match Named::of(level, option)? {
            Named::MinMulti => state.endpoints.find(endpoint.number())?.min_multi as usize,
            Named::Inject => limits::INJECT,
            Named::Message => limits::MESSAGE as usize,
            Named::Atomic => state.atomic_most(),
            // SAFETY: the caller's memory, which has the length that is given.
            Named::SharedMemory => return unsafe { answer(true, value, length) },
        };
        // SAFETY: as above.
        unsafe { answer(bytes, value, length) }
    })
}

unsafe extern "C" fn setopt(
    ep: *mut fid,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { of(ep.cast()) };
    endpoint.run("fi_setopt", |state| {
        let option = Named::of(level, option)?;
        if option == Named::SharedMemory {
            // SAFETY: the value has this length; any byte but 0 is true.
            return permit_shared_memory(unsafe { wanted::<u8>(value, length) }? != 0);
        }
        // SAFETY: the value has this length.
        let bytes = unsafe { wanted::<usize>(value, length) }?;
        match option {
            Named::MinMulti => state.endpoints.find(endpoint.number())?.min_multi = bytes as u64,
            // As many are taken as were ever announced.
            Named::Inject if bytes <= limits::INJECT => {}
            Named::Inject => return Err(Errno(FI_EINVAL)),
            Named::Message | Named::Atomic | Named::SharedMemory => return Err(Errno(FI_ENOPROTOOPT)),
        }
        Ok(0)
    })
}

/// All rails of this provider lead through shared memory, so nothing is left without it.
fn permit_shared_memory(permitted: bool) -> Result<c_int> {
    if permitted {
        return Ok(0);
    }
    log::info(FI_LOG_EP_CTRL, || {
        "FI_OPT_SHARED_MEMORY_PERMITTED: false is refused, since no other rail than shared memory is open; choose \
         another provider (FI_PROVIDER)"
            .to_owned()
    });
    Err(Errno(FI_EOPNOTSUPP))
}

/// Writes the value of an option.
///
/// # Safety
/// `value` is null, or has as many bytes as `length` names, which is null or may be written.
///
/// # Errors
/// `FI_EINVAL` for null; `FI_ETOOSMALL` for too little room, with the size that is needed.
unsafe fn answer<T>(found: T, value: *mut c_void, length: *mut usize) -> Result<c_int> {
    if value.is_null() || length.is_null() {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: not null.
    let room = unsafe { length.replace(size_of::<T>()) };
    if room < size_of::<T>() {
        return Err(Errno(FI_ETOOSMALL));
    }
    // SAFETY: not null, and of this size.
    unsafe { value.cast::<T>().write_unaligned(found) };
    Ok(0)
}

/// Reads the value of an option, an integer.
///
/// # Safety
/// The value is null or has this length.
///
/// # Errors
/// `FI_EINVAL` for null and for another length.
unsafe fn wanted<T: From<u8>>(value: *const c_void, length: usize) -> Result<T> {
    if value.is_null() || length != size_of::<T>() {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: not null, and of this size.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

unsafe extern "C" fn tx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { of(ep) };
    endpoint.run("fi_tx_size_left", |state| {
        let found = state.endpoints.find(endpoint.number())?;
        found.sending()?;
        Ok(found.most_under_way.saturating_sub(found.under_way) as isize)
    })
}

/// Receives that the client may count on. They have no limit but memory: more may be posted.
unsafe extern "C" fn rx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { of(ep) };
    endpoint.run("fi_rx_size_left", |state| {
        let number = endpoint.number();
        let found = state.endpoints.find(number)?;
        found.receiving()?;
        let most = found.most_receives as usize;
        let all = state.operations.of_endpoint(number.0);
        let posted = all.filter(|operation| !operation.mark.is(Mark::SEND)).count();
        Ok(most.saturating_sub(posted) as isize)
    })
}
