//! The messages to one peer that were accepted and are not known to be taken: in registered slots, in the
//! order of their numbers, several short ones in one.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_fabric::memory::{RegionSlice, SharedBytes};
use doorbell_fabric::message::{Body, Refused};

use super::head::{CONTROLS, HEAD, LENGTH};
use super::ring::layout::{TAIL, Tail};
use crate::sys::{Place, Registered};

/// The sends that are kept for one peer at most.
pub(crate) const FRAMES: usize = 64;
/// Sends that are given back together, where nothing waits for them.
const TOGETHER: usize = 16;
/// Sends without messages that are kept besides.
const CONTROLS_MOST: usize = 8;

/// Registered slots of equal length, which go to the peers that send.
pub(crate) struct Pool {
    /// `None` when the device is gone.
    memory: Option<Arc<Registered>>,
    bytes: RegionSlice,
    slot: usize,
    free: Vec<u32>,
    /// Those that messages leave.
    reserved: usize,
    /// Half of all.
    least: usize,
}

impl Pool {
    /// Cuts memory into slots.
    pub(crate) fn new(memory: Arc<Registered>, slot: usize) -> Self {
        let slots = memory.memory().len() / slot;
        Self {
            bytes: memory.memory().clone(),
            memory: Some(memory),
            slot,
            free: (0..slots as u32).rev().collect(),
            reserved: CONTROLS_MOST.min(slots / 16),
            least: slots / 2,
        }
    }

    fn at(&self, slot: u32) -> usize {
        slot as usize * self.slot
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Whether fewer than half of its slots are free.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.free.len() < self.least
    }

    fn bytes(&self) -> &RegionSlice {
        &self.bytes
    }

    /// Returns its registration with the device.
    #[inline]
    pub(crate) fn memory(&self) -> Option<&Arc<Registered>> {
        self.memory.as_ref()
    }

    /// Lets go of the device; the bytes stay.
    pub(crate) fn release(&mut self) {
        self.memory = None;
    }

    /// Writes the head of a send.
    pub(crate) fn write_head(&self, frame: &Frame, head: &super::head::Head) {
        use zerocopy::IntoBytes;
        self.bytes().write(self.at(frame.slot), head.as_bytes());
    }

    /// The place of a send's bytes.
    pub(crate) fn place(&self, frame: &Frame) -> (usize, usize) {
        (self.at(frame.slot), frame.length)
    }

    /// Writes what a send over a ring ends with; the place of all its bytes.
    #[inline]
    pub(crate) fn write_tail(&self, frame: &Frame, queued: u32, lap: u32) -> (usize, usize) {
        use zerocopy::IntoBytes;
        let (at, length) = self.place(frame);
        let send = self.bytes().as_shared().skip(at).take(length);
        let tail = Tail::of(send, queued, lap);
        self.bytes().write(at + length, tail.as_bytes());
        (at, length + TAIL)
    }
}

/// A body that is sent from where it lies.
pub(crate) struct Far {
    pub(crate) place: Place,
    pub(crate) slice: RegionSlice,
}

/// One send: its slot, and what it carries.
pub(crate) struct Frame {
    slot: u32,
    /// Bytes in the slot, head included.
    length: usize,
    pub(crate) messages: u16,
    pub(crate) body: Option<Far>,
    /// The number of its request, once it is posted.
    pub(crate) request: u64,
    /// Flags of its head besides: [`CONTROLS`], where it carries no messages.
    pub(crate) flags: u16,
}

impl Frame {
    fn total(&self) -> usize {
        self.length + self.body.as_ref().map_or(0, |body| body.slice.len())
    }

    /// Bytes in the slot, head included.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.length
    }

    /// Whether it is of messages that are all in the slot, and no longer than this.
    #[inline]
    pub(crate) fn is_short(&self, most: usize) -> bool {
        self.flags == 0 && self.body.is_none() && self.length <= most
    }
}

/// A send of this many bytes and messages.
#[cfg(test)]
pub(crate) fn frame_of(length: usize, messages: u16) -> Frame {
    Frame {
        slot: 0,
        length,
        messages,
        body: None,
        request: 0,
        flags: 0,
    }
}

/// The sends to one peer.
pub(crate) struct Outbox {
    frames: VecDeque<Frame>,
    /// How many of them, from the first on, were posted.
    posted: usize,
    /// Messages accepted since the connection began, and of these those whose frames are gone.
    pub(crate) accepted: u64,
    gone: u64,
    /// Of the sends that are kept, those with a body that lies elsewhere.
    bodies: usize,
    /// Messages wait for windows that are not bound yet.
    pub(crate) is_held: bool,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            frames: VecDeque::with_capacity(FRAMES + CONTROLS_MOST),
            posted: 0,
            accepted: 0,
            gone: 0,
            bodies: 0,
            is_held: false,
        }
    }

    /// Whether a send waits to be posted.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.posted < self.frames.len()
    }

    /// Whether what has ended has to be given back now, and not with others: something waits, a body lies
    /// elsewhere, or many are kept.
    #[inline]
    pub(crate) fn is_pressed(&self) -> bool {
        self.waits() || self.bodies > 0 || self.frames.len() >= TOGETHER
    }

    /// Sends that are kept: not posted, or not known to be taken.
    pub(crate) fn kept(&self) -> usize {
        self.frames.len()
    }

    /// Whether nothing is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Accepts a message, behind others that wait in the same slot if it fits there; a body that lies in
    /// registered memory stays where it is.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        pool: &mut Pool,
        head: &[u8],
        body: &Body<'_>,
        far: Option<Far>,
    ) -> Result<(), Refused> {
        let length = head.len() + body.len();
        let fits = self.frames.len() > self.posted
            && self.frames.back().is_some_and(|last| {
                last.body.is_none()
                    && last.flags == 0
                    && last.total() + LENGTH + length <= pool.slot
                    && last.messages < u16::MAX
            });
        if !fits {
            self.begin(pool)?;
        }
        let Some(frame) = self.frames.back_mut() else {
            return Err(Refused::Full);
        };
        let start = pool.at(frame.slot);
        let mut at = start + frame.length;
        let bytes = pool.bytes();
        at += bytes.write(at, &(length as u16).to_le_bytes());
        at += bytes.write(at, head);
        if far.is_none() {
            body.for_each_part(|part| at += bytes.write_shared(at, part));
        }
        frame.length = at - start;
        if far.is_some() {
            frame.body = far;
            self.bodies += 1;
        }
        frame.messages += 1;
        self.accepted += 1;
        Ok(())
    }

    fn begin(&mut self, pool: &mut Pool) -> Result<(), Refused> {
        if self.frames.len() >= FRAMES {
            return Err(Refused::Full);
        }
        // Without a slot for them, what messages wait for would never be agreed upon.
        if pool.free.len() <= pool.reserved {
            return Err(Refused::Full);
        }
        let slot = pool.free.pop().ok_or(Refused::Full)?;
        self.frames.push_back(Frame {
            slot,
            length: HEAD,
            messages: 0,
            body: None,
            request: 0,
            flags: 0,
        });
        Ok(())
    }

    /// Adds a send without messages in front of those that wait; `false` if there is no room now.
    pub(crate) fn control(&mut self, pool: &mut Pool, bytes: &[u8]) -> bool {
        if self.frames.len() >= FRAMES + CONTROLS_MOST {
            return false;
        }
        let Some(slot) = pool.free.pop() else {
            return false;
        };
        pool.bytes().write(pool.at(slot) + HEAD, bytes);
        let behind = self
            .frames
            .iter()
            .skip(self.posted)
            .take_while(|frame| frame.flags != 0);
        let place = self.posted + behind.count();
        let frame = Frame {
            slot,
            length: HEAD + bytes.len(),
            messages: 0,
            body: None,
            request: 0,
            flags: CONTROLS,
        };
        self.frames.insert(place, frame);
        true
    }

    /// The next send to be posted.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<&mut Frame> {
        let is_held = self.is_held;
        let next = self.frames.get_mut(self.posted)?;
        (!is_held || next.flags != 0).then_some(next)
    }

    /// Whether another one waits behind the next send.
    #[inline]
    pub(crate) fn has_two(&self) -> bool {
        self.posted + 1 < self.frames.len()
    }

    /// The next send was prepared.
    #[inline]
    pub(crate) fn step(&mut self) {
        self.posted += 1;
    }

    /// The last `count` sends were prepared and not taken.
    pub(crate) fn step_back(&mut self, count: usize) {
        self.posted -= count;
    }

    /// Gives back the slots of sends that have ended, up to request `done`, and whose messages were taken, up
    /// to `consumed`.
    #[inline]
    pub(crate) fn release(&mut self, pool: &mut Pool, consumed: u64, done: u64) {
        while self.posted > 0
            && let Some(frame) = self.frames.front()
            && frame.request <= done
            && self.gone + u64::from(frame.messages) <= consumed
        {
            self.gone += u64::from(frame.messages);
            self.bodies -= usize::from(frame.body.is_some());
            pool.free.push(frame.slot);
            self.frames.pop_front();
            self.posted -= 1;
        }
    }

    /// Ends all sends: shows the messages above `consumed`, oldest first, each with its number.
    pub(crate) fn end(&mut self, pool: &mut Pool, consumed: u64, mut each: impl FnMut(u64, Vec<u8>)) {
        let mut number = self.gone;
        for frame in self.frames.drain(..) {
            let start = pool.at(frame.slot);
            let bytes = pool.bytes().as_shared().skip(start).take(frame.length);
            for_each(bytes, &frame, |message| {
                number += 1;
                if number > consumed {
                    each(number, message);
                }
            });
            pool.free.push(frame.slot);
        }
        (self.posted, self.accepted, self.gone, self.bodies) = (0, 0, 0, 0);
    }
}

/// Shows copies of the messages of a send.
fn for_each(bytes: SharedBytes<'_>, frame: &Frame, mut each: impl FnMut(Vec<u8>)) {
    let mut at = HEAD;
    for _ in 0..frame.messages {
        let length = usize::from(bytes.read(at).map_or(0, u16::from_le_bytes));
        let mut message = bytes.skip(at + LENGTH).take(length).to_vec();
        if let Some(body) = &frame.body
            && message.len() < length
        {
            message.extend(body.slice.as_shared().to_vec());
        }
        at += LENGTH + length;
        each(message);
    }
}
