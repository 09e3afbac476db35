//! Event queues.
//!
//! Sources: `rdma/fi_eq.h`; fi_eq(3).

use std::ffi::{c_char, c_int, c_void};

use super::fabric::fid;
use super::info::fi_info;
use super::wait::{fi_wait_obj, fid_wait};

structures! {
    /// An event queue. fi_eq(3).
    pub struct fid_eq = 32 {
        fid: fid = 0;
        ops: *mut fi_ops_eq = 24;
    }

    /// What an event queue is to be like. fi_eq(3).
    pub struct fi_eq_attr = 32 {
        size: usize = 0;
        flags: u64 = 8;
        wait_obj: fi_wait_obj = 16;
        signaling_vector: c_int = 20;
        wait_set: *mut fid_wait = 24;
    }

    /// An event that an operation has completed. fi_eq(3).
    pub struct fi_eq_entry = 24 {
        fid: *mut fid = 0;
        context: *mut c_void = 8;
        data: u64 = 16;
    }

    /// An event that an operation has failed. fi_eq(3).
    pub struct fi_eq_err_entry = 48 {
        fid: *mut fid = 0;
        context: *mut c_void = 8;
        data: u64 = 16;
        err: c_int = 24;
        prov_errno: c_int = 28;
        err_data: *mut c_void = 32;
        err_data_size: usize = 40;
    }

    /// An event of a connection; `data` is as long as the call had room for. fi_eq(3).
    pub struct fi_eq_cm_entry = 16 {
        fid: *mut fid = 0;
        info: *mut fi_info = 8;
        data: [u8; 0] = 16;
    }
}

tables! {
    /// What an event queue can do. fi_eq(3).
    pub table fi_ops_eq = 6 {
        1: read(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize;
        2: readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize;
        3: write(eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, flags: u64) -> isize;
        4: sread(
            eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64,
        ) -> isize;
        5: strerror(
            eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
    }
}

constants! {
    u32 {
        FI_NOTIFY = 0;
        FI_CONNREQ = 1;
        FI_CONNECTED = 2;
        FI_SHUTDOWN = 3;
        FI_MR_COMPLETE = 4;
        FI_AV_COMPLETE = 5;
        FI_JOIN_COMPLETE = 6;
    }
}
