//! Calls of address vectors and of sets of addresses. fi_av(3), fi_av_set(3).

use std::ffi::{c_char, c_int, c_void};

use crate::abi::av::{fi_addr_t, fi_av_set_attr, fi_ops_av, fi_ops_av_set, fid_av, fid_av_set};
use crate::abi::fabric::{fi_ops, fid};
use crate::abi::xpu::fid_xpu_ctx;

calls! {
    fi_av_bind(av: *mut fid_av, fid: *mut fid, flags: u64) -> c_int = fid.ops: fi_ops.bind;
    fi_av_insert(
        av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64,
        context: *mut c_void,
    ) -> c_int = fid_av.ops: fi_ops_av.insert;
    fi_av_insertsvc(
        av: *mut fid_av, node: *const c_char, service: *const c_char, fi_addr: *mut fi_addr_t,
        flags: u64, context: *mut c_void,
    ) -> c_int = fid_av.ops: fi_ops_av.insertsvc;
    fi_av_insertsym(
        av: *mut fid_av, node: *const c_char, nodecnt: usize, service: *const c_char, svccnt: usize,
        fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void,
    ) -> c_int = fid_av.ops: fi_ops_av.insertsym;
    fi_av_remove(
        av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64,
    ) -> c_int = fid_av.ops: fi_ops_av.remove;
    fi_av_lookup(
        av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize,
    ) -> c_int = fid_av.ops: fi_ops_av.lookup;
    fi_av_lookup2(
        av: *mut fid_av, fi_addr: fi_addr_t, buf: *mut c_void, len: *mut usize, flags: u64,
        ctx: *mut fid_xpu_ctx,
    ) -> c_int = fid_av.ops: fi_ops_av.lookup2;
    fi_av_straddr(
        av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize,
    ) -> *const c_char = fid_av.ops: fi_ops_av.straddr;
    fi_av_insert_auth_key(
        av: *mut fid_av, auth_key: *const c_void, auth_key_size: usize, fi_addr: *mut fi_addr_t,
        flags: u64,
    ) -> c_int = fid_av.ops: fi_ops_av.insert_auth_key;
    fi_av_lookup_auth_key(
        av: *mut fid_av, addr: fi_addr_t, auth_key: *mut c_void, auth_key_size: *mut usize,
    ) -> c_int = fid_av.ops: fi_ops_av.lookup_auth_key;
    fi_av_set_user_id(
        av: *mut fid_av, fi_addr: fi_addr_t, user_id: fi_addr_t, flags: u64,
    ) -> c_int = fid_av.ops: fi_ops_av.set_user_id;
    fi_av_set(
        av: *mut fid_av, attr: *mut fi_av_set_attr, set: *mut *mut fid_av_set, context: *mut c_void,
    ) -> c_int = fid_av.ops: fi_ops_av.av_set;
    fi_av_set_union(
        dst: *mut fid_av_set, src: *const fid_av_set,
    ) -> c_int = fid_av_set.ops: fi_ops_av_set.set_union;
    fi_av_set_intersect(
        dst: *mut fid_av_set, src: *const fid_av_set,
    ) -> c_int = fid_av_set.ops: fi_ops_av_set.intersect;
    fi_av_set_diff(
        dst: *mut fid_av_set, src: *const fid_av_set,
    ) -> c_int = fid_av_set.ops: fi_ops_av_set.diff;
    fi_av_set_insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int = fid_av_set.ops: fi_ops_av_set.insert;
    fi_av_set_remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int = fid_av_set.ops: fi_ops_av_set.remove;
    fi_av_set_addr(
        set: *mut fid_av_set, coll_addr: *mut fi_addr_t,
    ) -> c_int = fid_av_set.ops: fi_ops_av_set.addr;
}
