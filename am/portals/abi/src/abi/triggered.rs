//! Triggered operations.

use std::ffi::{c_int, c_void};

use doorbell_fabric::ni::{Atomic, CtHandle, EntryHandle, FetchAtomic, Get, Kind, Process, Put, Triggered};

use super::entries::{list, me_entry};
use super::moves::{ack, atomic_of, both, operand_of, piece, target, user};
use super::types::{PtlCtEvent, PtlMe, PtlProcess};
use super::{give, wanted};
use crate::call::{ARG_INVALID, CT, Code, ENTRY, FAIL, MD, NI, begin, guarded, kind_of, on};

/// The counting event that triggers, which has to be of the operation's interface.
fn trigger_of(handle: u32, kind: Kind) -> Result<CtHandle, Code> {
    if kind_of(handle, CT)? == kind {
        Ok(CtHandle(handle))
    } else {
        Err(ARG_INVALID)
    }
}

/// Sets an operation towards another process.
fn set(kind: Kind, process: Process, ct: u32, threshold: u64, what: &Triggered) -> Result<(), Code> {
    let ct = trigger_of(ct, kind)?;
    begin(kind, process, |ni| ni.trigger(ct, threshold, what.clone())).map(drop)
}

/// [`super::PtlPut`] when the counting event reaches the threshold.
#[unsafe(no_mangle)]
pub extern "C" fn PtlTriggeredPut(
    md_handle: u32,
    local_offset: u64,
    length: u64,
    ack_req: u8,
    target_id: PtlProcess,
    pt_index: u32,
    match_bits: u64,
    remote_offset: u64,
    user_ptr: *mut c_void,
    hdr_data: u64,
    trig_ct_handle: u32,
    threshold: u64,
) -> c_int {
    guarded(|| {
        let kind = kind_of(md_handle, MD)?;
        let put = Put {
            from: piece(md_handle, local_offset),
            length,
            ack: ack(ack_req)?,
            target: target(kind, target_id, pt_index, match_bits, remote_offset),
            user_ptr: user(user_ptr),
            hdr_data,
        };
        set(
            kind,
            put.target.process,
            trig_ct_handle,
            threshold,
            &Triggered::Put(put),
        )
    })
}

/// [`super::PtlGet`] when the counting event reaches the threshold.
#[unsafe(no_mangle)]
pub extern "C" fn PtlTriggeredGet(
    md_handle: u32,
    local_offset: u64,
    length: u64,
    target_id: PtlProcess,
    pt_index: u32,
    match_bits: u64,
    remote_offset: u64,
    user_ptr: *mut c_void,
    trig_ct_handle: u32,
    threshold: u64,
) -> c_int {
    guarded(|| {
        let kind = kind_of(md_handle, MD)?;
        let get = Get {
            into: piece(md_handle, local_offset),
            length,
            target: target(kind, target_id, pt_index, match_bits, remote_offset),
            user_ptr: user(user_ptr),
        };
        set(
            kind,
            get.target.process,
            trig_ct_handle,
            threshold,
            &Triggered::Get(get),
        )
    })
}

/// [`super::PtlAtomic`] when the counting event reaches the threshold.
#[unsafe(no_mangle)]
pub extern "C" fn PtlTriggeredAtomic(
    md_handle: u32,
    local_offset: u64,
    length: u64,
    ack_req: u8,
    target_id: PtlProcess,
    pt_index: u32,
    match_bits: u64,
    remote_offset: u64,
    user_ptr: *mut c_void,
    hdr_data: u64,
    operation: u8,
    datatype: u8,
    trig_ct_handle: u32,
    threshold: u64,
) -> c_int {
    guarded(|| {
        let kind = kind_of(md_handle, MD)?;
        let (operation, datatype) = atomic_of(operation, datatype, false)?;
        let put = Put {
            from: piece(md_handle, local_offset),
            length,
            ack: ack(ack_req)?,
            target: target(kind, target_id, pt_index, match_bits, remote_offset),
            user_ptr: user(user_ptr),
            hdr_data,
        };
        let atomic = Triggered::Atomic(Atomic {
            put,
            kind: operation,
            datatype,
        });
        set(kind, put.target.process, trig_ct_handle, threshold, &atomic)
    })
}

/// [`super::PtlFetchAtomic`] when the counting event reaches the threshold.
#[unsafe(no_mangle)]
pub extern "C" fn PtlTriggeredFetchAtomic(
    get_md_handle: u32,
    local_get_offset: u64,
    put_md_handle: u32,
    local_put_offset: u64,
    length: u64,
    target_id: PtlProcess,
    pt_index: u32,
    match_bits: u64,
    remote_offset: u64,
    user_ptr: *mut c_void,
    hdr_data: u64,
    operation: u8,
    datatype: u8,
    trig_ct_handle: u32,
    threshold: u64,
) -> c_int {
    guarded(|| {
        let kind = both(get_md_handle, put_md_handle)?;
        let (operation, datatype) = atomic_of(operation, datatype, false)?;
        let fetch = FetchAtomic {
            into: piece(get_md_handle, local_get_offset),
            from: piece(put_md_handle, local_put_offset),
            length,
            target: target(kind, target_id, pt_index, match_bits, remote_offset),
            user_ptr: user(user_ptr),
            hdr_data,
            kind: operation,
            datatype,
            operand: [0; 32],
        };
        let process = fetch.target.process;
        set(
            kind,
            process,
            trig_ct_handle,
            threshold,
            &Triggered::FetchAtomic(fetch),
        )
    })
}

/// [`super::PtlSwap`] when the counting event reaches the threshold. The operand is read now.
///
/// # Safety
/// `operand` is null or points to an element of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlTriggeredSwap(
    get_md_handle: u32,
    local_get_offset: u64,
    put_md_handle: u32,
    local_put_offset: u64,
    length: u64,
    target_id: PtlProcess,
    pt_index: u32,
    match_bits: u64,
    remote_offset: u64,
    user_ptr: *mut c_void,
    hdr_data: u64,
    operand: *const c_void,
    operation: u8,
    datatype: u8,
    trig_ct_handle: u32,
    threshold: u64,
) -> c_int {
    guarded(|| {
        let kind = both(get_md_handle, put_md_handle)?;
        let (operation, datatype) = atomic_of(operation, datatype, true)?;
        let fetch = FetchAtomic {
            into: piece(get_md_handle, local_get_offset),
            from: piece(put_md_handle, local_put_offset),
            length,
            target: target(kind, target_id, pt_index, match_bits, remote_offset),
            user_ptr: user(user_ptr),
            hdr_data,
            kind: operation,
            datatype,
            // SAFETY: the caller's promise.
            operand: unsafe { operand_of(operand, operation, datatype) }?,
        };
        let process = fetch.target.process;
        set(
            kind,
            process,
            trig_ct_handle,
            threshold,
            &Triggered::FetchAtomic(fetch),
        )
    })
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
/// As [`super::PtlMEAppend`].
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
