//! Reads, writes and atomic operations. fi_rma(3), fi_atomic(3).

use std::ffi::{c_int, c_void};

use libc::iovec;

use crate::abi::atomic::{fi_datatype, fi_ioc, fi_msg_atomic, fi_op, fi_ops_atomic};
use crate::abi::av::fi_addr_t;
use crate::abi::endpoint::fid_ep;
use crate::abi::rma::{fi_msg_rma, fi_ops_rma};

calls! {
    fi_read(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, addr: u64,
        key: u64, context: *mut c_void,
    ) -> isize = fid_ep.rma: fi_ops_rma.read;
    fi_readv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
        addr: u64, key: u64, context: *mut c_void,
    ) -> isize = fid_ep.rma: fi_ops_rma.readv;
    fi_readmsg(
        ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64,
    ) -> isize = fid_ep.rma: fi_ops_rma.readmsg;
    fi_write(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
        addr: u64, key: u64, context: *mut c_void,
    ) -> isize = fid_ep.rma: fi_ops_rma.write;
    fi_writev(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
        addr: u64, key: u64, context: *mut c_void,
    ) -> isize = fid_ep.rma: fi_ops_rma.writev;
    fi_writemsg(
        ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64,
    ) -> isize = fid_ep.rma: fi_ops_rma.writemsg;
    fi_inject_write(
        ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
    ) -> isize = fid_ep.rma: fi_ops_rma.inject;
    fi_writedata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
        dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void,
    ) -> isize = fid_ep.rma: fi_ops_rma.writedata;
    fi_inject_writedata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, addr: u64,
        key: u64,
    ) -> isize = fid_ep.rma: fi_ops_rma.injectdata;
    fi_atomic(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, dest_addr: fi_addr_t,
        addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.write;
    fi_atomicv(
        ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
        addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.writev;
    fi_atomicmsg(
        ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.writemsg;
    fi_inject_atomic(
        ep: *mut fid_ep, buf: *const c_void, count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
        datatype: fi_datatype, op: fi_op,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.inject;
    fi_fetch_atomic(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype,
        op: fi_op, context: *mut c_void,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.readwrite;
    fi_fetch_atomicv(
        ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
        datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.readwritev;
    fi_fetch_atomicmsg(
        ep: *mut fid_ep, msg: *const fi_msg_atomic, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
        result_count: usize, flags: u64,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.readwritemsg;
    fi_compare_atomic(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, compare: *const c_void,
        compare_desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, dest_addr: fi_addr_t,
        addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.compwrite;
    fi_compare_atomicv(
        ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
        comparev: *const fi_ioc, compare_desc: *mut *mut c_void, compare_count: usize,
        resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t,
        addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.compwritev;
    fi_compare_atomicmsg(
        ep: *mut fid_ep, msg: *const fi_msg_atomic, comparev: *const fi_ioc,
        compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc,
        result_desc: *mut *mut c_void, result_count: usize, flags: u64,
    ) -> isize = fid_ep.atomic: fi_ops_atomic.compwritemsg;
    fi_atomicvalid(
        ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize,
    ) -> c_int = fid_ep.atomic: fi_ops_atomic.writevalid;
    fi_fetch_atomicvalid(
        ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize,
    ) -> c_int = fid_ep.atomic: fi_ops_atomic.readwritevalid;
    fi_compare_atomicvalid(
        ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize,
    ) -> c_int = fid_ep.atomic: fi_ops_atomic.compwritevalid;
}
