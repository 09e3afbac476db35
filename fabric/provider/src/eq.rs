//! Event queues of a fabric: fi_eq(3).
//!
//! Events are those of address vectors and registrations that are bound to a queue, and those that the client
//! writes itself. Errors are read first, by a call of their own.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd as _, OwnedFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libfabric_sys::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno as System;

use crate::ep::limits;
use crate::errno::{Errno, Result};
use crate::fabric::{self, Fabric};
use crate::fence::Fence;
use crate::object::{self, Head, Held, Object, Uses, give, publish, take_back, taken, this};
use crate::refuse::{self, Table};
use crate::sleep::{self, Limit};
use crate::text;
use crate::wait::{WaitKind, WaitSet};

/// The events that a queue of no size has room for.
const USUAL_SIZE: usize = 256;
/// The most bytes of an event that a client writes.
const LONGEST: usize = 4096;

/// An event queue.
#[repr(C)]
pub(crate) struct EventQueue {
    head: Head<fid_eq>,
    uses: Uses,
    fence: Fence,
    _fabric: Held<Fabric>,
    /// Whether the client may write events.
    is_writable: bool,
    /// Events that a client's writes may fill.
    size: usize,
    /// What is waited on, where there is something.
    waits: Option<Waits>,
    unread: Mutex<Unread>,
}

#[derive(Debug)]
struct Waits {
    /// Readable while something is unread.
    bell: OwnedFd,
    kind: WaitKind,
    set: Option<Held<WaitSet>>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(set) = &self.set {
            set.unwatch(self.bell.as_fd());
        }
    }
}

/// Events that were not read yet.
#[derive(Debug, Default)]
struct Unread {
    events: VecDeque<(u32, Box<[u8]>)>,
    errors: VecDeque<fi_eq_err_entry>,
}

// SAFETY: the pointers of an entry are the client's, and are given back as they are.
unsafe impl Send for Unread {}

// SAFETY: `head` is first, and `open` sets the class and the table, which no other type has.
unsafe impl Object for EventQueue {
    type Head = fid_eq;
    const CLASS: usize = FI_CLASS_EQ;

    fn ops() -> &'static Table<fi_ops> {
        &FI
    }

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

static FI: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    control: Some(control),
    ..refuse::FI_OPS
});

static OPS: Table<fi_ops_eq> = Table::new(fi_ops_eq {
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
    ..fi_ops_eq::REFUSING
});

impl EventQueue {
    /// Adds an event that an operation has completed.
    pub(crate) fn completed(&self, event: u32, object: *mut fid, context: *mut c_void, data: u64) {
        let entry = fi_eq_entry {
            fid: object,
            context,
            data,
        };
        // SAFETY: a structure without padding, whose bytes may be read.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const entry).cast(), size_of_val(&entry)) };
        self.push(|unread| unread.events.push_back((event, bytes.into())));
    }

    /// Adds an event that an operation has failed; `data` is its number among several.
    pub(crate) fn failed(&self, object: *mut fid, context: *mut c_void, data: u64, errno: Errno) {
        let entry = fi_eq_err_entry {
            fid: object,
            context,
            data,
            err: errno.0,
            prov_errno: errno.0,
            err_data: ptr::null_mut(),
            err_data_size: 0,
        };
        self.push(|unread| unread.errors.push_back(entry));
    }

    /// Whether something is unread.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread().is_empty()
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, add: impl FnOnce(&mut Unread)) {
        let mut unread = self.unread();
        let was_empty = unread.is_empty();
        add(&mut unread);
        if was_empty && let Some(waits) = &self.waits {
            // It was 0, so there is room in it.
            let _ = rustix::io::write(&waits.bell, &1_u64.to_ne_bytes());
        }
    }

    fn pop(&self, unread: &mut Unread, is_error: bool) {
        if is_error {
            unread.errors.pop_front();
        } else {
            unread.events.pop_front();
        }
        if unread.is_empty()
            && let Some(waits) = &self.waits
        {
            let _ = rustix::io::read(&waits.bell, &mut [0; 8]);
        }
    }

    /// Reads the next event into a caller's memory.
    ///
    /// # Safety
    /// `event` is null or may be written, and `length` bytes at `to`.
    ///
    /// # Errors
    /// `FI_EAVAIL` while an error is unread, `FI_EAGAIN` for nothing, `FI_ETOOSMALL` for too little room.
    unsafe fn take(&self, event: *mut u32, to: *mut c_void, length: usize, flags: u64) -> Result<isize> {
        if flags & !FI_PEEK != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let mut unread = self.unread();
        if !unread.errors.is_empty() {
            return Err(Errno(FI_EAVAIL));
        }
        let Some((kind, bytes)) = unread.events.front() else {
            return Err(Errno(FI_EAGAIN));
        };
        let count = bytes.len();
        if count > length || to.is_null() && count > 0 {
            return Err(Errno(FI_ETOOSMALL));
        }
        // SAFETY: there is room for it in the caller's memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), count) };
        // SAFETY: by the contract of this function.
        unsafe { give(event, *kind) }?;
        if flags & FI_PEEK == 0 {
            self.pop(&mut unread, false);
        }
        Ok(count as isize)
    }

    /// Sleeps until something is unread, or this time is over.
    fn sleep(bell: &OwnedFd, left: Duration) -> Result<()> {
        let limit = doorbell_fabric::poll::timespec(left);
        match poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(System::INTR) => Ok(()),
            Err(error) => Err(Errno(error.raw_os_error())),
        }
    }
}

impl Unread {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.errors.is_empty()
    }
}

/// Opens an event queue: fi_eq(3).
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attributes: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to fabrics.
    let fabric = unsafe { fabric::of(fabric) };
    fabric.run("fi_eq_open", || {
        // SAFETY: the caller has the place for the result.
        unsafe { give(eq, ptr::null_mut()) }?;
        // SAFETY: null, or the caller's attributes, which are the same in all releases.
        let attributes = unsafe { taken(attributes) }.unwrap_or(Layout::zeroed());
        if attributes.flags & !(FI_WRITE | FI_AFFINITY) != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        limits::check("fi_eq_open: a size", attributes.size, limits::EVENTS)?;
        let waits = make_waits(&attributes)?;
        let object = Box::new(EventQueue {
            head: Head::new(fid_eq {
                fid: object::head::<EventQueue>(context),
                ops: OPS.pointer(),
            }),
            uses: Uses::default(),
            fence: Fence::new(),
            _fabric: Held::new(fabric),
            is_writable: attributes.flags & FI_WRITE != 0,
            size: if attributes.size == 0 {
                USUAL_SIZE
            } else {
                attributes.size
            },
            waits,
            unread: Mutex::default(),
        });
        // SAFETY: written above.
        unsafe { publish(object, eq) };
        Ok(0)
    })
}

fn make_waits(attributes: &fi_eq_attr) -> Result<Option<Waits>> {
    let kind = WaitKind::of(attributes.wait_obj)?;
    if kind == WaitKind::Nothing {
        return Ok(None);
    }
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| Errno(error.raw_os_error()))?;
    // SAFETY: the caller's wait set, or null.
    let set = unsafe { kind.set(attributes.wait_set) }?;
    if let Some(set) = set {
        set.watch_events(bell.as_fd())?;
    }
    Ok(Some(Waits {
        bell,
        kind,
        set: set.map(Held::new),
    }))
}

unsafe extern "C" fn close(eq: *mut fid) -> c_int {
    // SAFETY: the table belongs to event queues.
    match unsafe { take_back::<EventQueue>(eq) } {
        Ok(object) => Fence::close(object, |object| &object.fence, "fi_close of an EQ", |_| Ok(0)),
        Err(errno) => -errno.0,
    }
}

unsafe extern "C" fn control(eq: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the table belongs to event queues.
    let queue = unsafe { this::<EventQueue>(eq.cast()) };
    queue.fence.run("fi_control of an EQ", || {
        let descriptor = queue.waits.as_ref().map(|waits| waits.bell.as_fd());
        let kind = queue.waits.as_ref().map_or(WaitKind::Nothing, |waits| waits.kind);
        // SAFETY: the argument is that of the command.
        unsafe { kind.control(command, argument, descriptor) }
    })
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    to: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    // SAFETY: the table belongs to event queues.
    let queue = unsafe { this::<EventQueue>(eq) };
    // SAFETY: the caller's memory is as fi_eq_read(3) requires.
    queue
        .fence
        .run("fi_eq_read", || unsafe { queue.take(event, to, length, flags) })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    to: *mut c_void,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    // SAFETY: the table belongs to event queues.
    let queue = unsafe { this::<EventQueue>(eq) };
    queue.fence.run("fi_eq_sread", || {
        let waits = queue.waits.as_ref().ok_or(Errno(FI_ENOSYS))?;
        // SAFETY: the caller's memory is as fi_eq_sread(3) requires.
        let attempt = || match unsafe { queue.take(event, to, length, flags) } {
            Err(Errno(FI_EAGAIN)) => Ok(None),
            result => result.map(Some),
        };
        let sleep = |left| EventQueue::sleep(&waits.bell, left);
        sleep::until(Limit::of(timeout), attempt, sleep)?.ok_or(Errno(FI_EAGAIN))
    })
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, to: *mut fi_eq_err_entry, flags: u64) -> isize {
    // SAFETY: the table belongs to event queues.
    let queue = unsafe { this::<EventQueue>(eq) };
    queue.fence.run("fi_eq_readerr", || {
        if flags & !FI_PEEK != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let mut unread = queue.unread();
        let entry = *unread.errors.front().ok_or(Errno(FI_EAGAIN))?;
        // SAFETY: null, or the caller's entry, whose buffer for further data stays.
        let data = unsafe { taken(to) }.map_or(ptr::null_mut(), |before| before.err_data);
        let entry = fi_eq_err_entry {
            err_data: data,
            ..entry
        };
        // SAFETY: null, or the caller's entry.
        unsafe { give(to, entry) }?;
        if flags & FI_PEEK == 0 {
            queue.pop(&mut unread, true);
        }
        Ok(size_of::<fi_eq_err_entry>() as isize)
    })
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    from: *const c_void,
    length: usize,
    flags: u64,
) -> isize {
    // SAFETY: the table belongs to event queues.
    let queue = unsafe { this::<EventQueue>(eq) };
    queue.fence.run("fi_eq_write", || {
        if !queue.is_writable || length > LONGEST || from.is_null() && length > 0 {
            return Err(Errno(FI_EINVAL));
        }
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        if queue.unread().events.len() >= queue.size {
            return Err(Errno(FI_EAGAIN));
        }
        let bytes: Box<[u8]> = if length == 0 {
            Box::default()
        } else {
            // SAFETY: the caller's event has this many bytes.
            unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }.into()
        };
        queue.push(|unread| unread.events.push_back((event, bytes)));
        Ok(length as isize)
    })
}

/// Describes an error of an event: the words of its number.
unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    prov_errno: c_int,
    _: *const c_void,
    to: *mut c_char,
    length: usize,
) -> *const c_char {
    crate::fence::guard("fi_eq_strerror", || {
        // SAFETY: the caller's memory, as fi_eq_strerror(3) has it.
        Ok(unsafe { text::write_or_point(words(prov_errno), to, length) })
    })
}

/// Returns what an error number of an event means.
fn words(number: c_int) -> &'static CStr {
    match number.saturating_abs() {
        0 => c"success",
        FI_EINVAL => c"the address was not made by this provider, or was changed or cut on its way",
        FI_EHOSTUNREACH => {
            c"the address is of another host, and no rail leads there: name rails in FI_DOORBELL_RAILS"
        }
        FI_ENOKEY => c"the key belongs to another registration",
        FI_ENOMEM => c"no memory",
        FI_EOTHER => c"an earlier call has failed inside of the provider: the log has the place",
        _ => c"an error of the provider",
    }
}
