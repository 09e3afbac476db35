//! `doorbell acm`: resolves names and addresses to paths.
//!
//! | file | job |
//! |---|---|
//! | `args` | the command line |
//! | `serve` | the service |
//! | `resolve`, `endpoints` | its clients |
//! | `config` | its configuration, for this host |
//! | `watch` | its state |
//! | `log` | the destination of the service's log |
//! | `written` | addresses in text form |

pub(crate) mod args;
mod config;
mod endpoints;
mod log;
mod resolve;
mod serve;
mod watch;
pub mod written;

use std::process::ExitCode;
use std::time::Duration;

use doorbell_acm::client::{Client, ClientError, Service};
use doorbell_acm::serve::SocketPaths;

use self::args::{AcmArgs, AcmCommand};
use crate::error::ToolError;

pub use self::args::Format;

/// Limit of queries that a service answers at once.
pub const SOON: Duration = Duration::from_secs(10);

/// Runs `doorbell acm`.
pub(crate) fn acm(args: &AcmArgs) -> Result<ExitCode, ToolError> {
    match &args.command {
        AcmCommand::Serve(args) => serve::serve(args),
        AcmCommand::Resolve(args) => resolve::resolve(args),
        AcmCommand::Endpoints(args) => endpoints::endpoints(args),
        AcmCommand::Config(args) => config::config(args),
        AcmCommand::Watch(args) => watch::watch(args),
    }
}

/// Returns the service that is named.
///
/// # Errors
/// If the name is no service's, or none is there.
pub fn service(named: Option<&str>) -> Result<Service, ClientError> {
    Service::of(named, &SocketPaths::default())
}

/// Connects to the service that is named.
///
/// # Errors
/// If it is not there, or does not answer.
pub fn client(named: Option<&str>) -> Result<Client, ClientError> {
    Client::connect(&service(named)?, SOON)
}

/// Formats a report as JSON.
///
/// # Panics
/// If the report is not plain data.
pub fn json(report: &impl serde::Serialize) -> String {
    // Only strings and numbers: serialising into memory cannot fail.
    serde_json::to_string_pretty(report).expect("a report is plain data") + "\n"
}
