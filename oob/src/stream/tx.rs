//! The sending end of a stream.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::charge;
use crate::bytes::Bytes;
use crate::config::Config;
use crate::event::SendId;
use crate::wire::Seq;

/// A message that is not acknowledged.
#[derive(Debug)]
pub(crate) struct Message {
    /// The send it belongs to; `None` when that was given up after the message had been sent.
    pub(crate) id: Option<SendId>,
    pub(crate) tag: u32,
    pub(crate) body: Bytes,
    pub(crate) deadline: Time,
    /// The time at which it was sent, if it was sent exactly once.
    pub(crate) sent_at: Option<Time>,
}

impl Message {
    fn charge(&self) -> u32 {
        charge(self.body.len())
    }
}

#[derive(Debug)]
pub(crate) struct Tx {
    /// The position of the first message in the queue.
    base: Seq,
    queue: VecDeque<Message>,
    /// Number of queued messages sent over the present path.
    sent: usize,
    /// Number of queued messages ever sent.
    high: usize,
    /// Total charge of the queue.
    charge: usize,
    /// Total charge of the first `sent` messages.
    flight: u64,
    /// The receiver's window.
    window: u32,
    /// The congestion window: unlimited until something was lost.
    pace: u32,
    srtt: Option<Duration>,
    tries: u32,
    timer: Time,
    /// No message has an earlier deadline.
    soonest: Time,
    /// No replay before this time: at most one per round trip.
    replay_after: Time,
    /// Nothing is sent before this time: a relay has requested a wait.
    not_before: Time,
}

impl Tx {
    pub(crate) fn new(config: &Config, base: Seq) -> Self {
        Self {
            base,
            queue: VecDeque::new(),
            sent: 0,
            high: 0,
            charge: 0,
            flight: 0,
            window: config.unmatched,
            pace: config.window,
            srtt: None,
            tries: 0,
            timer: Time::NEVER,
            soonest: Time::NEVER,
            replay_after: Time::ZERO,
            not_before: Time::ZERO,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the bytes (and the overhead per message) that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.charge
    }

    pub(crate) fn push(&mut self, now: Time, rto: Duration, message: Message) {
        self.charge += message.charge() as usize;
        self.soonest = self.soonest.min(message.deadline);
        self.queue.push_back(message);
        // Make sure that a timer runs in case nothing is sent.
        if self.timer == Time::NEVER {
            self.timer = now + rto;
        }
    }

    /// Whether something could be sent if there were a link.
    pub(crate) fn is_ready(&self, now: Time, config: &Config) -> bool {
        let Some(message) = self.queue.get(self.sent) else {
            return false;
        };
        if self.window == 0 || now < self.not_before || self.sent >= usize::from(config.window_messages) {
            return false;
        }
        let room = config.window.min(self.window).min(self.pace);
        self.sent == 0 || self.flight + u64::from(message.charge()) <= u64::from(room)
    }

    /// Whether messages wait for the receiver's window, and nothing in flight will bring an update of it.
    pub(crate) fn is_shut(&self) -> bool {
        !self.queue.is_empty() && self.window == 0 && self.sent == 0
    }

    /// Returns the next message to send, its position, and how many positions before it the stream begins.
    pub(crate) fn transmit(&mut self, now: Time, config: &Config) -> Option<(Seq, u16, &Message)> {
        if !self.is_ready(now, config) {
            return None;
        }
        let at = self.sent;
        let again = at < self.high;
        self.sent += 1;
        self.high = self.high.max(self.sent);
        let rto = self.rto(config);
        if at == 0 || self.timer == Time::NEVER {
            self.timer = now + rto;
        }
        let message = self.queue.get_mut(at)?;
        message.sent_at = (!again).then_some(now);
        self.flight += u64::from(message.charge());
        Some((
            self.base.plus(at as u32),
            u16::try_from(at).unwrap_or(u16::MAX),
            message,
        ))
    }

    /// Takes an acknowledgement of everything before `ack`, with a window. The acknowledged messages go to
    /// `done`.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        ack: Seq,
        window: u32,
        config: &Config,
        done: &mut Vec<Message>,
    ) {
        let count = self.base.until(ack);
        if count < 0 || count as usize > self.high {
            return; // old or invalid
        }
        if self.window == 0 && window > 0 {
            // Messages that arrived at a closed window were dropped.
            self.back();
        }
        self.window = window;
        if count == 0 {
            return;
        }
        for _ in 0..count {
            let Some(message) = self.queue.pop_front() else {
                break;
            };
            let charge = message.charge();
            self.charge -= charge as usize;
            if self.sent > 0 {
                self.sent -= 1;
                self.flight -= u64::from(charge);
            }
            self.high -= 1;
            self.pace = self
                .pace
                .saturating_add(charge.saturating_mul(2))
                .min(config.window);
            if let Some(at) = message.sent_at {
                self.measure(now.since(at));
            }
            done.push(message);
        }
        self.base = ack;
        self.tries = 0;
        self.rearm(now, config);
    }

    /// Handles a report of a gap: sends again from the beginning, unless that was just done.
    pub(crate) fn on_gap(&mut self, now: Time, config: &Config) {
        if now >= self.replay_after {
            self.replay_after = now + self.srtt.unwrap_or(config.rto).max(config.rto_min);
            self.back();
        }
    }

    /// Sends unacknowledged messages again over another path.
    pub(crate) fn replay(&mut self, now: Time, config: &Config) {
        self.back();
        self.not_before = Time::ZERO;
        self.pace = config.window;
        self.tries = 0;
        self.rearm(now, config);
    }

    /// Backs off after a relay could not pass something on.
    pub(crate) fn on_nack(&mut self, now: Time, config: &Config) {
        if self.sent > 0 {
            self.back();
            self.pace = 0;
            let wait = config.rto_min * (1 << self.tries.min(8));
            self.tries += 1;
            self.timer = now + wait.min(config.rto_max);
            self.not_before = self.timer;
        }
    }

    fn back(&mut self) {
        self.sent = 0;
        self.flight = 0;
    }

    fn measure(&mut self, sample: Duration) {
        self.srtt = Some(match self.srtt {
            Some(srtt) => (srtt * 7 + sample) / 8,
            None => sample,
        });
    }

    fn rto(&self, config: &Config) -> Duration {
        let measured = self
            .srtt
            .map_or(config.rto, |srtt| srtt * 3 + config.ack_delay * 2);
        let rto = measured.max(config.rto_min);
        rto.saturating_mul(1 << self.tries.min(10)).min(config.rto_max)
    }

    fn rearm(&mut self, now: Time, config: &Config) {
        self.timer = if self.queue.is_empty() {
            Time::NEVER
        } else {
            now + self.rto(config)
        };
    }

    /// Returns when [`Tx::late`] or [`Tx::expire`] is due.
    pub(crate) fn next_deadline(&self) -> Time {
        self.timer.min(self.soonest)
    }

    /// Whether nothing was acknowledged for too long. Then messages are sent again, starting with one.
    pub(crate) fn late(&mut self, now: Time, config: &Config) -> bool {
        if self.timer > now {
            return false;
        }
        if self.queue.is_empty() {
            self.timer = Time::NEVER;
            return false;
        }
        self.back();
        self.pace = 0;
        self.tries += 1;
        self.timer = now + self.rto(config);
        true
    }

    /// Gives up messages whose time is over.
    pub(crate) fn expire(&mut self, now: Time, done: &mut Vec<Message>) {
        if self.soonest > now {
            return;
        }
        self.remove(done, |message| message.deadline <= now);
        let live = self.queue.iter().filter(|message| message.id.is_some());
        self.soonest = live.map(|message| message.deadline).min().unwrap_or(Time::NEVER);
    }

    /// Gives up one message.
    pub(crate) fn cancel(&mut self, id: SendId, done: &mut Vec<Message>) {
        self.remove(done, |message| message.id == Some(id));
    }

    fn remove(&mut self, done: &mut Vec<Message>, is: impl Fn(&Message) -> bool) {
        let mut at = 0;
        while let Some(message) = self.queue.get_mut(at) {
            if message.id.is_none() || !is(message) {
                at += 1;
                continue;
            }
            let charge = message.charge();
            if at < self.high {
                // Its position is taken: an empty message fills it.
                let body = std::mem::take(&mut message.body);
                let id = message.id.take();
                let less = (body.len()) as u64;
                self.charge -= less as usize;
                if at < self.sent {
                    self.flight -= less;
                }
                done.push(Message {
                    id,
                    tag: message.tag,
                    body,
                    deadline: message.deadline,
                    sent_at: None,
                });
                message.tag = crate::rml::VOID;
                at += 1;
            } else {
                self.charge -= charge as usize;
                done.extend(self.queue.remove(at));
            }
        }
        self.skip();
    }

    /// Removes given-up messages at the beginning: the stream begins later.
    fn skip(&mut self) {
        while self.queue.front().is_some_and(|message| message.id.is_none()) {
            let Some(message) = self.queue.pop_front() else {
                return;
            };
            self.charge -= message.charge() as usize;
            if self.sent > 0 {
                self.sent -= 1;
                self.flight -= u64::from(message.charge());
            }
            self.high -= 1;
            self.base = self.base.plus(1);
        }
        if self.queue.is_empty() {
            self.timer = Time::NEVER;
        }
    }

    /// Gives up all messages.
    pub(crate) fn clear(&mut self, config: &Config, done: &mut Vec<Message>) {
        let base = self.base.plus(self.high as u32);
        done.extend(self.queue.drain(..).filter(|message| message.id.is_some()));
        *self = Self::new(config, base);
    }
}
