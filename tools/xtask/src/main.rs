//! `cargo xtask`; the commands are in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // Without these handlers, all that follows is as good.
    let _ = doorbell_fabric::signals::of_a_program();
    xtask::main()
}
