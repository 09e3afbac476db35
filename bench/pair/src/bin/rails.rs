//! The PML over rails that are messages themselves, run the given number of times, to count instructions
//! (`cargo xtask instructions`): `rails WAY MESSAGES RAIL`, where the way is `pingpong` or `posted`, and the
//! rail `shm`, or `verbs` over the model of its library, whose functions are in the model's module.

#![forbid(unsafe_code)]

use std::env;
use std::process::ExitCode;

use doorbell_fabric::message::Message;
use doorbell_pair::{Failed, Pair};
use doorbell_shm::{ShmConfig, ShmRail};
use doorbell_verbs::RcRail;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("rails: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let [way, messages, rail] = words else {
        return Err(
            "give a way (pingpong or posted), a number of messages, and a rail (shm or verbs)".to_owned(),
        );
    };
    let messages = messages
        .parse()
        .map_err(|_| format!("{messages}: expected a number"))?;
    let done = match rail.as_str() {
        "shm" => exchanged(shm().map_err(|error| error.to_string())?, way, messages),
        "verbs" => exchanged(verbs()?, way, messages),
        _ => return Err(format!("{rail}: expected shm or verbs")),
    };
    done.map_err(|error| error.to_string())
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

fn exchanged<R: Message>(mut pair: Pair<R>, way: &str, messages: u64) -> Result<(), Failed> {
    // Any way but these is the program's own mistake.
    match way {
        "pingpong" => (0..messages / 2).try_for_each(|_| pair.there_and_back()),
        _ => (0..messages).try_for_each(|_| pair.exchange()),
    }
}
