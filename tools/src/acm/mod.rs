//! `doorbell acm`: names and addresses become paths.
//!
//! | file | job |
//! |---|---|
//! | `args` | the command line |
//! | `serve` | the service |
//! | `resolve`, `perf`, `endpoints` | its clients |
//! | `config` | its configuration, for this host |
//! | `watch` | what it knows and does |
//! | `log` | where the service's lines go |
//! | `load` | many clients, timed |
//! | `written` | addresses as people write them |

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

/// For answers that a service has at once.
const SOON: Duration = Duration::from_secs(10);

/// `doorbell acm`.
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

/// The service that is meant.
fn service(named: Option<&str>) -> Result<Service, ClientError> {
    Service::of(named, &SocketPaths::default())
}

/// A connection to it.
fn client(named: Option<&str>) -> Result<Client, ClientError> {
    Client::connect(&service(named)?, SOON)
}

/// A report as JSON.
fn json(report: &impl serde::Serialize) -> String {
    // Strings and numbers only: writing them into memory cannot fail.
    serde_json::to_string_pretty(report).expect("a report is plain data") + "\n"
}
