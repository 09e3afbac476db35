//! Probes of hosts beyond a router, where our frames, with hop limit 1, do not get to: echo requests (ping)
//! of every possible MTU, with fragmentation forbidden, from the endpoint's address. The schedule is in
//! `sizes`.
//!
//! Such a host need not run a service, but has to answer pings. An answer is matched by 16 random bytes of
//! its request, and by its length.

mod socket;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use doorbell_fabric::time::Time;
use rustix::io::Errno;

use super::sizes::{PAYLOADS, Sizes};
use super::{CarrierError, ProbeId, Probed, Trouble, random, system};
use crate::address::{Gid, is_of_a_link};
use crate::endpoint::Endpoint;
use crate::path::Mtu;
use socket::{HEADER, IP_HEADER, Socket};

/// Maximum pings in flight; each has a socket.
const PINGS_MAX: usize = 128;
/// Random bytes of a request; the index of the size and the number of the attempt follow.
const TOKEN: usize = 16;
/// Maximum packets received for one ping per turn.
const TAKEN_MAX: usize = 16;
/// The first number of a ping; smaller ones are probes by frames.
const FIRST: u64 = 1 << 63;
/// Bytes of the longest answer.
const BUFFER: usize = IP_HEADER + HEADER + 4096 + super::BESIDE;

#[derive(Debug)]
struct Ping {
    socket: Socket,
    token: [u8; TOKEN],
    sizes: Sizes,
}

/// All pings in flight.
#[derive(Debug)]
pub(super) struct Pinger {
    open: BTreeMap<ProbeId, Ping>,
    next: u64,
    ended: VecDeque<(ProbeId, Probed)>,
    buffer: Box<[u8]>,
}

/// Why a ping could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoPing {
    /// Too many pings are in flight.
    Full,
    /// The system allows no socket for pings.
    Forbidden,
    /// A system call failed.
    System(Errno),
}

impl Default for Pinger {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            next: FIRST,
            ended: VecDeque::new(),
            buffer: vec![0; BUFFER].into(),
        }
    }
}

impl Pinger {
    /// Starts a ping; `watch` registers its socket.
    fn start(
        &mut self,
        now: Time,
        (interface, from, to): (&str, IpAddr, IpAddr),
        mtu: Mtu,
        token: [u8; TOKEN],
        watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<ProbeId, NoPing> {
        if self.open.len() >= PINGS_MAX {
            return Err(NoPing::Full);
        }
        let socket = Socket::open(interface, from, to).map_err(NoPing::System)?;
        let socket = socket.ok_or(NoPing::Forbidden)?;
        watch(socket.as_fd()).map_err(NoPing::System)?;
        let id = ProbeId(self.next);
        self.next += 1;
        let sizes = Sizes::up_to(mtu, now);
        let ping = Ping { socket, token, sizes };
        self.open.insert(id, ping);
        self.tick(now);
        Ok(id)
    }

    /// Starts a ping from an endpoint on this interface.
    pub(super) fn reach(
        &mut self,
        now: Time,
        (endpoint, interface): (&Endpoint, &str),
        to: Gid,
        mtu: Mtu,
        watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<ProbeId, CarrierError> {
        let to = to.ip();
        let own = endpoint.addresses.iter().filter_map(|address| address.ip());
        let from = own
            .filter(|own| own.is_ipv4() == to.is_ipv4())
            .find(|own| !is_of_a_link(*own))
            .ok_or_else(|| CarrierError::NoFamily(endpoint.device.clone()))?;
        let mut token = [0; TOKEN];
        random(&mut token)?;
        let begun = self.start(now, (interface, from, to), mtu, token, watch);
        begun.map_err(|why| match why {
            NoPing::Full => CarrierError::Full {
                what: "pings",
                most: PINGS_MAX,
            },
            NoPing::Forbidden => CarrierError::NoPing,
            NoPing::System(errno) => system("send a ping", interface)(errno),
        })
    }

    /// Receives answers and handles what is due; returns how much work it did.
    pub(super) fn turn(&mut self, now: Time) -> usize {
        let mut done = 0;
        for ping in self.open.values_mut() {
            done += ping.take(now, &mut self.buffer);
        }
        done + self.tick(now)
    }

    /// Returns the next ping that has ended.
    pub(super) fn ended(&mut self) -> Option<(ProbeId, Probed)> {
        self.ended.pop_front()
    }

    /// Returns when something is due although nothing has arrived.
    pub(super) fn next_deadline(&self) -> Time {
        let each = self.open.values().map(|ping| ping.sizes.deadline());
        each.min().unwrap_or(Time::NEVER)
    }

    fn tick(&mut self, now: Time) -> usize {
        let before = self.ended.len();
        let mut done = 0;
        for ping in self.open.values_mut() {
            while let Some(attempt) = ping.sizes.attempt(now) {
                ping.send_due(now, attempt);
                done += 1;
            }
        }
        let ended = &mut self.ended;
        self.open.retain(|id, ping| {
            let is_over = ping.sizes.is_over(now);
            if is_over {
                ended.push_back((*id, ping.sizes.result()));
            }
            !is_over
        });
        done + self.ended.len() - before
    }
}

impl Ping {
    /// Sends a request of each size that has not come back.
    fn send_due(&mut self, now: Time, attempt: usize) {
        let identifier = u16::from_be_bytes([self.token[0], self.token[1]]);
        let open = self.sizes.each.iter_mut().enumerate();
        for (at, size) in open.filter(|(_, size)| size.is_open()) {
            let mut body = vec![0; size.body];
            body[..TOKEN].copy_from_slice(&self.token);
            body[TOKEN] = at as u8;
            body[TOKEN + 1] = attempt as u8;
            size.is_sent(attempt, now);
            let number = (attempt * PAYLOADS.len() + at) as u16;
            match self.socket.send(identifier, number, &body) {
                Err(Errno::MSGSIZE) => size.refuse(Trouble::FullRefused),
                Err(Errno::NETUNREACH | Errno::ADDRNOTAVAIL | Errno::NODEV | Errno::NXIO) => {
                    size.refuse(Trouble::NoWay);
                }
                // A failure may be transient, or belong to an earlier packet; the next attempt sends again.
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Receives answers; returns the number of packets.
    fn take(&mut self, now: Time, buffer: &mut [u8]) -> usize {
        for done in 0..TAKEN_MAX {
            match self.socket.receive(buffer) {
                Ok(body) => {
                    if let Some((at, attempt)) = named(&self.token, body) {
                        self.sizes.came_back(now, at, attempt, body.len());
                    }
                }
                Err(Errno::AGAIN) => return done,
                // ICMP errors can be forged, and the request is repeated anyway.
                Err(_) => {}
            }
        }
        TAKEN_MAX
    }
}

/// Returns the index of the size and the attempt that an answer repeats, if it answers one of our requests.
fn named(token: &[u8; TOKEN], body: &[u8]) -> Option<(u8, u8)> {
    let (own, rest) = body.split_at_checked(TOKEN)?;
    let [at, attempt, ..] = rest else { return None };
    (own == token).then_some((*at, *attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_with_the_own_token_names_a_request() {
        let own = [7; TOKEN];
        let mut body = vec![0; 304];
        body[..TOKEN].fill(7);
        (body[TOKEN], body[TOKEN + 1]) = (2, 1);
        assert_eq!(named(&own, &body), Some((2, 1)));
        for length in 0..=TOKEN + 1 {
            assert_eq!(named(&own, &body[..length]), None, "{length} bytes");
        }
        body[3] = 8;
        assert_eq!(named(&own, &body), None, "another ping's token");
    }
}
