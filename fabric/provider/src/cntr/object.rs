//! The object of a counter: fi_cntr(3).

use std::ffi::{c_int, c_void};
use std::ptr;

use libfabric_sys::*;

use super::{Counted, Counter, CounterIndex};
use crate::bell::Bell;
use crate::cq::Outlet;
use crate::domain::{self, Domain, State};
use crate::errno::{Errno, Result, check_flags, checked};
use crate::object::{Held, give, this};
use crate::refuse::Table;
use crate::sleep::Limit;
use crate::wait::{Member, WaitKind};
use crate::waitable::{self, Kind, Waitable};

/// The kind of counters.
#[derive(Debug)]
pub(crate) enum CounterObjects {}

// SAFETY: the structure of this class, which begins with its `fid`; the table is of this kind alone.
unsafe impl Kind for CounterObjects {
    type Head = fid_cntr;
    type Index = CounterIndex;
    const CLASS: usize = FI_CLASS_CNTR;
    const CLOSE: &'static str = "fi_close of a counter";

    fn ops() -> &'static Table<fi_ops> {
        &FI
    }

    fn bell(state: &mut State, index: CounterIndex) -> Option<&mut Bell> {
        state.counters.bell(index)
    }

    fn remove(state: &mut State, index: CounterIndex) {
        state.counters.remove(index);
    }

    fn member(domain: &Domain, index: CounterIndex) -> Member {
        Member::Counter(Held::new(domain), index)
    }
}

/// A counter, as clients hold it.
pub(crate) type CounterObject = Waitable<CounterObjects>;

static FI: Table<fi_ops> = waitable::table::<CounterObjects>();

static OPS: Table<fi_ops_cntr> = Table::new(fi_ops_cntr {
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    adderr: Some(adderr),
    set: Some(set),
    seterr: Some(seterr),
    wait: Some(wait),
    ..fi_ops_cntr::REFUSING
});

impl CounterObject {
    /// Whether it has changed since it was read last.
    ///
    /// # Errors
    /// Those of the fence.
    pub(crate) fn has_changed(&self) -> Result<bool> {
        let answer: c_int = self.domain().run("fi_poll", |state| {
            state.has_changed(self.index()).map(c_int::from)
        });
        checked(answer)
    }

    /// Prepares a sleep on its descriptor: fi_trywait(3).
    ///
    /// # Errors
    /// `FI_EAGAIN` when it has changed since it was read last.
    pub(crate) fn try_wait(&self) -> Result<c_int> {
        self.domain().try_wait_counter(self.index())
    }

    /// Changes the counter.
    fn change(&self, call: &'static str, change: impl FnOnce(&mut Counter)) -> c_int {
        self.domain().run(call, |state| {
            change(state.counters.get_mut(self.index()).ok_or(Errno(FI_EINVAL))?);
            Ok(0)
        })
    }
}

impl Domain {
    /// Prepares a sleep on the descriptor of a counter.
    ///
    /// # Errors
    /// `FI_EAGAIN` when it has changed since it was read last.
    pub(crate) fn try_wait_counter(&self, index: CounterIndex) -> Result<c_int> {
        self.prepare(
            |state| state.has_changed(index) == Ok(true),
            |state| state.counters.bell(index),
        )
    }
}

/// Opens a counter: fi_cntr(3).
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cntr_attr,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to domains.
    let domain = unsafe { domain::of(domain) };
    // SAFETY: the caller's pointers are those of fi_cntr_open(3).
    domain.run("fi_cntr_open", |state| unsafe {
        make(domain, state, attributes, cntr, context)
    })
}

/// Makes a counter.
///
/// # Safety
/// The pointers are those of fi_cntr_open(3).
unsafe fn make(
    domain: &Domain,
    state: &mut State,
    attributes: *mut fi_cntr_attr,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> Result<c_int> {
    // SAFETY: the caller has the place for the result.
    unsafe { give(cntr, ptr::null_mut()) }?;
    let (mut events, mut wait) = (FI_CNTR_EVENTS_COMP, FI_WAIT_UNSPEC);
    let (mut set, mut flags) = (ptr::null_mut(), 0);
    if !attributes.is_null() {
        // SAFETY: the caller's attributes, of which all levels have this field.
        events = unsafe { (*attributes).events };
        // SAFETY: as above.
        wait = unsafe { (*attributes).wait_obj };
        // SAFETY: as above.
        set = unsafe { (*attributes).wait_set };
        // SAFETY: as above.
        flags = unsafe { (*attributes).flags };
    }
    check_flags(flags, 0, FI_PEER)?;
    let counted = Counted::of(events).ok_or(Errno(FI_ENOSYS))?;
    let wait = WaitKind::of(wait)?;
    // SAFETY: the caller's wait set, or null.
    let set = unsafe { wait.set(set) }?;
    let bell = state.bell_for(wait, set)?;
    let index = state.counters.add(Counter::new(counted, bell))?;
    let ops = OPS.pointer();
    // SAFETY: written above.
    unsafe {
        CounterObject::publish(
            domain,
            (index, wait, set),
            context,
            |fid| fid_cntr { fid, ops },
            cntr,
        )
    };
    Ok(0)
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the table belongs to counters.
    let counter = unsafe { this::<CounterObject>(cntr) };
    counter.domain().run("fi_cntr_read", |state| {
        state.advance();
        state.note_read(counter.index());
        Ok(state.reading(counter.index()).0)
    })
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the table belongs to counters.
    let counter = unsafe { this::<CounterObject>(cntr) };
    counter.domain().run("fi_cntr_readerr", |state| {
        state.advance();
        state.note_read(counter.index());
        Ok(state.reading(counter.index()).1)
    })
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the table belongs to counters.
    let counter = unsafe { this::<CounterObject>(cntr) };
    counter.change("fi_cntr_add", |counter| counter.add(value))
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the table belongs to counters.
    let counter = unsafe { this::<CounterObject>(cntr) };
    counter.change("fi_cntr_adderr", |counter| counter.add_errors(value))
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the table belongs to counters.
    let counter = unsafe { this::<CounterObject>(cntr) };
    counter.change("fi_cntr_set", |counter| counter.set(value))
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the table belongs to counters.
    let counter = unsafe { this::<CounterObject>(cntr) };
    counter.change("fi_cntr_seterr", |counter| counter.set_errors(value))
}

/// Waits until the counter has reached a threshold, or an operation has failed.
unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: the table belongs to counters.
    let counter = unsafe { this::<CounterObject>(cntr) };
    let mut errors = None;
    counter.domain().wait(
        "fi_cntr_wait",
        Limit::of(timeout),
        |state| {
            let before = state.reading(counter.index()).1;
            let errors = *errors.get_or_insert(before);
            state.advance();
            match state.reading(counter.index()) {
                (value, _) if value >= threshold => Ok(Some(0)),
                (_, now) if now != errors => Err(Errno(FI_EAVAIL)),
                _ => Ok(None),
            }
        },
        |state| state.counters.bell(counter.index()),
        Errno(FI_ETIMEDOUT),
    )
}

impl State {
    /// Makes a pass, and counts what has ended. Returns whether it has found something.
    pub(crate) fn advance(&mut self) -> bool {
        self.look();
        self.drain(&mut Outlet::closed());
        self.idle == 0
    }

    /// Whether a counter has changed since it was read last, after a pass.
    fn has_changed(&mut self, index: CounterIndex) -> Result<bool> {
        self.advance();
        let counter = self.counters.get_mut(index).ok_or(Errno(FI_EINVAL))?;
        Ok(counter.has_changed())
    }

    fn note_read(&mut self, index: CounterIndex) {
        if let Some(counter) = self.counters.get_mut(index) {
            counter.note_read();
        }
    }

    /// What a counter has counted: ended well, and failed.
    fn reading(&mut self, index: CounterIndex) -> (u64, u64) {
        self.counters
            .get_mut(index)
            .map_or((0, 0), |counter| (counter.value(), counter.errors()))
    }
}
