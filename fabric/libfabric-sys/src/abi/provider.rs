//! What a provider exports, its parameters and its log.
//!
//! Sources: `rdma/providers/fi_prov.h`, `rdma/providers/fi_log.h`, `rdma/fabric.h`; fi_provider(3),
//! fi_param(3) of the library's source tree.

use std::ffi::{c_char, c_int, c_void};

use super::fabric::{fi_context, fid_fabric};
use super::info::{fi_fabric_attr, fi_info};

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_param_type = u32;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_log_subsys = u32;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_log_level = u32;

structures! {
    /// A provider, as its entry `fi_prov_ini` returns it. fi_provider(3).
    ///
    /// The library writes into `context`.
    pub struct fi_provider = 72, since 1.4 {
        version: u32 = 0;
        fi_version: u32 = 4;
        context: fi_context = 8;
        name: *const c_char = 40;
        getinfo: Option<unsafe extern "C" fn(version: u32, node: *const c_char, service: *const c_char, flags: u64, hints: *const fi_info, info: *mut *mut fi_info) -> c_int> = 48;
        fabric: Option<unsafe extern "C" fn(attr: *mut fi_fabric_attr, fabric: *mut *mut fid_fabric, context: *mut c_void) -> c_int> = 56;
        cleanup: Option<unsafe extern "C" fn()> = 64;
    }

    /// A parameter of a provider, as `fi_getparams` lists it. `rdma/fabric.h`.
    pub struct fi_param = 32, since 1.1 {
        name: *const c_char = 0;
        r#type: fi_param_type = 8;
        help_string: *const c_char = 16;
        value: *const c_char = 24;
    }
}

constants! {
    fi_param_type {
        FI_PARAM_STRING = 0;
        FI_PARAM_INT = 1;
        FI_PARAM_BOOL = 2;
        FI_PARAM_SIZE_T = 3;
    }
    fi_log_subsys {
        FI_LOG_CORE = 0;
        FI_LOG_FABRIC = 1;
        FI_LOG_DOMAIN = 2;
        FI_LOG_EP_CTRL = 3;
        FI_LOG_EP_DATA = 4;
        FI_LOG_AV = 5;
        FI_LOG_CQ = 6;
        FI_LOG_EQ = 7;
        FI_LOG_MR = 8;
        FI_LOG_CNTR = 9;
    }
    fi_log_level {
        FI_LOG_WARN = 0;
        FI_LOG_TRACE = 1;
        FI_LOG_INFO = 2;
        FI_LOG_DEBUG = 3;
    }
}
