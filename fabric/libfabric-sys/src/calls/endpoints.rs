//! Calls of endpoints that move no data: binding, options, names, connections. fi_endpoint(3), fi_cm(3).

use std::ffi::{c_int, c_void};

use crate::abi::cm::{fi_ops_cm, fid_mc};
use crate::abi::endpoint::{fi_ops_ep, fid_ep, fid_pep};
use crate::abi::fabric::{fi_ops, fid};
use crate::abi::info::{fi_rx_attr, fi_tx_attr};
use crate::abi::xpu::fid_xpu_ep;

calls! {
    fi_ep_bind(ep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int = fid.ops: fi_ops.bind;
    fi_pep_bind(pep: *mut fid_pep, bfid: *mut fid, flags: u64) -> c_int = fid.ops: fi_ops.bind;
    fi_scalable_ep_bind(sep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int = fid.ops: fi_ops.bind;
    fi_cancel(fid: *mut fid, context: *mut c_void) -> isize = fid_ep.ops: fi_ops_ep.cancel;
    fi_setopt(
        fid: *mut fid, level: c_int, optname: c_int, optval: *const c_void, optlen: usize,
    ) -> c_int = fid_ep.ops: fi_ops_ep.setopt;
    fi_getopt(
        fid: *mut fid, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize,
    ) -> c_int = fid_ep.ops: fi_ops_ep.getopt;
    fi_tx_context(
        ep: *mut fid_ep, idx: c_int, attr: *mut fi_tx_attr, tx_ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int = fid_ep.ops: fi_ops_ep.tx_ctx;
    fi_rx_context(
        ep: *mut fid_ep, idx: c_int, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> c_int = fid_ep.ops: fi_ops_ep.rx_ctx;
    fi_rx_size_left(ep: *mut fid_ep) -> isize = fid_ep.ops: fi_ops_ep.rx_size_left;
    fi_tx_size_left(ep: *mut fid_ep) -> isize = fid_ep.ops: fi_ops_ep.tx_size_left;
    fi_ep_export_xpu(
        ep: *mut fid_ep, flags: u64, xpu_ep: *mut fid_xpu_ep,
    ) -> c_int = fid_ep.ops: fi_ops_ep.export_xpu;
    fi_setname(fid: *mut fid, addr: *mut c_void, addrlen: usize) -> c_int = fid_ep.cm: fi_ops_cm.setname;
    fi_getname(
        fid: *mut fid, addr: *mut c_void, addrlen: *mut usize,
    ) -> c_int = fid_ep.cm: fi_ops_cm.getname;
    fi_getpeer(
        ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize,
    ) -> c_int = fid_ep.cm: fi_ops_cm.getpeer;
    fi_listen(pep: *mut fid_pep) -> c_int = fid_pep.cm: fi_ops_cm.listen;
    fi_connect(
        ep: *mut fid_ep, addr: *const c_void, param: *const c_void, paramlen: usize,
    ) -> c_int = fid_ep.cm: fi_ops_cm.connect;
    fi_accept(
        ep: *mut fid_ep, param: *const c_void, paramlen: usize,
    ) -> c_int = fid_ep.cm: fi_ops_cm.accept;
    fi_reject(
        pep: *mut fid_pep, handle: *mut fid, param: *const c_void, paramlen: usize,
    ) -> c_int = fid_pep.cm: fi_ops_cm.reject;
    fi_shutdown(ep: *mut fid_ep, flags: u64) -> c_int = fid_ep.cm: fi_ops_cm.shutdown;
    fi_join(
        ep: *mut fid_ep, addr: *const c_void, flags: u64, mc: *mut *mut fid_mc, context: *mut c_void,
    ) -> c_int = fid_ep.cm: fi_ops_cm.join;
}
