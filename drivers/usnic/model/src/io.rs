//! What every part of a function works with: its registers, the client's memory, its interrupts; and what the
//! whole model has in common.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::config::Config;
use crate::dma::{DmaError, Memory};
use crate::fault::{Action, Faults, Point};
use crate::map::Shared;
use crate::options::Options;
use crate::registers::intr;
use crate::violation::{Kind, Violation, Violations};

/// Nanoseconds of one tick of a coalescing timer: the reply to INTR_COAL_CONVERT (3.7's fallback). \[M\]
const TICK: u64 = 1500;
/// The longest that a fault makes one access take; the engine stands still meanwhile.
const SLOWEST: Duration = Duration::from_secs(1);

/// What the model's parts have in common.
#[derive(Debug)]
pub(crate) struct Context {
    /// When the model began.
    pub(crate) begun: Instant,
    /// Nanoseconds since then; taken once a turn.
    pub(crate) now: u64,
    pub(crate) options: Options,
    pub(crate) violations: Violations,
    pub(crate) faults: Faults,
}

impl Context {
    /// The time now, which may be later than when the turn began: other processes have the core, too.
    pub(crate) fn clock(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX / 2)
    }

    /// The time after a while from now.
    pub(crate) fn after(&self, wait: Duration) -> u64 {
        self.clock() + u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX / 2)
    }
}

/// A queue, interrupt or block, for reports.
pub(crate) type Who = (&'static str, usize);

/// What is wrong, for reports: the register, what was found, against what, and in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrong {
    pub(crate) kind: Kind,
    pub(crate) register: Option<&'static str>,
    pub(crate) found: u64,
    pub(crate) against: u64,
    pub(crate) what: &'static str,
}

impl Wrong {
    pub(crate) fn new(kind: Kind, what: &'static str) -> Self {
        Self {
            kind,
            register: None,
            found: 0,
            against: 0,
            what,
        }
    }

    pub(crate) fn at(self, register: &'static str) -> Self {
        Self {
            register: Some(register),
            ..self
        }
    }

    pub(crate) fn values(self, found: u64, against: u64) -> Self {
        Self {
            found,
            against,
            ..self
        }
    }
}

/// An interrupt's state beside its registers.
#[derive(Clone, Copy, Debug, Default)]
struct Intr {
    /// The offset of the interrupt's block in BAR0.
    at: usize,
    /// The interrupt does not fire before this time.
    due: u64,
    fired: u64,
}

/// What a function works with.
#[derive(Debug)]
pub(crate) struct Io {
    /// The number of the function: 0 is the physical one.
    pub(crate) index: usize,
    /// `pf` or `vf0`.
    pub(crate) name: String,
    pub(crate) registers: Shared,
    pub(crate) config: Config,
    pub(crate) memory: Memory,
    /// Where MSI-X vectors go.
    pub(crate) vectors: Vec<Option<OwnedFd>>,
    intr: Vec<Intr>,
    /// Interrupts that wait to be delivered.
    pending: u64,
    /// Where the legacy pending bits are.
    pba: Option<usize>,
    /// Interrupts that come late, by a fault: when, which.
    late: Vec<(u64, usize)>,
}

impl Io {
    pub(crate) fn new(
        (index, name): (usize, String),
        registers: Shared,
        config: Config,
        memory: Memory,
        (interrupts, spare): (&[usize], usize),
        pba: Option<usize>,
    ) -> Self {
        let intr = interrupts
            .iter()
            .map(|&at| Intr {
                at,
                ..Intr::default()
            })
            .collect::<Vec<_>>();
        let vectors = (0..intr.len() + spare).map(|_| None).collect();
        Self {
            index,
            name,
            registers,
            config,
            memory,
            vectors,
            intr,
            pending: 0,
            pba,
            late: Vec::new(),
        }
    }

    /// Records a violation.
    #[cold]
    pub(crate) fn violation(&self, context: &Context, who: Option<Who>, wrong: Wrong) {
        let Wrong {
            kind,
            register,
            found,
            against,
            what,
        } = wrong;
        context.violations.record(Violation {
            at_ns: context.now,
            function: self.name.clone(),
            queue: who.map(|(label, index)| match label {
                "devcmd" | "devcmd2" => label.to_owned(),
                _ => format!("{label}{index}"),
            }),
            kind,
            register,
            found,
            against,
            what,
        });
    }

    #[cold]
    fn dma_failed(&self, context: &Context, who: Who, error: DmaError) {
        let kind = match error.why {
            "nothing is mapped there" => Kind::DmaUnmapped,
            _ => Kind::DmaRights,
        };
        self.violation(
            context,
            Some(who),
            Wrong::new(kind, error.why).values(error.at, 0),
        );
    }

    /// Whether the function may access memory at all.
    #[inline]
    fn is_master(&self, context: &Context, who: Who) -> bool {
        let may = !context.options.behaviour.needs_bus_master || self.config.is_bus_master();
        if !may {
            let wrong = Wrong::new(
                Kind::BusMaster,
                "the function is not allowed to be a bus master (command register, bit 2)",
            );
            self.violation(context, Some(who), wrong);
        }
        may && self.is_reachable(context)
    }

    /// Whether no fault is in the way of an access.
    #[inline]
    fn is_reachable(&self, context: &Context) -> bool {
        match context.faults.action(Point::Dma, self.index, 0) {
            None => true,
            Some(Action::Slow(wait)) => {
                std::thread::sleep(wait.min(SLOWEST));
                true
            }
            Some(_) => false,
        }
    }

    /// Reads the client's memory; what goes wrong is recorded.
    #[inline]
    pub(crate) fn read(&mut self, context: &Context, who: Who, at: u64, to: &mut [u8]) -> bool {
        if !self.is_master(context, who) {
            return false;
        }
        match self.memory.read(at, to) {
            Ok(()) => true,
            Err(error) => {
                self.dma_failed(context, who, error);
                false
            }
        }
    }

    /// Writes the client's memory; what goes wrong is recorded.
    #[inline]
    pub(crate) fn write(&mut self, context: &Context, who: Who, at: u64, from: &[u8]) -> bool {
        if !self.is_master(context, who) {
            return false;
        }
        match self.memory.write(at, from) {
            Ok(()) => true,
            Err(error) => {
                self.dma_failed(context, who, error);
                false
            }
        }
    }

    /// Writes an entry of a completion queue, its last byte last.
    #[inline]
    pub(crate) fn publish(&mut self, context: &Context, who: Who, at: u64, entry: &[u8; 16]) -> bool {
        if !self.is_master(context, who) {
            return false;
        }
        match self.memory.publish(at, entry) {
            Ok(()) => true,
            Err(error) => {
                self.dma_failed(context, who, error);
                false
            }
        }
    }

    /// Raises an interrupt for an event.
    pub(crate) fn raise(&mut self, context: &Context, who: Who, index: u32) {
        let Some(intr) = self.intr.get_mut(index as usize) else {
            let wrong = Wrong::new(Kind::InterruptIndex, "there is no such interrupt")
                .values(index.into(), self.intr.len() as u64);
            self.violation(context, Some(who), wrong);
            return;
        };
        let credits = self.registers.get(intr.at + intr::CREDITS);
        self.registers
            .put(intr.at + intr::CREDITS, credits.wrapping_add(1));
        let wait = u64::from(self.registers.get(intr.at + intr::TIMER)) * TICK;
        let is_quiet = self.registers.get(intr.at + intr::TIMER_TYPE) == 1;
        // Quiet: that long after the last event. Absolute: that long after the last interrupt.
        intr.due = match (wait, is_quiet) {
            (0, _) => 0,
            (wait, true) => context.clock() + wait,
            (wait, false) => intr.fired + wait,
        };
        self.pending |= 1 << index;
        self.deliver(context, index as usize);
    }

    /// Delivers an interrupt if nothing holds it back.
    fn deliver(&mut self, context: &Context, index: usize) {
        let intr = &mut self.intr[index];
        if self.registers.get(intr.at + intr::MASK) & 1 != 0 || context.now < intr.due {
            return;
        }
        intr.fired = context.now;
        if self.registers.get(intr.at + intr::MASK_ON_ASSERTION) & 1 != 0 {
            self.registers.put(intr.at + intr::MASK, 1);
        }
        self.pending &= !(1 << index);
        if let Some(pba) = self.pba {
            let word = pba + index / 32 * 4;
            self.registers
                .put(word, self.registers.get(word) | 1 << (index % 32));
        }
        match context.faults.action(Point::Interrupt, self.index, index) {
            Some(Action::Lost) => {}
            // One that is late already reports this event, too.
            Some(Action::Late(_)) if self.late.iter().any(|(_, late)| *late == index) => {}
            Some(Action::Late(wait)) => self.late.push((context.after(wait), index)),
            _ => self.signal(index),
        }
    }

    /// Signals a vector's eventfd, if a client has set one.
    pub(crate) fn signal(&self, vector: usize) {
        let Some(Some(bell)) = self.vectors.get(vector) else {
            return;
        };
        // A bell that cannot be rung now (or is no bell) must not stop the device.
        let mut ready = [PollFd::new(bell, PollFlags::OUT)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if rustix::event::poll(&mut ready, Some(&now)) == Ok(1) {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Handles interrupts that drivers return, and those that were held.
    pub(crate) fn interrupts(&mut self, context: &Context) {
        while let Some(place) = self.late.iter().position(|(due, _)| *due <= context.now) {
            let (_, vector) = self.late.swap_remove(place);
            self.signal(vector);
        }
        for index in 0..self.intr.len() {
            let at = self.intr[index].at;
            if self.registers.get(at + intr::CREDIT_RETURN) != 0 {
                let returned = self.registers.swap(at + intr::CREDIT_RETURN, 0);
                self.give_back(context, index, returned);
            }
            if context.options.behaviour.gated_by_credits {
                let has_credits = self.registers.get(at + intr::CREDITS) > 0;
                self.pending = self.pending & !(1 << index) | u64::from(has_credits) << index;
            }
            if self.pending & 1 << index != 0 {
                self.deliver(context, index);
            }
        }
    }

    fn give_back(&mut self, context: &Context, index: usize, returned: u32) {
        let intr = &mut self.intr[index];
        let credits = self.registers.get(intr.at + intr::CREDITS);
        // [U] What hardware does below zero: here it stays there.
        self.registers
            .put(intr.at + intr::CREDITS, credits.saturating_sub(returned & 0xffff));
        if returned & 1 << 17 != 0 {
            intr.due = context.now + u64::from(self.registers.get(intr.at + intr::TIMER)) * TICK;
        }
        if returned & 1 << 16 != 0 {
            self.registers.put(intr.at + intr::MASK, 0);
        }
    }

    /// Forgets what is pending.
    pub(crate) fn reset(&mut self) {
        self.pending = 0;
        self.late.clear();
        for intr in &mut self.intr {
            *intr = Intr {
                at: intr.at,
                ..Intr::default()
            };
        }
    }
}
