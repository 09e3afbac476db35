//! Reads and writes of peers' memory, and what they have in common with atomics.
//!
//! | call | ends when |
//! |---|---|
//! | write, of every level | the bytes are in the peer's memory |
//! | read | the bytes are here |
//! | atomic, of every level | the peer's memory has changed, and what was there before is here |
//!
//! What is injected is taken before the call returns, and ends as every other write. A fenced operation is
//! refused by `FI_EAGAIN` until no other one of its endpoint is under way.

use doorbell_fabric::memory::ConstLoan;
use doorbell_pml::{GetArgs, Notice, Payload, PmlError, PutArgs, Rank, RemotePiece, RemotePieces, RequestId};
use libfabric_sys::*;

use super::limits;
use super::receive::Room;
use super::send::{Bytes, Route, inject_error, must_wait};
use super::state::{EndpointNumber, Side, Space};
use crate::cntr::CounterIndex;
use crate::cq::{Entry, Outlet};
use crate::domain::State;
use crate::errno::{Errno, Result};
use crate::finish::pointer;
use crate::ops::{Mark, Operation};

/// A call that reads, writes or computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// The peer, by its address in the endpoint's address vector.
    pub(crate) peer: fi_addr_t,
    /// The client's context.
    pub(crate) context: usize,
    /// The flags of the operation, checked.
    pub(crate) flags: u64,
    /// A write: what the peer's queue gets, if the call has some.
    pub(crate) data: Option<u64>,
}

impl Access {
    /// A call without a context and without flags.
    pub(super) const fn injected(peer: fi_addr_t, data: Option<u64>) -> Self {
        Self {
            peer,
            context: 0,
            flags: 0,
            data,
        }
    }
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remote {
    /// As many bytes as there are here, at an address, by a key.
    One(u64, u64),
    /// Pieces of it, one behind the other.
    Several(RemotePieces),
}

impl Remote {
    /// Pieces of a peer's memory.
    ///
    /// # Errors
    /// `FI_EINVAL` for none, too many, and where their lengths overflow.
    pub(crate) fn pieces(pieces: &[fi_rma_iov]) -> Result<Self> {
        Self::several(pieces, |piece| {
            Some(RemotePiece {
                key: piece.key,
                address: piece.addr,
                length: piece.len as u64,
            })
        })
    }

    /// Pieces of a peer's memory, in elements of this size.
    ///
    /// # Errors
    /// Those of [`Remote::pieces`].
    pub(crate) fn elements(pieces: &[fi_rma_ioc], size: usize) -> Result<Self> {
        Self::several(pieces, |piece| {
            Some(RemotePiece {
                key: piece.key,
                address: piece.addr,
                length: piece.count.checked_mul(size)? as u64,
            })
        })
    }

    fn several<P>(pieces: &[P], of: impl Fn(&P) -> Option<RemotePiece>) -> Result<Self> {
        let mut all = [RemotePiece::default(); limits::PIECES];
        let all = all.get_mut(..pieces.len()).ok_or(Errno(FI_EINVAL))?;
        for (to, piece) in all.iter_mut().zip(pieces) {
            *to = of(piece).ok_or(Errno(FI_EINVAL))?;
        }
        RemotePieces::new(all).map(Self::Several).ok_or(Errno(FI_EINVAL))
    }

    /// The pieces of an operation of this length.
    ///
    /// # Errors
    /// `FI_EMSGSIZE` for one that is too long, `FI_EINVAL` where there are other bytes than here.
    #[inline]
    pub(super) fn of_length(self, length: u64) -> Result<RemotePieces> {
        if length > limits::MESSAGE {
            return Err(Errno(FI_EMSGSIZE));
        }
        match self {
            Self::One(address, key) => Ok(RemotePiece { key, address, length }.into()),
            Self::Several(pieces) if pieces.length() == length => Ok(pieces),
            Self::Several(_) => Err(Errno(FI_EINVAL)),
        }
    }
}

/// What an operation is, and what it was found to need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    from: EndpointNumber,
    kind: Mark,
    /// `FI_RMA` or `FI_ATOMIC`.
    family: u64,
    side: Side,
    counter: CounterIndex,
    route: Route,
}

impl Begun {
    /// The number of the peer.
    pub(super) const fn rank(&self) -> Rank {
        self.route.rank
    }

    /// The context of the operation, which names both endpoints.
    pub(super) const fn context(&self) -> u16 {
        Space::Untagged.context(self.route.endpoint, self.from)
    }
}

impl State {
    /// Reads memory of a peer.
    ///
    /// # Errors
    /// `FI_EAGAIN` while too much is under way or unread; those of the lengths, the endpoint and the address.
    pub(crate) fn read(
        &mut self,
        from: EndpointNumber,
        remote: Remote,
        room: Room,
        access: &Access,
    ) -> Result<isize> {
        let at = remote.of_length(room.len())?;
        let begun = self.begin(from, (Mark::READ, FI_RMA), access)?;
        let (rank, context) = (begun.rank(), begun.context());
        let pml = self.member.pml();
        let read = match (&room, at.as_slice()) {
            (Room::One(loan), [piece]) => pml.get_loan(rank, context, *piece, *loan, true),
            _ => pml.get(GetArgs {
                from: rank,
                context,
                at,
                target: room.target(),
                notify: true,
            }),
        };
        self.started(begun, access, read)
    }

    /// Writes memory of a peer.
    ///
    /// # Errors
    /// Those of [`State::read`].
    pub(crate) fn write(
        &mut self,
        from: EndpointNumber,
        remote: Remote,
        bytes: Bytes,
        access: &Access,
    ) -> Result<isize> {
        let length = bytes.len();
        let at = remote.of_length(length)?;
        let injects = access.flags & FI_INJECT != 0;
        if injects && length > limits::INJECT as u64 {
            return Err(Errno(FI_EMSGSIZE));
        }
        let begun = self.begin(from, (Mark::WRITE, FI_RMA), access)?;
        if let (Bytes::One(loan), [piece], false, None) = (&bytes, at.as_slice(), injects, access.data) {
            let (rank, context) = (begun.rank(), begun.context());
            let written = self.member.pml().put_loan(rank, context, *piece, *loan, true);
            return self.started(begun, access, written);
        }
        let written = self.put(begun, at, bytes.payload(), access.data, injects);
        self.started(begun, access, written)
    }

    /// Writes bytes that are taken before the call returns, and that nothing is reported of unless it fails.
    ///
    /// # Errors
    /// Those of [`State::read`]; `FI_EMSGSIZE` for more than may be injected.
    pub(crate) fn inject_write(
        &mut self,
        from: EndpointNumber,
        remote: Remote,
        bytes: ConstLoan,
        to: fi_addr_t,
        data: Option<u64>,
    ) -> Result<isize> {
        if bytes.len() > limits::INJECT {
            return Err(Errno(FI_EMSGSIZE));
        }
        let at = remote.of_length(bytes.len() as u64)?;
        let access = Access::injected(to, data);
        let begun = self.begin(from, (Mark::WRITE, FI_RMA), &access)?;
        let written = self.put(begun, at, Payload::Loan(bytes), data, true);
        self.injected(begun, &access, written)
    }

    fn put(
        &mut self,
        begun: Begun,
        at: RemotePieces,
        payload: Payload,
        data: Option<u64>,
        buffered: bool,
    ) -> std::result::Result<RequestId, PmlError> {
        self.member.pml().put(PutArgs {
            to: begun.rank(),
            context: begun.context(),
            at,
            payload,
            notice: data.is_some(),
            data,
            buffered,
            notify: true,
        })
    }

    /// What comes before every operation: whether it may begin, and where its peer is.
    #[inline]
    pub(super) fn begin(
        &mut self,
        from: EndpointNumber,
        (kind, family): (Mark, u64),
        access: &Access,
    ) -> Result<Begun> {
        let endpoint = self.endpoints.find(from)?;
        let (side, counter) = endpoint.accessing(kind, family)?;
        let waits = access.flags & FI_FENCE != 0 && endpoint.under_way > 0;
        if waits || endpoint.under_way >= endpoint.most_under_way || self.queues.is_full(side.queue) {
            return Err(Errno(FI_EAGAIN));
        }
        let vector = endpoint.vector;
        Ok(Begun {
            from,
            kind,
            family,
            side,
            counter,
            route: self.route_in(vector, access.peer)?,
        })
    }

    /// What comes after every operation.
    pub(super) fn started(
        &mut self,
        begun: Begun,
        access: &Access,
        started: std::result::Result<RequestId, PmlError>,
    ) -> Result<isize> {
        if access.flags & FI_MORE == 0 {
            self.member.pml().flush();
        }
        match started {
            Ok(request) => {
                let entry = begun.side.reports(access.flags).both(Mark::ENTRY);
                self.under_way(begun, access, request, entry);
            }
            Err(error) if must_wait(&error) => return Err(Errno(FI_EAGAIN)),
            Err(error) => {
                // It was accepted, and its failure is an entry as any other's.
                let operation = operation(begun, access, RequestId::from_bits(0), begun.kind);
                let failure = self.failure(&operation, &error);
                self.report(&operation, failure);
            }
        }
        Ok(0)
    }

    /// What comes after every operation that was injected.
    ///
    /// # Errors
    /// Why it was not.
    pub(super) fn injected(
        &mut self,
        begun: Begun,
        access: &Access,
        started: std::result::Result<RequestId, PmlError>,
    ) -> Result<isize> {
        self.member.pml().flush();
        let request = started.map_err(|error| inject_error(&error))?;
        self.under_way(begun, access, request, Mark::NONE);
        Ok(0)
    }

    /// Notes an operation that is under way.
    #[inline]
    fn under_way(&mut self, begun: Begun, access: &Access, request: RequestId, entry: Mark) {
        let counted = begun.counter != CounterIndex::NONE;
        let mark = begun.kind.and(entry).and_if(Mark::COUNTED, counted);
        if mark.is(Mark::ENTRY)
            && let Some(queue) = self.queues.get_mut(begun.side.queue)
        {
            queue.accept();
        }
        if let Some(endpoint) = self.endpoints.get_mut(begun.from.0) {
            endpoint.under_way += 1;
            endpoint.accesses += 1;
        }
        self.operations.put(operation(begun, access, request, mark));
    }

    /// Reports writes of peers that brought data: each is an entry of the queue of receives of the endpoint
    /// that it names. Those whose queue has as many unread entries as it may wait until it is read, and count
    /// against their writers meanwhile.
    #[inline(never)]
    pub(crate) fn take_notices(&mut self, outlet: &mut Outlet) {
        while !outlet.is_full() {
            let (endpoints, queues) = (&self.endpoints, &self.queues);
            let crowded = |context| {
                let endpoint = endpoints.get(Space::target(context));
                endpoint.is_some_and(|endpoint| queues.is_full(endpoint.receives.queue))
            };
            let Some(notice) = self.member.pml().next_notice_unless(crowded) else {
                return;
            };
            self.written(&notice, outlet);
        }
    }

    fn written(&mut self, notice: &Notice, outlet: &mut Outlet) {
        let number = Space::target(notice.context);
        let Some(endpoint) = self.endpoints.get(number) else {
            return;
        };
        let (queue, names) = (endpoint.receives.queue, endpoint.names_senders);
        let (_, writer) = Space::of(notice.context);
        let sender = match names {
            true => self.address_of(number, notice.rank, writer.0),
            false => FI_ADDR_NOTAVAIL,
        };
        let entry = Entry {
            op_context: pointer(0),
            flags: FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
            len: notice.length as usize,
            buf: pointer(0),
            data: notice.data.unwrap_or(0),
            tag: 0,
        };
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.add(outlet, &entry, sender);
        }
    }
}

fn operation(begun: Begun, access: &Access, request: RequestId, mark: Mark) -> Operation {
    let kind = match begun.kind {
        Mark::READ => FI_READ,
        _ => FI_WRITE,
    };
    Operation {
        context: access.context,
        request,
        flags: (begun.family | kind) as u32,
        queue: begun.side.queue,
        endpoint: begun.from.0,
        mark,
        multi: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(addr: u64, len: usize) -> fi_rma_iov {
        fi_rma_iov { addr, len, key: 7 }
    }

    #[test]
    fn pieces_of_both_sides_have_the_same_length() {
        let both = Remote::pieces(&[piece(0, 3), piece(100, 5)]).unwrap();
        assert_eq!(both.of_length(8).unwrap().length(), 8);
        assert_eq!(both.of_length(7), Err(Errno(FI_EINVAL)));
        assert_eq!(Remote::One(5, 7).of_length(9).unwrap().length(), 9);
        let long = Remote::One(0, 7).of_length(limits::MESSAGE + 1);
        assert_eq!(long, Err(Errno(FI_EMSGSIZE)));
    }

    #[test]
    fn elements_have_their_size_on_both_sides() {
        let piece = |count| fi_rma_ioc {
            addr: 0,
            count,
            key: 7,
        };
        let both = Remote::elements(&[piece(3), piece(1)], 16).unwrap();
        assert_eq!(both.of_length(64).unwrap().length(), 64);
        assert_eq!(both.of_length(4), Err(Errno(FI_EINVAL)));
        let refused = |pieces: &[fi_rma_ioc]| Remote::elements(pieces, 16).map(|_| ());
        assert_eq!(refused(&[]), Err(Errno(FI_EINVAL)));
        assert_eq!(refused(&[piece(usize::MAX / 8)]), Err(Errno(FI_EINVAL)));
        assert_eq!(refused(&[piece(usize::MAX / 16); 2]), Err(Errno(FI_EINVAL)));
    }

    #[test]
    fn none_too_many_and_too_long_ones_are_refused() {
        let refused = |pieces: &[fi_rma_iov]| Remote::pieces(pieces).map(|_| ());
        assert_eq!(refused(&[]), Err(Errno(FI_EINVAL)));
        assert_eq!(refused(&[piece(0, 1); 5]), Err(Errno(FI_EINVAL)));
        assert_eq!(refused(&[piece(0, usize::MAX); 2]), Err(Errno(FI_EINVAL)));
        assert_eq!(refused(&[piece(0, 0); 4]), Ok(()));
    }
}
