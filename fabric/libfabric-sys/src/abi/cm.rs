//! Connections, names of endpoints, and multicast groups.
//!
//! Sources: `rdma/fi_cm.h`; fi_cm(3).

use std::ffi::{c_int, c_void};

use super::av::fi_addr_t;
use super::endpoint::{fid_ep, fid_pep};
use super::fabric::fid;

structures! {
    /// A multicast group or collective that was joined. fi_cm(3).
    pub struct fid_mc = 32, since 1.5 {
        fid: fid = 0;
        fi_addr: fi_addr_t = 24;
    }
}

tables! {
    /// Names and connections of an endpoint. fi_cm(3).
    pub table fi_ops_cm = 10 {
        1: setname(fid: *mut fid, addr: *mut c_void, addrlen: usize) -> c_int;
        2: getname(fid: *mut fid, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        3: getpeer(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        4: connect(ep: *mut fid_ep, addr: *const c_void, param: *const c_void, paramlen: usize) -> c_int;
        5: listen(pep: *mut fid_pep) -> c_int;
        6: accept(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int;
        7: reject(pep: *mut fid_pep, handle: *mut fid, param: *const c_void, paramlen: usize) -> c_int;
        8: shutdown(ep: *mut fid_ep, flags: u64) -> c_int;
        9: join(
            ep: *mut fid_ep, addr: *const c_void, flags: u64, mc: *mut *mut fid_mc, context: *mut c_void,
        ) -> c_int, since 1.5;
    }
}
