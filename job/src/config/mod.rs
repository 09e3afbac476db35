//! The configuration: typed settings, each with the origin of its value.
//!
//! ```text
//!   default  <  one TOML file (DOORBELL_CONFIG)  <  DOORBELL_* variables  <  code (Builder)
//! ```
//!
//! A name that does not exist is an error in the file, whose names are all ours, and a warning in the
//! environment, whose prefix others use too; both name the nearest setting. The error of a bad value states
//! what was expected. The table below is the only list of settings: reading, listing and documentation follow
//! from it.

mod bounds;
mod control_transports;
pub mod drivers;
mod fault;
mod progress_core;
mod setting;
mod source;
mod unknown;
mod value;

use std::net::IpAddr;
use std::time::Duration;

use doorbell_btl::BtlConfig;
use doorbell_igbvf::IgbvfConfig;
use doorbell_udp::UdpConfig;
use doorbell_usnic::UsnicConfig;
use doorbell_verbs::VerbsConfig;
use doorbell_xdp::XdpConfig;
use serde::Serialize;

pub use control_transports::{ControlTransport, ControlTransports};
pub use fault::{Fault, Faults, When};
pub use progress_core::ProgressCore;
pub use setting::{Origin, Setting};
pub use unknown::warned_variables;
pub use value::{
    AmHandlers, ControlPolicy, ControlRoutes, ControlThreads, ControlWait, CounterPlace, IpFamily, Launch,
    Mode, OfiNetwork, Protocol, Rails, Resume, Size, UsnicCommandWay, UsnicCommands, UsnicControl, VerbsRing,
    Wait, XdpMode,
};

pub(crate) use bounds::mac;
use setting::AnySetting;
pub(crate) use unknown::warning_at;
pub(crate) use value::{Value, nearest};

/// One line of `doorbell info --config`.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// The name of the setting, as in the file: `section.key`.
    pub name: &'static str,
    /// The name of its environment variable.
    pub variable: &'static str,
    /// The setting's value, as text.
    pub value: String,
    /// Where the value came from.
    pub origin: String,
    /// The unit, or the words that the setting accepts.
    pub unit: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
}

/// The name, variable and help of one setting.
pub(crate) struct Fact {
    pub(crate) name: &'static str,
    pub(crate) variable: &'static str,
    pub(crate) help: &'static str,
}

macro_rules! settings {
    ($($(#[$about:meta])* $section:ident: $Section:ident {
        $($key:ident: $type:ty = $default:expr, $variable:literal, $help:literal;)*
    })*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Debug)]
            pub struct $Section { $(#[doc = $help] pub $key: Setting<$type>,)* }
        )*

        /// All settings, each with its origin.
        #[derive(Clone, Debug)]
        pub struct Config { $($(#[$about])* pub $section: $Section,)* }

        impl Default for Config {
            fn default() -> Self {
                Self { $($section: $Section { $($key: Setting::built_in($default),)* },)* }
            }
        }

        /// The facts of all settings, in the order of the listing.
        pub(crate) const FACTS: &[Fact] = &[$($(Fact {
            name: concat!(stringify!($section), ".", stringify!($key)),
            variable: $variable,
            help: $help,
        },)*)*];

        impl Config {
            fn all(&self) -> Vec<&dyn AnySetting> {
                vec![$($(&self.$section.$key,)*)*]
            }

            fn all_mut(&mut self) -> Vec<&mut dyn AnySetting> {
                vec![$($(&mut self.$section.$key,)*)*]
            }
        }
    };
}

settings! {
    /// This process's place in the job; usually set by the launcher.
    job: Job {
        rank: Option<u32> = None, "DOORBELL_RANK", "This process's rank, from 0.";
        size: Option<u32> = None, "DOORBELL_SIZE", "The number of ranks in the job.";
        root: Option<String> = None, "DOORBELL_ROOT",
            "Where the ranks meet: `@name` (abstract Unix socket) or a path; rank 0 serves it.";
        timeout: Duration = Duration::from_secs(30), "DOORBELL_JOB_TIMEOUT",
            "How long the ranks wait for each other at the start.";
        launch: Launch = Launch::Auto, "DOORBELL_LAUNCH",
            "Where a process gets its rank from; a source that is named is used, or it is an error. auto: the first available.";
        bound: bool = false, "DOORBELL_BOUND",
            "Whether the launcher bound this process to cores that are its own; `doorbell run` sets it.";
        lazy_above: u32 = 64, "DOORBELL_JOB_LAZY_ABOVE",
            "Under a launcher that exchanges values, the ranks of a job larger than this look each other up at first use, not at the start.";
        pmix_library: Option<String> = None, "DOORBELL_PMIX_LIBRARY",
            "The PMIx library, loaded when a launcher speaks PMIx; auto: libpmix.so.2.";
    }
    /// The rails to the peers.
    rails: RailSection {
        list: Rails = Rails::default(), "DOORBELL_RAILS",
            "Rails to use, by name; one that cannot be used is an error. A name with * stands for several, of which each rank of a host takes one. Empty: chosen per peer.";
        of_sets: bool = false, "DOORBELL_RAILS_OF_SETS",
            "Whether rails.list is this rank's part of sets: then not each of its rails has to lead to each peer, but one; `doorbell run` sets it.";
    }
    /// Which thread makes progress, on which core, and what an idle wait does.
    progress: Progress {
        mode: Mode = Mode::Inline, "DOORBELL_PROGRESS",
            "Which thread moves messages: the caller's, or a dedicated one.";
        core: ProgressCore = ProgressCore::Auto, "DOORBELL_PROGRESS_CORE",
            "The core of the dedicated thread: next (another whole core of this rank's), sibling (a hardware thread of this rank's own core), a number, or a list with one for each rank of the host; auto: next where this rank was given several cores as its own, else not pinned.";
        wait: Wait = Wait::Balanced, "DOORBELL_WAIT", "What a wait does while nothing happens.";
        spins: Option<u32> = None, "DOORBELL_SPINS",
            "Empty polls before a wait yields the core; auto: many, or few when ranks share cores.";
        yields: Option<u32> = None, "DOORBELL_YIELDS",
            "Yields before a wait sleeps; auto: by whether ranks share cores.";
        mailbox: u32 = 1024, "DOORBELL_MAILBOX",
            "Commands that the mailbox of the dedicated thread holds (rounded up to a power of two).";
    }
    /// Active messages beside a progress thread.
    am: AmSection {
        handlers: AmHandlers = AmHandlers::Owner, "DOORBELL_AM_HANDLERS",
            "The threads that run handlers of active messages with progress.mode = dedicated: the one that \
             makes the calls, or the progress thread, too.";
    }
    /// Limits of waits.
    wait: Waits {
        deadline: Duration = Duration::from_secs(60), "DOORBELL_DEADLINE",
            "Limit of a wait that names none of its own; every wait ends.";
        quiet: Duration = Duration::from_secs(3), "DOORBELL_QUIET",
            "After this long, a wait reports once what it waits for.";
        close: Duration = Duration::from_secs(2), "DOORBELL_CLOSE",
            "How long the end of a world, or of an endpoint or domain of libfabric, may take to send what was accepted.";
    }
    /// The control plane beside the rails.
    control: ControlSection {
        mode: bool = false, "DOORBELL_CONTROL",
            "Whether the ranks have a control plane; the same at all ranks.";
        nics: Option<String> = None, "DOORBELL_CONTROL_NICS",
            "Interfaces (eth0, eth*) and networks (10.0.0.0/8) that it uses, separated by commas; auto: loopback, for ranks of one host.";
        ports: Option<String> = None, "DOORBELL_CONTROL_PORTS",
            "Ports that it listens on, as in 7200-7299; auto: chosen by the system.";
        policy: ControlPolicy = ControlPolicy::End, "DOORBELL_CONTROL_POLICY",
            "What follows when it has lost a rank, or this rank's lifeline.";
        grace: Duration = Duration::from_secs(2), "DOORBELL_CONTROL_GRACE",
            "How long a rank may be unreachable over all paths before it is lost.";
        threads: ControlThreads = ControlThreads::One, "DOORBELL_CONTROL_THREADS",
            "Threads of its connections over tcp: one for all interfaces, or one for each.";
        wait: ControlWait = ControlWait::Block, "DOORBELL_CONTROL_WAIT",
            "What its thread does while nothing happens: sleep in the kernel, or spin.";
        core: ProgressCore = ProgressCore::Auto, "DOORBELL_CONTROL_CORE",
            "The core of a thread that spins: next (another whole core of this rank's), sibling (a hardware \
             thread of this rank's own core), a number, or a list with one for each rank of the host; auto: \
             next where this rank was given enough cores as its own, else not pinned.";
        transports: ControlTransports = ControlTransports::default(), "DOORBELL_CONTROL_TRANSPORTS",
            "What carries it, the preferred one first: each takes over what another cannot carry any more; \
             the same at all ranks.";
        rails: Rails = Rails::default(), "DOORBELL_CONTROL_RAILS",
            "Rails of its own that the transport rail opens, the preferred one first; empty: shm, which leads \
             to ranks of the same host.";
        routes: ControlRoutes = ControlRoutes::Tree, "DOORBELL_CONTROL_ROUTES",
            "Which ranks it connects to: parent and children in the tree of ranks, which relay, or each rank \
             that a message goes to.";
    }
    /// The address service, which resolves addresses of peers.
    acm: AcmSection {
        mode: bool = false, "DOORBELL_ACM",
            "Whether the address service is queried first for paths to peers on other hosts and for names of hosts.";
        service: Option<String> = None, "DOORBELL_ACM_SERVICE",
            "The service: a Unix socket, HOST or HOST:PORT; auto: where `doorbell acm serve` and ibacm listen by default.";
        timeout: Duration = Duration::from_secs(2), "DOORBELL_ACM_TIMEOUT",
            "Time limit of a query; after that the system's own tables are used.";
    }
    /// Protocols above the rails.
    pml: PmlSection {
        eager: Option<Size> = None, "DOORBELL_EAGER",
            "Largest message that is sent at once; auto: the rail's own limit.";
        unexpected: Size = Size(4 << 20), "DOORBELL_UNEXPECTED",
            "Bytes of unexpected messages that a rank keeps for each peer before it holds the sender back.";
        protocol: Protocol = Protocol::Auto, "DOORBELL_PROTOCOL",
            "The protocol that carries messages; anything but auto is for tests and measurements.";
        checksum: bool = false, "DOORBELL_CHECKSUM",
            "Whether messages carry a checksum from the sender's memory to the receiver's; costs one pass over the bytes at either end.";
        buffer: Size = Size(1 << 20), "DOORBELL_BUFFER",
            "Bytes of buffered and injected messages that may wait for one peer at a time; for all together 16 times as many.";
        patience: Duration = Duration::from_secs(5), "DOORBELL_PATIENCE",
            "How long to wait for a peer after its last rail lost the link, before it is lost.";
        handshake: bool = false, "DOORBELL_HANDSHAKE",
            "Whether both ends restart a fragmented message by a handshake when its rail breaks, instead of resending the fragments that were not taken.";
        resume: Resume = Resume::Missing, "DOORBELL_RESUME",
            "Where a long message continues after a restart handshake.";
    }
    /// Memory that is handed over to receivers without a copy.
    lend: LendSection {
        pieces: u32 = 64, "DOORBELL_LEND_PIECES",
            "Pieces of lent memory that a rank has at most: those it writes, those that receivers have, \
             and spare ones.";
    }
    /// Injected faults: a test aid, never for production.
    fault: FaultSection {
        inject: Faults = Faults::default(), "DOORBELL_FAULT_INJECT",
            "Test aid: rails that break as in a real failure, after a number of messages or in the middle of a one-sided transfer.";
    }
    /// What other processes may read.
    counters: Seeing {
        place: CounterPlace = CounterPlace::Memory, "DOORBELL_COUNTERS",
            "Where a rank's counters can be read while it runs; memory leaves no file behind.";
    }
    /// The libfabric provider, whose domains are members without a job.
    ofi: OfiSection {
        network: OfiNetwork = OfiNetwork::Off, "DOORBELL_OFI_NETWORK",
            "Which rails to other hosts the libfabric provider offers first where no rails are named: none, or those of all interfaces that routes lead to.";
        key_file: Option<String> = None, "DOORBELL_KEY_FILE",
            "The file of a key (`doorbell key`) that all processes have: then a node and a service name a process of another host, whose udp rails take the service as their port.";
    }
    /// The shared-memory rail.
    shm: Shm {
        cma: bool = true, "DOORBELL_SHM_CMA",
            "Whether long messages are read straight from the sender's memory (one uid is then one trust domain).";
        help: bool = true, "DOORBELL_SHM_HELP",
            "Whether a sender that waits copies its share of a message that is read from its memory.";
        cells: Option<u32> = None, "DOORBELL_SHM_CELLS",
            "Messages in flight from one rank to another, a power of two; auto: the driver's choice.";
        data: Option<Size> = None, "DOORBELL_SHM_DATA",
            "Bytes in flight from one rank to another, a power of two; auto: the driver's choice.";
    }
    /// The rail over the kernel's UDP sockets.
    udp: Udp {
        family: IpFamily = IpFamily::V4, "DOORBELL_UDP_FAMILY",
            "The address family of a rail that is named by its interface.";
        port: u32 = u32::from(UdpConfig::default().port), "DOORBELL_UDP_PORT",
            "First port to try; each rail takes two adjacent ones. 0: the kernel chooses.";
        pairs: u32 = u32::from(UdpConfig::default().pairs), "DOORBELL_UDP_PAIRS",
            "Pairs of ports to try, from the first one upwards: the ranks of a host share its ports.";
        mtu: Option<Size> = UdpConfig::default().mtu.map(Size), "DOORBELL_UDP_MTU",
            "Largest IP packet; auto: the interface's.";
        connected: u32 = UdpConfig::default().connected as u32, "DOORBELL_UDP_CONNECTED",
            "Peers that get sockets of their own (two descriptors each); later ones share the rail's, which is slower.";
        receive_buffer: Size = Size(UdpConfig::default().receive_buffer), "DOORBELL_UDP_RECEIVE_BUFFER",
            "The kernel's receive buffer of each socket.";
        send_buffer: Size = Size(UdpConfig::default().send_buffer), "DOORBELL_UDP_SEND_BUFFER",
            "The kernel's send buffer of each socket.";
        gso: bool = UdpConfig::default().gso, "DOORBELL_UDP_GSO",
            "Whether runs of frames are passed to the kernel in one piece, where it supports that.";
        gro: bool = UdpConfig::default().gro, "DOORBELL_UDP_GRO",
            "Whether runs of frames are received from the kernel in one piece, where it supports that.";
        busy_poll: Option<u32> = UdpConfig::default().busy_poll, "DOORBELL_UDP_BUSY_POLL",
            "Microseconds for which a receive polls the device's queue; auto: not at all. Needs CAP_NET_ADMIN.";
        capture: Option<String> = None, "DOORBELL_UDP_CAPTURE",
            "File that all frames are written to (pcapng), with the rank before its ending; costs a copy of each frame.";
    }
    /// The rail over AF_XDP queues; addresses, ports and captures are those of the udp settings.
    xdp: Xdp {
        mode: XdpMode = XdpMode::Best, "DOORBELL_XDP_MODE",
            "How frames get from the device's queue to memory; a mode that is named and not available is an error.";
        queue: Option<u32> = XdpConfig::default().queue, "DOORBELL_XDP_QUEUE",
            "The only queue of the device to use, with the rail's ports steered to it; auto: all queues.";
        receive_ring: u32 = XdpConfig::default().receive_ring as u32, "DOORBELL_XDP_RECEIVE_RING",
            "Frames that can wait to be received, shared by the queues, of which each has 512 at least; a power of two.";
        send_ring: u32 = XdpConfig::default().send_ring as u32, "DOORBELL_XDP_SEND_RING",
            "Frames that can wait to be sent, a power of two.";
        busy_poll: Option<u32> = XdpConfig::default().busy_poll, "DOORBELL_XDP_BUSY_POLL",
            "Microseconds for which a receive polls the device's queue itself; auto: not at all. For devices with hardware queues.";
    }
    /// The rail over the rings of an 82576's virtual function; port, MTU and captures are those of the udp
    /// settings.
    igbvf: Igbvf {
        address: Option<String> = None, "DOORBELL_IGBVF_ADDRESS",
            "The function's own IP address with the length of its network's prefix, or one for each function, as in `0000:01:10.0=10.0.0.5/24`.";
        gateway: Option<IpAddr> = None, "DOORBELL_IGBVF_GATEWAY",
            "The next hop of packets for other networks; auto: none.";
        receive_ring: u32 = IgbvfConfig::default().receive_ring as u32, "DOORBELL_IGBVF_RECEIVE_RING",
            "Frames that can wait to be received, a power of two.";
        send_ring: u32 = IgbvfConfig::default().send_ring as u32, "DOORBELL_IGBVF_SEND_RING",
            "Frames that can wait to be sent, a power of two.";
        checksum: bool = IgbvfConfig::default().checksum, "DOORBELL_IGBVF_CHECKSUM",
            "Whether the device computes and checks UDP checksums.";
    }
    /// The rail over the queues of a Cisco VIC's usNIC function; port, MTU and captures are those of the udp
    /// settings.
    usnic: Usnic {
        address: Option<String> = None, "DOORBELL_USNIC_ADDRESS",
            "The function's own IPv4 address with the length of its network's prefix, or one for each function, as in `0000:3b:00.1=10.0.0.5/24`; auto: 10.86.0.1/16 and on for functions of a model.";
        gateway: Option<IpAddr> = None, "DOORBELL_USNIC_GATEWAY",
            "The next hop of packets for other networks; auto: none.";
        receive_ring: u32 = UsnicConfig::default().receive_ring as u32, "DOORBELL_USNIC_RECEIVE_RING",
            "Frames that can wait to be received, a power of two.";
        send_ring: u32 = UsnicConfig::default().send_ring as u32, "DOORBELL_USNIC_SEND_RING",
            "Frames that can wait to be sent, a power of two.";
        checksum: bool = UsnicConfig::default().checksum, "DOORBELL_USNIC_CHECKSUM",
            "Whether the device computes and checks checksums.";
        control: UsnicControl = UsnicControl::Auto, "DOORBELL_USNIC_CONTROL",
            "What installs filters and enables queue pairs; auto: the agent where its socket exists, else the function itself.";
        agent: Option<String> = None, "DOORBELL_USNIC_AGENT",
            "The agent's socket; auto: agent.sock beside a model's sockets, /run/doorbell/usnic-BDF.sock of the physical function.";
        vf_commands: UsnicCommands = UsnicCommands::Try, "DOORBELL_USNIC_VF_COMMANDS",
            "Whether OPEN, INIT, NOTIFY and ENABLE go to the function's own command block, which is not documented to take them.";
        commands: UsnicCommandWay = UsnicCommandWay::Auto, "DOORBELL_USNIC_COMMANDS",
            "How the function takes commands: by its command block, or by a ring; auto: the block, where it has one.";
        function: Option<u32> = None, "DOORBELL_USNIC_FUNCTION",
            "The function's number at its physical function; auto: the device and function number of its address less one, which is wrong in a virtual machine.";
        interrupts: bool = UsnicConfig::default().interrupts, "DOORBELL_USNIC_INTERRUPTS",
            "Whether interrupts wake a sleeper, where the device has them.";
        arp: bool = UsnicConfig::default().arp, "DOORBELL_USNIC_ARP",
            "Whether ARP requests for the function's address have a filter of their own.";
        mac: Option<String> = None, "DOORBELL_USNIC_MAC",
            "The hardware address of its frames, as in 02:00:00:00:00:01; auto: the address that the function, or its physical one, reports.";
    }
    /// Rails over queue pairs of InfiniBand and RoCE devices.
    verbs: Verbs {
        send: u32 = VerbsConfig::default().send as u32, "DOORBELL_VERBS_SEND",
            "Frames of the data channel that can wait to be sent, a power of two; the priority channel has a quarter. Of reliable connections: slots to send from.";
        receive: u32 = VerbsConfig::default().receive as u32, "DOORBELL_VERBS_RECEIVE",
            "Frames of the data channel that can wait to be received, a power of two; the priority channel has a quarter. Of reliable connections: slots to receive into, at most.";
        gid_index: Option<u32> = None, "DOORBELL_VERBS_GID_INDEX",
            "The place in the port's table of the one GID that is used; auto: all that can be, best first.";
        service_level: u32 = VerbsConfig::default().service_level.into(), "DOORBELL_VERBS_SERVICE_LEVEL",
            "The service level of InfiniBand, which is the priority on Ethernet.";
        traffic_class: u32 = VerbsConfig::default().traffic_class.into(), "DOORBELL_VERBS_TRAFFIC_CLASS",
            "The DSCP and ECN bits of packets.";
        pkey: Option<String> = None, "DOORBELL_VERBS_PKEY",
            "The partition that is used, by its key, as in 0x8001; auto: the first of which the port is a full member, else its first.";
        slot: Size = Size(VerbsConfig::default().slot), "DOORBELL_VERBS_SLOT",
            "What one send of a reliable connection carries at most, a power of two; the same at all ranks.";
        zero_copy: Size = Size(VerbsConfig::default().zero_copy), "DOORBELL_VERBS_ZERO_COPY",
            "The length from which on reliable connections send a region from where it lies.";
        register: Size = Size(VerbsConfig::default().register), "DOORBELL_VERBS_REGISTER",
            "The length above which memory that is borrowed for a one-sided operation of a reliable connection is registered for it; shorter memory is copied.";
        get_from: Size = Size(VerbsConfig::default().get_from), "DOORBELL_VERBS_GET_FROM",
            "The length from which on long messages over reliable connections are read by the receiver, instead of sent in fragments.";
        retry: u32 = VerbsConfig::default().retry.into(), "DOORBELL_VERBS_RETRY",
            "How often the device repeats a packet of a reliable connection that is not acknowledged.";
        timeout: u32 = VerbsConfig::default().timeout.into(), "DOORBELL_VERBS_TIMEOUT",
            "After how long it does: 4.096 us times two to the power of this.";
        keep_alive: Duration = VerbsConfig::default().keep_alive, "DOORBELL_VERBS_KEEP_ALIVE",
            "How long a reliable connection may be idle before the peer is tried.";
        ring: VerbsRing = VerbsRing::Auto, "DOORBELL_VERBS_RING",
            "Whether peers of reliable connections that send much write short messages into memory that is polled; auto: where the library reports that the device writes data in order.";
        ring_peers: u32 = VerbsConfig::default().ring_peers as u32, "DOORBELL_VERBS_RING_PEERS",
            "Peers that have such a ring at a time, at most.";
    }
    /// The BTL, which turns datagrams into messages on every rail that carries datagrams.
    btl: BtlSection {
        window: u32 = BtlConfig::default().window, "DOORBELL_BTL_WINDOW",
            "Segments of one peer that may be in flight, a power of two; the same at all ranks.";
        segments: u32 = BtlConfig::default().segments as u32, "DOORBELL_BTL_SEGMENTS",
            "Segments in flight to all peers together.";
        max_peers: u32 = BtlConfig::default().max_peers as u32, "DOORBELL_BTL_MAX_PEERS",
            "Most peers that a rail has over its whole life.";
        max_reassemblies: u32 = BtlConfig::default().max_reassemblies as u32, "DOORBELL_BTL_MAX_REASSEMBLIES",
            "Chunked messages being reassembled, from all peers together.";
        operations: u32 = BtlConfig::default().operations as u32, "DOORBELL_BTL_OPERATIONS",
            "One-sided operations in progress: this many of ours, and as many of peers.";
        exposures: u32 = BtlConfig::default().exposures as u32, "DOORBELL_BTL_EXPOSURES",
            "Regions of memory exposed at a time.";
        eager_limit: Size = Size(BtlConfig::default().eager_limit), "DOORBELL_BTL_EAGER_LIMIT",
            "Longest message of the BTL, its head included; longer ones go by rendezvous.";
        priority_limit: Size = Size(BtlConfig::default().priority_limit), "DOORBELL_BTL_PRIORITY_LIMIT",
            "Messages up to this length take the priority channel.";
        retrans_timeout: Duration = BtlConfig::default().retrans_timeout, "DOORBELL_BTL_RETRANS_TIMEOUT",
            "Retransmission time-out before a round trip has been measured.";
        retrans_least: Duration = BtlConfig::default().retrans_least, "DOORBELL_BTL_RETRANS_LEAST",
            "Shortest retransmission time-out.";
        retrans_tail: Duration = BtlConfig::default().retrans_tail, "DOORBELL_BTL_RETRANS_TAIL",
            "Shortest time-out of the oldest segment when no acknowledgement shows its loss; it doubles from there.";
        retrans_most: Duration = BtlConfig::default().retrans_most, "DOORBELL_BTL_RETRANS_MOST",
            "Longest retransmission time-out; time-outs double up to this.";
        max_resends_per_iteration: u32 = BtlConfig::default().max_resends_per_iteration as u32,
            "DOORBELL_BTL_MAX_RESENDS_PER_ITERATION", "Segments retransmitted in one pass.";
        ack_delay: Duration = BtlConfig::default().ack_delay, "DOORBELL_BTL_ACK_DELAY",
            "How long an acknowledgement waits for a frame to be piggybacked on.";
        ack_every: u32 = BtlConfig::default().ack_every, "DOORBELL_BTL_ACK_EVERY",
            "Segments after which an acknowledgement does not wait (of short ones: four times as many).";
        initial_window: u32 = BtlConfig::default().initial_window, "DOORBELL_BTL_INITIAL_WINDOW",
            "Segments in flight to one peer at the beginning, before anything is known about congestion.";
        quantum: u32 = BtlConfig::default().quantum, "DOORBELL_BTL_QUANTUM",
            "Segments sent to one peer before the next peer's turn.";
        give_up: Duration = BtlConfig::default().give_up, "DOORBELL_BTL_GIVE_UP",
            "A peer that acknowledges nothing for this long is down; a program must not go without calls for longer.";
        silence: Duration = BtlConfig::default().silence, "DOORBELL_BTL_SILENCE",
            "A peer that is alive over another rail, and silent on this one for this long, is down on this rail.";
        keep_alive: Duration = BtlConfig::default().keep_alive, "DOORBELL_BTL_KEEP_ALIVE",
            "A peer from which nothing arrived for this long is probed.";
        suspect_after: u32 = BtlConfig::default().suspect_after, "DOORBELL_BTL_SUSPECT_AFTER",
            "Time-outs in a row after which a peer is suspect.";
        connectivity_check: bool = BtlConfig::default().connectivity_check, "DOORBELL_BTL_CONNECTIVITY_CHECK",
            "Whether a peer is probed with a short and a full frame, in both directions, before it is used.";
        connectivity_ack_timeout: Duration = BtlConfig::default().connectivity_ack_timeout,
            "DOORBELL_BTL_CONNECTIVITY_ACK_TIMEOUT", "Longest interval between two probes.";
        connectivity_error_num_retries: u32 = BtlConfig::default().connectivity_error_num_retries,
            "DOORBELL_BTL_CONNECTIVITY_ERROR_NUM_RETRIES", "Unanswered probes after which the check has failed.";
        frame_mac: bool = BtlConfig::default().frame_mac, "DOORBELL_BTL_FRAME_MAC",
            "Whether each frame carries a MAC, against forged frames; the same at all ranks.";
        recorder: u32 = BtlConfig::default().recorder as u32, "DOORBELL_BTL_RECORDER",
            "Events that each rail keeps, for the report when a peer is lost or a wait reaches its limit; 0: none.";
    }
}

impl Config {
    /// Returns every setting with value, origin, unit and help, for `doorbell info --config`.
    ///
    /// ```
    /// # use doorbell_job as doorbell;
    /// let listing = doorbell::Config::default().list();
    /// let deadline = listing.iter().find(|line| line.name == "wait.deadline").unwrap();
    /// assert_eq!((deadline.value.as_str(), deadline.origin.as_str()), ("60 s", "default"));
    /// ```
    pub fn list(&self) -> Vec<Listed> {
        let facts = FACTS.iter().zip(self.all());
        facts
            .map(|(fact, setting)| Listed {
                name: fact.name,
                variable: fact.variable,
                value: setting.show(),
                origin: setting.came_from().to_string(),
                unit: setting.unit(),
                help: fact.help,
            })
            .collect()
    }

    /// Returns the same as JSON: an array of objects with the fields of [`Listed`].
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.list()).unwrap_or_else(|_| "[]".to_owned())
    }
}

#[cfg(test)]
mod tests;
