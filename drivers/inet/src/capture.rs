//! Captures every sent and received frame as pcapng, with the headers that it has on the wire.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_fabric::clock::Clock;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::pcapng::{Direction, Interface, Packet, Wrap, Writer};

use crate::peer_numbers::put_peer;

/// The pcapng writer of a capture.
pub type CaptureWriter = Writer<Box<dyn Write + Send>>;

struct Shared {
    /// `None` once the capture has ended.
    writer: Option<CaptureWriter>,
    interface: Interface,
    clock: Clock,
    own: [SocketAddr; 2],
    peers: Vec<[SocketAddr; 2]>,
}

/// One half's handle to the rail's capture; the sending and the receiving half write through one each.
#[derive(Clone)]
pub struct Tap(Arc<Mutex<Shared>>);

impl std::fmt::Debug for Tap {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Tap")
    }
}

/// The remote end of a frame.
#[derive(Clone, Copy)]
pub enum RemoteEnd {
    /// A peer of the rail, by its index.
    Peer(u32),
    /// A sender that has not been opened, with its address if the kernel gave one.
    Unknown(Option<SocketAddr>),
}

impl Tap {
    /// Starts a capture of the rail `name` with the description `about`, between its `own` addresses and
    /// those of its `peers`.
    pub fn new(
        mut writer: CaptureWriter,
        clock: Clock,
        (name, about): (&str, &str),
        own: [SocketAddr; 2],
        peers: impl Iterator<Item = [SocketAddr; 2]>,
    ) -> Self {
        let interface = writer.interface(name, about);
        Self(Arc::new(Mutex::new(Shared {
            writer: Some(writer),
            interface,
            clock,
            own,
            peers: peers.collect(),
        })))
    }

    /// A panic elsewhere does no harm to a capture: each packet is written whole or not at all.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a peer's addresses, in the place of a forgotten one where it has its number.
    pub fn add_peer(&self, peer: u32, addresses: [SocketAddr; 2]) {
        put_peer(&mut self.shared().peers, peer, addresses);
    }

    /// Writes one frame.
    #[cold]
    pub fn frame(&self, direction: Direction, channel: usize, other: RemoteEnd, bytes: &[u8]) {
        let mut shared = self.shared();
        let shared = &mut *shared;
        let other = match other {
            RemoteEnd::Peer(peer) => shared
                .peers
                .get(peer as usize)
                .map(|addresses| addresses[channel]),
            RemoteEnd::Unknown(address) => address,
        };
        let (own, Some(other)) = (shared.own[channel], other) else {
            return;
        };
        let (from, to) = if direction == Direction::Out {
            (own, other)
        } else {
            (other, own)
        };
        if let Some(writer) = &mut shared.writer {
            writer.packet(&Packet {
                interface: shared.interface,
                at: shared.clock.now(),
                direction,
                wrap: Wrap::Udp { from, to },
                bytes: &[SharedBytes::of(bytes)],
                id: 0,
                comments: &[],
            });
        }
    }

    /// Ends the capture, flushes it and returns the writer.
    pub fn end(&self) -> Option<CaptureWriter> {
        let mut writer = self.shared().writer.take()?;
        writer.flush();
        Some(writer)
    }
}
