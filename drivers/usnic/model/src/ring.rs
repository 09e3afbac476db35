//! What send and receive queues have in common: enabling, running, the doorbell, and being stopped by an error (4.7, 4.8, 8.3).

use crate::desc::{INDEX_MASK, LENGTH, RING_MOST};
use crate::fault::{Action, Point};
use crate::io::{Context, Io, Who, Wrong};
use crate::registers::{queue, rq, wq};
use crate::violation::Kind;

/// Values of error_status. \[M\] all: no public source lists them; zero is fine, everything else stopped the queue.
pub(crate) mod status {
    /// The ring's base, size or completion queue.
    pub(crate) const RING: u32 = 1;
    /// An index outside of the ring.
    pub(crate) const INDEX: u32 = 2;
    /// A descriptor that makes no sense.
    pub(crate) const DESCRIPTOR: u32 = 3;
    /// Memory that cannot be reached.
    pub(crate) const DMA: u32 = 4;
    /// A frame that is too long or too short.
    pub(crate) const LENGTH: u32 = 5;
}

/// Send or receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Wq,
    Rq,
}

impl Side {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Wq => "wq",
            Self::Rq => "rq",
        }
    }

    /// Where the registers about errors are: status, enable, offset.
    fn errors(self) -> (usize, usize, usize) {
        match self {
            Self::Wq => (wq::ERROR_STATUS, wq::ERROR_INTR_ENABLE, wq::ERROR_INTR_OFFSET),
            Self::Rq => (rq::ERROR_STATUS, rq::ERROR_INTR_ENABLE, rq::ERROR_INTR_OFFSET),
        }
    }
}

/// Whether it works. Times are when the state ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Stopped,
    Starting(u64),
    Running,
    Stopping(u64),
    /// Stopped by an error; enable has to be taken away first.
    Failed,
}

/// A ring: the model's own values, taken when it was enabled. What the registers say later is only compared.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) side: Side,
    pub(crate) index: usize,
    /// Its block in BAR0.
    at: usize,
    pub(crate) state: State,
    /// What enable was when it was looked at last.
    was_enabled: bool,
    base: u64,
    pub(crate) size: u32,
    pub(crate) cq: usize,
    pub(crate) fetch: u32,
    pub(crate) posted: u32,
    /// As it stood in the register.
    seen: u32,
    /// What fetch_index was set to by us.
    shown: u32,
    /// It fetched something since it was enabled.
    pub(crate) was_used: bool,
    /// How often enable was written as 0 since it was running; only messages show it.
    pub(crate) disables: u32,
    /// The completion's number of each slot, 0 where there is none.
    proofs: Vec<u64>,
    /// The descriptor that was fetched ahead when the queue was disabled, and whether it will be used wrongly.
    ahead: Option<[u8; LENGTH]>,
    is_stale: bool,
}

impl Ring {
    pub(crate) fn new(side: Side, index: usize, at: usize) -> Self {
        Self {
            side,
            index,
            at,
            state: State::Stopped,
            was_enabled: false,
            base: 0,
            size: 0,
            cq: 0,
            fetch: 0,
            posted: 0,
            seen: 0,
            shown: 0,
            was_used: false,
            disables: 0,
            proofs: vec![0; RING_MOST as usize],
            ahead: None,
            is_stale: false,
        }
    }

    pub(crate) fn who(&self) -> Who {
        (self.side.label(), self.index)
    }

    /// As new; the registers are cleared by whoever resets the function.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            proofs: std::mem::take(&mut self.proofs),
            ..Self::empty(self.side, self.index, self.at)
        };
        self.proofs.fill(0);
    }

    fn empty(side: Side, index: usize, at: usize) -> Self {
        Self {
            proofs: Vec::new(),
            ..Self::new(side, index, at)
        }
    }

    /// Looks at enable, and lets time pass.
    #[inline]
    pub(crate) fn control(&mut self, io: &mut Io, context: &Context, cqs: usize) {
        let enable = io.registers.get(self.at + queue::ENABLE) & 1 != 0;
        if enable == self.was_enabled && matches!(self.state, State::Running | State::Stopped | State::Failed)
        {
            return;
        }
        self.change(io, context, cqs, enable);
    }

    fn change(&mut self, io: &mut Io, context: &Context, cqs: usize, enable: bool) {
        let timing = &context.options.timing;
        match self.state {
            State::Stopped if enable && !self.was_enabled => self.begin(io, context, cqs),
            State::Starting(due) if enable && context.now >= due => {
                self.state = State::Running;
                io.registers.put(self.at + queue::RUNNING, 1);
            }
            State::Starting(_) | State::Running if !enable => {
                self.look_ahead(io, context);
                let is_stuck = context.faults.ask(Point::Disable, io.index, self.index).is_some();
                self.state = State::Stopping(if is_stuck {
                    u64::MAX
                } else {
                    context.after(timing.disable)
                });
            }
            State::Stopping(due) if context.now >= due => {
                self.show(io, context);
                self.state = State::Stopped;
                io.registers.put(self.at + queue::RUNNING, 0);
                // An enable meanwhile is seen now.
                self.was_enabled = false;
                return;
            }
            State::Failed if !enable => self.state = State::Stopped,
            _ => {}
        }
        self.was_enabled = enable;
    }

    /// Takes the registers' values, if they can be.
    fn begin(&mut self, io: &mut Io, context: &Context, cqs: usize) {
        let get = |register: usize| io.registers.get(self.at + register);
        self.base = io.registers.get64(self.at + queue::RING_BASE);
        self.size = get(queue::RING_SIZE);
        self.cq = get(queue::CQ_INDEX) as usize;
        self.fetch = get(queue::FETCH);
        self.seen = get(queue::POSTED);
        self.shown = self.fetch;
        self.posted = self.seen & INDEX_MASK;
        let wrong = self.judge(cqs);
        self.proofs.fill(0);
        let was_used = std::mem::take(&mut self.was_used);
        let disables = std::mem::take(&mut self.disables);
        if context.options.behaviour.strict_disable && self.side == Side::Rq && was_used && disables == 1 {
            let wrong = Wrong::new(
                Kind::DisabledOnce,
                "the queue was used, and disabled once instead of twice",
            )
            .at("enable");
            io.violation(context, Some(self.who()), wrong.values(1, 2));
            self.is_stale = true;
        }
        match wrong {
            Some((code, wrong)) => {
                io.violation(context, Some(self.who()), wrong);
                self.fail(io, context, code);
            }
            None => self.state = State::Starting(context.after(context.options.timing.enable)),
        }
        match context.faults.ask(Point::Enable, io.index, self.index) {
            Some(Action::StuckStopped) => self.state = State::Starting(u64::MAX),
            Some(Action::Stale) => self.is_stale = true,
            _ => {}
        }
        self.is_stale &= self.ahead.is_some();
    }

    fn judge(&self, cqs: usize) -> Option<(u32, Wrong)> {
        let wrong = |kind, what, register, found, against| {
            let code = if register == "fetch_index" || register == "posted_index" {
                status::INDEX
            } else {
                status::RING
            };
            Some((code, Wrong::new(kind, what).at(register).values(found, against)))
        };
        let Self { base, size, .. } = *self;
        if size == 0 || size % 32 != 0 || size > RING_MOST {
            let what = "a ring has a multiple of 32 descriptors, 4096 at most";
            return wrong(Kind::RingSize, what, "ring_size", size.into(), RING_MOST.into());
        }
        if base % 512 != 0 {
            return wrong(
                Kind::RingMisaligned,
                "a ring begins on a multiple of 512",
                "ring_base",
                base,
                512,
            );
        }
        if self.cq >= cqs {
            return wrong(
                Kind::CqIndex,
                "the function has no such completion queue",
                "cq_index",
                self.cq as u64,
                cqs as u64,
            );
        }
        if self.fetch >= size {
            let what = "the index is no slot of the ring";
            return wrong(
                Kind::PostedBeyondRing,
                what,
                "fetch_index",
                self.fetch.into(),
                size.into(),
            );
        }
        if self.posted >= size {
            let what = "the index is no slot of the ring";
            return wrong(
                Kind::PostedBeyondRing,
                what,
                "posted_index",
                self.posted.into(),
                size.into(),
            );
        }
        None
    }

    /// Looks at the doorbell. True where something is newly posted; `prove` is told of completions that must have been read.
    #[inline]
    pub(crate) fn doorbell(&mut self, io: &mut Io, context: &Context, prove: impl FnMut(u64)) -> bool {
        let raw = io.registers.get(self.at + queue::POSTED);
        raw != self.seen && self.rung(io, context, raw, prove)
    }

    fn rung(&mut self, io: &mut Io, context: &Context, raw: u32, mut prove: impl FnMut(u64)) -> bool {
        self.seen = raw;
        if context.faults.ask(Point::Doorbell, io.index, self.index) == Some(Action::LostDoorbell) {
            return false;
        }
        let index = raw & INDEX_MASK;
        if index >= self.size {
            let wrong =
                Wrong::new(Kind::PostedBeyondRing, "the index is no slot of the ring").at("posted_index");
            io.violation(
                context,
                Some(self.who()),
                wrong.values(index.into(), self.size.into()),
            );
            self.fail(io, context, status::INDEX);
            return false;
        }
        self.compare(io, context);
        let ahead = |index: u32| (index + self.size - self.fetch) % self.size;
        if ahead(index) < ahead(self.posted) {
            let wrong = Wrong::new(
                Kind::PostedPassesFetch,
                "the index runs over descriptors that are not fetched yet",
            );
            io.violation(
                context,
                Some(self.who()),
                wrong.at("posted_index").values(index.into(), self.fetch.into()),
            );
        }
        let mut slot = self.posted;
        while slot != index {
            let proof = std::mem::take(&mut self.proofs[slot as usize]);
            if proof != 0 {
                prove(proof);
            }
            slot = (slot + 1) % self.size;
        }
        let is_new = index != self.posted;
        self.posted = index;
        is_new
    }

    /// Looks for what must not be written while the queue runs.
    fn compare(&mut self, io: &mut Io, context: &Context) {
        let found = [
            (
                "ring_base",
                io.registers.get64(self.at + queue::RING_BASE),
                self.base,
            ),
            (
                "ring_size",
                io.registers.get(self.at + queue::RING_SIZE).into(),
                self.size.into(),
            ),
            (
                "cq_index",
                io.registers.get(self.at + queue::CQ_INDEX).into(),
                self.cq as u64,
            ),
        ];
        for (register, found, against) in found {
            if found != against {
                let wrong = Wrong::new(
                    Kind::RingWhileRunning,
                    "the register was written while the queue ran",
                );
                io.violation(
                    context,
                    Some(self.who()),
                    wrong.at(register).values(found, against),
                );
            }
        }
        if context.options.behaviour.stale_cache {
            // As a descriptor cache would: the new ring, with whatever was fetched before. A size that cannot be is not taken.
            self.base = found[0].1;
        }
        // Once is enough.
        io.registers.put64(self.at + queue::RING_BASE, self.base);
        io.registers.put(self.at + queue::RING_SIZE, self.size);
        io.registers.put(self.at + queue::CQ_INDEX, self.cq as u32);
        self.show(io, context);
    }

    /// Brings fetch_index up to date, and sees whether somebody else wrote it.
    #[inline]
    pub(crate) fn show(&mut self, io: &mut Io, context: &Context) {
        let register = self.at + queue::FETCH;
        let found = io.registers.swap(register, self.fetch);
        if found != self.shown {
            let wrong = Wrong::new(
                Kind::FetchWhileRunning,
                "the register was written while the queue ran",
            );
            io.violation(
                context,
                Some(self.who()),
                wrong.at("fetch_index").values(found.into(), self.shown.into()),
            );
            if context.options.behaviour.stale_cache && found < self.size {
                self.fetch = found;
            }
        }
        self.shown = self.fetch;
    }

    /// How many descriptors are there to fetch.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        (self.posted + self.size - self.fetch) % self.size
    }

    /// The slot `ahead` of the next one to fetch.
    #[inline]
    pub(crate) fn slot(&self, ahead: u32) -> u32 {
        (self.fetch + ahead) % self.size
    }

    /// Reads a descriptor by DMA.
    #[inline]
    pub(crate) fn descriptor(&self, io: &mut Io, context: &Context, slot: u32) -> Option<[u8; LENGTH]> {
        let mut bytes = [0; LENGTH];
        let at = self.base.wrapping_add(u64::from(slot) * LENGTH as u64);
        io.read(context, self.who(), at, &mut bytes).then_some(bytes)
    }

    /// Keeps what a receive queue's cache would have fetched ahead (7: "RQ disable").
    fn look_ahead(&mut self, io: &mut Io, context: &Context) {
        self.ahead = match self.side {
            Side::Rq if self.state == State::Running && self.has_posted(io) => {
                self.descriptor(io, context, self.fetch)
            }
            _ => None,
        };
    }

    /// Whether something is posted, by the register: receive queues look at it when a frame comes.
    fn has_posted(&self, io: &Io) -> bool {
        io.registers.get(self.at + queue::POSTED) & INDEX_MASK != self.fetch
    }

    /// The descriptor at fetch, unless the cache has a stale one.
    #[inline]
    pub(crate) fn first(&mut self, io: &mut Io, context: &Context) -> Option<[u8; LENGTH]> {
        if std::mem::take(&mut self.is_stale) {
            return self.ahead.take();
        }
        self.descriptor(io, context, self.fetch)
    }

    /// Descriptors were fetched.
    #[inline]
    pub(crate) fn fetched(&mut self, count: u32) {
        self.fetch = self.slot(count);
        self.was_used = true;
    }

    /// The completion of a slot: whoever posts that slot again has read it.
    #[inline]
    pub(crate) fn proof(&mut self, slot: u32, number: u64) {
        self.proofs[slot as usize] = number;
    }

    /// Stops with an error.
    #[cold]
    pub(crate) fn fail(&mut self, io: &mut Io, context: &Context, code: u32) {
        let (status, enable, offset) = self.side.errors();
        self.state = State::Failed;
        self.was_enabled = true;
        io.registers.put(self.at + queue::FETCH, self.fetch);
        self.shown = self.fetch;
        io.registers.put(self.at + status, code);
        io.registers.put(self.at + queue::RUNNING, 0);
        if io.registers.get(self.at + enable) & 1 != 0 {
            let interrupt = io.registers.get(self.at + offset);
            io.raise(context, self.who(), interrupt);
        }
    }

    /// Posting before enabling, which future firmware does not take (4.8).
    pub(crate) fn watch_early(&mut self, io: &mut Io, context: &Context) {
        let raw = io.registers.get(self.at + queue::POSTED);
        let fetch = io.registers.get(self.at + queue::FETCH);
        if self.state == State::Stopped && raw != self.seen {
            self.seen = raw;
            if raw & INDEX_MASK != fetch {
                let wrong = Wrong::new(
                    Kind::PostedBeforeEnable,
                    "descriptors are posted on a queue that is not enabled",
                );
                io.violation(
                    context,
                    Some(self.who()),
                    wrong.at("posted_index").values(raw.into(), fetch.into()),
                );
            }
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == State::Running
    }
}
