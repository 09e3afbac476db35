//! What a rail can do, and its limits.

use serde::{Deserialize, Serialize};

/// What a rail offers beyond plain messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// One-sided reads of exposed memory.
    pub get: bool,
    /// One-sided writes into exposed memory.
    pub put: bool,
    /// 64-bit atomics on exposed memory.
    pub atomics: bool,
    /// Gathers several pieces of user memory into one message without a copy beyond its own.
    pub gather: bool,
    /// Keeps accepted messages until they are handed over, and can return them (`reclaim`).
    pub reclaim: bool,
    /// Whether it moves bytes within the host, by the processors that the ranks run on: a second rail beside
    /// it adds nothing to its bandwidth (what Open MPI's BTLs call exclusivity).
    pub within_host: bool,
    /// The network checks the bytes end to end; without it the BTL adds CRC-32C.
    pub checksum: bool,
    /// Rails of the same number, which is not 0, are of one port: a second one beside it adds nothing to its
    /// bandwidth. 0: of no port that another rail can be of, too.
    #[serde(default, skip_serializing_if = "is_none")]
    pub port: u32,
}

fn is_none(port: &u32) -> bool {
    *port == 0
}

impl Features {
    /// The number of a port, by its name: never 0.
    #[must_use]
    pub fn port_of(name: &str) -> u32 {
        // FNV-1a; two ports of one number would be used one at a time.
        let hash = name.bytes().fold(0x811c_9dc5u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        hash.max(1)
    }
}

/// Sizes, in bytes unless another unit is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Longest head of a message. At least 64 on every rail.
    pub head: usize,
    /// Longest message, head and body together, of one `send` (for a `Datagram`: the MTU).
    pub message: usize,
    /// The length of head and body together up to which a message costs the rail no more than its smallest
    /// one.
    pub inline: usize,
    /// Largest message, head included, that is better sent at once than by rendezvous.
    pub eager: usize,
    /// Best size of one fragment of a long transfer.
    pub fragment: usize,
    /// The size, head included as in `eager`, from which on a one-sided get is better than fragments.
    /// Meaningless without the feature. If a rail within the host has less here than in `eager`, messages
    /// that are longer than this go as
    /// [`Message::prefers_get`](crate::message::Message::prefers_get) decides.
    pub get_from: usize,
    /// The most pieces of a gathered body (a count).
    pub parts: usize,
    /// Longest single one-sided operation.
    pub one_sided: u64,
}

/// Estimates for choosing and striping; replaced by measurement where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Half round trip of the smallest message, in nanoseconds.
    pub latency_ns: u64,
    /// Bytes per second of long messages.
    pub bandwidth: u64,
}

/// Everything that is fixed about an open rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The optional operations that the rail has.
    pub features: Features,
    /// The sizes that the rail can carry.
    pub limits: Limits,
    /// Estimates for rail selection.
    pub estimate: Estimate,
}

#[cfg(test)]
impl Capabilities {
    /// Those of a rail that is made up.
    pub(crate) fn of_a_test() -> Self {
        Self {
            features: Features::default(),
            limits: Limits {
                head: 64,
                message: 1 << 16,
                inline: 24,
                eager: 4096,
                fragment: 8192,
                get_from: 65536,
                parts: 4,
                one_sided: 1 << 30,
            },
            estimate: Estimate {
                latency_ns: 100,
                bandwidth: 1,
            },
        }
    }
}
