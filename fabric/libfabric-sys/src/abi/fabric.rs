//! The head of every object, the fabric object, and the control commands.
//!
//! Sources: `rdma/fabric.h`, and of the man pages fi_fabric(3) and fi_control(3).

use std::ffi::{c_char, c_int, c_void};

use super::domain::fid_domain;
use super::endpoint::{fid_ep, fid_pep};
use super::eq::{fi_eq_attr, fid_eq};
use super::info::fi_info;
use super::wait::{fi_wait_attr, fid_wait};

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_type = u32;

structures! {
    /// The head of every object: its class, the caller's context, and the table that every object has.
    pub struct fid = 24 {
        fclass: usize = 0;
        context: *mut c_void = 8;
        ops: *mut fi_ops = 16;
    }

    /// A fabric: the network that domains reach. fi_fabric(3).
    pub struct fid_fabric = 40 {
        fid: fid = 0;
        ops: *mut fi_ops_fabric = 24;
        api_version: u32 = 32, since 1.5;
    }

    /// The argument of the command `FI_ALIAS`. fi_control(3).
    pub struct fi_alias = 16 {
        fid: *mut *mut fid = 0;
        flags: u64 = 8;
    }

    /// The argument of the commands `FI_GET_VAL` and `FI_SET_VAL`. fi_control(3).
    pub struct fi_fid_var = 16, since 1.12 {
        name: c_int = 0;
        val: *mut c_void = 8;
    }

    /// Memory that a provider uses per operation, where mode `FI_CONTEXT` is set. fi_getinfo(3).
    pub struct fi_context = 32 {
        internal: [*mut c_void; 4] = 0;
    }

    /// Memory that a provider uses per operation, where mode `FI_CONTEXT2` is set. fi_getinfo(3).
    pub struct fi_context2 = 64, since 1.5 {
        internal: [*mut c_void; 8] = 0;
    }

    /// The context of a buffered receive, as 1.7 to 1.22 had it. fi_msg(3) of these.
    pub struct fi_recv_context = 16, since 1.7 {
        ep: *mut fid_ep = 0;
        context: *mut c_void = 8;
    }
}

tables! {
    /// What every object can do: close, bind, control, and open further tables by name. fi_control(3).
    pub table fi_ops = 7 {
        1: close(fid: *mut fid) -> c_int;
        2: bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int;
        3: control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int;
        4: ops_open(
            fid: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void, context: *mut c_void,
        ) -> c_int;
        5: tostr(fid: *const fid, buf: *mut c_char, len: usize) -> c_int, since 1.7;
        6: ops_set(
            fid: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void, context: *mut c_void,
        ) -> c_int, since 1.11;
    }

    /// What a fabric can do: open domains, passive endpoints, event queues and wait sets. fi_fabric(3).
    pub table fi_ops_fabric = 7 {
        1: domain(
            fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, context: *mut c_void,
        ) -> c_int;
        2: passive_ep(
            fabric: *mut fid_fabric, info: *mut fi_info, pep: *mut *mut fid_pep, context: *mut c_void,
        ) -> c_int;
        3: eq_open(
            fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq, context: *mut c_void,
        ) -> c_int;
        4: wait_open(fabric: *mut fid_fabric, attr: *mut fi_wait_attr, waitset: *mut *mut fid_wait) -> c_int;
        5: trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int, since 1.3;
        6: domain2(
            fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, flags: u64,
            context: *mut c_void,
        ) -> c_int, since 1.17;
    }
}

constants! {
    usize {
        FI_CLASS_UNSPEC = 0;
        FI_CLASS_FABRIC = 1;
        FI_CLASS_DOMAIN = 2;
        FI_CLASS_EP = 3;
        FI_CLASS_SEP = 4;
        FI_CLASS_RX_CTX = 5;
        FI_CLASS_SRX_CTX = 6;
        FI_CLASS_TX_CTX = 7;
        FI_CLASS_STX_CTX = 8;
        FI_CLASS_PEP = 9;
        FI_CLASS_INTERFACE = 10;
        FI_CLASS_AV = 11;
        FI_CLASS_MR = 12;
        FI_CLASS_EQ = 13;
        FI_CLASS_CQ = 14;
        FI_CLASS_CNTR = 15;
        FI_CLASS_WAIT = 16;
        FI_CLASS_POLL = 17;
        FI_CLASS_CONNREQ = 18;
        FI_CLASS_MC = 19;
        FI_CLASS_NIC = 20;
        FI_CLASS_AV_SET = 21;
        FI_CLASS_MR_CACHE = 22;
        FI_CLASS_MEM_MONITOR = 23;
        FI_CLASS_PEER_CQ = 24;
        FI_CLASS_PEER_SRX = 25;
        FI_CLASS_LOG = 26;
        FI_CLASS_PEER_AV = 27;
        FI_CLASS_PEER_AV_SET = 28;
        FI_CLASS_PEER_CNTR = 29;
        FI_CLASS_PROFILE = 30;
        FI_CLASS_XPU_CTX = 31;
    }
    c_int {
        FI_GETFIDFLAG = 0;
        FI_SETFIDFLAG = 1;
        FI_GETOPSFLAG = 2;
        FI_SETOPSFLAG = 3;
        FI_ALIAS = 4;
        FI_GETWAIT = 5;
        FI_ENABLE = 6;
        FI_BACKLOG = 7;
        FI_GET_RAW_MR = 8;
        FI_MAP_RAW_MR = 9;
        FI_UNMAP_KEY = 10;
        FI_QUEUE_WORK = 11;
        FI_CANCEL_WORK = 12;
        FI_FLUSH_WORK = 13;
        FI_REFRESH = 14;
        FI_DUP = 15;
        FI_GETWAITOBJ = 16;
        FI_GET_VAL = 17;
        FI_SET_VAL = 18;
        FI_EXPORT_FID = 19;
        FI_GET_FD = 20;
        FI_GET_MR_XPU_DESC = 21;
    }
    fi_type {
        FI_TYPE_INFO = 0;
        FI_TYPE_EP_TYPE = 1;
        FI_TYPE_CAPS = 2;
        FI_TYPE_OP_FLAGS = 3;
        FI_TYPE_ADDR_FORMAT = 4;
        FI_TYPE_TX_ATTR = 5;
        FI_TYPE_RX_ATTR = 6;
        FI_TYPE_EP_ATTR = 7;
        FI_TYPE_DOMAIN_ATTR = 8;
        FI_TYPE_FABRIC_ATTR = 9;
        FI_TYPE_THREADING = 10;
        FI_TYPE_PROGRESS = 11;
        FI_TYPE_PROTOCOL = 12;
        FI_TYPE_MSG_ORDER = 13;
        FI_TYPE_MODE = 14;
        FI_TYPE_AV_TYPE = 15;
        FI_TYPE_ATOMIC_TYPE = 16;
        FI_TYPE_ATOMIC_OP = 17;
        FI_TYPE_VERSION = 18;
        FI_TYPE_EQ_EVENT = 19;
        FI_TYPE_CQ_EVENT_FLAGS = 20;
        FI_TYPE_MR_MODE = 21;
        FI_TYPE_OP_TYPE = 22;
        FI_TYPE_FID = 23;
        FI_TYPE_COLLECTIVE_OP = 24;
        FI_TYPE_HMEM_IFACE = 25;
        FI_TYPE_CQ_FORMAT = 26;
        FI_TYPE_LOG_LEVEL = 27;
        FI_TYPE_LOG_SUBSYS = 28;
        FI_TYPE_AV_ATTR = 29;
        FI_TYPE_CQ_ATTR = 30;
        FI_TYPE_MR_ATTR = 31;
        FI_TYPE_CNTR_ATTR = 32;
        FI_TYPE_CQ_ERR_ENTRY = 33;
        FI_TYPE_CQ_WAIT_COND = 34;
        FI_TYPE_WAIT_OBJ = 35;
    }
}
