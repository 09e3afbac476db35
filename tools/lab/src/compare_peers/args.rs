//! The command line of `doorbell-lab compare-peers`, and of what it starts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use doorbell_bench::size::Size;
use doorbell_tools::cli::values::{an_hour, core, percent, whole};
use doorbell_tools::exits;
use doorbell_tools::measure::ModeArg;

/// Measure doorbell and the peers that are installed in turn, and report which is ahead
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Peers: Open MPI, MPICH, Intel MPI, UCX's perftest and libfabric's programs, as they are found on the PATH \
and in a folder that `--peers-from` names (`cargo xtask peers` fills one with the newest releases), and the \
OSU benchmarks of a folder that `--osu` names; `--list` shows which are here, and what brings the others. \
They run as processes of their own. The MPIs are measured by a small benchmark of ours, which their own \
mpicc compiles into a temporary folder.\n\n\
In each round every stack has its turn on the same two cores, one process on each. A turn counts when the \
bare cache-line exchange between the cores was in the same band before and after it (near or far: virtual \
machines move between them) and other work took less than a tenth of the cores; else it is repeated, up to \
three times. Where other work never leaves the cores, the third counts, and the report doubts it. A ratio \
is of two turns of one round and one band, shown as the median over the rounds with the least and the most. \
Above 1, doorbell is ahead; a cell in which a peer leads is in bold. On a machine that has other work, run \
it at real-time priority, which all processes inherit: `chrt --rr 5 doorbell-lab compare-peers`.\n\n\
What listens does so in a network namespace that has nothing but its loopback interface, or the two ends of a virtual \
cable (`--network`); that takes root, or a kernel that lets users make namespaces. Status 1 when a peer is ahead \
anywhere, 6 when doorbell itself failed or nothing could be compared. Stacks over doorbell's libfabric provider \
(`--provider`) are doorbell's own: they are compared with doorbell, and are no peers.\n\n\
Streams are compared out of ordinary memory and into it, as the peers have it; from 64 KiB on, doorbell's regions have a row \
of their own. Beside the best peer of each comparison stands what is promised: latencies below it, rates above it, bandwidths \
from 64 KiB on at least 0.97 of it.\n\n", exits!(), "\
Examples:\n  doorbell-lab compare-peers --list\n  doorbell-lab compare-peers\n  \
doorbell-lab compare-peers --network --loss 1,5 --html peers.html\n  \
doorbell-lab compare-peers --layers --only ucx --sizes 8\n  \
doorbell-lab compare-peers --peers-from ~/peers --quick --markdown peers.md\n  \
doorbell-lab compare-peers --provider ~/lib/doorbell --only libfabric --sizes 8,64,1Ki\n  \
doorbell-lab compare-peers --shm --network --rail udp --rail xdp --overlap --rounds 9 --json peers.json\n  \
doorbell-lab compare-peers --quick --only ucx --only open-mpi"))]
pub(crate) struct ComparePeersArgs {
    /// Show which peers are installed, and measure nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Over shared memory; the default if no comparison is selected
    #[arg(long)]
    pub(crate) shm: bool,
    /// Between two network namespaces with a pair of virtual Ethernet interfaces between them
    #[arg(long)]
    pub(crate) network: bool,
    /// The same with this percentage of the frames in each direction lost, by a switch between the two
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
    /// Message sizes [default: 8,16,64,1Ki,2Ki,4Ki,8Ki,16Ki,32Ki,64Ki,256Ki,1Mi,4Mi; with --quick:
    /// 8,64,1Ki,8Ki,64Ki,1Mi]
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
    /// Fewer sizes, fewer and shorter rounds, for a first impression
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    pub(crate) quick: bool,
    /// Only this peer; again for each further one
    #[arg(long = "only", value_name = "PEER", value_enum)]
    pub(crate) only: Vec<Family>,
    /// Peers that are installed in this folder and in those in it, beside those of the PATH: prefixes and
    /// virtual environments of wheels, as `cargo xtask peers --into DIR` makes them
    #[arg(long, value_name = "DIR")]
    pub(crate) peers_from: Option<PathBuf>,
    /// A folder with the OSU benchmarks
    #[arg(long, value_name = "DIR")]
    pub(crate) osu: Option<PathBuf>,
    /// The folder of doorbell's libfabric provider (`cargo xtask provider --into DIR`): fi_pingpong and the
    /// MPIs over it too, within this host, beside libfabric's shm, tcp and udp
    #[arg(long, value_name = "DIR")]
    pub(crate) provider: Option<PathBuf>,
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
    /// Write the tables as Markdown, as docs/performance.md has them
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
}

/// The project that a stack belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Family {
    /// The MPI library Open MPI
    OpenMpi,
    /// The MPI library MPICH
    Mpich,
    /// The MPI library of Intel
    IntelMpi,
    /// UCX, by its perftest
    Ucx,
    /// libfabric, by its fi_pingpong
    Libfabric,
    /// iceoryx2, by a small program of ours
    Iceoryx2,
    /// The OSU benchmarks of `--osu`
    Osu,
}

/// What overlap is measured with.
#[derive(Debug, Args)]
pub(crate) struct OverlapArgs {
    /// Sizes of the messages
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
