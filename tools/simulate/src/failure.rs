//! What a run can find wrong.

use std::path::PathBuf;

use doorbell_fabric::time::Time;
use thiserror::Error;

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Kind {
    /// Bytes that were never sent, or that are not those that were sent.
    #[error("corrupt: {0}")]
    Corrupt(String),
    /// A message that was delivered before.
    #[error("delivered twice: {0}")]
    Twice(String),
    /// A receive got a message that another should have had.
    #[error("out of order: {0}")]
    Misordered(String),
    /// Nothing is delivered any more, and messages are missing.
    #[error("lost: {0}")]
    Lost(String),
    /// Something waits for longer than anything may.
    #[error("a wait that does not end: {0}")]
    Endless(String),
    /// A call failed, or something is left over at the end.
    #[error("{0}")]
    Other(String),
    /// A panic, with its text.
    #[error("a panic: {0}")]
    Panic(String),
}

/// A run that found something wrong, and how to see it again.
#[derive(Debug, Error)]
#[error(
    "{run}, at {at} of its clock: {kind}\n\
     again: cargo xtask simulate {again}{capture}",
    capture = .capture.as_ref().map(|path| format!("\nits end as a capture: {}", path.display())).unwrap_or_default()
)]
pub struct Failure {
    /// Which seed, over what.
    pub run: String,
    /// The words of the command that plays it again.
    pub again: String,
    /// When it was found, on the clock of the run: a virtual one, but for usnic rails.
    pub at: Time,
    /// What it is.
    pub kind: Kind,
    /// The capture of its last moments, where one could be written.
    pub capture: Option<PathBuf>,
}
