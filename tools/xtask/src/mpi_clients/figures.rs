//! What messages, collectives and one-sided operations between two hosts take over each provider, in turns.
//!
//! Each turn runs every provider, so that disturbances of the machine affect all of them alike; ratios are
//! taken within a turn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::cases::{self, Case};
use super::installed::Mpi;
use super::rows::{self, number};
use super::{OURS, Stage};
use crate::child::Ended;
use crate::error::Error;
use crate::workshop::how;

/// The provider that the others are compared with.
pub(super) const BASE: &str = "tcp";
/// Two ranks and their messages; and what all ranks do together.
const PAIR: &str = "tools/lab/peers/mpi_pair.c";
const GROUP: &str = "am/portals/abi/clients/mpi_figures.c";
/// Most of what is measured: a time, or messages per second.
const TIMES: [&str; 6] = ["latency", "allreduce", "alltoall", "put", "get", "fetch-and-add"];
const STREAM: &str = "stream";
/// Ratios that our provider has to keep: kind, bytes, most of tcp's time.
const BOUNDS: [(&str, u64, f64); 2] = [("latency", 8, 0.65), ("put", 8, 0.70)];
/// Runs a rank on a core of its own, where there are as many.
const BOUND_TO_A_CORE: &str =
    "rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}} && exec taskset -c $((rank % $(nproc))) \"$0\" \"$@\"";

/// One figure of one MPI over one provider, in all turns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Figure {
    mpi: String,
    provider: String,
    ranks: u32,
    kind: String,
    bytes: u64,
    /// Medians of the turns' samples: nanoseconds, of messages half a round trip; messages per second of a
    /// stream. `null` where a turn had none.
    values: Vec<Option<f64>>,
    /// The median over the turns of the quotient by tcp's value.
    ratio: Option<f64>,
    /// The most that it may be over our provider.
    bound: Option<f64>,
}

/// The value of one turn.
type Values = BTreeMap<(String, u64), f64>;

/// The programs of one MPI.
pub(super) struct Programs {
    pair: PathBuf,
    group: PathBuf,
}

impl Programs {
    pub(super) fn of(stage: &Stage<'_>, mpi: &Mpi, root: &Path) -> Result<Self, Error> {
        Ok(Self {
            pair: cases::compiled(&stage.shop, mpi, &root.join(PAIR))?,
            group: cases::compiled(&stage.shop, mpi, &root.join(GROUP))?,
        })
    }
}

impl Stage<'_> {
    /// Measures an MPI over all providers, in turns; failures are shown, and their figures are missing.
    pub(super) fn figures(
        &self,
        mpi: &Mpi,
        programs: &Programs,
        ranks: u32,
    ) -> Result<(Vec<Figure>, Vec<String>), Error> {
        let providers: Vec<&str> = self.options.providers();
        let providers: Vec<&str> = providers
            .into_iter()
            .filter(|name| mpi.refuses(name).is_none())
            .collect();
        let (mut turns, mut failures) = (Vec::new(), Vec::new());
        for turn in 1..=self.options.turns {
            eprintln!("  {}, turn {turn} of {}", mpi.name, self.options.turns);
            let mut values = BTreeMap::new();
            for name in &providers {
                values.insert(*name, self.turn(mpi, programs, name, ranks, &mut failures)?);
            }
            turns.push(values);
        }
        let figures = providers
            .iter()
            .flat_map(|name| figures_of(mpi, name, ranks, &turns))
            .collect();
        Ok((figures, failures))
    }

    fn turn(
        &self,
        mpi: &Mpi,
        programs: &Programs,
        provider: &str,
        ranks: u32,
        failures: &mut Vec<String>,
    ) -> Result<Values, Error> {
        let seconds = self.options.seconds.to_string();
        // Kind, seconds, window, most of a round, no counter of the processor, sizes.
        let pair = |kind: &str, sizes: &[&str]| {
            let mut words = vec![kind.to_owned(), seconds.clone()];
            words.extend(["64", "1000", "0"].map(str::to_owned));
            words.extend(sizes.iter().map(|size| (*size).to_owned()));
            words
        };
        let mut group = vec![seconds.clone()];
        group.extend(self.options.one_sided.then(|| "one-sided".to_owned()));
        let runs = [
            (
                &programs.pair,
                2,
                "latency",
                pair("latency", &["8", "64", "1024", "65536", "1048576"]),
            ),
            (
                &programs.pair,
                2,
                STREAM,
                pair(STREAM, &["8", "65536", "1048576"]),
            ),
            (&programs.group, ranks, "group", group),
        ];
        let mut values = Values::new();
        for (program, ranks, name, words) in runs {
            let mut case = Case::of_c(program, name);
            case.words.splice(
                0..2,
                ["sh", "-c", BOUND_TO_A_CORE]
                    .map(Into::into)
                    .into_iter()
                    .chain([program.as_os_str().to_owned()])
                    .chain(words.into_iter().map(Into::into)),
            );
            let log = self
                .shop
                .log(&format!("{}-{name}-{provider}-{ranks}-figures", mpi.name))?;
            let mut command = self.command(mpi, provider, ranks, &case);
            let ended = self
                .shop
                .run(&mut command, &log, Duration::from_secs(self.options.limit))?;
            let text = std::fs::read(&log).map_err(Error::file("read", &log))?;
            values.extend(read(&String::from_utf8_lossy(&text)));
            if !matches!(&ended, Ended::Exit(status) if status.success()) {
                let what = format!("{} over {provider}, {name}: {}", mpi.name, how(&ended));
                eprintln!("  {what} (log: {})", log.display());
                failures.push(what);
            }
        }
        Ok(values)
    }
}

/// Reads the rows of both programs.
fn read(text: &str) -> Values {
    let mut values = Values::new();
    for kind in TIMES.into_iter().chain([STREAM]) {
        for row in rows::of(text, kind) {
            let value = match kind {
                STREAM => number(row, "per_second"),
                _ => number(row, "p50_ns"),
            };
            // Large messages have few samples.
            let value = value.or_else(|| number(row, "mean_ns"));
            if let (Some(bytes), Some(value)) = (number(row, "bytes"), value) {
                values.insert((kind.to_owned(), bytes as u64), value);
            }
        }
    }
    values
}

/// Returns the figures of one provider, by kind and size.
fn figures_of(mpi: &Mpi, provider: &str, ranks: u32, turns: &[BTreeMap<&str, Values>]) -> Vec<Figure> {
    let of = |name: &str, key: &(String, u64)| -> Vec<Option<f64>> {
        turns
            .iter()
            .map(|turn| turn.get(name)?.get(key).copied())
            .collect()
    };
    let mut keys: Vec<(String, u64)> = turns
        .iter()
        .filter_map(|turn| turn.get(provider))
        .flat_map(|values| values.keys().cloned())
        .collect();
    keys.sort();
    keys.dedup();
    let figure = |key: (String, u64)| {
        let (values, base) = (of(provider, &key), of(BASE, &key));
        let pairs = values.iter().zip(&base);
        let ratios = pairs.filter_map(|(own, base)| Some((*own)? / (*base)?)).collect();
        let bound = BOUNDS
            .iter()
            .find(|(kind, bytes, _)| (*kind, *bytes) == (key.0.as_str(), key.1));
        Figure {
            mpi: mpi.name.clone(),
            provider: provider.to_owned(),
            ranks,
            ratio: median(ratios).filter(|_| provider != BASE),
            bound: bound.map(|(.., most)| *most).filter(|_| provider == OURS),
            kind: key.0,
            bytes: key.1,
            values,
        }
    };
    keys.into_iter().map(figure).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The head of the table of [`Figure::line`].
pub(super) const HEAD: &str = "| MPI | provider | ranks | kind | bytes | median | of tcp | bound |
|---|---|---|---|---|---|---|---|
";

impl Figure {
    /// Whether it keeps its bound, if it has one.
    pub(super) fn is_good(&self) -> bool {
        match (self.ratio, self.bound) {
            (Some(ratio), Some(bound)) => ratio <= bound,
            _ => true,
        }
    }

    pub(super) fn line(&self) -> String {
        let value = median(self.values.iter().copied().flatten().collect());
        let value = match value {
            Some(value) if self.kind == STREAM => format!("{:.1} MB/s", value * self.bytes as f64 / 1e6),
            Some(value) => format!("{:.2} µs", value / 1e3),
            None => "–".to_owned(),
        };
        let two = |ratio: Option<f64>| ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        format!(
            "| {} | {} | {} | {} | {} | {value} | {} | {} |",
            self.mpi,
            self.provider,
            if [STREAM, "latency"].contains(&self.kind.as_str()) {
                2
            } else {
                self.ranks
            },
            self.kind,
            self.bytes,
            two(self.ratio),
            two(self.bound),
        )
    }
}

/// A figure of ours and one of tcp.
#[cfg(test)]
pub(super) fn for_tests() -> Vec<Figure> {
    let mpi = Mpi::for_tests("mpich-5.0.2");
    let values = |value| Values::from([(("latency".to_owned(), 8), value)]);
    let turn = BTreeMap::from([(OURS, values(5.0)), (BASE, values(10.0))]);
    let turns = [turn, BTreeMap::new()];
    [OURS, BASE]
        .iter()
        .flat_map(|name| figures_of(&mpi, name, 2, &turns))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "library x\nrow latency bytes=8 mean_ns=500.0 p50_ns=480.0\n\
        row latency bytes=1048576 mean_ns=90.0 p50_ns=-\nrow stream bytes=8 per_second=1000000.0 rounds=3\n\
        row put bytes=8 mean_ns=1.0 p50_ns=2.0 samples=16\nrow other bytes=8 p50_ns=2.0\n";

    fn turn(ours: f64, tcp: f64) -> BTreeMap<&'static str, Values> {
        let values = |value| Values::from([(("latency".to_owned(), 8), value)]);
        BTreeMap::from([(OURS, values(ours)), (BASE, values(tcp))])
    }

    #[test]
    fn medians_are_read_and_means_where_there_are_none() {
        let values = read(PRINTED);
        let of = |kind: &str, bytes| values.get(&(kind.to_owned(), bytes)).copied();
        assert_eq!(of("latency", 8), Some(480.0));
        assert_eq!(of("latency", 1 << 20), Some(90.0));
        assert_eq!(of(STREAM, 8), Some(1e6));
        assert_eq!(of("put", 8), Some(2.0));
        assert_eq!(values.len(), 4);
    }

    #[test]
    fn ratios_are_of_one_turn_and_judged_by_their_median() {
        let mpi = Mpi::for_tests("mpich-5.0.2");
        let turns = [
            turn(5.0, 10.0),
            turn(60.0, 100.0),
            turn(9.0, 10.0),
            BTreeMap::new(),
        ];
        let ours = figures_of(&mpi, OURS, 2, &turns);
        assert_eq!(ours[0].ratio, Some(0.6));
        assert_eq!(ours[0].values, [Some(5.0), Some(60.0), Some(9.0), None]);
        assert!(ours[0].is_good());
        let line = "| mpich-5.0.2 | doorbell | 2 | latency | 8 | 0.01 µs | 0.60 | 0.65 |";
        assert_eq!(ours[0].line(), line);
        let late = figures_of(&mpi, OURS, 2, &[turn(7.0, 10.0)]);
        assert!(!late[0].is_good());
        let base = figures_of(&mpi, BASE, 2, &turns);
        assert_eq!((base[0].ratio, base[0].bound), (None, None));
    }
}
