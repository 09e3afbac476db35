//! Poll sets: fi_poll(3).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libfabric_sys::*;

use super::source::Source;
use crate::domain::{self, Domain};
use crate::errno::Errno;
use crate::object::{self, Head, Held, Object, Uses, give, publish, take_back, taken, this};
use crate::refuse::{self, Table};

/// A poll set: several queues and counters that are looked at by one call.
#[repr(C)]
pub(crate) struct PollSet {
    head: Head<fid_poll>,
    uses: Uses,
    domain: Held<Domain>,
    sources: Mutex<Vec<Source>>,
}

// SAFETY: `head` is first, and `open` sets the class and the table, which no other type has.
unsafe impl Object for PollSet {
    type Head = fid_poll;
    const CLASS: usize = FI_CLASS_POLL;

    fn ops() -> &'static Table<fi_ops> {
        &POLL_FI
    }

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

static POLL_FI: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close_poll),
    ..refuse::FI_OPS
});

static POLL: Table<fi_ops_poll> = Table::new(fi_ops_poll {
    poll: Some(poll),
    poll_add: Some(poll_add),
    poll_del: Some(poll_del),
    ..fi_ops_poll::REFUSING
});

impl PollSet {
    fn change<R>(&self, work: impl FnOnce(&mut Vec<Source>) -> R) -> R {
        work(&mut self.sources.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Opens a poll set: fi_poll(3).
pub(crate) unsafe extern "C" fn open_poll(
    domain: *mut fid_domain,
    attributes: *mut fi_poll_attr,
    set: *mut *mut fid_poll,
) -> c_int {
    // SAFETY: the table belongs to domains.
    let domain = unsafe { domain::of(domain) };
    domain.guard("fi_poll_open", || {
        // SAFETY: the caller has the place for the result.
        unsafe { give(set, ptr::null_mut()) }?;
        // SAFETY: null, or the caller's attributes.
        if unsafe { taken(attributes) }.is_some_and(|attributes| attributes.flags != 0) {
            return Err(Errno(FI_EBADFLAGS));
        }
        let object = Box::new(PollSet {
            head: Head::new(fid_poll {
                fid: object::head::<PollSet>(ptr::null_mut()),
                ops: POLL.pointer(),
            }),
            uses: Uses::default(),
            domain: Held::new(domain),
            sources: Mutex::default(),
        });
        // SAFETY: written above.
        unsafe { publish(object, set) };
        Ok(0)
    })
}

unsafe extern "C" fn close_poll(set: *mut fid) -> c_int {
    // SAFETY: the table belongs to poll sets.
    match unsafe { take_back::<PollSet>(set) } {
        Ok(object) => {
            drop(object);
            0
        }
        Err(errno) => -errno.0,
    }
}

/// Writes the contexts of the objects that have something.
unsafe extern "C" fn poll(set: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    // SAFETY: the table belongs to poll sets.
    let set = unsafe { this::<PollSet>(set) };
    set.domain.guard("fi_poll", || {
        let room = usize::try_from(count).map_err(|_| Errno(FI_EINVAL))?;
        let sources = set.change(|sources| sources.clone());
        let mut found = 0;
        for source in sources {
            if found == room || !source.has_something()? {
                continue;
            }
            let object = source.pointer();
            // SAFETY: an open object, whose context is the client's.
            let context = unsafe { (*object).context };
            // SAFETY: the caller has room for `count` contexts.
            unsafe { give(contexts.wrapping_add(found), context) }?;
            found += 1;
        }
        Ok(found as c_int)
    })
}

unsafe extern "C" fn poll_add(set: *mut fid_poll, object: *mut fid, flags: u64) -> c_int {
    // SAFETY: the table belongs to poll sets.
    let set = unsafe { this::<PollSet>(set) };
    set.domain.guard("fi_poll_add", || {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        // SAFETY: null, or an open object of the caller.
        let source = unsafe { Source::find(object) }?;
        set.change(|sources| {
            if sources.iter().all(|other| other.pointer() != source.pointer()) {
                sources.push(source);
            }
        });
        Ok(0)
    })
}

unsafe extern "C" fn poll_del(set: *mut fid_poll, object: *mut fid, flags: u64) -> c_int {
    // SAFETY: the table belongs to poll sets.
    let set = unsafe { this::<PollSet>(set) };
    set.domain.guard("fi_poll_del", || {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let is_there = set.change(|sources| {
            let at = sources.iter().position(|other| other.pointer() == object);
            at.map(|at| sources.remove(at)).is_some()
        });
        if is_there { Ok(0) } else { Err(Errno(FI_EINVAL)) }
    })
}
