//! Untagged messages: fi_msg(3).

use std::ffi::c_void;

use libc::iovec;
use libfabric_sys::*;

use crate::calls::{Call, Destination, Message as _, Pattern};
use crate::domain::State;
use crate::ep::{EndpointObject, Space, flags};
use crate::memory::room_pieces;
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

const fn call(name: &'static str) -> Call<false> {
    Call(name)
}

const fn to(address: fi_addr_t, data: Option<u64>) -> Destination {
    let tag = 0;
    Destination { address, tag, data }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of this table, and the caller's memory, lent until the operation has ended.
    unsafe { call("fi_recv").receive(ep, (buf, len), Pattern::untagged(src_addr), context) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: as for `recv`.
    unsafe { call("fi_recvv").receive_pieces(ep, (iov, count), Pattern::untagged(src_addr), context) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    let call = call("fi_recvmsg");
    let run = |state: &mut State, endpoint: &EndpointObject, msg: &fi_msg| {
        let (iov, count) = msg.pieces();
        // SAFETY: the caller's memory, lent until the operation has ended.
        let room = unsafe { room_pieces(iov, count) }?;
        let receive = msg.pattern().receive(msg.context(), flags);
        state.receive(endpoint.number(), Space::Untagged, room, &receive)
    };
    // SAFETY: an endpoint of this table, and null or the caller's message.
    unsafe { call.receive_message(ep, msg, (flags, flags::RECEIVE), run) }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of this table, and the caller's memory, lent until the operation has ended.
    unsafe { call("fi_send").send(ep, (buf, len), to(dest_addr, None), context) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: as for `send`.
    unsafe { call("fi_sendv").send_pieces(ep, (iov, count), to(dest_addr, None), context) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: an endpoint of this table, and null or the caller's message, whose memory is lent until the
    // operation has ended.
    unsafe { call("fi_sendmsg").send_message(ep, msg, flags) }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize {
    // SAFETY: an endpoint of this table, and the caller's memory, lent for the call.
    unsafe { call("fi_inject").inject(ep, (buf, len), to(dest_addr, None)) }
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
    // SAFETY: as for `send`.
    unsafe { call("fi_senddata").send(ep, (buf, len), to(dest_addr, Some(data)), context) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
) -> isize {
    // SAFETY: as for `inject`.
    unsafe { call("fi_injectdata").inject(ep, (buf, len), to(dest_addr, Some(data))) }
}
