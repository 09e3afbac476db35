//! Converts between the contract's values and the binding's.

use doorbell_fabric::ni::{Count, Event, EventKind, NiError, NiFail, NiLimits, Process};
use doorbell_fabric::ni::{Entry, EntryOptions, List};

use crate::nic_records::EventOwner;
use crate::sys::{CT_NONE, EntryWords, PtlCtEvent, PtlEvent, PtlLimits, PtlProcess};

impl From<Process> for PtlProcess {
    fn from(process: Process) -> Self {
        Self {
            nid: process.nid,
            pid: process.pid,
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

impl From<PtlCtEvent> for Count {
    fn from(count: PtlCtEvent) -> Self {
        Self {
            success: count.success,
            failure: count.failure,
        }
    }
}

/// A process as the library names it.
pub(crate) const fn process(of: PtlProcess, logical: bool) -> Process {
    if logical {
        Process::rank(of.nid)
    } else {
        Process::physical(of.nid, of.pid)
    }
}

/// The fields of an entry in C; an option marks a list of pieces.
pub(crate) fn words(entry: &Entry, is_list: bool) -> EntryWords {
    let vector = if is_list { EntryOptions::IOVEC.0 } else { 0 };
    EntryWords {
        ct: entry.ct.map_or(CT_NONE, |ct| ct.0),
        uid: entry.uid,
        options: entry.options.0 & !EntryOptions::IOVEC.0 | vector,
        match_id: entry.match_id.into(),
        match_bits: entry.match_bits,
        ignore_bits: entry.ignore_bits,
        min_free: entry.min_free,
    }
}

/// The requested limits; C's are signed.
pub(crate) fn desired(limits: &NiLimits) -> PtlLimits {
    let int = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    PtlLimits {
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

/// The limits that were granted; a negative number is none.
pub(crate) fn granted(limits: &PtlLimits) -> NiLimits {
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    NiLimits {
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

/// The kind of an event; a number that the header does not have is `None`.
pub(crate) const fn kind(number: u8) -> Option<EventKind> {
    Some(match number {
        0 => EventKind::Get,
        1 => EventKind::GetOverflow,
        2 => EventKind::Put,
        3 => EventKind::PutOverflow,
        4 => EventKind::Atomic,
        5 => EventKind::AtomicOverflow,
        6 => EventKind::FetchAtomic,
        7 => EventKind::FetchAtomicOverflow,
        8 => EventKind::Reply,
        9 => EventKind::Send,
        10 => EventKind::Ack,
        11 => EventKind::PtDisabled,
        12 => EventKind::Link,
        13 => EventKind::AutoUnlink,
        14 => EventKind::AutoFree,
        15 => EventKind::Search,
        _ => return None,
    })
}

/// Whether an event is of one of our operations.
pub(crate) const fn is_initiators(kind: EventKind) -> bool {
    matches!(kind, EventKind::Reply | EventKind::Send | EventKind::Ack)
}

/// Whether it is one of those that an entry which is used once, or a search, ends with.
pub(crate) const fn ends_an_entry(kind: EventKind) -> bool {
    !matches!(
        kind,
        EventKind::Link | EventKind::AutoFree | EventKind::PtDisabled
    ) && !is_initiators(kind)
}

/// Converts an event. A failure that the header does not define is reported as undeliverable.
pub(crate) fn event(raw: &PtlEvent, kind: EventKind, whose: EventOwner, logical: bool) -> Event {
    Event {
        kind,
        fail: NiFail::of_number(raw.ni_fail_type).unwrap_or(NiFail::Undeliverable),
        list: if raw.ptl_list == List::Overflow as u8 {
            List::Overflow
        } else {
            List::Priority
        },
        start: raw.start,
        place: whose.place,
        user_ptr: whose.user_ptr,
        hdr_data: raw.hdr_data,
        match_bits: raw.match_bits,
        rlength: raw.rlength,
        mlength: raw.mlength,
        remote_offset: raw.remote_offset,
        initiator: process(raw.initiator, logical),
        uid: raw.uid,
        pt_index: raw.pt_index,
        atomic_operation: raw.atomic_operation,
        atomic_type: raw.atomic_type,
    }
}

/// The error of a return code.
pub(crate) const fn error(code: i32, what: &'static str) -> NiError {
    match code {
        1 => NiError::ArgInvalid(what),
        6 => NiError::Ignored,
        7 => NiError::InUse,
        8 => NiError::ListTooLong,
        9 => NiError::NoInit,
        10 => NiError::NoSpace(what),
        11 => NiError::PidInUse,
        12 => NiError::PtFull,
        13 => NiError::PtEqNeeded,
        14 => NiError::PtInUse,
        15 => NiError::Aborted,
        _ => NiError::Fail(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back_as_they_were() {
        for code in [1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15] {
            assert_eq!(error(code, "x").code(), code);
        }
        for code in [2, 5, 99, -1] {
            assert_eq!(error(code, "x"), NiError::Fail("x"));
        }
    }

    #[test]
    fn kinds_have_the_headers_numbers_and_no_others() {
        for number in 0..=15 {
            assert_eq!(kind(number).unwrap() as u8, number);
        }
        assert_eq!(kind(16), None);
    }

    #[test]
    fn limits_survive_the_way_and_negative_ones_are_none() {
        let limits = NiLimits::default();
        assert_eq!(granted(&desired(&limits)), limits);
        let odd = PtlLimits {
            max_mds: -1,
            ..desired(&limits)
        };
        assert_eq!(granted(&odd).max_mds, 0);
        let many = NiLimits {
            max_entries: u32::MAX,
            ..limits
        };
        assert_eq!(desired(&many).max_entries, i32::MAX);
    }
}
