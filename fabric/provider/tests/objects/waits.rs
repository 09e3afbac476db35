//! fi_trywait, wait sets and poll sets, with event queues.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::ptr;
use std::time::{Duration, Instant};

use libfabric_sys::*;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with,
};

use crate::alone::run;
use crate::events::{read, write};
use crate::opened::{Object, Opened, open};

fn descriptor<T>(object: &Object<T>) -> c_int {
    let mut descriptor = -1;
    // SAFETY: the object is open, and the argument is that of the command.
    let result = unsafe { fi_control(object.fid(), FI_GETWAIT, (&raw mut descriptor).cast()) };
    assert_eq!(result, 0);
    descriptor
}

fn is_readable(descriptor: c_int) -> bool {
    let mut one = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut one, 1, 0) == 1 }
}

fn try_wait(opened: &Opened, objects: &mut [*mut fid]) -> c_int {
    // SAFETY: the fabric and the objects are open.
    unsafe { fi_trywait(opened.fabric.0, objects.as_mut_ptr(), objects.len() as c_int) }
}

#[test]
fn a_descriptor_is_readable_while_an_event_is_unread() {
    run(
        "waits::a_descriptor_is_readable_while_an_event_is_unread",
        |library| {
            let opened = Opened::any(library);
            let queue = opened.queue(32, FI_WRITE, FI_WAIT_FD);
            let descriptor = descriptor(&queue);
            for _ in 0..3 {
                assert_eq!(try_wait(&opened, &mut [queue.fid()]), 0);
                assert!(!is_readable(descriptor));
                assert!(write(&queue, 1) > 0 && write(&queue, 2) > 0);
                assert_eq!(try_wait(&opened, &mut [queue.fid()]), -FI_EAGAIN);
                assert!(is_readable(descriptor));
                assert!(read(&queue, 0).0 > 0);
                assert!(is_readable(descriptor), "another one is unread");
                assert!(read(&queue, 0).0 > 0);
                assert!(!is_readable(descriptor));
            }
            assert_eq!(try_wait(&opened, &mut [opened.fabric.fid()]), -FI_EINVAL);
        },
    );
}

#[test]
fn a_wait_set_wakes_by_any_of_its_queues() {
    run("waits::a_wait_set_wakes_by_any_of_its_queues", |library| {
        let opened = Opened::any(library);
        let mut attributes = fi_wait_attr {
            wait_obj: FI_WAIT_FD,
            flags: 0,
        };
        // SAFETY: the fabric is open.
        let set = open("fi_wait_open", |to| unsafe {
            fi_wait_open(opened.fabric.0, &raw mut attributes, to)
        });
        let queue = || {
            let mut attributes = fi_eq_attr {
                flags: FI_WRITE,
                wait_obj: FI_WAIT_SET,
                wait_set: set.0,
                ..Layout::zeroed()
            };
            // SAFETY: the fabric and the set are open.
            open::<fid_eq>("fi_eq_open", |to| unsafe {
                fi_eq_open(opened.fabric.0, &raw mut attributes, to, ptr::null_mut())
            })
        };
        let (one, other) = (queue(), queue());
        // SAFETY: the set is open, here and below.
        let wait = |timeout| unsafe { fi_wait(set.0, timeout) };
        assert_eq!(wait(5), -FI_ETIMEDOUT);
        assert_eq!(try_wait(&opened, &mut [set.fid()]), 0);
        assert!(write(&other, 1) > 0);
        assert_eq!(wait(-1), 0);
        assert_eq!(try_wait(&opened, &mut [set.fid()]), -FI_EAGAIN);
        assert!(is_readable(descriptor(&set)));
        assert!(read(&other, 0).0 > 0);
        assert_eq!(wait(0), -FI_ETIMEDOUT);
        // SAFETY: the set is in use.
        assert_eq!(unsafe { fi_close(set.fid()) }, -FI_EBUSY);
        drop((one, other));
    });
}

/// A child of `fork` that has what this process has, and sleeps until this is dropped.
struct Sleeper(libc::pid_t);

impl Sleeper {
    fn start() -> Self {
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
        Self(child)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: our own child.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: our own child, and no place for its status.
        unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) };
    }
}

/// Opens a completion queue with a descriptor, or in a wait set.
fn completions(opened: &Opened, wait_obj: fi_wait_obj, set: *mut fid_wait) -> Object<fid_cq> {
    let mut attributes = fi_cq_attr {
        wait_obj,
        wait_set: set,
        ..Layout::zeroed()
    };
    // SAFETY: the domain is open, and the set where there is one.
    open("fi_cq_open", |to| unsafe {
        fi_cq_open(opened.domain.0, &raw mut attributes, to, ptr::null_mut())
    })
}

#[test]
fn what_is_closed_after_a_fork_leaves_its_wait_set() {
    run(
        "waits::what_is_closed_after_a_fork_leaves_its_wait_set",
        |library| {
            let opened = Opened::any(library);
            let mut attributes = fi_wait_attr {
                wait_obj: FI_WAIT_FD,
                flags: 0,
            };
            // SAFETY: the fabric is open.
            let set = open("fi_wait_open", |to| unsafe {
                fi_wait_open(opened.fabric.0, &raw mut attributes, to)
            });
            // SAFETY: the set is open.
            let wait = |timeout| unsafe { fi_wait(set.0, timeout) };
            let mut attributes = fi_eq_attr {
                flags: FI_WRITE,
                wait_obj: FI_WAIT_SET,
                wait_set: set.0,
                ..Layout::zeroed()
            };
            // SAFETY: the fabric and the set are open.
            let events = open::<fid_eq>("fi_eq_open", |to| unsafe {
                fi_eq_open(opened.fabric.0, &raw mut attributes, to, ptr::null_mut())
            });
            assert!(write(&events, 1) > 0);
            let child = Sleeper::start();
            assert_eq!(wait(0), 0);
            assert_eq!(events.close(), 0);
            assert_eq!(wait(5), -FI_ETIMEDOUT, "an event queue that is closed wakes none");
            drop(child);
            let queue = completions(&opened, FI_WAIT_SET, set.0);
            let child = Sleeper::start();
            assert_eq!(try_wait(&opened, &mut [queue.fid()]), 0);
            // SAFETY: the queue is open.
            assert_eq!(unsafe { fi_cq_signal(queue.0) }, 0);
            assert!(is_readable(descriptor(&set)));
            assert_eq!(queue.close(), 0);
            assert!(!is_readable(descriptor(&set)), "neither does a completion queue");
            drop(child);
            assert_eq!(set.close(), 0);
        },
    );
}

/// Connects to the listener of the only member of this process.
fn call_own_listener() -> OwnedFd {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let links: Vec<_> = links.collect();
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let name = table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(7)?.strip_prefix("@doorbell.peer.")?;
        let is_ours = links
            .iter()
            .any(|link| link.to_str() == Some(&format!("socket:[{}]", words[6])));
        is_ours.then(|| format!("doorbell.peer.{name}"))
    });
    let address = SocketAddrUnix::new_abstract_name(name.unwrap().as_bytes()).unwrap();
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &address).unwrap();
    socket
}

#[test]
fn a_connection_that_ends_after_a_fork_wakes_no_sleep() {
    run(
        "waits::a_connection_that_ends_after_a_fork_wakes_no_sleep",
        |library| {
            const SLEEP: Duration = Duration::from_millis(300);
            let opened = Opened::any(library);
            let queue = completions(&opened, FI_WAIT_FD, ptr::null_mut());
            let descriptor = descriptor(&queue);
            let sleep = || {
                let mut wakes = 0;
                let began = Instant::now();
                while began.elapsed() < SLEEP {
                    if try_wait(&opened, &mut [queue.fid()]) != 0 {
                        wakes += 1;
                        continue;
                    }
                    let mut one = libc::pollfd {
                        fd: descriptor,
                        events: libc::POLLIN,
                        revents: 0,
                    };
                    // SAFETY: one entry.
                    wakes += unsafe { libc::poll(&raw mut one, 1, SLEEP.as_millis() as c_int) };
                }
                wakes
            };
            let before = sleep();
            let stranger = call_own_listener();
            sleep();
            let child = Sleeper::start();
            // The child has a copy of it.
            shutdown(&stranger, Shutdown::Both).unwrap();
            sleep();
            let after = sleep();
            println!("woken {before} times before, {after} times after");
            // The rails are looked at now and then; a set that is always readable wakes without end.
            assert!(
                after < 300,
                "woken {after} times in {SLEEP:?}, {before} times before"
            );
            drop(child);
        },
    );
}

#[test]
fn a_poll_set_gives_the_contexts_of_those_that_have_something() {
    run(
        "waits::a_poll_set_gives_the_contexts_of_those_that_have_something",
        |library| {
            let opened = Opened::any(library);
            let mut attributes = fi_poll_attr { flags: 0 };
            // SAFETY: the domain is open.
            let set = open("fi_poll_open", |to| unsafe {
                fi_poll_open(opened.domain.0, &raw mut attributes, to)
            });
            let queue = |context| {
                let mut attributes = fi_eq_attr {
                    flags: FI_WRITE,
                    ..Layout::zeroed()
                };
                let context = ptr::without_provenance_mut(context);
                // SAFETY: the fabric is open.
                open::<fid_eq>("fi_eq_open", |to| unsafe {
                    fi_eq_open(opened.fabric.0, &raw mut attributes, to, context)
                })
            };
            let (one, other) = (queue(11), queue(22));
            for object in [&one, &other, &one] {
                // SAFETY: both are open.
                assert_eq!(unsafe { fi_poll_add(set.0, object.fid(), 0) }, 0);
            }
            let poll = || {
                let mut contexts = [ptr::null_mut(); 4];
                // SAFETY: the set is open, and there are four places.
                let count = unsafe { fi_poll(set.0, contexts.as_mut_ptr(), 4) };
                contexts[..count as usize]
                    .iter()
                    .map(|context| context.addr())
                    .collect::<Vec<_>>()
            };
            assert_eq!(poll(), [0_usize; 0]);
            assert!(write(&other, 1) > 0);
            assert_eq!(poll(), [22]);
            assert!(write(&one, 1) > 0);
            assert_eq!(poll(), [11, 22]);
            // SAFETY: both are open.
            let removed = unsafe { fi_poll_del(set.0, other.fid(), 0) };
            assert_eq!(removed, 0);
            assert_eq!(poll(), [11]);
            // SAFETY: as above.
            let removed = unsafe { fi_poll_del(set.0, other.fid(), 0) };
            assert_eq!(removed, -FI_EINVAL);
            // SAFETY: the set uses it.
            assert_eq!(unsafe { fi_close(one.fid()) }, -FI_EBUSY);
            assert_eq!(set.close(), 0);
        },
    );
}
