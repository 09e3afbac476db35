//! The messages to one peer that were accepted and are not known to be taken: in registered slots, in the
//! order of their numbers, several short ones in one.

use std::sync::Arc;

use doorbell_fabric::memory::{RegionSlice, Room, SharedBytes};
use doorbell_fabric::message::{Body, Refused};

use super::head::{CONTROLS, HEAD, LENGTH};
use super::ring::layout::{TAIL, Tail};
use crate::sys::{Place, Registered};

/// The sends that are kept for one peer at most.
pub(crate) const FRAMES: usize = 64;
/// With this many kept, what has ended is given back at once: sooner, it waits for others.
const MANY: usize = FRAMES / 2;
/// Sends without messages that are kept besides.
const CONTROLS_MOST: usize = 8;
/// Places of the ring of sends: a power of two, and no fewer than are kept.
const PLACES: usize = 128;
const _: () = assert!(PLACES.is_power_of_two() && PLACES >= FRAMES + CONTROLS_MOST);

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

    #[inline]
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
    #[inline]
    pub(crate) fn write_head(&self, frame: &Frame, head: &super::head::Head) {
        let room = self.bytes.room().part(self.at(frame.slot), HEAD);
        room.write_array::<HEAD>(zerocopy::transmute!(*head));
    }

    /// Returns the room behind what a send has in its slot.
    #[inline(always)]
    fn room(&self, frame: &Frame) -> Room<'_> {
        let (at, length) = self.place(frame);
        self.bytes.room().part(at + length, self.slot - length)
    }

    /// The place of a send's bytes.
    #[inline]
    pub(crate) fn place(&self, frame: &Frame) -> (usize, usize) {
        (self.at(frame.slot), frame.bytes())
    }

    /// Writes what a send over a ring ends with; the place of all its bytes.
    #[inline]
    pub(crate) fn write_tail(&self, frame: &Frame, queued: u32, lap: u32) -> (usize, usize) {
        use zerocopy::IntoBytes;
        let (at, length) = self.place(frame);
        let send = self.bytes.as_shared().skip(at).take(length);
        let tail = Tail::of(send, queued, lap);
        self.bytes.write(at + length, tail.as_bytes());
        (at, length + TAIL)
    }
}

/// A body that is sent from where it lies.
pub(crate) struct Far {
    pub(crate) place: Place,
    pub(crate) slice: RegionSlice,
}

/// One send: its slot, and what it carries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    /// The number of its request, once it is posted.
    pub(crate) request: u64,
    slot: u32,
    /// Bytes in the slot, head included.
    length: u32,
    pub(crate) messages: u16,
    /// Flags of its head besides: [`CONTROLS`], where it carries no messages.
    pub(crate) flags: u16,
    /// The body of its last message lies elsewhere.
    has_body: bool,
}

impl Frame {
    /// A send in a slot, without messages yet.
    #[inline]
    fn new(slot: u32) -> Self {
        Self {
            slot,
            length: HEAD as u32,
            ..Self::default()
        }
    }

    /// Bytes in the slot, head included.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.length as usize
    }

    /// Whether another message of this length fits behind those that are in the slot.
    #[inline]
    fn has_room(&self, length: usize, slot: usize) -> bool {
        let is_open = !self.has_body && self.flags == 0 && self.messages < u16::MAX;
        is_open && self.bytes() + LENGTH + length <= slot
    }

    /// Whether it is of messages that are all in the slot, and no longer than this.
    #[inline]
    pub(crate) fn is_short(&self, most: usize) -> bool {
        self.flags == 0 && !self.has_body && self.bytes() <= most
    }
}

/// A send of this many bytes and messages.
#[cfg(test)]
pub(crate) fn frame_of(length: usize, messages: u16) -> Frame {
    Frame {
        length: length as u32,
        messages,
        ..Frame::default()
    }
}

/// The sends to one peer, in a ring of places: those that are kept are numbered without a gap.
pub(crate) struct Outbox {
    frames: Box<[Frame; PLACES]>,
    /// By places: bodies that lie elsewhere.
    bodies: Box<[Option<Far>; PLACES]>,
    /// The numbers of the oldest send that is kept, of the first one that was not posted, and of the next.
    first: usize,
    posted: usize,
    end: usize,
    /// Messages accepted since the connection began, and of these those whose frames are gone.
    pub(crate) accepted: u64,
    gone: u64,
    /// Of the sends that are kept, those with a body that lies elsewhere.
    far: usize,
    /// Messages wait for windows that are not bound yet.
    pub(crate) is_held: bool,
}

/// The place of a send in the ring.
#[inline]
fn place(number: usize) -> usize {
    number % PLACES
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            frames: Box::new([Frame::default(); PLACES]),
            bodies: Box::new([const { None }; PLACES]),
            first: 0,
            posted: 0,
            end: 0,
            accepted: 0,
            gone: 0,
            far: 0,
            is_held: false,
        }
    }

    /// Whether a send waits to be posted.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.posted != self.end
    }

    /// Whether what has ended has to be given back now, and not with others: something waits, a body lies
    /// elsewhere, or many are kept.
    #[inline]
    pub(crate) fn is_pressed(&self) -> bool {
        self.waits() || self.far > 0 || self.kept() >= MANY
    }

    /// Sends that are kept: not posted, or not known to be taken.
    #[inline]
    pub(crate) fn kept(&self) -> usize {
        self.end - self.first
    }

    /// Whether nothing is kept.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Accepts a message, behind others that wait in the same slot if it fits there.
    #[inline(always)]
    pub(crate) fn accept(&mut self, pool: &mut Pool, head: &[u8], body: &Body<'_>) -> Result<(), Refused> {
        let length = head.len() + body.len();
        let (at, room) = self.accept_head(pool, head, length)?;
        let mut end = LENGTH + head.len();
        match body {
            // What the shortest way brings: see `RcRail::send`.
            Body::Shared(bytes) => end += room.write_shared(end, *bytes),
            _ => body.for_each_part(|part| end += room.write_shared(end, part)),
        }
        self.frames[at].length += end as u32;
        Ok(())
    }

    /// Accepts a message as [`accept`](Self::accept) does, whose body lies in registered memory and stays
    /// where it is.
    pub(crate) fn accept_far(&mut self, pool: &mut Pool, head: &[u8], far: Far) -> Result<(), Refused> {
        let (at, _) = self.accept_head(pool, head, head.len() + far.slice.len())?;
        let frame = &mut self.frames[at];
        frame.length += (LENGTH + head.len()) as u32;
        frame.has_body = true;
        self.bodies[at] = Some(far);
        self.far += 1;
        Ok(())
    }

    /// Writes the length and the head of a message behind those that wait in the same slot, if it fits there.
    /// Returns the place of its send, which does not count these bytes yet, and the room that begins with
    /// them.
    #[inline(always)]
    fn accept_head<'a>(
        &mut self,
        pool: &'a mut Pool,
        head: &[u8],
        length: usize,
    ) -> Result<(usize, Room<'a>), Refused> {
        let last = place(self.end.wrapping_sub(1));
        let at = if self.waits() && self.frames[last].has_room(length, pool.slot) {
            last
        } else {
            self.begin(pool)?
        };
        let frame = &mut self.frames[at];
        let room = pool.room(frame);
        room.write_array((length as u16).to_le_bytes());
        room.write_shared(LENGTH, SharedBytes::of(head));
        frame.messages += 1;
        self.accepted += 1;
        Ok((at, room))
    }

    /// Begins another send; returns its place.
    #[inline(always)]
    fn begin(&mut self, pool: &mut Pool) -> Result<usize, Refused> {
        // Without a slot for them, what messages wait for would never be agreed upon.
        if self.kept() >= FRAMES || pool.free.len() <= pool.reserved {
            return Err(Refused::Full);
        }
        let slot = pool.free.pop().ok_or(Refused::Full)?;
        let at = place(self.end);
        self.frames[at] = Frame::new(slot);
        self.end += 1;
        Ok(at)
    }

    /// Adds a send without messages in front of those that wait; `false` if there is no room now.
    pub(crate) fn control(&mut self, pool: &mut Pool, bytes: &[u8]) -> bool {
        if self.kept() >= FRAMES + CONTROLS_MOST {
            return false;
        }
        let Some(slot) = pool.free.pop() else {
            return false;
        };
        pool.bytes.write(pool.at(slot) + HEAD, bytes);
        let waiting = self.posted..self.end;
        let behind = waiting.take_while(|number| self.frames[place(*number)].flags != 0);
        let number = self.posted + behind.count();
        self.frames[place(self.end)] = Frame {
            length: (HEAD + bytes.len()) as u32,
            flags: CONTROLS,
            ..Frame::new(slot)
        };
        for later in (number..self.end).rev() {
            self.frames.swap(place(later), place(later + 1));
            self.bodies.swap(place(later), place(later + 1));
        }
        self.end += 1;
        true
    }

    /// The next send to be posted, and the body that lies elsewhere.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(&mut Frame, Option<&Place>)> {
        if !self.waits() {
            return None;
        }
        let at = place(self.posted);
        let frame = &mut self.frames[at];
        if self.is_held && frame.flags == 0 {
            return None;
        }
        let body = if frame.has_body {
            self.bodies[at].as_ref().map(|far| &far.place)
        } else {
            None
        };
        Some((frame, body))
    }

    /// The one send that waits, if it is of messages that all lie in its slot.
    #[inline(always)]
    pub(crate) fn only(&mut self) -> Option<&mut Frame> {
        if self.end - self.posted != 1 || self.is_held {
            return None;
        }
        let frame = &mut self.frames[place(self.posted)];
        let is_plain = frame.flags == 0 && !frame.has_body;
        is_plain.then_some(frame)
    }

    /// Whether another one waits behind the next send.
    #[inline]
    pub(crate) fn has_two(&self) -> bool {
        self.end - self.posted > 1
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
        while self.first != self.posted {
            let at = place(self.first);
            let frame = &self.frames[at];
            let gone = self.gone + u64::from(frame.messages);
            if frame.request > done || gone > consumed {
                return;
            }
            self.gone = gone;
            self.first += 1;
            pool.free.push(frame.slot);
            if frame.has_body {
                self.bodies[at] = None;
                self.far -= 1;
            }
        }
    }

    /// Ends all sends: shows the messages above `consumed`, oldest first, each with its number.
    pub(crate) fn end(&mut self, pool: &mut Pool, consumed: u64, mut each: impl FnMut(u64, Vec<u8>)) {
        let mut number = self.gone;
        for at in (self.first..self.end).map(place) {
            let frame = self.frames[at];
            let bytes = pool
                .bytes
                .as_shared()
                .skip(pool.at(frame.slot))
                .take(frame.bytes());
            let body = self.bodies[at].take();
            for_each(bytes, frame.messages, body.as_ref(), |message| {
                number += 1;
                if number > consumed {
                    each(number, message);
                }
            });
            pool.free.push(frame.slot);
        }
        (self.first, self.posted, self.end, self.far) = (0, 0, 0, 0);
        (self.accepted, self.gone) = (0, 0);
    }
}

/// Shows copies of the messages of a send.
fn for_each(bytes: SharedBytes<'_>, messages: u16, body: Option<&Far>, mut each: impl FnMut(Vec<u8>)) {
    let mut at = HEAD;
    for _ in 0..messages {
        let length = usize::from(bytes.read(at).map_or(0, u16::from_le_bytes));
        let mut message = bytes.skip(at + LENGTH).take(length).to_vec();
        if let Some(body) = body
            && message.len() < length
        {
            message.extend(body.slice.as_shared().to_vec());
        }
        at += LENGTH + length;
        each(message);
    }
}
