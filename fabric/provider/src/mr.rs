//! Registrations of memory: fi_mr(3).
//!
//! No rail here needs pinned memory, so a registration is a row of a table: a key, the memory that it stands
//! for, and what peers may do with it. Operations of one's own need none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_void};
use std::ptr;

use libc::iovec;
use libfabric_sys::*;

use crate::cntr::CounterObject;
use crate::domain::{self, Domain, State};
use crate::ep::{EndpointObject, limits};
use crate::errno::{Errno, Result, check_flags};
use crate::object::{self, Head, Held, Object, Uses, find, give, publish, take_back, taken, this};
use crate::refuse::{self, Table};

/// What a registration may allow.
const ACCESS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// The flags of registrations.
const FLAGS: u64 = FI_RMA_EVENT;

/// A registration, as its table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// What is allowed: `FI_REMOTE_READ` and so on.
    pub(crate) access: u64,
    /// The memory, in the order of its offsets.
    pub(crate) pieces: Pieces,
}

/// The memory of a registration: addresses and lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pieces {
    /// The address and length of the only piece.
    One(usize, usize),
    /// The addresses and lengths of several pieces.
    Several(Box<[(usize, usize)]>),
}

/// The registrations of a domain, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    regions: HashMap<u64, Region>,
}

impl Registrations {
    /// Adds a registration under a key that the client has chosen.
    ///
    /// # Errors
    /// `FI_ENOKEY` for a key that is in use.
    pub(crate) fn add(&mut self, key: u64, region: Region) -> Result<()> {
        match self.regions.entry(key) {
            Entry::Occupied(_) => Err(Errno(FI_ENOKEY)),
            Entry::Vacant(free) => {
                free.insert(region);
                Ok(())
            }
        }
    }

    /// Adds a registration under a random key, and returns it.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn add_random(&mut self, region: Region) -> Result<u64> {
        loop {
            let key = doorbell_job::random::number().map_err(|_| Errno(FI_EIO))?;
            if key != FI_KEY_NOTAVAIL && !self.regions.contains_key(&key) {
                self.add(key, region)?;
                return Ok(key);
            }
        }
    }

    /// Returns the registration of a key.
    #[cfg(test)]
    pub(crate) fn get(&self, key: u64) -> Option<&Region> {
        self.regions.get(&key)
    }

    /// Removes a registration: no access finds it any more.
    pub(crate) fn remove(&mut self, key: u64) {
        self.regions.remove(&key);
        if self.regions.capacity() > 4 * self.regions.len() + 64 {
            self.regions.shrink_to(2 * self.regions.len());
        }
    }
}

/// A registration, as clients hold it.
#[repr(C)]
pub(crate) struct Registration {
    head: Head<fid_mr>,
    uses: Uses,
    domain: Held<Domain>,
    key: u64,
}

// SAFETY: `head` is first, and `register` sets the class and the table, which no other type has.
unsafe impl Object for Registration {
    type Head = fid_mr;
    const CLASS: usize = FI_CLASS_MR;

    fn ops() -> &'static Table<fi_ops> {
        &FI
    }

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

static FI: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ..refuse::FI_OPS
});

/// The table of domains.
pub(crate) static OPS: Table<fi_ops_mr> = Table::new(fi_ops_mr {
    reg: Some(reg),
    regv: Some(regv),
    regattr: Some(regattr),
    ..fi_ops_mr::REFUSING
});

/// What a call wants to register.
struct Wanted {
    region: Region,
    key: u64,
    context: *mut c_void,
}

unsafe extern "C" fn reg(
    domain: *mut fid,
    buffer: *const c_void,
    length: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let piece = iovec {
        iov_base: buffer.cast_mut(),
        iov_len: length,
    };
    // SAFETY: the piece lives until the call returns; the rest is the caller's.
    unsafe {
        regv(
            domain,
            &raw const piece,
            1,
            access,
            offset,
            key,
            flags,
            mr,
            context,
        )
    }
}

#[allow(clippy::too_many_arguments)] // those of C
unsafe extern "C" fn regv(
    domain: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to domains.
    let domain = unsafe { domain::of(domain.cast()) };
    domain.run("fi_mr_reg", |state| {
        if offset != 0 {
            // Offsets other than 0 are reserved: fi_mr(3).
            return Err(Errno(FI_EINVAL));
        }
        let wanted = Wanted {
            // SAFETY: the caller has `count` pieces.
            region: unsafe { region(iov, count, access) }?,
            key,
            context,
        };
        // SAFETY: the caller has the place for the result.
        unsafe { register(domain, state, wanted, flags, mr) }
    })
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attributes: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the table belongs to domains.
    let domain = unsafe { domain::of(domain.cast()) };
    domain.run("fi_mr_regattr", |state| {
        if attributes.is_null() {
            return Err(Errno(FI_EINVAL));
        }
        if flags & (FI_MR_DMABUF | FI_HMEM_HOST_ALLOC | FI_HMEM_DEVICE_ONLY) != 0 {
            return Err(Errno(FI_ENOSYS));
        }
        // SAFETY: not null; fields of the first release, and of one that the caller has.
        let wanted = unsafe { wanted(attributes, domain.level()) }?;
        // SAFETY: the caller has the place for the result.
        unsafe { register(domain, state, wanted, flags, mr) }
    })
}

/// Reads what a caller of an API level wants to register.
///
/// # Safety
/// The attributes are those of a caller of this level, with the pieces that they point to.
///
/// # Errors
/// `FI_ENOSYS` for memory of devices, `FI_EINVAL` for authorization keys.
#[allow(clippy::multiple_unsafe_ops_per_block)] // of the macro that reads a field
unsafe fn wanted(attributes: *const fi_mr_attr, level: Level) -> Result<Wanted> {
    // SAFETY: fields of the first release.
    let (iov, count) = unsafe { ((*attributes).mr_iov, (*attributes).iov_count) };
    // SAFETY: as above.
    let (access, offset) = unsafe { ((*attributes).access, (*attributes).offset) };
    // SAFETY: as above.
    let (key, context) = unsafe { ((*attributes).requested_key, (*attributes).context) };
    // SAFETY: read only of a caller that has it.
    let iface = unsafe { field_at!(attributes, fi_mr_attr, iface, level) };
    if iface.is_some_and(|iface| iface != FI_HMEM_SYSTEM) {
        return Err(Errno(FI_ENOSYS));
    }
    // SAFETY: as above.
    let auth_key_size = unsafe { field_at!(attributes, fi_mr_attr, auth_key_size, level) };
    if auth_key_size.unwrap_or(0) != 0 || offset != 0 {
        return Err(Errno(FI_EINVAL));
    }
    Ok(Wanted {
        // SAFETY: the caller has `count` pieces.
        region: unsafe { region(iov, count, access) }?,
        key,
        context,
    })
}

/// Reads the memory that is registered. The memory itself is not touched: a range may have pages that are not
/// there.
///
/// # Safety
/// `count` pieces at `iov` may be read.
///
/// # Errors
/// `FI_EINVAL` for too many pieces, a piece beyond the end of the address space, and unknown access.
unsafe fn region(iov: *const iovec, count: usize, access: u64) -> Result<Region> {
    if count == 0 || count > limits::PIECES || access & !ACCESS != 0 {
        return Err(Errno(FI_EINVAL));
    }
    let mut pieces = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: one of the caller's pieces.
        let piece = unsafe { taken(iov.wrapping_add(at)) }.ok_or(Errno(FI_EINVAL))?;
        let (start, length) = (piece.iov_base.addr(), piece.iov_len);
        if start.checked_add(length).is_none() {
            return Err(Errno(FI_EINVAL));
        }
        pieces.push((start, length));
    }
    let pieces = match pieces[..] {
        [(start, length)] => Pieces::One(start, length),
        _ => Pieces::Several(pieces.into()),
    };
    Ok(Region { access, pieces })
}

/// Registers memory: the key is the client's, unless the domain was opened with `FI_MR_PROV_KEY`.
///
/// # Safety
/// `mr` may be written.
unsafe fn register(
    domain: &Domain,
    state: &mut State,
    wanted: Wanted,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> Result<c_int> {
    // SAFETY: by the contract of this function.
    unsafe { give(mr, ptr::null_mut()) }?;
    if flags & !FLAGS != 0 {
        return Err(Errno(FI_EBADFLAGS));
    }
    let key = if domain.chooses_keys() {
        state.registrations.add_random(wanted.region)?
    } else {
        state.registrations.add(wanted.key, wanted.region)?;
        wanted.key
    };
    let object = Box::new(Registration {
        head: Head::new(fid_mr {
            fid: object::head::<Registration>(wanted.context),
            mem_desc: ptr::null_mut(),
            key,
        }),
        uses: Uses::default(),
        domain: Held::new(domain),
        key,
    });
    // SAFETY: written above.
    unsafe { publish(object, mr) };
    if let Some(events) = domain.registration_events() {
        // SAFETY: as above.
        let registration = unsafe { *mr };
        events.completed(FI_MR_COMPLETE, registration.cast(), wanted.context, 0);
    }
    Ok(0)
}

/// Closes a registration: from then on its key names nothing.
unsafe extern "C" fn close(mr: *mut fid) -> c_int {
    // SAFETY: the table belongs to registrations.
    match unsafe { take_back::<Registration>(mr) } {
        Ok(object) => object.domain.close_part("fi_close of a registration", |state| {
            state.registrations.remove(object.key);
        }),
        Err(errno) => -errno.0,
    }
}

/// Binds a registration to an endpoint, which needs nothing. Counters of accesses come with accesses.
unsafe extern "C" fn bind(mr: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the table belongs to registrations.
    let registration = unsafe { this::<Registration>(mr.cast()) };
    registration.domain.guard("fi_mr_bind", || {
        check_flags(flags, FI_REMOTE_READ | FI_REMOTE_WRITE, 0)?;
        // SAFETY: null, or an open object.
        if unsafe { find::<CounterObject>(other) }.is_ok() {
            return Err(Errno(FI_ENOSYS));
        }
        // SAFETY: as above.
        unsafe { find::<EndpointObject>(other) }.map(|_| 0)
    })
}

/// Enables a registration, which it always is; announces changed pages, which nothing here holds.
unsafe extern "C" fn control(mr: *mut fid, command: c_int, _argument: *mut c_void) -> c_int {
    // SAFETY: the table belongs to registrations.
    let registration = unsafe { this::<Registration>(mr.cast()) };
    registration
        .domain
        .guard("fi_control of a registration", || match command {
            FI_ENABLE | FI_REFRESH => Ok(0),
            _ => Err(Errno(FI_ENOSYS)),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        Region {
            access: FI_REMOTE_READ,
            pieces: Pieces::One(0, usize::MAX),
        }
    }

    #[test]
    fn a_key_is_used_once_at_a_time_and_free_after_its_end() {
        let mut table = Registrations::default();
        assert_eq!(table.add(7, region()), Ok(()));
        assert_eq!(table.add(7, region()), Err(Errno(FI_ENOKEY)));
        assert_eq!(table.get(7), Some(&region()));
        table.remove(7);
        assert_eq!(table.get(7), None);
        assert_eq!(table.add(7, region()), Ok(()));
        let random = table.add_random(region()).unwrap();
        assert!(random != 7 && table.get(random).is_some());
    }

    #[test]
    fn many_registrations_leave_nothing_behind() {
        let mut table = Registrations::default();
        for key in 0..10_000 {
            table.add(key, region()).unwrap();
        }
        for key in 0..10_000 {
            table.remove(key);
        }
        assert!(table.regions.capacity() < 256, "{}", table.regions.capacity());
    }
}
