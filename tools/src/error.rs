//! Why a command failed: one sentence, and the number to end with.

use std::io;

use doorbell_bench::error::BenchError;
use doorbell_fabric::error::{Exit, RailError};
use thiserror::Error;

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum ToolError {
    /// A measurement.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The engine.
    #[error("{source}; {}", .source.remedy())]
    World {
        /// Its error.
        #[from]
        source: doorbell::Error,
    },
    /// The standard output is closed or full.
    #[error("could not write to the standard output: {0}")]
    Output(io::Error),
    /// A setting of the command line that does not fit the others.
    #[error("{0}")]
    Usage(String),
    /// A rank could not be started.
    #[error("could not start rank {rank} ({what}): {source}; check `ulimit -u` and `ulimit -n`")]
    Start {
        /// The rank.
        rank: u32,
        /// The step.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused something that is not about one rank.
    #[error("could not {what}: {source}")]
    System {
        /// The step.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl ToolError {
    /// Whether somebody closed our output: the reader has what it wanted.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        match self {
            Self::Output(error) => closed(error),
            Self::Bench(BenchError::Write { path, source }) => path.as_os_str() == "-" && closed(source),
            _ => false,
        }
    }

    /// The number to end with (the table stands at [`Exit`]).
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::World { source } => of_world(source),
            Self::Output(_) | Self::Start { .. } | Self::System { .. } => Exit::System,
            Self::Bench(error) => match error {
                BenchError::BadSize { .. }
                | BenchError::BadPlan { .. }
                | BenchError::Core { .. }
                | BenchError::PlotKind { .. } => Exit::Usage,
                BenchError::World { source } => of_world(source),
                BenchError::Bare(error) => error.exit(),
                BenchError::Disorder { .. } | BenchError::Damaged { .. } | BenchError::Silent { .. } => {
                    Exit::PeerLost
                }
                BenchError::Child { exit, .. } => *exit,
                _ => Exit::System,
            },
        }
    }
}

fn of_world(error: &doorbell::Error) -> Exit {
    if let doorbell::Error::Rail(error) = error {
        return error.exit();
    }
    let code = error.code();
    match code.split('.').next().unwrap_or(code) {
        "config" | "rank" | "layout" => Exit::Usage,
        "progress" if code == "progress.core" => Exit::Usage,
        "rail" | "unsupported" => Exit::Rail,
        "peer" | "one-sided" => Exit::PeerLost,
        "timeout" => Exit::TimedOut,
        "job" if code == "job.description" => Exit::Usage,
        "job" if code == "job.meeting" => Exit::PeerLost,
        "job" => Exit::TimedOut,
        _ => Exit::System,
    }
}

impl From<RailError> for ToolError {
    fn from(error: RailError) -> Self {
        Self::Bench(BenchError::Bare(error))
    }
}
