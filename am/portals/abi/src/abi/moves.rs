//! Data movement, at once and triggered.

use std::ffi::{c_int, c_void};

use doorbell_fabric::ni::{
    AckReq, Atomic, AtomicKind, Datatype, FetchAtomic, Get, Kind, MdHandle, Piece, Process, Put, Target,
    Triggered,
};

use super::invalid;
use super::triggered::set;
use super::types::PtlProcess;
use crate::call::{ARG_INVALID, Code, MD, begin, guarded, kind_of};

/// A target, as this kind of interface names it.
fn target(kind: Kind, process: PtlProcess, pt_index: u32, match_bits: u64, remote_offset: u64) -> Target {
    // The other half of a rank is whatever was there before.
    let process = if kind.logical {
        Process::rank(process.nid)
    } else {
        process.into()
    };
    Target {
        process,
        pt_index,
        match_bits,
        remote_offset,
    }
}

/// A part of a descriptor.
const fn piece(md: u32, offset: u64) -> Piece {
    Piece {
        md: MdHandle(md),
        offset,
    }
}

const fn ack(number: u8) -> Result<AckReq, Code> {
    Ok(match number {
        0 => AckReq::None,
        1 => AckReq::Full,
        2 => AckReq::Ct,
        3 => AckReq::Oc,
        _ => return Err(ARG_INVALID),
    })
}

/// An operation of atomics, and the type; `swaps` are another function's.
fn atomic_of(operation: u8, datatype: u8, swaps: bool) -> Result<(AtomicKind, Datatype), Code> {
    let kind = invalid(AtomicKind::ALL.get(usize::from(operation)).copied())?;
    let datatype = invalid(Datatype::ALL.get(usize::from(datatype)).copied())?;
    if (operation >= AtomicKind::Swap as u8) != swaps {
        return Err(ARG_INVALID);
    }
    Ok((kind, datatype))
}

/// Returns what a conditional or masked swap compares with.
///
/// # Safety
/// `operand` is null or points to an element of this type.
unsafe fn operand_of(operand: *const c_void, kind: AtomicKind, datatype: Datatype) -> Result<[u8; 32], Code> {
    let mut bytes = [0; 32];
    if matches!(kind, AtomicKind::Swap) {
        return Ok(bytes);
    }
    if operand.is_null() {
        return Err(ARG_INVALID);
    }
    let length = datatype.size().min(bytes.len());
    // SAFETY: an element of that size is there, by the caller's promise; no size is above 32.
    unsafe { std::ptr::copy_nonoverlapping(operand.cast(), bytes.as_mut_ptr(), length) };
    Ok(bytes)
}

pub(super) fn user(pointer: *mut c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// The two descriptors of a fetching atomic, which have to be of one interface.
fn both(get_md: u32, put_md: u32) -> Result<Kind, Code> {
    let kind = kind_of(get_md, MD)?;
    if kind_of(put_md, MD)? == kind {
        Ok(kind)
    } else {
        Err(ARG_INVALID)
    }
}

/// Makes each operation two functions of C: the one that begins it, and the one that sets it on a counting
/// event. The block looks at the arguments; its value is the kind of interface, the process to
/// connect first, and the operation.
macro_rules! moves {
    ($(
        $(#[$about:meta])*
        $([$unsafe:tt])? fn $name:ident, $triggered:ident ($($argument:ident: $type:ty,)*)
            -> $begin:ident, $what:ident $look:block
    )*) => {$(
        $(#[$about])*
        #[unsafe(no_mangle)]
        pub $($unsafe)? extern "C" fn $name($($argument: $type,)*) -> c_int {
            guarded(|| {
                let (kind, process, operation) = $look;
                begin(kind, process, |ni| ni.$begin(&operation))
            })
        }

        #[doc = concat!("As [`", stringify!($name), "`], when the counting event reaches the threshold.")]
        ///
        /// The arguments are looked at now.
        $(
            #[doc = concat!("\n# Safety\nAs [`", stringify!($name), "`], which is `", stringify!($unsafe), "`.")]
        )?
        #[unsafe(no_mangle)]
        pub $($unsafe)? extern "C" fn $triggered(
            $($argument: $type,)*
            trig_ct_handle: u32,
            threshold: u64,
        ) -> c_int {
            guarded(|| {
                let (kind, process, operation) = $look;
                set(kind, process, trig_ct_handle, threshold, &Triggered::$what(operation))
            })
        }
    )*};
}

moves! {
    /// Writes into the target's memory.
    fn PtlPut, PtlTriggeredPut(
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
    ) -> put, Put {
        let kind = kind_of(md_handle, MD)?;
        let put = Put {
            from: piece(md_handle, local_offset),
            length,
            ack: ack(ack_req)?,
            target: target(kind, target_id, pt_index, match_bits, remote_offset),
            user_ptr: user(user_ptr),
            hdr_data,
        };
        (kind, put.target.process, put)
    }

    /// Reads the target's memory.
    fn PtlGet, PtlTriggeredGet(
        md_handle: u32,
        local_offset: u64,
        length: u64,
        target_id: PtlProcess,
        pt_index: u32,
        match_bits: u64,
        remote_offset: u64,
        user_ptr: *mut c_void,
    ) -> get, Get {
        let kind = kind_of(md_handle, MD)?;
        let get = Get {
            into: piece(md_handle, local_offset),
            length,
            target: target(kind, target_id, pt_index, match_bits, remote_offset),
            user_ptr: user(user_ptr),
        };
        (kind, get.target.process, get)
    }

    /// Combines bytes with those of the target.
    fn PtlAtomic, PtlTriggeredAtomic(
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
    ) -> atomic, Atomic {
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
        let atomic = Atomic {
            put,
            kind: operation,
            datatype,
        };
        (kind, put.target.process, atomic)
    }

    /// Applies an atomic, and brings what was there before.
    fn PtlFetchAtomic, PtlTriggeredFetchAtomic(
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
    ) -> fetch_atomic, FetchAtomic {
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
        (kind, fetch.target.process, fetch)
    }

    /// Exchanges bytes with the target's, always or under a condition.
    ///
    /// # Safety
    /// `operand` is null or points to an element of the type.
    [unsafe] fn PtlSwap, PtlTriggeredSwap(
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
    ) -> fetch_atomic, FetchAtomic {
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
        (kind, fetch.target.process, fetch)
    }
}
