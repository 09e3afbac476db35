//! Attaching the program to the interface, and checking how: in the requested mode, or refused with the
//! reason.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use doorbell_inet::{Attached, Details, Interface};

use crate::config::Mode;
use crate::program::steering;
use crate::sys;

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` (linux/if_link.h).
const GENERIC: u32 = 1 << 1;
const DRIVER: u32 = 1 << 2;

/// Time for which a queue or an interface that another process has is tried.
const LETTING_GO: Duration = Duration::from_secs(3);

/// The program on the interface; it goes when this is dropped, or when the process ends, however it ends.
pub(crate) struct Steering {
    pub(crate) map: OwnedFd,
    _link: OwnedFd,
    pub(crate) program: u32,
}

/// Why there is no program on the interface.
pub(crate) enum AttachError {
    /// Another process's program is there.
    Taken(u32),
    /// A step was refused.
    System(&'static str, io::Error),
    /// The program is not attached in the requested way.
    Other(String),
}

/// Attaches a program that steers what is for `port` and the next one to the sockets that are put into its
/// map.
pub(crate) fn attach(
    interface: &Interface,
    port: u16,
    queues: u32,
    mode: Mode,
) -> Result<Steering, AttachError> {
    let step = |step| move |error| AttachError::System(step, error);
    let map = sys::socket_map(queues).map_err(step("make a map of sockets (bpf)"))?;
    let program = steering(interface.address, port, map.as_fd());
    let loaded = match sys::load(&program, true) {
        // Before Linux 5.18 no program can declare that it takes frames in several pieces.
        Err((error, _)) if error.raw_os_error() == Some(libc::EINVAL) => sys::load(&program, false),
        other => other,
    };
    // The verifier's log ends with its statistics; the reason precedes them.
    let reason = |said: &str| {
        let mut lines = said.lines().filter(|line| !line.starts_with("processed "));
        lines.next_back().map(str::to_owned)
    };
    let loaded = loaded.map_err(|(error, said)| match reason(&said) {
        Some(last) if error.raw_os_error() != Some(libc::EPERM) => {
            AttachError::Other(format!("the kernel refused its program: {error}: {last}"))
        }
        _ => AttachError::System("load its program (bpf)", error),
    })?;
    let id = sys::program_id(loaded.as_fd()).map_err(step("read its program's number (bpf)"))?;
    let flags = if mode == Mode::Generic { GENERIC } else { DRIVER };
    let link = when_let_go(is_taken, || sys::attach(loaded.as_fd(), interface.index, flags));
    let link = link.map_err(|error| {
        match Details::of(interface.index)
            .ok()
            .and_then(|details| details.program)
        {
            Some(other) if is_taken(&error) => AttachError::Taken(other.id),
            _ => AttachError::System("attach its program (bpf)", error),
        }
    })?;
    verify(interface, id, mode)?;
    Ok(Steering {
        map,
        _link: link,
        program: id,
    })
}

fn is_taken(error: &io::Error) -> bool {
    [libc::EBUSY, libc::EEXIST]
        .map(Some)
        .contains(&error.raw_os_error())
}

/// Tries again for a moment where another process has it: the kernel releases what was closed only some time
/// later, and not before a child that was just forked from its process has closed its copies.
pub(crate) fn when_let_go<T>(
    taken: fn(&io::Error) -> bool,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(error) if taken(&error) && begun.elapsed() < LETTING_GO => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// Reads from the kernel what is attached, and how.
fn verify(interface: &Interface, id: u32, mode: Mode) -> Result<(), AttachError> {
    let details = Details::of(interface.index)
        .map_err(|error| AttachError::System("read the attached program", error))?;
    let wanted = if mode == Mode::Generic {
        Attached::Generic
    } else {
        Attached::Driver
    };
    match details.program {
        Some(found) if found.id == id && found.how == wanted => Ok(()),
        found => Err(AttachError::Other(format!(
            "its program was attached, and the kernel shows {found:?} instead of number {id} ({wanted:?})"
        ))),
    }
}
