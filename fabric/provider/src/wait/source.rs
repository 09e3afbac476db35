//! Objects of any class that can be waited on or polled.

use std::ffi::c_int;

use libfabric_sys::*;

use crate::cntr::CounterObject;
use crate::cq::CompletionQueue;
use crate::eq::EventQueue;
use crate::errno::{Errno, Result};
use crate::object::{self, Held, find};

/// An object that can be waited on or polled.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Events(Held<EventQueue>),
    Completions(Held<CompletionQueue>),
    Counter(Held<CounterObject>),
}

impl Source {
    /// Finds an object that a client names.
    ///
    /// # Safety
    /// The pointer is null or to an open object.
    pub(super) unsafe fn find(object: *mut fid) -> Result<Self> {
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
    pub(super) fn has_something(&self) -> Result<bool> {
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
    pub(super) fn try_wait(&self) -> Result<c_int> {
        match self {
            Self::Events(queue) if queue.has_unread() => Err(Errno(FI_EAGAIN)),
            Self::Events(_) => Ok(0),
            Self::Completions(queue) => queue.try_wait(),
            Self::Counter(counter) => counter.try_wait(),
        }
    }

    /// The pointer that the client has.
    pub(super) fn pointer(&self) -> *mut fid {
        match self {
            Self::Events(queue) => queue.pointer().cast(),
            Self::Completions(queue) => queue.pointer().cast(),
            Self::Counter(counter) => counter.pointer().cast(),
        }
    }
}
