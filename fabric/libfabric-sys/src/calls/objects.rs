//! Calls that every object has, and those of fabrics and domains. fi_fabric(3), fi_control(3), fi_domain(3).

use std::ffi::{c_char, c_int, c_void};

use crate::abi::atomic::{fi_atomic_attr, fi_datatype, fi_op};
use crate::abi::av::{fi_av_attr, fid_av};
use crate::abi::cntr::{fi_cntr_attr, fid_cntr};
use crate::abi::collective::{fi_collective_attr, fi_collective_op};
use crate::abi::cq::{fi_cq_attr, fid_cq};
use crate::abi::domain::{fi_ops_domain, fid_domain};
use crate::abi::endpoint::{fid_ep, fid_pep, fid_stx};
use crate::abi::eq::{fi_eq_attr, fid_eq};
use crate::abi::fabric::{fi_ops, fi_ops_fabric, fid, fid_fabric};
use crate::abi::info::{fi_info, fi_rx_attr, fi_tx_attr};
use crate::abi::wait::{fi_poll_attr, fi_wait_attr, fid_poll, fid_wait};
use crate::abi::xpu::{fi_ops_xpu_ctx, fi_xpu_attr, fi_xpu_ctx_attr, fid_xpu_ctx};

calls! {
    fi_close(fid: *mut fid) -> c_int = fid.ops: fi_ops.close;
    fi_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int = fid.ops: fi_ops.control;
    fi_open_ops(
        fid: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void, context: *mut c_void,
    ) -> c_int = fid.ops: fi_ops.ops_open;
    fi_set_ops(
        fid: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void, context: *mut c_void,
    ) -> c_int = fid.ops: fi_ops.ops_set;
    fi_domain(
        fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain, context: *mut c_void,
    ) -> c_int = fid_fabric.ops: fi_ops_fabric.domain;
    fi_passive_ep(
        fabric: *mut fid_fabric, info: *mut fi_info, pep: *mut *mut fid_pep, context: *mut c_void,
    ) -> c_int = fid_fabric.ops: fi_ops_fabric.passive_ep;
    fi_eq_open(
        fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq, context: *mut c_void,
    ) -> c_int = fid_fabric.ops: fi_ops_fabric.eq_open;
    fi_wait_open(
        fabric: *mut fid_fabric, attr: *mut fi_wait_attr, waitset: *mut *mut fid_wait,
    ) -> c_int = fid_fabric.ops: fi_ops_fabric.wait_open;
    fi_trywait(
        fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int,
    ) -> c_int = fid_fabric.ops: fi_ops_fabric.trywait;
    fi_domain_bind(domain: *mut fid_domain, fid: *mut fid, flags: u64) -> c_int = fid.ops: fi_ops.bind;
    fi_av_open(
        domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void,
    ) -> c_int = fid_domain.ops: fi_ops_domain.av_open;
    fi_cq_open(
        domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void,
    ) -> c_int = fid_domain.ops: fi_ops_domain.cq_open;
    fi_cntr_open(
        domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr, context: *mut c_void,
    ) -> c_int = fid_domain.ops: fi_ops_domain.cntr_open;
    fi_poll_open(
        domain: *mut fid_domain, attr: *mut fi_poll_attr, pollset: *mut *mut fid_poll,
    ) -> c_int = fid_domain.ops: fi_ops_domain.poll_open;
    fi_endpoint(
        domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void,
    ) -> c_int = fid_domain.ops: fi_ops_domain.endpoint;
    fi_scalable_ep(
        domain: *mut fid_domain, info: *mut fi_info, sep: *mut *mut fid_ep, context: *mut c_void,
    ) -> c_int = fid_domain.ops: fi_ops_domain.scalable_ep;
    fi_stx_context(
        domain: *mut fid_domain, attr: *mut fi_tx_attr, stx: *mut *mut fid_stx, context: *mut c_void,
    ) -> c_int = fid_domain.ops: fi_ops_domain.stx_ctx;
    fi_srx_context(
        domain: *mut fid_domain, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep, context: *mut c_void,
    ) -> c_int = fid_domain.ops: fi_ops_domain.srx_ctx;
    fi_query_atomic(
        domain: *mut fid_domain, datatype: fi_datatype, op: fi_op, attr: *mut fi_atomic_attr, flags: u64,
    ) -> c_int = fid_domain.ops: fi_ops_domain.query_atomic;
    fi_query_collective(
        domain: *mut fid_domain, coll: fi_collective_op, attr: *mut fi_collective_attr, flags: u64,
    ) -> c_int = fid_domain.ops: fi_ops_domain.query_collective;
    fi_xpu_ctx(
        domain: *mut fid_domain, attr: *mut fi_xpu_attr, ctx: *mut *mut fid_xpu_ctx,
        context: *mut c_void,
    ) -> c_int = fid_domain.ops: fi_ops_domain.xpu_ctx;
    fi_xpu_ctx_query(
        ctx: *mut fid_xpu_ctx, attr: *mut fi_xpu_ctx_attr,
    ) -> c_int = fid_xpu_ctx.ops: fi_ops_xpu_ctx.query;
}
