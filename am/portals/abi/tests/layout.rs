//! The layouts that a C compiler makes of our header are those that the library uses (reference: portals,
//! section 2).

mod common;

use std::fmt::Write as _;
use std::mem::{align_of, offset_of};
use std::process::Command;

use portals::abi::types::{PtlCtEvent, PtlEvent, PtlIovec, PtlLe, PtlMd, PtlMe, PtlNiLimits, PtlProcess};

macro_rules! sizes {
    ($text:ident, $($name:literal: $type:ty),+ $(,)?) => {
        $(writeln!($text, "{} {}", $name, size_of::<$type>()).unwrap();)+
    };
}

macro_rules! shape {
    ($text:ident, $name:literal: $type:ty { $($c:literal: $field:ident),+ $(,)? }) => {
        writeln!($text, "{} {}", $name, size_of::<$type>()).unwrap();
        $(writeln!($text, "{}.{} {}", $name, $c, offset_of!($type, $field)).unwrap();)+
    };
}

fn ours() -> String {
    let mut text = String::new();
    sizes!(
        text,
        "ptl_size_t": u64, "ptl_match_bits_t": u64, "ptl_hdr_data_t": u64, "ptl_handle_any_t": u32,
        "ptl_pt_index_t": u32, "ptl_interface_t": u32, "ptl_time_t": u32, "ptl_ack_req_t": u8, "ptl_list_t": u8,
        "ptl_search_op_t": u8, "ptl_op_t": u8, "ptl_datatype_t": u8, "ptl_event_kind_t": u8, "ptl_ni_fail_t": u8,
        "ptl_sr_index_t": std::ffi::c_uint, "ptl_sr_value_t": std::ffi::c_int,
    );
    shape!(text, "ptl_process_t": PtlProcess { "rank": nid, "phys.nid": nid, "phys.pid": pid });
    shape!(text, "ptl_iovec_t": PtlIovec { "iov_base": base, "iov_len": length });
    shape!(text, "ptl_ct_event_t": PtlCtEvent { "success": success, "failure": failure });
    shape!(text, "ptl_md_t": PtlMd {
        "start": start, "length": length, "options": options, "eq_handle": eq_handle, "ct_handle": ct_handle
    });
    shape!(text, "ptl_le_t": PtlLe {
        "start": start, "length": length, "ct_handle": ct_handle, "uid": uid, "options": options
    });
    shape!(text, "ptl_me_t": PtlMe {
        "start": start, "length": length, "ct_handle": ct_handle, "uid": uid, "options": options,
        "match_id": match_id, "match_bits": match_bits, "ignore_bits": ignore_bits, "min_free": min_free
    });
    shape!(text, "ptl_event_t": PtlEvent {
        "start": start, "user_ptr": user_ptr, "hdr_data": hdr_data, "match_bits": match_bits, "rlength": rlength,
        "mlength": mlength, "remote_offset": remote_offset, "initiator": initiator, "uid": uid,
        "pt_index": pt_index, "type": kind, "ptl_list": list, "ni_fail_type": fail,
        "atomic_operation": atomic_operation, "atomic_type": atomic_type
    });
    shape!(text, "ptl_ni_limits_t": PtlNiLimits {
        "max_entries": max_entries, "max_unexpected_headers": max_unexpected_headers, "max_mds": max_mds,
        "max_cts": max_cts, "max_eqs": max_eqs, "max_pt_index": max_pt_index, "max_iovecs": max_iovecs,
        "max_list_size": max_list_size, "max_triggered_ops": max_triggered_ops, "max_msg_size": max_msg_size,
        "max_atomic_size": max_atomic_size, "max_fetch_atomic_size": max_fetch_atomic_size,
        "max_waw_ordered_size": max_waw_ordered_size, "max_war_ordered_size": max_war_ordered_size,
        "max_volatile_size": max_volatile_size, "features": features
    });
    text
}

#[test]
fn a_c_compiler_finds_the_same_sizes_and_offsets() {
    let Some(program) = common::compiled("layout") else {
        return;
    };
    let out = Command::new(program).output().unwrap();
    assert!(out.status.success());
    let theirs = String::from_utf8(out.stdout).unwrap();
    for (theirs, ours) in theirs.lines().zip(ours().lines()) {
        assert_eq!(theirs, ours);
    }
    assert_eq!(theirs.lines().count(), ours().lines().count());
    assert_eq!(align_of::<PtlEvent>(), 8);
}
