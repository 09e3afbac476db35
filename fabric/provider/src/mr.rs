//! Registrations of memory: fi_mr(3).
//!
//! No rail here needs pinned memory, so a registration is a window of the PML: a key, the memory that it
//! stands for, and what peers may do with it. Operations of one's own need none.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::Instant;

use doorbell_fabric::memory::{AddressRange, MutLoan};
use doorbell_pml::{Aborted, PmlError, WindowAccess, WindowArgs, WindowMemory};
use libc::iovec;
use libfabric_sys::*;

use crate::cntr::CounterObject;
use crate::cq::Outlet;
use crate::domain::{self, Domain, State};
use crate::ep::{EndpointObject, limits};
use crate::errno::{Errno, Result, check_flags};
use crate::log;
use crate::mapped::{Mappings, Use};
use crate::memory::room;
use crate::object::{self, Head, Held, Object, Uses, find, give, publish, take_back, taken, this};
use crate::refuse::{self, Table};

/// What a registration may allow.
const ACCESS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// The flags of registrations.
const FLAGS: u64 = FI_RMA_EVENT;
const CLOSE: &str = "fi_close of a registration";

/// The memory of a registration, and what peers may do with it.
#[derive(Debug)]
struct Region {
    access: WindowAccess,
    memory: WindowMemory,
    /// The virtual address of its first byte.
    start: u64,
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
/// there. It is then reached by system calls alone.
///
/// # Safety
/// `count` pieces at `iov` may be read. What they have of memory may be used as `access` allows, until the
/// registration is closed.
///
/// # Errors
/// `FI_EINVAL` for too many pieces, a piece beyond the end of the address space, and unknown access.
unsafe fn region(iov: *const iovec, count: usize, access: u64) -> Result<Region> {
    if count == 0 || count > limits::PIECES || access & !ACCESS != 0 {
        return Err(Errno(FI_EINVAL));
    }
    let mut pieces = [(0, 0); limits::PIECES];
    for (at, piece) in pieces[..count].iter_mut().enumerate() {
        // SAFETY: one of the caller's pieces.
        let of_caller = unsafe { taken(iov.wrapping_add(at)) }.ok_or(Errno(FI_EINVAL))?;
        *piece = (of_caller.iov_base.expose_provenance(), of_caller.iov_len);
        if piece.0.checked_add(piece.1).is_none() {
            return Err(Errno(FI_EINVAL));
        }
    }
    let pieces = &pieces[..count];
    let wanted = Use {
        reads: access & FI_REMOTE_READ != 0,
        writes: access & FI_REMOTE_WRITE != 0,
    };
    Ok(Region {
        access: window_access(access),
        // SAFETY: the caller's memory, by the contract of this function.
        memory: unsafe { memory(pieces, wanted) },
        start: pieces[0].0 as u64,
    })
}

/// What peers may do with the memory of a registration.
fn window_access(access: u64) -> WindowAccess {
    let mut allowed = WindowAccess::NONE;
    if access & FI_REMOTE_READ != 0 {
        allowed = allowed.and(WindowAccess::READ).and(WindowAccess::FETCH);
    }
    if access & FI_REMOTE_WRITE != 0 {
        allowed = allowed.and(WindowAccess::WRITE).and(WindowAccess::ATOMIC);
    }
    allowed
}

/// The memory of a window: lent where all of it is mapped as it is used, else checked at each access.
///
/// # Safety
/// What the pieces have of memory may be used in this way until the window is closed, and stays as it is.
unsafe fn memory(pieces: &[(usize, usize)], wanted: Use) -> WindowMemory {
    let mappings = Mappings::now();
    let is_mapped = |(start, length): &(usize, usize)| mappings.hold(*start, *length, wanted);
    if pieces.iter().all(is_mapped) {
        let lend = |(start, length): &(usize, usize)| {
            // SAFETY: mapped, and the caller's to be used by the contract of this function.
            unsafe { room(ptr::with_exposed_provenance_mut(*start), *length) }
        };
        return WindowMemory::Loans(pieces.iter().map(lend).collect::<Vec<MutLoan>>());
    }
    // SAFETY: peers may read and write what the client has registered for that, by the same contract.
    let range =
        |(start, length): &(usize, usize)| unsafe { AddressRange::new(*start as u64, *length as u64) };
    match pieces {
        [one] => WindowMemory::Range(range(one)),
        several => WindowMemory::Ranges(several.iter().map(range).collect()),
    }
}

impl State {
    /// Opens the window of a registration. Returns its key: the client's, or a random one.
    ///
    /// # Errors
    /// `FI_ENOKEY` for a key that is in use, `FI_EINVAL` for a window beyond the end of the address space.
    fn open_window(&mut self, region: Region, base: u64, key: Option<u64>) -> Result<u64> {
        let key = match key {
            Some(key) => key,
            None => self.random_key()?,
        };
        let window = WindowArgs {
            key,
            base,
            memory: region.memory,
            access: region.access,
        };
        match self.member.pml().open_window(window) {
            Ok(()) => Ok(key),
            Err(PmlError::KeyTaken { .. }) => Err(Errno(FI_ENOKEY)),
            Err(_) => Err(Errno(FI_EINVAL)),
        }
    }

    /// A key of no window.
    fn random_key(&mut self) -> Result<u64> {
        loop {
            let key = doorbell_job::random::number().map_err(|_| Errno(FI_EIO))?;
            if key != FI_KEY_NOTAVAIL && self.member.pml_ref().window_counts(key).is_none() {
                return Ok(key);
            }
        }
    }

    /// Closes a window. Returns whether nothing touches its memory any more.
    fn close_window(&mut self, key: u64) -> bool {
        self.unwatch(key);
        if self.member.pml().close_window(key) == Aborted::Now {
            // Those whose operations were cut off are answered.
            self.look();
            self.member.pml().flush();
            return true;
        }
        self.look();
        self.drain(&mut Outlet::closed());
        false
    }
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
    let base = if domain.names_addresses() {
        wanted.region.start
    } else {
        0
    };
    let chosen = (!domain.chooses_keys()).then_some(wanted.key);
    let key = state.open_window(wanted.region, base, chosen)?;
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

/// Closes a registration: from then on its key names nothing, and nothing touches its memory.
unsafe extern "C" fn close(mr: *mut fid) -> c_int {
    // SAFETY: the table belongs to registrations.
    match unsafe { take_back::<Registration>(mr) } {
        Ok(object) => {
            shut(&object.domain, object.key);
            0
        }
        Err(errno) => -errno.0,
    }
}

/// Closes a window, and waits until no rail touches its memory any more. A domain in which no call may run
/// is left as it is.
fn shut(domain: &Domain, key: u64) {
    let until = Instant::now() + domain.linger();
    // In parts, so that other threads get their turns; a refusal of the fence ends it.
    let closes = || domain.run::<c_int>(CLOSE, |state| Ok(c_int::from(!state.close_window(key))));
    let mut stays = domain.may_run() && closes() > 0;
    while stays && Instant::now() < until {
        std::thread::yield_now();
        stays = closes() > 0;
    }
    if stays {
        log::warn(
            FI_LOG_MR,
            &format!("{CLOSE}: a rail still uses its memory; keep it, or raise FI_DOORBELL_CLOSE"),
        );
    }
    // The end of the process, in another thread, may still serve peers.
    domain.wait_for_end();
}

/// Binds a registration to a counter of what peers do with it, or to an endpoint, which needs nothing.
unsafe extern "C" fn bind(mr: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the table belongs to registrations.
    let registration = unsafe { this::<Registration>(mr.cast()) };
    registration.domain.run("fi_mr_bind", |state| {
        check_flags(flags, FI_REMOTE_READ | FI_REMOTE_WRITE, 0)?;
        // SAFETY: null, or an open object.
        let Ok(counter) = (unsafe { find::<CounterObject>(other) }) else {
            // SAFETY: as above.
            return unsafe { find::<EndpointObject>(other) }.map(|_| 0);
        };
        if !ptr::eq(counter.domain(), &*registration.domain) {
            return Err(Errno(FI_EDOMAIN));
        }
        state.watch(registration.key, flags, counter).map(|()| 0)
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
