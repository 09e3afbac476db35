//! One run: all nodes, their messages, and the judge, tick by tick.

use std::collections::VecDeque;

use doorbell_am::credit::{
    Ask, BYTES_PER_CREDIT, Chunk, CreditByte, CreditConfig, CreditState, NoCredits, Peers, Shares,
};
use doorbell_sim::Random;

use super::buffers::Buffers;
use super::judge::{Judge, Judged};
use super::pattern::{Next, Player};
use super::wheel::{Event, What, Wheel};
use super::{CreditsJob, Policy, Sample, Tally};

/// A message takes `DELAY` ticks, and up to `JITTER` more.
const DELAY: u64 = 40;
const JITTER: u64 = 8;
/// Samples of one run.
const SAMPLES: u64 = 120;
/// With up to `FEW` nodes, everything is checked every `EVERY` ticks.
const FEW: u32 = 64;
const EVERY: u64 = 512;

/// A request that landed and waits for its handler.
#[derive(Clone, Copy, Debug)]
struct Landed {
    from: u32,
    byte: u8,
    buffer: u16,
    ours: bool,
}

/// A request that waits to be sent.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    to: u32,
    ask: Ask,
    ours: bool,
}

/// What is at a node beside its economy.
#[derive(Debug)]
struct Place {
    buffers: Buffers,
    waiting: VecDeque<Landed>,
    serving: bool,
    sending: bool,
    wanted: Option<Wanted>,
    player: Player,
}

pub(super) struct Run<'a, P> {
    job: &'a CreditsJob,
    nodes: Vec<CreditState<P>>,
    places: Vec<Place>,
    judge: Judge,
    wheel: Wheel,
    random: Random,
    tally: Tally,
    until: u64,
    /// Whether new requests are begun.
    open: bool,
}

impl<'a, P: Peers> Run<'a, P> {
    pub(super) fn new(job: &'a CreditsJob) -> Result<Self, String> {
        let node = |me| CreditState::with(&job.config(me)).map_err(|wrong| wrong.to_string());
        let nodes: Vec<CreditState<P>> = (0..job.nodes).map(node).collect::<Result<_, _>>()?;
        let place = |node: &CreditState<P>| Place {
            buffers: Buffers::new(&job.config(node.me()), node.shares()),
            waiting: VecDeque::new(),
            serving: false,
            sending: true,
            wanted: None,
            player: Player::new(job.pattern, job.seed, node.me(), job.nodes),
        };
        let mut run = Self {
            places: nodes.iter().map(place).collect(),
            judge: Judge::new(&nodes),
            nodes,
            job,
            wheel: Wheel::new(),
            random: Random::for_part(job.seed, &[1]),
            tally: Tally::default(),
            until: job.ticks(),
            open: true,
        };
        for at in 0..job.nodes {
            run.wheel.plan(1, event(at, at, What::Send));
        }
        Ok(run)
    }

    /// Until the time is up and everything under way has arrived.
    pub(super) fn play(mut self) -> Result<Tally, String> {
        let mut events = Vec::new();
        let width = (self.until / SAMPLES).max(1);
        let mut before = self.sums();
        while !self.wheel.is_empty() {
            self.wheel.turn(&mut events);
            let now = self.wheel.now();
            for &event in &events {
                let happened = self.happens(event);
                happened.map_err(|fault| format!("tick {now}: {fault}"))?;
            }
            if self.open && now.is_multiple_of(width) {
                let sums = self.sums();
                self.tally
                    .samples
                    .push(sums.since(&before, now, width, self.job.nodes));
                before = sums;
            }
            if self.judges() && self.job.nodes <= FEW && now.is_multiple_of(EVERY) {
                self.judge.audit(&self.nodes)?;
                self.judge.audit_pairs(&self.nodes)?;
            }
            self.open &= now < self.until;
            if !self.open && self.job.policy == Policy::Unlimited {
                // What waits for its handler by now may be millions.
                break;
            }
            if now > self.until + GRACE {
                return Err(format!(
                    "messages are still under way {GRACE} ticks after the last was sent"
                ));
            }
        }
        self.end()
    }

    fn end(mut self) -> Result<Tally, String> {
        if self.judges() {
            self.judge.audit(&self.nodes)?;
            if u64::from(self.job.nodes).pow(2) <= 1 << 21 {
                self.judge.audit_pairs(&self.nodes)?;
            }
            let stuck = self.places.iter().filter(|place| place.wanted.is_some()).count();
            if stuck > 0 {
                return Err(format!("{stuck} nodes wait for credits for ever"));
            }
        }
        let mut tally = self.tally;
        let first = self.nodes.first().ok_or("no nodes")?;
        tally.shares = Some(*first.shares());
        tally.looks = self.judge.looks;
        tally.audits = self.judge.audits;
        tally.ticks = self.until;
        tally.steps = self
            .places
            .iter()
            .map(|place| place.player.steps())
            .min()
            .unwrap_or(0);
        tally.fewest_buffers = self
            .places
            .iter()
            .map(|place| place.buffers.fewest)
            .min()
            .unwrap_or(0);
        for node in &self.nodes {
            tally.add(node.counters());
        }
        Ok(tally)
    }

    fn judges(&self) -> bool {
        self.job.policy.migrates()
    }

    fn sums(&self) -> Sums {
        let mut sums = Sums {
            answered: self.tally.answered,
            ..Sums::default()
        };
        for node in &self.nodes {
            let counters = node.counters();
            sums.granted += counters.granted;
            sums.returned += counters.returned;
            sums.stalls += counters.stalls;
            sums.bank += u64::from(node.bank());
        }
        sums
    }

    fn happens(&mut self, Event { at, from, what }: Event) -> Judged {
        match what {
            What::Send => {
                self.places[at as usize].sending = false;
                self.send(at)
            }
            What::Serve => self.serve(at),
            What::Request { byte, length, ours } => self.lands(at, from, byte, length, ours),
            What::Reply { byte, ours } => self.replied(at, from, byte, ours),
            What::Revoke { epoch } => self.revoked(at, from, epoch),
            What::Return { give, epoch } => self.returned(at, from, give, epoch),
        }
    }

    /// Sends what waits, or the next one; the one after that is planned.
    fn send(&mut self, at: u32) -> Judged {
        let now = self.wheel.now();
        let place = &mut self.places[at as usize];
        if place.sending {
            return Ok(());
        }
        if place.wanted.is_none() && self.open {
            match place.player.next(self.job, now) {
                Next::Send { to, credits, ours } => {
                    let ask = Ask::new(credits);
                    place.wanted = Some(Wanted { to, ask, ours });
                }
                Next::Wait => return Ok(()),
                Next::Pause(ticks) => {
                    place.sending = true;
                    self.wheel.plan(ticks, event(at, at, What::Send));
                    return Ok(());
                }
            }
        }
        let Some(mut wanted) = place.wanted.take() else {
            return Ok(());
        };
        let first = !wanted.ask.has_stalled();
        match self.nodes[at as usize].take(wanted.to, &mut wanted.ask) {
            Ok(byte) => {
                place.sending = true;
                let length = length(wanted.ask.credits(), &mut self.random);
                let what = What::Request {
                    byte: byte.wire(),
                    length,
                    ours: wanted.ours,
                };
                self.post(at, wanted.to, what);
                self.wheel.plan(self.job.pattern.gap(), event(at, at, What::Send));
            }
            Err(NoCredits::Stalled) => {
                place.wanted = Some(wanted);
                if first && self.judges() {
                    self.judge.stalled(at, wanted.to)?;
                }
            }
            Err(other) => return Err(other.to_string()),
        }
        self.look(wanted.to, at)
    }

    fn post(&mut self, from: u32, to: u32, what: What) {
        let delay = DELAY + self.random.below(JITTER + 1);
        self.wheel.plan(delay, event(to, from, what));
    }

    /// A request takes room in a buffer, and waits for its handler.
    fn lands(&mut self, at: u32, from: u32, byte: u8, length: u16, ours: bool) -> Judged {
        let unlimited = self.job.policy == Policy::Unlimited;
        let place = &mut self.places[at as usize];
        let buffer = match unlimited {
            true => 0,
            false => place
                .buffers
                .land(length.into())
                .ok_or_else(|| format!("{from} hit the catch basin of {at}"))?,
        };
        place.waiting.push_back(Landed {
            from,
            byte,
            buffer,
            ours,
        });
        let waiting = place.waiting.len();
        self.tally.most_waiting = self.tally.most_waiting.max(waiting);
        if !unlimited && waiting > self.nodes[at as usize].shares().events as usize {
            return Err(format!("{waiting} events overran the queue of {at}"));
        }
        let place = &mut self.places[at as usize];
        if !place.serving {
            place.serving = true;
            self.wheel.plan(1, event(at, at, What::Serve));
        }
        Ok(())
    }

    /// The first request that waits: its credits, its handler, its reply, its room.
    fn serve(&mut self, at: u32) -> Judged {
        let place = &mut self.places[at as usize];
        place.serving = false;
        let Some(landed) = place.waiting.pop_front() else {
            return Ok(());
        };
        if !place.waiting.is_empty() {
            place.serving = true;
            self.wheel.plan(1, event(at, at, What::Serve));
        }
        place.player.received();
        let (from, byte) = (landed.from, CreditByte::from_wire(landed.byte));
        let node = &mut self.nodes[at as usize];
        let due = node.arrived(from, byte).map_err(|wrong| wrong.to_string())?;
        if self.judges() {
            self.judge.arrived(at, from, byte.extra(), due.granted())?;
            if byte.epoch() {
                self.judge.epoch_ended(at, from)?;
            }
        }
        let node = &mut self.nodes[at as usize];
        let reply = node.answer(from, due).wire();
        if self.job.policy != Policy::Unlimited {
            self.places[at as usize].buffers.handled(landed.buffer);
        }
        let ours = landed.ours;
        self.post(at, from, What::Reply { byte: reply, ours });
        self.look(at, from)?;
        while let Some(revoke) = self.nodes[at as usize].next_revoke() {
            self.post(at, revoke.to, What::Revoke { epoch: revoke.epoch });
            self.look(at, revoke.to)?;
        }
        // It may have waited for this neighbour's step.
        self.again(at)
    }

    fn replied(&mut self, at: u32, from: u32, byte: u8, ours: bool) -> Judged {
        let byte = CreditByte::from_wire(byte);
        let node = &mut self.nodes[at as usize];
        let granted = node.replied(from, byte).map_err(|wrong| wrong.to_string())?;
        if self.judges() {
            self.judge.replied(at, from, granted)?;
            if byte.epoch() {
                self.judge.epoch_ended(at, from)?;
            }
        }
        self.places[at as usize].player.answered();
        self.tally.answered += u64::from(ours);
        self.look(from, at)?;
        self.again(at)
    }

    fn revoked(&mut self, at: u32, from: u32, epoch: bool) -> Judged {
        let node = &mut self.nodes[at as usize];
        let told = node.revoked(from, epoch).map_err(|wrong| wrong.to_string())?;
        if self.judges() {
            if epoch {
                self.judge.epoch_ended(at, from)?;
            }
            self.judge.gave(at, from, told.give)?;
        }
        let (give, epoch) = (told.give, told.epoch);
        self.post(at, from, What::Return { give, epoch });
        self.look(from, at)
    }

    fn returned(&mut self, at: u32, from: u32, give: u16, epoch: bool) -> Judged {
        let node = &mut self.nodes[at as usize];
        node.returned(from, give, epoch)
            .map_err(|wrong| wrong.to_string())?;
        if self.judges() {
            if epoch {
                self.judge.epoch_ended(at, from)?;
            }
            self.judge.returned(at, from, give)?;
        }
        self.look(at, from)
    }

    /// What waited looks again, as a poll of its node would.
    fn again(&mut self, at: u32) -> Judged {
        if self.places[at as usize].sending {
            return Ok(());
        }
        self.send(at)
    }

    #[inline]
    fn look(&mut self, lender: u32, borrower: u32) -> Judged {
        if !self.judges() {
            return Ok(());
        }
        self.judge.look(&self.nodes, lender, borrower)
    }
}

/// After the last request, everything is answered within this many ticks, however many wait.
const GRACE: u64 = 1 << 20;

const fn event(at: u32, from: u32, what: What) -> Event {
    Event { at, from, what }
}

/// Bytes of a request of so many credits: every second one is as long as they allow.
fn length(credits: u8, random: &mut Random) -> u16 {
    let most = u16::from(credits) * 256;
    let drawn = random.next_u64();
    if drawn & 1 == 0 {
        return most;
    }
    most - (drawn >> 8 & 0xff) as u16
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    answered: u64,
    granted: u64,
    returned: u64,
    stalls: u64,
    bank: u64,
}

impl Sums {
    fn since(&self, before: &Self, now: u64, width: u64, nodes: u32) -> Sample {
        let each = |sum: u64| sum as f64 / f64::from(nodes);
        Sample {
            tick: now,
            rate: each(self.answered - before.answered) / width as f64,
            granted: each(self.granted - before.granted),
            returned: each(self.returned - before.returned),
            stalls: each(self.stalls - before.stalls),
            bank: each(self.bank),
        }
    }
}

/// The credit configuration of one node of a job.
impl CreditsJob {
    pub(super) fn config(&self, me: u32) -> CreditConfig {
        let mut config = CreditConfig::new(self.nodes, me, Chunk::Small);
        config.flow_control = self.policy != Policy::Unlimited;
        config.dynamic = self.policy != Policy::Fixed;
        config.limits.memory = self.policy.memory();
        if let Some(epoch) = self.epoch {
            config.limits.epoch = epoch;
        }
        if !self.table {
            config.chunks_per_buffer = 64;
            config.per_node = Some(config.chunk.least());
            config.banked = Some(self.banked.unwrap_or(self.pattern.bank()));
        }
        if self.policy == Policy::Fixed {
            // As many credits as the others have.
            let migrating = CreditConfig {
                dynamic: true,
                ..config
            };
            let credits = Shares::new(&migrating).map_or(0, |shares| shares.total);
            config.per_node = None;
            config.space = Some(u64::from(credits) * BYTES_PER_CREDIT as u64);
        }
        config
    }
}
