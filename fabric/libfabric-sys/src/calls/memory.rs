//! Calls of memory registrations. fi_mr(3).

use std::ffi::{c_int, c_void};

use libc::iovec;

use crate::abi::domain::fid_domain;
use crate::abi::fabric::{fi_ops, fid};
use crate::abi::mr::{fi_mr_attr, fi_ops_mr, fid_mr};

calls! {
    fi_mr_reg(
        domain: *mut fid_domain, buf: *const c_void, len: usize, acs: u64, offset: u64,
        requested_key: u64, flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
    ) -> c_int = fid_domain.mr: fi_ops_mr.reg;
    fi_mr_regv(
        domain: *mut fid_domain, iov: *const iovec, count: usize, acs: u64, offset: u64,
        requested_key: u64, flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
    ) -> c_int = fid_domain.mr: fi_ops_mr.regv;
    fi_mr_regattr(
        domain: *mut fid_domain, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr,
    ) -> c_int = fid_domain.mr: fi_ops_mr.regattr;
    fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int = fid.ops: fi_ops.bind;
}
