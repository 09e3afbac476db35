//! Runs rdma-core's own programs: what they need, and a `/run` of their own.

use std::path::Path;
use std::process::{Command, Output};

use doorbell_testing::run_folder::with_run;
use doorbell_testing::skip::is_installed;

use crate::common::Running;

/// Whether [`with_run`] works here; else the reason.
pub(crate) fn may_mount(folder: &Path) -> Result<(), String> {
    if !is_installed("unshare") {
        return Err("package util-linux: unshare is not installed".to_owned());
    }
    match with_run(&[], folder, "true").output() {
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
    let mut command = with_run(&[], folder, "ib_acme");
    command.args(arguments);
    run(command)
}
