//! Domains: one member of the fabric each, and everything that is opened on it.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libfabric_sys::*;

use crate::cq::Queues;
use crate::ep::Endpoints;
use crate::errno::{Answer, Errno, Result};
use crate::fabric::{self, Fabric};
use crate::fence::Fence;
use crate::member::Member;
use crate::object::{self, Head, Held, Object, Uses, give, publish, take_back};
use crate::ops::Operations;
use crate::refuse::{self, Table};

/// A domain: one member, and the state that its objects share.
#[repr(C)]
pub(crate) struct Domain {
    head: Head<fid_domain>,
    uses: Uses,
    fence: Fence,
    fabric: Held<Fabric>,
    /// The API level of the client.
    level: Level,
    /// Held by each call, unless the client promises that it makes one call at a time.
    lock: Option<Mutex<()>>,
    state: UnsafeCell<State>,
}

/// What the objects of a domain share. [`Domain::run`] gives it to one call at a time.
#[derive(Debug)]
pub(crate) struct State {
    /// The owner of the rails and of the PML.
    pub(crate) member: Member,
    /// The completion queues.
    pub(crate) queues: Queues,
    /// The endpoints, by their numbers.
    pub(crate) endpoints: Endpoints,
    /// What is known of each request of the PML beside it.
    pub(crate) operations: Operations,
}

// SAFETY: `head` is first, and `open` sets the class.
unsafe impl Object for Domain {
    type Head = fid_domain;
    const CLASS: usize = FI_CLASS_DOMAIN;

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

static FI: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    ..refuse::FI_OPS
});

static OPS: Table<fi_ops_domain> = Table::new(fi_ops_domain::REFUSING);

static MR: Table<fi_ops_mr> = Table::new(fi_ops_mr::REFUSING);

impl Domain {
    /// Runs a call on the state of the domain: behind the fence, and under the lock where there is one. A
    /// call must not run another one.
    #[inline]
    pub(crate) fn run<A: Answer>(&self, call: &'static str, work: impl FnOnce(&mut State) -> Result<A>) -> A {
        self.fence.run(call, || {
            let _guard = self
                .lock
                .as_ref()
                .map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
            // SAFETY: the lock is held, or the client makes one call at a time, as it promised by the model
            // FI_THREAD_DOMAIN; and no call runs another one.
            work(unsafe { &mut *self.state.get() })
        })
    }

    /// Returns the API level of the client.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Returns the fabric that it was opened from.
    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}

/// Opens a domain: fi_domain(3).
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to fabrics.
    let fabric = unsafe { fabric::of(fabric) };
    // SAFETY: the caller's pointers are those of fi_domain(3).
    fabric.run("fi_domain", || unsafe { enter(fabric, info, domain, context) })
}

/// Opens a domain with flags, of which none is known.
pub(crate) unsafe extern "C" fn open2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: as for the call without flags.
    unsafe { open(fabric, info, domain, context) }
}

unsafe fn enter(
    fabric: &Fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<c_int> {
    // SAFETY: the caller has the place for the result.
    unsafe { give(domain, ptr::null_mut()) }?;
    if info.is_null() {
        return Err(Errno(FI_EINVAL));
    }
    let object = Box::new(Domain {
        head: Head::new(fid_domain {
            fid: object::head::<Domain>(context, &FI),
            ops: OPS.pointer(),
            mr: MR.pointer(),
        }),
        uses: Uses::default(),
        fence: Fence::new(),
        fabric: Held::new(fabric),
        level: fabric.level(),
        lock: Some(Mutex::new(())),
        state: UnsafeCell::new(State {
            member: Member,
            queues: Queues::default(),
            endpoints: Endpoints::default(),
            operations: Operations::default(),
        }),
    });
    // SAFETY: written above.
    unsafe { publish(object, domain) };
    Ok(0)
}

unsafe extern "C" fn close(domain: *mut fid) -> c_int {
    // SAFETY: the table belongs to domains.
    match unsafe { take_back::<Domain>(domain) } {
        Ok(object) => Fence::close(object, |object| &object.fence, "fi_close of a domain", |_| Ok(0)),
        Err(errno) => -errno.0,
    }
}
