//! Cooperative copy: the reader and the owner of the memory copy one long read together.

pub(crate) mod owner;
pub(crate) mod reader;
pub(crate) mod state;
