//! Address vectors, and sets of addresses for collectives.
//!
//! Sources: `rdma/fi_domain.h`, `rdma/fi_collective.h`, `rdma/fabric.h`; fi_av(3), fi_av_set(3).

use std::ffi::{c_char, c_int, c_void};

use super::fabric::fid;
use super::xpu::fid_xpu_ctx;

/// A peer: an entry of an address vector, or one of the constants `FI_ADDR_*`. fi_av(3).
pub type fi_addr_t = u64;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_av_type = u32;

structures! {
    /// An address vector: the peers that a domain's endpoints can name. fi_av(3).
    pub struct fid_av = 32 {
        fid: fid = 0;
        ops: *mut fi_ops_av = 24;
    }

    /// What an address vector is to be like. fi_av(3).
    pub struct fi_av_attr = 48 {
        r#type: fi_av_type = 0;
        rx_ctx_bits: c_int = 4;
        count: usize = 8;
        ep_per_node: usize = 16;
        name: *const c_char = 24;
        map_addr: *mut c_void = 32;
        flags: u64 = 40;
    }

    /// A set of addresses of an address vector. fi_av_set(3).
    pub struct fid_av_set = 32, since 1.9 {
        fid: fid = 0;
        ops: *mut fi_ops_av_set = 24;
    }

    /// What a set of addresses is to hold. fi_av_set(3).
    pub struct fi_av_set_attr = 56, since 1.9 {
        count: usize = 0;
        start_addr: fi_addr_t = 8;
        end_addr: fi_addr_t = 16;
        stride: u64 = 24;
        comm_key_size: usize = 32;
        comm_key: *mut u8 = 40;
        flags: u64 = 48;
    }
}

tables! {
    /// What an address vector can do. fi_av(3).
    pub table fi_ops_av = 12 {
        1: insert(
            av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64,
            context: *mut c_void,
        ) -> c_int;
        2: insertsvc(
            av: *mut fid_av, node: *const c_char, service: *const c_char, fi_addr: *mut fi_addr_t,
            flags: u64, context: *mut c_void,
        ) -> c_int;
        3: insertsym(
            av: *mut fid_av, node: *const c_char, nodecnt: usize, service: *const c_char, svccnt: usize,
            fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void,
        ) -> c_int;
        4: remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int;
        5: lookup(av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        6: straddr(av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char;
        7: av_set(
            av: *mut fid_av, attr: *mut fi_av_set_attr, av_set: *mut *mut fid_av_set, context: *mut c_void,
        ) -> c_int, since 1.9;
        8: insert_auth_key(
            av: *mut fid_av, auth_key: *const c_void, auth_key_size: usize, fi_addr: *mut fi_addr_t,
            flags: u64,
        ) -> c_int, since 1.20;
        9: lookup_auth_key(
            av: *mut fid_av, fi_addr: fi_addr_t, auth_key: *mut c_void, auth_key_size: *mut usize,
        ) -> c_int, since 1.20;
        10: set_user_id(
            av: *mut fid_av, fi_addr: fi_addr_t, user_id: fi_addr_t, flags: u64,
        ) -> c_int, since 1.20;
        11: lookup2(
            av: *mut fid_av, fi_addr: fi_addr_t, buf: *mut c_void, len: *mut usize, flags: u64,
            ctx: *mut fid_xpu_ctx,
        ) -> c_int, since 2.7;
    }

    /// What a set of addresses can do. fi_av_set(3).
    pub table fi_ops_av_set = 7, since 1.9 {
        1: set_union(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        2: intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        3: diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        4: insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        5: remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        6: addr(set: *mut fid_av_set, coll_addr: *mut fi_addr_t) -> c_int;
    }
}

constants! {
    fi_av_type {
        FI_AV_UNSPEC = 0;
        FI_AV_MAP = 1;
        FI_AV_TABLE = 2;
    }
    u64 {
        FI_ADDR_UNSPEC = u64::MAX;
        FI_ADDR_NOTAVAIL = u64::MAX;
        FI_SYMMETRIC = 1 << 59;
        FI_SYNC_ERR = 1 << 58;
        FI_UNIVERSE = 1 << 57;
        FI_BARRIER_SET = 1 << 40;
        FI_BROADCAST_SET = 1 << 41;
        FI_ALLTOALL_SET = 1 << 42;
        FI_ALLREDUCE_SET = 1 << 43;
        FI_ALLGATHER_SET = 1 << 44;
        FI_REDUCE_SCATTER_SET = 1 << 45;
        FI_REDUCE_SET = 1 << 46;
        FI_SCATTER_SET = 1 << 47;
        FI_GATHER_SET = 1 << 48;
    }
}
