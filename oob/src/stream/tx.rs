//! The sending end.

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
    /// Whose; nobody's any more, when it was given up after it had been sent.
    pub(crate) id: Option<SendId>,
    pub(crate) tag: u32,
    pub(crate) body: Bytes,
    pub(crate) deadline: Time,
    /// When it was sent, if that was once.
    pub(crate) sent_at: Option<Time>,
}

impl Message {
    fn charge(&self) -> u32 {
        charge(self.body.len())
    }
}

#[derive(Debug)]
pub(crate) struct Tx {
    /// The place of the first message of the queue.
    base: Seq,
    queue: VecDeque<Message>,
    /// How many of the queue were sent over the present path.
    sent: usize,
    /// How many were ever sent.
    high: usize,
    /// Of the whole queue.
    charge: usize,
    /// Of the first `sent`.
    flight: u64,
    /// For how much the receiver has room.
    window: u32,
    /// How much the path is trusted with: all, until something was lost.
    pace: u32,
    srtt: Option<Duration>,
    tries: u32,
    timer: Time,
    /// No message has a deadline before this.
    soonest: Time,
    /// No replay before this: one a round trip.
    replay_after: Time,
    /// Nothing leaves before this: a relay has asked for patience.
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

    /// Bytes, and what is counted for each message, that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.charge
    }

    pub(crate) fn push(&mut self, now: Time, rto: Duration, message: Message) {
        self.charge += message.charge() as usize;
        self.soonest = self.soonest.min(message.deadline);
        self.queue.push_back(message);
        // Should nothing become of it, somebody looks.
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

    /// Whether messages wait for the receiver to have room, and nothing is on its way that would bring news of it.
    pub(crate) fn is_shut(&self) -> bool {
        !self.queue.is_empty() && self.window == 0 && self.sent == 0
    }

    /// The next message to be sent: its place, how many places before it the stream begins, and itself.
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

    /// The receiver has everything before `ack`, and room for `window` more. Whose messages these were goes to `done`.
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
            return; // an old one, or one that cannot be
        }
        if self.window == 0 && window > 0 {
            // What came to a closed window was not kept.
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

    /// The receiver says that something is missing: from the beginning, unless that was done a moment ago.
    pub(crate) fn on_gap(&mut self, now: Time, config: &Config) {
        if now >= self.replay_after {
            self.replay_after = now + self.srtt.unwrap_or(config.rto).max(config.rto_min);
            self.back();
        }
    }

    /// The path is another one: what was not acknowledged is sent again over it.
    pub(crate) fn replay(&mut self, now: Time, config: &Config) {
        self.back();
        self.not_before = Time::ZERO;
        self.pace = config.window;
        self.tries = 0;
        self.rearm(now, config);
    }

    /// A relay could not pass something on: try again soon, and then less and less soon.
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

    /// When [`Tx::late`] or [`Tx::expire`] have something to do.
    pub(crate) fn next_deadline(&self) -> Time {
        self.timer.min(self.soonest)
    }

    /// Whether nothing was heard for too long. What was sent then goes again, one message first.
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
                // Its place is taken: an empty message that is nobody's goes there.
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

    /// What is nobody's at the beginning of the stream is not sent at all: the stream begins later.
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

    /// Gives up everything.
    pub(crate) fn clear(&mut self, config: &Config, done: &mut Vec<Message>) {
        let base = self.base.plus(self.high as u32);
        done.extend(self.queue.drain(..).filter(|message| message.id.is_some()));
        *self = Self::new(config, base);
    }
}
