//! Waits in a call, and on a descriptor.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libfabric_sys::*;

use crate::client::{Client, Object, Room, Wants, pattern, queue, until};
use crate::pair::{run, run_with};

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

fn descriptor(queue: *mut fid_cq) -> c_int {
    let mut descriptor: c_int = -1;
    // SAFETY: the argument of the command is a place for a descriptor.
    let answer = unsafe { fi_control(queue.cast(), FI_GETWAIT, (&raw mut descriptor).cast()) };
    assert_eq!(answer, 0);
    descriptor
}

#[test]
fn a_waiting_call_wakes_by_a_message_and_by_its_time() {
    run(
        "waits::a_waiting_call_wakes_by_a_message_and_by_its_time",
        |mut role, library| {
            let automatic = [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO];
            for (wait, progress) in automatic
                .map(|progress| [(FI_WAIT_UNSPEC, progress), (FI_WAIT_FD, progress)])
                .concat()
            {
                let wants = Wants {
                    wait,
                    progress,
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

/// Signals that a handler of this process has seen.
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Has SIGALRM handled, without SA_RESTART.
fn handle_alarms() {
    // SAFETY: a structure of numbers, and of a mask that is empty.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as extern "C" fn(c_int) as usize;
    // SAFETY: the handler adds to a counter alone.
    let answer = unsafe { libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()) };
    assert_eq!(answer, 0);
}

/// Runs something while this thread gets a signal every few milliseconds. Returns how many it got.
fn among_signals<R>(work: impl FnOnce() -> R) -> (R, usize) {
    // SAFETY: it has no arguments.
    let this = unsafe { libc::pthread_self() };
    let (ended, before) = (AtomicBool::new(false), SIGNALS.load(Ordering::Relaxed));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                assert_eq!(unsafe { libc::pthread_kill(this, libc::SIGALRM) }, 0);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let result = work();
        ended.store(true, Ordering::Relaxed);
        result
    });
    (result, SIGNALS.load(Ordering::Relaxed) - before)
}

#[test]
fn a_waiting_call_goes_on_after_signals_of_the_system() {
    run(
        "waits::a_waiting_call_goes_on_after_signals_of_the_system",
        |mut role, library| {
            handle_alarms();
            let wants = Wants {
                wait: FI_WAIT_UNSPEC,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let began = Instant::now();
            let (answer, signals) = among_signals(|| sread(&client, 200));
            assert_eq!(answer, Err(FI_EAGAIN));
            assert!(
                began.elapsed() >= Duration::from_millis(200),
                "its time is over, and not before"
            );
            assert!(signals > 1, "{signals} signals");
            let bytes = pattern(8, 3);
            let mut room = Room::new(8);
            client.receive(&mut room, Some((1, 0)), client.peer, 4);
            role.meet(&client);
            if role.is_first() {
                std::thread::sleep(Duration::from_millis(100));
                client.post(&bytes, Some(1), 5);
                assert_eq!(sread(&client, -1), Ok(5));
                assert_eq!(sread(&client, -1), Ok(4));
            } else {
                let (answer, signals) = among_signals(|| sread(&client, -1));
                assert_eq!((answer, room.bytes()), (Ok(4), bytes.clone()));
                assert!(signals > 1, "{signals} signals");
                client.post(&bytes, Some(1), 5);
                assert_eq!(sread(&client, -1), Ok(5));
            }
            role.meet(&client);
        },
    );
}

#[test]
fn a_thread_sends_while_another_one_waits() {
    run(
        "waits::a_thread_sends_while_another_one_waits",
        |mut role, library| {
            let wants = Wants {
                wait: FI_WAIT_UNSPEC,
                threading: FI_THREAD_SAFE,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let queue = client.queue.0.expose_provenance();
            let waits = move || {
                let mut entry: fi_cq_tagged_entry = Layout::zeroed();
                let queue = ptr::with_exposed_provenance_mut(queue);
                // SAFETY: room for one entry of any format.
                let count = unsafe { fi_cq_sread(queue, (&raw mut entry).cast(), 1, ptr::null(), 60_000) };
                assert_eq!(count, 1, "nothing has ended");
                entry.op_context.addr()
            };
            let bytes = pattern(8, 3);
            for turn in 0..20 {
                let sends = role.is_first() == (turn % 2 == 0);
                let mut room = Room::new(8);
                if !sends {
                    client.receive(&mut room, Some((1, 0)), FI_ADDR_UNSPEC, turn);
                }
                std::thread::scope(|scope| {
                    let waiter = scope.spawn(waits);
                    // It sleeps by then, or finds the entry at once: both are right.
                    std::thread::sleep(Duration::from_millis(3));
                    if sends {
                        client.post(&bytes, Some(1), turn);
                    }
                    assert_eq!(waiter.join().unwrap(), turn);
                });
                assert!(sends || room.bytes() == bytes);
            }
            role.meet(&client);
        },
    );
}

#[test]
fn a_descriptor_becomes_readable_by_a_message() {
    run(
        "waits::a_descriptor_becomes_readable_by_a_message",
        |mut role, library| {
            for progress in [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO] {
                let wants = Wants {
                    wait: FI_WAIT_FD,
                    progress,
                    ..Wants::default()
                };
                let client = Client::meet(&mut role, library, &wants);
                let descriptor = descriptor(client.queue.0);
                let bytes = pattern(8, 3);
                for turn in 0..20 {
                    let first = role.is_first() == (turn % 2 == 0);
                    if first {
                        client.send(&bytes, None);
                        continue;
                    }
                    let mut room = Room::new(8);
                    client.receive(&mut room, None, FI_ADDR_UNSPEC, 4);
                    let entry = next_by_descriptor(&client, descriptor);
                    assert_eq!((entry.op_context.addr(), room.bytes()), (4, bytes.clone()));
                }
                role.meet(&client);
            }
        },
    );
}

/// Waits for an entry on the descriptor of the queue, as an event loop does.
fn next_by_descriptor(client: &Client, descriptor: c_int) -> fi_cq_tagged_entry {
    loop {
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
                let count = unsafe { libc::poll(one.as_mut_ptr(), 1, 10_000) };
                assert_eq!(count, 1, "nothing has come");
            }
            again => assert_eq!(again, -FI_EAGAIN),
        }
        if let Some(found) = client.read() {
            return found.entry();
        }
    }
}

#[test]
fn a_descriptor_becomes_readable_by_the_end_of_a_long_message() {
    run(
        "waits::a_descriptor_becomes_readable_by_the_end_of_a_long_message",
        |mut role, library| {
            let wants = Wants {
                wait: FI_WAIT_FD,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let descriptor = descriptor(client.queue.0);
            // Its bytes are copied in the last pass before the sleep, too.
            let bytes = pattern(256 << 10, 3);
            for turn in 0..50 {
                if role.is_first() == (turn % 2 == 0) {
                    client.post(&bytes, None, 5);
                    assert_eq!(next_by_descriptor(&client, descriptor).op_context.addr(), 5);
                } else {
                    let mut room = Room::new(bytes.len());
                    client.receive(&mut room, None, FI_ADDR_UNSPEC, 4);
                    assert_eq!(next_by_descriptor(&client, descriptor).op_context.addr(), 4);
                    assert!(room.bytes() == bytes, "turn {turn}");
                }
            }
            role.meet(&client);
        },
    );
}

/// Waits on a set, for a minute at most.
fn wait(set: &Object<fid_wait>) -> c_int {
    // SAFETY: the set is open.
    unsafe { fi_wait(set.0, 60_000) }
}

#[test]
fn a_wait_set_wakes_by_its_queue_and_by_its_counter() {
    run(
        "waits::a_wait_set_wakes_by_its_queue_and_by_its_counter",
        |mut role, library| {
            let wants = Wants {
                set: true,
                counters: true,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let (set, counter) = (client.set.as_ref().unwrap(), client.received.as_ref().unwrap());
            // SAFETY: the set is open.
            assert_eq!(unsafe { fi_wait(set.0, 5) }, -FI_ETIMEDOUT, "nothing has come");
            // SAFETY: it is in use.
            assert_eq!(unsafe { fi_close(set.0.cast()) }, -FI_EBUSY);
            for turn in 0..20 {
                let bytes = pattern(8, turn);
                if role.is_first() == (turn % 2 == 0) {
                    client.send(&bytes, None);
                    // SAFETY: the counter is open.
                    unsafe { fi_cntr_read(client.sent.as_ref().unwrap().0) };
                    continue;
                }
                let mut room = Room::new(8);
                client.receive(&mut room, None, FI_ADDR_UNSPEC, turn);
                let entry = loop {
                    assert_eq!(wait(set), 0);
                    if let Some(found) = client.read() {
                        break found.entry();
                    }
                };
                assert_eq!((entry.op_context.addr(), room.bytes()), (turn, bytes));
                // The counter has counted it, and was not read.
                assert_eq!(wait(set), 0);
                // SAFETY: the counter is open.
                assert_eq!(unsafe { fi_cntr_read(counter.0) }, turn as u64 / 2 + 1);
                // SAFETY: the set is open.
                assert_eq!(unsafe { fi_wait(set.0, 0) }, -FI_ETIMEDOUT, "all was read");
            }
            role.meet(&client);
        },
    );
}

#[test]
fn two_descriptors_of_a_domain_are_quiet_after_one_fi_trywait() {
    run(
        "waits::two_descriptors_of_a_domain_are_quiet_after_one_fi_trywait",
        |_, library| {
            let wants = Wants {
                wait: FI_WAIT_FD,
                ..Wants::default()
            };
            let client = Client::open(library, &wants);
            let other = queue(&client.domain, FI_CQ_FORMAT_CONTEXT, 0, FI_WAIT_FD);
            let mut all = [client.queue.0, other.0].map(|queue| libc::pollfd {
                fd: descriptor(queue),
                events: libc::POLLIN,
                revents: 0,
            });
            // The rails have settled.
            until("there is always something", || {
                let mut ids = [client.queue.0.cast(), other.0.cast()];
                // SAFETY: the fabric and the queues are open.
                let answer = unsafe { fi_trywait(client.fabric.0, ids.as_mut_ptr(), 2) };
                assert!([0, -FI_EAGAIN].contains(&answer));
                // SAFETY: two descriptors.
                (answer == 0 && unsafe { libc::poll(all.as_mut_ptr(), 2, 0) } == 0).then_some(())
            });
        },
    );
}

/// How often this thread has slept.
fn sleeps() -> i64 {
    // SAFETY: a structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a whole structure.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

/// How often this thread sleeps while nothing comes in some calls that wait.
fn sleeps_in_waits(library: Library) -> i64 {
    let wants = Wants {
        wait: FI_WAIT_UNSPEC,
        ..Wants::default()
    };
    let client = Client::open(library, &wants);
    let before = sleeps();
    for _ in 0..10 {
        assert_eq!(sread(&client, 50), Err(FI_EAGAIN));
    }
    sleeps() - before
}

#[test]
fn a_call_that_is_to_look_always_does_not_sleep() {
    let test = "waits::a_call_that_is_to_look_always_does_not_sleep";
    let spins = [("FI_DOORBELL_SPINS", "4294967295")];
    run_with(test, &spins, |_, library| {
        let sleeps = sleeps_in_waits(library);
        // Memory that is not there costs a sleep now and then.
        assert!(sleeps < 5, "{sleeps} sleeps in ten waits");
    });
}

#[test]
fn a_call_that_is_not_to_look_sleeps() {
    let test = "waits::a_call_that_is_not_to_look_sleeps";
    run_with(test, &[("FI_DOORBELL_SPINS", "0")], |_, library| {
        let sleeps = sleeps_in_waits(library);
        assert!(sleeps >= 10, "{sleeps} sleeps in ten waits");
    });
}

#[test]
fn two_threads_that_sleep_on_one_domain_let_each_other_sleep() {
    run(
        "waits::two_threads_that_sleep_on_one_domain_let_each_other_sleep",
        |mut role, library| {
            let wants = Wants {
                wait: FI_WAIT_UNSPEC,
                threading: FI_THREAD_SAFE,
                ..Wants::default()
            };
            let client = Client::meet(&mut role, library, &wants);
            let other = queue(&client.domain, FI_CQ_FORMAT_CONTEXT, 0, FI_WAIT_UNSPEC);
            let queues = [client.queue.0.expose_provenance(), other.0.expose_provenance()];
            let sleeper = |queue: usize| {
                let mut entry: fi_cq_tagged_entry = Layout::zeroed();
                let queue = ptr::with_exposed_provenance_mut(queue);
                let before = sleeps();
                // SAFETY: room for one entry of any format.
                let answer = unsafe { fi_cq_sread(queue, (&raw mut entry).cast(), 1, ptr::null(), 1000) };
                assert_eq!(answer, -(FI_EAGAIN as isize));
                sleeps() - before
            };
            // It looks at the rails now and then.
            let alone = sleeper(queues[0]);
            std::thread::scope(|scope| {
                let both = queues.map(|queue| scope.spawn(move || sleeper(queue)));
                for one in both {
                    let sleeps = one.join().unwrap();
                    assert!(
                        sleeps < 5 * alone + 100,
                        "{sleeps} sleeps, {alone} where it was alone"
                    );
                }
            });
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

#[test]
fn one_with_nothing_to_do_is_not_woken() {
    let name = "waits::one_with_nothing_to_do_is_not_woken";
    run(name, |mut role, library| {
        let wants = Wants {
            wait: FI_WAIT_FD,
            ..Wants::default()
        };
        let client = Client::meet(&mut role, library, &wants);
        let bytes = pattern(8, 3);
        if role.is_first() {
            client.send(&bytes, Some(1));
            client.expect(&bytes, Some(2));
        } else {
            client.expect(&bytes, Some(1));
            client.send(&bytes, Some(2));
        }
        role.meet(&client);
        // The last words of the meeting.
        assert_eq!(sread(&client, 200), Err(FI_EAGAIN));
        let before = sleeps();
        assert_eq!(sread(&client, 1000), Err(FI_EAGAIN));
        let slept = sleeps() - before;
        println!("slept {slept} times in a second");
        assert!(slept <= 10, "{slept}");
        role.meet(&client);
    });
}
