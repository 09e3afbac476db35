//! What a run can find wrong.

use std::path::PathBuf;

use doorbell_fabric::time::Time;
use thiserror::Error;

use crate::class::Class;
use crate::job::Stack;

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Kind {
    /// Bytes that nobody sent, or that are not those that were sent.
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
    /// A call failed, or something is left over at the end.
    #[error("{0}")]
    Other(String),
    /// A panic.
    #[error("a panic: {0}")]
    Panic(String),
}

/// A run that found something wrong, and how to see it again.
#[derive(Debug, Error)]
#[error(
    "seed {seed}, fault {class}, at {at} of virtual time: {kind}\n\
     again: cargo xtask simulate --seed {seed} --fault {class} --messages {messages} --stack {stack}{capture}",
    stack = .stack.name(),
    capture = .capture.as_ref().map(|path| format!("\nits end as a capture: {}", path.display())).unwrap_or_default()
)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The class of faults.
    pub class: Class,
    /// What it ran on.
    pub stack: Stack,
    /// Messages of the job.
    pub messages: usize,
    /// The virtual time when it was found.
    pub at: Time,
    /// What it is.
    pub kind: Kind,
    /// The capture of its last moments, where one could be written.
    pub capture: Option<PathBuf>,
}
