//! The program behind `cargo xtask simulate`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    doorbell_simulate::command::main()
}
