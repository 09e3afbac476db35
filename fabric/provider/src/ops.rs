//! Operations in flight: what is kept beside each request of the PML.

/// The operations of a domain, by the slots of their requests.
#[derive(Debug, Default)]
pub(crate) struct Operations {}
