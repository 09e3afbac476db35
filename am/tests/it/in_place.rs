//! Messages whose handlers run on the bytes where they arrived.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_am::{Handlers, Try};

use crate::messages::echo_world;
use crate::rig::{Setting, World};

/// Sends without waiting for anything.
fn sent<T>(tried: Result<Try<T>, doorbell_am::AmError>) -> T {
    tried.expect("it can be sent").done().expect("nothing is lacking")
}

#[test]
fn handlers_read_messages_where_they_arrived() {
    let (mut world, seen) = echo_world(&Setting::new(2));
    let payload: Vec<u8> = (0..900_u32).map(|at| (at * 3) as u8).collect();
    let lengths = [0, 1, 8, 16, 17, 64, 100, 511, 513, 900];
    // The first request finds nothing in hand for its reply, and is copied.
    sent(world.am(0).try_request_short(1, 1, &[]));
    world.settle();
    let before = (world.am(0).stats().in_place, world.am(1).stats().in_place);
    assert_eq!(before, (1, 0));
    assert_eq!(seen.try_iter().count(), 2);
    let mut messages = 0;
    for args in [&[][..], &[1], &[1, 2], &[1, 2, 3], &[4; 16]] {
        for length in lengths {
            let bytes = &payload[..length];
            sent(world.am(0).try_request_medium(1, 2, args, bytes));
            world.settle();
            let came: Vec<_> = seen.try_iter().collect();
            assert_eq!(came.len(), 2, "{args:?} {length}");
            for message in came {
                assert_eq!((message.args, message.bytes), (args.to_vec(), bytes.to_vec()));
            }
            messages += 1;
        }
        sent(world.am(0).try_request_short(1, 1, args));
        world.settle();
        assert_eq!(
            seen.try_iter().map(|message| message.args).collect::<Vec<_>>(),
            [args, args]
        );
        messages += 1;
    }
    let after = (world.am(0).stats().in_place, world.am(1).stats().in_place);
    assert_eq!(after, (1 + messages, messages));
    world.assert_clean();
}

#[test]
fn of_several_in_a_poll_the_first_is_handled_there_and_order_stays() {
    let (mut world, seen) = echo_world(&Setting::new(2));
    sent(world.am(0).try_request_short(1, 4, &[]));
    world.settle();
    let before = world.am(1).stats();
    for number in 0..8 {
        sent(world.am(0).try_request_short(1, 4, &[number]));
    }
    world.settle();
    let numbers: Vec<_> = seen.try_iter().skip(1).map(|message| message.args[0]).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
    let after = world.am(1).stats();
    let in_place = after.in_place - before.in_place;
    assert!((1..8).contains(&in_place), "{in_place}");
    assert_eq!(after.handled[0] - before.handled[0], 8);
    world.assert_clean();
}

#[test]
fn a_safe_poll_runs_no_request_handler() {
    let (mut world, seen) = echo_world(&Setting::new(2));
    sent(world.am(0).try_request_short(1, 4, &[]));
    world.settle();
    assert_eq!(seen.try_iter().count(), 1);
    sent(world.am(0).try_request_short(1, 4, &[7]));
    world.am(0).flush();
    while let Some(next) = world.net.next_event() {
        world.net.advance_to(next);
    }
    world.am(1).poll_safely();
    assert_eq!(seen.try_iter().count(), 0);
    world.am(1).poll();
    assert_eq!(seen.try_iter().count(), 1);
}

/// Handlers that count, and panic at the arguments 13 and 14: 1 takes requests, 11 their replies.
fn fragile(counts: &Arc<[AtomicU64; 2]>) -> Handlers {
    let mut handlers = Handlers::new();
    let count = Arc::clone(counts);
    let on_request = move |request: doorbell_am::Request<'_>| {
        count[0].fetch_add(1, Ordering::Relaxed);
        assert_ne!(request.args(), [13], "a request that is not wanted");
        let args = request.args();
        request.reply_short(11, args).expect("a short reply");
    };
    handlers.request(1, on_request).expect("a free number");
    let count = Arc::clone(counts);
    let on_reply = move |reply: doorbell_am::Reply<'_>| {
        count[1].fetch_add(1, Ordering::Relaxed);
        assert_ne!(reply.args(), [14], "a reply that is not wanted");
    };
    handlers.reply(11, on_reply).expect("a free number");
    handlers
}

#[test]
fn a_panic_of_a_handler_reaches_the_caller_and_the_message_counts_once() {
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let mut world = World::new(&Setting::new(2), |_| fragile(&counts));
    let now = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    sent(world.am(0).try_request_short(1, 1, &[1]));
    world.settle();
    assert_eq!(now(), [1, 1]);
    // In the request's handler there is no reply; in the reply's the chunk stays taken.
    for (arg, after) in [(13, [2, 1]), (14, [3, 2])] {
        sent(world.am(0).try_request_short(1, 1, &[arg]));
        let panic = catch_unwind(AssertUnwindSafe(|| world.settle())).expect_err("a handler panics");
        let text = panic.downcast_ref::<String>().expect("the text of an assertion");
        assert!(text.contains("that is not wanted"), "{text}");
        world.settle();
        assert_eq!(now(), after, "{arg}");
    }
    sent(world.am(0).try_request_short(1, 1, &[5]));
    world.settle();
    assert_eq!(now(), [4, 3]);
}

#[test]
fn a_panic_takes_no_reply_from_another_request() {
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let mut world = World::new(&Setting::new(2), |_| fragile(&counts));
    let now = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    for rank in [0, 1] {
        sent(world.am(rank).try_request_short(1 - rank, 1, &[1]));
        world.settle();
    }
    // A request of rank 1, and behind it a reply whose handler panics, are there when rank 0 polls.
    sent(world.am(0).try_request_short(1, 1, &[14]));
    sent(world.am(1).try_request_short(0, 1, &[2]));
    let arrive = |world: &World| {
        while let Some(next) = world.net.next_event() {
            world.net.advance_to(next);
        }
    };
    arrive(&world);
    world.am(1).poll();
    arrive(&world);
    let panic = catch_unwind(AssertUnwindSafe(|| world.am(0).poll()));
    assert!(panic.is_err(), "the reply's handler panics");
    world.settle();
    assert_eq!(now(), [4, 4], "each request has its reply");
}
