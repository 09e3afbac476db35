//! What is posted and what is fetched: the doorbell, the descriptors, and registers that must not be written
//! meanwhile (4.7).

use super::{Ring, Side, State, status};
use crate::desc::{INDEX_MASK, LENGTH};
use crate::fault::{Action, Point};
use crate::io::{Context, Io, Wrong};
use crate::registers::queue;
use crate::violation::Kind;

/// The highest bit of a posted index's register, which no index reaches.
const MARK: u32 = 1 << 31;

impl Ring {
    /// Whether nothing happened since the last look, and nothing is left to do: the commonest case, decided
    /// by two loads.
    #[inline]
    pub(crate) fn is_quiet(&self, io: &Io) -> bool {
        match self.state {
            State::Stopped => io.registers.get(self.at + queue::ENABLE) & 1 == 0,
            State::Running => {
                self.posted == self.fetch
                    && io.registers.get(self.at + queue::POSTED) == self.seen
                    && io.registers.get(self.at + queue::ENABLE) & 1 != 0
            }
            _ => false,
        }
    }

    /// Looks at the doorbell. True where something is newly posted; `prove` is called for completions that
    /// must have been read.
    #[inline]
    pub(crate) fn doorbell(&mut self, io: &mut Io, context: &Context, prove: impl FnMut(u64)) -> bool {
        let raw = io.registers.get(self.at + queue::POSTED);
        raw != self.seen && self.rung(io, context, raw, prove)
    }

    /// Misses a doorbell. Where the same index may be seen later, the register gets a mark above the index,
    /// which a driver's next write removes: of memory, nothing else would show that the same was written
    /// again.
    pub(super) fn miss(&mut self, io: &Io, context: &Context) {
        let marked = self.seen | MARK;
        if context.options.behaviour.same_index
            && io.registers.replace(self.at + queue::POSTED, self.seen, marked)
        {
            self.seen = marked;
        }
    }

    fn rung(&mut self, io: &mut Io, context: &Context, raw: u32, mut prove: impl FnMut(u64)) -> bool {
        self.seen = raw;
        if context.faults.action(Point::Doorbell, io.index, self.index) == Some(Action::LostDoorbell) {
            self.miss(io, context);
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
            // As a descriptor cache would: the new ring, with whatever was fetched before. A size that cannot
            // be is not taken.
            self.base = found[0].1;
        }
        // Once is enough.
        io.registers.put64(self.at + queue::RING_BASE, self.base);
        io.registers.put(self.at + queue::RING_SIZE, self.size);
        io.registers.put(self.at + queue::CQ_INDEX, self.cq as u32);
        self.show(io, context);
    }

    /// Brings fetch_index up to date, and checks whether the driver wrote it.
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

    /// Returns how many descriptors are there to fetch.
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
    pub(super) fn look_ahead(&mut self, io: &mut Io, context: &Context) {
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

    /// The completion of a slot: a driver that posts that slot again has read it.
    #[inline]
    pub(crate) fn proof(&mut self, slot: u32, number: u64) {
        self.proofs[slot as usize] = number;
    }
}
