//! Untagged messages: fi_msg(3).

use std::ffi::c_void;

use libc::iovec;
use libfabric_sys::*;

use crate::ep::{Receive, Room, Send, Space, endpoint, flags};
use crate::errno::Errno;
use crate::memory::{bytes, lent, lent_pieces, room, room_pieces};
use crate::refuse::Table;

/// The table of endpoints.
pub(crate) static MSG: Table<fi_ops_msg> = Table::new(fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
});

/// A send that takes no flags.
#[inline(always)]
fn plain(to: fi_addr_t, data: Option<u64>, context: *mut c_void, flags: u64) -> Send {
    Send {
        to,
        tag: 0,
        data,
        context: context.expose_provenance(),
        flags,
    }
}

/// Describes a receive of any message.
#[inline(always)]
fn any_tag(from: fi_addr_t, context: *mut c_void, flags: u64) -> Receive {
    Receive {
        from,
        tag: 0,
        ignore: 0,
        context: context.expose_provenance(),
        flags,
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    // SAFETY: the caller's memory, lent until the operation has ended.
    let room = Room::One(unsafe { room(buf, len) });
    let call = any_tag(src_addr, context, endpoint.receive_flags());
    endpoint.run("fi_recv", |state| {
        state.receive(endpoint.number(), Space::Untagged, room, call)
    })
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    let call = any_tag(src_addr, context, endpoint.receive_flags());
    endpoint.run("fi_recvv", |state| {
        // SAFETY: the caller's memory, lent until the operation has ended.
        let room = unsafe { room_pieces(iov, count) }?;
        state.receive(endpoint.number(), Space::Untagged, room, call)
    })
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_recvmsg", |state| {
        flags::check(flags, flags::RECEIVE)?;
        // SAFETY: null, or the caller's message.
        let msg = unsafe { msg.as_ref() }.ok_or(Errno(FI_EINVAL))?;
        // SAFETY: the caller's memory, lent until the operation has ended.
        let room = unsafe { room_pieces(msg.msg_iov, msg.iov_count) }?;
        state.receive(
            endpoint.number(),
            Space::Untagged,
            room,
            any_tag(msg.addr, msg.context, flags),
        )
    })
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    // SAFETY: the caller's memory, lent until the operation has ended.
    let loan = unsafe { lent(buf, len) };
    let call = plain(dest_addr, None, context, endpoint.send_flags());
    endpoint.run("fi_send", |state| {
        state.send(endpoint.number(), Space::Untagged, loan, call)
    })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    let call = plain(dest_addr, None, context, endpoint.send_flags());
    endpoint.run("fi_sendv", |state| {
        // SAFETY: the caller's memory, lent until the operation has ended.
        let bytes = unsafe { lent_pieces(iov, count) }?;
        state.send_pieces(endpoint.number(), Space::Untagged, bytes, call)
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_sendmsg", |state| {
        flags::check(flags, flags::SEND)?;
        // SAFETY: null, or the caller's message.
        let msg = unsafe { msg.as_ref() }.ok_or(Errno(FI_EINVAL))?;
        // SAFETY: the caller's memory, lent until the operation has ended.
        let bytes = unsafe { lent_pieces(msg.msg_iov, msg.iov_count) }?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        let call = plain(msg.addr, data, msg.context, flags);
        state.send_pieces(endpoint.number(), Space::Untagged, bytes, call)
    })
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_inject", |state| {
        // SAFETY: the caller's memory, for this call.
        let bytes = unsafe { bytes(buf, len) }?;
        state.inject(endpoint.number(), Space::Untagged, bytes, dest_addr, 0, None)
    })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    // SAFETY: the caller's memory, lent until the operation has ended.
    let loan = unsafe { lent(buf, len) };
    let call = plain(dest_addr, Some(data), context, endpoint.send_flags());
    endpoint.run("fi_senddata", |state| {
        state.send(endpoint.number(), Space::Untagged, loan, call)
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_injectdata", |state| {
        // SAFETY: the caller's memory, for this call.
        let bytes = unsafe { bytes(buf, len) }?;
        state.inject(
            endpoint.number(),
            Space::Untagged,
            bytes,
            dest_addr,
            0,
            Some(data),
        )
    })
}
