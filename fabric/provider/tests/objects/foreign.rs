//! Objects of another provider: they have the classes of ours and other tables, and are refused wherever a
//! client gives them. Nothing behind the head of such an object is looked at.

use std::ffi::c_int;
use std::ptr;

use libfabric_sys::*;

use crate::alone::{run, run_with};
use crate::everything::{Everything, bind};
use crate::opened::{Opened, hints, try_open};
use crate::{get, set};

/// What another provider would allocate: the head of an object, and memory of its own.
#[derive(Debug)]
#[repr(C)]
struct Foreign {
    head: fid,
    rest: [usize; 64],
}

/// The table of all foreign objects.
static OPS: fi_ops = fi_ops::REFUSING;

impl Foreign {
    fn new(class: usize) -> Self {
        let head = fid {
            fclass: class,
            context: ptr::null_mut(),
            ops: (&raw const OPS).cast_mut(),
        };
        Self { head, rest: [0; 64] }
    }

    fn fid(&mut self) -> *mut fid {
        (&raw mut *self).cast()
    }
}

const CLASSES: [usize; 9] = [
    FI_CLASS_FABRIC,
    FI_CLASS_DOMAIN,
    FI_CLASS_EP,
    FI_CLASS_AV,
    FI_CLASS_MR,
    FI_CLASS_EQ,
    FI_CLASS_CQ,
    FI_CLASS_CNTR,
    FI_CLASS_WAIT,
];

#[test]
fn no_object_takes_one_of_another_provider() {
    run("foreign::no_object_takes_one_of_another_provider", |library| {
        let all = Everything::open(library);
        for class in CLASSES {
            let mut foreign = Foreign::new(class);
            let other = foreign.fid();
            for object in [all.endpoint.fid(), all.bare.fid()] {
                for flags in [0, FI_SEND, FI_RECV | FI_TRANSMIT] {
                    assert_eq!(bind(object, other, flags), -FI_EINVAL, "endpoint, class {class}");
                }
            }
            assert_eq!(
                bind(all.vector.fid(), other, 0),
                -FI_EINVAL,
                "vector, class {class}"
            );
            let domain = all.opened.domain.fid();
            assert_eq!(
                bind(domain, other, FI_REG_MR),
                -FI_EINVAL,
                "domain, class {class}"
            );
            let registration = all.registration.fid();
            assert_eq!(
                bind(registration, other, 0),
                -FI_EINVAL,
                "registration, class {class}"
            );
            let mut list = [other];
            // SAFETY: the fabric is open, and the list has one object.
            let waits = unsafe { fi_trywait(all.opened.fabric.0, list.as_mut_ptr(), 1) };
            assert_eq!(waits, -FI_EINVAL, "fi_trywait, class {class}");
            // SAFETY: the set is open.
            let added = unsafe { fi_poll_add(all.polls.0, other, 0) };
            assert_eq!(added, -FI_EINVAL, "poll set, class {class}");
        }
        let mut foreign = Foreign::new(FI_CLASS_WAIT);
        let mut attributes = fi_cq_attr {
            wait_obj: FI_WAIT_SET,
            wait_set: foreign.fid().cast(),
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        let queue = try_open::<fid_cq>(|to| unsafe {
            fi_cq_open(all.opened.domain.0, &raw mut attributes, to, ptr::null_mut())
        });
        assert_eq!(queue.unwrap_err(), -FI_EINVAL);
    });
}

#[test]
fn hints_with_an_object_of_another_provider_are_not_met_and_the_log_names_the_hint() {
    let test = "foreign::hints_with_an_object_of_another_provider_are_not_met_and_the_log_names_the_hint";
    let printed = run_with(test, &[], |library| {
        let all = Everything::open(library);
        let ask = |handle: *mut fid, domain: *mut fid, fabric: *mut fid| {
            let mut hints = hints(&library);
            set!(hints, handle = handle);
            set!(hints, domain_attr.domain = domain.cast());
            set!(hints, fabric_attr.fabric = fabric.cast());
            library.getinfo(library.level(), None, None, 0, Some(&hints))
        };
        let [mut one, mut other, mut third] =
            [FI_CLASS_PEP, FI_CLASS_DOMAIN, FI_CLASS_FABRIC].map(Foreign::new);
        let null = ptr::null_mut;
        assert!(ask(one.fid(), null(), null()).is_err());
        assert!(ask(null(), other.fid(), null()).is_err());
        assert!(ask(null(), null(), third.fid()).is_err());
        // A domain is no fabric, although both are ours.
        assert!(ask(null(), null(), all.opened.domain.fid()).is_err());
        // Ours come back, each in its place.
        let (endpoint, domain) = (all.endpoint.fid(), all.opened.domain.0);
        let fabric = all.opened.fabric.0;
        let found = ask(endpoint, domain.cast(), fabric.cast()).unwrap();
        assert_eq!(get!(found, handle), endpoint);
        assert_eq!(get!(found, domain_attr.domain), domain);
        assert_eq!(get!(found, fabric_attr.fabric), fabric);
    });
    if let Some(printed) = printed {
        for hint in ["info.handle", "domain_attr.domain", "fabric_attr.fabric"] {
            assert!(
                printed.contains(&format!("the hint {hint} wants ")),
                "{hint}: {printed}"
            );
        }
    }
}

/// Open MPI 5 has a domain for messages, and gives it in its hints for one-sided operations.
#[test]
fn an_open_domain_has_the_modes_of_registration_that_it_was_opened_with() {
    run(
        "foreign::an_open_domain_has_the_modes_of_registration_that_it_was_opened_with",
        |library| {
            let three = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
            let with = |modes: c_int, domain: *mut fid_domain| {
                let mut hints = hints(&library);
                set!(hints, caps = FI_MSG | FI_RMA);
                set!(hints, domain_attr.mr_mode = modes);
                set!(hints, domain_attr.domain = domain);
                hints
            };
            for opened in [0, three] {
                let objects = Opened::by(library, &with(opened, ptr::null_mut()));
                let domain = objects.domain.0;
                for offered in [0, three, three | FI_MR_ENDPOINT, FI_MR_ALLOCATED] {
                    let hints = with(offered, domain);
                    let found = library.getinfo(library.level(), None, None, 0, Some(&hints));
                    if opened & !offered != 0 {
                        assert!(found.is_err(), "{offered:#x} with a domain of {opened:#x}");
                        continue;
                    }
                    let modes = get!(found.unwrap(), domain_attr.mr_mode);
                    assert_eq!(modes, opened, "{offered:#x} with a domain of {opened:#x}");
                }
            }
        },
    );
}

#[test]
fn flags_and_conditions_that_are_not_known_are_refused() {
    run(
        "foreign::flags_and_conditions_that_are_not_known_are_refused",
        |library| {
            let all = Everything::open(library);
            let (domain, null) = (all.opened.domain.0, ptr::null_mut());
            let queue = |flags, wait_cond, wait_obj| -> c_int {
                let mut attributes = fi_cq_attr {
                    flags,
                    wait_cond,
                    wait_obj,
                    ..Layout::zeroed()
                };
                // SAFETY: the domain is open.
                let queue =
                    try_open::<fid_cq>(|to| unsafe { fi_cq_open(domain, &raw mut attributes, to, null) });
                queue.map_or_else(|errno| errno, |queue| queue.close())
            };
            assert_eq!(queue(FI_AFFINITY, FI_CQ_COND_THRESHOLD, FI_WAIT_FD), 0);
            assert_eq!(queue(1 << 63, FI_CQ_COND_NONE, FI_WAIT_NONE), -FI_EBADFLAGS);
            assert_eq!(queue(FI_AFFINITY | FI_PEER, 0, FI_WAIT_NONE), -FI_EOPNOTSUPP);
            assert_eq!(queue(0, 7, FI_WAIT_FD), -FI_EINVAL);
            assert_eq!(queue(0, 7, FI_WAIT_NONE), 0, "it is ignored where nothing waits");
            let counter = |flags| -> c_int {
                let mut attributes = fi_cntr_attr {
                    flags,
                    ..Layout::zeroed()
                };
                // SAFETY: the domain is open.
                let counter =
                    try_open::<fid_cntr>(|to| unsafe { fi_cntr_open(domain, &raw mut attributes, to, null) });
                counter.map_or_else(|errno| errno, |counter| counter.close())
            };
            assert_eq!(counter(0), 0);
            assert_eq!(counter(1), -FI_EBADFLAGS);
            assert_eq!(counter(FI_PEER), -FI_EOPNOTSUPP);
            let (bare, registration) = (all.bare.fid(), all.registration.fid());
            for other in [
                all.vector.fid(),
                all.events.fid(),
                all.completions.fid(),
                all.counter.fid(),
            ] {
                assert_eq!(bind(bare, other, 1 << 63), -FI_EBADFLAGS);
            }
            assert_eq!(bind(bare, all.vector.fid(), 0), 0);
            assert_eq!(bind(registration, all.endpoint.fid(), 1 << 63), -FI_EBADFLAGS);
            assert_eq!(bind(registration, all.counter.fid(), 1 << 63), -FI_EBADFLAGS);
            assert_eq!(bind(registration, all.counter.fid(), FI_REMOTE_WRITE), 0);
            assert_eq!(bind(registration, all.counter.fid(), 0), -FI_EINVAL);
            assert_eq!(bind(registration, all.endpoint.fid(), 0), 0);
            let mut failure: fi_cq_err_entry = Layout::zeroed();
            let mut failed = |flags| {
                // SAFETY: the queue is open, and the structure whole.
                unsafe { fi_cq_readerr(all.completions.0, &raw mut failure, flags) }
            };
            assert_eq!(failed(1 << 63), -(FI_EBADFLAGS as isize));
            assert_eq!(failed(0), -(FI_EAGAIN as isize));
        },
    );
}
