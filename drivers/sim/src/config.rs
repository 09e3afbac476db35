//! Settings of a simulated network: what its rails can do, and what its links do to traffic.

use std::time::Duration;

use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};

use crate::fault::{Aim, Burst, Part, Pipe};

/// What a link does to traffic, in one direction. Every probability is per frame or message, from 0 to 1.
///
/// Datagrams feel all of it. Messages (the lossless contract) feel `delay`, `jitter`, `reorder`, `bandwidth`
/// and a closed link; loss, duplication, damage, aims, the MTU cut and shared pipes are what a rail below
/// that contract has already mended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Losses in bursts, in addition to independent ones.
    pub burst: Option<Burst>,
    /// Probability that a frame arrives twice; the second has a delay of its own.
    pub duplicate: f64,
    /// Probability that one to three bits of a frame are flipped.
    pub corrupt: f64,
    /// Where they are flipped.
    pub corrupt_part: Part,
    /// Probability that a frame is cut off at a random length.
    pub truncate: f64,
    /// Probability that 1 to 64 random bytes are added to a frame, up to the NIC's MTU.
    pub lengthen: f64,
    /// Probability that a frame or message is held back, so that later ones overtake it.
    pub reorder: f64,
    /// The longest time for which a reordered frame is held back.
    pub reorder_window: Duration,
    /// When not zero, a frame is delayed until a random number of later ones, from 1 to this, have overtaken
    /// it, instead of for a random time; `reorder_window` (zero: a millisecond) limits the delay when no
    /// frame follows.
    pub overtake: u32,
    /// The one-way delay of every frame or message.
    pub delay: Duration,
    /// Random part of the delay, from zero up to this. It alone never reorders.
    pub jitter: Duration,
    /// Frames longer than this many bytes are lost (a tunnel with a smaller MTU on the path).
    pub mtu: Option<usize>,
    /// Bytes per second that a NIC serialises onto this link; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// Bytes that may wait for the serialisation: above it frames are dropped, and messages are refused as
    /// `Full`.
    pub queue: usize,
    /// A bottleneck that this direction shares with all others of the plane that name the same number.
    pub trunk: Option<(u32, Pipe)>,
    /// The switch's port to the receiver, shared by all senders to it (incast).
    pub port: Option<Pipe>,
    /// A fault for chosen frames.
    pub aim: Option<Aim>,
}

impl Faults {
    /// A link of one microsecond that does nothing wrong.
    pub const NONE: Self = Self {
        loss: 0.0,
        burst: None,
        duplicate: 0.0,
        corrupt: 0.0,
        corrupt_part: Part::Anywhere,
        truncate: 0.0,
        lengthen: 0.0,
        reorder: 0.0,
        reorder_window: Duration::ZERO,
        overtake: 0,
        delay: Duration::from_micros(1),
        jitter: Duration::ZERO,
        mtu: None,
        bandwidth: None,
        queue: 256 * 1024,
        trunk: None,
        port: None,
        aim: None,
    };

    /// Everything at once, at rates that a test survives: for random traffic.
    pub const ROUGH: Self = Self {
        loss: 0.02,
        duplicate: 0.02,
        corrupt: 0.01,
        reorder: 0.2,
        reorder_window: Duration::from_micros(20),
        jitter: Duration::from_nanos(500),
        ..Self::NONE
    };
}

impl Default for Faults {
    fn default() -> Self {
        Self::NONE
    }
}

/// Settings of a network; a plane's faults are set with [`SimNet::change`](crate::SimNet::change).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimConfig {
    /// What a [`SimRail`](crate::SimRail) offers: turn features off and move limits to force a protocol.
    pub capabilities: Capabilities,
    /// Faults of every plane until changed.
    pub faults: Faults,
    /// Messages that a rail keeps for one peer (accepted, not handed over); above it `send` answers `Full`.
    pub queue_depth: usize,
    /// The one-sided operations of one rail that may be open at once; above it they answer `Full`.
    pub operations: usize,
    /// Exposures of one rail; above it `expose` answers `Full`.
    pub keys: usize,
    /// How long the target works on a one-sided operation, on top of its bytes over the bandwidth.
    pub execution: Duration,
    /// The time from the loss of the own link (or its return) to the event about it.
    pub link_notice: Duration,
    /// The time from the death of a process to the event at its peers.
    pub death_notice: Duration,
    /// Time from a silent loss of the path to a peer (its link, its NIC, a partition) to the event; also from
    /// its return.
    pub silence: Duration,
    /// MTU of a [`SimDatagram`](crate::SimDatagram): longest frame, in bytes.
    pub mtu: usize,
    /// Frames that the priority queues of a datagram NIC hold (send ring and receive ring each).
    pub priority_ring: usize,
    /// Frames that its data queues hold.
    pub data_ring: usize,
    /// Fresh buffers for [`Receive::keep`](doorbell_fabric::datagram::Receive::keep), per NIC.
    pub spare_buffers: usize,
    /// Events that the trace keeps; older ones are forgotten (its hash covers them all).
    pub trace_events: usize,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            capabilities: CAPABILITIES,
            faults: Faults::NONE,
            queue_depth: 64,
            operations: 32,
            keys: 256,
            execution: Duration::from_nanos(500),
            link_notice: Duration::from_micros(10),
            death_notice: Duration::from_micros(50),
            silence: Duration::from_micros(500),
            mtu: 1472,
            priority_ring: 32,
            data_ring: 128,
            spare_buffers: 64,
            trace_events: 4096,
        }
    }
}

/// Everything on; limits small, so that tests cross them with small messages.
const CAPABILITIES: Capabilities = Capabilities {
    features: Features {
        get: true,
        put: true,
        atomics: true,
        gather: true,
        reclaim: true,
        within_host: false,
        checksum: true,
        port: 0,
    },
    limits: Limits {
        head: 64,
        message: 16 * 1024,
        inline: 64,
        eager: 4096,
        fragment: 8192,
        get_from: 8192,
        parts: 16,
        one_sided: 1 << 30,
    },
    estimate: Estimate {
        latency_ns: 1_000,
        bandwidth: 10_000_000_000,
    },
};
