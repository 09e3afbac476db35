//! One-sided operations over the model: each rule by its name.

use std::time::{Duration, Instant};

use doorbell_fabric::event::EventKind;
use doorbell_fabric::memory::{ConstLoan, MutLoan, Region};
use doorbell_fabric::message::{
    Access, AtomicOp, Body, Exposure, FenceScope, Landing, Message, OpError, OpId, Refused, Remote, RemoteKey,
};
use doorbell_fabric::rail::Rail;
use doorbell_sim::conformance::Pair;

use super::{connect, connected, device_of, pair_over, rail_over, small};
use crate::rc::WindowFacts;
use crate::rc::core::Sizes;
use crate::rc::onesided;
use crate::rc::rail::RcRail;
use crate::sys::model::{self, Fault, Spec, Windows};
use crate::sys::numbers;

type Two = Pair<RcRail>;

mod contract_without_windows {
    use super::*;
    fn pair() -> doorbell_sim::conformance::Apart<RcRail> {
        pair_over(small(), |spec| spec.windows = Windows::None)
    }
    doorbell_sim::message_conformance!(pair);
}

mod contract_with_windows_whose_range_is_checked {
    use super::*;
    fn pair() -> doorbell_sim::conformance::Apart<RcRail> {
        pair_over(small(), |spec| spec.windows = Windows::Checked)
    }
    doorbell_sim::message_conformance!(pair);
}

mod contract_without_atomics {
    use super::*;
    fn pair() -> doorbell_sim::conformance::Apart<RcRail> {
        pair_over(sized(|sizes| sizes.request = 256), |spec| {
            (spec.atomics, spec.reads) = (numbers::ATOMIC_NONE, 1);
        })
    }
    doorbell_sim::message_conformance!(pair);
}

fn over(change: impl Fn(&mut Spec)) -> Two {
    connect(pair_over(small(), change))
}

/// Sizes of which the one-sided ones are changed.
fn sized(change: impl Fn(&mut onesided::Sizes)) -> Sizes {
    let mut sizes = small();
    change(&mut sizes.one_sided);
    sizes
}

fn expose(pair: &mut Two, region: &Region, access: Access) -> Remote {
    let to_a = pair.to_a;
    let exposed = pair
        .b()
        .expose(Exposure::Region(region.whole()), access, Some(to_a));
    exposed.unwrap()
}

fn filled(length: usize, byte: u8) -> Region {
    let region = Region::new(length).unwrap();
    region.write(0, &vec![byte; length]);
    region
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

fn get(pair: &mut Two, op: u64, from: &Remote, into: &Region) {
    let into = into.slice(0, from.length.get() as usize).unwrap();
    let started = pair.a.get(pair.to_b, OpId(op), from, Landing::Region(into));
    assert_eq!(started, Ok(()));
}

fn put(pair: &mut Two, op: u64, from: &[u8], to: &Remote) {
    assert_eq!(pair.a.put(pair.to_b, OpId(op), Body::Bytes(from), to), Ok(()));
}

fn outcome(pair: &mut Two, op: u64) -> Result<u64, OpError> {
    pair.until("the operation ends", |pair| {
        pair.at_a.ended.iter().any(|(ended, _)| *ended == OpId(op))
    });
    let ends = pair.at_a.ended.iter().filter(|(ended, _)| *ended == OpId(op));
    let ends: Vec<_> = ends.map(|(_, outcome)| *outcome).collect();
    assert_eq!(ends.len(), 1, "an operation ends once: {ends:?}");
    ends[0]
}

fn stats(rail: &RcRail) -> onesided::Stats {
    rail.core.onesided.stats
}

fn is_down(pair: &Two) -> bool {
    pair.events
        .iter()
        .any(|event| matches!(event.kind, EventKind::PeerDown(_)))
}

/// What an operation that is refused leaves behind: nothing of the slots is lost.
pub(super) fn is_whole(rail: &RcRail) -> bool {
    let sizes = rail.core.sizes.one_sided;
    let [short, long] = rail.core.memory.free_slots();
    (short == 0 || short == sizes.short.0) && (long == 0 || long == sizes.long)
}

#[test]
fn the_probe_finds_out_whether_the_range_of_windows_is_checked() {
    for (windows, expected) in [
        (Windows::None, (false, false)),
        (Windows::Unchecked, (true, false)),
        (Windows::Checked, (true, true)),
    ] {
        let pair = over(|spec| spec.windows = windows);
        let abilities = pair.a.core.onesided.abilities;
        assert_eq!(
            (abilities.windows, abilities.checks_range),
            expected,
            "{windows:?}"
        );
        assert_eq!(model::bound_windows(&device_of(&pair.a)), 0);
    }
}

#[test]
fn windows_are_examined_on_the_port_itself_and_nothing_is_left() {
    let whole = |checks_range| WindowFacts {
        checks_range,
        refuses_others: true,
        refuses_ended: true,
    };
    for (windows, expected) in [
        (Windows::None, None),
        (Windows::Unchecked, Some(whole(false))),
        (Windows::Checked, Some(whole(true))),
    ] {
        let (mut rail, _) = rail_over(crate::ports::fake::everything(), small(), |spec| {
            spec.windows = windows
        });
        let before = model::outcome(&device_of(&rail)).1;
        assert_eq!(rail.examine_windows(), expected, "{windows:?}");
        assert_eq!(model::outcome(&device_of(&rail)).1, before, "objects are left");
        assert_eq!(model::bound_windows(&device_of(&rail)), 0);
    }
    // Not beside the operations of peers.
    let mut pair = over(|spec| spec.windows = Windows::Checked);
    assert_eq!(pair.a.examine_windows(), None);
}

#[test]
fn beneath_a_window_without_a_range_are_exactly_the_exposed_bytes() {
    for windows in [Windows::None, Windows::Unchecked, Windows::Checked] {
        let mut pair = over(|spec| spec.windows = windows);
        let (there, here) = (filled(8192, 1), filled(64, 2));
        let to_a = pair.to_a;
        let slice = there.slice(1000, 64).unwrap();
        let remote = pair
            .b()
            .expose(Exposure::Region(slice), Access::ReadWrite, Some(to_a));
        let remote = remote.unwrap();
        get(&mut pair, 1, &remote, &here);
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        for (op, far) in (2..).zip([-1i64, 1, -100, 4000]) {
            let made_up = Remote {
                address: (remote.address.get() as i64 + far).cast_unsigned().into(),
                ..remote
            };
            put(&mut pair, op, &[9; 64], &made_up);
            assert_eq!(outcome(&mut pair, op), Err(OpError::Denied), "{windows:?}, {far}");
        }
        assert!(bytes(&there).iter().all(|byte| *byte == 1), "{windows:?}");
        // And what was exposed is reached still.
        get(&mut pair, 9, &remote, &here);
        assert_eq!(outcome(&mut pair, 9), Ok(0), "{windows:?}");
    }
}

#[test]
fn a_queue_pair_of_its_own_is_made_at_the_first_use_and_not_before() {
    let mut pair = connected();
    let device = device_of(&pair.a);
    let before = model::pairs_of(&device);
    (0..50).for_each(|_| pair.turn());
    assert_eq!(model::pairs_of(&device), before);
    let there = filled(64, 1);
    let remote = expose(&mut pair, &there, Access::Write);
    put(&mut pair, 1, &[2; 64], &remote);
    assert_eq!(outcome(&mut pair, 1), Ok(0));
    assert_eq!(model::pairs_of(&device), before + 1);
    assert_eq!((stats(&pair.a).rounds, stats(pair.b()).rounds), (1, 1));
}

#[test]
fn no_message_that_is_accepted_after_an_exposure_leaves_before_its_window_is_bound() {
    let mut pair = connected();
    let (there, to_a) = (filled(64, 1), pair.to_a);
    let device = device_of(pair.b());
    let seen = pair.at_a.messages.len();
    let remote = expose(&mut pair, &there, Access::Read);
    pair.b().send(to_a, b"key", Body::Empty).unwrap();
    assert!(pair.b().holds_back(Some(to_a)), "nothing is bound yet");
    pair.until("it comes", |pair| {
        let is_bound = model::bound_windows(&device) == 1;
        let came = pair.at_a.messages.len() > seen;
        assert!(!came || is_bound);
        came
    });
    // Over a queue pair that is there, nothing waits.
    let other = expose(&mut pair, &there, Access::Read);
    assert_eq!(model::bound_windows(&device), 2);
    assert_ne!(remote.key, other.key);
    pair.b().send(to_a, b"key", Body::Empty).unwrap();
    assert!(!pair.b().holds_back(Some(to_a)));
}

#[test]
fn a_put_of_any_body_and_length_is_cut_at_what_the_port_carries() {
    for request in [64, 4096, 1 << 30] {
        let sizes = sized(|sizes| (sizes.register, sizes.request) = (2000, request));
        let mut pair = connect(pair_over(sizes, |_| {}));
        let lengths = [1, 63, 64, 65, 300, 2000, 2001, 9000];
        for (op, length) in (1..).zip(lengths) {
            let (there, from) = (filled(length, 1), filled(length, 7));
            let remote = expose(&mut pair, &there, Access::ReadWrite);
            let (whole, content) = (from.whole(), vec![7; length]);
            let loan = ConstLoan::of_static(content.clone().leak());
            let parts = [loan.part(0, length / 2), loan.part(length / 2, length)];
            let bodies = [
                Body::Bytes(&content),
                Body::Loan(loan),
                Body::Parts(&parts),
                Body::Shared(whole.as_shared()),
                Body::Region(&whole),
            ];
            for (kind, body) in (0..).zip(bodies) {
                there.write(0, &vec![1; length]);
                let op = op * 100 + kind;
                assert_eq!(pair.a.put(pair.to_b, OpId(op), body, &remote), Ok(()));
                assert_eq!(outcome(&mut pair, op), Ok(0));
                assert_eq!(bytes(&there), content, "{length} bytes, body {kind}, {request}");
            }
            // And back, into a region and a loan.
            let here = filled(length, 0);
            get(&mut pair, op * 100 + 50, &remote, &here);
            assert_eq!(outcome(&mut pair, op * 100 + 50), Ok(0));
            assert_eq!(bytes(&here), content);
            let lent = MutLoan::of_static(vec![0; length].leak());
            let started = pair
                .a
                .get(pair.to_b, OpId(op * 100 + 51), &remote, Landing::Loan(lent));
            assert_eq!(started, Ok(()));
            assert_eq!(outcome(&mut pair, op * 100 + 51), Ok(0));
            assert_eq!(lent.as_shared().to_vec(), content);
            pair.b().withdraw(RemoteKey(remote.key.get()));
        }
        assert!(is_whole(&pair.a));
    }
}

#[test]
fn at_most_as_many_reads_are_under_way_as_both_ends_can() {
    for reads in [1, 3] {
        let sizes = sized(|sizes| sizes.request = 64);
        let mut pair = connect(pair_over(sizes, |spec| spec.reads = reads));
        let (there, here) = (filled(1024, 1), filled(1024, 2));
        let remote = expose(&mut pair, &there, Access::ReadWrite);
        get(&mut pair, 1, &remote, &here);
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        // The model does not take more than were agreed.
        model::hold_requests(&device_of(&pair.a), true);
        for op in 2..6 {
            get(&mut pair, op, &remote, &here);
        }
        let at = remote.part(0, 8).unwrap();
        let add = pair.a.atomic(pair.to_b, OpId(6), &at, AtomicOp::Add(1));
        assert_eq!(add, Ok(()));
        pair.a.flush();
        model::hold_requests(&device_of(&pair.a), false);
    }
}

#[test]
fn loops_of_compare_and_swap_end_although_others_write() {
    let mut pair = connected();
    let there = Region::new(64).unwrap();
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    let at = remote.part(16, 8).unwrap();
    for op in 0..200u64 {
        let value = 1 << (op % 60);
        let what = match op % 4 {
            0 => AtomicOp::Or(value),
            1 => AtomicOp::And(!value),
            2 => AtomicOp::Xor(value),
            _ => AtomicOp::Swap(value),
        };
        let mut expected = [0; 8];
        there.read(16, &mut expected);
        let old = u64::from_ne_bytes(expected);
        assert_eq!(pair.a.atomic(pair.to_b, OpId(op), &at, what), Ok(()));
        assert_eq!(outcome(&mut pair, op), Ok(old), "{what:?}");
        let new = match what {
            AtomicOp::Or(value) => old | value,
            AtomicOp::And(value) => old & value,
            AtomicOp::Xor(value) => old ^ value,
            _ => value,
        };
        let mut now = [0; 8];
        there.read(16, &mut now);
        assert_eq!(u64::from_ne_bytes(now), new);
    }
    // Many at once, each of which finds what the one before has left.
    there.write(16, &0u64.to_ne_bytes());
    for op in 1000..1100 {
        let what = AtomicOp::Xor(1 << (op % 64));
        assert_eq!(pair.a.atomic(pair.to_b, OpId(op), &at, what), Ok(()));
    }
    (1000..1100).for_each(|op| assert!(outcome(&mut pair, op).is_ok()));
    let mut now = [0; 8];
    there.read(16, &mut now);
    // 1000 % 64 is 40: bits 40 to 63 and 0 to 11 twice and no more, the rest once.
    let mut expected = 0u64;
    (1000..1100u64).for_each(|op| expected ^= 1 << (op % 64));
    assert_eq!(u64::from_ne_bytes(now), expected);
}

#[test]
fn what_cannot_be_is_refused_before_it_is_posted() {
    let mut pair = connected();
    let (there, here) = (filled(64, 1), filled(64, 2));
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    let before = stats(&pair.a);
    let to_b = pair.to_b;
    let short = Landing::Region(here.slice(0, 8).unwrap());
    assert_eq!(pair.a.get(to_b, OpId(1), &remote, short), Err(Refused::BadMemory));
    let wrong = pair.a.put(to_b, OpId(1), Body::Bytes(&[0; 3]), &remote);
    assert_eq!(wrong, Err(Refused::BadMemory));
    for at in [remote.part(4, 8).unwrap(), remote.part(8, 4).unwrap(), remote] {
        let refused = pair.a.atomic(to_b, OpId(1), &at, AtomicOp::Add(1));
        assert_eq!(refused, Err(Refused::BadMemory));
    }
    let unknown = doorbell_fabric::message::PeerIndex(99);
    let refused = pair.a.put(unknown, OpId(1), Body::Bytes(&[0; 64]), &remote);
    assert_eq!(refused, Err(Refused::PeerDown));
    let to_nobody = Exposure::Region(there.whole());
    let refused = pair.b().expose(to_nobody, Access::Read, Some(unknown));
    assert_eq!(refused, Err(Refused::PeerDown));
    let lent = Exposure::Read(ConstLoan::of_static(&[1; 8]));
    let refused = pair.b().expose(lent, Access::Write, None);
    assert_eq!(refused, Err(Refused::BadMemory));
    assert_eq!(stats(&pair.a), before);
}

#[test]
fn a_denied_access_ends_its_queue_pair_alone_and_what_is_behind_it_is_done() {
    for windows in [Windows::None, Windows::Unchecked, Windows::Checked] {
        let mut pair = over(|spec| spec.windows = windows);
        let (there, to_a, to_b) = (filled(256, 1), pair.to_a, pair.to_b);
        let remote = expose(&mut pair, &there, Access::ReadWrite);
        put(&mut pair, 1, &[2; 8], &remote.part(0, 8).unwrap());
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        let seen = (pair.at_a.messages.len(), pair.at_b.messages.len());
        let guessed = Remote {
            key: (remote.key.get() ^ 1).into(),
            ..remote
        };
        put(&mut pair, 2, &[3; 8], &remote.part(8, 8).unwrap());
        put(&mut pair, 3, &[4; 8], &guessed.part(16, 8).unwrap());
        put(&mut pair, 4, &[5; 8], &remote.part(24, 8).unwrap());
        let add = pair
            .a
            .atomic(to_b, OpId(5), &remote.part(32, 8).unwrap(), AtomicOp::Add(1));
        assert_eq!(add, Ok(()));
        let here = filled(256, 9);
        get(&mut pair, 6, &remote, &here);
        pair.a.send(to_b, b"meanwhile", Body::Empty).unwrap();
        pair.b().send(to_a, b"meanwhile", Body::Empty).unwrap();
        assert_eq!(outcome(&mut pair, 2), Ok(0));
        assert_eq!(outcome(&mut pair, 3), Err(OpError::Denied), "{windows:?}");
        assert_eq!(outcome(&mut pair, 4), Ok(0));
        let ones = u64::from_ne_bytes([1; 8]);
        assert_eq!(outcome(&mut pair, 5), Ok(ones), "executed once");
        assert_eq!(outcome(&mut pair, 6), Ok(0));
        pair.until("messages go on", |pair| {
            (pair.at_a.messages.len(), pair.at_b.messages.len()) == (seen.0 + 1, seen.1 + 1)
        });
        let mut expected = vec![1; 256];
        expected[..8].fill(2);
        expected[8..16].fill(3);
        expected[24..32].fill(5);
        expected[32..40].copy_from_slice(&(ones + 1).to_ne_bytes());
        assert_eq!(bytes(&there), expected);
        assert_eq!(bytes(&here), expected);
        assert!(!is_down(&pair));
        assert_eq!((stats(&pair.a).denied, stats(&pair.a).rounds), (1, 2));
        assert!(is_whole(&pair.a));
    }
}

#[test]
fn many_operations_behind_a_refused_one_ask_for_their_keys_in_bounds() {
    let mut pair = connected();
    let there = filled(8, 0);
    let remotes: Vec<Remote> = (0..150)
        .map(|_| expose(&mut pair, &there, Access::ReadWrite))
        .collect();
    put(&mut pair, 5000, &[0; 8], &remotes[0]);
    assert_eq!(outcome(&mut pair, 5000), Ok(0));
    let guessed = Remote {
        key: (remotes[0].key.get() ^ 1 << 30).into(),
        ..remotes[0]
    };
    put(&mut pair, 6000, &[9; 8], &guessed);
    for op in 0..600 {
        let remote = &remotes[op as usize % remotes.len()];
        while pair
            .a
            .atomic(pair.to_b, OpId(op), remote, AtomicOp::Add(1))
            .is_err()
        {
            pair.turn();
        }
    }
    (0..600).for_each(|op| assert!(outcome(&mut pair, op).is_ok(), "{op}"));
    assert_eq!(outcome(&mut pair, 6000), Err(OpError::Denied));
    assert_eq!(bytes(&there), 600u64.to_ne_bytes());
    assert!(!is_down(&pair));
    assert!(is_whole(&pair.a));
}

#[test]
fn a_loop_that_always_comes_late_rests_and_ends_when_it_may() {
    let mut pair = connected();
    let there = filled(64, 0);
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    let at = remote.part(0, 8).unwrap();
    let to_b = pair.to_b;
    assert_eq!(pair.a.atomic(to_b, OpId(0), &at, AtomicOp::Or(0)), Ok(()));
    assert_eq!(outcome(&mut pair, 0), Ok(0));
    let before = stats(&pair.a).requests;
    assert_eq!(pair.a.atomic(to_b, OpId(1), &at, AtomicOp::Swap(7)), Ok(()));
    for turn in 1..=200u64 {
        there.write(0, &turn.to_ne_bytes());
        // No call of `progress`: after some tries it rests.
        pair.a.core.flush();
        pair.a.core.reap_one_sided();
    }
    assert!(pair.a.core.onesided.ended.is_empty());
    let tries = stats(&pair.a).requests - before;
    assert!((10..=20).contains(&tries), "{tries}");
    assert_eq!(outcome(&mut pair, 1), Ok(200));
    assert_eq!(bytes(&there)[..8], 7u64.to_ne_bytes());
}

#[test]
fn loans_are_copied_and_not_exposed_where_registered_pages_vanish_at_fork() {
    let mut pair = connect(pair_over(
        sized(|sizes| (sizes.pins_loans, sizes.register) = (false, 100)),
        |_| {},
    ));
    let there = filled(5000, 1);
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    let lent = MutLoan::of_static(vec![0; 5000].leak());
    let started = pair.a.get(pair.to_b, OpId(1), &remote, Landing::Loan(lent));
    assert_eq!(started, Ok(()));
    assert_eq!(outcome(&mut pair, 1), Ok(0));
    assert_eq!(lent.as_shared().to_vec(), [1; 5000]);
    let loan = ConstLoan::of_static(&[2; 5000]);
    let started = pair.a.put(pair.to_b, OpId(2), Body::Loan(loan), &remote);
    assert_eq!(started, Ok(()));
    assert_eq!(outcome(&mut pair, 2), Ok(0));
    assert_eq!(bytes(&there), [2; 5000]);
    let refused = pair.b().expose(Exposure::Read(loan), Access::Read, None);
    assert_eq!(refused, Err(Refused::Unsupported));
}

#[test]
fn operations_of_the_other_end_survive_a_denied_access_or_end_once() {
    let mut pair = connected();
    let (there, here) = (filled(64, 1), filled(64, 2));
    let to_b = pair.to_b;
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    let exposed = pair
        .a
        .expose(Exposure::Region(here.whole()), Access::ReadWrite, Some(to_b));
    let back = exposed.unwrap();
    let to_a = pair.to_a;
    for round in 0..20u64 {
        let guessed = Remote {
            key: (remote.key.get() ^ 2).into(),
            ..remote
        };
        put(&mut pair, round, &[9; 64], &guessed);
        let of_b = OpId(1000 + round);
        let target = filled(64, 0);
        let started = pair.b().get(to_a, of_b, &back, Landing::Region(target.whole()));
        assert_eq!(started, Ok(()));
        assert_eq!(outcome(&mut pair, round), Err(OpError::Denied));
        pair.until("the other end's ends", |pair| {
            pair.at_b.ended.iter().any(|(op, _)| *op == of_b)
        });
        assert_eq!(pair.at_b.ended.last(), Some(&(of_b, Ok(0))));
        assert_eq!(bytes(&target), [2; 64]);
    }
    assert_eq!(bytes(&there), [1; 64]);
    assert!(!is_down(&pair));
}

#[test]
fn a_late_access_ends_as_withdrawn_and_a_guess_as_denied() {
    for windows in [Windows::None, Windows::Unchecked, Windows::Checked] {
        let mut pair = over(|spec| spec.windows = windows);
        let (there, here) = (filled(64, 1), filled(64, 2));
        let remote = expose(&mut pair, &there, Access::Read);
        let kept = expose(&mut pair, &there, Access::Read);
        get(&mut pair, 1, &remote, &here);
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        here.write(0, &[2; 64]);
        pair.b().withdraw(RemoteKey(remote.key.get()));
        assert_eq!(
            model::bound_windows(&device_of(pair.b())),
            usize::from(windows != Windows::None)
        );
        get(&mut pair, 2, &remote, &here);
        assert_eq!(outcome(&mut pair, 2), Err(OpError::Withdrawn), "{windows:?}");
        for (op, key) in (3..).zip([0, 1, 1 << 32, u64::MAX, remote.key.get() ^ 1 << 30]) {
            let guessed = Remote {
                key: key.into(),
                ..remote
            };
            get(&mut pair, op, &guessed, &here);
            assert_eq!(
                outcome(&mut pair, op),
                Err(OpError::Denied),
                "{windows:?} {key:#x}"
            );
        }
        assert_eq!(bytes(&here), [2; 64]);
        get(&mut pair, 99, &kept, &here);
        assert_eq!(outcome(&mut pair, 99), Ok(0), "what is exposed still is reached");
        assert!(is_whole(&pair.a));
    }
}

#[test]
fn a_window_is_bound_again_under_a_fresh_key_each_time() {
    let mut pair = connected();
    let (there, here) = (filled(64, 1), filled(64, 2));
    let device = device_of(pair.b());
    let mut keys = std::collections::HashSet::new();
    let mut objects = None;
    for op in 0..600 {
        let remote = expose(&mut pair, &there, Access::Read);
        get(&mut pair, op, &remote, &here);
        assert_eq!(outcome(&mut pair, op), Ok(0));
        assert!(keys.insert(remote.key.get()), "a name comes again");
        pair.b().withdraw(RemoteKey(remote.key.get()));
        let now = model::outcome(&device).1;
        assert_eq!(*objects.get_or_insert(now), now, "nothing is left behind");
    }
    assert_eq!(stats(pair.b()).bound, 600);
    assert_eq!(model::bound_windows(&device), 0);
}

#[test]
fn a_withdrawal_that_the_device_does_not_end_is_bounded_and_revokes_all_the_same() {
    let mut pair = connected();
    let (there, here) = (filled(64, 1), filled(64, 2));
    let remote = expose(&mut pair, &there, Access::Read);
    let kept = expose(&mut pair, &there, Access::Read);
    get(&mut pair, 1, &remote, &here);
    assert_eq!(outcome(&mut pair, 1), Ok(0));
    let device = device_of(pair.b());
    model::hold_requests(&device, true);
    let begin = Instant::now();
    pair.b().withdraw(RemoteKey(remote.key.get()));
    assert!(begin.elapsed() < Duration::from_secs(5), "a hang");
    model::hold_requests(&device, false);
    here.write(0, &[2; 64]);
    get(&mut pair, 2, &remote, &here);
    assert_eq!(outcome(&mut pair, 2), Err(OpError::Withdrawn));
    assert_eq!(bytes(&here), [2; 64]);
    get(&mut pair, 3, &kept, &here);
    assert_eq!(outcome(&mut pair, 3), Ok(0));
    assert!(!is_down(&pair));
}

#[test]
fn an_exposure_to_one_peer_is_not_reached_by_another() {
    for windows in [Windows::None, Windows::Unchecked] {
        // A third rail, whose queue pairs are the same device's as those of the first.
        let mut pair = over(|spec| spec.windows = windows);
        let (mut other, life) = rail_over(crate::ports::fake::everything(), small(), |spec| {
            spec.windows = windows
        });
        let (there, here) = (filled(64, 1), filled(64, 2));
        let remote = expose(&mut pair, &there, Access::ReadWrite);
        get(&mut pair, 1, &remote, &here);
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        let (address, life_b) = (pair.b().address(), pair.life_b);
        let to_b = other.open(&address, life_b).unwrap();
        pair.b().open(&other.address(), life).unwrap();
        let into = Landing::Region(here.whole());
        assert_eq!(other.get(to_b, OpId(5), &remote, into), Ok(()));
        let mut seen = doorbell_sim::conformance::Collect::default();
        here.write(0, &[2; 64]);
        for _ in 0..2000 {
            pair.turn();
            other.progress(pair.a.core.now);
            other.poll(64, &mut seen);
        }
        assert_eq!(seen.ended, [(OpId(5), Err(OpError::Denied))], "{windows:?}");
        assert_eq!(bytes(&here), [2; 64]);
        get(&mut pair, 2, &remote, &here);
        assert_eq!(outcome(&mut pair, 2), Ok(0), "its own peer reaches it still");
    }
}

#[test]
fn at_a_break_gets_are_not_done_and_changes_indeterminate_unless_never_posted() {
    let mut pair = connected();
    let (there, here) = (filled(64, 1), filled(64, 2));
    let to_b = pair.to_b;
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    put(&mut pair, 1, &[3; 64], &remote);
    assert_eq!(outcome(&mut pair, 1), Ok(0));
    model::hold_requests(&device_of(&pair.a), true);
    let at = remote.part(0, 8).unwrap();
    get(&mut pair, 2, &remote, &here);
    put(&mut pair, 3, &[4; 64], &remote);
    assert_eq!(pair.a.atomic(to_b, OpId(4), &at, AtomicOp::Add(1)), Ok(()));
    pair.a.flush();
    put(&mut pair, 5, &[5; 64], &remote);
    assert_eq!(pair.a.atomic(to_b, OpId(6), &at, AtomicOp::Or(1)), Ok(()));
    pair.a.abandon(to_b);
    assert_eq!(outcome(&mut pair, 2), Err(OpError::NotDone));
    assert_eq!(outcome(&mut pair, 3), Err(OpError::Indeterminate));
    assert_eq!(outcome(&mut pair, 4), Err(OpError::Indeterminate));
    assert_eq!(outcome(&mut pair, 5), Err(OpError::NotDone));
    assert_eq!(outcome(&mut pair, 6), Err(OpError::NotDone));
    let refused = pair.a.put(to_b, OpId(7), Body::Bytes(&[0; 64]), &remote);
    assert_eq!(refused, Err(Refused::PeerDown));
    assert!(is_whole(&pair.a));
    assert_eq!(pair.at_a.ended.len(), 6);
}

#[test]
fn every_other_error_ends_the_connection_and_every_operation_once() {
    let statuses = [numbers::LOC_PROT_ERR, numbers::MW_BIND_ERR, 1000];
    for status in statuses {
        for after in 0..6 {
            for is_carried in [false, true] {
                let mut pair = connected();
                let there = filled(64, 1);
                let remote = expose(&mut pair, &there, Access::ReadWrite);
                put(&mut pair, 100, &[3; 64], &remote);
                assert_eq!(outcome(&mut pair, 100), Ok(0));
                (0..30).for_each(|_| pair.turn());
                let fault = Fault {
                    after,
                    status,
                    is_carried,
                };
                model::fail_request(&device_of(&pair.a), fault);
                for op in 0..8 {
                    put(&mut pair, op, &[3; 64], &remote);
                }
                pair.until("the end is reported", is_down_of);
                pair.settle();
                let ended: std::collections::BTreeSet<u64> =
                    pair.at_a.ended.iter().map(|(op, _)| op.0).collect();
                assert_eq!((pair.at_a.ended.len(), ended.len()), (9, 9));
                for (op, outcome) in &pair.at_a.ended {
                    let expected = match op.0 {
                        100 => Ok(0),
                        op if op < u64::from(after) => Ok(0),
                        _ => Err(OpError::Indeterminate),
                    };
                    assert_eq!(*outcome, expected, "{op:?} after {after}");
                }
                assert!(is_whole(&pair.a));
            }
        }
    }
}

fn is_down_of(pair: &mut Two) -> bool {
    is_down(pair)
}

#[test]
fn a_queue_pair_that_breaks_without_a_cause_is_made_anew_but_not_for_ever() {
    for status in [numbers::WR_FLUSH_ERR, numbers::RETRY_EXC_ERR] {
        let mut pair = connected();
        let (there, here) = (filled(64, 1), filled(64, 2));
        let remote = expose(&mut pair, &there, Access::ReadWrite);
        get(&mut pair, 1, &remote, &here);
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        (0..30).for_each(|_| pair.turn());
        let fault = |is_carried| Fault {
            after: 0,
            status,
            is_carried,
        };
        let device = device_of(&pair.a);
        model::fail_request(&device, fault(true));
        get(&mut pair, 2, &remote, &here);
        pair.a.flush();
        assert_eq!(outcome(&mut pair, 2), Ok(0), "a get goes again");
        (0..30).for_each(|_| pair.turn());
        model::fail_request(&device, fault(true));
        put(&mut pair, 3, &[3; 64], &remote);
        pair.a.flush();
        assert_eq!(outcome(&mut pair, 3), Err(OpError::Indeterminate));
        assert!(!is_down(&pair));
        // Each time again, and nothing ends well in between.
        get(&mut pair, 4, &remote, &here);
        for _ in 0..1000 {
            if !is_down(&pair) {
                let number = pair.a.core.one_sided_pair(pair.to_b.0);
                model::break_pair(&device, number);
            }
            pair.turn();
        }
        assert!(is_down(&pair));
        assert_eq!(outcome(&mut pair, 4), Err(OpError::NotDone));
        assert!(is_whole(&pair.a));
    }
}

/// The kernel may take long to destroy a queue pair; until then its reads may land.
#[test]
fn a_read_under_way_keeps_its_memory_and_no_look_until_its_queue_pair_is_destroyed() {
    for is_over in [false, true] {
        let mut pair = connected();
        let (there, here) = (filled(64, 1), filled(64, 2));
        let remote = expose(&mut pair, &there, Access::Read);
        get(&mut pair, 1, &remote, &here);
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        let (device, to_b) = (device_of(&pair.a), pair.to_b);
        let number = pair.a.core.one_sided_pair(to_b.0);
        model::hold_requests(&device, true);
        get(&mut pair, 2, &remote, &here);
        pair.a.flush();
        model::hold_requests(&device, false);
        model::destroy_slowly(&device, Duration::from_secs(2));
        let start = Instant::now();
        if is_over {
            pair.a.abandon(to_b);
        } else {
            model::break_pair(&device, number);
        }
        (0..100).for_each(|_| pair.turn());
        assert!(start.elapsed() < Duration::from_secs(1), "it stood still");
        while model::slow_ends(&device) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it is not destroyed");
            pair.turn();
            std::thread::yield_now();
        }
        model::destroy_slowly(&device, Duration::ZERO);
        assert_eq!(pair.at_a.ended.len(), 1, "its memory may still be written");
        let expected = if is_over { Err(OpError::NotDone) } else { Ok(0) };
        assert_eq!(outcome(&mut pair, 2), expected);
        assert!(start.elapsed() > Duration::from_millis(1900), "not before");
        assert!(is_whole(&pair.a));
    }
}

#[test]
fn a_peer_that_waits_for_the_key_of_a_lost_window_is_answered() {
    let mut pair = connected();
    let (there, here) = (filled(64, 1), filled(64, 2));
    let remote = expose(&mut pair, &there, Access::Read);
    get(&mut pair, 1, &remote, &here);
    assert_eq!(outcome(&mut pair, 1), Ok(0));
    let device = device_of(pair.b());
    model::hold_binds(&device, true);
    // Another queue pair, over which the window is to be bound, and is not yet.
    let guessed = Remote {
        key: (remote.key.get() ^ 1 << 30).into(),
        ..remote
    };
    get(&mut pair, 2, &guessed, &here);
    assert_eq!(outcome(&mut pair, 2), Err(OpError::Denied));
    get(&mut pair, 3, &remote, &here);
    (0..30).for_each(|_| pair.turn());
    assert_eq!(pair.at_a.ended.len(), 2, "its key is not known");
    // That one breaks, too, and there are no windows left.
    model::hold_binds(&device, false);
    model::refuse_call(&device, "alloc_mw", 100);
    let to_a = pair.to_a.0;
    let number = pair.b().core.one_sided_pair(to_a);
    model::break_pair(&device, number);
    assert_eq!(outcome(&mut pair, 3), Err(OpError::Withdrawn));
    assert!(!is_down(&pair));
    pair.b().withdraw(RemoteKey(remote.key.get()));
    model::refuse_call(&device, "alloc_mw", 0);
    let remote = expose(&mut pair, &there, Access::Read);
    get(&mut pair, 4, &remote, &here);
    assert_eq!(outcome(&mut pair, 4), Ok(0));
}

#[test]
fn an_event_of_its_queue_pair_makes_another_and_messages_go_on() {
    for event in [
        numbers::EVENT_QP_FATAL,
        numbers::EVENT_QP_REQ_ERR,
        numbers::EVENT_QP_ACCESS_ERR,
        numbers::EVENT_PATH_MIG_ERR,
    ] {
        let mut pair = connected();
        let (there, here) = (filled(64, 1), filled(64, 2));
        let remote = expose(&mut pair, &there, Access::ReadWrite);
        get(&mut pair, 1, &remote, &here);
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        let device = device_of(&pair.a);
        // Something is under way that the device never ends.
        model::hold_requests(&device, true);
        get(&mut pair, 2, &remote, &here);
        pair.a.flush();
        model::hold_requests(&device, false);
        model::raise_about(&device, event, model::About::OneSided);
        (0..60).for_each(|_| pair.turn());
        assert_eq!((stats(&pair.a).rounds, stats(pair.b()).rounds), (2, 2), "{event}");
        assert_eq!(outcome(&mut pair, 2), Ok(0), "a get goes again");
        // Of the queue pair before, which is gone.
        model::raise_about(&device, event, model::About::Former);
        (0..60).for_each(|_| pair.turn());
        assert_eq!((stats(&pair.a).rounds, stats(pair.b()).rounds), (2, 2));
        assert!(!is_down(&pair));
        let (seen, to_b) = (pair.at_b.messages.len(), pair.to_b);
        pair.a.send(to_b, b"on", Body::Empty).unwrap();
        pair.until("messages go on", |pair| pair.at_b.messages.len() > seen);
        assert!(is_whole(&pair.a));
    }
}

#[test]
fn a_peer_that_died_ends_operations_in_time() {
    let mut pair = connected();
    let (there, here) = (filled(64, 1), filled(64, 2));
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    get(&mut pair, 1, &remote, &here);
    assert_eq!(outcome(&mut pair, 1), Ok(0));
    let since = pair.a.core.now;
    pair.crash_b();
    get(&mut pair, 2, &remote, &here);
    put(&mut pair, 3, &[1; 64], &remote);
    assert_eq!(outcome(&mut pair, 2), Err(OpError::NotDone));
    let ended = outcome(&mut pair, 3);
    assert!(
        matches!(ended, Err(OpError::NotDone | OpError::Indeterminate)),
        "{ended:?}"
    );
    assert!(pair.a.core.now <= since + Duration::from_secs(2));
}

#[test]
fn what_was_exposed_to_a_peer_is_withdrawn_with_its_connection() {
    for windows in [Windows::None, Windows::Unchecked, Windows::Checked] {
        let mut pair = over(|spec| spec.windows = windows);
        let (there, here) = (filled(64, 1), filled(64, 2));
        let remote = expose(&mut pair, &there, Access::Read);
        let to_all = pair
            .b()
            .expose(Exposure::Region(there.whole()), Access::Read, None)
            .unwrap();
        get(&mut pair, 1, &remote, &here);
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        pair.b().abandon(to_a);
        assert_eq!(model::bound_windows(&device_of(pair.b())), 0);
        pair.until("the other end knows", is_down_of);
        pair.until("both are up again", |pair| {
            pair.a.revive(to_b);
            pair.turn();
            pair.b();
            pair.a.core.is_up(to_b.0) && pair.b().core.is_up(to_a.0)
        });
        here.write(0, &[2; 64]);
        get(&mut pair, 2, &remote, &here);
        let ended = outcome(&mut pair, 2);
        assert!(
            matches!(ended, Err(OpError::Withdrawn | OpError::Denied)),
            "{ended:?}"
        );
        assert_eq!(bytes(&here), [2; 64]);
        get(&mut pair, 3, &to_all, &here);
        assert_eq!(outcome(&mut pair, 3), Ok(0), "{windows:?}");
    }
}

#[test]
fn a_device_that_goes_leaves_no_window_and_ends_every_operation() {
    for windows in [Windows::None, Windows::Unchecked, Windows::Checked] {
        let mut pair = over(|spec| spec.windows = windows);
        let (there, here) = (filled(5000, 1), filled(5000, 2));
        let remote = expose(&mut pair, &there, Access::ReadWrite);
        let to_b = pair.to_b;
        let mine = Exposure::Region(here.whole());
        let mine = pair.a.expose(mine, Access::Read, Some(to_b)).unwrap();
        let to_all = Exposure::Region(here.whole());
        assert!(pair.a.expose(to_all.clone(), Access::Read, None).is_ok());
        get(&mut pair, 1, &remote, &here);
        assert_eq!(outcome(&mut pair, 1), Ok(0));
        let device = device_of(&pair.a);
        model::hold_requests(&device, true);
        get(&mut pair, 2, &remote, &here);
        put(&mut pair, 3, &[1; 5000], &remote);
        pair.a.flush();
        put(&mut pair, 4, &[1; 5000], &remote);
        model::raise(&device, numbers::EVENT_DEVICE_FATAL);
        (0..100).for_each(|_| pair.turn());
        assert_eq!(model::outcome(&device).1, 0, "objects of the device");
        assert_eq!(outcome(&mut pair, 2), Err(OpError::NotDone));
        assert_eq!(outcome(&mut pair, 3), Err(OpError::Indeterminate));
        let last = outcome(&mut pair, 4);
        assert!(matches!(last, Err(OpError::NotDone | OpError::Indeterminate)));
        pair.a.withdraw(RemoteKey(mine.key.get()));
        assert_eq!(pair.a.expose(to_all, Access::Read, None), Err(Refused::PeerDown));
        let refused = pair.a.put(to_b, OpId(5), Body::Bytes(&[1; 5000]), &remote);
        assert_eq!(refused, Err(Refused::PeerDown));
    }
}

#[test]
fn a_queue_that_fails_is_made_anew_and_operations_go_on() {
    let mut pair = connected();
    let (there, here) = (filled(64, 1), filled(64, 2));
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    get(&mut pair, 1, &remote, &here);
    assert_eq!(outcome(&mut pair, 1), Ok(0));
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    pair.a.core.renew_queues();
    pair.until("both are up again", |pair| {
        pair.a.revive(to_b);
        pair.b().revive(to_a);
        pair.turn();
        pair.a.core.is_up(to_b.0) && pair.b().core.is_up(to_a.0)
    });
    (0..100).for_each(|_| pair.turn());
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    get(&mut pair, 2, &remote, &here);
    assert_eq!(outcome(&mut pair, 2), Ok(0));
}

#[test]
fn refused_memory_is_full_with_its_reason() {
    let mut pair = over(|spec| spec.lockable = 3 << 20);
    let there = Region::new(4 << 20).unwrap();
    let to_a = pair.to_a;
    let exposed = pair
        .b()
        .expose(Exposure::Region(there.whole()), Access::Read, Some(to_a));
    assert_eq!(exposed, Err(Refused::Full));
    let reason = pair.b().core.memory.refusal.clone().unwrap();
    assert!(reason.contains("ibv_reg_mr"), "{reason}");
    // And the limit of the process, before the system call.
    let budget = std::sync::Arc::new(onesided::Budget::limited(1 << 20));
    let domain = pair.b().core.memory.domain.clone().unwrap();
    let mut memory = onesided::Memory::new(&domain, &budget, true);
    let before = model::outcome(&device_of(pair.b())).1;
    assert!(memory.place(&there.whole()).is_err());
    let reason = memory.refusal.clone().unwrap();
    assert!(reason.contains("ulimit -l"), "{reason}");
    assert_eq!(model::outcome(&device_of(pair.b())).1, before);
    let small = Region::new(1 << 20).unwrap();
    assert!(memory.place(&small.whole()).is_ok());
    drop(small);
    memory.regions.sweep();
    assert_eq!(
        model::outcome(&device_of(pair.b())).1,
        before,
        "its last slice is gone"
    );
    assert!(memory.place(&Region::new(1 << 20).unwrap().whole()).is_ok());
}

#[test]
fn a_region_is_registered_once_and_given_back_with_its_last_slice() {
    let mut pair = connected();
    let there = filled(8192, 1);
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    let here = filled(8192, 2);
    for op in 0..10 {
        get(&mut pair, op, &remote, &here);
        assert_eq!(outcome(&mut pair, op), Ok(0));
        let whole = here.whole();
        let started = pair
            .a
            .put(pair.to_b, OpId(100 + op), Body::Region(&whole), &remote);
        assert_eq!(started, Ok(()));
        assert_eq!(outcome(&mut pair, 100 + op), Ok(0));
    }
    assert_eq!(pair.a.core.registrations(), 1);
    let before = model::outcome(&device_of(&pair.a)).1;
    drop(here);
    (0..25).for_each(|_| pair.turn());
    assert_eq!(model::outcome(&device_of(&pair.a)).1, before - 1);
}

#[test]
fn a_rail_with_too_much_to_do_is_full_and_goes_on() {
    let mut pair = connected();
    let there = filled(64, 1);
    let remote = expose(&mut pair, &there, Access::ReadWrite);
    let part = remote.part(0, 8).unwrap();
    let mut started = 0;
    loop {
        match pair.a.put(pair.to_b, OpId(started), Body::Bytes(&[3; 8]), &part) {
            Ok(()) => started += 1,
            Err(refused) => {
                assert_eq!(refused, Refused::Full);
                break;
            }
        }
    }
    assert!(started >= 64, "{started}");
    assert_eq!(pair.a.fence(FenceScope::Rail, OpId(9000)), Ok(()));
    assert_eq!(outcome(&mut pair, 9000), Ok(0));
    assert_eq!(pair.at_a.ended.len() as u64, started + 1);
    assert!(is_whole(&pair.a));
}

#[test]
fn words_that_no_peer_can_have_sent_end_it() {
    use crate::rc::onesided::wire::{Control, Offer};
    let mut pair = connected();
    let to_a = pair.to_a;
    // A round that skips one.
    let lie = Control::Offer(Offer {
        round: 3,
        pair: 5,
        sequence: 1,
        reads: 1,
        is_connected: false,
        was_refused: false,
    });
    assert!(!pair.b().core.control(to_a.0, &lie));
    // Questions about nothing are answered, in bounds.
    assert!(pair.b().core.control(to_a.0, &Control::Lookup(7)));
    let seen = pair.at_a.messages.len();
    pair.b().send(to_a, b"on", Body::Empty).unwrap();
    pair.until("messages go on", |pair| pair.at_a.messages.len() > seen);
    for n in 0..1000 {
        pair.b().core.control(to_a.0, &Control::Lookup(n));
    }
    pair.until("a peer that looks up without end is ended", |pair| {
        pair.b()
            .event()
            .is_some_and(|event| matches!(event.kind, EventKind::PeerDown(_)))
    });
}

#[test]
fn windows_are_bound_no_faster_than_the_completion_queue_has_room() {
    // Each peer's queue pair takes 64 requests, and all of them together fill the queue of 1,024.
    const PEERS: usize = 20;
    const EACH: usize = 64;
    let sizes = Sizes {
        receives: (512, 1024),
        sends: 256,
        peers: PEERS,
        ..small()
    };
    let (mut hub, life) = rail_over(crate::ports::fake::everything(), sizes, |_| {});
    let mut peers = Vec::new();
    let mut others: Vec<RcRail> = (0..PEERS)
        .map(|_| {
            let (mut other, its) = super::rail(small());
            let to_hub = other.open(&hub.address(), life).unwrap();
            peers.push(hub.open(&other.address(), its).unwrap());
            other.send(to_hub, b"hello", Body::Empty).unwrap();
            other
        })
        .collect();
    let mut now = doorbell_fabric::time::Time::ZERO;
    let mut seen = doorbell_sim::conformance::Collect::default();
    let mut turn = |hub: &mut RcRail, others: &mut [RcRail], count: usize| {
        for _ in 0..count {
            now += Duration::from_millis(1);
            hub.progress(now);
            hub.poll(1000, &mut seen);
            for other in others.iter_mut() {
                other.progress(now);
                other.poll(16, &mut seen);
            }
        }
    };
    turn(&mut hub, &mut others, 200);
    let memory = filled(64, 1);
    let expose = |hub: &mut RcRail, peer| {
        let exposed = hub.expose(Exposure::Region(memory.whole()), Access::Read, Some(peer));
        exposed.unwrap();
    };
    peers.iter().for_each(|peer| expose(&mut hub, *peer));
    turn(&mut hub, &mut others, 200);
    let device = device_of(&hub);
    assert_eq!(model::bound_windows(&device), PEERS);
    // Nothing ends, and then everything at once: the model counts the entries.
    model::hold_binds(&device, true);
    for peer in &peers {
        (0..EACH).for_each(|_| expose(&mut hub, *peer));
    }
    model::hold_binds(&device, false);
    model::release_requests(&device);
    turn(&mut hub, &mut others, 200);
    assert_eq!(stats(&hub).bound as usize, PEERS * (EACH + 1));
    assert!(peers.iter().all(|peer| !hub.holds_back(Some(*peer))));
}
