//! `cargo xtask rails`: failover over several rails in the real world. Two hosts, several links, and trouble
//! on them.
//!
//! The hosts are network namespaces of this machine (as in `links`). While two processes exchange verified
//! messages, interfaces go down and come back at random, at one end or at both, and frames of UDP are dropped
//! in one direction (`trouble`). Meanwhile both processes' counter files are read (`watch`). What came out is
//! judged by the bounds of the design (`report`).

mod report;
pub(crate) mod trouble;
mod watch;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::Error;
use crate::links::lab::{Host, Lab, interface};
use crate::links::measure::make_key;
use crate::links::programs::{Programs, Running};
use crate::links::{build, show};
use crate::test::packages;
use crate::workspace::Workspace;
use report::{Phase, Report};
use trouble::{Plan, Trouble};
use watch::Watch;

pub(crate) const HELP: &str = "\
Needs root: it makes two network namespaces with three pairs of virtual interfaces, and removes them whatever way it ends. \
Three parts: a stream and small messages while links break at random, then a stream while one link flaps every 200 ms. \
Exit status 1 when a message was lost, doubled, misordered or spoilt, or a bound was passed.

Examples:
  cargo xtask rails
  cargo xtask rails --seed 7 --seconds 120
  cargo xtask rails --bytes 8G --messages 5000000 --json target/rails.json";

/// The part of small messages.
const EXCHANGES: &str = "64 B to and fro";
/// How many links there are.
const LINKS: usize = 3;
/// Beyond its time, a part may take this much for everything else.
const SLACK: Duration = Duration::from_secs(90);
/// The core of each side.
const CORES: [&str; 2] = ["0", "1"];
/// How long a link flaps, and what the way has after it to come back.
const FLAPPING: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(6);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What goes down when: the same number, the same troubles; by default another one each time
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Time of the stream, in seconds
    #[arg(long, value_name = "S", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=3000))]
    seconds: u64,
    /// Bytes of the stream that have to arrive at least in that time
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    bytes: u64,
    /// Small messages, in both directions together
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    messages: u64,
    /// Leave out the part with the link that flaps
    #[arg(long)]
    no_flapping: bool,
    /// Write everything as JSON, too; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The `doorbell` to run, instead of one that is built
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Bytes, with a binary unit.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("give bytes, such as 512M or 1G".to_owned()),
    };
    let number = digits.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_shl(shift).filter(|bytes| bytes >> shift == number));
    bytes.ok_or_else(|| "give bytes, such as 512M or 1G".to_owned())
}

/// Runs all parts; whether every message arrived as it should, within the bounds.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Lab(
            "network namespaces need root: run it with sudo".to_owned(),
        ));
    }
    packages::install_named(&["iproute2", "nftables"])?;
    let doorbell = match &options.program {
        Some(program) => program.canonicalize().map_err(Error::file("find", program))?,
        None => build(workspace)?,
    };
    let seed = options.seed.unwrap_or_else(trouble::any_seed);
    eprintln!("seed {seed}");
    // In this order: what is made last goes first.
    let mut programs = Programs::new()?;
    let lab = Lab::new(LINKS, 1500, false)?;
    let key = make_key(&mut programs, &doorbell)?;
    let mut stage = Stage {
        lab: &lab,
        programs: &mut programs,
        doorbell,
        key,
    };
    let server = stage.serve()?;
    let mut phases = vec![
        stage.stream(&server, seed, options.seconds)?,
        stage.exchanges(&server, seed.wrapping_add(1), options.messages)?,
    ];
    if !options.no_flapping {
        phases.push(stage.flapping(&server)?);
    }
    let report = Report::new(seed, options.bytes, options.messages, phases);
    show(&report.table(), &report.json(), options.json.as_deref())?;
    Ok(report.is_good())
}

/// Where and how everything runs.
struct Stage<'a> {
    lab: &'a Lab,
    programs: &'a mut Programs,
    doorbell: PathBuf,
    key: PathBuf,
}

impl Stage<'_> {
    fn serve(&mut self) -> Result<Running, Error> {
        let mut command = self.lab.at(Host::B, &self.doorbell);
        command.args(["pingpong", "--serve", "--bind", Host::B.address()]);
        command.args(["--cores", CORES[1]]);
        self.rails(&mut command);
        let mut server = self.programs.start(command)?;
        self.programs.wait_for(&mut server, "serving on", SLACK)?;
        Ok(server)
    }

    fn rails(&self, command: &mut Command) {
        for link in 0..LINKS {
            command.args(["--rail", &format!("udp:{}", interface(link))]);
        }
        command.arg("--key-file").arg(&self.key);
    }

    fn client(&self, words: &[&str]) -> Command {
        let mut command = self.lab.at(Host::A, &self.doorbell);
        command.args(words);
        command.args(["--connect", Host::B.address(), "--cores", CORES[0]]);
        command.args(["--verify", "--no-reference", "--json", "-"]);
        self.rails(&mut command);
        command
    }

    fn stream(&mut self, server: &Running, seed: u64, seconds: u64) -> Result<Phase, Error> {
        let time = seconds.to_string();
        // A window is looked at when all of it is there: a narrow one, so that gaps are gaps.
        let client = self.client(&["stream", "--sizes", "1Mi", "--window", "4", "--seconds", &time]);
        let limit = SLACK + Duration::from_secs(2 * seconds);
        self.play("stream of 1 MiB", server, client, limit, Plan::Random(seed))
    }

    fn exchanges(&mut self, server: &Running, seed: u64, messages: u64) -> Result<Phase, Error> {
        // Every exchange is a sample, and two messages.
        let samples = messages.div_ceil(2).to_string();
        let client = self.client(&["pingpong", "--sizes", "64", "--samples", &samples]);
        let limit = SLACK + Duration::from_micros(100 * messages);
        self.play(EXCHANGES, server, client, limit, Plan::Random(seed))
    }

    fn flapping(&mut self, server: &Running) -> Result<Phase, Error> {
        let time = (FLAPPING + AFTER).as_secs().to_string();
        let client = self.client(&["stream", "--sizes", "1Mi", "--window", "4", "--seconds", &time]);
        self.play(
            "one link flaps",
            server,
            client,
            SLACK + 2 * (FLAPPING + AFTER),
            Plan::Flap(FLAPPING),
        )
    }

    /// Plays one part: a program, the troubles while it runs, and what was seen.
    fn play(
        &mut self,
        name: &'static str,
        server: &Running,
        client: Command,
        limit: Duration,
        plan: Plan,
    ) -> Result<Phase, Error> {
        eprintln!("{name}");
        // A path that was down in the part before may be coming up.
        (0..LINKS).try_for_each(|link| self.lab.wait_until_whole(link))?;
        let mut running = self.programs.start(client)?;
        let mut watch = Watch::new(LINKS, [running.process(), server.process()]);
        let begun = Instant::now();
        let flapping = matches!(plan, Plan::Flap(_));
        let trouble = Trouble::new(plan, LINKS, begun);
        let (ended, done) = std::thread::scope(|scope| {
            let makes_it = scope.spawn(|| trouble.make(self.lab));
            let ended = loop {
                watch.look(begun.elapsed());
                match self.programs.ended(&mut running, Duration::ZERO) {
                    Ok(None) if begun.elapsed() > limit => break Ok(None),
                    Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                    other => break other,
                }
            };
            trouble.stop();
            (ended, makes_it.join())
        });
        let done = done.map_err(|_| Error::Worker)??;
        let (report, failure) = match ended? {
            Some(status) if status.success() || status.code() == Some(1) => {
                match serde_json::from_str(&running.printed()) {
                    Ok(report) => (report, None),
                    Err(error) => (Value::Null, Some(format!("{}: {error}", running.line()))),
                }
            }
            Some(status) => (Value::Null, Some(format!("{status}: {}", running.output()))),
            None => (
                Value::Null,
                Some(format!(
                    "hangs: it did not end within {limit:?}: {}",
                    running.output()
                )),
            ),
        };
        drop(running);
        Ok(Phase::new(name, flapping, &report, failure, done, &watch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_bounded() {
        assert_eq!(
            (size("1G"), size("512M"), size("7")),
            (Ok(1 << 30), Ok(512 << 20), Ok(7))
        );
        for bad in ["", "G", "1T", "-1", "99999999999G", "1.5G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
