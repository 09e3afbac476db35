//! What can go wrong in a developer's command, as opposed to what such a command finds.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A command that could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The current directory lies in no workspace.
    #[error("no Cargo.toml with [workspace] in {0} or above it; run this inside a checkout of doorbell")]
    NoWorkspace(PathBuf),
    /// `cargo metadata` failed.
    #[error(
        "cargo metadata cannot read {manifest}: {source}; `cargo metadata --no-deps` there shows the cause"
    )]
    Metadata {
        /// The manifest that was to be read.
        manifest: PathBuf,
        /// The error that cargo reported.
        source: Box<cargo_metadata::Error>,
    },
    /// A file or folder could not be read or written.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// What was tried: "read", "create".
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {program}: {source}; is it installed and on PATH?")]
    Start {
        /// The program's name.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// A signal handler could not be set.
    #[error("cannot listen for SIGINT and SIGTERM: {0}")]
    Signals(io::Error),
    /// `--only` named a step that does not exist.
    #[error("there is no step {asked:?}; the steps are: {known}")]
    UnknownStep {
        /// The name that was given.
        asked: String,
        /// All names, separated by commas.
        known: String,
    },
    /// `fuzz` named a target that does not exist.
    #[error("there is no target {asked:?}; the targets are: {known}")]
    UnknownTarget {
        /// The name that was given.
        asked: String,
        /// All names, separated by commas.
        known: String,
    },
    /// `--replay` names an input of one target.
    #[error("--replay runs one input of one target, and {0} targets were named")]
    OneTarget(usize),
    /// `prose --since` names a revision that git cannot compare with.
    #[error("git cannot compare the tree with {revision}: {reason}")]
    Revision {
        /// The revision as given on the command line.
        revision: String,
        /// The message that git printed.
        reason: String,
    },
    /// One of our threads panicked.
    #[error("a thread that ran fuzzers panicked; its message is above")]
    Worker,
    /// The user pressed Ctrl-C, or the process received a signal to end.
    #[error("interrupted after {0:?}; the running step and all its processes were ended")]
    Interrupted(Duration),
    /// Two hosts to measure between could not be set up.
    #[error("{0}")]
    Lab(String),
    /// Headers of libfabric could not be measured.
    #[error("{0}")]
    Headers(String),
    /// The provider could not be built or loaded.
    #[error("{0}")]
    Provider(String),
    /// What has changed could not be found out.
    #[error("{0}")]
    Changed(String),
    /// A program printed something that we do not understand.
    #[error("{program} printed no line {wanted:?}; is it a Rust toolchain?")]
    Unreadable {
        /// The program's name.
        program: &'static str,
        /// What was looked for.
        wanted: &'static str,
    },
}

impl Error {
    /// Returns a [`File`](Self::File) error, for `map_err`.
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}
