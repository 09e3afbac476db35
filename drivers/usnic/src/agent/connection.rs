//! An agent's connection to a process: what it owns, what it has requested, and what is still to be sent to
//! it.
//!
//! Nothing is queued for a process that does not read: link news and neighbours are sent in their newest
//! state once there is room again, and one reply waits, for a while.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use doorbell_fabric::ether::Mac;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::listener::Peer;
use crate::flow_steering::Request;
use crate::flow_steering::wire::{Message, Owner, PACKET};

/// How long a process may take to request a function, and to read a reply.
const GREETING: Duration = Duration::from_secs(2);
const TAKING: Duration = Duration::from_secs(5);
/// At most [`NEIGHBOURS`] neighbours are sent every [`NEIGHBOURS_EVERY`]: fewer than a rail that polls every
/// 20 ms reads.
const NEIGHBOURS: usize = 16;
const NEIGHBOURS_EVERY: Duration = Duration::from_millis(20);
/// How often a process may announce its own hardware address at most.
const HERES_MOST: u32 = 64;

/// A neighbour as it is sent to all processes, and the count at which it was announced.
pub(super) type Neighbour = (u64, Ipv4Addr, Mac);

/// The agent's end of a connection to a process.
pub(super) struct Connection {
    socket: OwnedFd,
    pub(super) peer: Peer,
    since: Instant,
    /// The function and address that it has requested, until it gets them.
    pub(super) wants: Option<(u32, Ipv4Addr)>,
    /// The function and address that it owns.
    pub(super) own: Option<(u32, Ipv4Addr)>,
    pub(super) filters: Vec<u64>,
    pub(super) pairs: Vec<u32>,
    /// The addresses that it has announced for itself, to be sent to the others.
    pub(super) here: Option<Neighbour>,
    heres: u32,
    /// A request that waits for its turn, or is under way.
    pub(super) asked: Option<(u32, Request)>,
    answer: Option<(Message, Instant)>,
    /// How far it is up to date: the count of neighbours, then that of news.
    met: u64,
    told: u64,
    next: Instant,
    pub(super) is_over: bool,
    /// How many filters and queue pairs it had at its end.
    left: usize,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, peer: Peer) -> Self {
        let now = Instant::now();
        Self {
            socket,
            peer,
            since: now,
            wants: None,
            own: None,
            filters: Vec::new(),
            pairs: Vec::new(),
            here: None,
            heres: 0,
            asked: None,
            answer: None,
            met: 0,
            told: 0,
            next: now,
            is_over: false,
            left: 0,
        }
    }

    /// Returns how many filters and queue pairs it has had since it was over.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// The number of its filters, with one that it is just requesting.
    pub(super) fn filter_count(&self) -> usize {
        let asks = matches!(self.asked, Some((_, Request::Steer(..))));
        self.filters.len() + usize::from(asks)
    }

    /// Remembers how many they are.
    pub(super) fn count_left(&mut self) {
        self.left = self.left.max(self.filters.len() + self.pairs.len());
    }

    pub(super) fn function(&self) -> Option<u32> {
        self.own.map(|(function, _)| function)
    }

    pub(super) fn owner(&self) -> Owner {
        Owner {
            process: self.peer.process,
            function: self.function().map_or(u16::MAX, |function| function as u16),
        }
    }

    /// Whether the next packet is read by now.
    pub(super) fn is_open(&self) -> bool {
        !self.is_over && self.asked.is_none() && self.answer.is_none() && self.wants.is_none()
    }

    /// Returns what is waited for: its packets where one is read next, its end in any case.
    pub(super) fn wait(&self) -> PollFd<'_> {
        let flags = if self.is_open() {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        PollFd::new(&self.socket, flags)
    }

    /// Whether its process has closed it, or ended.
    pub(super) fn has_hung_up(&self) -> bool {
        doorbell_fabric::poll::state(&self.socket, PollFlags::empty())
            .is_ok_and(|state| state.intersects(PollFlags::HUP | PollFlags::ERR))
    }

    /// The next packet; `Err` at the end, and for what is no packet of a rail's.
    pub(super) fn receive(&self) -> Result<Option<Message>, ()> {
        let mut packet = [0; PACKET + 1];
        match recv(&self.socket, &mut packet[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Ok((length, _)) if length > 0 => Message::read(&packet[..length.min(packet.len())])
                .map(Some)
                .ok_or(()),
            _ => Err(()),
        }
    }

    /// Sends a packet at once; returns false where there is no room, or the process is gone.
    pub(super) fn send(&self, said: Message) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(&self.socket, &said.to_bytes(), flags).is_ok()
    }

    /// Answers, now or as soon as there is room.
    pub(super) fn answer(&mut self, said: Message) {
        self.asked = None;
        if !self.send(said) {
            self.answer = Some((said, Instant::now() + TAKING));
        }
    }

    /// Records the hardware address that it announces for its IP address; returns false where that address is
    /// not its own, or it announces too often.
    pub(super) fn place(&mut self, ip: Ipv4Addr, mac: Mac, count: &mut u64) -> bool {
        if self.own.is_none_or(|(_, own)| own != ip) || self.heres == HERES_MOST {
            return false;
        }
        if self.here.is_none_or(|(_, _, before)| before != mac) {
            self.heres += 1;
            *count += 1;
            self.here = Some((*count, ip, mac));
        }
        true
    }

    /// Whether it has taken longer than it may to request a function or to read a reply.
    pub(super) fn is_late(&self) -> bool {
        let is_mute = self.own.is_none() && self.wants.is_none() && self.since.elapsed() > GREETING;
        is_mute || self.answer.is_some_and(|(_, end)| Instant::now() > end)
    }

    /// Whether it has waited too long for a function that another process has.
    pub(super) fn has_waited(&self) -> bool {
        self.since.elapsed() > GREETING
    }

    /// Sends what it does not have yet, as far as there is room; what does not fit is sent later, in its
    /// newest state.
    pub(super) fn update(&mut self, (count, news): (u64, Message), neighbours: &[Neighbour]) {
        if let Some((said, _)) = self.answer {
            if !self.send(said) {
                return;
            }
            self.answer = None;
        }
        if self.own.is_none() {
            return;
        }
        if self.told < count {
            if !self.send(news) {
                return;
            }
            self.told = count;
        }
        let newest = neighbours.last().map_or(0, |last| last.0);
        if self.here.is_none() || self.met >= newest || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + NEIGHBOURS_EVERY;
        let own = self.own.map(|(_, ip)| ip);
        let met = self.met;
        let new = neighbours.iter().filter(|(at, ..)| *at > met);
        for &(at, ip, mac) in new.take(NEIGHBOURS) {
            if own != Some(ip) && !self.send(Message::Neighbour(ip, mac)) {
                return;
            }
            self.met = at;
        }
    }
}
