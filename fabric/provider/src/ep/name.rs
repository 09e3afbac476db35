//! The name of an endpoint: fi_cm(3). Endpoints of this kind have no connections.

use std::ffi::{c_int, c_void};
use std::ptr;

use libfabric_sys::*;

use super::object::of;
use crate::errno::Errno;
use crate::refuse::Table;

pub(super) static CM: Table<fi_ops_cm> = Table::new(fi_ops_cm {
    getname: Some(getname),
    ..fi_ops_cm::REFUSING
});

/// Writes the address of an endpoint, as far as there is room, and its length.
unsafe extern "C" fn getname(ep: *mut fid, address: *mut c_void, length: *mut usize) -> c_int {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { of(ep.cast()) };
    endpoint.run("fi_getname", |state| {
        if length.is_null() {
            return Err(Errno(FI_EINVAL));
        }
        let own = state.member.address(endpoint.number().0);
        let bytes = endpoint.domain().names().write(&own);
        // SAFETY: not null.
        let room = unsafe { length.replace(bytes.len()) };
        if !address.is_null() {
            let count = room.min(bytes.len());
            // SAFETY: the caller's memory has `room` bytes.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast(), count) };
        }
        match address.is_null() || room < bytes.len() {
            true => Err(Errno(FI_ETOOSMALL)),
            false => Ok(0),
        }
    })
}
