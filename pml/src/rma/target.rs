//! Operations at their target: done at their turn.

use doorbell_fabric::atomics::{self, Arithmetic, Element};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Inbound;

use super::answers::{Asker, VALUE_MOST};
use super::args::{ATOMIC_MOST, Access, Notice, WindowAccess};
use super::lead::{Operation, Verb};
use super::windows::Spans;
use crate::args::Payload;
use crate::convertor::{Origin, to_usize};
use crate::core::Core;
use crate::credit::ENVELOPE;
use crate::rank::Rank;
use crate::request::Outcome;
use crate::unexpected::Envelope;
use crate::wire::{MATCH_LEN, MatchHeader, flag, kind};

/// Bytes of the widest element.
const WIDEST: usize = 32;

/// What an operation needs of a window.
fn access(operation: &Operation) -> WindowAccess {
    match (operation.verb, operation.computes) {
        (Verb::Put, _) => WindowAccess::WRITE,
        (Verb::Get, _) => WindowAccess::READ,
        (Verb::Atomic, _) => WindowAccess::ATOMIC,
        (Verb::Fetch, Some((Arithmetic::Read, _))) => WindowAccess::FETCH,
        (Verb::Fetch, _) => WindowAccess::FETCH.and(WindowAccess::ATOMIC),
    }
}

/// Bytes of the operands, and of what elements are compared with.
pub(crate) fn operands(arithmetic: Arithmetic, total: u64) -> (u64, u64) {
    let with = if arithmetic == Arithmetic::Read { 0 } else { total };
    let compare = if arithmetic.has_operand() { total } else { 0 };
    (with, compare)
}

/// Whether there is such an operation on that many bytes.
pub(crate) fn is_valid(arithmetic: Arithmetic, element: Element, total: u64, fetches: bool) -> bool {
    atomics::is_defined(arithmetic, element)
        && total <= ATOMIC_MOST as u64
        && total.is_multiple_of(element.size() as u64)
        && (fetches || arithmetic != Arithmetic::Read)
}

impl Core {
    /// It is the turn of a message of an operation.
    pub(crate) fn operation_turn(&mut self, envelope: &Envelope, inbound: &Inbound<'_>, at: usize) {
        self.counters.arrived += 1;
        if envelope.flags & flag::REPLY != 0 {
            self.reply_arrived(envelope, inbound, at);
        } else if envelope.kind != kind::MATCH && envelope.flags & flag::AGAIN != 0 {
            self.land_whole(envelope);
        } else if envelope.kind != kind::MATCH {
            self.land_put(envelope, inbound, at);
        } else {
            let asker = self.admit(envelope, envelope.length);
            match self.is_undamaged(envelope.checksum, inbound, at) {
                true => self.execute(asker, inbound, at),
                false => self.answer(&asker, Outcome::Damaged, &[]),
            }
        }
    }

    /// An operation whose turn it is when it comes, in one message.
    #[inline(never)]
    pub(crate) fn operation_at_once(&mut self, rank: Rank, header: &MatchHeader, inbound: &Inbound<'_>) {
        self.hot[rank].advance();
        self.counters.arrived += 1;
        let asker = Asker {
            rank,
            context: header.context.get(),
            request: header.tag.get(),
            charge: ENVELOPE + (inbound.len() - MATCH_LEN) as u64,
        };
        self.keep_charge(rank, asker.charge);
        self.execute(asker, inbound, MATCH_LEN);
    }

    /// Does a whole operation that begins at a byte of a message, and answers it.
    pub(crate) fn execute(&mut self, mut asker: Asker, inbound: &Inbound<'_>, at: usize) {
        let done = match Operation::parse(inbound, at) {
            Ok((operation, at)) => self.perform(&mut asker, &operation, inbound, at),
            Err(outcome) => Err(outcome),
        };
        if let Err(outcome) = done {
            self.answer(&asker, outcome, &[]);
        }
    }

    /// Does an operation whose bytes begin at a byte of a message, and answers it.
    ///
    /// # Errors
    /// Why it was not done; it is not answered then.
    pub(crate) fn perform(
        &mut self,
        asker: &mut Asker,
        operation: &Operation,
        inbound: &Inbound<'_>,
        at: usize,
    ) -> Result<(), Outcome> {
        let total = operation.pieces.length();
        if operation.verb == Verb::Get || operation.verb == Verb::Fetch {
            // Whatever becomes of it: its initiator has counted so.
            self.admit_reply(asker, total);
        }
        let spans = self
            .rma
            .windows
            .resolve(asker.rank, &operation.pieces, access(operation))?;
        let body = (inbound.len() - at) as u64;
        match (operation.verb, operation.computes) {
            (Verb::Put, _) => {
                if body != total {
                    return Err(Outcome::Invalid);
                }
                spans.write(0, inbound, at, to_usize(total))?;
                self.put_done(asker, operation, &spans);
                Ok(())
            }
            (Verb::Get, _) => self.give(asker, spans),
            (verb, Some((arithmetic, element))) => {
                let fetches = verb == Verb::Fetch;
                let (with, compare) = operands(arithmetic, total);
                if !is_valid(arithmetic, element, total, fetches) || body != with + compare {
                    return Err(Outcome::Invalid);
                }
                let elements = Elements {
                    arithmetic,
                    element,
                    spans: &spans,
                    inbound,
                    with: at,
                    compare: at + to_usize(with),
                };
                self.compute(asker, &elements, to_usize(total), fetches)?;
                let stores = arithmetic != Arithmetic::Read;
                self.accessed(asker, &spans, stores, fetches);
                Ok(())
            }
            (_, None) => Err(Outcome::Invalid),
        }
    }

    /// The bytes of a put are in its window.
    pub(crate) fn put_done(&mut self, asker: &Asker, operation: &Operation, spans: &Spans) {
        self.accessed(asker, spans, true, false);
        let mut asker = *asker;
        if operation.notice {
            let notice = notice(&asker, operation);
            self.push_notice(notice, &mut asker);
        }
        self.answer(&asker, Outcome::Ok, &[]);
    }

    /// Counts an operation that was done, and records it where the owner wants that.
    #[inline]
    pub(super) fn accessed(&mut self, asker: &Asker, spans: &Spans, stores: bool, returns: bool) {
        self.rma.windows.count(spans, stores, returns);
        if self.rma.records_accesses {
            self.rma.accesses.push_back(Access {
                rank: asker.rank,
                context: asker.context,
                marks: self.rma.windows.marks(spans),
                length: spans.len(),
                stores,
                returns,
            });
        }
    }

    /// Notifies the owner. What the put counts is given back when the owner takes the notice.
    pub(crate) fn push_notice(&mut self, notice: Notice, asker: &mut Asker) {
        self.rma.notices.push_back((notice, *asker));
        asker.charge = 0;
    }

    /// Sends the bytes that a get names.
    fn give(&mut self, asker: &Asker, spans: Spans) -> Result<(), Outcome> {
        let length = spans.len();
        if length <= VALUE_MOST as u64 {
            let mut value = [0; VALUE_MOST];
            let value = &mut value[..to_usize(length)];
            spans.read(0, value)?;
            self.accessed(asker, &spans, false, true);
            self.answer(asker, Outcome::Ok, value);
            return Ok(());
        }
        if self.is_short_reply(length) {
            self.reply_with(asker, to_usize(length), |bytes| spans.read(0, bytes))?;
            self.accessed(asker, &spans, false, true);
            return Ok(());
        }
        if !spans.is_readable() {
            return Err(Outcome::Unmapped);
        }
        if asker.rank == self.me() {
            self.copy_to_self(asker, &spans)?;
            self.accessed(asker, &spans, false, true);
            return Ok(());
        }
        self.accessed(asker, &spans, false, true);
        let origin = match spans.single().and_then(super::windows::Span::payload) {
            Some(payload) => Origin::User(payload),
            None => Origin::Window(Box::new(spans.clone())),
        };
        self.begin_reply(asker, origin, spans);
        Ok(())
    }

    /// Computes each element, and answers.
    fn compute(
        &mut self,
        asker: &Asker,
        elements: &Elements<'_>,
        total: usize,
        fetches: bool,
    ) -> Result<(), Outcome> {
        let size = elements.element.size();
        if !fetches || total <= VALUE_MOST {
            let mut old = [0; WIDEST];
            for at in (0..total).step_by(size) {
                // What is returned is at most eight bytes: all elements of it are kept.
                let keep = if fetches { at } else { 0 };
                elements.change(at, &mut old[keep..keep + size])?;
            }
            let value = if fetches { &old[..total] } else { &[] };
            self.answer(asker, Outcome::Ok, value);
            return Ok(());
        }
        self.reply_with(asker, total, |old| {
            for at in (0..total).step_by(size) {
                elements.change(at, &mut old[at..at + size])?;
            }
            Ok(())
        })
    }

    /// The next put that a peer notifies of, oldest first.
    pub(crate) fn take_notice(&mut self, crowded: impl Fn(u16) -> bool) -> Option<Notice> {
        let mut notices = self.rma.notices.iter();
        let at = notices.position(|(notice, _)| !crowded(notice.context))?;
        let (notice, asker) = self.rma.notices.remove(at)?;
        self.settle_operation(asker.rank, asker.charge);
        Some(notice)
    }
}

/// The notice of a put.
pub(crate) fn notice(asker: &Asker, operation: &Operation) -> Notice {
    Notice {
        rank: asker.rank,
        context: asker.context,
        key: operation.pieces.as_slice()[0].key,
        length: operation.pieces.length(),
        data: operation.data,
    }
}

/// The elements of an operation, and its operands.
struct Elements<'a> {
    arithmetic: Arithmetic,
    element: Element,
    spans: &'a Spans,
    inbound: &'a Inbound<'a>,
    /// Where in the message the operands are, and what the elements are compared with.
    with: usize,
    compare: usize,
}

impl Elements<'_> {
    /// Changes the element at an offset; copies what it was to `old`.
    fn change(&self, at: usize, old: &mut [u8]) -> Result<(), Outcome> {
        let (mut with, mut compare) = ([0; WIDEST], [0; WIDEST]);
        let size = old.len();
        let (with, compare) = (&mut with[..size], &mut compare[..size]);
        let reads = self.arithmetic == Arithmetic::Read;
        if !reads {
            self.inbound.copy_to(self.with + at, with);
        }
        if self.arithmetic.has_operand() {
            self.inbound.copy_to(self.compare + at, compare);
        }
        self.spans.update(at as u64, old, |element| {
            atomics::apply(self.arithmetic, self.element, element, with, compare);
            !reads
        })
    }
}

impl super::windows::Span {
    /// The memory, to be sent from; `None` where only the kernel knows whether it is there.
    fn payload(&self) -> Option<Payload> {
        match self {
            Self::Loan(loan) => Some(Payload::Loan(loan.as_const())),
            Self::Region(slice) => Some(Payload::Region(slice.clone())),
            Self::Range(_) => None,
        }
    }
}

impl Core {
    /// Does operations of our own on our own windows: the same, with its answer at once.
    pub(crate) fn perform_for_self(
        &mut self,
        asker: &mut Asker,
        operation: &Operation,
        bytes: SharedBytes<'_>,
    ) {
        if let Err(outcome) = self.perform(asker, operation, &Inbound::whole(bytes), 0) {
            self.answer(asker, outcome, &[]);
        }
    }
}
