//! The checksum of a message: right over every path, and an error where the bytes are not those that were
//! sent.

use doorbell_fabric::memory::ConstLoan;
use doorbell_pml::{MultiArgs, Payload, Pml, PmlError, Protocol, Rank, Sent, Source, Target};
use doorbell_sim::SimRail;

use crate::world::{Memory, World, bytes, empty, filled, pattern, recv_args, send_args, sim};
use crate::wrap::Spoiler;

const LENGTHS: [usize; 7] = [0, 1, 8, 4000, 5000, 20_000, 300_000];

fn checked(protocol: Protocol) -> World {
    World::new(2, sim(true, true, true), |pml| {
        pml.checksum = true;
        pml.protocol = protocol;
    })
}

fn both(world: &World) -> (u64, u64) {
    let counters = world.pmls[1].counters();
    (counters.checked, counters.corrupt)
}

#[test]
fn every_length_and_protocol_is_checked_and_right() {
    for protocol in [Protocol::Auto, Protocol::Get, Protocol::Put, Protocol::Fragments] {
        for expected in [true, false] {
            let mut world = checked(protocol);
            let from: Vec<Memory> = LENGTHS.iter().map(|length| filled(*length, 3)).collect();
            let into: Vec<Memory> = LENGTHS.iter().map(|length| empty(*length)).collect();
            let post = |world: &mut World| -> Vec<_> {
                into.iter().map(|into| world.recv(1, Rank(0), 1, into)).collect()
            };
            let early = if expected { post(&mut world) } else { Vec::new() };
            let sends: Vec<Sent> = from.iter().map(|from| world.send(0, 1, 1, from)).collect();
            world.passes(20);
            let late = if expected { Vec::new() } else { post(&mut world) };
            for (at, id) in early.into_iter().chain(late).enumerate() {
                world.wait(1, id).unwrap();
                assert_eq!(bytes(&into[at]), bytes(&from[at]), "{protocol:?}");
            }
            for sent in sends {
                world.wait_sent(0, sent).unwrap();
            }
            assert_eq!(both(&world), (LENGTHS.len() as u64, 0), "{protocol:?}");
        }
    }
}

#[test]
fn bytes_that_change_on_the_way_are_found_by_the_receiver() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        let mut world = checked(protocol);
        let (from, into) = (filled(100_000, 3), empty(100_000));
        let sent = world.pmls[0]
            .send(send_args(1, 1, Payload::Region(from.whole())))
            .unwrap();
        world.passes(5);
        // Its sender does what it must not: it writes before the send has ended.
        from.write(99_999, &[!pattern(100_000, 3)[99_999]]);
        let id = world.recv(1, Rank(0), 1, &into);
        let Err(error) = world.wait(1, id) else {
            panic!("{protocol:?}: damage that is not reported");
        };
        let PmlError::Corrupt {
            source_rank,
            tag,
            length,
            announced,
            found,
        } = error
        else {
            panic!("{protocol:?}: {error}");
        };
        assert_eq!((source_rank, tag, length), (Rank(0), 1, 100_000));
        assert_eq!(announced, crc32c::crc32c(&pattern(100_000, 3)), "{protocol:?}");
        assert_eq!(found, crc32c::crc32c(&bytes(&into)), "{protocol:?}");
        assert_eq!(both(&world), (1, 1));
        world.wait_sent(0, sent).unwrap();
        // The next one is not touched by it.
        let (from, into) = (filled(100_000, 4), empty(100_000));
        let id = world.recv(1, Rank(0), 1, &into);
        let sent = world.send(0, 1, 1, &from);
        world.wait(1, id).unwrap();
        world.wait_sent(0, sent).unwrap();
    }
}

fn spoiled(checksum: bool) -> World<Spoiler> {
    World::wrapped(2, 1, 7, sim(true, true, true), Spoiler, |pml| {
        pml.checksum = checksum
    })
}

#[test]
fn a_rail_that_damages_short_messages_is_found_out_only_with_the_checksum() {
    for checksum in [true, false] {
        for expected in [true, false] {
            let mut world = spoiled(checksum);
            let into = empty(8);
            let early = expected.then(|| world.recv(1, Rank(0), 1, &into));
            world.pmls[0].inject(Rank(1), 0, 1, b"8 bytes.").unwrap();
            world.passes(20);
            let id = early.unwrap_or_else(|| world.recv(1, Rank(0), 1, &into));
            let ended = world.wait(1, id);
            assert_eq!(bytes(&into), b"8 bytes>");
            assert_eq!(
                matches!(ended, Err(PmlError::Corrupt { length: 8, .. })),
                checksum
            );
            assert_eq!(ended.is_ok(), !checksum);
        }
    }
}

#[test]
fn a_multi_receive_names_its_damaged_message() {
    let mut world = spoiled(true);
    let buffer = empty(1000);
    let args = MultiArgs {
        from: Source::Any,
        context: 0,
        tag: 1,
        ignore: 0,
        target: Target::Region(buffer.whole()),
        min_free: 1,
        notify: false,
    };
    world.pmls[1].recv_multi(args).unwrap();
    world.pmls[0].inject(Rank(1), 0, 1, b"").unwrap(); // without a byte that could be damaged
    world.pmls[0].inject(Rank(1), 0, 1, b"damaged").unwrap();
    world.passes(20);
    let intact: Vec<bool> = std::iter::from_fn(|| world.pmls[1].next_delivery())
        .map(|delivery| delivery.intact)
        .collect();
    assert_eq!(intact, [true, false]);
}

#[test]
fn a_message_that_is_cut_is_not_checked() {
    for length in [100, 100_000] {
        let mut world = checked(Protocol::Auto);
        let into = empty(50);
        let id = world.recv(1, Rank(0), 1, &into);
        let sent = world.send(0, 1, 1, &filled(length, 1));
        assert!(matches!(world.wait(1, id), Err(PmlError::Truncated { .. })));
        world.wait_sent(0, sent).unwrap();
        assert_eq!(both(&world), (0, 0));
    }
}

#[test]
fn pieces_at_either_end_are_checked_as_the_message_that_they_make() {
    let mut world = checked(Protocol::Auto);
    for length in [60, 60_000] {
        let from = filled(length, 9);
        let pieces = |cuts: &[usize]| -> Vec<(usize, usize)> {
            let mut at = 0;
            let mut pieces = Vec::new();
            for cut in cuts.iter().map(|cut| cut * length / 60) {
                pieces.push((at, cut));
                at += cut;
            }
            pieces
        };
        let parts: Vec<ConstLoan> = pieces(&[7, 13, 40])
            .iter()
            .map(|(at, cut)| from.loan().part(*at, *cut))
            .collect();
        let into = empty(length);
        let room: Vec<_> = pieces(&[20, 1, 39])
            .iter()
            .map(|(at, cut)| into.room().part(*at, *cut))
            .collect();
        let id = world.pmls[1]
            .recv(recv_args(Rank(0), 1, Target::Parts(room.into())))
            .unwrap();
        let sent = world.pmls[0]
            .send(send_args(1, 1, Payload::Parts(parts.into())))
            .unwrap();
        world.wait(1, id).unwrap();
        world.wait_sent(0, sent).unwrap();
        assert_eq!(bytes(&into), pattern(length, 9));
    }
    assert_eq!(both(&world), (2, 0));
}

#[test]
fn one_side_with_the_setting_is_enough() {
    let mut world = World::new(2, sim(true, true, true), |pml| pml.checksum = pml.rank == Rank(0));
    for (from, to) in [(0, 1), (1, 0)] {
        let into = empty(8);
        let id = world.recv(to, Source::Any, 1, &into);
        let _ = world.send(from, to as u32, 1, &filled(8, 1));
        world.wait(to, id).unwrap();
    }
    let checked = |pml: &Pml<SimRail>| pml.counters().checked;
    assert_eq!((checked(&world.pmls[0]), checked(&world.pmls[1])), (0, 1));
}
