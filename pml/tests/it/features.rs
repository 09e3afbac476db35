//! What receives, probes and endings can do, one test each.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::memory::ConstLoan;
use doorbell_pml::{
    Aborted, LostReason, MultiArgs, Payload, PmlError, Protocol, Rank, RequestId, SendArgs, SendMode, Sent,
    Source, Target, Waiting,
};
use doorbell_sim::Change;

use crate::world::{Memory, World, bytes, empty, filled, pattern, recv_args, send_args, sim};

const LONG: usize = 100_000;

fn pair() -> World {
    World::new(2, sim(true, true, true), |_| ())
}

fn multi(from: impl Into<Source>, tag: u64, buffer: &Memory, min_free: u64) -> MultiArgs {
    MultiArgs {
        from: from.into(),
        context: 0,
        tag,
        ignore: 0,
        target: Target::Region(buffer.whole()),
        min_free,
        notify: false,
    }
}

#[test]
fn any_source_takes_messages_of_all_ranks() {
    let mut world = World::new(4, sim(true, true, true), |_| ());
    let into: Vec<Memory> = (0..3).map(|_| empty(8)).collect();
    let requests: Vec<RequestId> = into
        .iter()
        .map(|into| world.recv(0, Source::Any, 1, into))
        .collect();
    for rank in 1..4 {
        let _ = world.send(rank, 0, 1, &filled(8, rank as u64));
    }
    let mut sources = Vec::new();
    for (request, into) in requests.into_iter().zip(&into) {
        let status = world.wait(0, request).unwrap();
        assert_eq!(bytes(into), pattern(8, u64::from(status.source.0)));
        sources.push(status.source.0);
    }
    sources.sort_unstable();
    assert_eq!(sources, [1, 2, 3]);
}

#[test]
fn ignore_masks_leave_tag_bits_open() {
    let mut world = pair();
    for tag in [0x1_0000_0007, 0x2_0000_0007, 0x2_0000_0008] {
        let _ = world.send(0, 1, tag, &filled(8, tag));
    }
    world.passes(10);
    let into = empty(8);
    for (tag, ignore, expected) in [
        (0x2_0000_0000, 0xffff_ffff, 0x2_0000_0007),
        (0x0_0000_0008, !0xffff_ffff, 0x2_0000_0008),
        (0, u64::MAX, 0x1_0000_0007),
    ] {
        let request = world.pmls[1]
            .recv_loan(Source::Any, 0, tag, ignore, into.room())
            .unwrap();
        assert_eq!(world.wait(1, request).unwrap().tag, expected);
        assert_eq!(bytes(&into), pattern(8, expected));
    }
}

#[test]
fn contexts_are_apart() {
    let mut world = pair();
    let into = [empty(8), empty(8)];
    let receive = |world: &mut World, context: u16| {
        let room = into[usize::from(context)].room();
        world.pmls[1]
            .recv_loan(Source::Any, context, 0, u64::MAX, room)
            .unwrap()
    };
    let first = receive(&mut world, 0);
    world.pmls[0].inject(Rank(1), 1, 5, &pattern(8, 1)).unwrap();
    world.passes(10);
    assert!(!world.pmls[1].is_done(first));
    assert!(world.pmls[1].probe(Source::Any, 0, 0, u64::MAX).is_none());
    let second = receive(&mut world, 1);
    assert_eq!(world.wait(1, second).unwrap().tag, 5);
    world.pmls[0].inject(Rank(1), 0, 6, &pattern(8, 0)).unwrap();
    assert_eq!(world.wait(1, first).unwrap().tag, 6);
}

#[test]
fn probe_finds_and_leaves() {
    let mut world = pair();
    assert!(world.pmls[1].probe(Source::Any, 0, 3, 0).is_none());
    let (small, long) = (filled(8, 1), filled(LONG, 2));
    let _ = world.send(0, 1, 3, &small);
    let sent = world.send(0, 1, 4, &long);
    world.passes(10);
    for _ in 0..2 {
        let found = world.pmls[1].probe(Source::Any, 0, 3, 0).unwrap();
        assert_eq!((found.source, found.tag, found.length), (Rank(0), 3, 8));
        let found = world.pmls[1].probe(Rank(0).into(), 0, 4, 0).unwrap();
        assert_eq!(found.length, LONG as u64);
    }
    let into = empty(LONG);
    let request = world.recv(1, Rank(0), 4, &into);
    world.wait(1, request).unwrap();
    world.wait_sent(0, sent).unwrap();
    assert!(world.pmls[1].probe(Source::Any, 0, 4, 0).is_none());
    assert!(world.pmls[1].probe(Source::Any, 0, 3, 0).is_some());
}

#[test]
fn peek_sees_the_earliest_that_matches() {
    let mut world = pair();
    for tag in [5, 6, 7] {
        let _ = world.send(0, 1, tag, &filled(tag as usize, tag));
    }
    world.passes(10);
    let earliest = world.pmls[1].probe(Source::Any, 0, 0, u64::MAX).unwrap();
    assert_eq!((earliest.tag, earliest.length), (5, 5));
    assert_eq!(world.pmls[1].probe(Source::Any, 0, 4, 3).unwrap().tag, 5);
    assert_eq!(world.pmls[1].probe(Source::Any, 0, 6, 1).unwrap().tag, 6);
}

#[test]
fn claim_takes_a_message_out_of_matching_until_it_is_received() {
    for length in [8, LONG] {
        let mut world = pair();
        let (from, into) = (filled(length, 1), empty(length));
        let sent = world.send(0, 1, 3, &from);
        world.passes(10);
        let claimed = world.pmls[1].claim(Source::Any, 0, 3, 0).unwrap();
        assert_eq!(
            (claimed.envelope.source, claimed.envelope.length),
            (Rank(0), length as u64)
        );
        assert!(world.pmls[1].claim(Source::Any, 0, 3, 0).is_none());
        let other = world.recv(1, Source::Any, 3, &empty(length));
        world.passes(10);
        assert!(
            !world.pmls[1].is_done(other),
            "a claimed message matches no other receive"
        );
        let request = world.pmls[1]
            .recv_claimed(claimed.message, Target::Region(into.whole()), false)
            .unwrap();
        assert_eq!(world.wait(1, request).unwrap().length, length as u64);
        world.wait_sent(0, sent).unwrap();
        assert_eq!(bytes(&into), pattern(length, 1));
        let again = world.pmls[1].recv_claimed(claimed.message, Target::Region(into.whole()), false);
        assert!(matches!(again, Err(PmlError::StaleMessage)));
        assert!(world.pmls[1].cancel(other));
    }
}

#[test]
fn discard_completes_the_sender_by_every_protocol() {
    for (length, protocol) in [
        (8, Protocol::Auto),
        (LONG, Protocol::Get),
        (LONG, Protocol::Put),
        (LONG, Protocol::Fragments),
    ] {
        let mut world = World::new(2, sim(true, true, true), |config| config.protocol = protocol);
        let from = filled(length, 1);
        let sent = world.ssend(0, 1, 3, &from);
        world.passes(10);
        let claimed = world.pmls[1].claim(Source::Any, 0, 3, 0).unwrap();
        let envelope = world.pmls[1].discard(claimed.message).unwrap();
        assert_eq!(envelope.length, length as u64);
        world.wait_sent(0, sent).unwrap();
        assert!(matches!(
            world.pmls[1].discard(claimed.message),
            Err(PmlError::StaleMessage)
        ));
        world.passes(10);
        assert_eq!((world.drops(0), world.drops(1)), (0, 0));
    }
}

#[test]
fn multi_receive_fills_one_buffer_until_min_free() {
    let mut world = pair();
    let buffer = empty(1000);
    // Two are here already, the others come.
    for at in 0..2 {
        let _ = world.send(0, 1, 3, &filled(100, at));
    }
    world.passes(10);
    let request = world.pmls[1].recv_multi(multi(Rank(0), 3, &buffer, 150)).unwrap();
    for at in 2..10 {
        let _ = world.send(0, 1, 3, &filled(100, at));
    }
    let status = world.wait(1, request).unwrap();
    // After the ninth message 100 bytes are left: fewer than 150.
    assert_eq!(status.length, 900);
    for at in 0..9 {
        let delivery = world.pmls[1].next_delivery().unwrap();
        assert_eq!(
            (delivery.request, delivery.offset, delivery.delivered),
            (request, at * 100, 100)
        );
        assert!(delivery.intact && delivery.status.source == Rank(0) && delivery.status.length == 100);
        assert_eq!(delivery.last, at == 8);
        assert_eq!(bytes(&buffer)[at as usize * 100..][..100], pattern(100, at));
    }
    assert!(world.pmls[1].next_delivery().is_none());
    assert!(
        world.pmls[1].probe(Rank(0).into(), 0, 3, 0).is_some(),
        "the tenth waits"
    );
}

#[test]
fn multi_receive_takes_long_messages_and_cuts_the_last() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        let mut world = World::new(2, sim(true, true, true), |config| config.protocol = protocol);
        let buffer = empty(250_000);
        let request = world.pmls[1]
            .recv_multi(multi(Source::Any, 3, &buffer, 1))
            .unwrap();
        let from: Vec<Memory> = (0..3).map(|at| filled(LONG, at)).collect();
        let sends: Vec<Sent> = from.iter().map(|from| world.send(0, 1, 3, from)).collect();
        assert_eq!(world.wait(1, request).unwrap().length, 250_000);
        let mut deliveries: Vec<_> = std::iter::from_fn(|| world.pmls[1].next_delivery()).collect();
        deliveries.sort_by_key(|delivery| delivery.offset);
        assert_eq!(deliveries.len(), 3);
        for (at, delivery) in deliveries.iter().enumerate() {
            let fitted = if at == 2 { 50_000 } else { LONG };
            assert_eq!(
                (delivery.offset, delivery.delivered),
                ((at * LONG) as u64, fitted as u64)
            );
            assert_eq!(delivery.status.length, LONG as u64);
            assert_eq!(
                bytes(&buffer)[at * LONG..][..fitted],
                pattern(LONG, at as u64)[..fitted]
            );
        }
        for sent in sends {
            world.wait_sent(0, sent).unwrap();
        }
    }
}

#[test]
fn multi_receive_can_be_cancelled_and_aborted() {
    let mut world = pair();
    let buffer = empty(100);
    let first = world.pmls[1].recv_multi(multi(Rank(0), 3, &buffer, 1)).unwrap();
    let _ = world.send(0, 1, 3, &filled(10, 0));
    world.passes(10);
    assert!(world.pmls[1].cancel(first));
    assert!(matches!(world.wait(1, first), Err(PmlError::Cancelled { .. })));
    assert!(world.pmls[1].next_delivery().is_some());
    let second = world.pmls[1].recv_multi(multi(Rank(0), 3, &buffer, 1)).unwrap();
    let _ = world.send(0, 1, 3, &filled(10, 0));
    world.passes(10);
    assert_eq!(world.pmls[1].abort(second), Aborted::Now);
    assert!(
        world.pmls[1].next_delivery().is_none(),
        "the deliveries of an aborted request are gone"
    );
    let _ = world.send(0, 1, 3, &filled(10, 0));
    world.passes(10);
    assert!(world.pmls[1].probe(Source::Any, 0, 3, 0).is_some());
}

/// Synchronous messages are announced with all of their bytes, so the transfers of those that wait end with
/// the posting.
#[test]
fn a_multi_receive_goes_on_after_what_had_waited_for_it() {
    let mut world = pair();
    let sync = |world: &mut World| {
        let bytes = filled(10, 1);
        let mut args = send_args(1, 3, Payload::Region(bytes.whole()));
        args.mode = SendMode::Synchronous;
        world.pmls[0].send(args).unwrap()
    };
    let early = [sync(&mut world), sync(&mut world)];
    world.passes(10);
    let buffer = empty(100);
    let request = world.pmls[1].recv_multi(multi(Rank(0), 3, &buffer, 1)).unwrap();
    assert!(!world.pmls[1].is_done(request), "there is room for more");
    let late = sync(&mut world);
    for sent in early.into_iter().chain([late]) {
        world.wait_sent(0, sent).unwrap();
    }
    assert_eq!(std::iter::from_fn(|| world.pmls[1].next_delivery()).count(), 3);
    assert_eq!(world.pmls[1].abort(request), Aborted::Now);
    assert_eq!(world.pmls[1].live_requests(), 0);
}

/// The room of a long message is about to be exposed when its receive is aborted.
#[test]
fn a_multi_receive_that_is_aborted_before_its_room_is_exposed_frees_each_request_once() {
    let mut world = World::new(2, sim(false, true, true), |config| {
        config.protocol = Protocol::Put
    });
    let sent = world.send(0, 1, 3, &filled(LONG, 0));
    world.passes(10);
    let buffer = empty(2 * LONG);
    let first = world.pmls[1].recv_multi(multi(Rank(0), 3, &buffer, 1)).unwrap();
    assert_eq!(world.pmls[1].abort(first), Aborted::Now);
    assert_eq!(world.pmls[1].live_requests(), 0);
    world.wait_sent(0, sent).unwrap();
    // Each slot is given out once.
    let into = [empty(10), empty(10)];
    let requests = [0, 1].map(|at| world.recv(1, Rank(0), 5 + at as u64, &into[at]));
    assert_ne!(requests[0], requests[1]);
    for at in [1, 0] {
        let _ = world.send(0, 1, 5 + at as u64, &filled(10, at as u64));
        world.wait(1, requests[at]).unwrap();
        assert_eq!(bytes(&into[at]), pattern(10, at as u64));
    }
}

#[test]
fn inject_takes_the_bytes_and_leaves_no_request() {
    let mut world = pair();
    let mut scratch = pattern(64, 1);
    world.pmls[0].inject(Rank(1), 0, 1, &scratch).unwrap();
    scratch.fill(0);
    let into = empty(64);
    let request = world.recv(1, Rank(0), 1, &into);
    world.wait(1, request).unwrap();
    assert_eq!(bytes(&into), pattern(64, 1));
    assert_eq!(world.pmls[0].live_requests(), 0);
}

#[test]
fn inject_waits_for_a_full_rail_within_its_limit() {
    let mut config = sim(true, true, true);
    config.queue_depth = 4;
    let mut world = World::new(2, config, |config| config.inject_limit = 1000);
    let mut taken = 0;
    let refused = loop {
        match world.pmls[0].inject(Rank(1), 0, 1, &pattern(100, taken)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, PmlError::InjectFull { waiting: 1000 }));
    assert_eq!(taken, 14);
    let too_long = world.pmls[0].inject(Rank(1), 0, 1, &[0; 1001]);
    assert!(matches!(
        too_long,
        Err(PmlError::InjectTooLong {
            length: 1001,
            limit: 1000
        })
    ));
    for at in 0..taken {
        let into = empty(100);
        let request = world.recv(1, Rank(0), 1, &into);
        world.wait(1, request).unwrap();
        assert_eq!(bytes(&into), pattern(100, at));
    }
    world.passes(10);
    assert_eq!(world.pmls[0].live_requests(), 0);
    world.pmls[0].inject(Rank(1), 0, 1, &[0; 1000]).unwrap();
}

#[test]
fn a_buffered_send_is_complete_at_once_whatever_its_layout_and_length() {
    let mut config = sim(true, true, true);
    config.queue_depth = 2;
    let mut world = World::new(2, config, |config| config.inject_limit = 200_000);
    let buffered = |world: &mut World, payload: Payload| {
        world.pmls[0].send(SendArgs {
            mode: SendMode::Buffered,
            notify: true,
            ..send_args(1, 1, payload)
        })
    };
    let memory = filled(100_000, 1);
    let halves = |length: usize| {
        let (first, second) = (
            memory.loan().part(0, length / 2),
            memory.loan().part(length / 2, length - length / 2),
        );
        Payload::Parts([second, first].into())
    };
    let lengths = [8, 8, 8, 3000, 100_000, 90_000];
    for length in lengths {
        assert!(matches!(buffered(&mut world, halves(length)), Ok(Sent::Done)));
    }
    let full = buffered(&mut world, halves(10_000)).unwrap_err();
    assert!(matches!(full, PmlError::InjectFull { .. }), "{full}");
    let long = world.pmls[0].send(SendArgs {
        mode: SendMode::Buffered,
        ..send_args(1, 1, Payload::Loan(ConstLoan::of_static(vec![0; 200_001].leak())))
    });
    assert!(matches!(long, Err(PmlError::InjectTooLong { .. })));
    memory.write(0, &[0; 100_000]);
    for length in lengths {
        let into = empty(length);
        let request = world.recv(1, Rank(0), 1, &into);
        world.wait(1, request).unwrap();
        let mut expected = pattern(100_000, 1)[..length].to_vec();
        expected.rotate_left(length / 2);
        assert_eq!(bytes(&into), expected);
    }
    world.passes(10);
    assert_eq!(world.pmls[0].live_requests(), 0);
    assert!(world.pmls[0].next_completion().is_none(), "there was no request");
    assert!(
        matches!(buffered(&mut world, halves(100_000)), Ok(Sent::Done)),
        "the room came back"
    );
}

#[test]
fn cancel_ends_an_unmatched_receive_and_nothing_else() {
    let mut world = pair();
    let into = empty(8);
    let request = world.recv(1, Rank(0), 1, &into);
    assert!(world.pmls[1].cancel(request));
    assert!(!world.pmls[1].cancel(request));
    assert!(matches!(world.wait(1, request), Err(PmlError::Cancelled { .. })));
    assert!(!world.pmls[1].cancel(request), "a stale id");
    let _ = world.send(0, 1, 1, &filled(8, 1));
    world.passes(10);
    assert_eq!(bytes(&into), [0; 8], "a cancelled receive takes nothing");
    let request = world.recv(1, Rank(0), 1, &into);
    assert!(!world.pmls[1].cancel(request), "it is complete");
    world.wait(1, request).unwrap();
}

#[test]
fn cancel_ends_a_send_while_nothing_has_left() {
    let mut config = sim(true, true, true);
    config.queue_depth = 2;
    let mut world = World::new(2, config, |_| ());
    let from: Vec<Memory> = (0..5).map(|at| filled(8, at)).collect();
    let sent: Vec<Sent> = from.iter().map(|from| world.send(0, 1, 1, from)).collect();
    assert_eq!(sent[..2], [Sent::Done, Sent::Done]);
    let Sent::Pending(third) = sent[2] else {
        panic!("the rail is full")
    };
    assert!(world.pmls[0].cancel(third));
    assert!(matches!(world.wait(0, third), Err(PmlError::Cancelled { .. })));
    for expected in [0, 1, 3, 4] {
        let into = empty(8);
        let request = world.recv(1, Rank(0), 1, &into);
        world.wait(1, request).unwrap();
        assert_eq!(bytes(&into), pattern(8, expected));
    }
    world.passes(10);
    let long = filled(LONG, 1);
    let Sent::Pending(announced) = world.send(0, 1, 1, &long) else {
        panic!("it is announced")
    };
    assert!(!world.pmls[0].cancel(announced));
}

#[test]
fn self_send_in_every_order_and_layout() {
    let mut world = pair();
    for length in [0, 8, 5000, 200_000] {
        for posted_first in [true, false] {
            let (from, into) = (filled(length, 1), empty(length));
            let mut request = posted_first.then(|| world.recv(0, Rank(0), 1, &into));
            let sent = world.send(0, 0, 1, &from);
            assert_eq!(sent == Sent::Done, posted_first || length <= 64 << 10);
            let request = request
                .take()
                .unwrap_or_else(|| world.recv(0, Source::Any, 1, &into));
            let status = world.wait(0, request).unwrap();
            assert_eq!((status.source, status.length), (Rank(0), length as u64));
            world.wait_sent(0, sent).unwrap();
            assert_eq!(bytes(&into), pattern(length, 1));
        }
    }
    let from = filled(30, 1);
    let loan = from.loan();
    let parts = Payload::Parts(Box::new([loan.part(20, 10), loan.part(0, 20)]));
    let _ = world.pmls[0].send(send_args(0, 1, parts)).unwrap();
    let into = empty(20);
    let request = world.recv(0, Rank(0), 1, &into);
    assert!(matches!(
        world.wait(0, request),
        Err(PmlError::Truncated {
            length: 30,
            room: 20,
            ..
        })
    ));
    assert_eq!(bytes(&into)[..10], pattern(30, 1)[20..]);
}

#[test]
fn synchronous_self_send_waits_for_its_receive_and_can_be_cancelled_or_discarded() {
    let mut world = pair();
    let (from, into) = (filled(8, 1), empty(8));
    let Sent::Pending(first) = world.ssend(0, 0, 1, &from) else {
        panic!("it is synchronous")
    };
    let Sent::Pending(second) = world.ssend(0, 0, 2, &from) else {
        panic!("it is synchronous")
    };
    let Sent::Pending(third) = world.ssend(0, 0, 3, &from) else {
        panic!("it is synchronous")
    };
    let Sent::Pending(fourth) = world.ssend(0, 0, 4, &from) else {
        panic!("it is synchronous")
    };
    assert!(!world.pmls[0].is_done(first));
    let request = world.recv(0, Rank(0), 1, &into);
    world.wait(0, request).unwrap();
    world.wait(0, first).unwrap();
    assert!(world.pmls[0].cancel(second));
    assert!(matches!(world.wait(0, second), Err(PmlError::Cancelled { .. })));
    assert!(world.pmls[0].probe(Source::Any, 0, 2, 0).is_none());
    let claimed = world.pmls[0].claim(Source::Any, 0, 3, 0).unwrap();
    world.pmls[0].discard(claimed.message).unwrap();
    world.wait(0, third).unwrap();
    let claimed = world.pmls[0].claim(Source::Any, 0, 4, 0).unwrap();
    assert_eq!(world.pmls[0].abort(fourth), Aborted::Now);
    let request = world.pmls[0]
        .recv_claimed(claimed.message, Target::Region(into.whole()), false)
        .unwrap();
    assert!(matches!(
        world.wait(0, request),
        Err(PmlError::SendAborted { .. })
    ));
    assert_eq!(world.pmls[0].live_requests(), 0);
}

#[test]
fn completions_come_in_the_order_of_their_ends_for_requests_with_notification() {
    let mut world = pair();
    let into: Vec<Memory> = (0..3).map(|_| empty(8)).collect();
    let mut requests = Vec::new();
    for (tag, into) in into.iter().enumerate() {
        let mut args = recv_args(Rank(0), tag as u64, Target::Region(into.whole()));
        args.notify = tag != 1;
        requests.push(world.pmls[1].recv(args).unwrap());
    }
    for tag in [2, 1, 0] {
        let _ = world.send(0, 1, tag, &filled(8, tag));
    }
    world.until("all have arrived", |world| {
        requests.iter().all(|id| world.pmls[1].is_done(*id))
    });
    assert_eq!(world.pmls[1].next_completion(), Some(requests[2]));
    assert_eq!(world.pmls[1].next_completion(), Some(requests[0]));
    assert_eq!(world.pmls[1].next_completion(), None);
    let long = filled(LONG, 1);
    let args = SendArgs {
        notify: true,
        mode: SendMode::Synchronous,
        ..send_args(1, 9, Payload::Region(long.whole()))
    };
    let Sent::Pending(sent) = world.pmls[0].send(args).unwrap() else {
        panic!("it is synchronous")
    };
    let room = empty(LONG);
    let request = world.recv(1, Rank(0), 9, &room);
    world.wait(1, request).unwrap();
    world.until("the send has ended", |world| world.pmls[0].is_done(sent));
    assert_eq!(world.pmls[0].next_completion(), Some(sent));
    world.pmls[0].test(sent).unwrap().unwrap();
}

#[test]
fn stale_request_ids_name_nothing() {
    let mut world = pair();
    let into = empty(8);
    let request = world.recv(1, Rank(0), 1, &into);
    let _ = world.send(0, 1, 1, &filled(8, 1));
    world.wait(1, request).unwrap();
    assert!(world.pmls[1].is_done(request));
    assert!(matches!(world.pmls[1].test(request), Some(Err(PmlError::StaleRequest(id))) if id == request));
    assert_eq!(world.pmls[1].abort(request), Aborted::Now);
    assert!(!world.pmls[1].cancel(request));
    assert!(world.pmls[1].explain(request).is_none());
    world.pmls[1].detach(request);
    let next = world.recv(1, Rank(0), 1, &into);
    assert_ne!(next, request, "the place is used again, the id is not");
    for bits in [0, u64::MAX, 1 << 32, u64::from(u32::MAX)] {
        let id = RequestId::from_bits(bits);
        assert!(world.pmls[1].is_done(id) && world.pmls[1].abort(id) == Aborted::Now);
    }
    assert!(!world.pmls[1].is_done(next));
}

#[test]
fn an_aborted_receive_is_never_written_again() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        for passes in 0..40 {
            let mut world = World::new(2, sim(true, true, true), |config| config.protocol = protocol);
            let (from, into) = (filled(LONG, 1), empty(LONG));
            let request = world.recv(1, Rank(0), 1, &into);
            let sent = world.send(0, 1, 1, &from);
            world.passes(passes);
            let mut waited = 0;
            while world.pmls[1].abort(request) == Aborted::Wait {
                world.pass();
                waited += 1;
                assert!(waited < 1000, "{protocol:?}");
            }
            into.write(0, &vec![0xee; LONG]);
            // Aborted before the announcement came: it waits for another message.
            world.passes(200);
            world.discard_all(1);
            world.wait_sent(0, sent).unwrap();
            world.passes(200);
            assert!(
                bytes(&into).iter().all(|byte| *byte == 0xee),
                "{protocol:?} after {passes} passes"
            );
            assert_eq!(world.pmls[0].live_requests() + world.pmls[1].live_requests(), 0);
            // The pair works on.
            let request = world.recv(1, Rank(0), 2, &into);
            let sent = world.send(0, 1, 2, &from);
            world.wait(1, request).unwrap();
            world.wait_sent(0, sent).unwrap();
        }
    }
}

#[test]
fn an_aborted_send_ends_its_receive_with_an_error_or_after_the_bytes() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        for passes in 0..40 {
            let mut world = World::new(2, sim(true, true, true), |config| config.protocol = protocol);
            let (from, into) = (filled(LONG, 1), empty(LONG));
            let sent = world.send(0, 1, 1, &from);
            let mut request = (passes % 2 == 0).then(|| world.recv(1, Rank(0), 1, &into));
            world.passes(passes);
            if let Sent::Pending(id) = sent {
                while world.pmls[0].abort(id) == Aborted::Wait {
                    world.pass();
                }
                assert!(world.pmls[0].is_done(id));
            }
            from.write(0, &vec![0xee; LONG]);
            let request = request.take().unwrap_or_else(|| world.recv(1, Rank(0), 1, &into));
            match world.wait(1, request) {
                Ok(_) => assert_eq!(
                    bytes(&into),
                    pattern(LONG, 1),
                    "{protocol:?} after {passes} passes"
                ),
                Err(PmlError::SendAborted { source_rank, tag }) => {
                    assert_eq!((source_rank, tag), (Rank(0), 1))
                }
                Err(other) => panic!("{other}"),
            }
            world.passes(200);
            assert_eq!(world.pmls[0].live_requests() + world.pmls[1].live_requests(), 0);
        }
    }
}

#[test]
fn a_detached_request_frees_itself() {
    let mut world = pair();
    let (from, into) = (filled(LONG, 1), empty(LONG));
    let Sent::Pending(sent) = world.pmls[0]
        .send(send_args(1, 1, Payload::Region(from.whole())))
        .unwrap()
    else {
        panic!("it is announced");
    };
    world.pmls[0].detach(sent);
    let request = world.pmls[1]
        .recv(recv_args(Rank(0), 1, Target::Region(into.whole())))
        .unwrap();
    world.pmls[1].detach(request);
    world.until("both are gone", |world| {
        world.pmls.iter().all(|pml| pml.live_requests() == 0)
    });
    assert_eq!(bytes(&into), pattern(LONG, 1));
}

#[test]
fn explain_names_each_wait() {
    let mut world = pair();
    let into = empty(8);
    let request = world.recv(1, Rank(0), 0x2a, &into);
    let told = world.pmls[1].explain(request).unwrap();
    assert_eq!(
        (told.waiting, told.peer),
        (Waiting::Message, Source::Rank(Rank(0)))
    );
    let text = told.to_string();
    assert!(
        text.contains("rank 1 waits for a message from rank 0") && text.contains("0x2a"),
        "{text}"
    );
    let any = world.recv(1, Source::Any, 1, &into);
    assert_eq!(world.pmls[1].explain(any).unwrap().peer, Source::Any);
    let from = filled(LONG, 1);
    let Sent::Pending(sent) = world.send(0, 1, 7, &from) else {
        panic!("it is announced")
    };
    world.passes(10);
    let told = world.pmls[0].explain(sent).unwrap();
    assert_eq!((told.waiting, told.length), (Waiting::Reader, LONG as u64));
    assert!(told.to_string().contains("sim"), "{told}");
    let report = world.pmls[0].peer(Rank(1)).unwrap();
    assert!(report.lost.is_none() && report.paths.len() == 1 && report.paths[0].up);
    assert!(world.pmls[0].peer(Rank(2)).is_none());
}

#[test]
fn explain_reports_that_no_rail_is_up_which_are_called_and_until_when() {
    let mut world = World::with_planes(2, 2, 7, sim(true, true, true), |pml| {
        pml.patience = std::time::Duration::from_secs(2);
    });
    let into = empty(8);
    let receive = world.recv(0, Rank(1), 1, &into);
    for plane in world.planes.clone() {
        world.net.change(Change::PlaneDown(plane));
    }
    world.until("both rails are down", |world| {
        world.pmls[0].counters().paths_down == 2
    });
    let from = filled(8, 1);
    let Sent::Pending(sent) = world.send(0, 1, 7, &from) else {
        panic!("there is no path")
    };
    let told = world.pmls[0].explain(sent).unwrap();
    assert_eq!(told.waiting, Waiting::Path);
    let no_path = told.no_path.clone().unwrap();
    assert_eq!(no_path.called.len(), 2);
    assert!(no_path.left.as_millis() > 1900, "{no_path:?}");
    let text = told.to_string();
    assert!(
        text.starts_with("rank 0 waits until rank 1 can be reached (") && !text.contains("does it poll"),
        "{text}"
    );
    for part in [
        "no rail to it is up",
        "called over sim",
        "ms more, and is lost then",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // Whatever else is waited for from this peer waits for a path, too.
    let told = world.pmls[0].explain(receive).unwrap();
    assert_eq!(told.waiting, Waiting::Message);
    assert!(told.to_string().contains("no rail to it is up"), "{told}");
    world.leap(std::time::Duration::from_secs(3));
    let lost = world.wait(0, sent).unwrap_err().to_string();
    assert!(
        lost.contains("rank 1 is lost") && lost.contains("check the cable"),
        "{lost}"
    );
}

#[test]
fn errors_say_of_what_they_are_and_what_to_do_next() {
    let mut world = pair();
    let pieces = [empty(8), empty(8), empty(8)];
    let target = Target::Parts(pieces.iter().map(Memory::room).collect());
    let args = MultiArgs {
        target,
        ..multi(Rank(0), 3, &empty(8), 1)
    };
    let refused = world.pmls[1].recv_multi(args).unwrap_err();
    assert!(
        matches!(refused, PmlError::MultiPieces { pieces: 3 }),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("one piece of memory, not 3"),
        "{refused}"
    );
    assert_eq!(world.pmls[1].live_requests(), 0);
    let into = empty(8);
    let request = world.recv(1, Rank(0), 0x2a, &into);
    assert!(world.pmls[1].cancel(request));
    let text = world.wait(1, request).unwrap_err().to_string();
    for part in [
        &request.to_string(),
        "0x2a",
        "cancelled by this rank",
        "make it again",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let aborted = PmlError::SendAborted {
        source_rank: Rank(4),
        tag: 0x2a,
    };
    assert!(aborted.to_string().contains("receive again"), "{aborted}");
    // Each reason for a loss has a next step of its own.
    let reasons = [
        LostReason::Peer(DownReason::Closed),
        LostReason::Peer(DownReason::Died),
        LostReason::Peer(DownReason::Hostile),
        LostReason::Peer(DownReason::Silent),
        LostReason::Peer(DownReason::Resources),
        LostReason::Peer(DownReason::Control),
        LostReason::Link,
        LostReason::Device,
        LostReason::NotReclaimable,
        LostReason::Flood,
    ];
    for (at, reason) in reasons.into_iter().enumerate() {
        let text = PmlError::PeerLost {
            rank: Rank(4),
            reason,
        }
        .to_string();
        assert!(
            text.ends_with(reason.advice()) && text.contains(reason.as_str()),
            "{text}"
        );
        assert!(
            reasons[..at]
                .iter()
                .all(|other| other.advice() != reason.advice())
        );
    }
}

#[test]
fn ranks_outside_the_job_and_bad_settings_are_refused() {
    let mut world = pair();
    let into = empty(8);
    assert!(matches!(
        world.pmls[0].inject(Rank(2), 0, 0, b"x"),
        Err(PmlError::NoSuchRank { rank: 2, size: 2 })
    ));
    let refused = world.pmls[0].recv_loan(Rank(9).into(), 0, 0, 0, into.room());
    assert!(matches!(refused, Err(PmlError::NoSuchRank { rank: 9, size: 2 })));
    let mut config = doorbell_pml::PmlConfig::new(Rank(0), 2, 1);
    let mut alone = doorbell_pml::Pml::<doorbell_sim::SimRail>::new(config.clone()).unwrap();
    assert!(matches!(
        alone.inject(Rank(1), 0, 0, b"x"),
        Err(PmlError::NoRail { rank: Rank(1) })
    ));
    config.pipeline = 0;
    let refused = doorbell_pml::Pml::<doorbell_sim::SimRail>::new(config);
    assert!(matches!(
        refused,
        Err(PmlError::BadConfig { name: "pipeline", .. })
    ));
}
