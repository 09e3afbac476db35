//! The command line: one place for names, defaults, help and examples.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use doorbell::oob::{Endpoint, OobError};
use doorbell_bench::layer::Layer;
use doorbell_bench::plan::{RATE_MAX, RATE_MIN};
use doorbell_bench::size::Size;
use doorbell_fabric::name::RailName;
use serde::{Deserialize, Serialize};

use crate::acm::args::AcmArgs;
use crate::model::args::ModelArgs;

/// With which number a command ends: the same words in the help of each.
macro_rules! exits {
    () => {
        "\
Exit status: 0 done; 1 the verdict is no; 2 wrong usage or configuration; 3 a rail cannot be used; 4 a peer was lost; \
5 a deadline passed; 6 the system refused; 128 + n a rank was ended by signal n. Of several ranks, the first that \
fails decides; a program of `run` may end with numbers of its own (126: it cannot be run, 127: it is not there).\n\n"
    };
}

/// Where settings come from: the same words in the help of each command that reads them.
macro_rules! settings {
    () => {
        "\
Settings: what no option says comes from the environment (DOORBELL_DEADLINE=5s), else from the TOML file that \
DOORBELL_CONFIG names, else from the defaults; `doorbell info --config` lists every setting with its variable, its \
value and where that came from.\n\n"
    };
}

/// How two hosts measure together: the same words in the help of each measurement.
macro_rules! hosts {
    () => {
        "\
Two hosts: `--serve` on one, `--connect` on the other, with a copy of the same key file (`doorbell key FILE`) on both. \
Addresses, start and end go over one TCP connection, port 7117 unless another is named, which the key authenticates and \
encrypts; messages go over the rails. The connecting side's options rule, and it writes the report; each side names its \
own rails, mode and cores (`--cores A` is then the core of this side, `--cores A,B` in dedicated mode also that of its \
progress thread). One `--serve` serves pingpong, stream and rate, one client after another, until it is interrupted. \
Without a key, only loopback is served and called.\n\n"
    };
}

/// Processes of a job exchange tagged messages from user space.
#[derive(Debug, Parser)]
#[command(
    name = "doorbell",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = concat!(
        exits!(),
        "Examples:\n  doorbell info\n  doorbell pingpong\n  doorbell run -n 4 -- ./my-program --its-flag"
    )
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start N ranks of a program, on this machine or on several
    Run(RunArgs),
    /// Show the rails of this machine, and why each can or cannot be used
    Info(InfoArgs),
    /// Show which rails lead to a peer, and why the others do not
    Why(WhyArgs),
    /// Show what the ranks that run here have counted so far
    Counters(CountersArgs),
    /// Find out why a rail does not work, and what to do
    Doctor(DoctorArgs),
    /// Ping every pair of ranks over every rail
    Links(LinksArgs),
    /// Be a device: a process that a driver can be tried on, without hardware
    #[command(after_help = concat!(exits!(), "\
Examples:\n  doorbell model vic\n  doorbell model vic --help\n  doorbell model vic --dir /tmp/vic --vfs 4"))]
    Model(ModelArgs),
    /// Resolve names and addresses to paths, as a service and as its client
    #[command(after_help = concat!(exits!(), "\
Examples:\n  doorbell acm serve --nic eth0\n  doorbell acm resolve node3\n  doorbell acm watch"))]
    Acm(AcmArgs),
    /// Own a physical function, for the rails over its virtual ones
    #[command(after_help = concat!(exits!(), "\
Examples:\n  doorbell agent usnic --pf 0000:3b:00.0\n  doorbell agent usnic --pf model/D/pf"))]
    Agent {
        /// The kind of rail
        #[command(subcommand)]
        kind: AgentCommand,
    },
    /// Measure latency: one message to and fro
    #[command(after_help = concat!("\
Two processes are started, each bound to a core of its own; under `doorbell run` the ranks work in pairs 0-1, 2-3, …\n\
Half round trips are shown, every figure of all exchanges. With `--rate` or `--open-loop`, \
full round trips: from the intended send, beside those from the actual one.\n\n", hosts!(), settings!(), exits!(), "\
Examples:\n  doorbell pingpong\n  doorbell pingpong --sizes 8,64,4Ki --seconds 2 --plot latency.svg\n  \
doorbell pingpong --sizes 8 --json - | jq '.results[0].half_rtt_ns.p99'\n  \
doorbell pingpong --verify\n  \
doorbell pingpong --sizes 64 --rate 200k\n  doorbell pingpong --sizes 64 --open-loop\n  \
doorbell pingpong --sizes 8 --one-way\n  \
doorbell pingpong --rail shm --rail udp:lo\n  \
doorbell pingpong --layer portals --sizes 8\n  doorbell pingpong --layer am --rail udp:lo\n  \
doorbell pingpong --serve --bind 10.0.0.1 --key-file job.key\n  \
doorbell pingpong --connect 10.0.0.1 --rail udp:eth0 --key-file job.key"))]
    Pingpong(PingpongArgs),
    /// Measure bandwidth: messages in one direction, a window outstanding
    #[command(after_help = concat!(hosts!(), settings!(), exits!(), "\
Examples:\n  doorbell stream\n  doorbell stream --sizes 64Ki,1Mi --window 16 --no-cma\n  \
doorbell stream --sizes 1Mi --verify --json - | jq '.results[].verified'\n  \
doorbell stream --csv stream.csv --plot stream.html"))]
    Stream(StreamArgs),
    /// Measure messages per second: small ones, in one direction
    #[command(after_help = concat!("\
Messages up to 4 KiB are sent and received by blocking calls, which is the fastest way: the rail's own queue keeps \
them under way. `--posted N` has N non-blocking requests outstanding on each side instead, as benchmarks of MPI do; \
each then costs a request more than the same message by blocking calls.\n\n", hosts!(), settings!(), exits!(), "\
Examples:\n  doorbell rate\n  doorbell rate --posted 512\n  doorbell rate --sizes 8,64,1Ki --json rate.json\n  \
doorbell rate --verify"))]
    Rate(RateArgs),
    /// Measure what the sockets below a udp rail take by themselves
    RawUdp(RawUdpArgs),
    /// Make a key that two hosts share
    Key(KeyArgs),
    /// Compare two reports: is the second run worse than the first, or is that noise?
    Compare(CompareArgs),
    /// Measure what the design promises, and judge it
    Budgets(BudgetsArgs),
    /// Measure doorbell and the peers that are installed in turn, and tell who is ahead
    ComparePeers(ComparePeersArgs),
    /// Show how costs grow with idle peers, with queued messages, and with ranks on this machine
    Scaling(ScalingArgs),
    /// What `scaling` starts to measure idle peers, and worlds
    #[command(hide = true)]
    MeasureScaling(MeasureScalingArgs),
    /// What `compare-peers` starts to measure overlap
    #[command(hide = true)]
    MeasureOverlap(OverlapArgs),
    /// What `links` starts: a rank that meets all others
    #[command(hide = true)]
    LinksRank,
    /// What `doctor` starts to see whether two processes can exchange messages
    #[command(hide = true)]
    DoctorPeer,
    /// What `budgets` starts to measure idle peers
    #[command(hide = true)]
    MeasureIdle,
    /// What `run` starts instead of the program itself
    #[command(hide = true)]
    ExecRank(ExecArgs),
    /// What `run` leaves beside the ranks, to end them when the launcher cannot
    #[command(hide = true)]
    KeepJob(KeepArgs),
    /// What `run --hosts` starts on each host
    #[command(hide = true)]
    Daemon,
}

/// Binding of ranks to cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Bind {
    /// One core for each rank in turn, hardware threads of one core last, when there are enough; not at all otherwise
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
With --hosts, a daemon is started on each by the remote shell, which must not ask for anything (a key of ssh without a \
passphrase, or an agent). The program, the folder and doorbell itself are at the same places there. Ranks find PMI_RANK \
and PMI_SIZE, as under MPICH's launcher, whose programs start so as well. The daemons and the launcher talk \
under a key of the job's own, over the NICs that are named by --nic: docs/launchers.md says what listens.\n\n", settings!(), exits!(), "\
Examples:\n  doorbell run -n 2 -- ./hello\n  doorbell run -n 4 --rail shm --timeout 60 -- ./my-program --its-flag\n  \
doorbell run -n 2 --bind none --no-prefix -- sh -c 'echo $DOORBELL_RANK of $DOORBELL_SIZE'\n  \
doorbell run -n 4 --hosts node1:2,node2:2 --nic 10.0.0.0/8 --rail udp:eth0 --timeline -- ./my-program"))]
pub(crate) struct RunArgs {
    /// Number of ranks, 1 to 1024
    #[arg(short = 'n', long = "ranks", value_name = "N", allow_hyphen_values = true, value_parser = whole::<u32>(1..=1024))]
    pub(crate) ranks: u32,
    /// A rail to be used or refused; again for each further one, up to 32; all that need no naming when none is named
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// End the job after this many seconds
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = seconds)]
    pub(crate) timeout: Option<f64>,
    /// Binding of ranks to cores
    #[arg(long, value_enum, default_value_t = Bind::Auto)]
    pub(crate) bind: Bind,
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
    /// An interface or network of the control plane (`eth0`, `10.0.0.0/8`), on all hosts; again for each further one; all but loopback
    /// when none is named
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
    /// A variable for the ranks: `NAME=VALUE`, or `NAME` with the value that it has here; those that begin with DOORBELL_ go by
    /// themselves
    #[arg(
        help_heading = "Several hosts",
        long = "env",
        value_name = "NAME",
        requires = "hosts"
    )]
    pub(crate) env: Vec<String>,
    /// Where doorbell is on the hosts; the same path as here when it is not said
    #[arg(help_heading = "Several hosts", long, value_name = "PATH", requires = "hosts")]
    pub(crate) doorbell: Option<String>,
    /// How many daemons the launcher, and each daemon, starts: beyond that they are a tree
    #[arg(help_heading = "Several hosts", long, value_name = "N", default_value = "64", value_parser = whole::<u32>(1..=1024), requires = "hosts")]
    pub(crate) tree: u32,
    /// How long the hosts may take to be there, in seconds
    #[arg(help_heading = "Several hosts", long, value_name = "S", default_value = "60", value_parser = seconds, requires = "hosts")]
    pub(crate) start_timeout: f64,
    /// Say at the end when what of the start-up happened
    #[arg(help_heading = "Several hosts", long, requires = "hosts")]
    pub(crate) timeline: bool,
    /// The program
    #[arg(value_name = "PROGRAM", required = true)]
    pub(crate) program: std::ffi::OsString,
    /// Its arguments
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<std::ffi::OsString>,
}

/// Show the rails of this machine, and why each can or cannot be used
#[derive(Debug, Args)]
#[command(after_help = concat!(settings!(), exits!(), "\
Examples:\n  doorbell info\n  doorbell info --config\n  doorbell info --json | jq '.kinds[].kind'"))]
pub(crate) struct InfoArgs {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show every setting instead, with its value and where it came from
    #[arg(long)]
    pub(crate) config: bool,
}

/// Show which rails lead to a peer, and why the others do not
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each rank keeps a page of counters that this user may read: messages by kind, and for each rail what it sent, received, dropped \
and why. They are at most a millisecond behind a rank that calls.\n\n", exits!(), "\
Examples:\n  doorbell counters\n  doorbell counters 4711 --name udp:eth0\n  \
doorbell counters --json | jq '.ranks[].readings[] | select(.name | endswith(\".sent\"))'"))]
pub(crate) struct CountersArgs {
    /// Of this process alone
    #[arg(value_name = "PID")]
    pub(crate) process: Option<u32>,
    /// Those whose names begin with this; again for each further one
    #[arg(long = "name", value_name = "TEXT")]
    pub(crate) names: Vec<String>,
    /// Those that are zero, too
    #[arg(long)]
    pub(crate) all: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = concat!("\
A number is a rank of a job that runs on this machine: its other ranks are asked, by their counter files, how their rails \
to it are, and why each of the others was not chosen. Everything else is a host: the rails of this machine are judged by \
interface, address family and routing table towards all its addresses, and nothing is sent; with `--probe`, a \
`doorbell pingpong --serve` that runs there (port 7117) is met, small and full frames are tried in both directions, and \
latencies are measured. The verdict is no when no rail leads there; what to name is told then.\n\n", settings!(), exits!(), "\
Examples:\n  doorbell why 10.0.0.2\n  doorbell why node7 --rail udp:eth0\n  doorbell why 1\n  \
doorbell why 1 --job 4711 --json | jq '.from[].rails[].reason'\n  \
doorbell why 10.0.0.2 --probe --rail udp:eth0 --key-file job.key"))]
pub(crate) struct WhyArgs {
    /// A rank, an address, or the name of a host
    #[arg(value_name = "PEER")]
    pub(crate) peer: String,
    /// Of a rank: only from this process, one of the job's ranks
    #[arg(long, value_name = "PID")]
    pub(crate) job: Option<u32>,
    /// Of a host: a rail to be judged as named; again for each further one
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// Of a host: meet the side that serves there, and try the rails
    #[arg(long)]
    pub(crate) probe: bool,
    /// With --probe: the key that both sides have; without one, only loopback is used
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Find out why a rail does not work, and what to do
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each rail is a chain of steps that rest on each other: interface, link, address, rights, memory, and at the end messages or \
frames through real rails. A chain stops at its first broken step, with the likely cause and what to do; advice for speed \
(governor, isolated cores, memory nodes, huge pages) breaks nothing. Without names, every rail of this machine is looked at, \
but an xdp rail is not opened, which would attach a program to its interface for a moment: name it for that.\n\n\
Nothing is changed: rails and sockets are opened and closed again, and commands are printed and never run. With `--fix`, only \
what is broken is printed as commands; advice stands behind a #. Nothing is sent beyond this machine but to the peer that \
`--peer` names. Status 1 when a chain is broken, 0 when none is, also where something could not be found out.\n\n",
settings!(), exits!(), "\
Examples:\n  doorbell doctor\n  doorbell doctor udp:eth0 --peer 10.0.0.2\n  doorbell doctor xdp:eth1\n  \
doorbell doctor igbvf:0000:01:10.0\n  doorbell doctor shm --fix\n  \
doorbell doctor --json | jq '.chains[] | select(.verdict == \"broken\")'"))]
pub(crate) struct DoctorArgs {
    /// A rail, the address of a PCI function, an interface, or an address of one; all that there is when none is named
    #[arg(value_name = "RAIL|BDF")]
    pub(crate) rails: Vec<String>,
    /// Look at the way to this address, too: route, answers, the longest packet that passes
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) peer: Option<IpAddr>,
    /// As JSON
    #[arg(long, conflicts_with = "fix")]
    pub(crate) json: bool,
    /// Print the fixes alone, as lines for a shell; they are never run
    #[arg(long)]
    pub(crate) fix: bool,
}

/// The kinds of rails that need one.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Own the physical function of a Cisco VIC, and steer frames to its usNIC functions
    Usnic(UsnicAgentArgs),
}

/// Own the physical function of a Cisco VIC, and steer frames to its usNIC functions
#[derive(Debug, Args)]
#[command(after_help = concat!("\
A usNIC function does not install filters itself: whoever owns its physical function does. This process opens that one \
(bound to vfio-pci, so that no kernel has it; or of a model), and does it for the rails of its own user, root's, and a group's where \
one is named, until it is interrupted, or nobody can read its output any more. Rails find it by its socket, and it has to be there \
before them. What a process had installed is taken away when it ends. A physical function that was reset, or went away, is opened \
again; rails are down until then.\n\n", exits!(), "\
Examples:\n  doorbell agent usnic --pf 0000:3b:00.0\n  doorbell agent usnic --pf model//tmp/vic/pf"))]
pub(crate) struct UsnicAgentArgs {
    /// The physical function: its PCI address, or `model/DIR/pf`; `usnic:` in front, as rails have it, does no harm
    #[arg(long, value_name = "BDF|model/DIR/pf")]
    pub(crate) pf: String,
    /// Where it listens; without: agent.sock in the model's folder, or /run/doorbell/usnic-BDF.sock
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Let the members of this group connect, too (the socket is the group's, 0660): with an agent of root's, as rails believe no other
    /// user's but their own
    #[arg(long, value_name = "NAME|GID")]
    pub(crate) group: Option<String>,
}

/// Ping every pair of ranks over every rail
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Messages of eight bytes and of the longest that goes in one frame go to and fro between each two ranks, and are compared byte \
by byte. Each rail has a job of its own, in which it is the only one: no other rail steps in, and one that fails stops no \
other. In a round every rank has one partner, so that with more ranks than cores they wait for each other: the figures say \
that it works, `pingpong` says how fast. A pair that does not work is told with what its rail found out.\n\n\
Two hosts: `doorbell pingpong --serve` on one, with its rails; `doorbell links --connect` on the other.\n\n\
Without `--rail`, the rails of the settings (rails.list), else shm and udp:lo, which listen on this machine alone. Status 1 when a pair does not work.\n\n",
settings!(), exits!(), "\
Examples:\n  doorbell links\n  doorbell links --ranks 4 --rail shm --rail udp:eth0\n  \
doorbell links --connect 10.0.0.1 --rail udp:eth0 --rail xdp:eth1 --key-file job.key\n  \
doorbell links --json | jq '.rails[].pairs[] | select(.works | not)'"))]
pub(crate) struct LinksArgs {
    /// A rail to be tried; again for each further one
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// Ranks on this machine, 2 to 64
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 2, value_parser = whole::<u32>(2..=64), conflicts_with = "connect")]
    pub(crate) ranks: u32,
    /// With the side that serves there, instead of ranks of this machine
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = endpoint, requires = "rails")]
    pub(crate) connect: Option<Endpoint>,
    /// With --connect: the key that both sides have; without one, only loopback is used
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the engine makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// In the calls of the program
    Inline,
    /// In a thread of its own on a core of its own
    Dedicated,
}

impl ModeArg {
    /// Its name, as the configuration knows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Dedicated => "dedicated",
        }
    }
}

/// What carries the messages of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayerArg {
    /// Tagged messages
    Pml,
    /// Puts of a Portals interface in software
    Portals,
    /// Active messages over such an interface
    Am,
}

impl LayerArg {
    pub(crate) fn layer(self) -> Layer {
        match self {
            Self::Pml => Layer::Pml,
            Self::Portals => Layer::Portals,
            Self::Am => Layer::Am,
        }
    }
}

/// What all measurements have in common.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// A rail to be used or refused; again for each further one
    #[arg(long = "rail", value_name = "RAIL", value_parser = rail)]
    pub(crate) rails: Vec<RailName>,
    /// What carries the messages: tagged messages (pml), puts into the other's memory (portals), or requests and their
    /// replies (am); between two hosts, the same on both sides
    #[arg(long, value_enum, default_value_t = LayerArg::Pml)]
    pub(crate) layer: LayerArg,
    /// Where progress is made; without it, as the setting progress.mode says (inline unless it is set)
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ModeArg>,
    /// Message sizes: bytes, or with Ki, Mi, Gi
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) sizes: Vec<Size>,
    /// Time for each size, in seconds; a warm-up of up to half a second each comes on top
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = an_hour, conflicts_with = "samples",
          default_value_t = 0.5)]
    pub(crate) seconds: f64,
    /// Samples per size instead of a time; whole rounds are measured, of up to 1,000 exchanges where they are short, so
    /// that it may be more
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<u64>(1..=1_000_000_000_000))]
    pub(crate) samples: Option<u64>,
    /// Shared memory without the system's call for copies between processes
    #[arg(long)]
    pub(crate) no_cma: bool,
    /// Capture every frame of a udp rail, for Wireshark (pcapng); each rank writes a file of its own, with its number
    /// before the ending, for its user only; one that cannot be written whole makes the exit status 6
    #[arg(long, value_name = "FILE", requires = "rails")]
    pub(crate) pcap: Option<PathBuf>,
    /// Leave out the bare cache-line exchange that is measured beside each size
    #[arg(long)]
    pub(crate) no_reference: bool,
    /// Stamp every message with a number and a checksum, and have its receiver check them; a message that is lost,
    /// duplicated, misordered or corrupt makes the exit status 1
    #[arg(long)]
    pub(crate) verify: bool,
    /// With `--verify`: flip a bit in one of N messages before it leaves, to see that it is found
    #[arg(long, value_name = "N", requires = "verify", allow_hyphen_values = true, value_parser = whole::<u64>(1..=1_000_000_000_000))]
    pub(crate) spoil: Option<u64>,
    /// The two cores, as in `--cores 0,1`; with `--serve` or `--connect`, those of this side
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1, allow_hyphen_values = true,
          value_parser = core)]
    pub(crate) cores: Vec<usize>,
    /// The cores that the process might use that started this rank
    #[arg(long, hide = true, value_delimiter = ',', value_parser = core)]
    pub(crate) allowed: Vec<usize>,
    /// Write the report as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the rows as CSV; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write a picture (.svg) or a page with pictures and table (.html)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hosts: HostsArgs,
}

/// Which side of a measurement between two hosts this is.
#[derive(Debug, Args)]
pub(crate) struct HostsArgs {
    /// Serve those who connect, one after another, until interrupted
    #[arg(help_heading = "Two hosts", long, conflicts_with_all = ["connect", "sizes", "seconds", "samples", "json", "csv", "plot", "verify"])]
    pub(crate) serve: bool,
    /// The address to serve on: loopback unless another is named
    #[arg(help_heading = "Two hosts", long, value_name = "ADDR[:PORT]", requires = "serve", value_parser = endpoint)]
    pub(crate) bind: Option<Endpoint>,
    /// End after the first measurement: 0 when it was carried out, whatever it found, which the other side tells
    #[arg(help_heading = "Two hosts", long, requires = "serve")]
    pub(crate) once: bool,
    /// Measure with the side that serves there
    #[arg(help_heading = "Two hosts", long, value_name = "ADDR[:PORT]", value_parser = endpoint)]
    pub(crate) connect: Option<Endpoint>,
    /// The key that both sides have; without one, only loopback is used
    #[arg(help_heading = "Two hosts", long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
}

/// Make a key that two hosts share
#[derive(Debug, Args)]
#[command(after_help = concat!("\
The file holds 32 random bytes as text, and only its owner can read it; a file that others can read or write is refused \
wherever a key is asked for. Whoever has a copy can join: copy it as you would copy a password.\n\n", exits!(), "\
Examples:\n  doorbell key job.key\n  scp -p job.key other-host:\n  doorbell key --force job.key"))]
pub(crate) struct KeyArgs {
    /// The file to make
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Replace a key that is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// `doorbell pingpong`.
#[derive(Debug, Args)]
pub(crate) struct PingpongArgs {
    #[command(flatten)]
    pub(crate) all: MeasureArgs,
    /// Open loop: so many messages leave a second whether or not the last one was answered, and times count from when
    /// each should have left; k, M and G are understood
    #[arg(long, value_name = "R", allow_hyphen_values = true, value_parser = per_second)]
    pub(crate) rate: Option<f64>,
    /// Open loop at 50, 80 and 95 % of the highest rate that is sustained, which is searched for first
    #[arg(long, conflicts_with = "rate")]
    pub(crate) open_loop: bool,
    /// Measure each direction by itself, too, where the clocks allow it
    #[arg(long, conflicts_with_all = ["rate", "open_loop", "verify"])]
    pub(crate) one_way: bool,
    /// Write percentile distributions as text, for HdrHistogram's plotter
    #[arg(long, value_name = "FILE")]
    pub(crate) hgrm: Option<PathBuf>,
    /// Write the histograms as an interval log, without loss
    #[arg(long, value_name = "FILE")]
    pub(crate) hlog: Option<PathBuf>,
}

/// `doorbell stream`.
#[derive(Debug, Args)]
pub(crate) struct StreamArgs {
    #[command(flatten)]
    pub(crate) all: MeasureArgs,
    /// Messages outstanding
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 64, value_parser = whole::<u32>(1..=65_536))]
    pub(crate) window: u32,
    /// Send out of ordinary memory and receive into it at every size; without it, regions are used from 64 KiB on
    #[arg(long)]
    pub(crate) plain: bool,
}

/// `doorbell rate`.
#[derive(Debug, Args)]
pub(crate) struct RateArgs {
    #[command(flatten)]
    pub(crate) all: MeasureArgs,
    /// Messages outstanding
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 512, value_parser = whole::<u32>(1..=65_536))]
    pub(crate) window: u32,
    /// Have N non-blocking sends and receives outstanding instead of blocking calls
    #[arg(long, value_name = "N", allow_hyphen_values = true, conflicts_with = "window", value_parser = whole::<u32>(1..=65_536))]
    pub(crate) posted: Option<u32>,
    /// Send out of ordinary memory and receive into it at every size; without it, regions are used from 64 KiB on
    #[arg(long)]
    pub(crate) plain: bool,
}

/// Measure what the sockets below a udp or xdp rail take by themselves
#[derive(Debug, Args)]
#[command(after_help = concat!("\
A busy ping-pong of bare datagrams over connected sockets: no rail can be faster over the same sockets, so what a rail \
takes is told as a multiple of this. Start the side with `--answer` first; it ends when the other side has done, or 5 s \
after the last datagram; with status 5 when nobody came. It hears nobody but the address that it is given, has no key, and answers with what it is sent.\n\n", exits!(), "\
Examples:\n  doorbell raw-udp --from 10.0.0.1:7118 --to 10.0.0.2:7118 --answer\n  \
doorbell raw-udp --from 10.0.0.2:7118 --to 10.0.0.1:7118 --sizes 8,64 --seconds 1\n  \
doorbell raw-udp --from 10.0.0.1:7118 --to 10.0.0.2:7118 --answer --xdp"))]
pub(crate) struct RawUdpArgs {
    /// The address and port of this side
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) from: SocketAddr,
    /// The address and port of the other side
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) to: SocketAddr,
    /// Be the side that answers
    #[arg(long, conflicts_with_all = ["sizes", "seconds", "json"])]
    pub(crate) answer: bool,
    /// Over the queues of the interface, past the kernel (AF_XDP), instead of a socket; both sides alike
    #[arg(long)]
    pub(crate) xdp: bool,
    /// Sizes of the datagrams [default: 8,64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) sizes: Vec<Size>,
    /// Time for each size, in seconds
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = an_hour, default_value_t = 0.5)]
    pub(crate) seconds: f64,
    /// The core to run on; the first for the side that asks and the second for the other when none is named
    #[arg(long, value_name = "N")]
    pub(crate) core: Option<usize>,
    /// Write the report as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Compare two reports: is the second run worse than the first, or is that noise?
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Each figure is an interval drawn from its own run's noise: by order statistics of its samples and of its slices, \
widened by how much the bare exchange differs between the runs. A figure is worse when the two intervals do not touch. \
Runs of different loads, rails, sizes, cores or processors are refused (exit status 2), and so is a run whose cores were \
near where those of the other were far.\n\n", exits!(), "\
Examples:\n  doorbell pingpong --json a.json; doorbell pingpong --json b.json; doorbell compare a.json b.json\n  \
doorbell compare a.json b.json --json - | jq '.lines[] | select(.finding == \"worse\")'"))]
pub(crate) struct CompareArgs {
    /// The report that sets the measure
    #[arg(value_name = "FIRST")]
    pub(crate) first: PathBuf,
    /// The report that is judged
    #[arg(value_name = "SECOND")]
    pub(crate) second: PathBuf,
    /// Write the comparison as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Measure what the design promises, and judge it
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Ratios are measured within one run, in interleaved repetitions; the verdict is no when a budget is missed. What cannot be \
judged here says why, and is never counted as met.\n\n\
The rows between two hosts are measured between two network namespaces with a pair of virtual Ethernet interfaces between \
them, and those about losses through a third one that drops frames. They end with the command. That takes root, or a \
kernel that lets users make namespaces, and the packages iproute2, util-linux and nftables; rails past the kernel (xdp) \
take root. All of it takes some three minutes.\n\n", exits!(), "\
Examples:\n  doorbell budgets\n  doorbell budgets --json -\n  doorbell budgets --repetitions 16\n  \
doorbell budgets --quick --only network --only loss"))]
pub(crate) struct BudgetsArgs {
    /// Write the verdicts as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Interleaved repetitions; losses are measured in every second one [default: 8]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<u32>(1..=1000))]
    pub(crate) repetitions: Option<u32>,
    /// One repetition of less time: a first look, and not more
    #[arg(long, conflicts_with = "repetitions")]
    pub(crate) quick: bool,
    /// Only this part; again for each further one
    #[arg(long = "only", value_name = "PART", value_enum)]
    pub(crate) only: Vec<Part>,
}

/// A part of the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Two processes that share memory
    Shm,
    /// Two processes over the loopback interface
    Loopback,
    /// Inside one process: rings, timers, matching, the stack without a driver
    Process,
    /// Two hosts, over udp and xdp
    Network,
    /// The same two hosts while frames are lost
    Loss,
    /// Idle peers
    Memory,
}

impl Part {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Loopback => "loopback",
            Self::Process => "process",
            Self::Network => "network",
            Self::Loss => "loss",
            Self::Memory => "memory",
        }
    }
}

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Grows {
    /// Peers that are connected and silent
    Idle,
    /// Posted receives, and messages that nobody has asked for
    Queues,
    /// Ranks of a job on this machine
    Ranks,
}

/// Show how costs grow with idle peers, with queued messages, and with ranks on this machine
#[derive(Debug, Args)]
#[command(after_help = concat!("\
idle    PML and BTL of two ranks on one thread, over a rail that copies, each connected to so many more ranks that are \
silent: a ping-pong of 8 bytes, a look where nothing has come, and the memory of it all.\n\
queues  A fully given tag is matched, and what was found is queued again, with so many receives posted or so many \
messages kept: sixteen of their tags again and again, and all of them in an order that no cache can guess.\n\
ranks   Jobs of so many processes over shared memory, more than there are cores: a ping-pong of 8 bytes in pairs, a \
barrier of all, the time until a rank has its world, and the whole job from its start to its end.\n\n\
With many more ranks than cores a round takes a minute. Each point is the median of the rounds. A slope is the power with which the curve grows (0 is flat, 1 in proportion; told from two rounds on, where \
it is more than their noise), and what one more costs from the first point to the last; that of exchanges among ranks is taken where they share cores.\n\n", exits!(), "\
\n\nExamples:\n  \
doorbell scaling\n  \
doorbell scaling --only idle --peers 2,4096\n  \
doorbell scaling --quick --json scaling.json --html scaling.html"))]
pub(crate) struct ScalingArgs {
    /// Only this; may be given several times
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) only: Vec<Grows>,
    /// Idle peers
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = whole::<u32>(1..=50_000),
          default_values_t = [2, 16, 64, 256, 1024, 4096])]
    pub(crate) peers: Vec<u32>,
    /// Posted receives or kept messages
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = whole::<u32>(1..=1_000_000),
          default_values_t = [1, 10, 100, 1_000, 10_000, 100_000])]
    pub(crate) entries: Vec<u32>,
    /// Ranks on this machine; they work in pairs
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = whole::<u32>(2..=1024),
          default_values_t = [2, 4, 8, 16, 32, 64])]
    pub(crate) ranks: Vec<u32>,
    /// Interleaved rounds
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 3, value_parser = whole::<u32>(1..=1000))]
    pub(crate) rounds: u32,
    /// One round, and three points of each curve: a first look, and not more
    #[arg(long, conflicts_with = "rounds")]
    pub(crate) quick: bool,
    /// Write the report as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report as a page with pictures
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// One measurement of `scaling`.
#[derive(Debug, Args)]
pub(crate) struct MeasureScalingArgs {
    /// Idle peers; without it this is a rank of a world
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=50_000))]
    pub(crate) idle: Option<u32>,
}

/// Measure doorbell and the peers that are installed in turn, and tell who is ahead
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Peers: Open MPI, MPICH, UCX's perftest and libfabric's fi_pingpong, as they are found on the PATH, and the OSU benchmarks \
of a folder that `--osu` names; `--list` shows which are here, and which Debian package brings the others. They run as \
processes of their own. The MPIs are measured by a small benchmark of ours, which their own mpicc compiles into a \
temporary folder.\n\n\
In each round every stack has its turn on the same two cores, one process on each. A turn counts when the bare \
cache-line exchange between the cores was in the same band before and after it (near or far: virtual machines move \
between them) and other work took less than a tenth of the cores; else it is repeated, up to three times. Where other \
work never leaves the cores, the third counts, and the report doubts it. A ratio is \
of two turns of one round and one band, shown as the median over the rounds with the least and the most. Above 1, \
doorbell is ahead. On a machine that has other work, run it at real-time priority, which all processes inherit: \
`chrt --rr 5 doorbell compare-peers`.\n\n\
What listens does so in a network namespace that has nothing but its loopback interface, or the two ends of a virtual \
cable (`--network`); that takes root, or a kernel that lets users make namespaces. Status 1 when a peer is ahead \
anywhere, 6 when doorbell itself failed or nothing could be compared.\n\n\
Streams are compared out of ordinary memory and into it, as the peers have it; from 64 KiB on, doorbell's regions have a row \
of their own. Beside the best peer of each comparison stands what is promised: latencies below it, rates above it, bandwidths \
from 64 KiB on at least 0.97 of it.\n\n", exits!(), "\
Examples:\n  doorbell compare-peers --list\n  doorbell compare-peers\n  \
doorbell compare-peers --network --loss 1,5 --html peers.html\n  \
doorbell compare-peers --layers --only ucx --sizes 8\n  \
doorbell compare-peers --shm --network --rail udp --rail xdp --overlap --rounds 9 --json peers.json\n  \
doorbell compare-peers --quick --only ucx --only open-mpi"))]
pub(crate) struct ComparePeersArgs {
    /// Show which peers are installed, and measure nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Over shared memory; what is measured when nothing is named
    #[arg(long)]
    pub(crate) shm: bool,
    /// Between two network namespaces with a pair of virtual Ethernet interfaces between them
    #[arg(long)]
    pub(crate) network: bool,
    /// The same while so many percent of what goes either way is lost, in a switch that everything crosses then
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', num_args = 1, value_parser = percent)]
    pub(crate) loss: Vec<f64>,
    /// How much of a receive is hidden behind the receiver's computation
    #[arg(long)]
    pub(crate) overlap: bool,
    /// Measure puts (Portals) and active messages, too: beside UCX's ucp_put_lat and ucp_am_lat
    #[arg(long)]
    pub(crate) layers: bool,
    /// With --network or --loss: a kind of rail for doorbell; again for each further one [default: udp]
    #[arg(long = "rail", value_name = "KIND")]
    pub(crate) rails: Vec<String>,
    /// Message sizes [default: 8,64,1Ki,64Ki,1Mi]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        num_args = 1,
        allow_hyphen_values = true
    )]
    pub(crate) sizes: Vec<Size>,
    /// Rounds [default: 5]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<u32>(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Time for each size in each round, in seconds [default: 0.2]
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = an_hour)]
    pub(crate) seconds: Option<f64>,
    /// Messages outstanding where several are
    #[arg(long, value_name = "N", allow_hyphen_values = true, default_value_t = 64, value_parser = whole::<u32>(1..=4096))]
    pub(crate) window: u32,
    /// Fewer rounds of less time: a first look, and not more
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    pub(crate) quick: bool,
    /// Only this peer; again for each further one
    #[arg(long = "only", value_name = "PEER", value_enum)]
    pub(crate) only: Vec<Family>,
    /// A folder with the OSU benchmarks
    #[arg(long, value_name = "DIR")]
    pub(crate) osu: Option<PathBuf>,
    /// The two cores, as in `--cores 0,1` [default: the first two that may be used]
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1, allow_hyphen_values = true, value_parser = core)]
    pub(crate) cores: Vec<usize>,
    /// End a process that takes longer than this for one turn, in seconds [default: by its load, 24 at least]
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = an_hour)]
    pub(crate) timeout: Option<f64>,
    /// Write the report as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report as a page with pictures
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Whose stack it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Family {
    /// Open MPI
    OpenMpi,
    /// MPICH
    Mpich,
    /// UCX's perftest
    Ucx,
    /// libfabric's fi_pingpong
    Libfabric,
    /// The OSU benchmarks of `--osu`
    Osu,
}

/// What overlap is measured with.
#[derive(Debug, Args)]
pub(crate) struct OverlapArgs {
    /// Message sizes
    #[arg(long, value_delimiter = ',', num_args = 1, required = true)]
    pub(crate) sizes: Vec<Size>,
    /// Steps of the computation, for each size
    #[arg(long, value_delimiter = ',', num_args = 1, required = true)]
    pub(crate) steps: Vec<u64>,
    /// Where the receiver's progress is made
    #[arg(long, value_enum)]
    pub(crate) mode: ModeArg,
    /// The cores of the two ranks
    #[arg(long, value_delimiter = ',', num_args = 1, required = true, value_parser = core)]
    pub(crate) cores: Vec<usize>,
}

/// How a rank becomes the program.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The launcher's process: when it is another one, the launcher is dead already
    #[arg(long)]
    pub(crate) launcher: u32,
    /// The core to be bound to
    #[arg(long)]
    pub(crate) core: Option<usize>,
    /// The soft limit of open files to be had
    #[arg(long)]
    pub(crate) open_files: Option<u64>,
    /// The program
    #[arg(required = true)]
    pub(crate) program: std::ffi::OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<std::ffi::OsString>,
}

/// What a keeper keeps.
#[derive(Debug, Args)]
pub(crate) struct KeepArgs {
    /// The job's DOORBELL_ROOT
    #[arg(long)]
    pub(crate) root: String,
}

/// A rail's name; the error names the nearest valid kind.
fn rail(text: &str) -> Result<RailName, String> {
    if text.contains(',') {
        return Err("give --rail once for each rail, and not several by commas".to_owned());
    }
    // In a URL an IPv6 address stands in brackets; a rail's name has it bare.
    let bare = text
        .strip_prefix("udp:[")
        .and_then(|rest| rest.strip_suffix(']'))
        .map(|address| format!("udp:{address}"));
    let name = bare.as_deref().unwrap_or(text).parse();
    name.map_err(|error: doorbell_fabric::error::RailError| error.to_string())
}

/// An address; a bare one has the usual port.
fn endpoint(text: &str) -> Result<Endpoint, String> {
    text.parse().map_err(|error: OobError| error.to_string())
}

/// A time in seconds, above zero and at most a week.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    time(text, 7.0 * 86_400.0, "a week")
}

/// A time in seconds, above zero and at most an hour.
fn an_hour(text: &str) -> Result<f64, String> {
    time(text, 3600.0, "an hour")
}

fn time(text: &str, most: f64, name: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= most => Ok(value),
        _ => Err(format!(
            "give seconds above 0 and at most {name}, such as 0.5 or 60"
        )),
    }
}

/// A share of what arrives, in percent.
fn percent(text: &str) -> Result<f64, String> {
    // The kernel's rule counts in tenths of a percent.
    let tenths = text.parse::<f64>().map(|value| value * 10.0);
    match tenths {
        Ok(value) if (1.0..=500.0).contains(&value) && (value - value.round()).abs() < 1e-6 => {
            Ok(value / 10.0)
        }
        _ => Err("give percent from 0.1 to 50 in steps of 0.1, such as 1 or 2.5".to_owned()),
    }
}

/// A whole number within a range.
pub(crate) fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("give a whole number from {} to {}", range.start(), range.end()))
    }
}

/// A rate: messages per second, with k, M or G.
fn per_second(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.char_indices().last() {
        Some((at, 'k')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let rate = number.parse::<f64>().ok().map(|number| number * factor);
    rate.filter(|rate| (RATE_MIN..=RATE_MAX).contains(rate))
        .ok_or_else(|| "give messages per second from 1 to 1G, such as 5000, 200k or 1.5M".to_owned())
}

/// The number of a core.
fn core(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "give two cores by their numbers, as in `--cores 0,1`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples_and_exit_statuses() {
        let mut commands = Cli::command();
        for command in commands
            .get_subcommands_mut()
            .filter(|command| !command.is_hide_set())
        {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{}", command.get_name());
            // Wrapped to the terminal's width.
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&help).contains(&words(exits!())), "{}", command.get_name());
            let alone = [
                "acm",
                "agent",
                "model",
                "counters",
                "raw-udp",
                "key",
                "compare",
                "budgets",
                "compare-peers",
                "scaling",
            ];
            let reads = !alone.contains(&command.get_name());
            assert_eq!(help.contains("DOORBELL_CONFIG"), reads, "{}", command.get_name());
        }
    }

    #[test]
    fn rates_are_read_with_their_units() {
        for (text, rate) in [
            ("1", 1.0),
            ("2.5k", 2_500.0),
            ("1M", 1e6),
            ("1G", 1e9),
            ("5e3", 5e3),
        ] {
            assert_eq!(per_second(text), Ok(rate));
        }
        for text in ["", "k", "0", "-5", "2G", "NaN", "inf", "5m", "µ", "1 k"] {
            assert!(per_second(text).unwrap_err().contains("200k"), "{text}");
        }
    }

    #[test]
    fn programs_keep_their_own_flags() {
        let cli = Cli::parse_from(["doorbell", "run", "-n", "2", "--", "prog", "--help", "-n", "7"]);
        let Command::Run(run) = cli.command else {
            panic!("{cli:?}")
        };
        assert_eq!((run.ranks, run.args.len()), (2, 3));
    }
}
