//! The schedule of events: one bucket for each tick, as far ahead as a message takes.

/// Ticks ahead that can be planned.
const AHEAD: usize = 1 << 10;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The node's next request is due.
    Send,
    /// The node handles the first request that waits.
    Serve,
    /// A request lands: its byte, and how long it is.
    Request { byte: u8, length: u16, ours: bool },
    /// A reply: its byte.
    Reply { byte: u8, ours: bool },
    /// CREDIT_REVOKE, with an epoch's end.
    Revoke { epoch: bool },
    /// CREDIT_RETURN, with an epoch's end.
    Return { give: u16, epoch: bool },
}

/// Something at a node, from another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) at: u32,
    pub(super) from: u32,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) struct Wheel {
    buckets: Vec<Vec<Event>>,
    now: u64,
    planned: usize,
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self {
            buckets: (0..AHEAD).map(|_| Vec::new()).collect(),
            now: 0,
            planned: 0,
        }
    }

    pub(super) const fn now(&self) -> u64 {
        self.now
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.planned == 0
    }

    /// Plans an event; at least one tick ahead, and at most as far as there are buckets.
    #[inline]
    pub(super) fn plan(&mut self, after: u64, event: Event) {
        let after = after.clamp(1, AHEAD as u64 - 1);
        self.buckets[(self.now + after) as usize % AHEAD].push(event);
        self.planned += 1;
    }

    /// All events of the next tick, in place of an empty `into`.
    pub(super) fn turn(&mut self, into: &mut Vec<Event>) {
        self.now += 1;
        into.clear();
        std::mem::swap(into, &mut self.buckets[self.now as usize % AHEAD]);
        self.planned -= into.len();
    }
}
