//! Memory registrations.
//!
//! Sources: `rdma/fi_domain.h`, `rdma/fabric.h`; fi_mr(3).

use std::ffi::{CStr, c_int, c_void};

use libc::iovec;

use super::av::{fi_addr_t, fid_av};
use super::fabric::fid;
use super::xpu::fid_xpu_ctx;

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_hmem_iface = u32;

unions! {
    /// The device that memory belongs to; the interface selects the member. fi_mr(3).
    pub union fi_hmem_device = 8 {
        reserved: u64;
        cuda: c_int;
        ze: c_int;
        neuron: c_int;
        synapseai: c_int;
        rocr: c_int;
    }
}

structures! {
    /// A registered piece of memory, with its key and the descriptor that operations take. fi_mr(3).
    pub struct fid_mr = 40 {
        fid: fid = 0;
        mem_desc: *mut c_void = 24;
        key: u64 = 32;
    }

    /// Memory of a device, given by a descriptor. fi_mr(3).
    pub struct fi_mr_dmabuf = 32, since 1.20 {
        fd: c_int = 0;
        offset: u64 = 8;
        len: usize = 16;
        base_addr: *mut c_void = 24;
    }

    /// The authorization key of a registration, by a peer's address. fi_mr(3).
    pub struct fi_mr_auth_key = 16, since 1.20 {
        av: *mut fid_av = 0;
        src_addr: fi_addr_t = 8;
    }

    /// What is to be registered. fi_mr(3).
    ///
    /// With `FI_MR_DMABUF` among the flags of the call, `mr_iov` points to a [`fi_mr_dmabuf`] instead.
    pub struct fi_mr_attr = 112 {
        mr_iov: *const iovec = 0;
        iov_count: usize = 8;
        access: u64 = 16;
        offset: u64 = 24;
        requested_key: u64 = 32;
        context: *mut c_void = 40;
        auth_key_size: usize = 48, since 1.5;
        auth_key: *mut u8 = 56, since 1.5;
        iface: fi_hmem_iface = 64, since 1.9;
        device: fi_hmem_device = 72, since 1.9;
        hmem_data: *mut c_void = 80, since 1.19;
        page_size: usize = 88, since 1.22;
        base_mr: *const fid_mr = 96, since 2.0;
        sub_mr_cnt: usize = 104, since 2.0;
    }

    /// The argument of the command `FI_REFRESH`. fi_mr(3).
    pub struct fi_mr_modify = 120, since 1.5 {
        flags: u64 = 0;
        attr: fi_mr_attr = 8 grows;
    }

    /// The argument of the command `FI_GET_RAW_MR`. fi_mr(3).
    pub struct fi_mr_raw_attr = 32, since 1.5 {
        flags: u64 = 0;
        base_addr: *mut u64 = 8;
        raw_key: *mut u8 = 16;
        key_size: *mut usize = 24;
    }

    /// The argument of the command `FI_MAP_RAW_MR`. fi_mr(3).
    pub struct fi_mr_map_raw = 40, since 1.5 {
        flags: u64 = 0;
        base_addr: u64 = 8;
        raw_key: *mut u8 = 16;
        key_size: usize = 24;
        key: *mut u64 = 32;
    }

    /// The argument of the command `FI_GET_MR_XPU_DESC`. `rdma/fabric.h`.
    pub struct fi_mr_xpu_desc = 32, since 2.7 {
        buf: *mut c_void = 0;
        len: *mut usize = 8;
        flags: u64 = 16;
        ctx: *mut fid_xpu_ctx = 24;
    }
}

tables! {
    /// How a domain registers memory. fi_mr(3).
    pub table fi_ops_mr = 4 {
        1: reg(
            fid: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64,
            flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        2: regv(
            fid: *mut fid, iov: *const iovec, count: usize, access: u64, offset: u64, requested_key: u64,
            flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        3: regattr(fid: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int;
    }

    /// How a provider copies to and from memory of devices, where the caller overrides it. fi_domain(3).
    pub table fi_hmem_override_ops = 3, since 1.11 {
        1: copy_from_hmem_iov(
            dest: *mut c_void, size: usize, iface: fi_hmem_iface, device: u64, hmem_iov: *const iovec,
            hmem_iov_count: usize, hmem_iov_offset: u64,
        ) -> isize;
        2: copy_to_hmem_iov(
            iface: fi_hmem_iface, device: u64, hmem_iov: *const iovec, hmem_iov_count: usize,
            hmem_iov_offset: u64, src: *const c_void, size: usize,
        ) -> isize;
    }
}

constants! {
    c_int {
        FI_MR_UNSPEC = 0;
        FI_MR_BASIC = 1 << 0;
        FI_MR_SCALABLE = 1 << 1;
        FI_MR_LOCAL = 1 << 2;
        FI_MR_RAW = 1 << 3;
        FI_MR_VIRT_ADDR = 1 << 4;
        FI_MR_ALLOCATED = 1 << 5;
        FI_MR_PROV_KEY = 1 << 6;
        FI_MR_MMU_NOTIFY = 1 << 7;
        FI_MR_RMA_EVENT = 1 << 8;
        FI_MR_ENDPOINT = 1 << 9;
        FI_MR_HMEM = 1 << 10;
        FI_MR_COLLECTIVE = 1 << 11;
        FI_MR_XPU_DESC = 1 << 12;
    }
    u64 {
        FI_MR_DMABUF = 1 << 40;
        FI_MR_SINGLE_USE = 1 << 41;
        FI_HMEM_HOST_ALLOC = 1 << 45;
        FI_HMEM_DEVICE_ONLY = 1 << 46;
        FI_KEY_NOTAVAIL = u64::MAX;
    }
    fi_hmem_iface {
        FI_HMEM_SYSTEM = 0;
        FI_HMEM_CUDA = 1;
        FI_HMEM_ROCR = 2;
        FI_HMEM_ZE = 3;
        FI_HMEM_NEURON = 4;
        FI_HMEM_SYNAPSEAI = 5;
    }
}

/// The name of [`fi_hmem_override_ops`] for `fi_set_ops`.
pub const FI_SET_OPS_HMEM_OVERRIDE: &CStr = c"hmem_override_ops";
