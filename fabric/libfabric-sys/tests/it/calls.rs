//! Calls through made-up objects: what a provider lacks is refused, and what it has gets the arguments.

use std::ffi::{c_int, c_void};
use std::ptr;

use libfabric_sys::*;

const ENOSYS: c_int = -FI_ENOSYS;

/// Returns a queue with this table.
fn queue(table: &mut fi_ops_cq) -> fid_cq {
    fid_cq {
        ops: table,
        ..Layout::zeroed()
    }
}

unsafe extern "C" fn signal(_: *mut fid_cq) -> c_int {
    17
}

unsafe extern "C" fn read(cq: *mut fid_cq, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: the test gives a buffer of one entry.
    unsafe {
        buffer.cast::<fi_cq_entry>().write(fi_cq_entry {
            op_context: cq.cast(),
        })
    };
    count as isize
}

#[test]
fn an_entry_that_is_there_is_called_with_the_object_and_its_arguments() {
    let mut table = fi_ops_cq {
        size: size_of::<fi_ops_cq>(),
        read: Some(read),
        signal: Some(signal),
        ..Layout::zeroed()
    };
    let mut cq = queue(&mut table);
    let cq = &raw mut cq;
    let mut entry = fi_cq_entry::zeroed();
    // SAFETY: the made-up queue lives, and the buffer has room for one entry.
    let count = unsafe { fi_cq_read(cq, (&raw mut entry).cast(), 1) };
    assert_eq!((count, entry.op_context), (1, cq.cast()));
    // SAFETY: the made-up queue lives.
    assert_eq!(unsafe { fi_cq_signal(cq) }, 17);
}

#[test]
fn a_null_table_a_short_table_and_a_null_entry_are_refused() {
    let mut short = fi_ops_cq {
        size: std::mem::offset_of!(fi_ops_cq, signal),
        signal: Some(signal),
        ..Layout::zeroed()
    };
    let mut empty = fi_ops_cq {
        size: size_of::<fi_ops_cq>(),
        ..Layout::zeroed()
    };
    for mut cq in [Layout::zeroed(), queue(&mut short), queue(&mut empty)] {
        // SAFETY: the made-up queue lives.
        assert_eq!(unsafe { fi_cq_signal(&raw mut cq) }, ENOSYS);
        // SAFETY: the made-up queue lives.
        let result = unsafe { fi_cq_export_xpu(&raw mut cq, 0, ptr::null_mut()) };
        assert_eq!(result, ENOSYS);
    }
}

#[test]
fn a_table_without_a_size_has_what_its_first_release_had() {
    unsafe extern "C" fn export(_: *mut fid_cq, _: u64, _: *mut fid_xpu_cq) -> c_int {
        unreachable!("the table does not state that it has this entry")
    }
    let mut table = fi_ops_cq {
        signal: Some(signal),
        export_xpu: Some(export),
        ..Layout::zeroed()
    };
    let mut cq = queue(&mut table);
    // SAFETY: the made-up queue lives.
    assert_eq!(unsafe { fi_cq_signal(&raw mut cq) }, 17);
    // SAFETY: the made-up queue lives.
    let result = unsafe { fi_cq_export_xpu(&raw mut cq, 0, ptr::null_mut()) };
    assert_eq!(result, ENOSYS);
}

/// Calls everything of an endpoint without tables, each with null pointers and zeros.
#[test]
fn an_endpoint_without_tables_refuses_every_operation() {
    let mut endpoint = fid_ep::zeroed();
    let ep = &raw mut endpoint;
    let (null, context): (*const c_void, *mut c_void) = (ptr::null(), ptr::null_mut());
    // SAFETY, for each: the endpoint lives and has no tables, so that nothing is called with these arguments.
    let data = [
        // SAFETY: see above.
        unsafe { fi_recv(ep, context, 0, context, 0, context) },
        // SAFETY: see above.
        unsafe { fi_send(ep, null, 0, context, 0, context) },
        // SAFETY: see above.
        unsafe { fi_sendmsg(ep, ptr::null(), 0) },
        // SAFETY: see above.
        unsafe { fi_inject(ep, null, 0, 0) },
        // SAFETY: see above.
        unsafe { fi_trecv(ep, context, 0, context, 0, 0, 0, context) },
        // SAFETY: see above.
        unsafe { fi_tsenddata(ep, null, 0, context, 0, 0, 0, context) },
        // SAFETY: see above.
        unsafe { fi_read(ep, context, 0, context, 0, 0, 0, context) },
        // SAFETY: see above.
        unsafe { fi_inject_write(ep, null, 0, 0, 0, 0) },
        // SAFETY: see above.
        unsafe { fi_atomic(ep, null, 0, context, 0, 0, 0, 0, 0, context) },
        // SAFETY: see above.
        unsafe { fi_barrier(ep, 0, context) },
        // SAFETY: see above.
        unsafe { fi_barrier2(ep, 0, 1, context) },
        // SAFETY: see above.
        unsafe { fi_cancel(ep.cast(), context) },
        // SAFETY: see above.
        unsafe { fi_tx_size_left(ep) },
    ];
    assert_eq!(data, [ENOSYS as isize; 13]);
    let control = [
        // SAFETY: see above.
        unsafe { fi_ep_bind(ep, ptr::null_mut(), 0) },
        // SAFETY: see above.
        unsafe { fi_enable(ep) },
        // SAFETY: see above.
        unsafe { fi_getname(ep.cast(), context, ptr::null_mut()) },
        // SAFETY: see above.
        unsafe { fi_setopt(ep.cast(), 0, 0, null, 0) },
        // SAFETY: see above.
        unsafe { fi_shutdown(ep, 0) },
        // SAFETY: see above.
        unsafe { fi_join_collective(ep, 0, ptr::null(), 0, ptr::null_mut(), context) },
        // SAFETY: see above.
        unsafe { fi_atomicvalid(ep, 0, 0, ptr::null_mut()) },
        // SAFETY: see above.
        unsafe { fi_close(ep.cast()) },
    ];
    assert_eq!(control, [ENOSYS; 8]);
}

#[test]
fn calls_that_return_no_error_number_have_a_value_for_what_is_not_there() {
    let mut counter = fid_cntr::zeroed();
    // SAFETY: the made-up counter lives and has no table.
    assert_eq!(unsafe { fi_cntr_read(&raw mut counter) }, 0);
    let mut queue = fid_eq::zeroed();
    // SAFETY: the made-up queue lives and has no table.
    let text = unsafe { fi_eq_strerror(&raw mut queue, 0, ptr::null(), ptr::null_mut(), 0) };
    assert!(text.is_null());
}

#[test]
fn a_failed_operation_of_an_older_provider_has_no_known_source() {
    unsafe extern "C" fn readerr(_: *mut fid_cq, entry: *mut fi_cq_err_entry, _: u64) -> isize {
        // SAFETY: the test gives an entry.
        unsafe { (*entry).err = FI_ETRUNC };
        1
    }
    let mut table = fi_ops_cq {
        size: size_of::<fi_ops_cq>(),
        readerr: Some(readerr),
        ..Layout::zeroed()
    };
    let mut cq = queue(&mut table);
    let mut entry = fi_cq_err_entry::zeroed();
    // SAFETY: the made-up queue and the entry live.
    assert_eq!(unsafe { fi_cq_readerr(&raw mut cq, &raw mut entry, 0) }, 1);
    assert_eq!((entry.err, entry.src_addr), (FI_ETRUNC, FI_ADDR_NOTAVAIL));
}

#[test]
fn a_domain_without_flags_is_opened_by_the_entry_that_every_release_has() {
    unsafe extern "C" fn open(
        _: *mut fid_fabric,
        _: *mut fi_info,
        _: *mut *mut fid_domain,
        _: *mut c_void,
    ) -> c_int {
        3
    }
    let mut table = fi_ops_fabric {
        size: fi_ops_fabric::size_at(Level::new(1, 5)),
        domain: Some(open),
        ..Layout::zeroed()
    };
    let mut fabric = fid_fabric {
        ops: &raw mut table,
        ..Layout::zeroed()
    };
    let mut domain = |flags| {
        let mut opened = ptr::null_mut();
        // SAFETY: the made-up fabric lives, and its entry looks at no argument.
        unsafe {
            fi_domain2(
                &raw mut fabric,
                ptr::null_mut(),
                &raw mut opened,
                flags,
                ptr::null_mut(),
            )
        }
    };
    assert_eq!([domain(0), domain(FI_PEER)], [3, ENOSYS]);
}
