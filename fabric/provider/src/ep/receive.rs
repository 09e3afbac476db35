//! Receives: of one message, and of many into one buffer.

use doorbell_fabric::memory::MutLoan;
use doorbell_pml::{MultiArgs, PmlError, RecvArgs, RequestId, Source, Target};
use libfabric_sys::*;

use super::state::{EndpointNumber, Side, Space};
use crate::domain::State;
use crate::errno::{Errno, Result};
use crate::ops::{Mark, Operation};

/// A call that receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    /// The sender, by its address in the endpoint's address vector; `FI_ADDR_UNSPEC` for any.
    pub(crate) from: fi_addr_t,
    /// The tag that matches; 0 in the untagged space.
    pub(crate) tag: u64,
    /// The bits of the tag that may differ.
    pub(crate) ignore: u64,
    /// The client's context.
    pub(crate) context: usize,
    /// The flags of the operation, checked.
    pub(crate) flags: u64,
}

/// The room of a receive.
#[derive(Clone, Debug)]
pub(crate) enum Room {
    /// One piece of memory.
    One(MutLoan),
    /// Several, or none.
    Pieces(Box<[MutLoan]>),
}

impl Room {
    /// The bytes of all of it, which do not overflow.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::One(loan) => loan.len() as u64,
            Self::Pieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
        }
    }

    pub(super) fn target(self) -> Target {
        match self {
            Self::One(loan) => Target::Loan(loan),
            Self::Pieces(pieces) => Target::Parts(pieces),
        }
    }
}

/// A receive that the PML has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    request: RequestId,
    /// Whether it is of one message or of many.
    kind: Mark,
    /// Whether it names its sender.
    names: bool,
    /// A receive of many messages: the number of its buffer.
    multi: u32,
}

impl Posted {
    /// A receive of one message.
    #[inline(always)]
    pub(super) const fn one(request: RequestId, names: bool) -> Self {
        Self {
            request,
            kind: Mark::RECV,
            names,
            multi: 0,
        }
    }
}

impl State {
    /// Posts a receive.
    ///
    /// # Errors
    /// Those of the endpoint and of the address; `FI_EINVAL` for a buffer of several pieces that is to take
    /// many messages.
    #[inline(always)]
    pub(crate) fn receive(
        &mut self,
        to: EndpointNumber,
        space: Space,
        room: Room,
        receive: &Receive,
    ) -> Result<isize> {
        let endpoint = self.endpoints.find(to)?;
        let side = endpoint.receiving()?;
        let names = endpoint.names_senders;
        let from = match endpoint.takes_any(space, receive.from)? {
            true => Source::Any,
            false => self.source(to, receive.from)?,
        };
        if receive.flags & FI_MULTI_RECV != 0 {
            return self.receive_many(to, room, receive, side, from);
        }
        let context = space.receives(to);
        let posted = match room {
            Room::One(loan) => {
                let pml = self.member.pml();
                pml.recv_loan_notified(from, context, receive.tag, receive.ignore, loan)
            }
            Room::Pieces(_) => self.receive_pieces(from, context, room, receive),
        };
        let request = posted.map_err(|error| refused(&error))?;
        self.posted(to, space, receive, side, Posted::one(request, names));
        Ok(0)
    }

    #[inline(never)]
    fn receive_pieces(
        &mut self,
        from: Source,
        context: u16,
        room: Room,
        receive: &Receive,
    ) -> std::result::Result<RequestId, PmlError> {
        self.member.pml().recv(RecvArgs {
            from,
            context,
            tag: receive.tag,
            ignore: receive.ignore,
            target: room.target(),
            notify: true,
        })
    }

    /// Notes a receive that was posted.
    #[inline(always)]
    pub(super) fn posted(
        &mut self,
        to: EndpointNumber,
        space: Space,
        receive: &Receive,
        side: Side,
        posted: Posted,
    ) {
        let mark = side
            .reports(receive.flags)
            .and(posted.kind)
            .and_if(Mark::NAMES, posted.names);
        if mark.is(Mark::PLACE)
            && let Some(queue) = self.queues.get_mut(side.queue)
        {
            queue.accept();
        }
        self.operations.put(Operation {
            context: receive.context,
            request: posted.request,
            flags: received_flags(space),
            queue: side.queue,
            endpoint: to.0,
            mark,
            multi: posted.multi,
        });
    }

    /// Posts a buffer for many messages.
    #[inline(never)]
    fn receive_many(
        &mut self,
        to: EndpointNumber,
        room: Room,
        receive: &Receive,
        side: Side,
        from: Source,
    ) -> Result<isize> {
        let loan = match room {
            Room::One(loan) => loan,
            Room::Pieces(pieces) if pieces.len() == 1 => pieces[0],
            Room::Pieces(_) => return Err(Errno(FI_EINVAL)),
        };
        let endpoint = self.endpoints.find(to)?;
        let (min_free, names) = (endpoint.min_multi, endpoint.names_senders);
        let args = MultiArgs {
            from,
            context: Space::Untagged.receives(to),
            tag: receive.tag,
            ignore: receive.ignore,
            target: Target::Loan(loan),
            min_free,
            notify: true,
        };
        let request = self
            .member
            .pml()
            .recv_multi(args)
            .map_err(|error| refused(&error))?;
        let multi = self.operations.put_multi(loan.as_mut_ptr().expose_provenance());
        let posted = Posted {
            request,
            kind: Mark::MULTI,
            names,
            multi,
        };
        self.posted(to, Space::Untagged, receive, side, posted);
        Ok(0)
    }

    /// The sender that a receive names.
    #[inline]
    pub(super) fn source(&mut self, to: EndpointNumber, from: fi_addr_t) -> Result<Source> {
        let route = self.route(to, from)?;
        Ok(Source::Endpoint(route.rank, route.endpoint))
    }

    /// Cancels an operation of an endpoint, by the client's context. One that is not under way any more, or
    /// that a message was matched with, is left alone.
    pub(crate) fn cancel(&mut self, of: EndpointNumber, context: usize) {
        let found = self
            .operations
            .of_endpoint(of.0)
            .find(|operation| operation.context == context && !operation.mark.is(Mark::ACCESS))
            .map(|operation| operation.request);
        if let Some(request) = found {
            self.member.pml().cancel(request);
        }
    }
}

/// The flags of the entry of a receive.
#[inline(always)]
pub(super) const fn received_flags(space: Space) -> u32 {
    (FI_RECV | space.flag()) as u32
}

/// The number for a receive that the PML does not take.
#[cold]
pub(super) fn refused(error: &PmlError) -> Errno {
    Errno(match error {
        PmlError::NoSuchRank { .. } | PmlError::StaleMessage => FI_EINVAL,
        _ => FI_EIO,
    })
}
