//! Tagged messages: tags and masks, messages that are found, claimed and thrown away, cancelling.

use std::ptr;

use libc::iovec;
use libfabric_sys::*;

use crate::client::{Client, Found, Room, Wants, pattern, pointer, until};
use crate::pair::run;

#[test]
fn every_size_and_the_whole_tag() {
    run("tagged::every_size_and_the_whole_tag", |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        for (number, size) in [0, 1, 8, 4096, 9000, 1_000_000].into_iter().enumerate() {
            let (bytes, tag) = (pattern(size, number), !(number as u64));
            let entry = if role.is_first() {
                client.send(&bytes, Some(tag));
                client.expect(&bytes, Some(tag))
            } else {
                let entry = client.expect(&bytes, Some(tag));
                client.send(&bytes, Some(tag));
                entry
            };
            assert_eq!(
                (entry.flags, entry.len, entry.tag),
                (FI_TAGGED | FI_RECV, size, tag)
            );
        }
        role.meet(&client);
    });
}

#[test]
fn masks_choose_and_the_spaces_are_apart() {
    run(
        "tagged::masks_choose_and_the_spaces_are_apart",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            if role.is_first() {
                for tag in [0x100, 0x201, 0x102] {
                    client.send(&pattern(16, tag as usize), Some(tag));
                }
                client.send(&pattern(16, 5), None);
            } else {
                let mut rooms = [(); 4].map(|()| Room::new(16));
                let [masked, exact, any, untagged] = &mut rooms;
                client.receive(untagged, None, FI_ADDR_UNSPEC, 4);
                client.receive(masked, Some((0x2ff, 0xff)), FI_ADDR_UNSPEC, 1);
                client.receive(exact, Some((0x102, 0)), FI_ADDR_UNSPEC, 2);
                client.receive(any, Some((0, u64::MAX)), FI_ADDR_UNSPEC, 3);
                let mut tags = [0; 5];
                for _ in 0..4 {
                    let entry = client.next().entry();
                    tags[entry.op_context.addr()] = entry.tag;
                }
                assert_eq!(tags[1..4], [0x201, 0x102, 0x100]);
                let numbers = [0x201, 0x102, 0x100, 5];
                for (room, number) in rooms.iter().zip(numbers) {
                    assert_eq!(room.bytes(), pattern(16, number));
                }
            }
            role.meet(&client);
        },
    );
}

fn look(client: &Client, list: &[iovec], tag: u64, flags: u64, context: usize) -> isize {
    let msg = fi_msg_tagged {
        msg_iov: list.as_ptr(),
        desc: ptr::null_mut(),
        iov_count: list.len(),
        addr: FI_ADDR_UNSPEC,
        tag,
        ignore: 0,
        context: pointer(context),
        data: 0,
    };
    // SAFETY: the memory stays until the operation has ended.
    unsafe { fi_trecvmsg(client.endpoint.0, &msg, flags) }
}

/// Looks for a message until it is there.
fn look_until(client: &Client, tag: u64, flags: u64, context: usize) -> fi_cq_tagged_entry {
    until("no such message", || {
        assert_eq!(look(client, &[], tag, flags, context), 0);
        match client.read() {
            Some(Found::Entry(entry, sender)) => {
                assert_eq!(
                    (entry.op_context.addr(), entry.tag, sender),
                    (context, tag, client.peer)
                );
                Some(entry)
            }
            Some(Found::Failure(failure)) => {
                assert_eq!(
                    (failure.err, failure.op_context.addr(), failure.tag),
                    (FI_ENOMSG, context, tag)
                );
                None
            }
            None => panic!("the outcome has to be there when the call returns"),
        }
    })
}

#[test]
fn messages_are_found_claimed_received_and_thrown_away() {
    run(
        "tagged::messages_are_found_claimed_received_and_thrown_away",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            for size in [40, 100_000] {
                let bytes: Vec<Vec<u8>> = (0..5).map(|number| pattern(size, number)).collect();
                if role.is_first() {
                    for (tag, bytes) in bytes.iter().enumerate() {
                        let (start, data) = (bytes.as_ptr().cast(), 1000 + tag as u64);
                        // SAFETY: the memory stays until the operation has ended.
                        client.retry(|| unsafe {
                            let ep = client.endpoint.0;
                            fi_tsenddata(
                                ep,
                                start,
                                size,
                                ptr::null_mut(),
                                data,
                                client.peer,
                                tag as u64,
                                pointer(1),
                            )
                        });
                    }
                    bytes.iter().for_each(|_| _ = client.next().entry());
                } else {
                    let seen = FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA;
                    let entry = look_until(&client, 1, FI_PEEK, 7);
                    assert_eq!((entry.flags, entry.len, entry.data), (seen, size, 1001));
                    assert_eq!(look_until(&client, 1, FI_PEEK | FI_COMPLETION, 7).len, size);
                    // A claimed one is found by no other call.
                    assert_eq!(look_until(&client, 1, FI_PEEK | FI_CLAIM, 8).data, 1001);
                    assert_eq!(look(&client, &[], 1, FI_PEEK, 9), 0);
                    assert_eq!(client.next().failure().err, FI_ENOMSG);
                    let mut room = Room::new(size);
                    let list = [room.piece(0, size)];
                    assert_eq!(look(&client, &list, 1, FI_CLAIM, 99), -(FI_EINVAL as isize));
                    assert_eq!(look(&client, &list, 1, FI_CLAIM, 8), 0);
                    let entry = client.next().entry();
                    assert_eq!((entry.op_context.addr(), entry.len, entry.data), (8, size, 1001));
                    assert_eq!(room.bytes(), bytes[1]);
                    // Thrown away, at once and when it was claimed.
                    look_until(&client, 2, FI_PEEK | FI_DISCARD, 7);
                    look_until(&client, 3, FI_PEEK | FI_CLAIM, 8);
                    assert_eq!(look(&client, &[], 3, FI_CLAIM | FI_DISCARD, 8), 0);
                    assert_eq!(client.next().entry().data, 1003);
                    for tag in [2, 3] {
                        assert_eq!(look(&client, &[], tag, FI_PEEK, 9), 0);
                        assert_eq!(client.next().failure().err, FI_ENOMSG);
                    }
                    client.expect(&bytes[4], Some(4));
                    client.expect(&bytes[0], Some(0));
                }
                role.meet(&client);
            }
        },
    );
}

#[test]
fn a_cancelled_receive_ends_so_and_takes_no_message() {
    run(
        "tagged::a_cancelled_receive_ends_so_and_takes_no_message",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            let mut room = Room::new(8);
            client.receive(&mut room, Some((5, 0)), FI_ADDR_UNSPEC, 1);
            assert!(client.read().is_none());
            // SAFETY: the endpoint is open.
            assert_eq!(unsafe { fi_cancel(client.endpoint.0.cast(), pointer(1)) }, 0);
            let failure = client.next().failure();
            assert_eq!((failure.err, failure.op_context.addr()), (FI_ECANCELED, 1));
            // SAFETY: as above; nothing has this context.
            assert_eq!(unsafe { fi_cancel(client.endpoint.0.cast(), pointer(1)) }, 0);
            assert!(client.read().is_none());
            role.meet(&client);
            if role.is_first() {
                client.send(&pattern(8, 1), Some(5));
            } else {
                client.expect(&pattern(8, 1), Some(5));
                assert_eq!(room.bytes(), [0xee; 8]);
            }
            role.meet(&client);
        },
    );
}

#[test]
fn a_message_of_a_met_peer_is_found_by_a_handful_of_peeks_alone() {
    run(
        "tagged::a_message_of_a_met_peer_is_found_by_a_handful_of_peeks_alone",
        |mut role, library| {
            const PEEKS: usize = 4;
            let client = Client::meet(&mut role, library, &Wants::default());
            for size in [8, 4096] {
                if role.is_first() {
                    client.send(&pattern(size, 1), Some(1));
                    client.send(&pattern(size, 2), Some(2));
                    role.exchange(&[0; 4]);
                } else {
                    client.expect(&pattern(size, 1), Some(1));
                    role.exchange(&[0; 4]);
                    (0..PEEKS).for_each(|_| assert_eq!(look(&client, &[], 2, FI_PEEK, 7), 0));
                    let found: Vec<Found> = (0..PEEKS).filter_map(|_| client.read()).collect();
                    let is_entry = |one: &Found| matches!(one, Found::Entry(entry, _) if entry.len == size);
                    assert!(found.iter().any(is_entry), "{found:?}");
                    client.expect(&pattern(size, 2), Some(2));
                }
                role.meet(&client);
            }
        },
    );
}
