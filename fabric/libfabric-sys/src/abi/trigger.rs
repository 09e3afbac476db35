//! Triggered operations and deferred work.
//!
//! Sources: `rdma/fi_trigger.h`; fi_trigger(3).

use std::ffi::{c_int, c_void};

use super::atomic::{fi_datatype, fi_msg_atomic, fi_msg_compare, fi_msg_fetch};
use super::cntr::fid_cntr;
use super::endpoint::fid_ep;
use super::fabric::fi_context2;
use super::mr::fi_hmem_iface;
use super::msg::fi_msg;
use super::rma::fi_msg_rma;
use super::tagged::fi_msg_tagged;

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_trigger_event = u32;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_op_type = u32;

unions! {
    /// The value that a device writes; the type selects the member. fi_trigger(3).
    pub union fi_trigger_value = 8 {
        val8: u8;
        val16: u16;
        val32: u32;
        val64: u64;
        data: *mut u8;
    }

    /// The device that triggers; the interface selects the member. fi_trigger(3).
    pub union fi_trigger_device = 8 {
        reserved: u64;
        cuda: c_int;
        ze: c_int;
    }

    /// The condition of a triggered operation. fi_trigger(3).
    pub union fi_trigger_condition = 24 {
        threshold: fi_trigger_threshold;
        xpu: fi_trigger_xpu;
        internal: [*mut c_void; 3];
    }

    /// The condition of a triggered operation, with more room. fi_trigger(3).
    pub union fi_trigger_condition2 = 56 {
        threshold: fi_trigger_threshold;
        xpu: fi_trigger_xpu;
        internal: [*mut c_void; 7];
    }

    /// The operation that is deferred; its type selects the member. fi_trigger(3).
    pub union fi_deferred_op = 8 {
        msg: *mut fi_op_msg;
        tagged: *mut fi_op_tagged;
        rma: *mut fi_op_rma;
        atomic: *mut fi_op_atomic;
        fetch_atomic: *mut fi_op_fetch_atomic;
        compare_atomic: *mut fi_op_compare_atomic;
        cntr: *mut fi_op_cntr;
    }
}

structures! {
    /// The counter and its value that start a triggered operation. fi_trigger(3).
    pub struct fi_trigger_threshold = 16 {
        cntr: *mut fid_cntr = 0;
        threshold: usize = 8;
    }

    /// What a device writes to start a triggered operation. fi_trigger(3).
    pub struct fi_trigger_var = 24, since 1.15 {
        datatype: fi_datatype = 0;
        count: c_int = 4;
        addr: *mut c_void = 8;
        value: fi_trigger_value = 16;
    }

    /// A trigger by a device. fi_trigger(3).
    pub struct fi_trigger_xpu = 24, since 1.15 {
        count: c_int = 0;
        iface: fi_hmem_iface = 4;
        device: fi_trigger_device = 8;
        var: *mut fi_trigger_var = 16;
    }

    /// The context of a triggered operation, as large as a `fi_context`. fi_trigger(3).
    pub struct fi_triggered_context = 32 {
        event_type: fi_trigger_event = 0;
        trigger: fi_trigger_condition = 8;
    }

    /// The context of a triggered operation, as large as a `fi_context2`. fi_trigger(3).
    pub struct fi_triggered_context2 = 64, since 1.5 {
        event_type: fi_trigger_event = 0;
        trigger: fi_trigger_condition2 = 8;
    }

    /// A message as deferred work. fi_trigger(3).
    pub struct fi_op_msg = 64, since 1.5 {
        ep: *mut fid_ep = 0;
        msg: fi_msg = 8;
        flags: u64 = 56;
    }

    /// A tagged message as deferred work. fi_trigger(3).
    pub struct fi_op_tagged = 80, since 1.5 {
        ep: *mut fid_ep = 0;
        msg: fi_msg_tagged = 8;
        flags: u64 = 72;
    }

    /// A read or write as deferred work. fi_trigger(3).
    pub struct fi_op_rma = 80, since 1.5 {
        ep: *mut fid_ep = 0;
        msg: fi_msg_rma = 8;
        flags: u64 = 72;
    }

    /// An atomic operation as deferred work. fi_trigger(3).
    pub struct fi_op_atomic = 88, since 1.5 {
        ep: *mut fid_ep = 0;
        msg: fi_msg_atomic = 8;
        flags: u64 = 80;
    }

    /// An atomic operation that fetches, as deferred work. fi_trigger(3).
    pub struct fi_op_fetch_atomic = 112, since 1.5 {
        ep: *mut fid_ep = 0;
        msg: fi_msg_atomic = 8;
        fetch: fi_msg_fetch = 80;
        flags: u64 = 104;
    }

    /// An atomic operation that compares, as deferred work. fi_trigger(3).
    pub struct fi_op_compare_atomic = 136, since 1.5 {
        ep: *mut fid_ep = 0;
        msg: fi_msg_atomic = 8;
        fetch: fi_msg_fetch = 80;
        compare: fi_msg_compare = 104;
        flags: u64 = 128;
    }

    /// A change of a counter as deferred work. fi_trigger(3).
    pub struct fi_op_cntr = 16, since 1.5 {
        cntr: *mut fid_cntr = 0;
        value: u64 = 8;
    }

    /// An operation that waits for a counter; the argument of `FI_QUEUE_WORK`. fi_trigger(3).
    pub struct fi_deferred_work = 104, since 1.5 {
        context: fi_context2 = 0;
        threshold: u64 = 64;
        triggering_cntr: *mut fid_cntr = 72;
        completion_cntr: *mut fid_cntr = 80;
        op_type: fi_op_type = 88;
        op: fi_deferred_op = 96;
    }
}

constants! {
    fi_trigger_event {
        FI_TRIGGER_THRESHOLD = 0;
        FI_TRIGGER_XPU = 1;
    }
    fi_op_type {
        FI_OP_RECV = 0;
        FI_OP_SEND = 1;
        FI_OP_TRECV = 2;
        FI_OP_TSEND = 3;
        FI_OP_READ = 4;
        FI_OP_WRITE = 5;
        FI_OP_ATOMIC = 6;
        FI_OP_FETCH_ATOMIC = 7;
        FI_OP_COMPARE_ATOMIC = 8;
        FI_OP_CNTR_SET = 9;
        FI_OP_CNTR_ADD = 10;
    }
}
