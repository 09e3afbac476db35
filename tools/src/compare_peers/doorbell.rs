//! doorbell itself, as a process like the others: `pingpong` and `rate` of this very program, read by their JSON.

use std::path::PathBuf;
use std::process::Command;

use doorbell_bench::report::Report;

use super::load::{Figure, Kind, Load};
use super::mpi;
use super::place::{INTERFACE, Place, Setting, Side};
use super::process::Stop;
use super::stack::{Lab, Stack, complete};
use crate::cli::Family;

/// The port of `--serve`.
const PORT: u16 = 7117;
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

    fn asked(&self, command: &mut Command, load: &Load) {
        let verb = match load.kind {
            Kind::Latency => "pingpong",
            _ => "rate",
        };
        let sizes: Vec<String> = load.sizes.iter().map(u64::to_string).collect();
        command.args([verb, "--rail", &self.rail, "--sizes", &sizes.join(",")]);
        command.args(["--seconds", &load.seconds.to_string(), "--json", "-"]);
        // Its own reference repeats what moved between the bands, which the others cannot.
        command.arg("--no-reference");
        let window = load.window.to_string();
        match load.kind {
            Kind::Stream => command.args(["--posted", &window]),
            Kind::Blocking => command.args(["--window", &window]),
            _ => command,
        };
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
        self.asked(&mut command, load);
        let [one, two] = lab.place.cores;
        command.args(["--cores", &format!("{one},{two}")]);
        lab.runner
            .run(&self.name, command, load.deadline())?
            .good(&self.name)
    }

    /// Two hosts: the one that serves, and the one that asks.
    fn between(&self, lab: &Lab<'_>, load: &Load) -> Result<String, Stop> {
        let key = lab.place.folder.path().join("key");
        if !key.exists() {
            let mut command = Command::new(&self.program);
            command.arg("key").arg(&key);
            lab.runner
                .run(&self.name, command, load.deadline())?
                .good(&self.name)?;
        }
        let side = |side| {
            let mut command = lab.place.command(lab.setting, side, &self.program);
            match side {
                Side::One => {
                    self.asked(&mut command, load);
                    command.arg("--connect");
                }
                Side::Two => {
                    command.args(["pingpong", "--rail", &self.rail, "--serve", "--once", "--bind"]);
                }
            }
            command
                .arg(Place::address(lab.setting, Side::Two))
                .arg("--key-file")
                .arg(&key);
            command.args(["--cores", &lab.place.core(side).to_string()]);
            command
        };
        let ended = lab.runner.pair(
            &self.name,
            side(Side::Two),
            PORT,
            side(Side::One),
            load.deadline(),
        )?;
        ended.good(&self.name)
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
