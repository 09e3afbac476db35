//! The options of an endpoint, cancelling, and the sizes that are left.

use std::ffi::{c_int, c_void};

use libfabric_sys::*;

use super::limits;
use super::object::of;
use crate::errno::{Errno, Result};
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

/// An option that is a number of bytes.
enum Bytes {
    /// A buffer for many messages is released when it has fewer.
    MinMulti,
    /// Bytes that may be injected.
    Inject,
    /// Bytes of a message, which cannot be set.
    Message,
}

impl Bytes {
    fn of(option: c_int) -> Option<Self> {
        Some(match option {
            FI_OPT_MIN_MULTI_RECV => Self::MinMulti,
            FI_OPT_INJECT_MSG_SIZE | FI_OPT_INJECT_TAGGED_SIZE => Self::Inject,
            FI_OPT_MAX_MSG_SIZE | FI_OPT_MAX_TAGGED_SIZE => Self::Message,
            _ => return None,
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
        let option = Bytes::of(option)
            .filter(|_| level == FI_OPT_ENDPOINT)
            .ok_or(Errno(FI_ENOPROTOOPT))?;
        if value.is_null() || length.is_null() {
            return Err(Errno(FI_EINVAL));
        }
        // SAFETY: not null.
        let room = unsafe { length.replace(size_of::<usize>()) };
        if room < size_of::<usize>() {
            return Err(Errno(FI_ETOOSMALL));
        }
        let bytes = match option {
            Bytes::MinMulti => state.endpoints.find(endpoint.number())?.min_multi as usize,
            Bytes::Inject => limits::INJECT,
            Bytes::Message => limits::MESSAGE as usize,
        };
        // SAFETY: not null, and of this size.
        unsafe { value.cast::<usize>().write_unaligned(bytes) };
        Ok(0)
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
        let option = Bytes::of(option)
            .filter(|_| level == FI_OPT_ENDPOINT)
            .ok_or(Errno(FI_ENOPROTOOPT))?;
        // SAFETY: the value has this length.
        let bytes = unsafe { number(value, length) }?;
        match option {
            Bytes::MinMulti => state.endpoints.find(endpoint.number())?.min_multi = bytes as u64,
            // As many are taken as were ever announced.
            Bytes::Inject if bytes <= limits::INJECT => {}
            Bytes::Inject => return Err(Errno(FI_EINVAL)),
            Bytes::Message => return Err(Errno(FI_ENOPROTOOPT)),
        }
        Ok(0)
    })
}

/// Reads the value of an option.
///
/// # Safety
/// The value is null or has this length.
unsafe fn number(value: *const c_void, length: usize) -> Result<usize> {
    if value.is_null() || length != size_of::<usize>() {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: not null, and of this size.
    Ok(unsafe { value.cast::<usize>().read_unaligned() })
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

/// Receives have no limit but memory.
unsafe extern "C" fn rx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { of(ep) };
    endpoint.run("fi_rx_size_left", |state| {
        state.endpoints.find(endpoint.number())?.receiving()?;
        Ok(limits::RECEIVES as isize)
    })
}
