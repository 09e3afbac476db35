//! Tests of the whole rail, within one process.
