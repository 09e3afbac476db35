//! Random programs: what a step is, and how it is drawn. Numbers are small, so that steps meet.

use doorbell_fabric::ni::{AckReq, AtomicKind, Datatype, EntryOptions, List, Search};
use proptest::prelude::*;

/// A call. Processes, table entries and the like are numbers, taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Append {
        rank: usize,
        pt: u32,
        list: List,
        shape: Shape,
    },
    Unlink {
        rank: usize,
        which: usize,
    },
    Search {
        rank: usize,
        pt: u32,
        how: Search,
        shape: Shape,
    },
    /// The same operation, this many times in a row.
    Operate {
        rank: usize,
        what: Operation,
        times: usize,
    },
    Trigger {
        rank: usize,
        ct: usize,
        threshold: u64,
        what: Operation,
    },
    /// Counting events of the first level trigger counts of the second.
    TriggerCount {
        rank: usize,
        from: usize,
        to: usize,
        threshold: u64,
        by: u64,
        sets: bool,
    },
    TriggerAppend {
        rank: usize,
        threshold: u64,
        pt: u32,
        shape: Shape,
    },
    Count {
        rank: usize,
        ct: usize,
        by: u64,
        fails: bool,
        sets: bool,
    },
    Cancel {
        rank: usize,
        ct: usize,
    },
    Enable {
        rank: usize,
        pt: u32,
    },
    Disable {
        rank: usize,
        pt: u32,
    },
}

/// An entry, but for its memory.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) options: EntryOptions,
    pub(crate) length: usize,
    /// Whether the memory lies in several pieces.
    pub(crate) in_pieces: bool,
    pub(crate) match_bits: u64,
    pub(crate) ignore_bits: u64,
    /// The process from which it takes requests, or all.
    pub(crate) from: Option<usize>,
    pub(crate) uid: Option<u32>,
    pub(crate) min_free: u64,
    pub(crate) is_counted: bool,
}

/// A data movement.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) to: usize,
    pub(crate) pt: u32,
    pub(crate) md: usize,
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) bits: u64,
    pub(crate) offset: u64,
    pub(crate) kind: Movement,
}

#[derive(Clone, Debug)]
pub(crate) enum Movement {
    Put(AckReq),
    Get,
    Atomic(AtomicKind, Datatype, AckReq),
    Fetch(AtomicKind, Datatype, u64),
}

/// Programs of `most` steps at most.
pub(crate) fn programs(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..most)
}

fn step() -> impl Strategy<Value = Step> {
    let rank = 0..3usize;
    prop_oneof![
        9 => (rank.clone(), table(), list(), shape())
            .prop_map(|(rank, pt, list, shape)| Step::Append { rank, pt, list, shape }),
        1 => (rank.clone(), any::<usize>()).prop_map(|(rank, which)| Step::Unlink { rank, which }),
        4 => (rank.clone(), table(), any::<bool>(), shape()).prop_map(|(rank, pt, only, shape)| {
            let how = if only { Search::Only } else { Search::Delete };
            Step::Search { rank, pt, how, shape: searching(shape, how) }
        }),
        20 => (rank.clone(), operation(false), times())
            .prop_map(|(rank, what, times)| {
                // Of long ones that meet in one place, the last one is not determined.
                let times = if what.length > 60 { 1 } else { times };
                Step::Operate { rank, what, times }
            }),
        5 => (rank.clone(), 0..2usize, 0..6u64, operation(true))
            .prop_map(|(rank, ct, threshold, what)| Step::Trigger { rank, ct, threshold, what }),
        1 => (rank.clone(), 0..2usize, 0..2usize, 0..5u64, 0..4u64, any::<bool>()).prop_map(
            |(rank, from, to, threshold, by, sets)| Step::TriggerCount { rank, from, to, threshold, by, sets }
        ),
        1 => (rank.clone(), 0..5u64, table(), shape())
            .prop_map(|(rank, threshold, pt, shape)| Step::TriggerAppend { rank, threshold, pt, shape }),
        3 => (rank.clone(), 0..4usize, 0..6u64, any::<bool>(), proptest::bool::weighted(0.3))
            .prop_map(|(rank, ct, by, fails, sets)| Step::Count { rank, ct, by, fails, sets }),
        1 => (rank.clone(), 0..4usize).prop_map(|(rank, ct)| Step::Cancel { rank, ct }),
        3 => (rank.clone(), 0..4u32).prop_map(|(rank, pt)| Step::Enable { rank, pt }),
        1 => (rank, 0..4u32).prop_map(|(rank, pt)| Step::Disable { rank, pt }),
    ]
}

/// A table entry: mostly the one that has a queue, and no flow control.
fn table() -> impl Strategy<Value = u32> {
    prop_oneof![8 => Just(0), 4 => Just(1), 1 => Just(2), 1 => Just(3)]
}

fn list() -> impl Strategy<Value = List> {
    prop_oneof![1 => Just(List::Priority), 1 => Just(List::Overflow)]
}

/// Both operations mostly; every other option now and then.
fn options() -> impl Strategy<Value = EntryOptions> {
    let rare = |option: EntryOptions, often: f64| {
        proptest::bool::weighted(often).prop_map(move |set| if set { option } else { EntryOptions::NONE })
    };
    let first = (
        rare(EntryOptions::OP_PUT, 0.9),
        rare(EntryOptions::OP_GET, 0.9),
        rare(EntryOptions::USE_ONCE, 0.3),
        rare(EntryOptions::UNEXPECTED_HDR_DISABLE, 0.1),
        rare(EntryOptions::EVENT_LINK_DISABLE, 0.2),
        rare(EntryOptions::EVENT_COMM_DISABLE, 0.1),
        rare(EntryOptions::EVENT_SUCCESS_DISABLE, 0.1),
        rare(EntryOptions::EVENT_OVER_DISABLE, 0.1),
    );
    let second = (
        rare(EntryOptions::EVENT_UNLINK_DISABLE, 0.2),
        rare(EntryOptions::EVENT_CT_COMM, 0.5),
        rare(EntryOptions::EVENT_CT_OVERFLOW, 0.5),
        rare(EntryOptions::EVENT_CT_BYTES, 0.3),
        rare(EntryOptions::MANAGE_LOCAL, 0.5),
        rare(EntryOptions::NO_TRUNCATE, 0.3),
        rare(EntryOptions::LOCAL_INC_UH_RLENGTH, 0.4),
        rare(EntryOptions::ACK_DISABLE, 0.1),
    );
    (first, second).prop_map(|(a, b)| {
        let first = a.0 | a.1 | a.2 | a.3 | a.4 | a.5 | a.6 | a.7;
        let mut all = first | b.0 | b.1 | b.2 | b.3 | b.4 | b.5 | b.6 | b.7;
        // Whether LINK and AUTO_UNLINK are "successes" the reference does not say.
        if all.has(EntryOptions::EVENT_SUCCESS_DISABLE) {
            all = all | EntryOptions::EVENT_LINK_DISABLE | EntryOptions::EVENT_UNLINK_DISABLE;
        }
        all
    })
}

fn shape() -> impl Strategy<Value = Shape> {
    let length = prop_oneof![6 => (0..12usize).prop_map(|n| 4 * n), 2 => 0..60usize, 2 => 60..200usize, 1 => 5000..20_000usize];
    let ignore = prop_oneof![3 => Just(0), 2 => Just(1), 1 => Just(u64::MAX)];
    let from = prop_oneof![3 => Just(None), 1 => (0..3usize).prop_map(Some)];
    let uid = prop_oneof![6 => Just(None), 1 => (1..3u32).prop_map(Some)];
    let min_free = prop_oneof![2 => Just(0), 2 => (1..6u64).prop_map(|n| 4 * n), 1 => 1..60u64];
    let rest = (from, uid, min_free, any::<bool>());
    (options(), length, any::<bool>(), bits(), ignore, rest).prop_map(
        |(options, length, in_pieces, match_bits, ignore_bits, (from, uid, min_free, is_counted))| Shape {
            options,
            length,
            in_pieces,
            match_bits,
            ignore_bits,
            from,
            uid,
            // What happens when a header leaves too little free the reference does not say.
            min_free: if options.has(EntryOptions::LOCAL_INC_UH_RLENGTH) {
                0
            } else {
                min_free
            },
            is_counted,
        },
    )
}

/// A search as the reference defines it clearly: its permission fits, it is counted only when it takes, all
/// of its events are on or off, and when it only looks, one match is enough.
fn searching(mut shape: Shape, how: Search) -> Shape {
    let mut options = shape.options | EntryOptions::OP_PUT | EntryOptions::OP_GET;
    let both = EntryOptions::EVENT_COMM_DISABLE | EntryOptions::EVENT_OVER_DISABLE;
    options.0 &= !EntryOptions::EVENT_SUCCESS_DISABLE.0;
    if options.has(EntryOptions::EVENT_COMM_DISABLE) {
        options = options | both;
    } else {
        options.0 &= !both.0;
    }
    if how == Search::Only {
        options = options | EntryOptions::USE_ONCE;
        shape.is_counted = false;
    }
    (shape.options, shape.uid) = (options, None);
    shape
}

/// Match bits: few.
fn bits() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0), 2 => Just(1), 1 => Just(2)]
}

fn operation(is_short: bool) -> impl Strategy<Value = Operation> {
    let length = prop_oneof![
        10 => (0..5u64).prop_map(|n| 4 * n),
        10 => 0..60u64,
        3 => 60..600u64,
        2 => 600..20_000u64,
    ];
    let indices = prop_oneof![20 => table(), 1 => Just(4)];
    let offset = prop_oneof![6 => Just(0), 3 => 0..80u64, 1 => Just(u64::MAX - 3)];
    (
        0..3usize,
        indices,
        0..5usize,
        0..100u64,
        length,
        bits(),
        offset,
        movement(),
    )
        .prop_map(move |(to, pt, md, at, length, bits, offset, kind)| Operation {
            to,
            pt,
            md,
            at,
            length: if is_short { length.min(60) } else { length },
            bits,
            offset,
            kind,
        })
}

/// Repeated puts leave out the words that were sent before.
fn times() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(1), 1 => 2..5usize]
}

fn ack() -> impl Strategy<Value = AckReq> {
    prop_oneof![
        Just(AckReq::None),
        Just(AckReq::Full),
        Just(AckReq::Full),
        Just(AckReq::Ct),
        Just(AckReq::Oc)
    ]
}

fn movement() -> impl Strategy<Value = Movement> {
    // Wider types may be cut in the middle of an element, of which the reference says nothing.
    let integers = proptest::sample::select(vec![Datatype::Int8, Datatype::Uint8]);
    let kinds = proptest::sample::select(AtomicKind::ALL.to_vec());
    let simple = proptest::sample::select(AtomicKind::ALL[..10].to_vec());
    prop_oneof![
        6 => ack().prop_map(Movement::Put),
        3 => Just(Movement::Get),
        2 => (simple, integers.clone(), ack()).prop_map(|(kind, of, ack)| Movement::Atomic(kind, of, ack)),
        2 => (kinds, integers, any::<u64>()).prop_map(|(kind, of, operand)| Movement::Fetch(kind, of, operand)),
    ]
}
