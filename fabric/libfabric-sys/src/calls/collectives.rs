//! Collective operations. fi_collective(3).

use std::ffi::c_void;

use crate::abi::atomic::{fi_datatype, fi_op};
use crate::abi::av::fi_addr_t;
use crate::abi::collective::fi_ops_collective;
use crate::abi::endpoint::fid_ep;

calls! {
    fi_barrier(
        ep: *mut fid_ep, coll_addr: fi_addr_t, context: *mut c_void,
    ) -> isize = fid_ep.collective: fi_ops_collective.barrier;
    fi_broadcast(
        ep: *mut fid_ep, buf: *mut c_void, count: usize, desc: *mut c_void, coll_addr: fi_addr_t,
        root_addr: fi_addr_t, datatype: fi_datatype, flags: u64, context: *mut c_void,
    ) -> isize = fid_ep.collective: fi_ops_collective.broadcast;
    fi_alltoall(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: fi_datatype, flags: u64,
        context: *mut c_void,
    ) -> isize = fid_ep.collective: fi_ops_collective.alltoall;
    fi_allreduce(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: fi_datatype, op: fi_op, flags: u64,
        context: *mut c_void,
    ) -> isize = fid_ep.collective: fi_ops_collective.allreduce;
    fi_allgather(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: fi_datatype, flags: u64,
        context: *mut c_void,
    ) -> isize = fid_ep.collective: fi_ops_collective.allgather;
    fi_reduce_scatter(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: fi_datatype, op: fi_op, flags: u64,
        context: *mut c_void,
    ) -> isize = fid_ep.collective: fi_ops_collective.reduce_scatter;
    fi_reduce(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: fi_datatype,
        op: fi_op, flags: u64, context: *mut c_void,
    ) -> isize = fid_ep.collective: fi_ops_collective.reduce;
    fi_scatter(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: fi_datatype,
        flags: u64, context: *mut c_void,
    ) -> isize = fid_ep.collective: fi_ops_collective.scatter;
    fi_gather(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: fi_datatype,
        flags: u64, context: *mut c_void,
    ) -> isize = fid_ep.collective: fi_ops_collective.gather;
}
