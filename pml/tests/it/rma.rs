//! Puts and gets: over every protocol, scattered, to ourselves, in order with messages; what is refused, and
//! windows that are closed in the middle.

use std::num::NonZeroU32;

use doorbell_fabric::memory::{AddressRange, MutLoan};
use doorbell_fabric::message::Message;
use doorbell_pml::{
    Aborted, GetArgs, Notice, OperationError, Payload, PmlError, Protocol, PutArgs, Rank, RemotePiece,
    RemotePieces, RequestId, Strided, Target, WindowAccess, WindowArgs, WindowCounts, WindowMemory,
};
use doorbell_sim::Change;

use crate::rma_atomics::fetch_add;
use crate::world::{Memory, World, bytes, empty, filled, pattern, sim};

pub(crate) const LENGTHS: [usize; 9] = [0, 1, 8, 9, 100, 3000, 5000, 20_000, 300_000];
const PROTOCOLS: [Protocol; 4] = [Protocol::Auto, Protocol::Get, Protocol::Put, Protocol::Fragments];

pub(crate) fn piece(key: u64, address: u64, length: usize) -> RemotePiece {
    RemotePiece {
        key,
        address,
        length: length as u64,
    }
}

pub(crate) fn open<M: Message>(world: &mut World<M>, rank: usize, key: u64, memory: &Memory) {
    open_with(
        world,
        rank,
        key,
        WindowMemory::Loans(vec![memory.room()]),
        WindowAccess::ALL,
    );
}

fn open_with<M: Message>(
    world: &mut World<M>,
    rank: usize,
    key: u64,
    memory: WindowMemory,
    access: WindowAccess,
) {
    let window = WindowArgs {
        key,
        base: 0,
        memory,
        access,
    };
    world.pmls[rank].open_window(window).unwrap();
}

pub(crate) fn put_args(to: u32, at: impl Into<RemotePieces>, payload: Payload) -> PutArgs {
    PutArgs {
        to: Rank(to),
        context: 3,
        at: at.into(),
        payload,
        notice: false,
        data: None,
        buffered: false,
        notify: false,
    }
}

pub(crate) fn get_args(from: u32, at: impl Into<RemotePieces>, target: Target) -> GetArgs {
    GetArgs {
        from: Rank(from),
        context: 3,
        at: at.into(),
        target,
        notify: false,
    }
}

pub(crate) fn put<M: Message>(
    world: &mut World<M>,
    from: usize,
    to: u32,
    at: RemotePiece,
    memory: &Memory,
) -> RequestId {
    world.pmls[from]
        .put_loan(Rank(to), 3, at, memory.loan(), false)
        .unwrap()
}

pub(crate) fn get<M: Message>(
    world: &mut World<M>,
    to: usize,
    from: u32,
    at: RemotePiece,
    memory: &Memory,
) -> RequestId {
    world.pmls[to]
        .get_loan(Rank(from), 3, at, memory.room(), false)
        .unwrap()
}

pub(crate) fn refused(ended: Result<doorbell_pml::Status, PmlError>) -> OperationError {
    match ended {
        Err(PmlError::Operation { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn nothing_is_left<M: Message>(world: &mut World<M>) {
    world.passes(100);
    for (rank, pml) in world.pmls.iter().enumerate() {
        let is = pml.in_use();
        let lines = pml.live_lines();
        assert_eq!(
            (is.requests, is.own_requests, is.words, is.tasks, is.bytes),
            (0, 0, 0, 0, 0),
            "{rank}: {lines:?}"
        );
        assert_eq!(pml.counters().drops.impossible(), 0, "{rank}");
    }
}

#[test]
fn bytes_of_every_length_are_put_and_got_by_every_protocol() {
    for protocol in PROTOCOLS {
        for checksum in [false, true] {
            let mut world = World::new(2, sim(true, true, true), |pml| {
                pml.protocol = protocol;
                pml.checksum = checksum;
            });
            let window = empty(400_000);
            open(&mut world, 1, 7, &window);
            open(&mut world, 0, 7, &empty(8));
            for (at, length) in LENGTHS.into_iter().enumerate() {
                let (from, into) = (filled(length, at as u64), empty(length));
                let where_ = piece(7, 1000 + at as u64, length);
                let id = put(&mut world, 0, 1, where_, &from);
                let status = world.wait(0, id).unwrap();
                assert_eq!((status.source, status.length as usize), (Rank(1), length));
                let mut there = vec![0; length];
                window.read(1000 + at, &mut there);
                assert!(there == bytes(&from), "{protocol:?} {length}");
                let id = get(&mut world, 0, 1, where_, &into);
                assert_eq!(world.wait(0, id).unwrap().length as usize, length);
                assert!(bytes(&into) == bytes(&from), "{protocol:?} {length}");
            }
            let count = LENGTHS.len() as u64;
            let counts = WindowCounts {
                writes: count,
                reads: count,
            };
            assert_eq!(world.pmls[1].window_counts(7), Some(counts));
            assert_eq!(world.pmls[1].window_counts(8), None);
            nothing_is_left(&mut world);
            assert_eq!((world.drops(0), world.drops(1)), (0, 0));
        }
    }
}

#[test]
fn our_own_windows_are_as_those_of_others() {
    let mut world = World::new(1, sim(true, true, true), |_| ());
    let window = empty(400_000);
    open(&mut world, 0, 7, &window);
    for (at, length) in LENGTHS.into_iter().enumerate() {
        let (from, into) = (filled(length, at as u64), empty(length));
        let mut args = put_args(0, piece(7, 16, length), Payload::Loan(from.loan()));
        (args.notify, args.notice, args.data) = (true, true, Some(at as u64));
        let id = world.pmls[0].put(args).unwrap();
        assert_eq!(world.pmls[0].next_completion(), Some(id));
        world.pmls[0].test(id).unwrap().unwrap();
        let notice = world.pmls[0].next_notice().unwrap();
        assert_eq!(
            (notice.rank, notice.length, notice.data),
            (Rank(0), length as u64, Some(at as u64))
        );
        let id = get(&mut world, 0, 0, piece(7, 16, length), &into);
        world.pmls[0].test(id).unwrap().unwrap();
        assert!(bytes(&into) == pattern(length, at as u64), "{length}");
    }
    let id = put(&mut world, 0, 0, piece(7, 399_999, 2), &filled(2, 1));
    assert_eq!(refused(world.pmls[0].test(id).unwrap()), OperationError::Range);
    nothing_is_left(&mut world);
}

#[test]
fn pieces_on_both_sides_are_one_operation() {
    for protocol in PROTOCOLS {
        for to in [1u32, 0] {
            let mut world = World::new(2, sim(true, true, true), |pml| pml.protocol = protocol);
            for unit in [2usize, 50, 2000, 30_000] {
                // Three pieces of one window, one of another: 12 units in all, and 8 of them are named.
                let first = [empty(unit), empty(3 * unit), empty(4 * unit)];
                let second = empty(4 * unit);
                let rank = to as usize;
                let loans = first.iter().map(Memory::room).collect();
                open_with(&mut world, rank, 1, WindowMemory::Loans(loans), WindowAccess::ALL);
                open(&mut world, rank, 2, &second);
                let u = unit as u64;
                let named = RemotePieces::new(&[
                    piece(1, u / 2, 2 * unit),
                    piece(2, 0, unit),
                    piece(2, 2 * u, 2 * unit),
                    piece(1, 5 * u, 3 * unit),
                ])
                .unwrap();
                let from = filled(16 * unit, 5);
                let payload = Payload::Strided(Strided {
                    base: from.loan(),
                    block: unit,
                    stride: 2 * unit,
                    count: 8,
                });
                let id = world.pmls[0].put(put_args(to, named, payload)).unwrap();
                world.wait(0, id).unwrap();
                let expected: Vec<u8> = bytes(&from)
                    .chunks(2 * unit)
                    .flat_map(|two| two[..unit].to_vec())
                    .collect();
                let one: Vec<u8> = first.iter().flat_map(bytes).collect();
                assert!(
                    one[unit / 2..unit / 2 + 2 * unit] == expected[..2 * unit],
                    "{protocol:?} {unit}"
                );
                assert!(one[5 * unit..] == expected[5 * unit..]);
                assert!(bytes(&second)[..unit] == expected[2 * unit..3 * unit]);
                assert!(bytes(&second)[2 * unit..] == expected[3 * unit..5 * unit]);
                let into = empty(8 * unit);
                let parts = vec![into.room().part(0, unit), into.room().part(unit, 7 * unit)];
                let args = get_args(to, named, Target::Parts(parts.into()));
                let id = world.pmls[0].get(args).unwrap();
                world.wait(0, id).unwrap();
                assert!(bytes(&into) == expected, "{protocol:?} {unit}");
                assert_eq!(world.pmls[rank].close_window(1), Aborted::Now);
                assert_eq!(world.pmls[rank].close_window(2), Aborted::Now);
            }
            nothing_is_left(&mut world);
        }
    }
}

#[test]
fn regions_are_windows_and_payloads() {
    for protocol in PROTOCOLS {
        let mut world = World::new(2, sim(true, true, true), |pml| pml.protocol = protocol);
        let (window, from, into) = (empty(100_000), filled(90_000, 1), empty(90_000));
        open_with(
            &mut world,
            1,
            7,
            WindowMemory::Region(window.whole()),
            WindowAccess::ALL,
        );
        for length in [8, 3000, 90_000] {
            let slice = from.whole().slice(0, length).unwrap();
            let args = put_args(1, piece(7, 5000, length), Payload::Region(slice));
            let id = world.pmls[0].put(args).unwrap();
            world.wait(0, id).unwrap();
            let slice = into.whole().slice(0, length).unwrap();
            let args = get_args(1, piece(7, 5000, length), Target::Region(slice));
            let id = world.pmls[0].get(args).unwrap();
            world.wait(0, id).unwrap();
            assert!(
                bytes(&into)[..length] == pattern(90_000, 1)[..length],
                "{protocol:?} {length}"
            );
        }
        nothing_is_left(&mut world);
    }
}

#[test]
fn what_is_refused_touches_nothing_and_is_counted() {
    for length in [8, 100_000] {
        for to in [1u32, 0] {
            let mut world = World::new(2, sim(true, true, true), |_| ());
            let (rank, window) = (to as usize, filled(100_000, 9));
            open(&mut world, rank, 1, &window);
            let read_only = WindowMemory::Loans(vec![window.room()]);
            open_with(&mut world, rank, 2, read_only.clone(), WindowAccess::READ);
            open_with(&mut world, rank, 3, read_only, WindowAccess::WRITE);
            let (from, into) = (filled(length, 1), filled(length, 2));
            use OperationError::{Access, Range, UnknownKey};
            let cases = [
                (piece(4, 0, length), UnknownKey, UnknownKey),
                (piece(1, 100_001 - length as u64, length), Range, Range),
                (piece(1, u64::MAX, length), Range, Range),
                (piece(1, u64::MAX - 4, length), Range, Range),
            ];
            for (at, of_put, of_get) in cases {
                let id = put(&mut world, 0, to, at, &from);
                assert_eq!(refused(world.wait(0, id)), of_put, "{at:?}");
                let id = get(&mut world, 0, to, at, &into);
                assert_eq!(refused(world.wait(0, id)), of_get, "{at:?}");
            }
            let id = put(&mut world, 0, to, piece(2, 0, length), &from);
            assert_eq!(refused(world.wait(0, id)), Access);
            let id = get(&mut world, 0, to, piece(3, 0, length), &into);
            assert_eq!(refused(world.wait(0, id)), Access);
            assert!(bytes(&window) == pattern(100_000, 9) && bytes(&into) == pattern(length, 2));
            assert_eq!(world.pmls[rank].counters().operations_refused, 10);
            assert_eq!(world.pmls[rank].window_counts(1), Some(WindowCounts::default()));
            nothing_is_left(&mut world);
            // The connection goes on.
            let id = put(&mut world, 0, to, piece(1, 0, length), &from);
            world.wait(0, id).unwrap();
        }
    }
}

#[test]
fn what_cannot_be_is_refused_at_the_call() {
    let mut world = World::new(2, sim(true, true, true), |_| ());
    let memory = empty(64);
    open(&mut world, 1, 1, &memory);
    let window = |key, base, count| WindowArgs {
        key,
        base,
        memory: WindowMemory::Loans(vec![memory.room(); count]),
        access: WindowAccess::ALL,
    };
    let pml = &mut world.pmls[1];
    assert!(matches!(
        pml.open_window(window(1, 0, 1)),
        Err(PmlError::KeyTaken { key: 1 })
    ));
    assert!(matches!(
        pml.open_window(window(2, 0, 5)),
        Err(PmlError::BadOperation { .. })
    ));
    assert!(matches!(
        pml.open_window(window(2, u64::MAX - 62, 1)),
        Err(PmlError::BadOperation { .. })
    ));
    assert_eq!(pml.close_window(99), Aborted::Now);
    let pml = &mut world.pmls[0];
    let short = pml.put_loan(Rank(1), 0, piece(1, 0, 8), memory.loan(), false);
    assert!(matches!(short, Err(PmlError::BadOperation { .. })));
    let long = pml.get(get_args(1, piece(1, 0, 65), Target::Loan(memory.room())));
    assert!(matches!(long, Err(PmlError::BadOperation { .. })));
    let no_such_rank = pml.put_loan(Rank(9), 0, piece(1, 0, 64), memory.loan(), false);
    assert!(matches!(
        no_such_rank,
        Err(PmlError::NoSuchRank { rank: 9, size: 2 })
    ));
    nothing_is_left(&mut world);
}

#[test]
fn pages_that_are_not_there_are_an_error_at_the_initiator() {
    const GUARD: usize = 1 << 20;
    const MAPPED: usize = 256 << 10;
    for to in [1u32, 0] {
        let mut world = World::new(2, sim(true, true, true), |_| ());
        let range = AddressRange::guarded(MAPPED, GUARD).unwrap();
        open_with(
            &mut world,
            to as usize,
            1,
            WindowMemory::Range(range),
            WindowAccess::ALL,
        );
        for length in [8, 3000, 200_000] {
            let (from, into) = (filled(length, 1), empty(length));
            // Before it, half of it, behind it.
            for address in [0, GUARD - length / 2, GUARD + MAPPED - length / 2, GUARD + MAPPED] {
                let at = piece(1, address as u64, length);
                let id = put(&mut world, 0, to, at, &from);
                assert_eq!(
                    refused(world.wait(0, id)),
                    OperationError::Unmapped,
                    "{address:#x}"
                );
                let id = get(&mut world, 0, to, at, &into);
                assert_eq!(
                    refused(world.wait(0, id)),
                    OperationError::Unmapped,
                    "{address:#x}"
                );
            }
            let at = piece(1, GUARD as u64 + 4000, length);
            let id = put(&mut world, 0, to, at, &from);
            world.wait(0, id).unwrap();
            let id = get(&mut world, 0, to, at, &into);
            world.wait(0, id).unwrap();
            assert!(bytes(&into) == pattern(length, 1), "{length}");
        }
        // Atomics find out, too, and are right where the page is there.
        for (address, there) in [(8, false), (GUARD + 4000, true), (GUARD + MAPPED, false)] {
            let room = empty(8);
            let id = fetch_add(&mut world, 0, to, address as u64, 1 << 40, &room);
            let ended = world.wait(0, id);
            if there {
                ended.unwrap();
                assert_eq!(bytes(&room), pattern(8, 1));
            } else {
                assert_eq!(refused(ended), OperationError::Unmapped, "{address:#x}");
            }
        }
        nothing_is_left(&mut world);
    }
}

#[test]
fn operations_are_in_order_with_messages_and_with_each_other() {
    let mut config = sim(true, true, true);
    config.queue_depth = 8;
    for seed in 0..20 {
        let mut world = World::with_planes(2, 2, seed, config, |_| ());
        let faults = doorbell_sim::Faults {
            delay: std::time::Duration::from_micros(5),
            reorder: 0.4,
            reorder_window: std::time::Duration::from_micros(80),
            ..doorbell_sim::Faults::NONE
        };
        for plane in world.planes.clone() {
            world.net.change(Change::Faults(plane, faults));
        }
        let window = empty(4000);
        open(&mut world, 1, 1, &window);
        let (note, seen) = (empty(8), empty(2000));
        let values: Vec<Memory> = (0..40).map(|at| filled(2000, at)).collect();
        for at in 0..40 {
            let receive = world.recv(1, Rank(0), 9, &note);
            let first = put(&mut world, 0, 1, piece(1, 0, 2000), &values[at]);
            let got = get(&mut world, 0, 1, piece(1, 0, 2000), &seen);
            let last = put(&mut world, 0, 1, piece(1, 0, 2000), &values[(at + 1) % 40]);
            let sent = world.send(0, 1, 9, &note);
            world.wait(1, receive).unwrap();
            // The message came behind both.
            assert!(
                bytes(&window)[..2000] == pattern(2000, (at as u64 + 1) % 40),
                "seed {seed}"
            );
            for id in [first, got, last] {
                world.wait(0, id).unwrap();
            }
            assert!(
                bytes(&seen) == pattern(2000, at as u64),
                "seed {seed}: between the two"
            );
            world.wait_sent(0, sent).unwrap();
        }
        nothing_is_left(&mut world);
    }
}

#[test]
fn a_window_is_closed_while_bytes_go_into_it_and_out_of_it() {
    for protocol in PROTOCOLS {
        let mut cut = 0;
        for passes in 0..40 {
            let mut world = World::new(2, sim(true, true, true), |pml| pml.protocol = protocol);
            let window = filled(300_000, 1);
            open(&mut world, 1, 1, &window);
            let (from, into) = (filled(300_000, 2), empty(300_000));
            let puts = put(&mut world, 0, 1, piece(1, 0, 300_000), &from);
            let gets = get(&mut world, 0, 1, piece(1, 0, 300_000), &into);
            world.passes(passes);
            let mut waited = 0;
            while world.pmls[1].close_window(1) == Aborted::Wait {
                world.pass();
                waited += 1;
                assert!(waited < 10_000, "{protocol:?} {passes}");
            }
            window.write(0, &[0xee; 300_000]);
            for id in [puts, gets] {
                match world.wait(0, id) {
                    Ok(_) => {}
                    Err(PmlError::Operation {
                        reason: OperationError::Closed | OperationError::UnknownKey,
                        ..
                    }) => cut += 1,
                    Err(other) => panic!("{protocol:?} {passes}: {other}"),
                }
            }
            world.passes(2000);
            assert!(
                bytes(&window).iter().all(|byte| *byte == 0xee),
                "{protocol:?} {passes}"
            );
            nothing_is_left(&mut world);
            open(&mut world, 1, 1, &window);
        }
        assert!(
            cut > 4,
            "{protocol:?}: the test has to meet some under way, not {cut}"
        );
    }
}

#[test]
fn an_initiator_gives_up_and_its_memory_is_its_own() {
    for protocol in PROTOCOLS {
        for passes in 0..30 {
            let mut world = World::new(2, sim(true, true, true), |pml| pml.protocol = protocol);
            let window = filled(200_000, 1);
            open(&mut world, 1, 1, &window);
            let (from, into, short) = (filled(200_000, 2), empty(200_000), empty(100));
            let ids = [
                put(&mut world, 0, 1, piece(1, 0, 200_000), &from),
                get(&mut world, 0, 1, piece(1, 0, 200_000), &into),
                get(&mut world, 0, 1, piece(1, 0, 100), &short),
            ];
            world.passes(passes);
            for id in ids {
                while world.pmls[0].abort(id) == Aborted::Wait {
                    world.pass();
                }
            }
            into.write(0, &[0xee; 200_000]);
            short.write(0, &[0xee; 100]);
            world.passes(3000);
            for memory in [&into, &short] {
                assert!(
                    bytes(memory).iter().all(|byte| *byte == 0xee),
                    "{protocol:?} {passes}"
                );
            }
            nothing_is_left(&mut world);
            assert_eq!(world.pmls[1].close_window(1), Aborted::Now);
        }
    }
}

#[test]
fn a_lost_target_ends_what_it_was_to_do() {
    for passes in 0..20 {
        let mut world = World::new(3, sim(true, true, true), |_| ());
        let window = empty(200_000);
        open(&mut world, 1, 1, &window);
        open(&mut world, 2, 1, &empty(8));
        let (from, into) = (filled(200_000, 2), empty(200_000));
        let ids = [
            put(&mut world, 0, 1, piece(1, 0, 200_000), &from),
            get(&mut world, 0, 1, piece(1, 0, 200_000), &into),
            put(&mut world, 0, 1, piece(1, 0, 8), &filled(8, 1)),
            get(&mut world, 0, 1, piece(1, 0, 8), &empty(8)),
        ];
        world.passes(passes);
        world.net.change(Change::RankDeath(1));
        for id in ids {
            let ended = world.wait(0, id);
            assert!(
                matches!(ended, Ok(_) | Err(PmlError::PeerLost { rank: Rank(1), .. })),
                "{ended:?}"
            );
        }
        world.until("its loss is known", |world| world.pmls[0].lost(Rank(1)).is_some());
        let late = world.pmls[0].put_loan(Rank(1), 0, piece(1, 0, 8), filled(8, 1).loan(), false);
        assert!(matches!(late, Err(PmlError::PeerLost { .. })));
        let id = put(&mut world, 0, 2, piece(1, 0, 8), &filled(8, 1));
        world.wait(0, id).unwrap();
        assert_eq!(world.pmls[0].live_requests(), 0);
    }
}

#[test]
fn owners_are_notified_of_puts_that_ask_for_it() {
    let mut world = World::new(2, sim(true, true, true), |pml| pml.window = 64 << 10);
    let window = empty(200_000);
    open(&mut world, 1, 0xabcd, &window);
    for length in [0, 8, 3000, 200_000] {
        for data in [None, Some(0), Some(u64::MAX)] {
            let from = filled(length, 1);
            let mut args = put_args(1, piece(0xabcd, 0, length), Payload::Loan(from.loan()));
            (args.notice, args.data) = (true, data);
            let id = world.pmls[0].put(args).unwrap();
            let quiet = put(&mut world, 0, 1, piece(0xabcd, 0, length), &from);
            world.wait(0, id).unwrap();
            world.wait(0, quiet).unwrap();
            let notice = Notice {
                rank: Rank(0),
                context: 3,
                key: 0xabcd,
                length: length as u64,
                data,
            };
            assert_eq!(world.pmls[1].next_notice(), Some(notice));
            assert_eq!(world.pmls[1].next_notice(), None);
        }
    }
    nothing_is_left(&mut world);
}

#[test]
fn notices_that_are_not_taken_hold_back_their_initiator_alone() {
    let mut world = World::new(3, sim(true, true, true), |pml| {
        (pml.window, pml.hard_window) = (4096, 8192);
    });
    let window = empty(8);
    open(&mut world, 1, 1, &window);
    let mut ids = Vec::new();
    for _ in 0..500 {
        let mut args = put_args(1, piece(1, 0, 8), Payload::Loan(filled(8, 1).loan()));
        (args.notice, args.buffered) = (true, true);
        ids.push(world.pmls[0].put(args).unwrap());
    }
    world.passes(3000);
    let done = ids.iter().filter(|id| world.pmls[0].is_done(**id)).count();
    assert!(done > 20 && done < 100, "{done} of 500 are in a window of 8 KiB");
    let id = put(&mut world, 2, 1, piece(1, 0, 8), &filled(8, 2));
    world.wait(2, id).unwrap();
    let mut notices = 0;
    world.until("all are done", |world| {
        notices += usize::from(world.pmls[1].next_notice().is_some());
        notices == 500
    });
    for id in ids {
        world.wait(0, id).unwrap();
    }
    nothing_is_left(&mut world);
}

/// Both read from each other, and write, in windows that a few operations fill.
#[test]
fn two_that_need_each_other_do_not_wait_for_each_other() {
    for (window, hard) in [(1024, 1024), (4096, 8192), (64 << 10, 64 << 10)] {
        let mut world = World::new(2, sim(true, true, true), |pml| {
            (pml.window, pml.hard_window) = (window, hard);
        });
        let memory = [filled(100_000, 0), filled(100_000, 1)];
        open(&mut world, 0, 1, &memory[0]);
        open(&mut world, 1, 1, &memory[1]);
        let lengths = [8, 100, 1000, 9000, 100_000];
        let mut all = Vec::new();
        for round in 0..40 {
            for rank in 0..2 {
                let length = lengths[round % 5];
                let (into, from) = (empty(length), filled(length, 1 - rank as u64));
                let other = 1 - rank as u32;
                let gets = get(&mut world, rank, other, piece(1, 0, length), &into);
                let puts = put(&mut world, rank, other, piece(1, 0, length), &from);
                all.push((rank, gets, Some(into)));
                all.push((rank, puts, None));
            }
        }
        for (rank, id, into) in all {
            let length = world.wait(rank, id).unwrap().length as usize;
            if let Some(into) = into {
                assert!(
                    bytes(&into) == pattern(length, 1 - rank as u64),
                    "window {window}"
                );
            }
        }
        nothing_is_left(&mut world);
    }
}

#[test]
fn bytes_of_a_buffered_put_are_taken_at_once() {
    let mut config = sim(true, true, true);
    config.queue_depth = 2;
    let mut world = World::new(2, config, |_| ());
    let window = empty(64 * 8);
    open(&mut world, 1, 1, &window);
    let from = empty(8);
    let mut ids = Vec::new();
    for at in 0..64u64 {
        from.write(0, &pattern(8, at));
        let mut args = put_args(1, piece(1, at * 8, 8), Payload::Loan(from.loan()));
        args.buffered = true;
        ids.push(world.pmls[0].put(args).unwrap());
    }
    from.write(0, &[0xee; 8]);
    for id in ids {
        world.wait(0, id).unwrap();
    }
    let expected: Vec<u8> = (0..64).flat_map(|at| pattern(8, at)).collect();
    assert_eq!(bytes(&window), expected);
    nothing_is_left(&mut world);
}

#[test]
fn bytes_are_counted_from_the_base_of_a_window() {
    let mut world = World::new(2, sim(true, true, true), |_| ());
    let room = MutLoan::of_static(vec![0; 64].leak());
    let base = room.as_const().address() as u64;
    let window = WindowArgs {
        key: 1,
        base,
        memory: WindowMemory::Loans(vec![room]),
        access: WindowAccess::ALL,
    };
    world.pmls[1].open_window(window).unwrap();
    let id = put(&mut world, 0, 1, piece(1, base + 8, 4), &filled(4, 1));
    world.wait(0, id).unwrap();
    assert_eq!(room.as_shared().to_vec()[8..12], pattern(4, 1));
    let id = put(&mut world, 0, 1, piece(1, 8, 4), &filled(4, 1));
    assert_eq!(refused(world.wait(0, id)), OperationError::Range);
}

#[test]
fn what_is_done_in_windows_is_recorded_with_their_marks_and_failures_are_not() {
    let mut world = World::new(2, sim(true, true, true), |_| ());
    let windows = [empty(300_000), empty(300_000)];
    for (key, window) in [1, 2].into_iter().zip(&windows) {
        open(&mut world, 1, key, window);
    }
    let hole = AddressRange::guarded(4096, 4096).unwrap();
    open_with(&mut world, 1, 3, WindowMemory::Range(hole), WindowAccess::ALL);
    let marks = [7, 9].map(|mark| NonZeroU32::new(mark).unwrap());
    assert!(world.pmls[1].mark_window(1, Some(marks[0])) && !world.pmls[1].mark_window(99, None));
    assert_eq!(
        [1, 2, 99].map(|key| world.pmls[1].window_mark(key)),
        [Some(marks[0]), None, None]
    );
    let ended = put(&mut world, 0, 1, piece(1, 0, 8), &filled(8, 1));
    world.wait(0, ended).unwrap();
    assert!(!world.pmls[1].has_accesses(), "nothing is recorded yet");
    world.pmls[1].record_accesses();
    assert!(world.pmls[1].mark_window(2, Some(marks[1])));
    let before = [1, 3].map(|key| world.pmls[1].window_counts(key).unwrap());
    let mut expected = Vec::new();
    for length in [8, 100, 20_000, 300_000] {
        for to in [1, 0] {
            // Of our own the second rank has the windows.
            let (from, target) = if to == 1 { (0, 1) } else { (1, 1) };
            let memory = filled(length, 1);
            let id = put(&mut world, from, target, piece(1, 0, length), &memory);
            world.wait(from, id).unwrap();
            let id = get(&mut world, from, target, piece(2, 0, length), &memory);
            world.wait(from, id).unwrap();
            let rank = Rank(from as u32);
            expected.push((rank, length as u64, true, false, marks[0]));
            expected.push((rank, length as u64, false, true, marks[1]));
        }
    }
    let id = fetch_add(&mut world, 0, 1, 8, 1, &empty(8));
    world.wait(0, id).unwrap();
    expected.push((Rank(0), 8, true, true, marks[0]));
    for (key, at) in [(1, 300_000), (99, 0), (3, 0)] {
        for length in [8, 100, 300_000] {
            for from in [0, 1] {
                let (memory, at) = (filled(length, 1), piece(key, at, length));
                let id = get(&mut world, from, 1, at, &memory);
                refused(world.wait(from, id));
                let id = put(&mut world, from, 1, at, &memory);
                refused(world.wait(from, id));
            }
        }
    }
    let mut found = Vec::new();
    while let Some(access) = world.pmls[1].next_access() {
        assert_eq!(access.marks[1..], [None; 3]);
        let mark = access.marks[0].unwrap();
        found.push((access.rank, access.length, access.stores, access.returns, mark));
    }
    assert_eq!(found, expected);
    let after = [1, 3].map(|key| world.pmls[1].window_counts(key).unwrap());
    let more = after[0].writes - before[0].writes;
    assert_eq!((more, after[0].reads - before[0].reads), (9, 1));
    assert_eq!(before[1], after[1], "what fails is counted nowhere");
    nothing_is_left(&mut world);
}
