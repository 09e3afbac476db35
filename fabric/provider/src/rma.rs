//! Reads and writes of peers' memory: fi_rma(3).

use std::ffi::c_void;

use libc::iovec;
use libfabric_sys::*;

use crate::ep::{Access, Bytes, EndpointObject, Remote, Room, endpoint, flags, limits};
use crate::errno::{Errno, Result};
use crate::memory::{lent, lent_pieces, room, room_pieces};
use crate::refuse::Table;

/// The table of endpoints.
pub(crate) static RMA: Table<fi_ops_rma> = Table::new(fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
});

/// A call without flags: those of the endpoint count.
fn access(
    endpoint: &EndpointObject,
    peer: fi_addr_t,
    context: *mut c_void,
    ours: u64,
    data: Option<u64>,
) -> Access {
    Access {
        peer,
        context: context.expose_provenance(),
        flags: endpoint.send_flags() & ours,
        data,
    }
}

/// What a structure describes, beside the memory of both sides.
fn described(message: &fi_msg_rma, flags: u64) -> Access {
    Access {
        peer: message.addr,
        context: message.context.expose_provenance(),
        flags,
        data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data),
    }
}

/// The peer's memory that a structure names.
///
/// # Safety
/// The structure has as many pieces as it states.
///
/// # Errors
/// `FI_EINVAL` for no pieces, and for too many.
unsafe fn remote(message: &fi_msg_rma) -> Result<Remote> {
    let (start, count) = (message.rma_iov, message.rma_iov_count);
    if start.is_null() || count == 0 || count > limits::PIECES {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: by the contract of this function.
    Remote::pieces(unsafe { std::slice::from_raw_parts(start, count) })
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of this table.
    let endpoint = unsafe { endpoint(ep) };
    let access = access(endpoint, src_addr, context, flags::READ, None);
    endpoint.run("fi_read", |state| {
        // SAFETY: the caller's memory, lent until the operation has ended.
        let room = Room::One(unsafe { room(buf, len) });
        state.read(endpoint.number(), Remote::One(addr, key), room, &access)
    })
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of this table.
    let endpoint = unsafe { endpoint(ep) };
    let access = access(endpoint, src_addr, context, flags::READ, None);
    endpoint.run("fi_readv", |state| {
        // SAFETY: the caller's memory, lent until the operation has ended.
        let room = unsafe { room_pieces(iov, count) }?;
        state.read(endpoint.number(), Remote::One(addr, key), room, &access)
    })
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: an endpoint of this table.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_readmsg", |state| {
        flags::check(flags, flags::READ)?;
        // SAFETY: null, or the caller's structure.
        let message = unsafe { msg.as_ref() }.ok_or(Errno(FI_EINVAL))?;
        // SAFETY: the caller's pieces.
        let remote = unsafe { remote(message) }?;
        // SAFETY: the caller's memory, lent until the operation has ended.
        let room = unsafe { room_pieces(message.msg_iov, message.iov_count) }?;
        state.read(endpoint.number(), remote, room, &described(message, flags))
    })
}

/// Writes one piece of memory.
///
/// # Safety
/// `ep` is an open endpoint, and the memory may be read until the operation has ended.
#[inline(always)]
unsafe fn write_one(
    name: &'static str,
    ep: *mut fid_ep,
    (buf, len): (*const c_void, usize),
    peer: fi_addr_t,
    remote: Remote,
    data: Option<u64>,
    context: *mut c_void,
) -> isize {
    // SAFETY: by the contract of this function.
    let endpoint = unsafe { endpoint(ep) };
    let access = access(endpoint, peer, context, flags::WRITE, data);
    endpoint.run(name, |state| {
        // SAFETY: by the contract of this function.
        let bytes = Bytes::One(unsafe { lent(buf, len) });
        state.write(endpoint.number(), remote, bytes, &access)
    })
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let remote = Remote::One(addr, key);
    // SAFETY: an endpoint of this table, and the caller's memory, lent until the operation has ended.
    unsafe { write_one("fi_write", ep, (buf, len), dest_addr, remote, None, context) }
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let (remote, data) = (Remote::One(addr, key), Some(data));
    // SAFETY: as for `write`.
    unsafe { write_one("fi_writedata", ep, (buf, len), dest_addr, remote, data, context) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of this table.
    let endpoint = unsafe { endpoint(ep) };
    let access = access(endpoint, dest_addr, context, flags::WRITE, None);
    endpoint.run("fi_writev", |state| {
        // SAFETY: the caller's memory, lent until the operation has ended.
        let bytes = unsafe { lent_pieces(iov, count) }?;
        state.write(endpoint.number(), Remote::One(addr, key), bytes, &access)
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: an endpoint of this table.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_writemsg", |state| {
        flags::check(flags, flags::WRITE)?;
        // SAFETY: null, or the caller's structure.
        let message = unsafe { msg.as_ref() }.ok_or(Errno(FI_EINVAL))?;
        // SAFETY: the caller's pieces.
        let remote = unsafe { remote(message) }?;
        // SAFETY: the caller's memory, lent until the operation has ended.
        let bytes = unsafe { lent_pieces(message.msg_iov, message.iov_count) }?;
        state.write(endpoint.number(), remote, bytes, &described(message, flags))
    })
}

/// Writes bytes that are taken before the call returns.
///
/// # Safety
/// `ep` is an open endpoint, and the memory may be read during the call.
unsafe fn inject_one(
    name: &'static str,
    ep: *mut fid_ep,
    (buf, len): (*const c_void, usize),
    peer: fi_addr_t,
    remote: Remote,
    data: Option<u64>,
) -> isize {
    // SAFETY: by the contract of this function.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run(name, |state| {
        // SAFETY: by the contract of this function: an injected write keeps no loan.
        let bytes = unsafe { lent(buf, len) };
        state.inject_write(endpoint.number(), remote, bytes, peer, data)
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let remote = Remote::One(addr, key);
    // SAFETY: an endpoint of this table, and the caller's memory, lent for the call.
    unsafe { inject_one("fi_inject_write", ep, (buf, len), dest_addr, remote, None) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let (remote, data) = (Remote::One(addr, key), Some(data));
    // SAFETY: as for `inject`.
    unsafe { inject_one("fi_inject_writedata", ep, (buf, len), dest_addr, remote, data) }
}
