//! The program behind `cargo xtask soak`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    doorbell_simulate::soak::main()
}
