//! Code shared by drivers whose queues carry whole Ethernet packets: header templates of peers, parts of
//! frames, capabilities.

use std::net::SocketAddr;

use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::ether::{Headers, Mac};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Body;

/// Most parts of a gathered body.
pub const PARTS_MAX: usize = 64;

/// The header templates of one peer, complete once the hardware address is known.
#[derive(Debug)]
pub struct PeerHeaders {
    /// One template for each channel.
    pub headers: [Headers; 2],
    /// Whether the hardware address is known.
    pub is_known: bool,
    /// The peer's socket addresses, one for each channel.
    pub to: [SocketAddr; 2],
}

impl PeerHeaders {
    /// Creates templates between these sockets, without hardware addresses.
    #[must_use]
    pub fn new(own: [SocketAddr; 2], to: [SocketAddr; 2]) -> Self {
        Self {
            headers: [Headers::new(own[0], to[0]), Headers::new(own[1], to[1])],
            is_known: false,
            to,
        }
    }

    /// Sets the hardware addresses.
    pub fn set_macs(&mut self, own: Mac, theirs: Mac) {
        self.is_known = true;
        for headers in &mut self.headers {
            headers.set_macs(own, theirs);
        }
    }
}

/// Calls `put` for the head and each part of the body.
#[inline]
pub fn for_each_part(head: &[u8], body: Body<'_>, mut put: impl FnMut(SharedBytes<'_>)) {
    put(SharedBytes::of(head));
    body.for_each_part(put);
}

/// Whether a body has more parts than [`PARTS_MAX`].
#[inline]
#[must_use]
pub fn has_too_many_parts(body: &Body<'_>) -> bool {
    matches!(body, Body::Parts(parts) if parts.len() > PARTS_MAX)
}

/// The capabilities of a rail with frames of up to `limit` bytes and UDP's 16-bit checksum.
#[must_use]
pub fn frame_capabilities(limit: usize, estimate: Estimate) -> Capabilities {
    Capabilities {
        features: Features {
            gather: true,
            checksum: true,
            ..Features::default()
        },
        limits: Limits {
            head: 128,
            message: limit,
            inline: 256.min(limit),
            eager: limit,
            fragment: limit,
            get_from: 0,
            parts: PARTS_MAX,
            one_sided: 0,
        },
        estimate,
    }
}
