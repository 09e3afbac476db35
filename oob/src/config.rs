//! The settings of a node of the control plane. All limits of memory and all times are here; the core has no others.

use std::sync::Arc;
use std::time::Duration;

use crate::name::{Epoch, Name};

/// How a transport finds the next hop to somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Everybody is reached directly, or not over this transport.
    Direct,
    /// Along the tree: over parents and children, which pass on.
    Tree,
}

/// A transport, as the core knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The name in contacts, such as `tcp`.
    pub name: Arc<str>,
    /// How it finds the next hop.
    pub routing: Routing,
    /// Whether two that are to talk over it have to know of each other before either of them calls, as over a rail: the core
    /// then tells it of everybody that it learns of, and not only of those that it wants to reach.
    pub mutual: bool,
}

impl Transport {
    /// A transport that connects to everybody by itself.
    #[must_use]
    pub fn direct(name: &str) -> Self {
        Self {
            name: name.into(),
            routing: Routing::Direct,
            mutual: false,
        }
    }

    /// A transport that connects along the tree only.
    #[must_use]
    pub fn tree(name: &str) -> Self {
        Self {
            name: name.into(),
            routing: Routing::Tree,
            mutual: false,
        }
    }

    /// The same; both ends have to know of each other before either calls.
    #[must_use]
    pub fn mutual(self) -> Self {
        Self { mutual: true, ..self }
    }
}

/// What to do by itself when something is lost, before anybody is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// A process without its lifeline ends: every send is ended, and nothing is tried again.
    End,
    /// A process without its lifeline goes on trying to find an ancestor.
    Persist,
}

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who we are.
    pub name: Name,
    /// In which life.
    pub epoch: Epoch,
    /// How many ranks the job has.
    pub ranks: u32,
    /// How many children a rank of the tree has, at most.
    pub radix: u32,
    /// The transports, the preferred one first.
    pub transports: Vec<Transport>,
    /// What happens without a lifeline.
    pub policy: Policy,

    /// Longest message, in bytes.
    pub longest: usize,
    /// Bytes (and 64 for each message) that may be on the way to one peer and not acknowledged. A single message that is
    /// longer goes alone.
    pub window: u32,
    /// Messages that may be on the way to one peer.
    pub window_messages: u16,
    /// Bytes (and 64 for each message) that may wait for one peer, those on the way included.
    pub pending: usize,
    /// The same, for all peers together: the memory that sends may take.
    pub pending_total: usize,
    /// Bytes (and 64 for each message) of one peer that nobody has received: what its window is.
    pub unmatched: u32,
    /// The same, for all peers together.
    pub unmatched_total: usize,
    /// Bytes that a link is given beyond what it has sent.
    pub link_window: usize,
    /// Bytes that wait to be passed on to one neighbour; what exceeds it is dropped, and sent again by its origin.
    pub relay: usize,
    /// Broadcasts and gathers that may be open at the same time.
    pub operations: usize,

    /// How long an acknowledgement waits for a message that it can ride on.
    pub ack_delay: Duration,
    /// First time-out of a message that is not acknowledged; then it follows the measured round trips.
    pub rto: Duration,
    /// Its lower bound.
    pub rto_min: Duration,
    /// Its upper bound: back-off ends there.
    pub rto_max: Duration,
    /// How long a send may take when its sender does not say.
    pub give_up: Duration,
    /// How long an attempt to connect may take.
    pub connect: Duration,
    /// Wait before the second round of attempts; doubles with each round.
    pub retry: Duration,
    /// Longest wait between rounds.
    pub retry_max: Duration,
    /// Rounds over all transports and modules before a peer is given up.
    pub rounds: u32,
    /// How long a neighbour that has connected to us, and that we cannot call, may stay away. Also how long the children
    /// of a rank that is lost have to report.
    pub grace: Duration,
    /// How long a relay waits for the rest of its branch before it reports what it has.
    pub hold: Duration,
    /// How long a result may travel after the deadline of its operation.
    pub margin: Duration,
}

impl Config {
    /// The usual settings for a rank of a job of `ranks`.
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
