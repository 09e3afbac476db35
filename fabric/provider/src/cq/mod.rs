//! Completion queues and their entries.

/// The completion queues of a domain.
#[derive(Debug, Default)]
pub(crate) struct Queues {}
