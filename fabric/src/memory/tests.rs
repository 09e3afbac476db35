//! Tests of bytes: every copy against a plain one, at every edge, and messages in two pieces.

use proptest::prelude::*;

use super::*;
use crate::message::{AtomicOp, Inbound};

/// A loan of a slice, for as long as the test holds the slice.
fn lend(bytes: &mut [u8]) -> MutLoan {
    // SAFETY: the tests keep the slice and do not touch it while they use the loan.
    unsafe { MutLoan::new(bytes.as_mut_ptr(), bytes.len()) }
}

#[test]
fn reads_of_every_size_end_at_the_end() {
    fn check<const N: usize>(bytes: &[u8]) {
        let shared = SharedBytes::of(bytes);
        for at in 0..=bytes.len() + 1 {
            let expected: Option<[u8; N]> = bytes.get(at..).and_then(|rest| rest.first_chunk().copied());
            assert_eq!(shared.read::<N>(at), expected, "{N} bytes at {at}");
        }
        assert_eq!(
            shared.read::<N>(usize::MAX),
            None.or((N == 0 && bytes.is_empty()).then_some([0; N]))
        );
    }
    let bytes: Vec<u8> = (1..=60).collect();
    check::<1>(&bytes);
    check::<2>(&bytes);
    check::<3>(&bytes);
    check::<4>(&bytes);
    check::<7>(&bytes);
    check::<8>(&bytes);
    check::<12>(&bytes);
    check::<15>(&bytes);
    check::<16>(&bytes);
    check::<24>(&bytes);
    check::<48>(&bytes);
    check::<60>(&bytes);
    check::<61>(&bytes);
    assert_eq!(SharedBytes::EMPTY.read::<0>(0), Some([]));
    assert_eq!(SharedBytes::EMPTY.read::<1>(0), None);
}

#[test]
fn copies_of_every_length_write_their_bytes_and_no_others() {
    let source: Vec<u8> = (0..200).map(|at| at as u8 ^ 0x5a).collect();
    for length in 0..=130 {
        for from in [0, 1, 7] {
            let mut room = [0xee; 150];
            let shared = SharedBytes::of(&source).skip(from).take(length);
            assert_eq!(lend(&mut room).write_shared(5, shared), length);
            assert_eq!(room[..5], [0xee; 5]);
            assert_eq!(room[5..5 + length], source[from..from + length]);
            assert!(room[5 + length..].iter().all(|byte| *byte == 0xee), "{length}");
        }
    }
}

#[test]
fn overlapping_copies_are_as_if_through_a_third_place() {
    for length in 0..=40 {
        for (from, to) in [(0, 0), (0, 1), (1, 0), (0, 3), (5, 0), (0, 8), (9, 1), (0, 15)] {
            let mut bytes: Vec<u8> = (0..64).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + length, to);
            let loan = lend(&mut bytes);
            let source = loan.as_const().part(from, length);
            assert_eq!(loan.write_shared(to, source.as_shared()), length);
            assert_eq!(bytes, expected, "{length} from {from} to {to}");
        }
    }
}

#[test]
fn a_loan_of_nothing_takes_and_gives_nothing() {
    assert_eq!(MutLoan::EMPTY.write(0, b"abc"), 0);
    assert_eq!(ConstLoan::EMPTY.copy_to(0, &mut [0; 4]), 0);
    assert!(MutLoan::EMPTY.is_empty() && ConstLoan::EMPTY.is_empty() && SharedBytes::EMPTY.is_empty());
    assert!(SharedBytes::EMPTY.to_vec().is_empty());
}

#[test]
fn a_ring_view_becomes_shared_bytes() {
    let bytes = *b"from a ring's slot";
    let shared = SharedBytes::from(SharedSlice::from_private(&bytes));
    assert_eq!(shared.to_vec(), bytes);
}

#[test]
fn a_region_slice_stays_inside_its_region_and_keeps_it() {
    let region = Region::new(100).unwrap();
    assert!(region.slice(60, 41).is_none() && region.slice(usize::MAX, 2).is_none());
    let slice = region.slice(60, 40).unwrap();
    assert!(slice.slice(0, 41).is_none() && slice.slice(usize::MAX, 2).is_none());
    let inner = slice.slice(10, 30).unwrap();
    assert_eq!((inner.offset(), inner.len(), inner.region().len()), (70, 30, 100));
    drop((region, slice));
    assert_eq!(inner.write(28, b"abc"), 2, "cut at the end of the slice");
    assert_eq!(
        inner.region().write(99, b"abc"),
        1,
        "cut at the end of the region"
    );
    let mut bytes = [0; 40];
    assert_eq!(inner.copy_to(27, &mut bytes), 3);
    assert_eq!(&bytes[..4], b"\0aa\0");
    assert_eq!(inner.as_mut_ptr().addr(), inner.address());
    assert_eq!(inner.address() - inner.region().whole().address(), 70);
}

#[test]
fn atomics_of_threads_lose_nothing() {
    let region = Region::new(64).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let slice = region.slice(8, 16).unwrap();
            scope.spawn(move || {
                (0..10_000).for_each(|_| {
                    slice.atomic(8, AtomicOp::Add(1)).unwrap();
                });
            });
        }
    });
    let slice = region.slice(4, 60).unwrap();
    assert_eq!(slice.atomic(12, AtomicOp::Add(0)), Some(20_000));
    for outside in [0, 1, 56, 60, usize::MAX] {
        assert_eq!(slice.atomic(outside, AtomicOp::Add(1)), None, "{outside}");
    }
}

#[test]
fn a_region_of_no_bytes_is_one() {
    let region = Region::new(0).unwrap();
    assert!(region.is_empty() && region.whole().is_empty());
    assert_eq!((region.write(0, b"x"), region.read(0, &mut [0])), (0, 0));
    assert!(region.slice(0, 0).is_some() && region.slice(0, 1).is_none());
}

proptest! {
    /// `skip`, `take` and `part` against slices, whatever the numbers.
    #[test]
    fn parts_are_as_of_slices(length in 0usize..80, at: usize, near in 0usize..100, n: usize, use_near: bool) {
        let bytes: Vec<u8> = (0..length as u8).collect();
        let at = if use_near { near } else { at };
        let rest = bytes.get(at..).unwrap_or(&[]);
        let part = &rest[..n.min(rest.len())];
        prop_assert_eq!(SharedBytes::of(&bytes).skip(at).to_vec(), rest);
        prop_assert_eq!(SharedBytes::of(&bytes).skip(at).take(n).to_vec(), part);
        let mut lent = bytes.clone();
        let loan = lend(&mut lent);
        prop_assert_eq!(loan.part(at, n).as_const().as_shared().to_vec(), part);
        prop_assert_eq!(loan.as_const().part(at, n).as_shared().to_vec(), part);
        let mut copied = vec![0; n.min(200)];
        prop_assert_eq!(SharedBytes::of(&bytes).copy_to(at, &mut copied), rest.len().min(copied.len()));
    }

    /// A message in pieces reads like one in one piece.
    #[test]
    fn pieces_are_one_message(
        bytes in prop::collection::vec(any::<u8>(), 0..120),
        cut in 0usize..120,
        at in prop_oneof![0usize..130, any::<usize>()],
        room in 0usize..140,
        room_at in 0usize..140,
    ) {
        let cut = cut.min(bytes.len());
        let (first, rest) = bytes.split_at(cut);
        let split = Inbound::split(SharedBytes::of(first), SharedBytes::of(rest));
        let whole = Inbound::whole(SharedBytes::of(&bytes));
        let thirds: Vec<_> = bytes.chunks(1 + cut / 3).map(SharedBytes::of).collect();
        let pieces = Inbound::in_pieces(&thirds);
        prop_assert_eq!((pieces.len(), pieces.is_empty()), (bytes.len(), bytes.is_empty()));
        prop_assert_eq!(pieces.read::<16>(at), whole.read::<16>(at));
        prop_assert_eq!((split.len(), split.is_empty()), (bytes.len(), bytes.is_empty()));

        let expected = bytes.get(at..).unwrap_or(&[]);
        let chunk = |n: usize| expected.get(..n).map(<[u8]>::to_vec);
        let fits = |n: usize| at.checked_add(n).is_some_and(|end| end <= bytes.len());
        prop_assert_eq!(split.read::<1>(at).map(Vec::from), chunk(1).filter(|_| fits(1)));
        prop_assert_eq!(split.read::<16>(at).map(Vec::from), chunk(16).filter(|_| fits(16)));
        prop_assert_eq!(split.read::<48>(at).map(Vec::from), chunk(48).filter(|_| fits(48)));
        prop_assert_eq!(split.read::<16>(at), whole.read::<16>(at));

        for message in [split, whole, pieces] {
            let mut copied = vec![0xee; room];
            let n = message.copy_to(at, &mut copied);
            prop_assert_eq!(n, expected.len().min(room));
            prop_assert_eq!(&copied[..n], &expected[..n]);
            prop_assert!(copied[n..].iter().all(|byte| *byte == 0xee));

            let mut lent = vec![0xee; room];
            let n = message.copy_to_loan(at, &lend(&mut lent), room_at);
            prop_assert_eq!(n, expected.len().min(room.saturating_sub(room_at)));
            if n > 0 {
                prop_assert_eq!(&lent[room_at..room_at + n], &expected[..n]);
            }
            prop_assert_eq!(lent.iter().filter(|byte| **byte != 0xee).count()
                <= n, true);
        }
    }
}

#[test]
fn short_bytes_travel_as_one_word_in_memory_order() {
    for length in 0..=9usize {
        let bytes: Vec<u8> = (1..=length as u8).collect();
        let word = SharedBytes::of(&bytes).read_short();
        if length > 8 {
            assert_eq!(word, None);
            continue;
        }
        let mut padded = [0; 8];
        padded[..length].copy_from_slice(&bytes);
        assert_eq!(word, Some(u64::from_ne_bytes(padded)), "{length} bytes");
        let mut room = [0xee; 10];
        let loan = lend(&mut room[..length]);
        assert!(loan.write_short(u64::from_ne_bytes(padded), length));
        assert!(!loan.write_short(0, length + 1), "more than fits");
        assert_eq!(
            (&room[..length], &room[length..]),
            (&bytes[..], &vec![0xee; 10 - length][..])
        );
    }
}

#[test]
fn any_bytes_are_words_in_memory_order_with_zeroes_behind_them() {
    for length in 0..=40usize {
        let bytes: Vec<u8> = (1..=length as u8).collect();
        let mut padded = bytes.clone();
        padded.resize(64, 0);
        for at in 0..=50 {
            let eight = padded[at..at + 8].try_into().unwrap();
            let word = SharedBytes::of(&bytes).word(at);
            assert_eq!(word, u64::from_ne_bytes(eight), "{length} bytes, from {at}");
        }
        assert_eq!(SharedBytes::of(&bytes).word(usize::MAX), 0);
    }
}

#[test]
fn sums_are_those_of_the_standard_at_any_length_and_place() {
    let bytes: Vec<u8> = (0..3000u32).map(|at| ((at * at) >> 3) as u8 ^ 0xa5).collect();
    for start in 0..9 {
        for length in (0..70).chain([1400, 1471, 1472, 2900]) {
            let part = &bytes[start..start + length];
            let expected = crate::ether::fold(crate::ether::sum(part));
            let found = SharedBytes::of(part).sum();
            // Zero has two forms.
            assert!(
                found == expected || found % 0xffff == expected % 0xffff,
                "{start} {length}"
            );
        }
    }
}
