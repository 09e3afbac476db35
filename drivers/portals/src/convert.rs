//! Converts between the contract's values and the binding's.

use doorbell_fabric::ni::layout::{PtlEvent, PtlProcess};
use doorbell_fabric::ni::{Event, EventKind, List, NiError, NiFail, Process};

use crate::nic_records::EventOwner;

/// A process as the library names it.
pub(crate) const fn process(of: PtlProcess, logical: bool) -> Process {
    if logical {
        Process::rank(of.nid)
    } else {
        Process::physical(of.nid, of.pid)
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
        fail: NiFail::of_number(raw.fail).unwrap_or(NiFail::Undeliverable),
        list: if raw.list == List::Overflow as u8 {
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
}
