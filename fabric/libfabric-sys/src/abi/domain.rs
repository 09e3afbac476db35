//! Domains, and the tables of what they open.
//!
//! Sources: `rdma/fi_domain.h`; fi_domain(3).

use std::ffi::{c_int, c_void};

use super::atomic::{fi_atomic_attr, fi_datatype, fi_op};
use super::av::{fi_av_attr, fid_av};
use super::cntr::{fi_cntr_attr, fid_cntr};
use super::collective::{fi_collective_attr, fi_collective_op};
use super::cq::{fi_cq_attr, fid_cq};
use super::endpoint::{fid_ep, fid_stx};
use super::fabric::fid;
use super::info::{fi_info, fi_rx_attr, fi_tx_attr};
use super::mr::fi_ops_mr;
use super::wait::{fi_poll_attr, fid_poll};
use super::xpu::{fi_xpu_attr, fid_xpu_ctx};

structures! {
    /// A domain: what one NIC or set of rails can reach, with its resources. fi_domain(3).
    pub struct fid_domain = 40 {
        fid: fid = 0;
        ops: *mut fi_ops_domain = 24;
        mr: *mut fi_ops_mr = 32;
    }
}

tables! {
    /// What a domain can open and look up. fi_domain(3).
    pub table fi_ops_domain = 13 {
        1: av_open(
            domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void,
        ) -> c_int;
        2: cq_open(
            domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void,
        ) -> c_int;
        3: endpoint(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        4: scalable_ep(
            domain: *mut fid_domain, info: *mut fi_info, sep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        5: cntr_open(
            domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr,
            context: *mut c_void,
        ) -> c_int;
        6: poll_open(domain: *mut fid_domain, attr: *mut fi_poll_attr, pollset: *mut *mut fid_poll) -> c_int;
        7: stx_ctx(
            domain: *mut fid_domain, attr: *mut fi_tx_attr, stx: *mut *mut fid_stx, context: *mut c_void,
        ) -> c_int;
        8: srx_ctx(
            domain: *mut fid_domain, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        9: query_atomic(
            domain: *mut fid_domain, datatype: fi_datatype, op: fi_op, attr: *mut fi_atomic_attr,
            flags: u64,
        ) -> c_int, since 1.5;
        10: query_collective(
            domain: *mut fid_domain, coll: fi_collective_op, attr: *mut fi_collective_attr, flags: u64,
        ) -> c_int, since 1.9;
        11: endpoint2(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, flags: u64,
            context: *mut c_void,
        ) -> c_int, since 1.17;
        12: xpu_ctx(
            domain: *mut fid_domain, attr: *mut fi_xpu_attr, ctx: *mut *mut fid_xpu_ctx,
            context: *mut c_void,
        ) -> c_int, since 2.7;
    }
}

constants! {
    u64 {
        FI_REG_MR = 1 << 59;
    }
}
