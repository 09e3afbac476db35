//! The binding's types as C lays them out on 64-bit machines (reference: portals, sections 2 and 13).

use std::ffi::{c_int, c_uint, c_void};

use memoffset::offset_of;

/// `ptl_process_t`, a union of a rank and a node with its process: passed by value, eight bytes in either
/// case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct PtlProcess {
    pub(crate) nid: u32,
    pub(crate) pid: u32,
}
const _: () = assert!(size_of::<PtlProcess>() == 8 && align_of::<PtlProcess>() == 4);

/// The C struct `ptl_iovec_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PtlIovec {
    /// An address, as a number that is never dereferenced here.
    pub(crate) base: usize,
    pub(crate) length: u64,
}
const _: () = assert!(size_of::<PtlIovec>() == 16);

/// The C struct `ptl_ct_event_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PtlCtEvent {
    pub(crate) success: u64,
    pub(crate) failure: u64,
}
const _: () = assert!(size_of::<PtlCtEvent>() == 16);

/// The C struct `ptl_md_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PtlMd {
    pub(crate) start: *mut c_void,
    pub(crate) length: u64,
    pub(crate) options: c_uint,
    pub(crate) eq_handle: c_uint,
    pub(crate) ct_handle: c_uint,
}
const _: () = assert!(size_of::<PtlMd>() == 32);
const _: () = assert!(offset_of!(PtlMd, options) == 16);
const _: () = assert!(offset_of!(PtlMd, eq_handle) == 20);
const _: () = assert!(offset_of!(PtlMd, ct_handle) == 24);

/// `ptl_me_t`; its first half is `ptl_le_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PtlMe {
    pub(crate) start: *mut c_void,
    pub(crate) length: u64,
    pub(crate) ct_handle: c_uint,
    pub(crate) uid: u32,
    pub(crate) options: c_uint,
    pub(crate) match_id: PtlProcess,
    pub(crate) match_bits: u64,
    pub(crate) ignore_bits: u64,
    pub(crate) min_free: u64,
}
const _: () = assert!(size_of::<PtlMe>() == 64);
const _: () = assert!(offset_of!(PtlMe, ct_handle) == 16);
const _: () = assert!(offset_of!(PtlMe, uid) == 20);
const _: () = assert!(offset_of!(PtlMe, options) == 24);
const _: () = assert!(offset_of!(PtlMe, match_id) == 28);
const _: () = assert!(offset_of!(PtlMe, match_bits) == 40);
const _: () = assert!(offset_of!(PtlMe, ignore_bits) == 48);
const _: () = assert!(offset_of!(PtlMe, min_free) == 56);

/// `ptl_event_t`, with its small enums as plain numbers: values from the library are validated first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PtlEvent {
    pub(crate) start: usize,
    pub(crate) user_ptr: u64,
    pub(crate) hdr_data: u64,
    pub(crate) match_bits: u64,
    pub(crate) rlength: u64,
    pub(crate) mlength: u64,
    pub(crate) remote_offset: u64,
    pub(crate) initiator: PtlProcess,
    pub(crate) uid: u32,
    pub(crate) pt_index: u32,
    pub(crate) kind: u8,
    pub(crate) ptl_list: u8,
    pub(crate) ni_fail_type: u8,
    pub(crate) atomic_operation: u8,
    pub(crate) atomic_type: u8,
}
const _: () = assert!(size_of::<PtlEvent>() == 80);
const _: () = assert!(offset_of!(PtlEvent, initiator) == 56);
const _: () = assert!(offset_of!(PtlEvent, uid) == 64);
const _: () = assert!(offset_of!(PtlEvent, pt_index) == 68);
const _: () = assert!(offset_of!(PtlEvent, kind) == 72);
const _: () = assert!(offset_of!(PtlEvent, atomic_type) == 76);

/// The C struct `ptl_ni_limits_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PtlLimits {
    pub(crate) max_entries: c_int,
    pub(crate) max_unexpected_headers: c_int,
    pub(crate) max_mds: c_int,
    pub(crate) max_cts: c_int,
    pub(crate) max_eqs: c_int,
    pub(crate) max_pt_index: c_int,
    pub(crate) max_iovecs: c_int,
    pub(crate) max_list_size: c_int,
    pub(crate) max_triggered_ops: c_int,
    pub(crate) max_msg_size: u64,
    pub(crate) max_atomic_size: u64,
    pub(crate) max_fetch_atomic_size: u64,
    pub(crate) max_waw_ordered_size: u64,
    pub(crate) max_war_ordered_size: u64,
    pub(crate) max_volatile_size: u64,
    pub(crate) features: c_uint,
}
const _: () = assert!(size_of::<PtlLimits>() == 96);
const _: () = assert!(offset_of!(PtlLimits, max_triggered_ops) == 32);
const _: () = assert!(offset_of!(PtlLimits, max_msg_size) == 40);
const _: () = assert!(offset_of!(PtlLimits, features) == 88);

/// No event queue, no counting event, any interface.
pub(crate) const EQ_NONE: u32 = 0x3fff_ffff;
pub(crate) const CT_NONE: u32 = 0x5fff_ffff;
pub(crate) const IFACE_DEFAULT: u32 = u32::MAX;

/// Options of NIInit.
pub(crate) const NI_MATCHING: c_uint = 1;
pub(crate) const NI_NO_MATCHING: c_uint = 2;
pub(crate) const NI_LOGICAL: c_uint = 4;
pub(crate) const NI_PHYSICAL: c_uint = 8;
