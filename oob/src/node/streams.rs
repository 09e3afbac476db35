//! Frames at their ends: delivery, acknowledgements, time-outs, and the end of sends.

use doorbell_fabric::time::Time;

use super::codec::Reader;
use super::{Key, Node};
use crate::bytes::Bytes;
use crate::event::{Event, Status};
use crate::name::Epoch;
use crate::rml::{Arrived, VOID};
use crate::stream::{Arrival, Item, Message, Rx, charge};
use crate::wire::{Head, Kind, Lane, WINDOW_UNIT};

impl Node {
    /// Handles a frame for this process.
    pub(super) fn mine(&mut self, head: &Head, body: Bytes) {
        if self.ended || head.origin == self.config.name {
            return;
        }
        let ix = self.peer(head.origin);
        if head.epoch < self.of(ix).epoch {
            self.counters.stale += 1;
            return;
        }
        self.meet(ix, head.epoch);
        let meant = head.to_epoch == self.config.epoch;
        if !meant {
            // For another epoch of ours; a sender that knows only an earlier one is informed.
            self.counters.stale += u64::from(head.to_epoch.is_known());
            if head.to_epoch < self.config.epoch && matches!(head.kind, Kind::Data | Kind::Probe) {
                self.acknowledge(ix, head.lane);
            }
            return;
        }
        if let Some((ack, window)) = head.ack {
            let window = u32::from(window) * WINDOW_UNIT;
            self.acked(ix, head, ack, window);
        }
        match head.kind {
            Kind::Data => self.data(ix, head, body),
            Kind::Probe => self.acknowledge(ix, head.lane),
            Kind::Nack => self.nacked(head.lane, &body),
            Kind::Ack => {}
        }
    }

    /// Records the epoch of a peer, seen in a frame.
    pub(super) fn meet(&mut self, ix: u32, epoch: Epoch) {
        let known = self.of(ix).epoch;
        if epoch > known {
            self.of_mut(ix).epoch = epoch;
            if known.is_known() {
                self.restarted(ix, epoch);
            }
            self.touch(ix);
        }
        if self.of(ix).lost {
            self.mark_back(ix);
            self.proved_alive(ix);
        }
    }

    /// Handles the restart of a peer: everything in flight to and from the old epoch ends.
    fn restarted(&mut self, ix: u32, epoch: Epoch) {
        let peer = self.of(ix).name;
        for lane in Lane::ALL {
            self.fail(ix, lane, Status::PeerRestarted);
            self.of_mut(ix).lanes[lane.index()]
                .iter_mut()
                .for_each(|stream| stream.rx = None);
        }
        self.rml.purge(peer);
        self.of_mut(ix).lost = false;
        self.emit(Event::PeerRestarted { peer, epoch });
        let old = |link: &crate::path_choice::LinkKey, node: &Self| {
            node.links.get(link).is_some_and(|link| link.epoch < epoch)
        };
        let links = self
            .of(ix)
            .hop
            .as_ref()
            .map(|hop| hop.links.clone())
            .unwrap_or_default();
        if links.iter().any(|link| old(link, self)) {
            self.close(ix, crate::transport::Loss::Restarted);
        }
        self.kin_restarted(ix);
    }

    fn acked(&mut self, ix: u32, head: &Head, ack: crate::wire::Seq, window: u32) {
        let (now, config) = (self.now, &self.config);
        let Some(stream) = &mut self.peers[ix as usize].lanes[head.lane.index()] else {
            return;
        };
        let mut done = Vec::new();
        stream.probed = false;
        stream.tx.on_ack(now, ack, window, config, &mut done);
        if head.gap {
            stream.tx.on_gap(now, config);
        }
        self.finish(ix, head.lane, done, Status::Delivered);
        self.dirty.insert((ix, head.lane));
        if self.wanted.contains(&ix) {
            self.room(ix);
        }
    }

    /// Reports room for a peer whose queue is half empty again.
    fn room(&mut self, ix: u32) {
        let stream = self.of(ix).lanes[Lane::User.index()].as_ref();
        let waiting = stream.map_or(0, |stream| stream.tx.waiting());
        if waiting <= self.config.pending / 2 && self.pending <= self.config.pending_total / 2 {
            self.wanted.remove(&ix);
            let peer = self.of(ix).name;
            self.emit(Event::Room { peer });
        }
    }

    fn data(&mut self, ix: u32, head: &Head, body: Bytes) {
        let (now, config) = (self.now, self.config.clone());
        let first = crate::wire::Seq(head.sequence.0.wrapping_sub(u32::from(head.back)));
        let rx = self
            .stream(ix, head.lane)
            .rx
            .get_or_insert_with(|| Rx::new(first));
        let item = Item { tag: head.tag, body };
        match rx.arrive(now, head.sequence, head.back, item, &config) {
            Arrival::Duplicate => self.counters.duplicates += 1,
            Arrival::Kept | Arrival::Refused => {}
        }
        self.hand_up(ix, head.lane);
        self.arm(ix, head.lane);
    }

    /// Delivers the next messages, as long as there is room for them.
    fn hand_up(&mut self, ix: u32, lane: Lane) {
        loop {
            let (now, config, from) = (self.now, self.config.clone(), self.of(ix).name);
            let Some(rx) = self.rx(ix, lane) else { return };
            let Some(charge) = rx.ready() else { return };
            if lane == Lane::Control {
                let Some(item) = rx.pop(now, &config) else { return };
                self.control(ix, item.tag, &item.body);
                continue;
            }
            let own = rx.unmatched;
            let Some(tag) = rx.tag() else { return };
            let wanted = tag == VOID || self.rml.is_wanted(from, tag);
            let fits = own == 0 || own.saturating_add(charge) <= config.unmatched;
            let waiting = self.rml.waiting();
            let fits = fits && (waiting == 0 || waiting + charge as usize <= config.unmatched_total);
            let Some(rx) = self.rx(ix, lane) else { return };
            if !wanted && !fits {
                rx.refuse(now);
                self.shut.insert((ix, lane));
                return;
            }
            let Some(item) = rx.pop(now, &config) else { return };
            if item.tag == VOID {
                continue;
            }
            let arrived = Arrived {
                from,
                tag: item.tag,
                body: item.body,
            };
            if wanted {
                if let Some(recv) = self.rml.matched(from, arrived.tag) {
                    self.received(recv, arrived);
                }
            } else {
                rx.unmatched = own.saturating_add(charge);
                self.rml.keep(arrived);
            }
        }
    }

    fn rx(&mut self, ix: u32, lane: Lane) -> Option<&mut Rx> {
        self.of_mut(ix).lanes[lane.index()].as_mut()?.rx.as_mut()
    }

    /// Widens the window after a receive has taken messages of this peer.
    pub(super) fn widen(&mut self, ix: u32, less: u32) {
        let (now, most) = (self.now, self.window_of(Lane::User));
        if let Some(rx) = self.rx(ix, Lane::User) {
            rx.received(now, less, most);
            self.arm(ix, Lane::User);
        }
    }

    /// Informs senders with a closed window that there is room again.
    pub(super) fn reopen(&mut self) {
        if self.rml.waiting() > self.config.unmatched_total / 2 {
            return;
        }
        let (now, most) = (self.now, self.window_of(Lane::User));
        for (ix, lane) in std::mem::take(&mut self.shut) {
            if let Some(rx) = self.rx(ix, lane)
                && rx.is_shut(most)
            {
                if rx.window(most) > 0 {
                    rx.hurry(now);
                } else {
                    self.shut.insert((ix, lane));
                }
            }
            self.arm(ix, lane);
        }
    }

    /// Returns how much of one stream may wait here.
    pub(super) fn window_of(&self, lane: Lane) -> u32 {
        match lane {
            Lane::User if self.rml.waiting() >= self.config.unmatched_total => 0,
            _ => self.config.unmatched,
        }
    }

    /// Sends an acknowledgement without data.
    fn acknowledge(&mut self, ix: u32, lane: Lane) {
        let (head, most) = (self.head(ix, lane), self.window_of(lane));
        let mut ack = Head {
            kind: Kind::Ack,
            ..head
        };
        if let Some(rx) = self.rx(ix, lane) {
            let window = rx.window(most);
            rx.acknowledged(window);
            ack.ack = Some((rx.expected(), window));
            if let Some(gap) = rx.gap() {
                ack.gap = true;
                ack.sequence = gap;
            }
        }
        self.post_frame(ix, &ack, Bytes::default());
    }

    /// Probes a peer for its epoch and its window.
    pub(super) fn probe(&mut self, ix: u32, lane: Lane) {
        let head = self.head(ix, lane);
        let Some(stream) = &mut self.of_mut(ix).lanes[lane.index()] else {
            return;
        };
        if !std::mem::replace(&mut stream.probed, true) {
            self.post_frame(ix, &head, Bytes::default());
        }
    }

    /// Handles a nack of a relay.
    fn nacked(&mut self, lane: Lane, body: &Bytes) {
        let Some(name) = Reader::new(body).name() else {
            return;
        };
        let Some(&ix) = self.index.get(&name) else { return };
        let (now, config) = (self.now, &self.config);
        if let Some(stream) = &mut self.peers[ix as usize].lanes[lane.index()] {
            stream.tx.on_nack(now, config);
            self.arm(ix, lane);
        }
    }

    /// Schedules the next time at which a stream has something to do.
    pub(super) fn arm(&mut self, ix: u32, lane: Lane) {
        let stream = self.of(ix).lanes[lane.index()].as_ref();
        let at = stream.map_or(Time::NEVER, |stream| {
            let due = stream.rx.as_ref().map_or(Time::NEVER, Rx::due);
            stream.tx.next_deadline().min(due)
        });
        self.timers.set(Key::Stream(ix, lane), at);
    }

    pub(super) fn stream_due(&mut self, ix: u32, lane: Lane) {
        let (now, config) = (self.now, self.config.clone());
        let hopeless = !self.of(ix).epoch.is_known();
        let Some(stream) = &mut self.of_mut(ix).lanes[lane.index()] else {
            return;
        };
        let mut done = Vec::new();
        let reached = stream.via.is_some();
        stream.tx.expire(now, &mut done);
        let due = stream.rx.as_ref().is_some_and(|rx| rx.due() <= now);
        let late = stream.tx.late(now, &config);
        let shut = stream.tx.is_shut();
        if late {
            stream.probed = false;
        }
        let status = if hopeless || !reached {
            Status::Unreachable
        } else {
            Status::TimedOut
        };
        self.finish(ix, lane, done, status);
        if due {
            self.acknowledge(ix, lane);
        }
        if late {
            self.counters.timeouts += 1;
            if shut && !hopeless {
                self.probe(ix, lane);
            }
        }
        self.dirty.insert((ix, lane));
        self.arm(ix, lane);
    }

    /// Ends all sends of a stream.
    pub(super) fn fail(&mut self, ix: u32, lane: Lane, status: Status) {
        let (config, peers) = (&self.config, &mut self.peers);
        let Some(stream) = &mut peers[ix as usize].lanes[lane.index()] else {
            return;
        };
        let mut done = Vec::new();
        stream.tx.clear(config, &mut done);
        stream.via = None;
        self.finish(ix, lane, done, status);
        self.arm(ix, lane);
    }

    /// Reports how sends have ended.
    pub(super) fn finish(&mut self, ix: u32, lane: Lane, done: Vec<Message>, status: Status) {
        let to = self.of(ix).name;
        for message in done {
            let Some(send) = message.id else { continue };
            self.pending -= charge(message.body.len()) as usize;
            match lane {
                Lane::User => self.emit(Event::Sent {
                    send,
                    to,
                    tag: message.tag,
                    status,
                }),
                Lane::Control => {
                    if let Some(purpose) = self.purposes.remove(&send) {
                        self.purpose_ended(purpose, status);
                    }
                }
            }
        }
        if self.wanted.contains(&ix) {
            self.room(ix);
        }
    }
}
