//! The only place that installs signal handlers. A signal that the process ignores since its start stays
//! ignored: `nohup` (SIGHUP) and a shell's `command &` (SIGINT, SIGQUIT) request that, and a handler would
//! undo it.
//!
//! A library must not change what signals do to its user's process. Nothing here is called unless a program,
//! or a setting that names the signal, requests it.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use signal_hook::{SigId, flag, low_level};

/// A handler that was installed; `None` where the signal is ignored.
pub type Installed = Option<SigId>;

/// The signals that request a program to end.
pub const ENDS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Those that a command in the background of a script ignores, or one under `nohup`.
pub const IGNORED: [i32; 3] = [SIGINT, SIGQUIT, SIGHUP];

/// Whether this process ignores `signal`. Not known without /proc: then it does not.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bit = u32::try_from(signal - 1).unwrap_or(u32::MAX);
    mask(&status, "SigIgn:").checked_shr(bit).unwrap_or(0) & 1 == 1
}

/// The signal mask in field `name` of /proc/PID/status.
fn mask(status: &str, name: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Sets `raised` when `signal` arrives.
///
/// # Errors
/// When the system installs no handler.
pub fn set_flag(signal: i32, raised: &Arc<AtomicBool>) -> io::Result<Installed> {
    unless_ignored(signal, || flag::register(signal, Arc::clone(raised)))
}

/// Sets a flag like [`set_flag`] for each of `signals`.
///
/// # Errors
/// When the system installs no handler.
pub fn set_flag_on(signals: &[i32], raised: &Arc<AtomicBool>) -> io::Result<()> {
    signals
        .iter()
        .try_for_each(|signal| set_flag(*signal, raised).map(drop))
}

/// Gives `signal` its default effect whenever `is_due` is set.
///
/// # Errors
/// When the system refuses the handler.
pub fn default_when(signal: i32, is_due: &Arc<AtomicBool>) -> io::Result<Installed> {
    unless_ignored(signal, || {
        flag::register_conditional_default(signal, Arc::clone(is_due))
    })
}

/// Writes a byte to `pipe` when `signal` arrives.
///
/// # Errors
/// When the system installs no handler.
pub fn write_to(signal: i32, pipe: UnixStream) -> io::Result<Installed> {
    unless_ignored(signal, || low_level::pipe::register(signal, pipe))
}

/// Writes a byte to `pipe` when a child has ended or was stopped. SIGCHLD is the one signal that is caught
/// also where it was ignored: the system forgets the children of a process that ignores it, and they
/// could not be waited for.
///
/// # Errors
/// When the system installs no handler.
pub fn on_children(pipe: UnixStream) -> io::Result<()> {
    low_level::pipe::register(SIGCHLD, pipe).map(drop)
}

/// Prepares a program at its start: a write beyond the file size limit (`ulimit -f`) becomes an error of the
/// write, instead of an end without a message (SIGXFSZ); and children are waitable even if SIGCHLD was
/// ignored.
///
/// # Errors
/// When the system refuses the handler.
pub fn of_a_program() -> io::Result<()> {
    let unread = Arc::new(AtomicBool::new(false));
    set_flag(SIGXFSZ, &unread)?;
    match is_ignored(SIGCHLD) {
        true => flag::register(SIGCHLD, unread).map(drop),
        false => Ok(()),
    }
}

/// Has children of this process begin with the default effect of those of `signals` that it ignores, and goes
/// on without an effect of its own: what is caught has its default again in a new program, what is ignored
/// stays ignored.
///
/// # Errors
/// When the system refuses the handler.
pub fn default_in_children(signals: &[i32]) -> io::Result<()> {
    let unread = Arc::new(AtomicBool::new(false));
    let ignored = signals.iter().filter(|signal| is_ignored(**signal));
    ignored
        .map(|signal| flag::register(*signal, Arc::clone(&unread)))
        .try_for_each(|handler| handler.map(drop))
}

/// Removes a handler.
pub fn remove(installed: Installed) {
    if let Some(id) = installed {
        low_level::unregister(id);
    }
}

fn unless_ignored(signal: i32, install: impl FnOnce() -> io::Result<SigId>) -> io::Result<Installed> {
    match is_ignored(signal) {
        true => Ok(None),
        false => install().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_as_the_kernel_writes_them() {
        let status = "Name:\tsh\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000007\n";
        assert_eq!(mask(status, "SigIgn:"), 7);
        assert_eq!(mask(status, "SigCgt:"), 0);
        assert_eq!(mask("SigIgn:\tnonsense\n", "SigIgn:"), 0);
    }

    #[test]
    fn no_signal_is_out_of_range() {
        assert!(!is_ignored(0) && !is_ignored(65) && !is_ignored(-1));
    }
}
