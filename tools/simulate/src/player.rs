//! One rank: keeps sends and receives open, with and without wildcards, until it has sent and received all of
//! its messages.
//!
//! Most receives name a message that will come; but wildcards take what others were meant for, so that some
//! receives wait in vain. A rank that got nothing for a while cancels its oldest receive and posts one that
//! takes anything.
//!
//! Another rank may die (`--rails`). What needs it ends, with the error for it and with no other; all
//! else goes on.

use std::time::Duration;

use doorbell_fabric::memory::Region;
use doorbell_fabric::time::Time;
use doorbell_pml::{Rank, Source};
use doorbell_sim::Random;

use crate::books::{Books, IGNORED, Spec};
use crate::end::{End, Ended, Trouble};
use crate::failure::Kind;
use crate::plan::{MOST, Message, Plan, tag};
/// Messages up to here are sometimes sent by `inject`.
const INJECTED: usize = 512;

/// How ranks behave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Requests that a rank keeps open in each direction.
    pub(crate) depth: usize,
    /// Of 100 steps in which a rank could send, how many it uses.
    pub(crate) eagerness: u64,
    /// Contexts of the messages.
    pub(crate) contexts: u64,
    /// A rank that got nothing for this long looks for receives that wait in vain.
    pub(crate) patience: Duration,
    /// A rank rests now and then between two sends, for this long on average after each.
    pub(crate) rest: Duration,
}

struct Open<R> {
    request: R,
    /// Its name in the books; of a send, nothing.
    name: u64,
    buffer: Region,
    since: Time,
}

/// One rank of a job.
pub(crate) struct Player<E: End> {
    pub(crate) end: E,
    rank: u32,
    ranks: u32,
    random: Random,
    manners: Manners,
    /// The next of our messages to be sent.
    next: usize,
    /// The next message of each sender that a receive will be posted for.
    meant: Vec<usize>,
    sends: Vec<Open<E::Request>>,
    receives: Vec<Open<E::Request>>,
    pool: Vec<Region>,
    books: Books,
    /// Ranks that have died.
    dead: Vec<u32>,
    /// It sends nothing before.
    rested: Time,
    /// The longest that one of its requests has taken.
    pub(crate) longest: Duration,
    last: Time,
    /// When something was last received, or looked for.
    looked: Time,
}

impl<E: End> Player<E> {
    pub(crate) fn new(end: E, plan: &Plan, rank: u32, ranks: u32, seed: u64, manners: Manners) -> Self {
        Self {
            end,
            rank,
            ranks,
            random: Random::for_part(seed, &[4, u64::from(rank)]),
            manners,
            next: 0,
            meant: vec![0; ranks as usize],
            sends: Vec::new(),
            receives: Vec::new(),
            pool: Vec::new(),
            books: Books::new(plan, rank, ranks),
            dead: Vec::new(),
            rested: Time::ZERO,
            longest: Duration::ZERO,
            last: Time::ZERO,
            looked: Time::ZERO,
        }
    }

    /// Whether everything was sent, and everything received.
    pub(crate) fn is_done(&self, plan: &Plan) -> bool {
        self.books.left == 0
            && self.receives.is_empty()
            && self.sends.is_empty()
            && self.next == plan.by_sender[self.rank as usize].len()
    }

    /// When something was last received.
    pub(crate) fn last(&self) -> Time {
        self.last
    }

    /// When it has to be stepped again, beside the deadlines of its rails.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let waits = self.books.left > 0;
        let own = waits.then(|| self.looked + self.manners.patience + Duration::from_nanos(1));
        let rests = (self.rested > Time::ZERO).then_some(self.rested);
        own.into_iter().chain(rests).chain(self.end.next_deadline()).min()
    }

    /// A rank has died. From now on it may be lost to this one.
    pub(crate) fn died(&mut self, rank: u32) {
        self.dead.push(rank);
    }

    /// Requests that are open.
    pub(crate) fn open(&self) -> usize {
        self.sends.len() + self.receives.len()
    }

    /// What waits for longer than `most`, if anything began neither later than that nor before `restart`.
    pub(crate) fn overdue(&self, now: Time, restart: Time, most: Duration) -> Option<String> {
        let all = self.sends.iter().chain(&self.receives);
        let late = all.filter(|open| now.since(open.since.max(restart)) > most);
        late.filter_map(|open| {
            let why = self.end.explain(&open.request)?;
            Some(format!("since {}: {why}", open.since))
        })
        .next()
    }

    /// Throws away what is kept of ranks that are lost.
    pub(crate) fn discard_lost(&mut self) {
        self.dead.iter().for_each(|&rank| self.end.discard(rank));
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
        let mut worked = self.post_receives(plan, now)?;
        worked |= self.post_sends(plan, now)?;
        worked |= self.end.progress(now);
        worked |= self.end_receives(plan, now)?;
        worked |= self.end_sends(now)?;
        self.look_for_lost();
        if now.since(self.looked) > self.manners.patience && self.books.left > 0 {
            worked |= self.cancel_oldest(plan, now)?;
            self.looked = now;
        }
        if self.books.left == 0 {
            while !self.receives.is_empty() {
                if !self.cancel_oldest(plan, now)? {
                    if self.books.any_lost() {
                        break; // met by what is kept of the lost one, or ends with it
                    }
                    return Err(Kind::Twice(format!(
                        "rank {}: a receive was matched after the last message",
                        self.rank
                    )));
                }
                worked = true;
            }
        }
        Ok(worked)
    }

    fn look_for_lost(&mut self) {
        for &rank in &self.dead {
            if self.end.has_lost(rank) {
                self.books.give_up(rank);
            }
        }
    }

    /// The rank that is lost, when it has died; a finding otherwise.
    fn excused(&self, what: &str, trouble: Trouble) -> Result<u32, Kind> {
        match trouble {
            Trouble::Lost(rank) if self.dead.contains(&rank) => Ok(rank),
            Trouble::Lost(rank) => Err(self.failed(what, &format!("rank {rank} is lost, and has not died"))),
            Trouble::Other(why) => Err(self.failed(what, &why)),
        }
    }

    fn buffer(&mut self) -> Result<Region, Kind> {
        match self.pool.pop() {
            Some(region) => Ok(region),
            None => Region::new(MOST).map_err(|error| Kind::Other(error.to_string())),
        }
    }

    fn post_receives(&mut self, plan: &Plan, now: Time) -> Result<bool, Kind> {
        let mut worked = false;
        while self.receives.len() < self.manners.depth.min(self.books.left) {
            let spec = self.choose(plan);
            self.post_receive(spec, now)?;
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
        let Some(message) = message else {
            return self.anything();
        };
        let exact = Spec {
            from: Source::Rank(Rank(from)),
            context: message.context,
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
            _ => self.anything(),
        }
    }

    /// A receive that takes whatever comes (of one context).
    fn anything(&mut self) -> Spec {
        let contexts = self.manners.contexts;
        Spec {
            from: Source::Any,
            context: if contexts > 1 {
                self.random.below(contexts) as u16
            } else {
                0
            },
            tag: tag(0),
            ignore: u64::MAX,
        }
    }

    fn post_receive(&mut self, spec: Spec, now: Time) -> Result<(), Kind> {
        let buffer = self.buffer()?;
        let request = match self.end.receive(spec, buffer.whole()) {
            Ok(request) => request,
            Err(Trouble::Lost(rank)) => return Err(self.failed("a receive", &format!("rank {rank} is lost"))),
            Err(Trouble::Other(why)) => return Err(self.failed("a receive", &why)),
        };
        let name = self.books.posted(spec);
        self.receives.push(Open {
            request,
            name,
            buffer,
            since: now,
        });
        Ok(())
    }

    fn post_sends(&mut self, plan: &Plan, now: Time) -> Result<bool, Kind> {
        let mut worked = false;
        let Manners {
            depth,
            eagerness,
            rest,
            ..
        } = self.manners;
        if self.rested > now {
            return Ok(false);
        }
        self.rested = Time::ZERO;
        while self.rested == Time::ZERO && self.sends.len() < depth && self.random.below(100) < eagerness {
            let Some(message) = plan.by_sender[self.rank as usize].get(self.next) else {
                break;
            };
            self.next += 1;
            worked = true;
            self.post_send(plan, message, now)?;
            // Bursts of four, on average.
            if !rest.is_zero() && self.random.below(4) == 0 {
                let rest = Duration::from_nanos(self.random.below(8 * rest.as_nanos() as u64));
                self.rested = now + rest;
            }
        }
        Ok(worked)
    }

    fn post_send(&mut self, plan: &Plan, message: &Message, now: Time) -> Result<(), Kind> {
        if message.length <= INJECTED && !message.synchronous && self.random.below(2) == 0 {
            let mut bytes = [0; INJECTED];
            plan.fill(message, |at, piece| {
                bytes[at..at + piece.len()].copy_from_slice(piece)
            });
            let taken = self.end.inject(message, &bytes[..message.length]);
            match taken {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(trouble) => return self.excused("an inject", trouble).map(|_| ()),
            }
        }
        let buffer = self.buffer()?;
        plan.fill(message, |at, piece| _ = buffer.write(at, piece));
        let slice = buffer.slice(0, message.length);
        let payload = slice.ok_or_else(|| Kind::Other("a message longer than its buffer".to_owned()))?;
        match self.end.send(message, payload) {
            Ok(None) => self.reuse(buffer),
            Ok(Some(request)) => self.sends.push(Open {
                request,
                name: 0,
                buffer,
                since: now,
            }),
            Err(trouble) => {
                self.excused("a send", trouble)?;
                self.reuse(buffer);
            }
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
            let Open {
                name, buffer, since, ..
            } = self.receives.remove(at);
            self.longest = self.longest.max(now.since(since));
            worked = true;
            let status = match ended.well() {
                Ok(status) => status,
                Err(trouble) => {
                    let rank = self.excused("a receive", trouble)?;
                    self.books.lost(plan, name, rank)?;
                    self.reuse(buffer);
                    continue;
                }
            };
            let whole = buffer.whole();
            let bytes = whole.as_shared().take(status.length);
            self.books.received(plan, name, status.from, status.tag, bytes)?;
            self.reuse(buffer);
            (self.last, self.looked) = (now, now);
        }
        Ok(worked)
    }

    fn end_sends(&mut self, now: Time) -> Result<bool, Kind> {
        let (mut at, mut worked) = (0, false);
        while at < self.sends.len() {
            let Some(ended) = self.end.test(&mut self.sends[at].request) else {
                at += 1;
                continue;
            };
            let Open { buffer, since, .. } = self.sends.swap_remove(at);
            self.longest = self.longest.max(now.since(since));
            if let Err(trouble) = ended.well() {
                self.excused("a send", trouble)?;
            }
            self.reuse(buffer);
            worked = true;
        }
        Ok(worked)
    }

    /// Cancels the oldest receive that can be; in its place comes one that takes anything, when messages are
    /// missing.
    fn cancel_oldest(&mut self, plan: &Plan, now: Time) -> Result<bool, Kind> {
        let Some(at) = (0..self.receives.len()).find(|&at| self.end.cancel(&mut self.receives[at].request))
        else {
            return Ok(false);
        };
        let Open {
            mut request,
            name,
            buffer,
            ..
        } = self.receives.remove(at);
        match self.end.test(&mut request) {
            Some(Ended::Cancelled) => {}
            other => return Err(Kind::Other(format!("a cancelled receive ended with {other:?}"))),
        }
        self.books.cancelled(plan, name)?;
        self.reuse(buffer);
        if self.books.left > 0 {
            let spec = self.anything();
            self.post_receive(spec, now)?;
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
