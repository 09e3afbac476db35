//! Entries: formats, selection, places, levels, and texts.

use std::ffi::CStr;
use std::ptr;

use libfabric_sys::*;

use crate::client::{Client, Found, Room, Wants, pattern, pointer, read, until};
use crate::pair::run;

#[test]
fn a_short_queue_has_a_place_for_each_of_ten_thousand_receives() {
    run(
        "completions::a_short_queue_has_a_place_for_each_of_ten_thousand_receives",
        |mut role, library| {
            let wants = Wants {
                size: 100,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            const MANY: usize = 10_000;
            if role.is_first() {
                role.meet(&client);
                let bytes: Vec<[u8; 8]> = (0..MANY as u64).map(u64::to_le_bytes).collect();
                let mut ended = 0;
                for (number, bytes) in bytes.iter().enumerate() {
                    // The queue is short: it is read while a send is refused.
                    while client.try_post(bytes, Some(number as u64), number) != 0 {
                        ended += usize::from(client.read().is_some());
                    }
                }
                (ended..MANY).for_each(|_| _ = client.next().entry());
                role.meet(&client);
            } else {
                let mut rooms: Vec<Room> = (0..MANY).map(|_| Room::new(8)).collect();
                for (number, room) in rooms.iter_mut().enumerate() {
                    client.receive(room, Some((number as u64, 0)), FI_ADDR_UNSPEC, number);
                }
                role.meet(&client);
                // All have come before the first is read.
                let all_sent = || {
                    client.advance();
                    role.is_called().then_some(())
                };
                until("the other one does not end", all_sent);
                let mut seen = vec![false; MANY];
                for _ in 0..MANY {
                    let entry = client.next().entry();
                    let number = entry.op_context.addr();
                    assert_eq!(entry.tag, number as u64);
                    assert!(!std::mem::replace(&mut seen[number], true), "{number} twice");
                }
                assert!(client.read().is_none());
                assert!(
                    rooms
                        .iter()
                        .zip(0_u64..)
                        .all(|(room, number)| room.bytes() == number.to_le_bytes())
                );
                role.meet(&client);
            }
        },
    );
}

#[test]
fn a_selective_queue_has_entries_that_were_asked_for() {
    run(
        "completions::a_selective_queue_has_entries_that_were_asked_for",
        |mut role, library| {
            let wants = Wants {
                selective: true,
                receive_flags: FI_COMPLETION,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let bytes = pattern(8, 1);
            if role.is_first() {
                client.post(&bytes, Some(1), 11);
                let list = [libc::iovec {
                    iov_base: bytes.as_ptr().cast_mut().cast(),
                    iov_len: 8,
                }];
                let msg = fi_msg_tagged {
                    msg_iov: list.as_ptr(),
                    desc: ptr::null_mut(),
                    iov_count: 1,
                    addr: client.peer,
                    tag: 2,
                    ignore: 0,
                    context: pointer(12),
                    data: 0,
                };
                // SAFETY: the memory stays until the operation has ended.
                client.retry(|| unsafe { fi_tsendmsg(client.endpoint.0, &msg, FI_COMPLETION) });
                assert_eq!(client.next().entry().op_context.addr(), 12);
                role.meet(&client);
                assert!(client.read().is_none(), "the first send wants no entry");
            } else {
                client.expect(&bytes, Some(1));
                client.expect(&bytes, Some(2));
                role.meet(&client);
            }
            role.meet(&client);
        },
    );
}

#[test]
fn a_send_is_delivered_when_it_was_matched_and_not_before() {
    run(
        "completions::a_send_is_delivered_when_it_was_matched_and_not_before",
        |mut role, library| {
            let wants = Wants {
                send_flags: FI_DELIVERY_COMPLETE,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let bytes = pattern(64, 1);
            if role.is_first() {
                // Received only when the other one has seen it come.
                client.post(&bytes, Some(1), 5);
                until("the other one does not see it", || {
                    assert!(client.read().is_none(), "it is not matched yet");
                    role.is_called().then_some(())
                });
                role.meet(&client);
                assert_eq!(client.next().entry().op_context.addr(), 5);
            } else {
                let msg = fi_msg_tagged {
                    addr: FI_ADDR_UNSPEC,
                    tag: 1,
                    ..Layout::zeroed()
                };
                until("it does not come", || {
                    // SAFETY: no memory is used.
                    assert_eq!(unsafe { fi_trecvmsg(client.endpoint.0, &msg, FI_PEEK) }, 0);
                    matches!(client.next(), Found::Entry(..)).then_some(())
                });
                role.meet(&client);
                client.expect(&bytes, Some(1));
            }
            role.meet(&client);
        },
    );
}

#[test]
fn every_format_has_its_fields() {
    run("completions::every_format_has_its_fields", |mut role, library| {
        for format in [
            FI_CQ_FORMAT_CONTEXT,
            FI_CQ_FORMAT_MSG,
            FI_CQ_FORMAT_DATA,
            FI_CQ_FORMAT_TAGGED,
        ] {
            let wants = Wants {
                format,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let bytes = pattern(24, 1);
            if role.is_first() {
                // SAFETY: the memory is used during the call.
                client.retry(|| unsafe {
                    fi_tinjectdata(client.endpoint.0, bytes.as_ptr().cast(), 24, 9, client.peer, 3)
                });
                role.meet(&client);
            } else {
                let entry = client.expect(&bytes, Some(3));
                let flags = FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA;
                let found = (entry.flags, entry.len, entry.data, entry.tag);
                let expected = match format {
                    FI_CQ_FORMAT_CONTEXT => (0, 0, 0, 0),
                    FI_CQ_FORMAT_MSG => (flags, 24, 0, 0),
                    FI_CQ_FORMAT_DATA => (flags, 24, 9, 0),
                    _ => (flags, 24, 9, 3),
                };
                assert_eq!(found, expected);
                role.meet(&client);
            }
        }
    });
}

#[test]
fn failures_have_texts() {
    run("completions::failures_have_texts", |_, library| {
        let client = Client::open(library, &Wants::default());
        let mut room = Room::new(8);
        client.receive(&mut room, None, FI_ADDR_UNSPEC, 1);
        // SAFETY: the endpoint is open.
        unsafe { fi_cancel(client.endpoint.0.cast(), pointer(1)) };
        let failure = client.next().failure();
        let mut buffer = [0_i8; 14];
        // SAFETY: the queue is open, and the buffer has this length.
        let text = unsafe {
            let number = failure.prov_errno;
            fi_cq_strerror(
                client.queue.0,
                number,
                failure.err_data,
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        // SAFETY: a text.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"the operation");
    });
}

#[test]
fn each_direction_of_an_endpoint_may_have_its_queue() {
    run(
        "completions::each_direction_of_an_endpoint_may_have_its_queue",
        |mut role, library| {
            let wants = Wants {
                divided: true,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let receives = client.receive_queue.as_ref().unwrap();
            let bytes = pattern(8, 3);
            let mut rooms = [(); 10].map(|()| Room::new(8));
            for (number, room) in rooms.iter_mut().enumerate() {
                client.receive(room, Some((number as u64, 0)), client.peer, number);
            }
            role.meet(&client);
            (0..10).for_each(|number| client.post(&bytes, Some(number as u64), 100 + number));
            for number in 0..10 {
                assert_eq!(client.next().entry().op_context.addr(), 100 + number);
            }
            for number in 0..10 {
                let found = until("nothing has come", || read(receives, wants.format));
                assert_eq!(found.entry().op_context.addr(), number);
            }
            role.meet(&client);
            assert!(client.read().is_none() && read(receives, wants.format).is_none());
            assert!(rooms.iter().all(|room| room.bytes() == bytes));
            // Both are in use.
            for queue in [client.queue.0, receives.0] {
                // SAFETY: it is open, and stays so.
                assert_eq!(unsafe { fi_close(queue.cast()) }, -FI_EBUSY);
            }
        },
    );
}
