//! The calls for users of a node.

use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_fabric::timers::Timers;

use super::codec::{LOOK_UP, Writer};
use super::{Key, Node, Stream};
use crate::bytes::Bytes;
use crate::contact::Contact;
use crate::event::{Event, OpId, RecvError, RecvId, SendError, SendId, Status};
use crate::name::{From, Name};
use crate::rml::{Arrived, RESERVED};
use crate::stream::{Message, Tx, charge};
use crate::transport::Loss;
use crate::wire::{Lane, Seq};

impl Node {
    /// Starts: looks for the parent. The root has none, and is ready at once.
    pub fn start(&mut self, now: Time) {
        self.at(now);
        self.seek();
        self.settle();
    }

    /// Records where a process can be reached, and its epoch if that is known.
    pub fn learn(&mut self, now: Time, contact: Contact) {
        self.at(now);
        self.learned(contact);
        self.settle();
    }

    /// Sends a message. [`Event::Sent`] reports how it ended, after `within` (or the configured time) at the
    /// latest.
    ///
    /// # Errors
    /// Why it was not started; no event follows then.
    pub fn send(
        &mut self,
        now: Time,
        to: Name,
        tag: u32,
        body: Bytes,
        within: Option<Duration>,
    ) -> Result<SendId, SendError> {
        self.at(now);
        if tag <= RESERVED {
            return Err(SendError::Reserved(tag));
        }
        if !self.is_process(to) {
            return Err(SendError::UnknownPeer(to));
        }
        if self.ended {
            return Err(SendError::Ended);
        }
        if body.len() > self.config.longest {
            return Err(SendError::TooLong {
                length: body.len(),
                limit: self.config.longest,
            });
        }
        if to == self.config.name {
            return self.send_to_self(tag, body);
        }
        let ix = self.peer(to);
        if self.of(ix).lost {
            return Err(SendError::Lost(to));
        }
        let waiting = self.of(ix).lanes[Lane::User.index()]
            .as_ref()
            .map_or(0, |stream| stream.tx.waiting());
        let more = charge(body.len()) as usize;
        let full = waiting > 0 && waiting + more > self.config.pending;
        if full || (self.pending > 0 && self.pending + more > self.config.pending_total) {
            self.wanted.insert(ix);
            return Err(SendError::Full { peer: to, waiting });
        }
        let deadline = self.now + within.unwrap_or(self.config.give_up);
        let send = self.queue(ix, Lane::User, tag, body, deadline);
        self.settle();
        Ok(send)
    }

    /// Sends one message to many peers, without copying it.
    pub fn send_many(
        &mut self,
        now: Time,
        to: &[Name],
        tag: u32,
        body: &Bytes,
        within: Option<Duration>,
    ) -> Vec<Result<SendId, SendError>> {
        to.iter()
            .map(|&to| self.send(now, to, tag, body.clone(), within))
            .collect()
    }

    /// Cancels a send. It ends as [`Status::Cancelled`], unless it has ended.
    pub fn cancel_send(&mut self, now: Time, to: Name, send: SendId) {
        self.at(now);
        let Some(&ix) = self.index.get(&to) else { return };
        let mut done = Vec::new();
        if let Some(stream) = &mut self.of_mut(ix).lanes[Lane::User.index()] {
            stream.tx.cancel(send, &mut done);
        }
        self.finish(ix, Lane::User, done, Status::Cancelled);
        self.dirty.insert((ix, Lane::User));
        self.settle();
    }

    fn send_to_self(&mut self, tag: u32, body: Bytes) -> Result<SendId, SendError> {
        let (me, more) = (self.config.name, charge(body.len()) as usize);
        if let Some(recv) = self.rml.matched(me, tag) {
            self.received(recv, Arrived { from: me, tag, body });
        } else {
            let waiting = self.rml.waiting();
            if waiting + more > self.config.unmatched_total {
                return Err(SendError::Full { peer: me, waiting });
            }
            self.rml.keep(Arrived { from: me, tag, body });
        }
        let send = SendId(self.number());
        self.emit(Event::Sent {
            send,
            to: me,
            tag,
            status: Status::Delivered,
        });
        Ok(send)
    }

    /// Posts a receive: of one message, or of all until it is cancelled. Messages that wait already are
    /// reported at once.
    ///
    /// # Errors
    /// [`RecvError`], when it cannot be posted.
    pub fn post(&mut self, now: Time, from: From, tag: u32, persistent: bool) -> Result<RecvId, RecvError> {
        self.at(now);
        let (recv, taken) = self.rml.post(from, tag, persistent)?;
        for arrived in taken {
            let less = charge(arrived.body.len());
            if let Some(&ix) = self.index.get(&arrived.from) {
                self.widen(ix, less);
            }
            self.received(recv, arrived);
        }
        self.reopen();
        self.settle();
        Ok(recv)
    }

    /// Cancels a receive; [`Event::Cancelled`] confirms it. Without effect if there is none.
    pub fn cancel(&mut self, now: Time, from: From, tag: u32) {
        self.at(now);
        if let Some(recv) = self.rml.cancel(from, tag) {
            self.emit(Event::Cancelled { recv });
        }
    }

    pub(super) fn received(&mut self, recv: RecvId, arrived: Arrived) {
        self.counters.delivered += 1;
        self.emit(Event::Received {
            recv,
            from: arrived.from,
            tag: arrived.tag,
            body: arrived.body,
        });
    }

    /// Requests the addresses of a process, through the tree; [`Event::Found`] has them. The process learns
    /// ours.
    pub fn look_up(&mut self, now: Time, name: Name) {
        self.at(now);
        if self.is_process(name) && name != self.config.name {
            let ix = self.peer(name);
            let mut writer = Writer::default();
            self.contact().encode(&mut writer.0);
            self.send_control(ix, LOOK_UP, writer.done(), None);
            self.settle();
        }
    }

    /// Broadcasts to all ranks of the job, including this one: [`Event::Broadcast`] there, and
    /// [`Event::BroadcastEnded`] here, after `within` and the configured margin at the latest.
    ///
    /// # Errors
    /// [`SendError`], when it was not started.
    pub fn broadcast(
        &mut self,
        now: Time,
        tag: u32,
        body: &Bytes,
        within: Duration,
    ) -> Result<OpId, SendError> {
        self.at(now);
        if self.ended {
            return Err(SendError::Ended);
        }
        if body.len() > self.config.longest / 2 {
            return Err(SendError::TooLong {
                length: body.len(),
                limit: self.config.longest / 2,
            });
        }
        let op = OpId(self.number());
        self.begin_cast(op, tag, body, within);
        self.timers
            .set(Key::Op(op), self.now + within + self.config.margin);
        self.settle();
        Ok(op)
    }

    /// Takes part in an all-gather: all ranks use the same number and each contributes something. Ends with
    /// [`Event::Gathered`] or [`Event::GatherFailed`], after `within` and twice the margin at the latest. A
    /// number is used once in a job.
    pub fn gather(&mut self, now: Time, id: u32, body: &Bytes, within: Duration) {
        self.at(now);
        self.begin_gather(id, body, within);
        self.settle();
    }

    /// Ends the node: all sends end, all links are closed, and nothing more is done.
    pub fn end(&mut self, now: Time) {
        self.at(now);
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        for ix in 0..self.peers.len() as u32 {
            for lane in Lane::ALL {
                self.fail(ix, lane, Status::Ended);
            }
        }
        self.end_casts();
        self.end_gathers();
        self.timers = Timers::new();
        self.dirty.clear();
        self.local.clear();
        let links: Vec<_> = self.links.keys().copied().collect();
        for (transport, link) in links {
            let why = Loss::Finished;
            self.command(transport, crate::transport::Command::Close { link, why });
        }
    }

    /// Queues a message in a stream.
    pub(super) fn queue(&mut self, ix: u32, lane: Lane, tag: u32, body: Bytes, deadline: Time) -> SendId {
        let send = SendId(self.number());
        self.pending += charge(body.len()) as usize;
        let (now, rto) = (self.now, self.config.rto);
        let message = Message {
            id: Some(send),
            tag,
            body,
            deadline,
            sent_at: None,
        };
        self.stream(ix, lane).tx.push(now, rto, message);
        self.dirty.insert((ix, lane));
        send
    }

    pub(super) fn stream(&mut self, ix: u32, lane: Lane) -> &mut Stream {
        let (config, peers) = (&self.config, &mut self.peers);
        peers[ix as usize].lanes[lane.index()].get_or_insert_with(|| {
            Box::new(Stream {
                tx: Tx::new(config, Seq(0)),
                rx: None,
                via: None,
                probed: false,
            })
        })
    }
}
