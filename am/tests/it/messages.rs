//! All kinds of active messages and all their sizes, between ranks and to oneself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use doorbell_am::{AmError, Handlers, MAX_ARGS, Source, Try};
use doorbell_fabric::memory::Region;
use doorbell_fabric::ni::Kind;

use crate::rig::{Am, Doing, Setting, World};

/// What a handler saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) at: u32,
    pub(crate) from: u32,
    pub(crate) is_reply: bool,
    pub(crate) args: Vec<u32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) place: Option<u64>,
}

/// Handlers that answer in kind: 1 to a Short, 2 to a Medium, 3 to a Long (at the offset of the first
/// argument), 4 to nothing. 11, 12 and 13 take the replies.
fn echoes(at: u32, log: &Sender<Seen>) -> Handlers {
    let mut handlers = Handlers::new();
    for kind in 1..=4u8 {
        let log = log.clone();
        let handler = move |request: doorbell_am::Request<'_>| {
            let bytes = request.payload().bytes();
            let _ = log.send(Seen {
                at,
                from: request.source(),
                is_reply: false,
                args: request.args().to_vec(),
                bytes: bytes.to_vec(),
                place: request.payload().offset(),
            });
            let args = request.args();
            let replied = match kind {
                1 => request.reply_short(11, args),
                2 => request.reply_medium(12, args, bytes),
                3 => {
                    let place = args.first().map_or(0, |arg| u64::from(*arg));
                    match request.payload().offset() {
                        Some(offset) => {
                            let length = bytes.len() as u64;
                            request.reply_long(13, args, Source::Segment { offset, length }, place)
                        }
                        None => request.reply_short(11, args),
                    }
                }
                _ => Ok(()),
            };
            assert!(replied.is_ok(), "{replied:?}");
        };
        handlers.request(kind, handler).expect("a free number");
    }
    for kind in 11..=13 {
        let log = log.clone();
        let handler = move |reply: doorbell_am::Reply<'_>| {
            let _ = log.send(Seen {
                at,
                from: reply.source(),
                is_reply: true,
                args: reply.args().to_vec(),
                bytes: reply.payload().bytes().to_vec(),
                place: reply.payload().offset(),
            });
        };
        handlers.reply(kind, handler).expect("a free number");
    }
    handlers
}

pub(crate) fn echo_world(setting: &Setting) -> (World, Receiver<Seen>) {
    let (log, seen) = channel();
    (World::new(setting, |at| echoes(at, &log)), seen)
}

fn bytes(length: usize, salt: u32) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u32).wrapping_mul(7).wrapping_add(salt) as u8)
        .collect()
}

fn done<T>(outcome: Result<Try<T>, AmError>) -> Option<T> {
    outcome.expect("the message can be sent").done()
}

/// Tries until one message was sent, and then runs the job until nothing is under way.
fn once(world: &mut World, from: u32, mut send: impl FnMut(&mut Am) -> bool) {
    let mut sent = false;
    world.run(|rank, am, _| {
        if rank == from && !sent {
            sent = send(am);
            return if sent { Doing::Worked } else { Doing::Waits };
        }
        Doing::Finished
    });
    world.settle();
}

#[test]
fn shorts_of_all_arguments_are_answered() {
    for kind in [
        Kind::MATCHING_LOGICAL,
        Kind {
            matching: true,
            logical: false,
        },
    ] {
        let mut setting = Setting::new(3);
        setting.kind = kind;
        let (mut world, seen) = echo_world(&setting);
        for to in 0..3 {
            for count in 0..=MAX_ARGS {
                let args: Vec<u32> = (0..count as u32).map(|arg| arg ^ 0x8000_0001).collect();
                once(&mut world, 1, |am| {
                    done(am.try_request_short(to, 1, &args)).is_some()
                });
                let (request, reply) = (
                    seen.try_recv().expect("it came"),
                    seen.try_recv().expect("it came back"),
                );
                assert_eq!(
                    (request.at, request.from, request.is_reply, &request.args),
                    (to, 1, false, &args)
                );
                assert_eq!(
                    (reply.at, reply.from, reply.is_reply, &reply.args),
                    (1, to, true, &args)
                );
                assert!(request.bytes.is_empty() && reply.bytes.is_empty());
            }
        }
        assert!(seen.try_recv().is_err(), "nothing came twice");
        world.assert_clean();
    }
}

#[test]
fn mediums_of_all_sizes_are_answered() {
    for chunk in [
        doorbell_am::credit::Chunk::Small,
        doorbell_am::credit::Chunk::Large,
    ] {
        let mut setting = Setting::new(2);
        setting.settings.chunk = chunk;
        let (mut world, seen) = echo_world(&setting);
        for args in [0, 1, 2, 15, 16usize] {
            let most = world.am(0).max_request_medium(args);
            assert!(most >= world.am(0).max_medium());
            let values: Vec<u32> = (0..args as u32).collect();
            for length in [
                0,
                1,
                7,
                8,
                63,
                64,
                65,
                255,
                256,
                257,
                511,
                512,
                513,
                most - 1,
                most,
            ] {
                for to in 0..2 {
                    let payload = bytes(length, 3);
                    once(&mut world, 0, |am| {
                        done(am.try_request_medium(to, 2, &values, &payload)).is_some()
                    });
                    for is_reply in [false, true] {
                        let one = seen.try_recv().expect("it came");
                        assert_eq!(
                            (one.is_reply, &one.args, &one.bytes),
                            (is_reply, &values, &payload)
                        );
                    }
                }
            }
            let refused = world.am(0).try_request_medium(1, 2, &values, &bytes(most + 1, 0));
            assert!(matches!(refused, Err(AmError::TooLong { .. })));
        }
        world.assert_clean();
    }
}

#[test]
fn longs_of_all_sizes_land_before_their_handler_runs() {
    for packed in [true, false] {
        let mut setting = Setting::new(2);
        setting.settings.packed_long = packed;
        setting.segment = 1 << 18;
        let (mut world, seen) = echo_world(&setting);
        let room = world.am(0).max_packed_long(1);
        for length in [0, 1, 100, 500, room - 1, room, room + 1, 5000, 100_000] {
            for (to, in_segment) in [(0, true), (0, false), (1, true), (1, false)] {
                let payload = bytes(length, 9);
                let memory = Region::new(length.max(1)).expect("memory").whole();
                memory.write(0, &payload);
                let memory = memory.slice(0, length).expect("inside");
                world.am(0).segment().write(100, &payload);
                let source = || match in_segment {
                    true => Source::Segment {
                        offset: 100,
                        length: length as u64,
                    },
                    false => Source::from(memory.clone()),
                };
                let mut sent = None;
                once(&mut world, 0, |am| {
                    sent = done(am.try_request_long(to, 3, &[150_000], source(), 131_072));
                    sent.is_some()
                });
                let request = seen.try_recv().expect("it came");
                assert_eq!(
                    (request.at, request.place, &request.bytes),
                    (to, Some(131_072), &payload)
                );
                let reply = seen.try_recv().expect("it came back");
                assert_eq!(
                    (reply.at, reply.place, &reply.bytes),
                    (0, Some(150_000), &payload)
                );
                if let Some(handle) = sent.and_then(|sent| sent.source) {
                    assert!(world.am(0).try_source(handle).expect("it is known"));
                    assert!(world.am(0).try_sync(handle).expect("it went well"));
                }
            }
        }
        let stats = world.am(0).stats();
        // Those to oneself count as packed, and so do those of no bytes.
        assert_eq!(stats.requests[2] > 20, packed, "{stats:?}");
        assert!(
            stats.requests[3] > 3 && world.am(1).stats().replies[3] > 3,
            "{stats:?}"
        );
        world.assert_clean();
    }
}

#[test]
fn what_is_only_borrowed_travels_with_its_header() {
    let (mut world, seen) = echo_world(&Setting::new(2));
    let room = world.am(0).max_packed_long(2);
    let payload = bytes(room, 1);
    once(&mut world, 0, |am| {
        done(am.try_request_long(1, 3, &[0, 1], &payload, 64)).is_some()
    });
    assert_eq!(seen.try_recv().expect("it came").bytes, payload);
    let refused = world
        .am(0)
        .try_request_long(1, 3, &[0, 1], &bytes(room + 1, 1), 64);
    assert!(matches!(refused, Err(AmError::MustStay { .. })));
    world.assert_clean();
}

#[test]
fn a_handler_that_does_not_reply_is_answered_for() {
    let (mut world, seen) = echo_world(&Setting::new(2));
    for _ in 0..200 {
        once(&mut world, 0, |am| {
            done(am.try_request_short(1, 4, &[5])).is_some()
        });
        once(&mut world, 0, |am| {
            done(am.try_request_short(1, 99, &[5])).is_some()
        });
    }
    assert_eq!(
        seen.try_iter().count(),
        200,
        "one handler is there, and one is not"
    );
    let stats = world.am(1).stats();
    assert_eq!((stats.no_reply, stats.unhandled), (400, 200));
    world.assert_clean();
}

#[test]
fn messages_that_cannot_be_are_refused_and_take_nothing() {
    let (mut world, _seen) = echo_world(&Setting::new(2));
    let am = world.am(0);
    assert!(matches!(
        am.try_request_short(0, 1, &[0; 17]),
        Err(AmError::TooManyArgs { given: 17 })
    ));
    assert!(matches!(
        am.try_request_short(2, 1, &[]),
        Err(AmError::NoSuchRank { rank: 2, size: 2 })
    ));
    let outside = |error: Result<_, AmError>| matches!(error, Err(AmError::OutsideSegment { .. }));
    let theirs = am.segment_of(1).expect("a rank").size;
    assert!(outside(
        am.try_request_long(1, 3, &[], b"12345678", theirs - 7).map(drop)
    ));
    assert!(outside(am.try_request_long(1, 3, &[], b"1", u64::MAX).map(drop)));
    let beyond = Source::Segment {
        offset: u64::MAX,
        length: 2,
    };
    assert!(outside(am.try_request_long(1, 3, &[], beyond, 0).map(drop)));
    world.assert_clean();
}

#[test]
fn a_payload_written_in_place_goes_or_gives_everything_back() {
    let (mut world, seen) = echo_world(&Setting::new(2));
    for to in 0..2 {
        let am = world.am(0);
        let before = am.resources().request_chunks.0;
        let prepared = am
            .prepare_medium(to, 1, 10, 100)
            .expect("it can be")
            .done()
            .expect("at once");
        assert_eq!(prepared.len(), 100);
        drop(prepared);
        assert_eq!(am.resources().request_chunks.0, before);
        let mut prepared = am
            .prepare_medium(to, 1, 10, usize::MAX)
            .expect("it can be")
            .done()
            .expect("at once");
        assert_eq!(prepared.len(), 2048 - 8);
        assert_eq!(prepared.write(0, b"abc"), 3);
        assert_eq!(prepared.write(3, b"def"), 3);
        assert_eq!(prepared.write(2039, b"xy"), 1, "a payload ends with its room");
        prepared.commit(2, &[77], 6).expect("it was prepared");
        world.settle();
        let one = seen.try_recv().expect("it came");
        assert_eq!((one.at, one.args, one.bytes), (to, vec![77], b"abcdef".to_vec()));
        assert!(seen.try_recv().is_ok_and(|reply| reply.is_reply));
        let prepared = world
            .am(0)
            .prepare_medium(to, 1, 10, 100)
            .expect("it can be")
            .done()
            .expect("at once");
        assert!(prepared.commit(2, &[1], 101).is_err());
    }
    world.assert_clean();
}

#[test]
fn a_shorter_payload_is_negotiated_where_credits_are_few() {
    let (mut world, seen) = echo_world(&Setting::new(2));
    let am = world.am(0);
    // 24 credits: two full Mediums of 8 leave 8, and one of 3 leaves 5.
    for length in [2040, 2040, 3 * 256 - 8] {
        assert!(done(am.try_request_medium(1, 2, &[1], &bytes(length, 0))).is_some());
    }
    let prepared = am
        .prepare_medium(1, 1, 10, usize::MAX)
        .expect("it can be")
        .done()
        .expect("at once");
    assert_eq!(prepared.len(), 5 * 256 - 8);
    drop(prepared);
    assert!(
        !am.prepare_medium(1, 1, 5 * 256, usize::MAX)
            .expect("it can be")
            .is_done()
    );
    world.settle();
    assert_eq!(seen.try_iter().count(), 6);
    world.assert_clean();
}

/// All ranks send to all for a while, in all kinds and sizes, and every message is answered once.
#[test]
fn all_to_all_in_all_kinds() {
    let mut recycled = 0;
    for (ranks, each) in [(2, 400u32), (5, 150), (16, 40)] {
        let mut setting = Setting::new(ranks);
        setting.sim.faults.jitter = std::time::Duration::from_micros(3);
        let (mut world, seen) = echo_world(&setting);
        let mut next = vec![0u32; ranks as usize];
        let mut stalls = 0;
        world.run(|rank, am, _| {
            let number = next[rank as usize];
            if number == each {
                return Doing::Finished;
            }
            let to = (rank + number) % ranks;
            let payload = bytes((number as usize * 37) % 1900, number);
            let args = [number * 64, rank];
            let outcome = match number % 4 {
                0 => am.try_request_short(to, 1, &args),
                1 => am.try_request_medium(to, 2, &args, &payload),
                2 => am
                    .try_request_long(to, 3, &args[..1], &payload, 16_384)
                    .map(|sent| sent.map(drop)),
                _ => am.try_request_short(to, 4, &args),
            };
            match outcome.expect("it can be sent") {
                Try::Done(()) => {
                    next[rank as usize] += 1;
                    Doing::Worked
                }
                Try::Stalled(_) => {
                    stalls += 1;
                    Doing::Waits
                }
            }
        });
        world.settle();
        let seen: Vec<Seen> = seen.try_iter().collect();
        let requests = seen.iter().filter(|one| !one.is_reply).count() as u32;
        let replies = seen.iter().filter(|one| one.is_reply).count() as u32;
        assert_eq!(
            (requests, replies),
            (ranks * each, ranks * (each - each / 4)),
            "{ranks} ranks"
        );
        assert!(stalls > 0 || ranks == 16, "some rank of {ranks} had to wait");
        recycled += (0..ranks)
            .map(|rank| world.am(rank).stats().recycled)
            .sum::<u64>();
        world.assert_clean();
    }
    assert!(recycled > 0, "buffers are used again");
}

/// The blocking calls wait by the caller's function.
#[test]
fn a_wait_is_the_callers() {
    let counter = Arc::new(AtomicU64::new(0));
    let mut world = World::new(&Setting::new(2), |_| {
        let counter = Arc::clone(&counter);
        let mut handlers = Handlers::new();
        handlers
            .request(1, move |request| {
                counter.fetch_add(1, Ordering::Relaxed);
                drop(request);
            })
            .expect("free");
        handlers
    });
    let net = world.net.clone();
    let [first, second] = world.job.ranks_mut() else {
        panic!("two ranks")
    };
    let mut waits = 0;
    // The peer polls only when this rank waits: without waiting, 24 credits would be the end.
    for _ in 0..100 {
        first
            .request_short(1, 1, &[], &mut |_| {
                waits += 1;
                second.poll();
                let next = net.next_event().unwrap_or(net.now());
                net.advance_to(next);
                Some(net.now())
            })
            .expect("it is sent");
    }
    assert!(waits > 0);
    let mut left = 3;
    let ended = loop {
        let outcome = first.request_short(1, 1, &[], &mut |_| {
            left -= 1;
            (left > 0).then(|| net.now())
        });
        if let Err(error) = outcome {
            break error;
        }
    };
    assert!(
        matches!(ended, AmError::Ended(doorbell_am::Stall::Credits)),
        "{ended}"
    );
    world.settle();
    assert!(counter.load(Ordering::Relaxed) >= 100);
    world.assert_clean();
}
