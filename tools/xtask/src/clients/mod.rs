//! `cargo xtask clients`: programs of others over our libportals, or over libfabric with our provider, built
//! from source trees that the user has.
//!
//! ```text
//!   --from DIR ──► trees ──► recipes: prefix, configure, make ──► cases ──► run: routes × ranks ──► table
//!                                                                                       known ──┘
//! ```
//!
//! Nothing is downloaded, and the trees are not changed: everything is built under `target/clients`. A client
//! whose tree is not there is a line of the table, and no failure. The failures that `known` names have an
//! owner other than us.

mod known;
mod network;
mod over;
mod recipes;
mod trees;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child::Ended;
use crate::error::Error;
use crate::provider;
use crate::results::{Row, Table};
use crate::workshop::{Workshop, copied, how, need};
use crate::workspace::{Workspace, cargo};
use network::{Network, Place};
use over::{Libfabric, OURS, Over, Route};
use recipes::{Launcher, Suite};
use trees::Client;

pub(crate) const HELP: &str = "\
DIR holds source trees side by side, under any names: Open MPI 4.1 (with its configure), Sandia OpenSHMEM (with \
modules/tests-sos), GASNet 1 with portals4-conduit, mpi4py 3 (a release, which has its C file; needs python3 with setuptools \
and Open MPI beside it), and Sandia's Portals 4, whose tests are run and whose PMI library GASNet needs. What is not there is reported and left out. Needs gcc, make, mpiexec.hydra (package mpich); trees without a configure need \
autoconf, automake and libtool, too. The network `two-rails` is two udp rails in a network namespace, of which one loses \
everything for a second in each two, and `two-hosts` has half of the ranks at each of two network namespaces with two links, over \
udp:v0,udp:v1: both need root. Everything is built under target/clients, and stays there for the next \
run. Exit status 1 when a test failed for which no other owner is known.

With --over libfabric, OpenSHMEM is built for libfabric instead, the system's (package libfabric-dev) or that of --libfabric, and run \
over each provider; ours has the rails that --network names. What fails over others is shown for comparison.

Examples:
  cargo xtask clients --from ~/src
  cargo xtask clients --from ~/src --only openmpi --network shm --ranks 2
  cargo xtask clients --from ~/src --only gasnet --test testam --keep-going
  cargo xtask clients --from ~/src --over libfabric --network shm,two-hosts
  cargo xtask clients --from ~/src --over libfabric --provider doorbell --manual-progress
  cargo xtask clients --from ~/src --table target/clients/table.md";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder of the source trees
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Only this client; can be given several times
    #[arg(long, value_name = "CLIENT")]
    only: Vec<Client>,
    /// Only tests whose names begin with this; can be given several times
    #[arg(long, value_name = "NAME")]
    test: Vec<String>,
    /// What the clients are built for
    #[arg(long, value_enum, default_value = "portals")]
    over: Over,
    /// Providers of libfabric, for --over libfabric
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = [OURS, "sockets"])]
    provider: Vec<String>,
    /// Where libfabric is installed, for --over libfabric; by default the system's
    #[arg(long, value_name = "PREFIX")]
    libfabric: Option<PathBuf>,
    /// OpenSHMEM over libfabric: without progress by a thread (its own --enable-manual-progress)
    #[arg(long)]
    manual_progress: bool,
    /// Over these networks: shm, udp:INTERFACE, two-rails, two-hosts
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', default_values = ["shm", "udp:lo"])]
    network: Vec<Network>,
    /// Numbers of ranks to run with
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 4], value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Vec<u32>,
    /// What one test may take, in seconds
    #[arg(long, value_name = "S", default_value_t = 120)]
    limit: u64,
    /// The profile that libportals or our provider is built with
    #[arg(long, value_name = "PROFILE", default_value = "release")]
    profile: String,
    /// Write the table there, too, as Markdown
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Where a client cannot be built, go on with the others
    #[arg(long)]
    keep_going: bool,
}

/// Builds what is there and runs its tests; whether all passed but those that others own.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    let from = options
        .from
        .canonicalize()
        .map_err(Error::file("find", &options.from))?;
    need(&[("gcc", "gcc"), ("make", "make"), ("mpiexec.hydra", "mpich")])?;
    let stage = Stage {
        shop: Workshop::new(workspace.target.join("clients"))?,
        root: workspace.root.clone(),
        limit: Duration::from_secs(options.limit),
        libfabric: (options.over == Over::Libfabric).then(|| Libfabric {
            prefix: options.libfabric.clone(),
            is_manual: options.manual_progress,
        }),
    };
    let trees = trees::find(&from, options.over)?;
    match options.over {
        Over::Portals => {
            let library = stage.library(workspace, &options.profile)?;
            stage.prefix(&library, trees.get(&Client::Reference).map(PathBuf::as_path))?;
        }
        Over::Libfabric => {
            let library = provider::build(workspace, &options.profile)?;
            provider::install(&library, &stage.providers())?;
        }
    }
    let routes = Route::all(options.over, &options.network, &options.provider);
    let mut table = Table::new(options.over.title(), known::over(options.over));
    let is_chosen = |client: &Client| options.only.is_empty() || options.only.contains(client);
    let mut clients = Client::ALL.to_vec();
    clients.retain(|client| is_chosen(client) && options.over.has(*client));
    for client in &clients {
        let Some(tree) = trees.get(client) else {
            let looked_for = format!(
                "no folder in {} has {}",
                from.display(),
                client.sign(options.over)
            );
            eprintln!("{client}: {looked_for}");
            table.add(Row::absent(*client, looked_for));
            continue;
        };
        eprintln!("{client}: {}", tree.display());
        let suite = match recipes::build(&stage, *client, tree) {
            Err(Error::Lab(why)) if options.keep_going => {
                eprintln!("{client}: {why}");
                table.add(Row::absent(*client, why));
                continue;
            }
            suite => suite?,
        };
        for route in &routes {
            for ranks in &options.ranks {
                stage.play(&suite, route, *ranks, &options.test, &mut table)?;
            }
        }
    }
    print!("{}", table.markdown());
    if let Some(file) = &options.table {
        std::fs::write(file, table.markdown()).map_err(Error::file("write", file))?;
    }
    Ok(table.is_good())
}

/// The folders in which everything is built and run.
pub(crate) struct Stage {
    /// The folder `target/clients`.
    shop: Workshop,
    root: PathBuf,
    limit: Duration,
    /// Set where the clients are built for libfabric.
    libfabric: Option<Libfabric>,
}

impl Stage {
    /// Returns a folder below ours.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, Error> {
        self.shop.folder(name)
    }

    /// Returns the folder in which the clients find our header and library.
    pub(crate) fn installed(&self) -> PathBuf {
        self.shop.path("prefix")
    }

    /// Returns the folder of our provider's file.
    fn providers(&self) -> PathBuf {
        self.shop.path("provider")
    }

    fn library(&self, workspace: &Workspace, profile: &str) -> Result<PathBuf, Error> {
        let mut command = Command::new(cargo());
        command.args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            "doorbell-portals-abi",
        ]);
        command.args(["--profile", profile]).current_dir(&self.root);
        self.built(&mut command, "libportals")?;
        let folder = if profile == "dev" { "debug" } else { profile };
        Ok(workspace.target.join(folder).join("libportals.so"))
    }

    /// Puts header and library where a configure script looks for them, and the PMI library that comes with
    /// the reference.
    fn prefix(&self, library: &Path, reference: Option<&Path>) -> Result<(), Error> {
        let include = self.folder("prefix/include")?;
        let lib = self.folder("prefix/lib")?;
        let header = self.root.join("am/portals/abi/include/portals4.h");
        copied(&header, &include.join("portals4.h"))?;
        copied(library, &lib.join("libportals.so"))?;
        match reference {
            Some(tree) => recipes::pmi(self, tree),
            None => Ok(()),
        }
    }

    /// Returns the folders of what is below the clients.
    fn libraries(&self) -> Vec<PathBuf> {
        match &self.libfabric {
            None => vec![self.installed().join("lib")],
            Some(libfabric) => libfabric.libraries(),
        }
    }

    /// Runs a step of a build; its output is in a file that an error names.
    pub(crate) fn built(&self, command: &mut Command, name: &str) -> Result<(), Error> {
        self.shop.built(command, name)
    }

    /// Runs each test of a suite over one network, and over libfabric with one provider.
    fn play(
        &self,
        suite: &Suite,
        route: &Route,
        ranks: u32,
        chosen: &[String],
        table: &mut Table,
    ) -> Result<(), Error> {
        let mut row = Row::new(suite.client, route.to_string(), ranks);
        row.is_judged = route.is_ours();
        let place = route.network.make(&self.folder("run")?);
        let place = match place.and_then(|place| suite.launcher.reaches(place)) {
            Ok(place) => place,
            Err(why) => {
                row.reason = Some(why);
                table.add(row);
                return Ok(());
            }
        };
        for case in &suite.cases {
            let is_chosen = chosen.is_empty() || chosen.iter().any(|name| case.name.starts_with(name));
            if !is_chosen || ranks < case.least {
                continue;
            }
            let mut command = place.command();
            suite.launcher.command(&mut command, ranks, &place);
            command.arg(&case.program).args(&case.arguments);
            command.envs(suite.environment.iter().map(|(name, value)| (name, value)));
            if cores().is_some_and(|cores| ranks > cores) {
                command.envs(suite.crowded);
            }
            route.lead(&mut command, &place, &self.providers());
            let libraries = suite.libraries.iter().cloned().chain(self.libraries());
            if let Ok(libraries) = std::env::join_paths(libraries) {
                command.env("LD_LIBRARY_PATH", libraries);
            }
            // Of a program that is looked for on PATH there is none.
            let folder = case.program.parent().filter(|folder| folder.is_dir());
            if let Some(folder) = folder {
                command.current_dir(folder);
            }
            let name = format!("{}-{}-{route}-{ranks}", suite.client, case.name);
            let path = self.shop.log(&name)?;
            let ended = self.shop.run(&mut command, &path, self.limit)?;
            // Clients write any bytes; what cannot be read at all has not passed.
            let output = std::fs::read(&path);
            let is_well = output.is_ok_and(|bytes| !(case.failed)(&String::from_utf8_lossy(&bytes)));
            let passed = matches!(&ended, Ended::Exit(status) if status.success()) && is_well;
            if passed {
                row.passed += 1;
            } else {
                let how = how(&ended);
                eprintln!("  {}: {how} (log: {})", case.name, path.display());
                row.fail(&case.name, how);
            }
        }
        eprintln!(
            "  {route}, {ranks} ranks: {} passed, {} failed",
            row.passed,
            row.failed.len()
        );
        table.add(row);
        Ok(())
    }
}

/// Returns the number of cores that the ranks share.
fn cores() -> Option<u32> {
    let cores = std::thread::available_parallelism().ok()?;
    u32::try_from(cores.get()).ok()
}

impl Launcher {
    /// Returns the place, if ranks can be started there.
    fn reaches(&self, place: Place) -> Result<Place, String> {
        match self {
            Self::Own { .. } if place.hosts().is_some() => {
                Err("only hydra starts ranks on two hosts here".to_owned())
            }
            Self::Own { .. } | Self::Hydra => Ok(place),
        }
    }

    /// Adds the words that start `ranks` ranks of what follows.
    fn command(&self, command: &mut Command, ranks: u32, place: &Place) {
        match self {
            Self::Hydra => {
                command.args(["mpiexec.hydra", "-n", &ranks.to_string()]);
                if let Some(hosts) = place.hosts() {
                    hosts.through_hydra(command, ranks);
                }
            }
            Self::Own { mpirun, words } => {
                command.arg(mpirun).args(words).args(["-n", &ranks.to_string()]);
            }
        }
    }
}
