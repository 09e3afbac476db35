//! What the queues below a rail take by themselves: whole packets that were made once, to one peer and back,
//! with nothing looked at but their bytes. No rail can be faster over the same queues.

use doorbell_fabric::ether::HEADERS_IPV4;
use doorbell_fabric::message::PeerIndex;

use crate::rail::XdpRail;

/// A rail as a bare line to one peer.
///
/// ```no_run
/// # use doorbell_fabric::datagram::Datagram;
/// # use doorbell_fabric::message::Incarnation;
/// # use doorbell_xdp::{XdpConfig, XdpRail, XdpRaw};
/// let mut rail = XdpRail::open(&"xdp:eth1".parse()?, &XdpConfig::default())?;
/// let peer = Datagram::open(&mut rail, &"udp:10.0.0.2:56080".parse()?, Incarnation(1))?;
/// let mut line = XdpRaw::new(rail, peer);
/// while !line.put(b"ping") {}
/// let mut answer = [0; 4];
/// while line.take(&mut answer).is_none() {}
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
#[derive(Debug)]
pub struct XdpRaw {
    rail: XdpRail,
    peer: PeerIndex,
    packet: Vec<u8>,
    frame: usize,
    headers: usize,
}

impl XdpRaw {
    /// The line to `peer`, on the priority channel.
    #[must_use]
    pub fn new(rail: XdpRail, peer: PeerIndex) -> Self {
        let path = rail.tx.ways.get(peer.index());
        Self {
            headers: path.map_or(HEADERS_IPV4, |path| path.headers[0].len()),
            rail,
            peer,
            packet: Vec::new(),
            frame: usize::MAX,
        }
    }

    /// The longest packet that it sends, without its headers: what fits one chunk.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.rail.tx.in_one_chunk(self.headers)
    }

    /// Sends `bytes`, at most [`longest`](Self::longest) of them: the packet is built again only when the
    /// length is another one than last time. Returns whether there was room.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> bool {
        self.put_run(bytes, 1) == 1
    }

    /// Sends `bytes` in each of `count` packets, with one doorbell, as [`put`](Self::put) sends one. Returns
    /// how many there was room for.
    #[inline]
    pub fn put_run(&mut self, bytes: &[u8], count: usize) -> usize {
        if bytes.len() > self.longest() {
            return 0;
        }
        if self.frame != bytes.len() {
            self.rail.tx.packet(self.peer, bytes, &mut self.packet);
            self.frame = bytes.len();
        }
        self.rail.tx.send_packets(&self.packet, count)
    }

    /// Copies what the next packet brought, as a receive of a socket does; returns how many bytes it has
    /// behind its headers, if one has come.
    #[inline]
    pub fn take(&mut self, into: &mut [u8]) -> Option<usize> {
        self.rail.rx.queues.take_packet(self.headers, into)
    }
}
