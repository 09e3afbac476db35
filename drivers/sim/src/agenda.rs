//! The event queue: a heap of small events on the virtual clock. Events of equal time keep their order of
//! insertion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use doorbell_fabric::time::Time;

/// Something that happens at a time. Small and plain: everything that it names lives in a slab or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A message reaches its receiver's NIC.
    Arrive { message: u32 },
    /// News of a receiver's progress reaches the sender: everything up to `upto` was taken.
    Ack {
        nic: u32,
        conn: u32,
        epoch: u32,
        upto: u64,
    },
    /// A one-sided request reaches the target.
    Request { op: u32 },
    /// The target has executed it.
    Finish { op: u32 },
    /// The answer reaches the initiator.
    Reply { op: u32 },
    /// A frame leaves the NIC: the sender may use its memory again.
    Depart { frame: u32 },
    /// A frame reaches its receiver's NIC.
    Frame { frame: u32 },
    /// Releases a delayed frame that no later frame has overtaken by then.
    Unhold { frame: u32, serial: u64 },
    /// A rail notices that the path to a peer closed or opened, unless it changed again in between.
    PeerNotice { nic: u32, conn: u32, turn: u32 },
    /// A reconnect request reaches the peer.
    Revive { nic: u32, conn: u32 },
    /// A rail notices that its own link closed or opened, unless it changed again in between.
    LinkNotice { nic: u32, turn: u32 },
    /// A scripted change.
    Script { change: u32 },
}

#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<Entry>>,
    made: u64,
}

#[derive(Debug)]
struct Entry {
    at: Time,
    made: u64,
    due: Due,
}

impl Agenda {
    pub(crate) fn push(&mut self, at: Time, due: Due) {
        self.made += 1;
        let made = self.made;
        self.heap.push(Reverse(Entry { at, made, due }));
    }

    /// Returns when the next event is due.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// The next event that is due by `now`.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, Due)> {
        let Reverse(first) = self.heap.peek()?;
        if first.at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.due))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.made == other.made
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.made).cmp(&(other.at, other.made))
    }
}
