//! What send and receive queues have in common: enabling, running, the doorbell, and being stopped by an
//! error (4.7, 4.8, 8.3).

mod doorbell;

use crate::desc::{INDEX_MASK, LENGTH, RING_MOST};
use crate::fault::{Action, Point};
use crate::io::{Context, Io, Who, Wrong};
use crate::registers::{queue, rq, wq};
use crate::violation::Kind;

/// Values of error_status. \[M\] all: no public source lists them; zero is fine, everything else stopped the
/// queue.
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

    /// Returns where the registers about errors are: status, enable, offset.
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

/// A ring: the model's own values, taken when it was enabled. The registers are only compared with them
/// later.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) side: Side,
    pub(crate) index: usize,
    /// The offset of the ring's block in BAR0.
    at: usize,
    pub(crate) state: State,
    /// What enable was when it was looked at last.
    was_enabled: bool,
    base: u64,
    pub(crate) size: u32,
    pub(crate) cq: usize,
    pub(crate) fetch: u32,
    pub(crate) posted: u32,
    /// The posted index as it was last read from its register.
    seen: u32,
    /// What fetch_index was set to by us.
    shown: u32,
    /// Whether the queue fetched something since it was enabled.
    pub(crate) was_used: bool,
    /// How often enable was written as 0 since it was running; only messages show it.
    pub(crate) disables: u32,
    /// The completion's number of each slot, 0 where there is none.
    proofs: Vec<u64>,
    /// What was posted while the queue was not enabled, as it was in the register (`future`).
    early: Option<u32>,
    /// The descriptor that was fetched ahead when the queue was disabled, and whether it will be used
    /// wrongly.
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
            early: None,
            ahead: None,
            is_stale: false,
        }
    }

    pub(crate) fn who(&self) -> Who {
        (self.side.label(), self.index)
    }

    /// Returns to the initial state; the registers are cleared where the function is reset.
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
                let is_stuck = context
                    .faults
                    .action(Point::Disable, io.index, self.index)
                    .is_some();
                self.state = State::Stopping(if is_stuck {
                    u64::MAX
                } else {
                    context.after(timing.disable)
                });
            }
            State::Stopping(due) if context.now >= due => {
                self.show(io, context);
                self.state = State::Stopped;
                // Descriptors posted while it ran, seen or not, were not posted early.
                self.seen = io.registers.get(self.at + queue::POSTED);
                io.registers.put(self.at + queue::RUNNING, 0);
                // An enable meanwhile is seen now.
                self.was_enabled = false;
                return;
            }
            State::Failed if !enable => {
                self.state = State::Stopped;
                self.seen = io.registers.get(self.at + queue::POSTED);
            }
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
        if self.early.take() == Some(self.seen) && wrong.is_none() {
            // Future firmware does not take it.
            self.posted = self.fetch;
            self.miss(io, context);
        }
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
        match context.faults.action(Point::Enable, io.index, self.index) {
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
        // Looked at last: what is posted behind an enable is not early.
        let is_off = io.registers.get(self.at + queue::ENABLE) & 1 == 0;
        if self.state == State::Stopped && is_off && raw != self.seen {
            self.seen = raw;
            self.early = None;
            if raw & INDEX_MASK != fetch {
                self.early = Some(raw);
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

    /// Whether it is between running and not, for a while.
    pub(crate) fn is_changing(&self) -> bool {
        matches!(self.state, State::Starting(due) | State::Stopping(due) if due != u64::MAX)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == State::Running
    }
}
