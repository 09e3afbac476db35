//! Tagged messages.
//!
//! Sources: `rdma/fi_tagged.h`; fi_tagged(3).

use std::ffi::c_void;

use libc::iovec;

use super::av::fi_addr_t;
use super::endpoint::fid_ep;

structures! {
    /// One tagged message to send or receive. fi_tagged(3).
    pub struct fi_msg_tagged = 64 {
        msg_iov: *const iovec = 0;
        desc: *mut *mut c_void = 8;
        iov_count: usize = 16;
        addr: fi_addr_t = 24;
        tag: u64 = 32;
        ignore: u64 = 40;
        context: *mut c_void = 48;
        data: u64 = 56;
    }
}

tables! {
    /// How an endpoint sends and receives tagged messages. fi_tagged(3).
    pub table fi_ops_tagged = 10 {
        1: recv(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t,
            tag: u64, ignore: u64, context: *mut c_void,
        ) -> isize;
        2: recvv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            tag: u64, ignore: u64, context: *mut c_void,
        ) -> isize;
        3: recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize;
        4: send(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
            tag: u64, context: *mut c_void,
        ) -> isize;
        5: sendv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            tag: u64, context: *mut c_void,
        ) -> isize;
        6: sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize;
        7: inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, tag: u64) -> isize;
        8: senddata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
            dest_addr: fi_addr_t, tag: u64, context: *mut c_void,
        ) -> isize;
        9: injectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, tag: u64,
        ) -> isize;
    }
}

constants! {
    u64 {
        FI_MPI_IGNORE_TAG = 0xffff_ffff;
        FI_MPI_IGNORE_PAYLOAD = 0xff << 32;
    }
}
