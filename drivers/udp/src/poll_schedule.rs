//! Decides which sockets are polled when.
//!
//! An empty receive is a system call, and a rail has two sockets and two more for each active peer. So a
//! socket that received something recently is *hot* and polled in every poll (at most two per channel). The
//! others wait in an epoll set, which is polled now and then: the sockets that it returns become hot or,
//! while others are hotter, *ready*, which are polled in turn with the hot ones, so that no busy peer starves
//! a quiet one.
//!
//! ```text
//!   in the epoll set ──named──► hot, in the set ──gave 64 times──► hot, out of the set
//!          ▲                        │ empty 1,024 times               │ empty 1,024 times, or the rail rests
//!          └────────────────────────┴─────────────────────────────────┘
//! ```
//!
//! A socket in the set costs its *sender* a call of the kernel's for every frame, about 7 % of a round trip
//! over the loopback; hence the third state.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::poll::timespec;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::sys;

/// Hot sockets of one channel.
const HOT_MAX: usize = 2;
/// Empty receives after which a socket is no longer hot, and after which it makes room for another one.
const COOL_AFTER: u32 = 1024;
const YIELD_AFTER: u32 = 64;
/// Successful receives after which a hot socket leaves the epoll set.
const LEAVE_AFTER: u32 = 64;
/// Consecutive receives of one frame after which GRO is turned off.
const SINGLES: u32 = 256;
/// The epoll set is polled in every `SWEEP_BUSY`th poll while a socket is hot, else in every `SWEEP_IDLE`th.
const SWEEP_BUSY: u32 = 64;
const SWEEP_IDLE: u32 = 2;
/// Most sockets that one poll of the epoll set returns.
const EVENTS: usize = 16;
/// The epoll token of the link monitor's socket.
const LINK: u64 = u64::MAX;

/// The peer index of frames from unknown senders.
pub(crate) const UNKNOWN_PEER: u32 = u32::MAX;

/// Whether the kernel merges consecutive frames (`UDP_GRO`). A merged run has its segment size in a control
/// message, and requesting that makes each receive slower by an eighth of a microsecond, also those that find
/// nothing, which are most of a ping-pong's. So a peer's socket merges only while its frames do arrive in
/// runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gro {
    /// Not supported or not configured.
    Never,
    Off,
    On,
    /// Turned off; runs merged earlier may still be queued.
    Ending,
}

/// A socket and its recent activity.
pub(crate) struct Socket {
    pub(crate) fd: Arc<OwnedFd>,
    /// The peer that it is connected to, or [`UNKNOWN_PEER`].
    pub(crate) peer: u32,
    pub(crate) channel: usize,
    pub(crate) merging: Gro,
    /// Consecutive receives that returned one frame.
    single: u32,
    /// Consecutive receives that returned as much as was requested.
    pub(crate) full: u32,
    /// It has received something since `progress` last cleared this.
    pub(crate) heard: bool,
    /// Empty receives since the last successful one; successful receives since it became hot.
    empty: u32,
    given: u32,
    /// It is in the epoll set.
    watched: bool,
}

/// All sockets of a rail.
pub(crate) struct PollSchedule {
    pub(crate) sockets: Vec<Socket>,
    hot: [Vec<u32>; 2],
    /// Sockets that are readable and not hot.
    ready: [Vec<u32>; 2],
    epoll: OwnedFd,
    polls: u32,
    turns: [u32; 2],
    /// The link monitor has notifications.
    pub(crate) link_changed: bool,
    /// A socket of the rail's own has errors in its queue.
    pub(crate) errors: bool,
}

impl PollSchedule {
    pub(crate) fn new(link: &OwnedFd) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let token = epoll::EventData::new_u64(LINK);
        epoll::add(&epoll, link, token, epoll::EventFlags::IN)?;
        Ok(Self {
            sockets: Vec::new(),
            hot: [(); 2].map(|()| Vec::with_capacity(HOT_MAX)),
            ready: [(); 2].map(|()| Vec::with_capacity(EVENTS)),
            epoll,
            polls: 0,
            turns: [0; 2],
            link_changed: false,
            errors: false,
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
        self.sockets.push(Socket {
            fd,
            peer,
            channel,
            // GRO was turned on when the socket was created.
            merging: if gro { Gro::On } else { Gro::Never },
            single: 0,
            full: 0,
            heard: false,
            empty: 0,
            given: 0,
            watched: false,
        });
        let added = self.watch(self.sockets.len() - 1);
        if added.is_err() {
            self.sockets.pop();
        }
        added
    }

    /// Removes the sockets that are connected to `peer`.
    pub(crate) fn remove(&mut self, peer: u32) {
        while let Some(index) = self.sockets.iter().position(|socket| socket.peer == peer) {
            self.remove_at(index);
        }
    }

    /// Removes one socket. The last one takes its place, in the epoll set too.
    fn remove_at(&mut self, index: usize) {
        let last = self.sockets.len() as u32 - 1;
        let gone = self.sockets.swap_remove(index);
        if gone.watched {
            epoll::delete(&self.epoll, &*gone.fd).ok();
        }
        for list in self.hot.iter_mut().chain(&mut self.ready) {
            list.retain(|at| *at != index as u32);
            list.iter_mut()
                .filter(|at| **at == last)
                .for_each(|at| *at = index as u32);
        }
        if self.sockets.get(index).is_some_and(|moved| moved.watched) {
            // The set holds it under its old number, and it cannot fail to hold it under another one.
            let token = epoll::EventData::new_u64(index as u64);
            epoll::modify(
                &self.epoll,
                &*self.sockets[index].fd,
                token,
                epoll::EventFlags::IN,
            )
            .ok();
        }
    }

    /// Puts all sockets back into the epoll set, before the rail sleeps.
    pub(crate) fn watch_all(&mut self) -> Result<(), Errno> {
        for channel in 0..self.hot.len() {
            for place in 0..self.hot[channel].len() {
                self.watch(self.hot[channel][place] as usize)?;
            }
        }
        Ok(())
    }

    /// The epoll set, readable after [`PollSchedule::watch_all`] when there is something to do.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Polls the epoll set; the sockets that it returns become hot or ready. Returns how many.
    pub(crate) fn sweep(&mut self) -> usize {
        self.ready.iter_mut().for_each(Vec::clear);
        let now = timespec(Duration::ZERO);
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        let Ok((found, _)) = epoll::wait(&self.epoll, &mut room, Some(&now)) else {
            return 0;
        };
        for event in &*found {
            let token = event.data.u64();
            if token == LINK {
                self.link_changed = true;
                continue;
            }
            self.make_hot(token as u32);
            let flags = event.flags;
            self.errors |=
                flags.contains(epoll::EventFlags::ERR) && self.sockets[token as usize].peer == UNKNOWN_PEER;
        }
        found.len()
    }

    /// Begins a poll of `channel`; returns how many sockets may have something.
    #[inline]
    pub(crate) fn begin_poll(&mut self, channel: usize) -> usize {
        self.polls = self.polls.wrapping_add(1);
        let idle = self.hot.iter().all(Vec::is_empty);
        let every = if idle { SWEEP_IDLE } else { SWEEP_BUSY };
        // While more sockets are busy than can be hot, every poll looks for them.
        if self.polls.is_multiple_of(every) || !self.ready[channel].is_empty() {
            self.sweep();
        }
        self.turns[channel] = self.turns[channel].wrapping_add(1);
        self.hot[channel].len() + self.ready[channel].len()
    }

    /// The `n`th of the `all` sockets that [`PollSchedule::begin_poll`] counted; each poll starts with
    /// another one.
    #[inline]
    pub(crate) fn pick(&self, channel: usize, n: usize, all: usize) -> Option<usize> {
        let place = if all == 1 {
            0
        } else {
            (n + self.turns[channel] as usize) % all
        };
        let (hot, ready) = (&self.hot[channel], &self.ready[channel]);
        let index = hot.get(place).or_else(|| ready.get(place - hot.len()));
        index.map(|&index| index as usize)
    }

    /// Records a successful receive; `full`: it returned as much as was requested.
    #[inline]
    pub(crate) fn received_from(&mut self, index: usize, full: bool) {
        let socket = &mut self.sockets[index];
        socket.heard = true;
        socket.empty = 0;
        socket.full = if full { socket.full.saturating_add(1) } else { 0 };
        socket.given = socket.given.saturating_add(1);
        if socket.given == LEAVE_AFTER {
            self.leave(index);
        }
    }

    /// Turns GRO on or off by the number of frames that one receive returned.
    #[inline]
    pub(crate) fn adapt(&mut self, index: usize, frames: u64) {
        let socket = &mut self.sockets[index];
        match socket.merging {
            Gro::On => {
                socket.single = if frames == 1 { socket.single + 1 } else { 0 };
                if socket.single == SINGLES {
                    self.merge(index, false);
                }
            }
            Gro::Off | Gro::Ending if frames > 1 => self.merge(index, true),
            _ => {}
        }
    }

    /// Turns merging on or off.
    #[cold]
    fn merge(&mut self, index: usize, on: bool) {
        let socket = &mut self.sockets[index];
        socket.single = 0;
        let told = sys::set_int(socket.fd.as_fd(), libc::SOL_UDP, libc::UDP_GRO, on.into());
        socket.merging = match (told, on) {
            (Ok(()), true) => Gro::On,
            (Ok(()), false) => Gro::Ending,
            // Unchanged, and not tried again.
            (Err(_), true) => Gro::Never,
            (Err(_), false) => Gro::On,
        };
    }

    /// Records an empty receive.
    #[inline]
    pub(crate) fn nothing(&mut self, index: usize) {
        let socket = &mut self.sockets[index];
        if socket.merging == Gro::Ending {
            socket.merging = Gro::Off;
        }
        socket.full = 0;
        socket.empty = socket.empty.saturating_add(1);
        if socket.empty >= COOL_AFTER {
            self.cool(index);
        }
    }

    /// Closes the sockets.
    pub(crate) fn release(&mut self) {
        self.hot.iter_mut().chain(&mut self.ready).for_each(Vec::clear);
        self.sockets.clear();
    }

    fn make_hot(&mut self, index: u32) {
        let channel = self.sockets[index as usize].channel;
        if self.hot[channel].contains(&index) {
            return;
        }
        if self.hot[channel].len() == HOT_MAX {
            let cooler = |hot: &&u32| self.sockets[**hot as usize].empty > YIELD_AFTER;
            if let Some(&other) = self.hot[channel].iter().find(cooler) {
                self.cool(other as usize);
            }
        }
        if self.hot[channel].len() < HOT_MAX {
            self.hot[channel].push(index);
            let socket = &mut self.sockets[index as usize];
            (socket.empty, socket.given) = (0, 0);
        } else {
            self.ready[channel].push(index);
        }
    }

    /// A hot socket that cannot be added to the epoll set again stays hot, else it would never be polled.
    #[cold]
    fn cool(&mut self, index: usize) {
        if self.watch(index).is_ok() {
            let channel = self.sockets[index].channel;
            self.hot[channel].retain(|&hot| hot as usize != index);
        }
    }

    /// Takes a busy socket out of the epoll set if it is hot and connected to a peer: errors of unconnected
    /// sockets are found through the set.
    #[cold]
    fn leave(&mut self, index: usize) {
        let socket = &mut self.sockets[index];
        let hot = self.hot[socket.channel].contains(&(index as u32));
        if hot
            && socket.watched
            && socket.peer != UNKNOWN_PEER
            && epoll::delete(&self.epoll, &*socket.fd).is_ok()
        {
            socket.watched = false;
        }
    }

    fn watch(&mut self, index: usize) -> Result<(), Errno> {
        let socket = &mut self.sockets[index];
        socket.given = 0;
        if !socket.watched {
            let token = epoll::EventData::new_u64(index as u64);
            epoll::add(&self.epoll, &*socket.fd, token, epoll::EventFlags::IN)?;
            socket.watched = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn socket() -> (Arc<OwnedFd>, UdpSocket) {
        let (ours, other) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        ours.set_nonblocking(true).unwrap();
        other.connect(ours.local_addr().unwrap()).unwrap();
        (Arc::new(ours.into()), other)
    }

    /// Polls channel 0 once, with one receive from each picked socket; returns those that received something.
    fn poll(schedule: &mut PollSchedule) -> Vec<usize> {
        let all = schedule.begin_poll(0);
        let picked: Vec<usize> = (0..all).filter_map(|n| schedule.pick(0, n, all)).collect();
        let mut gave = Vec::new();
        for index in picked {
            let socket = &schedule.sockets[index];
            if rustix::net::recv(&*socket.fd, &mut [0u8; 8], rustix::net::RecvFlags::empty()).is_ok() {
                schedule.received_from(index, false);
                gave.push(index);
            } else {
                schedule.nothing(index);
            }
        }
        gave
    }

    fn schedule(n: usize) -> (PollSchedule, Vec<UdpSocket>) {
        let (link, _) = socket();
        let mut schedule = PollSchedule::new(&link).unwrap();
        let others = (0..n as u32).map(|peer| {
            let (ours, other) = socket();
            schedule.add(ours, peer, 0, false).unwrap();
            other
        });
        let others = others.collect();
        // The epoll set keeps nothing alive: the link's socket was closed with its descriptor.
        (schedule, others)
    }

    #[test]
    fn a_busy_socket_leaves_the_set_and_comes_back_when_it_cools_or_the_rail_sleeps() {
        let (mut schedule, others) = schedule(1);
        let busy = |schedule: &mut PollSchedule| {
            for _ in 0..2 * LEAVE_AFTER {
                others[0].send(b"x").unwrap();
                while poll(schedule).is_empty() {}
            }
            assert!(!schedule.sockets[0].watched);
        };
        busy(&mut schedule);
        (0..COOL_AFTER).for_each(|_| assert!(poll(&mut schedule).is_empty()));
        assert!(schedule.sockets[0].watched && schedule.hot[0].is_empty());
        busy(&mut schedule);
        schedule.watch_all().unwrap();
        assert!(schedule.sockets[0].watched);
        others[0].send(b"x").unwrap();
        assert_eq!(schedule.sweep(), 1, "what comes after that is seen");
    }

    #[test]
    fn no_socket_waits_for_ever_behind_busy_ones() {
        let (mut schedule, others) = schedule(5);
        let mut given = [0; 5];
        for _ in 0..100 {
            others.iter().for_each(|other| {
                other.send(b"x").unwrap();
            });
            // Room for one frame a poll only.
            let all = schedule.begin_poll(0);
            for n in 0..all.min(1) {
                let index = schedule.pick(0, n, all).unwrap();
                let fd = &schedule.sockets[index].fd;
                rustix::net::recv(&**fd, &mut [0u8; 8], rustix::net::RecvFlags::empty()).unwrap();
                schedule.received_from(index, true);
                given[index] += 1;
            }
        }
        assert!(given.iter().all(|&given| given > 10), "{given:?}");
    }
}
