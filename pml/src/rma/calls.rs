//! Puts, gets and atomics begin.

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::memory::{ConstLoan, MutLoan};
use doorbell_fabric::message::{Body, Message};
use zerocopy::IntoBytes;

use super::args::{ATOMIC_MOST, AtomicArgs, GetArgs, PutArgs, RemotePiece};
use super::lead::{LEAD_SHORT, Lead, Operation, Verb};
use super::reply_charge;
use super::target::{is_valid, operands};
use crate::args::{Payload, Target};
use crate::convertor::{Cursor, Origin, to_usize};
use crate::credit::ENVELOPE;
use crate::error::PmlError;
use crate::hot::about;
use crate::launch::Launch;
use crate::pml::Pml;
use crate::pool::Buffer;
use crate::rank::Rank;
use crate::request::{Event, RequestId, State, mark};
use crate::wire::{HEAD_MAX, MATCH_LEN, MatchHeader};

const FRONT: usize = MATCH_LEN + LEAD_SHORT;

/// Refuses an operation.
fn refuse<T>(reason: &'static str) -> Result<T, PmlError> {
    Err(PmlError::BadOperation { reason })
}

impl<M: Message> Pml<M> {
    /// Puts one piece of borrowed memory into one piece of a window: the fast path. Returns a request,
    /// always, which ends when the bytes are there; the memory stays with the PML until then.
    ///
    /// The calls of this family ring no doorbell: a poll does it, or [`Pml::flush`].
    ///
    /// # Errors
    /// [`PmlError::NoSuchRank`], [`PmlError::NoRail`], [`PmlError::PeerLost`]; [`PmlError::BadOperation`]
    /// where the lengths differ. What the target refuses ends the request as [`PmlError::Operation`].
    #[inline]
    pub fn put_loan(
        &mut self,
        to: Rank,
        context: u16,
        at: RemotePiece,
        bytes: ConstLoan,
        notify: bool,
    ) -> Result<RequestId, PmlError> {
        let length = bytes.len();
        if length as u64 == at.length
            && let Some(hot) = self.core.hot.get(to)
            && length <= to_usize(self.core.config.window / 4)
        {
            let charge = (length + LEAD_SHORT) as u64 + ENVELOPE;
            if hot.is_fast(length + LEAD_SHORT, charge) {
                let (id, slot) = self.core.requests.take();
                let marks = mark::OPERATION | if notify { mark::NOTIFY } else { 0 };
                slot.send(
                    Event::HandedOver,
                    marks,
                    to,
                    (context, id.to_bits()),
                    length as u64,
                );
                let lead = Lead::words(Verb::Put, &at);
                if self.leaves_at_once(to, context, id, &lead, Body::Loan(bytes), charge) {
                    return Ok(id);
                }
            }
        }
        self.put(PutArgs {
            to,
            context,
            at: at.into(),
            payload: Payload::Loan(bytes),
            notice: false,
            data: None,
            buffered: false,
            notify,
        })
    }

    /// Gets one piece of a window into one piece of borrowed memory: the fast path of [`Pml::get`].
    ///
    /// # Errors
    /// Those of [`Pml::put_loan`].
    #[inline]
    pub fn get_loan(
        &mut self,
        from: Rank,
        context: u16,
        at: RemotePiece,
        room: MutLoan,
        notify: bool,
    ) -> Result<RequestId, PmlError> {
        let length = room.len() as u64;
        if length == at.length
            && let Some(hot) = self.core.hot.get(from)
        {
            let charge = LEAD_SHORT as u64 + ENVELOPE + reply_charge(&self.core.config, length);
            if hot.is_fast(LEAD_SHORT, charge) {
                let (id, slot) = self.core.requests.take();
                let marks = mark::FETCH | if notify { mark::NOTIFY } else { 0 };
                slot.fetch(marks, from, (context, id.to_bits()), length, room);
                let lead = Lead::words(Verb::Get, &at);
                if self.leaves_at_once(from, context, id, &lead, Body::Empty, charge) {
                    self.core.solicit(id, from, length);
                    return Ok(id);
                }
            }
        }
        self.get(GetArgs {
            from,
            context,
            at: at.into(),
            target: Target::Loan(room),
            notify,
        })
    }

    /// Computes in one piece of a window, with operands in one piece of borrowed memory and nothing to
    /// compare with: the fast path of [`Pml::atomic`]. `fetch`: what was there before goes there.
    ///
    /// # Errors
    /// Those of [`Pml::put_loan`].
    #[inline]
    #[allow(clippy::too_many_arguments)] // each is a value of its own, as of the other fast paths
    pub fn atomic_loan(
        &mut self,
        to: Rank,
        context: u16,
        at: RemotePiece,
        computes: (Arithmetic, Element),
        operands: ConstLoan,
        fetch: Option<MutLoan>,
        notify: bool,
    ) -> Result<RequestId, PmlError> {
        let (arithmetic, element) = computes;
        let (total, length) = (at.length, operands.len());
        let fits = total == length as u64 && fetch.is_none_or(|room| room.len() == length);
        if fits
            && !arithmetic.has_operand()
            && arithmetic != Arithmetic::Read
            && is_valid(arithmetic, element, total, fetch.is_some())
            && total <= self.core.config.window / 8
            && let Some(hot) = self.core.hot.get(to)
        {
            let whole = LEAD_SHORT + length;
            let reply = fetch.map_or(0, |_| reply_charge(&self.core.config, total));
            let charge = whole as u64 + ENVELOPE + reply;
            if hot.is_fast(whole, charge) {
                let (id, slot) = self.core.requests.take();
                let (notify, identity) = (if notify { mark::NOTIFY } else { 0 }, (context, id.to_bits()));
                let verb = match fetch {
                    Some(room) => {
                        slot.fetch(mark::FETCH | notify, to, identity, total, room);
                        Verb::Fetch
                    }
                    None => {
                        slot.send(Event::HandedOver, mark::OPERATION | notify, to, identity, total);
                        Verb::Atomic
                    }
                };
                let lead = Lead::atomic_words(verb, computes, &at);
                if self.leaves_at_once(to, context, id, &lead, Body::Loan(operands), charge) {
                    if verb == Verb::Fetch {
                        self.core.solicit(id, to, total);
                    }
                    return Ok(id);
                }
            }
        }
        self.atomic(AtomicArgs {
            to,
            context,
            at: at.into(),
            arithmetic,
            element,
            operands: Payload::Loan(operands),
            compare: Payload::Loan(ConstLoan::EMPTY),
            fetch: fetch.map(Target::Loan),
            buffered: false,
            notify,
        })
    }

    /// The rail takes the operation of a request now, or the request is freed, and nothing has happened.
    #[inline]
    fn leaves_at_once(
        &mut self,
        to: Rank,
        context: u16,
        id: RequestId,
        lead: &[u64; LEAD_SHORT / 8],
        body: Body<'_>,
        charge: u64,
    ) -> bool {
        let hot = &mut self.core.hot[to];
        let (rail, peer) = hot.route();
        let mut front = [0u64; FRONT / 8];
        let head = MatchHeader::operation_words(context, hot.next_seq().0, id.to_bits());
        front[..MATCH_LEN / 8].copy_from_slice(&head);
        front[MATCH_LEN / 8..].copy_from_slice(lead);
        let rail = self.rails.get_mut(rail);
        if rail.is_none_or(|rail| rail.send(peer, front.as_bytes(), body).is_err()) {
            self.core.requests.free(id.index());
            return false;
        }
        hot.sent(charge);
        self.core.counters.sent_operations += 1;
        true
    }

    /// Puts bytes into a window. Returns a request, always, which ends when they are there.
    ///
    /// Order: a put that fits an eager message of the path is done at its turn, in order with messages and
    /// with all other operations that do. A longer one begins at its turn.
    ///
    /// # Errors
    /// Those of [`Pml::put_loan`]; [`PmlError::BadLayout`]; where it is buffered, also those of
    /// [`Pml::inject`].
    ///
    /// ```
    /// use doorbell_fabric::memory::{ConstLoan, MutLoan};
    /// use doorbell_pml::{Pml, PmlConfig, Rank, RemotePiece, WindowAccess, WindowArgs, WindowMemory};
    /// # use doorbell_fabric::message::Message;
    /// # fn with_rails_of_some_kind<M: Message>() -> Result<(), doorbell_pml::PmlError> {
    /// let mut pml: Pml<M> = Pml::new(PmlConfig::new(Rank(0), 1, 0x5eed))?;
    /// let memory = MutLoan::of_static(vec![0; 64].leak());
    /// pml.open_window(WindowArgs {
    ///     key: 7,
    ///     base: 0,
    ///     memory: WindowMemory::Loans(vec![memory]),
    ///     access: WindowAccess::ALL,
    /// })?;
    /// let at = RemotePiece { key: 7, address: 8, length: 5 };
    /// let put = pml.put_loan(Rank(0), 0, at, ConstLoan::of_static(b"hello"), false)?;
    /// pml.test(put).expect("it is our own window")?;
    /// assert_eq!(&memory.as_shared().to_vec()[8..13], b"hello");
    /// # Ok(())
    /// # }
    /// # with_rails_of_some_kind::<doorbell_sim::SimRail>().unwrap();
    /// ```
    pub fn put(&mut self, args: PutArgs) -> Result<RequestId, PmlError> {
        let payload = args.payload.checked()?;
        if payload.len() != args.at.length() {
            return refuse("a put of other bytes than its pieces have");
        }
        let operation = Operation {
            verb: Verb::Put,
            computes: None,
            pieces: args.at,
            notice: args.notice,
            data: args.data,
        };
        let origin = match args.buffered {
            true => self.buffered(args.to, &Origin::User(payload))?,
            false => Origin::User(payload),
        };
        self.operate((args.to, args.context), &operation, origin, None, args.notify)
    }

    /// Gets bytes out of a window. Returns a request, always, which ends when they are here.
    ///
    /// Order: up to 16 KiB, and a quarter of the window setting, what is returned is what was there at its
    /// turn; longer ones are read while operations behind them go on.
    ///
    /// # Errors
    /// Those of [`Pml::put`].
    pub fn get(&mut self, args: GetArgs) -> Result<RequestId, PmlError> {
        let target = args.target.checked()?;
        if target.len() != args.at.length() {
            return refuse("a get into other room than its pieces have bytes");
        }
        let operation = Operation {
            verb: Verb::Get,
            computes: None,
            pieces: args.at,
            notice: false,
            data: None,
        };
        let whither = (args.from, args.context);
        self.operate(whither, &operation, Origin::Nothing, Some(target), args.notify)
    }

    /// Bytes of the elements of one atomic, at most: 4,096, or an eighth of a smaller window setting.
    #[must_use]
    pub fn atomic_most(&self) -> usize {
        ATOMIC_MOST.min(to_usize(self.core.config.window / 8))
    }

    /// Computes in a window, element by element: each in one step, also for the target's own atomic
    /// instructions where it is aligned and of 1, 2, 4 or 8 bytes. Returns a request, always, which ends when
    /// it is done, and what was there before is here.
    ///
    /// # Errors
    /// Those of [`Pml::put`]; [`PmlError::BadOperation`] also for more than [`Pml::atomic_most`] bytes.
    pub fn atomic(&mut self, args: AtomicArgs) -> Result<RequestId, PmlError> {
        let total = args.at.length();
        let (with, compare) = operands(args.arithmetic, total);
        if !is_valid(args.arithmetic, args.element, total, args.fetch.is_some()) {
            return refuse("an atomic that there is not on that type, or of too many bytes");
        }
        let size = args.element.size() as u64;
        if args
            .at
            .as_slice()
            .iter()
            .any(|piece| !piece.length.is_multiple_of(size))
        {
            return refuse("an atomic on a piece of no whole elements");
        }
        if args.operands.len() != with || args.compare.len() != compare {
            return refuse("an atomic with other operands than elements");
        }
        if total > self.atomic_most() as u64 {
            return refuse("an atomic of more bytes than an eighth of the window");
        }
        let fetch = args.fetch.map(Target::checked).transpose()?;
        if fetch.as_ref().is_some_and(|target| target.len() != total) {
            return refuse("an atomic that returns more or less than its elements");
        }
        let verb = if fetch.is_some() {
            Verb::Fetch
        } else {
            Verb::Atomic
        };
        let operation = Operation {
            verb,
            computes: Some((args.arithmetic, args.element)),
            pieces: args.at,
            notice: false,
            data: None,
        };
        let (with, compare) = (args.operands.checked()?, args.compare.checked()?);
        let origin = match args.buffered && compare.is_empty() {
            true => self.buffered(args.to, &Origin::User(with))?,
            false => self.operands(args.to, with, compare),
        };
        self.operate((args.to, args.context), &operation, origin, fetch, args.notify)
    }

    /// The first operation of ours on a window of a rank (`None`: of any) that has not ended, of the requests
    /// from number `from` on, with the number behind it: for a wait for all of them, which begins with zero.
    /// Not for the data path: it looks at every request.
    #[must_use]
    pub fn open_operation(&self, of: Option<Rank>, from: usize) -> Option<(RequestId, usize)> {
        let mut open = self.core.requests.indices().skip(from).filter(|index| {
            let slot = self.core.requests.peek(*index);
            slot.is(mark::OPERATION | mark::FETCH)
                && !matches!(slot.state(), State::Free | State::Done)
                && !slot.is(mark::ABORTED)
                && of.is_none_or(|rank| slot.peer() == rank)
        });
        let index = open.next()?;
        Some((self.core.requests.id(index), index.at() + 1))
    }

    /// The operands, and behind them what the elements are compared with.
    fn operands(&mut self, to: Rank, operands: Payload, compare: Payload) -> Origin {
        if compare.is_empty() {
            return Origin::User(operands);
        }
        let (with, length) = (to_usize(operands.len()), to_usize(operands.len() + compare.len()));
        let mut buffer: Buffer = self.core.pool.hold(to, length);
        for (payload, bytes) in [(operands, 0..with), (compare, with..length)] {
            Origin::User(payload).pack(&mut Cursor::default(), 0, &mut buffer.bytes_mut()[bytes]);
        }
        Origin::Own(buffer, length)
    }

    /// Begins an operation; `target`: it returns bytes.
    fn operate(
        &mut self,
        (to, context): (Rank, u16),
        operation: &Operation,
        origin: Origin,
        target: Option<Target>,
        notify: bool,
    ) -> Result<RequestId, PmlError> {
        let Some(hot) = self.core.hot.get(to) else {
            self.core.drop_origin(to, origin);
            return Err(self.no_such_rank(to));
        };
        let is_self = hot.is(about::SELF);
        if !is_self && let Err(error) = self.reachable(to) {
            self.core.drop_origin(to, origin);
            return Err(error);
        }
        let marks = if notify { mark::NOTIFY } else { 0 };
        let (id, slot) = self.core.requests.take();
        let identity = (context, id.to_bits());
        match target {
            None => slot.send(Event::Sent, marks | mark::OPERATION, to, identity, origin.len()),
            Some(Target::Loan(room)) => {
                slot.fetch(marks | mark::FETCH, to, identity, operation.pieces.length(), room);
            }
            Some(target) => {
                let marks = marks | mark::FETCH | mark::APART | mark::RECORD;
                slot.fetch(marks, to, identity, operation.pieces.length(), MutLoan::EMPTY);
                let record = self.core.requests.record(id.index());
                record.memory.set_target(target);
                // It has room for all that it returns.
                record.progress.set_unbounded();
            }
        }
        if is_self {
            let record = self.core.rma.record(id.index());
            (record.answered, record.solicited) = (None, 0);
            self.core.operate_on_self(id, operation, origin);
            return Ok(id);
        }
        let lead = Lead::new(operation);
        let Some(origin) = self.operate_at_once(to, id, &lead, origin) else {
            return Ok(id);
        };
        let record = self.core.rma.record(id.index());
        (record.lead, record.answered, record.solicited) = (lead, None, 0);
        self.core.requests.slot(id.index()).set(mark::RECORD);
        let record = self.core.requests.record(id.index());
        record.progress.set_unbounded();
        record.memory.set_origin(origin);
        self.launch_or_queue(to, id)?;
        Ok(id)
    }

    /// The rail takes it now, as one message, or nothing has happened: then the bytes come back.
    #[inline]
    fn operate_at_once(&mut self, to: Rank, id: RequestId, lead: &Lead, origin: Origin) -> Option<Origin> {
        let body = match &origin {
            Origin::Nothing => Body::Empty,
            Origin::User(Payload::Loan(loan)) if loan.is_empty() => Body::Empty,
            Origin::User(Payload::Loan(loan)) => Body::Loan(*loan),
            Origin::Own(buffer, used) => Body::Bytes(&buffer.bytes()[..*used]),
            _ => return Some(origin),
        };
        let whole = lead.len() + body.len();
        let charge = self.core.operation_charge(id, whole);
        let hot = &mut self.core.hot[to];
        let end = MATCH_LEN + lead.len();
        let most = to_usize(self.core.config.window / 2);
        if end > HEAD_MAX || whole > most || !hot.is_fast(whole, charge) {
            return Some(origin);
        }
        let (rail, peer) = hot.route();
        let context = self.core.requests.peek(id.index()).context();
        let mut front = [0; HEAD_MAX];
        let head = MatchHeader::operation_words(context, hot.next_seq().0, id.to_bits());
        front[..MATCH_LEN].copy_from_slice(head.as_bytes());
        front[MATCH_LEN..end].copy_from_slice(lead.as_bytes());
        let rail = self.rails.get_mut(rail);
        if rail.is_none_or(|rail| rail.send(peer, &front[..end], body).is_err()) {
            return Some(origin);
        }
        hot.sent(charge);
        self.core.counters.sent_operations += 1;
        self.core.drop_origin(to, origin);
        self.core.operation_left(to, id);
        None
    }

    /// Starts an operation, or puts it behind what waits.
    fn launch_or_queue(&mut self, to: Rank, id: RequestId) -> Result<(), PmlError> {
        if !self.core.peers[to].backlog.has_sends() {
            match self.launch(to, id) {
                Launch::Complete | Launch::Announced | Launch::Requested => return Ok(()),
                Launch::Full => self.core.list(to),
                Launch::NoCredit => {}
            }
            if self.core.hot[to].is(about::LOST) {
                if self.core.requests.get(id).is_some() {
                    self.core.free(id.index());
                }
                return self.reachable(to);
            }
        }
        self.core.counters.sends_queued += 1;
        self.core.peers[to].backlog.push_send(id);
        self.core.hot[to].close_fast_path();
        Ok(())
    }
}
