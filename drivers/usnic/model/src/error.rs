//! Why a model cannot be started.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a model cannot be started, in one sentence.
#[derive(Debug, Error)]
pub enum Error {
    /// An option that does not fit.
    #[error("{0}")]
    Option(String),
    /// The folder of the sockets.
    #[error("could not {what} `{}`: {source}; name another folder with `--dir`", path.display())]
    Folder {
        /// The step that failed.
        what: &'static str,
        /// The folder or socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file of violations.
    #[error(
        "could not write violations to `{}`: {source}; name a file in a folder that is there and yours with `--violations`", path.display()
    )]
    File {
        /// The file that failed.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another model serves there.
    #[error(
        "another process serves `{}` already, or it is no socket; end it, or name another folder with `--dir`", path.display()
    )]
    Occupied {
        /// The socket that is taken.
        path: PathBuf,
    },
    /// Memory, threads or descriptors.
    #[error("could not {what}: {source}; check `ulimit -n`, `ulimit -u` and the free memory")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The bridge to a kernel.
    #[error(
        "could not bridge to `{name}`: {source}; check that the interface exists, and that this process may (CAP_NET_RAW, CAP_NET_ADMIN for a tap)"
    )]
    Bridge {
        /// The name of the interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// A script of faults.
    #[error("line {line} of the script of faults: {why}")]
    Script {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}
