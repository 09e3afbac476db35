//! Calls that do more than pass their arguments on, and the small functions of the headers that call nothing.
//!
//! Sources: the headers of [`abi`](crate::abi), and the man pages that are named with each group there.

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::iovec;

use super::Absent;
use super::collectives::fi_barrier;
use super::endpoints::fi_join;
use super::objects::{fi_control, fi_domain, fi_endpoint};
use crate::abi::av::{FI_ADDR_NOTAVAIL, fi_addr_t, fid_av_set};
use crate::abi::cm::fid_mc;
use crate::abi::collective::{fi_collective_addr, fi_ops_collective};
use crate::abi::cq::{fi_cq_err_entry, fi_ops_cq, fid_cq};
use crate::abi::domain::{fi_ops_domain, fid_domain};
use crate::abi::endpoint::fid_ep;
use crate::abi::fabric::{
    FI_ALIAS, FI_ENABLE, FI_GET_MR_XPU_DESC, FI_GET_RAW_MR, FI_GET_VAL, FI_MAP_RAW_MR, FI_REFRESH,
    FI_SET_VAL, FI_UNMAP_KEY, fi_alias, fi_fid_var, fi_ops_fabric, fid, fid_fabric,
};
use crate::abi::flags::FI_COLLECTIVE;
use crate::abi::info::{FI_TC_DSCP, fi_info};
use crate::abi::mr::{fi_mr_map_raw, fi_mr_modify, fi_mr_raw_attr, fi_mr_xpu_desc, fid_mr};
use crate::abi::xpu::fid_xpu_ctx;
use crate::layout::Layout;

/// Opens a domain with flags; without any, as [`fi_domain`] does, which older providers have too.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags == 0 {
        // SAFETY: the contract is the same.
        return unsafe { fi_domain(fabric, info, domain, context) };
    }
    match entry_of!(fabric, fid_fabric.ops: fi_ops_fabric.domain2) {
        // SAFETY: the caller keeps the contract of the call.
        Some(call) => unsafe { call(fabric, info, domain, flags, context) },
        None => Absent::ABSENT,
    }
}

/// Opens an endpoint with flags; without any, as [`fi_endpoint`] does, which older providers have too.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_endpoint2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags == 0 {
        // SAFETY: the contract is the same.
        return unsafe { fi_endpoint(domain, info, ep, context) };
    }
    match entry_of!(domain, fid_domain.ops: fi_ops_domain.endpoint2) {
        // SAFETY: the caller keeps the contract of the call.
        Some(call) => unsafe { call(domain, info, ep, flags, context) },
        None => Absent::ABSENT,
    }
}

/// Begins a barrier with flags; without any, as [`fi_barrier`] does, which older providers have too.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_barrier2(ep: *mut fid_ep, coll_addr: fi_addr_t, flags: u64, context: *mut c_void) -> isize {
    if flags == 0 {
        // SAFETY: the contract is the same.
        return unsafe { fi_barrier(ep, coll_addr, context) };
    }
    match entry_of!(ep, fid_ep.collective: fi_ops_collective.barrier2) {
        // SAFETY: the caller keeps the contract of the call.
        Some(call) => unsafe { call(ep, coll_addr, flags, context) },
        None => Absent::ABSENT,
    }
}

/// Joins a collective group.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_join_collective(
    ep: *mut fid_ep,
    coll_addr: fi_addr_t,
    set: *const fid_av_set,
    flags: u64,
    mc: *mut *mut fid_mc,
    context: *mut c_void,
) -> c_int {
    let address = fi_collective_addr { set, coll_addr };
    let pointer = (&raw const address).cast();
    // SAFETY: the address lives until the call returns; the rest is the same contract.
    unsafe { fi_join(ep, pointer, flags | FI_COLLECTIVE, mc, context) }
}

/// Reads a failed operation. `src_addr` is set to unknown first, since older providers do not write it.
///
/// # Safety
/// As for [all calls](crate::calls); `buf` is null or has the size of this crate's type.
#[inline]
pub unsafe fn fi_cq_readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize {
    if !buf.is_null() {
        // SAFETY: not null, so it may be written.
        unsafe { (*buf).src_addr = FI_ADDR_NOTAVAIL };
    }
    match entry_of!(cq, fid_cq.ops: fi_ops_cq.readerr) {
        // SAFETY: the caller keeps the contract of the call.
        Some(call) => unsafe { call(cq, buf, flags) },
        None => Absent::ABSENT,
    }
}

/// Makes a second name of an object, with flags of its own.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_alias(object: *mut fid, alias: *mut *mut fid, flags: u64) -> c_int {
    let mut argument = fi_alias { fid: alias, flags };
    // SAFETY: the argument is that of the command, and lives until the call returns.
    unsafe { fi_control(object, FI_ALIAS, (&raw mut argument).cast()) }
}

/// Makes a second name of an endpoint, with flags of its own.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_ep_alias(ep: *mut fid_ep, alias: *mut *mut fid_ep, flags: u64) -> c_int {
    // SAFETY: an endpoint begins with its head, so that a pointer to either is one to the other.
    unsafe { fi_alias(ep.cast(), alias.cast(), flags) }
}

/// Reads a value of an object by its number.
///
/// # Safety
/// As for [all calls](crate::calls); `value` has the type that belongs to the number.
#[inline]
pub unsafe fn fi_get_val(object: *mut fid, name: c_int, value: *mut c_void) -> c_int {
    let mut argument = fi_fid_var { name, val: value };
    // SAFETY: the argument is that of the command, and lives until the call returns.
    unsafe { fi_control(object, FI_GET_VAL, (&raw mut argument).cast()) }
}

/// Sets a value of an object by its number.
///
/// # Safety
/// As for [all calls](crate::calls); `value` has the type that belongs to the number.
#[inline]
pub unsafe fn fi_set_val(object: *mut fid, name: c_int, value: *mut c_void) -> c_int {
    let mut argument = fi_fid_var { name, val: value };
    // SAFETY: the argument is that of the command, and lives until the call returns.
    unsafe { fi_control(object, FI_SET_VAL, (&raw mut argument).cast()) }
}

/// Enables an endpoint.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_enable(ep: *mut fid_ep) -> c_int {
    // SAFETY: the command has no argument.
    unsafe { fi_control(ep.cast(), FI_ENABLE, ptr::null_mut()) }
}

/// Enables a registration of memory.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
    // SAFETY: the command has no argument.
    unsafe { fi_control(mr.cast(), FI_ENABLE, ptr::null_mut()) }
}

/// Returns the descriptor that operations of one's own take for this memory.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: the object is open.
    unsafe { (*mr).mem_desc }
}

/// Returns the key by which peers name this memory.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: the object is open.
    unsafe { (*mr).key }
}

/// Returns a key that does not fit into 64 bits.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_mr_raw_attr(
    mr: *mut fid_mr,
    base_addr: *mut u64,
    raw_key: *mut u8,
    key_size: *mut usize,
    flags: u64,
) -> c_int {
    let mut argument = fi_mr_raw_attr {
        flags,
        base_addr,
        raw_key,
        key_size,
    };
    // SAFETY: the argument is that of the command, and lives until the call returns.
    unsafe { fi_control(mr.cast(), FI_GET_RAW_MR, (&raw mut argument).cast()) }
}

/// Makes a key of 64 bits of a peer's longer one.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_mr_map_raw(
    domain: *mut fid_domain,
    base_addr: u64,
    raw_key: *mut u8,
    key_size: usize,
    key: *mut u64,
    flags: u64,
) -> c_int {
    let mut argument = fi_mr_map_raw {
        flags,
        base_addr,
        raw_key,
        key_size,
        key,
    };
    // SAFETY: the argument is that of the command, and lives until the call returns.
    unsafe { fi_control(domain.cast(), FI_MAP_RAW_MR, (&raw mut argument).cast()) }
}

/// Gives a key of [`fi_mr_map_raw()`] back.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_mr_unmap_key(domain: *mut fid_domain, mut key: u64) -> c_int {
    // SAFETY: the argument is that of the command, and lives until the call returns.
    unsafe { fi_control(domain.cast(), FI_UNMAP_KEY, (&raw mut key).cast()) }
}

/// Announces that the pages behind a registered range have changed.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_mr_refresh(mr: *mut fid_mr, iov: *const iovec, count: usize, flags: u64) -> c_int {
    let mut argument = fi_mr_modify::zeroed();
    argument.flags = flags;
    argument.attr.mr_iov = iov;
    argument.attr.iov_count = count;
    // SAFETY: the argument is that of the command, and lives until the call returns.
    unsafe { fi_control(mr.cast(), FI_REFRESH, (&raw mut argument).cast()) }
}

/// Returns the descriptor that operations of a device take for this memory.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_mr_get_xpu_desc(
    mr: *mut fid_mr,
    buf: *mut c_void,
    len: *mut usize,
    flags: u64,
    ctx: *mut fid_xpu_ctx,
) -> c_int {
    let mut argument = fi_mr_xpu_desc { buf, len, flags, ctx };
    // SAFETY: the argument is that of the command, and lives until the call returns.
    unsafe { fi_control(mr.cast(), FI_GET_MR_XPU_DESC, (&raw mut argument).cast()) }
}

/// Returns the address of a multicast group or collective.
///
/// # Safety
/// As for [all calls](crate::calls).
#[inline]
pub unsafe fn fi_mc_addr(mc: *mut fid_mc) -> fi_addr_t {
    // SAFETY: the object is open.
    unsafe { (*mc).fi_addr }
}

/// Returns the address of one receive context of a peer with several; `bits` is the address vector's
/// `rx_ctx_bits`, from 1 to 63.
pub const fn fi_rx_addr(peer: fi_addr_t, index: u32, bits: u32) -> fi_addr_t {
    (index as u64) << (64 - bits) | peer
}

/// Returns the address of one group of a peer.
pub const fn fi_group_addr(peer: fi_addr_t, group: u32) -> fi_addr_t {
    (group as u64) << 32 | peer
}

/// Returns the tag of the format `FI_TAG_MPI`.
pub const fn fi_tag_mpi(tag: i32, payload: u8) -> u64 {
    (payload as u64) << 32 | tag as u32 as u64
}

/// Returns the traffic class of a code point of differentiated services.
pub const fn fi_tc_dscp_set(code_point: u8) -> u32 {
    code_point as u32 | FI_TC_DSCP
}

/// Returns the code point of a traffic class; 0 if it has none.
pub const fn fi_tc_dscp_get(class: u32) -> u8 {
    if class & FI_TC_DSCP != 0 { class as u8 } else { 0 }
}

/// Returns the number of a Level Zero device for [`fi_hmem_device`](crate::fi_hmem_device).
pub const fn fi_hmem_ze_device(driver: c_int, device: c_int) -> c_int {
    driver << 16 | device
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_put_together_as_the_headers_do() {
        assert_eq!(fi_rx_addr(5, 3, 4), 0x3000_0000_0000_0005);
        assert_eq!(fi_group_addr(5, 3), 0x3_0000_0005);
        assert_eq!(fi_tag_mpi(-1, 2), 0x2_ffff_ffff);
        assert_eq!(
            (fi_tc_dscp_set(46), fi_tc_dscp_get(fi_tc_dscp_set(46))),
            (0x12e, 46)
        );
        assert_eq!(fi_tc_dscp_get(0x200), 0);
        assert_eq!(fi_hmem_ze_device(1, 2), 0x1_0002);
    }
}
