//! Tests of registered memory: keys cannot be guessed or used twice, and no range gets past the check.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::memory::{ConstLoan, Region};

fn region(length: usize) -> Exposure {
    Exposure::Region(Region::new(length).unwrap().whole())
}

fn remote(key: u64, address: u64, length: u64) -> Remote {
    Remote {
        key: key.into(),
        address: address.into(),
        length: length.into(),
    }
}

const PEER: PeerIndex = PeerIndex(1);

#[test]
fn keys_are_fresh_and_spread_over_all_bits() {
    let mut keys = SystemKeys::new().unwrap();
    let mut seen = HashSet::new();
    let mut ones = [0u32; 64];
    for _ in 0..4096 {
        let key = keys.next_key().unwrap();
        assert!(seen.insert(key));
        (0..64).for_each(|bit| ones[bit] += (key >> bit & 1) as u32);
    }
    // 2048 expected, deviation 32: ten deviations away means a stuck bit.
    assert!(ones.iter().all(|count| count.abs_diff(2048) < 320), "{ones:?}");
}

#[test]
fn a_withdrawn_key_is_refused_for_ever() {
    let mut table = KeyTable::new(4).unwrap();
    let exposed = table.expose(region(64), Access::ReadWrite, None).unwrap();
    assert!(table.check(PEER, &exposed, Access::Read).is_ok());
    assert!(table.withdraw(RemoteKey(exposed.key.get())).is_some());
    assert_eq!(
        table.check(PEER, &exposed, Access::Read).unwrap_err(),
        Denial::UnknownKey
    );
    assert!(table.withdraw(RemoteKey(exposed.key.get())).is_none());
    let again = table.expose(region(64), Access::ReadWrite, None).unwrap();
    assert_ne!(again.key, exposed.key);
    assert_eq!(
        table.check(PEER, &exposed, Access::Read).unwrap_err(),
        Denial::UnknownKey
    );
}

#[test]
fn a_peers_own_keys_go_with_it() {
    let mut table = KeyTable::new(4).unwrap();
    let hers = table.expose(region(8), Access::Read, Some(PEER)).unwrap();
    let his = table.expose(region(8), Access::Read, Some(PeerIndex(2))).unwrap();
    let all = table.expose(region(8), Access::Read, None).unwrap();
    assert_eq!(
        table.check(PeerIndex(2), &hers, Access::Read).unwrap_err(),
        Denial::OtherPeer
    );
    assert_eq!(table.withdraw_peer(PEER), 1);
    assert_eq!(
        table.check(PEER, &hers, Access::Read).unwrap_err(),
        Denial::UnknownKey
    );
    assert!(table.check(PeerIndex(2), &his, Access::Read).is_ok());
    assert!(table.check(PEER, &all, Access::Read).is_ok());
    assert_eq!((table.len(), table.is_empty()), (2, false));
}

#[test]
fn the_table_is_bounded_and_memory_must_bear_its_access() {
    let mut table = KeyTable::new(1).unwrap();
    let constant = Exposure::Read(ConstLoan::of_static(b"constant"));
    for access in [Access::Write, Access::ReadWrite] {
        assert_eq!(
            table.expose(constant.clone(), access, None),
            Err(Refused::BadMemory)
        );
    }
    assert_eq!(
        table.expose_at(u64::MAX, region(8), Access::Read, None),
        Err(Refused::BadMemory)
    );
    let first = table.expose(constant, Access::Read, None).unwrap();
    assert_eq!(
        table.check(PEER, &first, Access::Write).unwrap_err(),
        Denial::NotAllowed
    );
    assert_eq!(table.expose(region(8), Access::Read, None), Err(Refused::Full));
    table.withdraw(RemoteKey(first.key.get()));
    assert!(table.expose(region(8), Access::Read, None).is_ok());
}

#[test]
fn a_source_that_repeats_itself_gives_no_key_twice() {
    let mut next = 0;
    let mut table = KeyTable::with_keys(10, || {
        next += 1;
        next / 3
    });
    let keys: Vec<u64> = (0..3)
        .map(|_| table.expose(region(8), Access::Read, None).unwrap().key.get())
        .collect();
    assert_eq!(keys, [1, 2, 3]);
    let mut stuck = KeyTable::with_keys(10, || 5);
    assert!(stuck.expose(region(8), Access::Read, None).is_ok());
    assert_eq!(stuck.expose(region(8), Access::Read, None), Err(Refused::Full));
}

#[test]
fn a_permit_reaches_its_bytes_and_no_others() {
    let memory = Region::new(32).unwrap();
    memory.write(0, &(0..32).collect::<Vec<u8>>());
    let mut table = KeyTable::new(1).unwrap();
    let exposed = table
        .expose_at(1000, Exposure::Region(memory.whole()), Access::ReadWrite, None)
        .unwrap();
    let part = exposed.part(8, 8).unwrap();
    let permit = table.check(PEER, &part, Access::ReadWrite).unwrap();
    assert_eq!((permit.len(), permit.is_empty()), (8, false));
    let mut bytes = [0; 32];
    assert_eq!(permit.copy_to(&mut bytes), 8);
    assert_eq!(bytes[..8], [8, 9, 10, 11, 12, 13, 14, 15]);
    let written =
        [(0, 3), (6, 2), (8, 0), (usize::MAX, 0)].map(|(at, _)| permit.write(at, SharedBytes::of(&[99; 3])));
    assert_eq!(written, [3, 2, 0, 0]);
    memory.read(0, &mut bytes);
    assert_eq!(bytes[7..17], [7, 99, 99, 99, 11, 12, 13, 99, 99, 16]);
    let Some(Exposure::Region(slice)) = permit.exposure() else {
        panic!()
    };
    assert_eq!((slice.offset(), slice.len()), (8, 8));
}

#[test]
fn atomics_need_eight_aligned_bytes_of_a_region() {
    let memory = Region::new(32).unwrap();
    let mut table = KeyTable::new(2).unwrap();
    let exposed = table
        .expose(Exposure::Region(memory.whole()), Access::ReadWrite, None)
        .unwrap();
    let run = |offset, length, what| {
        let part = exposed.part(offset, length).unwrap();
        table.check(PEER, &part, Access::ReadWrite).unwrap().atomic(what)
    };
    let steps = [
        (AtomicOp::Add(5), 0),
        (AtomicOp::Add(u64::MAX), 5),
        (AtomicOp::Or(3), 4),
        (AtomicOp::And(6), 7),
        (AtomicOp::Xor(2), 6),
        (AtomicOp::Swap(9), 4),
        (
            AtomicOp::CompareSwap {
                expected: 8,
                desired: 1,
            },
            9,
        ),
        (
            AtomicOp::CompareSwap {
                expected: 9,
                desired: 1,
            },
            9,
        ),
        (AtomicOp::Add(0), 1),
    ];
    for (what, old) in steps {
        assert_eq!(run(16, 8, what), Ok(old), "{what:?}");
    }
    for (offset, length) in [(4, 8), (16, 4), (16, 16), (8, 0)] {
        assert_eq!(run(offset, length, AtomicOp::Add(1)), Err(Denial::Unaligned));
    }
    let constant = Exposure::Read(ConstLoan::of_static(b"8 bytes!"));
    let mut constants = KeyTable::new(1).unwrap();
    let exposed = constants.expose(constant, Access::Read, None).unwrap();
    let permit = constants.check(PEER, &exposed, Access::Read).unwrap();
    assert_eq!(permit.atomic(AtomicOp::Add(1)), Err(Denial::Unaligned));
    assert_eq!(permit.write(0, SharedBytes::of(b"x")), 0);
}

#[test]
fn reasons_are_numbered_and_named_apart() {
    let names: HashSet<_> = Denial::ALL.iter().map(|denial| denial.name()).collect();
    assert_eq!(names.len(), Denial::ALL.len());
    assert!(
        Denial::ALL
            .iter()
            .enumerate()
            .all(|(index, denial)| denial.index() == index)
    );
    assert!(
        Denial::ALL
            .iter()
            .all(|denial| OpError::from(*denial) == OpError::Denied)
    );
}

/// Numbers as attackers choose them: near every edge.
fn hostile() -> impl Strategy<Value = u64> {
    let edges = [
        0,
        1,
        7,
        8,
        63,
        64,
        65,
        4096,
        1 << 32,
        u64::MAX / 2,
        u64::MAX - 64,
        u64::MAX - 1,
        u64::MAX,
    ];
    prop_oneof![prop::sample::select(edges.to_vec()), 0u64..200, any::<u64>()]
}

fn access() -> impl Strategy<Value = Access> {
    prop::sample::select(vec![Access::Read, Access::Write, Access::ReadWrite])
}

#[derive(Clone, Debug)]
enum Step {
    Expose {
        base: u64,
        length: usize,
        access: Access,
        to: Option<u32>,
    },
    Withdraw {
        which: usize,
    },
    WithdrawPeer {
        peer: u32,
    },
    Check {
        which: usize,
        wrong_key: u64,
        peer: u32,
        address: u64,
        near: bool,
        length: u64,
        access: Access,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (hostile(), 0usize..100, access(), prop::option::of(0u32..3))
            .prop_map(|(base, length, access, to)| Step::Expose { base, length, access, to }),
        1 => any::<usize>().prop_map(|which| Step::Withdraw { which }),
        1 => (0u32..3).prop_map(|peer| Step::WithdrawPeer { peer }),
        10 => (any::<usize>(), prop_oneof![4 => Just(0u64), 1 => any::<u64>()], 0u32..3, hostile(), any::<bool>(),
            hostile(), access())
            .prop_map(|(which, wrong_key, peer, address, near, length, access)| {
                Step::Check { which, wrong_key, peer, address, near, length, access }
            }),
    ]
}

/// What is exposed, in numbers that cannot overflow.
struct Model {
    key: u64,
    base: i128,
    length: i128,
    access: Access,
    to: Option<u32>,
    live: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_range_gets_past_the_check(steps in prop::collection::vec(step(), 1..60)) {
        let memory = Region::new(128).unwrap();
        let mut table = KeyTable::new(8).unwrap();
        let mut model: Vec<Model> = Vec::new();
        for step in steps {
            match step {
                Step::Expose { base, length, access, to } => {
                    let slice = Exposure::Region(memory.slice(0, length).unwrap());
                    let result = table.expose_at(base, slice, access, to.map(PeerIndex));
                    let live = model.iter().filter(|one| one.live).count();
                    let expected = if base.checked_add(length as u64).is_none() {
                        Some(Refused::BadMemory)
                    } else {
                        (live == 8).then_some(Refused::Full)
                    };
                    prop_assert_eq!(result.err(), expected);
                    if let Ok(remote) = result {
                        let (base, length) = (i128::from(base), length as i128);
                        prop_assert!(model.iter().all(|one| one.key != remote.key.get()));
                        model.push(Model { key: remote.key.get(), base, length, access, to, live: true });
                    }
                }
                Step::Withdraw { which } => if !model.is_empty() {
                    let at = which % model.len();
                    let one = &mut model[at];
                    prop_assert_eq!(table.withdraw(RemoteKey(one.key)).is_some(), one.live);
                    one.live = false;
                },
                Step::WithdrawPeer { peer } => {
                    let mut gone = 0;
                    for one in model.iter_mut().filter(|one| one.live && one.to == Some(peer)) {
                        one.live = false;
                        gone += 1;
                    }
                    prop_assert_eq!(table.withdraw_peer(PeerIndex(peer)), gone);
                }
                Step::Check { which, wrong_key, peer, address, near, length, access } => if !model.is_empty() {
                    let one = &model[which % model.len()];
                    let address = if near { (one.base as u64).wrapping_add(address) } else { address };
                    let asked = remote(one.key ^ wrong_key, address, length);
                    let offset = i128::from(address) - one.base;
                    let inside = offset >= 0 && offset + i128::from(length) <= one.length;
                    let known = wrong_key == 0 && one.live;
                    let allowed = one.access == Access::ReadWrite || one.access == access;
                    let expected = if !known {
                        Some(Denial::UnknownKey)
                    } else if one.to.is_some_and(|to| to != peer) {
                        Some(Denial::OtherPeer)
                    } else if !allowed {
                        Some(Denial::NotAllowed)
                    } else {
                        (!inside).then_some(Denial::Outside)
                    };
                    let result = table.check(PeerIndex(peer), &asked, access);
                    prop_assert_eq!(result.err(), expected);
                    if let Ok(permit) = result {
                        prop_assert_eq!(permit.bytes().len() as u64, length);
                        prop_assert!(permit.exposure().is_some());
                    }
                },
            }
            prop_assert_eq!(table.len(), model.iter().filter(|one| one.live).count());
        }
    }
}
