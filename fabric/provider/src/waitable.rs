//! What completion queues and counters are alike in: an object of a domain that has a number there and may be
//! waited on.

use std::ffi::{c_int, c_void};

use libfabric_sys::{fi_ops, fid};

use crate::bell::Bell;
use crate::domain::{Domain, State};
use crate::object::{self, Head, Held, Object, Uses, publish, take_back, this};
use crate::refuse::{self, Table};
use crate::wait::{Joined, Member, WaitKind, WaitSet};

/// A kind of such objects.
///
/// # Safety
/// `Head` begins with a `fid`, and is that of the class `CLASS`; no other kind has the table of
/// [`Kind::ops`].
pub(crate) unsafe trait Kind: Sized + 'static {
    /// The structure of libfabric.
    type Head;
    /// The number in the domain.
    type Index: Copy;
    /// The class of the structure.
    const CLASS: usize;
    /// The call that closes it, for the log.
    const CLOSE: &'static str;

    /// The common table of objects of this kind, a static one that is made by [`table`].
    fn ops() -> &'static Table<fi_ops>;

    /// The bell of one of them.
    fn bell(state: &mut State, index: Self::Index) -> Option<&mut Bell>;
    /// Removes one of them, which nothing uses any more.
    fn remove(state: &mut State, index: Self::Index);
    /// One of them, as wait sets know it.
    fn member(domain: &Domain, index: Self::Index) -> Member;
}

/// An object of a domain, as clients hold it.
#[repr(C)]
pub(crate) struct Waitable<K: Kind> {
    head: Head<K::Head>,
    uses: Uses,
    domain: Held<Domain>,
    index: K::Index,
    wait: WaitKind,
    _joined: Option<Joined>,
}

// SAFETY: `head` is first, and `publish` sets the class and the table, which is the kind's own.
unsafe impl<K: Kind> Object for Waitable<K> {
    type Head = K::Head;
    const CLASS: usize = K::CLASS;

    fn ops() -> &'static Table<fi_ops> {
        K::ops()
    }

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// Makes the common table of a kind.
pub(crate) const fn table<K: Kind>() -> Table<fi_ops> {
    Table::new(fi_ops {
        close: Some(close::<K>),
        control: Some(control::<K>),
        ..refuse::FI_OPS
    })
}

impl<K: Kind> Waitable<K> {
    /// Gives the client an object, whose head `make` makes of its common part.
    ///
    /// # Safety
    /// `to` may be written.
    pub(crate) unsafe fn publish(
        domain: &Domain,
        (index, wait, set): (K::Index, WaitKind, Option<&WaitSet>),
        context: *mut c_void,
        make: impl FnOnce(fid) -> K::Head,
        to: *mut *mut K::Head,
    ) {
        let object = Box::new(Self {
            head: Head::new(make(object::head::<Self>(context))),
            uses: Uses::default(),
            domain: Held::new(domain),
            index,
            wait,
            _joined: set.map(|set| set.join(K::member(domain, index))),
        });
        // SAFETY: by the contract of this function.
        unsafe { publish(object, to) };
    }

    /// Its number in the domain.
    #[inline(always)]
    pub(crate) fn index(&self) -> K::Index {
        self.index
    }

    /// The domain that it was opened on.
    #[inline(always)]
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }
}

unsafe extern "C" fn close<K: Kind>(object: *mut fid) -> c_int {
    // SAFETY: the table belongs to objects of this kind.
    match unsafe { take_back::<Waitable<K>>(object) } {
        Ok(object) => {
            let index = object.index;
            object
                .domain
                .close_part(K::CLOSE, |state| K::remove(state, index))
        }
        Err(errno) => -errno.0,
    }
}

unsafe extern "C" fn control<K: Kind>(object: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the table belongs to objects of this kind.
    let object = unsafe { this::<Waitable<K>>(object.cast()) };
    object.domain.run("fi_control", |state| {
        let descriptor = K::bell(state, object.index).and_then(|bell| bell.descriptor());
        // SAFETY: the argument is that of the command.
        unsafe { object.wait.control(command, argument, descriptor) }
    })
}
