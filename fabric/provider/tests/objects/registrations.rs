//! Registrations of memory, as fabtests' mr_test uses them, and beyond.

use std::ffi::c_void;
use std::ptr;

use libc::iovec;
use libfabric_sys::*;

use crate::alone::run;
use crate::events::read;
use crate::opened::{Object, Opened, hints, try_open};
use crate::set;

const THREE: i32 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

fn register(opened: &Opened, start: usize, length: usize, key: u64) -> Result<Object<fid_mr>, i32> {
    let start = ptr::without_provenance::<c_void>(start);
    let access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    // SAFETY: the domain is open; the memory is only named.
    try_open(|to| unsafe {
        fi_mr_reg(
            opened.domain.0,
            start,
            length,
            access,
            0,
            key,
            0,
            to,
            ptr::null_mut(),
        )
    })
}

fn key(mr: &Object<fid_mr>) -> u64 {
    // SAFETY: the registration is open.
    unsafe { fi_mr_key(mr.0) }
}

#[test]
fn keys_are_the_clients_and_used_once_at_a_time() {
    run(
        "registrations::keys_are_the_clients_and_used_once_at_a_time",
        |library| {
            let opened = Opened::any(library);
            let all = register(&opened, 0, usize::MAX, 0xbeef).unwrap();
            assert_eq!(key(&all), 0xbeef);
            // SAFETY: the registration is open.
            assert!(unsafe { fi_mr_desc(all.0) }.is_null());
            assert_eq!(register(&opened, 64, 64, 0xbeef).unwrap_err(), -FI_ENOKEY);
            assert_eq!(all.close(), 0);
            assert_eq!(key(&register(&opened, 64, 64, 0xbeef).unwrap()), 0xbeef);
            assert_eq!(key(&register(&opened, 0, 0, u64::MAX - 1).unwrap()), u64::MAX - 1);
            assert_eq!(register(&opened, 64, usize::MAX, 9).unwrap_err(), -FI_EINVAL);
        },
    );
}

#[test]
fn keys_are_random_where_the_client_leaves_them_to_us() {
    run(
        "registrations::keys_are_random_where_the_client_leaves_them_to_us",
        |library| {
            let mut hints = hints(&library);
            set!(hints, caps = FI_MSG | FI_RMA);
            set!(hints, domain_attr.mr_mode = THREE | FI_MR_LOCAL);
            let opened = Opened::by(library, &hints);
            let [one, other] = [0, 0].map(|key| register(&opened, 64, 64, key).unwrap());
            assert!(key(&one) != key(&other) && key(&one) != 0 && key(&one) != FI_KEY_NOTAVAIL);
        },
    );
}

#[test]
fn a_thousand_registrations_cost_a_row_each() {
    run(
        "registrations::a_thousand_registrations_cost_a_row_each",
        |library| {
            let opened = Opened::any(library);
            let before = in_use();
            let all: Vec<_> = (0..1000)
                .map(|key| register(&opened, 64, 64, key).unwrap())
                .collect();
            let grown = in_use().saturating_sub(before);
            assert!(
                grown <= 200 << 10,
                "{grown} bytes for {} registrations",
                all.len()
            );
        },
    );
}

/// Bytes of this process's heap that are in use, those of the provider among them.
fn in_use() -> usize {
    // SAFETY: the call takes nothing.
    unsafe { libc::mallinfo2() }.uordblks
}

#[test]
fn several_pieces_are_one_registration_and_their_number_is_limited() {
    run(
        "registrations::several_pieces_are_one_registration_and_their_number_is_limited",
        |library| {
            let opened = Opened::any(library);
            let memory = [0_u8; 64];
            let piece = iovec {
                iov_base: memory.as_ptr().cast_mut().cast(),
                iov_len: 8,
            };
            let pieces = [piece; 5];
            let register = |count| {
                // SAFETY: the domain is open, and there are as many pieces.
                try_open::<fid_mr>(|to| unsafe {
                    fi_mr_regv(
                        opened.domain.0,
                        pieces.as_ptr(),
                        count,
                        FI_REMOTE_READ,
                        0,
                        7,
                        0,
                        to,
                        ptr::null_mut(),
                    )
                })
            };
            assert_eq!(register(4).unwrap().close(), 0);
            assert_eq!(register(5).unwrap_err(), -FI_EINVAL);
            assert_eq!(register(0).unwrap_err(), -FI_EINVAL);
        },
    );
}

#[test]
fn attributes_are_read_as_far_as_the_caller_has_them_and_devices_are_refused() {
    let test = "registrations::attributes_are_read_as_far_as_the_caller_has_them_and_devices_are_refused";
    run(test, |library| {
        let opened = Opened::any(library);
        let memory = [0_u8; 64];
        let piece = iovec {
            iov_base: memory.as_ptr().cast_mut().cast(),
            iov_len: 64,
        };
        let attributes = fi_mr_attr {
            mr_iov: &raw const piece,
            iov_count: 1,
            access: FI_REMOTE_WRITE,
            requested_key: 5,
            ..Layout::zeroed()
        };
        let register = |attributes: &fi_mr_attr, flags| {
            // SAFETY: the domain is open, and the attributes are the largest that are known.
            try_open::<fid_mr>(|to| unsafe {
                fi_mr_regattr(opened.domain.0, ptr::from_ref(attributes), flags, to)
            })
        };
        let mr = register(&attributes, 0).unwrap();
        assert_eq!(key(&mr), 5);
        // SAFETY: the registration is open.
        assert_eq!(unsafe { fi_mr_enable(mr.0) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { fi_mr_refresh(mr.0, &raw const piece, 1, 0) }, 0);
        let device = fi_mr_attr {
            iface: FI_HMEM_CUDA,
            ..attributes
        };
        assert_eq!(register(&device, 0).unwrap_err(), -FI_ENOSYS);
        assert_eq!(register(&attributes, FI_MR_DMABUF).unwrap_err(), -FI_ENOSYS);
        assert_eq!(register(&attributes, 1 << 50).unwrap_err(), -FI_EBADFLAGS);
    });
}

#[test]
fn a_bound_queue_gets_an_event_for_each() {
    run("registrations::a_bound_queue_gets_an_event_for_each", |library| {
        let opened = Opened::any(library);
        let queue = opened.queue(0, 0, FI_WAIT_NONE);
        // SAFETY: both are open.
        let bound = unsafe { fi_domain_bind(opened.domain.0, queue.fid(), FI_REG_MR) };
        assert_eq!(bound, 0);
        let mr = register(&opened, 64, 64, 1).unwrap();
        let (_, kind, entry) = read(&queue, 0);
        assert_eq!((kind, entry.fid), (FI_MR_COMPLETE, mr.fid()));
        assert_eq!(mr.close(), 0);
        assert_eq!(opened.domain.close(), 0);
        assert_eq!(queue.close(), 0);
        assert_eq!(opened.fabric.close(), 0);
    });
}
