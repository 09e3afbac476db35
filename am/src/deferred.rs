//! Operations that the interface has no room for: kept in order, and sent before later ones to the same
//! process.

use doorbell_fabric::ni::{Get, Ni, NiError, NiFail, Process, Put};

use crate::conduit::Conduit;
use crate::error::Fault;
use crate::match_bits::{Id, OpRef, SysKind, SysMessage};
use crate::ops::Ended;

/// An operation that the interface had no room for: it is sent before all later ones to that process.
#[derive(Debug)]
pub(crate) struct Deferred {
    begin: Begin,
    then: Then,
}

/// An operation that waits for room.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begin {
    Put(Put),
    Get(Get),
}

impl Deferred {
    /// The process that it goes to.
    pub(crate) const fn process(&self) -> Process {
        self.begin.process()
    }

    /// Whether it is a system message of this kind.
    pub(crate) fn is_system(&self, kind: SysKind) -> bool {
        match &self.begin {
            Begin::Put(put) if put.user_ptr == Id::Sys as u64 => {
                SysMessage::of(put.target.match_bits, put.hdr_data)
                    .is_some_and(|message| message.kind == kind)
            }
            _ => false,
        }
    }
}

impl Begin {
    /// The process that it goes to.
    const fn process(&self) -> Process {
        match self {
            Self::Put(put) => put.target.process,
            Self::Get(get) => get.target.process,
        }
    }
}

/// What becomes free when the interface has taken an operation that no event ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    FreeReply(u32),
    FreeBounce(u32),
    /// The source of this operation, which is copied when it is sent: the caller that defers it has counted
    /// it as in use.
    FreeSource(OpRef),
}

impl<N: Ni> Conduit<N> {
    /// Starts a put, or keeps it for later; returns whether it was started now.
    #[inline]
    pub(crate) fn begin_put(&mut self, put: &Put, then: Then) -> bool {
        self.begun = true;
        if self.is_full(put.target.process) {
            self.defer(Begin::Put(*put), then);
            return false;
        }
        match self.ni.put(put) {
            Ok(()) => true,
            Err(error) => {
                self.not_begun(Begin::Put(*put), then, error);
                false
            }
        }
    }

    /// Starts a get, or keeps it for later.
    #[inline]
    pub(crate) fn begin_get(&mut self, get: &Get) {
        self.begun = true;
        if self.is_full(get.target.process) {
            return self.defer(Begin::Get(*get), Then::Nothing);
        }
        if let Err(error) = self.ni.get(get) {
            self.not_begun(Begin::Get(*get), Then::Nothing, error);
        }
    }

    #[cold]
    fn not_begun(&mut self, begin: Begin, then: Then, error: NiError) {
        if error == NiError::Full {
            self.defer(begin, then);
        } else {
            self.fail(Fault::Interface(error));
        }
    }

    fn try_begin(&mut self, begin: &Begin) -> Result<(), NiError> {
        match begin {
            Begin::Put(put) => self.ni.put(put),
            Begin::Get(get) => self.ni.get(get),
        }
    }

    #[cold]
    fn defer(&mut self, begin: Begin, then: Then) {
        self.stats.deferred += 1;
        self.deferred.push_back(Deferred { begin, then });
    }

    /// Sends deferred operations, in order for each process: one without room delays no other.
    #[cold]
    pub(crate) fn send_deferred(&mut self) -> usize {
        let mut sent = 0;
        self.full.clear();
        for _ in 0..self.deferred.len() {
            let Some(first) = self.deferred.pop_front() else {
                break;
            };
            let process = first.begin.process();
            if self.full.contains(&process) {
                self.deferred.push_back(first);
                continue;
            }
            match self.try_begin(&first.begin) {
                Ok(()) => {}
                Err(NiError::Full) => {
                    self.full.push(process);
                    self.deferred.push_back(first);
                    continue;
                }
                Err(error) => self.fail(Fault::Interface(error)),
            }
            sent += 1;
            self.begun = true;
            match first.then {
                Then::Nothing => {}
                Then::FreeReply(chunk) => {
                    self.rplsb.give(chunk);
                    self.replies_under_way = self.replies_under_way.saturating_sub(1);
                }
                Then::FreeBounce(chunk) => self.free_chunk(chunk),
                Then::FreeSource(op) => {
                    self.ops.ended(op, Ended::Source, 0, NiFail::Ok);
                }
            }
        }
        sent
    }

    /// Whether something waits for this process to have room.
    #[inline]
    pub(crate) fn is_full(&self, process: Process) -> bool {
        !self.deferred.is_empty() && self.deferred.iter().any(|waits| waits.begin.process() == process)
    }
}
