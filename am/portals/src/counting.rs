//! Counting events, and what waits for them (reference: portals, section 9).

use std::collections::VecDeque;

use doorbell_fabric::ni::{Atomic, Count, FetchAtomic, Get, MdHandle, Put};

use crate::peers::NONE;

/// A counting event.
#[derive(Debug)]
pub(crate) struct Counting {
    pub(crate) value: Count,
    /// What waits for it, lowest threshold first.
    first: u32,
    last: u32,
    waiting: u32,
}

impl Counting {
    pub(crate) fn new() -> Self {
        Self {
            value: Count::default(),
            first: NONE,
            last: NONE,
            waiting: 0,
        }
    }

    /// Returns how many operations wait.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Whether anything waits.
    #[inline(always)]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.first != NONE
    }
}

/// An operation that waits: as it was given, but that descriptors are named by their index, which they keep
/// as long as an operation waits that needs them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    Put(Put),
    Get(Get),
    Atomic(Atomic),
    FetchAtomic(FetchAtomic),
    CtInc(u32, Count),
    CtSet(u32, Count),
    /// An entry that was made when it was set.
    Append(u32),
    Unlink(u32),
}

impl Held {
    /// Whether it needs the rails.
    pub(crate) fn is_data(&self) -> bool {
        matches!(
            self,
            Self::Put(_) | Self::Get(_) | Self::Atomic(_) | Self::FetchAtomic(_)
        )
    }

    /// The descriptors that the operation uses.
    pub(crate) fn descriptors(&mut self) -> [Option<&mut MdHandle>; 2] {
        match self {
            Self::Put(put) => [Some(&mut put.from.md), None],
            Self::Get(get) => [Some(&mut get.into.md), None],
            Self::Atomic(atomic) => [Some(&mut atomic.put.from.md), None],
            Self::FetchAtomic(fetch) => [Some(&mut fetch.into.md), Some(&mut fetch.from.md)],
            _ => [None, None],
        }
    }
}

#[derive(Debug)]
struct Waiting {
    threshold: u64,
    next: u32,
    what: Held,
}

/// What waits for the counting events of an interface, and what has fired and is still to be done.
#[derive(Debug, Default)]
pub(crate) struct Triggers {
    slots: Vec<Waiting>,
    free: Vec<u32>,
    fired: VecDeque<u32>,
}

impl Triggers {
    /// Lets `what` wait: behind those with the same threshold.
    pub(crate) fn wait(&mut self, ct: &mut Counting, threshold: u64, what: Held) {
        let slot = self.slot(threshold, what);
        ct.waiting += 1;
        if ct.last == NONE || self.threshold(ct.last) <= threshold {
            // The usual order: rising thresholds.
            match self.slots.get_mut(ct.last as usize) {
                Some(last) => last.next = slot,
                None => ct.first = slot,
            }
            ct.last = slot;
            return;
        }
        let (mut before, mut at) = (NONE, ct.first);
        while at != NONE && self.threshold(at) <= threshold {
            (before, at) = (at, self.slots[at as usize].next);
        }
        self.slots[slot as usize].next = at;
        match self.slots.get_mut(before as usize) {
            Some(before) => before.next = slot,
            None => ct.first = slot,
        }
    }

    fn slot(&mut self, threshold: u64, what: Held) -> u32 {
        let waiting = Waiting {
            threshold,
            next: NONE,
            what,
        };
        if let Some(at) = self.free.pop() {
            self.slots[at as usize] = waiting;
            return at;
        }
        self.slots.push(waiting);
        (self.slots.len() - 1) as u32
    }

    fn threshold(&self, at: u32) -> u64 {
        self.slots[at as usize].threshold
    }

    /// Something to be done at once, behind what has fired.
    pub(crate) fn fire_now(&mut self, what: Held) {
        let slot = self.slot(0, what);
        self.fired.push_back(slot);
    }

    /// The counting event has changed: what has reached its threshold fires, in order.
    #[cold]
    #[inline(never)]
    pub(crate) fn fire(&mut self, ct: &mut Counting) {
        while ct.first != NONE && ct.value.fires(self.threshold(ct.first)) {
            let at = ct.first;
            ct.first = self.slots[at as usize].next;
            ct.waiting -= 1;
            if ct.first == NONE {
                ct.last = NONE;
            }
            self.fired.push_back(at);
        }
    }

    /// Forgets what waits for a counting event.
    pub(crate) fn cancel(&mut self, ct: &mut Counting, mut each: impl FnMut(Held)) {
        let mut at = ct.first;
        while at != NONE {
            let slot = &mut self.slots[at as usize];
            each(slot.what);
            self.free.push(at);
            at = slot.next;
        }
        (ct.first, ct.last, ct.waiting) = (NONE, NONE, 0);
    }

    #[inline(always)]
    pub(crate) fn has_fired(&self) -> bool {
        !self.fired.is_empty()
    }

    /// Returns how many have fired and are not done.
    pub(crate) fn backlog(&self) -> usize {
        self.fired.len()
    }

    /// The next that has fired; it stays until [`Triggers::did`].
    pub(crate) fn next(&self) -> Option<Held> {
        let at = *self.fired.front()?;
        self.slots.get(at as usize).map(|slot| slot.what)
    }

    /// Removes and returns the operation that [`next`](Self::next) has returned: it is done.
    pub(crate) fn did(&mut self) -> Option<Held> {
        let what = self.next();
        self.free.extend(self.fired.pop_front());
        what
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u64) -> Held {
        Held::CtInc(0, Count::success(number))
    }

    fn fired(triggers: &mut Triggers) -> Vec<u64> {
        std::iter::from_fn(|| triggers.did())
            .map(|what| match what {
                Held::CtInc(_, by) => by.success,
                _ => u64::MAX,
            })
            .collect()
    }

    #[test]
    fn thresholds_fire_in_order_and_equal_ones_as_they_were_set() {
        let (mut ct, mut triggers) = (Counting::new(), Triggers::default());
        for (number, threshold) in [(1, 5), (2, 3), (3, 5), (4, 1), (5, 3), (6, 9)] {
            triggers.wait(&mut ct, threshold, numbered(number));
        }
        assert_eq!(ct.waiting(), 6);
        ct.value = Count {
            success: 2,
            failure: 1,
        };
        triggers.fire(&mut ct);
        assert_eq!(fired(&mut triggers), [4, 2, 5]);
        ct.value.success = 4;
        triggers.fire(&mut ct);
        assert_eq!(fired(&mut triggers), [1, 3]);
        let mut gone = 0;
        triggers.cancel(&mut ct, |_| gone += 1);
        assert_eq!((gone, ct.is_waited_for()), (1, false));
        ct.value.success = 100;
        triggers.fire(&mut ct);
        assert_eq!(fired(&mut triggers), [] as [u64; 0]);
    }
}
