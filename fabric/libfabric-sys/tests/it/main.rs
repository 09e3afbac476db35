//! What the crate promises, against the tables of five releases.

mod tables;
