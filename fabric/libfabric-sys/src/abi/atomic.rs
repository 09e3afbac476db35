//! Atomic operations on a peer's memory.
//!
//! Sources: `rdma/fi_atomic.h`, `rdma/fi_domain.h`, `rdma/fabric.h`; fi_atomic(3).

use std::ffi::{c_int, c_void};

use super::av::fi_addr_t;
use super::endpoint::fid_ep;
use super::rma::fi_rma_ioc;

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_datatype = u32;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_op = u32;

structures! {
    /// A piece of one's own memory, in elements of an atomic's type. fi_atomic(3).
    pub struct fi_ioc = 16 {
        addr: *mut c_void = 0;
        count: usize = 8;
    }

    /// How many elements one atomic operation takes, and how large each is. fi_atomic(3).
    pub struct fi_atomic_attr = 16, since 1.5 {
        count: usize = 0;
        size: usize = 8;
    }

    /// One atomic operation. fi_atomic(3).
    pub struct fi_msg_atomic = 72 {
        msg_iov: *const fi_ioc = 0;
        desc: *mut *mut c_void = 8;
        iov_count: usize = 16;
        addr: fi_addr_t = 24;
        rma_iov: *const fi_rma_ioc = 32;
        rma_iov_count: usize = 40;
        datatype: fi_datatype = 48;
        op: fi_op = 52;
        context: *mut c_void = 56;
        data: u64 = 64;
    }

    /// Where an atomic operation puts what it fetched. fi_atomic(3).
    pub struct fi_msg_fetch = 24, since 1.5 {
        msg_iov: *mut fi_ioc = 0;
        desc: *mut *mut c_void = 8;
        iov_count: usize = 16;
    }

    /// What an atomic operation compares with. fi_atomic(3).
    pub struct fi_msg_compare = 24, since 1.5 {
        msg_iov: *const fi_ioc = 0;
        desc: *mut *mut c_void = 8;
        iov_count: usize = 16;
    }
}

tables! {
    /// How an endpoint does atomic operations. fi_atomic(3).
    pub table fi_ops_atomic = 14 {
        1: write(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        2: writev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
            dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype, op: fi_op,
            context: *mut c_void,
        ) -> isize;
        3: writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize;
        4: inject(
            ep: *mut fid_ep, buf: *const c_void, count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
            datatype: fi_datatype, op: fi_op,
        ) -> isize;
        5: readwrite(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype,
            op: fi_op, context: *mut c_void,
        ) -> isize;
        6: readwritev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
            resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        7: readwritemsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, flags: u64,
        ) -> isize;
        8: compwrite(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, compare: *const c_void,
            compare_desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        9: compwritev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
            comparev: *const fi_ioc, compare_desc: *mut *mut c_void, compare_count: usize,
            resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        10: compwritemsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, comparev: *const fi_ioc,
            compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, flags: u64,
        ) -> isize;
        11: writevalid(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int;
        12: readwritevalid(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int;
        13: compwritevalid(ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int;
    }
}

constants! {
    fi_datatype {
        FI_INT8 = 0;
        FI_UINT8 = 1;
        FI_INT16 = 2;
        FI_UINT16 = 3;
        FI_INT32 = 4;
        FI_UINT32 = 5;
        FI_INT64 = 6;
        FI_UINT64 = 7;
        FI_FLOAT = 8;
        FI_DOUBLE = 9;
        FI_FLOAT_COMPLEX = 10;
        FI_DOUBLE_COMPLEX = 11;
        FI_LONG_DOUBLE = 12;
        FI_LONG_DOUBLE_COMPLEX = 13;
        FI_INT128 = 14;
        FI_UINT128 = 15;
        FI_FLOAT16 = 16;
        FI_BFLOAT16 = 17;
        FI_FLOAT8_E4M3 = 18;
        FI_FLOAT8_E5M2 = 19;
        FI_VOID = 256;
    }
    fi_op {
        FI_MIN = 0;
        FI_MAX = 1;
        FI_SUM = 2;
        FI_PROD = 3;
        FI_LOR = 4;
        FI_LAND = 5;
        FI_BOR = 6;
        FI_BAND = 7;
        FI_LXOR = 8;
        FI_BXOR = 9;
        FI_ATOMIC_READ = 10;
        FI_ATOMIC_WRITE = 11;
        FI_CSWAP = 12;
        FI_CSWAP_NE = 13;
        FI_CSWAP_LE = 14;
        FI_CSWAP_LT = 15;
        FI_CSWAP_GE = 16;
        FI_CSWAP_GT = 17;
        FI_MSWAP = 18;
        FI_DIFF = 19;
        FI_NOOP = 256;
    }
    u32 {
        FI_DATATYPE_LAST = 14;
        FI_ATOMIC_OP_LAST = 19;
        FI_COLLECTIVE_OFFSET = 256;
    }
}
