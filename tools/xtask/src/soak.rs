//! `cargo xtask soak`: mixed traffic for a long time, in programs of their own (as [`crate::simulate`]).

use std::ffi::OsString;
use std::process::Command;

use crate::error::Error;
use crate::workspace::{Workspace, cargo};

/// Builds `doorbell` and `doorbell-soak` optimised and runs the latter; whether it found nothing wrong.
pub(crate) fn run(workspace: &Workspace, arguments: &[OsString]) -> Result<bool, Error> {
    let start = |source| Error::Start {
        program: "cargo".to_owned(),
        source,
    };
    let built = build(workspace, "release").status().map_err(start)?;
    if !built.success() {
        return Ok(false);
    }
    let mut command = soak(workspace, "release");
    command.args(arguments);
    let program = "doorbell-soak".to_owned();
    let status = command.status();
    Ok(status
        .map_err(|source| Error::Start { program, source })?
        .success())
}

fn build(workspace: &Workspace, profile: &str) -> Command {
    let mut command = Command::new(cargo());
    command.args(["build", "--quiet", "--locked", "--profile", profile]);
    command.args([
        "--package",
        "doorbell-tools",
        "--package",
        "doorbell-lab",
        "--package",
        "doorbell-simulate",
        "--bins",
    ]);
    command.current_dir(&workspace.root);
    command
}

/// Returns the command of the program, which finds `doorbell` and `doorbell-lab` beside itself.
fn soak(workspace: &Workspace, folder: &str) -> Command {
    let mut command = Command::new(workspace.target.join(folder).join("doorbell-soak"));
    command.current_dir(&workspace.root);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_what_is_run() {
        let workspace = Workspace::load(&crate::workspace::root().unwrap()).unwrap();
        let command = build(&workspace, "release");
        let words: Vec<_> = command.get_args().collect();
        assert!(words.ends_with(&["--bins".as_ref()]) && words.contains(&"doorbell-simulate".as_ref()));
        let program = soak(&workspace, "release");
        assert!(
            program
                .get_program()
                .to_string_lossy()
                .ends_with("/release/doorbell-soak")
        );
    }
}
