//! Packets that arrived whole: whose frames they are, by which channel, and whether they are as they were sent. What is no frame
//! may be a neighbour's word.

use std::collections::VecDeque;
use std::net::SocketAddr;

use doorbell_fabric::ether::{Arrived, HEADERS_6, RESOLVE_MAX, Resolve};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::pcapng::Way;
use rustc_hash::FxHashMap;

use crate::capture::{Other, Tap};

/// Nobody who was opened.
pub const NOBODY: u32 = u32::MAX;
/// Most words of neighbours that wait for the function to answer.
const HEARD_MAX: usize = 64;
/// Bytes of a cache line.
const LINE: usize = 64;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sorted {
    /// A frame.
    Frame {
        /// Its channel.
        channel: usize,
        /// Its sender, or [`NOBODY`].
        from: u32,
        /// Where in the packet it is.
        at: usize,
        /// Its bytes.
        length: usize,
        /// By the device's word, and not by a look at it.
        by_device: bool,
    },
    /// A neighbour's word, kept for the rail to answer.
    Heard,
    /// Not as it was sent.
    Corrupt,
    /// Nothing for this rail.
    Malformed,
}

/// What a rail's receiving half knows of its peers.
#[derive(Debug)]
pub struct Sorter {
    names: FxHashMap<SocketAddr, u32>,
    /// Who sent the last frame: mostly the sender of the next one.
    last: (SocketAddr, u32),
    own: SocketAddr,
    /// What neighbours said.
    pub heard: VecDeque<Resolve>,
    /// Frames of nobody who was opened.
    pub strangers: u64,
    /// A capture of what arrives.
    pub tap: Option<Tap>,
}

impl Sorter {
    /// For the socket of the priority channel; the data channel has the next port.
    #[must_use]
    pub fn new(own: SocketAddr) -> Self {
        Self {
            names: FxHashMap::default(),
            last: (own, NOBODY),
            own,
            heard: VecDeque::with_capacity(HEARD_MAX),
            strangers: 0,
            tap: None,
        }
    }

    /// Frames from `address` are this peer's.
    pub fn name(&mut self, address: SocketAddr, peer: u32) {
        self.names.insert(address, peer);
        self.last = (self.own, NOBODY);
    }

    /// The peer with this address.
    #[must_use]
    pub fn named(&self, address: SocketAddr) -> Option<u32> {
        self.names.get(&address).copied()
    }

    /// Forgets all peers.
    pub fn clear(&mut self) {
        self.names.clear();
        self.last = (self.own, NOBODY);
    }

    /// What `packet` is. `believed`: the device has said that its checksums are right.
    #[inline]
    pub fn sort(&mut self, packet: SharedBytes<'_>, believed: bool) -> Sorted {
        // The second line of a short frame is fetched beside the first, and not after it.
        std::hint::black_box(packet.read::<1>(LINE));
        let mut headers = [0; HEADERS_6];
        let n = packet.copy_to(0, &mut headers);
        let Some(arrived) = Arrived::read(&headers[..n], packet.len()) else {
            return self.hear(packet);
        };
        let channel = usize::from(arrived.to.port().wrapping_sub(self.own.port()));
        if channel > 1 || arrived.to.ip() != self.own.ip() {
            return Sorted::Malformed;
        }
        let frame = packet.skip(arrived.at).take(arrived.length);
        let by_device = believed && arrived.has_checksum();
        if !by_device && !is_right(&arrived, frame, self.own.is_ipv4()) {
            return Sorted::Corrupt;
        }
        let from = self.sender(arrived.from);
        if self.tap.is_some() {
            self.show(channel, (from, arrived.from), frame);
        }
        Sorted::Frame {
            channel,
            from,
            at: arrived.at,
            length: arrived.length,
            by_device,
        }
    }

    /// No frame: a neighbour's question or answer, perhaps.
    #[cold]
    fn hear(&mut self, packet: SharedBytes<'_>) -> Sorted {
        let mut bytes = [0; RESOLVE_MAX];
        let n = packet.copy_to(0, &mut bytes);
        match Resolve::read(&bytes[..n]) {
            None => return Sorted::Malformed,
            Some(said) if self.heard.len() < HEARD_MAX => self.heard.push_back(said),
            // They ask again.
            Some(_) => {}
        }
        Sorted::Heard
    }

    #[cold]
    fn show(&self, channel: usize, (from, address): (u32, SocketAddr), frame: SharedBytes<'_>) {
        if let Some(tap) = &self.tap {
            let other = if from == NOBODY {
                Other::Stranger(Some(address))
            } else {
                Other::Peer(from)
            };
            tap.frame(Way::In, channel, other, &frame.to_vec());
        }
    }

    #[inline]
    fn sender(&mut self, from: SocketAddr) -> u32 {
        if self.last.0 != from {
            let known = self.names.get(&from).copied();
            self.strangers += u64::from(known.is_none());
            match known {
                Some(peer) => self.last = (from, peer),
                None => return NOBODY,
            }
        }
        self.last.1
    }
}

/// Whether a frame is as it was sent, by its checksum.
#[inline]
fn is_right(arrived: &Arrived, frame: SharedBytes<'_>, is_ipv4: bool) -> bool {
    // IPv4 allows to have none: a sender whose rail makes none adds a checksum of its own to the frame.
    let none_is_right = is_ipv4 && !arrived.has_checksum();
    none_is_right || arrived.is_intact(frame.sum().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::ether::{Headers, ask, sum};

    fn packet(to: &str, sum_of: Option<&[u8]>) -> Vec<u8> {
        let headers = Headers::new("10.0.0.1:7000".parse().unwrap(), to.parse().unwrap());
        let mut packet = headers.before(4, sum_of.map(sum)).to_vec();
        packet.extend_from_slice(b"ping");
        packet
    }

    #[test]
    fn packets_are_sorted_by_port_and_sender_and_checked_unless_the_device_did() {
        let mut sorter = Sorter::new("10.0.0.2:7000".parse().unwrap());
        let sort =
            |sorter: &mut Sorter, bytes: &[u8], believed| sorter.sort(SharedBytes::of(bytes), believed);
        let good = packet("10.0.0.2:7001", Some(b"ping"));
        let frame = |from, by_device| Sorted::Frame {
            channel: 1,
            from,
            at: 42,
            length: 4,
            by_device,
        };
        assert_eq!(sort(&mut sorter, &good, false), frame(NOBODY, false));
        assert_eq!(sorter.strangers, 1);
        sorter.name("10.0.0.1:7000".parse().unwrap(), 3);
        assert_eq!(sort(&mut sorter, &good, true), frame(3, true));
        let spoilt = packet("10.0.0.2:7001", Some(b"pong"));
        assert_eq!(sort(&mut sorter, &spoilt, false), Sorted::Corrupt);
        let without = packet("10.0.0.2:7001", None);
        assert_eq!(
            sort(&mut sorter, &without, true),
            frame(3, false),
            "nothing to believe"
        );
        for other in ["10.0.0.2:7002", "10.0.0.3:7000"] {
            assert_eq!(
                sort(&mut sorter, &packet(other, Some(b"ping")), true),
                Sorted::Malformed
            );
        }
        let own = ("10.0.0.9".parse().unwrap(), [2, 0, 0, 0, 0, 9]);
        let question = ask(own, "10.0.0.2".parse().unwrap()).unwrap();
        for _ in 0..2 * HEARD_MAX {
            assert_eq!(sort(&mut sorter, &question, false), Sorted::Heard);
        }
        assert_eq!(sorter.heard.len(), HEARD_MAX, "bounded");
        sorter.clear();
        assert_eq!(sorter.named("10.0.0.1:7000".parse().unwrap()), None);
    }
}
