//! Demultiplexes received Ethernet packets: verifies headers and checksum, and finds the channel and the
//! sender. ARP and NDP packets go to the neighbour cache.

use std::collections::VecDeque;
use std::net::SocketAddr;

use doorbell_fabric::ether::{Arrived, HEADERS_IPV6, NEIGHBOUR_PACKET_MAX, NeighbourMessage};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::pcapng::Direction;
use rustc_hash::FxHashMap;

use crate::capture::{RemoteEnd, Tap};

/// The peer index of frames whose sender has not been opened.
pub const UNKNOWN_PEER: u32 = u32::MAX;
/// Most ARP and NDP messages that are queued for the rail; further ones are dropped.
const NEIGHBOUR_MESSAGES_MAX: usize = 64;
/// Bytes of a cache line.
const LINE: usize = 64;

/// The kind of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demuxed {
    /// A frame for this rail.
    Frame {
        /// The channel on which it arrived.
        channel: usize,
        /// Its sender's index, or [`UNKNOWN_PEER`].
        from: u32,
        /// Offset of the frame in the packet, in bytes.
        at: usize,
        /// Length of the frame in bytes.
        length: usize,
        /// The device verified the checksum, not this function.
        by_device: bool,
    },
    /// An ARP or NDP message, queued for the neighbour cache.
    Neighbour,
    /// A frame with a wrong checksum.
    Corrupt,
    /// A packet that is not for this rail.
    Malformed,
}

/// The table of peers that a rail's receiving half looks senders up in.
#[derive(Debug)]
pub struct Demux {
    peers: FxHashMap<SocketAddr, u32>,
    /// Sender of the last frame, which most often sends the next one too.
    last: (SocketAddr, u32),
    own: SocketAddr,
    /// Received ARP and NDP messages that the neighbour cache has not handled yet.
    pub neighbour_messages: VecDeque<NeighbourMessage>,
    /// Frames from senders that have not been opened.
    pub unknown_senders: u64,
    /// The kernel answers for the rail's address: no ARP or NDP message is for the rail.
    has_kernel: bool,
    /// Frames with a partial checksum are accepted.
    accepts_partial: bool,
    /// Frames that had one.
    pub partial_checksums: u64,
    /// Captures the received frames.
    pub tap: Option<Tap>,
}

impl Demux {
    /// Creates a demultiplexer for the socket address of the priority channel; the data channel uses the next
    /// port.
    #[must_use]
    pub fn new(own: SocketAddr) -> Self {
        Self {
            peers: FxHashMap::default(),
            last: (own, UNKNOWN_PEER),
            own,
            neighbour_messages: VecDeque::with_capacity(NEIGHBOUR_MESSAGES_MAX),
            unknown_senders: 0,
            has_kernel: false,
            accepts_partial: false,
            partial_checksums: 0,
            tap: None,
        }
    }

    /// Creates a demultiplexer for an address that the kernel has, which answers its neighbours.
    /// `accepts_partial`: frames may come from senders on the same machine that left their checksum to a
    /// device, and pass none.
    #[must_use]
    pub fn beside_kernel(own: SocketAddr, accepts_partial: bool) -> Self {
        Self {
            has_kernel: true,
            accepts_partial,
            ..Self::new(own)
        }
    }

    /// Assigns frames from `address` to this peer.
    pub fn add_peer(&mut self, address: SocketAddr, peer: u32) {
        self.peers.insert(unscoped(address), peer);
        self.last = (self.own, UNKNOWN_PEER);
    }

    /// Assigns frames from `address` to no peer, if they were assigned to this one.
    pub fn remove_peer(&mut self, address: SocketAddr, peer: u32) {
        if self.peer_at(address) == Some(peer) {
            self.peers.remove(&unscoped(address));
        }
        self.last = (self.own, UNKNOWN_PEER);
    }

    /// Looks up the peer with this address.
    #[must_use]
    pub fn peer_at(&self, address: SocketAddr) -> Option<u32> {
        self.peers.get(&unscoped(address)).copied()
    }

    /// Removes all peers.
    pub fn clear(&mut self) {
        self.peers.clear();
        self.last = (self.own, UNKNOWN_PEER);
    }

    /// Classifies `packet`; `believed`: the device reported that its checksums are right; `exact`: no link
    /// has padded it, so nothing may follow the frame.
    #[inline]
    pub fn classify(&mut self, packet: SharedBytes<'_>, believed: bool, exact: bool) -> Demuxed {
        // Loads the second cache line of a short frame together with the first, not after it.
        std::hint::black_box(packet.read::<1>(LINE));
        let mut headers = [0; HEADERS_IPV6];
        let n = packet.copy_to(0, &mut headers);
        let Some(arrived) = Arrived::read(&headers[..n], packet.len()) else {
            return self.read_neighbour_message(packet);
        };
        let channel = usize::from(arrived.to.port().wrapping_sub(self.own.port()));
        if channel > 1 || arrived.to.ip() != self.own.ip() {
            return Demuxed::Malformed;
        }
        if exact && arrived.at + arrived.length != packet.len() {
            return Demuxed::Malformed;
        }
        let frame = packet.skip(arrived.at).take(arrived.length);
        let by_device = believed && arrived.has_checksum();
        if !by_device
            && !has_right_checksum(&arrived, frame, self.own.is_ipv4())
            && !self.accept_partial(&arrived)
        {
            return Demuxed::Corrupt;
        }
        let from = self.peer_of(arrived.from);
        if self.tap.is_some() {
            self.record(channel, (from, arrived.from), frame);
        }
        Demuxed::Frame {
            channel,
            from,
            at: arrived.at,
            length: arrived.length,
            by_device,
        }
    }

    /// Whether a frame whose checksum is wrong has a partial one that is accepted; counts it.
    #[cold]
    fn accept_partial(&mut self, arrived: &Arrived) -> bool {
        let is_accepted = self.accepts_partial && arrived.has_checksum() && arrived.is_partial_checksum();
        self.partial_checksums += u64::from(is_accepted);
        is_accepted
    }

    /// Queues an ARP or NDP message; anything else is malformed.
    #[cold]
    fn read_neighbour_message(&mut self, packet: SharedBytes<'_>) -> Demuxed {
        if self.has_kernel {
            return Demuxed::Malformed;
        }
        let mut bytes = [0; NEIGHBOUR_PACKET_MAX];
        let n = packet.copy_to(0, &mut bytes);
        match NeighbourMessage::read(&bytes[..n]) {
            None => return Demuxed::Malformed,
            Some(said) if self.neighbour_messages.len() < NEIGHBOUR_MESSAGES_MAX => {
                self.neighbour_messages.push_back(said)
            }
            // The queue is full: the neighbour sends its request again.
            Some(_) => {}
        }
        Demuxed::Neighbour
    }

    #[cold]
    fn record(&self, channel: usize, (from, address): (u32, SocketAddr), frame: SharedBytes<'_>) {
        if let Some(tap) = &self.tap {
            let other = if from == UNKNOWN_PEER {
                RemoteEnd::Unknown(Some(address))
            } else {
                RemoteEnd::Peer(from)
            };
            tap.frame(Direction::In, channel, other, &frame.to_vec());
        }
    }

    #[inline]
    fn peer_of(&mut self, from: SocketAddr) -> u32 {
        if self.last.0 != from {
            let known = self.peers.get(&from).copied();
            self.unknown_senders += u64::from(known.is_none());
            match known {
                Some(peer) => self.last = (from, peer),
                None => return UNKNOWN_PEER,
            }
        }
        self.last.1
    }
}

/// The address without its scope, which is valid on this host only.
fn unscoped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Whether a frame's UDP checksum is right.
#[inline]
fn has_right_checksum(arrived: &Arrived, frame: SharedBytes<'_>, is_ipv4: bool) -> bool {
    // IPv4 allows frames without one. A sender whose rail computes none adds a checksum of its own to the
    // frame.
    let none_is_right = is_ipv4 && !arrived.has_checksum();
    none_is_right || arrived.is_intact(frame.sum().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::ether::{Headers, neighbour_request, sum};

    fn packet(to: &str, sum_of: Option<&[u8]>) -> Vec<u8> {
        let headers = Headers::new("10.0.0.1:7000".parse().unwrap(), to.parse().unwrap());
        let mut packet = headers.for_frame(4, sum_of.map(sum)).to_vec();
        packet.extend_from_slice(b"ping");
        packet
    }

    #[test]
    fn packets_are_sorted_by_port_and_sender_and_checked_unless_the_device_did() {
        let mut demux = Demux::new("10.0.0.2:7000".parse().unwrap());
        let sort = |demux: &mut Demux, bytes: &[u8], believed| {
            demux.classify(SharedBytes::of(bytes), believed, false)
        };
        let good = packet("10.0.0.2:7001", Some(b"ping"));
        let frame = |from, by_device| Demuxed::Frame {
            channel: 1,
            from,
            at: 42,
            length: 4,
            by_device,
        };
        assert_eq!(sort(&mut demux, &good, false), frame(UNKNOWN_PEER, false));
        assert_eq!(demux.unknown_senders, 1);
        demux.add_peer("10.0.0.1:7000".parse().unwrap(), 3);
        assert_eq!(sort(&mut demux, &good, true), frame(3, true));
        let spoilt = packet("10.0.0.2:7001", Some(b"pong"));
        assert_eq!(sort(&mut demux, &spoilt, false), Demuxed::Corrupt);
        let without = packet("10.0.0.2:7001", None);
        assert_eq!(
            sort(&mut demux, &without, true),
            frame(3, false),
            "nothing to believe"
        );
        for other in ["10.0.0.2:7002", "10.0.0.3:7000"] {
            assert_eq!(
                sort(&mut demux, &packet(other, Some(b"ping")), true),
                Demuxed::Malformed
            );
        }
        let own = ("10.0.0.9".parse().unwrap(), [2, 0, 0, 0, 0, 9]);
        let question = neighbour_request(own, "10.0.0.2".parse().unwrap()).unwrap();
        for _ in 0..2 * NEIGHBOUR_MESSAGES_MAX {
            assert_eq!(sort(&mut demux, &question, false), Demuxed::Neighbour);
        }
        assert_eq!(demux.neighbour_messages.len(), NEIGHBOUR_MESSAGES_MAX, "bounded");
        demux.clear();
        assert_eq!(demux.peer_at("10.0.0.1:7000".parse().unwrap()), None);
    }
}
