//! Jobs of many ranks on this machine, more than it has cores.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use doorbell::World;
use doorbell_bench::report::Report;
use doorbell_bench::stats::mean;
use doorbell_fabric::error::Exit;
use doorbell_tools::console;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};

use super::measure::{Given, number, own, said};
use super::report::Key;

/// The longest time of a job, in seconds: far more than any takes, so that each ends.
const LIMIT: &str = "120";
/// And its launcher ends soon after it.
const PATIENCE: Duration = Duration::from_secs(130);
/// The time for which exchanges are measured, and barriers: long beside the turns of many ranks, and beside
/// the first milliseconds of a job.
const SECONDS: u64 = 1;
/// Barriers after which rank 0 reports to the others whether the time is over, and those before them, in
/// which the ranks connect and the last one starts.
const BARRIERS: u32 = 10;

/// Returns the command of `doorbell run` with `ranks` ranks of this program.
fn job(ranks: u32) -> Result<Command, ToolError> {
    let own = own()?;
    let mut command = Command::new(&own);
    command
        .args([
            "run",
            "--no-prefix",
            "--timeout",
            LIMIT,
            "-n",
            &ranks.to_string(),
            "--",
        ])
        .arg(own);
    Ok(command)
}

/// Ping-pongs in pairs, all at the same time: the mean of their means. Nothing is measured beside them: a
/// bare exchange spins, and where ranks share cores it would take the others' time.
pub(super) fn pairs(runner: &Runner, ranks: u32) -> Result<Given, Stop> {
    let mut command = job(ranks)?;
    let seconds = SECONDS.to_string();
    command
        .args(["pingpong", "--no-reference", "--sizes", "8", "--json", "-"])
        .args(["--seconds", &seconds]);
    Ok(said(runner, command, PATIENCE)?.and_then(|out| {
        let report: Report =
            serde_json::from_str(&out).map_err(|error| format!("its report is none: {error}"))?;
        let halves: Vec<f64> = report
            .results
            .iter()
            .filter_map(|row| row.half_rtt_ns.mean)
            .collect();
        let half = mean(&halves).ok_or("its report has no figures")?;
        Ok(vec![(Key::RanksHalf, half)])
    }))
}

/// Measures a world of `ranks` ranks: made, used and left.
pub(super) fn world(runner: &Runner, ranks: u32) -> Result<Given, Stop> {
    let mut command = job(ranks)?;
    let start = Instant::now();
    command.arg("measure-scaling");
    let out = said(runner, command, PATIENCE)?;
    let whole = start.elapsed().as_nanos() as f64;
    Ok(out.and_then(|line| {
        let built = number(&line, "built_ns").ok_or("it gave no figures")?;
        let barrier = number(&line, "barrier_ns").ok_or("it gave no figures")?;
        Ok(vec![
            (Key::RanksJob, whole),
            (Key::RanksBuilt, built),
            (Key::RanksBarrier, barrier),
        ])
    }))
}

/// Runs a rank of such a world; rank 0 prints the figures.
pub(super) fn be_rank() -> Result<ExitCode, ToolError> {
    let start = Instant::now();
    let world = doorbell::init()?;
    let built = start.elapsed();
    barriers(&world, Duration::ZERO)?;
    let each = barriers(&world, Duration::from_secs(SECONDS))?;
    if world.rank() == 0 {
        console::print(&format!(
            "world built_ns={} barrier_ns={}\n",
            built.as_nanos(),
            each.as_nanos()
        ))?;
    }
    world.close();
    Ok(Exit::Done.into())
}

/// Does barriers until rank 0 reports that this time is over; the time of one.
fn barriers(world: &World, time: Duration) -> Result<Duration, ToolError> {
    let (start, mut done, mut is_over) = (Instant::now(), 0, [0]);
    while is_over == [0] {
        for _ in 0..BARRIERS {
            world.barrier()?;
        }
        done += BARRIERS;
        is_over = [u8::from(start.elapsed() >= time)];
        world.broadcast(0, &mut is_over)?;
    }
    Ok(start.elapsed() / done)
}
