//! Jobs over the simulated network, in a program of their own: what checks the tree should not have to be
//! built with everything that is in it.

use std::ffi::OsString;
use std::process::Command;

use crate::error::Error;
use crate::workspace::Workspace;

/// Builds `doorbell-simulate` optimised and runs it; whether it found nothing wrong.
pub(crate) fn run(workspace: &Workspace, arguments: &[OsString]) -> Result<bool, Error> {
    let status = command(workspace, arguments).status();
    let program = "cargo".to_owned();
    Ok(status
        .map_err(|source| Error::Start { program, source })?
        .success())
}

fn command(workspace: &Workspace, arguments: &[OsString]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        "run",
        "--release",
        "--quiet",
        "--locked",
        "--package",
        "doorbell-simulate",
        "--",
    ]);
    command.args(arguments).current_dir(&workspace.root);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_passed_on_as_they_are() {
        let workspace = Workspace::load(&crate::workspace::root().unwrap()).unwrap();
        let words = ["--seed", "7", "--help"].map(OsString::from);
        let command = command(&workspace, &words);
        let all: Vec<_> = command.get_args().collect();
        assert_eq!(all[all.len() - 4..], ["--", "--seed", "7", "--help"]);
        assert!(all.contains(&"doorbell-simulate".as_ref()));
    }
}
