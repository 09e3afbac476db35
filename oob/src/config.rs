//! The configuration of a node of the control plane. All limits and all times of the core are here.

use std::sync::Arc;
use std::time::Duration;

use crate::name::{Epoch, Name};

/// How a transport selects the next hop to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Every process is reached directly, or not at all over this transport.
    Direct,
    /// Along the tree: through parents and children, which relay.
    Tree,
}

/// A transport, as the core sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The name in contacts, such as `tcp`.
    pub name: Arc<str>,
    /// How it selects the next hop.
    pub routing: Routing,
    /// Whether both ends have to know each other before either calls, as over a rail: the core then passes it
    /// every contact that it learns, not only those that it needs.
    pub mutual: bool,
}

impl Transport {
    /// Creates a transport that connects to every process by itself.
    #[must_use]
    pub fn direct(name: &str) -> Self {
        Self {
            name: name.into(),
            routing: Routing::Direct,
            mutual: false,
        }
    }

    /// Creates a transport that connects along the tree only.
    #[must_use]
    pub fn tree(name: &str) -> Self {
        Self {
            name: name.into(),
            routing: Routing::Tree,
            mutual: false,
        }
    }

    /// Marks a transport over which both ends have to know each other before either calls.
    #[must_use]
    pub fn mutual(self) -> Self {
        Self { mutual: true, ..self }
    }
}

/// What a process does when it has lost its lifeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It ends: all sends end, and nothing is retried.
    End,
    /// It goes on trying to find an ancestor.
    Persist,
}

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of this process.
    pub name: Name,
    /// The epoch of this process.
    pub epoch: Epoch,
    /// The number of ranks of the job.
    pub ranks: u32,
    /// Maximum number of children of a rank in the tree.
    pub radix: u32,
    /// The transports, the preferred one first.
    pub transports: Vec<Transport>,
    /// What happens without a lifeline.
    pub policy: Policy,

    /// Maximum length of a message (bytes).
    pub longest: usize,
    /// Maximum bytes (plus 64 per message) in flight to one peer and not acknowledged. A single longer
    /// message goes alone.
    pub window: u32,
    /// Maximum number of messages in flight to one peer.
    pub window_messages: u16,
    /// Maximum bytes (plus 64 per message) queued for one peer, those in flight included.
    pub pending: usize,
    /// Maximum bytes queued for all peers together: the memory that sends may take.
    pub pending_total: usize,
    /// Maximum bytes (plus 64 per message) of one peer that no receive has taken: its window.
    pub unmatched: u32,
    /// Maximum bytes of all peers together that no receive has taken.
    pub unmatched_total: usize,
    /// Bytes given to a link beyond what it has sent.
    pub link_window: usize,
    /// Maximum bytes to be relayed that wait for one neighbour; the excess is dropped, and sent again by its
    /// origin.
    pub relay: usize,
    /// Maximum number of broadcasts and gathers open at the same time.
    pub operations: usize,

    /// How long an acknowledgement waits for a message to ride on.
    pub ack_delay: Duration,
    /// Initial retransmission time-out; later it follows the measured round trips.
    pub rto: Duration,
    /// Lower bound of the retransmission time-out.
    pub rto_min: Duration,
    /// Upper bound of the retransmission time-out, where the back-off ends.
    pub rto_max: Duration,
    /// How long a send may take unless its sender gives a time.
    pub give_up: Duration,
    /// How long an attempt to connect may take.
    pub connect: Duration,
    /// Wait before the second round of attempts; doubles with each round.
    pub retry: Duration,
    /// Maximum wait between rounds.
    pub retry_max: Duration,
    /// Number of rounds over all transports and modules before a peer is given up.
    pub rounds: u32,
    /// How long a neighbour that connected to us, and that we cannot call, may be without a link. Also how
    /// long the children of a lost rank have to report.
    pub grace: Duration,
    /// How long a relay waits for the rest of its branch before it reports what it has.
    pub hold: Duration,
    /// How long a result may travel after the deadline of its operation.
    pub margin: Duration,
}

impl Config {
    /// Returns the default configuration of a rank of a job of `ranks`.
    #[must_use]
    pub fn new(name: Name, epoch: Epoch, ranks: u32, transports: Vec<Transport>) -> Self {
        Self {
            name,
            epoch,
            ranks,
            radix: 64,
            transports,
            policy: Policy::End,
            longest: 16 << 20,
            window: 1 << 20,
            window_messages: 1024,
            pending: 4 << 20,
            pending_total: 64 << 20,
            unmatched: 1 << 20,
            unmatched_total: 64 << 20,
            link_window: 256 << 10,
            relay: 8 << 20,
            operations: 64,
            ack_delay: Duration::from_millis(2),
            rto: Duration::from_millis(250),
            rto_min: Duration::from_millis(20),
            rto_max: Duration::from_secs(5),
            give_up: Duration::from_secs(60),
            connect: Duration::from_secs(5),
            retry: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
            rounds: 4,
            grace: Duration::from_secs(10),
            hold: Duration::from_millis(300),
            margin: Duration::from_secs(2),
        }
    }
}
