//! Completion queues.
//!
//! Sources: `rdma/fi_eq.h`; fi_cq(3).

use std::ffi::{c_char, c_int, c_void};

use super::av::fi_addr_t;
use super::fabric::fid;
use super::wait::{fi_wait_obj, fid_wait};
use super::xpu::{fid_xpu_cq, fid_xpu_ctx};

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_cq_format = u32;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_cq_wait_cond = u32;

structures! {
    /// A completion queue. fi_cq(3).
    pub struct fid_cq = 32 {
        fid: fid = 0;
        ops: *mut fi_ops_cq = 24;
    }

    /// What a completion queue is to be like. fi_cq(3).
    pub struct fi_cq_attr = 48 {
        size: usize = 0;
        flags: u64 = 8;
        format: fi_cq_format = 16;
        wait_obj: fi_wait_obj = 20;
        signaling_vector: c_int = 24;
        wait_cond: fi_cq_wait_cond = 28;
        wait_set: *mut fid_wait = 32;
        xpu_ctx: *mut fid_xpu_ctx = 40, since 2.7;
    }

    /// A completion in the format `FI_CQ_FORMAT_CONTEXT`. fi_cq(3).
    pub struct fi_cq_entry = 8 {
        op_context: *mut c_void = 0;
    }

    /// A completion in the format `FI_CQ_FORMAT_MSG`. fi_cq(3).
    pub struct fi_cq_msg_entry = 24 {
        op_context: *mut c_void = 0;
        flags: u64 = 8;
        len: usize = 16;
    }

    /// A completion in the format `FI_CQ_FORMAT_DATA`. fi_cq(3).
    pub struct fi_cq_data_entry = 40 {
        op_context: *mut c_void = 0;
        flags: u64 = 8;
        len: usize = 16;
        buf: *mut c_void = 24;
        data: u64 = 32;
    }

    /// A completion in the format `FI_CQ_FORMAT_TAGGED`. fi_cq(3).
    pub struct fi_cq_tagged_entry = 48 {
        op_context: *mut c_void = 0;
        flags: u64 = 8;
        len: usize = 16;
        buf: *mut c_void = 24;
        data: u64 = 32;
        tag: u64 = 40;
    }

    /// An operation that failed. fi_cq(3).
    pub struct fi_cq_err_entry = 88 {
        op_context: *mut c_void = 0;
        flags: u64 = 8;
        len: usize = 16;
        buf: *mut c_void = 24;
        data: u64 = 32;
        tag: u64 = 40;
        olen: usize = 48;
        err: c_int = 56;
        prov_errno: c_int = 60;
        err_data: *mut c_void = 64;
        err_data_size: usize = 72, since 1.5;
        src_addr: fi_addr_t = 80, since 1.20;
    }
}

tables! {
    /// What a completion queue can do. fi_cq(3).
    pub table fi_ops_cq = 9 {
        1: read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize;
        2: readfrom(cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t) -> isize;
        3: readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize;
        4: sread(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int,
        ) -> isize;
        5: sreadfrom(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t, cond: *const c_void,
            timeout: c_int,
        ) -> isize;
        6: signal(cq: *mut fid_cq) -> c_int;
        7: strerror(
            cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
        8: export_xpu(cq: *mut fid_cq, flags: u64, xpu_cq: *mut fid_xpu_cq) -> c_int, since 2.7;
    }
}

constants! {
    fi_cq_format {
        FI_CQ_FORMAT_UNSPEC = 0;
        FI_CQ_FORMAT_CONTEXT = 1;
        FI_CQ_FORMAT_MSG = 2;
        FI_CQ_FORMAT_DATA = 3;
        FI_CQ_FORMAT_TAGGED = 4;
    }
    fi_cq_wait_cond {
        FI_CQ_COND_NONE = 0;
        FI_CQ_COND_THRESHOLD = 1;
    }
}
