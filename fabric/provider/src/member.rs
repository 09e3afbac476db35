//! The member of a domain: its rails, its PML and its listener.

/// The owner of the rails.
#[derive(Debug)]
pub(crate) struct Member;
