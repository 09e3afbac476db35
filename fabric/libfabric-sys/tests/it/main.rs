//! What the crate promises, against the tables of five releases, made-up objects and the installed libfabric.

mod calls;
mod exchange;
mod installed;
mod opened;
mod tables;
