//! Errors of commands: one sentence, and the exit status.

use std::io;
use std::path::PathBuf;

use doorbell::oob::OobError;
use doorbell_acm::carrier::CarrierError;
use doorbell_acm::serve::ServeError;
use doorbell_acm::service::ServiceError;
use doorbell_bench::error::{BenchError, sentence};
use doorbell_fabric::error::{Exit, RailError, advice};
use rustix::io::Errno;
use thiserror::Error;

/// Where the system's reason does not name the limit, one of these two is the likely one.
const PROCESSES: &str = "check `ulimit -u` and `ulimit -n`, and pids.max of the container's cgroup";

/// The advice that belongs to the system's reason, as the rest of a sentence.
fn behind(source: &io::Error) -> String {
    let known = match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => Some(PROCESSES),
        _ => advice(source),
    };
    known.map_or_else(String::new, |advice| format!("; {advice}"))
}

/// Returns what to do about a file that could not be written. [`advice`] is about shared objects and system
/// calls, whose reasons mean something else here.
fn about_file(source: &io::Error) -> &'static str {
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::FBIG) => advice(source).unwrap_or_default(),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            "check its permissions (`ls -l`), and that neither it nor its file system is read-only \
             (`lsattr`, `findmnt`)"
        }
        _ => "check that there is room (`df -h`)",
    }
}

/// The text of an error about rails between hosts with what to do there; the lines below its sentence, one
/// for each rail, stay below it.
fn no_way(said: &str) -> String {
    const NEXT: &str = "between hosts, a rail has to be named on both sides, on an interface that reaches the \
                        other: `--rail udp:INTERFACE` with `--serve` and with `--connect` (`doorbell info` lists them)";
    match said.split_once('\n') {
        Some((sentence, lines)) => format!("{}; {NEXT}:\n{lines}", sentence.trim_end_matches(':')),
        None => format!("{said}; {NEXT}"),
    }
}

/// The reason why a command failed.
#[derive(Debug, Error)]
pub enum ToolError {
    /// A measurement failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The engine reported an error.
    #[error("{}", sentence(.source))]
    World {
        /// The engine's own error.
        #[from]
        source: doorbell::Error,
    },
    /// A key, an address, or the connection to another host.
    #[error(transparent)]
    Oob(#[from] OobError),
    /// An address service that was queried reported an error.
    #[error(transparent)]
    Acm(#[from] doorbell_acm::client::ClientError),
    /// An address service that cannot serve.
    #[error(transparent)]
    AcmService(ServiceError),
    /// An address service whose state cannot be shown.
    #[error("{0}")]
    AcmWatch(String),
    /// A model of a device failed.
    #[error("{0}")]
    Model(String),
    /// A rail that cannot be used.
    #[error(transparent)]
    Rail(#[from] RailError),
    /// The standard output is closed or full.
    #[error("could not write to the standard output: {0}; {advice}", advice = about_file(.0))]
    Output(io::Error),
    /// An output file could not be written after all.
    #[error("could not write `{}`: {source}; {}", path.display(), about_file(source))]
    Write {
        /// The file that could not be written.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Two hosts without a common rail.
    #[error("{}", no_way(said))]
    NoWay {
        /// The engine's text for it.
        said: String,
    },
    /// A setting of the command line that does not fit the others.
    #[error("{0}")]
    Usage(String),
    /// A program that was started for a measurement did not come to its end.
    #[error("{0}")]
    Stopped(String),
    /// A rank could not be started.
    #[error("could not start rank {rank} ({what}): {source}; {}", advice(source).unwrap_or(PROCESSES))]
    Start {
        /// The rank that did not start.
        rank: u32,
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused something that is not about one rank.
    #[error("could not {what}: {source}{}", behind(source))]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl ToolError {
    /// Whether our output was closed by its reader, which has what it wanted.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The number to end with (the table is at [`Exit`]).
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::World { source } => source.exit(),
            Self::Oob(error) => error.exit(),
            Self::Rail(error) => error.exit(),
            Self::NoWay { .. } => Exit::Rail,
            Self::Acm(error) => acm(error),
            Self::Stopped(_) => Exit::TimedOut,
            Self::AcmService(ServiceError::Serve(ServeError::File { source, .. })) => {
                Exit::of_named_file(source)
            }
            Self::AcmService(ServiceError::Carrier(CarrierError::NoTags)) => Exit::Usage,
            Self::AcmService(ServiceError::NoneServed { .. }) => Exit::Rail,
            Self::AcmService(_)
            | Self::AcmWatch(_)
            | Self::Model(_)
            | Self::Output(_)
            | Self::Write { .. }
            | Self::Start { .. }
            | Self::System { .. } => Exit::System,
            Self::Bench(error) => match error {
                BenchError::BadSize { .. }
                | BenchError::BadPlan { .. }
                | BenchError::Core { .. }
                | BenchError::PlotKind { .. }
                | BenchError::BadReport { .. }
                | BenchError::Unlike { .. } => Exit::Usage,
                BenchError::World { source } => source.exit(),
                BenchError::Baseline(error) => error.exit(),
                BenchError::Disorder { .. } | BenchError::Damaged { .. } | BenchError::Silent { .. } => {
                    Exit::PeerLost
                }
                BenchError::Late { .. } | BenchError::NoRequest { .. } => Exit::TimedOut,
                BenchError::Child { exit, .. } => *exit,
                _ => Exit::System,
            },
        }
    }
}

/// The number to end with when an address service did not help.
pub fn acm(error: &doorbell_acm::client::ClientError) -> Exit {
    use doorbell_acm::client::ClientError;
    match error {
        ClientError::Service { .. } => Exit::Usage,
        ClientError::Refused { .. } => Exit::Verdict,
        ClientError::Late { .. } => Exit::TimedOut,
        _ => Exit::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_several_rails_stay_below_the_sentence() {
        let of = |said: &str| {
            ToolError::NoWay {
                said: said.to_owned(),
            }
            .to_string()
        };
        assert!(of("no rail reaches b: x").starts_with("no rail reaches b: x; between hosts, a rail"));
        let several = of("no rail reaches b (see info):\n  `shm`: x\n  `udp:lo`: y");
        let lines: Vec<&str> = several.lines().collect();
        assert!(
            lines[0].starts_with("no rail reaches b (see info); between hosts, a rail")
                && lines[0].ends_with("):"),
            "{several}"
        );
        assert_eq!(lines[1..], ["  `shm`: x", "  `udp:lo`: y"]);
    }

    #[test]
    fn a_file_that_cannot_be_written_has_the_advice_of_files() {
        for (errno, word) in [
            (Errno::NOSPC, "check that there is room"),
            (Errno::DQUOT, "check that there is room"),
            (Errno::PERM, "lsattr"),
            (Errno::ACCESS, "permissions"),
            (Errno::ROFS, "findmnt"),
            (Errno::FBIG, "ulimit -f"),
        ] {
            let source = || io::Error::from(errno);
            let file = ToolError::Write {
                path: PathBuf::from("x.json"),
                source: source(),
            };
            for error in [ToolError::Output(source()), file] {
                let said = error.to_string();
                assert!(said.contains(word), "{said}");
                assert!(
                    !said.contains("backs shared") && !said.contains("seccomp"),
                    "{said}"
                );
            }
        }
    }
}
