//! Two contacts against each other, over a network that does what a test wants, with a clock of its own.

mod bounds;
mod ends;
mod lies;
mod random;
mod schedules;

use std::time::Duration;

use doorbell_fabric::event::{DownReason, Life};
use doorbell_fabric::gid::Link;
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::time::Time;

use super::{
    Attempt, Connect, Contact, ContactConfig, ContactCounts, Diagnosis, Event, From, LONGEST, Local, Mtu,
    Numbers, Refusal, Remote, Size, Source, Target,
};
use crate::address::PortAddress;
use crate::gid::{Gid, Kind, Published};
use crate::name::Service;

const KEY: [u8; 32] = [7; 32];

fn gid(host: u8) -> Gid {
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, host])
}

fn published(host: u8) -> Published {
    Published {
        gid: gid(host),
        kind: Kind::RoceV2,
        prefix: 24,
    }
}

/// Our end on a host, in an incarnation.
fn local(host: u8, incarnation: u64) -> Local {
    Local {
        address: PortAddress {
            service: Service::Connections,
            link: Link::Ethernet,
            lid: 0,
            partition: 0xffff,
            key: 0x1234,
            pairs: [100 + u32::from(host), 0],
            mtu: 5,
            gids: vec![published(host)],
        },
        incarnation: Incarnation(incarnation),
    }
}

fn contact(local: Local) -> Contact {
    let mut contact = Contact::new(ContactConfig::default(), local).unwrap();
    contact.set_key(&KEY);
    contact
}

/// A queue pair of the model.
#[derive(Clone, Debug)]
struct Pair {
    attempt: Attempt,
    numbers: Numbers,
    to: Option<Connect>,
}

/// A connection that was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Up {
    attempt: Attempt,
    life: Life,
    mtu: Mtu,
    diagnosis: Option<Diagnosis>,
}

/// A rail around a contact, whose queue pairs are a model's.
#[derive(Clone, Debug)]
struct End {
    contact: Contact,
    peer: PeerIndex,
    pair: Option<Pair>,
    proving: Option<(Attempt, Mtu, [bool; 2])>,
    up: Option<Up>,
    /// All lives that were reported.
    lives: Vec<Life>,
    downs: Vec<DownReason>,
    refused: Vec<(Refusal, bool)>,
    released: usize,
    next_pair: u32,
    /// Whether the system has no queue pairs left.
    is_poor: bool,
    /// Whether it answers that queue pairs are connected.
    connects: bool,
}

impl End {
    fn new(host: u8, incarnation: u64) -> Self {
        Self {
            contact: contact(local(host, incarnation)),
            peer: PeerIndex(0),
            pair: None,
            proving: None,
            up: None,
            lives: Vec::new(),
            downs: Vec::new(),
            refused: Vec::new(),
            released: 0,
            next_pair: 1000 * (u32::from(host) + 100 * incarnation as u32),
            is_poor: false,
            connects: true,
        }
    }

    fn address(&self) -> (Vec<u8>, Incarnation) {
        let local = &self.contact.local;
        (local.address.to_bytes(), local.incarnation)
    }

    fn source(&self) -> From {
        let address = &self.contact.local.address;
        From {
            pair: address.pairs[0],
            port: Source::Gid(address.gids[0].gid.0),
        }
    }

    fn open(&mut self, (address, incarnation): &(Vec<u8>, Incarnation)) {
        self.peer = self.contact.open(address, *incarnation, None).unwrap();
    }

    fn numbers(&mut self) -> Numbers {
        self.next_pair += 1;
        Numbers {
            pairs: [self.next_pair, 0],
            sequences: [self.next_pair + 7, 0],
            credits: 4,
            slot: 8192,
            ring: Target::default(),
            ring_slots: 0,
            counters: Target {
                address: u64::from(self.next_pair) << 12,
                key: 1,
            },
        }
    }

    /// Does what the contact wants; returns whether there was something.
    fn work(&mut self, now: Time) -> bool {
        let Some(event) = self.contact.event() else {
            return false;
        };
        match event {
            Event::Make(attempt) if self.is_poor => self.contact.made(attempt, None, now),
            Event::Make(attempt) => {
                assert!(
                    self.up.is_none() && self.pair.is_none(),
                    "one connection at a time"
                );
                let numbers = self.numbers();
                self.pair = Some(Pair {
                    attempt,
                    numbers,
                    to: None,
                });
                self.contact.made(attempt, Some(numbers), now);
            }
            Event::Connect(connect) => {
                let pair = self.pair.as_mut().expect("they were made");
                assert!(pair.to.replace(connect).is_none(), "they are connected once");
                assert_eq!(pair.attempt, connect.attempt);
                if self.connects {
                    self.contact.connected(connect.attempt, Ok(()), now);
                }
            }
            Event::Prove(attempt, mtu) => self.proving = Some((attempt, mtu, [false; 2])),
            Event::Up {
                attempt,
                life,
                mtu,
                diagnosis,
            } => {
                assert!(self.up.is_none(), "it is reported once");
                self.lives.push(life);
                self.up = Some(Up {
                    attempt,
                    life,
                    mtu,
                    diagnosis,
                });
            }
            Event::Discard(attempt) => {
                assert!(self.up.is_none(), "it never was up");
                assert!(self.pair.take_if(|pair| pair.attempt == attempt).is_some() || self.is_poor);
                self.proving = None;
            }
            Event::Down(_, reason) => {
                self.downs.push(reason);
                self.clear();
            }
            Event::Refused { refusal, by_us, .. } => {
                self.refused.push((refusal, by_us));
                self.clear();
            }
            Event::Released(_) => self.released += 1,
        }
        true
    }

    fn clear(&mut self) {
        (self.pair, self.proving, self.up) = (None, None, None);
    }

    fn abandon(&mut self, now: Time) {
        self.contact.abandon(self.peer, now);
        // A rail lets go of a connection that it gives up; what was never one is discarded by an event.
        if self.up.is_some() {
            self.clear();
        }
    }

    fn die(&mut self, reason: DownReason, now: Time) {
        if let Some(pair) = &self.pair {
            self.contact.died(pair.attempt, reason, now);
        }
    }
}

/// A frame on its way.
#[derive(Clone, Debug, PartialEq)]
struct Flying {
    to: usize,
    from: From,
    bytes: Vec<u8>,
}

/// Two ends and what is between them.
#[derive(Clone, Debug)]
struct World {
    ends: [End; 2],
    net: Vec<Flying>,
    now: Time,
    /// The longest packet that passes from each end.
    path: [usize; 2],
}

impl World {
    fn new() -> Self {
        let mut ends = [End::new(1, 1), End::new(2, 2)];
        let addresses = [ends[1].address(), ends[0].address()];
        for (end, address) in ends.iter_mut().zip(&addresses) {
            end.open(address);
        }
        Self {
            ends,
            net: Vec::new(),
            now: Time::ZERO,
            path: [4096; 2],
        }
    }

    fn call(&mut self, end: usize) {
        let peer = self.ends[end].peer;
        self.ends[end].contact.call(peer, self.now);
        self.settle();
    }

    fn revive(&mut self, end: usize) {
        let peer = self.ends[end].peer;
        self.ends[end].contact.revive(peer, self.now);
        self.settle();
    }

    /// Everything that takes no time: the rails' work, what passes over connections, frames that leave.
    fn settle(&mut self) {
        loop {
            let worked = (0..2).any(|end| self.ends[end].work(self.now));
            if !worked && !self.prove() {
                break;
            }
        }
        for end in 0..2 {
            let from = self.ends[end].source();
            let mut bytes = [0; LONGEST];
            while let Some((_, length)) = self.ends[end].contact.next_frame(&mut bytes) {
                self.net.push(Flying {
                    to: 1 - end,
                    from,
                    bytes: bytes[..length].to_vec(),
                });
            }
        }
        self.judge();
    }

    /// Whether both ends' queue pairs are each other's.
    fn are_connected(&self) -> bool {
        let to = |end: usize| self.ends[end].pair.as_ref().and_then(|pair| pair.to);
        let own = |end: usize| self.ends[end].pair.as_ref().map(|pair| pair.numbers);
        let fits = |end: usize| to(end).is_some_and(|to| Some(to.to) == own(1 - end));
        fits(0) && fits(1)
    }

    /// Lets what proves the connection pass; returns whether something did.
    fn prove(&mut self) -> bool {
        if !self.are_connected() {
            return false;
        }
        for end in 0..2 {
            let (path, now) = (self.path[end], self.now);
            let end = &mut self.ends[end];
            let Some((attempt, mtu, passed)) = &mut end.proving else {
                continue;
            };
            for (size, bytes) in [(Size::Small, 8), (Size::Full, mtu.bytes())] {
                if bytes <= path && !std::mem::replace(&mut passed[size as usize], true) {
                    end.contact.passed(*attempt, size, now);
                    return true;
                }
            }
        }
        false
    }

    /// What holds at every moment.
    fn judge(&self) {
        let [a, b] = &self.ends;
        if let (Some(one), Some(other)) = (&a.up, &b.up)
            && self.are_connected()
        {
            assert_eq!((one.life, one.mtu), (other.life, other.mtu));
        }
        for end in &self.ends {
            let later = end.lives.windows(2).all(|two| two[0].is_before(two[1]));
            assert!(later, "lives grow: {:?}", end.lives);
            assert_eq!(end.contact.counts.dropped(super::counts::Drop::Malformed), 0);
        }
    }

    fn are_up(&self) -> bool {
        let up = |end: usize| self.ends[end].up.map(|up| up.life);
        up(0).is_some() && up(0) == up(1) && self.are_connected()
    }

    fn deliver(&mut self, at: usize) {
        let frame = self.net.remove(at);
        self.hand_in(&frame);
    }

    fn hand_in(&mut self, frame: &Flying) {
        let now = self.now;
        self.ends[frame.to]
            .contact
            .receive(&frame.from, &frame.bytes, now);
        self.settle();
    }

    /// Goes on to the next deadline of any end.
    fn turn(&mut self) {
        let next = self.ends.iter().filter_map(|end| end.contact.next_deadline());
        if let Some(next) = next.min() {
            self.now = self.now.max(next);
        }
        self.tick();
    }

    fn tick(&mut self) {
        for end in 0..2 {
            self.ends[end].contact.tick(self.now);
        }
        self.settle();
    }

    /// Delivers everything, and lets time pass, until `done`.
    fn run(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..2000 {
            while !self.net.is_empty() {
                self.deliver(0);
            }
            if done(self) {
                return;
            }
            self.turn();
        }
        panic!("{what}: {}", self.state());
    }

    /// In words, for failures.
    fn state(&self) -> String {
        let end = |end: &End| {
            let peer = end.contact.peers.iter().flatten().next_back();
            let peer = peer.map(|peer| {
                (
                    peer.phase,
                    peer.ours,
                    peer.theirs,
                    peer.used,
                    peer.over,
                    &peer.effort,
                )
            });
            format!(
                "{peer:?} pair {:?} up {:?} downs {:?}",
                end.pair, end.up, end.downs
            )
        };
        format!("at {}: {} | {}", self.now, end(&self.ends[0]), end(&self.ends[1]))
    }

    fn run_up(&mut self) {
        self.run("both are up", Self::are_up);
    }

    /// Time passes without a frame.
    fn pass(&mut self, by: Duration) {
        let until = self.now + by;
        while let Some(next) = self.next().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.tick();
            self.net.clear();
        }
        self.now = until;
    }

    fn next(&self) -> Option<Time> {
        self.ends
            .iter()
            .filter_map(|end| end.contact.next_deadline())
            .min()
    }
}
