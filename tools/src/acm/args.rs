//! The command line of `doorbell acm`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::{seconds, whole};

/// How the commands end: the same words in the help of each.
macro_rules! exits {
    () => {
        "\
Exit status: 0 done; 1 something was not resolved; 2 wrong usage or configuration; 5 a deadline passed; 6 the system refused, or \
no service is there.\n\n"
    };
}

/// Where a service is found: the same words in the help of each client.
macro_rules! services {
    () => {
        "\
A service is a Unix socket (a path with a `/` in it, or the name of a socket in this folder), or a host by its name or address, with `:PORT` where that is another \
one than the service has written down. Without --service, it is the socket that `doorbell acm serve` opens by default.\n\n"
    };
}

/// Resolve names and addresses to paths, as a service and as its client
#[derive(Debug, Args)]
pub(crate) struct AcmArgs {
    #[command(subcommand)]
    pub(crate) command: AcmCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AcmCommand {
    /// Be the service
    Serve(ServeArgs),
    /// Ask for the paths to names and addresses
    Resolve(ResolveArgs),
    /// Show what a service has counted
    Perf(PerfArgs),
    /// Show a service's endpoints
    Endpoints(EndpointsArgs),
    /// Write the service's configuration for this host
    Config(ConfigArgs),
    /// Show what a service knows and does, as it happens
    Watch(WatchArgs),
    /// Ask for known paths from many clients, and time the answers
    Load(LoadArgs),
}

/// Be the service
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Clients of rdma-core (librdmacm, `ib_acme`) find it where they look for ibacm: /run/ibacm-unix.sock. Without configuration, this \
host's own addresses are its endpoints, and nothing beyond loopback is asked or answered; --nic, or `doorbell_interfaces` in \
the configuration, names the interfaces by which other services are asked, by multicast. It reads ibacm_opts.cfg and \
ibacm_addr.cfg of --config, and takes up changes of files, interfaces and addresses while it runs. Warnings go to the \
standard error, or to where `log_file` in the configuration says. It runs until it is interrupted, and removes what it made.\n\n", exits!(), "\
Examples:\n  doorbell acm serve\n  doorbell acm serve --socket /tmp/acm.sock --nic eth0\n  \
doorbell acm serve --socket /tmp/acm.sock --tcp 0 --seconds 60\n  \
doorbell acm serve --nic eth0 --nic eth1 --key-file job.key --config /etc/rdma"))]
pub(crate) struct ServeArgs {
    /// The Unix socket; its companions are beside it: `PATH.watch` for `watch`, `PATH.alias`, the link that librdmacm would ask
    /// by, and with --tcp `PATH.port` with its link `PATH.port.alias`
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Also serve TCP, on loopback alone; with 0, on a port that the system chooses
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "6125")]
    pub(crate) tcp: Option<u16>,
    /// With --tcp: on all addresses of this host, for whoever reaches it
    #[arg(long, requires = "tcp")]
    pub(crate) open: bool,
    /// The folder of ibacm_opts.cfg and ibacm_addr.cfg; /etc/rdma when none is named
    #[arg(long, value_name = "DIR")]
    pub(crate) config: Option<PathBuf>,
    /// An interface (`eth0`) by which other services are asked and answered; again for each further one
    #[arg(long = "nic", value_name = "NIC", value_parser = interface)]
    pub(crate) nics: Vec<String>,
    /// The key that all services of the job have: what is not authenticated by it is not believed
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// End after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Say where it listens as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The name of an interface, which need not be there yet.
fn interface(text: &str) -> Result<String, String> {
    let checked = doorbell_acm::config::interface_name(text);
    checked
        .map(|()| text.to_owned())
        .map_err(|why| format!("{why}; `ip -br link` lists those that there are"))
}

/// What kind of address is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Whatever it looks like
    Any,
    /// An IPv4 or IPv6 address
    Ip,
    /// A host's name
    Name,
    /// A GID
    Gid,
    /// A LID
    Lid,
}

/// Ask for the paths to names and addresses
#[derive(Debug, Args)]
#[command(after_help = concat!(services!(), exits!(), "\
Examples:\n  doorbell acm resolve 10.0.0.2 node3\n  doorbell acm resolve 'node[1-16]' --cached\n  \
doorbell acm resolve 10.0.0.2 --source 10.0.0.1 --verify --service /tmp/acm.sock\n  \
doorbell acm resolve node3 --json | jq '.paths[0].path.mtu'"))]
pub(crate) struct ResolveArgs {
    /// Names and addresses; `[A-B]` stands for all numbers from A to B, and `fe80::1%eth0` is on the link of eth0
    #[arg(value_name = "DESTINATION", required = true)]
    pub(crate) destinations: Vec<String>,
    /// An address of this host that the paths begin at; the service chooses one otherwise
    #[arg(long, short, value_name = "ADDRESS")]
    pub(crate) source: Option<String>,
    /// What the addresses are
    #[arg(long, short, value_enum, default_value_t = Format::Any)]
    pub(crate) format: Format,
    /// Only what the service knows already
    #[arg(long, short)]
    pub(crate) cached: bool,
    /// Have each path verified: by the subnet's administration, or by packets of two sizes to the destination
    #[arg(long, short)]
    pub(crate) verify: bool,
    /// Ask so often
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=1_000_000))]
    pub(crate) repeat: u32,
    /// The service
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// How long an answer may take, in seconds
    #[arg(long, value_name = "S", default_value = "20", value_parser = seconds)]
    pub(crate) timeout: f64,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what a service has counted
#[derive(Debug, Args)]
#[command(after_help = concat!(services!(), exits!(), "\
Examples:\n  doorbell acm perf\n  doorbell acm perf --all\n  doorbell acm perf --source 10.0.0.1 --json"))]
pub(crate) struct PerfArgs {
    /// Of each endpoint, too
    #[arg(long, conflicts_with = "source")]
    pub(crate) all: bool,
    /// Of the endpoint that has this address
    #[arg(long, short, value_name = "ADDRESS")]
    pub(crate) source: Option<String>,
    /// The service
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show a service's endpoints
#[derive(Debug, Args)]
#[command(after_help = concat!(services!(), exits!(), "\
Examples:\n  doorbell acm endpoints\n  doorbell acm endpoints --json | jq '.endpoints[].addresses'"))]
pub(crate) struct EndpointsArgs {
    /// The service
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write the service's configuration for this host
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Time-outs and depths follow from the number of nodes; each line says why. Files that are there are not overwritten without \
--force.\n\n", exits!(), "\
Examples:\n  doorbell acm config\n  doorbell acm config --nodes 1000 --dir /etc/rdma"))]
pub(crate) struct ConfigArgs {
    /// Nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole::<u32>(1..=1_000_000))]
    pub(crate) nodes: u32,
    /// The folder to write both files to; they are shown when none is named
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Overwrite files that are there
    #[arg(long, requires = "dir")]
    pub(crate) force: bool,
}

/// Show what a service knows and does, as it happens
#[derive(Debug, Args)]
#[command(after_help = concat!("\
On a terminal, a table that is drawn anew each second; elsewhere, and with --json, each state is written after the last.\n\n", exits!(), "\
Examples:\n  doorbell acm watch\n  doorbell acm watch --once --json | jq '.known[] | select(.state != \"ready\")'"))]
pub(crate) struct WatchArgs {
    /// The service's socket
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Once, and not again and again
    #[arg(long)]
    pub(crate) once: bool,
    /// As JSON, a line for each state
    #[arg(long)]
    pub(crate) json: bool,
    /// How long the service may take for a state, in seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: f64,
}

/// Ask for known paths from many clients, and time the answers
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each client has a connection of its own and asks at its share of the rate; times are counted from when a question was to be \
asked, so that a service that stands still is not asked less. The memory of the service is read before and after, where it \
runs here and its process is known.\n\n", services!(), exits!(), "\
Examples:\n  doorbell acm load 10.0.0.2\n  doorbell acm load node2 node3 --clients 100 --rate 10000 --seconds 10 --json"))]
pub(crate) struct LoadArgs {
    /// Names and addresses, asked for in turn
    #[arg(value_name = "DESTINATION", required = true)]
    pub(crate) destinations: Vec<String>,
    /// Clients
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<u32>(1..=10_000))]
    pub(crate) clients: u32,
    /// Questions a second, of all clients together
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = whole::<u32>(1..=10_000_000))]
    pub(crate) rate: u32,
    /// For so long, in seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// The service
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
