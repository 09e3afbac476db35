//! PML and BTL with their driver taken out, run the given number of times, to count instructions (`cargo
//! xtask instructions`): `stack WAY MESSAGES LATENCY...`, where the way is `pingpong` or `posted`, and each
//! latency, in nanoseconds, makes a rail. Prints how many frames went over each.

#![forbid(unsafe_code)]

use std::env;
use std::process::ExitCode;

use doorbell_pair::Pair;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("stack: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let number = |word: &String| {
        word.parse::<u64>()
            .map_err(|_| format!("{word}: expected a number"))
    };
    let [way, messages, latencies @ ..] = words else {
        return Err(
            "give a way (pingpong or posted), a number of messages, and a latency for each rail".to_owned(),
        );
    };
    let messages = number(messages)?;
    let latencies = latencies.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let mut pair = Pair::over(&latencies).map_err(|error| error.to_string())?;
    for _ in 0..if way == "pingpong" { messages / 2 } else { messages } {
        let done = match way.as_str() {
            "pingpong" => pair.there_and_back(),
            "posted" => pair.exchange(),
            _ => return Err(format!("{way}: expected pingpong or posted")),
        };
        done.map_err(|error| error.to_string())?;
    }
    println!("{:?}", pair.frames());
    Ok(())
}
