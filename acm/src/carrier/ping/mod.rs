//! Hosts beyond a router, where no frame of ours gets to: echo requests (ping) of every size that a path may have, and what
//! comes back of them.
//!
//! ```text
//!   256, 512, … up to the endpoint's  ──►  0 ms          not fragmented, from the endpoint's address
//!   those that have not come back     ──►  200, 500 ms
//!   the end      at   900 ms, or as soon as the largest has come back
//! ```
//!
//! Such a host need not run a service; it must answer pings. An answer is believed for 16 random bytes of its request, and for
//! its length.

mod socket;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use doorbell_fabric::time::Time;
use rustix::io::Errno;

use super::{ProbeId, Probed, Trouble};
use crate::path::Mtu;
use socket::{HEADER, IP_HEADER, Socket};

/// Under way at a time: each has a descriptor.
pub(super) const PINGS_MAX: usize = 128;
/// When requests are sent, after the beginning (ms).
const SENT: [u64; 3] = [0, 200, 500];
/// When a ping ends whose largest request has not come back (ms): before whoever waits for it gives up.
const END: u64 = 900;
/// Payloads of paths (bytes).
const PAYLOADS: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// Random bytes of a request; the size's place and the attempt's are behind them.
const TOKEN: usize = 16;
/// Packets that are taken of one ping in a turn.
const TAKEN_MAX: usize = 16;
/// Numbers from here on are those of pings, so that they are none of other probes.
const FIRST: u64 = 1 << 63;
/// Room for any answer.
const BUFFER: usize = IP_HEADER + HEADER + 4096 + super::BESIDE;

/// Requests of one size.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Bytes behind the header of ICMP.
    body: usize,
    sent: [Option<Time>; SENT.len()],
    round_trip: Option<Duration>,
    refused: Option<Trouble>,
}

#[derive(Debug)]
struct Ping {
    socket: Socket,
    token: [u8; TOKEN],
    begun: Time,
    attempts: usize,
    /// The smallest first.
    sizes: Vec<Size>,
}

/// All pings that are under way.
#[derive(Debug)]
pub(super) struct Pinger {
    open: BTreeMap<ProbeId, Ping>,
    next: u64,
    ended: VecDeque<(ProbeId, Probed)>,
    buffer: Box<[u8]>,
}

/// Why a ping was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPing {
    /// There are too many.
    Full,
    /// The system allows no socket for it.
    Forbidden,
    /// The system refuses.
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
    /// Begins one; `hear` has its socket waited for.
    pub(super) fn start(
        &mut self,
        now: Time,
        (interface, from, to): (&str, IpAddr, IpAddr),
        mtu: Mtu,
        token: [u8; TOKEN],
        hear: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<ProbeId, NoPing> {
        if self.open.len() >= PINGS_MAX {
            return Err(NoPing::Full);
        }
        let socket = Socket::open(interface, from, to).map_err(NoPing::System)?;
        let socket = socket.ok_or(NoPing::Forbidden)?;
        hear(socket.as_fd()).map_err(NoPing::System)?;
        let id = ProbeId(self.next);
        self.next += 1;
        let payloads = PAYLOADS.into_iter().filter(|payload| *payload <= mtu.bytes());
        let size = |payload: u32| Size {
            body: payload as usize + super::BESIDE,
            sent: [None; SENT.len()],
            round_trip: None,
            refused: None,
        };
        let ping = Ping {
            socket,
            token,
            begun: now,
            attempts: 0,
            sizes: payloads.map(size).collect(),
        };
        self.open.insert(id, ping);
        self.tick(now);
        Ok(id)
    }

    /// Takes what has come, and lets time pass; tells how much there was to do.
    pub(super) fn turn(&mut self, now: Time) -> usize {
        let mut done = 0;
        for ping in self.open.values_mut() {
            done += ping.take(now, &mut self.buffer);
        }
        done + self.tick(now)
    }

    /// The next that has ended.
    pub(super) fn ended(&mut self) -> Option<(ProbeId, Probed)> {
        self.ended.pop_front()
    }

    /// When there is something to do without anything having come.
    pub(super) fn next_deadline(&self) -> Time {
        let each = self.open.values().map(Ping::deadline);
        each.min().unwrap_or(Time::NEVER)
    }

    fn tick(&mut self, now: Time) -> usize {
        let before = self.ended.len();
        let mut done = 0;
        for ping in self.open.values_mut() {
            while !ping.is_done() && ping.attempts < SENT.len() && ping.deadline() <= now {
                ping.shoot(now);
                done += 1;
            }
        }
        let ended = &mut self.ended;
        self.open.retain(|id, ping| {
            let is_over = ping.is_done() || ping.deadline() <= now;
            if is_over {
                ended.push_back((*id, ping.result()));
            }
            !is_over
        });
        done + self.ended.len() - before
    }
}

impl Ping {
    fn deadline(&self) -> Time {
        let after = SENT.get(self.attempts).copied().unwrap_or(END);
        self.begun + Duration::from_millis(after)
    }

    /// Whether nothing that may still come would say more.
    fn is_done(&self) -> bool {
        let mut sizes = self.sizes.iter().rev();
        let largest = sizes.find(|size| size.refused.is_none());
        largest.is_none_or(|size| size.round_trip.is_some())
    }

    /// Sends what has not come back.
    fn shoot(&mut self, now: Time) {
        let attempt = self.attempts;
        self.attempts += 1;
        let identifier = u16::from_be_bytes([self.token[0], self.token[1]]);
        for (at, size) in self.sizes.iter_mut().enumerate() {
            if size.round_trip.is_some() || size.refused.is_some() {
                continue;
            }
            let mut body = vec![0; size.body];
            body[..TOKEN].copy_from_slice(&self.token);
            body[TOKEN] = at as u8;
            body[TOKEN + 1] = attempt as u8;
            size.sent[attempt] = Some(now);
            let number = (attempt * PAYLOADS.len() + at) as u16;
            size.refused = match self.socket.send(identifier, number, &body) {
                Err(Errno::MSGSIZE) => Some(Trouble::FullRefused),
                Err(Errno::NETUNREACH | Errno::ADDRNOTAVAIL | Errno::NODEV | Errno::NXIO) => {
                    Some(Trouble::NoWay)
                }
                // What is in the way now, or was of an earlier packet, may be gone at the next attempt.
                Ok(()) | Err(_) => None,
            };
        }
    }

    /// Takes what has come; how many packets.
    fn take(&mut self, now: Time, buffer: &mut [u8]) -> usize {
        for done in 0..TAKEN_MAX {
            match self.socket.receive(buffer) {
                Ok(body) => self.sizes.iter_mut().enumerate().for_each(|(at, size)| {
                    if let Some(sent) = size.sent_of(&self.token, at, body) {
                        size.round_trip.get_or_insert(now.since(sent));
                    }
                }),
                Err(Errno::AGAIN) => return done,
                // What routers say of a packet: anybody can say that, and it is sent again in any case.
                Err(_) => {}
            }
        }
        TAKEN_MAX
    }

    fn result(&self) -> Probed {
        let passed = || self.sizes.iter().filter(|size| size.round_trip.is_some());
        let full = self.sizes.last();
        let trouble = match full {
            Some(full) if full.round_trip.is_some() => None,
            Some(full) if passed().next().is_some() => Some(full.refused.unwrap_or(Trouble::FullLost)),
            _ => {
                let refused = self.sizes.first().and_then(|small| small.refused);
                Some(refused.unwrap_or(Trouble::Silent))
            }
        };
        Probed {
            round_trip: passed().filter_map(|size| size.round_trip).min(),
            largest: passed().map(|size| size.body).max().unwrap_or(0),
            trouble,
        }
    }
}

impl Size {
    /// When the request was sent that has this answer, if it is one of this size, the `at`th.
    fn sent_of(&self, token: &[u8; TOKEN], at: usize, body: &[u8]) -> Option<Time> {
        let (own, rest) = body.split_at_checked(TOKEN)?;
        let [place, attempt, ..] = rest else { return None };
        let fits = own == token && usize::from(*place) == at && body.len() == self.body;
        self.sent
            .get(usize::from(*attempt))
            .copied()
            .flatten()
            .filter(|_| fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN_OF_TEST: [u8; TOKEN] = [7; TOKEN];

    fn size() -> Size {
        Size {
            body: 304,
            sent: [Some(Time::from_nanos(5)), None, None],
            round_trip: None,
            refused: None,
        }
    }

    #[test]
    fn only_the_answer_to_a_request_that_was_sent_counts() {
        let mut body = vec![0; 304];
        body[..TOKEN].fill(7);
        body[TOKEN] = 2;
        let size = size();
        assert_eq!(size.sent_of(&TOKEN_OF_TEST, 2, &body), Some(Time::from_nanos(5)));
        assert_eq!(size.sent_of(&TOKEN_OF_TEST, 1, &body), None, "another size");
        assert_eq!(size.sent_of(&TOKEN_OF_TEST, 2, &body[..303]), None, "cut");
        body[TOKEN + 1] = 1;
        assert_eq!(size.sent_of(&TOKEN_OF_TEST, 2, &body), None, "not sent yet");
        body[TOKEN + 1] = 200;
        assert_eq!(size.sent_of(&TOKEN_OF_TEST, 2, &body), None, "never sent");
        body[TOKEN + 1] = 0;
        body[3] = 8;
        assert_eq!(size.sent_of(&TOKEN_OF_TEST, 2, &body), None, "somebody else's");
        for length in 0..=TOKEN + 1 {
            assert_eq!(
                size.sent_of(&TOKEN_OF_TEST, 0, &body[..length]),
                None,
                "{length} bytes"
            );
        }
    }
}
