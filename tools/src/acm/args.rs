//! The command line of `doorbell acm`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::values::{seconds, whole};

/// The exit statuses, for the help of each command.
#[macro_export]
#[doc(hidden)]
macro_rules! acm_exits {
    () => {
        "\
Exit status: 0 done; 1 some address was not resolved; 2 wrong usage or configuration, or a file that it names is not there; 3 a service can serve none of its endpoints, when it starts; 5 a deadline passed; 6 the system refused, or \
no service is there.\n\n"
    };
}

/// How a service is named, for the help of each client.
#[macro_export]
#[doc(hidden)]
macro_rules! acm_services {
    () => {
        "\
A service is a Unix socket (a path with a `/` in it, or the name of a socket in this folder), or a host name or address, with `:PORT` if \
it differs from the port file. Without --service, it is the default socket of `doorbell acm serve`.\n\n"
    };
}

/// Resolve names and addresses to paths, as a service and as its client
#[derive(Debug, Args)]
pub struct AcmArgs {
    #[command(subcommand)]
    pub(crate) command: AcmCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AcmCommand {
    /// Run the service
    Serve(ServeArgs),
    /// Resolve names and addresses to paths
    Resolve(ResolveArgs),
    /// Show the endpoints of a service
    Endpoints(EndpointsArgs),
    /// Write the service's configuration for this host
    Config(ConfigArgs),
    /// Watch the state of a service
    Watch(WatchArgs),
}

/// Run the service
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Clients of rdma-core (librdmacm, `ib_acme`) find it where they look for ibacm: /run/ibacm-unix.sock. Without configuration, this \
host's own addresses are its endpoints, and it uses the loopback only; --nic, or `doorbell_interfaces` in \
the configuration, names the interfaces for multicast queries to other services. It reads ibacm_opts.cfg and \
ibacm_addr.cfg in --config, and follows changes of files, interfaces and addresses while it runs. Warnings go to \
standard error, or to `log_file` of the configuration. It runs until it is interrupted, and removes the files it created.\n\n", acm_exits!(), "\
Examples:\n  doorbell acm serve\n  doorbell acm serve --socket /tmp/acm.sock --nic eth0\n  \
doorbell acm serve --socket /tmp/acm.sock --tcp 0 --seconds 60\n  \
doorbell acm serve --nic eth0 --nic eth1 --key-file job.key --config /etc/rdma"))]
pub(crate) struct ServeArgs {
    /// The Unix socket; companion files are beside it: `PATH.watch` for `watch`, `PATH.alias`, the link for
    /// librdmacm, and with --tcp `PATH.port` with its link `PATH.port.alias`
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Also serve TCP, on loopback only; with 0, on a port that the system chooses
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "6125", value_parser = whole::<u16>(0..=65535))]
    pub(crate) tcp: Option<u16>,
    /// With --tcp: on all addresses of this host
    #[arg(long, requires = "tcp")]
    pub(crate) open: bool,
    /// The folder of ibacm_opts.cfg and ibacm_addr.cfg [default: /etc/rdma]
    #[arg(long, value_name = "DIR")]
    pub(crate) config: Option<PathBuf>,
    /// An interface (`eth0`) for messages between services; may be repeated
    #[arg(long = "nic", value_name = "NIC", value_parser = interface)]
    pub(crate) nics: Vec<String>,
    /// The key that all services of the job share; messages that it does not authenticate are dropped
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// End after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Print the addresses it listens on as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Checks the name of an interface, which need not exist yet.
fn interface(text: &str) -> Result<String, String> {
    let checked = doorbell_acm::config::interface_name(text);
    checked
        .map(|()| text.to_owned())
        .map_err(|why| format!("{why}; `ip -br link` lists the interfaces"))
}

/// The type of the addresses given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Detect the type
    Any,
    /// An IPv4 or IPv6 address
    Ip,
    /// A host's name
    Name,
    /// A GID of InfiniBand
    Gid,
    /// A LID of InfiniBand
    Lid,
}

/// Resolve names and addresses to paths
#[derive(Debug, Args)]
#[command(after_help = concat!(acm_services!(), acm_exits!(), "\
Examples:\n  doorbell acm resolve 10.0.0.2 node3\n  doorbell acm resolve 'node[1-16]' --cached\n  \
doorbell acm resolve 10.0.0.2 --source 10.0.0.1 --verify --service /tmp/acm.sock\n  \
doorbell acm resolve node3 --json | jq '.paths[0].path.mtu'"))]
pub(crate) struct ResolveArgs {
    /// Names and addresses; `[A-B]` means all numbers from A to B, and `fe80::1%eth0` is on the link of
    /// eth0
    #[arg(value_name = "DESTINATION", required = true)]
    pub(crate) destinations: Vec<String>,
    /// The address of this host at which the paths start; by default the service chooses one
    #[arg(long, short, value_name = "ADDRESS")]
    pub(crate) source: Option<String>,
    /// The type of the addresses
    #[arg(long, short, value_enum, default_value_t = Format::Any)]
    pub(crate) format: Format,
    /// Use only the service's cache
    #[arg(long, short)]
    pub(crate) cached: bool,
    /// Have each path verified: by the subnet administrator, or by packets of two sizes to the destination
    #[arg(long, short)]
    pub(crate) verify: bool,
    /// Repeat the query this many times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=1_000_000))]
    pub(crate) repeat: u32,
    /// The service to query
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// How long an answer may take, in seconds
    #[arg(long, value_name = "S", default_value = "20", value_parser = seconds)]
    pub(crate) timeout: f64,
    /// Print the paths as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the endpoints of a service
#[derive(Debug, Args)]
#[command(after_help = concat!(acm_services!(), acm_exits!(), "\
Examples:\n  doorbell acm endpoints\n  doorbell acm endpoints --json | jq '.endpoints[].addresses'"))]
pub(crate) struct EndpointsArgs {
    /// The service to query
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// Print the endpoints as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write the service's configuration for this host
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Time-outs and depths follow from the number of nodes; a comment before each explains why. Existing files are not overwritten without \
--force.\n\n", acm_exits!(), "\
Examples:\n  doorbell acm config\n  doorbell acm config --nodes 1000 --dir /etc/rdma"))]
pub(crate) struct ConfigArgs {
    /// Number of nodes in the cluster
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole::<u32>(1..=1_000_000))]
    pub(crate) nodes: u32,
    /// The folder to write both files to; without one they are printed
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Overwrite existing files
    #[arg(long, requires = "dir")]
    pub(crate) force: bool,
}

/// Watch the state of a service
#[derive(Debug, Args)]
#[command(after_help = concat!("\
On a terminal, a table that is redrawn each second; elsewhere, and with --json, the states follow each other.\n\n", acm_exits!(), "\
Examples:\n  doorbell acm watch\n  doorbell acm watch --once --json | jq '.known[] | select(.state != \"ready\")'"))]
pub(crate) struct WatchArgs {
    /// The service's status socket
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Show the state once
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON, a line for each state
    #[arg(long)]
    pub(crate) json: bool,
    /// How long the service may take for a state, in seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: f64,
}
