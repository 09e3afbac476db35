//! Automatic progress: a process that makes no calls.

use std::time::{Duration, Instant};

use libfabric_sys::*;

use crate::client::{Client, Room, Wants, pattern, until};
use crate::pair::{run, run_with};
use crate::rma::{KEY, calls, expose};

fn automatic() -> Wants {
    Wants {
        progress: FI_PROGRESS_AUTO,
        ..Wants::default()
    }
}

#[test]
fn a_process_that_makes_no_calls_receives() {
    let test = "automatic::a_process_that_makes_no_calls_receives";
    run(test, |mut role, library| {
        let wants = Wants {
            // Their sends end when they are in the receiver's memory.
            send_flags: FI_DELIVERY_COMPLETE,
            ..automatic()
        };
        let client = Client::meet(&mut role, library, &wants);
        for (number, length) in [8, 4000, 70_000, 1 << 20, 5 << 20, 1].into_iter().enumerate() {
            let bytes = pattern(length, number);
            if role.is_first() {
                role.wait();
                client.post(&bytes, Some(1), 1);
                assert_eq!(client.next().entry().op_context.addr(), 1);
                role.call();
            } else {
                let mut room = Room::new(length);
                client.receive(&mut room, Some((1, 0)), FI_ADDR_UNSPEC, 2);
                role.call();
                // No call until all of it has come.
                role.wait();
                assert_eq!(room.bytes(), bytes);
                assert_eq!(client.next().entry().op_context.addr(), 2);
            }
        }
    });
}

#[test]
fn what_was_sent_leaves_without_another_call() {
    let test = "automatic::what_was_sent_leaves_without_another_call";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &automatic());
        let bytes = pattern(3 << 20, 7);
        if role.is_first() {
            client.post(&bytes, None, 1);
            role.wait();
            assert_eq!(client.next().entry().op_context.addr(), 1);
        } else {
            client.expect(&bytes, None);
            role.call();
        }
    });
}

/// The threads that make progress: the time that each has taken of a core.
fn threads() -> Vec<Duration> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .map(|task| task.unwrap().path())
        .filter(|task| std::fs::read_to_string(task.join("comm")).unwrap() == "doorbell-auto\n")
        .map(|task| {
            let times = std::fs::read_to_string(task.join("schedstat")).unwrap();
            Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
        })
        .collect()
}

#[test]
fn the_thread_sleeps_when_nothing_comes_and_ends_with_its_domain() {
    let test = "automatic::the_thread_sleeps_when_nothing_comes_and_ends_with_its_domain";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &automatic());
        role.meet(&client);
        // It names itself when it runs.
        until("there is no thread", || (threads().len() == 1).then_some(()));
        let manual = Client::open(library, &Wants::default());
        assert_eq!(threads().len(), 1, "a client that makes progress has no thread");
        drop(manual);
        // It has taken over by now.
        std::thread::sleep(Duration::from_millis(100));
        let (before, began) = (threads()[0], Instant::now());
        std::thread::sleep(Duration::from_millis(500));
        let (taken, passed) = (threads()[0] - before, began.elapsed());
        assert!(taken * 50 < passed, "it has taken {taken:?} of {passed:?}");
        role.exchange(&[0]);
        drop(client);
        assert!(threads().is_empty());
    });
}

/// A line of what the kernel reports about the thread of a domain.
fn status_of_thread(name: &str) -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut tasks = tasks.map(|task| task.unwrap().path());
    let named =
        |task: &std::path::PathBuf| std::fs::read_to_string(task.join("comm")).unwrap() == "doorbell-auto\n";
    let status = std::fs::read_to_string(tasks.find(named).unwrap().join("status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().trim().to_owned()
}

/// How often it has given its core up by itself.
fn sleeps_of_thread() -> u64 {
    status_of_thread("voluntary_ctxt_switches:").parse().unwrap()
}

#[test]
fn with_a_core_the_thread_is_bound_there_and_looks_without_end() {
    let test = "automatic::with_a_core_the_thread_is_bound_there_and_looks_without_end";
    let cores = doorbell_fabric::cores::allowed();
    let Some(core) = cores.iter().next_back().filter(|_| cores.len() > 1) else {
        return doorbell_testing::skipped(test, "one core: the thread has to share it");
    };
    let text = core.to_string();
    let variables = [
        ("FI_DOORBELL_CORE", text.as_str()),
        ("FI_DOORBELL_WAIT", "lowest-latency"),
    ];
    run_with(test, &variables, |mut role, library| {
        let wants = Wants {
            send_flags: FI_DELIVERY_COMPLETE,
            ..automatic()
        };
        let client = Client::meet(&mut role, library, &wants);
        assert_eq!(status_of_thread("Cpus_allowed_list:"), core.to_string());
        let bytes = pattern(70_000, 3);
        if role.is_first() {
            role.wait();
            client.post(&bytes, Some(1), 1);
            assert_eq!(client.next().entry().op_context.addr(), 1);
            role.call();
        } else {
            let mut room = Room::new(bytes.len());
            client.receive(&mut room, Some((1, 0)), FI_ADDR_UNSPEC, 2);
            let sleeps = sleeps_of_thread();
            role.call();
            // No call until all of it has come.
            role.wait();
            assert_eq!(room.bytes(), bytes);
            assert_eq!(client.next().entry().op_context.addr(), 2);
            let slept = sleeps_of_thread() - sleeps;
            assert!(slept < 10, "the thread slept {slept} times");
        }
    });
}

/// How often a target that makes no calls is written to.
const PUTS: usize = 2000;

#[test]
#[ignore = "measures times, which need a machine without other work"]
fn a_target_that_computes_is_written_to_in_time() {
    let test = "automatic::a_target_that_computes_is_written_to_in_time";
    run(test, |mut role, library| {
        let wants = Wants {
            caps: FI_MSG | FI_RMA | FI_SOURCE,
            send_flags: FI_DELIVERY_COMPLETE,
            ..automatic()
        };
        let client = Client::meet(&mut role, library, &wants);
        let mut room = Room::new(4096);
        let _registration = expose(&client, &mut room, KEY);
        role.meet(&client);
        if !role.is_first() {
            let mut state = 1_u64;
            while !role.is_called() {
                for _ in 0..1_000_000 {
                    state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005) | 1);
                }
            }
            role.wait();
            assert_eq!(room.bytes()[..8], (PUTS as u64 - 1).to_le_bytes());
            return;
        }
        let calls = calls(&client);
        let mut times: Vec<Duration> = (0..PUTS as u64)
            .map(|number| {
                // The target's thread sleeps again.
                std::thread::sleep(Duration::from_millis(2));
                let began = Instant::now();
                calls.write_by("write", &number.to_le_bytes());
                began.elapsed()
            })
            .collect();
        role.call();
        times.sort_unstable();
        let at = |share: usize| times[PUTS * share / 100];
        let (median, p99, longest) = (at(50), at(99), times[PUTS - 1]);
        println!(
            "{PUTS} puts to a target that computes: median {median:?}, p99 {p99:?}, longest {longest:?}"
        );
        assert!(median <= Duration::from_millis(1) && p99 <= Duration::from_millis(5));
    });
}

#[test]
#[ignore = "measures the time of ten seconds without work"]
fn an_idle_process_takes_a_hundredth_of_a_core() {
    let test = "automatic::an_idle_process_takes_a_hundredth_of_a_core";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &automatic());
        role.meet(&client);
        std::thread::sleep(Duration::from_millis(100));
        let (before, began) = (threads()[0], Instant::now());
        std::thread::sleep(Duration::from_secs(10));
        let (taken, passed) = (threads()[0] - before, began.elapsed());
        println!("an idle thread takes {taken:?} of {passed:?}");
        assert!(taken * 100 <= passed);
        role.exchange(&[0]);
    });
}

#[test]
fn a_child_that_ends_leaves_the_thread_of_its_parent_alone() {
    let test = "automatic::a_child_that_ends_leaves_the_thread_of_its_parent_alone";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &automatic());
        for number in 0..20 {
            // SAFETY: the child closes what is its parent's, which does nothing, and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let mut entry = std::mem::MaybeUninit::<fi_cq_tagged_entry>::uninit();
                let to = entry.as_mut_ptr().cast();
                // SAFETY: the queue is open, in the parent, and there is room for an entry.
                let read = unsafe { fi_cq_sread(client.queue.0, to, 1, std::ptr::null(), -1) };
                if read != -(FI_EOPBADSTATE as isize) {
                    // SAFETY: as below.
                    unsafe { libc::_exit(1) };
                }
                // SAFETY: the endpoint is open, in the parent.
                let closed = unsafe { fi_close(client.endpoint.0.cast()) };
                // SAFETY: nothing of the test is to run in the child.
                unsafe { libc::_exit(closed) };
            }
            let mut status = 0;
            // SAFETY: the status is written.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
            let bytes = pattern(300_000, number);
            if role.is_first() {
                client.send(&bytes, Some(3));
            } else {
                client.expect(&bytes, Some(3));
            }
        }
        role.meet(&client);
    });
}
