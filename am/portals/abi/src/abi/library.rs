//! The library and its interfaces.

use std::ffi::{c_int, c_uint};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Once;
use std::time::{Duration, Instant};

use doorbell::lobby::Member;
use doorbell::takeover::Manner;
use doorbell::{Builder, Config, Error};
use doorbell_fabric::ni::{Kind, Ni, PID_ANY, PID_MAX, Register};

use super::types::{PtlNiLimits, PtlProcess};
use super::{give, invalid, wanted};
use crate::call::{
    ARG_INVALID, CT, Code, ENTRY, EQ, FAIL, IN_USE, MD, NI, NO_INIT, PID_IN_USE, absent, guarded, kind_of,
    log, meet_all, ni_handle, on, warn,
};
use crate::limits::{self, WrongVariable};
use crate::state::{Core, Guard, Live, end, end_at_exit, enter, forked, is_forked, until_ended};
use crate::wait::{self, Limit, wait_on};

/// How long the end waits for what was sent to be taken.
const CLOSE: Duration = Duration::from_secs(2);
/// How long the end of an interface waits for what is being written into the program's memory.
const WRITTEN: Duration = Duration::from_secs(10);

const MATCHING: c_uint = 1;
const NO_MATCHING: c_uint = 2;
const LOGICAL: c_uint = 4;
const PHYSICAL: c_uint = 8;
const IFACE_DEFAULT: c_uint = c_uint::MAX;

/// Starts the library, which stays until as many calls of [`PtlFini`]. Programs that were compiled with our
/// header call this one: the header gives `PtlInit` this name, which identifies the header whose numbers they
/// use.
#[unsafe(no_mangle)]
pub extern "C" fn PtlInit_2024() -> c_int {
    guarded(init)
}

/// Starts the library for programs that were compiled with another header. Its numbers cannot be seen, and
/// older headers have other return codes and option bits: so one line warns once, unless `PTL_HEADER` names
/// the header as one of those that agree.
#[unsafe(no_mangle)]
pub extern "C" fn PtlInit() -> c_int {
    guarded(|| {
        let name = "PTL_HEADER";
        match variable(name) {
            Some(text) if text == HEADER => {}
            Some(text) => {
                let takes = format!("{HEADER}, for a header of that year from May on");
                let error = WrongVariable { name, text, takes };
                warn(&format!("PtlInit: {error}"));
                return Err(FAIL);
            }
            None => {
                static SAID: Once = Once::new();
                SAID.call_once(|| warn(OTHER_HEADER));
            }
        }
        init()
    })
}

/// What the numbers of our header are called after: Sandia's header has had them since May of this year.
const HEADER: &str = "2024";

const OTHER_HEADER: &str = "this program was compiled with another portals4.h than this library's. Headers of Portals 4 \
    from May 2024 on have the same numbers; with an older one return codes and options have other meanings here, and it \
    misbehaves. Compile it with am/portals/abi/include/portals4.h, or set PTL_HEADER=2024 if its header is of May 2024 or later";

fn init() -> Result<(), Code> {
    static CHILDREN: Once = Once::new();
    CHILDREN.call_once(|| {
        // SAFETY: the function only sets a flag.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let mut core = enter();
    core.inits = core.inits.checked_add(1).ok_or(FAIL)?;
    Ok(())
}

extern "C" fn in_child() {
    forked();
}

/// The last one ends everything.
#[unsafe(no_mangle)]
pub extern "C" fn PtlFini() {
    guarded(|| {
        let mut core = enter();
        core.inits = core.inits.saturating_sub(1);
        if core.inits == 0 {
            end(core, CLOSE);
        }
        Ok(())
    });
}

/// Ends the waits that are under way.
#[unsafe(no_mangle)]
pub extern "C" fn PtlAbort() {
    guarded(|| {
        wait::abort();
        Ok(())
    });
}

/// What a process has sent leaves before it ends, though it has not called [`PtlFini`].
extern "C" fn at_exit() {
    guarded(|| {
        end_at_exit(CLOSE);
        Ok(())
    });
}

// SAFETY: the loader calls what is in this section, once, without arguments.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

/// An interface of one of four kinds.
///
/// # Safety
/// `desired` and `actual` are null or point to limits; `ni_handle` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlNIInit(
    iface: c_uint,
    options: c_uint,
    pid: u32,
    desired: *const PtlNiLimits,
    actual: *mut PtlNiLimits,
    ni_handle: *mut u32,
) -> c_int {
    guarded(|| {
        // An interface that another thread is just ending is none to join.
        let mut core = until_ended(enter());
        if core.inits == 0 {
            return Err(NO_INIT);
        }
        let kind = kind_of_options(options)?;
        if !matches!(iface, 0 | IFACE_DEFAULT) {
            return Err(ARG_INVALID);
        }
        wanted(ni_handle)?;
        // SAFETY: null or limits, by the caller's promise.
        let desired = unsafe { desired.as_ref() };
        let limits = limits::wanted(desired, &variable).map_err(complain)?;
        let at = kind.number() as usize;
        let live = live(&mut core, pid)?;
        let limits = live
            .member
            .ni_init(kind, Some(&limits))
            .map_err(|error| error.code())?;
        live.counts[at] += 1;
        live.limits[at] = limits;
        if !actual.is_null() {
            // SAFETY: not null.
            unsafe { give(actual, PtlNiLimits::from(&limits)) }?;
        }
        // SAFETY: the caller's promise.
        unsafe { give(ni_handle, self::ni_handle(kind)) }
    })
}

fn kind_of_options(options: c_uint) -> Result<Kind, Code> {
    let one_of = |one: c_uint, other: c_uint| match options & (one | other) {
        bits if bits == one => Ok(true),
        bits if bits == other => Ok(false),
        _ => Err(ARG_INVALID),
    };
    if options & !(MATCHING | NO_MATCHING | LOGICAL | PHYSICAL) != 0 {
        return Err(ARG_INVALID);
    }
    Ok(Kind {
        matching: one_of(MATCHING, NO_MATCHING)?,
        logical: one_of(LOGICAL, PHYSICAL)?,
    })
}

/// The member; with the first interface it comes into being.
fn live(core: &mut Core, pid: u32) -> Result<&mut Live, Code> {
    let wanted = (pid != PID_ANY).then_some(pid);
    if let Some(live) = &core.live {
        // All interfaces of a process have one pid.
        if wanted.is_some_and(|pid| pid != live.member.process().pid) {
            return Err(ARG_INVALID);
        }
    } else {
        if wanted.is_some_and(|pid| pid > PID_MAX) {
            return Err(ARG_INVALID);
        }
        let makes_progress = makes_progress().map_err(complain)?;
        let config = settings().map_err(complain)?;
        let manner = makes_progress.then(|| Manner::of(&config)).transpose();
        let manner = manner.map_err(complain)?;
        let member = Member::enter(config, wanted, launcher()).map_err(complain)?;
        let member = member.map_err(|_| PID_IN_USE)?;
        core.live = Some(Live::new(member).map_err(|_| FAIL)?);
        let is_usual = manner.is_none_or(|manner| manner.is_usual());
        if let Err(error) = core.start_thread(manner) {
            if !is_usual {
                core.live = None;
                return Err(complain(format!(
                    "the thread that makes progress cannot be bound: {error}; leave `progress.core` away"
                )));
            }
            log(&format!(
                "no progress but in calls: the thread cannot start ({error})"
            ));
        }
    }
    core.live.as_mut().ok_or(FAIL)
}

/// A copy of the launcher's descriptor. The program has its own conversation over the other one.
fn launcher() -> Option<OwnedFd> {
    let number: c_int = std::env::var("PMI_FD").ok()?.trim().parse().ok()?;
    // SAFETY: any number may be given; one that is no descriptor is refused.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return None;
    }
    // SAFETY: it was made just now, and no other code knows it.
    Some(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Shared memory, and the interface that `PTL_IFACE_NAME` names, unless rails are named.
fn settings() -> Result<Config, Error> {
    let mut config = Builder::new().resolve()?;
    if config.rails.list.get().0.is_empty() {
        let named = variable("PTL_IFACE_NAME");
        let rails = named.map_or_else(|| "shm".to_owned(), |name| format!("shm,udp:{name}"));
        config.set_by("PTL_IFACE_NAME", "rails.list", &rails)?;
    }
    Ok(config)
}

/// The value of a variable of the environment; an empty one is as none.
fn variable(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?.to_string_lossy().trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Whether the thread makes progress.
fn makes_progress() -> Result<bool, WrongVariable> {
    let name = "PTL_PROGRESS_THREAD";
    match variable(name) {
        None => Ok(true),
        Some(text) if text == "1" => Ok(true),
        Some(text) if text == "0" => Ok(false),
        Some(text) => Err(WrongVariable {
            name,
            text,
            takes: "1 for a thread that makes progress between calls, 0 for progress in calls only"
                .to_owned(),
        }),
    }
}

/// Prints a line about an interface that cannot be set up: the code has no reason in it. It is not the call's
/// arguments.
#[cold]
fn complain(error: impl std::fmt::Display) -> Code {
    warn(&format!("no interface: {error}"));
    FAIL
}

/// Ends one use of an interface; uses are counted per kind. The last one returns when nothing is written any
/// more into memory that the program has lent: long transfers that had begun are read to their end, for ten
/// seconds at most; after that it returns `PTL_IN_USE`, though the interface has ended. Those of other
/// interfaces cannot be distinguished from them, and are waited for as well.
#[unsafe(no_mangle)]
pub extern "C" fn PtlNIFini(ni_handle: u32) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        let mut core = enter();
        let Some(live) = core.with(kind) else {
            return Err(absent(&core));
        };
        live.member.ni_fini(kind).map_err(|error| error.code())?;
        live.counts[kind.number() as usize] -= 1;
        let writes = live.counts[kind.number() as usize] == 0 && live.member.is_writing();
        core.wake();
        if writes { until_written(core) } else { Ok(()) }
    })
}

#[cold]
fn until_written(core: Guard) -> Result<(), Code> {
    let is_over = |core: &mut Core| {
        let writes = core.live.as_ref().is_some_and(|live| live.member.is_writing());
        Ok((!writes).then_some(()))
    };
    let limit = Limit::At(Instant::now() + WRITTEN);
    // An error means that another thread has ended the library, and with it the rails.
    if let (_, Ok(None)) = wait_on(core, limit, None, is_over) {
        warn(&format!(
            "PtlNIFini: memory of this process is still being written after {} s: do not reuse the memory of its descriptors",
            WRITTEN.as_secs()
        ));
        return Err(IN_USE);
    }
    Ok(())
}

/// A status register.
///
/// # Safety
/// `status` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlNIStatus(ni_handle: u32, status_register: c_uint, status: *mut c_int) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        let register = match status_register {
            0 => Register::DropCount,
            1 => Register::PermissionViolations,
            2 => Register::OperationViolations,
            _ => return Err(ARG_INVALID),
        };
        wanted(status)?;
        let value = on(kind, |ni| Ok(ni.status(register)))?;
        // SAFETY: the caller's promise.
        unsafe { give(status, c_int::try_from(value).unwrap_or(c_int::MAX)) }
    })
}

/// Which interface a handle belongs to.
///
/// # Safety
/// `ni_handle` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlNIHandle(handle: u32, ni_handle: *mut u32) -> c_int {
    guarded(|| {
        let class = handle >> 29;
        if !matches!(class, EQ | CT | MD | ENTRY | NI) {
            return Err(ARG_INVALID);
        }
        let kind = kind_of(handle, class)?;
        on(kind, |_| Ok(()))?;
        // SAFETY: the caller's promise.
        unsafe { give(ni_handle, self::ni_handle(kind)) }
    })
}

/// Which process each rank is.
///
/// # Safety
/// `mapping` is null or points to `map_size` processes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlSetMap(ni_handle: u32, map_size: u64, mapping: *const PtlProcess) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        if !kind.logical || map_size == 0 || mapping.is_null() {
            return Err(ARG_INVALID);
        }
        // Ranks have 32 bits: what is longer is no map, whatever is there.
        let size = u32::try_from(map_size).map_err(|_| ARG_INVALID)? as usize;
        // SAFETY: there are `size` processes, by the caller's promise.
        let mapping = unsafe { std::slice::from_raw_parts(mapping, size) };
        let map: Vec<_> = mapping.iter().map(|process| (*process).into()).collect();
        let mut core = enter();
        let Some(live) = core.with(kind) else {
            return Err(absent(&core));
        };
        live.member.set_map(kind, &map).map_err(|error| error.code())?;
        meet_all(core, &map);
        Ok(())
    })
}

/// The map, as far as there is room for it.
///
/// # Safety
/// `mapping` is null or has room for `map_size` processes; `actual_map_size` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlGetMap(
    ni_handle: u32,
    map_size: u64,
    mapping: *mut PtlProcess,
    actual_map_size: *mut u64,
) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        if !kind.logical || (map_size > 0 && mapping.is_null()) {
            return Err(ARG_INVALID);
        }
        let mut core = enter();
        let Some(live) = core.with(kind) else {
            return Err(absent(&core));
        };
        let map = live.member.map(kind).map_err(|error| error.code())?;
        let room = usize::try_from(map_size).unwrap_or(usize::MAX);
        for (at, process) in map.iter().take(room).enumerate() {
            // SAFETY: inside of `map_size`.
            unsafe { give(mapping.wrapping_add(at), PtlProcess::from(*process)) }?;
        }
        if !actual_map_size.is_null() {
            // SAFETY: not null.
            unsafe { give(actual_map_size, map.len() as u64) }?;
        }
        Ok(())
    })
}

/// Returns the user number of this process.
///
/// # Safety
/// `uid` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlGetUid(ni_handle: u32, uid: *mut u32) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        wanted(uid)?;
        let found = on(kind, |ni| Ok(ni.uid()))?;
        // SAFETY: the caller's promise.
        unsafe { give(uid, found) }
    })
}

/// The rank, or on a physical interface nid and pid.
///
/// # Safety
/// `id` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlGetId(ni_handle: u32, id: *mut PtlProcess) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        wanted(id)?;
        let mut core = enter();
        let Some(live) = core.with(kind) else {
            return Err(absent(&core));
        };
        if kind.logical {
            // Without a map there are no ranks.
            live.member.map(kind).map_err(|error| error.code())?;
        }
        let found = live.member.ni(kind).id();
        // SAFETY: the caller's promise.
        unsafe { give(id, found.into()) }
    })
}

/// Nid and pid.
///
/// # Safety
/// `id` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlGetPhysId(ni_handle: u32, id: *mut PtlProcess) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        wanted(id)?;
        let mut core = enter();
        let Some(live) = core.with(kind) else {
            return Err(absent(&core));
        };
        // SAFETY: the caller's promise.
        unsafe { give(id, live.member.process().into()) }
    })
}

/// Orders atomics and reads of the program: atomics are done by this process's own threads, under the lock
/// that this takes.
#[unsafe(no_mangle)]
pub extern "C" fn PtlAtomicSync() -> c_int {
    guarded(|| {
        let core = enter();
        if core.inits == 0 {
            return Err(NO_INIT);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    })
}

/// Begins a bundle: from here on operations wait for each other before they leave.
#[unsafe(no_mangle)]
pub extern "C" fn PtlStartBundle(ni_handle: u32) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        let mut core = enter();
        let Some(live) = core.with(kind) else {
            return Err(absent(&core));
        };
        live.bundles = invalid(live.bundles.checked_add(1))?;
        Ok(())
    })
}

/// What was begun since leaves.
#[unsafe(no_mangle)]
pub extern "C" fn PtlEndBundle(ni_handle: u32) -> c_int {
    guarded(|| {
        let kind = kind_of(ni_handle, NI)?;
        let mut core = enter();
        let Some(live) = core.with(kind) else {
            return Err(absent(&core));
        };
        live.bundles = invalid(live.bundles.checked_sub(1))?;
        live.flush();
        Ok(())
    })
}

/// Returns other than zero when both name the same object.
#[unsafe(no_mangle)]
pub extern "C" fn PtlHandleIsEqual(handle1: u32, handle2: u32) -> c_int {
    c_int::from(!is_forked() && handle1 == handle2)
}
