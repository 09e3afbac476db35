//! The program `doorbell-lab` from outside: every command, its output, its exit statuses, and what it leaves
//! behind.

mod budgets;
#[path = "../../../tests/it/common.rs"]
#[expect(dead_code, reason = "the tests of `doorbell` use the rest")]
mod common;
mod help;
mod model;
mod mpi_pair;
mod peers;
mod picture;
mod raw_udp;
mod scaling;

use assert_cmd::Command;

/// The program, as [`common::clean`] has it.
fn lab() -> Command {
    common::clean(env!("CARGO_BIN_EXE_doorbell-lab").into())
}
