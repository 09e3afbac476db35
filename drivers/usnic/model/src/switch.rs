//! The switch between the functions of an adapter, and the wire beside it.
//!
//! An adapter knows the addresses of its functions and learns none: a frame goes to the function that has its
//! address, what is for the physical function to the owner of the best filter for it, groups to all that take
//! them, and everything else out on the wire.

use crate::desc::flag;
use crate::fault::packet::{self, Held};
use crate::fault::{Action, Point};
use crate::frame::{self, ROOM};
use crate::world::World;

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Function(usize),
    /// The frame came from a function, and goes back to itself.
    Loop(usize),
    /// The frame came from the wire.
    Bridge,
}

/// A frame that was held back for one that never came goes on after this many nanoseconds.
const REORDERED: u64 = 1_000_000;

/// Frames that are held back at a time; what comes then is lost, and counted.
const HELD_MOST: usize = 4096;

impl World {
    /// Takes the frame of `length` bytes in the room to where it goes, if nothing happens to it.
    pub(crate) fn forward(&mut self, from: Port, length: usize) {
        if !self.adapter.link.up {
            return;
        }
        let held = self.held.len();
        match self.context.faults.action(Point::Packet, 0, 0) {
            None => self.carry(from, length, 0),
            Some(action) => self.trouble(from, length, action),
        }
        // A frame that waits for another one to pass goes now, unless this one waits itself.
        if held > 0 && self.held.len() == held {
            self.release(true);
        }
    }

    /// A frame to which something happens.
    #[cold]
    fn trouble(&mut self, from: Port, length: usize, action: Action) {
        let now = self.context.now;
        let due = match action {
            Action::Delay(time) => Some(self.context.after(time)),
            Action::Reorder => Some(now + REORDERED),
            _ => None,
        };
        if let Some(due) = due {
            if self.held.len() >= HELD_MOST {
                self.adapter.overflowed += 1;
                return;
            }
            let bytes = self.room[..length].to_vec();
            self.held.push(Held {
                due,
                is_behind: action == Action::Reorder,
                from,
                bytes,
            });
            return;
        }
        let Some(spoilt) = packet::spoil(&mut self.room, length, action) else {
            return;
        };
        self.carry(from, spoilt.length, spoilt.bad);
        if action == Action::Duplicate {
            self.carry(from, spoilt.length, spoilt.bad);
        }
    }

    /// Lets go of what was held back long enough, or until another frame had passed.
    pub(crate) fn release(&mut self, has_passed: bool) {
        let now = self.context.now;
        let ready = |held: &Held| held.due <= now || has_passed && held.is_behind;
        while let Some(place) = self.held.iter().position(ready) {
            let held = self.held.remove(place);
            let length = held.bytes.len();
            self.room[..length].copy_from_slice(&held.bytes);
            self.carry(held.from, length, 0);
        }
    }

    /// Takes the frame in the room to where it goes; `bad` flags are not found by who receives it.
    fn carry(&mut self, from: Port, length: usize, bad: u8) {
        if let Port::Loop(index) = from {
            return self.deliver(index, length, bad);
        }
        let Some(to) = frame::mac(&self.room[..length], 0) else {
            return;
        };
        let is_group = to[0] & 1 != 0;
        let owner = if is_group { None } else { self.owner(to, length) };
        for index in 0..self.functions.len() {
            let function = &self.functions[index];
            let is_for = match owner {
                Some(owner) => owner == index,
                None => {
                    from != Port::Function(index)
                        && (is_group && function.takes_group(to) || function.is_promiscuous())
                }
            };
            if is_for {
                self.deliver(index, length, bad);
            }
        }
        if owner.is_none()
            && from != Port::Bridge
            && let Some(bridge) = &mut self.bridge
        {
            bridge.send(&self.room[..length]);
        }
    }

    /// The function that owns an address. What is for the physical function goes to the owner of the best
    /// filter for it (5.1, 8.6).
    fn owner(&self, to: [u8; 6], length: usize) -> Option<usize> {
        let frame = &self.room[..length];
        if self.functions[0].has_address(to) {
            let parts = frame::parse(frame);
            let best = self.adapter.filters.best(None, frame, &parts);
            return Some(best.map_or(0, |filter| filter.owner));
        }
        self.functions
            .iter()
            .position(|function| function.has_address(to))
    }

    /// Gives the frame in the room to a function, which may take a tag off its copy.
    fn deliver(&mut self, index: usize, length: usize, bad: u8) {
        let Self {
            context,
            functions,
            adapter,
            room,
            stripped,
            ..
        } = self;
        let strips = functions[0].strips || functions[index].strips;
        let function = &mut functions[index];
        if function.line.is_none() || function.is_removed {
            return;
        }
        let (mut frame, mut parts) = (&room[..length], frame::parse(&room[..length]));
        let vlan = parts.vlan.filter(|_| strips);
        if vlan.is_some() {
            // Others get it as it is.
            stripped[..length].copy_from_slice(frame);
            let length = frame::strip(stripped, length);
            frame = &stripped[..length];
            parts = frame::parse(frame);
        }
        let flags = (frame::flags(frame, &parts) | flag::FCS_OK) & !bad;
        function.receive(context, &adapter.filters, (frame, &parts), (flags, vlan));
    }

    /// Frames from the wire.
    pub(crate) fn listen(&mut self) -> usize {
        let mut count = 0;
        while count < 32 {
            let Some(bridge) = &mut self.bridge else { break };
            let Some(length) = bridge.receive(&mut self.room) else {
                break;
            };
            debug_assert!(length <= ROOM);
            count += 1;
            self.forward(Port::Bridge, length);
        }
        count
    }
}
