//! PML and BTL with their driver taken out, run the given number of times, to count instructions (`cargo
//! xtask instructions`): `stack WAY MESSAGES LATENCY...`, where the way is `pingpong` or `posted`, and each
//! latency, in nanoseconds, makes a rail. Prints how many frames went over each.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use doorbell_pair::{Pair, number, program};

fn main() -> ExitCode {
    program("stack", run)
}

fn run(words: &[String]) -> Result<(), String> {
    let [way, messages, latencies @ ..] = words else {
        return Err(
            "give a way (pingpong or posted), a number of messages, and a latency for each rail".to_owned(),
        );
    };
    let messages = number(messages)?;
    let latencies = latencies.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let mut pair = Pair::over(&latencies).map_err(|error| error.to_string())?;
    pair.deliver(way, messages)?;
    println!("{:?}", pair.frames());
    Ok(())
}
