//! Operations that a device starts by itself. No release has them yet: they are on the development branch
//! after 2.6.
//!
//! Sources: `rdma/fi_xpu.h`.

use std::ffi::{c_int, c_void};

use super::fabric::fid;
use super::mr::fi_hmem_iface;

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_xpu_provider = u32;

structures! {
    /// The device of a context. `rdma/fi_xpu.h`.
    pub struct fi_xpu_attr = 24, since 2.7 {
        iface: fi_hmem_iface = 0;
        device: u64 = 8;
        ops: *mut fi_xpu_ops = 16;
    }

    /// What a context of a device can do. `rdma/fi_xpu.h`.
    pub struct fi_xpu_ctx_attr = 24, since 2.7 {
        caps: u64 = 0;
        av_addr_size: usize = 8;
        mr_desc_size: usize = 16;
    }

    /// A context of a device. `rdma/fi_xpu.h`.
    pub struct fid_xpu_ctx = 32, since 2.7 {
        fid: fid = 0;
        ops: *mut fi_ops_xpu_ctx = 24;
    }

    /// The head of what is exported to a device. `rdma/fi_xpu.h`.
    pub struct fid_xpu = 16, since 2.7 {
        fclass: u32 = 0;
        prov_id: u32 = 4;
        prov_ctx: u64 = 8;
    }

    /// An endpoint that a device uses. `rdma/fi_xpu.h`.
    pub struct fid_xpu_ep = 16, since 2.7 {
        fid: fid_xpu = 0;
    }

    /// A completion queue that a device uses. `rdma/fi_xpu.h`.
    pub struct fid_xpu_cq = 16, since 2.7 {
        fid: fid_xpu = 0;
    }

    /// A counter that a device uses. `rdma/fi_xpu.h`.
    pub struct fid_xpu_cntr = 16, since 2.7 {
        fid: fid_xpu = 0;
    }
}

tables! {
    /// How memory of a device is allocated and mapped. `rdma/fi_xpu.h`.
    pub table fi_xpu_ops = 4, since 2.7 {
        1: alloc(
            device: u64, size: u64, alignment: u64, flags: u64, addr: *mut *mut c_void, fd: *mut c_int,
            offset: *mut u64,
        ) -> c_int;
        2: import(
            device: u64, host_addr: *mut c_void, size: u64, flags: u64, dev_addr: *mut *mut c_void,
        ) -> c_int;
        3: free(device: u64, addr: *mut c_void) -> ();
    }

    /// What a context of a device can do: report its attributes. `rdma/fi_xpu.h`.
    pub table fi_ops_xpu_ctx = 2, since 2.7 {
        1: query(ctx: *mut fid_xpu_ctx, attr: *mut fi_xpu_ctx_attr) -> c_int;
    }
}

constants! {
    u32 {
        FI_XPU_WORK_ITEM = 0;
        FI_XPU_SUBGROUP = 1;
        FI_XPU_WORK_GROUP = 2;
        FI_XPU_DEVICE = 3;
    }
    fi_xpu_provider {
        FI_XPU_PROV_EFA = 1;
    }
    u64 {
        FI_XPU_ALLOC_DMABUF = 1 << 0;
        FI_XPU_IMPORT_IOMEMORY = 1 << 0;
        FI_XPU_IMPORT_DEVICEMAP = 1 << 1;
        FI_XPU_CAP_EP = 1 << 0;
        FI_XPU_CAP_CQ = 1 << 1;
        FI_XPU_CAP_CNTR = 1 << 2;
    }
}
