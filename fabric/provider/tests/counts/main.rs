//! What a message costs a client, counted: allocations, system calls, locks, reads of the clock,
//! instructions. Each test runs in a child that is run instruction by instruction, and prints its counts.
//! Counted is optimised code alone: other code takes ten times as many instructions, each of which takes two
//! switches between processes.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "calls of C, one behind the other"
)]

mod bare;
mod couple;
mod steps;
mod ways;

use std::process::Command;

use doorbell_testing::alloc::{self, Counting};

use crate::bare::Members;
use crate::couple::{Couple, Wants};
use crate::steps::{Steps, TraceError, mark};
use crate::ways::Way;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Set in the child, to what it counts.
const CHILD: &str = "DOORBELL_TEST_COUNTS";
/// Messages of a part: few, so that most parts have no pass with what depends on the clock.
const MESSAGES: u64 = 2;
/// The number of parts.
const PARTS: usize = 4;
/// Passes of a domain, of which one runs what depends on the clock.
const KEEP: usize = 64;
/// Instructions that the provider adds to a message, at most. It is to be 250; this is what has been
/// reached, in code that is compiled as in the step `release`, so that it does not become more.
const MORE: u64 = 870;
/// Messages before the counts.
const WARM: usize = 3_000;

/// What a child does: it counts allocations itself, and marks the parts.
fn exchange_between_marks(mut exchange: impl FnMut()) {
    (0..WARM).for_each(|_| exchange());
    let before = alloc::of_thread();
    (0..WARM).for_each(|_| exchange());
    let made = alloc::of_thread() - before;
    assert_eq!(made.allocations, 0, "in {WARM} messages");
    for _ in 0..PARTS {
        mark();
        (0..MESSAGES).for_each(|_| exchange());
        mark();
    }
}

/// Runs `child` in a process that is traced. Returns its parts; `None` in that process, and where there is no
/// tracing.
fn count(test: &str, what: &str, child: impl FnOnce()) -> Option<Vec<Steps>> {
    if let Ok(wanted) = std::env::var(CHILD) {
        if wanted == what {
            child();
        }
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--test-threads=1", "--nocapture"])
        .env(CHILD, what)
        .env("DOORBELL_RAILS", "shm")
        .env_remove("FI_DOORBELL_RAILS")
        .env_remove("DOORBELL_CONFIG");
    match steps::trace(&mut command) {
        Ok(parts) => {
            assert_eq!(parts.len(), PARTS);
            Some(parts)
        }
        Err(error @ TraceError::Refused(_)) => {
            doorbell_testing::skipped(test, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The part without what depends on the clock.
fn steady(parts: &[Steps]) -> &Steps {
    parts
        .iter()
        .min_by_key(|part| (part.system_calls, part.instructions))
        .unwrap()
}

fn door(test: &str, what: &str, wants: &Wants, way: Way, length: usize) -> Option<Vec<Steps>> {
    count(test, what, || {
        let mut couple = Couple::meet(wants, length);
        exchange_between_marks(|| couple.exchange(way));
        couple.close();
    })
}

/// A message takes no system call, no lock and no clock, and allocates nothing. An atomic has one locked
/// instruction for each element that it changes, at its target: that is the atomic step.
fn check(test: &str, wants: &Wants, way: Way, length: usize) {
    let Some(parts) = door(test, "door", wants, way, length) else {
        return;
    };
    let steady = steady(&parts);
    println!("{test}: {MESSAGES} messages: {steady:?}");
    // Each of the two domains makes at most three passes for a message.
    let with_calls = parts.iter().filter(|part| part.system_calls > 0).count();
    let most = 2 * (PARTS * MESSAGES as usize * 3).div_ceil(KEEP);
    assert!(
        with_calls <= most,
        "{with_calls} of {PARTS} parts with system calls: {parts:#?}"
    );
    assert_eq!(
        (steady.system_calls, steady.clock_reads, steady.locked),
        (0, 0, MESSAGES * way.locked(length)),
        "system calls, reads of the clock, locks of {MESSAGES} messages"
    );
}

macro_rules! counts {
    ($($name:ident: $wants:expr, $way:expr, $length:expr;)*) => {$(
        #[test]
        #[cfg_attr(debug_assertions, ignore = "counted in optimised code: `cargo xtask test --only release`")]
        fn $name() {
            check(stringify!($name), &$wants, $way, $length);
        }
    )*};
}

counts! {
    tagged_from_any_8: Wants::default(), Way::Tagged, 8;
    tagged_from_any_4096: Wants::default(), Way::Tagged, 4096;
    tagged_from_one_8: Wants { directed: true, ..Wants::default() }, Way::Tagged, 8;
    tagged_exact_8: Wants { directed: true, exact: true, ..Wants::default() }, Way::Tagged, 8;
    untagged_8: Wants::default(), Way::Untagged, 8;
    untagged_4096: Wants::default(), Way::Untagged, 4096;
    injected_8: Wants::default(), Way::Injected, 8;
    injected_4096: Wants::default(), Way::Injected, 4096;
    with_data_8: Wants::default(), Way::WithData, 8;
    unexpected_8: Wants::default(), Way::Unexpected, 8;
    unexpected_4096: Wants::default(), Way::Unexpected, 4096;
    selective_8: Wants { selective: true, ..Wants::default() }, Way::Injected, 8;
    counted_8: Wants { counters: true, ..Wants::default() }, Way::Tagged, 8;
    written_8: Wants::default(), Way::Written, 8;
    written_4096: Wants::default(), Way::Written, 4096;
    written_with_data_8: Wants::default(), Way::WrittenWithData, 8;
    inject_written_8: Wants::default(), Way::InjectWritten, 8;
    read_8: Wants::default(), Way::Read, 8;
    read_4096: Wants::default(), Way::Read, 4096;
    atomic_8: Wants::default(), Way::Atomic, 8;
    atomic_4096: Wants::default(), Way::Atomic, 4096;
    fetch_atomic_8: Wants::default(), Way::FetchAtomic, 8;
    fetch_atomic_4096: Wants::default(), Way::FetchAtomic, 4096;
    atomic_read_8: Wants::default(), Way::AtomicRead, 8;
    compare_atomic_8: Wants::default(), Way::CompareAtomic, 8;
    compare_atomic_2048: Wants::default(), Way::CompareAtomic, 2048;
    inject_atomic_8: Wants::default(), Way::InjectAtomic, 8;
    with_senders_8: Wants { sources: true, ..Wants::default() }, Way::Tagged, 8;
}

/// A pass finds a row of messages, and each read of a queue takes one of them without another pass.
#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "counted in optimised code: `cargo xtask test --only release`"
)]
fn messages_in_a_row_share_a_pass() {
    const ROW: usize = 16;
    let test = "messages_in_a_row_share_a_pass";
    let row = count(test, "row", || {
        let mut couple = Couple::meet(&Wants::default(), 8);
        exchange_between_marks(|| couple.exchange_row(Way::Tagged, ROW));
        couple.close();
    });
    let Some((single, row)) = door(test, "door", &Wants::default(), Way::Tagged, 8).zip(row) else {
        return;
    };
    let single = steady(&single).instructions / MESSAGES;
    let row = steady(&row).instructions / (MESSAGES * ROW as u64);
    println!("instructions for a message of 8 bytes: {single} alone, {row} in a row of {ROW}");
    // What a pass takes that finds nothing.
    assert!(row + 150 < single, "{row} instructions in a row, {single} alone");
}

/// What the provider adds to a message of the members below it: a send, a receive, and two reads of queues.
#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "counted in optimised code: `cargo xtask test --only release`"
)]
fn the_door_adds_little() {
    let test = "the_door_adds_little";
    let bare = count(test, "bare", || {
        let mut members = Members::meet(8);
        exchange_between_marks(|| members.exchange());
        members.close();
    });
    let Some((door, bare)) = door(test, "door", &Wants::default(), Way::Tagged, 8).zip(bare) else {
        return;
    };
    let [door, bare] = [door, bare].map(|parts| steady(&parts).instructions / MESSAGES);
    println!("instructions for a message of 8 bytes: {door} through the provider, {bare} without it");
    assert!(door > bare, "the same work, and the calls of libfabric");
    let more = door - bare;
    assert!(more <= MORE, "{more} instructions more, and not {MORE}");
}
