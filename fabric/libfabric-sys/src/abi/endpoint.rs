//! Endpoints, passive endpoints, shared transmit contexts, and their options.
//!
//! Sources: `rdma/fi_endpoint.h`; fi_endpoint(3).

use std::ffi::{c_int, c_void};

use super::atomic::fi_ops_atomic;
use super::cm::fi_ops_cm;
use super::collective::fi_ops_collective;
use super::fabric::fid;
use super::info::{fi_rx_attr, fi_tx_attr};
use super::msg::fi_ops_msg;
use super::rma::fi_ops_rma;
use super::tagged::fi_ops_tagged;
use super::xpu::fid_xpu_ep;

structures! {
    /// An endpoint, with a table for each kind of operation. fi_endpoint(3).
    pub struct fid_ep = 80 {
        fid: fid = 0;
        ops: *mut fi_ops_ep = 24;
        cm: *mut fi_ops_cm = 32;
        msg: *mut fi_ops_msg = 40;
        rma: *mut fi_ops_rma = 48;
        tagged: *mut fi_ops_tagged = 56;
        atomic: *mut fi_ops_atomic = 64;
        collective: *mut fi_ops_collective = 72, since 1.9;
    }

    /// A passive endpoint, which takes requests for connections. fi_endpoint(3).
    pub struct fid_pep = 40 {
        fid: fid = 0;
        ops: *mut fi_ops_ep = 24;
        cm: *mut fi_ops_cm = 32;
    }

    /// A transmit context that several endpoints share. fi_endpoint(3).
    pub struct fid_stx = 32 {
        fid: fid = 0;
        ops: *mut fi_ops_ep = 24;
    }
}

tables! {
    /// What every endpoint can do. fi_endpoint(3).
    pub table fi_ops_ep = 9 {
        1: cancel(fid: *mut fid, context: *mut c_void) -> isize;
        2: getopt(
            fid: *mut fid, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize,
        ) -> c_int;
        3: setopt(fid: *mut fid, level: c_int, optname: c_int, optval: *const c_void, optlen: usize) -> c_int;
        4: tx_ctx(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_tx_attr, tx_ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int;
        5: rx_ctx(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int;
        6: rx_size_left(ep: *mut fid_ep) -> isize;
        7: tx_size_left(ep: *mut fid_ep) -> isize;
        8: export_xpu(ep: *mut fid_ep, flags: u64, xpu_ep: *mut fid_xpu_ep) -> c_int, since 2.7;
    }
}

constants! {
    c_int {
        FI_OPT_ENDPOINT = 0;
        FI_OPT_MIN_MULTI_RECV = 0;
        FI_OPT_CM_DATA_SIZE = 1;
        FI_OPT_BUFFERED_MIN = 2;
        FI_OPT_BUFFERED_LIMIT = 3;
        FI_OPT_SEND_BUF_SIZE = 4;
        FI_OPT_RECV_BUF_SIZE = 5;
        FI_OPT_TX_SIZE = 6;
        FI_OPT_RX_SIZE = 7;
        FI_OPT_FI_HMEM_P2P = 8;
        FI_OPT_XPU_TRIGGER = 9;
        FI_OPT_CUDA_API_PERMITTED = 10;
        FI_OPT_SHARED_MEMORY_PERMITTED = 11;
        FI_OPT_MAX_MSG_SIZE = 12;
        FI_OPT_MAX_TAGGED_SIZE = 13;
        FI_OPT_MAX_RMA_SIZE = 14;
        FI_OPT_MAX_ATOMIC_SIZE = 15;
        FI_OPT_INJECT_MSG_SIZE = 16;
        FI_OPT_INJECT_TAGGED_SIZE = 17;
        FI_OPT_INJECT_RMA_SIZE = 18;
        FI_OPT_INJECT_ATOMIC_SIZE = 19;
        FI_OPT_FIREWALL_ADDR = 20;
        FI_HMEM_P2P_ENABLED = 0;
        FI_HMEM_P2P_REQUIRED = 1;
        FI_HMEM_P2P_PREFERRED = 2;
        FI_HMEM_P2P_DISABLED = 3;
    }
}
