//! Tagged messages: fi_tagged(3).

use std::ffi::c_void;

use libc::iovec;
use libfabric_sys::*;

use crate::calls::{Call, Destination, Message as _, Pattern};
use crate::domain::State;
use crate::ep::{EndpointNumber, EndpointObject, Space, flags};
use crate::errno::{Errno, Result};
use crate::memory::room_pieces;
use crate::refuse::Table;

/// The table of endpoints.
pub(crate) static TAGGED: Table<fi_ops_tagged> = Table::new(fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
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

const fn call(name: &'static str) -> Call<true> {
    Call(name)
}

const fn of(address: fi_addr_t, tag: u64, ignore: u64) -> Pattern {
    Pattern { address, tag, ignore }
}

const fn to(address: fi_addr_t, tag: u64, data: Option<u64>) -> Destination {
    Destination { address, tag, data }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src_addr: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of this table, and the caller's memory, lent until the operation has ended.
    unsafe { call("fi_trecv").receive(ep, (buf, len), of(src_addr, tag, ignore), context) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as for `recv`.
    unsafe { call("fi_trecvv").receive_pieces(ep, (iov, count), of(src_addr, tag, ignore), context) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    let run = |state: &mut State, endpoint: &EndpointObject, msg: &fi_msg_tagged| {
        // SAFETY: the caller's memory, lent until the operation has ended.
        unsafe { receive_message(state, endpoint.number(), msg, flags) }
    };
    // SAFETY: an endpoint of this table, and null or the caller's message.
    unsafe { call("fi_trecvmsg").receive_message(ep, msg, (flags, flags::TAGGED_RECEIVE), run) }
}

/// Receives a message, or one that has arrived: looks at it, takes it out, drops it.
///
/// # Safety
/// The memory that the message names may be written until the operation has ended.
unsafe fn receive_message(
    state: &mut State,
    number: EndpointNumber,
    msg: &fi_msg_tagged,
    flags: u64,
) -> Result<isize> {
    let receive = msg.pattern().receive(msg.context(), flags);
    match flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) {
        0 | FI_CLAIM => {
            let (iov, count) = msg.pieces();
            // SAFETY: by the contract of this function.
            let room = unsafe { room_pieces(iov, count) }?;
            match flags & FI_CLAIM {
                0 => state.receive(number, Space::Tagged, room, &receive),
                _ => state.receive_claimed(number, room, receive),
            }
        }
        claimed if claimed == FI_CLAIM | FI_DISCARD => state.discard_claimed(number, receive),
        FI_DISCARD => Err(Errno(FI_EINVAL)),
        _ => state.peek(number, receive),
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest_addr: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of this table, and the caller's memory, lent until the operation has ended.
    unsafe { call("fi_tsend").send(ep, (buf, len), to(dest_addr, tag, None), context) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as for `send`.
    unsafe { call("fi_tsendv").send_pieces(ep, (iov, count), to(dest_addr, tag, None), context) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: an endpoint of this table, and null or the caller's message, whose memory is lent until the
    // operation has ended.
    unsafe { call("fi_tsendmsg").send_message(ep, msg, flags) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: an endpoint of this table, and the caller's memory, lent for the call.
    unsafe { call("fi_tinject").inject(ep, (buf, len), to(dest_addr, tag, None)) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as for `send`.
    unsafe { call("fi_tsenddata").send(ep, (buf, len), to(dest_addr, tag, Some(data)), context) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: as for `inject`.
    unsafe { call("fi_tinjectdata").inject(ep, (buf, len), to(dest_addr, tag, Some(data))) }
}
