//! Faults: what goes wrong on purpose, when, and where (8.8).
//!
//! A rule has a moment, a target and an action. Most actions change what happens at a *point* of the data
//! path or of a command; the others are *deeds*, done between two turns. Rules are looked at only where one
//! is armed, so without any a fault costs a bit test.

mod actions;
pub(crate) mod deeds;
pub(crate) mod packet;
pub(crate) mod script;

pub(crate) use actions::Bounds;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::random::Random;

/// Where a rule may act, or count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// A command begins, on a function's own block or by the proxy.
    Command,
    /// A frame was fetched by a send queue.
    Transmit,
    /// A frame is for a receive queue.
    Receive,
    /// A completion is written.
    Completion,
    /// A posted index was written.
    Doorbell,
    /// A queue is enabled.
    Enable,
    /// A queue has been disabled.
    Disable,
    /// An interrupt is delivered.
    Interrupt,
    /// Memory is accessed.
    Dma,
    /// Memory is taken back.
    Unmap,
    /// A frame goes through the switch.
    Packet,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    // commands
    Busy(Duration),
    Error(u8),
    Pending,
    Errno(u8),
    Zeros,
    // queues
    StuckRunning,
    StuckStopped,
    ErrorStatus(u32),
    Stale,
    LostDoorbell,
    // completions
    ColorLate(Duration),
    ColorEarly(Duration),
    InterruptFirst(Duration),
    DuplicateEntry,
    WrongQueue(u16),
    WrongType(u8),
    WrongColor,
    Overrun,
    // frames at a receive queue
    Truncate,
    // the switch
    Drop,
    Duplicate,
    Reorder,
    Delay(Duration),
    Corrupt,
    BadIp,
    BadUdp,
    Pad(usize),
    Fragment,
    Tag,
    ForeignPort,
    Oversize(usize),
    // interrupts
    Lost,
    Late(Duration),
    // memory
    Unmapped,
    Slow(Duration),
    UnmapLate(Duration),
    // deeds
    Removed,
    BadMagic,
    BadVersion,
    TableCut(usize),
    SmallBar,
    Missing(u8),
    CountZero(u8),
    Reset,
    Disconnect,
    LinkDown,
    LinkUp,
    LoseFilters,
    Mtu(u16),
    Mac([u8; 6]),
    Fatal,
    Torn(Option<Duration>),
    Spurious,
    Die,
    Restart,
}

/// The functions that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Any,
    /// All but the physical one.
    Vfs,
    One(usize),
}

impl Scope {
    pub(crate) fn has(self, function: usize) -> bool {
        match self {
            Self::Any => true,
            Self::Vfs => function != 0,
            Self::One(one) => function == one,
        }
    }
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) scope: Scope,
    /// The queue, interrupt, or number of the command.
    pub(crate) index: Option<usize>,
}

/// When a rule acts.
#[derive(Clone, Debug)]
pub(crate) enum When {
    Always,
    /// Once, at the event after this many.
    After(u64),
    Every(u64),
    Chance(f64, Random),
    /// Nanoseconds since the begin.
    At(u64),
}

/// A rule of a script.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) when: When,
    /// Where it acts, or for a deed, where it counts; none: by time.
    pub(crate) point: Option<Point>,
    pub(crate) target: Target,
    pub(crate) action: Action,
    pub(crate) is_deed: bool,
    /// How often it may act yet.
    pub(crate) left: u64,
    seen: u64,
    has_acted: bool,
}

impl Rule {
    pub(crate) fn new(
        when: When,
        point: Option<Point>,
        target: Target,
        action: Action,
        is_deed: bool,
        left: u64,
    ) -> Self {
        Self {
            when,
            point,
            target,
            action,
            is_deed,
            left,
            seen: 0,
            has_acted: false,
        }
    }

    /// Whether it never acts again.
    fn is_spent(&self) -> bool {
        self.left == 0 || matches!(self.when, When::After(count) if self.seen > count)
    }

    fn meets(&mut self, point: Point, function: usize, index: usize) -> bool {
        let is_here = self.point == Some(point)
            && self.left > 0
            && self.target.scope.has(function)
            && (self.is_deed || self.target.index.is_none_or(|wanted| wanted == index));
        if !is_here {
            return false;
        }
        self.seen += 1;
        let acts = match &mut self.when {
            When::Always => true,
            When::After(count) => self.seen == *count + 1,
            When::Every(count) => self.seen.is_multiple_of(*count),
            When::Chance(share, random) => random.chance(*share),
            When::At(_) => false,
        };
        self.left -= u64::from(acts);
        self.has_acted |= acts;
        acts
    }
}

/// Deeds of one turn that are done; each is over when the next turn begins.
const DUE_MOST: usize = 1024;

/// All rules of a model.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: RefCell<Vec<Rule>>,
    /// A bit for each point with a rule.
    armed: Cell<u32>,
    /// Deeds whose moment has come.
    due: RefCell<Vec<(Target, Action)>>,
    /// The next deed by time, nanoseconds.
    next: Cell<u64>,
}

impl Faults {
    /// Adds rules; those that never act again go.
    pub(crate) fn add(&self, rules: Vec<Rule>) {
        let mut all = self.rules.borrow_mut();
        all.retain(|rule| !rule.is_spent());
        all.extend(rules);
        let armed = all
            .iter()
            .filter_map(|rule| rule.point)
            .fold(0, |bits, point| bits | 1 << point as u32);
        self.armed.set(armed);
        self.next.set(next_of(&all));
    }

    /// Whether something goes wrong here, now. `index` is the queue, the interrupt, or the command's number.
    #[inline]
    pub(crate) fn action(&self, point: Point, function: usize, index: usize) -> Option<Action> {
        if self.armed.get() & 1 << point as u32 == 0 {
            return None;
        }
        self.look(point, function, index)
    }

    #[cold]
    fn look(&self, point: Point, function: usize, index: usize) -> Option<Action> {
        let mut first = None;
        for rule in self.rules.borrow_mut().iter_mut() {
            if !rule.meets(point, function, index) {
                continue;
            }
            if rule.is_deed {
                // A rule for all functions acts on the one that triggered it.
                let target = Target {
                    scope: Scope::One(function),
                    ..rule.target
                };
                let mut due = self.due.borrow_mut();
                if due.len() < DUE_MOST {
                    due.push((target, rule.action));
                }
            } else if first.is_none() {
                first = Some(rule.action);
            }
        }
        first
    }

    /// Returns how many rules wait for their first moment.
    pub(crate) fn unfired(&self) -> usize {
        let rules = self.rules.borrow();
        rules.iter().filter(|rule| !rule.has_acted).count()
    }

    /// Whether some deed waits for its time.
    pub(crate) fn is_timed(&self) -> bool {
        self.next.get() != u64::MAX
    }

    /// The deeds whose moment has come.
    #[inline]
    pub(crate) fn deeds(&self, now: u64) -> Vec<(Target, Action)> {
        if now < self.next.get() && self.due.borrow().is_empty() {
            return Vec::new();
        }
        self.timed(now)
    }

    #[cold]
    fn timed(&self, now: u64) -> Vec<(Target, Action)> {
        let mut deeds = std::mem::take(&mut *self.due.borrow_mut());
        let mut rules = self.rules.borrow_mut();
        for rule in rules.iter_mut() {
            if let When::At(at) = rule.when
                && at <= now
                && rule.left > 0
            {
                (rule.left, rule.has_acted) = (0, true);
                deeds.push((rule.target, rule.action));
            }
        }
        self.next.set(next_of(&rules));
        deeds
    }
}

fn next_of(rules: &[Rule]) -> u64 {
    let timed = rules
        .iter()
        .filter(|rule| rule.left > 0)
        .filter_map(|rule| match rule.when {
            When::At(at) => Some(at),
            _ => None,
        });
    timed.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Faults {
        let faults = Faults::default();
        faults.add(script::parse(text, &Bounds::of(4)).unwrap());
        faults
    }

    fn hits(faults: &Faults, count: usize) -> Vec<usize> {
        (1..=count)
            .filter(|_| faults.action(Point::Packet, 0, 0).is_some())
            .collect()
    }

    #[test]
    fn moments_are_kept() {
        assert_eq!(hits(&faults("after 3 frames switch drop"), 10), [4]);
        assert_eq!(hits(&faults("every 3 frames switch drop"), 10), [3, 6, 9]);
        assert_eq!(hits(&faults("every 3 frames switch drop times 2"), 10), [3, 6]);
        assert_eq!(hits(&faults("always switch drop times 1"), 10), [1]);
        let some = hits(&faults("probability 0.2 seed 7 switch drop"), 10_000);
        assert!((1800..2200).contains(&some.len()), "{}", some.len());
        assert_eq!(some, hits(&faults("probability 0.2 seed 7 switch drop"), 10_000));
        assert_ne!(some, hits(&faults("probability 0.2 seed 8 switch drop"), 10_000));
    }

    #[test]
    fn rules_that_never_acted_are_known() {
        let some = faults("after 2 frames switch drop\nat 1ms link down\nalways vf1.wq2 error-status 9");
        assert_eq!(some.unfired(), 3);
        some.deeds(1_000_000);
        assert_eq!(some.unfired(), 2);
        some.action(Point::Transmit, 2, 1);
        some.action(Point::Packet, 0, 0);
        some.action(Point::Packet, 0, 0);
        assert_eq!(some.unfired(), 2, "it was another queue, and too early");
        some.action(Point::Transmit, 2, 2);
        some.action(Point::Packet, 0, 0);
        assert_eq!(some.unfired(), 0);
    }

    #[test]
    fn targets_are_kept() {
        let some = faults("always vf1.wq2 error-status 9");
        assert_eq!(some.action(Point::Transmit, 2, 1), None);
        assert_eq!(some.action(Point::Transmit, 1, 2), None);
        assert_eq!(some.action(Point::Receive, 2, 2), None);
        assert_eq!(some.action(Point::Transmit, 2, 2), Some(Action::ErrorStatus(9)));
    }

    #[test]
    fn deeds_come_by_time_or_by_count() {
        let some = faults("at 2ms link down\nafter 1 commands vf0 removed\nat 3ms link up");
        assert_eq!(some.deeds(1_000_000), []);
        assert_eq!(some.action(Point::Command, 1, 9), None);
        assert_eq!(some.deeds(1_000_001), []);
        some.action(Point::Command, 1, 9);
        let target = Target {
            scope: Scope::One(1),
            index: None,
        };
        assert_eq!(some.deeds(1_000_002), [(target, Action::Removed)]);
        assert_eq!(some.deeds(2_500_000).len(), 1);
        assert_eq!(some.deeds(9_000_000).len(), 1);
        assert_eq!(some.deeds(u64::MAX), []);
    }
}
