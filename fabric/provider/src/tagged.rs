//! Tagged messages: fi_tagged(3).

use std::ffi::c_void;

use libc::iovec;
use libfabric_sys::*;

use crate::ep::{Receive, Room, Send, Space, endpoint, flags};
use crate::errno::Errno;
use crate::memory::{bytes, lent, lent_pieces, room, room_pieces};
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

#[inline(always)]
fn to(to: fi_addr_t, tag: u64, data: Option<u64>, context: *mut c_void, flags: u64) -> Send {
    Send {
        to,
        tag,
        data,
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
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    // SAFETY: the caller's memory, lent until the operation has ended.
    let room = Room::One(unsafe { room(buf, len) });
    let call = Receive {
        from: src_addr,
        tag,
        ignore,
        context: context.expose_provenance(),
        // Only untagged buffers take many messages.
        flags: endpoint.receive_flags() & !FI_MULTI_RECV,
    };
    endpoint.run("fi_trecv", |state| {
        state.receive(endpoint.number(), Space::Tagged, room, call)
    })
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
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    let call = Receive {
        from: src_addr,
        tag,
        ignore,
        context: context.expose_provenance(),
        flags: endpoint.receive_flags() & !FI_MULTI_RECV,
    };
    endpoint.run("fi_trecvv", |state| {
        // SAFETY: the caller's memory, lent until the operation has ended.
        let room = unsafe { room_pieces(iov, count) }?;
        state.receive(endpoint.number(), Space::Tagged, room, call)
    })
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_trecvmsg", |state| {
        flags::check(flags, flags::TAGGED_RECEIVE)?;
        // SAFETY: null, or the caller's message.
        let msg = unsafe { msg.as_ref() }.ok_or(Errno(FI_EINVAL))?;
        let call = Receive {
            from: msg.addr,
            tag: msg.tag,
            ignore: msg.ignore,
            context: msg.context.expose_provenance(),
            flags,
        };
        let number = endpoint.number();
        match flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) {
            0 | FI_CLAIM => {
                // SAFETY: the caller's memory, lent until the operation has ended.
                let room = unsafe { room_pieces(msg.msg_iov, msg.iov_count) }?;
                match flags & FI_CLAIM {
                    0 => state.receive(number, Space::Tagged, room, call),
                    _ => state.receive_claimed(number, room, call),
                }
            }
            claimed if claimed == FI_CLAIM | FI_DISCARD => state.discard_claimed(number, call),
            FI_DISCARD => Err(Errno(FI_EINVAL)),
            _ => state.peek(number, call),
        }
    })
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
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    // SAFETY: the caller's memory, lent until the operation has ended.
    let loan = unsafe { lent(buf, len) };
    let call = to(dest_addr, tag, None, context, endpoint.send_flags());
    endpoint.run("fi_tsend", |state| {
        state.send(endpoint.number(), Space::Tagged, loan, call)
    })
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
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    let call = to(dest_addr, tag, None, context, endpoint.send_flags());
    endpoint.run("fi_tsendv", |state| {
        // SAFETY: the caller's memory, lent until the operation has ended.
        let bytes = unsafe { lent_pieces(iov, count) }?;
        state.send_pieces(endpoint.number(), Space::Tagged, bytes, call)
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_tsendmsg", |state| {
        flags::check(flags, flags::SEND)?;
        // SAFETY: null, or the caller's message.
        let msg = unsafe { msg.as_ref() }.ok_or(Errno(FI_EINVAL))?;
        // SAFETY: the caller's memory, lent until the operation has ended.
        let bytes = unsafe { lent_pieces(msg.msg_iov, msg.iov_count) }?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        let call = to(msg.addr, msg.tag, data, msg.context, flags);
        state.send_pieces(endpoint.number(), Space::Tagged, bytes, call)
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_tinject", |state| {
        // SAFETY: the caller's memory, for this call.
        let bytes = unsafe { bytes(buf, len) }?;
        state.inject(endpoint.number(), Space::Tagged, bytes, dest_addr, tag, None)
    })
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
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    // SAFETY: the caller's memory, lent until the operation has ended.
    let loan = unsafe { lent(buf, len) };
    let call = to(dest_addr, tag, Some(data), context, endpoint.send_flags());
    endpoint.run("fi_tsenddata", |state| {
        state.send(endpoint.number(), Space::Tagged, loan, call)
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { endpoint(ep) };
    endpoint.run("fi_tinjectdata", |state| {
        // SAFETY: the caller's memory, for this call.
        let bytes = unsafe { bytes(buf, len) }?;
        state.inject(
            endpoint.number(),
            Space::Tagged,
            bytes,
            dest_addr,
            tag,
            Some(data),
        )
    })
}
