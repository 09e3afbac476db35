//! Event queues, as fabtests' eq_test uses them, and beyond.

use std::ffi::{CStr, c_void};
use std::ptr;

use libfabric_sys::*;

use crate::alone::run;
use crate::opened::{Object, Opened, try_open};

/// Writes an event with a context; returns the call's result.
pub(crate) fn write(queue: &Object<fid_eq>, context: usize) -> isize {
    let entry = fi_eq_entry {
        fid: queue.fid(),
        context: ptr::without_provenance_mut(context),
        data: 0,
    };
    // SAFETY: the queue is open, and the event is whole.
    unsafe {
        fi_eq_write(
            queue.0,
            FI_NOTIFY,
            (&raw const entry).cast(),
            size_of_val(&entry),
            0,
        )
    }
}

/// Reads an event; returns the call's result, the kind and the entry.
pub(crate) fn read(queue: &Object<fid_eq>, flags: u64) -> (isize, u32, fi_eq_entry) {
    let (mut kind, mut entry): (u32, fi_eq_entry) = (u32::MAX, Layout::zeroed());
    let length = size_of::<fi_eq_entry>();
    // SAFETY: the queue is open, and the entry has this length.
    let result = unsafe {
        fi_eq_read(
            queue.0,
            &raw mut kind,
            (&raw mut entry).cast::<c_void>(),
            length,
            flags,
        )
    };
    (result, kind, entry)
}

const WHOLE: isize = size_of::<fi_eq_entry>() as isize;
const AGAIN: isize = -(FI_EAGAIN as isize);

#[test]
fn queues_of_any_size_are_opened() {
    run("events::queues_of_any_size_are_opened", |library| {
        let opened = Opened::any(library);
        for shift in 0..17 {
            for wait in [FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD] {
                assert_eq!(opened.queue(1 << shift, 0, wait).close(), 0);
            }
        }
        let mut attributes = fi_eq_attr {
            wait_obj: FI_WAIT_MUTEX_COND,
            ..Layout::zeroed()
        };
        // SAFETY: the fabric is open.
        let refused = try_open::<fid_eq>(|to| unsafe {
            fi_eq_open(opened.fabric.0, &raw mut attributes, to, ptr::null_mut())
        });
        assert_eq!(refused.unwrap_err(), -FI_ENOSYS);
    });
}

#[test]
fn what_a_client_writes_comes_back_in_order_and_a_look_leaves_it() {
    run(
        "events::what_a_client_writes_comes_back_in_order_and_a_look_leaves_it",
        |library| {
            let opened = Opened::any(library);
            let queue = opened.queue(32, FI_WRITE, FI_WAIT_NONE);
            for context in 0..32 {
                assert_eq!(write(&queue, context), WHOLE);
            }
            assert_eq!(write(&queue, 32), AGAIN, "it is full");
            for context in 0..32 {
                for flags in [FI_PEEK, 0] {
                    let (result, kind, entry) = read(&queue, flags);
                    assert_eq!((result, kind), (WHOLE, FI_NOTIFY));
                    assert_eq!((entry.fid, entry.context.addr()), (queue.fid(), context));
                }
            }
            assert_eq!(read(&queue, 0).0, AGAIN);
            assert_eq!(write(&queue, 5), WHOLE);
            let mut kind = 0;
            // SAFETY: the queue is open; there is no room.
            let small = unsafe { fi_eq_read(queue.0, &raw mut kind, ptr::null_mut(), 0, 0) };
            assert_eq!(small, -(FI_ETOOSMALL as isize));
            assert_eq!(read(&queue, 0).0, WHOLE, "it is still there");
        },
    );
}

#[test]
fn a_queue_that_is_only_read_takes_no_writes() {
    run("events::a_queue_that_is_only_read_takes_no_writes", |library| {
        let opened = Opened::any(library);
        let queue = opened.queue(32, 0, FI_WAIT_NONE);
        assert_eq!(write(&queue, 1), -(FI_EINVAL as isize));
    });
}

#[test]
fn a_wait_ends_by_an_event_or_by_its_time() {
    run("events::a_wait_ends_by_an_event_or_by_its_time", |library| {
        let opened = Opened::any(library);
        let queue = opened.queue(32, FI_WRITE, FI_WAIT_UNSPEC);
        let wait = |timeout| {
            let (mut kind, mut entry): (u32, fi_eq_entry) = (0, Layout::zeroed());
            // SAFETY: the queue is open, and the entry is whole.
            unsafe {
                fi_eq_sread(
                    queue.0,
                    &raw mut kind,
                    (&raw mut entry).cast(),
                    size_of_val(&entry),
                    timeout,
                    0,
                )
            }
        };
        assert_eq!(wait(10), AGAIN);
        assert_eq!(write(&queue, 1), WHOLE);
        assert_eq!(wait(-1), WHOLE);
        let address = queue.0.expose_provenance();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let queue = Object::<fid_eq>(ptr::with_exposed_provenance_mut(address));
                assert_eq!(write(&queue, 2), WHOLE);
                std::mem::forget(queue);
            });
            assert_eq!(wait(-1), WHOLE);
        });
    });
}

#[test]
fn errors_have_words() {
    run("events::errors_have_words", |library| {
        let opened = Opened::any(library);
        let queue = opened.queue(0, 0, FI_WAIT_NONE);
        let mut room = [0_u8; 10];
        let words = |to: *mut u8, length| {
            // SAFETY: the queue is open, and the memory has this length.
            let text = unsafe { fi_eq_strerror(queue.0, FI_EHOSTUNREACH, ptr::null(), to.cast(), length) };
            // SAFETY: a text that ends with a zero byte.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        assert!(words(ptr::null_mut(), 0).contains("FI_DOORBELL_RAILS"));
        let start = room.as_mut_ptr();
        assert_eq!(words(start, 10).len(), 9);
    });
}
