//! The tagged calls.
