//! Runs rdma-core's own programs: what they need, and a `/run` of their own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::Running;

/// Whether a program is here.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A command that sees this folder as `/run`, in a mount namespace of its own: the machine's is not touched.
pub(crate) fn with_run(folder: &Path, program: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", r#"mount --bind "$0" /run && exec "$@""#])
        .arg(folder)
        .arg(program)
        .stdin(Stdio::null());
    command
}

/// Whether [`with_run`] works here; else the reason.
pub(crate) fn may_mount(folder: &Path) -> Result<(), String> {
    if !has("unshare") {
        return Err("package util-linux: unshare is not installed".to_owned());
    }
    match with_run(folder, "true").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "no mount namespace: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("unshare does not start: {error}")),
    }
}

/// What a program printed and how it ended.
pub(crate) fn run(mut command: Command) -> (i32, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("it starts");
    let text = [stdout, stderr].concat();
    let text = String::from_utf8(text).expect("text");
    (status.code().expect("it ends by itself"), text)
}

/// Runs `ib_acme` where the service's folder is `/run`.
pub(crate) fn ib_acme(running: &Running, arguments: &[&str]) -> (i32, String) {
    let folder = running.places.socket.parent().expect("a folder");
    let mut command = with_run(folder, "ib_acme");
    command.args(arguments);
    run(command)
}
