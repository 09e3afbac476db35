//! Waits in a call, and on a descriptor.

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use libfabric_sys::*;

use crate::client::{Client, Room, Wants, pattern, queue};
use crate::pair::run;

fn sread(client: &Client, milliseconds: c_int) -> Result<usize, c_int> {
    let mut entry: fi_cq_tagged_entry = Layout::zeroed();
    // SAFETY: room for one entry of any format.
    let count = unsafe {
        fi_cq_sread(
            client.queue.0,
            (&raw mut entry).cast(),
            1,
            ptr::null(),
            milliseconds,
        )
    };
    if count == 1 {
        Ok(entry.op_context.addr())
    } else {
        Err(-count as c_int)
    }
}

#[test]
fn a_waiting_call_wakes_by_a_message_and_by_its_time() {
    run(
        "waits::a_waiting_call_wakes_by_a_message_and_by_its_time",
        |mut role, library| {
            for wait in [FI_WAIT_UNSPEC, FI_WAIT_FD] {
                let wants = Wants {
                    wait,
                    ..Wants::default()
                };
                let client = Client::meet(&mut role, library, &wants);
                let began = Instant::now();
                assert_eq!(sread(&client, 30), Err(FI_EAGAIN));
                assert!(began.elapsed() >= Duration::from_millis(30));
                let bytes = pattern(8, 3);
                let mut room = Room::new(8);
                client.receive(&mut room, Some((1, 0)), FI_ADDR_UNSPEC, 4);
                role.meet(&client);
                if role.is_first() {
                    // The other one sleeps by then, or reads it at once: both are right.
                    std::thread::sleep(Duration::from_millis(20));
                    client.post(&bytes, Some(1), 5);
                    assert_eq!(sread(&client, -1), Ok(5));
                }
                assert_eq!(sread(&client, -1), Ok(4));
                assert_eq!(room.bytes(), bytes);
                if !role.is_first() {
                    client.post(&bytes, Some(1), 5);
                    assert_eq!(sread(&client, -1), Ok(5));
                }
                role.meet(&client);
            }
        },
    );
}

#[test]
fn a_signal_ends_one_wait() {
    run("waits::a_signal_ends_one_wait", |_, library| {
        let wants = Wants {
            wait: FI_WAIT_UNSPEC,
            ..Wants::default()
        };
        let client = Client::open(library, &wants);
        // SAFETY: the queue is open.
        assert_eq!(unsafe { fi_cq_signal(client.queue.0) }, 0);
        assert_eq!(sread(&client, -1), Err(FI_EAGAIN));
        let began = Instant::now();
        assert_eq!(sread(&client, 20), Err(FI_EAGAIN));
        assert!(
            began.elapsed() >= Duration::from_millis(20),
            "the signal counts once"
        );
    });
}

#[test]
fn a_descriptor_becomes_readable_by_a_message() {
    run(
        "waits::a_descriptor_becomes_readable_by_a_message",
        |mut role, library| {
            let wants = Wants {
                wait: FI_WAIT_FD,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let mut descriptor: c_int = -1;
            // SAFETY: the argument of the command is a place for a descriptor.
            let answer =
                unsafe { fi_control(client.queue.0.cast(), FI_GETWAIT, (&raw mut descriptor).cast()) };
            assert_eq!(answer, 0);
            let bytes = pattern(8, 3);
            for turn in 0..20 {
                let first = role.is_first() == (turn % 2 == 0);
                if first {
                    client.send(&bytes, None);
                    continue;
                }
                let mut room = Room::new(8);
                client.receive(&mut room, None, FI_ADDR_UNSPEC, 4);
                let entry = loop {
                    let mut ids = [client.queue.0.cast()];
                    // SAFETY: the fabric and the queue are open.
                    match unsafe { fi_trywait(client.fabric.0, ids.as_mut_ptr(), 1) } {
                        0 => {
                            let mut one = [libc::pollfd {
                                fd: descriptor,
                                events: libc::POLLIN,
                                revents: 0,
                            }];
                            // SAFETY: one descriptor.
                            let count = unsafe { libc::poll(one.as_mut_ptr(), 1, 60_000) };
                            assert_eq!(count, 1, "nothing has come");
                        }
                        again => assert_eq!(again, -FI_EAGAIN),
                    }
                    if let Some(found) = client.read() {
                        break found.entry();
                    }
                };
                assert_eq!((entry.op_context.addr(), room.bytes()), (4, bytes.clone()));
            }
            role.meet(&client);
        },
    );
}

#[test]
fn a_queue_without_wait_object_has_no_descriptor() {
    run(
        "waits::a_queue_without_wait_object_has_no_descriptor",
        |_, library| {
            let client = Client::open(library, &Wants::default());
            let silent = queue(&client.domain, FI_CQ_FORMAT_CONTEXT, 0, FI_WAIT_NONE);
            let mut descriptor: c_int = -1;
            // SAFETY: as above.
            let answer = unsafe { fi_control(silent.0.cast(), FI_GETWAIT, (&raw mut descriptor).cast()) };
            assert_eq!((answer, descriptor), (-FI_EINVAL, -1));
        },
    );
}
