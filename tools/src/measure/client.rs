//! The connecting side of a measurement between two hosts: its options apply to both sides, and it shows the
//! report.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::oob::{Connection, Endpoint};
use doorbell_bench::job::Cores;
use doorbell_bench::pin;

use super::args::MeasureArgs;
use super::hosts::{Side, alone, bind_both, cores, no_way, terms};
use super::layer::LayerJob;
use super::settings::{Threads, builder, check_rails};
use super::{Asked, part};
use crate::error::ToolError;
use crate::{console, report_files};

/// Until there is a connection: the name is looked up, the other host answers, hands are shaken.
const CONNECT: Duration = Duration::from_secs(15);
/// How long a client waits for a server that serves another one.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two attempts.
const AGAIN: Duration = Duration::from_millis(500);

/// Meets the side that serves there, and measures with it.
pub(super) fn connect(asked: &Asked<'_>, to: &Endpoint, threads: Threads) -> Result<ExitCode, ToolError> {
    let args = asked.args;
    alone("--connect")?;
    asked.check_captures(&[0])?;
    report_files::check(&asked.outputs())?;
    check_rails(args, 1)?;
    let cores = cores(args, Side::Connects, &threads)?;
    let allowed = pin::allowed();
    bind_both(cores)?;
    let terms = terms(&args.hosts)?;
    let to = &by_address_service(args, to)?;
    let started = Instant::now();
    let mut told = false;
    let job = loop {
        let connection = Connection::connect(to, &terms, CONNECT)?;
        match LayerJob::build_over(builder(args, cores.progress), &asked.plan, connection) {
            Err(doorbell::Error::Occupied { address, reason }) if started.elapsed() < PATIENCE => {
                if !std::mem::replace(&mut told, true) {
                    let seconds = PATIENCE.as_secs();
                    console::say(&format!(
                        "doorbell: {address} is occupied ({reason}); trying for {seconds} s"
                    ));
                }
                thread::sleep(AGAIN);
            }
            job => break job.map_err(no_way)?,
        }
    };
    let main = cores.main.or(job.own_core());
    part::carry_out(asked, job, Cores { main, ..cores }, allowed)
}

/// The host by its address, where settings have the address service look up names; as it was, where that does
/// not help.
fn by_address_service(args: &MeasureArgs, to: &Endpoint) -> Result<Endpoint, ToolError> {
    let Some(name) = to.name() else {
        return Ok(to.clone());
    };
    let config = builder(args, None).resolve()?;
    Ok(match doorbell::acm::host(&config, name, to.port()) {
        Some(Ok(address)) => address.into(),
        Some(Err(reason)) => {
            console::say(&format!(
                "doorbell: the address service does not know `{name}` ({reason}); the system's resolver looks it up"
            ));
            to.clone()
        }
        None => to.clone(),
    })
}
