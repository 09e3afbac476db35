//! `doorbell acm`: resolves names and addresses to paths.
//!
//! | file | job |
//! |---|---|
//! | `args` | the command line |
//! | `serve` | the service |
//! | `resolve`, `perf`, `endpoints` | its clients |
//! | `config` | its configuration, for this host |
//! | `watch` | its state |
//! | `log` | the destination of the service's log |
//! | `load` | many clients, timed |
//! | `written` | addresses in text form |

pub(crate) mod args;
mod config;
mod endpoints;
mod load;
mod log;
mod perf;
mod resolve;
mod serve;
mod watch;
mod written;

use std::process::ExitCode;
use std::time::Duration;

use doorbell_acm::client::{Client, ClientError, Service};
use doorbell_acm::serve::SocketPaths;

use self::args::{AcmArgs, AcmCommand};
use crate::error::ToolError;

/// Limit of queries that a service answers at once.
const SOON: Duration = Duration::from_secs(10);

/// Runs `doorbell acm`.
pub(crate) fn acm(args: &AcmArgs) -> Result<ExitCode, ToolError> {
    match &args.command {
        AcmCommand::Serve(args) => serve::serve(args),
        AcmCommand::Resolve(args) => resolve::resolve(args),
        AcmCommand::Perf(args) => perf::perf(args),
        AcmCommand::Endpoints(args) => endpoints::endpoints(args),
        AcmCommand::Config(args) => config::config(args),
        AcmCommand::Watch(args) => watch::watch(args),
        AcmCommand::Load(args) => load::load(args),
    }
}

/// Returns the service that is named.
fn service(named: Option<&str>) -> Result<Service, ClientError> {
    Service::of(named, &SocketPaths::default())
}

/// Connects to the service that is named.
fn client(named: Option<&str>) -> Result<Client, ClientError> {
    Client::connect(&service(named)?, SOON)
}

/// Formats a report as JSON.
fn json(report: &impl serde::Serialize) -> String {
    // Only strings and numbers: serialising into memory cannot fail.
    serde_json::to_string_pretty(report).expect("a report is plain data") + "\n"
}
