//! Counters.
//!
//! Sources: `rdma/fi_eq.h`; fi_cntr(3).

use std::ffi::c_int;

use super::fabric::fid;
use super::wait::{fi_wait_obj, fid_wait};
use super::xpu::{fid_xpu_cntr, fid_xpu_ctx};

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_cntr_events = u32;

structures! {
    /// A counter of completions or bytes. fi_cntr(3).
    pub struct fid_cntr = 32 {
        fid: fid = 0;
        ops: *mut fi_ops_cntr = 24;
    }

    /// What a counter is to be like. fi_cntr(3).
    pub struct fi_cntr_attr = 32 {
        events: fi_cntr_events = 0;
        wait_obj: fi_wait_obj = 4;
        wait_set: *mut fid_wait = 8;
        flags: u64 = 16;
        xpu_ctx: *mut fid_xpu_ctx = 24, since 2.7;
    }
}

tables! {
    /// What a counter can do. fi_cntr(3).
    pub table fi_ops_cntr = 9 {
        1: read(cntr: *mut fid_cntr) -> u64;
        2: readerr(cntr: *mut fid_cntr) -> u64;
        3: add(cntr: *mut fid_cntr, value: u64) -> c_int;
        4: set(cntr: *mut fid_cntr, value: u64) -> c_int;
        5: wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int;
        6: adderr(cntr: *mut fid_cntr, value: u64) -> c_int, since 1.5;
        7: seterr(cntr: *mut fid_cntr, value: u64) -> c_int, since 1.5;
        8: export_xpu(cntr: *mut fid_cntr, flags: u64, xpu_cntr: *mut fid_xpu_cntr) -> c_int, since 2.7;
    }
}

constants! {
    fi_cntr_events {
        FI_CNTR_EVENTS_COMP = 0;
        FI_CNTR_EVENTS_BYTES = 1;
    }
}
