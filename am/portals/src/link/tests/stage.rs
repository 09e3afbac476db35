//! Two links, with rails between them that do what a story describes.

use std::time::Duration;

use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::{Body, Incarnation, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_paths::PathState;

use super::air::{self, Air, CAN, Ends};
use super::world::{Heard, head, length};
use crate::link::{Link, LinkConfig, PeerId};

/// As which each of them knows the other.
pub(crate) const PEER: PeerId = PeerId(1);

/// Two links with some rails between them.
pub(crate) struct Stage {
    pub(crate) links: [Link<Air>; 2],
    pub(crate) heard: [Heard; 2],
    pub(crate) sent: [u64; 2],
    pub(crate) ends: Vec<Ends>,
    pub(crate) now: Time,
}

pub(crate) fn can(latency_ns: u64, bandwidth: u64) -> Capabilities {
    let mut can = CAN;
    (can.estimate.latency_ns, can.estimate.bandwidth) = (latency_ns, bandwidth);
    can
}

pub(crate) fn within_host() -> Capabilities {
    let mut can = can(100, 10_000_000_000);
    (can.features.within_host, can.features.get) = (true, true);
    (can.limits.one_sided, can.limits.get_from) = (1 << 20, 4096);
    can
}

/// Two rails alike.
pub(crate) const TWO: [Capabilities; 2] = [CAN, CAN];

impl Stage {
    pub(crate) fn new(rails: &[Capabilities]) -> Self {
        Self::with(rails, LinkConfig::default())
    }

    pub(crate) fn with(rails: &[Capabilities], config: LinkConfig) -> Self {
        let mut links = [0, 1].map(|_| {
            let mut link = Link::new(config);
            link.add_peer();
            link
        });
        let mut ends = Vec::new();
        for can in rails {
            let pair = air::pair(*can);
            ends.push(pair[0].ends.clone());
            let address = pair[0].address();
            for (link, rail) in links.iter_mut().zip(pair) {
                let rail = link.add_rail(rail).expect("there is room");
                link.connect(PEER, rail, &address, Incarnation(1))
                    .expect("it is there");
            }
        }
        let heard = [0, 1].map(|_| Heard {
            long: 12_000,
            ..Heard::default()
        });
        let mut stage = Self {
            links,
            heard,
            sent: [0; 2],
            ends,
            now: Time::ZERO + Duration::from_secs(1),
        };
        stage.pass(0);
        stage
    }

    /// Polls all links, a few times; then lets this many milliseconds pass.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        loop {
            for _ in 0..4 {
                for (link, heard) in self.links.iter_mut().zip(&mut self.heard) {
                    link.poll(1000, heard);
                    link.progress(self.now);
                    link.poll(1000, heard);
                }
            }
            if self.now >= end {
                return;
            }
            self.now = end.min(self.now + Duration::from_millis(5));
        }
    }

    pub(crate) fn try_send(&mut self, side: usize, urgent: bool) -> Result<(), Refused> {
        let number = self.sent[side];
        let body = vec![number as u8; length(number, 12_000)];
        self.links[side].send(PEER, &mut head(1, number), Body::Bytes(&body), urgent)?;
        self.sent[side] += 1;
        Ok(())
    }

    pub(crate) fn send(&mut self, side: usize, count: u64) {
        for _ in 0..count {
            self.try_send(side, false).expect("there is room");
        }
    }

    /// Sends the next message that is short.
    pub(crate) fn send_short(&mut self, side: usize) {
        while length(self.sent[side], 12_000) > 2000 {
            self.send(side, 1);
        }
        self.send(side, 1);
    }

    pub(crate) fn state(&self, side: usize, at: usize) -> PathState {
        self.links[side].core.peers[1].states.state(at)
    }

    pub(crate) fn all_arrived(&mut self) {
        self.pass(10);
        for side in 0..2 {
            let heard = self.heard[1 - side].from.get(1).copied().unwrap_or(0);
            assert_eq!(
                heard,
                self.sent[side],
                "from side {side}: {:?}",
                self.links[side].explain()
            );
        }
    }

    /// The link goes at both ends.
    pub(crate) fn unplug(&mut self, at: usize) {
        self.ends[at]
            .borrow_mut()
            .iter_mut()
            .for_each(|end| end.silent = true);
        for side in 0..2 {
            air::tell(&self.ends[at], side, EventKind::LinkDown, 0);
        }
    }

    /// Both directions work again, in a new connection.
    pub(crate) fn plug(&mut self, at: usize, life: u32) {
        for end in self.ends[at].borrow_mut().iter_mut() {
            (end.silent, end.down) = (false, false);
            end.under_way.clear();
        }
        for side in 0..2 {
            air::tell(&self.ends[at], side, EventKind::LinkUp, 0);
            air::tell(&self.ends[at], side, EventKind::PeerUp, life);
        }
    }

    pub(crate) fn bytes(&self, at: usize) -> usize {
        self.ends[at].borrow()[0].bytes
    }
}

/// The numbers of what is under way over a rail from side 0.
pub(crate) fn under_way(ends: &Ends) -> Vec<u32> {
    let ends = ends.borrow();
    let messages = ends[0].under_way.iter().filter(|(_, bytes)| bytes[0] == 1);
    let seq = |bytes: &[u8]| {
        bytes[4..8]
            .iter()
            .rev()
            .fold(0, |seq, byte| seq << 8 | u32::from(*byte))
    };
    messages.map(|(_, bytes)| seq(bytes)).collect()
}
