//! Ends: of endpoints with something under way, of processes, in order and not.

use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use libfabric_sys::*;
use rustix::process::{Resource, Rlimit};

use crate::client::{Client, Found, Room, Wants, name_of, pattern, queue, read, until};
use crate::pair::{Role, run, run_killed, run_printed, run_with};

/// Messages of [`BYTES`]: more than a peer's window of 4 MiB, and not more than may wait behind it.
const LAST: usize = 1200;
const BYTES: usize = 4096;

/// The first injects many messages, which the second lets come without receiving them, and ends as `end`
/// does; the second receives them meanwhile.
fn injects_and_ends(test: &str, end: impl FnOnce(Client, &mut Role)) {
    run_with(test, &[("FI_DOORBELL_CLOSE", "60 s")], |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        if role.is_first() {
            for number in 0..LAST {
                let bytes = pattern(BYTES, number);
                // SAFETY: the memory is used during the call.
                client.retry(|| unsafe {
                    fi_inject(client.endpoint.0, bytes.as_ptr().cast(), BYTES, client.peer)
                });
            }
            role.exchange(&[0]);
            end(client, &mut role);
        } else {
            role.meet(&client);
            (0..LAST).for_each(|number| _ = client.expect(&pattern(BYTES, number), None));
            role.call();
        }
    });
}

#[test]
fn what_was_injected_before_a_close_arrives() {
    let test = "ends::what_was_injected_before_a_close_arrives";
    injects_and_ends(test, |client, role| {
        drop(client.endpoint);
        // No call makes progress from here on until all of it has come.
        role.wait();
    });
}

#[test]
fn what_was_injected_before_an_exit_without_a_close_arrives() {
    let test = "ends::what_was_injected_before_an_exit_without_a_close_arrives";
    injects_and_ends(test, |client, _| std::mem::forget(client));
}

/// The first injects messages that no shared memory holds, and ends while threads of it poll; the second
/// reads them after the first has begun to end.
fn ends_beside_pollers(test: &str, wants: &Wants, pollers: usize) {
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, wants);
        if role.is_first() {
            // They have met.
            client.expect(&pattern(8, 0), None);
            role.exchange(&inject_all(&client).to_le_bytes());
            let queue = client.queue.0.expose_provenance();
            std::mem::forget(client);
            // They do not end, so the end of the process comes in the middle of a call.
            let poll = move || {
                loop {
                    let queue = std::ptr::with_exposed_provenance_mut(queue);
                    // SAFETY: the queue stays open; no entry is read.
                    let read = unsafe { fi_cq_read(queue, std::ptr::null_mut(), 0) };
                    // A client would take another failure for a broken queue.
                    assert_eq!(read, -(FI_EAGAIN as isize));
                }
            };
            (0..pollers).for_each(|_| drop(std::thread::spawn(poll)));
            // They have begun.
            std::thread::sleep(Duration::from_millis(20));
        } else {
            client.send(&pattern(8, 0), None);
            let count = u32::from_le_bytes(role.exchange(&[0; 4]).try_into().unwrap());
            // Not more than to let the other one come to its end.
            std::thread::sleep(Duration::from_millis(300));
            (0..count).for_each(|_| _ = client.expect(&pattern(4000, 1), None));
        }
    });
}

#[test]
fn what_was_injected_before_an_exit_beside_a_poller_arrives() {
    let test = "ends::what_was_injected_before_an_exit_beside_a_poller_arrives";
    ends_beside_pollers(test, &Wants::default(), 1);
}

#[test]
fn what_was_injected_before_an_exit_beside_pollers_with_a_lock_arrives() {
    let test = "ends::what_was_injected_before_an_exit_beside_pollers_with_a_lock_arrives";
    let wants = Wants {
        threading: FI_THREAD_SAFE,
        ..Wants::default()
    };
    ends_beside_pollers(test, &wants, 4);
}

#[test]
fn what_was_injected_before_an_exit_beside_the_thread_of_a_domain_arrives() {
    let test = "ends::what_was_injected_before_an_exit_beside_the_thread_of_a_domain_arrives";
    let wants = Wants {
        progress: FI_PROGRESS_AUTO,
        ..Wants::default()
    };
    for pollers in [0, 1] {
        ends_beside_pollers(test, &wants, pollers);
    }
}

/// The first injects more than a rail holds and ends as `end` does; the second reads it after more than two
/// seconds, which the setting allows for, and its default does not.
fn lingers(test: &str, end: impl FnOnce(Client)) {
    run_with(test, &[("FI_DOORBELL_CLOSE", "60 s")], |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        if role.is_first() {
            client.expect(&pattern(8, 0), None);
            role.exchange(&inject_all(&client).to_le_bytes());
            end(client);
        } else {
            client.send(&pattern(8, 0), None);
            let count = u32::from_le_bytes(role.exchange(&[0; 4]).try_into().unwrap());
            std::thread::sleep(Duration::from_millis(4500));
            (0..count).for_each(|_| _ = client.expect(&pattern(4000, 1), None));
        }
    });
}

/// Injects messages of 4,000 bytes until one is refused; returns how many. They are more than the rail holds.
fn inject_all(client: &Client) -> u32 {
    let bytes = pattern(4000, 1);
    // SAFETY: the memory is used during the call.
    let inject = || unsafe { fi_inject(client.endpoint.0, bytes.as_ptr().cast(), 4000, client.peer) };
    let mut count = 0;
    while inject() == 0 {
        count += 1;
    }
    assert!(count > 200, "{count}");
    count
}

#[test]
fn a_close_waits_as_long_as_the_setting_allows() {
    lingers("ends::a_close_waits_as_long_as_the_setting_allows", drop);
}

#[test]
fn the_end_of_a_process_waits_as_long_as_the_setting_allows() {
    let test = "ends::the_end_of_a_process_waits_as_long_as_the_setting_allows";
    lingers(test, std::mem::forget);
}

/// A long transfer is cut by the close, and messages for the receives that wait come after it.
#[test]
fn an_endpoint_is_closed_with_receives_under_way() {
    run(
        "ends::an_endpoint_is_closed_with_receives_under_way",
        |mut role, library| {
            const LONG: usize = 16 << 20;
            // One of them that comes whole in one pass was not under way.
            const LONGS: usize = 10;
            const SHORT: usize = 100;
            let client = Client::meet(&mut role, library, &Wants::default());
            if role.is_first() {
                let bytes = vec![1; LONG];
                role.meet(&client);
                (SHORT..SHORT + LONGS).for_each(|number| client.post(&bytes, Some(number as u64), 1));
                role.meet(&client);
                (0..SHORT).for_each(|number| client.post(&bytes[..64], Some(number as u64), 2));
                (0..SHORT + LONGS).for_each(|_| _ = client.next());
                role.meet(&client);
                return;
            }
            let mut rooms: Vec<Room> = (0..SHORT).map(|_| Room::new(64)).collect();
            rooms.extend((0..LONGS).map(|_| Room::new(LONG)));
            for (number, room) in rooms.iter_mut().enumerate() {
                client.receive(room, Some((number as u64, 0)), FI_ADDR_UNSPEC, number);
            }
            role.meet(&client);
            let longs = rooms.split_off(SHORT);
            let (mut next, mut ended) = (0, 0);
            let long = until("no long message is seen under way", || {
                ended += usize::from(read(&client.queue, FI_CQ_FORMAT_TAGGED).is_some());
                if next < LONGS && longs[next].byte(0) != 0xee {
                    if longs[next].byte(LONG - 1) == 0xee {
                        return Some(&longs[next]);
                    }
                    next += 1;
                }
                None
            });
            drop(client.endpoint);
            while read(&client.queue, FI_CQ_FORMAT_TAGGED).is_some() {
                ended += 1;
            }
            assert!(ended <= next, "{ended} of {next}");
            let before = long.bytes();
            for _ in 0..2 {
                role.call();
                until("the other one does not come", || {
                    assert!(read(&client.queue, FI_CQ_FORMAT_TAGGED).is_none());
                    role.is_called().then_some(())
                });
                role.wait();
            }
            assert!(rooms.iter().all(|room| room.bytes() == [0xee; 64]));
            assert!(long.bytes() == before, "it was written after the close");
        },
    );
}

#[test]
fn what_an_endpoint_uses_is_closed_after_it() {
    run("ends::what_an_endpoint_uses_is_closed_after_it", |_, library| {
        let wants = Wants {
            counters: true,
            ..Wants::default()
        };
        let client = Client::open(library, &wants);
        let counter = client.sent.as_ref().unwrap().0;
        let used: [*mut fid; 5] = [
            client.queue.0.cast(),
            client.vector.0.cast(),
            counter.cast(),
            client.domain.0.cast(),
            client.fabric.0.cast(),
        ];
        for object in used {
            // SAFETY: it is open, and stays so.
            assert_eq!(unsafe { fi_close(object) }, -FI_EBUSY);
        }
        // The vector first, the queue last: each order is right once the endpoint is closed.
        let Client {
            endpoint,
            sent,
            received,
            queue,
            vector,
            domain,
            fabric,
            ..
        } = client;
        drop(endpoint);
        drop((vector, received, sent, queue));
        drop(domain);
        drop(fabric);
    });
}

#[test]
fn operations_of_a_killed_peer_fail_with_a_text() {
    run_killed(
        "ends::operations_of_a_killed_peer_fail_with_a_text",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            // So that they have met.
            if role.is_first() {
                client.send(&pattern(8, 1), None);
                let pid = u32::from_le_bytes(role.exchange(&[0; 4]).try_into().unwrap());
                let mut room = Room::new(8);
                client.receive(&mut room, None, client.peer, 1);
                client.post(&vec![1; 1 << 20], Some(1), 2);
                // SAFETY: a process of this test.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
                for _ in 0..2 {
                    let failure = client.next().failure();
                    assert_eq!(failure.err, FI_EHOSTUNREACH);
                    // SAFETY: the queue is open.
                    let text = unsafe {
                        let data = failure.err_data;
                        fi_cq_strerror(client.queue.0, failure.prov_errno, data, std::ptr::null_mut(), 0)
                    };
                    // SAFETY: a text.
                    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_str().unwrap();
                    assert!(text.contains("shm") && text.contains("is lost"), "{text}");
                    assert!(
                        text.ends_with("; see its last output, and with which status it ended"),
                        "{text}"
                    );
                }
                // Later ones, too; and an inject is refused.
                client.post(&[1; 8], Some(1), 3);
                assert_eq!(client.next().failure().op_context.addr(), 3);
                // SAFETY: the memory is used during the call.
                let answer =
                    unsafe { fi_inject(client.endpoint.0, [1_u8; 8].as_ptr().cast(), 8, client.peer) };
                assert_eq!(answer, -(FI_EHOSTUNREACH as isize));
                drop(role);
            } else {
                client.expect(&pattern(8, 1), None);
                role.exchange(&std::process::id().to_le_bytes());
                until("it is killed", || {
                    client.read();
                    None::<()>
                });
            }
        },
    );
}

/// Whether a process has closed what it had.
fn has_ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| {
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
    })
}

/// Each send leaves at once, and each read finds its entry: no call has to look for what else there is.
#[test]
fn the_end_of_a_peer_is_noticed_by_one_that_only_sends() {
    run_killed(
        "ends::the_end_of_a_peer_is_noticed_by_one_that_only_sends",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            if !role.is_first() {
                client.expect(&pattern(8, 1), None);
                role.exchange(&std::process::id().to_le_bytes());
                return until("it is killed", || {
                    client.read();
                    None::<()>
                });
            }
            client.send(&pattern(8, 1), None);
            let pid = u32::from_le_bytes(role.exchange(&[0; 4]).try_into().unwrap()) as i32;
            // SAFETY: a process of this test.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            until("it ends", || has_ended(pid).then_some(()));
            // Fewer than its memory holds, after which each send would wait, and look. Sockets are looked at
            // every 5 ms.
            let noticed = (0..256).find(|number| {
                std::thread::sleep(Duration::from_millis(1));
                client.post(&[1; 8], Some(1), *number);
                matches!(client.next(), Found::Failure(_))
            });
            assert!(noticed.is_some_and(|sends| sends > 0), "{noticed:?}");
            drop(role);
        },
    );
}

/// Forks a child that has what this process has, and sleeps until it is killed. Returns its id.
fn sleeping_child() -> i32 {
    // SAFETY: the child makes two system calls, and is ended by a signal.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: only a system call; SIGALRM ends a child that nothing else ends.
        unsafe { libc::alarm(60) };
        loop {
            // SAFETY: only a system call.
            unsafe { libc::pause() };
        }
    }
    child
}

#[test]
fn a_killed_peer_is_noticed_while_a_child_of_it_lives() {
    // Ends a hang: the promise is a tenth of a second.
    const SOON: Duration = Duration::from_secs(5);
    run_killed(
        "ends::a_killed_peer_is_noticed_while_a_child_of_it_lives",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            let name = role.exchange(&client.name());
            if !role.is_first() {
                client.expect(&pattern(8, 1), None);
                let pids = [std::process::id() as i32, sleeping_child()];
                role.exchange(&pids.map(i32::to_ne_bytes).concat());
                return until("it is killed", || {
                    client.read();
                    None::<()>
                });
            }
            client.send(&pattern(8, 1), None);
            let pids = role.exchange(&[0; 8]);
            let pid = |at: usize| i32::from_ne_bytes(pids[at..at + 4].try_into().unwrap());
            let (peer, child) = (pid(0), pid(4));
            let mut room = Room::new(8);
            client.receive(&mut room, None, client.peer, 1);
            // SAFETY: a process of this test.
            unsafe { libc::kill(peer, libc::SIGKILL) };
            let killed = Instant::now();
            assert_eq!(client.next().failure().err, FI_EHOSTUNREACH);
            let late = killed.elapsed();
            // One that has not met it finds no listener.
            let other = Client::open(Library::open().unwrap(), &Wants::default());
            let to = other.insert(&name);
            let began = Instant::now();
            post_to(&other, to);
            assert_eq!(other.next().failure().err, FI_EHOSTUNREACH);
            println!(
                "noticed after {late:?}, by a later caller after {:?}",
                began.elapsed()
            );
            assert!(
                late < SOON && began.elapsed() < SOON,
                "{late:?}, {:?}",
                began.elapsed()
            );
            // SAFETY: a process of this test.
            assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0, "the child lived");
        },
    );
}

/// Sends 8 bytes to an address.
fn post_to(client: &Client, to: fi_addr_t) {
    // SAFETY: the memory is static.
    client.retry(|| unsafe {
        static BYTES: [u8; 8] = [1; 8];
        fi_send(
            client.endpoint.0,
            BYTES.as_ptr().cast(),
            8,
            std::ptr::null_mut(),
            to,
            std::ptr::null_mut(),
        )
    });
}

#[test]
fn one_without_descriptors_says_so_once_and_is_met_when_it_has_some() {
    let printed = run_printed(
        "ends::one_without_descriptors_says_so_once_and_is_met_when_it_has_some",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &Wants::default());
            if !role.is_first() {
                role.meet(&client);
                return client.send(&pattern(8, 1), None);
            }
            let free = std::fs::File::open("/dev/null").unwrap();
            let limit = rustix::process::getrlimit(Resource::Nofile);
            let none = Rlimit {
                current: Some(free.as_raw_fd() as u64),
                maximum: limit.maximum,
            };
            drop(free);
            role.meet(&client);
            rustix::process::setrlimit(Resource::Nofile, none).unwrap();
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(500) {
                assert!(client.read().is_none());
            }
            rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
            client.expect(&pattern(8, 1), None);
        },
    );
    let Some([first, second]) = printed else { return };
    let lines = |text: &str| text.matches("no file descriptor is left").count();
    assert_eq!((lines(&first), lines(&second)), (1, 0), "{first}\n{second}");
    let line = first
        .lines()
        .find(|line| line.contains("no file descriptor is left"))
        .unwrap();
    let says = ["are needed at least", "the limit of open files is", "raise it by"];
    assert!(says.iter().all(|word| line.contains(word)), "{line}");
}

#[test]
fn a_closed_endpoint_rejects_what_waits_to_be_received() {
    run(
        "ends::a_closed_endpoint_rejects_what_waits_to_be_received",
        |mut role, library| {
            let wants = Wants {
                send_flags: FI_DELIVERY_COMPLETE,
                ..Wants::default()
            };
            let mut client = Client::meet(&mut role, library, &wants);
            let queue = queue(&client.domain, FI_CQ_FORMAT_TAGGED, 0, FI_WAIT_NONE);
            let second = client.one_more(&queue);
            let (theirs, live) = (client.insert(&role.exchange(&name_of(&second))), client.peer);
            let bytes = pattern(100_000, 1);
            if role.is_first() {
                client.peer = theirs;
                client.post(&bytes[..8], Some(1), 1);
                client.post(&bytes, None, 2);
                // They come before the close and find no receive; then one comes after it.
                role.meet(&client);
                role.meet(&client);
                client.post(&bytes[..8], Some(1), 3);
                let mut rejected = [0; 3].map(|_| {
                    let failure = client.next().failure();
                    assert_eq!(failure.err, FI_ECONNREFUSED);
                    failure.op_context.addr()
                });
                rejected.sort_unstable();
                assert_eq!(rejected, [1, 2, 3]);
                client.peer = live;
                client.send(&bytes, None);
                role.meet(&client);
            } else {
                role.meet(&client);
                (0..1000).for_each(|_| client.advance());
                drop(second);
                role.meet(&client);
                client.expect(&bytes, None);
                role.meet(&client);
            }
        },
    );
}

/// Each message that was injected and not handed over is a failure of its own, and counts as one; so is one
/// to a peer that was never met.
#[test]
fn injected_messages_that_a_killed_peer_had_no_room_for_are_failures() {
    let test = "ends::injected_messages_that_a_killed_peer_had_no_room_for_are_failures";
    run_killed(test, |mut role, library| {
        let wants = Wants {
            counters: true,
            ..Wants::default()
        };
        let client = Client::meet(&mut role, library, &wants);
        if !role.is_first() {
            role.exchange(&std::process::id().to_le_bytes());
            until("it is killed", || {
                client.advance();
                None::<()>
            });
        }
        let pid = u32::from_le_bytes(role.exchange(&[0; 4]).try_into().unwrap());
        let inject = || {
            let bytes = [7; BYTES];
            // SAFETY: the memory is used during the call.
            client
                .retry(|| unsafe { fi_inject(client.endpoint.0, bytes.as_ptr().cast(), BYTES, client.peer) });
        };
        (0..LAST).for_each(|_| inject());
        // SAFETY: a process of this test.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        let check = |failure: fi_cq_err_entry| {
            assert_eq!((failure.err, failure.op_context.addr()), (FI_EHOSTUNREACH, 0));
            assert_eq!(failure.flags, FI_SEND | FI_MSG);
        };
        // Each takes its bytes and 64 more of the window of 4 MiB. Some of those that fit may not have left.
        let mut lost = LAST - (4 << 20) / (BYTES + 64);
        (0..lost).for_each(|_| check(client.next().failure()));
        while let Some(found) = client.read() {
            check(found.failure());
            lost += 1;
        }
        (0..1000).for_each(|_| assert!(client.read().is_none()));
        let sent = client.sent.as_ref().unwrap().0;
        // SAFETY: the counter is open.
        let (well, failed) = unsafe { (fi_cntr_read(sent), fi_cntr_readerr(sent)) };
        assert_eq!((well as usize, failed as usize), (LAST, lost));
        drop(role);
    });
}

#[test]
fn an_injected_message_to_a_peer_that_is_never_met_is_a_failure() {
    let test = "ends::an_injected_message_to_a_peer_that_is_never_met_is_a_failure";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &Wants::default());
        if role.is_first() {
            // The other one has closed, and has sent nothing.
            role.wait();
            let bytes = [7_u8; 8];
            // SAFETY: the memory is used during the call.
            let answer = unsafe { fi_tinject(client.endpoint.0, bytes.as_ptr().cast(), 8, client.peer, 3) };
            assert_eq!(answer, 0);
            let failure = client.next().failure();
            assert_eq!((failure.err, failure.op_context.addr()), (FI_EHOSTUNREACH, 0));
            assert_eq!(failure.flags, FI_SEND | FI_TAGGED);
            drop(role);
        } else {
            drop(client);
            role.call();
        }
    });
}
