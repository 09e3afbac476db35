//! Tables of functions: every entry is set, and refusing words follow.

use std::ptr;

use libfabric_sys::layout::tables;
use libfabric_sys::*;

use crate::alone::run;
use crate::opened::{Opened, open};

/// Checks a table of functions that an object has.
fn check<T: Layout>(table: *mut T) {
    let name = T::STRUCTURE.name;
    let words = table.cast::<usize>();
    // SAFETY: the first word of a table is its size.
    let size = unsafe { words.read() };
    assert_eq!(size, size_of::<T>(), "{name}");
    for word in 1..size / 8 + 8 {
        // SAFETY: a word of the table, or one of the eight behind it.
        let entry = unsafe { words.wrapping_add(word).read() };
        assert!(entry != 0, "{name}, word {word}");
    }
    let spare = words
        .wrapping_add(size / 8)
        .cast::<unsafe extern "C" fn() -> isize>();
    // SAFETY: the word behind the table is a function that looks at no argument.
    let spare = unsafe { spare.read() };
    // SAFETY: as above.
    assert_eq!(unsafe { spare() }, -(FI_ENOSYS as isize), "{name}");
}

/// Reads a field of an object.
macro_rules! field {
    ($object:expr, $field:ident) => {{
        let object = $object;
        // SAFETY: the object is open.
        unsafe { (*object).$field }
    }};
}

fn check_common<T>(object: *mut T) {
    check(field!(object.cast::<fid>(), ops));
}

#[test]
fn every_entry_of_every_table_is_set() {
    run("tables::every_entry_of_every_table_is_set", |library| {
        assert!(tables().count() >= 18);
        let opened = Opened::any(library);
        check_common(opened.fabric.0);
        check(field!(opened.fabric.0, ops));
        check_common(opened.domain.0);
        check(field!(opened.domain.0, ops));
        check(field!(opened.domain.0, mr));
        let queue = opened.queue(0, 0, FI_WAIT_NONE);
        check_common(queue.0);
        check(field!(queue.0, ops));
        let mut attributes: fi_av_attr = Layout::zeroed();
        // SAFETY: the domain is open.
        let vector = open("fi_av_open", |to| unsafe {
            fi_av_open(opened.domain.0, &raw mut attributes, to, ptr::null_mut())
        });
        check_common(vector.0);
        check(field!(vector.0, ops));
        // SAFETY: the domain is open.
        let registration = open("fi_mr_reg", |to| unsafe {
            fi_mr_reg(
                opened.domain.0,
                ptr::null(),
                0,
                FI_READ,
                0,
                1,
                0,
                to,
                ptr::null_mut(),
            )
        });
        check_common(registration.0);
        let mut attributes = fi_poll_attr { flags: 0 };
        // SAFETY: the domain is open.
        let polls = open("fi_poll_open", |to| unsafe {
            fi_poll_open(opened.domain.0, &raw mut attributes, to)
        });
        check_common(polls.0);
        check(field!(polls.0, ops));
        let mut attributes = fi_wait_attr {
            wait_obj: FI_WAIT_UNSPEC,
            flags: 0,
        };
        // SAFETY: the fabric is open.
        let waits = open("fi_wait_open", |to| unsafe {
            fi_wait_open(opened.fabric.0, &raw mut attributes, to)
        });
        check_common(waits.0);
        check(field!(waits.0, ops));
    });
}

#[test]
fn what_is_not_offered_is_refused_by_the_number_for_it() {
    run(
        "tables::what_is_not_offered_is_refused_by_the_number_for_it",
        |library| {
            let opened = Opened::any(library);
            let (domain, entry, null) = (opened.domain.0, opened.info.as_ptr().cast_mut(), ptr::null_mut());
            let mut endpoint = ptr::null_mut();
            // SAFETY: the domain is open, here and below.
            let scalable = unsafe { fi_scalable_ep(domain, entry, &raw mut endpoint, null) };
            assert_eq!(scalable, -FI_ENOSYS);
            let mut passive = ptr::null_mut();
            // SAFETY: the fabric is open.
            let result = unsafe { fi_passive_ep(opened.fabric.0, entry, &raw mut passive, null) };
            assert_eq!(result, -FI_ENOSYS);
            let mut attributes = Layout::zeroed();
            // SAFETY: as above.
            let atomics = unsafe { fi_query_atomic(domain, 0, 0, &raw mut attributes, 0) };
            assert_eq!(atomics, -FI_ENOSYS);
            let mut ops = ptr::null_mut();
            // SAFETY: as above.
            let named =
                unsafe { fi_open_ops(opened.domain.fid(), c"nonsense".as_ptr(), 0, &raw mut ops, null) };
            assert_eq!(named, -FI_ENOSYS);
        },
    );
}
