//! The slots that a rail receives into: posted to one queue that all connections share, promised to peers as
//! credits, and posted again by sixteens.

use std::sync::Arc;

use doorbell_fabric::memory::{Region, RegionSlice, SharedBytes};

use crate::error::VerbsError;
use crate::sys::{Domain, Event, Piece, ReceiveList, Registered, SharedQueue};

/// Slots that are posted together, and at least how many are added at a time.
const BATCH: usize = 16;

/// A slot's number and how often it was posted: what a completion names.
fn id_of(slot: usize, generation: u32) -> u64 {
    slot as u64 | u64::from(generation) << 32
}

/// The receive slots of a rail.
#[derive(Debug)]
pub(crate) struct Slots {
    /// `None` when the device is gone.
    device: Option<(Arc<Domain>, Arc<SharedQueue>)>,
    /// Memory of `step` slots each, and each slot's part of it.
    chunks: Vec<Arc<Registered>>,
    slices: Vec<RegionSlice>,
    /// The same parts, as receives name them.
    pieces: Vec<Piece>,
    step: usize,
    slot: usize,
    most: usize,
    /// By slot: how often it was posted; odd while the device has it.
    generations: Vec<u32>,
    back: Vec<u32>,
    /// Slots that are posted together, if no promise needs one.
    together: usize,
    list: ReceiveList,
    /// Slots that the device has, and that peers were promised.
    pub(crate) posted: usize,
    pub(crate) promised: usize,
    /// Connections that may have ended in the middle of a send. Some devices report nothing of the slot that
    /// it has begun to fill: as many of those that are posted may be there no more.
    doubt: usize,
    /// Whether the device has refused to take receives at last.
    is_refused: bool,
    /// Completions that cannot be true.
    pub(crate) nonsense: u64,
}

impl Slots {
    /// Begins with one chunk of the `most` slots.
    ///
    /// # Errors
    /// If the system refuses the queue or the memory.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        slot: usize,
        (step, most): (usize, usize),
    ) -> Result<Self, VerbsError> {
        let queue = SharedQueue::new(domain, most)?;
        let mut slots = Self {
            device: Some((Arc::clone(domain), queue)),
            chunks: Vec::new(),
            slices: Vec::with_capacity(most),
            pieces: Vec::with_capacity(most),
            step,
            slot,
            most,
            generations: Vec::with_capacity(most),
            back: Vec::with_capacity(most),
            together: 1,
            list: ReceiveList::default(),
            posted: 0,
            promised: 0,
            doubt: 0,
            is_refused: false,
            nonsense: 0,
        };
        slots.grow()?;
        Ok(slots)
    }

    /// Adds slots, up to the most; returns whether there were any to add.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub(crate) fn grow(&mut self) -> Result<bool, VerbsError> {
        let have = self.generations.len();
        let Some((domain, _)) = self.device.as_ref().filter(|_| self.can_grow()) else {
            return Ok(false);
        };
        let region = Region::new(self.step * self.slot).map_err(|error| VerbsError::Nonsense {
            device: format!("{domain:?}"),
            what: error.to_string(),
        })?;
        let chunk = Registered::new(domain, &region)?;
        let places = (0..self.step).map(|at| (at * self.slot, self.slot));
        self.pieces
            .extend(places.clone().filter_map(|(at, length)| chunk.named(at, length)));
        self.slices
            .extend(places.filter_map(|(at, length)| chunk.memory().slice(at, length)));
        self.chunks.push(chunk);
        self.generations.resize(have + self.step, 0);
        self.back.extend((have as u32..(have + self.step) as u32).rev());
        self.together = BATCH.min((self.generations.len() / 4).max(1));
        self.refill(true);
        self.watch();
        Ok(true)
    }

    /// The queue that they are posted to.
    pub(crate) fn queue(&self) -> Option<&Arc<SharedQueue>> {
        self.device.as_ref().map(|(_, queue)| queue)
    }

    /// Whether an event of the device is about its queue.
    pub(crate) fn is_meant(&self, event: &Event) -> bool {
        self.queue().is_some_and(|queue| queue.is_meant(event))
    }

    /// Lets go of the device, and of every slot.
    pub(crate) fn release(&mut self) {
        self.device = None;
        self.chunks.clear();
        self.slices.clear();
        self.pieces.clear();
        self.generations.clear();
        self.back.clear();
        (self.posted, self.promised, self.doubt) = (0, 0, 0);
    }

    /// A connection has ended that may have begun to fill a slot: one less is counted upon, until the queue
    /// [is replaced](Self::replace_queue).
    pub(crate) fn doubt_one(&mut self) {
        self.doubt = (self.doubt + 1).min(self.posted);
    }

    /// Whether a slot may be missing.
    #[cfg(test)]
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt > 0
    }

    /// Whether slots may be missing, and no queue pair receives from the queue any more.
    pub(crate) fn is_replaceable(&mut self) -> bool {
        let queue = self.device.as_mut().filter(|_| self.doubt > 0);
        queue.is_some_and(|(_, queue)| Arc::get_mut(queue).is_some())
    }

    /// Whether so many slots may be missing that the queue has to be replaced, and no others can be added
    /// instead.
    pub(crate) fn is_exhausted(&mut self) -> bool {
        let are_many = self.doubt > 0 && self.doubt * 4 >= self.generations.len();
        are_many && !self.grow().unwrap_or(false)
    }

    /// Replaces the queue, and posts to the new one all that the device had;
    /// whether that was possible. The device may own a slot until the queue is destroyed, and so until no
    /// queue pair receives from it: each keeps it until it is destroyed itself.
    pub(crate) fn replace_queue(&mut self) -> bool {
        let Some((domain, queue)) = &mut self.device else {
            return false;
        };
        let Some(former) = Arc::get_mut(queue) else {
            return false;
        };
        let Ok(next) = SharedQueue::new(domain, self.most) else {
            return false;
        };
        if !former.end() {
            return false;
        }
        *queue = next;
        for (slot, generation) in self.generations.iter_mut().enumerate() {
            if *generation & 1 == 1 {
                // A completion of before names none that is posted.
                *generation = generation.wrapping_add(1);
                self.back.push(slot as u32);
            }
        }
        (self.posted, self.doubt) = (0, 0);
        self.refill(true);
        self.watch();
        true
    }

    /// Has an event be raised when few are left.
    fn watch(&self) {
        if let Some(queue) = self.queue().filter(|_| self.generations.len() < self.most) {
            // Where that is refused, slots grow with the credits that peers want.
            let _ = queue.limit(self.generations.len() / 4);
        }
    }

    /// Slots that the device has and no peer was promised, without those that may be missing.
    pub(crate) fn unpromised(&self) -> usize {
        self.posted.saturating_sub(self.promised + self.doubt)
    }

    /// Whether slots can be added.
    pub(crate) fn can_grow(&self) -> bool {
        self.generations.len() + self.step <= self.most
    }

    /// Promises slots, which have to be there.
    #[inline]
    pub(crate) fn promise(&mut self, count: usize) {
        self.promised += count;
        self.check();
    }

    /// Ends promises: sends arrived, credits were given back, or a connection is over.
    #[inline]
    pub(crate) fn redeem(&mut self, count: usize) {
        debug_assert!(count <= self.promised, "a promise ends twice");
        self.promised -= count;
    }

    /// Asserts that no peer was promised a slot that is not posted. A device that refuses receives breaks
    /// promises without our doing.
    #[inline]
    pub(crate) fn check(&self) {
        debug_assert!(
            self.promised <= self.posted || self.is_refused,
            "{} slots are promised, and {} are posted",
            self.promised,
            self.posted
        );
    }

    /// Whether a completion names a slot that the device has.
    #[inline(always)]
    pub(crate) fn has(&self, id: u64) -> bool {
        let generation = (id >> 32) as u32;
        generation & 1 == 1 && self.generations.get(id as u32 as usize) == Some(&generation)
    }

    /// Takes the slot that a completion names; `None` if the device does not have it, or its bytes are more
    /// than a slot's.
    #[inline]
    pub(crate) fn take(&mut self, id: u64) -> Option<u32> {
        if !self.has(id) {
            self.nonsense += 1;
            return None;
        }
        Some(self.take_held(id))
    }

    /// Takes the slot that a completion names, which [the device has](Self::has).
    #[inline(always)]
    pub(crate) fn take_held(&mut self, id: u64) -> u32 {
        let slot = id as u32;
        if let Some(generation) = self.generations.get_mut(slot as usize) {
            *generation = generation.wrapping_add(1);
        }
        self.posted -= 1;
        slot
    }

    /// The first bytes of a slot, whether or not it was taken; `None` where it has fewer.
    #[inline(always)]
    pub(crate) fn first(&self, slot: u32, length: usize) -> Option<SharedBytes<'_>> {
        let bytes = self.slices.get(slot as usize)?.as_shared();
        (length <= bytes.len()).then(|| bytes.take(length))
    }

    /// What a completion of some slot that the device has would name.
    #[cfg(test)]
    pub(crate) fn posted_one(&self) -> u64 {
        let slot = self.generations.iter().position(|generation| generation & 1 == 1);
        let slot = slot.expect("one is posted");
        id_of(slot, self.generations[slot])
    }

    /// The bytes of a slot that was taken.
    #[inline]
    pub(crate) fn bytes(&self, slot: u32, length: usize) -> SharedBytes<'_> {
        self.slices[slot as usize].as_shared().take(length)
    }

    /// The slot is not used any more. Slots wait for others to be posted with, but not where a promise needs
    /// them: one was taken by a completion that no promise stands behind.
    #[inline]
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.back.push(slot);
        let lacks = self.posted < self.promised + self.doubt;
        if lacks || self.back.len() >= self.together {
            self.refill(lacks);
        }
    }

    /// Posts what came back: whole lists, or everything.
    pub(crate) fn refill(&mut self, all: bool) {
        while !self.back.is_empty() && (all || self.back.len() >= self.together) {
            if !self.post_some() {
                return;
            }
        }
    }

    /// Posts up to a list's length of slots.
    fn post_some(&mut self) -> bool {
        let Some((_, queue)) = &self.device else {
            return false;
        };
        let wanted = self.back.len().min(BATCH);
        let at = self.back.len() - wanted;
        for &slot in self.back[at..].iter().rev() {
            let place = slot as usize;
            let id = id_of(place, self.generations[place].wrapping_add(1));
            if self.list.next(id, self.pieces[place]).is_err() {
                break;
            }
        }
        let taken = queue.receive(&mut self.list);
        for slot in self.back.drain(self.back.len() - taken..) {
            let generation = &mut self.generations[slot as usize];
            *generation = generation.wrapping_add(1);
        }
        self.posted += taken;
        self.is_refused = taken < wanted;
        !self.is_refused
    }
}
