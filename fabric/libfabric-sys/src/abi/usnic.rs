//! The extension of the provider usnic: how many functions, queues and interrupts a card has.
//!
//! Sources: `rdma/fi_ext_usnic.h`, which is `prov/usnic/src/fi_ext_usnic.h` in the library's source tree;
//! fi_usnic(7). The structures are packed since 1.4, with their padding written out.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::av::fid_av;
use super::fabric::fid_fabric;

unions! {
    /// What is known about a card, by the version of the extension. fi_usnic(7).
    pub union fi_usnic_info_versions = 200 {
        v1: fi_usnic_info_v1;
        v2: fi_usnic_info_v2;
    }
}

structures! {
    /// Whether a card has one capability. fi_usnic(7).
    #[repr(packed)]
    pub struct fi_usnic_cap = 12 {
        uc_capability: *const c_char = 0;
        uc_present: c_int = 8;
    }

    /// What is known about a card by version 1 of the extension. fi_usnic(7).
    #[repr(packed)]
    pub struct fi_usnic_info_v1 = 36 {
        ui_link_speed: u32 = 0;
        ui_netmask_be: u32 = 4;
        ui_ifname: [c_char; 16] = 8;
        ui_num_vf: u32 = 24;
        ui_qp_per_vf: u32 = 28;
        ui_cq_per_vf: u32 = 32;
    }

    /// What is known about a card by version 2 of the extension. fi_usnic(7).
    #[repr(packed)]
    pub struct fi_usnic_info_v2 = 200 {
        ui_link_speed: u32 = 0;
        ui_netmask_be: u32 = 4;
        ui_ifname: [c_char; 16] = 8;
        ui_num_vf: c_uint = 24;
        ui_qp_per_vf: c_uint = 28;
        ui_cq_per_vf: c_uint = 32;
        ui_devname: [c_char; 16] = 36;
        ui_mac_addr: [u8; 6] = 52;
        ui_pad0: [u8; 2] = 58;
        ui_ipaddr_be: u32 = 60;
        ui_prefixlen: u32 = 64;
        ui_mtu: u32 = 68;
        ui_link_up: u8 = 72;
        ui_pad1: [u8; 3] = 73;
        ui_vendor_id: u32 = 76;
        ui_vendor_part_id: u32 = 80;
        ui_device_id: u32 = 84;
        ui_firmware: [c_char; 64] = 88;
        ui_intr_per_vf: c_uint = 152;
        ui_max_cq: c_uint = 156;
        ui_max_qp: c_uint = 160;
        ui_max_cqe: c_uint = 164;
        ui_max_send_credits: c_uint = 168;
        ui_max_recv_credits: c_uint = 172;
        ui_nicname: *const c_char = 176;
        ui_pid: *const c_char = 184;
        ui_caps: *mut *mut fi_usnic_cap = 192;
    }

    /// The argument of `getinfo`; the caller sets the version. fi_usnic(7).
    #[repr(packed)]
    pub struct fi_usnic_info = 208 {
        ui_version: u32 = 0;
        ui_pad0: [u8; 4] = 4;
        ui: fi_usnic_info_versions = 8;
    }
}

tables! {
    /// The table that a fabric opens by [`FI_USNIC_FABRIC_OPS_1`]. fi_usnic(7).
    pub table fi_usnic_ops_fabric = 2 {
        1: getinfo(version: u32, fabric: *mut fid_fabric, info: *mut fi_usnic_info) -> c_int;
    }

    /// The table that an address vector opens by [`FI_USNIC_AV_OPS_1`]. fi_usnic(7).
    pub table fi_usnic_ops_av = 2 {
        1: get_distance(av: *mut fid_av, addr: *mut c_void, metric: *mut c_int) -> c_int;
    }
}

constants! {
    u32 {
        FI_PROTO_RUDP = 100 | 1 << 31;
        FI_EXT_USNIC_INFO_VERSION = 2;
    }
    usize {
        FI_EXT_USNIC_MAX_DEVNAME = 16;
    }
}

/// The name of [`fi_usnic_ops_fabric`] for `fi_open_ops`.
pub const FI_USNIC_FABRIC_OPS_1: &CStr = c"fabric_ops 1";
/// The name of [`fi_usnic_ops_av`] for `fi_open_ops`.
pub const FI_USNIC_AV_OPS_1: &CStr = c"av_ops 1";
