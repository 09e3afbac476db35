//! The command line of `doorbell-lab model`: many options, since each unknown of the device is one.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use doorbell_tools::cli::values::{seconds, whole};
use doorbell_tools::error::ToolError;
use doorbell_vic::{
    Behaviour, BridgeTo, Counts, Identity, Idle, LayoutOptions, Options, Policy, Timing, Trap,
};

/// Emulate a device in a process, for testing drivers without hardware
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    pub(crate) device: ModelCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// A Cisco VIC with usNIC virtual functions, behind vfio-user sockets
    Vic(Box<VicArgs>),
}

/// The headings of the groups of options in the help.
const RESOURCES: &str = "What each function has, and where";
const UNKNOWN: &str = "Choices where hardware is unknown [M]";

/// What the engine does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdleArg {
    /// Poll: the least latency, but it takes a whole core
    Spin,
    /// Yield the core
    Yield,
    /// Yield the core, and sleep 50 µs at a time after 10 ms without work
    Sleep,
}

/// The registers whose accesses are vfio-user messages and not loads and stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrapArg {
    /// No registers. No driver can work so, and it is refused with the reason
    #[value(hide = true)]
    None,
    /// The page of the devcmd block
    Devcmd,
    /// Also the page of the interrupt control
    Control,
    /// All of BAR0, so that every access is checked
    All,
}

/// How a virtual function's own devcmd answers commands for filters and queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// Error 3: they go through the physical function's proxy
    Real,
    /// The commands are carried out
    Permissive,
    /// Error 5: unknown
    Hidden,
}

/// A Cisco VIC with usNIC virtual functions, behind vfio-user sockets
#[derive(Debug, Args)]
#[command(after_help = "\
Then, in other terminals, the agent that installs filters for the virtual functions, and a job over them:\n  \
doorbell agent usnic --pf model/DIR/pf\n  doorbell pingpong --rail 'usnic:model/DIR/vf*'\n\n\
The sockets are DIR/pf.sock, DIR/vf0.sock, DIR/vf1.sock, ...: one function each, mode 0600, in a folder of mode 0700. When all \
accept connections, it prints one line, with --json one JSON object. It runs until it is interrupted, then removes what it made and \
prints what drivers did that hardware would not have forgiven. Sockets that a killed model left are replaced; a live one's are \
refused. A client that goes, however it does, leaves a function as new.\n\n\
Options marked [M] stand for what no public source describes of the hardware: a driver that is to work with a real adapter works \
with each of their values. To pass on the model is not to pass on a VIC. docs/vic-model.md has more, and the grammar of faults.\n\n\
The engine is one thread. A doorbell in memory is no wake-up, so it has to poll: `--idle spin` takes a whole core and is what \
to measure with; the default sleeps after 10 ms without work and adds 50 µs to the first frame then.\n\n\
Exit status: 0 it ran and was ended; 1 with --strict, there were violations; 2 wrong usage; 6 the system refused.\n\n\
Examples:\n  doorbell-lab model vic\n  doorbell-lab model vic --dir /tmp/vic --vfs 4 --layout-seed 7 --json\n  \
doorbell-lab model vic --dir /tmp/vic --trap all --strict --violations /tmp/vic.jsonl --seconds 60\n  \
doorbell-lab model vic --script faults.txt --bridge veth0")]
pub(crate) struct VicArgs {
    /// The folder of the sockets; one with a random name below XDG_RUNTIME_DIR or /tmp without it
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Virtual functions, 0 to 64
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole::<usize>(0..=64))]
    vfs: usize,
    /// Device of the virtual functions
    #[arg(help_heading = RESOURCES, long, value_name = "HEX", default_value = "00cf", value_parser = hex)]
    device: u16,
    /// [M] Subsystem device of all functions: the adapter's model
    #[arg(help_heading = UNKNOWN, long, value_name = "HEX", default_value = "014d", value_parser = hex)]
    subsystem: u16,
    /// [M] Class of the virtual functions
    #[arg(help_heading = UNKNOWN, long, value_name = "HEX", default_value = "020000", value_parser = class)]
    class: u32,
    /// Send queues of a function, 1 to 64
    #[arg(help_heading = RESOURCES, long, value_name = "N", default_value_t = 6, value_parser = whole::<usize>(1..=64))]
    wq: usize,
    /// Receive queues of a function, 1 to 64
    #[arg(help_heading = RESOURCES, long, value_name = "N", default_value_t = 6, value_parser = whole::<usize>(1..=64))]
    rq: usize,
    /// Completion queues of a function, 1 to 128
    #[arg(help_heading = RESOURCES, long, value_name = "N", default_value_t = 6, value_parser = whole::<usize>(1..=128))]
    cq: usize,
    /// Interrupts of a function, 1 to 63
    #[arg(help_heading = RESOURCES, long, value_name = "N", default_value_t = 6, value_parser = whole::<usize>(1..=63))]
    intr: usize,
    /// [M] MSI-X vectors of a function above its interrupts
    #[arg(help_heading = UNKNOWN, long, value_name = "N", default_value_t = 1, value_parser = whole::<usize>(1..=64))]
    spare_vectors: usize,
    /// Shuffle offsets and entries of the resource table by this seed
    #[arg(help_heading = RESOURCES, long, value_name = "S")]
    layout_seed: Option<u64>,
    /// Give the resource table the header of a management vNIC
    #[arg(help_heading = RESOURCES, long)]
    management: bool,
    /// Leave out what a driver has to skip in the resource table
    #[arg(help_heading = RESOURCES, long)]
    plain: bool,
    /// Give functions a devcmd2 block, too
    #[arg(help_heading = RESOURCES, long)]
    devcmd2: bool,
    /// Give functions a window to adapter memory of this many bytes
    #[arg(help_heading = RESOURCES, long, value_name = "BYTES", default_value_t = 0, value_parser = whole::<usize>(0..=16 << 20))]
    mem: usize,
    /// Give functions blocks of group interrupts, which do nothing
    #[arg(help_heading = RESOURCES, long)]
    group_interrupts: bool,
    /// Leave out the legacy pending bits
    #[arg(help_heading = RESOURCES, long)]
    no_pba_legacy: bool,
    /// [M] Least length of BAR0 in bytes
    #[arg(help_heading = UNKNOWN, long, value_name = "BYTES", default_value_t = 64 << 10, value_parser = whole::<usize>(4096..=64 << 20))]
    bar: usize,
    /// [M] BAR0 has 32 bits
    #[arg(help_heading = UNKNOWN, long)]
    narrow_bar: bool,
    /// Registers that are messages instead of memory
    #[arg(long, value_enum, default_value_t = TrapArg::Devcmd)]
    trap: TrapArg,
    /// [M] How a virtual function's own devcmd answers commands for filters and queue pairs
    #[arg(help_heading = UNKNOWN, long, value_enum, default_value_t = PolicyArg::Real)]
    policy: PolicyArg,
    /// [M] Virtual functions have the physical one's hardware address
    #[arg(help_heading = UNKNOWN, long)]
    shared_mac: bool,
    /// [M] Second byte of all hardware addresses; models on one wire need different ones
    #[arg(help_heading = UNKNOWN, long, value_name = "N", default_value_t = 0, value_parser = whole::<u8>(0..=255))]
    adapter: u8,
    /// MTU, 68 to 9000
    #[arg(long, value_name = "BYTES", default_value_t = 9000, value_parser = whole::<u16>(68..=9000))]
    mtu: u16,
    /// Speed of the link in Mb/s
    #[arg(long, value_name = "MBPS", default_value_t = 40_000)]
    speed: u32,
    /// [M] Time for which a device command is BUSY
    #[arg(help_heading = UNKNOWN, long, value_name = "US", default_value_t = 200)]
    devcmd_us: u64,
    /// [M] The same for a command that its caller does not wait for; Linux's enic tolerates none
    #[arg(help_heading = UNKNOWN, long, value_name = "US", default_value_t = 0)]
    nowait_us: u64,
    /// [M] Duration of OPEN, INIT and resets
    #[arg(help_heading = UNKNOWN, long, value_name = "US", default_value_t = 1000)]
    two_part_us: u64,
    /// [M] From enable to running
    #[arg(help_heading = UNKNOWN, long, value_name = "US", default_value_t = 5)]
    enable_us: u64,
    /// [M] From the end of enable to the end of running
    #[arg(help_heading = UNKNOWN, long, value_name = "US", default_value_t = 50)]
    disable_us: u64,
    /// Hold completions of sends for this time, and see whether descriptors or bytes change meanwhile
    #[arg(long, value_name = "US", default_value_t = 0)]
    recheck_us: u64,
    /// [M] Queue pairs that are not enabled may transmit
    #[arg(help_heading = UNKNOWN, long)]
    transmit_without_qp: bool,
    /// [M] A virtual function receives only after ENABLE on its own devcmd
    #[arg(help_heading = UNKNOWN, long)]
    vf_needs_enable: bool,
    /// [M] Error number of a virtual function's own OPEN, INIT, ENABLE and the like; 0: they are done
    #[arg(help_heading = UNKNOWN, long, value_name = "N", default_value_t = 0, value_parser = whole::<u8>(0..=12))]
    vf_open_error: u8,
    /// [M] CAPABILITY answers an unknown command with status ERROR
    #[arg(help_heading = UNKNOWN, long)]
    capability_by_error: bool,
    /// Numbers of device commands that this firmware does not have
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    without: Vec<u16>,
    /// [M] The highest type of filter, 0 to 3
    #[arg(help_heading = UNKNOWN, long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(0..=3))]
    filter_type: u32,
    /// [M] Filters that the adapter has room for
    #[arg(help_heading = UNKNOWN, long, value_name = "N", default_value_t = 64, value_parser = whole::<usize>(1..=65_535))]
    filters: usize,
    /// [M] ADD_FILTER is error 9 while the link is down
    #[arg(help_heading = UNKNOWN, long)]
    filter_needs_link: bool,
    /// [M] Filters are removed when the link goes down
    #[arg(help_heading = UNKNOWN, long)]
    link_loses_filters: bool,
    /// [M] Frames that are too long are dropped without a completion
    #[arg(help_heading = UNKNOWN, long)]
    silent_drop: bool,
    /// [M] Most descriptors of a frame
    #[arg(help_heading = UNKNOWN, long, value_name = "N", default_value_t = 64, value_parser = whole::<usize>(1..=4095))]
    fragments: usize,
    /// [M] A send descriptor's length of 0 means 16384
    #[arg(help_heading = UNKNOWN, long)]
    zero_is_16k: bool,
    /// [M] Interrupts fire as long as they have credits
    #[arg(help_heading = UNKNOWN, long)]
    gated_by_credits: bool,
    /// [M] Posting on a receive queue before it is enabled is a violation, and the device ignores what was
    /// posted
    #[arg(help_heading = UNKNOWN, long)]
    future: bool,
    /// [M] A doorbell that was lost takes effect when the same index is written again, and not only with
    /// another one
    #[arg(help_heading = UNKNOWN, long)]
    same_index: bool,
    /// [M] Disabling a used receive queue once is a violation (with --trap all)
    #[arg(help_heading = UNKNOWN, long)]
    strict_disable: bool,
    /// [M] Ring registers that are written while a queue runs take effect, wrongly
    #[arg(help_heading = UNKNOWN, long)]
    stale_cache: bool,
    /// The hint of a 64-bit doorbell has to fit the descriptor (with --trap all)
    #[arg(long)]
    strict_hint: bool,
    /// DMA needs no bus mastering
    #[arg(long)]
    any_bus_master: bool,
    /// [M] A continuation buffer where a frame starts stops the queue
    #[arg(help_heading = UNKNOWN, long)]
    no_skip: bool,
    /// [M] No function level reset in the configuration space
    #[arg(help_heading = UNKNOWN, long)]
    no_flr: bool,
    /// [M] OPEN, INIT and ENABLE in any order
    #[arg(help_heading = UNKNOWN, long)]
    any_order: bool,
    /// [M] Unknown commands without a wait for their end report no ERROR
    #[arg(help_heading = UNKNOWN, long)]
    nowait_silent: bool,
    /// [M] A second equal filter of one function is accepted
    #[arg(help_heading = UNKNOWN, long)]
    twin_filters: bool,
    /// [M] The oldest filter wins, instead of the most specific
    #[arg(help_heading = UNKNOWN, long)]
    oldest_filter: bool,
    /// [M] QP_ENABLE of a queue that is not programmed succeeds
    #[arg(help_heading = UNKNOWN, long)]
    qp_without_ring: bool,
    /// [M] The loopback bit of a send descriptor is ignored
    #[arg(help_heading = UNKNOWN, long)]
    no_loopback: bool,
    /// [M] Accesses of other widths and alignments by messages succeed
    #[arg(help_heading = UNKNOWN, long)]
    loose_access: bool,
    /// What the engine does when there is nothing to do
    #[arg(long, value_enum, default_value_t = IdleArg::Sleep)]
    idle: IdleArg,
    /// A script of faults: one rule a line, such as `after 1000 frames vf0.wq0 error-status 3`
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// An interface of this host as the wire: frames that it receives come in, and frames go out by it (needs
    /// CAP_NET_RAW)
    #[arg(long, value_name = "IFACE", conflicts_with = "tap")]
    bridge: Option<String>,
    /// A tap of this name as the wire, made here (needs CAP_NET_ADMIN); bring it up with
    /// `ip link set NAME up`
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// Write violations to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    violations: Option<PathBuf>,
    /// End with status 1 where there were violations
    #[arg(long)]
    pub(crate) strict: bool,
    /// End after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// At the end, also list functions that did nothing
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON: one object when ready, one at the end
    #[arg(long)]
    pub(crate) json: bool,
}

fn hex(text: &str) -> Result<u16, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u16::from_str_radix(digits, 16).map_err(|_| "give up to four hexadecimal digits, such as 00cf".to_owned())
}

fn class(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let number = u32::from_str_radix(digits, 16).ok();
    number
        .filter(|number| *number < 1 << 24)
        .ok_or_else(|| "give up to six hexadecimal digits, such as 020000".to_owned())
}

impl VicArgs {
    /// Whether it makes sense to begin.
    pub(crate) fn check(&self) -> Result<(), ToolError> {
        match self.trap {
            TrapArg::None => Err(ToolError::Usage(
                "`--trap none` cannot work: in memory, BUSY is set a moment after a command is written, and a driver that gives one \
                 after another (OPEN and its OPEN_STATUS) writes over the first before the model has seen it; leave it out, or give devcmd, \
                 control or all"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the options of the model, with a script of faults.
    pub(crate) fn options(&self, script: String) -> Options {
        Options {
            dir: self.dir.clone(),
            vfs: self.vfs,
            identity: Identity {
                vf_device: self.device,
                subsystem: self.subsystem,
                class: self.class,
                speed: self.speed,
                mtu: self.mtu,
                shared_mac: self.shared_mac,
                adapter: self.adapter,
                ..Identity::default()
            },
            counts: Counts {
                wq: self.wq,
                rq: self.rq,
                cq: self.cq,
                intr: self.intr,
                spare: self.spare_vectors,
            },
            layout: LayoutOptions {
                seed: self.layout_seed,
                management: self.management,
                strange: !self.plain,
                devcmd2: self.devcmd2,
                mem: self.mem,
                group_interrupts: self.group_interrupts,
                pba_legacy: !self.no_pba_legacy,
                bar: self.bar,
                wide: !self.narrow_bar,
            },
            trap: match self.trap {
                TrapArg::None => Trap::None,
                TrapArg::Devcmd => Trap::Devcmd,
                TrapArg::Control => Trap::Control,
                TrapArg::All => Trap::All,
            },
            policy: match self.policy {
                PolicyArg::Real => Policy::Real,
                PolicyArg::Permissive => Policy::Permissive,
                PolicyArg::Hidden => Policy::Hidden,
            },
            timing: self.timing(),
            behaviour: self.behaviour(),
            idle: match self.idle {
                IdleArg::Spin => Idle::Spin,
                IdleArg::Yield => Idle::Yield,
                IdleArg::Sleep => Idle::Sleep,
            },
            bridge: self
                .bridge
                .clone()
                .map(BridgeTo::Interface)
                .or_else(|| self.tap.clone().map(BridgeTo::Tap)),
            script,
            violations: self.violations.clone(),
            ..Options::default()
        }
    }

    fn timing(&self) -> Timing {
        let micros = std::time::Duration::from_micros;
        Timing {
            devcmd: micros(self.devcmd_us),
            nowait: micros(self.nowait_us),
            two_part: micros(self.two_part_us),
            enable: micros(self.enable_us),
            disable: micros(self.disable_us),
            recheck: micros(self.recheck_us),
        }
    }

    fn behaviour(&self) -> Behaviour {
        Behaviour {
            transmit_needs_qp: !self.transmit_without_qp,
            vf_needs_enable: self.vf_needs_enable,
            vf_open: self.vf_open_error,
            capability_by_error: self.capability_by_error,
            without: self.without.clone(),
            filter_type: self.filter_type,
            filters: self.filters,
            filter_needs_link: self.filter_needs_link,
            link_loses_filters: self.link_loses_filters,
            silent_drop: self.silent_drop,
            fragments: self.fragments,
            zero_is_16k: self.zero_is_16k,
            gated_by_credits: self.gated_by_credits,
            future: self.future,
            same_index: self.same_index,
            strict_disable: self.strict_disable,
            stale_cache: self.stale_cache,
            strict_hint: self.strict_hint,
            needs_bus_master: !self.any_bus_master,
            skip_unused: !self.no_skip,
            no_flr: self.no_flr,
            any_order: self.any_order,
            nowait_silent: self.nowait_silent,
            twin_filters: self.twin_filters,
            oldest_filter: self.oldest_filter,
            qp_without_ring: self.qp_without_ring,
            loose_access: self.loose_access,
            loopback: !self.no_loopback,
        }
    }
}
