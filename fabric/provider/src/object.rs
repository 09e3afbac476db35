//! Objects: how one is allocated, found from the pointer that a client has, kept open, and closed.
//!
//! An object is a structure of libfabric, its head, with our fields behind it. libfabric and its clients read
//! the head, and write some fields of it, so it is in a cell. All else is reached through shared references.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use libfabric_sys::{FI_EBUSY, FI_EINVAL, fi_ops, fid};

use crate::errno::{Errno, Result};
use crate::refuse::Table;

/// A type that libfabric has a structure for.
///
/// # Safety
/// The type is `repr(C)`, and its first field is an [`UnsafeCell`] of `Head`, which begins with a `fid` whose
/// class is `CLASS` and whose table is that of [`Object::ops`]; objects of other types have other tables.
pub(crate) unsafe trait Object: Sized {
    /// The structure of libfabric.
    type Head;
    /// The class that its `fid` has.
    const CLASS: usize;

    /// Returns the common table of its `fid`. No other type has it, so that an object is known by it.
    fn ops() -> &'static Table<fi_ops>;

    /// Returns the count of objects that use this one.
    fn uses(&self) -> &Uses;
}

/// Returns the common part of a head.
pub(crate) fn head<T: Object>(context: *mut c_void) -> fid {
    fid {
        fclass: T::CLASS,
        context,
        ops: T::ops().pointer(),
    }
}

/// Gives an object to the client, which holds it until it closes it.
///
/// # Safety
/// `to` may be written.
pub(crate) unsafe fn publish<T: Object>(object: Box<T>, to: *mut *mut T::Head) {
    // SAFETY: by the contract of this function.
    unsafe { to.write(Box::into_raw(object).cast()) };
}

/// Returns the class of an object, which may be another provider's.
///
/// # Safety
/// The pointer is null or to an open object.
///
/// # Errors
/// `FI_EINVAL` for null.
pub(crate) unsafe fn class(object: *mut fid) -> Result<usize> {
    if object.is_null() {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: not null, so it is an open object, and every object begins with its `fid`.
    Ok(unsafe { (*object).fclass })
}

/// Finds an object by the pointer to its head. Its table states what it is: the class would be the same for
/// an object of another provider.
///
/// # Safety
/// The pointer is null, or to the `fid` of an object of any provider that stays open for as long as the
/// reference is used.
///
/// # Errors
/// `FI_EINVAL` for null, for an object of another type, and for one of another provider.
#[inline]
pub(crate) unsafe fn find<'a, T: Object>(object: *mut fid) -> Result<&'a T> {
    if object.is_null() {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: not null, so it is an open object, and every object begins with its `fid`.
    let ops = unsafe { (*object).ops };
    if !ptr::eq(ops, T::ops().pointer()) {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: an open object with the table of this type, which only `publish` gives to clients.
    Ok(unsafe { &*object.cast::<T>() })
}

/// Finds the object that a call is made on: its table belongs to the class, so nothing is checked.
///
/// # Safety
/// The pointer is to the head of an open object of type `T`.
#[inline]
pub(crate) unsafe fn this<'a, T: Object>(object: *mut T::Head) -> &'a T {
    // SAFETY: by the contract of this function.
    unsafe { &*object.cast::<T>() }
}

/// Takes an object back that the client closes.
///
/// # Safety
/// The pointer is to the head of an open object of type `T`, and no reference to it is used any more.
///
/// # Errors
/// `FI_EBUSY` while other objects use it.
pub(crate) unsafe fn take_back<T: Object>(object: *mut fid) -> Result<Box<T>> {
    // SAFETY: by the contract of this function; the reference ends here.
    let uses = unsafe { &*object.cast::<T>() }.uses().count();
    if uses > 0 {
        return Err(Errno(FI_EBUSY));
    }
    // SAFETY: `publish` made it of a box, and no other object refers to it.
    Ok(unsafe { Box::from_raw(object.cast()) })
}

/// The head of an object, which others may write.
pub(crate) type Head<T> = UnsafeCell<T>;

/// How many objects use another one, which therefore cannot be closed.
#[derive(Debug, Default)]
pub(crate) struct Uses(AtomicUsize);

impl Uses {
    /// Returns the number of objects.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// A reference to an object that keeps it open.
pub(crate) struct Held<T: Object>(NonNull<T>);

impl<T: Object> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.0).finish()
    }
}

// SAFETY: it gives shared references only, which is what `Sync` is for.
unsafe impl<T: Object + Sync> Send for Held<T> {}
// SAFETY: as above.
unsafe impl<T: Object + Sync> Sync for Held<T> {}

impl<T: Object> Held<T> {
    /// Keeps an object open, until this is dropped.
    pub(crate) fn new(object: &T) -> Self {
        object.uses().0.fetch_add(1, Ordering::Relaxed);
        Self(NonNull::from(object))
    }

    /// Returns the pointer that clients have.
    pub(crate) fn pointer(&self) -> *mut T::Head {
        self.0.as_ptr().cast()
    }
}

impl<T: Object> Clone for Held<T> {
    fn clone(&self) -> Self {
        Self::new(self)
    }
}

impl<T: Object> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: an object that is used is not closed.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Object> Drop for Held<T> {
    fn drop(&mut self) {
        self.uses().0.fetch_sub(1, Ordering::Release);
    }
}

/// Writes a result of a call.
///
/// # Safety
/// `to` is null or may be written.
///
/// # Errors
/// `FI_EINVAL` for null.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: not null, so it may be written.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads an argument of a call.
///
/// # Safety
/// `from` is null or may be read.
pub(crate) unsafe fn taken<T: Copy>(from: *const T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    // SAFETY: not null, so it may be read.
    Some(unsafe { from.read() })
}
