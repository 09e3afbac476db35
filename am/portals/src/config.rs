//! Settings of a node, and the bounds of its interfaces.

use std::time::Duration;

use doorbell_fabric::error::RailError;
use doorbell_fabric::ni::{NiLimits, Process};
use thiserror::Error;

use crate::link::RailId;

/// Settings of a [`Node`](crate::Node).
#[derive(Clone, Debug)]
pub struct Config {
    /// This process: node and process id, neither of them the value for "any".
    pub me: Process,
    /// The user that its operations are of.
    pub uid: u32,
    /// Random, and unknown to peers: what the hashes of match bits are made with.
    pub seed: u64,
    /// Limits of an interface that is initialised without any.
    pub limits: NiLimits,
    /// How long a peer without a way is waited for before it is lost.
    pub patience: Duration,
    /// Bytes that may wait for one peer's ways: answers, and what is sent to this process itself.
    pub backlog: usize,
}

impl Config {
    /// The usual settings for this process.
    #[must_use]
    pub fn new(me: Process) -> Self {
        Self {
            me,
            uid: 0,
            seed: 0,
            limits: NiLimits::default(),
            patience: Duration::from_secs(10),
            backlog: 4 << 20,
        }
    }
}

/// Why a node refused a rail or a peer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The rail refused.
    #[error(transparent)]
    Rail(#[from] RailError),
    /// The node has no such rail.
    #[error("the node has no rail {}: add it first", .0.0)]
    NoRail(RailId),
    /// The node has as many rails as it can have.
    #[error("a node has 64 rails at most")]
    TooManyRails,
    /// The rail's messages are shorter than what has to travel in one.
    #[error(
        "{rail} carries messages of {most} bytes, and an interface needs {WHOLE}: use another rail, or a larger MTU"
    )]
    RailTooSmall {
        /// The name of the rail.
        rail: String,
        /// Bytes of its longest message.
        most: usize,
    },
    /// The process cannot be one.
    #[error("node {nid}, process {pid} is not a valid name: the process id has to be below 0xffff, and neither may be the value for \"any\"", nid = .0.nid, pid = .0.pid)]
    NoProcess(Process),
    /// The process was lost, and its operations have ended; a new life of it has another process id.
    #[error("node {nid}, process {pid} was lost before: it cannot come back under this name", nid = .0.nid, pid = .0.pid)]
    Lost(Process),
    /// More nodes than match bits of a source can name.
    #[error("a node has at most 65,534 peers")]
    TooManyNodes,
}

/// The largest limits that are granted (reference: portals, section 3).
pub(crate) const MOST: NiLimits = NiLimits {
    max_entries: 1 << 20,
    max_unexpected_headers: 1 << 20,
    max_mds: 1 << 20,
    max_cts: 1 << 20,
    max_eqs: 1 << 16,
    max_pt_index: 4095,
    max_iovecs: 1 << 20,
    max_list_size: 1 << 20,
    max_triggered_ops: 1 << 20,
    max_msg_size: 4 << 30,
    max_atomic_size: ATOMIC as u64,
    max_fetch_atomic_size: ATOMIC as u64,
    max_waw_ordered_size: SMALL as u64,
    max_war_ordered_size: SMALL as u64,
    max_volatile_size: SMALL as u64,
    features: 0,
};

/// Bytes of an atomic at most.
pub(crate) const ATOMIC: usize = 512;

/// Up to this many bytes a message always travels with its request or answer: it is in order with all others,
/// and copied when the call returns.
pub(crate) const SMALL: usize = 512;

/// Bytes that every rail has to carry in one message: those, or an atomic with its operand, and a head.
pub(crate) const WHOLE: usize = 640;

/// The limits that an interface gets when these are requested.
pub(crate) fn granted(asked: &NiLimits) -> NiLimits {
    NiLimits {
        max_entries: asked.max_entries.clamp(1, MOST.max_entries),
        max_unexpected_headers: asked.max_unexpected_headers.min(MOST.max_unexpected_headers),
        max_mds: asked.max_mds.clamp(1, MOST.max_mds),
        max_cts: asked.max_cts.clamp(1, MOST.max_cts),
        max_eqs: asked.max_eqs.clamp(1, MOST.max_eqs),
        max_pt_index: asked.max_pt_index.clamp(1, MOST.max_pt_index),
        max_iovecs: asked.max_iovecs.clamp(1, MOST.max_iovecs),
        max_list_size: asked.max_list_size.clamp(1, MOST.max_list_size),
        max_triggered_ops: asked.max_triggered_ops.min(MOST.max_triggered_ops),
        max_msg_size: asked.max_msg_size.min(MOST.max_msg_size),
        max_atomic_size: asked.max_atomic_size.min(MOST.max_atomic_size),
        max_fetch_atomic_size: asked.max_fetch_atomic_size.min(MOST.max_fetch_atomic_size),
        max_waw_ordered_size: asked.max_waw_ordered_size.clamp(64, MOST.max_waw_ordered_size),
        max_war_ordered_size: asked.max_war_ordered_size.clamp(8, MOST.max_war_ordered_size),
        max_volatile_size: asked.max_volatile_size.min(MOST.max_volatile_size),
        features: 0,
    }
}
