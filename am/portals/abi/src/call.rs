//! The common part of all calls: return codes, checks of handles, and the connection to a process that is
//! not connected yet.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use doorbell_fabric::ni::{Kind, Ni, NiError, Process};

use crate::state::{Core, Guard, desk, enter, is_forked, lock};
use crate::wait::{Limit, wait_on};

/// A return code of `portals4.h`.
pub(crate) type Code = c_int;

pub(crate) const OK: Code = 0;
pub(crate) const ARG_INVALID: Code = 1;
pub(crate) const CT_NONE_REACHED: Code = 2;
pub(crate) const EQ_DROPPED: Code = 3;
pub(crate) const EQ_EMPTY: Code = 4;
pub(crate) const FAIL: Code = 5;
pub(crate) const IN_USE: Code = 7;
pub(crate) const NO_INIT: Code = 9;
pub(crate) const NO_SPACE: Code = 10;
pub(crate) const PID_IN_USE: Code = 11;
pub(crate) const ABORTED: Code = 15;

/// How long another process may take to answer at its desk.
const MEETING: Duration = Duration::from_secs(10);
/// The ranks of a larger map are connected when each is needed.
const AT_ONCE: usize = 64;
/// How long the ranks of a map are waited for, all together.
const ALL_MEETING: Duration = Duration::from_secs(2);
/// How long a call waits for room on the rails.
const ROOM: Duration = Duration::from_secs(60);

/// Classes of handles: their bits from 29 on.
pub(crate) const EQ: u32 = 1;
pub(crate) const CT: u32 = 2;
pub(crate) const MD: u32 = 3;
pub(crate) const ENTRY: u32 = 4;
pub(crate) const NI: u32 = 5;

/// The handle of an interface.
pub(crate) const fn ni_handle(kind: Kind) -> u32 {
    NI << 29 | kind.number() << 27 | 1
}

/// The kind of interface that a handle of this class belongs to.
///
/// # Errors
/// `PTL_ARG_INVALID` for one of another class.
#[inline]
pub(crate) fn kind_of(handle: u32, class: u32) -> Result<Kind, Code> {
    if handle >> 29 != class {
        return Err(ARG_INVALID);
    }
    let kind = Kind::of_number(handle >> 27);
    if class == NI && handle != ni_handle(kind) {
        return Err(ARG_INVALID);
    }
    Ok(kind)
}

/// Runs a call: no unwind leaves it.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Code>) -> Code {
    if is_forked() {
        return FAIL;
    }
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => OK,
        Ok(Err(code)) => code,
        Err(_) => FAIL,
    }
}

/// Returns why there is no interface.
pub(crate) fn absent(core: &Core) -> Code {
    if core.inits == 0 { NO_INIT } else { ARG_INVALID }
}

/// Calls an interface.
///
/// # Errors
/// Those of the interface; `PTL_NO_INIT` and `PTL_ARG_INVALID` when it is not there.
pub(crate) fn on<R>(kind: Kind, work: impl FnOnce(&mut dyn Ni) -> Result<R, NiError>) -> Result<R, Code> {
    let mut core = enter();
    let result = on_core(&mut core, kind, work);
    core.wake();
    result
}

/// Calls an interface, with the lock already taken.
#[inline]
pub(crate) fn on_core<R>(
    core: &mut Core,
    kind: Kind,
    work: impl FnOnce(&mut dyn Ni) -> Result<R, NiError>,
) -> Result<R, Code> {
    match core.with(kind) {
        Some(live) => work(&mut live.member.ni(kind)).map_err(NiError::code),
        None => Err(absent(core)),
    }
}

/// Begins an operation towards a process: meets it first, and waits for room where there is none.
///
/// # Errors
/// Those of the interface; `PTL_NO_SPACE` when there is no room for a minute.
pub(crate) fn begin<R>(
    kind: Kind,
    target: Process,
    mut work: impl FnMut(&mut dyn Ni) -> Result<R, NiError>,
) -> Result<R, Code> {
    let mut core = meet(enter(), kind, target);
    let Some(live) = core.with(kind) else {
        return Err(absent(&core));
    };
    let result = work(&mut live.member.ni(kind));
    if !matches!(result, Err(NiError::Full)) {
        live.flush();
        core.wake();
        return result.map_err(NiError::code);
    }
    // Without room, a bundle that is open does not hold anything back.
    live.member.flush();
    let (mut core, found) = wait_on(core, Limit::At(Instant::now() + ROOM), None, |core| {
        match core.with(kind).map(|live| work(&mut live.member.ni(kind))) {
            None => Err(absent(core)),
            Some(Err(NiError::Full)) => Ok(None),
            Some(Err(error)) => Err(error.code()),
            Some(Ok(result)) => Ok(Some(result)),
        }
    });
    if let Some(live) = core.with(kind) {
        live.flush();
    }
    found?.ok_or(NO_SPACE)
}

/// Connects this process to the target of an operation, unless they are connected already. A target that
/// cannot be connected is left to the interface, which ends the operation as undeliverable.
fn meet(mut core: Guard, kind: Kind, target: Process) -> Guard {
    let Some(live) = core.with(kind) else {
        return core;
    };
    let physical = if kind.logical {
        match live.member.map(kind) {
            Ok(map) => map.get(target.nid as usize).copied(),
            Err(_) => None,
        }
    } else {
        Some(target)
    };
    let Some(process) = physical.filter(|process| !live.member.knows(*process)) else {
        return core;
    };
    introduce(core, process, Instant::now() + MEETING)
}

/// Connects to the processes of a small map, so that the first operation takes no longer than any other.
/// Those that do not answer are connected when they are needed.
pub(crate) fn meet_all(mut core: Guard, map: &[Process]) {
    if map.len() > AT_ONCE {
        return;
    }
    let until = Instant::now() + ALL_MEETING;
    for process in map {
        let is_known = core.live.as_ref().is_none_or(|live| live.member.knows(*process));
        if !is_known && Instant::now() < until {
            core = introduce(core, *process, until);
        }
    }
}

#[cold]
fn introduce(core: Guard, process: Process, until: Instant) -> Guard {
    let Some(desk) = desk(&core) else {
        return core;
    };
    if desk.process().is_none_or(|own| own.nid != process.nid) {
        let mut core = core;
        let trouble = core
            .live
            .as_mut()
            .and_then(|live| live.member.look_up(Some(process)));
        if let Some(error) = trouble {
            log(&format!(
                "cannot connect to nid {} pid {}: {error}",
                process.nid, process.pid
            ));
        }
        return core;
    }
    // Not under the lock: the other one may be calling us, and our thread is to answer.
    drop(core);
    let card = desk.call(process, until);
    let mut core = lock();
    match (card, &mut core.live) {
        (Ok(card), Some(live)) => {
            if let Err(error) = live.member.meet(&card) {
                log(&format!(
                    "no path to nid {} pid {}: {error}",
                    process.nid, process.pid
                ));
            }
        }
        (Err(error), _) => {
            log(&format!(
                "cannot connect to nid {} pid {}: {error}",
                process.nid, process.pid
            ));
        }
        (Ok(_), None) => {}
    }
    core
}

/// Prints a line to the standard error, where `PTL_LOG_LEVEL` enables them.
#[cold]
pub(crate) fn log(what: &str) {
    let level = std::env::var("PTL_LOG_LEVEL").ok();
    if level.is_some_and(|level| level.trim().parse::<u32>().is_ok_and(|level| level > 0)) {
        warn(what);
    }
}

/// Prints a line to the standard error that must not be missed.
#[cold]
pub(crate) fn warn(what: &str) {
    use std::io::Write as _;
    // In one write, as several processes may print at once.
    let _ = std::io::stderr().write_all(format!("libportals: {what}\n").as_bytes());
}
