//! The structs of `portals4.h` on 64-bit machines (reference: portals, section 2), each with its sizes and
//! offsets pinned: for C programs that call us (`am/portals/abi`, whose `tests/layout.rs` gets the same
//! numbers from a C compiler), and for the library that we call (`drivers/portals`). Addresses in an event
//! and in a list of pieces are numbers, which nothing here dereferences; so are enums: values from C are
//! checked first.

use std::ffi::{c_int, c_uint, c_void};

use super::{Count, Event, NiLimits, Process};

/// `ptl_process_t`: a union of a rank and a pair; the pair's first half is the rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PtlProcess {
    /// The rank, or the node.
    pub nid: u32,
    /// The process of the node.
    pub pid: u32,
}

/// The layout of `ptl_iovec_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PtlIovec {
    /// The address of the first byte.
    pub base: usize,
    /// The number of bytes.
    pub length: u64,
}

/// The layout of `ptl_md_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PtlMd {
    /// The first byte, or the array of pieces.
    pub start: *mut c_void,
    /// Bytes, or pieces.
    pub length: u64,
    /// Options: `PTL_MD_*` bits.
    pub options: c_uint,
    /// Where full events go.
    pub eq_handle: u32,
    /// The counting event, or none.
    pub ct_handle: u32,
}

/// The layout of `ptl_le_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PtlLe {
    /// The first byte, or the array of pieces.
    pub start: *mut c_void,
    /// Bytes, or pieces.
    pub length: u64,
    /// The counting event, or none.
    pub ct_handle: u32,
    /// The user whose operations it takes.
    pub uid: u32,
    /// Options: `PTL_LE_*` bits.
    pub options: c_uint,
}

/// The layout of `ptl_me_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PtlMe {
    /// The first byte, or the array of pieces.
    pub start: *mut c_void,
    /// Bytes, or pieces.
    pub length: u64,
    /// The counting event, or none.
    pub ct_handle: u32,
    /// The user whose operations it takes.
    pub uid: u32,
    /// Options: `PTL_ME_*` bits.
    pub options: c_uint,
    /// The process from which it takes operations.
    pub match_id: PtlProcess,
    /// The bits that a request has to have.
    pub match_bits: u64,
    /// The bits that may differ.
    pub ignore_bits: u64,
    /// Unlinked when fewer bytes are free.
    pub min_free: u64,
}

/// The layout of `ptl_event_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PtlEvent {
    /// The address at which it landed, or was read.
    pub start: usize,
    /// The caller's own.
    pub user_ptr: u64,
    /// The initiator's 64 bits.
    pub hdr_data: u64,
    /// The initiator's match bits.
    pub match_bits: u64,
    /// The requested number of bytes.
    pub rlength: u64,
    /// The number of bytes that were moved.
    pub mlength: u64,
    /// The other side's offset.
    pub remote_offset: u64,
    /// The process that began the operation.
    pub initiator: PtlProcess,
    /// The user of that process.
    pub uid: u32,
    /// Which portal table entry.
    pub pt_index: u32,
    /// The kind: one of `PTL_EVENT_*`.
    pub kind: u8,
    /// `PTL_PRIORITY_LIST` or `PTL_OVERFLOW_LIST`.
    pub list: u8,
    /// How it ended: one of `PTL_NI_*`.
    pub fail: u8,
    /// The operation of atomics.
    pub atomic_operation: u8,
    /// The type of atomics.
    pub atomic_type: u8,
}

/// The layout of `ptl_ct_event_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PtlCtEvent {
    /// What ended well.
    pub success: u64,
    /// What did not.
    pub failure: u64,
}

/// The layout of `ptl_ni_limits_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)]
pub struct PtlNiLimits {
    pub max_entries: c_int,
    pub max_unexpected_headers: c_int,
    pub max_mds: c_int,
    pub max_cts: c_int,
    pub max_eqs: c_int,
    pub max_pt_index: c_int,
    pub max_iovecs: c_int,
    pub max_list_size: c_int,
    pub max_triggered_ops: c_int,
    pub max_msg_size: u64,
    pub max_atomic_size: u64,
    pub max_fetch_atomic_size: u64,
    pub max_waw_ordered_size: u64,
    pub max_war_ordered_size: u64,
    pub max_volatile_size: u64,
    pub features: c_uint,
}

macro_rules! pinned {
    ($type:ty, $size:expr, $($field:ident $at:expr),+) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(std::mem::offset_of!($type, $field) == $at);)+
        };
    };
}

pinned!(PtlProcess, 8, nid 0, pid 4);
pinned!(PtlIovec, 16, base 0, length 8);
pinned!(PtlCtEvent, 16, success 0, failure 8);
pinned!(PtlMd, 32, start 0, length 8, options 16, eq_handle 20, ct_handle 24);
pinned!(PtlLe, 32, start 0, length 8, ct_handle 16, uid 20, options 24);
pinned!(
    PtlMe, 64, start 0, length 8, ct_handle 16, uid 20, options 24, match_id 28, match_bits 40, ignore_bits 48,
    min_free 56
);
pinned!(
    PtlEvent, 80, start 0, user_ptr 8, hdr_data 16, match_bits 24, rlength 32, mlength 40, remote_offset 48,
    initiator 56, uid 64, pt_index 68, kind 72, list 73, fail 74, atomic_operation 75, atomic_type 76
);
pinned!(
    PtlNiLimits, 96, max_entries 0, max_unexpected_headers 4, max_mds 8, max_cts 12, max_eqs 16, max_pt_index 20,
    max_iovecs 24, max_list_size 28, max_triggered_ops 32, max_msg_size 40, max_atomic_size 48,
    max_fetch_atomic_size 56, max_waw_ordered_size 64, max_war_ordered_size 72, max_volatile_size 80, features 88
);

impl From<PtlProcess> for Process {
    fn from(process: PtlProcess) -> Self {
        Self {
            nid: process.nid,
            pid: process.pid,
        }
    }
}

impl From<Process> for PtlProcess {
    fn from(process: Process) -> Self {
        Self {
            nid: process.nid,
            pid: process.pid,
        }
    }
}

impl From<PtlCtEvent> for Count {
    fn from(event: PtlCtEvent) -> Self {
        Self {
            success: event.success,
            failure: event.failure,
        }
    }
}

impl From<Count> for PtlCtEvent {
    fn from(count: Count) -> Self {
        Self {
            success: count.success,
            failure: count.failure,
        }
    }
}

impl From<Event> for PtlEvent {
    fn from(event: Event) -> Self {
        Self {
            start: event.start,
            user_ptr: event.user_ptr,
            hdr_data: event.hdr_data,
            match_bits: event.match_bits,
            rlength: event.rlength,
            mlength: event.mlength,
            remote_offset: event.remote_offset,
            initiator: event.initiator.into(),
            uid: event.uid,
            pt_index: event.pt_index,
            kind: event.kind as u8,
            list: event.list as u8,
            fail: event.fail as u8,
            atomic_operation: event.atomic_operation,
            atomic_type: event.atomic_type,
        }
    }
}

impl From<&NiLimits> for PtlNiLimits {
    fn from(limits: &NiLimits) -> Self {
        let int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
        Self {
            max_entries: int(limits.max_entries),
            max_unexpected_headers: int(limits.max_unexpected_headers),
            max_mds: int(limits.max_mds),
            max_cts: int(limits.max_cts),
            max_eqs: int(limits.max_eqs),
            max_pt_index: int(limits.max_pt_index),
            max_iovecs: int(limits.max_iovecs),
            max_list_size: int(limits.max_list_size),
            max_triggered_ops: int(limits.max_triggered_ops),
            max_msg_size: limits.max_msg_size,
            max_atomic_size: limits.max_atomic_size,
            max_fetch_atomic_size: limits.max_fetch_atomic_size,
            max_waw_ordered_size: limits.max_waw_ordered_size,
            max_war_ordered_size: limits.max_war_ordered_size,
            max_volatile_size: limits.max_volatile_size,
            features: limits.features,
        }
    }
}

/// A negative number is none.
impl From<&PtlNiLimits> for NiLimits {
    fn from(limits: &PtlNiLimits) -> Self {
        let count = |value: c_int| u32::try_from(value).unwrap_or(0);
        Self {
            max_entries: count(limits.max_entries),
            max_unexpected_headers: count(limits.max_unexpected_headers),
            max_mds: count(limits.max_mds),
            max_cts: count(limits.max_cts),
            max_eqs: count(limits.max_eqs),
            max_pt_index: count(limits.max_pt_index),
            max_iovecs: count(limits.max_iovecs),
            max_list_size: count(limits.max_list_size),
            max_triggered_ops: count(limits.max_triggered_ops),
            max_msg_size: limits.max_msg_size,
            max_atomic_size: limits.max_atomic_size,
            max_fetch_atomic_size: limits.max_fetch_atomic_size,
            max_waw_ordered_size: limits.max_waw_ordered_size,
            max_war_ordered_size: limits.max_war_ordered_size,
            max_volatile_size: limits.max_volatile_size,
            features: limits.features,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_survive_the_way_and_negative_ones_are_none() {
        let limits = NiLimits::default();
        let desired = PtlNiLimits::from(&limits);
        assert_eq!(NiLimits::from(&desired), limits);
        let odd = PtlNiLimits {
            max_mds: -1,
            ..desired
        };
        assert_eq!(NiLimits::from(&odd).max_mds, 0);
        let many = NiLimits {
            max_entries: u32::MAX,
            ..limits
        };
        assert_eq!(PtlNiLimits::from(&many).max_entries, i32::MAX);
    }
}
