//! Operations in progress: those of ours that are to be answered, and those of others that we are pulling or
//! serving.
//!
//! An operation is named by a number of 64 bits, which travels: an index, and a generation that distinguishes
//! a late answer from the answer to a later operation in the same place.

use doorbell_fabric::message::RemoteKey;
use doorbell_fabric::ni::Event;

use crate::events::BLANK;
use crate::peers::NONE;

/// What an operation is to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Free,
    /// Ours: sent, to be acknowledged.
    Put,
    /// Ours: announced, to be pulled and acknowledged.
    Rts,
    /// Ours: to be answered by bytes, of a get or a fetching atomic.
    Get,
    /// A peer's put that we pull.
    Landing,
    /// A peer's get that we serve.
    Serve,
}

/// Bytes that are being sent in fragments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// The puller's operation.
    pub(crate) to: u64,
    pub(crate) next: u64,
    pub(crate) end: u64,
}

/// Ways that one piece of memory can be exposed over at a time.
pub(crate) const SOURCES: usize = 4;

/// An operation in progress.
#[derive(Debug)]
pub(crate) struct Op {
    generation: u32,
    next_free: u32,
    pub(crate) role: Role,
    /// The number of its interface.
    pub(crate) ni: u8,
    /// The acknowledgement that was requested.
    pub(crate) ack: u8,
    /// Whether it is in the queue of work.
    pub(crate) queued: bool,
    /// Serve: the peer was notified.
    pub(crate) announced: bool,
    /// Landing, Serve: its event was promised by a queue.
    pub(crate) kept: bool,
    /// Landing: its entry acknowledges nothing.
    pub(crate) silent: bool,
    pub(crate) peer: u32,
    /// The memory: a descriptor's index, or an entry's.
    pub(crate) object: u32,
    /// Landing, Serve: the unexpected header.
    pub(crate) header: u32,
    /// What is being pulled: an index.
    pub(crate) pull: u32,
    /// First byte in the memory.
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) user_ptr: u64,
    /// The offset at the target.
    pub(crate) offset: u64,
    /// Landing, Serve: the other side's number of it.
    pub(crate) far: u64,
    pub(crate) stream: Option<Stream>,
    pub(crate) exposed: [Option<(u16, RemoteKey)>; SOURCES],
    /// Landing, Serve: the event at the target. Get: its `list`, once READY has named it.
    pub(crate) event: Event,
}

impl Op {
    fn free(next_free: u32) -> Self {
        Self {
            generation: 0,
            next_free,
            role: Role::Free,
            ni: 0,
            ack: 0,
            queued: false,
            announced: false,
            kept: false,
            silent: false,
            peer: NONE,
            object: NONE,
            header: NONE,
            pull: NONE,
            at: 0,
            length: 0,
            user_ptr: 0,
            offset: 0,
            far: 0,
            stream: None,
            exposed: [None; SOURCES],
            event: BLANK,
        }
    }

    /// Whether we began it.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.role, Role::Put | Role::Rts | Role::Get)
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Ops {
    slots: Vec<Op>,
    free: u32,
}

impl Ops {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
        }
    }

    /// A place for an operation; the fields that do not matter to its role are as they were left.
    #[inline(always)]
    pub(crate) fn open(&mut self, role: Role, ni: u8, peer: u32, object: u32) -> u32 {
        if self.free == NONE {
            self.grow();
        }
        let at = self.free;
        let op = &mut self.slots[at as usize];
        self.free = op.next_free;
        op.generation = op.generation.wrapping_add(1);
        op.role = role;
        op.ni = ni;
        op.peer = peer;
        op.object = object;
        at
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let first = self.slots.len();
        let more = first.clamp(64, 4096);
        for at in first..first + more {
            self.slots.push(Op::free(at as u32 + 1));
        }
        if let Some(last) = self.slots.last_mut() {
            last.next_free = NONE;
        }
        self.free = first as u32;
    }

    /// The operation is over; its number means nothing any more.
    #[inline(always)]
    pub(crate) fn close(&mut self, at: u32) {
        let free = self.free;
        let Some(op) = self.slots.get_mut(at as usize) else {
            return;
        };
        op.role = Role::Free;
        op.next_free = free;
        op.header = NONE;
        op.pull = NONE;
        op.queued = false;
        op.announced = false;
        op.kept = false;
        op.stream = None;
        self.free = at;
    }

    /// The number that travels.
    #[inline(always)]
    pub(crate) fn id(&self, at: u32) -> u64 {
        u64::from(self.slots[at as usize].generation) << 32 | u64::from(at)
    }

    /// Returns the operation that a number from outside names, if it is one with this peer.
    #[inline(always)]
    pub(crate) fn find(&self, id: u64, peer: u32) -> Option<u32> {
        let at = id as u32;
        let op = self.slots.get(at as usize)?;
        let known = op.role != Role::Free && op.generation == (id >> 32) as u32 && op.peer == peer;
        known.then_some(at)
    }

    #[inline(always)]
    pub(crate) fn at(&self, at: u32) -> Option<&Op> {
        self.slots.get(at as usize).filter(|op| op.role != Role::Free)
    }

    #[inline(always)]
    pub(crate) fn at_mut(&mut self, at: u32) -> Option<&mut Op> {
        self.slots.get_mut(at as usize).filter(|op| op.role != Role::Free)
    }

    /// All places, taken or not.
    pub(crate) fn places(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_numbers_and_those_of_other_peers_name_nothing() {
        let mut ops = Ops::new();
        let at = ops.open(Role::Put, 0, 3, 0);
        let id = ops.id(at);
        assert_eq!(
            (ops.find(id, 3), ops.find(id, 4), ops.find(id + 1, 3)),
            (Some(at), None, None)
        );
        ops.close(at);
        assert_eq!(ops.find(id, 3), None);
        let again = ops.open(Role::Get, 0, 3, 0);
        assert_eq!((again, ops.find(id, 3)), (at, None));
        assert_eq!(ops.find(u64::MAX, 3), None);
    }
}
