//! Memory descriptors, list entries and match entries.

use std::ffi::{c_int, c_void};

use doorbell_fabric::ni::{
    ANY, CtHandle, Entry, EntryHandle, EntryOptions, Kind, List, Md, MdHandle, MdOptions, Process, Search,
};

use super::memory::memory;
use super::table::queue;
use super::types::{PtlLe, PtlMd, PtlMe};
use super::{give, taken, wanted};
use crate::call::{ARG_INVALID, CT, Code, ENTRY, MD, NI, absent, guarded, kind_of, on};
use crate::state::enter;

/// The value of `PTL_CT_NONE`.
const CT_NONE: u32 = 0x5fff_ffff;
/// Options of list entries: the lowest fifteen, and ACK_DISABLE.
const LE_OPTIONS: u32 = 0x7fff | EntryOptions::ACK_DISABLE.0;

/// A counting event, or none.
fn counter(handle: u32, kind: Kind) -> Result<Option<CtHandle>, Code> {
    if handle == CT_NONE {
        return Ok(None);
    }
    if kind_of(handle, CT)? == kind {
        Ok(Some(CtHandle(handle)))
    } else {
        Err(ARG_INVALID)
    }
}

/// The most pieces of memory that a descriptor or entry may have.
fn most_pieces(kind: Kind) -> Result<u32, Code> {
    let mut core = enter();
    match core.with(kind) {
        Some(live) => Ok(live.limits[kind.number() as usize].max_iovecs),
        None => Err(absent(&core)),
    }
}

/// Makes memory known as a source and destination.
///
/// # Safety
/// `md` is null or a descriptor, whose memory stays until it is released and what was begun with it has
/// ended; `md_handle` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlMDBind(ni_handle: u32, md: *const PtlMd, md_handle: *mut u32) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        wanted(md_handle)?;
        // SAFETY: the caller's promise.
        let md = unsafe { taken(md) }?;
        let options = MdOptions(md.options);
        if !options.is_known() {
            return Err(ARG_INVALID);
        }
        let most = most_pieces(kind)?;
        let is_pieces = options.has(MdOptions::IOVEC);
        // SAFETY: the caller's promise.
        let memory = unsafe { memory(md.start, md.length, is_pieces, most) }?;
        let md = Md {
            memory,
            options,
            eq: queue(md.eq_handle, kind)?,
            ct: counter(md.ct_handle, kind)?,
        };
        let handle = on(kind, |ni| ni.md_bind(md))?;
        // SAFETY: the caller's promise.
        unsafe { give(md_handle, handle.0) }
    })
}

/// Releases a memory descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn PtlMDRelease(md_handle: u32) -> c_int {
    guarded(|| on(kind_of(md_handle, MD)?, |ni| ni.md_release(MdHandle(md_handle))))
}

pub(super) const fn list(number: u8) -> Result<List, Code> {
    match number {
        0 => Ok(List::Priority),
        1 => Ok(List::Overflow),
        _ => Err(ARG_INVALID),
    }
}

const fn search(number: u8) -> Result<Search, Code> {
    match number {
        0 => Ok(Search::Only),
        1 => Ok(Search::Delete),
        _ => Err(ARG_INVALID),
    }
}

/// A list entry, as the interface takes it.
///
/// # Safety
/// `le` is null or an entry, whose memory stays until it is unlinked and what was begun with it has ended.
unsafe fn le_entry(le: *const PtlLe, kind: Kind) -> Result<Entry, Code> {
    // SAFETY: the caller's promise.
    let le = unsafe { taken(le) }?;
    if kind.matching || le.options & !LE_OPTIONS != 0 {
        return Err(ARG_INVALID);
    }
    let options = EntryOptions(le.options);
    let most = most_pieces(kind)?;
    // SAFETY: the caller's promise.
    let memory = unsafe { memory(le.start, le.length, options.has(EntryOptions::IOVEC), most) }?;
    Ok(Entry {
        memory,
        ct: counter(le.ct_handle, kind)?,
        uid: le.uid,
        options,
        match_id: Process { nid: ANY, pid: ANY },
        match_bits: 0,
        ignore_bits: u64::MAX,
        min_free: 0,
    })
}

/// A match entry, as the interface takes it.
///
/// # Safety
/// The conditions of [`le_entry`].
pub(super) unsafe fn me_entry(me: *const PtlMe, kind: Kind) -> Result<Entry, Code> {
    // SAFETY: the caller's promise.
    let me = unsafe { taken(me) }?;
    let options = EntryOptions(me.options);
    if !kind.matching || !options.is_known() {
        return Err(ARG_INVALID);
    }
    let most = most_pieces(kind)?;
    // SAFETY: the caller's promise.
    let memory = unsafe { memory(me.start, me.length, options.has(EntryOptions::IOVEC), most) }?;
    // The other half of a rank is whatever was there before.
    let match_id = if kind.logical {
        Process::rank(me.match_id.nid)
    } else {
        me.match_id.into()
    };
    Ok(Entry {
        memory,
        ct: counter(me.ct_handle, kind)?,
        uid: me.uid,
        options,
        match_id,
        match_bits: me.match_bits,
        ignore_bits: me.ignore_bits,
        min_free: me.min_free,
    })
}

/// Appends a list entry.
///
/// # Safety
/// `le` is null or an entry, whose memory stays until it is unlinked and what was begun with it has ended;
/// `le_handle` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlLEAppend(
    ni_handle: u32,
    pt_index: u32,
    le: *const PtlLe,
    ptl_list: u8,
    user_ptr: *mut c_void,
    le_handle: *mut u32,
) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        wanted(le_handle)?;
        // SAFETY: the caller's promise.
        let entry = unsafe { le_entry(le, kind) }?;
        let handle = append(kind, pt_index, entry, ptl_list, user_ptr)?;
        // SAFETY: the caller's promise.
        unsafe { give(le_handle, handle.0) }
    })
}

/// Appends a match entry.
///
/// # Safety
/// The conditions of [`PtlLEAppend`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlMEAppend(
    ni_handle: u32,
    pt_index: u32,
    me: *const PtlMe,
    ptl_list: u8,
    user_ptr: *mut c_void,
    me_handle: *mut u32,
) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        wanted(me_handle)?;
        // SAFETY: the caller's promise.
        let entry = unsafe { me_entry(me, kind) }?;
        let handle = append(kind, pt_index, entry, ptl_list, user_ptr)?;
        // SAFETY: the caller's promise.
        unsafe { give(me_handle, handle.0) }
    })
}

fn append(
    kind: Kind,
    pt_index: u32,
    entry: Entry,
    list: u8,
    user_ptr: *mut c_void,
) -> Result<EntryHandle, Code> {
    let list = self::list(list)?;
    let user_ptr = user_ptr.expose_provenance() as u64;
    on(kind, |ni| ni.append(pt_index, entry, list, user_ptr))
}

/// Takes a list entry off its list.
#[unsafe(no_mangle)]
pub extern "C" fn PtlLEUnlink(le_handle: u32) -> c_int {
    guarded(|| unlink(le_handle, false))
}

/// Takes a match entry off its list.
#[unsafe(no_mangle)]
pub extern "C" fn PtlMEUnlink(me_handle: u32) -> c_int {
    guarded(|| unlink(me_handle, true))
}

fn unlink(handle: u32, matching: bool) -> Result<(), Code> {
    let kind = kind_of(handle, ENTRY)?;
    if kind.matching != matching {
        return Err(ARG_INVALID);
    }
    on(kind, |ni| ni.unlink(EntryHandle(handle)))
}

/// Searches the unexpected headers.
///
/// # Safety
/// `le` is null or an entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlLESearch(
    ni_handle: u32,
    pt_index: u32,
    le: *const PtlLe,
    ptl_search_op: u8,
    user_ptr: *mut c_void,
) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        // SAFETY: the caller's promise.
        let entry = unsafe { le_entry(le, kind) }?;
        look_for(kind, pt_index, &entry, ptl_search_op, user_ptr)
    })
}

/// Searches the unexpected headers.
///
/// # Safety
/// `me` is null or an entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlMESearch(
    ni_handle: u32,
    pt_index: u32,
    me: *const PtlMe,
    ptl_search_op: u8,
    user_ptr: *mut c_void,
) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        // SAFETY: the caller's promise.
        let entry = unsafe { me_entry(me, kind) }?;
        look_for(kind, pt_index, &entry, ptl_search_op, user_ptr)
    })
}

fn look_for(kind: Kind, pt_index: u32, entry: &Entry, how: u8, user_ptr: *mut c_void) -> Result<(), Code> {
    let how = search(how)?;
    let user_ptr = user_ptr.expose_provenance() as u64;
    on(kind, |ni| ni.search(pt_index, entry, how, user_ptr))
}
