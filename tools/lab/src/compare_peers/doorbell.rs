//! doorbell itself, as a process like the others: `pingpong` and `rate` of this very program, read by their
//! JSON.

use std::path::PathBuf;

use doorbell_bench::pin;
use doorbell_bench::report::Report;
use doorbell_bench::world::REGIONS_FROM;
use doorbell_tools::process::Stop;

use super::load::{Figure, Kind, Load, steps};
use super::mpi;
use super::overlap::{NO_FREE_CORE, free_core};
use super::stack::{Lab, Stack, complete};
use crate::compare_peers::args::Family;
use crate::place::self_run::SelfRun;
use crate::place::{INTERFACE, Setting, Side};

/// Up to this size, `rate` makes blocking calls.
pub(crate) const BLOCKING_MOST: u64 = 4096;

/// In which way it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As the peers are: out of ordinary memory and into it, progress in the program's calls.
    Usual,
    /// Long messages of streams out of regions and into them, as a program would that cares.
    Regions,
    /// Progress in a thread of its own, on a core of its own.
    Dedicated,
}

/// doorbell over one rail.
pub(crate) struct Doorbell {
    name: String,
    rail: String,
    program: PathBuf,
    way: Way,
    cores: [usize; 2],
}

impl Doorbell {
    /// Over shared memory, in the ways that matter for a kind of load between two cores; the usual one first,
    /// with which peers are compared.
    pub(crate) fn shm(program: PathBuf, cores: [usize; 2], load: &Load) -> Vec<Self> {
        let long = load.sizes.iter().any(|bytes| is_long(*bytes));
        let second = match load.kind {
            Kind::Stream if long => Some((Way::Regions, "doorbell regions")),
            Kind::Overlap => Some((Way::Dedicated, "doorbell dedicated")),
            _ => None,
        };
        let ways = [(Way::Usual, "doorbell")].into_iter().chain(second);
        ways.map(|(way, name)| Self {
            name: name.to_owned(),
            rail: "shm".to_owned(),
            program: program.clone(),
            way,
            cores,
        })
        .collect()
    }

    /// Over a kind of rail on the virtual cable.
    pub(crate) fn network(program: PathBuf, cores: [usize; 2], kind: &str) -> Self {
        Self {
            name: format!("doorbell {kind}"),
            rail: format!("{kind}:{INTERFACE}"),
            program,
            way: Way::Usual,
            cores,
        }
    }

    /// Returns the command line of a load.
    fn asked(&self, load: &Load) -> Vec<String> {
        let verb = match load.kind {
            Kind::Latency | Kind::Put | Kind::Am => "pingpong",
            _ => "rate",
        };
        let (seconds, window) = (load.seconds.to_string(), load.window.to_string());
        let sizes = list(&load.sizes);
        let mut words = vec![verb, "--sizes", &sizes, "--seconds", &seconds, "--json", "-"];
        // Its own reference repeats what moved between the bands, which the others cannot.
        words.push("--no-reference");
        match load.kind {
            Kind::Stream => words.extend(["--posted", &window]),
            Kind::Blocking => words.extend(["--window", &window]),
            Kind::Put => words.extend(["--layer", "portals"]),
            Kind::Am => words.extend(["--layer", "am"]),
            _ => {}
        }
        if load.kind == Kind::Stream && self.way == Way::Usual {
            words.push("--plain");
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// Its overlap is measured by a command that only this one uses.
    fn overlap(&self, lab: &Lab<'_>, load: &Load) -> Result<Vec<Figure>, Stop> {
        let mut command = lab.place.command(lab.setting, Side::One, &self.program);
        let steps: Vec<u64> = load.sizes.iter().copied().map(steps).collect();
        let mode = match self.way {
            Way::Dedicated => "dedicated",
            Way::Usual | Way::Regions => "inline",
        };
        command.args([
            "measure-overlap",
            "--sizes",
            &list(&load.sizes),
            "--steps",
            &list(&steps),
        ]);
        command.args(["--mode", mode, "--cores", &self.both_cores()]);
        let text = lab
            .runner
            .run(&self.name, command, load.deadline())?
            .good(&self.name)?;
        Ok(mpi::read(&text))
    }

    fn both_cores(&self) -> String {
        let [one, two] = self.cores;
        format!("{one},{two}")
    }

    fn alone(&self, lab: &Lab<'_>, load: &Load) -> Result<String, Stop> {
        let mut command = lab.place.command(lab.setting, Side::One, &self.program);
        command.args(self.asked(load)).args(["--rail", &self.rail]);
        command.args(["--cores", &self.both_cores()]);
        lab.runner
            .run(&self.name, command, load.deadline())?
            .good(&self.name)
    }

    fn between(&self, lab: &Lab<'_>, load: &Load) -> Result<String, Stop> {
        let ours = SelfRun {
            runner: lab.runner,
            place: lab.place,
            program: &self.program,
        };
        ours.measure(&self.name, &self.rail, &self.asked(load), load.deadline())?
            .good(&self.name)
    }
}

/// Whether a message is one that regions make a difference to.
fn is_long(bytes: u64) -> bool {
    bytes >= REGIONS_FROM as u64
}

fn list(numbers: &[u64]) -> String {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    words.join(",")
}

impl Stack for Doorbell {
    fn name(&self) -> &str {
        &self.name
    }

    fn family(&self) -> Option<Family> {
        None
    }

    fn how(&self) -> String {
        match self.way {
            Way::Usual => format!(
                "`doorbell pingpong` and `doorbell rate` over {}, inline, tag-matched; `--posted --plain` where a window of \
                 non-blocking messages is measured: sent out of one buffer that never changes and received into several, \
                 all of it ordinary memory; `--layer portals`: a put into the other's memory, whose counting event is polled; \
                 `--layer am`: half of a request with the reply of its handler",
                self.rail
            ),
            Way::Regions => "the same without `--plain`: messages from 64 KiB on are sent out of regions and received into \
                             them, which are memory that both processes share; peers have no such thing"
                .to_owned(),
            Way::Dedicated => "the receiver makes progress in a thread of its own, on a core that neither rank is on".to_owned(),
        }
    }

    fn unsupported(&self, _: Kind) -> Option<&'static str> {
        let lacks = self.way == Way::Dedicated && free_core(self.cores, &pin::allowed()).is_none();
        lacks.then_some(NO_FREE_CORE)
    }

    fn measure(&self, lab: &Lab<'_>, load: &Load) -> Result<Vec<Figure>, Stop> {
        if load.kind == Kind::Overlap {
            return complete(&self.name, load, self.overlap(lab, load)?);
        }
        let mut load = load.clone();
        if self.way == Way::Regions {
            load.sizes.retain(|bytes| is_long(*bytes));
        }
        let text = match lab.setting {
            Setting::Shm => self.alone(lab, &load)?,
            _ => self.between(lab, &load)?,
        };
        let report: Report = serde_json::from_str(&text)
            .map_err(|error| Stop::Failed(format!("{}'s report cannot be read: {error}", self.name)))?;
        let figures = report.results.iter().map(|row| Figure {
            bytes: row.bytes,
            half_rtt_ns: row.half_rtt_ns,
            messages_per_second: row.messages_per_second,
            overlap: None,
        });
        complete(&self.name, &load, figures.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(kind: Kind, sizes: &[u64]) -> Load {
        Load {
            kind,
            sizes: sizes.to_vec(),
            seconds: 0.1,
            window: 64,
            limit: None,
        }
    }

    #[test]
    fn what_peers_are_compared_with_uses_memory_as_they_do() {
        let stream = load(Kind::Stream, &[8, 1 << 20]);
        let ways = Doorbell::shm(PathBuf::new(), [0, 1], &stream);
        let plain: Vec<bool> = ways
            .iter()
            .map(|way| way.asked(&stream).contains(&"--plain".to_owned()))
            .collect();
        assert_eq!(plain, [true, false]);
        let small = load(Kind::Stream, &[8, 1024]);
        assert_eq!(Doorbell::shm(PathBuf::new(), [0, 1], &small).len(), 1);
    }

    #[test]
    fn dedicated_progress_is_not_measured_where_it_would_take_a_rank_s_core() {
        let overlap = load(Kind::Overlap, &[1 << 20]);
        let allowed = pin::allowed();
        let (first, last) = (allowed[0], *allowed.last().unwrap());
        let ways = Doorbell::shm(PathBuf::new(), [first, last], &overlap);
        assert_eq!(ways[0].unsupported(Kind::Overlap), None);
        let lacks = ways[1].unsupported(Kind::Overlap);
        assert_eq!(lacks.is_some(), allowed.len() < 3, "{lacks:?}");
    }
}
