//! Events of two jobs side by side: only fields that mean something, and only orders that the reference
//! promises.

use std::collections::BTreeMap;

use doorbell_fabric::ni::{Event, EventKind, List, NiFail};

/// What orders events among themselves: those of one stream come in the same order everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stream {
    /// Communication at the target; with the initiator, where several send at a time.
    Target(u32, u32),
    /// What is longer than what is ordered, at the target: each ends when it is moved.
    Long,
    /// LINK, AUTO_UNLINK, AUTO_FREE of one entry.
    List(u64),
    /// SEND, ACK, REPLY of the operations under one name.
    Initiator(u64),
    /// PT_DISABLED of one table entry.
    Table(u32),
}

/// An event, without what means nothing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plain {
    pub(crate) kind: EventKind,
    pub(crate) fail: NiFail,
    pub(crate) user_ptr: u64,
    pub(crate) rest: Vec<(&'static str, u64)>,
}

/// Bytes that travel with their request, or its answer, and end in order with all others.
const WHOLE: u64 = 512;

/// Reduces an event; `base` is where the memory of its process begins.
pub(crate) fn plain(event: &Event, base: usize, each_initiator: bool) -> (Stream, Plain) {
    use EventKind as K;
    let mut rest = Vec::new();
    let mut user_ptr = event.user_ptr;
    let stream = match event.kind {
        K::Send => Stream::Initiator(event.user_ptr),
        K::Ack | K::Reply => {
            rest.push(("mlength", event.mlength));
            if event.fail == NiFail::Ok {
                rest.push(("overflow", u64::from(event.list == List::Overflow)));
                if event.mlength > 0 {
                    rest.push(("remote_offset", event.remote_offset));
                }
            }
            Stream::Initiator(event.user_ptr)
        }
        K::Link | K::AutoUnlink | K::AutoFree => {
            rest.push(("pt_index", u64::from(event.pt_index)));
            Stream::List(event.user_ptr)
        }
        K::PtDisabled => {
            user_ptr = 0;
            Stream::Table(event.pt_index)
        }
        _ => {
            if event.fail != NiFail::NoMatch {
                target(event, base, &mut rest);
            }
            let moves = matches!(event.kind, K::Put | K::Get);
            if moves && event.rlength > WHOLE {
                Stream::Long
            } else if each_initiator {
                Stream::Target(event.initiator.nid, event.initiator.pid)
            } else {
                Stream::Target(0, 0)
            }
        }
    };
    let plain = Plain {
        kind: event.kind,
        fail: event.fail,
        user_ptr,
        rest,
    };
    (stream, plain)
}

/// The fields of communication at the target.
fn target(event: &Event, base: usize, rest: &mut Vec<(&'static str, u64)>) {
    use EventKind as K;
    rest.extend([
        ("hdr_data", event.hdr_data),
        ("match_bits", event.match_bits),
        ("rlength", event.rlength),
        ("remote_offset", event.remote_offset),
        ("nid", u64::from(event.initiator.nid)),
        ("pid", u64::from(event.initiator.pid)),
        ("uid", u64::from(event.uid)),
        ("pt_index", u64::from(event.pt_index)),
    ]);
    if matches!(event.kind, K::Put | K::Get | K::Atomic | K::FetchAtomic) {
        rest.push(("overflow", u64::from(event.list == List::Overflow)));
    }
    if matches!(
        event.kind,
        K::Atomic | K::FetchAtomic | K::AtomicOverflow | K::FetchAtomicOverflow
    ) {
        rest.push(("operation", u64::from(event.atomic_operation)));
        rest.push(("type", u64::from(event.atomic_type)));
    }
    if event.fail == NiFail::Ok {
        rest.push(("mlength", event.mlength));
        if event.mlength > 0 {
            rest.push(("place", event.place));
            rest.push(("start", (event.start - base) as u64));
        }
    }
}

/// Whether an event is of communication at the target.
fn moves(kind: EventKind) -> bool {
    kind as u8 <= EventKind::FetchAtomicOverflow as u8
}

/// Events by stream. An initiator's events under one name come in any order, because the operations may be
/// long, and so do a target's events of long ones.
pub(crate) fn streams(events: &[Event], base: usize, each_initiator: bool) -> BTreeMap<Stream, Vec<Plain>> {
    let mut all: BTreeMap<Stream, Vec<Plain>> = BTreeMap::new();
    for (nth, event) in events.iter().enumerate() {
        let (stream, mut plain) = plain(event, base, each_initiator);
        // One call at a time: all events of an entry come in one order, its communication and what becomes of
        // the entry.
        if matches!(stream, Stream::List(_)) && !each_initiator {
            let of_entry = |earlier: &&Event| moves(earlier.kind) && earlier.user_ptr == event.user_ptr;
            let behind = events[..nth].iter().filter(of_entry).count();
            plain.rest.push(("behind", behind as u64));
        }
        all.entry(stream).or_default().push(plain);
    }
    for (stream, events) in &mut all {
        if matches!(stream, Stream::Initiator(_) | Stream::Long) {
            events.sort_by_key(|event| {
                (
                    event.kind as u8,
                    event.fail as u8,
                    event.user_ptr,
                    event.rest.clone(),
                )
            });
        }
    }
    all
}
