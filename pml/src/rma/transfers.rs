//! Long operations at their target: puts arrive in a window, replies leave it, windows are closed meanwhile.

use std::num::NonZeroU32;

use doorbell_fabric::memory::{MutLoan, SharedBytes};
use doorbell_fabric::message::{Inbound, Message};

use super::OwnRoom;
use super::answers::Asker;
use super::args::{Access, Notice, PIECES_MOST, WindowAccess, WindowArgs, WindowCounts};
use super::lead::{LEAD_MOST, Operation, Verb};
use super::target::notice;
use super::windows::{LOANS_MOST, Span, Spans, WindowIndex};
use crate::args::{Aborted, Target};
use crate::config::PmlConfig;
use crate::convertor::to_usize;
use crate::core::Core;
use crate::error::PmlError;
use crate::pml::Pml;
use crate::request::{Outcome, RequestIndex, State, mark};
use crate::unexpected::Envelope;

/// Bytes of a whole operation, at most: a rail gave it back that takes more in one message than the next.
fn whole_most(config: &PmlConfig) -> u64 {
    config.window + LEAD_MOST as u64
}

impl Core {
    /// A long put: its bytes go into the window like those of a message into its receive.
    pub(super) fn land_put(&mut self, envelope: &Envelope, inbound: &Inbound<'_>, at: usize) {
        let asker = self.admit(envelope, 0);
        let parsed = Operation::parse(inbound, at).and_then(|(operation, _)| {
            if operation.verb != Verb::Put || operation.pieces.length() != envelope.length {
                return Err(Outcome::Invalid);
            }
            let wanted = WindowAccess::WRITE;
            let spans = self.rma.windows.resolve(asker.rank, &operation.pieces, wanted)?;
            Ok((operation, spans))
        });
        match parsed {
            Ok((operation, spans)) => {
                let notice = operation.notice.then(|| notice(&asker, &operation));
                self.begin_landing(envelope, asker, spans, notice);
            }
            Err(outcome) => {
                self.reject_announcement(envelope);
                self.answer(&asker, outcome, &[]);
            }
        }
    }

    fn begin_landing(&mut self, envelope: &Envelope, asker: Asker, spans: Spans, notice: Option<Notice>) {
        let marks = mark::LANDING | mark::DETACHED | mark::RECORD;
        let (id, slot) = self.requests.take();
        let index = id.index();
        match spans.single() {
            Some(Span::Loan(loan)) => slot.post_part(marks, envelope.context, *loan),
            Some(Span::Region(slice)) => {
                slot.post_part(marks | mark::APART, envelope.context, MutLoan::EMPTY);
                let target = Target::Region(slice.clone());
                self.requests.record(index).memory.set_target(target);
            }
            _ => {
                slot.post_part(marks | mark::APART, envelope.context, MutLoan::EMPTY);
                self.requests.record(index).memory.set_window(spans.clone());
            }
        }
        let record = self.rma.record(index);
        (record.asker, record.spans, record.notice) = (Some(asker), spans, notice);
        self.requests
            .slot(index)
            .matched(envelope.rank, envelope.tag, envelope.length);
        let nothing = Inbound::whole(SharedBytes::EMPTY);
        self.begin(index, &Envelope { body: 0, ..*envelope }, &nothing, 0);
    }

    /// A whole operation that comes in pieces: into a buffer, and done when all of it is there.
    pub(super) fn land_whole(&mut self, envelope: &Envelope) {
        let length = envelope.length;
        if length > whole_most(&self.config) {
            self.counters.drops.bad_range += 1;
            let asker = self.admit(envelope, 0);
            self.reject_announcement(envelope);
            self.answer(&asker, Outcome::Invalid, &[]);
            return;
        }
        let asker = self.admit(envelope, length);
        let marks = mark::LANDING | mark::DETACHED | mark::RECORD | mark::APART;
        let (id, slot) = self.requests.take();
        slot.post_part(marks, envelope.context, MutLoan::EMPTY);
        slot.matched(envelope.rank, envelope.tag, length);
        let index = id.index();
        let room = OwnRoom {
            buffer: self.pool.take(to_usize(length)),
            length: to_usize(length),
        };
        let record = self.requests.record(index);
        record.memory.set_own(room);
        record.progress.set(0, length);
        record.checksums.set_announced(envelope.checksum);
        let record = self.rma.record(index);
        (record.asker, record.notice) = (Some(asker), None);
        // All of it is counted, as where it came in one message.
        let counted = Envelope {
            body: to_usize(length),
            ..*envelope
        };
        self.begin_transfer(index, &counted);
    }

    /// A transfer into a window is to end. Returns how it ends.
    pub(super) fn landed(&mut self, index: RequestIndex, outcome: Outcome) -> Outcome {
        let outcome = match outcome {
            Outcome::Ok if self.requests.peek_record(index).memory.has_fault() => Outcome::Unmapped,
            Outcome::Corrupt => Outcome::Damaged,
            Outcome::Cancelled => Outcome::WindowClosed,
            other => other,
        };
        let room = self.requests.record(index).memory.take_own();
        let record = self.rma.record(index);
        let Some(mut asker) = record.asker.take() else {
            return outcome;
        };
        match (outcome, room) {
            // No request waits for an answer.
            (Outcome::PeerLost | Outcome::SendAborted, room) => {
                self.settle_operation(asker.rank, asker.charge);
                self.give_room(room);
            }
            (Outcome::Ok, Some(room)) => {
                let bytes = SharedBytes::of(&room.buffer.bytes()[..room.length]);
                self.execute(asker, &Inbound::whole(bytes), 0);
                self.give_room(Some(room));
            }
            (Outcome::Ok, None) => {
                let (notice, spans) = (record.notice.take(), std::mem::take(&mut record.spans));
                self.accessed(&asker, &spans, true, false);
                if let Some(notice) = notice {
                    self.push_notice(notice, &mut asker);
                }
                self.answer(&asker, Outcome::Ok, &[]);
            }
            (_, room) => {
                self.give_room(room);
                self.answer(&asker, outcome, &[]);
            }
        }
        outcome
    }

    pub(super) fn give_room(&mut self, room: Option<OwnRoom>) {
        if let Some(room) = room {
            self.pool.give(room.buffer);
        }
    }

    /// Whether a request serves an operation on this window, and reaches its memory.
    fn uses(&mut self, index: RequestIndex, window: WindowIndex) -> bool {
        let serves = self.requests.peek(index).is(mark::LANDING | mark::REPLY);
        serves && self.rma.record(index).spans.windows().any(|this| this == window)
    }
}

impl<M: Message> Pml<M> {
    /// Opens a window: memory that peers may reach by puts, gets and atomics that name its key. The memory
    /// stays with the PML until [`Pml::close_window`] returns [`Aborted::Now`]; others may read and write it
    /// meanwhile, through raw pointers or atomics.
    ///
    /// # Errors
    /// [`PmlError::KeyTaken`], also while the window that had the key is being closed;
    /// [`PmlError::BadOperation`] for more than four pieces, and for a window beyond the end of the address
    /// space.
    pub fn open_window(&mut self, window: WindowArgs) -> Result<(), PmlError> {
        if window.memory.pieces() > LOANS_MOST {
            return Err(PmlError::BadOperation {
                reason: "a window has at most four pieces of memory",
            });
        }
        if window.base.checked_add(window.memory.len()).is_none() {
            return Err(PmlError::BadOperation {
                reason: "a window ends before the end of the address space",
            });
        }
        let (key, ranks) = (window.key, self.core.hot.len());
        match self.core.rma.windows.open(window, ranks) {
            true => Ok(()),
            false => Err(PmlError::KeyTaken { key }),
        }
    }

    /// Closes a window. Operations that name it from now on are refused; those under way are cut off, and end
    /// as [`OperationError::Closed`](crate::OperationError::Closed) at their initiators. After
    /// [`Aborted::Now`] the PML never touches the memory again. After [`Aborted::Wait`] a rail may still do
    /// so: poll, and call it again. For a key of no window it is `Now`.
    pub fn close_window(&mut self, key: u64) -> Aborted {
        let Some(window) = self.core.rma.windows.begin_close(key) else {
            return Aborted::Now;
        };
        let mut aborted = Aborted::Now;
        for index in self.core.requests.indices() {
            if self.core.requests.peek(index).state() != State::Free
                && self.core.uses(index, window)
                && self.cut_off(index) == Aborted::Wait
            {
                aborted = Aborted::Wait;
            }
        }
        self.apply_withdrawals();
        if aborted == Aborted::Now {
            self.core.rma.windows.end_close(window);
        }
        aborted
    }

    /// Ends a transfer into a window, or out of it.
    fn cut_off(&mut self, index: RequestIndex) -> Aborted {
        let id = self.core.requests.id(index);
        let slot = self.core.requests.peek(index);
        // A reply of which something was announced is given up in its own words. A put, and a reply of which
        // its initiator knows nothing, are answered.
        let answers = slot.is(mark::LANDING) || slot.state() == State::Replying;
        let asker = self.core.rma.record(index).asker;
        if answers {
            self.core.rma.record(index).asker = None;
        }
        let aborted = self.abort(id);
        match (answers, aborted) {
            (true, Aborted::Now) => {
                if let Some(asker) = asker {
                    self.core.answer(&asker, Outcome::WindowClosed, &[]);
                }
            }
            (true, Aborted::Wait) => self.core.rma.record(index).asker = asker,
            // It lives on without its memory, if it does.
            (false, Aborted::Now) => self.core.rma.record(index).spans = Spans::default(),
            (false, Aborted::Wait) => {}
        }
        aborted
    }

    /// The next put that its initiator notifies us of, oldest first. A notice counts against the initiator's
    /// window until it is taken.
    #[inline]
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.next_notice_unless(|_| false)
    }

    /// The next one that the owner has room for: `crowded` returns, for the context of an operation, whether
    /// its notices have to wait. Those of one context keep their order.
    pub fn next_notice_unless(&mut self, crowded: impl Fn(u16) -> bool) -> Option<Notice> {
        self.core.take_notice(crowded)
    }

    /// Whether [`Pml::next_notice`] would return one.
    #[inline]
    #[must_use]
    pub fn has_notices(&self) -> bool {
        self.core.rma.untaken() > 0
    }

    /// Records from now on what is done in our windows ([`Pml::next_access`]).
    pub fn record_accesses(&mut self) {
        self.core.rma.records_accesses = true;
    }

    /// Marks an open window: what is done in it from now on is recorded with the mark. Returns whether there
    /// is an open window of this key.
    pub fn mark_window(&mut self, key: u64, mark: Option<NonZeroU32>) -> bool {
        self.core.rma.windows.set_mark(key, mark)
    }

    /// The mark of an open window, if it has one.
    #[must_use]
    pub fn window_mark(&self, key: u64) -> Option<NonZeroU32> {
        self.core.rma.windows.mark(key)
    }

    /// The next operation that was done in our windows, oldest first, since they are recorded. A long get is
    /// done when its bytes begin to leave. The records have no bound: take them after each poll.
    #[inline]
    pub fn next_access(&mut self) -> Option<Access> {
        self.core.rma.accesses.pop_front()
    }

    /// Whether [`Pml::next_access`] would return one.
    #[inline]
    #[must_use]
    pub fn has_accesses(&self) -> bool {
        !self.core.rma.accesses.is_empty()
    }

    /// What peers have done with an open window; `None` for a key of none.
    #[must_use]
    pub fn window_counts(&self, key: u64) -> Option<WindowCounts> {
        self.core.rma.windows.counts(key)
    }
}

const _: () = assert!(PIECES_MOST <= u8::MAX as usize);
