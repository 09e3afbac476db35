//! What can stop a measurement, with the object, the cause and what to do next.

use std::path::PathBuf;
use std::time::Duration;

use doorbell_fabric::error::Exit;
use thiserror::Error;

/// Why a measurement could not be made or reported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A size that is not a number of bytes.
    #[error("`{given}` is not a message size: {reason}; give bytes, as in `--sizes 8,64,4Ki,1Mi`")]
    BadSize {
        /// What was given.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A plan that cannot be carried out.
    #[error("{what} cannot be measured: {reason}")]
    BadPlan {
        /// The setting that is refused.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The world could not be made, or a message was lost with its peer.
    #[error("{}", sentence(.source))]
    World {
        /// The engine's error.
        #[from]
        source: doorbell::Error,
    },
    /// The other rank sent a message that this version does not understand.
    #[error(
        "rank {rank} answered out of order ({what}): both ranks have to run the same version of doorbell"
    )]
    Disorder {
        /// The rank that answered.
        rank: u32,
        /// What was expected or found.
        what: String,
    },
    /// A message arrived with the wrong length or contents.
    #[error("rank {from} sent {expected} bytes and {found} arrived: the rail `{rail}` damages messages")]
    Damaged {
        /// The rank that sent the message.
        from: u32,
        /// Number of bytes sent.
        expected: usize,
        /// Number of bytes received.
        found: usize,
        /// The rail that carried it.
        rail: String,
    },
    /// A core that the process may not use.
    #[error("core {core} cannot be used: {reason}; allowed here: {allowed}")]
    Core {
        /// The core's number.
        core: usize,
        /// Why it cannot be used.
        reason: &'static str,
        /// The cores that can be used.
        allowed: String,
    },
    /// The system binds no thread.
    #[error(
        "could not bind to core {core}: {source}; {}",
        doorbell_fabric::error::advice(source).unwrap_or("measure without binding")
    )]
    Bind {
        /// The number of the core.
        core: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// The shared page of the bare exchange could not be shared.
    #[error("the page for the bare cache-line exchange could not be shared: {0}")]
    Baseline(#[from] doorbell_fabric::error::RailError),
    /// A plot of a kind that is not offered.
    #[error("`{}` cannot be plotted to: give a name that ends in .svg or .html", path.display())]
    PlotKind {
        /// The file to be written.
        path: PathBuf,
    },
    /// A file that is no report.
    #[error("`{}` is not a report to compare: {reason}; make one with `doorbell pingpong --json FILE`", path.display())]
    BadReport {
        /// The file that was given.
        path: PathBuf,
        /// Why it is not a report.
        reason: String,
    },
    /// Two reports of different things.
    #[error(
        "`{}` and `{}` cannot be compared: {reason}; measure both in the same way", first.display(), second.display()
    )]
    Unlike {
        /// The first report.
        first: PathBuf,
        /// The second one.
        second: PathBuf,
        /// The difference between them.
        reason: String,
    },
    /// A picture could not be drawn: not a matter of the data, which are kept in the report.
    #[error("the plot could not be drawn: {0}")]
    Plot(String),
    /// A child process of a measurement failed.
    #[error("the measurement `{command}` ended with {status}: {said}")]
    Child {
        /// What was run.
        command: String,
        /// How it ended.
        status: String,
        /// The last line of its output.
        said: String,
        /// The meaning of its exit status.
        exit: Exit,
    },
    /// The other rank went away in the middle of a measurement that no rail carries.
    #[error("the other rank stopped answering during {what}: it has ended or hangs; look at its own output")]
    Silent {
        /// The measurement that was interrupted.
        what: &'static str,
    },
    /// A deadline passed in the middle of a measurement, and nothing was lost.
    #[error(
        "deadline passed: no answer came within {:.1} s during {what}; the other side hangs, is stopped or has too little \
         time: look at its own output", waited.as_secs_f64()
    )]
    Late {
        /// The measurement that was interrupted.
        what: &'static str,
        /// The deadline of the wait.
        waited: Duration,
    },
    /// The answering side received no request.
    #[error("no request came within {:.0} s: start the side that sends while this one waits, and check both addresses",
        waited.as_secs_f64())]
    NoRequest {
        /// How long was waited.
        waited: Duration,
    },
    /// The buffers of a message size could not be allocated.
    #[error(
        "there is no memory for a buffer of {bytes} bytes: measure smaller messages, or raise the limit (`ulimit -v`)"
    )]
    NoMemory {
        /// Bytes of the buffer.
        bytes: usize,
    },
    /// A thread of a measurement could not be started or did not come back.
    #[error("`{what}` could not be measured: {reason}")]
    Thread {
        /// The measurement that could not be made.
        what: &'static str,
        /// Why it could not be made.
        reason: String,
    },
}

impl BenchError {
    /// Whether a deadline passed: in a loop of stamped messages, one may be lost.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::World {
                source: doorbell::Error::Timeout(_)
            } | Self::Silent { .. }
                | Self::Late { .. }
        )
    }

    /// Whether a message arrived that is longer than the buffer for it.
    pub fn is_too_long(&self) -> bool {
        matches!(
            self,
            Self::World {
                source: doorbell::Error::Truncated { .. }
            }
        )
    }
}

/// Formats an error of the engine as one sentence: what failed, and what to do next, unless the error names
/// it already.
pub fn sentence(error: &doorbell::Error) -> String {
    error.sentence()
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::error::RailError;
    use std::io;

    #[test]
    fn a_remedy_is_printed_once() {
        let io = doorbell::Error::Io {
            step: "listen",
            object: "@root".into(),
            source: io::Error::other("no"),
            remedy: "try again",
        };
        assert_eq!(sentence(&io), "could not listen (@root): no; try again");
        let rail = doorbell::Error::Rail(RailError::NoRail {
            peer: "rank 1".into(),
            reasons: vec!["none".into()],
        });
        assert_eq!(sentence(&rail).matches("doorbell info").count(), 1);
        let none = doorbell::Error::NoRail {
            peer: 1,
            reasons: "shm: off".into(),
        };
        assert!(sentence(&none).ends_with("; `doorbell info` lists every rail with its verdict and reason"));
        let lost = doorbell::Error::PeerLost {
            peer: 1,
            why: "it did not answer".into(),
            what: "a send".into(),
            recent: vec!["udp:eth0 recorded:".into(), "1 s before: down".into()],
            remedy: "look at its output",
        };
        let lines: Vec<String> = sentence(&lost).lines().map(str::to_owned).collect();
        assert!(lines.len() == 3 && lines[0].ends_with(lost.remedy()), "{lines:?}");
    }
}
