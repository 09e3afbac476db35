//! Puts and gets on segments, by explicit handles and implicitly (gasnet.md section 3).
//!
//! Where the bytes are decides how they go: those of the segment from where they are (RARSRC); short ones
//! through a chunk, if one is free (ReqSB); others through a temporary descriptor (TMPMD). A put is over when
//! its ACK has come, so the bytes are at the target then. *Bulk* means that the source stays as it is until
//! then; without it the bytes are copied, or the handle shows when the source is free
//! ([`Conduit::try_source`]).
//!
//! No call waits: a blocking put is a non-blocking one and a loop of [`Conduit::step`] and
//! [`Conduit::try_sync`] by the caller, or [`Conduit::sync`] with the caller's [`Wait`](crate::Wait).

use doorbell_fabric::ni::{AckReq, Get, MdHandle, MdOptions, Ni, Piece, Process, Put, Target};

use crate::chunks::ChunkUse;
use crate::conduit::Conduit;
use crate::config::RAR_INDEX;
use crate::deferred::Then;
use crate::error::{AmError, Stall, Try};
use crate::match_bits::{Id, Kind, OneSided};
use crate::ops::Handle;
use crate::request::Wait;
use crate::source::{Destination, Source};
use crate::token::{inside, reaches, too_long};

/// Flag in a user pointer: something waits for the SEND.
pub(crate) const SENDS: u32 = 1 << 31;

/// A place in a rank's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// The rank of the segment.
    pub rank: u32,
    /// The offset of the first byte.
    pub offset: u64,
}

/// How a put's bytes leave.
struct Way {
    id: Id,
    md: MdHandle,
    offset: u64,
    number: u32,
    /// SEND reports when the source is free.
    sends: bool,
    then: Then,
}

impl<N: Ni> Conduit<N> {
    /// Starts a put. Its source may be changed when the call returns if it was copied; otherwise when
    /// [`Self::try_source`] returns so.
    ///
    /// # Errors
    /// [`AmError`]: outside of a segment, or the rank cannot be reached.
    pub fn put<'a>(&mut self, to: Remote, from: impl Into<Source<'a>>) -> Result<Try<Handle>, AmError> {
        self.explicit_put(to, &from.into(), false)
    }

    /// Starts a put whose source must not change until it was synchronised.
    ///
    /// # Errors
    /// Those of [`Self::put`].
    pub fn put_bulk<'a>(&mut self, to: Remote, from: impl Into<Source<'a>>) -> Result<Try<Handle>, AmError> {
        self.explicit_put(to, &from.into(), true)
    }

    /// Starts an implicit put: [`Self::try_sync_puts`].
    ///
    /// # Errors
    /// Those of [`Self::put`].
    pub fn put_nbi<'a>(&mut self, to: Remote, from: impl Into<Source<'a>>) -> Result<Try<()>, AmError> {
        let op = self.ops.implicit();
        self.start_put(op, to, &from.into(), false)
    }

    /// Starts a put, with a source that stays as it is until it was synchronised.
    ///
    /// # Errors
    /// Those of [`Self::put`].
    pub fn put_nbi_bulk<'a>(&mut self, to: Remote, from: impl Into<Source<'a>>) -> Result<Try<()>, AmError> {
        let op = self.ops.implicit();
        self.start_put(op, to, &from.into(), true)
    }

    /// Starts a get of `length` bytes.
    ///
    /// # Errors
    /// Those of [`Self::put`].
    pub fn get(
        &mut self,
        into: impl Into<Destination>,
        from: Remote,
        length: u64,
    ) -> Result<Try<Handle>, AmError> {
        let into = into.into();
        let (address, handle) = self.ops.begin()?;
        let begun = self.start_get(address, &into, from, length);
        self.named(handle, begun)
    }

    /// Starts an implicit get: [`Self::try_sync_gets`].
    ///
    /// # Errors
    /// Those of [`Self::put`].
    pub fn get_nbi(
        &mut self,
        into: impl Into<Destination>,
        from: Remote,
        length: u64,
    ) -> Result<Try<()>, AmError> {
        let op = self.ops.implicit();
        self.start_get(op, &into.into(), from, length)
    }

    /// Whether an operation is over. Then its handle is used up.
    ///
    /// # Errors
    /// [`AmError::Operation`]: it has failed; the handle is used up. [`AmError::Stale`].
    #[inline]
    pub fn try_sync(&mut self, handle: Handle) -> Result<bool, AmError> {
        self.ops.try_sync(handle)
    }

    /// Whether the source of a put or a Long may be changed.
    ///
    /// # Errors
    /// [`AmError::Stale`].
    pub fn try_source(&self, handle: Handle) -> Result<bool, AmError> {
        self.ops.source_free(handle)
    }

    /// Whether all implicit puts are over.
    ///
    /// # Errors
    /// [`AmError::Operation`]: one has failed.
    pub fn try_sync_puts(&mut self) -> Result<bool, AmError> {
        self.ops.try_sync_implicit(true, false)
    }

    /// Whether all implicit gets are over.
    ///
    /// # Errors
    /// [`AmError::Operation`]: one has failed.
    pub fn try_sync_gets(&mut self) -> Result<bool, AmError> {
        self.ops.try_sync_implicit(false, true)
    }

    /// Whether all implicit puts and gets are over.
    ///
    /// # Errors
    /// [`AmError::Operation`]: one has failed.
    pub fn try_sync_all(&mut self) -> Result<bool, AmError> {
        self.ops.try_sync_implicit(true, true)
    }

    /// Counts implicit operations by themselves from now on.
    ///
    /// # Errors
    /// [`AmError::Order`]: regions do not nest.
    pub fn begin_access_region(&mut self) -> Result<(), AmError> {
        self.ops.open_region()
    }

    /// Closes the access region; the handle covers all its operations.
    ///
    /// # Errors
    /// [`AmError::Order`]: none is open.
    pub fn end_access_region(&mut self) -> Result<Handle, AmError> {
        self.ops.close_region()
    }

    /// Waits for an operation.
    ///
    /// # Errors
    /// Those of [`Self::try_sync`], and [`AmError::Ended`], [`AmError::Fault`]. The handle stays good when
    /// the wait was ended.
    pub fn sync(&mut self, handle: Handle, wait: &mut (impl Wait + ?Sized)) -> Result<(), AmError> {
        self.until(Stall::Operations, wait, |conduit| conduit.try_sync(handle))
    }

    /// Waits for all implicit operations.
    ///
    /// # Errors
    /// Those of [`Self::try_sync_all`], and [`AmError::Ended`], [`AmError::Fault`].
    pub fn sync_all(&mut self, wait: &mut (impl Wait + ?Sized)) -> Result<(), AmError> {
        self.until(Stall::Operations, wait, Self::try_sync_all)
    }

    /// Puts, and waits until the bytes are there.
    ///
    /// # Errors
    /// Those of [`Self::put`] and [`Self::sync`].
    pub fn put_blocking<'a>(
        &mut self,
        to: Remote,
        from: impl Into<Source<'a>>,
        wait: &mut (impl Wait + ?Sized),
    ) -> Result<(), AmError> {
        let from = from.into();
        let handle = self.insist(wait, |conduit| conduit.explicit_put(to, &from, true))?;
        self.sync(handle, wait)
    }

    /// Gets, and waits until the bytes are here.
    ///
    /// # Errors
    /// Those of [`Self::get`] and [`Self::sync`].
    pub fn get_blocking(
        &mut self,
        into: impl Into<Destination>,
        from: Remote,
        length: u64,
        wait: &mut (impl Wait + ?Sized),
    ) -> Result<(), AmError> {
        let into = into.into();
        let handle = self.insist(wait, |conduit| conduit.get(&into, from, length))?;
        self.sync(handle, wait)
    }

    /// Polls until something is so.
    pub(crate) fn until(
        &mut self,
        stall: Stall,
        wait: &mut (impl Wait + ?Sized),
        mut is_so: impl FnMut(&mut Self) -> Result<bool, AmError>,
    ) -> Result<(), AmError> {
        while !is_so(self)? {
            let now = wait.wait(stall).ok_or(AmError::Ended(stall))?;
            self.wait_step(stall, now)?;
        }
        Ok(())
    }

    fn explicit_put(&mut self, to: Remote, from: &Source<'_>, bulk: bool) -> Result<Try<Handle>, AmError> {
        let (address, handle) = self.ops.begin()?;
        let begun = self.start_put(address, to, from, bulk);
        self.named(handle, begun)
    }

    /// An explicit operation that was not started has no handle.
    fn named(&mut self, handle: Handle, begun: Result<Try<()>, AmError>) -> Result<Try<Handle>, AmError> {
        if !matches!(begun, Ok(Try::Done(()))) {
            self.ops.abandon(handle);
        }
        Ok(begun?.map(|()| handle))
    }

    fn start_put(&mut self, op: u16, to: Remote, from: &Source<'_>, bulk: bool) -> Result<Try<()>, AmError> {
        let length = from.len();
        self.allowed(to, length)?;
        inside(from, &self.segment, self.me)?;
        let process = match self.ready(to.rank)? {
            Try::Done(process) => process,
            Try::Stalled(stall) => return Ok(Try::Stalled(stall)),
        };
        let way = match self.put_way(op, from, bulk)? {
            Try::Done(way) => way,
            Try::Stalled(stall) => return Ok(Try::Stalled(stall)),
        };
        let _ = self.tickets.take(1);
        self.ops.put(op, to.rank, length, way.sends);
        self.stats.one_sided[0] += 1;
        let one = |id, bounce| OneSided {
            id,
            kind: Kind::Put,
            op: self.ops.reference(op),
            bounce,
        };
        let mark = if way.sends { SENDS } else { 0 };
        let put = Put {
            from: Piece {
                md: way.md,
                offset: way.offset,
            },
            length,
            ack: AckReq::Full,
            target: Target {
                process,
                pt_index: RAR_INDEX,
                match_bits: one(Id::Rar, bounce_offset(&way)).bits(),
                remote_offset: to.offset,
            },
            user_ptr: one(way.id, way.number | mark).bits(),
            hdr_data: 0,
        };
        match (self.begin_put(&put, way.then), way.then) {
            (true, Then::FreeBounce(chunk)) => self.free_chunk(chunk),
            // Nothing was copied yet.
            (false, Then::FreeSource(_)) => self.ops.source_begun(op, to.rank),
            _ => {}
        }
        Ok(Try::Done(()))
    }

    /// Chooses how the bytes of a put leave: from the segment, through a chunk, through a temporary
    /// descriptor.
    fn put_way(&mut self, op: u16, from: &Source<'_>, bulk: bool) -> Result<Try<Way>, AmError> {
        let length = from.len();
        let volatile = length <= self.objects.volatile;
        if let Source::Segment { offset, .. } = *from {
            let sources = self.objects.segment;
            self.stats.ways[0] += 1;
            let md = match (volatile, bulk) {
                (true, _) => sources.volatile,
                (false, true) => sources.quiet,
                (false, false) => sources.send,
            };
            return Ok(Try::Done(Way {
                id: Id::RarSrc,
                md,
                offset,
                number: 0,
                sends: !volatile && !bulk,
                then: if volatile && !bulk {
                    Then::FreeSource(self.ops.reference(op))
                } else {
                    Then::Nothing
                },
            }));
        }
        let limit = if from.stays() {
            self.settings.put_bounce_limit()
        } else {
            // No other path can carry these, whatever the setting.
            self.reqsb.size() as usize
        };
        if length <= limit as u64
            && let Some(chunk) = self.reqsb.take()
        {
            return Ok(Try::Done(self.bounce_way(from, chunk, volatile)));
        }
        let Source::Memory(memory) = from else {
            if length <= limit as u64 {
                return Ok(self.stall(Stall::Chunk));
            }
            return Err(AmError::MustStay {
                given: length,
                most: limit as u64,
            });
        };
        let Some(number) = self.temporaries.take() else {
            return Ok(self.stall(Stall::Temporary));
        };
        let options = if bulk {
            MdOptions::EVENT_SEND_DISABLE
        } else {
            MdOptions::NONE
        };
        let Some(md) = self.bind(number, memory.clone(), options) else {
            self.health()?;
            return Ok(self.stall(Stall::Temporary));
        };
        self.stats.ways[2] += 1;
        Ok(Try::Done(Way {
            id: Id::Temporary,
            md,
            offset: 0,
            number,
            sends: !bulk,
            then: Then::Nothing,
        }))
    }

    fn bounce_way(&mut self, from: &Source<'_>, chunk: u32, volatile: bool) -> Way {
        self.stats.ways[1] += 1;
        if let Some(slot) = self.uses.get_mut(chunk as usize) {
            *slot = ChunkUse::Put;
        }
        let at = self.reqsb.offset(chunk);
        from.copy_into(&self.segment, self.reqsb.memory(), at as usize);
        let sources = self.objects.reqsb;
        Way {
            // Bytes that the interface has copied need no chunk, and their ACK frees none.
            id: if volatile { Id::Rar } else { Id::ReqSb },
            md: if volatile { sources.volatile } else { sources.quiet },
            offset: u64::from(at),
            number: chunk,
            sends: false,
            then: if volatile {
                Then::FreeBounce(chunk)
            } else {
                Then::Nothing
            },
        }
    }

    fn start_get(
        &mut self,
        op: u16,
        into: &Destination,
        from: Remote,
        length: u64,
    ) -> Result<Try<()>, AmError> {
        self.allowed(from, length)?;
        let process = match self.ready(from.rank)? {
            Try::Done(process) => process,
            Try::Stalled(stall) => return Ok(Try::Stalled(stall)),
        };
        let (id, piece, number) = match self.get_way(into, length)? {
            Try::Done(way) => way,
            Try::Stalled(stall) => return Ok(Try::Stalled(stall)),
        };
        let _ = self.tickets.take(1);
        self.ops.get_begun(op, from.rank, length);
        self.stats.one_sided[1] += 1;
        let one = |id, bounce| OneSided {
            id,
            kind: Kind::Get,
            op: self.ops.reference(op),
            bounce,
        };
        let bounce = if id == Id::ReqSb { piece.offset as u32 } else { 0 };
        let get = Get {
            into: piece,
            length,
            target: Target {
                process,
                pt_index: RAR_INDEX,
                match_bits: one(Id::Rar, bounce).bits(),
                remote_offset: from.offset,
            },
            user_ptr: one(id, number).bits(),
        };
        self.begin_get(&get);
        Ok(Try::Done(()))
    }

    /// Chooses where the bytes of a get land.
    fn get_way(&mut self, into: &Destination, length: u64) -> Result<Try<(Id, Piece, u32)>, AmError> {
        let memory = match into {
            Destination::Segment { offset } => {
                reaches(self.me, *offset, length, self.segment.len() as u64)?;
                self.stats.ways[0] += 1;
                let md = self.objects.segment.quiet;
                return Ok(Try::Done((Id::RarSrc, Piece { md, offset: *offset }, 0)));
            }
            Destination::Memory(memory) => memory,
        };
        if length > memory.len() as u64 {
            return Err(too_long(
                "a get",
                length,
                memory.len() as u64,
                "the destination's length",
            ));
        }
        if length <= self.settings.get_bounce_limit() as u64
            && let Some(chunk) = self.reqsb.take()
        {
            self.stats.ways[1] += 1;
            if let Some(slot) = self.uses.get_mut(chunk as usize) {
                *slot = ChunkUse::Get(memory.part(0, length as usize));
            }
            let md = self.objects.reqsb.quiet;
            let offset = u64::from(self.reqsb.offset(chunk));
            return Ok(Try::Done((Id::ReqSb, Piece { md, offset }, chunk)));
        }
        let Some(number) = self.temporaries.take() else {
            return Ok(self.stall(Stall::Temporary));
        };
        let Some(md) = self.bind(number, memory.clone(), MdOptions::NONE) else {
            self.health()?;
            return Ok(self.stall(Stall::Temporary));
        };
        self.stats.ways[2] += 1;
        Ok(Try::Done((Id::Temporary, Piece { md, offset: 0 }, number)))
    }

    fn allowed(&self, to: Remote, length: u64) -> Result<(), AmError> {
        self.reachable(to.rank)?;
        reaches(to.rank, to.offset, length, self.segment_of(to.rank)?.size)?;
        if length > self.objects.most {
            return Err(too_long(
                "a put or get",
                length,
                self.objects.most,
                "msg_size of the interface",
            ));
        }
        Ok(())
    }

    /// The process of a rank, if a ticket is free and the interface has room for it.
    #[inline]
    fn ready(&mut self, rank: u32) -> Result<Try<Process>, AmError> {
        let size = self.size();
        let process = self
            .ranks
            .process(rank)
            .ok_or(AmError::NoSuchRank { rank, size })?;
        if self.is_full(process) {
            return Ok(self.stall(Stall::Interface));
        }
        if self.tickets.free() == 0 {
            return Ok(self.stall(Stall::Tickets));
        }
        Ok(Try::Done(process))
    }
}

/// The offset of the chunk, as it is in the match bits.
const fn bounce_offset(way: &Way) -> u32 {
    match way.id {
        Id::ReqSb => way.offset as u32,
        _ => 0,
    }
}
