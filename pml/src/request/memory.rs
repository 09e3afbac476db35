//! The memory of a request: where the bytes of a send come from, or where those of a receive go to.

use doorbell_fabric::message::{Exposure, Inbound, Landing};

use crate::args::{Payload, Target};
use crate::convertor::{Cursor, Origin, to_usize};
use crate::request::{Slot, mark};
use crate::rma::OwnRoom;
use crate::rma::windows::Spans;

/// What the record keeps of the memory of a request. The room of most receives is in their slot.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Send: the bytes.
    origin: Origin,
    /// Receive: the layout, or the region, which is kept alive until the slot is free.
    target: Option<Target>,
    cursor: Cursor,
    /// Transfer of an operation: where it goes, if that is no memory of the user's in one piece.
    special: Special,
    /// A byte of it could not be written.
    fault: bool,
}

/// Where a transfer of an operation goes that fragments alone can fill.
#[derive(Debug, Default)]
enum Special {
    #[default]
    None,
    /// A buffer of our own.
    Own(OwnRoom),
    /// Windows, in pieces, or with pages that may not be there.
    Window(Box<Spans>),
}

impl Memory {
    // Sends.

    /// The bytes of a send.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Notes the bytes of a send.
    pub(crate) fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// Takes the bytes of a send out.
    pub(crate) fn take_origin(&mut self) -> Origin {
        std::mem::take(&mut self.origin)
    }

    /// The bytes of a send, and the cursor to walk over them.
    pub(crate) fn walk(&mut self) -> (&Origin, &mut Cursor) {
        (&self.origin, &mut self.cursor)
    }

    /// Whether the user's memory is one piece, so that it can be read and written by one-sided operations.
    pub(crate) fn is_one_piece(&self) -> bool {
        self.origin.is_contiguous() && matches!(self.origin, Origin::User(_))
    }

    /// The memory of a send, to be read by its receiver; `None` where it is not one piece of the user's.
    pub(crate) fn readable(&self) -> Option<Exposure> {
        match &self.origin {
            Origin::User(Payload::Loan(loan)) => Some(Exposure::Read(*loan)),
            Origin::User(Payload::Region(slice)) => Some(Exposure::Region(slice.clone())),
            _ => None,
        }
    }

    // Receives.

    /// Notes a room that is not in the slot.
    pub(crate) fn set_target(&mut self, target: Target) {
        self.target = Some(target);
    }

    /// Notes a buffer of our own as the room.
    pub(crate) fn set_own(&mut self, room: OwnRoom) {
        self.special = Special::Own(room);
    }

    /// Takes the buffer of our own out.
    pub(crate) fn take_own(&mut self) -> Option<OwnRoom> {
        match std::mem::take(&mut self.special) {
            Special::Own(room) => Some(room),
            _ => None,
        }
    }

    /// Notes pieces of windows as the room.
    pub(crate) fn set_window(&mut self, spans: Spans) {
        self.special = Special::Window(Box::new(spans));
    }

    /// Whether a byte could not be written.
    pub(crate) fn has_fault(&self) -> bool {
        self.fault
    }

    /// Copies bytes of a room of an operation out, from this offset. Returns whether it has such a room. What
    /// cannot be read was not written either, which is noted.
    pub(crate) fn read_special(&self, offset: usize, to: &mut [u8]) -> bool {
        match &self.special {
            Special::None => return false,
            Special::Own(room) => {
                let bytes = &room.buffer.bytes()[..room.length];
                if let Some(bytes) = bytes.get(offset..offset + to.len()) {
                    to.copy_from_slice(bytes);
                }
            }
            Special::Window(spans) => {
                let _ = spans.read(offset as u64, to);
            }
        }
        true
    }

    /// The room that is not in the slot.
    pub(crate) fn target<'a>(&'a self, slot: &Slot) -> Option<&'a Target> {
        self.target.as_ref().filter(|_| slot.is(mark::APART))
    }

    /// Length of the room.
    pub(crate) fn capacity(&self, slot: &Slot) -> u64 {
        match (&self.special, self.target(slot)) {
            (Special::Own(room), _) => room.length as u64,
            (Special::Window(spans), _) => spans.len(),
            (Special::None, Some(target)) => target.len(),
            (Special::None, None) => slot.room().len() as u64,
        }
    }

    /// Whether the room is one piece.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.special, Special::None) && self.target.as_ref().is_none_or(Target::is_contiguous)
    }

    /// Copies `length` bytes of a message, from its byte `at`, to this offset of the room, which has them.
    pub(crate) fn fill(&mut self, slot: &Slot, offset: u64, inbound: &Inbound<'_>, at: usize, length: usize) {
        match &self.target {
            Some(target) if slot.is(mark::APART) => {
                target.scatter(&mut self.cursor, offset, inbound, at, length);
            }
            _ if slot.is(mark::APART) => match &mut self.special {
                Special::Own(room) => {
                    let offset = to_usize(offset);
                    inbound.copy_to(at, &mut room.buffer.bytes_mut()[offset..offset + length]);
                }
                Special::Window(spans) => self.fault |= spans.write(offset, inbound, at, length).is_err(),
                Special::None => {}
            },
            _ => {
                let part = slot.room().part(to_usize(offset), length);
                inbound.copy_to_loan(at, &part, 0);
            }
        }
    }

    /// A part of the room, for our own read; `None` when the room is several pieces, or shorter.
    pub(crate) fn landing(&self, slot: &Slot, offset: u64, length: u64) -> Option<Landing> {
        match &self.target {
            Some(target) => target.landing(offset, length),
            None => Some(Landing::Loan(
                slot.room().part(to_usize(offset), to_usize(length)),
            )),
        }
    }

    /// A part of the room, to be written by the sender.
    pub(crate) fn writable(&self, slot: &Slot, offset: u64, length: u64) -> Exposure {
        match self.region_part(offset, length) {
            Some(Target::Region(part)) => Exposure::Region(part),
            _ => Exposure::Write(slot.room().part(to_usize(offset), to_usize(length))),
        }
    }

    /// A part of the room, where that is a region.
    pub(crate) fn region_part(&self, offset: u64, length: u64) -> Option<Target> {
        match &self.target {
            Some(Target::Region(slice)) => slice
                .slice(to_usize(offset), to_usize(length))
                .map(Target::Region),
            _ => None,
        }
    }
}
