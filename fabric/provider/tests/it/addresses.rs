//! Addresses by node and service, without any exchange of names; and peers that go and come back.

use std::ffi::CString;

use libfabric_sys::*;

use crate::client::{Client, Found, Room, Wants, pattern, pointer, until};
use crate::pair::{Role, run};

/// What a client without wishes gets, and what one gets that wants addresses of sockets.
const FORMATS: [u32; 3] = [FI_FORMAT_UNSPEC, FI_SOCKADDR_IN, FI_SOCKADDR_IN6];
/// Longer than any name.
const LONGEST: usize = 64;

/// A port that no other test has: both parts agree on that of the first one.
pub(crate) fn port(role: &mut Role) -> u16 {
    let own = 10_000 + (std::process::id() % 40_000) as u16;
    let theirs = role.exchange(&own.to_le_bytes());
    match role.is_first() {
        true => own,
        false => u16::from_le_bytes(theirs.try_into().unwrap()),
    }
}

pub(crate) fn text(port: u16) -> Option<CString> {
    Some(CString::new(port.to_string()).unwrap())
}

/// The wishes of the owner of a port.
pub(crate) fn server(format: u32, port: u16) -> Wants {
    Wants {
        addr_format: format,
        service: text(port),
        getinfo_flags: FI_SOURCE,
        ..Wants::default()
    }
}

/// The wishes of a peer, which knows the host and the port.
pub(crate) fn client(format: u32, port: u16) -> Wants {
    let node = if format == FI_SOCKADDR_IN6 {
        c"::1"
    } else {
        c"127.0.0.1"
    };
    Wants {
        addr_format: format,
        node: Some(node.to_owned()),
        service: text(port),
        ..Wants::default()
    }
}

/// Receives a message of any length: its bytes, and its sender.
pub(crate) fn take(client: &Client) -> (Vec<u8>, fi_addr_t) {
    let mut room = Room::new(LONGEST);
    client.receive(&mut room, None, FI_ADDR_UNSPEC, 5);
    match client.next() {
        Found::Entry(entry, sender) => (room.bytes()[..entry.len].to_vec(), sender),
        Found::Failure(failure) => panic!("{failure:?}"),
    }
}

/// Sends until a send fails, since the peer has gone; returns the failure.
fn until_lost(client: &Client) -> fi_cq_err_entry {
    until("the end of the peer is not noticed", || {
        client.post(&[1; 8], None, 9);
        match client.next() {
            Found::Entry(..) => None,
            Found::Failure(failure) => Some(failure),
        }
    })
}

pub(crate) fn remove(client: &Client, number: fi_addr_t) {
    let mut number = number;
    // SAFETY: the vector is open; one number.
    assert_eq!(unsafe { fi_av_remove(client.vector.0, &raw mut number, 1, 0) }, 0);
}

/// One opens with what names a service, the other one with its node and service: both send and receive.
pub(crate) fn meet_by_service(role: &mut Role, library: Library, [server, client]: [&Wants; 2]) {
    if role.is_first() {
        let mut here = Client::open(library, server);
        role.exchange(&[0]);
        // The first message has the name of its sender, as clients without another way do it.
        let (name, sender) = take(&here);
        assert_eq!(sender, FI_ADDR_NOTAVAIL);
        here.peer = here.insert(&name);
        here.send(b"welcome", None);
        assert_eq!(take(&here), (b"again".to_vec(), here.peer));
        role.meet(&here);
    } else {
        role.exchange(&[0]);
        let mut here = Client::open(library, client);
        here.peer = here.insert(&here.destination());
        let name = here.name();
        assert_eq!(name.len(), here.destination().len());
        here.send(&name, None);
        assert_eq!(take(&here), (b"welcome".to_vec(), here.peer));
        here.send(b"again", None);
        role.meet(&here);
    }
}

#[test]
fn a_node_and_a_service_are_enough_to_meet() {
    run(
        "addresses::a_node_and_a_service_are_enough_to_meet",
        |mut role, library| {
            let port = port(&mut role);
            for format in FORMATS {
                meet_by_service(&mut role, library, [&server(format, port), &client(format, port)]);
            }
        },
    );
}

#[test]
fn a_peer_that_comes_back_at_its_port_and_sends_is_met_again() {
    let test = "addresses::a_peer_that_comes_back_at_its_port_and_sends_is_met_again";
    run(test, |mut role, library| {
        let port = port(&mut role);
        if role.is_first() {
            let here = Client::open(library, &server(FI_FORMAT_UNSPEC, port));
            role.exchange(&[0]);
            let (name, _) = take(&here);
            drop(here);
            role.exchange(&[1]);
            // It comes back, and sends first.
            role.exchange(&[2]);
            let mut here = Client::open(library, &server(FI_FORMAT_UNSPEC, port));
            here.peer = here.insert(&name);
            here.send(b"I am back", None);
            assert_eq!(take(&here).0, b"so you are");
            role.meet(&here);
        } else {
            role.exchange(&[0]);
            let mut here = Client::open(library, &client(FI_FORMAT_UNSPEC, port));
            here.peer = here.insert(&here.destination());
            here.send(&here.name(), None);
            role.exchange(&[1]);
            assert_eq!(until_lost(&here).err, FI_EHOSTUNREACH);
            role.exchange(&[2]);
            // The old entry leads to the peer's new life.
            assert_eq!(take(&here), (b"I am back".to_vec(), here.peer));
            here.send(b"so you are", None);
            role.meet(&here);
        }
    });
}

/// A peer goes and comes back at its port, `times`, and waits to be called each time. Whether the caller has
/// noticed the end or not, the address that it inserts again leads to the new life.
fn comes_back_and_waits(test: &str, is_noticed: bool) {
    const TIMES: u8 = 5;
    run(test, |mut role, library| {
        let port = port(&mut role);
        if role.is_first() {
            for life in 0..TIMES {
                let here = Client::open(library, &server(FI_FORMAT_UNSPEC, port));
                role.exchange(&[life]);
                assert_eq!(take(&here).0, [life; 16]);
                drop(here);
                role.exchange(&[life]);
            }
        } else {
            let mut here = Client::open(library, &client(FI_FORMAT_UNSPEC, port));
            for life in 0..TIMES {
                role.exchange(&[life]);
                here.peer = here.insert(&here.destination());
                here.send(&[life; 16], None);
                role.exchange(&[life]);
                if is_noticed {
                    assert_eq!(until_lost(&here).err, FI_EHOSTUNREACH);
                }
                remove(&here, here.peer);
            }
        }
    });
}

#[test]
fn a_peer_that_comes_back_and_waits_is_met_again_by_its_address() {
    let test = "addresses::a_peer_that_comes_back_and_waits_is_met_again_by_its_address";
    comes_back_and_waits(test, true);
}

#[test]
fn a_peer_whose_end_nobody_has_noticed_is_met_again_by_its_address() {
    let test = "addresses::a_peer_whose_end_nobody_has_noticed_is_met_again_by_its_address";
    comes_back_and_waits(test, false);
}

#[test]
fn a_send_to_a_port_without_a_process_fails_with_a_text() {
    let test = "addresses::a_send_to_a_port_without_a_process_fails_with_a_text";
    run(test, |mut role, library| {
        let port = port(&mut role);
        let mut here = Client::open(library, &client(FI_SOCKADDR_IN, port));
        here.peer = here.insert(&here.destination());
        here.post(&pattern(100, 1), Some(1), 3);
        let failure = here.next().failure();
        assert_eq!((failure.err, failure.op_context.addr()), (FI_EHOSTUNREACH, 3));
        // SAFETY: the text of the failure, which is kept.
        let text = unsafe { std::ffi::CStr::from_ptr(failure.err_data.cast()) };
        let text = text.to_str().unwrap();
        assert!(
            text.contains("no process of this host has this address"),
            "{text}"
        );
    });
}

#[test]
fn a_removed_peer_is_not_disturbed_and_can_be_inserted_again() {
    let test = "addresses::a_removed_peer_is_not_disturbed_and_can_be_inserted_again";
    run(test, |mut role, library| {
        let mut here = Client::meet(&mut role, library, &Wants::default());
        if role.is_first() {
            // Known under two numbers, of which one is enough.
            let name = role.exchange(&here.name());
            let second = here.insert(&name);
            here.send(b"first", None);
            let old = here.peer;
            remove(&here, old);
            assert_eq!(here.try_post(&[1], None, 1), -(FI_EINVAL as isize));
            here.peer = second;
            here.send(b"second", None);
            remove(&here, second);
            assert_eq!(here.try_post(&[1], None, 1), -(FI_EINVAL as isize));
            role.meet(&here);
            // Its messages still come, of a sender without a number.
            assert_eq!(take(&here), (b"are you there".to_vec(), FI_ADDR_NOTAVAIL));
            here.peer = here.insert(&name);
            assert!(![old, second].contains(&here.peer));
            here.send(b"yes", None);
            assert_eq!(take(&here), (b"good".to_vec(), here.peer));
        } else {
            role.exchange(&here.name());
            assert_eq!(take(&here), (b"first".to_vec(), here.peer));
            assert_eq!(take(&here), (b"second".to_vec(), here.peer));
            role.meet(&here);
            here.send(b"are you there", None);
            assert_eq!(take(&here), (b"yes".to_vec(), here.peer));
            here.send(b"good", None);
        }
        role.meet(&here);
    });
}

#[test]
fn what_was_injected_to_a_peer_not_met_yet_arrives_before_the_close_ends() {
    let test = "addresses::what_was_injected_to_a_peer_not_met_yet_arrives_before_the_close_ends";
    run(test, |mut role, library| {
        let here = Client::meet(&mut role, library, &Wants::default());
        if role.is_first() {
            // SAFETY: the memory is used during the call.
            here.retry(|| unsafe {
                fi_inject(here.endpoint.0, b"the only one".as_ptr().cast(), 12, here.peer)
            });
            drop(here.endpoint);
            // The endpoint is closed, and nothing here makes progress any more.
            role.exchange(&[0]);
        } else {
            assert_eq!(take(&here).0, b"the only one");
            role.exchange(&[0]);
        }
    });
}

#[test]
fn a_message_of_an_unknown_sender_is_a_failure_with_its_address_where_that_is_wanted() {
    let test = "addresses::a_message_of_an_unknown_sender_is_a_failure_with_its_address_where_that_is_wanted";
    run(test, |mut role, library| {
        let wants = Wants {
            caps: FI_MSG | FI_TAGGED | FI_SOURCE | FI_SOURCE_ERR,
            ..Wants::default()
        };
        let mut here = Client::open(library, &wants);
        let theirs = role.exchange(&here.name());
        if role.is_first() {
            let mut room = Room::new(LONGEST);
            here.receive(&mut room, None, FI_ADDR_UNSPEC, 5);
            let failure = here.next().failure();
            assert_eq!(
                (failure.err, failure.op_context.addr(), failure.len),
                (FI_EADDRNOTAVAIL, 5, 5)
            );
            assert_eq!(&room.bytes()[..5], b"hello");
            // SAFETY: the data of the failure, which are kept.
            let address =
                unsafe { std::slice::from_raw_parts(failure.err_data.cast::<u8>(), failure.err_data_size) };
            assert_eq!(address, theirs);
            here.peer = here.insert(address);
            assert_eq!(take(&here), (b"again".to_vec(), here.peer));
        } else {
            here.peer = here.insert(&theirs);
            here.send(b"hello", None);
            here.send(b"again", None);
        }
        role.meet(&here);
    });
}

/// MPI_Comm_accept of MPICH receives the name of a process that it has not inserted.
#[test]
fn a_message_of_an_unknown_sender_is_received_where_no_capabilities_were_named() {
    let test = "addresses::a_message_of_an_unknown_sender_is_received_where_no_capabilities_were_named";
    run(test, |mut role, library| {
        let wants = Wants {
            caps: 0,
            ..Wants::default()
        };
        let mut here = Client::open(library, &wants);
        let theirs = role.exchange(&here.name());
        if role.is_first() {
            assert_eq!(take(&here), (b"hello".to_vec(), FI_ADDR_NOTAVAIL));
        } else {
            here.peer = here.insert(&theirs);
            here.send(b"hello", None);
        }
        role.meet(&here);
    });
}

#[test]
fn the_failure_of_a_message_that_was_cut_has_its_sender_and_data() {
    let test = "addresses::the_failure_of_a_message_that_was_cut_has_its_sender_and_data";
    run(test, |mut role, library| {
        let here = Client::meet(&mut role, library, &Wants::default());
        if role.is_first() {
            let mut room = Room::new(4);
            here.receive(&mut room, None, FI_ADDR_UNSPEC, 5);
            let failure = here.next().failure();
            assert_eq!((failure.err, failure.len, failure.olen), (FI_ETRUNC, 4, 6));
            assert_eq!(
                (failure.flags & FI_REMOTE_CQ_DATA != 0, failure.data),
                (true, 0x1234_5678_9abc)
            );
            // Releases before 1.20 have no place for the sender.
            if here.library.level() >= Level::new(1, 20) {
                assert_eq!(failure.src_addr, here.peer);
            }
        } else {
            let (ep, bytes) = (here.endpoint.0, b"ten bytes.");
            // SAFETY: the memory is static.
            here.retry(|| unsafe {
                let desc = std::ptr::null_mut();
                let data = 0x1234_5678_9abc;
                fi_senddata(ep, bytes.as_ptr().cast(), 10, desc, data, here.peer, pointer(3))
            });
            assert_eq!(here.next().entry().op_context.addr(), 3);
        }
        role.meet(&here);
    });
}
