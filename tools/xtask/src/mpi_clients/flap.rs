//! Links between two hosts that go down and come back while a checked program of MPI goes on.
//!
//! ```text
//!   mpi.c, steady ── "begun" ──► cuts of v0, v1 … ──► v0 stays down ──► the file that ends it ──► longest
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::cases::Case;
use super::installed::Mpi;
use super::rows::{self, number};
use super::{OURS, Stage};
use crate::child::Ended;
use crate::error::Error;
use crate::links::lab::Host;
use crate::rails::trouble::{self, Done, Kind, Plan, Trouble};
use crate::two_hosts::{LINKS, TwoHosts};
use crate::workshop::how;

/// The bound of detection is 1 s, and a stall may take three times that.
const STALL_S: f64 = 3.0;
/// The variable by which the program knows the file that ends it.
const STOP: &str = "MPI_STEADY_STOP";
/// How long the program goes on when the first link is down for good.
const AFTER: Duration = Duration::from_secs(5);
/// How long a job may take until its ranks have met.
const START: Duration = Duration::from_secs(60);

/// One MPI over one network while links were cut.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Flapped {
    mpi: String,
    provider: String,
    ranks: u32,
    one_sided: bool,
    /// Whether all ranks ended well, with the right sums.
    passed: bool,
    /// How it ended, if not well.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    turns: u64,
    /// The longest turn, and when it began; of one that did not end well, since the last that was printed.
    longest_s: Option<f64>,
    longest_at_s: Option<f64>,
    cuts: Vec<Cut>,
    /// When the first link went down to stay so, while the program went on.
    down_for_good_at_s: Option<f64>,
}

/// A link that was down.
#[derive(Clone, Debug, Serialize)]
struct Cut {
    link: usize,
    kind: Kind,
    from_s: f64,
    to_s: f64,
}

impl Cut {
    fn new(done: &Done) -> Self {
        Self {
            link: done.link,
            kind: done.kind,
            from_s: done.from.as_secs_f64(),
            to_s: done.to.as_secs_f64(),
        }
    }
}

impl Flapped {
    /// Whether it is as it has to be: over our provider it ends well, and no turn takes too long.
    pub(super) fn is_good(&self) -> bool {
        let is_short = self.longest_s.is_some_and(|longest| longest <= STALL_S);
        self.provider != OURS || (self.passed && is_short)
    }

    pub(super) fn line(&self) -> String {
        let seconds = |time: Option<f64>| time.map_or("–".to_owned(), |time| format!("{time:.2} s"));
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            self.mpi,
            self.provider,
            self.ranks,
            if self.one_sided { "yes" } else { "no" },
            self.cuts.len(),
            self.turns,
            seconds(self.longest_s),
            self.failure.as_deref().unwrap_or("every sum and byte right"),
        )
    }
}

/// The head of the table of [`Flapped::line`].
pub(super) const HEAD: &str =
    "| MPI | provider | ranks | one-sided | links down | turns | longest turn | end |
|---|---|---|---|---|---|---|---|
";

impl Stage<'_> {
    /// Cuts links while an MPI goes on over one provider.
    pub(super) fn flap(
        &self,
        hosts: &TwoHosts,
        mpi: &Mpi,
        program: &Path,
        (provider, ranks): (&str, u32),
        (seed, count): (u64, usize),
    ) -> Result<Flapped, Error> {
        let one_sided = self.options.one_sided;
        let test = if one_sided { "steady-one-sided" } else { "steady" };
        let case = Case::of_c(program, test);
        let log = self
            .shop
            .log(&format!("{}-{test}-{provider}-{ranks}-flap", mpi.name))?;
        let stop = self
            .shop
            .folder("run")?
            .join(format!("stop-{}", std::process::id()));
        remove(&stop)?;
        // Of a run before this one.
        remove(&log)?;
        hosts.mend()?;
        let mut command = self.command(mpi, provider, ranks, &case);
        command.env(STOP, &stop);
        let cutting = trouble::time_of(seed, count, LINKS);
        let limit = START + cutting + AFTER + Duration::from_secs(self.options.limit);
        let ended = AtomicBool::new(false);
        let (how, done) = std::thread::scope(|scope| {
            let cutter = scope.spawn(|| cut(hosts, &log, (seed, count), &ended, &stop));
            let how = self.shop.run(&mut command, &log, limit);
            ended.store(true, Ordering::Relaxed);
            (how, cutter.join())
        });
        let ended = how?;
        let done = done.map_err(|_| Error::Worker)?;
        remove(&stop)?;
        let text = std::fs::read(&log).map_err(Error::file("read", &log))?;
        let passed = matches!(&ended, Ended::Exit(status) if status.success());
        // With the program, what the cutter started just then was ended.
        let done = if passed { done? } else { done.unwrap_or_default() };
        hosts.mend()?;
        let flapped = Flapped {
            mpi: mpi.name.clone(),
            provider: provider.to_owned(),
            ranks,
            one_sided,
            cuts: done.cuts.iter().map(Cut::new).collect(),
            down_for_good_at_s: done.down_for_good.map(|at| at.as_secs_f64()),
            ..read(&String::from_utf8_lossy(&text), &ended, limit)
        };
        eprintln!("  {}", flapped.line());
        Ok(flapped)
    }
}

/// What was done to the links.
#[derive(Default)]
struct Cuts {
    cuts: Vec<Done>,
    down_for_good: Option<Duration>,
}

/// Cuts the links once the program goes on, the first one in the end for good, and lets it end; less when it
/// has ended.
fn cut(
    hosts: &TwoHosts,
    log: &Path,
    (seed, count): (u64, usize),
    ended: &AtomicBool,
    stop: &Path,
) -> Result<Cuts, Error> {
    let waits = |until: &dyn Fn() -> bool, most: Duration| {
        let began = Instant::now();
        while !until() && !ended.load(Ordering::Relaxed) && began.elapsed() < most {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let begun = || std::fs::read_to_string(log).is_ok_and(|text| text.contains("steady: begun"));
    waits(&begun, START);
    let began = Instant::now();
    let trouble = Trouble::new(Plan::Cuts { seed, count }, LINKS, began);
    let cuts = std::thread::scope(|scope| {
        let cutter = scope.spawn(|| trouble.make(&hosts.lab));
        waits(&|| cutter.is_finished(), Duration::MAX);
        trouble.stop();
        cutter.join()
    });
    let cuts = cuts.map_err(|_| Error::Worker)??;
    let mut down_for_good = None;
    if !ended.load(Ordering::Relaxed) {
        down_for_good = Some(began.elapsed());
        hosts.lab.set(Host::B, 0, false)?;
        waits(&|| false, AFTER);
    }
    std::fs::write(stop, "").map_err(Error::file("create", stop))?;
    Ok(Cuts { cuts, down_for_good })
}

fn remove(file: &Path) -> Result<(), Error> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file("remove", file)(error)),
        _ => Ok(()),
    }
}

/// Reads what the program printed; the fields of the caller are empty.
fn read(text: &str, ended: &Ended, limit: Duration) -> Flapped {
    let row = rows::of(text, "steady").next();
    let last = text.lines().rev().find_map(turn);
    let passed = matches!(ended, Ended::Exit(status) if status.success()) && row.is_some();
    let mut read = Flapped {
        mpi: String::new(),
        provider: String::new(),
        ranks: 0,
        one_sided: false,
        passed,
        failure: None,
        turns: last.map_or(0, |(turn, _)| turn),
        longest_s: None,
        longest_at_s: None,
        cuts: Vec::new(),
        down_for_good_at_s: None,
    };
    if let Some(row) = row {
        read.turns = number(row, "turns").unwrap_or(0.0) as u64;
        read.longest_s = number(row, "longest_s");
        read.longest_at_s = number(row, "longest_at_s");
    }
    if !passed {
        let at = last.map_or("none".to_owned(), |(_, at)| format!("at {at:.1} s"));
        read.failure = Some(match ended {
            Ended::TimedOut => {
                read.longest_at_s = last.map(|(_, at)| at);
                format!("hangs: ended after {} s, last turn {at}", limit.as_secs())
            }
            ended => format!("{}, last turn {at}: {}", how(ended), reason(text)),
        });
    }
    read
}

/// Returns the first line that is not of the program itself: why it ended.
fn reason(text: &str) -> String {
    let is_other = |line: &&str| {
        let line = line.trim();
        !line.is_empty()
            && !line.starts_with("steady:")
            && !line.starts_with("---")
            && !line.starts_with("row ")
    };
    let line = text.lines().find(is_other).unwrap_or("it printed nothing");
    line.trim().replace('|', "/").chars().take(160).collect()
}

/// Reads a line of progress: `steady: turn 12 at 3.4 s`.
fn turn(line: &str) -> Option<(u64, f64)> {
    let mut words = line.trim().strip_prefix("steady: turn ")?.split(' ');
    let turn = words.next()?.parse().ok()?;
    Some((turn, words.nth(1)?.parse().ok()?))
}

/// One that ended well over our provider, and one that hung over another.
#[cfg(test)]
pub(super) fn for_tests() -> Vec<Flapped> {
    use std::os::unix::process::ExitStatusExt;
    let well = "row steady turns=412 seconds=9.000 longest_s=0.8200 longest_turn=99 longest_at_s=1.300\n";
    let exit = Ended::Exit(std::process::ExitStatus::from_raw(0));
    let cut = Cut {
        link: 0,
        kind: Kind::DownAtA,
        from_s: 1.0,
        to_s: 2.0,
    };
    let named = |provider: &str, flapped| Flapped {
        mpi: "mpich-5.0.2".to_owned(),
        provider: provider.to_owned(),
        ranks: 2,
        cuts: vec![cut.clone()],
        down_for_good_at_s: Some(9.0),
        ..flapped
    };
    vec![
        named(OURS, read(well, &exit, START)),
        named(
            "tcp",
            read("steady: turn 160 at 2.1 s\n", &Ended::TimedOut, START),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    const GOING_ON: &str = "steady: begun, 2 ranks\nsteady: turn 77 at 1.0 s\nsteady: turn 160 at 2.1 s\n";

    #[test]
    fn the_longest_turn_is_read_and_bounded_over_our_provider() {
        let text = format!(
            "{GOING_ON}row steady turns=412 seconds=9.000 longest_s=0.8200 longest_turn=99 longest_at_s=1.300\n"
        );
        let mut read = read(&text, &Ended::Exit(ExitStatus::from_raw(0)), START);
        read.provider = OURS.to_owned();
        assert!(read.passed && read.is_good(), "{read:?}");
        assert_eq!(
            (read.turns, read.longest_s, read.longest_at_s),
            (412, Some(0.82), Some(1.3))
        );
        read.longest_s = Some(3.1);
        assert!(!read.is_good());
        read.provider = "tcp".to_owned();
        assert!(read.is_good());
    }

    #[test]
    fn what_hangs_or_dies_is_shown_with_its_last_turn() {
        let hangs = read(GOING_ON, &Ended::TimedOut, START);
        assert!(!hangs.passed && hangs.turns == 160, "{hangs:?}");
        assert_eq!(
            hangs.failure.as_deref(),
            Some("hangs: ended after 60 s, last turn at 2.1 s")
        );
        let text = format!("{GOING_ON}--------\nmpirun: lost | connection\n");
        let dies = read(&text, &Ended::Exit(ExitStatus::from_raw(256)), START);
        let failure = dies.failure.unwrap();
        assert!(
            failure.ends_with("last turn at 2.1 s: mpirun: lost / connection"),
            "{failure}"
        );
    }
}
