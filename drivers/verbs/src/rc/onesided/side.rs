//! What a peer has for one-sided operations: a queue pair, requests under way, operations that wait.

use std::collections::VecDeque;

use doorbell_fabric::time::Time;
use rustc_hash::FxHashMap;

use super::memory::Memory;
use super::op::{Kind, Op};
use super::wire::Control;
use crate::sys::{Broken, Requests};

/// Requests of one queue pair under way at a time.
pub(super) const DEPTH: usize = 64;
/// Of these, those that are left for windows.
const FOR_WINDOWS: usize = 8;
/// Controls that wait at most: more are replies to a peer that looks keys up without end.
const MOST_CONTROLS: usize = 256;
/// Names that are looked up at a time at most.
const MOST_LOOKUPS: usize = 64;
/// Keys that are known to be others now at most.
const MOST_KEYS: usize = 1024;

/// How far the queue pair has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// There is none.
    #[default]
    None,
    /// Ours is made, and offered.
    Made,
    /// Ours is connected: it binds windows, and the other end may use it.
    Connected,
    /// Both ends are connected.
    Up,
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// This number of bytes of the operation at this place.
    Op(u32, usize),
    /// The window of the exposure of this name.
    Bind(u64),
    Invalidate(u64),
}

/// One peer's part.
#[derive(Default)]
pub(super) struct Side {
    pub(super) requests: Option<Requests>,
    pub(super) stage: Stage,
    /// The number of the present or the last queue pair, and of its first packet.
    pub(super) round: u32,
    pub(super) sequence: u32,
    /// Reads and atomics under way, and at most.
    pub(super) reads: u32,
    pub(super) reads_most: u32,
    /// The number of the first request under way.
    first: u64,
    pub(super) under_way: VecDeque<About>,
    /// When a request ended last, or the first was posted, as a look found it; and whether one has since.
    pub(super) moved_at: Time,
    pub(super) has_moved: bool,
    /// Operations that wait to be requested.
    pub(super) queue: VecDeque<u32>,
    /// Operations that wait for the other end's word about their keys.
    pub(super) keyless: Vec<u32>,
    /// The names that were looked up and not replied to.
    pub(super) lookups: Vec<u64>,
    /// Operations that rest until the next call of `progress`.
    pub(super) resting: Vec<u32>,
    pub(super) controls: VecDeque<Control>,
    /// What the other end calls exposures now.
    pub(super) keys: FxHashMap<u64, u32>,
    /// Exposures to it that are to be bound, and how many were never bound yet.
    pub(super) unbound: Vec<u64>,
    pub(super) fresh: usize,
    /// Queue pairs that ended without a reason, in a row; and whether the last one ended because the other
    /// end refused an operation.
    pub(super) breaks: u32,
    pub(super) was_refused: bool,
    /// A protection domain of its own, where the device has no windows.
    pub(super) own: Option<Box<Memory>>,
    pub(super) is_dirty: bool,
    pub(super) is_active: bool,
}

/// The round as keys have it: 1 to 254; 255 is any later one, of which no key is known.
pub(super) fn short_round(round: u32) -> u64 {
    u64::from(round.min(LATER))
}

const LATER: u32 = 255;

/// What a request for an operation has become.
pub(super) enum Next {
    /// It was prepared.
    Prepared,
    /// There is no room.
    Full,
    /// Its bytes are not where they should be.
    Broken,
}

impl Side {
    /// Whether there is something to be looked after.
    pub(super) fn has_work(&self) -> bool {
        !self.under_way.is_empty()
            || !self.queue.is_empty()
            || !self.resting.is_empty()
            || !self.controls.is_empty()
            || self.binds() && !self.unbound.is_empty()
    }

    /// Whether windows are bound over its queue pair.
    pub(super) fn binds(&self) -> bool {
        matches!(self.stage, Stage::Connected | Stage::Up)
    }

    /// The number of the next request.
    pub(super) fn next_id(&self) -> u64 {
        self.first + self.under_way.len() as u64
    }

    /// Whether one more operation's request has room.
    fn has_room(&self) -> bool {
        self.under_way.len() + FOR_WINDOWS < DEPTH
    }

    /// Whether a window's request has room.
    pub(super) fn has_room_for_window(&self) -> bool {
        self.under_way.len() < DEPTH
    }

    /// Takes the request that has ended; `None` if it is not the oldest.
    #[inline]
    pub(super) fn ended(&mut self, id: u64) -> Option<About> {
        if id != self.first {
            return None;
        }
        let about = self.under_way.pop_front()?;
        self.first += 1;
        Some(about)
    }

    /// Prepares the next request of an operation, under the device's key.
    #[inline]
    pub(super) fn prepare(&mut self, at: u32, op: &mut Op, memory: &Memory, key: u32, most: usize) -> Next {
        if !self.has_room() || op.is_read() && self.reads >= self.reads_most.max(1) {
            return Next::Full;
        }
        let id = self.next_id();
        let Some(requests) = &mut self.requests else {
            return Next::Full;
        };
        let length = (op.length - op.requested).min(most);
        let place = memory.beneath(&op.local);
        let piece = place.map(|(beneath, start)| (beneath, start + op.requested, length));
        let far = (op.address.wrapping_add(op.requested as u64), key);
        let prepared = match op.kind {
            Kind::Get => requests.read(id, piece, far),
            Kind::Put => requests.write(id, piece, far),
            Kind::Atomic(what) => {
                let place = place.ok_or(Broken);
                place.and_then(|place| requests.atomic(id, place, far, op.device_atomic(what)))
            }
        };
        if prepared.is_err() {
            return Next::Broken;
        }
        self.reads += u32::from(op.is_read());
        op.requested += length;
        op.under_way += 1;
        self.under_way.push_back(About::Op(at, length));
        Next::Prepared
    }

    /// Forgets the last request, which was prepared and not taken.
    pub(super) fn take_back(&mut self) -> Option<About> {
        self.under_way.pop_back()
    }

    /// Forgets all requests, whose queue pair is gone; numbers go on behind them.
    pub(super) fn forget_requests(&mut self) -> usize {
        let count = self.under_way.len();
        self.first += count as u64;
        self.under_way.clear();
        self.reads = 0;
        count
    }

    /// Has something be sent to the other end; `false` if there are too many of them.
    pub(super) fn send(&mut self, control: Control) -> bool {
        self.controls.push_back(control);
        self.controls.len() <= MOST_CONTROLS
    }

    /// Looks a key up at the other end, if that is not under way; `false` if it has to reply to others first.
    pub(super) fn look_up(&mut self, name: u64) -> bool {
        if self.lookups.contains(&name) {
            return true;
        }
        if self.lookups.len() >= MOST_LOOKUPS {
            return false;
        }
        self.lookups.push(name);
        self.controls.push_back(Control::Lookup(name));
        true
    }

    /// Looks a name up, however many others are.
    pub(super) fn force_look_up(&mut self, name: u64) {
        self.lookups.push(name);
        self.controls.push_back(Control::Lookup(name));
    }

    /// Remembers what the device calls an exposure now.
    pub(super) fn learn(&mut self, name: u64, key: u32) {
        if self.keys.len() >= MOST_KEYS {
            // What is forgotten is looked up again.
            self.keys.clear();
        }
        self.keys.insert(name, key);
    }

    /// By which key the device knows a name; `None` if it has to be looked up.
    #[inline]
    pub(super) fn key_of(&self, name: u64) -> Option<u32> {
        let (key, round) = (name as u32, name >> 32 & 0xff);
        let is_present = round == short_round(self.round) && round != u64::from(LATER);
        if key != 0 && (round == 0 || is_present) {
            return Some(key);
        }
        self.keys.get(&name).copied()
    }
}
