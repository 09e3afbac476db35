//! The command line of `doorbell run`, and of what it starts.

use clap::{Args, ValueEnum};
use doorbell_fabric::name::RailName;
use serde::{Deserialize, Serialize};

use crate::cli::values::{rail, seconds, whole};
use crate::{exits, settings};

/// Binding of ranks to cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Bind {
    /// One core for each rank in turn, hardware threads of one core last, when there are enough; not at all
    /// otherwise
    Auto,
    /// One core for each rank in turn, shared when there are too few
    Core,
    /// Leave it to the scheduler
    None,
}

/// Start N ranks of a program, on this machine or on several
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each rank finds DOORBELL_RANK, DOORBELL_SIZE and DOORBELL_ROOT in its environment. The first rank that fails decides \
the exit status (128 + n for signal n); the others are ended then. Rank 0 reads the standard input when it is not a \
terminal.\n\n\
When the job fails, or the launcher is killed, what the ranks started is ended with them: all of a rank's process \
group, and every process of this user that still has the job's DOORBELL_ROOT in its environment. Out of reach are \
processes that left both, that run as another user, or where /proc cannot be read. Processes that a job leaves behind \
when it ends well are left alone.\n\n\
With --hosts, a daemon is started on each by the remote shell, which must run without a prompt (with an ssh key that has no \
passphrase, or an agent). The program, the folder and doorbell itself are at the same paths there. Ranks find PMI_RANK \
and PMI_SIZE in their environment, as under MPICH's launcher, so MPICH programs start as well. The daemons and the launcher \
communicate under a key of the job, over the NICs that --nic names: docs/launchers.md lists what listens. The settings \
control.transports, control.rails, control.routes, control.threads, control.wait and control.core are theirs as well: \
docs/oob.md.\n\n", settings!(), exits!(), "\
Examples:\n  doorbell run -n 2 -- ./hello\n  doorbell run -n 4 --rail shm --timeout 60 -- ./my-program --its-flag\n  \
doorbell run -n 2 --cores-per-rank 2 --show-binding -- ./my-program\n  \
doorbell run -n 2 --rail shm --rail 'igbvf:0000:01:10.*' -- ./my-program\n  \
doorbell run -n 2 --bind none --no-prefix -- sh -c 'echo $DOORBELL_RANK of $DOORBELL_SIZE'\n  \
doorbell run -n 4 --hosts node1:2,node2:2 --nic 10.0.0.0/8 --rail udp:eth0 --timeline -- ./my-program"))]
pub struct RunArgs {
    /// Number of ranks, 1 to 1024
    #[arg(short = 'n', long = "ranks", value_name = "N", allow_hyphen_values = true, value_parser = whole::<u32>(1..=1024))]
    pub(crate) ranks: u32,
    /// A rail to use, without a substitute if it cannot be used; may be repeated up to 32 times; by default
    /// all rails that need not be named. One that this machine does not have is refused before a rank starts
    /// (status 3); with --hosts, each host's ranks check theirs. A name with `*` is a set (`udp:eth*`,
    /// `igbvf:0000:01:10.*`), of which each rank of a host takes one, the nearest to its cores first; fewer
    /// than a host's ranks are refused before any rank starts on any host (status 3)
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// End the job after this many seconds
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = seconds)]
    pub(crate) timeout: Option<f64>,
    /// Binding of ranks to cores
    #[arg(long, value_enum, default_value_t = Bind::Auto)]
    pub(crate) bind: Bind,
    /// Give each rank this many whole cores, 1 to 1024: one for its own thread, one for its progress thread
    /// (progress.mode = dedicated), and further ones for threads of the program. Hardware threads of one core
    /// count as two only when there are too few whole cores; cores of the node of a named rail's device come
    /// first, isolated ones first within a node. Too few are refused before a rank starts (status 2). Without
    /// it, each rank gets one, or with a progress thread two where there are enough
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<u32>(1..=1024))]
    pub(crate) cores_per_rank: Option<u32>,
    /// Print the cores that each rank of this host gets, its rails where sets of them are named, and its
    /// control plane if it has one; without a program, start nothing
    #[arg(long, conflicts_with = "hosts")]
    pub(crate) show_binding: bool,
    /// With `--show-binding`: print it as JSON
    #[arg(long, requires = "show_binding")]
    pub(crate) json: bool,
    /// Pass output on as it is, without the rank in front of each line
    #[arg(long)]
    pub(crate) no_prefix: bool,
    /// The hosts, and behind a colon how many ranks each takes: `node1:2,node2:2`
    #[arg(help_heading = "Several hosts", long, value_name = "LIST")]
    pub(crate) hosts: Option<String>,
    /// The remote shell: words, to which a host and a command are added
    #[arg(
        help_heading = "Several hosts",
        long,
        value_name = "COMMAND",
        default_value = "ssh -o BatchMode=yes",
        requires = "hosts"
    )]
    pub(crate) rsh: String,
    /// An interface or network of the control plane (`eth0`, `10.0.0.0/8`), on all hosts; again for each
    /// further one; all but loopback when none is named
    #[arg(
        help_heading = "Several hosts",
        long = "nic",
        value_name = "NIC",
        requires = "hosts"
    )]
    pub(crate) nics: Vec<String>,
    /// The ports of the control plane: `7200-7299`
    #[arg(
        help_heading = "Several hosts",
        long,
        value_name = "RANGE",
        default_value = "any",
        requires = "hosts"
    )]
    pub(crate) ports: String,
    /// A variable for the ranks: `NAME=VALUE`, or `NAME` with the value that it has here; those that begin
    /// with DOORBELL_ are passed on by default
    #[arg(
        help_heading = "Several hosts",
        long = "env",
        value_name = "NAME",
        requires = "hosts"
    )]
    pub(crate) env: Vec<String>,
    /// Path of doorbell on the hosts; without it, the same path as here
    #[arg(help_heading = "Several hosts", long, value_name = "PATH", requires = "hosts")]
    pub(crate) doorbell: Option<String>,
    /// How many daemons the launcher, and each daemon, starts; with more hosts they form a tree
    #[arg(help_heading = "Several hosts", long, value_name = "N", default_value = "64", value_parser = whole::<u32>(1..=1024), requires = "hosts")]
    pub(crate) tree: u32,
    /// How many seconds the daemons of all hosts may take to start
    #[arg(help_heading = "Several hosts", long, value_name = "S", default_value = "60", value_parser = seconds, requires = "hosts")]
    pub(crate) start_timeout: f64,
    /// Print at the end when each step of the start-up happened
    #[arg(help_heading = "Several hosts", long, requires = "hosts")]
    pub(crate) timeline: bool,
    /// Program that each rank runs
    #[arg(value_name = "PROGRAM", required_unless_present = "show_binding")]
    pub(crate) program: Option<std::ffi::OsString>,
    /// Arguments of the program
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<std::ffi::OsString>,
}

/// How a rank becomes the program.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The launcher's process: when it is another one, the launcher is dead already
    #[arg(long)]
    pub(crate) launcher: u32,
    /// The cores to be bound to
    #[arg(long, value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// The soft limit of open files for the program
    #[arg(long)]
    pub(crate) open_files: Option<u64>,
    /// The program to execute
    #[arg(required = true)]
    pub(crate) program: std::ffi::OsString,
    /// The arguments of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<std::ffi::OsString>,
}

/// Arguments of the reaper.
#[derive(Debug, Args)]
pub struct KeepArgs {
    /// The job's DOORBELL_ROOT
    #[arg(long)]
    pub(crate) root: String,
}
