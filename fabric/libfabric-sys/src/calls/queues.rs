//! Calls of event queues, completion queues, counters, wait sets and poll sets. fi_eq(3), fi_cq(3),
//! fi_cntr(3), fi_poll(3).

use std::ffi::{c_char, c_int, c_void};

use crate::abi::av::fi_addr_t;
use crate::abi::cntr::{fi_ops_cntr, fid_cntr};
use crate::abi::cq::{fi_ops_cq, fid_cq};
use crate::abi::eq::{fi_eq_err_entry, fi_ops_eq, fid_eq};
use crate::abi::fabric::fid;
use crate::abi::wait::{fi_ops_poll, fi_ops_wait, fid_poll, fid_wait};
use crate::abi::xpu::{fid_xpu_cntr, fid_xpu_cq};

calls! {
    fi_eq_read(
        eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64,
    ) -> isize = fid_eq.ops: fi_ops_eq.read;
    fi_eq_readerr(
        eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64,
    ) -> isize = fid_eq.ops: fi_ops_eq.readerr;
    fi_eq_write(
        eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, flags: u64,
    ) -> isize = fid_eq.ops: fi_ops_eq.write;
    fi_eq_sread(
        eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64,
    ) -> isize = fid_eq.ops: fi_ops_eq.sread;
    fi_eq_strerror(
        eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
    ) -> *const c_char = fid_eq.ops: fi_ops_eq.strerror;
    fi_cq_read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize = fid_cq.ops: fi_ops_cq.read;
    fi_cq_readfrom(
        cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t,
    ) -> isize = fid_cq.ops: fi_ops_cq.readfrom;
    fi_cq_sread(
        cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int,
    ) -> isize = fid_cq.ops: fi_ops_cq.sread;
    fi_cq_sreadfrom(
        cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t, cond: *const c_void,
        timeout: c_int,
    ) -> isize = fid_cq.ops: fi_ops_cq.sreadfrom;
    fi_cq_signal(cq: *mut fid_cq) -> c_int = fid_cq.ops: fi_ops_cq.signal;
    fi_cq_strerror(
        cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
    ) -> *const c_char = fid_cq.ops: fi_ops_cq.strerror;
    fi_cq_export_xpu(
        cq: *mut fid_cq, flags: u64, xpu_cq: *mut fid_xpu_cq,
    ) -> c_int = fid_cq.ops: fi_ops_cq.export_xpu;
    fi_cntr_read(cntr: *mut fid_cntr) -> u64 = fid_cntr.ops: fi_ops_cntr.read;
    fi_cntr_readerr(cntr: *mut fid_cntr) -> u64 = fid_cntr.ops: fi_ops_cntr.readerr;
    fi_cntr_add(cntr: *mut fid_cntr, value: u64) -> c_int = fid_cntr.ops: fi_ops_cntr.add;
    fi_cntr_adderr(cntr: *mut fid_cntr, value: u64) -> c_int = fid_cntr.ops: fi_ops_cntr.adderr;
    fi_cntr_set(cntr: *mut fid_cntr, value: u64) -> c_int = fid_cntr.ops: fi_ops_cntr.set;
    fi_cntr_seterr(cntr: *mut fid_cntr, value: u64) -> c_int = fid_cntr.ops: fi_ops_cntr.seterr;
    fi_cntr_wait(
        cntr: *mut fid_cntr, threshold: u64, timeout: c_int,
    ) -> c_int = fid_cntr.ops: fi_ops_cntr.wait;
    fi_cntr_export_xpu(
        cntr: *mut fid_cntr, flags: u64, xpu_cntr: *mut fid_xpu_cntr,
    ) -> c_int = fid_cntr.ops: fi_ops_cntr.export_xpu;
    fi_wait(waitset: *mut fid_wait, timeout: c_int) -> c_int = fid_wait.ops: fi_ops_wait.wait;
    fi_poll(
        pollset: *mut fid_poll, context: *mut *mut c_void, count: c_int,
    ) -> c_int = fid_poll.ops: fi_ops_poll.poll;
    fi_poll_add(
        pollset: *mut fid_poll, event_fid: *mut fid, flags: u64,
    ) -> c_int = fid_poll.ops: fi_ops_poll.poll_add;
    fi_poll_del(
        pollset: *mut fid_poll, event_fid: *mut fid, flags: u64,
    ) -> c_int = fid_poll.ops: fi_ops_poll.poll_del;
}
