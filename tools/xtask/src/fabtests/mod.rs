//! `cargo xtask fabtests`: libfabric's own tests over our provider, beside the providers that libfabric has.
//!
//! ```text
//!   --from SRC ──► source: a libfabric, fabtests against it ──► script: a namespace per provider ──► outcome
//!                                                                        table, JSON ◄── report ◄──┘
//! ```
//!
//! Nothing is downloaded, and the tree is not changed: everything is built under `target/fabtests`. The tests
//! are run by their own script, `runfabtests.sh`, and what it prints is the result.

mod outcome;
mod report;
mod script;
mod source;

use std::path::PathBuf;

use crate::error::Error;
use crate::provider;
use crate::workshop::{Workshop, need};
use crate::workspace::Workspace;
use report::{Report, Row};
use script::{Set, Sitting};
use source::Built;

pub(crate) const HELP: &str = "\
SRC is a source tree of libfabric, which has fabtests in it, or fabtests alone. It is built against the libfabric of --libfabric, \
else against the installed one if that is the same release (Debian: libfabric-dev), else against the tree's own libfabric, which \
is built first. Everything is built under target/fabtests and stays there for the next run. Needs gcc, make, python3, and \
autoconf, automake and libtool for trees without a configure script.

The script ends by killing every process whose name begins with fi_. So it runs in process and network namespaces of its own, \
one provider after the other; these need root, or a system that lets users make them.

Our provider is run with fabric/provider/fabtests.exclude, the others \
with the exclude files of the tree. Exit status 1 when a \
test fails over our provider; what fails over the others is shown and changes nothing.

Examples:
  cargo xtask fabtests --from ~/src/libfabric
  cargo xtask fabtests --from ~/src/libfabric --set unit --provider doorbell
  cargo xtask fabtests --from ~/src/libfabric --provider shm --provider 'udp;ofi_rxd' --json target/fabtests.json
  cargo xtask fabtests --from ~/src/libfabric --provider doorbell --test fi_rdm_pingpong --rails shm,udp:lo
  cargo xtask fabtests --from ~/src/fabtests-1.17.0 --libfabric /opt/libfabric";

/// The name of our provider.
const OURS: &str = "doorbell";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The source tree of libfabric, or of fabtests
    #[arg(long, value_name = "SRC")]
    from: PathBuf,
    /// Which of the script's sets of tests
    #[arg(long, value_enum, default_value_t = Set::Quick)]
    set: Set,
    /// The folder in which a libfabric is installed: it has include/rdma/fabric.h
    #[arg(long, value_name = "DIR")]
    libfabric: Option<PathBuf>,
    /// Over these providers; can be given several times
    #[arg(long, value_name = "NAME", default_values = [OURS, "shm", "tcp", "sockets", "udp;ofi_rxd"])]
    provider: Vec<String>,
    /// Only tests whose lines in the script begin with this; can be given several times
    #[arg(long, value_name = "LINE")]
    test: Vec<String>,
    /// The rails of our provider, as in FI_DOORBELL_RAILS
    #[arg(long, value_name = "RAILS")]
    rails: Option<String>,
    /// What one test may take, in seconds
    #[arg(long, value_name = "S", default_value_t = 120)]
    limit: u32,
    /// The profile that our provider is built with
    #[arg(long, value_name = "PROFILE", default_value = "release")]
    profile: String,
    /// Write the result there, as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table there, too, as Markdown
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

/// Builds the tests and runs them over each provider; true when none failed over ours.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    need(&[
        ("gcc", "gcc"),
        ("make", "make"),
        ("python3", "python3"),
        ("unshare", "util-linux"),
        ("ip", "iproute2"),
    ])?;
    let shop = Workshop::new(workspace.target.join("fabtests"))?;
    let built = Built::of(&shop, &options.from, options.libfabric.as_deref())?;
    let providers = shop.path("provider");
    if options.provider.iter().any(|name| name == OURS) {
        let library = provider::build(workspace, &options.profile)?;
        provider::install(&library, &providers)?;
    }
    let mut report = Report::new(options.set, &built);
    for name in &options.provider {
        eprintln!(
            "{name}: {} over libfabric {} …",
            options.set.word(),
            built.libfabric
        );
        let sitting = Sitting {
            shop: &shop,
            built: &built,
            provider: name,
            ours: (name == OURS).then_some(providers.as_path()),
            excludes: workspace.root.join("fabric/provider/fabtests.exclude"),
            rails: options.rails.as_deref(),
            set: options.set,
            only: &options.test,
            limit: options.limit,
        };
        let row = Row::new(name, sitting.run()?);
        eprintln!("  {}", row.line());
        report.add(row);
    }
    let json = report.to_json()?;
    match options.json.as_deref() {
        Some(file) if file.as_os_str() == "-" => print!("{json}"),
        Some(file) => {
            print!("{}", report.markdown());
            std::fs::write(file, json).map_err(Error::file("write", file))?;
        }
        None => print!("{}", report.markdown()),
    }
    if let Some(file) = &options.table {
        std::fs::write(file, report.markdown()).map_err(Error::file("write", file))?;
    }
    Ok(report.is_good())
}
