//! The sending half: frames are queued contiguously until the doorbell; then each run of them is one message.
//!
//! ```text
//!   post ─► │ 64 B │ 64 B │ 64 B │ 20 B │ 1472 B │ 1472 B │ …   one piece of memory per channel
//!   doorbell  └── one UDP_SEGMENT message ──┘ └─── another ───┘  one sendmmsg per peer; a single frame: send
//! ```
//!
//! The kernel copies, so frames are reaped when the call returns.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::datagram::{Channel, FrameId, Run, Transmit};
use doorbell_fabric::message::{Body, PeerIndex, Refused};
use doorbell_fabric::pcapng;
use doorbell_inet::{RemoteEnd, Tap};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::config::{RUN_BYTES, UdpConfig};
use crate::refused::RefusedPaths;
use crate::stats::UdpStats;
use crate::sys::{BATCH_MAX, Name, Outbound, Sender};

/// Most frames of one `UDP_SEGMENT` message, on every kernel that has it (64 before Linux 6.9, then 128).
const RUN_MAX: usize = 64;

/// Frames of a run above which it leaves in two messages at least: 32 KiB, at an MTU of 1500.
const HALF: usize = 23;

/// Most parts of a gathered body.
pub(crate) const PARTS_MAX: usize = 64;

/// Most refusals queued for `progress`.
pub(crate) const REFUSALS_MAX: usize = 64;

/// A peer's socket addresses and sockets, for each channel.
pub(crate) struct PeerPath {
    pub(crate) names: [Name; 2],
    /// Its connected sockets, if it has some.
    pub(crate) sockets: Option<[Arc<OwnedFd>; 2]>,
}

impl PeerPath {
    /// Its addresses, for display.
    pub(crate) fn addresses(&self) -> [SocketAddr; 2] {
        // Each name was made from an address, so it converts back.
        self.names
            .map(|name| name.get().unwrap_or_else(|| SocketAddr::from(([0; 4], 0))))
    }

    /// Whether `address` is its priority channel's.
    pub(crate) fn starts_at(&self, address: SocketAddr) -> bool {
        self.names[0] == Name::of(address)
    }
}

/// The sending half of a [`UdpRail`](crate::UdpRail).
pub struct UdpTx {
    pub(crate) paths: Vec<PeerPath>,
    /// The few peers to which runs are not sent in one piece.
    pub(crate) singles: Vec<u32>,
    pub(crate) own: Option<[Arc<OwnedFd>; 2]>,
    queues: [Queue; 2],
    sender: Sender,
    limit: usize,
    gso: bool,
    pub(crate) stats: UdpStats,
    /// Peers that answered with an ICMP error since the last `progress`.
    pub(crate) refusals: Vec<u32>,
    /// Peers to which the kernel refuses to send.
    pub(crate) refused: RefusedPaths,
    /// The first frame failed once, perhaps because of an ICMP error of an earlier one.
    retried: bool,
    pub(crate) tap: Option<Tap>,
}

struct PostedFrame {
    peer: u32,
    length: u32,
}

/// Frames posted on one channel and not sent yet. Memory and list restart from the front when all are sent.
struct Queue {
    memory: Box<[u8]>,
    posts: Vec<PostedFrame>,
    places: usize,
    /// Index of the first frame that is not sent, and its offset in memory.
    first: usize,
    first_at: usize,
    /// Offset of the next frame.
    end: usize,
    /// Frames before this index may be sent: their doorbell was rung.
    rung: usize,
    room: usize,
    posted: u64,
}

impl Queue {
    fn new(places: usize, limit: usize) -> Self {
        Self {
            memory: vec![0; places * limit].into(),
            posts: Vec::with_capacity(places),
            places,
            first: 0,
            first_at: 0,
            end: 0,
            rung: 0,
            room: 0,
            posted: 0,
        }
    }

    #[inline]
    fn reaped(&self) -> u64 {
        self.posted - (self.posts.len() - self.first) as u64
    }

    /// Removes the first `n` frames.
    #[inline]
    fn pop(&mut self, n: usize) {
        let gone = &self.posts[self.first..self.first + n];
        self.first_at += gone.iter().map(|post| post.length as usize).sum::<usize>();
        self.first += n;
        if self.first == self.posts.len() {
            self.posts.clear();
            (self.first, self.first_at, self.end, self.rung) = (0, 0, 0, 0);
        }
    }

    /// The frames that may be sent, and their bytes.
    #[inline]
    fn waiting(&self) -> (&[PostedFrame], &[u8]) {
        (
            &self.posts[self.first..self.rung],
            &self.memory[self.first_at..self.end],
        )
    }

    /// Writes the first `n` frames to a capture.
    #[cold]
    fn show(&self, n: usize, channel: usize, tap: &Tap) {
        let (posts, mut bytes) = self.waiting();
        for post in &posts[..n] {
            let (frame, rest) = bytes.split_at(post.length as usize);
            tap.frame(pcapng::Direction::Out, channel, RemoteEnd::Peer(post.peer), frame);
            bytes = rest;
        }
    }

    #[inline]
    fn is_backed_up(&self) -> bool {
        self.rung > self.first
    }
}

/// Returns how many of `n` frames of a run one message takes, which takes `most` at most: equal pieces, and
/// two of what is long enough, so that the peer copies the first while we copy the second. More would cost
/// more than that saves.
fn piece(n: usize, most: usize) -> usize {
    let pieces = n.div_ceil(most.max(1)).max(n.div_ceil(HALF).min(2)).max(1);
    n.div_ceil(pieces)
}

/// Returns how many frames from the first on form one message: of one size, only the last may be shorter.
fn run(posts: &[PostedFrame], segments: bool) -> usize {
    let (peer, size) = (posts[0].peer, posts[0].length);
    if !segments || size == 0 {
        return 1;
    }
    let most = RUN_MAX.min(RUN_BYTES / size as usize).max(1);
    let like = |post: &&PostedFrame| post.peer == peer && post.length == size;
    let n = posts.iter().take(most).take_while(like).count();
    let tail = |post: &PostedFrame| post.peer == peer && post.length < size && post.length > 0;
    n + usize::from(n < most && posts.get(n).is_some_and(tail))
}

impl UdpTx {
    pub(crate) fn new(own: [Arc<OwnedFd>; 2], limit: usize, gso: bool, config: &UdpConfig) -> Self {
        Self {
            paths: Vec::new(),
            singles: Vec::new(),
            own: Some(own),
            queues: [config.priority_ring, config.data_ring].map(|places| Queue::new(places, limit)),
            sender: Sender::new(),
            limit,
            gso,
            stats: UdpStats::default(),
            refusals: Vec::with_capacity(REFUSALS_MAX),
            refused: RefusedPaths::default(),
            retried: false,
            tap: None,
        }
    }

    /// Sends the frames that may be sent; returns how many.
    pub(crate) fn flush(&mut self) -> usize {
        let before = self.stats.sent;
        self.flush_channel(0);
        self.flush_channel(1);
        (self.stats.sent - before) as usize
    }

    #[inline]
    fn flush_channel(&mut self, channel: usize) {
        let mut segments = self.gso;
        while self.queues[channel].is_backed_up() {
            let (posts, _) = self.queues[channel].waiting();
            let peer = posts[0].peer;
            let alone = posts.len() == 1 || posts[1].peer != posts[0].peer;
            let outcome = if alone {
                self.send_one(channel)
            } else {
                let runs = segments && !self.singles.contains(&peer);
                self.send_many(channel, runs)
            };
            match outcome {
                Ok(frames) => {
                    if let Some(tap) = &self.tap {
                        self.queues[channel].show(frames, channel, tap);
                    }
                    self.queues[channel].pop(frames);
                    self.refused.clear(peer, channel);
                    self.retried = false;
                    self.stats.sent += frames as u64;
                    self.stats.send_calls += 1;
                }
                Err((error, ran)) => {
                    if !self.failed(channel, &error, ran, &mut segments) {
                        return;
                    }
                }
            }
        }
    }

    /// Sends one frame with the cheapest system call.
    #[inline]
    fn send_one(&mut self, channel: usize) -> Result<usize, (io::Error, bool)> {
        let queue = &self.queues[channel];
        let (posts, bytes) = queue.waiting();
        let bytes = &bytes[..posts[0].length as usize];
        let path = &self.paths[posts[0].peer as usize];
        match &path.sockets {
            Some(sockets) => rustix::net::send(&sockets[channel], bytes, SendFlags::empty())
                .map(|_| 1)
                .map_err(|errno| (errno.into(), false)),
            None => {
                let one = std::iter::once(Outbound { bytes, segment: 0 });
                let own = self.own.as_ref().map(|own| own[channel].as_fd());
                let sent = own.map_or(Ok(1), |own| {
                    self.sender.send(own, Some(&path.names[channel]), one)
                });
                sent.map_err(|error| (error, false))
            }
        }
    }

    /// Sends all leading frames to the same peer in as few messages as possible. An error includes whether
    /// the first message was a run.
    fn send_many(&mut self, channel: usize, segments: bool) -> Result<usize, (io::Error, bool)> {
        let queue = &self.queues[channel];
        let (posts, bytes) = queue.waiting();
        let peer = posts[0].peer;
        let path = &self.paths[peer as usize];
        let (fd, to): (BorrowedFd<'_>, Option<&Name>) = match (&path.sockets, &self.own) {
            (Some(sockets), _) => (sockets[channel].as_fd(), None),
            (None, Some(own)) => (own[channel].as_fd(), Some(&path.names[channel])),
            (None, None) => return Ok(posts.len()),
        };
        let mut taken = [0u8; BATCH_MAX];
        let (mut at, mut from) = (0, 0);
        let messages = taken.iter_mut().map_while(|taken| {
            let rest = posts
                .get(at..)
                .filter(|rest| rest.first().is_some_and(|post| post.peer == peer))?;
            let n = run(rest, segments);
            let length: usize = rest[..n].iter().map(|post| post.length as usize).sum();
            let message = Outbound {
                bytes: &bytes[from..from + length],
                segment: if n > 1 { rest[0].length as u16 } else { 0 },
            };
            (at, from) = (at + n, from + length);
            *taken = n as u8;
            Some(message)
        });
        let outcome = self.sender.send(fd, to, messages);
        match outcome {
            Ok(sent) => {
                let taken = &taken[..sent];
                self.stats.sent_runs += taken.iter().filter(|&&n| n > 1).count() as u64;
                Ok(taken.iter().map(|&n| usize::from(n)).sum())
            }
            Err(error) => Err((error, taken[0] > 1)),
        }
    }

    /// Sends as much of a run as the kernel takes, out of the memory that it is in, where nothing waits
    /// before it; returns how many frames.
    fn send_run(&mut self, channel: usize, peer: u32, run: &Run<'_>) -> usize {
        let most = piece(run.len(), RUN_MAX.min(RUN_BYTES / run.size().max(1)));
        let waits = self.queues[channel].first < self.queues[channel].posts.len();
        if waits || !self.gso || most < 2 || self.tap.is_some() || self.singles.contains(&peer) {
            return 0;
        }
        let path = &self.paths[peer as usize];
        let (fd, to): (BorrowedFd<'_>, Option<&Name>) = match (&path.sockets, &self.own) {
            (Some(sockets), _) => (sockets[channel].as_fd(), None),
            (None, Some(own)) => (own[channel].as_fd(), Some(&path.names[channel])),
            (None, None) => return 0,
        };
        let frames = match self.sender.send_run(fd, to, run, most) {
            Ok(frames) => frames,
            // The frames are queued then, and what goes on is found when they leave. But the kernel reports
            // an ICMP error once.
            Err(error) => {
                let answered = error.raw_os_error() == Some(Errno::CONNREFUSED.raw_os_error());
                if answered && path.sockets.is_some() {
                    self.note_refusal(peer);
                }
                return 0;
            }
        };
        self.stats.sent += frames as u64;
        self.stats.send_calls += 1;
        self.stats.sent_runs += (frames / most + usize::from(frames % most > 1)) as u64;
        self.refused.clear(peer, channel);
        self.retried = false;
        frames
    }

    /// Handles a failed call for the first message (`ran`: it was a run of frames). Returns whether to
    /// continue.
    #[cold]
    fn failed(&mut self, channel: usize, error: &io::Error, ran: bool, segments: &mut bool) -> bool {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => return true,
            Some(Errno::AGAIN) => {
                self.stats.send_full += 1;
                return false;
            }
            // Perhaps an ICMP error of an earlier frame, which the kernel reports once; then this one was not
            // sent yet.
            Some(errno @ (Errno::CONNREFUSED | Errno::MSGSIZE))
                if !(self.retried || ran && errno == Errno::MSGSIZE) =>
            {
                self.retried = true;
                let (posts, _) = self.queues[channel].waiting();
                let peer = posts[0].peer;
                // An error on the rail's own sockets may be of any peer: their error queue has the address.
                let known = self.paths[peer as usize].sockets.is_some();
                if known && errno == Errno::CONNREFUSED {
                    self.note_refusal(peer);
                }
                return true;
            }
            // The device cannot segment runs, or the path MTU is too small for this run: send each frame
            // alone.
            Some(errno @ (Errno::IO | Errno::INVAL | Errno::MSGSIZE)) if ran => {
                *segments = false;
                self.stats.runs_refused += 1;
                self.gso &= errno != Errno::IO;
                return true;
            }
            Some(Errno::MSGSIZE) => self.stats.above_path_mtu += 1,
            errno => {
                self.stats.unsendable += 1;
                let (posts, _) = self.queues[channel].waiting();
                if let Some(errno) = errno {
                    self.refused.note(posts[0].peer, channel, errno);
                }
            }
        }
        // Frames may be lost, and this one is: the next ones may have another destination.
        self.retried = false;
        self.queues[channel].pop(1);
        true
    }

    /// A peer answered with an ICMP error, which `progress` reports.
    #[cold]
    fn note_refusal(&mut self, peer: u32) {
        self.stats.refused += 1;
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push(peer);
        }
    }

    /// Whether frames that were posted for a peer have not left yet.
    pub(crate) fn has_posts_for(&self, peer: u32) -> bool {
        let waits = |queue: &Queue| queue.posts[queue.first..].iter().any(|post| post.peer == peer);
        self.queues.iter().any(waits)
    }

    /// Forgets what is known of a peer beside its path.
    pub(crate) fn forget(&mut self, peer: u32) {
        self.singles.retain(|single| *single != peer);
        self.refusals.retain(|refused| *refused != peer);
        (0..2).for_each(|channel| self.refused.clear(peer, channel));
    }

    /// Closes the sockets and drops the queued frames.
    pub(crate) fn release(&mut self) {
        for queue in &mut self.queues {
            self.stats.unsendable += (queue.posts.len() - queue.first) as u64;
            queue.pop(queue.posts.len() - queue.first);
            queue.room = 0;
        }
        self.paths.clear();
        self.singles.clear();
        self.own = None;
    }
}

impl Transmit for UdpTx {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        let at = channel.index();
        if self.queues[at].is_backed_up() {
            self.flush_channel(at);
        }
        let queue = &mut self.queues[at];
        queue.room = n.min(queue.places - queue.posts.len());
        queue.room
    }

    #[inline]
    fn post(
        &mut self,
        channel: Channel,
        peer: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<FrameId, Refused> {
        let length = head.len() + body.len();
        if length > self.limit || matches!(body, Body::Parts(parts) if parts.len() > PARTS_MAX) {
            return Err(Refused::TooLong);
        }
        if peer.index() >= self.paths.len() {
            return Err(Refused::PeerDown);
        }
        let queue = &mut self.queues[channel.index()];
        queue.room = queue.room.checked_sub(1).ok_or(Refused::Full)?;
        let (first, rest) = queue.memory[queue.end..queue.end + length].split_at_mut(head.len());
        first.copy_from_slice(head);
        body.copy_to(rest);
        queue.end += length;
        queue.posts.push(PostedFrame {
            peer: peer.0,
            length: length as u32,
        });
        queue.posted += 1;
        Ok(FrameId(queue.posted))
    }

    fn post_run(&mut self, channel: Channel, peer: PeerIndex, run: &Run<'_>) -> Result<FrameId, Refused> {
        let at = channel.index();
        if run.size() > self.limit {
            return Err(Refused::TooLong);
        }
        if peer.index() >= self.paths.len() {
            return Err(Refused::PeerDown);
        }
        if run.len() > self.queues[at].room {
            return Err(Refused::Full);
        }
        let sent = self.send_run(at, peer.0, run);
        let queue = &mut self.queues[at];
        queue.room -= sent;
        queue.posted += sent as u64;
        let mut last = FrameId(queue.posted);
        for i in sent..run.len() {
            let (head, body) = run.frame(i);
            last = self.post(channel, peer, head, Body::Shared(body))?;
        }
        Ok(last)
    }

    #[inline]
    fn doorbell(&mut self) {
        for channel in 0..2 {
            let queue = &mut self.queues[channel];
            queue.rung = queue.posts.len();
            if queue.rung > queue.first {
                self.flush_channel(channel);
            }
        }
    }

    #[inline]
    fn is_backed_up(&mut self) -> bool {
        self.queues.iter().any(Queue::is_backed_up)
    }

    #[inline]
    fn reaped(&mut self, channel: Channel) -> FrameId {
        let at = channel.index();
        if self.queues[at].is_backed_up() {
            self.flush_channel(at);
        }
        FrameId(self.queues[at].reaped())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_leaves_in_equal_pieces_and_in_two_where_it_is_long() {
        let cases = [
            (1, 1),
            (2, 2),
            (12, 12),
            (23, 23),
            (24, 12),
            (46, 23),
            (92, 31),
            (107, 36),
            (256, 43),
        ];
        for (n, expected) in cases {
            assert_eq!(piece(n, 44), expected, "{n}");
        }
        assert_eq!((piece(3, 1), piece(3, 2), piece(0, 44)), (1, 2, 0));
    }

    #[test]
    fn runs_are_of_one_peer_and_one_size_with_a_shorter_end() {
        let posts = |list: &[(u32, u32)]| -> Vec<PostedFrame> {
            list.iter()
                .map(|&(peer, length)| PostedFrame { peer, length })
                .collect()
        };
        let cases: [(&[(u32, u32)], usize); 8] = [
            (&[(0, 64)], 1),
            (&[(0, 64), (0, 64), (0, 20), (0, 20)], 3),
            (&[(0, 64), (0, 65)], 1),
            (&[(0, 64), (1, 64)], 1),
            (&[(0, 64), (1, 20)], 1),
            (&[(0, 64), (0, 0)], 1),
            (&[(0, 0), (0, 0)], 1),
            (&[(0, 40_000), (0, 20_000)], 1),
        ];
        for (list, expected) in cases {
            assert_eq!(run(&posts(list), true), expected, "{list:?}");
            assert_eq!(run(&posts(list), false), 1);
        }
        assert_eq!(run(&posts(&[(0, 64); 100]), true), RUN_MAX);
        assert_eq!(run(&posts(&[(0, 1472); 100]), true), RUN_BYTES / 1472);
    }
}
