//! The receiving half: how sockets are read.
//!
//! A single frame is received with `recvmsg`; after two in a row the next polls use `recvmmsg` for as many as
//! there is room for, and frames beyond one poll's budget are shown by the next ones. The kernel may deliver
//! a whole run of frames in one buffer (`UDP_GRO`). `poll_schedule` decides which sockets are polled.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::datagram::{Channel, Frame, Receive};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_fabric::pcapng::Direction;
use doorbell_inet::{RemoteEnd, Tap};
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::buffers::{Inbox, UdpKept};
use crate::config::UdpConfig;
use crate::poll_schedule::{Gro, PollSchedule, UNKNOWN_PEER};
use crate::stats::UdpStats;
use crate::sys::{self, Received, Receiver};
use crate::tx::REFUSALS_MAX;

/// Consecutive full receives after which batches are used.
const BATCH_AFTER: u32 = 2;
/// The receiving half of a [`UdpRail`](crate::UdpRail).
pub struct UdpRx {
    inboxes: [Inbox; 2],
    schedule: PollSchedule,
    names: FxHashMap<(IpAddr, u16), u32>,
    receiver: Receiver,
    limit: usize,
    pub(crate) stats: UdpStats,
    /// Peers that answered with an ICMP error since the last `progress`.
    pub(crate) refusals: Vec<u32>,
    /// Suspected peers without a socket of their own, and whether they have sent something since.
    suspects: Vec<(u32, bool)>,
    /// Path MTU in bytes of peers without a socket of their own, as routers reported.
    paths: FxHashMap<u32, usize>,
    pub(crate) tap: Option<Tap>,
}

impl UdpRx {
    pub(crate) fn new(link: &OwnedFd, limit: usize, gro: bool, config: &UdpConfig) -> Result<Self, Errno> {
        // A merged run is at most as long as the longest datagram. The other end's frames may be longer than
        // ours; what fits the buffers is accepted.
        let limit = if gro { limit.max(1 << 16) } else { limit };
        let sizes = [limit; 2];
        Ok(Self {
            inboxes: sizes.map(|size| Inbox::new(config.batch, size, config.spare)),
            schedule: PollSchedule::new(link)?,
            names: FxHashMap::default(),
            receiver: Receiver::new(),
            limit,
            stats: UdpStats::default(),
            refusals: Vec::with_capacity(REFUSALS_MAX),
            suspects: Vec::new(),
            paths: FxHashMap::default(),
            tap: None,
        })
    }

    /// Adds a socket of `channel`, connected to `peer` or unconnected.
    pub(crate) fn add(
        &mut self,
        fd: Arc<OwnedFd>,
        peer: u32,
        channel: usize,
        gro: bool,
    ) -> Result<(), Errno> {
        self.schedule.add(fd, peer, channel, gro)
    }

    /// Assigns frames from `address` to `peer`.
    pub(crate) fn add_peer(&mut self, address: SocketAddr, peer: u32) {
        self.names.insert((address.ip(), address.port()), peer);
    }

    /// Closes the sockets that are connected to a peer, and forgets what is known of it.
    pub(crate) fn forget(&mut self, addresses: [SocketAddr; 2], peer: u32) {
        for address in addresses {
            if self.peer_at(address) == Some(peer) {
                self.names.remove(&(address.ip(), address.port()));
            }
        }
        self.schedule.remove(peer);
        self.refusals.retain(|refused| *refused != peer);
        self.suspects.retain(|(suspect, _)| *suspect != peer);
        self.paths.remove(&peer);
    }

    /// Looks up the peer with this address.
    pub(crate) fn peer_at(&self, address: SocketAddr) -> Option<u32> {
        self.names.get(&(address.ip(), address.port())).copied()
    }

    /// The epoll set, readable after [`UdpRx::sleep`] when there is something to do.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.schedule.epoll()
    }

    /// Prepares to sleep; returns whether something is pending, in the kernel or received and not shown.
    pub(crate) fn sleep(&mut self) -> Result<bool, Errno> {
        self.schedule.watch_all()?;
        let waits = self.inboxes.iter().any(Inbox::has_more) || self.schedule.sweep() > 0;
        if self.schedule.errors {
            self.read_errors();
        }
        Ok(waits)
    }

    /// Whether the link monitor has notifications since they were last read.
    pub(crate) fn link_changed(&self) -> bool {
        self.schedule.link_changed
    }

    pub(crate) fn link_was_read(&mut self) {
        self.schedule.link_changed = false;
    }

    /// Starts to watch whether `peer` sends anything.
    pub(crate) fn suspect(&mut self, peer: u32) {
        let mut own = self
            .schedule
            .sockets
            .iter_mut()
            .filter(|socket| socket.peer == peer)
            .peekable();
        if own.peek().is_none() {
            self.suspects.push((peer, false));
        }
        own.for_each(|socket| socket.heard = false);
    }

    /// Whether `peer` has sent anything since it was suspected.
    pub(crate) fn heard(&mut self, peer: u32) -> bool {
        let own = self
            .schedule
            .sockets
            .iter()
            .any(|socket| socket.peer == peer && socket.heard);
        let shared = self.suspects.contains(&(peer, true));
        if own || shared {
            self.suspects.retain(|&(suspect, _)| suspect != peer);
        }
        own || shared
    }

    /// The path MTU that a router reported for a peer without a socket of its own.
    pub(crate) fn path(&self, peer: u32) -> Option<usize> {
        self.paths.get(&peer).copied()
    }

    /// Frames that the kernel dropped because receive buffers were full.
    pub(crate) fn kernel_drops(&self) -> u64 {
        let sockets = self.schedule.sockets.iter();
        sockets.map(|socket| sys::kernel_drops(socket.fd.as_fd())).sum()
    }

    /// Receives from the sockets of `channel` that may be readable, until `budget` frames are queued.
    #[inline]
    fn fill(&mut self, channel: usize, budget: usize) {
        let all = self.schedule.begin_poll(channel);
        if self.schedule.errors {
            self.read_errors();
        }
        // A socket that cools meanwhile shortens the list: the next poll reads the one that is missed.
        for n in 0..all {
            if self.inboxes[channel].waiting() >= budget {
                return;
            }
            if let Some(index) = self.schedule.pick(channel, n, all) {
                self.receive(index);
            }
        }
    }

    /// Receives from one socket with one system call.
    #[inline]
    fn receive(&mut self, index: usize) {
        let socket = &self.schedule.sockets[index];
        let (peer, channel) = (socket.peer, socket.channel);
        let inbox = &mut self.inboxes[channel];
        // Frames beyond this poll's budget are shown by the next polls, without a system call.
        let room = inbox.room();
        let wanted = if socket.full < BATCH_AFTER {
            room.min(1)
        } else {
            room
        };
        if wanted == 0 {
            return;
        }
        let merged = matches!(socket.merging, Gro::On | Gro::Ending);
        let mut frames = 0;
        let outcome = if wanted == 1 && peer != UNKNOWN_PEER && !merged {
            let Some(buffer) = inbox.buffers(1).next() else {
                return;
            };
            let size = buffer.len();
            rustix::net::recv(&socket.fd, buffer, RecvFlags::TRUNC)
                .map(|(_, length)| {
                    let cut = length > size;
                    frames = self.take(
                        channel,
                        Received {
                            length,
                            segment: 0,
                            cut,
                        },
                        RemoteEnd::Peer(peer),
                    );
                    1
                })
                .map_err(io::Error::from)
        } else {
            let what = (peer == UNKNOWN_PEER, merged);
            let got = self
                .receiver
                .receive(socket.fd.as_fd(), inbox.buffers(wanted), what);
            got.inspect(|&got| {
                for i in 0..got {
                    let shared = peer == UNKNOWN_PEER;
                    let from = if shared {
                        self.sender(i)
                    } else {
                        RemoteEnd::Peer(peer)
                    };
                    let of_this = self.take(channel, self.receiver.received(i), from);
                    frames += of_this;
                    if shared && matches!(from, RemoteEnd::Peer(_)) {
                        self.stats.received_shared += of_this;
                    }
                }
            })
        };
        match outcome {
            Ok(got) => {
                self.stats.receive_calls += 1;
                self.schedule.received_from(index, got == wanted || got > 1);
                if peer != UNKNOWN_PEER {
                    self.schedule.adapt(index, frames);
                }
            }
            Err(error) => {
                self.schedule.nothing(index);
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.failed(peer, &error);
                }
            }
        }
    }

    /// The sender of the `i`th message received on a socket of the rail's own.
    fn sender(&mut self, i: usize) -> RemoteEnd {
        let sender = self.receiver.sender(i);
        let known = sender.and_then(|from| self.peer_at(from));
        let Some(peer) = known else {
            return RemoteEnd::Unknown(sender);
        };
        if let Some(suspect) = self.suspects.iter_mut().find(|suspect| suspect.0 == peer) {
            suspect.1 = true;
        }
        RemoteEnd::Peer(peer)
    }

    /// Records the contents of the next buffer (nothing, one frame, or a run) and returns the number of
    /// frames.
    #[inline]
    fn take(&mut self, channel: usize, one: Received, from: RemoteEnd) -> u64 {
        let inbox = &mut self.inboxes[channel];
        let segment = if one.segment == 0 { one.length } else { one.segment };
        if one.cut || segment > self.limit {
            self.stats.too_long += 1;
            inbox.skip();
            return 0;
        }
        let peer = match from {
            RemoteEnd::Peer(peer) => peer,
            RemoteEnd::Unknown(_) => UNKNOWN_PEER,
        };
        let frames = inbox.fill(one.length, segment, peer);
        self.stats.received += frames;
        self.stats.received_runs += u64::from(frames > 1);
        if peer == UNKNOWN_PEER {
            self.stats.strangers += frames;
        }
        if let Some(tap) = &self.tap {
            inbox
                .newest(frames as usize)
                .for_each(|bytes| tap.frame(Direction::In, channel, from, bytes));
        }
        frames
    }

    /// Handles an error that the kernel queued on the socket; receiving it clears it. Nothing of ours fails
    /// by it.
    #[cold]
    fn failed(&mut self, peer: u32, error: &io::Error) {
        if peer == UNKNOWN_PEER {
            self.read_errors();
            return;
        }
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => self.refused(peer),
            Some(libc::EMSGSIZE) => self.stats.path_answers += 1,
            _ => {}
        }
    }

    fn refused(&mut self, peer: u32) {
        self.stats.refused += 1;
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push(peer);
        }
    }

    /// Reads the ICMP errors of frames sent over the rail's own sockets.
    #[cold]
    fn read_errors(&mut self) {
        self.schedule.errors = false;
        let own = self
            .schedule
            .sockets
            .iter()
            .filter(|socket| socket.peer == UNKNOWN_PEER);
        let own: Vec<Arc<OwnedFd>> = own.map(|socket| Arc::clone(&socket.fd)).collect();
        for socket in own {
            // Bounded: the next call reads the rest.
            let mut answers = (0..64).map_while(|_| sys::icmp_error(socket.as_fd()).ok());
            answers.by_ref().for_each(|answer| {
                let peer = answer.to.and_then(|to| self.peer_at(to));
                match (answer.errno, peer) {
                    (libc::ECONNREFUSED, Some(peer)) => self.refused(peer),
                    (libc::EMSGSIZE, peer) => {
                        self.stats.path_answers += u64::from(!answer.local);
                        self.paths.extend(peer.map(|peer| (peer, answer.mtu)));
                    }
                    _ => {}
                }
            });
        }
    }

    /// Closes the sockets.
    pub(crate) fn release(&mut self) {
        self.schedule.release();
        self.names.clear();
        self.suspects.clear();
    }
}

impl Receive for UdpRx {
    type Kept = UdpKept;

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let at = channel.index();
        if !self.inboxes[at].end_poll() && budget > 0 {
            self.fill(at, budget);
        }
        self.inboxes[at].show(budget)
    }

    #[cold]
    fn look_everywhere(&mut self) {
        self.schedule.sweep();
    }

    #[inline]
    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let (bytes, from) = self.inboxes[channel.index()].frame(i)?;
        Some(Frame {
            from: (from != UNKNOWN_PEER).then_some(PeerIndex(from)),
            bytes: SharedBytes::of(bytes),
        })
    }

    fn keep(&mut self, channel: Channel, i: usize) -> Result<UdpKept, Refused> {
        self.inboxes[channel.index()].keep(i)
    }
}
