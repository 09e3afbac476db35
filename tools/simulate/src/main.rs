//! The program behind `cargo xtask simulate`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // Without these handlers, all that follows is as good.
    let _ = doorbell_fabric::signals::of_a_program();
    doorbell_simulate::command::main()
}
