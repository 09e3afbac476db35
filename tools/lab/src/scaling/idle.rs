//! Idle peers: each count in a process of its own, so that memory of one is not taken for that of the next.

use std::process::{Command, ExitCode};
use std::time::Duration;

use doorbell_fabric::clock::Clock;
use doorbell_fabric::error::Exit;
use doorbell_tools::console;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};

use super::measure::{Given, number, own, said};
use super::report::Key;
use crate::probes::among;

/// Tens of thousands of peers take seconds; after this time it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a measurement with `peers` idle peers.
pub(super) fn ask(runner: &Runner, peers: u32) -> Result<Given, Stop> {
    let mut command = Command::new(own()?);
    command.args(["measure-scaling", "--idle", &peers.to_string()]);
    Ok(said(runner, command, LIMIT)?.and_then(|line| {
        let figures = [
            (Key::IdleHalf, "half_ns"),
            (Key::IdleLook, "look_ns"),
            (Key::IdleMemory, "resident_bytes"),
        ];
        let given: Vec<(Key, f64)> = figures
            .into_iter()
            .filter_map(|(key, name)| Some((key, number(&line, name)?)))
            .collect();
        if given.is_empty() {
            Err("it gave no figures".to_owned())
        } else {
            Ok(given)
        }
    }))
}

/// The measurement itself.
pub(super) fn measure(peers: u32) -> Result<ExitCode, ToolError> {
    let of = among(&Clock::start(), peers)?;
    let resident = of
        .resident_bytes
        .map_or_else(String::new, |bytes| format!(" resident_bytes={bytes:.0}"));
    console::print(&format!(
        "idle half_ns={:.2} look_ns={:.2}{resident}\n",
        of.half_ns, of.look_ns
    ))?;
    Ok(Exit::Done.into())
}
