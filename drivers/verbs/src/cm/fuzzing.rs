//! Two contacts that a fuzzer drives (`tools/fuzz`): frames are lost, repeated, reordered and changed, rails
//! fail and call again, and in the end there is one connection.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::event::{DownReason, Life};
use doorbell_fabric::gid::Link;
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::time::Time;

use super::{Attempt, Contact, ContactConfig, Event, From, LONGEST, Local, Numbers, Size, Source};
use crate::address::PortAddress;
use crate::gid::{Gid, Kind, Published};
use crate::name::Service;

/// Frames on their way at most.
const FLYING: usize = 64;

/// One end, whose queue pairs are numbers.
struct End {
    contact: Contact,
    from: From,
    pair: Option<(Attempt, Numbers)>,
    to: Option<Numbers>,
    up: Option<Life>,
    next: u32,
}

/// Two ends, and the frames to each.
pub struct Pair {
    ends: [End; 2],
    flying: [VecDeque<Vec<u8>>; 2],
    now: Time,
}

fn local(host: u8) -> Local {
    let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, host]);
    Local {
        address: PortAddress {
            service: Service::Connections,
            link: Link::Ethernet,
            lid: 0,
            partition: 0xffff,
            key: 1,
            pairs: [100 + u32::from(host), 0],
            mtu: 5,
            gids: vec![Published {
                gid,
                kind: Kind::RoceV2,
                prefix: 24,
            }],
        },
        incarnation: Incarnation(host.into()),
    }
}

impl End {
    fn new(host: u8) -> Self {
        let (ours, theirs) = (local(host), local(3 - host));
        let from = From {
            pair: ours.address.pairs[0],
            port: Source::Gid(ours.address.gids[0].gid.0),
        };
        let contact = Contact::new(ContactConfig::default(), ours);
        let mut contact = contact.unwrap_or_else(|| unreachable!("the MTU is one"));
        contact.set_key(&[5; 32]);
        let opened = contact.open(&theirs.address.to_bytes(), theirs.incarnation, None);
        assert_eq!(opened, Ok(PeerIndex(0)));
        Self {
            contact,
            from,
            pair: None,
            to: None,
            up: None,
            next: 100 * u32::from(host),
        }
    }

    fn work(&mut self, now: Time) -> bool {
        let Some(event) = self.contact.event() else {
            return false;
        };
        match event {
            Event::Make(attempt) => {
                self.next += 1;
                let numbers = Numbers {
                    pairs: [self.next, 0],
                    ..Numbers::default()
                };
                assert!(self.pair.replace((attempt, numbers)).is_none());
                self.contact.made(attempt, Some(numbers), now);
            }
            Event::Connect(connect) => {
                assert!(self.to.replace(connect.to).is_none(), "it is connected once");
                self.contact.connected(connect.attempt, Ok(()), now);
            }
            Event::Prove(attempt, _) => {
                self.contact.passed(attempt, Size::Small, now);
                self.contact.passed(attempt, Size::Full, now);
            }
            Event::Up { life, .. } => assert!(self.up.replace(life).is_none()),
            Event::Discard(_) | Event::Down(..) | Event::Refused { .. } => {
                (self.pair, self.to, self.up) = (None, None, None);
            }
            Event::Released(_) => {}
        }
        true
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self {
            ends: [End::new(1), End::new(2)],
            flying: Default::default(),
            now: Time::ZERO,
        }
    }
}

impl Pair {
    /// An end is called upon: to call, to lose its connection, or to give it up.
    ///
    /// # Panics
    /// Where something does not hold.
    pub fn request(&mut self, end: usize, what: u8) {
        let (now, peer) = (self.now, PeerIndex(0));
        let end = &mut self.ends[end & 1];
        match (what % 4, end.pair) {
            (0, _) => end.contact.call(peer, now),
            (1, _) => end.contact.revive(peer, now),
            (2, Some((attempt, _))) => end.contact.died(attempt, DownReason::Silent, now),
            (3, _) => {
                end.contact.abandon(peer, now);
                if end.up.is_some() {
                    (end.pair, end.to, end.up) = (None, None, None);
                }
            }
            _ => {}
        }
        self.settle();
    }

    /// Does with the frames to an end what the network may do: 0 loses one, 1 repeats one, 2 makes the first
    /// the last, 3 changes a bit; others deliver the first.
    ///
    /// # Panics
    /// Where something does not hold.
    pub fn frame(&mut self, end: usize, what: u8, at: usize) {
        let flying = &mut self.flying[end & 1];
        if flying.is_empty() {
            return;
        }
        let which = at % flying.len();
        match what % 8 {
            0 => _ = flying.remove(which),
            1 => flying.push_back(flying[which].clone()),
            2 => flying.rotate_left(1),
            3 => {
                let length = flying[which].len();
                flying[which][at / 8 % length] ^= 1 << (at % 8);
            }
            _ => self.deliver(end & 1),
        }
        self.settle();
    }

    /// Hands any bytes to an end, as if they came from the other.
    ///
    /// # Panics
    /// Where they are taken for the other end's.
    pub fn stranger(&mut self, end: usize, bytes: &[u8]) {
        let from = self.ends[1 - (end & 1)].from;
        let end = &mut self.ends[end & 1];
        let before = end.contact.counts().received;
        end.contact.receive(&from, bytes, self.now);
        assert_eq!(end.contact.counts().received, before, "no stranger has the key");
        self.settle();
    }

    /// Time passes.
    ///
    /// # Panics
    /// Where something does not hold.
    pub fn pass(&mut self, by: Duration) {
        self.now += by;
        for end in &mut self.ends {
            end.contact.tick(self.now);
        }
        self.settle();
    }

    /// The network is well again: one connection comes about.
    ///
    /// # Panics
    /// Where none does.
    pub fn finish(&mut self) {
        for _ in 0..3 {
            self.request(0, 0);
            for _ in 0..1000 {
                while self.flying.iter().any(|flying| !flying.is_empty()) {
                    (0..2).for_each(|end| self.deliver(end));
                    self.settle();
                }
                if self.are_up() {
                    return;
                }
                let next = self.ends.iter().filter_map(|end| end.contact.next_deadline());
                let Some(next) = next.min() else { break };
                self.pass(next.since(self.now));
            }
        }
        panic!("no connection");
    }

    fn deliver(&mut self, to: usize) {
        if let Some(bytes) = self.flying[to].pop_front() {
            let from = self.ends[1 - to].from;
            self.ends[to].contact.receive(&from, &bytes, self.now);
        }
    }

    /// What holds: ends that are connected to each other, and up, report one life.
    fn settle(&mut self) {
        for to in 0..2 {
            while self.ends[1 - to].work(self.now) {}
            let mut frame = [0; LONGEST];
            while let Some((_, length)) = self.ends[1 - to].contact.next_frame(&mut frame) {
                if self.flying[to].len() < FLYING {
                    self.flying[to].push_back(frame[..length].to_vec());
                }
            }
        }
        assert!(!self.are_connected() || self.ends.iter().any(|end| end.up.is_none()) || self.are_up());
    }

    fn are_connected(&self) -> bool {
        let own = |end: usize| self.ends[end].pair.map(|(_, numbers)| numbers);
        (0..2).all(|end| self.ends[end].to.is_some() && self.ends[end].to == own(1 - end))
    }

    fn are_up(&self) -> bool {
        let [one, other] = [0, 1].map(|end: usize| self.ends[end].up);
        one.is_some() && one == other && self.are_connected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_testing::Random;

    #[test]
    fn scripts_of_any_bytes_end_with_a_connection() {
        for seed in 0..100 {
            let (mut random, mut pair) = (Random::new(seed), Pair::default());
            for _ in 0..200 {
                let (end, what) = (random.index(2), random.next_u64() as u8);
                match random.below(5) {
                    0 => pair.request(end, what),
                    1 => pair.pass(Duration::from_micros(1 << (what % 22))),
                    2 => pair.stranger(end, &random.next_u64().to_le_bytes()),
                    _ => pair.frame(end, what, random.index(2000)),
                }
            }
            pair.finish();
        }
    }
}
