//! The PML over rails that are messages themselves, run the given number of times, to count instructions
//! (`cargo xtask instructions`): `rails WAY MESSAGES RAIL`, where the way is `pingpong` or `posted`, and the
//! rail `shm`, or `verbs` over the model of its library, whose functions are in the model's module.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use doorbell_pair::{Pair, number, program};
use doorbell_shm::{ShmConfig, ShmRail};
use doorbell_verbs::RcRail;

fn main() -> ExitCode {
    program("rails", run)
}

fn run(words: &[String]) -> Result<(), String> {
    let [way, messages, rail] = words else {
        return Err(
            "give a way (pingpong or posted), a number of messages, and a rail (shm or verbs)".to_owned(),
        );
    };
    let messages = number(messages)?;
    match rail.as_str() {
        "shm" => shm().map_err(|error| error.to_string())?.deliver(way, messages),
        "verbs" => verbs()?.deliver(way, messages),
        _ => Err(format!("{rail}: expected shm or verbs")),
    }
}

fn shm() -> Result<Pair<ShmRail>, Box<dyn std::error::Error>> {
    let config = ShmConfig::default();
    let open = || -> Result<_, Box<dyn std::error::Error>> {
        let rail = ShmRail::open(&"shm".parse()?, &config)?;
        let life = rail.incarnation();
        Ok((rail, life))
    };
    Ok(Pair::between([open()?, open()?])?)
}

fn verbs() -> Result<Pair<RcRail>, String> {
    let rails = doorbell_verbs::model::rails().map_err(|error| error.to_string())?;
    let rails = rails.map(|rail| {
        let life = rail.incarnation();
        (rail, life)
    });
    Pair::between(rails).map_err(|error| error.to_string())
}
