//! Atomics: every operation on every type, as one message and as an announced one, with and without what was
//! there before; and against the processor's own.

use doorbell_fabric::atomics::{Arithmetic, Element, apply, is_defined};
use doorbell_fabric::memory::ConstLoan;
use doorbell_fabric::message::Message;
use doorbell_pml::{AtomicArgs, OperationError, Payload, PmlError, Rank, RemotePieces, RequestId, Target};
use doorbell_testing::Random;

use crate::rma::{open, piece, refused};
use crate::world::{Memory, World, bytes, empty, sim};

fn loan(bytes: Vec<u8>) -> Payload {
    Payload::Loan(ConstLoan::of_static(bytes.leak()))
}

pub(crate) fn args(
    to: u32,
    at: impl Into<RemotePieces>,
    arithmetic: Arithmetic,
    element: Element,
) -> AtomicArgs {
    AtomicArgs {
        to: Rank(to),
        context: 1,
        at: at.into(),
        arithmetic,
        element,
        operands: loan(Vec::new()),
        compare: loan(Vec::new()),
        fetch: None,
        buffered: false,
        notify: false,
    }
}

/// Adds to a word, and fetches it into a room.
pub(crate) fn fetch_add<M: Message>(
    world: &mut World<M>,
    from: usize,
    to: u32,
    address: u64,
    by: u64,
    room: &Memory,
) -> RequestId {
    let by = ConstLoan::of_static(by.to_le_bytes().to_vec().leak());
    let (at, computes) = (piece(1, address, 8), (Arithmetic::Sum, Element::Uint64));
    let pml = &mut world.pmls[from];
    pml.atomic_loan(Rank(to), 1, at, computes, by, Some(room.room()), false)
        .unwrap()
}

/// Bytes of elements that are numbers, small and large, and now and then equal to others.
fn elements(dice: &mut Random, element: Element, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let small = dice.below(4);
        match element {
            Element::Float => bytes.extend((small as f32 - 1.5).to_le_bytes()),
            Element::FloatComplex => {
                bytes.extend((small as f32).to_le_bytes());
                bytes.extend((1.0f32 - small as f32).to_le_bytes());
            }
            Element::Double => bytes.extend((small as f64 - 0.25).to_le_bytes()),
            Element::DoubleComplex => {
                bytes.extend((small as f64).to_le_bytes());
                bytes.extend((2.0 - small as f64).to_le_bytes());
            }
            Element::LongDouble | Element::LongDoubleComplex => {
                // 1, 1.25, 1.5 or 1.75, of the x87.
                for _ in 0..element.size() / 16 {
                    let mut number = [0; 16];
                    (number[7], number[8], number[9]) = (0x80 | (small as u8) << 5, 0xff, 0x3f);
                    bytes.extend(number);
                }
            }
            _ => {
                let wide = if small == 0 { 0 } else { dice.next_u64() };
                let number = i128::from(wide as i64) * [1, 1 << 40][dice.below(2) as usize];
                bytes.extend(&number.to_le_bytes()[..element.size()]);
            }
        }
    }
    bytes
}

/// Does one operation, and compares everything with the table.
fn one<M: Message>(
    world: &mut World<M>,
    dice: &mut Random,
    to: u32,
    what: (Arithmetic, Element),
    count: usize,
) {
    let (arithmetic, element) = what;
    let size = element.size();
    let total = size * count;
    let (before, with, compare) = (
        elements(dice, element, count),
        elements(dice, element, count),
        elements(dice, element, count),
    );
    let window = empty(total + 64);
    let at = 16 * dice.below(3) as usize;
    window.write(at, &before);
    let rank = to as usize;
    let _ = world.pmls[rank].close_window(1);
    open(world, rank, 1, &window);
    let mut expected = before.clone();
    for element_at in (0..total).step_by(size) {
        let range = element_at..element_at + size;
        let (mut this, other) = (expected[range.clone()].to_vec(), &with[range.clone()]);
        apply(arithmetic, element, &mut this, other, &compare[range.clone()]);
        expected[range].copy_from_slice(&this);
    }
    let fetches = arithmetic == Arithmetic::Read || dice.below(2) == 0;
    let room = empty(total);
    let mut args = args(to, piece(1, at as u64, total), arithmetic, element);
    if arithmetic != Arithmetic::Read {
        args.operands = loan(with);
    }
    if arithmetic.has_operand() {
        args.compare = loan(compare);
    }
    args.fetch = fetches.then(|| Target::Loan(room.room()));
    let plain = !arithmetic.has_operand() && arithmetic != Arithmetic::Read && dice.below(2) == 0;
    let id = match (plain, &args.operands) {
        (true, Payload::Loan(with)) => {
            let fetch = fetches.then(|| room.room());
            let at = piece(1, at as u64, total);
            world.pmls[0].atomic_loan(Rank(to), 1, at, what, *with, fetch, false)
        }
        _ => world.pmls[0].atomic(args),
    };
    world.wait(0, id.unwrap()).unwrap();
    let mut after = vec![0; total];
    window.read(at, &mut after);
    assert_eq!(after, expected, "{what:?} × {count}, to {to}");
    assert!(!fetches || bytes(&room) == before, "{what:?} × {count}");
}

fn all(configure: impl Fn(&mut doorbell_pml::PmlConfig), seed: u64) {
    let mut world = World::with_planes(2, 1, seed, sim(true, true, true), configure);
    let mut dice = Random::new(seed);
    for arithmetic in Arithmetic::ALL {
        for element in Element::ALL {
            for to in [1, 0] {
                for count in [1, 2, 3, 4096 / element.size()] {
                    if is_defined(arithmetic, element) {
                        one(&mut world, &mut dice, to, (arithmetic, element), count);
                    } else {
                        let refused =
                            world.pmls[0].atomic(args(to, piece(1, 0, element.size()), arithmetic, element));
                        assert!(matches!(refused, Err(PmlError::BadOperation { .. })));
                    }
                }
            }
        }
    }
    world.passes(100);
    for pml in &world.pmls {
        assert_eq!(
            (pml.live_requests(), pml.in_use().bytes),
            (0, 0),
            "{:?}",
            pml.live_lines()
        );
        assert_eq!(pml.counters().drops.total(), 0);
    }
}

#[test]
fn every_operation_on_every_type_is_as_in_the_table() {
    all(|_| (), 1);
}

#[test]
fn those_that_do_not_fit_one_message_are_too() {
    all(|pml| pml.eager_limit = Some(200), 2);
    all(
        |pml| {
            pml.eager_limit = Some(200);
            pml.checksum = true;
        },
        3,
    );
}

#[test]
fn elements_in_several_pieces_are_one_operation() {
    let mut world = World::new(2, sim(true, true, true), |_| ());
    let window = empty(64);
    window.write(0, &[1; 64]);
    open(&mut world, 1, 1, &window);
    let pieces = RemotePieces::new(&[piece(1, 32, 8), piece(1, 0, 8), piece(1, 16, 4)]).unwrap();
    let mut sum = args(1, pieces, Arithmetic::Sum, Element::Uint32);
    sum.operands = loan((0..5u32).flat_map(u32::to_le_bytes).collect());
    let room = empty(20);
    sum.fetch = Some(Target::Parts(
        vec![room.room().part(0, 3), room.room().part(3, 17)].into(),
    ));
    let id = world.pmls[0].atomic(sum).unwrap();
    world.wait(0, id).unwrap();
    let word = |at: usize| bytes(&window)[at];
    assert_eq!([word(32), word(36), word(0), word(4), word(16)], [1, 2, 3, 4, 5]);
    assert_eq!(bytes(&room), [1; 20]);
    let halves = RemotePieces::new(&[piece(1, 0, 2), piece(1, 8, 2)]).unwrap();
    let mut refused = args(1, halves, Arithmetic::Sum, Element::Uint32);
    refused.operands = loan(vec![0; 4]);
    assert!(matches!(
        world.pmls[0].atomic(refused),
        Err(PmlError::BadOperation { .. })
    ));
    let mut long = args(1, piece(1, 0, 4104), Arithmetic::Sum, Element::Uint64);
    long.operands = loan(vec![0; 4104]);
    assert!(
        matches!(world.pmls[0].atomic(long), Err(PmlError::BadOperation { .. })),
        "more than 4,096 bytes"
    );
    let id = fetch_add(&mut world, 0, 1, 60, 1, &empty(8));
    assert_eq!(refused_of(&mut world, id), OperationError::Range);
}

fn refused_of(world: &mut World, id: RequestId) -> OperationError {
    refused(world.wait(0, id))
}

#[test]
fn none_is_lost_beside_the_atomic_instructions_of_the_target() {
    let mut world = World::new(2, sim(true, true, true), |_| ());
    let window = empty(64);
    open(&mut world, 1, 1, &window);
    let own = window.room();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..100_000 {
                own.update(8, 8, |old| Some(old + 1)).unwrap();
            }
        });
        let room = empty(8);
        for _ in 0..3000 {
            let id = fetch_add(&mut world, 0, 1, 8, 1 << 32, &room);
            world.wait(0, id).unwrap();
        }
    });
    assert_eq!(window.room().update(8, 8, |_| None), Some(100_000 + (3000 << 32)));
}

#[test]
fn operands_that_are_taken_at_once_may_change_behind_the_call() {
    let mut config = sim(true, true, true);
    config.queue_depth = 2;
    let mut world = World::new(2, config, |_| ());
    let window = empty(64);
    open(&mut world, 1, 1, &window);
    let [operand, compare] = [(); 2].map(|()| empty(8));
    let mut ids = Vec::new();
    for number in 0..64u64 {
        operand.write(0, &(number + 1).to_le_bytes());
        compare.write(0, &number.to_le_bytes());
        let mut sum = args(1, piece(1, 8, 8), Arithmetic::Sum, Element::Uint64);
        (sum.operands, sum.buffered) = (Payload::Loan(operand.loan()), true);
        ids.push(world.pmls[0].atomic(sum).unwrap());
        let mut swap = args(1, piece(1, 0, 8), Arithmetic::Cswap, Element::Uint64);
        swap.operands = Payload::Loan(operand.loan());
        swap.compare = Payload::Loan(compare.loan());
        swap.buffered = true;
        ids.push(world.pmls[0].atomic(swap).unwrap());
    }
    operand.write(0, &[0xee; 8]);
    compare.write(0, &[0xee; 8]);
    for id in ids {
        world.wait(0, id).unwrap();
    }
    let word = |at: usize| u64::from_le_bytes(bytes(&window)[at..at + 8].try_into().unwrap());
    assert_eq!((word(0), word(8)), (64, 64 * 65 / 2));
}

#[test]
fn a_small_window_takes_less() {
    let mut world = World::new(2, sim(true, true, true), |pml| pml.window = 1 << 10);
    assert_eq!(world.pmls[0].atomic_most(), 128);
    open(&mut world, 1, 1, &empty(256));
    for (length, is_taken) in [(128, true), (136, false)] {
        let mut sum = args(1, piece(1, 0, length), Arithmetic::Sum, Element::Uint64);
        sum.operands = loan(vec![1; length]);
        let done = world.pmls[0].atomic(sum);
        assert_eq!(done.is_ok(), is_taken, "{length}");
        if let Ok(id) = done {
            world.wait(0, id).unwrap();
        }
    }
}
