//! Untagged messages.
//!
//! Sources: `rdma/fi_endpoint.h`; fi_msg(3).

use std::ffi::c_void;

use libc::iovec;

use super::av::fi_addr_t;
use super::endpoint::fid_ep;

structures! {
    /// One message to send or receive. fi_msg(3).
    pub struct fi_msg = 48 {
        msg_iov: *const iovec = 0;
        desc: *mut *mut c_void = 8;
        iov_count: usize = 16;
        addr: fi_addr_t = 24;
        context: *mut c_void = 32;
        data: u64 = 40;
    }
}

tables! {
    /// How an endpoint sends and receives messages. fi_msg(3).
    pub table fi_ops_msg = 10 {
        1: recv(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        2: recvv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        3: recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        4: send(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        5: sendv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        6: sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        7: inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize;
        8: senddata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
            dest_addr: fi_addr_t, context: *mut c_void,
        ) -> isize;
        9: injectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t,
        ) -> isize;
    }
}
