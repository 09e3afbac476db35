//! Buffers for many messages.

use std::ffi::c_int;

use libc::iovec;
use libfabric_sys::*;

use crate::client::{Client, Object, Room, Wants, name_of, pattern, pointer, queue, read, until};
use crate::pair::run;

const BUFFER: usize = 20_000;
const MIN: usize = 3000;
const MESSAGES: usize = 400;

fn set_min(endpoint: &Object<fid_ep>, bytes: usize) {
    // SAFETY: the value has this length.
    let answer = unsafe {
        fi_setopt(
            endpoint.0.cast(),
            FI_OPT_ENDPOINT,
            FI_OPT_MIN_MULTI_RECV as c_int,
            (&raw const bytes).cast(),
            size_of::<usize>(),
        )
    };
    assert_eq!(answer, 0);
}

fn post(client: &Client, room: &mut Room, context: usize) {
    post_at(&client.endpoint, room, context);
}

fn post_at(endpoint: &Object<fid_ep>, room: &mut Room, context: usize) {
    let list = [room.piece(0, room.len())];
    let msg = fi_msg {
        msg_iov: list.as_ptr(),
        desc: std::ptr::null_mut(),
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        context: pointer(context),
        data: 0,
    };
    // SAFETY: the memory stays until the buffer was released.
    assert_eq!(unsafe { fi_recvmsg(endpoint.0, &msg, FI_MULTI_RECV) }, 0);
}

fn size(number: usize) -> usize {
    [0, 8, 500, 3000][number % 4]
}

#[test]
fn each_buffer_is_released_once_with_its_last_message() {
    run(
        "multi::each_buffer_is_released_once_with_its_last_message",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            if role.is_first() {
                for number in 0..MESSAGES {
                    client.send(&pattern(size(number), number), None);
                }
                role.meet(&client);
                return;
            }
            set_min(&client.endpoint, MIN);
            let mut rooms = [Room::new(BUFFER), Room::new(BUFFER)];
            post(&client, &mut rooms[0], 0);
            post(&client, &mut rooms[1], 1);
            let (mut number, mut filled, mut released) = (0, [0; 2], 0);
            while number < MESSAGES {
                let entry = client.next().entry();
                let buffer = entry.op_context.addr();
                let start = rooms[buffer].start().addr();
                if entry.flags & FI_RECV != 0 {
                    let at = entry.buf.addr() - start;
                    assert_eq!(
                        (at, entry.len),
                        (filled[buffer], size(number)),
                        "message {number}"
                    );
                    assert_eq!(
                        rooms[buffer].bytes()[at..at + entry.len],
                        pattern(size(number), number)
                    );
                    filled[buffer] += entry.len;
                    number += 1;
                }
                if entry.flags & FI_MULTI_RECV != 0 {
                    assert!(
                        BUFFER - filled[buffer] < MIN,
                        "released with {} bytes",
                        filled[buffer]
                    );
                    (filled[buffer], released) = (0, released + 1);
                    post(&client, &mut rooms[buffer], buffer);
                }
            }
            assert!(released > 10, "{released}");
            role.meet(&client);
        },
    );
}

/// Sends two messages that end when they are in the receiver's memory.
fn send_two(client: &Client) {
    let messages = [pattern(100, 0), pattern(100, 1)];
    for bytes in &messages {
        let list = [iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }];
        let msg = fi_msg {
            msg_iov: list.as_ptr(),
            desc: std::ptr::null_mut(),
            iov_count: 1,
            addr: client.peer,
            context: pointer(1),
            data: 0,
        };
        // SAFETY: the memory stays until the sends have ended.
        client.retry(|| unsafe { fi_sendmsg(client.endpoint.0, &msg, FI_DELIVERY_COMPLETE | FI_COMPLETION) });
    }
    for _ in &messages {
        client.next().entry();
    }
}

/// Receives them, and returns whether the release of the buffer had an entry of its own.
fn release_of_two(client: &Client, room: &mut Room) -> bool {
    for number in 0.. {
        let entry = client.next().entry();
        assert_eq!(entry.op_context.addr(), 4);
        let is_released = entry.flags & FI_MULTI_RECV != 0;
        if entry.flags & FI_RECV == 0 {
            assert_eq!(
                (entry.flags, entry.len, number),
                (FI_MULTI_RECV, 0, 2),
                "a release alone"
            );
            return true;
        }
        let at = number * 100;
        assert_eq!((entry.buf.addr() - room.start().addr(), entry.len), (at, 100));
        assert_eq!(room.bytes()[at..at + 100], pattern(100, number));
        assert!(!is_released || number == 1, "released before its last message");
        if is_released {
            break;
        }
    }
    false
}

/// A client takes an entry with `FI_RECV` for a message, and reads where it points.
#[test]
fn a_release_without_a_message_has_no_other_flag() {
    run(
        "multi::a_release_without_a_message_has_no_other_flag",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            if role.is_first() {
                role.meet(&client);
                send_two(&client);
            } else {
                set_min(&client.endpoint, 8);
                let mut room = Room::new(200);
                post(&client, &mut room, 4);
                role.meet(&client);
                assert!(
                    release_of_two(&client, &mut room),
                    "it came with the last message"
                );
            }
            role.meet(&client);
        },
    );
}

/// By fi_msg(3) the release of a buffer has an entry also where no receive has one.
#[test]
fn a_buffer_is_released_by_an_entry_also_where_completions_are_selective() {
    const ROUNDS: usize = 5;
    let test = "multi::a_buffer_is_released_by_an_entry_also_where_completions_are_selective";
    run(test, |mut role, library| {
        let is_first = role.is_first();
        let wants = Wants {
            selective: !is_first,
            ..Wants::default()
        };
        let client = Client::meet(&mut role, library, &wants);
        if is_first {
            for round in 0..ROUNDS {
                role.meet(&client);
                (0..3).for_each(|number| client.send(&pattern(100, round + number), None));
            }
        } else {
            set_min(&client.endpoint, 101);
            for round in 0..ROUNDS {
                let mut room = Room::new(300);
                post(&client, &mut room, round);
                role.meet(&client);
                let entry = client.next().entry();
                let (flags, context) = (entry.flags, entry.op_context.addr());
                assert_eq!((flags, entry.len, context), (FI_MULTI_RECV, 0, round));
                for number in 0..2 {
                    let at = number * 100;
                    assert_eq!(room.bytes()[at..at + 100], pattern(100, round + number));
                }
                // The third one had no room there.
                let mut last = Room::new(100);
                client.receive(&mut last, None, FI_ADDR_UNSPEC, 77);
                until("the third message does not come", || {
                    assert!(client.read().is_none());
                    (last.bytes() == pattern(100, round + 2)).then_some(())
                });
            }
            // What is cancelled ends with a failure, and has no release.
            let mut room = Room::new(300);
            post(&client, &mut room, 9);
            // SAFETY: the endpoint is open.
            assert_eq!(unsafe { fi_cancel(client.endpoint.0.cast(), pointer(9)) }, 0);
            assert_eq!(client.next().failure().err, FI_ECANCELED);
            assert!(client.read().is_none());
        }
        role.meet(&client);
    });
}

#[test]
fn a_cancelled_buffer_ends_so_behind_its_messages() {
    run(
        "multi::a_cancelled_buffer_ends_so_behind_its_messages",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            if role.is_first() {
                client.send(&pattern(100, 1), None);
                client.send(&pattern(100, 2), None);
                role.meet(&client);
            } else {
                let mut room = Room::new(BUFFER);
                post(&client, &mut room, 4);
                let first = client.next().entry();
                let second = client.next().entry();
                assert_eq!((first.flags | second.flags) & FI_MULTI_RECV, 0);
                // SAFETY: the endpoint is open.
                assert_eq!(unsafe { fi_cancel(client.endpoint.0.cast(), pointer(4)) }, 0);
                let failure = client.next().failure();
                assert_eq!((failure.err, failure.op_context.addr()), (FI_ECANCELED, 4));
                assert_eq!(room.bytes()[100..200], pattern(100, 2));
                role.meet(&client);
            }
        },
    );
}

#[test]
fn unread_messages_wait_with_their_sender() {
    run(
        "multi::unread_messages_wait_with_their_sender",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            const MANY: usize = 30_000;
            if role.is_first() {
                let bytes = [7_u8; 8];
                for number in 0..MANY {
                    while client.try_post(&bytes, None, number) != 0 {
                        client.read();
                    }
                }
                role.meet(&client);
                role.meet(&client);
            } else {
                set_min(&client.endpoint, 8);
                let mut room = Room::new(MANY * 8);
                post(&client, &mut room, 4);
                role.meet(&client);
                // All have been sent, and what the rail has of them comes now.
                (0..MANY).for_each(|_| client.advance());
                let mut entries: Vec<fi_cq_tagged_entry> = Vec::with_capacity(MANY);
                // SAFETY: there is room for as many.
                let unread = unsafe { fi_cq_read(client.queue.0, entries.as_mut_ptr().cast(), MANY) };
                assert_eq!(unread, 1024, "the default size of a queue");
                let (mut messages, mut released) = (unread as usize, 0);
                while messages < MANY {
                    let entry = client.next().entry();
                    messages += 1;
                    released += usize::from(entry.flags & FI_MULTI_RECV != 0);
                }
                assert_eq!(released, 1);
                assert!(room.bytes().iter().all(|byte| *byte == 7));
                role.meet(&client);
            }
        },
    );
}

#[test]
fn a_queue_that_is_not_read_holds_up_no_other_one() {
    run(
        "multi::a_queue_that_is_not_read_holds_up_no_other_one",
        |mut role, library| {
            const UNREAD: usize = 1000;
            let wants = Wants {
                size: 256,
                ..Wants::default()
            };
            let mut client = Client::meet(&mut role, library, &wants);
            let queue = queue(&client.domain, FI_CQ_FORMAT_TAGGED, 0, FI_WAIT_NONE);
            let second = client.one_more(&queue);
            let theirs = client.insert(&role.exchange(&name_of(&second)));
            if role.is_first() {
                role.meet(&client);
                (0..UNREAD).for_each(|number| client.send(&pattern(8, number), None));
                client.peer = theirs;
                (0..2).for_each(|number| client.send(&pattern(60, number), None));
                role.meet(&client);
                return;
            }
            set_min(&client.endpoint, 8);
            set_min(&second, 8);
            let (mut unread, mut full, mut cancelled) =
                (Room::new(UNREAD * 8), Room::new(120), Room::new(BUFFER));
            post(&client, &mut unread, 1);
            post_at(&second, &mut full, 2);
            post_at(&second, &mut cancelled, 3);
            role.meet(&client);
            let next = || until("the other queue is held up", || read(&queue, FI_CQ_FORMAT_TAGGED));
            for number in 0..2 {
                let entry = next().entry();
                assert_eq!((entry.op_context.addr(), entry.len), (2, 60));
                assert_eq!(entry.flags & FI_MULTI_RECV != 0, number == 1, "its release");
            }
            // SAFETY: the endpoint is open.
            assert_eq!(unsafe { fi_cancel(second.0.cast(), pointer(3)) }, 0);
            let failure = next().failure();
            assert_eq!((failure.err, failure.op_context.addr()), (FI_ECANCELED, 3));
            // The first one has lost nothing meanwhile, and its order is kept.
            for number in 0..UNREAD {
                let entry = client.next().entry();
                assert_eq!(entry.op_context.addr(), 1);
                assert_eq!(entry.buf.addr() - unread.start().addr(), number * 8);
                assert_eq!(entry.flags & FI_MULTI_RECV != 0, number == UNREAD - 1);
            }
            role.meet(&client);
        },
    );
}
