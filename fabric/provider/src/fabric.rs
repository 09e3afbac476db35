//! Fabrics: what domains and event queues are opened from.

use std::ffi::{c_int, c_void};
use std::ptr;

use libfabric_sys::*;

use crate::errno::Result;
use crate::fence::{Fence, guard};
use crate::object::{self, Head, Object, Uses, give, publish, take_back, this};
use crate::refuse::{self, Table};
use crate::{domain, eq, wait};

/// A fabric. There may be any number of them; they share nothing.
#[repr(C)]
pub(crate) struct Fabric {
    head: Head<fid_fabric>,
    uses: Uses,
    fence: Fence,
}

// SAFETY: `head` is first, and `open` sets the class and the table, which no other type has.
unsafe impl Object for Fabric {
    type Head = fid_fabric;
    const CLASS: usize = FI_CLASS_FABRIC;

    fn ops() -> &'static Table<fi_ops> {
        &FI
    }

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

static FI: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    ..refuse::FI_OPS
});

static OPS: Table<fi_ops_fabric> = Table::new(fi_ops_fabric {
    domain: Some(domain::open),
    domain2: Some(domain::open2),
    eq_open: Some(eq::open),
    wait_open: Some(wait::open_set),
    trywait: Some(wait::trywait),
    ..fi_ops_fabric::REFUSING
});

impl Fabric {
    /// Returns the API level of the client that opened it: libfabric writes it after the opening.
    pub(crate) fn level(&self) -> Level {
        let head = self.head.get();
        // SAFETY: the head lives as long as the object; libfabric writes the field before it gives the object
        // to the client.
        let version = unsafe { (*head).api_version };
        Level::from_version(version)
    }

    /// Runs a call.
    pub(crate) fn run(&self, call: &'static str, work: impl FnOnce() -> Result<c_int>) -> c_int {
        self.fence.run(call, work)
    }
}

/// Opens a fabric: fi_fabric(3).
pub(crate) unsafe extern "C" fn open(
    attributes: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard("fi_fabric", || {
        let _ = attributes;
        // SAFETY: the caller has the place for the result.
        unsafe { give(fabric, ptr::null_mut()) }?;
        let object = Box::new(Fabric {
            head: Head::new(fid_fabric {
                fid: object::head::<Fabric>(context),
                ops: OPS.pointer(),
                api_version: Level::NEWEST.version(),
            }),
            uses: Uses::default(),
            fence: Fence::new(),
        });
        // SAFETY: written above.
        unsafe { publish(object, fabric) };
        Ok(0)
    })
}

unsafe extern "C" fn close(fabric: *mut fid) -> c_int {
    // SAFETY: the table belongs to fabrics.
    match unsafe { take_back::<Fabric>(fabric) } {
        Ok(object) => Fence::close(object, |object| &object.fence, "fi_close of a fabric", |_| Ok(0)),
        Err(errno) => -errno.0,
    }
}

/// Finds the fabric of a call.
///
/// # Safety
/// The pointer is to an open fabric.
pub(crate) unsafe fn of<'a>(fabric: *mut fid_fabric) -> &'a Fabric {
    // SAFETY: by the contract of this function.
    unsafe { this::<Fabric>(fabric) }
}
