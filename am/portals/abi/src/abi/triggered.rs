//! Triggered operations: how they are set, and those that move no data between processes.

use std::ffi::{c_int, c_void};

use doorbell_fabric::ni::{CtHandle, EntryHandle, Kind, Process, Triggered};

use super::entries::{list, me_entry};
use super::moves::user;
use super::types::{PtlCtEvent, PtlMe};
use super::{give, wanted};
use crate::call::{ARG_INVALID, CT, Code, ENTRY, FAIL, NI, begin, guarded, kind_of, on};

/// The counting event that triggers, which has to be of the operation's interface.
fn trigger_of(handle: u32, kind: Kind) -> Result<CtHandle, Code> {
    if kind_of(handle, CT)? == kind {
        Ok(CtHandle(handle))
    } else {
        Err(ARG_INVALID)
    }
}

/// Sets an operation towards another process.
pub(super) fn set(
    kind: Kind,
    process: Process,
    ct: u32,
    threshold: u64,
    what: &Triggered,
) -> Result<(), Code> {
    let ct = trigger_of(ct, kind)?;
    begin(kind, process, |ni| ni.trigger(ct, threshold, what.clone())).map(drop)
}

/// Sets an operation on a counting event.
fn set_count(
    ct: u32,
    trigger: u32,
    threshold: u64,
    what: impl FnOnce(CtHandle) -> Triggered,
) -> Result<(), Code> {
    let kind = kind_of(ct, CT)?;
    let trigger = trigger_of(trigger, kind)?;
    on(kind, |ni| ni.trigger(trigger, threshold, what(CtHandle(ct)))).map(drop)
}

/// [`super::PtlCTInc`] when the counting event reaches the threshold.
#[unsafe(no_mangle)]
pub extern "C" fn PtlTriggeredCTInc(
    ct_handle: u32,
    increment: PtlCtEvent,
    trig_ct_handle: u32,
    threshold: u64,
) -> c_int {
    guarded(|| {
        set_count(ct_handle, trig_ct_handle, threshold, |ct| {
            Triggered::CtInc(ct, increment.into())
        })
    })
}

/// [`super::PtlCTSet`] when the counting event reaches the threshold.
#[unsafe(no_mangle)]
pub extern "C" fn PtlTriggeredCTSet(
    ct_handle: u32,
    new_ct: PtlCtEvent,
    trig_ct_handle: u32,
    threshold: u64,
) -> c_int {
    guarded(|| {
        set_count(ct_handle, trig_ct_handle, threshold, |ct| {
            Triggered::CtSet(ct, new_ct.into())
        })
    })
}

/// [`super::PtlMEAppend`] when the counting event reaches the threshold (an extension).
///
/// # Safety
/// The conditions of [`super::PtlMEAppend`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlTriggeredMEAppend(
    ni_handle: u32,
    pt_index: u32,
    me: *const PtlMe,
    ptl_list: u8,
    user_ptr: *mut c_void,
    me_handle: *mut u32,
    trig_ct_handle: u32,
    threshold: u64,
) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        wanted(me_handle)?;
        let trigger = trigger_of(trig_ct_handle, kind)?;
        let what = Triggered::Append {
            pt_index,
            // SAFETY: the caller's promise.
            entry: Box::new(unsafe { me_entry(me, kind) }?),
            list: list(ptl_list)?,
            user_ptr: user(user_ptr),
        };
        let handle = on(kind, |ni| ni.trigger(trigger, threshold, what))?;
        // SAFETY: the caller's promise.
        unsafe { give(me_handle, handle.ok_or(FAIL)?.0) }
    })
}

/// [`super::PtlMEUnlink`] when the counting event reaches the threshold (an extension).
#[unsafe(no_mangle)]
pub extern "C" fn PtlTriggeredMEUnlink(me_handle: u32, trig_ct_handle: u32, threshold: u64) -> c_int {
    guarded(|| {
        let kind = kind_of(me_handle, ENTRY)?;
        let trigger = trigger_of(trig_ct_handle, kind)?;
        let what = Triggered::Unlink(EntryHandle(me_handle));
        on(kind, |ni| ni.trigger(trigger, threshold, what)).map(drop)
    })
}
