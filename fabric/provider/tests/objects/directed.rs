//! Receives that name their sender: in both spaces, in the tagged one alone, and without an exception.

use std::ffi::c_void;
use std::ptr;

use libfabric_sys::*;

use crate::alone::run;
use crate::everything::{Everything, bind};
use crate::opened::{Object, open};
use crate::{get, set};

/// Opens an endpoint with these capabilities. The installed library may be older than some of them.
fn endpoint(all: &mut Everything, caps: u64) -> Object<fid_ep> {
    let before = get!(all.opened.info, caps);
    set!(all.opened.info, caps = FI_MSG | FI_TAGGED | caps);
    let entry = all.opened.info.as_mut_ptr();
    let domain = all.opened.domain.0;
    // SAFETY: the domain is open, and the entry is of its provider.
    let endpoint = open("fi_endpoint", |to| unsafe {
        fi_endpoint(domain, entry, to, ptr::null_mut())
    });
    set!(all.opened.info, caps = before);
    assert_eq!(
        bind(endpoint.fid(), all.completions.fid(), FI_TRANSMIT | FI_RECV),
        0
    );
    assert_eq!(bind(endpoint.fid(), all.vector.fid(), 0), 0);
    // SAFETY: the endpoint is open.
    assert_eq!(unsafe { fi_enable(endpoint.0) }, 0);
    endpoint
}

#[test]
fn a_receive_needs_a_sender_where_that_was_asked_for() {
    run(
        "directed::a_receive_needs_a_sender_where_that_was_asked_for",
        |library| {
            let mut all = Everything::open(library);
            let me = all.insert_oneself();
            let unknown = 77;
            let wrong = -(FI_EINVAL as isize);
            for (caps, expected) in [
                (0, [0, 0, 0, 0]),
                (FI_DIRECTED_RECV, [0, wrong, 0, wrong]),
                (FI_TAGGED_DIRECTED_RECV, [0, 0, 0, wrong]),
                (FI_EXACT_DIRECTED_RECV, [wrong; 4]),
                (FI_DIRECTED_RECV | FI_EXACT_DIRECTED_RECV, [wrong; 4]),
                (
                    FI_TAGGED_DIRECTED_RECV | FI_EXACT_DIRECTED_RECV,
                    [0, 0, wrong, wrong],
                ),
            ] {
                let endpoint = endpoint(&mut all, caps);
                let (ep, null) = (endpoint.0, ptr::null_mut::<c_void>());
                let untagged = |from| {
                    // SAFETY: the endpoint is open; no byte is received.
                    unsafe { fi_recv(ep, null, 0, null, from, null) }
                };
                let tagged = |from| {
                    // SAFETY: as above.
                    unsafe { fi_trecv(ep, null, 0, null, from, 1, 0, null) }
                };
                let found = [
                    untagged(FI_ADDR_UNSPEC),
                    untagged(unknown),
                    tagged(FI_ADDR_UNSPEC),
                    tagged(unknown),
                ];
                assert_eq!(found, expected, "{caps:#x}");
                assert_eq!((untagged(me), tagged(me)), (0, 0), "{caps:#x}");
            }
        },
    );
}
