//! `exec-rank`: the few steps between launcher and program that have to run in the rank's own process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use doorbell_bench::pin;
use rustix::process::Signal;

use super::limits;
use crate::console;
use crate::error::ToolError;
use crate::run::args::ExecArgs;

/// Reports to a rank that its cores are its own (the setting `job.bound`).
const BOUND: &str = "DOORBELL_BOUND";
/// The shell's exit status for a missing program.
const NOT_FOUND: u8 = 127;
/// The shell's exit status for a program that cannot be run.
const NOT_RUN: u8 = 126;

/// Requests to die with the launcher, binds its cores, and becomes the program.
pub(crate) fn exec_rank(args: &ExecArgs) -> Result<ExitCode, ToolError> {
    let system = |what| {
        move |errno: rustix::io::Errno| ToolError::System {
            what,
            source: errno.into(),
        }
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(system("request the death signal of the launcher"))?;
    match rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get() as u32) {
        Some(parent) if parent == args.launcher => {}
        // The launcher has no number in this namespace, and the end of this namespace ends the ranks.
        None => {
            return Err(ToolError::Usage(
                "this rank is in another pid namespace than `doorbell run`, which cannot watch it from outside; start the \
                 launcher inside the namespace, too: `unshare --pid --fork --mount-proc doorbell run …`"
                    .to_owned(),
            ));
        }
        // The launcher may have died before the request: then nothing would ever end this rank.
        Some(_) => {
            return Err(ToolError::Usage(
                "exec-rank is for `doorbell run` only; the launcher is gone".to_owned(),
            ));
        }
    }
    pin::bind_all(&args.cores)?;
    if let Some(files) = args.open_files {
        limits::restore(files);
    }
    let mut program = Command::new(&args.program);
    program.args(&args.args);
    // That of an outer launcher is about other cores.
    match args.cores.is_empty() {
        true => program.env_remove(BOUND),
        false => program.env(BOUND, "on"),
    };
    // Returns only on failure.
    let error = program.exec();
    let name = args.program.to_string_lossy();
    console::say(&format!(
        "doorbell: cannot run `{name}`: {error}; check the name and its permissions"
    ));
    let code = if error.kind() == io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_RUN
    };
    Ok(ExitCode::from(code))
}
