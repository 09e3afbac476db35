//! The OSU benchmarks of a folder, under the MPI that they were built with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use doorbell_bench::stats::Percentiles;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};

use super::find::Peer;
use super::load::{Figure, Kind, Load};
use super::mpi::Mpi;
use super::stack::{Lab, Stack, complete};
use crate::compare_peers::args::Family;

/// The linker lists what a program needs within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// OSU's programs under one MPI, in one way.
pub(crate) struct Osu {
    name: String,
    folder: PathBuf,
    mpi: Mpi,
}

impl Osu {
    /// Under each way of the MPI among `mpis` whose library they want.
    pub(crate) fn ways(runner: &Runner, peer: &Peer, mpis: Vec<Mpi>) -> Result<Vec<Self>, Stop> {
        let Some(folder) = peer.path.as_ref().filter(|_| peer.missing.is_none()) else {
            return Ok(Vec::new());
        };
        let program = folder.join("osu_latency");
        let mut command = Command::new("ldd");
        command.arg(&program);
        let unfit = |what: String| {
            Stop::Ended(ToolError::Usage(format!(
                "`--osu`: {what}: name the folder of the programs that the benchmarks' `make` built, for an MPI that is here \
                 (`doorbell-lab compare-peers --list`)"
            )))
        };
        let needs = match runner.run("ldd", command, PATIENCE)?.good("ldd") {
            Ok(needs) => needs,
            Err(Stop::Failed(why)) => {
                return Err(unfit(format!(
                    "what `{}` needs is not known: {why}",
                    program.display()
                )));
            }
            Err(stop) => return Err(stop),
        };
        let wanted = library(&needs);
        let fitting = mpis.into_iter().filter(|mpi| Some(mpi.library()) == wanted);
        let ways: Vec<Self> = fitting
            .map(|mpi| Self {
                name: format!("OSU, {}", mpi.name()),
                folder: folder.clone(),
                mpi,
            })
            .collect();
        if ways.is_empty() {
            return Err(unfit(format!(
                "the benchmarks in `{}` were built with an MPI that is not here",
                folder.display()
            )));
        }
        Ok(ways)
    }
}

/// The MPI among a program's libraries, as `ldd` lists them.
fn library(needs: &str) -> Option<Family> {
    // Debian's name, and that of MPICH itself; Open MPI's is another number.
    if needs.contains("libmpich.so") || needs.contains("libmpi.so.12") {
        Some(Family::Mpich)
    } else if needs.contains("libmpi.so") {
        Some(Family::OpenMpi)
    } else {
        None
    }
}

impl Stack for Osu {
    fn name(&self) -> &str {
        &self.name
    }

    fn family(&self) -> Option<Family> {
        Some(Family::Osu)
    }

    fn how(&self) -> String {
        "osu_latency and osu_bw with their own buffers, warm-ups and numbers of iterations; they report means alone".to_owned()
    }

    fn unsupported(&self, kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::Latency | Kind::Stream => None,
            Kind::Blocking => Some("osu_bw has no blocking sends"),
            Kind::Put | Kind::Am => Some("OSU's benchmarks of two processes are measured by messages here"),
            Kind::Overlap => Some("OSU's benchmarks of two processes do not report overlap"),
        }
    }

    fn measure(&self, lab: &Lab<'_>, load: &Load) -> Result<Vec<Figure>, Stop> {
        let program = if load.kind == Kind::Latency {
            "osu_latency"
        } else {
            "osu_bw"
        };
        let mut figures = Vec::with_capacity(load.sizes.len());
        for bytes in &load.sizes {
            let mut arguments = vec!["-m".to_owned(), format!("{bytes}:{bytes}")];
            if load.kind == Kind::Stream {
                arguments.extend(["-W".to_owned(), load.window.to_string()]);
            }
            let program: &Path = &self.folder.join(program);
            let command = self.mpi.both(lab, program, &arguments)?;
            let text = lab
                .runner
                .run(&self.name, command, load.deadline())?
                .good(&self.name)?;
            figures.extend(read(&text, load.kind));
        }
        complete(&self.name, load, figures)
    }
}

/// Rows of a size and a figure under lines of `#`: µs for a latency, MB/s for a bandwidth.
fn read(text: &str, kind: Kind) -> Vec<Figure> {
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|line| {
        let mut words = line.split_whitespace();
        let bytes: u64 = words.next()?.parse().ok().filter(|bytes| *bytes > 0)?;
        let value: f64 = words
            .next()?
            .parse()
            .ok()
            .filter(|value: &f64| value.is_finite())?;
        let latency = kind == Kind::Latency;
        Some(Figure {
            bytes,
            half_rtt_ns: Percentiles {
                mean: latency.then_some(value * 1e3),
                ..Percentiles::default()
            },
            messages_per_second: (!latency).then_some(value * 1e6 / bytes as f64),
            overlap: None,
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_by_what_was_requested() {
        let text = "\n# OSU MPI Latency Test v7.4\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n8  0.10\n64 0.12\n";
        let figures = read(text, Kind::Latency);
        assert_eq!((figures.len(), figures[1].bytes), (2, 64));
        assert!((figures[1].half_rtt_ns.mean.unwrap() - 120.0).abs() < 1e-9);
        let figures = read(
            "# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n1000 12.5\n",
            Kind::Stream,
        );
        assert_eq!(figures[0].messages_per_second, Some(12_500.0));
        assert_eq!(read("rubbish here\n0 1\n5\n", Kind::Latency), []);
    }

    #[test]
    fn the_mpi_is_known_by_its_library() {
        assert_eq!(
            library("libmpi.so.40 => /usr/lib/libmpi.so.40"),
            Some(Family::OpenMpi)
        );
        assert_eq!(
            library("libmpich.so.12 => /usr/lib/libmpich.so.12"),
            Some(Family::Mpich)
        );
        assert_eq!(
            library("libmpi.so.12 => /p/lib/libmpi.so.12"),
            Some(Family::Mpich)
        );
        assert_eq!(library("libc.so.6"), None);
    }
}
