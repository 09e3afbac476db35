//! `doorbell key`: makes the secret that two hosts share, and prints what to do with it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use doorbell::oob::JobKey;
use doorbell_fabric::error::Exit;

use crate::console;
use crate::error::ToolError;
use crate::exits;

/// Make a key that two hosts share
#[derive(Debug, Args)]
#[command(after_help = concat!("\
The file holds 32 random bytes as text, and only its owner can read it; a file that others can read or write is refused \
wherever a key is read. A process that has a copy can join: copy it as you would copy a password.\n\n", exits!(), "\
Examples:\n  doorbell key job.key\n  scp -p job.key other-host:\n  doorbell key --force job.key"))]
pub struct KeyArgs {
    /// The file to make
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Replace a key that is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// Runs `doorbell key`.
pub(crate) fn key(args: &KeyArgs) -> Result<ExitCode, ToolError> {
    JobKey::generate()?.write(&args.file, args.force)?;
    let file = args.file.display();
    console::print(&format!(
        "\
wrote a new key to `{file}`, which only you can read
  copy it, over a channel that is as secret as a password:   scp -p {file} OTHER-HOST:
  then on one host:    doorbell pingpong --serve --bind ADDR --rail udp:INTERFACE --key-file {file}
  and on the other:    doorbell pingpong --connect ADDR --rail udp:INTERFACE --key-file {file}
"
    ))?;
    Ok(Exit::Done.into())
}
