//! The untagged calls.
