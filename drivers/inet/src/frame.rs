//! What drivers have in common whose queues carry whole Ethernet packets: peers by their headers, frames by their parts.

use std::net::SocketAddr;

use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::datagram::Channel;
use doorbell_fabric::ether::{Headers, Mac};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Body;

/// Most pieces of a gathered body.
pub const PARTS_MAX: usize = 64;

/// A channel's place among the two.
#[inline]
#[must_use]
pub fn channel_index(channel: Channel) -> usize {
    match channel {
        Channel::Priority => 0,
        Channel::Data => 1,
    }
}

/// A peer: the headers of its two channels, whole when the hardware address is known.
#[derive(Debug)]
pub struct PeerHeaders {
    /// Of each channel.
    pub headers: [Headers; 2],
    /// The hardware address is known.
    pub is_known: bool,
    /// Its addresses.
    pub to: [SocketAddr; 2],
}

impl PeerHeaders {
    /// Between these sockets, one of each channel; the hardware address is not known.
    #[must_use]
    pub fn new(own: [SocketAddr; 2], to: [SocketAddr; 2]) -> Self {
        Self {
            headers: [Headers::new(own[0], to[0]), Headers::new(own[1], to[1])],
            is_known: false,
            to,
        }
    }

    /// Now it is.
    pub fn set_macs(&mut self, own: Mac, theirs: Mac) {
        self.is_known = true;
        for headers in &mut self.headers {
            headers.set_macs(own, theirs);
        }
    }
}

/// All bytes of a frame, as they lie.
#[inline]
pub fn for_each_part(head: &[u8], body: Body<'_>, mut put: impl FnMut(SharedBytes<'_>)) {
    put(SharedBytes::of(head));
    match body {
        Body::Empty => {}
        Body::Bytes(bytes) => put(SharedBytes::of(bytes)),
        Body::Loan(loan) => put(loan.as_shared()),
        Body::Parts(parts) => parts.iter().for_each(|part| put(part.as_shared())),
        Body::Shared(bytes) => put(bytes),
        Body::Region(slice) => put(slice.as_shared()),
    }
}

/// Whether a body has more pieces than a frame may have.
#[inline]
#[must_use]
pub fn has_too_many_parts(body: &Body<'_>) -> bool {
    matches!(body, Body::Parts(parts) if parts.len() > PARTS_MAX)
}

/// What such a rail can do with frames of up to `limit` bytes: UDP's own checksum, of 16 bits, is made and checked.
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
