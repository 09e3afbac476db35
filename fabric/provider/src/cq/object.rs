//! The object of a completion queue: fi_cq(3).

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libfabric_sys::*;

use super::entry::Format;
use super::outlet::{Outlet, QueueIndex};
use crate::bell::Bell;
use crate::domain::{self, Domain, State};
use crate::ep::limits;
use crate::errno::{Errno, Result, check_flags, checked};
use crate::object::{Held, give, this};
use crate::refuse::Table;
use crate::sleep::Limit;
use crate::text;
use crate::wait::{Member, WaitKind};
use crate::waitable::{self, Kind, Waitable};

/// The kind of completion queues.
#[derive(Debug)]
pub(crate) enum CompletionQueues {}

// SAFETY: the structure of this class, which begins with its `fid`; the table is of this kind alone.
unsafe impl Kind for CompletionQueues {
    type Head = fid_cq;
    type Index = QueueIndex;
    const CLASS: usize = FI_CLASS_CQ;
    const CLOSE: &'static str = "fi_close of a completion queue";

    fn ops() -> &'static Table<fi_ops> {
        &FI
    }

    fn bell(state: &mut State, index: QueueIndex) -> Option<&mut Bell> {
        state.queues.bell(index)
    }

    fn remove(state: &mut State, index: QueueIndex) {
        state.queues.remove(index);
    }

    fn member(domain: &Domain, index: QueueIndex) -> Member {
        Member::Queue(Held::new(domain), index)
    }
}

/// A completion queue, as clients hold it.
pub(crate) type CompletionQueue = Waitable<CompletionQueues>;

static FI: Table<fi_ops> = waitable::table::<CompletionQueues>();

static OPS: Table<fi_ops_cq> = Table::new(fi_ops_cq {
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
    ..fi_ops_cq::REFUSING
});

impl CompletionQueue {
    /// Whether there is something to read.
    ///
    /// # Errors
    /// Those of the fence.
    pub(crate) fn has_unread(&self) -> Result<bool> {
        let index = self.index();
        let answer: c_int = self
            .domain()
            .run("fi_poll", |state| Ok(c_int::from(state.any_unread(index))));
        checked(answer)
    }

    /// Prepares a sleep on its descriptor: fi_trywait(3).
    ///
    /// # Errors
    /// `FI_EAGAIN` when there is something to read first.
    pub(crate) fn try_wait(&self) -> Result<c_int> {
        self.domain().try_wait_queue(self.index())
    }
}

impl Domain {
    /// Prepares a sleep on the descriptor of a queue.
    ///
    /// # Errors
    /// `FI_EAGAIN` when there is something to read first.
    pub(crate) fn try_wait_queue(&self, index: QueueIndex) -> Result<c_int> {
        self.prepare(|state| state.any_unread(index), |state| state.queues.bell(index))
    }
}

/// Opens a completion queue: fi_cq(3).
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to domains.
    let domain = unsafe { domain::of(domain) };
    // SAFETY: the caller's pointers are those of fi_cq_open(3).
    domain.run("fi_cq_open", |state| unsafe {
        make(domain, state, attributes, cq, context)
    })
}

/// Makes a completion queue.
///
/// # Safety
/// The pointers are those of fi_cq_open(3).
unsafe fn make(
    domain: &Domain,
    state: &mut State,
    attributes: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> Result<c_int> {
    // SAFETY: the caller has the place for the result.
    unsafe { give(cq, ptr::null_mut()) }?;
    let (mut size, mut format, mut wait) = (0, FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE);
    let (mut set, mut flags, mut condition) = (ptr::null_mut(), 0, FI_CQ_COND_NONE);
    if !attributes.is_null() {
        // SAFETY: the caller's attributes, of which all levels have this field.
        size = unsafe { (*attributes).size };
        // SAFETY: as above.
        format = unsafe { (*attributes).format };
        // SAFETY: as above.
        wait = unsafe { (*attributes).wait_obj };
        // SAFETY: as above.
        set = unsafe { (*attributes).wait_set };
        // SAFETY: as above.
        flags = unsafe { (*attributes).flags };
        // SAFETY: as above.
        condition = unsafe { (*attributes).wait_cond };
    }
    // Which processor is interrupted is of no use here.
    check_flags(flags, FI_AFFINITY, FI_PEER)?;
    let format = Format::of(format).ok_or(Errno(FI_EINVAL))?;
    let wait = WaitKind::of(wait)?;
    if wait != WaitKind::Nothing && !matches!(condition, FI_CQ_COND_NONE | FI_CQ_COND_THRESHOLD) {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: the caller's wait set, or null.
    let set = unsafe { wait.set(set) }?;
    limits::check("fi_cq_open: a size", size, limits::ENTRIES)?;
    let bell = state.bell_for(wait, set)?;
    let index = state.queues.add(format, size, bell)?;
    if !attributes.is_null() {
        // SAFETY: the caller's attributes: what was left to us is answered there.
        unsafe { (*attributes).format = format.number() };
    }
    let ops = OPS.pointer();
    // SAFETY: written above.
    unsafe { CompletionQueue::publish(domain, (index, wait, set), context, |fid| fid_cq { fid, ops }, cq) };
    Ok(0)
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: as for the call with senders.
    unsafe { readfrom(cq, buf, count, ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    senders: *mut fi_addr_t,
) -> isize {
    // SAFETY: the table belongs to completion queues.
    let queue = unsafe { this::<CompletionQueue>(cq) };
    queue.domain().poll("fi_cq_read", |state| {
        // SAFETY: the caller's memory has room for `count` entries and addresses.
        let mut outlet = unsafe { Outlet::new(queue.index(), buf.cast(), count, senders) };
        state.read_queue(queue.index(), &mut outlet)
    })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as for the call with senders.
    unsafe { sreadfrom(cq, buf, count, ptr::null_mut(), condition, timeout) }
}

/// Waits for entries. A threshold is a hint: it returns as soon as there is one.
unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    senders: *mut fi_addr_t,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the table belongs to completion queues.
    let queue = unsafe { this::<CompletionQueue>(cq) };
    queue.domain().wait(
        "fi_cq_sread",
        Limit::of(timeout),
        |state| {
            // SAFETY: the caller's memory has room for `count` entries and addresses.
            let mut outlet = unsafe { Outlet::new(queue.index(), buf.cast(), count, senders) };
            match state.read_queue(queue.index(), &mut outlet) {
                Err(Errno(FI_EAGAIN)) if state.queues.take_signal(queue.index()) => {
                    Ok(Some(-(FI_EAGAIN as isize)))
                }
                Err(Errno(FI_EAGAIN)) => Ok(None),
                other => other.map(Some),
            }
        },
        |state| state.queues.bell(queue.index()),
        Errno(FI_EAGAIN),
    )
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize {
    // SAFETY: the table belongs to completion queues.
    let queue = unsafe { this::<CompletionQueue>(cq) };
    if buf.is_null() {
        return -(FI_EINVAL as isize);
    }
    if flags != 0 {
        return -(FI_EBADFLAGS as isize);
    }
    let level = queue.domain().level();
    queue.domain().run("fi_cq_readerr", |state| {
        let found = state.queues.get_mut(queue.index()).ok_or(Errno(FI_EINVAL))?;
        // SAFETY: the caller has the structure of its API level, and has set its buffer for error data.
        unsafe { found.read_failure(level, buf) }
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    // SAFETY: the table belongs to completion queues.
    let queue = unsafe { this::<CompletionQueue>(cq) };
    queue.domain().run("fi_cq_signal", |state| {
        let found = state.queues.get_mut(queue.index()).ok_or(Errno(FI_EINVAL))?;
        found.signal();
        Ok(0)
    })
}

unsafe extern "C" fn strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the table belongs to completion queues.
    let queue = unsafe { this::<CompletionQueue>(cq) };
    queue.domain().run("fi_cq_strerror", |state| {
        let found = state.queues.get_mut(queue.index()).ok_or(Errno(FI_EINVAL))?;
        // SAFETY: the caller's memory, as fi_cq_strerror(3) has it.
        Ok(unsafe { text::write_or_point(found.text(prov_errno), buf, len) })
    })
}

impl State {
    /// Moves entries of a queue to a caller: those that are there, else those of what has ended since.
    #[inline(always)]
    pub(crate) fn read_queue(&mut self, index: QueueIndex, outlet: &mut Outlet) -> Result<isize> {
        if outlet.is_closed() {
            // A call for progress alone.
            self.advance();
        }
        let queue = self.queues.get_mut(index).ok_or(Errno(FI_EINVAL))?;
        match queue.read(outlet) {
            Some(read) => {
                self.look_seldom();
                read
            }
            None => self.read_what_ends(index, outlet),
        }
    }

    /// Makes progress, and moves entries of what has ended to a caller.
    #[inline(never)]
    fn read_what_ends(&mut self, index: QueueIndex, outlet: &mut Outlet) -> Result<isize> {
        if self.member.pml().has_ended() {
            // A pass before has found more than its caller had room for.
            self.look_seldom();
        } else {
            self.look();
        }
        self.drain(outlet);
        match outlet.written() {
            0 => self.queues.get_mut(index).ok_or(Errno(FI_EINVAL))?.read_nothing(),
            count => Ok(count as isize),
        }
    }

    /// Whether a queue has something to read, after all that has ended was added.
    fn any_unread(&mut self, index: QueueIndex) -> bool {
        self.look();
        self.drain(&mut Outlet::closed());
        self.queues.get_mut(index).is_some_and(|queue| queue.any())
    }
}
