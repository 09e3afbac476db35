//! Atomics on a peer's memory: every operation of every call on every type, against a plain computation;
//! beside the processor's own; to oneself; and what cannot be done.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_testing::Random;
use libc::iovec;
use libfabric_sys::*;

use crate::client::{Client, Room, Wait, Wants, bind, counter, pointer, until};
use crate::pair::{run, run_killed};
use crate::rma::{BOTH, KEY, expose, register};

const CONTEXT: usize = 0x78;
/// Bytes of the elements of one call, at most.
const MOST: usize = 4096;

fn wants() -> Wants {
    Wants {
        caps: FI_MSG | FI_RMA | FI_ATOMIC,
        ..Wants::default()
    }
}

/// What the bits of a type mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Signed,
    Unsigned,
    Real,
    Complex,
}

/// A type by its number, and the bytes of one number of it: of each part, where it has two.
type Type = (fi_datatype, Class, usize);

const TYPES: [Type; 16] = [
    (FI_INT8, Class::Signed, 1),
    (FI_UINT8, Class::Unsigned, 1),
    (FI_INT16, Class::Signed, 2),
    (FI_UINT16, Class::Unsigned, 2),
    (FI_INT32, Class::Signed, 4),
    (FI_UINT32, Class::Unsigned, 4),
    (FI_INT64, Class::Signed, 8),
    (FI_UINT64, Class::Unsigned, 8),
    (FI_INT128, Class::Signed, 16),
    (FI_UINT128, Class::Unsigned, 16),
    (FI_FLOAT, Class::Real, 4),
    (FI_DOUBLE, Class::Real, 8),
    (FI_LONG_DOUBLE, Class::Real, 16),
    (FI_FLOAT_COMPLEX, Class::Complex, 4),
    (FI_DOUBLE_COMPLEX, Class::Complex, 8),
    (FI_LONG_DOUBLE_COMPLEX, Class::Complex, 16),
];

/// Types that are not offered.
const NO_TYPES: [fi_datatype; 5] = [FI_FLOAT16, FI_BFLOAT16, FI_FLOAT8_E4M3, FI_FLOAT8_E5M2, FI_VOID];
const SWAPS: std::ops::RangeInclusive<fi_op> = FI_CSWAP..=FI_MSWAP;

/// One element: an integer of up to 128 bits, or two parts, of which a real number has the first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Whole(u128),
    Parts(f64, f64),
}

fn size((_, class, part): Type) -> usize {
    if class == Class::Complex { 2 * part } else { part }
}

/// The bytes of a part of a number, as C on this processor has it.
fn part_bytes(part: usize, number: f64) -> Vec<u8> {
    match part {
        4 => (number as f32).to_le_bytes().to_vec(),
        8 => number.to_le_bytes().to_vec(),
        _ => {
            // Of the x87: 64 bits of mantissa, then 15 of exponent and a sign.
            let bits = number.to_bits();
            let (exponent, fraction) = (bits >> 52 & 0x7ff, bits & ((1 << 52) - 1));
            let (mantissa, exponent) = match number == 0.0 {
                true => (0, 0),
                false => (1 << 63 | fraction << 11, exponent + 16383 - 1023),
            };
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&mantissa.to_le_bytes());
            bytes[8..10].copy_from_slice(&((exponent | bits >> 63 << 15) as u16).to_le_bytes());
            bytes.to_vec()
        }
    }
}

fn bytes_of(this: Type, number: Number) -> Vec<u8> {
    match number {
        Number::Whole(bits) => bits.to_le_bytes()[..this.2].to_vec(),
        Number::Parts(re, im) => {
            let mut bytes = part_bytes(this.2, re);
            if this.1 == Class::Complex {
                bytes.extend(part_bytes(this.2, im));
            }
            bytes
        }
    }
}

/// A number of a type: a small one, so that some are equal, or an integer of many bits.
fn number(dice: &mut Random, this: Type) -> Number {
    let small = dice.below(5) as f64 - 2.0;
    match this.1 {
        Class::Real => Number::Parts(small / 2.0, 0.0),
        Class::Complex => Number::Parts(small / 2.0, dice.below(3) as f64 - 1.0),
        _ => {
            let wide = u128::from(dice.next_u64()) << 64 | u128::from(dice.next_u64());
            let bits = if dice.below(2) == 0 {
                wide
            } else {
                small as i128 as u128
            };
            Number::Whole(bits & (u128::MAX >> (128 - 8 * this.2)))
        }
    }
}

/// Whether there is such an operation.
fn exists(op: fi_op, class: Class) -> bool {
    match op {
        FI_BOR | FI_BAND | FI_BXOR | FI_MSWAP => !matches!(class, Class::Real | Class::Complex),
        FI_MIN | FI_MAX | FI_CSWAP_LE | FI_CSWAP_LT | FI_CSWAP_GE | FI_CSWAP_GT => class != Class::Complex,
        _ => true,
    }
}

/// What there is afterwards, computed plainly.
fn after(op: fi_op, this: Type, old: Number, with: Number, compare: Number) -> Number {
    match (old, with, compare) {
        (Number::Whole(old), Number::Whole(with), Number::Whole(compare)) => {
            // Signed ones are compared with their sign in front.
            let sign = 1_u128 << (8 * this.2 - 1);
            let key = |bits: u128| {
                if this.1 == Class::Signed {
                    bits ^ sign
                } else {
                    bits
                }
            };
            let truth = |truth: bool| u128::from(truth);
            let if_so = |holds: bool| if holds { with } else { old };
            let (compared, is) = (key(compare), key(old));
            let bits = match op {
                FI_MIN => if_so(key(with) < is),
                FI_MAX => if_so(key(with) > is),
                FI_SUM => old.wrapping_add(with),
                FI_PROD => old.wrapping_mul(with),
                FI_LOR => truth(old != 0 || with != 0),
                FI_LAND => truth(old != 0 && with != 0),
                FI_LXOR => truth((old != 0) != (with != 0)),
                FI_BOR => old | with,
                FI_BAND => old & with,
                FI_BXOR => old ^ with,
                FI_ATOMIC_WRITE => with,
                FI_CSWAP => if_so(compared == is),
                FI_CSWAP_NE => if_so(compared != is),
                FI_CSWAP_LE => if_so(compared <= is),
                FI_CSWAP_LT => if_so(compared < is),
                FI_CSWAP_GE => if_so(compared >= is),
                FI_CSWAP_GT => if_so(compared > is),
                FI_MSWAP => with & compare | old & !compare,
                _ => old,
            };
            Number::Whole(bits & (u128::MAX >> (128 - 8 * this.2)))
        }
        (Number::Parts(a, b), Number::Parts(c, d), Number::Parts(e, f)) => {
            let truth = |truth: bool| Number::Parts(if truth { 1.0 } else { 0.0 }, 0.0);
            let if_so = |holds: bool| if holds { with } else { old };
            let (is, other) = (a != 0.0 || b != 0.0, c != 0.0 || d != 0.0);
            match op {
                FI_MIN => if_so(c < a),
                FI_MAX => if_so(c > a),
                FI_SUM => Number::Parts(a + c, b + d),
                FI_PROD => Number::Parts(a * c - b * d, a * d + b * c),
                FI_LOR => truth(is || other),
                FI_LAND => truth(is && other),
                FI_LXOR => truth(is != other),
                FI_ATOMIC_WRITE => with,
                FI_CSWAP => if_so((e, f) == (a, b)),
                FI_CSWAP_NE => if_so((e, f) != (a, b)),
                FI_CSWAP_LE => if_so(e <= a),
                FI_CSWAP_LT => if_so(e < a),
                FI_CSWAP_GE => if_so(e >= a),
                FI_CSWAP_GT => if_so(e > a),
                _ => old,
            }
        }
        other => panic!("{other:?}"),
    }
}

/// Memory in up to four pieces of whole elements, of which one has none.
fn pieces(start: *const c_void, count: usize, size: usize, shares: [usize; 4]) -> [fi_ioc; 4] {
    let (mut at, mut left) = (0, count);
    let mut last = shares.len();
    shares.map(|share| {
        last -= 1;
        let here = if last == 0 {
            left
        } else {
            (count * share / 16).min(left)
        };
        let addr = start.wrapping_byte_add(at * size).cast_mut();
        (at, left) = (at + here, left - here);
        fi_ioc { addr, count: here }
    })
}

/// The peer's memory in pieces of whole elements.
fn far_pieces(addr: u64, count: usize, size: usize, key: u64) -> [fi_rma_ioc; 4] {
    pieces(ptr::null(), count, size, [5, 2, 6, 3]).map(|piece| fi_rma_ioc {
        addr: addr + piece.addr.addr() as u64,
        count: piece.count,
        key,
    })
}

/// What a call is given.
struct Given<'a> {
    ep: *mut fid_ep,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    this: Type,
    op: fi_op,
    with: &'a [u8],
    compare: &'a [u8],
    flags: u64,
}

impl Given<'_> {
    /// Calls one of the three families, by one of its forms. Injected is the fourth of those that return
    /// nothing.
    fn call(&self, family: usize, form: usize, room: &mut Room) -> isize {
        let &Self {
            ep,
            peer,
            addr,
            key,
            op,
            flags,
            ..
        } = self;
        let (kind, size, null) = (self.this.0, size(self.this), ptr::null_mut::<c_void>());
        let (count, context) = (room.len() / size, pointer(CONTEXT));
        let (buf, compare, result) = (
            self.with.as_ptr().cast::<c_void>(),
            self.compare.as_ptr().cast::<c_void>(),
            room.start(),
        );
        let with = pieces(buf, count, size, [1, 7, 0, 8]);
        let compares = pieces(compare, count, size, [3, 3, 3, 3]);
        let mut results = pieces(result, count, size, [0, 0, 9, 1]);
        let far = far_pieces(addr, count, size, key);
        let reads = op == FI_ATOMIC_READ;
        let message = fi_msg_atomic {
            msg_iov: if reads { ptr::null() } else { with.as_ptr() },
            desc: ptr::null_mut(),
            iov_count: if reads { 0 } else { 4 },
            addr: peer,
            rma_iov: far.as_ptr(),
            rma_iov_count: 4,
            datatype: kind,
            op,
            context,
            data: 0,
        };
        let (message, with, compares, results) = (
            &raw const message,
            with.as_ptr(),
            compares.as_ptr(),
            results.as_mut_ptr(),
        );
        let desc = ptr::null_mut();
        let buf = if reads { ptr::null() } else { buf };
        // SAFETY: the endpoint is open, and the memory stays until the operation has ended.
        unsafe {
            match (family, form) {
                (0, 0) => fi_atomic(ep, buf, count, null, peer, addr, key, kind, op, context),
                (0, 1) => fi_atomicv(ep, with, desc, 4, peer, addr, key, kind, op, context),
                (0, 2) => fi_atomicmsg(ep, message, flags),
                (0, _) => fi_inject_atomic(ep, buf, count, peer, addr, key, kind, op),
                (1, 0) => fi_fetch_atomic(
                    ep, buf, count, null, result, null, peer, addr, key, kind, op, context,
                ),
                (1, 1) => fi_fetch_atomicv(
                    ep, with, desc, 4, results, desc, 4, peer, addr, key, kind, op, context,
                ),
                (1, _) => fi_fetch_atomicmsg(ep, message, results, desc, 4, flags),
                (_, 0) => fi_compare_atomic(
                    ep, buf, count, null, compare, null, result, null, peer, addr, key, kind, op, context,
                ),
                (_, 1) => fi_compare_atomicv(
                    ep, with, desc, 4, compares, desc, 4, results, desc, 4, peer, addr, key, kind, op,
                    context,
                ),
                (_, _) => fi_compare_atomicmsg(ep, message, compares, desc, 4, results, desc, 4, flags),
            }
        }
    }
}

/// The flag of the entry of a family.
fn flag(family: usize) -> u64 {
    if family == 0 { FI_WRITE } else { FI_READ }
}

/// Waits until the operation has ended well, and checks its entry.
fn ended(client: &Client, family: usize) {
    let entry = client.next().entry();
    let wanted = (pointer(CONTEXT), FI_ATOMIC | flag(family), 0);
    assert_eq!((entry.op_context, entry.flags, entry.len), wanted);
}

/// The number of the next failure, which is of an operation of this family.
fn failed(client: &Client, family: usize) -> i32 {
    let failure = client.next().failure();
    let wanted = (pointer(CONTEXT), FI_ATOMIC | flag(family));
    assert_eq!((failure.op_context, failure.flags), wanted);
    failure.err
}

/// Writes, or reads, a peer's memory, and waits for it.
fn moved(client: &Client, peer: fi_addr_t, bytes: &mut [u8], writes: bool) {
    let (ep, start, len, null) = (
        client.endpoint.0,
        bytes.as_mut_ptr().cast(),
        bytes.len(),
        ptr::null_mut(),
    );
    // SAFETY: the endpoint is open, and the memory stays until the operation has ended.
    client.retry(|| unsafe {
        match writes {
            true => fi_write(ep, start, len, null, peer, 0, KEY, null),
            false => fi_read(ep, start, len, null, peer, 0, KEY, null),
        }
    });
    client.next().entry();
}

/// Does one operation by every form of a family on `count` elements, and compares everything.
fn one(client: &Client, peer: fi_addr_t, dice: &mut Random, what: (usize, fi_op, Type), count: usize) {
    let (family, op, this) = what;
    let forms = if family == 0 { 4 } else { 3 };
    for form in 0..forms {
        let mut numbers = [(); 3].map(|()| (0..count).map(|_| number(dice, this)).collect::<Vec<_>>());
        // Some are compared with what is there.
        for at in (0..count).step_by(3) {
            numbers[2][at] = numbers[0][at];
        }
        let [old, with, compare] = &numbers;
        let all = |numbers: &[Number]| -> Vec<u8> {
            let bytes = numbers.iter().map(|number| bytes_of(this, *number));
            bytes.collect::<Vec<_>>().concat()
        };
        let (mut before, mut operands, mut compared) = (all(old), all(with), all(compare));
        moved(client, peer, &mut before, true);
        let mut room = Room::new(before.len());
        let injects = form == 2 && dice.below(2) == 0;
        let flags = FI_COMPLETION | if injects { FI_INJECT } else { FI_DELIVERY_COMPLETE };
        let mut answer = -1;
        until("it is refused for ever", || {
            let given = Given {
                ep: client.endpoint.0,
                peer,
                addr: 0,
                key: KEY,
                this,
                op,
                with: &operands,
                compare: &compared,
                flags,
            };
            answer = given.call(family, form, &mut room);
            client.advance();
            (answer != -(FI_EAGAIN as isize)).then_some(())
        });
        assert_eq!(answer, 0, "{what:?} {form} {count}");
        if injects || form == 3 {
            // They were taken.
            operands.fill(0xdd);
            compared.fill(0xdd);
        }
        if form != 3 {
            ended(client, family);
        }
        let numbers = old.iter().zip(with).zip(compare);
        let expected: Vec<_> = numbers
            .map(|((old, with), compare)| after(op, this, *old, *with, *compare))
            .collect();
        let mut now = vec![0; before.len()];
        moved(client, peer, &mut now, false);
        assert_eq!(
            now,
            all(&expected),
            "{what:?} {form} {count}: {old:?} {with:?} {compare:?}"
        );
        if family > 0 {
            assert_eq!(room.bytes(), before, "{what:?} {form} {count}");
        }
    }
}

/// Does everything that there is.
fn compute_all(client: &Client, peer: fi_addr_t, counts: &[usize]) {
    let mut dice = Random::new(7);
    for this in TYPES {
        for op in FI_MIN..=FI_MSWAP {
            let families = match op {
                FI_ATOMIC_READ => 1..2,
                op if SWAPS.contains(&op) => 2..3,
                _ => 0..2,
            };
            for family in families {
                if !exists(op, this.1) {
                    let (bytes, mut room) = ([0; 32], Room::new(size(this)));
                    let given = Given {
                        ep: client.endpoint.0,
                        peer,
                        addr: 0,
                        key: KEY,
                        this,
                        op,
                        with: &bytes,
                        compare: &bytes,
                        flags: 0,
                    };
                    for form in 0..3 {
                        let answer = given.call(family, form, &mut room);
                        assert_eq!(answer, -(FI_EOPNOTSUPP as isize), "{this:?} {op}");
                    }
                    continue;
                }
                for count in counts {
                    one(
                        client,
                        peer,
                        &mut dice,
                        (family, op, this),
                        (*count).min(MOST / size(this)),
                    );
                }
            }
        }
    }
}

#[test]
fn every_operation_on_every_type_by_every_call_is_as_computed_plainly() {
    let test = "atomic::every_operation_on_every_type_by_every_call_is_as_computed_plainly";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &wants());
        let mut room = Room::new(MOST);
        let _registration = expose(&client, &mut room, KEY);
        role.meet(&client);
        if role.is_first() {
            compute_all(&client, client.peer, &[1, 3, MOST]);
        }
        role.meet(&client);
    });
}

#[test]
fn every_operation_is_done_on_ones_own_memory() {
    run(
        "atomic::every_operation_is_done_on_ones_own_memory",
        |_, library| {
            let client = Client::open(library, &wants());
            let mut room = Room::new(MOST);
            let _registration = expose(&client, &mut room, KEY);
            let me = client.insert(&client.name());
            compute_all(&client, me, &[2, 40]);
        },
    );
}

/// The three queries of an endpoint and the one of a domain agree.
#[test]
fn queries_have_what_there_is() {
    run("atomic::queries_have_what_there_is", |_, library| {
        let client = Client::open(library, &wants());
        let (ep, domain) = (client.endpoint.0, client.domain.0);
        let all_types = TYPES.map(|this| this.0).into_iter().chain(NO_TYPES);
        for datatype in all_types.chain([u32::MAX]) {
            for op in (FI_MIN..=FI_DIFF).chain([FI_NOOP, u32::MAX]) {
                let this = TYPES.iter().find(|this| this.0 == datatype);
                let families = match op {
                    FI_ATOMIC_READ => [false, true, false],
                    op if SWAPS.contains(&op) => [false, false, true],
                    op if op < FI_ATOMIC_READ || op == FI_ATOMIC_WRITE => [true, true, false],
                    _ => [false; 3],
                };
                for (family, is_in_it) in families.into_iter().enumerate() {
                    let found = this.filter(|this| is_in_it && exists(op, this.1));
                    let (mut count, mut attr) = (77, fi_atomic_attr { count: 77, size: 77 });
                    let flag = [0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC][family];
                    // SAFETY: the objects are open, and there is a place for each answer.
                    let answers = unsafe {
                        let answer = match family {
                            0 => fi_atomicvalid(ep, datatype, op, &mut count),
                            1 => fi_fetch_atomicvalid(ep, datatype, op, &mut count),
                            _ => fi_compare_atomicvalid(ep, datatype, op, &mut count),
                        };
                        [answer, fi_query_atomic(domain, datatype, op, &mut attr, flag)]
                    };
                    let Some(this) = found else {
                        assert_eq!(answers, [-FI_EOPNOTSUPP; 2], "{datatype} {op} {family}");
                        assert_eq!((count, attr.count), (77, 77));
                        continue;
                    };
                    assert_eq!(answers, [0; 2], "{datatype} {op} {family}");
                    let most = MOST / size(*this);
                    assert_eq!((count, attr.count, attr.size), (most, most, size(*this)));
                }
            }
        }
    });
}

/// Adds to a word and fetches it, and waits for it.
pub(crate) fn add(client: &Client, peer: fi_addr_t, addr: u64, by: u64) -> u64 {
    let (mut room, by) = (Room::new(8), by.to_le_bytes());
    let given = of_word(client, peer, FI_SUM, &by);
    let given = Given { addr, ..given };
    client.retry(|| given.call(1, 0, &mut room));
    ended(client, 1);
    u64::from_le_bytes(room.bytes().try_into().unwrap())
}

/// An operation on a word.
fn of_word<'a>(client: &Client, peer: fi_addr_t, op: fi_op, with: &'a [u8]) -> Given<'a> {
    Given {
        ep: client.endpoint.0,
        peer,
        addr: 0,
        key: KEY,
        this: (FI_UINT64, Class::Unsigned, 8),
        op,
        with,
        compare: with,
        flags: 0,
    }
}

#[test]
fn none_is_lost_beside_the_processors_own() {
    const ADDS: u64 = 5_000;
    run(
        "atomic::none_is_lost_beside_the_processors_own",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &wants());
            let mut room = Room::new(64);
            let start = room.start().cast::<u64>();
            // SAFETY: aligned memory, which atomics alone reach from now on.
            let words = unsafe {
                [
                    AtomicU64::from_ptr(start),
                    AtomicU64::from_ptr(start.wrapping_add(1)),
                ]
            };
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let _registration = expose(&client, &mut room, KEY);
            role.meet(&client);
            let mut seen = Vec::new();
            for _ in 0..ADDS {
                seen.push(add(&client, client.peer, 0, 1));
                add(&client, client.peer, 8, 1 << 32);
                words[0].fetch_add(1 << 32, Ordering::Relaxed);
                words[1].fetch_add(1, Ordering::Relaxed);
            }
            let in_order = seen.windows(2).all(|two| two[1] as u32 == two[0] as u32 + 1);
            assert!(in_order, "each has fetched what the one before has left");
            role.meet(&client);
            for word in words {
                assert_eq!(word.load(Ordering::Relaxed), ADDS << 32 | ADDS);
            }
        },
    );
}

#[test]
fn what_cannot_be_done_fails_here_and_leaves_the_peer_as_it_is() {
    let test = "atomic::what_cannot_be_done_fails_here_and_leaves_the_peer_as_it_is";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &wants());
        let mut rooms = [(); 3].map(|()| Room::new(MOST));
        let mut registrations = Vec::new();
        for (room, (access, key)) in
            rooms
                .iter_mut()
                .zip([(BOTH, KEY), (FI_REMOTE_READ, 1), (FI_REMOTE_WRITE, 2)])
        {
            let whole = room.piece(0, room.len());
            registrations.push(register(&client, &[whole], access, key));
        }
        let hole = iovec {
            iov_base: ptr::null_mut(),
            iov_len: 1 << 20,
        };
        registrations.push(register(&client, &[hole], BOTH, 3));
        role.meet(&client);
        if role.is_first() {
            let (word, mut room) = (0_u64.to_le_bytes(), Room::new(8));
            let end = MOST as u64;
            for (key, addr, base, fetch, read) in [
                (99, 0, FI_ENOKEY, FI_ENOKEY, FI_ENOKEY),
                (1, 0, FI_EACCES, FI_EACCES, 0),
                (2, 0, 0, FI_EACCES, FI_EACCES),
                (3, 64, FI_EFAULT, FI_EFAULT, FI_EFAULT),
                (KEY, end - 7, FI_EINVAL, FI_EINVAL, FI_EINVAL),
                (KEY, u64::MAX - 3, FI_EINVAL, FI_EINVAL, FI_EINVAL),
            ] {
                for (family, op, wanted) in [
                    (0, FI_BOR, base),
                    (1, FI_SUM, fetch),
                    (1, FI_ATOMIC_READ, read),
                    (2, FI_CSWAP, fetch),
                ] {
                    let given = of_word(&client, client.peer, op, &word);
                    let given = Given { key, addr, ..given };
                    for form in 0..3 {
                        client.retry(|| given.call(family, form, &mut room));
                        match wanted {
                            0 => ended(&client, family),
                            _ => assert_eq!(failed(&client, family), wanted, "{key} {addr} {op} {form}"),
                        }
                    }
                }
            }
            // An injected one fails by an entry, too.
            let given = of_word(&client, client.peer, FI_SUM, &word);
            let given = Given { key: 99, ..given };
            client.retry(|| given.call(0, 3, &mut room));
            let failure = client.next().failure();
            assert_eq!((failure.err, failure.op_context), (FI_ENOKEY, ptr::null_mut()));
            refused_at_once(&client);
            role.meet(&client);
        } else {
            role.meet(&client);
            assert!(client.read().is_none());
            assert!(rooms.iter().all(|room| room.bytes() == vec![0xee; MOST]));
        }
    });
}

/// Calls that never begin.
fn refused_at_once(client: &Client) {
    let bytes = vec![0; MOST + 8];
    for (length, errno) in [(0, FI_EINVAL), (MOST + 8, FI_EMSGSIZE)] {
        let (mut room, given) = (Room::new(length), of_word(client, client.peer, FI_SUM, &bytes));
        let cswap = of_word(client, client.peer, FI_CSWAP, &bytes);
        for answer in [
            given.call(0, 0, &mut room),
            given.call(0, 2, &mut room),
            given.call(0, 3, &mut room),
            given.call(1, 0, &mut room),
            cswap.call(2, 1, &mut room),
        ] {
            assert_eq!(answer, -(errno as isize), "{length}");
        }
    }
    let (mut room, word) = (Room::new(8), [0; 8]);
    for (flags, errno) in [
        (FI_COMMIT_COMPLETE, FI_EOPNOTSUPP),
        (FI_REMOTE_CQ_DATA, FI_EOPNOTSUPP),
        (FI_TAGGED, FI_EOPNOTSUPP),
        (1 << 63, FI_EBADFLAGS),
    ] {
        for (family, op) in [(0, FI_SUM), (1, FI_SUM), (2, FI_CSWAP)] {
            let given = of_word(client, client.peer, op, &word);
            let answer = Given { flags, ..given }.call(family, 2, &mut room);
            assert_eq!(answer, -(errno as isize), "{flags:#x}");
        }
    }
    let unknown = of_word(client, 77, FI_SUM, &word);
    assert_eq!(unknown.call(0, 0, &mut room), -(FI_EINVAL as isize));
}

#[test]
fn an_endpoint_has_the_families_of_its_capabilities() {
    for (caps, base, fetch, rma) in [
        (FI_MSG | FI_RMA, false, false, true),
        (FI_MSG | FI_ATOMIC, true, true, false),
        (FI_ATOMIC | FI_WRITE, true, false, false),
        (FI_ATOMIC | FI_READ, false, true, false),
        (FI_ATOMIC | FI_REMOTE_READ | FI_REMOTE_WRITE, false, false, false),
    ] {
        run(
            "atomic::an_endpoint_has_the_families_of_its_capabilities",
            |_, library| {
                let client = Client::open(library, &Wants { caps, ..wants() });
                let mut room = Room::new(8);
                let _registration = expose(&client, &mut room, KEY);
                let (me, word, mut to) = (client.insert(&client.name()), [0; 8], Room::new(8));
                let given = of_word(&client, me, FI_SUM, &word);
                let (ep, start, null) = (client.endpoint.0, word.as_ptr().cast(), ptr::null_mut());
                // SAFETY: the endpoint is open, and the memory stays.
                let written = unsafe { fi_write(ep, start, 8, null, me, 0, KEY, null) };
                for (answer, offered) in [
                    (given.call(0, 0, &mut to), base),
                    (given.call(1, 0, &mut to), fetch),
                    (written, rma),
                ] {
                    let wanted = if offered { 0 } else { -(FI_EOPNOTSUPP as isize) };
                    assert_eq!(answer, wanted, "{caps:#x}");
                    if offered {
                        client.next().entry();
                    }
                }
            },
        );
    }
}

#[test]
fn operations_count_by_their_kind_and_a_fence_waits_for_those_before() {
    let test = "atomic::operations_count_by_their_kind_and_a_fence_waits_for_those_before";
    run(test, |mut role, library| {
        let wants = Wants {
            selective: true,
            depth: 4,
            ..wants()
        };
        let client = Client::meet(&mut role, library, &wants);
        let [reads, writes] = [FI_READ, FI_WRITE].map(|flag| {
            let counter = counter(&client.domain, Wait::on(FI_WAIT_UNSPEC));
            bind(&client.endpoint, counter.0.cast(), flag);
            counter
        });
        let mut room = Room::new(MOST);
        let _registration = expose(&client, &mut room, KEY);
        role.meet(&client);
        if role.is_first() {
            let mut zeros = vec![0; MOST];
            let (ep, null) = (client.endpoint.0, ptr::null_mut());
            // SAFETY: the endpoint is open, and the memory stays, here and below.
            client.retry(|| unsafe {
                fi_write(
                    ep,
                    zeros.as_mut_ptr().cast(),
                    MOST,
                    null,
                    client.peer,
                    0,
                    KEY,
                    null,
                )
            });
            let ones: Vec<u8> = 1_u64.to_le_bytes().repeat(MOST / 8);
            let given = of_word(&client, client.peer, FI_SUM, &ones);
            let mut all = Room::new(MOST);
            // More than may be under way at once: each is refused until there is room.
            for _ in 0..40 {
                client.retry(|| given.call(0, 0, &mut all));
            }
            client.retry(|| given.call(0, 3, &mut all));
            let more = Given {
                flags: FI_MORE,
                ..of_word(&client, client.peer, FI_SUM, &ones)
            };
            client.retry(|| more.call(0, 2, &mut all));
            let fenced = Given {
                flags: FI_FENCE | FI_COMPLETION,
                ..of_word(&client, client.peer, FI_ATOMIC_READ, &ones)
            };
            client.retry(|| fenced.call(1, 2, &mut all));
            ended(&client, 1);
            assert_eq!(all.bytes(), 42_u64.to_le_bytes().repeat(MOST / 8));
            let mut old = Room::new(8);
            let swap = of_word(&client, client.peer, FI_CSWAP, &ones);
            client.retry(|| swap.call(2, 0, &mut old));
            // SAFETY: the counters are open, here and below.
            assert_eq!(unsafe { fi_cntr_wait(reads.0, 2, 60_000) }, 0);
            // SAFETY: as above.
            assert_eq!(unsafe { fi_cntr_wait(writes.0, 43, 60_000) }, 0);
            assert!(client.read().is_none(), "no entry is wanted");
            let unknown = Given {
                key: 9,
                ..of_word(&client, client.peer, FI_SUM, &ones)
            };
            client.retry(|| unknown.call(1, 0, &mut old));
            assert_eq!(failed(&client, 1), FI_ENOKEY);
            // SAFETY: as above.
            let counts = unsafe {
                [
                    fi_cntr_read(reads.0),
                    fi_cntr_readerr(reads.0),
                    fi_cntr_read(writes.0),
                ]
            };
            assert_eq!(counts, [2, 1, 43]);
        }
        role.meet(&client);
        drop(client.endpoint);
    });
}

#[test]
fn operations_on_a_killed_peer_fail() {
    run_killed("atomic::operations_on_a_killed_peer_fail", |mut role, library| {
        let client = Client::meet(&mut role, library, &wants());
        let mut room = Room::new(64);
        let _registration = expose(&client, &mut room, KEY);
        if !role.is_first() {
            role.exchange(&std::process::id().to_le_bytes());
            until("it is killed", || {
                client.read();
                None::<()>
            });
        }
        let pid = u32::from_le_bytes(role.exchange(&[0; 4]).try_into().unwrap());
        add(&client, client.peer, 0, 1);
        // SAFETY: a process of this test.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        let (word, mut old) = ([1; 8], Room::new(8));
        for (family, op) in [(0, FI_SUM), (1, FI_ATOMIC_READ), (2, FI_CSWAP)] {
            let given = of_word(&client, client.peer, op, &word);
            let failure = until("none fails", || {
                // Those that the peer has done before its end do not fail.
                client.retry(|| given.call(family, 0, &mut old));
                match client.next() {
                    crate::client::Found::Failure(failure) => Some(failure),
                    crate::client::Found::Entry(..) => None,
                }
            });
            assert_eq!(failure.err, FI_EHOSTUNREACH);
        }
        drop(role);
    });
}
