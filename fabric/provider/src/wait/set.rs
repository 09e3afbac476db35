//! Wait sets: fi_poll(3).

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libfabric_sys::*;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno as System;

use super::kind::WaitKind;
use crate::cntr::CounterIndex;
use crate::cq::QueueIndex;
use crate::domain::Domain;
use crate::errno::{Errno, Result};
use crate::fabric::{self, Fabric};
use crate::fence::Fence;
use crate::object::{self, Head, Held, Object, Uses, give, publish, take_back, taken, this};
use crate::refuse::{self, Table};
use crate::sleep::{self, Limit};

/// Most events that one look at a set takes.
const EVENTS: usize = 16;

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
    pub(super) fn try_wait(&self) -> Result<c_int> {
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
        let attempt = || match set.try_wait() {
            Err(Errno(FI_EAGAIN)) => Ok(Some(0)),
            prepared => prepared.map(|_| None),
        };
        let sleep = |left| set.sleep(left).map(drop);
        sleep::until(Limit::of(timeout), attempt, sleep)?.ok_or(Errno(FI_ETIMEDOUT))
    })
}
