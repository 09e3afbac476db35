//! Reads and writes of a peer's memory.
//!
//! Sources: `rdma/fi_rma.h`; fi_rma(3).

use std::ffi::c_void;

use libc::iovec;

use super::av::fi_addr_t;
use super::endpoint::fid_ep;

structures! {
    /// A piece of a peer's memory, in bytes. fi_rma(3).
    pub struct fi_rma_iov = 24 {
        addr: u64 = 0;
        len: usize = 8;
        key: u64 = 16;
    }

    /// A piece of a peer's memory, in elements of an atomic's type. fi_atomic(3).
    pub struct fi_rma_ioc = 24 {
        addr: u64 = 0;
        count: usize = 8;
        key: u64 = 16;
    }

    /// One read or write. fi_rma(3).
    pub struct fi_msg_rma = 64 {
        msg_iov: *const iovec = 0;
        desc: *mut *mut c_void = 8;
        iov_count: usize = 16;
        addr: fi_addr_t = 24;
        rma_iov: *const fi_rma_iov = 32;
        rma_iov_count: usize = 40;
        context: *mut c_void = 48;
        data: u64 = 56;
    }
}

tables! {
    /// How an endpoint reads and writes. fi_rma(3).
    pub table fi_ops_rma = 10 {
        1: read(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        2: readv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        3: readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
        4: write(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        5: writev(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        6: writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
        7: inject(
            ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
        ) -> isize;
        8: writedata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
            dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        9: injectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, addr: u64,
            key: u64,
        ) -> isize;
    }
}
