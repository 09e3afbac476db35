//! `doorbell-lab model`: devices that are processes.

pub(crate) mod args;
mod vic;

use std::process::ExitCode;

use args::{ModelArgs, ModelCommand};
use doorbell_tools::error::ToolError;

/// Runs `doorbell-lab model`.
pub(crate) fn model(args: &ModelArgs) -> Result<ExitCode, ToolError> {
    match &args.device {
        ModelCommand::Vic(args) => vic::vic(args),
    }
}
