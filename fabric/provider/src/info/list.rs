//! A list of entries as libfabric has it: allocated by C's allocator, since libfabric frees it by `free`.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use libfabric_sys::*;

use super::attributes::{Attributes, Hints, Structures};
use super::names::Addresses;
use super::offer::Entry;
use crate::errno::{Errno, Result};

/// A list that is being made.
#[derive(Debug)]
pub(crate) struct List {
    first: *mut fi_info,
    last: *mut fi_info,
}

impl List {
    pub(crate) fn new() -> Self {
        Self {
            first: ptr::null_mut(),
            last: ptr::null_mut(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds an entry: structures of the newest release, so that libfabric of any release finds its own.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    pub(crate) fn push(
        &mut self,
        answer: &Attributes,
        entry: &Entry,
        addresses: &Addresses,
        hints: Option<&Hints>,
        level: Level,
    ) -> Result<()> {
        let info = Self::allocate()?;
        if self.first.is_null() {
            self.first = info.info;
        } else {
            // SAFETY: the last entry of this list.
            unsafe { (*self.last).next = info.info };
        }
        self.last = info.info;
        // SAFETY: all are new.
        unsafe { answer.write(&info) };
        let handles = hints.map(|hints| hints.handles).unwrap_or_default();
        // SAFETY: as above.
        unsafe { handles.write(&info) };
        let domain = duplicate(&entry.domain)?;
        // SAFETY: as above.
        unsafe { (*info.domain).name = domain };
        let fabric = duplicate(c"doorbell")?;
        // SAFETY: as above. The provider's name is set by libfabric, and a layer would append to ours.
        unsafe { (*info.fabric).name = fabric };
        // SAFETY: as above.
        unsafe { (*info.fabric).api_version = level.version() };
        let source = copy(&addresses.source)?;
        // SAFETY: as above.
        unsafe { (*info.info).src_addr = source.0 };
        // SAFETY: as above.
        unsafe { (*info.info).src_addrlen = source.1 };
        let destination = copy(&addresses.destination)?;
        // SAFETY: as above.
        unsafe { (*info.info).dest_addr = destination.0 };
        // SAFETY: as above.
        unsafe { (*info.info).dest_addrlen = destination.1 };
        Ok(())
    }

    /// Allocates an entry with its attributes, all zeros.
    fn allocate() -> Result<Structures> {
        let info = zeroed::<fi_info>();
        if info.is_null() {
            return Err(Errno(FI_ENOMEM));
        }
        let structures = Structures {
            info,
            tx: zeroed(),
            rx: zeroed(),
            ep: zeroed(),
            domain: zeroed(),
            fabric: zeroed(),
        };
        // SAFETY: the entry is new, here and below.
        unsafe { (*info).tx_attr = structures.tx };
        // SAFETY: as above.
        unsafe { (*info).rx_attr = structures.rx };
        // SAFETY: as above.
        unsafe { (*info).ep_attr = structures.ep };
        // SAFETY: as above.
        unsafe { (*info).domain_attr = structures.domain };
        // SAFETY: as above.
        unsafe { (*info).fabric_attr = structures.fabric };
        let is_whole = !structures.tx.is_null()
            && !structures.rx.is_null()
            && !structures.ep.is_null()
            && !structures.domain.is_null()
            && !structures.fabric.is_null();
        if is_whole {
            return Ok(structures);
        }
        // SAFETY: an entry that is in no list yet.
        unsafe { free_one(info) };
        Err(Errno(FI_ENOMEM))
    }

    /// Returns the first entry; the list is then the caller's.
    pub(crate) fn into_pointer(self) -> *mut fi_info {
        let first = self.first;
        std::mem::forget(self);
        first
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let mut entry = self.first;
        while !entry.is_null() {
            // SAFETY: an entry of this list.
            let next = unsafe { (*entry).next };
            // SAFETY: as above; it is not used any more.
            unsafe { free_one(entry) };
            entry = next;
        }
    }
}

/// Frees an entry with all that it points to.
///
/// # Safety
/// The entry was allocated here, and is not used any more.
unsafe fn free_one(info: *mut fi_info) {
    // SAFETY: by the contract of this function.
    let entry = unsafe { info.read() };
    let mut parts: Vec<*mut c_void> = vec![
        entry.src_addr,
        entry.dest_addr,
        entry.tx_attr.cast(),
        entry.rx_attr.cast(),
        entry.ep_attr.cast(),
    ];
    if !entry.domain_attr.is_null() {
        // SAFETY: not null, so allocated here.
        parts.push(unsafe { (*entry.domain_attr).name }.cast());
        parts.push(entry.domain_attr.cast());
    }
    if !entry.fabric_attr.is_null() {
        // SAFETY: not null, so allocated here.
        parts.push(unsafe { (*entry.fabric_attr).name }.cast());
        parts.push(entry.fabric_attr.cast());
    }
    parts.push(info.cast());
    for part in parts {
        // SAFETY: null, or allocated by C's allocator and freed once.
        unsafe { libc::free(part) };
    }
}

/// Allocates a structure of zeros; null where there is no memory.
fn zeroed<T: Layout>() -> *mut T {
    // SAFETY: the size is not zero.
    unsafe { libc::calloc(1, size_of::<T>()) }.cast()
}

fn duplicate(text: &CStr) -> Result<*mut c_char> {
    // SAFETY: the text ends with a zero byte.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() {
        Err(Errno(FI_ENOMEM))
    } else {
        Ok(copy)
    }
}

/// Copies bytes; none are null.
fn copy(bytes: &[u8]) -> Result<(*mut c_void, usize)> {
    if bytes.is_empty() {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: the length is not zero.
    let to = unsafe { libc::malloc(bytes.len()) };
    if to.is_null() {
        return Err(Errno(FI_ENOMEM));
    }
    // SAFETY: the memory is new and as long as the bytes.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    Ok((to, bytes.len()))
}
