//! What `fi_getinfo` takes and returns: a list of [`fi_info`] and its five attributes.
//!
//! Sources: `rdma/fabric.h`; fi_getinfo(3), fi_endpoint(3), fi_domain(3), fi_fabric(3). What a client has to
//! set in each is in the sections of that name.

use std::ffi::{c_char, c_int, c_void};

use super::av::fi_av_type;
use super::domain::fid_domain;
use super::fabric::{fid, fid_fabric};
use super::nic::fid_nic;
use super::xpu::fid_xpu_ctx;

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_ep_type = u32;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_progress = u32;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_threading = u32;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_resource_mgmt = u32;

structures! {
    /// One way of communicating that a provider offers, or that a caller asks for. fi_getinfo(3).
    pub struct fi_info = 120 {
        next: *mut fi_info = 0;
        caps: u64 = 8;
        mode: u64 = 16;
        addr_format: u32 = 24;
        src_addrlen: usize = 32;
        dest_addrlen: usize = 40;
        src_addr: *mut c_void = 48;
        dest_addr: *mut c_void = 56;
        handle: *mut fid = 64;
        tx_attr: *mut fi_tx_attr = 72;
        rx_attr: *mut fi_rx_attr = 80;
        ep_attr: *mut fi_ep_attr = 88;
        domain_attr: *mut fi_domain_attr = 96;
        fabric_attr: *mut fi_fabric_attr = 104;
        nic: *mut fid_nic = 112, since 1.7;
    }

    /// The sending half of an endpoint. fi_endpoint(3).
    pub struct fi_tx_attr = 80 {
        caps: u64 = 0;
        mode: u64 = 8;
        op_flags: u64 = 16;
        msg_order: u64 = 24;
        comp_order: u64 = 32;
        inject_size: usize = 40;
        size: usize = 48;
        iov_limit: usize = 56;
        rma_iov_limit: usize = 64;
        tclass: u32 = 72, since 1.9;
    }

    /// The receiving half of an endpoint. fi_endpoint(3).
    pub struct fi_rx_attr = 64 {
        caps: u64 = 0;
        mode: u64 = 8;
        op_flags: u64 = 16;
        msg_order: u64 = 24;
        comp_order: u64 = 32;
        total_buffered_recv: usize = 40;
        size: usize = 48;
        iov_limit: usize = 56;
    }

    /// The kind of an endpoint, its protocol and its limits. fi_endpoint(3).
    pub struct fi_ep_attr = 104 {
        r#type: fi_ep_type = 0;
        protocol: u32 = 4;
        protocol_version: u32 = 8;
        max_msg_size: usize = 16;
        msg_prefix_size: usize = 24;
        max_order_raw_size: usize = 32;
        max_order_war_size: usize = 40;
        max_order_waw_size: usize = 48;
        mem_tag_format: u64 = 56;
        tx_ctx_cnt: usize = 64;
        rx_ctx_cnt: usize = 72;
        auth_key_size: usize = 80, since 1.5;
        auth_key: *mut u8 = 88, since 1.5;
        xpu_ctx: *mut fid_xpu_ctx = 96, since 2.7;
    }

    /// What a domain offers, and its limits. fi_domain(3).
    ///
    /// The newest headers have `progress` as a second name of `data_progress`.
    pub struct fi_domain_attr = 232 {
        domain: *mut fid_domain = 0;
        name: *mut c_char = 8;
        threading: fi_threading = 16;
        control_progress: fi_progress = 20;
        data_progress: fi_progress = 24;
        resource_mgmt: fi_resource_mgmt = 28;
        av_type: fi_av_type = 32;
        mr_mode: c_int = 36;
        mr_key_size: usize = 40;
        cq_data_size: usize = 48;
        cq_cnt: usize = 56;
        ep_cnt: usize = 64;
        tx_ctx_cnt: usize = 72;
        rx_ctx_cnt: usize = 80;
        max_ep_tx_ctx: usize = 88;
        max_ep_rx_ctx: usize = 96;
        max_ep_stx_ctx: usize = 104;
        max_ep_srx_ctx: usize = 112;
        cntr_cnt: usize = 120, since 1.5;
        mr_iov_limit: usize = 128, since 1.5;
        caps: u64 = 136, since 1.5;
        mode: u64 = 144, since 1.5;
        auth_key: *mut u8 = 152, since 1.5;
        auth_key_size: usize = 160, since 1.5;
        max_err_data: usize = 168, since 1.5;
        mr_cnt: usize = 176, since 1.5;
        tclass: u32 = 184, since 1.9;
        max_ep_auth_key: usize = 192, since 1.20;
        max_group_id: u32 = 200, since 2.0;
        max_cntr_value: u64 = 208, since 2.5;
        max_err_cntr_value: u64 = 216, since 2.5;
        max_xpu_ctx_cnt: usize = 224, since 2.7;
    }

    /// The provider's name and version, and the fabric's name. fi_fabric(3).
    pub struct fi_fabric_attr = 32 {
        fabric: *mut fid_fabric = 0;
        name: *mut c_char = 8;
        prov_name: *mut c_char = 16;
        prov_version: u32 = 24;
        api_version: u32 = 28, since 1.5;
    }
}

constants! {
    fi_ep_type {
        FI_EP_UNSPEC = 0;
        FI_EP_MSG = 1;
        FI_EP_DGRAM = 2;
        FI_EP_RDM = 3;
    }
    u32 {
        FI_FORMAT_UNSPEC = 0;
        FI_SOCKADDR = 1;
        FI_SOCKADDR_IN = 2;
        FI_SOCKADDR_IN6 = 3;
        FI_SOCKADDR_IB = 4;
        FI_ADDR_PSMX = 5;
        FI_ADDR_GNI = 6;
        FI_ADDR_BGQ = 7;
        FI_ADDR_MLX = 8;
        FI_ADDR_STR = 9;
        FI_ADDR_PSMX2 = 10;
        FI_ADDR_IB_UD = 11;
        FI_ADDR_EFA = 12;
        FI_ADDR_PSMX3 = 13;
        FI_ADDR_OPX = 14;
        FI_ADDR_CXI = 15;
        FI_ADDR_UCX = 16;
        FI_SOCKADDR_IP = 17;
        FI_PROTO_UNSPEC = 0;
        FI_PROTO_RDMA_CM_IB_RC = 1;
        FI_PROTO_IWARP = 2;
        FI_PROTO_IB_UD = 3;
        FI_PROTO_PSMX = 4;
        FI_PROTO_UDP = 5;
        FI_PROTO_SOCK_TCP = 6;
        FI_PROTO_MXM = 7;
        FI_PROTO_IWARP_RDM = 8;
        FI_PROTO_IB_RDM = 9;
        FI_PROTO_GNI = 10;
        FI_PROTO_RXM = 11;
        FI_PROTO_RXD = 12;
        FI_PROTO_MLX = 13;
        FI_PROTO_NETWORKDIRECT = 14;
        FI_PROTO_PSMX2 = 15;
        FI_PROTO_SHM = 16;
        FI_PROTO_MRAIL = 17;
        FI_PROTO_RSTREAM = 18;
        FI_PROTO_RDMA_CM_IB_XRC = 19;
        FI_PROTO_EFA = 20;
        FI_PROTO_PSMX3 = 21;
        FI_PROTO_RXM_TCP = 22;
        FI_PROTO_OPX = 23;
        FI_PROTO_CXI = 24;
        FI_PROTO_XNET = 25;
        FI_PROTO_COLL = 26;
        FI_PROTO_UCX = 27;
        FI_PROTO_SM2 = 28;
        FI_PROTO_CXI_RNR = 29;
        FI_PROTO_LPP = 30;
        FI_PROTO_LNX = 31;
        FI_TC_UNSPEC = 0;
        FI_TC_DSCP = 0x100;
        FI_TC_LABEL = 0x200;
        FI_TC_BEST_EFFORT = 512;
        FI_TC_LOW_LATENCY = 513;
        FI_TC_DEDICATED_ACCESS = 514;
        FI_TC_BULK_DATA = 515;
        FI_TC_SCAVENGER = 516;
        FI_TC_NETWORK_CTRL = 517;
    }
    u64 {
        FI_TAG_BITS = 0;
        FI_TAG_MPI = 1;
        FI_TAG_CCL = 1 << 1;
        FI_TAG_MAX_FORMAT = 65536;
    }
    fi_progress {
        FI_PROGRESS_UNSPEC = 0;
        FI_PROGRESS_AUTO = 1;
        FI_PROGRESS_MANUAL = 2;
        FI_PROGRESS_CONTROL_UNIFIED = 3;
    }
    fi_threading {
        FI_THREAD_UNSPEC = 0;
        FI_THREAD_SAFE = 1;
        FI_THREAD_FID = 2;
        FI_THREAD_DOMAIN = 3;
        FI_THREAD_COMPLETION = 4;
        FI_THREAD_ENDPOINT = 5;
    }
    fi_resource_mgmt {
        FI_RM_UNSPEC = 0;
        FI_RM_DISABLED = 1;
        FI_RM_ENABLED = 2;
    }
    usize {
        FI_NAME_MAX = 64;
        FI_SHARED_CONTEXT = usize::MAX;
        FI_AV_AUTH_KEY = usize::MAX;
    }
}
