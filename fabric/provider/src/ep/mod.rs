//! Endpoints: binding, options, names.

/// The endpoints of a domain, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {}
