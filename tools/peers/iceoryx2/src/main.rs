//! iceoryx2 between two processes, measured as doorbell measures itself: `doorbell-lab compare-peers` starts
//! a server and a client of this program, and reads what the client prints.
//!
//! ```text
//!   doorbell-peer-iceoryx2 serve FOLDER NAME copy|loan WINDOW MOST   prints "ready", ends with its client
//!   doorbell-peer-iceoryx2 latency|stream FOLDER NAME copy|loan WINDOW MOST SECONDS BYTES...
//!   doorbell-peer-iceoryx2 --version
//! ```
//!
//! FOLDER is where iceoryx2 keeps its files, NAME that of the run, MOST the most bytes of a message. With
//! `copy`, each message is written from the user's memory and read into it, as every other stack has it; with
//! `loan`, one byte is written in place and one is read in place. The client gives bounded orders and the
//! server carries them out, as in `tools/lab/peers/mpi_pair.c`, and the rows are like those.
#![deny(unsafe_code)]

mod link;
#[allow(unsafe_code, reason = "memory that is lent is sent without being written")]
mod loan;
mod measure;
mod order;

use std::process::ExitCode;

use crate::link::{Link, Method, Side};
use crate::measure::Kind;

/// The release of iceoryx2 that this is built with, as Cargo.toml has it.
const RELEASE: &str = "0.10.0";
const USAGE: &str = "usage: doorbell-peer-iceoryx2 serve FOLDER NAME copy|loan WINDOW MOST | latency|stream FOLDER NAME copy|loan WINDOW \
                     MOST SECONDS BYTES... | --version";

/// What went wrong, in words.
pub(crate) type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("doorbell-peer-iceoryx2: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    match words {
        ["--version"] => {
            println!("iceoryx2 {RELEASE}");
            Ok(())
        }
        ["serve", folder, name, method, window, most] => {
            let link = link(Side::Serves, [folder, name], [method, window, most])?;
            println!("ready");
            order::serve(&link)
        }
        [kind, folder, name, method, window, most, seconds, sizes @ ..] if !sizes.is_empty() => {
            let kind = Kind::named(kind).ok_or(USAGE)?;
            let seconds: f64 = number(seconds)?;
            let link = link(Side::Asks, [folder, name], [method, window, most])?;
            for bytes in sizes {
                println!("{}", measure::row(&link, kind, number(bytes)?, seconds)?);
            }
            link.give(order::END)
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn link(side: Side, place: [&str; 2], [method, window, most]: [&str; 3]) -> Result<Link> {
    let method = Method::named(method).ok_or(USAGE)?;
    Link::new(side, place, method, number(window)?, number(most)?)
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T> {
    word.parse()
        .map_err(|_| format!("`{word}` is no number: {USAGE}"))
}
