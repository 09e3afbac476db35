//! `doorbell key`: makes the secret that two hosts share, and says what to do with it.

use std::process::ExitCode;

use doorbell::oob::JobKey;
use doorbell_fabric::error::Exit;

use crate::cli::KeyArgs;
use crate::error::ToolError;
use crate::out;

/// `doorbell key`.
pub(crate) fn key(args: &KeyArgs) -> Result<ExitCode, ToolError> {
    JobKey::generate()?.write(&args.file, args.force)?;
    let file = args.file.display();
    out::print(&format!(
        "\
wrote a new key to `{file}`, which only you can read
  copy it, over a channel that is as secret as a password:   scp -p {file} OTHER-HOST:
  then on one host:    doorbell pingpong --serve --bind ADDR --key-file {file}
  and on the other:    doorbell pingpong --connect ADDR --key-file {file}
"
    ))?;
    Ok(Exit::Done.into())
}
