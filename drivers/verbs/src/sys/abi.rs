//! The structures of `infiniband/verbs.h` that are used here. They have not changed between rdma-core 44 and
//! 65, but for the end of [`PortAttr`], which the exported function does not fill either.
//!
//! Source: rdma-core, `libibverbs/verbs.h`; reference: verbs, section 2.

use std::ffi::{c_char, c_int, c_uint, c_void};

#[cfg(test)]
use super::declare::Layout;

/// What `ibv_context.ops` has in the places of functions that moved elsewhere.
type Unused = *mut c_void;

/// A GID, which C also sees as two numbers of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct RawGid(pub(crate) [u8; 16]);

/// The last part of a send work request: how a memory window is bound.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LastOfSendWr {
    pub(crate) mw: *mut Mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: MwBindInfo,
}

structures! {
    /// A device that the library has found.
    pub(crate) struct Device as ibv_device = 664 {
        ops as "_ops": [Unused; 2] = 0;
        node_type: c_int = 16;
        transport_type: c_int = 20;
        name: [c_char; 64] = 24;
        dev_name: [c_char; 64] = 88;
        dev_path: [c_char; 256] = 152;
        ibdev_path: [c_char; 256] = 408;
    }

    /// The functions of an open device, which its provider has set.
    pub(crate) struct ContextOps as ibv_context_ops = 256 {
        query_device as "_compat_query_device": Unused = 0;
        query_port as "_compat_query_port": Unused = 8;
        alloc_pd as "_compat_alloc_pd": Unused = 16;
        dealloc_pd as "_compat_dealloc_pd": Unused = 24;
        reg_mr as "_compat_reg_mr": Unused = 32;
        rereg_mr as "_compat_rereg_mr": Unused = 40;
        dereg_mr as "_compat_dereg_mr": Unused = 48;
        alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_int) -> *mut Mw> = 56;
        bind_mw: Unused = 64;
        dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int> = 72;
        create_cq as "_compat_create_cq": Unused = 80;
        poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int> = 88;
        req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int> = 96;
        cq_event as "_compat_cq_event": Unused = 104;
        resize_cq as "_compat_resize_cq": Unused = 112;
        destroy_cq as "_compat_destroy_cq": Unused = 120;
        create_srq as "_compat_create_srq": Unused = 128;
        modify_srq as "_compat_modify_srq": Unused = 136;
        query_srq as "_compat_query_srq": Unused = 144;
        destroy_srq as "_compat_destroy_srq": Unused = 152;
        post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int> = 160;
        create_qp as "_compat_create_qp": Unused = 168;
        query_qp as "_compat_query_qp": Unused = 176;
        modify_qp as "_compat_modify_qp": Unused = 184;
        destroy_qp as "_compat_destroy_qp": Unused = 192;
        post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int> = 200;
        post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int> = 208;
        create_ah as "_compat_create_ah": Unused = 216;
        destroy_ah as "_compat_destroy_ah": Unused = 224;
        attach_mcast as "_compat_attach_mcast": Unused = 232;
        detach_mcast as "_compat_detach_mcast": Unused = 240;
        async_event as "_compat_async_event": Unused = 248;
    }

    /// An open device.
    pub(crate) struct Context as ibv_context = 328 {
        device: *mut Device = 0;
        ops: ContextOps = 8;
        cmd_fd: c_int = 264;
        async_fd: c_int = 268;
        num_comp_vectors: c_int = 272;
        mutex: libc::pthread_mutex_t = 280;
        abi_compat: *mut c_void = 320;
    }

    /// A protection domain.
    pub(crate) struct Pd as ibv_pd = 16 {
        context: *mut Context = 0;
        handle: u32 = 8;
    }

    /// A memory registration.
    pub(crate) struct Mr as ibv_mr = 48 {
        context: *mut Context = 0;
        pd: *mut Pd = 8;
        addr: *mut c_void = 16;
        length: usize = 24;
        handle: u32 = 32;
        lkey: u32 = 36;
        rkey: u32 = 40;
    }

    /// A memory window.
    pub(crate) struct Mw as ibv_mw = 32 {
        context: *mut Context = 0;
        pd: *mut Pd = 8;
        rkey: u32 = 16;
        handle: u32 = 20;
        kind as "type": c_int = 24;
    }

    /// A channel of completion events.
    pub(crate) struct CompChannel as ibv_comp_channel = 16 {
        context: *mut Context = 0;
        fd: c_int = 8;
        refcnt: c_int = 12;
    }

    /// A completion queue.
    pub(crate) struct Cq as ibv_cq = 128 {
        context: *mut Context = 0;
        channel: *mut CompChannel = 8;
        cq_context: *mut c_void = 16;
        handle: u32 = 24;
        cqe: c_int = 28;
        mutex: libc::pthread_mutex_t = 32;
        cond: libc::pthread_cond_t = 72;
        comp_events_completed: u32 = 120;
        async_events_completed: u32 = 124;
    }

    /// A shared receive queue.
    pub(crate) struct Srq as ibv_srq = 128 {
        context: *mut Context = 0;
        srq_context: *mut c_void = 8;
        pd: *mut Pd = 16;
        handle: u32 = 24;
        mutex: libc::pthread_mutex_t = 32;
        cond: libc::pthread_cond_t = 72;
        events_completed: u32 = 120;
    }

    /// A queue pair.
    pub(crate) struct Qp as ibv_qp = 160 {
        context: *mut Context = 0;
        qp_context: *mut c_void = 8;
        pd: *mut Pd = 16;
        send_cq: *mut Cq = 24;
        recv_cq: *mut Cq = 32;
        srq: *mut Srq = 40;
        handle: u32 = 48;
        qp_num: u32 = 52;
        state: c_int = 56;
        qp_type: c_int = 60;
        mutex: libc::pthread_mutex_t = 64;
        cond: libc::pthread_cond_t = 104;
        events_completed: u32 = 152;
    }

    /// An address handle.
    pub(crate) struct Ah as ibv_ah = 24 {
        context: *mut Context = 0;
        pd: *mut Pd = 8;
        handle: u32 = 16;
    }

    /// A piece of registered memory.
    pub(crate) struct Sge as ibv_sge = 16 {
        addr: u64 = 0;
        length: u32 = 8;
        lkey: u32 = 12;
    }

    /// Which bytes a memory window is bound to.
    pub(crate) struct MwBindInfo as ibv_mw_bind_info = 32 {
        mr: *mut Mr = 0;
        addr: u64 = 8;
        length: u64 = 16;
        mw_access_flags: c_uint = 24;
    }

    /// A send work request. What the unions of C hold is in [`SendWr::first`] and [`SendWr::last`].
    pub(crate) struct SendWr as ibv_send_wr = 128 {
        wr_id: u64 = 0;
        next: *mut SendWr = 8;
        sg_list: *mut Sge = 16;
        num_sge: c_int = 24;
        opcode: c_int = 28;
        send_flags: c_uint = 32;
        /// Immediate data in the order of the network, or the key to be invalidated.
        imm_data: u32 = 36;
        first as "wr": [u64; 4] = 40;
        xrc as "qp_type": u32 = 72;
        last as "bind_mw": LastOfSendWr = 80;
    }

    /// A receive work request.
    pub(crate) struct RecvWr as ibv_recv_wr = 32 {
        wr_id: u64 = 0;
        next: *mut RecvWr = 8;
        sg_list: *mut Sge = 16;
        num_sge: c_int = 24;
    }

    /// A work completion.
    pub(crate) struct Wc as ibv_wc = 48 {
        wr_id: u64 = 0;
        status: c_int = 8;
        opcode: c_int = 12;
        vendor_err: u32 = 16;
        byte_len: u32 = 20;
        /// Immediate data in the order of the network, or the key that was invalidated.
        imm_data: u32 = 24;
        qp_num: u32 = 28;
        src_qp: u32 = 32;
        wc_flags: c_uint = 36;
        pkey_index: u16 = 40;
        slid: u16 = 42;
        sl: u8 = 44;
        dlid_path_bits: u8 = 45;
    }

    /// The sizes of a queue pair.
    pub(crate) struct QpCap as ibv_qp_cap = 20 {
        max_send_wr: u32 = 0;
        max_recv_wr: u32 = 4;
        max_send_sge: u32 = 8;
        max_recv_sge: u32 = 12;
        max_inline_data: u32 = 16;
    }

    /// How a queue pair is created.
    pub(crate) struct QpInitAttr as ibv_qp_init_attr = 64 {
        qp_context: *mut c_void = 0;
        send_cq: *mut Cq = 8;
        recv_cq: *mut Cq = 16;
        srq: *mut Srq = 24;
        cap: QpCap = 32;
        qp_type: c_int = 52;
        sq_sig_all: c_int = 56;
    }

    /// The global part of an address.
    pub(crate) struct GlobalRoute as ibv_global_route = 24 {
        dgid: RawGid = 0;
        flow_label: u32 = 16;
        sgid_index: u8 = 20;
        hop_limit: u8 = 21;
        traffic_class: u8 = 22;
    }

    /// An address that packets are sent to.
    pub(crate) struct AhAttr as ibv_ah_attr = 32 {
        grh: GlobalRoute = 0;
        dlid: u16 = 24;
        sl: u8 = 26;
        src_path_bits: u8 = 27;
        static_rate: u8 = 28;
        is_global: u8 = 29;
        port_num: u8 = 30;
    }

    /// The attributes of a queue pair.
    pub(crate) struct QpAttr as ibv_qp_attr = 144 {
        qp_state: c_int = 0;
        cur_qp_state: c_int = 4;
        path_mtu: c_int = 8;
        path_mig_state: c_int = 12;
        qkey: u32 = 16;
        rq_psn: u32 = 20;
        sq_psn: u32 = 24;
        dest_qp_num: u32 = 28;
        qp_access_flags: c_uint = 32;
        cap: QpCap = 36;
        ah_attr: AhAttr = 56;
        alt_ah_attr: AhAttr = 88;
        pkey_index: u16 = 120;
        alt_pkey_index: u16 = 122;
        en_sqd_async_notify: u8 = 124;
        sq_draining: u8 = 125;
        max_rd_atomic: u8 = 126;
        max_dest_rd_atomic: u8 = 127;
        min_rnr_timer: u8 = 128;
        port_num: u8 = 129;
        timeout: u8 = 130;
        retry_cnt: u8 = 131;
        rnr_retry: u8 = 132;
        alt_port_num: u8 = 133;
        alt_timeout: u8 = 134;
        rate_limit: u32 = 136;
    }

    /// The sizes of a shared receive queue, and how few free entries raise an event.
    pub(crate) struct SrqAttr as ibv_srq_attr = 12 {
        max_wr: u32 = 0;
        max_sge: u32 = 4;
        srq_limit: u32 = 8;
    }

    /// How a shared receive queue is created.
    pub(crate) struct SrqInitAttr as ibv_srq_init_attr = 24 {
        srq_context: *mut c_void = 0;
        attr: SrqAttr = 8;
    }

    /// What a device can do.
    pub(crate) struct DeviceAttr as ibv_device_attr = 232 {
        fw_ver: [c_char; 64] = 0;
        /// In the order of the network, as is the next one.
        node_guid: u64 = 64;
        sys_image_guid: u64 = 72;
        max_mr_size: u64 = 80;
        page_size_cap: u64 = 88;
        vendor_id: u32 = 96;
        vendor_part_id: u32 = 100;
        hw_ver: u32 = 104;
        max_qp: c_int = 108;
        max_qp_wr: c_int = 112;
        device_cap_flags: c_uint = 116;
        max_sge: c_int = 120;
        max_sge_rd: c_int = 124;
        max_cq: c_int = 128;
        max_cqe: c_int = 132;
        max_mr: c_int = 136;
        max_pd: c_int = 140;
        max_qp_rd_atom: c_int = 144;
        max_ee_rd_atom: c_int = 148;
        max_res_rd_atom: c_int = 152;
        max_qp_init_rd_atom: c_int = 156;
        max_ee_init_rd_atom: c_int = 160;
        atomic_cap: c_int = 164;
        max_ee: c_int = 168;
        max_rdd: c_int = 172;
        max_mw: c_int = 176;
        max_raw_ipv6_qp: c_int = 180;
        max_raw_ethy_qp: c_int = 184;
        max_mcast_grp: c_int = 188;
        max_mcast_qp_attach: c_int = 192;
        max_total_mcast_qp_attach: c_int = 196;
        max_ah: c_int = 200;
        max_fmr: c_int = 204;
        max_map_per_fmr: c_int = 208;
        max_srq: c_int = 212;
        max_srq_wr: c_int = 216;
        max_srq_sge: c_int = 220;
        max_pkeys: u16 = 224;
        local_ca_ack_delay: u8 = 226;
        phys_port_cnt: u8 = 227;
    }

    /// A port, as the exported `ibv_query_port` fills it: up to the flags.
    pub(crate) struct PortAttr as ibv_port_attr = 52 {
        state: c_int = 0;
        max_mtu: c_int = 4;
        active_mtu: c_int = 8;
        gid_tbl_len: c_int = 12;
        port_cap_flags: u32 = 16;
        max_msg_sz: u32 = 20;
        bad_pkey_cntr: u32 = 24;
        qkey_viol_cntr: u32 = 28;
        pkey_tbl_len: u16 = 32;
        lid: u16 = 34;
        sm_lid: u16 = 36;
        lmc: u8 = 38;
        max_vl_num: u8 = 39;
        sm_sl: u8 = 40;
        subnet_timeout: u8 = 41;
        init_type_reply: u8 = 42;
        active_width: u8 = 43;
        active_speed: u8 = 44;
        phys_state: u8 = 45;
        link_layer: u8 = 46;
        flags: u8 = 47;
        port_cap_flags2: u16 = 48;
    }

    /// An entry of a port's table of GIDs.
    pub(crate) struct GidEntry as ibv_gid_entry = 32 {
        gid: RawGid = 0;
        gid_index: u32 = 16;
        port_num: u32 = 20;
        gid_type: u32 = 24;
        ndev_ifindex: u32 = 28;
    }

    /// An asynchronous event. The element is a pointer to an object, or the number of a port.
    pub(crate) struct AsyncEvent as ibv_async_event = 16 {
        element: u64 = 0;
        event_type: c_int = 8;
    }
}
