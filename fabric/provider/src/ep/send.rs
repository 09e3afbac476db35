//! Sends: of both spaces, of every kind.
//!
//! | level | ends when |
//! |---|---|
//! | injected, `FI_INJECT_COMPLETE` | the bytes were taken |
//! | `FI_TRANSMIT_COMPLETE`, the default | within a host it is in the peer's memory; of one frame, a rail has taken it; of more, it is with the peer's process |
//! | `FI_DELIVERY_COMPLETE`, `FI_MATCH_COMPLETE` | a receive of the peer was matched with it |

use std::time::{Duration, Instant};

use doorbell_fabric::memory::{ConstLoan, Region};
use doorbell_pml::{AtOnce, LostSends, Payload, PmlError, Rank, RequestId, SendArgs, SendMode, Sent};
use libfabric_sys::*;

use super::flags::{is_slow, waits_for_peer};
use super::limits;
use super::state::{EndpointNumber, Side, Space};
use crate::cq::{Outlet, QueueIndex};
use crate::domain::State;
use crate::errno::{Errno, Result};
use crate::finish::sent_entry;
use crate::ops::{Mark, Operation};

/// How long an injected message waits in its call for its peer to be met, at most.
const MEETING: Duration = Duration::from_secs(1);
/// How long none does so after one that waited in vain.
const IN_VAIN: Duration = Duration::from_secs(5);

/// A call that sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Send {
    /// The destination, by its address in the endpoint's address vector.
    pub(crate) to: fi_addr_t,
    /// The tag; 0 in the untagged space.
    pub(crate) tag: u64,
    /// The remote data, if the call has some.
    pub(crate) data: Option<u64>,
    /// The client's context.
    pub(crate) context: usize,
    /// The flags of the operation, checked.
    pub(crate) flags: u64,
}

/// Where a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The number of the peer.
    pub(crate) rank: Rank,
    /// The number of its endpoint.
    pub(crate) endpoint: u8,
}

/// The bytes of a send.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    /// One piece of memory.
    One(ConstLoan),
    /// Several, or none.
    Pieces(Box<[ConstLoan]>),
}

impl Bytes {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::One(loan) => loan.len() as u64,
            Self::Pieces(pieces) => pieces
                .iter()
                .fold(0, |sum, piece| sum.saturating_add(piece.len() as u64)),
        }
    }

    pub(super) fn payload(self) -> Payload {
        match self {
            Self::One(loan) => Payload::Loan(loan),
            Self::Pieces(pieces) => Payload::Parts(pieces),
        }
    }

    /// A copy of the bytes, which lives as long as it is used.
    ///
    /// # Errors
    /// `FI_ENOMEM` where the system gives no memory.
    fn copied(&self) -> Result<Payload> {
        if self.len() == 0 {
            return Ok(Payload::Loan(ConstLoan::EMPTY));
        }
        let pieces = match self {
            Self::One(loan) => std::slice::from_ref(loan),
            Self::Pieces(pieces) => pieces,
        };
        let region = Region::new(self.len() as usize).map_err(|_| Errno(FI_ENOMEM))?;
        let whole = region.whole();
        let mut at = 0;
        for piece in pieces {
            at += whole.write_shared(at, piece.as_shared());
        }
        Ok(Payload::Region(whole))
    }
}

impl State {
    /// Sends one piece of memory.
    ///
    /// # Errors
    /// `FI_EAGAIN` while too much is under way or unread; those of the endpoint and of the address.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        from: EndpointNumber,
        space: Space,
        loan: ConstLoan,
        send: &Send,
    ) -> Result<isize> {
        let (side, route) = self.start(from, send)?;
        let context = space.context(route.endpoint, from);
        if !is_slow(send.flags) && loan.len() <= self.one_frame {
            let pml = self.member.pml();
            let left = match send.flags & FI_MORE {
                0 => pml.send_at_once(route.rank, context, send.tag, loan) != AtOnce::Refused,
                _ => pml.send_with_more(route.rank, context, send.tag, loan),
            };
            if left {
                self.done(side, space, send, loan.len());
                return Ok(0);
            }
        }
        self.send_slowly(from, space, Bytes::One(loan), send, side, route)
    }

    /// Sends bytes that may be in several pieces.
    ///
    /// # Errors
    /// Those of [`State::send`]; `FI_EMSGSIZE` for a message that is too long, or too long to be injected.
    pub(crate) fn send_pieces(
        &mut self,
        from: EndpointNumber,
        space: Space,
        bytes: Bytes,
        send: &Send,
    ) -> Result<isize> {
        if let Bytes::One(loan) = bytes
            && send.flags & FI_INJECT == 0
        {
            return self.send(from, space, loan, send);
        }
        let (side, route) = self.start(from, send)?;
        self.send_slowly(from, space, bytes, send, side, route)
    }

    /// Sends bytes that are taken before the call returns, and that nothing is reported of.
    ///
    /// # Errors
    /// `FI_EAGAIN` while too many bytes wait; `FI_EMSGSIZE` for more than may be injected; those of the
    /// endpoint and of the address.
    #[inline(always)]
    pub(crate) fn inject(
        &mut self,
        from: EndpointNumber,
        space: Space,
        bytes: &[u8],
        to: fi_addr_t,
        tag: u64,
        data: Option<u64>,
    ) -> Result<isize> {
        if bytes.len() > limits::INJECT {
            return Err(Errno(FI_EMSGSIZE));
        }
        let endpoint = self.endpoints.find(from)?;
        let side = endpoint.sending()?;
        let vector = endpoint.vector;
        let route = self.route_in(vector, to)?;
        let context = space.context(route.endpoint, from);
        let pml = self.member.pml();
        let sent = pml
            .set_immediate(route.rank, data)
            .and_then(|()| pml.inject(route.rank, context, tag, bytes));
        if let Err(error) = sent {
            return Err(inject_error(&error));
        }
        pml.flush();
        if pml.is_unmet(route.rank) {
            self.meet(route.rank);
        }
        if let Some(counter) = self.counters.get_mut(side.counter) {
            counter.count(bytes.len() as u64);
        }
        Ok(0)
    }

    /// Makes progress until a peer is met for which an injected message waits, and the message has left,
    /// for a while: nothing reports that it has, so that a client that waits for something else next would
    /// hold it up. After one that was waited for in vain, others are not waited for.
    #[cold]
    fn meet(&mut self, rank: Rank) {
        let begun = Instant::now();
        if !self.waits_to_meet || self.in_vain.is_some_and(|then| begun < then + IN_VAIN) {
            return;
        }
        while self.member.pml().is_unmet(rank) || self.member.pml().holds_back(Some(rank)) {
            if begun.elapsed() >= MEETING {
                self.in_vain = Some(Instant::now());
                return;
            }
            self.look();
            self.keep_member();
            self.drain(&mut Outlet::closed());
            std::thread::yield_now();
        }
    }

    /// What comes before every send: whether it may begin, where it goes to, and its data.
    #[inline(always)]
    fn start(&mut self, from: EndpointNumber, send: &Send) -> Result<(Side, Route)> {
        let endpoint = self.endpoints.find(from)?;
        let side = endpoint.sending()?;
        if endpoint.under_way >= endpoint.most_under_way || self.queues.is_full(side.queue) {
            return Err(Errno(FI_EAGAIN));
        }
        let vector = endpoint.vector;
        let route = self.route_in(vector, send.to)?;
        // That the peer is lost is found again by the send, which is reported as every other.
        let _ = self.member.pml().set_immediate(route.rank, send.data);
        Ok((side, route))
    }

    /// A send that was complete at once.
    #[inline(always)]
    fn done(&mut self, side: Side, space: Space, send: &Send, length: usize) {
        let mark = side.reports(send.flags);
        if mark.is(Mark::COUNTED) {
            self.count_sent(side, length);
        }
        if mark.is(Mark::ENTRY)
            && let Some(queue) = self.queues.get_mut(side.queue)
        {
            queue.push(&sent_entry(send.context, sent_flags(space)), FI_ADDR_NOTAVAIL);
        }
    }

    #[cold]
    fn count_sent(&mut self, side: Side, length: usize) {
        if let Some(counter) = self.counters.get_mut(side.counter) {
            counter.count(length as u64);
        }
    }

    /// A send that no rail takes at once, or that waits for its peer.
    #[inline(never)]
    fn send_slowly(
        &mut self,
        from: EndpointNumber,
        space: Space,
        bytes: Bytes,
        send: &Send,
        side: Side,
        route: Route,
    ) -> Result<isize> {
        let length = bytes.len();
        let most = if send.flags & FI_INJECT == 0 {
            limits::MESSAGE
        } else {
            limits::INJECT as u64
        };
        if length > most {
            return Err(Errno(FI_EMSGSIZE));
        }
        let accesses = self.endpoints.find(from)?.accesses;
        if send.flags & FI_FENCE != 0 && accesses > 0 {
            return Err(Errno(FI_EAGAIN));
        }
        let waits = waits_for_peer(send.flags);
        // Bytes that are taken now are copied, where the send lives longer than the call.
        let (payload, mode) = match (send.flags & FI_INJECT != 0, waits) {
            (true, true) => (bytes.copied()?, SendMode::Synchronous),
            (true, false) => (bytes.payload(), SendMode::Buffered),
            (false, true) => (bytes.payload(), SendMode::Synchronous),
            (false, false) if length > self.one_frame as u64 && send.flags & FI_INJECT_COMPLETE == 0 => {
                (bytes.payload(), SendMode::Delivered)
            }
            (false, false) => (bytes.payload(), SendMode::Standard),
        };
        let args = SendArgs {
            to: route.rank,
            context: space.context(route.endpoint, from),
            tag: send.tag,
            payload,
            mode,
            notify: true,
        };
        let sent = self.member.pml().send(args);
        if send.flags & FI_MORE == 0 {
            self.member.pml().flush();
        }
        match sent {
            Ok(Sent::Done) => self.done(side, space, send, length as usize),
            Ok(Sent::Pending(request)) => self.pending(from, side, space, send, request),
            Err(error) if must_wait(&error) => return Err(Errno(FI_EAGAIN)),
            Err(error) => self.not_sent(from, side, space, send, &error),
        }
        Ok(0)
    }

    /// A send that is under way.
    fn pending(&mut self, from: EndpointNumber, side: Side, space: Space, send: &Send, request: RequestId) {
        let mark = side.reports(send.flags).and(Mark::SEND);
        if mark.is(Mark::ENTRY)
            && let Some(queue) = self.queues.get_mut(side.queue)
        {
            queue.accept();
        }
        if let Some(endpoint) = self.endpoints.get_mut(from.0) {
            endpoint.under_way += 1;
        }
        self.operations
            .put(operation(from, side.queue, space, send.context, request, mark));
    }

    /// A send that failed at once: it was accepted, and its failure is an entry as any other's.
    #[cold]
    fn not_sent(&mut self, from: EndpointNumber, side: Side, space: Space, send: &Send, error: &PmlError) {
        let mark = Mark::SEND;
        let operation = operation(
            from,
            side.queue,
            space,
            send.context,
            RequestId::from_bits(0),
            mark,
        );
        let failure = self.failure(&operation, error);
        self.report(&operation, failure);
    }

    /// Messages are lost whose sends have ended well, since they were injected: each is a failure without a
    /// context.
    #[cold]
    pub(crate) fn lost(&mut self, lost: &LostSends) {
        let (space, from) = Space::of(lost.context);
        let Some(endpoint) = self.endpoints.get(from.0) else {
            return;
        };
        let none = RequestId::from_bits(0);
        let operation = operation(from, endpoint.sends.queue, space, 0, none, Mark::SEND);
        let error = PmlError::PeerLost {
            rank: lost.rank,
            reason: lost.reason,
        };
        for _ in 0..lost.count {
            let failure = self.failure(&operation, &error);
            self.report(&operation, failure);
        }
    }

    /// Makes progress until no send of an endpoint is under way, and what rails hold back has left; for at
    /// most `looks` passes. Returns whether that is so.
    pub(crate) fn push_out(&mut self, endpoint: u8, looks: usize) -> bool {
        for _ in 0..looks {
            if self.has_left(endpoint) {
                return true;
            }
            self.look();
            self.drain(&mut Outlet::closed());
        }
        self.has_left(endpoint)
    }

    fn has_left(&mut self, endpoint: u8) -> bool {
        let under_way = self
            .endpoints
            .get_mut(endpoint)
            .is_some_and(|endpoint| endpoint.under_way > 0);
        !under_way && !self.member.has_unsent(endpoint)
    }
}

fn operation(
    from: EndpointNumber,
    queue: QueueIndex,
    space: Space,
    context: usize,
    request: RequestId,
    mark: Mark,
) -> Operation {
    Operation {
        context,
        request,
        flags: sent_flags(space),
        queue,
        endpoint: from.0,
        mark,
        multi: 0,
    }
}

/// The flags of the entry of a send.
#[inline(always)]
const fn sent_flags(space: Space) -> u32 {
    (FI_SEND | space.flag()) as u32
}

/// Whether a send is refused only until what is under way has gone on.
pub(super) fn must_wait(error: &PmlError) -> bool {
    matches!(error, PmlError::InjectFull { .. })
}

/// The number for a message that was not injected: there is no entry that could report it.
#[cold]
pub(super) fn inject_error(error: &PmlError) -> Errno {
    Errno(match error {
        error if must_wait(error) => FI_EAGAIN,
        PmlError::PeerLost { .. } | PmlError::NoRail { .. } => FI_EHOSTUNREACH,
        PmlError::InjectTooLong { .. } => FI_EMSGSIZE,
        _ => FI_EIO,
    })
}
