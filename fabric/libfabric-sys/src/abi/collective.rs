//! Collective operations.
//!
//! Sources: `rdma/fi_collective.h`, `rdma/fi_domain.h`; fi_collective(3).

use std::ffi::c_void;

use super::atomic::{fi_atomic_attr, fi_datatype, fi_ioc, fi_op};
use super::av::{fi_addr_t, fid_av_set};
use super::endpoint::fid_ep;

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_collective_op = u32;

structures! {
    /// What a domain can do of a collective operation. fi_collective(3).
    pub struct fi_collective_attr = 40, since 1.9 {
        op: fi_op = 0;
        datatype: fi_datatype = 4;
        datatype_attr: fi_atomic_attr = 8;
        max_members: usize = 24;
        mode: u64 = 32;
    }

    /// The address that `fi_join` takes for a collective group. fi_collective(3).
    pub struct fi_collective_addr = 16, since 1.9 {
        set: *const fid_av_set = 0;
        coll_addr: fi_addr_t = 8;
    }

    /// One collective operation. fi_collective(3).
    pub struct fi_msg_collective = 64, since 1.9 {
        msg_iov: *const fi_ioc = 0;
        desc: *mut *mut c_void = 8;
        iov_count: usize = 16;
        coll_addr: fi_addr_t = 24;
        root_addr: fi_addr_t = 32;
        coll: fi_collective_op = 40;
        datatype: fi_datatype = 44;
        op: fi_op = 48;
        context: *mut c_void = 56;
    }
}

tables! {
    /// How an endpoint takes part in collective operations. fi_collective(3).
    pub table fi_ops_collective = 12, since 1.9 {
        1: barrier(ep: *mut fid_ep, coll_addr: fi_addr_t, context: *mut c_void) -> isize;
        2: broadcast(
            ep: *mut fid_ep, buf: *mut c_void, count: usize, desc: *mut c_void, coll_addr: fi_addr_t,
            root_addr: fi_addr_t, datatype: fi_datatype, flags: u64, context: *mut c_void,
        ) -> isize;
        3: alltoall(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: fi_datatype, flags: u64,
            context: *mut c_void,
        ) -> isize;
        4: allreduce(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: fi_datatype, op: fi_op, flags: u64,
            context: *mut c_void,
        ) -> isize;
        5: allgather(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: fi_datatype, flags: u64,
            context: *mut c_void,
        ) -> isize;
        6: reduce_scatter(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: fi_datatype, op: fi_op, flags: u64,
            context: *mut c_void,
        ) -> isize;
        7: reduce(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: fi_datatype,
            op: fi_op, flags: u64, context: *mut c_void,
        ) -> isize;
        8: scatter(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: fi_datatype,
            flags: u64, context: *mut c_void,
        ) -> isize;
        9: gather(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: fi_datatype,
            flags: u64, context: *mut c_void,
        ) -> isize;
        10: msg(
            ep: *mut fid_ep, msg: *const fi_msg_collective, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, flags: u64,
        ) -> isize;
        11: barrier2(
            ep: *mut fid_ep, coll_addr: fi_addr_t, flags: u64, context: *mut c_void,
        ) -> isize, since 1.17;
    }
}

constants! {
    fi_collective_op {
        FI_BARRIER = 0;
        FI_BROADCAST = 1;
        FI_ALLTOALL = 2;
        FI_ALLREDUCE = 3;
        FI_ALLGATHER = 4;
        FI_REDUCE_SCATTER = 5;
        FI_REDUCE = 6;
        FI_SCATTER = 7;
        FI_GATHER = 8;
    }
}
