//! Frames on their way: where they go next, and what happens when a link has no room, or there is none.

use super::Node;
use super::codec::Writer;
use crate::bytes::Bytes;
use crate::config::Routing;
use crate::name::Name;
use crate::path_choice::{LinkKey, Parcel};
use crate::routed::Next;
use crate::transport::{Command, TransportId};
use crate::wire::{Frame, HOPS_MAX, Head, Kind, Lane, Seq};

/// Maximum messages that a stream sends before the next one has its turn.
const QUANTUM: usize = 16;

/// Why a stream stopped sending.
enum Stop {
    /// Nothing more may be sent now.
    Done,
    /// Its turn is over.
    Turn,
    /// It waits for room on the links of this neighbour.
    Room(u32),
    /// There is no path now.
    NoPath,
}

impl Node {
    /// Returns the next neighbour on the route to a process.
    pub(super) fn route(&mut self, to: u32, from_parent: bool) -> Option<u32> {
        let peer = self.of(to);
        if peer.neighbour || peer.hop.as_ref().is_some_and(|hop| !hop.links.is_empty()) {
            return Some(to);
        }
        let (name, direct) = (peer.name, self.is_direct(to));
        for transport in 0..self.config.transports.len() {
            match self.config.transports[transport].routing {
                Routing::Direct if direct => return Some(to),
                Routing::Direct => {}
                Routing::Tree => return self.along_the_tree(name, from_parent),
            }
        }
        None
    }

    fn along_the_tree(&mut self, to: Name, from_parent: bool) -> Option<u32> {
        if to.job != self.config.name.job {
            // Another job is reached over the two roots.
            return match self.routed.parent {
                Some(parent) => Some(self.rank(parent)),
                None if self.is_root() && to.rank != 0 => Some(self.peer(Name::new(to.job, 0))),
                None => None,
            };
        }
        match self.routed.next(to.rank, from_parent) {
            Next::Down(rank) | Next::Up(rank) => Some(self.rank(rank)),
            Next::Nowhere => None,
        }
    }

    /// Relays a frame that a neighbour sent for another process.
    pub(super) fn pass_on(&mut self, from: u32, head: &Head, body: Bytes) {
        let came = self.of(from).name;
        let from_parent = came.job == self.config.name.job && self.routed.parent == Some(came.rank);
        if head.hops >= HOPS_MAX {
            self.counters.dropped += 1;
            return;
        }
        let head = Head {
            hops: head.hops + 1,
            ..*head
        };
        let to = self.peer(head.destination);
        let path = self.route(to, from_parent).filter(|&hop| hop != from);
        if path.is_none() {
            self.counters.dropped += 1;
            if matches!(head.kind, Kind::Data | Kind::Probe) {
                self.nack(&head);
            }
            return;
        }
        self.counters.relayed += u64::from(head.kind == Kind::Data);
        let job = self.job_of(head.origin, head.destination);
        self.post_parcel(Parcel {
            frame: Frame::new(&head, job, body),
            to: head.destination,
            own: false,
            from_parent,
        });
    }

    /// Returns the job of both, if it is ours, so that the header can omit it. Links to processes of other
    /// jobs use long headers.
    fn job_of(&self, one: Name, other: Name) -> Option<u64> {
        let ours = self.config.name.job;
        (one.job == ours && other.job == ours).then_some(ours)
    }

    /// Informs an origin that its destination cannot be reached from here.
    fn nack(&mut self, about: &Head) {
        let to = self.peer(about.origin);
        let body = Writer::default().name(about.destination).done();
        let head = Head {
            kind: Kind::Nack,
            lane: about.lane,
            sequence: about.sequence,
            ..self.head(to, about.lane)
        };
        let head = Head {
            to_epoch: about.epoch,
            ..head
        };
        self.post_frame(to, &head, body);
    }

    /// Returns an empty header for a peer.
    pub(super) fn head(&self, to: u32, lane: Lane) -> Head {
        Head {
            kind: Kind::Probe,
            lane,
            origin: self.config.name,
            epoch: self.config.epoch,
            destination: self.of(to).name,
            to_epoch: self.of(to).epoch,
            tag: 0,
            sequence: Seq(0),
            back: 0,
            ack: None,
            gap: false,
            hops: 0,
        }
    }

    /// Sends a frame that is not a message of a stream.
    pub(super) fn post_frame(&mut self, to: u32, head: &Head, body: Bytes) {
        let job = self.job_of(head.origin, head.destination);
        self.post_parcel(Parcel {
            frame: Frame::new(head, job, body),
            to: self.of(to).name,
            own: false,
            from_parent: false,
        });
    }

    /// Gives a frame to the next neighbour's link, or queues it within bounds.
    pub(super) fn post_parcel(&mut self, parcel: Parcel) {
        if self.ended {
            return;
        }
        let to = self.peer(parcel.to);
        let Some(hop) = self.route(to, parcel.from_parent) else {
            self.counters.dropped += 1;
            return;
        };
        match self.link_of(hop) {
            Some(key) if self.has_room(key) && self.hop(hop).relay.is_empty() => self.give(key, parcel),
            link => {
                let (most, length) = (self.config.relay, parcel.frame.length());
                let record = self.hop(hop);
                if record.relay_bytes > 0 && record.relay_bytes + length > most {
                    self.counters.dropped += 1;
                    return;
                }
                record.relay_bytes += length;
                record.relay.push_back(parcel);
                if link.is_none() {
                    self.pursue(hop);
                }
            }
        }
    }

    /// Returns the best link to a neighbour.
    fn link_of(&self, ix: u32) -> Option<LinkKey> {
        self.of(ix).hop.as_ref()?.links.first().copied()
    }

    fn has_room(&self, key: LinkKey) -> bool {
        self.links
            .get(&key)
            .is_some_and(|link| link.bytes < self.config.link_window)
    }

    fn give(&mut self, key: LinkKey, parcel: Parcel) {
        let Some(link) = self.links.get_mut(&key) else {
            return;
        };
        link.bytes += parcel.frame.length();
        let frame = parcel.frame.clone();
        link.given.push_back(parcel);
        self.counters.frames += 1;
        let (transport, link): (TransportId, _) = key;
        self.command(transport, Command::Send { link, frame });
    }

    /// Uses new room on the link to a neighbour: first for frames of others, then for our own.
    pub(super) fn pump_hop(&mut self, ix: u32) {
        while let Some(key) = self.link_of(ix).filter(|&key| self.has_room(key)) {
            let hop = self.hop(ix);
            let Some(parcel) = hop.relay.pop_front() else {
                break;
            };
            hop.relay_bytes -= parcel.frame.length();
            self.give(key, parcel);
        }
        if self.link_of(ix).is_some_and(|key| self.has_room(key)) {
            let waiting = std::mem::take(&mut self.hop(ix).waiting);
            for (stream, lane) in waiting {
                self.pump(stream, lane);
            }
        }
    }

    /// Sends what a stream may send.
    pub(super) fn pump(&mut self, ix: u32, lane: Lane) {
        if self.ended || self.of(ix).lanes[lane.index()].is_none() {
            return;
        }
        if self.of(ix).lost && lane == Lane::User {
            return self.fail(ix, lane, crate::event::Status::PeerLost);
        }
        match self.pump_until(ix, lane) {
            Stop::Done => {}
            Stop::Turn => _ = self.dirty.insert((ix, lane)),
            Stop::Room(hop) => {
                let record = self.hop(hop);
                if !record.waiting.contains(&(ix, lane)) {
                    record.waiting.push_back((ix, lane));
                }
                self.pursue(hop);
            }
            Stop::NoPath => {}
        }
        self.arm(ix, lane);
    }

    fn pump_until(&mut self, ix: u32, lane: Lane) -> Stop {
        for _ in 0..QUANTUM {
            let (now, config) = (self.now, &self.config);
            let stream = self.of(ix).lanes[lane.index()].as_ref();
            if !stream.is_some_and(|stream| stream.tx.is_ready(now, config)) {
                return Stop::Done;
            }
            let Some(hop) = self.route(ix, false) else {
                return Stop::NoPath;
            };
            let key = match self.link_of(hop) {
                Some(key) if self.has_room(key) => key,
                // With a link, only room is missing.
                _ => return Stop::Room(hop),
            };
            if !self.of(ix).epoch.is_known() {
                self.probe(ix, lane);
                return Stop::Done;
            }
            self.transmit(ix, lane, key);
        }
        Stop::Turn
    }

    fn transmit(&mut self, ix: u32, lane: Lane, key: LinkKey) {
        let head = self.head(ix, lane);
        let (now, most) = (self.now, self.window_of(lane));
        let (config, peers) = (&self.config, &mut self.peers);
        let Some(stream) = &mut peers[ix as usize].lanes[lane.index()] else {
            return;
        };
        let ack = stream.rx.as_mut().map(|rx| {
            let window = rx.window(most);
            rx.acknowledged(window);
            (rx.expected(), window)
        });
        let Some((sequence, back, message)) = stream.tx.transmit(now, config) else {
            return;
        };
        let head = Head {
            kind: Kind::Data,
            tag: message.tag,
            sequence,
            back,
            ack,
            ..head
        };
        let body = message.body.clone();
        stream.via = Some(key);
        let to = head.destination;
        self.counters.messages += 1;
        let job = self.job_of(head.origin, to);
        self.give(
            key,
            Parcel {
                frame: Frame::new(&head, job, body),
                to,
                own: true,
                from_parent: false,
            },
        );
    }
}
