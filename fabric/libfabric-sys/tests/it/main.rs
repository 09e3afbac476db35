//! What the crate promises, against the tables of five releases and made-up objects.

mod calls;
mod tables;
