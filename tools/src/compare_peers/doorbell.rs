//! doorbell itself, as a process like the others: `pingpong` and `rate` of this very program, read by their JSON.

use std::path::PathBuf;

use doorbell_bench::report::Report;

use super::load::{Figure, Kind, Load};
use super::mpi;
use super::stack::{Lab, Stack, complete};
use crate::cli::Family;
use crate::place::ours::Ours;
use crate::place::process::Stop;
use crate::place::{INTERFACE, Setting, Side};

/// Up to this size, `rate` makes blocking calls.
pub(crate) const BLOCKING_MOST: u64 = 4096;

/// doorbell over one rail.
pub(crate) struct Doorbell {
    name: String,
    rail: String,
    program: PathBuf,
}

impl Doorbell {
    /// Over shared memory.
    pub(crate) fn shm(program: PathBuf) -> Self {
        Self {
            name: "doorbell".to_owned(),
            rail: "shm".to_owned(),
            program,
        }
    }

    /// Over a kind of rail on the virtual cable.
    pub(crate) fn network(program: PathBuf, kind: &str) -> Self {
        Self {
            name: format!("doorbell {kind}"),
            rail: format!("{kind}:{INTERFACE}"),
            program,
        }
    }

    /// The words that ask for a load.
    fn asked(&self, load: &Load) -> Vec<String> {
        let verb = match load.kind {
            Kind::Latency => "pingpong",
            _ => "rate",
        };
        let sizes: Vec<String> = load.sizes.iter().map(u64::to_string).collect();
        let (sizes, seconds, window) = (sizes.join(","), load.seconds.to_string(), load.window.to_string());
        let mut words = vec![verb, "--sizes", &sizes, "--seconds", &seconds, "--json", "-"];
        // Its own reference repeats what moved between the bands, which the others cannot.
        words.push("--no-reference");
        match load.kind {
            Kind::Stream => words.extend(["--posted", &window]),
            Kind::Blocking => words.extend(["--window", &window]),
            _ => {}
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// Its overlap is measured by a command that only this one uses.
    fn overlap(&self, lab: &Lab<'_>, load: &Load) -> Result<Vec<Figure>, Stop> {
        let mut command = lab.place.command(lab.setting, Side::One, &self.program);
        let sizes: Vec<String> = load.sizes.iter().map(u64::to_string).collect();
        let [one, two] = lab.place.cores;
        command.args(["measure-overlap", "--sizes", &sizes.join(",")]);
        command.args(["--cores", &format!("{one},{two}")]);
        let text = lab
            .runner
            .run(&self.name, command, load.deadline())?
            .good(&self.name)?;
        Ok(mpi::read(&text))
    }

    fn alone(&self, lab: &Lab<'_>, load: &Load) -> Result<String, Stop> {
        let mut command = lab.place.command(lab.setting, Side::One, &self.program);
        command.args(self.asked(load)).args(["--rail", &self.rail]);
        let [one, two] = lab.place.cores;
        command.args(["--cores", &format!("{one},{two}")]);
        lab.runner
            .run(&self.name, command, load.deadline())?
            .good(&self.name)
    }

    fn between(&self, lab: &Lab<'_>, load: &Load) -> Result<String, Stop> {
        let ours = Ours {
            runner: lab.runner,
            place: lab.place,
            program: &self.program,
        };
        ours.measure(&self.name, &self.rail, &self.asked(load), load.deadline())?
            .good(&self.name)
    }
}

impl Stack for Doorbell {
    fn name(&self) -> &str {
        &self.name
    }

    fn family(&self) -> Option<Family> {
        None
    }

    fn how(&self) -> String {
        format!(
            "`doorbell pingpong` and `doorbell rate` over {}, inline, tag-matched; `--posted` where a window of \
             non-blocking messages is asked for, which are sent out of one buffer and received into several, from 64 KiB on \
             out of and into regions; overlap in dedicated mode, with the receiver's progress thread on a free core, or on \
             the sender's where there is none",
            self.rail
        )
    }

    fn untold(&self, _: Kind) -> Option<&'static str> {
        None
    }

    fn measure(&self, lab: &Lab<'_>, load: &Load) -> Result<Vec<Figure>, Stop> {
        if load.kind == Kind::Overlap {
            return complete(&self.name, load, self.overlap(lab, load)?);
        }
        let text = match lab.setting {
            Setting::Shm => self.alone(lab, load)?,
            _ => self.between(lab, load)?,
        };
        let report: Report = serde_json::from_str(&text)
            .map_err(|error| Stop::Failed(format!("{}'s report cannot be read: {error}", self.name)))?;
        let figures = report.results.iter().map(|row| Figure {
            bytes: row.bytes,
            half_rtt_ns: row.half_rtt_ns,
            messages_per_second: row.messages_per_second,
            hidden: None,
        });
        complete(&self.name, load, figures.collect())
    }
}
