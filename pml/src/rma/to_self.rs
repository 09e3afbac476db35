//! Operations of a rank on its own windows: no rail, the same target.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Inbound;

use super::answers::Asker;
use super::lead::Operation;
use super::windows::Spans;
use crate::args::Payload;
use crate::convertor::{Cursor, Origin, to_usize};
use crate::core::Core;
use crate::request::{Event, Outcome, RequestId, State, mark};

/// Bytes copied at a time where a copy needs a buffer between.
const BLOCK: usize = 16 << 10;

impl Core {
    /// Does an operation of our own, whose request is made, and ends the request.
    pub(super) fn operate_on_self(&mut self, id: RequestId, operation: &Operation, origin: Origin) {
        self.counters.sent_self += 1;
        let slot = self.requests.slot(id.index());
        if slot.is(mark::OPERATION) {
            slot.turn(Event::HandedOver);
        }
        let mut asker = Asker {
            rank: slot.peer(),
            context: slot.context(),
            request: id.to_bits(),
            charge: 0,
        };
        match &origin {
            Origin::Nothing | Origin::Window(_) => {
                self.perform_for_self(&mut asker, operation, SharedBytes::EMPTY);
            }
            Origin::User(Payload::Loan(loan)) => {
                self.perform_for_self(&mut asker, operation, loan.as_shared());
            }
            Origin::User(Payload::Region(slice)) => {
                self.perform_for_self(&mut asker, operation, slice.as_shared());
            }
            Origin::Own(buffer, used) => {
                let bytes = SharedBytes::of(&buffer.bytes()[..*used]);
                self.perform_for_self(&mut asker, operation, bytes);
            }
            Origin::User(Payload::Parts(_) | Payload::Strided(_)) => {
                let length = to_usize(origin.len());
                let mut buffer = self.pool.take(length);
                let bytes = &mut buffer.bytes_mut()[..length];
                self.counters.packed_bytes += origin.pack(&mut Cursor::default(), 0, bytes) as u64;
                let bytes = SharedBytes::of(&buffer.bytes()[..length]);
                self.perform_for_self(&mut asker, operation, bytes);
                self.pool.give(buffer);
            }
        }
        self.drop_origin(asker.rank, origin);
    }

    /// The result of an operation of our own.
    pub(super) fn reply_to_self(&mut self, asker: &Asker, bytes: SharedBytes<'_>) {
        let id = RequestId::from_bits(asker.request);
        let waits = self
            .requests
            .get(id)
            .is_some_and(|slot| slot.state() == State::AwaitReply);
        if waits {
            let (slot, record) = self.requests.both(id.index());
            record
                .memory
                .fill(slot, 0, &Inbound::whole(bytes), 0, bytes.len());
            self.finish(id.index(), Outcome::Ok);
        }
    }

    /// The result of a long get of our own, block by block.
    pub(super) fn copy_to_self(&mut self, asker: &Asker, spans: &Spans) -> Result<(), Outcome> {
        let id = RequestId::from_bits(asker.request);
        let mut block = [0; BLOCK];
        let (length, mut at) = (spans.len(), 0);
        while at < length {
            let part = &mut block[..to_usize((length - at).min(BLOCK as u64))];
            spans.read(at, part)?;
            let (slot, record) = self.requests.both(id.index());
            let bytes = Inbound::whole(SharedBytes::of(part));
            record.memory.fill(slot, at, &bytes, 0, part.len());
            at += part.len() as u64;
        }
        self.finish(id.index(), Outcome::Ok);
        Ok(())
    }
}
