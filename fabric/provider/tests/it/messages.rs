//! Untagged messages: every call, every size, order, senders, data, and what is refused.

use std::ptr;

use libc::iovec;
use libfabric_sys::*;

use crate::client::{Client, Found, Room, Wants, find, name_of, opened, pattern, pointer, queue, until};
use crate::pair::{Role, run, run_with};

const SIZES: [usize; 9] = [0, 1, 8, 64, 1000, 4096, 5000, 70_000, 1_500_000];

/// Both send and receive in turn.
fn in_turn(role: &Role, client: &Client, bytes: &[u8], send: impl Fn(&Client, &[u8])) -> fi_cq_tagged_entry {
    if role.is_first() {
        send(client, bytes);
        client.expect(bytes, None)
    } else {
        let entry = client.expect(bytes, None);
        send(client, bytes);
        entry
    }
}

#[test]
fn every_size_by_every_level() {
    run("messages::every_size_by_every_level", |mut role, library| {
        for level in [0, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE] {
            let wants = Wants {
                send_flags: level,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            for (number, size) in SIZES.into_iter().enumerate() {
                let bytes = pattern(size, number);
                let entry = in_turn(&role, &client, &bytes, |client, bytes| client.send(bytes, None));
                assert_eq!((entry.flags, entry.len, entry.data), (FI_MSG | FI_RECV, size, 0));
            }
            role.meet(&client);
        }
    });
}

fn pieces(bytes: &[u8]) -> Vec<iovec> {
    let cut = bytes.len() / 3;
    [&bytes[..cut], &[], &bytes[cut..]]
        .map(|part| iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        })
        .to_vec()
}

fn message(client: &Client, list: &[iovec], context: usize, data: u64) -> fi_msg {
    fi_msg {
        msg_iov: list.as_ptr(),
        desc: ptr::null_mut(),
        iov_count: list.len(),
        addr: client.peer,
        context: pointer(context),
        data,
    }
}

/// A call that sends bytes and waits until that has ended.
type Sender = Box<dyn Fn(&Client, &[u8])>;

/// All calls that send, with what their receiver finds as data.
fn senders() -> Vec<(Sender, Option<u64>)> {
    let complete = |client: &Client, context: usize| {
        let entry = client.next().entry();
        assert_eq!(
            (entry.op_context.addr(), entry.flags),
            (context, FI_MSG | FI_SEND)
        );
    };
    vec![
        (
            Box::new(move |client, bytes| {
                let list = pieces(bytes);
                // SAFETY: the memory stays until the operation has ended.
                client.retry(|| unsafe {
                    fi_sendv(
                        client.endpoint.0,
                        list.as_ptr(),
                        ptr::null_mut(),
                        3,
                        client.peer,
                        pointer(3),
                    )
                });
                complete(client, 3);
            }),
            None,
        ),
        (
            Box::new(move |client, bytes| {
                let list = pieces(bytes);
                let msg = message(client, &list, 4, 0xfeed_0000_0000_0004);
                // SAFETY: as above.
                client.retry(|| unsafe {
                    fi_sendmsg(client.endpoint.0, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION)
                });
                complete(client, 4);
            }),
            Some(0xfeed_0000_0000_0004),
        ),
        (
            Box::new(move |client, bytes| {
                let (start, length) = (bytes.as_ptr().cast(), bytes.len());
                // SAFETY: as above.
                client.retry(|| unsafe {
                    fi_senddata(
                        client.endpoint.0,
                        start,
                        length,
                        ptr::null_mut(),
                        5,
                        client.peer,
                        pointer(5),
                    )
                });
                complete(client, 5);
            }),
            Some(5),
        ),
        (
            Box::new(|client, bytes| {
                let bytes = bytes.to_vec();
                // SAFETY: the memory is only used during the call.
                client.retry(|| unsafe {
                    fi_inject(client.endpoint.0, bytes.as_ptr().cast(), bytes.len(), client.peer)
                });
                assert!(client.read().is_none(), "an inject adds no entry");
            }),
            None,
        ),
        (
            Box::new(|client, bytes| {
                let bytes = bytes.to_vec();
                // SAFETY: as above.
                client.retry(|| unsafe {
                    fi_injectdata(
                        client.endpoint.0,
                        bytes.as_ptr().cast(),
                        bytes.len(),
                        6,
                        client.peer,
                    )
                });
            }),
            Some(6),
        ),
        (
            Box::new(move |client, bytes| {
                let bytes = bytes.to_vec();
                let list = pieces(&bytes);
                let msg = message(client, &list, 7, 6);
                let flags = FI_INJECT | FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA;
                // SAFETY: as above.
                client.retry(|| unsafe { fi_sendmsg(client.endpoint.0, &msg, flags) });
                drop(bytes);
                complete(client, 7);
            }),
            Some(6),
        ),
    ]
}

#[test]
fn every_call_that_sends() {
    run("messages::every_call_that_sends", |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        for (send, data) in senders() {
            for (number, size) in [1, 8, 900, 4096].into_iter().enumerate() {
                let bytes = pattern(size, number);
                let entry = in_turn(&role, &client, &bytes, &send);
                let flag = if data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
                assert_eq!(entry.flags, FI_MSG | FI_RECV | flag);
                assert_eq!((entry.len, entry.data), (size, data.unwrap_or(0)));
            }
        }
        role.meet(&client);
    });
}

#[test]
fn pieces_are_received_one_behind_the_other() {
    run(
        "messages::pieces_are_received_one_behind_the_other",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            for size in [100, 100_000] {
                let bytes = pattern(size, 1);
                if role.is_first() {
                    client.send(&bytes, None);
                    client.send(&bytes, None);
                } else {
                    let mut room = Room::new(size);
                    for by_message in [false, true] {
                        let list = [room.piece(0, 30), room.piece(30, size - 30)];
                        let msg = fi_msg {
                            addr: FI_ADDR_UNSPEC,
                            ..message(&client, &list, 9, 0)
                        };
                        // SAFETY: the memory stays until the operation has ended.
                        let answer = unsafe {
                            match by_message {
                                true => fi_recvmsg(client.endpoint.0, &msg, 0),
                                false => fi_recvv(
                                    client.endpoint.0,
                                    list.as_ptr(),
                                    ptr::null_mut(),
                                    2,
                                    FI_ADDR_UNSPEC,
                                    pointer(9),
                                ),
                            }
                        };
                        assert_eq!(answer, 0);
                        assert_eq!(client.next().entry().op_context.addr(), 9);
                        assert_eq!(room.bytes(), bytes);
                    }
                }
            }
            role.meet(&client);
        },
    );
}

#[test]
fn unexpected_messages_keep_their_order() {
    run(
        "messages::unexpected_messages_keep_their_order",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            let size = |number: usize| [8, 3000, 50_000][number % 3] + number;
            if role.is_first() {
                let all: Vec<Vec<u8>> = (0..300).map(|number| pattern(size(number), number)).collect();
                for (number, bytes) in all.iter().enumerate() {
                    client.post(bytes, None, number + 1);
                }
                // Only now they are received.
                role.meet(&client);
                let mut ended: Vec<usize> = all
                    .iter()
                    .map(|_| client.next().entry().op_context.addr())
                    .collect();
                ended.sort_unstable();
                assert_eq!(ended, (1..=300).collect::<Vec<_>>());
            } else {
                until("no word of the other one", || {
                    client
                        .read()
                        .map(|found| panic!("{found:?}"))
                        .or_else(|| role.is_called().then_some(()))
                });
                role.meet(&client);
                for number in 0..300 {
                    client.expect(&pattern(size(number), number), None);
                }
            }
            role.meet(&client);
        },
    );
}

#[test]
fn a_message_that_is_too_long_is_truncated_and_the_next_one_is_whole() {
    let name = "messages::a_message_that_is_too_long_is_truncated_and_the_next_one_is_whole";
    run(name, |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        for size in [100, 100_000] {
            let bytes = pattern(size, 2);
            if role.is_first() {
                client.send(&bytes, None);
                client.send(&bytes, None);
                continue;
            }
            let mut room = Room::new(size - 10);
            client.receive(&mut room, None, FI_ADDR_UNSPEC, 3);
            let failure = client.next().failure();
            assert_eq!((failure.err, failure.op_context.addr()), (FI_ETRUNC, 3));
            assert_eq!((failure.len, failure.olen), (size - 10, 10));
            assert_eq!(failure.flags, FI_MSG | FI_RECV);
            assert_eq!(room.bytes(), bytes[..size - 10]);
            client.expect(&bytes, None);
        }
        role.meet(&client);
    });
}

#[test]
fn messages_to_oneself() {
    run("messages::messages_to_oneself", |mut role, library| {
        let mut client = Client::meet(&mut role, library, &Wants::default());
        client.peer = client.insert(&client.name());
        for size in [8, 5000, 200_000] {
            let bytes = pattern(size, 4);
            // Received before and after it is sent.
            let mut room = Room::new(size);
            client.receive(&mut room, None, client.peer, 5);
            client.post(&bytes, None, 6);
            client.post(&bytes, None, 6);
            let mut second = Room::new(size);
            client.receive(&mut second, None, client.peer, 7);
            let mut ended = [(); 4].map(|()| client.next().entry().op_context.addr());
            ended.sort_unstable();
            assert_eq!(ended, [5, 6, 6, 7]);
            assert!(room.bytes() == bytes && second.bytes() == bytes);
        }
        role.meet(&client);
    });
}

#[test]
fn a_directed_receive_takes_messages_of_its_sender_alone_and_senders_are_named() {
    let name = "messages::a_directed_receive_takes_messages_of_its_sender_alone_and_senders_are_named";
    run(name, |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        let own = client.insert(&client.name());
        if role.is_first() {
            client.send(&pattern(8, 1), None);
            client.send(&pattern(8, 2), None);
        } else {
            let mut mine = Room::new(8);
            client.receive(&mut mine, None, own, 1);
            let mut theirs = [Room::new(8), Room::new(8)];
            client.receive(&mut theirs[0], None, client.peer, 2);
            client.receive(&mut theirs[1], None, FI_ADDR_UNSPEC, 3);
            for (context, number) in [(2, 1), (3, 2)] {
                let Found::Entry(entry, sender) = client.next() else {
                    panic!("a failure");
                };
                assert_eq!((entry.op_context.addr(), sender), (context, client.peer));
                assert_eq!(theirs[number - 1].bytes(), pattern(8, number));
            }
            // SAFETY: four bytes of this program, used during the call.
            let answer = unsafe { fi_inject(client.endpoint.0, b"mine".as_ptr().cast(), 4, own) };
            assert_eq!(answer, 0);
            let Found::Entry(entry, sender) = client.next() else {
                panic!("a failure");
            };
            assert_eq!((entry.op_context.addr(), entry.len, sender), (1, 4, own));
        }
        role.meet(&client);
    });
}

#[test]
fn two_endpoints_of_a_domain_have_messages_of_their_own() {
    run(
        "messages::two_endpoints_of_a_domain_have_messages_of_their_own",
        |mut role, library| {
            let mut client = Client::meet(&mut role, library, &Wants::default());
            let queue = queue(&client.domain, FI_CQ_FORMAT_CONTEXT, 0, FI_WAIT_NONE);
            let second = client.one_more(&queue);
            let other = client.insert(&role.exchange(&name_of(&second)));
            let peer = client.peer;
            if role.is_first() {
                client.peer = other;
                client.send(&pattern(8, 2), None);
                client.peer = peer;
                client.send(&pattern(8, 1), None);
            } else {
                client.expect(&pattern(8, 1), None);
                let mut room = Room::new(8);
                // SAFETY: the memory stays until the operation has ended.
                let answer = unsafe { fi_recv(second.0, room.start(), 8, ptr::null_mut(), peer, pointer(1)) };
                assert_eq!(answer, 0);
                let mut context = 0_usize;
                until("nothing has come", || {
                    // SAFETY: room for one entry of this format.
                    (unsafe { fi_cq_read(queue.0, (&raw mut context).cast(), 1) } == 1).then_some(())
                });
                assert_eq!((context, room.bytes()), (1, pattern(8, 2)));
            }
            role.meet(&client);
        },
    );
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_sent() {
    let test = "what_cannot_be_is_refused_and_nothing_is_sent";
    run(&format!("messages::{test}"), |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        let bytes = vec![0_u8; 5000];
        let (ep, start) = (client.endpoint.0, bytes.as_ptr().cast());
        let list = pieces(&bytes);
        let msg = message(&client, &list, 1, 0);
        let many = vec![list[0]; 99];
        let injected = fi_msg {
            ..message(&client, &list, 1, 0)
        };
        // SAFETY: all are refused before memory is used.
        let answers = unsafe {
            [
                (fi_sendmsg(ep, &msg, 1 << 63), FI_EBADFLAGS),
                (fi_sendmsg(ep, &msg, FI_COMMIT_COMPLETE), FI_EOPNOTSUPP),
                (fi_recvmsg(ep, &msg, FI_PEEK), FI_EOPNOTSUPP),
                (fi_sendmsg(ep, &injected, FI_INJECT), FI_EMSGSIZE),
                (fi_inject(ep, start, 4097, client.peer), FI_EMSGSIZE),
                (
                    fi_sendv(ep, many.as_ptr(), ptr::null_mut(), 99, client.peer, pointer(1)),
                    FI_EINVAL,
                ),
                (
                    fi_send(ep, start, 8, ptr::null_mut(), client.peer + 99, pointer(1)),
                    FI_EINVAL,
                ),
                (
                    fi_send(ep, start, 8, ptr::null_mut(), FI_ADDR_UNSPEC, pointer(1)),
                    FI_EINVAL,
                ),
                (fi_inject(ep, start, 8, FI_ADDR_NOTAVAIL), FI_EINVAL),
                (
                    fi_recv(
                        ep,
                        ptr::null_mut(),
                        0,
                        ptr::null_mut(),
                        client.peer + 99,
                        pointer(1),
                    ),
                    FI_EINVAL,
                ),
            ]
        };
        for (at, (answer, errno)) in answers.into_iter().enumerate() {
            assert_eq!(answer, -(errno as isize), "number {at}");
        }
        assert!(client.read().is_none());
        // All others still arrive.
        in_turn(&role, &client, &pattern(8, 3), |client, bytes| {
            client.send(bytes, None)
        });
        role.meet(&client);
    });
}

#[test]
fn an_endpoint_that_is_not_whole_is_refused() {
    let test = "an_endpoint_that_is_not_whole_is_refused";
    run(&format!("messages::{test}"), |_, library| {
        let mut info = find(&library, &Wants::default());
        let client = Client::open(library, &Wants::default());
        let first = info.as_mut_ptr();
        // SAFETY: the domain is open, and the entry is whole.
        let bare = opened("fi_endpoint", |to| unsafe {
            fi_endpoint(client.domain.0, first, to, ptr::null_mut())
        });
        // SAFETY: refused before memory is used.
        let early = unsafe { fi_send(bare.0, ptr::null(), 0, ptr::null_mut(), 0, ptr::null_mut()) };
        assert_eq!(early, -(FI_EOPBADSTATE as isize));
        // SAFETY: the endpoint is open.
        assert_eq!(unsafe { fi_enable(bare.0) }, -FI_ENOAV);
        crate::client::bind(&bare, client.vector.0.cast(), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { fi_enable(bare.0) }, -FI_ENOCQ);
        // SAFETY: both are open.
        let flags = unsafe { fi_ep_bind(bare.0, client.queue.0.cast(), 1 << 60) };
        assert_eq!(flags, -FI_EBADFLAGS);
        crate::client::bind(&bare, client.queue.0.cast(), FI_TRANSMIT);
        // SAFETY: both are open.
        let again = unsafe { fi_ep_bind(bare.0, client.queue.0.cast(), FI_TRANSMIT) };
        assert_eq!(again, -FI_EINVAL);
        crate::client::bind(&bare, client.queue.0.cast(), FI_RECV);
        // SAFETY: the endpoint is open.
        assert_eq!(unsafe { fi_enable(bare.0) }, 0);
        // SAFETY: the queue is open.
        assert_eq!(unsafe { fi_close(client.queue.0.cast()) }, -FI_EBUSY);
    });
}

#[test]
fn an_injected_message_leaves_in_its_call_also_to_a_peer_that_is_not_met() {
    let test = "messages::an_injected_message_leaves_in_its_call_also_to_a_peer_that_is_not_met";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        let bytes = pattern(100, 3);
        if role.is_first() {
            role.wait();
            // SAFETY: the memory is only used during the call.
            client.retry(|| unsafe {
                fi_inject(client.endpoint.0, bytes.as_ptr().cast(), bytes.len(), client.peer)
            });
            // No call until it has come.
            role.wait();
        } else {
            role.call();
            // As of a rank whose core others have: it makes no calls for a while.
            std::thread::sleep(std::time::Duration::from_millis(150));
            client.expect(&bytes, None);
            role.call();
        }
    });
}

#[test]
fn a_long_send_ends_although_its_receiver_makes_no_call_after_it_has_come() {
    let test = "messages::a_long_send_ends_although_its_receiver_makes_no_call_after_it_has_come";
    run_with(test, &[("DOORBELL_RAILS", "udp:lo")], |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        // Among them are those that are one frame of the rail, although they may be more for all that the
        // sender knows: their acknowledgement would go later, in a call.
        for (number, length) in (1000..70_000).step_by(20).enumerate() {
            let bytes = pattern(length, 3);
            if role.is_first() {
                client.send(&bytes, None);
                role.call();
            } else {
                client.expect(&bytes, None);
                role.wait();
            }
            // Sends of one frame end when the rail has them, so that the first one may be far ahead; and
            // where its calls fill the line, it would wait in there, without progress.
            if number % 100 == 0 {
                role.meet(&client);
            }
        }
        // So does one that is longer than its receiver's room.
        let bytes = pattern(5000, 3);
        if role.is_first() {
            client.send(&bytes, None);
            role.call();
        } else {
            let mut room = Room::new(100);
            client.receive(&mut room, None, FI_ADDR_UNSPEC, 3);
            assert_eq!(client.next().failure().err, FI_ETRUNC);
            role.wait();
        }
    });
}
