//! The receiving half: which sockets are asked, how, and where the frames lie.
//!
//! An empty receive is a system call, and a rail has two sockets and two more for each active peer. So a socket that
//! gave something lately is *hot* and asked in every poll (at most two per channel); all are in one epoll set, which
//! is asked every 16th poll while something is hot, else every other one. A socket that stays empty cools down.
//!
//! A frame at a time is taken with `recv`; after two in a row the next polls use `recvmmsg`. On the data channel the
//! kernel may hand over a whole run of frames in one buffer (`UDP_GRO`).

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::datagram::{Channel, Frame, Receive};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{PeerIndex, Refused};
use rustc_hash::FxHashMap;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::buffers::{Inbox, UdpKept};
use crate::config::UdpConfig;
use crate::stats::UdpStats;
use crate::sys::{Received, Receiver};
use crate::tx::{REFUSALS_MAX, channel_index};

/// Hot sockets of one channel.
const HOT_MAX: usize = 2;
/// Empty receives after which a socket is not hot any more; and after which it makes room for another.
const COOL_AFTER: u32 = 1024;
const YIELD_AFTER: u32 = 64;
/// The epoll set is asked in every `SWEEP_BUSY`th poll while something is hot, else in every `SWEEP_IDLE`th.
const SWEEP_BUSY: u32 = 16;
const SWEEP_IDLE: u32 = 2;
/// Full receives in a row after which a batch is asked for.
const BATCH_AFTER: u32 = 2;
/// Sockets that one look at the epoll set can name.
const EVENTS: usize = 16;
/// The token of the socket that announces changes of links.
pub(crate) const LINK: u64 = u64::MAX;

/// "No peer", in a frame's record.
pub(crate) const NOBODY: u32 = u32::MAX;

struct Socket {
    fd: Arc<OwnedFd>,
    /// Whom it is connected to, or [`NOBODY`].
    peer: u32,
    channel: usize,
    gro: bool,
    /// Empty receives since it last gave something.
    empty: u32,
    /// Receives in a row that gave all that was asked for.
    full: u32,
    /// It gave something since `progress` last asked.
    heard: bool,
}

/// The receiving half of a [`UdpRail`](crate::UdpRail).
pub struct UdpRx {
    inboxes: [Inbox; 2],
    sockets: Vec<Socket>,
    hot: [Vec<u32>; 2],
    /// Sockets that have something and are not hot.
    ready: [Vec<u32>; 2],
    names: FxHashMap<(IpAddr, u16), u32>,
    epoll: OwnedFd,
    receiver: Receiver,
    limit: usize,
    polls: u32,
    pub(crate) link_changed: bool,
    pub(crate) stats: UdpStats,
    pub(crate) refusals: Vec<u32>,
}

impl UdpRx {
    pub(crate) fn new(link: &OwnedFd, limit: usize, gro: bool, config: &UdpConfig) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            link,
            epoll::EventData::new_u64(LINK),
            epoll::EventFlags::IN,
        )?;
        // A run that the kernel merged is at most as long as the longest datagram.
        let sizes = [limit, if gro { limit.max(1 << 16) } else { limit }];
        Ok(Self {
            inboxes: sizes.map(|size| Inbox::new(config.batch, size, config.spare)),
            sockets: Vec::new(),
            hot: [(); 2].map(|()| Vec::with_capacity(HOT_MAX)),
            ready: [(); 2].map(|()| Vec::with_capacity(EVENTS)),
            names: FxHashMap::default(),
            epoll,
            receiver: Receiver::new(),
            limit,
            polls: 0,
            link_changed: false,
            stats: UdpStats::default(),
            refusals: Vec::with_capacity(REFUSALS_MAX),
        })
    }

    /// Adds one more socket of `channel`, connected to `peer` or to nobody.
    pub(crate) fn add(
        &mut self,
        fd: Arc<OwnedFd>,
        peer: u32,
        channel: usize,
        gro: bool,
    ) -> Result<(), Errno> {
        let token = epoll::EventData::new_u64(self.sockets.len() as u64);
        epoll::add(&self.epoll, &*fd, token, epoll::EventFlags::IN)?;
        self.sockets.push(Socket {
            fd,
            peer,
            channel,
            gro,
            empty: 0,
            full: 0,
            heard: false,
        });
        Ok(())
    }

    /// Frames from `address` are of `peer`.
    pub(crate) fn name(&mut self, address: SocketAddr, peer: u32) {
        self.names.insert((address.ip(), address.port()), peer);
    }

    /// The peer with this address.
    pub(crate) fn named(&self, address: SocketAddr) -> Option<u32> {
        self.names.get(&(address.ip(), address.port())).copied()
    }

    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Whether something waits: in the kernel, or received and not shown.
    pub(crate) fn has_work(&mut self) -> bool {
        self.inboxes.iter().any(Inbox::has_more) || self.sweep() > 0
    }

    /// Whether `peer` was heard since this was last asked.
    pub(crate) fn heard(&mut self, peer: u32) -> bool {
        let own = self.sockets.iter_mut().filter(|socket| socket.peer == peer);
        own.fold(false, |heard, socket| heard | std::mem::take(&mut socket.heard))
    }

    /// Frames that the kernel dropped because our buffers were full.
    pub(crate) fn kernel_drops(&self) -> u64 {
        self.sockets
            .iter()
            .map(|socket| crate::sys::kernel_drops(socket.fd.as_fd()))
            .sum()
    }

    /// Asks the epoll set; returns how many sockets have something. Those become hot, or are asked once.
    fn sweep(&mut self) -> usize {
        self.ready.iter_mut().for_each(Vec::clear);
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        let Ok((found, _)) = epoll::wait(&self.epoll, &mut room, Some(&now)) else {
            return 0;
        };
        for event in &*found {
            let token = event.data.u64();
            if token == LINK {
                self.link_changed = true;
            } else {
                self.heat(token as u32);
            }
        }
        found.len()
    }

    fn heat(&mut self, index: u32) {
        let channel = self.sockets[index as usize].channel;
        let hot = &mut self.hot[channel];
        if hot.contains(&index) {
            return;
        }
        if hot.len() < HOT_MAX {
            hot.push(index);
        } else if let Some(place) = hot
            .iter_mut()
            .find(|hot| self.sockets[**hot as usize].empty > YIELD_AFTER)
        {
            *place = index;
        } else {
            self.ready[channel].push(index);
            return;
        }
        self.sockets[index as usize].empty = 0;
    }

    /// Asks the sockets of `channel` that may have something, until `budget` frames are there.
    #[inline]
    fn fill(&mut self, channel: usize, budget: usize) {
        self.polls = self.polls.wrapping_add(1);
        let idle = self.hot.iter().all(Vec::is_empty);
        let every = if idle { SWEEP_IDLE } else { SWEEP_BUSY };
        // While more sockets are busy than can be hot, they are looked for every time.
        if self.polls.is_multiple_of(every) || !self.ready[channel].is_empty() {
            self.sweep();
        }
        let hot = self.hot[channel].len();
        for turn in 0..hot {
            if self.inboxes[channel].waiting() >= budget {
                return;
            }
            let place = (turn + self.polls as usize) % hot;
            let index = self.hot[channel][place];
            self.receive(index as usize, budget);
        }
        for at in 0..self.ready[channel].len() {
            if self.inboxes[channel].waiting() >= budget {
                return;
            }
            let index = self.ready[channel][at];
            self.receive(index as usize, budget);
        }
        self.cool(channel);
    }

    #[inline]
    fn cool(&mut self, channel: usize) {
        let sockets = &self.sockets;
        self.hot[channel].retain(|&index| sockets[index as usize].empty < COOL_AFTER);
    }

    /// One system call on one socket.
    #[inline]
    fn receive(&mut self, index: usize, budget: usize) {
        let socket = &mut self.sockets[index];
        let inbox = &mut self.inboxes[socket.channel];
        let wanted = if socket.full < BATCH_AFTER {
            1
        } else {
            budget - inbox.waiting()
        };
        let wanted = wanted.min(inbox.room());
        if wanted == 0 {
            return;
        }
        let outcome = if wanted == 1 && socket.peer != NOBODY && !socket.gro {
            let Some(buffer) = inbox.buffers(1).next() else {
                return;
            };
            let size = buffer.len();
            rustix::net::recv(&socket.fd, buffer, RecvFlags::TRUNC)
                .map(|(_, length)| {
                    let cut = length > size;
                    let one = Received {
                        length,
                        segment: 0,
                        cut,
                    };
                    take(inbox, &mut self.stats, self.limit, one, socket.peer);
                    1
                })
                .map_err(io::Error::from)
        } else {
            let what = (socket.peer == NOBODY, socket.gro);
            let got = self
                .receiver
                .receive(socket.fd.as_fd(), inbox.buffers(wanted), what);
            got.inspect(|&got| {
                for i in 0..got {
                    let from = if socket.peer == NOBODY {
                        let sender = self.receiver.sender(i);
                        let known = sender.and_then(|from| self.names.get(&(from.ip(), from.port())));
                        known.copied().unwrap_or(NOBODY)
                    } else {
                        socket.peer
                    };
                    take(
                        inbox,
                        &mut self.stats,
                        self.limit,
                        self.receiver.received(i),
                        from,
                    );
                }
            })
        };
        match outcome {
            Ok(got) => {
                self.stats.receive_calls += 1;
                socket.empty = 0;
                socket.heard = true;
                socket.full = if got == wanted || got > 1 {
                    socket.full.saturating_add(1)
                } else {
                    0
                };
            }
            Err(error) => self.nothing(index, &error),
        }
    }

    #[inline]
    fn nothing(&mut self, index: usize, error: &io::Error) {
        let socket = &mut self.sockets[index];
        socket.full = 0;
        socket.empty = socket.empty.saturating_add(1);
        if error.kind() != io::ErrorKind::WouldBlock {
            self.refused(index, error);
        }
    }

    /// An error that the kernel kept for the socket; a receive tells it and forgets it. Nothing of ours ends by it.
    #[cold]
    fn refused(&mut self, index: usize, error: &io::Error) {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            self.stats.refused += 1;
            if self.refusals.len() < REFUSALS_MAX {
                self.refusals.push(self.sockets[index].peer);
            }
        }
    }

    /// Gives up the sockets.
    pub(crate) fn release(&mut self) {
        self.hot.iter_mut().chain(&mut self.ready).for_each(Vec::clear);
        self.sockets.clear();
        self.names.clear();
    }
}

/// Records what came in the next buffer: nothing, one frame, or a run.
#[inline]
fn take(inbox: &mut Inbox, stats: &mut UdpStats, limit: usize, one: Received, from: u32) {
    let segment = if one.segment == 0 { one.length } else { one.segment };
    if one.cut || segment > limit {
        stats.too_long += 1;
        inbox.skip();
        return;
    }
    let frames = inbox.fill(one.length, segment, from);
    stats.received += frames;
    stats.received_runs += u64::from(frames > 1);
    if from == NOBODY {
        stats.strangers += frames;
    }
}

impl Receive for UdpRx {
    type Kept = UdpKept;

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let at = channel_index(channel);
        if !self.inboxes[at].turn() && budget > 0 {
            self.fill(at, budget);
        }
        self.inboxes[at].show(budget)
    }

    #[inline]
    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let (bytes, from) = self.inboxes[channel_index(channel)].frame(i)?;
        Some(Frame {
            from: (from != NOBODY).then_some(PeerIndex(from)),
            bytes: SharedBytes::of(bytes),
        })
    }

    fn keep(&mut self, channel: Channel, i: usize) -> Result<UdpKept, Refused> {
        self.inboxes[channel_index(channel)].keep(i)
    }
}
