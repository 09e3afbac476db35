//! `doorbell-lab model vic`: starts the model, prints where it is, and runs until a signal ends it.

use std::io::{self, Read as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_fabric::signals::{self, ENDS};
use doorbell_tools::console;
use doorbell_tools::error::ToolError;
use doorbell_vic::{Error, Model, Socket, Summary, Violation};
use serde::Serialize;

use super::args::VicArgs;

/// Interval between two readings of the clock; signals end it at once.
const LOOK: Duration = Duration::from_millis(100);
/// Violations that are shown at the end, without a file.
const SHOWN: usize = 20;

/// What is printed when it accepts connections, with `--json`.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    schema: &'static str,
    version: &'static str,
    dir: &'a std::path::Path,
    sockets: &'a [Socket],
}

/// What is printed at the end, with `--json`.
#[derive(Debug, Serialize)]
struct Over<'a> {
    schema: &'static str,
    version: &'static str,
    summary: &'a Summary,
    /// The first ones, whole.
    violations: &'a [Violation],
    /// How many more there were.
    not_listed: u64,
}

/// Runs `doorbell-lab model vic`.
pub(crate) fn vic(args: &VicArgs) -> Result<ExitCode, ToolError> {
    args.check()?;
    // Before sockets are made, so that they are removed whenever a signal arrives.
    let stop = Arc::new(AtomicBool::new(false));
    signals::set_flag_on(&ENDS, &stop).map_err(|source| ToolError::System {
        what: "listen for signals",
        source,
    })?;
    let model = Model::start(args.options(script(args)?)).map_err(refused)?;
    announce(args, &model)?;
    let end = args
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    // A fault may end it, too.
    while !stop.load(Ordering::Relaxed) && model.is_running() {
        let now = Instant::now();
        match end.map(|end| end.saturating_duration_since(now)) {
            Some(Duration::ZERO) => break,
            left => std::thread::park_timeout(left.map_or(LOOK, |left| left.min(LOOK))),
        }
    }
    let violations = model.violations().clone();
    let summary = model.stop();
    tell(args, &summary, &violations.list())?;
    let is_bad = args.strict && !summary.violations.is_empty();
    Ok(if is_bad { Exit::Verdict } else { Exit::Done }.into())
}

/// The longest script, in bytes.
const SCRIPT_MOST: u64 = 1 << 20;

/// The script of faults, if one is named.
fn script(args: &VicArgs) -> Result<String, ToolError> {
    let Some(path) = &args.script else {
        return Ok(String::new());
    };
    let wrong = |why: String| {
        let path = path.display();
        ToolError::Usage(format!("could not read the script of faults `{path}`: {why}"))
    };
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    let read = file.take(SCRIPT_MOST + 1).read_to_string(&mut text);
    match read {
        Ok(length) if length as u64 > SCRIPT_MOST => {
            Err(wrong(format!("it has more than {SCRIPT_MOST} bytes")))
        }
        Ok(_) => Ok(text),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn refused(error: Error) -> ToolError {
    match error {
        Error::Option(_) | Error::Script { .. } => ToolError::Usage(error.to_string()),
        other => ToolError::Model(other.to_string()),
    }
}

fn json(value: &impl Serialize) -> Result<String, ToolError> {
    let text = serde_json::to_string(value).map_err(|error| ToolError::System {
        what: "write what was found as JSON",
        source: io::Error::from(error),
    })?;
    Ok(text + "\n")
}

fn announce(args: &VicArgs, model: &Model) -> Result<(), ToolError> {
    let text = if args.json {
        json(&Ready {
            schema: "doorbell.model-vic/1",
            version: env!("CARGO_PKG_VERSION"),
            dir: model.dir(),
            sockets: model.sockets(),
        })?
    } else {
        let names: Vec<&str> = model
            .sockets()
            .iter()
            .map(|socket| socket.function.as_str())
            .collect();
        format!("ready: {} in {}\n", names.join(", "), model.dir().display())
    };
    console::print(&text)
}

fn tell(args: &VicArgs, summary: &Summary, list: &[Violation]) -> Result<(), ToolError> {
    let shown = &list[..list.len().min(SHOWN)];
    let not_listed = summary.violations.values().sum::<u64>() - shown.len() as u64;
    if args.json {
        return console::print(&json(&Over {
            schema: "doorbell.model-vic-end/1",
            version: env!("CARGO_PKG_VERSION"),
            summary,
            violations: shown,
            not_listed,
        })?);
    }
    let mut text = String::new();
    for (name, counters) in summary.functions.iter() {
        if !args.all && counters.is_zero() {
            continue;
        }
        text += &format!(
            "{name}: {} frames sent, {} received, {} matched no filter, {} found no buffer, {} with errors\n",
            counters.sent, counters.received, counters.dropped, counters.no_bufs, counters.errors
        );
    }
    if text.is_empty() {
        text += "no frames\n";
    }
    if summary.overflowed > 0 {
        text += &format!(
            "{} frames were lost because the script held back too many\n",
            summary.overflowed
        );
    }
    if summary.violations.is_empty() {
        text += "no violations\n";
    }
    for (kind, count) in &summary.violations {
        text += &format!("{count} x {kind}\n");
    }
    for violation in shown {
        text += &format!("  {violation}\n");
    }
    if not_listed > 0 {
        text += &format!("  and {not_listed} more; --violations FILE has the first 256 of each kind\n");
    }
    console::print(&text)
}
