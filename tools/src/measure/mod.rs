//! `doorbell pingpong`, `stream` and `rate`: one command line, and four programs that it may be.
//!
//! | file | which program | when |
//! |---|---|---|
//! | `starter` | starts two ranks of itself, and waits for them | nothing else is the case |
//! | `rank` | one of those, or a rank of `doorbell run` or another launcher | the environment has a rank |
//! | `server` | serves other hosts, one measurement after another | `--serve` |
//! | `client` | measures with a server | `--connect` |
//!
//! `rank` and `client` end in `part`, which measures and shows the report. `hosts` is what `server` and
//! `client` share, `settings` what all four read, and `layer` the job of whichever layer carries the
//! messages.

pub(crate) mod args;
mod bar;
mod client;
mod hosts;
mod launched;
mod layer;
mod part;
mod rank;
mod server;
mod settings;
mod starter;

use std::path::Path;
use std::process::ExitCode;

use doorbell_bench::plan::{Asked as Rate, Kind, Plan};
use doorbell_bench::report::Picture;

use self::args::{MeasureArgs, PingpongArgs, RateArgs, StreamArgs};
use self::settings::Threads;
use crate::error::ToolError;
use crate::report_files;

pub use self::args::ModeArg;
pub(crate) use self::settings::with_rails;

/// A measurement, as the command line has it.
struct Asked<'a> {
    plan: Plan,
    args: &'a MeasureArgs,
    /// Outputs that only latencies have.
    hgrm: Option<&'a Path>,
    hlog: Option<&'a Path>,
}

/// Runs `doorbell pingpong`: latency, one message to and fro.
pub(crate) fn pingpong(args: &PingpongArgs) -> Result<ExitCode, ToolError> {
    let rate = args.rate.map(Rate::PerSecond);
    let plan = Plan {
        open: rate.or(args.open_loop.then_some(Rate::Knee)),
        one_way: args.one_way,
        ..plan(Kind::Pingpong, &args.all)
    };
    measure(&Asked {
        plan,
        args: &args.all,
        hgrm: args.hgrm.as_deref(),
        hlog: args.hlog.as_deref(),
    })
}

/// Runs `doorbell stream`: bandwidth, a window of messages in one direction.
pub(crate) fn stream(args: &StreamArgs) -> Result<ExitCode, ToolError> {
    let plan = Plan {
        window: args.window as usize,
        plain: args.plain,
        ..plan(Kind::Stream, &args.all)
    };
    measure(&one_way(plan, &args.all))
}

/// Runs `doorbell rate`: messages per second, in one direction.
pub(crate) fn rate(args: &RateArgs) -> Result<ExitCode, ToolError> {
    let plan = Plan {
        window: args.posted.unwrap_or(args.window) as usize,
        posted: args.posted.is_some(),
        plain: args.plain,
        ..plan(Kind::Rate, &args.all)
    };
    measure(&one_way(plan, &args.all))
}

fn one_way(plan: Plan, args: &MeasureArgs) -> Asked<'_> {
    Asked {
        plan,
        args,
        hgrm: None,
        hlog: None,
    }
}

/// Becomes the program that the options and the environment select.
fn measure(asked: &Asked<'_>) -> Result<ExitCode, ToolError> {
    let args = asked.args;
    asked.plan.check()?;
    let threads = Threads::of(args)?;
    if let Some(name) = &args.plot {
        Picture::of(name)?;
    }
    let member = launched::member()?;
    hosts::refuse_without_serve(&args.hosts)?;
    if args.hosts.serve {
        server::serve(asked, threads)
    } else if let Some(to) = &args.hosts.connect {
        client::connect(asked, to, threads)
    } else if let Some(member) = member {
        rank::join(asked, member, threads)
    } else {
        starter::start(asked, threads)
    }
}

fn plan(kind: Kind, args: &MeasureArgs) -> Plan {
    let defaults = Plan::new(kind);
    Plan {
        sizes: if args.sizes.is_empty() {
            defaults.sizes
        } else {
            args.sizes.clone()
        },
        seconds: args.seconds,
        samples: args.samples,
        reference: !args.no_reference,
        verify: args.verify,
        spoil: args.spoil,
        layer: args.layer.layer(),
        ..defaults
    }
}

impl Asked<'_> {
    /// Refuses a capture that cannot be written for one of these ranks.
    fn check_captures(&self, ranks: &[u32]) -> Result<(), ToolError> {
        match &self.args.pcap {
            Some(name) => report_files::check_captures(name, ranks, &self.outputs()),
            None => Ok(()),
        }
    }

    /// The outputs, by their flags.
    fn outputs(&self) -> Vec<report_files::Named<'_>> {
        let args = self.args;
        let all = [
            ("--json", args.json.as_deref()),
            ("--csv", args.csv.as_deref()),
            ("--hgrm", self.hgrm),
            ("--hlog", self.hlog),
            ("--plot", args.plot.as_deref()),
        ];
        all.into_iter()
            .filter_map(|(flag, name)| Some((flag, name?)))
            .collect()
    }
}
