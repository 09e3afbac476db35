//! Messages and tagged messages. fi_msg(3), fi_tagged(3).

use std::ffi::c_void;

use libc::iovec;

use crate::abi::av::fi_addr_t;
use crate::abi::endpoint::fid_ep;
use crate::abi::msg::{fi_msg, fi_ops_msg};
use crate::abi::tagged::{fi_msg_tagged, fi_ops_tagged};

calls! {
    fi_recv(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize = fid_ep.msg: fi_ops_msg.recv;
    fi_recvv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize = fid_ep.msg: fi_ops_msg.recvv;
    fi_recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize = fid_ep.msg: fi_ops_msg.recvmsg;
    fi_send(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize = fid_ep.msg: fi_ops_msg.send;
    fi_sendv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
        context: *mut c_void,
    ) -> isize = fid_ep.msg: fi_ops_msg.sendv;
    fi_sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize = fid_ep.msg: fi_ops_msg.sendmsg;
    fi_inject(
        ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t,
    ) -> isize = fid_ep.msg: fi_ops_msg.inject;
    fi_senddata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
        dest_addr: fi_addr_t, context: *mut c_void,
    ) -> isize = fid_ep.msg: fi_ops_msg.senddata;
    fi_injectdata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t,
    ) -> isize = fid_ep.msg: fi_ops_msg.injectdata;
    fi_trecv(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, tag: u64,
        ignore: u64, context: *mut c_void,
    ) -> isize = fid_ep.tagged: fi_ops_tagged.recv;
    fi_trecvv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
        tag: u64, ignore: u64, context: *mut c_void,
    ) -> isize = fid_ep.tagged: fi_ops_tagged.recvv;
    fi_trecvmsg(
        ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64,
    ) -> isize = fid_ep.tagged: fi_ops_tagged.recvmsg;
    fi_tsend(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
        tag: u64, context: *mut c_void,
    ) -> isize = fid_ep.tagged: fi_ops_tagged.send;
    fi_tsendv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
        tag: u64, context: *mut c_void,
    ) -> isize = fid_ep.tagged: fi_ops_tagged.sendv;
    fi_tsendmsg(
        ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64,
    ) -> isize = fid_ep.tagged: fi_ops_tagged.sendmsg;
    fi_tinject(
        ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, tag: u64,
    ) -> isize = fid_ep.tagged: fi_ops_tagged.inject;
    fi_tsenddata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
        dest_addr: fi_addr_t, tag: u64, context: *mut c_void,
    ) -> isize = fid_ep.tagged: fi_ops_tagged.senddata;
    fi_tinjectdata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, tag: u64,
    ) -> isize = fid_ep.tagged: fi_ops_tagged.injectdata;
}
