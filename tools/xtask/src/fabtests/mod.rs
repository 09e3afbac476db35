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
use crate::two_hosts::{RAILS, TwoHosts};
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

With --two-hosts, server and client are in two network namespaces with two links between them, v0 and v1, which needs root. \
Our provider's rails are udp:v0,udp:v1 then, if none are named, and shm and sockets are left out unless they are named. \
With --out-of-band the tests exchange addresses by a connection of their own, and not by node and service.

Our provider is run with fabric/provider/fabtests.exclude, the others \
with the exclude files of the tree. Exit status 1 when a \
test fails over our provider; what fails over the others is shown and changes nothing. What the script counts as failed, although \
the server did nothing but call fi_getinfo, which had no data, and its clients only found it gone, is shown as refused.

Examples:
  cargo xtask fabtests --from ~/src/libfabric
  cargo xtask fabtests --from ~/src/libfabric --set unit --provider doorbell
  cargo xtask fabtests --from ~/src/libfabric --provider shm --provider 'udp;ofi_rxd' --json target/fabtests.json
  cargo xtask fabtests --from ~/src/libfabric --provider doorbell --test fi_rdm_pingpong --rails shm,udp:lo
  cargo xtask fabtests --from ~/src/libfabric --two-hosts --rails xdp:v0
  cargo xtask fabtests --from ~/src/libfabric --provider doorbell --set complex --ubertest fabric/provider/ubertest.test
  cargo xtask fabtests --from ~/src/libfabric --provider doorbell --set short --test fi_rdm_ --arguments '-c sread'
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
    /// Over these providers, instead of doorbell, shm, tcp, sockets, udp;ofi_rxd; can be given several times
    #[arg(long, value_name = "NAME")]
    provider: Vec<String>,
    /// Only tests whose lines in the script begin with this; can be given several times
    #[arg(long, value_name = "LINE")]
    test: Vec<String>,
    /// The rails of our provider, as in FI_DOORBELL_RAILS
    #[arg(long, value_name = "RAILS")]
    rails: Option<String>,
    /// Server and client on two hosts: network namespaces with two links between them
    #[arg(long)]
    two_hosts: bool,
    /// The tests exchange addresses by a connection of their own
    #[arg(long)]
    out_of_band: bool,
    /// Arguments that server and client of each test get besides
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    arguments: Option<String>,
    /// The file for fi_ubertest over our provider, instead of the one that libfabric has for shm (sets
    /// complex and all)
    #[arg(long, value_name = "FILE")]
    ubertest: Option<PathBuf>,
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

impl Options {
    /// Returns the names of the providers: of one host, all that are likely to be installed.
    fn providers(&self) -> Vec<&str> {
        if !self.provider.is_empty() {
            return self.provider.iter().map(String::as_str).collect();
        }
        let mut names = vec![OURS, "shm", "tcp", "sockets", "udp;ofi_rxd"];
        names.retain(|name| !self.two_hosts || !["shm", "sockets"].contains(name));
        names
    }

    /// Returns the rails of our provider, if there are to be other ones than it has by itself.
    fn rails(&self) -> Option<&str> {
        self.rails.as_deref().or(self.two_hosts.then_some(RAILS))
    }
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
    let names = options.providers();
    if names.contains(&OURS) {
        let library = provider::build(workspace, &options.profile)?;
        provider::install(&library, &providers)?;
    }
    let hosts = match options.two_hosts {
        true => Some(TwoHosts::new(&shop.folder("run")?)?),
        false => None,
    };
    let mut report = Report::new(options.set, &built, options.two_hosts);
    for name in names {
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
            rails: options.rails(),
            set: options.set,
            only: &options.test,
            limit: options.limit,
            hosts: hosts.as_ref(),
            out_of_band: options.out_of_band,
            arguments: options.arguments.as_deref(),
            ubertest: options.ubertest.as_deref(),
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
