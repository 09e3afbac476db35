//! One rank: keeps sends and receives open, with and without wildcards, until it has sent and received all of its
//! messages.
//!
//! Most receives name a message that will come; but wildcards take what others were meant for, so that some receives
//! wait in vain. A rank that got nothing for a while cancels its oldest receive and posts one that takes anything.

use std::time::Duration;

use doorbell_fabric::memory::Region;
use doorbell_fabric::time::Time;
use doorbell_pml::{Rank, Source};
use doorbell_sim::Random;

use crate::books::{Books, IGNORED, Spec};
use crate::end::{End, Ended};
use crate::failure::Kind;
use crate::plan::{MOST, Message, Plan, tag};
use crate::shape::Shape;

/// A rank that got nothing for so long looks for receives that wait in vain.
const PATIENCE: Duration = Duration::from_micros(100);
/// Messages up to here are sometimes sent by `inject`.
const INJECTED: usize = 512;

struct Open<R> {
    request: R,
    /// Its name in the books; of a send, nothing.
    name: u64,
    buffer: Region,
}

/// One rank of a job.
pub(crate) struct Player<E: End> {
    pub(crate) end: E,
    rank: u32,
    ranks: u32,
    random: Random,
    shape: Shape,
    /// The next of our messages to be sent.
    next: usize,
    /// The next message of each sender that a receive will be posted for.
    meant: Vec<usize>,
    sends: Vec<Open<E::Request>>,
    receives: Vec<Open<E::Request>>,
    pool: Vec<Region>,
    books: Books,
    expected: usize,
    last: Time,
    /// When something was last received, or looked for.
    looked: Time,
}

impl<E: End> Player<E> {
    pub(crate) fn new(end: E, plan: &Plan, rank: u32, ranks: u32, seed: u64, shape: Shape) -> Self {
        Self {
            end,
            rank,
            ranks,
            random: Random::for_part(seed, &[4, u64::from(rank)]),
            shape,
            next: 0,
            meant: vec![0; ranks as usize],
            sends: Vec::new(),
            receives: Vec::new(),
            pool: Vec::new(),
            books: Books::new(plan, rank, ranks),
            expected: plan.expected(rank),
            last: Time::ZERO,
            looked: Time::ZERO,
        }
    }

    /// Whether everything was sent, and everything received.
    pub(crate) fn is_done(&self, plan: &Plan) -> bool {
        self.books.got == self.expected
            && self.receives.is_empty()
            && self.sends.is_empty()
            && self.next == plan.by_sender[self.rank as usize].len()
    }

    /// When something was last received.
    pub(crate) fn last(&self) -> Time {
        self.last
    }

    /// When it wants to be asked again, beside the wishes of its rails.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let waits = self.books.got < self.expected;
        let own = waits.then(|| self.looked + PATIENCE + Duration::from_nanos(1));
        own.into_iter().chain(self.end.next_deadline()).min()
    }

    /// What it waits for.
    pub(crate) fn explain(&self, plan: &Plan) -> String {
        let mut text = self.books.missing(plan);
        for open in self.sends.iter().chain(&self.receives).take(4) {
            if let Some(why) = self.end.explain(&open.request) {
                text.push_str(&format!("\n  {why}"));
            }
        }
        text
    }

    /// One step; returns whether it did anything.
    pub(crate) fn step(&mut self, plan: &Plan, now: Time) -> Result<bool, Kind> {
        let mut worked = self.post_receives(plan)?;
        worked |= self.post_sends(plan)?;
        worked |= self.end.progress(now);
        worked |= self.end_receives(plan, now)?;
        worked |= self.end_sends()?;
        if now.since(self.looked) > PATIENCE && self.books.got < self.expected {
            worked |= self.cancel_oldest(plan)?;
            self.looked = now;
        }
        if self.books.got == self.expected {
            while !self.receives.is_empty() {
                worked = true;
                if !self.cancel_oldest(plan)? {
                    return Err(Kind::Twice(format!(
                        "rank {}: a receive was met after the last message",
                        self.rank
                    )));
                }
            }
        }
        Ok(worked)
    }

    fn buffer(&mut self) -> Result<Region, Kind> {
        match self.pool.pop() {
            Some(region) => Ok(region),
            None => Region::new(MOST).map_err(|error| Kind::Other(error.to_string())),
        }
    }

    fn post_receives(&mut self, plan: &Plan) -> Result<bool, Kind> {
        let mut worked = false;
        while self.receives.len() < self.shape.depth && self.books.got + self.receives.len() < self.expected {
            let spec = self.choose(plan);
            self.post_receive(spec)?;
            worked = true;
        }
        Ok(worked)
    }

    /// A receive for a message that will come; of every kind that there is.
    fn choose(&mut self, plan: &Plan) -> Spec {
        let from = self.random.below(self.ranks.into()) as u32;
        let meant = &mut self.meant[from as usize];
        // Now and then one that comes later.
        let skip = if self.random.below(4) == 0 {
            self.random.below(3) as usize
        } else {
            0
        };
        let message = plan.pair(from, self.rank).get(*meant + skip);
        *meant += 1;
        let any = Spec {
            from: Source::Any,
            tag: tag(0),
            ignore: u64::MAX,
        };
        let Some(message) = message else {
            return any;
        };
        let exact = Spec {
            from: Source::Rank(Rank(from)),
            tag: message.tag,
            ignore: 0,
        };
        match self.random.below(10) {
            0..=4 => exact,
            5 => Spec {
                from: Source::Any,
                ..exact
            },
            6 => Spec {
                ignore: u64::MAX,
                ..exact
            },
            7 => Spec {
                ignore: IGNORED[1],
                ..exact
            },
            8 => Spec {
                from: Source::Any,
                ignore: IGNORED[1],
                ..exact
            },
            _ => any,
        }
    }

    fn post_receive(&mut self, spec: Spec) -> Result<(), Kind> {
        let buffer = self.buffer()?;
        let request = self.end.receive(spec, buffer.whole());
        let request = request.map_err(|error| self.failed("a receive", &error))?;
        let name = self.books.posted(spec);
        self.receives.push(Open {
            request,
            name,
            buffer,
        });
        Ok(())
    }

    fn post_sends(&mut self, plan: &Plan) -> Result<bool, Kind> {
        let mut worked = false;
        while self.sends.len() < self.shape.depth && self.random.below(100) < self.shape.eagerness {
            let Some(message) = plan.by_sender[self.rank as usize].get(self.next) else {
                break;
            };
            self.next += 1;
            worked = true;
            self.post_send(plan, message)?;
        }
        Ok(worked)
    }

    fn post_send(&mut self, plan: &Plan, message: &Message) -> Result<(), Kind> {
        if message.length <= INJECTED && !message.synchronous && self.random.below(2) == 0 {
            let mut bytes = [0; INJECTED];
            plan.fill(message, |at, piece| {
                bytes[at..at + piece.len()].copy_from_slice(piece)
            });
            let taken = self.end.inject(message, &bytes[..message.length]);
            if taken.map_err(|error| self.failed("an inject", &error))? {
                return Ok(());
            }
        }
        let buffer = self.buffer()?;
        plan.fill(message, |at, piece| _ = buffer.write(at, piece));
        let slice = buffer.slice(0, message.length);
        let payload = slice.ok_or_else(|| Kind::Other("a message longer than its buffer".to_owned()))?;
        let sent = self.end.send(message, payload);
        match sent.map_err(|error| self.failed("a send", &error))? {
            None => self.reuse(buffer),
            Some(request) => self.sends.push(Open {
                request,
                name: 0,
                buffer,
            }),
        }
        Ok(())
    }

    fn end_receives(&mut self, plan: &Plan, now: Time) -> Result<bool, Kind> {
        let (mut at, mut worked) = (0, false);
        while at < self.receives.len() {
            let Some(ended) = self.end.test(&mut self.receives[at].request) else {
                at += 1;
                continue;
            };
            let Open { name, buffer, .. } = self.receives.remove(at);
            let status = ended.well().map_err(|why| self.failed("a receive", &why))?;
            let whole = buffer.whole();
            let bytes = whole.as_shared().take(status.length);
            self.books.received(plan, name, status.from, status.tag, bytes)?;
            self.reuse(buffer);
            (self.last, self.looked) = (now, now);
            worked = true;
        }
        Ok(worked)
    }

    fn end_sends(&mut self) -> Result<bool, Kind> {
        let (mut at, mut worked) = (0, false);
        while at < self.sends.len() {
            let Some(ended) = self.end.test(&mut self.sends[at].request) else {
                at += 1;
                continue;
            };
            let Open { buffer, .. } = self.sends.swap_remove(at);
            ended.well().map_err(|why| self.failed("a send", &why))?;
            self.reuse(buffer);
            worked = true;
        }
        Ok(worked)
    }

    /// Cancels the oldest receive that can be; in its place comes one that takes anything, when messages are missing.
    fn cancel_oldest(&mut self, plan: &Plan) -> Result<bool, Kind> {
        let Some(at) = (0..self.receives.len()).find(|&at| self.end.cancel(&mut self.receives[at].request))
        else {
            return Ok(false);
        };
        let Open {
            mut request,
            name,
            buffer,
        } = self.receives.remove(at);
        match self.end.test(&mut request) {
            Some(Ended::Cancelled) => {}
            other => return Err(Kind::Other(format!("a cancelled receive ended with {other:?}"))),
        }
        self.books.cancelled(plan, name)?;
        self.reuse(buffer);
        if self.books.got < self.expected {
            self.post_receive(Spec {
                from: Source::Any,
                tag: tag(0),
                ignore: u64::MAX,
            })?;
        }
        Ok(true)
    }

    /// The memory is ours again. What the next message leaves of this one must not look right.
    fn reuse(&mut self, buffer: Region) {
        buffer.write(0, &[0xdb; 64]);
        self.pool.push(buffer);
    }

    fn failed(&self, what: &str, error: &str) -> Kind {
        Kind::Other(format!("rank {}: {what} failed: {error}", self.rank))
    }
}
