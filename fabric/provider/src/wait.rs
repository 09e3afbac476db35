//! Waits on several objects: fi_trywait(3), wait sets and poll sets of fi_poll(3).

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libfabric_sys::*;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno as System;

use crate::cntr::{CounterIndex, CounterObject};
use crate::cq::{CompletionQueue, QueueIndex};
use crate::domain::{self, Domain};
use crate::eq::EventQueue;
use crate::errno::{Errno, Result};
use crate::fabric::{self, Fabric};
use crate::fence::Fence;
use crate::object::{self, Head, Held, Object, Uses, find, give, publish, take_back, taken, this};
use crate::refuse::{self, Table};
use crate::sleep::Limit;

/// Most events that one look at a set takes.
const EVENTS: usize = 16;

/// What clients wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// Nothing: a call that waits is refused, or spins.
    Nothing,
    /// What we choose, which is a descriptor.
    Chosen,
    /// A descriptor, for the client's own event loop.
    Descriptor,
    /// A wait set of the client.
    Set,
}

impl WaitKind {
    /// Returns what a number of libfabric stands for.
    ///
    /// # Errors
    /// `FI_ENOSYS` for kinds that are not offered.
    pub(crate) const fn of(kind: fi_wait_obj) -> Result<Self> {
        Ok(match kind {
            FI_WAIT_NONE | FI_WAIT_YIELD => Self::Nothing,
            FI_WAIT_UNSPEC => Self::Chosen,
            FI_WAIT_FD => Self::Descriptor,
            FI_WAIT_SET => Self::Set,
            _ => return Err(Errno(FI_ENOSYS)),
        })
    }

    /// Returns the wait set of an object of this kind; `None` for other kinds.
    ///
    /// # Safety
    /// The set is null, or open for as long as the reference is used.
    ///
    /// # Errors
    /// `FI_EINVAL` for null and for an object that is no wait set.
    pub(crate) unsafe fn set<'a>(self, set: *mut fid_wait) -> Result<Option<&'a WaitSet>> {
        if self != Self::Set {
            return Ok(None);
        }
        // SAFETY: by the contract of this function.
        unsafe { find::<WaitSet>(set.cast()) }.map(Some)
    }

    /// Answers the commands about a wait object: fi_control(3).
    ///
    /// # Safety
    /// The argument is that of the command.
    ///
    /// # Errors
    /// `FI_EINVAL` where there is no descriptor; `FI_ENOSYS` for other commands.
    pub(crate) unsafe fn control(
        self,
        command: c_int,
        argument: *mut c_void,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<c_int> {
        match command {
            FI_GETWAIT => {
                let descriptor = descriptor.ok_or(Errno(FI_EINVAL))?;
                // SAFETY: the argument of this command is a place for a descriptor.
                unsafe { give(argument.cast::<c_int>(), descriptor.as_raw_fd()) }?;
            }
            FI_GETWAITOBJ => {
                let kind = if descriptor.is_some() {
                    FI_WAIT_FD
                } else {
                    FI_WAIT_NONE
                };
                // SAFETY: the argument of this command is a place for a kind of wait object.
                unsafe { give(argument.cast::<fi_wait_obj>(), kind) }?;
            }
            _ => return Err(Errno(FI_ENOSYS)),
        }
        Ok(0)
    }
}

/// An object that can be waited on or polled.
#[derive(Clone, Debug)]
enum Source {
    Events(Held<EventQueue>),
    Completions(Held<CompletionQueue>),
    Counter(Held<CounterObject>),
}

impl Source {
    /// Finds an object that a client names.
    ///
    /// # Safety
    /// The pointer is null or to an open object.
    unsafe fn find(object: *mut fid) -> Result<Self> {
        // SAFETY: by the contract of this function.
        let class = unsafe { object::class(object) }?;
        match class {
            // SAFETY: as above.
            FI_CLASS_EQ => Ok(Self::Events(Held::new(unsafe { find::<EventQueue>(object) }?))),
            // SAFETY: as above.
            FI_CLASS_CQ => Ok(Self::Completions(Held::new(unsafe {
                find::<CompletionQueue>(object)
            }?))),
            // SAFETY: as above.
            FI_CLASS_CNTR => Ok(Self::Counter(Held::new(unsafe {
                find::<CounterObject>(object)
            }?))),
            _ => Err(Errno(FI_EINVAL)),
        }
    }

    /// Whether a read would find something.
    fn has_something(&self) -> Result<bool> {
        match self {
            Self::Events(queue) => Ok(queue.has_unread()),
            Self::Completions(queue) => queue.has_unread(),
            Self::Counter(counter) => counter.has_changed(),
        }
    }

    /// Prepares a sleep on the object's descriptor.
    ///
    /// # Errors
    /// `FI_EAGAIN` when there is something to be read first.
    fn try_wait(&self) -> Result<c_int> {
        match self {
            Self::Events(queue) if queue.has_unread() => Err(Errno(FI_EAGAIN)),
            Self::Events(_) => Ok(0),
            Self::Completions(queue) => queue.try_wait(),
            Self::Counter(counter) => counter.try_wait(),
        }
    }

    /// The pointer that the client has.
    fn pointer(&self) -> *mut fid {
        match self {
            Self::Events(queue) => queue.pointer().cast(),
            Self::Completions(queue) => queue.pointer().cast(),
            Self::Counter(counter) => counter.pointer().cast(),
        }
    }
}

/// Prepares a sleep on the descriptors of several objects: fi_trywait(3).
pub(crate) unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    // SAFETY: the table belongs to fabrics.
    let fabric = unsafe { fabric::of(fabric) };
    fabric.run("fi_trywait", || {
        let count = usize::try_from(count).map_err(|_| Errno(FI_EINVAL))?;
        for at in 0..count {
            // SAFETY: the caller has `count` pointers.
            let object = unsafe { taken(fids.wrapping_add(at).cast_const()) }.ok_or(Errno(FI_EINVAL))?;
            // SAFETY: null, or an open object.
            if unsafe { object::class(object) }? == FI_CLASS_WAIT {
                // SAFETY: as above.
                unsafe { find::<WaitSet>(object) }?.try_wait()?;
                continue;
            }
            // SAFETY: as above.
            unsafe { Source::find(object) }?.try_wait()?;
        }
        Ok(0)
    })
}

/// A wait set: one descriptor for several objects.
#[repr(C)]
pub(crate) struct WaitSet {
    head: Head<fid_wait>,
    uses: Uses,
    fence: Fence,
    _fabric: Held<Fabric>,
    set: OwnedFd,
    /// The queues and counters in it, which need a call before each sleep.
    members: Mutex<Vec<(u64, Member)>>,
}

/// A queue or a counter in a wait set. It keeps its domain open, and is not kept open itself.
#[derive(Clone, Debug)]
pub(crate) enum Member {
    /// A completion queue of the domain, by its number.
    Queue(Held<Domain>, QueueIndex),
    /// A counter of the domain, by its number.
    Counter(Held<Domain>, CounterIndex),
}

impl Member {
    fn try_wait(&self) -> Result<c_int> {
        match self {
            Self::Queue(domain, index) => domain.try_wait_queue(*index),
            Self::Counter(domain, index) => domain.try_wait_counter(*index),
        }
    }
}

/// The place of a queue or counter in a wait set, which it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Joined {
    set: Held<WaitSet>,
    number: u64,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.set
            .change(|members| members.retain(|(number, _)| *number != self.number));
    }
}

/// What the descriptors in a set are of: event queues, which have something while theirs is readable, and
/// queues and counters, which have to be looked at.
const OF_EVENTS: u64 = 0;
const OF_A_MEMBER: u64 = 1;

// SAFETY: `head` is first, and `open` sets the class and the table, which no other type has.
unsafe impl Object for WaitSet {
    type Head = fid_wait;
    const CLASS: usize = FI_CLASS_WAIT;

    fn ops() -> &'static Table<fi_ops> {
        &WAIT_FI
    }

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

static WAIT_FI: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close_set),
    control: Some(control_set),
    ..refuse::FI_OPS
});

static WAIT: Table<fi_ops_wait> = Table::new(fi_ops_wait {
    wait: Some(wait),
    ..fi_ops_wait::REFUSING
});

impl WaitSet {
    /// Adds the descriptor of an event queue, until [`WaitSet::unwatch`].
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn watch_events(&self, descriptor: BorrowedFd<'_>) -> Result<()> {
        self.add(descriptor, OF_EVENTS)
    }

    /// Adds the descriptor of a queue or counter, until [`WaitSet::unwatch`].
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn watch(&self, descriptor: BorrowedFd<'_>) -> Result<()> {
        self.add(descriptor, OF_A_MEMBER)
    }

    /// Removes a descriptor, which is going to be closed: while a child of `fork` has it, closing it would
    /// leave it in the set.
    pub(crate) fn unwatch(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.set, descriptor);
    }

    /// Adds a queue or counter, whose descriptor is watched.
    pub(crate) fn join(&self, member: Member) -> Joined {
        let number = self.change(|members| {
            let number = members.last().map_or(0, |(last, _)| last + 1);
            members.push((number, member));
            number
        });
        Joined {
            set: Held::new(self),
            number,
        }
    }

    fn add(&self, descriptor: BorrowedFd<'_>, of: u64) -> Result<()> {
        epoll::add(&self.set, descriptor, EventData::new_u64(of), EventFlags::IN)
            .map_err(|error| Errno(error.raw_os_error()))
    }

    fn change<R>(&self, work: impl FnOnce(&mut Vec<(u64, Member)>) -> R) -> R {
        work(&mut self.members.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Prepares a sleep on the set's descriptor.
    ///
    /// # Errors
    /// `FI_EAGAIN` when there is something to be read first.
    fn try_wait(&self) -> Result<c_int> {
        // A copy: a call of a domain must not wait for one that opens or closes a queue.
        let members: Vec<Member> =
            self.change(|members| members.iter().map(|(_, member)| member.clone()).collect());
        members
            .iter()
            .try_for_each(|member| member.try_wait().map(drop))?;
        match self.sleep(Duration::ZERO)? {
            Woken::Events => Err(Errno(FI_EAGAIN)),
            Woken::Members | Woken::Timeout => Ok(0),
        }
    }

    /// Sleeps until one of the descriptors is readable.
    fn sleep(&self, limit: Duration) -> Result<Woken> {
        let limit = doorbell_fabric::poll::timespec(limit);
        let mut found = [const {
            epoll::Event {
                flags: EventFlags::empty(),
                data: EventData::new_u64(OF_EVENTS),
            }
        }; EVENTS];
        let count = match epoll::wait(&self.set, &mut found[..], Some(&limit)) {
            Ok(count) => count,
            Err(System::INTR) => 0,
            Err(error) => return Err(Errno(error.raw_os_error())),
        };
        let mut found = found.iter().take(count);
        Ok(match found.any(|event| event.data.u64() == OF_EVENTS) {
            true => Woken::Events,
            false if count > 0 => Woken::Members,
            false => Woken::Timeout,
        })
    }
}

/// What has ended a sleep on a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// An event queue has something.
    Events,
    /// A queue or counter may have something.
    Members,
    /// Nothing has come.
    Timeout,
}

/// Opens a wait set: fi_poll(3).
pub(crate) unsafe extern "C" fn open_set(
    fabric: *mut fid_fabric,
    attributes: *mut fi_wait_attr,
    set: *mut *mut fid_wait,
) -> c_int {
    // SAFETY: the table belongs to fabrics.
    let fabric = unsafe { fabric::of(fabric) };
    fabric.run("fi_wait_open", || {
        // SAFETY: the caller has the place for the result.
        unsafe { give(set, ptr::null_mut()) }?;
        // SAFETY: null, or the caller's attributes.
        let attributes = unsafe { taken(attributes) }.ok_or(Errno(FI_EINVAL))?;
        if attributes.flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        if !matches!(attributes.wait_obj, FI_WAIT_UNSPEC | FI_WAIT_FD) {
            return Err(Errno(FI_ENOSYS));
        }
        let object = Box::new(WaitSet {
            head: Head::new(fid_wait {
                fid: object::head::<WaitSet>(ptr::null_mut()),
                ops: WAIT.pointer(),
            }),
            uses: Uses::default(),
            fence: Fence::new(),
            _fabric: Held::new(fabric),
            set: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| Errno(error.raw_os_error()))?,
            members: Mutex::default(),
        });
        // SAFETY: written above.
        unsafe { publish(object, set) };
        Ok(0)
    })
}

unsafe extern "C" fn close_set(set: *mut fid) -> c_int {
    // SAFETY: the table belongs to wait sets.
    match unsafe { take_back::<WaitSet>(set) } {
        Ok(object) => Fence::close(
            object,
            |object| &object.fence,
            "fi_close of a wait set",
            |_| Ok(0),
        ),
        Err(errno) => -errno.0,
    }
}

unsafe extern "C" fn control_set(set: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the table belongs to wait sets.
    let set = unsafe { this::<WaitSet>(set.cast()) };
    set.fence.run("fi_control of a wait set", || {
        let descriptor = Some(set.set.as_fd());
        // SAFETY: the argument is that of the command.
        unsafe { WaitKind::Descriptor.control(command, argument, descriptor) }
    })
}

unsafe extern "C" fn wait(set: *mut fid_wait, timeout: c_int) -> c_int {
    // SAFETY: the table belongs to wait sets.
    let set = unsafe { this::<WaitSet>(set) };
    set.fence.run("fi_wait", || {
        let (limit, began) = (Limit::of(timeout), Instant::now());
        loop {
            match set.try_wait() {
                Err(Errno(FI_EAGAIN)) => return Ok(0),
                other => other?,
            };
            let left = limit.left(began.elapsed());
            if set.sleep(left)? == Woken::Events {
                return Ok(0);
            }
            if left.is_zero() {
                return Err(Errno(FI_ETIMEDOUT));
            }
        }
    })
}

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
