//! A peer that does not keep to the protocol: what it sends is dropped, counted, and harms no other rank.

use doorbell_am::match_bits::{AmData, AmHeader, Flags, Id, LongData, REPLY_LID, SysKind, SysMessage};
use doorbell_am::{AM_INDEX, RAR_INDEX, SYS_INDEX};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::{AckReq, Md, MdHandle, Memory, Ni, Piece, Process, Put, Target};
use doorbell_sim::Random;

use crate::messages::echo_world;
use crate::rig::{Setting, World};

/// Puts any bytes with any match bits, past the conduit.
fn put(world: &mut World, pt_index: u32, match_bits: u64, hdr_data: u64, remote_offset: u64, bytes: &[u8]) {
    let memory = Region::new(bytes.len().max(1)).expect("memory").whole();
    memory.write(0, bytes);
    let memory = Memory::One(Landing::Region(memory));
    let md = begin(
        world,
        (memory, bytes.len()),
        pt_index,
        [match_bits, hdr_data, remote_offset],
    );
    world.settle();
    world.am(1).ni_mut().md_release(md).expect("it is known");
}

/// Begins a put past the conduit of rank 1: match bits, header data and offset as they are.
fn begin(
    world: &mut World,
    (memory, length): (Memory, usize),
    pt_index: u32,
    [match_bits, hdr_data, remote_offset]: [u64; 3],
) -> MdHandle {
    let ni = world.am(1).ni_mut();
    let md = Md {
        memory,
        ..Md::default()
    };
    let md = ni.md_bind(md).expect("there is room");
    let put = Put {
        from: Piece { md, offset: 0 },
        length: length as u64,
        ack: AckReq::None,
        target: Target {
            process: Process::rank(0),
            pt_index,
            match_bits,
            remote_offset,
        },
        user_ptr: 0,
        hdr_data,
    };
    ni.put(&put).expect("it is sent");
    ni.flush();
    md
}

fn request(flags: Flags, args: u8, source: u32, other: u32, credit: u8) -> (u64, u64) {
    let header = AmHeader {
        id: Id::ReqRb,
        flags: flags.with(Flags::REQUEST),
        handler: 1,
        args,
        offset: 0,
    };
    let data = AmData {
        source,
        other,
        credit,
    };
    (header.bits(), data.bits())
}

/// A message that cannot be: why, the entry of the table that it is for, its bits and header data, its
/// offset, its bytes.
type Case<'a> = (&'a str, u32, (u64, u64), u64, &'a [u8]);

/// Rank 1 puts each to rank 0: each is dropped and counted, no handler runs, and rank 2 is served as before.
fn are_dropped(cases: &[Case<'_>]) {
    let (mut world, seen) = echo_world(&Setting::new(3));
    for (before, (why, index, (bits, data), at, bytes)) in cases.iter().enumerate() {
        put(&mut world, *index, *bits, *data, *at, bytes);
        assert_eq!(world.am(0).stats().hostile, before as u64 + 1, "{why}");
    }
    assert_eq!(seen.try_iter().count(), 0, "no handler ran");
    assert_eq!(world.am(0).leaving(), doorbell_am::Leaving::No);
    let sent = world.am(2).try_request_short(0, 1, &[4]);
    assert!(sent.expect("it can be").is_done());
    world.settle();
    assert_eq!(seen.try_iter().count(), 2);
}

#[test]
fn requests_that_cannot_be_are_dropped_and_counted() {
    let (short, medium) = (Flags::SHORT, Flags::MEDIUM);
    let packed = Flags::LONG.with(Flags::PACKED);
    let mut far = u64::MAX.to_le_bytes().to_vec();
    far.push(1);
    let cases: [(&str, (u64, u64), &[u8]); 9] = [
        ("the name of another rank", request(short, 0, 2, 0, 1), &[]),
        ("the name of no rank", request(short, 0, 9, 0, 1), &[]),
        ("17 arguments", request(short, 17, 1, 0, 1), &[0; 68]),
        ("longer than its arguments", request(short, 1, 1, 0, 1), &[0; 8]),
        ("shorter than its length", request(medium, 1, 1, 9, 1), &[0; 16]),
        ("two kinds", request(short.with(medium), 0, 1, 0, 1), &[]),
        ("neither packed nor not", request(Flags::LONG, 0, 1, 0, 1), &[]),
        ("no credits", request(short, 0, 1, 0, 0), &[]),
        // This one takes a credit and gives it back, in a reply that answers no request of rank 1.
        ("outside of the segment", request(packed, 0, 1, 1, 1), &far),
    ];
    are_dropped(&cases.map(|(why, bits, bytes)| (why, AM_INDEX, bits, 0, bytes)));
}

#[test]
fn replies_and_data_that_cannot_be_are_dropped_and_counted() {
    let header = AmHeader {
        id: Id::ReqSb,
        flags: Flags::SHORT,
        handler: 11,
        args: 0,
        offset: 0,
    };
    let data = AmData {
        source: 1,
        other: 0,
        credit: 0,
    };
    let reply = (header.bits(), data.bits());
    are_dropped(&[
        ("a reply to nothing", RAR_INDEX, reply, 0, &[]),
        ("a reply at no chunk", RAR_INDEX, reply, 5, &[]),
        (
            "a request with the LID of a reply",
            AM_INDEX,
            long(Id::RarAm, REPLY_LID),
            0,
            &[1],
        ),
        (
            "a reply with the LID of a request",
            RAR_INDEX,
            long(Id::RarSrc, 0),
            0,
            &[1],
        ),
    ]);
}

#[test]
fn system_messages_that_cannot_be_are_dropped_and_counted() {
    let cases = [
        ("another rank's barrier", system(SysKind::Barrier, [2, 0, 0])),
        (
            "a barrier that is far ahead",
            system(SysKind::Barrier, [1, 7 << 16, 0]),
        ),
        (
            "credits that were not revoked",
            system(SysKind::CreditReturn, [1, 5, 0]),
        ),
        (
            "a step that there is not",
            system(SysKind::ShutdownRequest, [1, 40, 0]),
        ),
        (
            "a status that there is not",
            system(SysKind::ShutdownRequest, [1, 1, 999]),
        ),
        ("no message that there is", (Id::Sys as u64 | 0x900, 0)),
        ("an exchange that is over", (Id::Boot as u64, 0)),
    ];
    are_dropped(&cases.map(|(why, bits)| (why, SYS_INDEX, bits, 16, &[][..])));
}

/// The bits of the data of an unpacked Long of rank 1.
pub(crate) fn long(id: Id, lid: u32) -> (u64, u64) {
    let data = LongData {
        id,
        args: 0,
        handler: 1,
        thread: 0,
        source: 1,
        lid,
    };
    (data.match_bits(), data.hdr_data())
}

fn system(kind: SysKind, args: [u32; 3]) -> (u64, u64) {
    let message = SysMessage { kind, args };
    (message.match_bits(), message.hdr_data())
}

/// A put of no bytes past the conduit of rank 1, without a poll of any rank.
pub(crate) fn put_nothing(
    world: &mut World,
    pt_index: u32,
    match_bits: u64,
    hdr_data: u64,
    remote_offset: u64,
) {
    let md = begin(
        world,
        (Memory::Empty, 0),
        pt_index,
        [match_bits, hdr_data, remote_offset],
    );
    world.am(1).ni_mut().md_release(md).expect("it is known");
}

/// One moment of the network, and a pass of rank 0 alone.
pub(crate) fn pass(world: &mut World) {
    let now = world.net.now();
    world.am(0).poll();
    world.am(0).progress(now);
    let next = world.net.next_event();
    world
        .net
        .advance_to(next.unwrap_or(now + std::time::Duration::from_micros(1)));
}

/// Data to headers that never come has a bound for each source, and the Longs of others are served.
#[test]
fn data_without_headers_takes_no_place_from_others() {
    let mut setting = Setting::new(3);
    setting.settings.packed_long = false;
    let (mut world, seen) = echo_world(&setting);
    let loan = u32::from(world.am(0).credits().peer(1).expect("a peer").loan());
    for lid in 0..3000 {
        let (bits, data) = long(Id::RarAm, lid);
        put_nothing(&mut world, AM_INDEX, bits, data, 0);
        let (bits, data) = long(Id::RarSrc, REPLY_LID | lid);
        put_nothing(&mut world, RAR_INDEX, bits, data, 0);
        for _ in 0..2 {
            pass(&mut world);
        }
        if lid % 16 == 0 {
            let now = world.net.now();
            world.am(1).step(now).expect("it is well");
        }
    }
    world.settle();
    assert_eq!(world.am(0).health().ok(), Some(()));
    assert_eq!(
        world.am(0).resources().halves,
        loan as usize,
        "as much as it has credits"
    );
    assert_eq!(world.am(0).stats().hostile, u64::from(6000 - loan));
    for (from, to) in [(2, 0), (0, 2)] {
        for length in [5000, 40_000] {
            let source = doorbell_am::Source::Segment { offset: 0, length };
            let sent = world
                .am(from)
                .try_request_long(to, 3, &[0], source, 0)
                .expect("it can be sent");
            assert!(sent.is_done());
            world.settle();
            assert_eq!(seen.try_iter().count(), 2, "request and reply");
        }
        let free = world.am(from).resources();
        assert_eq!(free.request_chunks.0, free.request_chunks.1);
    }
    world.assert_credits();
}

/// Without credits there is no bound for each source: a header that finds no place gives back what it took.
#[test]
fn a_header_without_a_place_keeps_no_chunk() {
    let mut setting = Setting::new(3);
    setting.settings.packed_long = false;
    setting.settings.flow_control = false;
    setting.settings.chunks_per_buffer = 8;
    setting.settings.request_chunks = 16;
    let (mut world, seen) = echo_world(&setting);
    let mut lid = 0;
    while world.am(0).stats().hostile == 0 {
        let (bits, data) = long(Id::RarAm, lid);
        put_nothing(&mut world, AM_INDEX, bits, data, 0);
        for _ in 0..2 {
            pass(&mut world);
        }
        if lid % 16 == 0 {
            let now = world.net.now();
            world.am(1).step(now).expect("it is well");
        }
        lid += 1;
    }
    world.settle();
    for (from, to) in [(2, 0), (0, 2)] {
        for length in [5000, 40_000] {
            let hostile = world.am(0).stats().hostile;
            let source = doorbell_am::Source::Segment { offset: 0, length };
            let sent = world
                .am(from)
                .try_request_long(to, 3, &[0], source, 0)
                .expect("it can be sent");
            assert!(sent.is_done());
            world.settle();
            assert_eq!(
                world.am(0).stats().hostile - hostile,
                2,
                "both halves find no place"
            );
            let free = world.am(from).resources();
            assert_eq!(
                free.request_chunks.0, free.request_chunks.1,
                "{from} to {to}: {length}"
            );
        }
    }
    assert_eq!(seen.try_iter().filter(|one| one.is_reply).count(), 0);
}

/// Revocations without end of a rank that takes no answers: one answer waits for it, and what waits does not
/// grow.
#[test]
fn one_answer_waits_for_a_peer_that_takes_none() {
    let mut setting = Setting::new(3);
    setting.settings.message_limit = 4000;
    let (mut world, _seen) = echo_world(&setting);
    world.fill(0, 1);
    let before = world.am(0).stats();
    let (bits, data) = system(SysKind::CreditRevoke, [1, 0, 0]);
    for _ in 0..20 {
        put_nothing(&mut world, SYS_INDEX, bits, data, 0);
        pass(&mut world);
    }
    for _ in 0..100 {
        pass(&mut world);
    }
    let after = world.am(0).stats();
    assert_eq!(after.deferred - before.deferred, 1, "one answer");
    assert_eq!(after.hostile - before.hostile, 19);
    world.settle();
    let deferred = world.am(0).stats().deferred;
    put_nothing(&mut world, SYS_INDEX, bits, data, 0);
    world.settle();
    let free = world.am(0).stats();
    assert_eq!(
        (free.deferred, free.hostile),
        (deferred, after.hostile),
        "answered again"
    );
}

/// As many system messages as a poll brings, again and again, whatever the limit of a poll: none is lost.
#[test]
fn system_messages_without_end_take_no_place_from_others() {
    for limit in [0, 1] {
        let mut setting = Setting::new(2);
        setting.settings.sys_limit = limit;
        let (mut world, _seen) = echo_world(&setting);
        let (bits, data) = system(SysKind::Barrier, [1, 7 << 16, 0]);
        for _ in 0..200 {
            for _ in 0..40 {
                put_nothing(&mut world, SYS_INDEX, bits, data, 0);
            }
            for _ in 0..4 {
                pass(&mut world);
                let now = world.net.now();
                world.am(1).step(now).expect("it is well");
            }
            assert!(world.am(0).health().is_ok(), "{:?}", world.am(0).health());
        }
        world.settle();
        assert_eq!(world.am(0).stats().hostile, 8000);
    }
}

/// Whatever bits and lengths: no panic, and the third rank is served.
#[test]
fn random_messages_harm_no_other_rank() {
    for seed in 0..40 {
        let (mut world, _seen) = echo_world(&Setting::new(3));
        let mut random = Random::for_part(seed, &[7]);
        for _ in 0..60 {
            let index = [RAR_INDEX, AM_INDEX, SYS_INDEX][random.below(3) as usize];
            // Bits that name memory there is, else nothing would be looked at.
            let id = [0, 1, 2, 3, 4, 5, 6][random.below(7) as usize];
            let kind = [0x10, 0x20, 0x40, 0x80][random.below(4) as usize];
            let bits = random.next_u64() & !0xFF | kind | id;
            let source = random.below(4) << 32;
            let data = if random.below(2) == 0 {
                random.next_u64()
            } else {
                random.next_u64() & 0xFFFF_FFFF | source
            };
            let bytes = vec![random.next_u64() as u8; [0, 4, 8, 64, 700, 2048][random.below(6) as usize]];
            put(&mut world, index, bits, data, random.below(65_536), &bytes);
        }
        if world.am(0).health().is_err() {
            continue; // Its receive buffers overflowed: the one thing that a peer without credits can do.
        }
        if world.am(0).leaving() != doorbell_am::Leaving::No {
            continue; // It requested the end of the job, as every rank may.
        }
        assert!(
            world
                .am(2)
                .try_request_short(0, 4, &[4])
                .expect("it can be")
                .is_done()
        );
        world.settle();
        let free = world.am(2).resources();
        assert_eq!(
            free.request_chunks.0, free.request_chunks.1,
            "seed {seed}: rank 2 was answered"
        );
    }
}

/// Header first or data first, of requests and of replies.
#[test]
fn halves_meet_in_either_order() {
    let mut orders = [[0u64; 2]; 2];
    for seed in 0..4 {
        let mut setting = Setting::new(2);
        setting.seed = seed;
        setting.segment = 1 << 18;
        let (mut world, seen) = echo_world(&setting);
        for (number, length) in [600u64, 5000, 60_000, 2500]
            .into_iter()
            .cycle()
            .take(40)
            .enumerate()
        {
            let from = doorbell_am::Source::Segment { offset: 0, length };
            let sent = world
                .am(0)
                .try_request_long(1, 3, &[131_072], from, 131_072)
                .expect("it can be sent");
            let handle = sent.done().and_then(|sent| sent.source);
            world.settle();
            assert_eq!(seen.try_iter().count(), 2, "request and reply {number}");
            if let Some(handle) = handle {
                assert!(world.am(0).try_sync(handle).expect("it went well"));
            }
        }
        for rank in 0..2 {
            let halves = world.am(rank).stats().halves;
            orders[rank as usize][0] += halves[0];
            orders[rank as usize][1] += halves[1];
        }
        world.assert_clean();
    }
    // Requests at rank 1, replies at rank 0: long data is fetched after its header has come, shorter data
    // comes first.
    assert!(orders.iter().flatten().all(|count| *count > 0), "{orders:?}");
}
