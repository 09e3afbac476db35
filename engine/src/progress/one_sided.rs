//! One-sided operations for foreign front ends, and the one queue of their completions.

use std::collections::HashMap;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Access, Exposure, Message as _, OpError, OpId, Refused, Remote};
use doorbell_fabric::rail::Rail as _;
use doorbell_job::connect::PeerPath;
use doorbell_job::error::{Awaited, Error, Peers};
use doorbell_job::rails::AnyRail;
use doorbell_job::types::Status;
use doorbell_pml::{Delivery, LostReason, RailId, Rank, RequestId};

use super::core::Core;

/// A completion of the raw interface.
#[derive(Debug)]
pub enum Completion {
    /// A send or receive. A send that returned [`Sent::Done`](doorbell_pml::Sent::Done) has none.
    Request {
        /// The number of the request.
        id: RequestId,
        /// Its status, or the error.
        outcome: Result<Status, Error>,
    },
    /// A message that a multi-receive has received; the buffer itself ends as a [`Completion::Request`].
    Delivery(Delivery),
    /// A one-sided operation or a fence. Atomics return the old value, everything else zero.
    Operation {
        /// The number of the operation.
        id: u64,
        /// The old value, or the error.
        outcome: Result<u64, Error>,
    },
}

/// Memory of one rank that others may access, to be sent to them. It is valid on one rail of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The owner's rail, by its number there.
    pub rail: u16,
    /// The memory, as that rail addresses it.
    pub remote: Remote,
}

/// The one-sided operations in progress.
#[derive(Default)]
pub(crate) struct OneSided {
    last: u64,
    open: HashMap<u64, Operation>,
}

struct Operation {
    name: &'static str,
    peer: u32,
}

/// The bit that marks operations of front ends; the PML's own have it clear.
const FOREIGN: u64 = 1 << 63;

impl Core {
    /// Returns the next completion of the raw interface.
    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        if let Some(found) = self.watch.found.take() {
            return Some(found);
        }
        if let Some(delivery) = self.pml.next_delivery() {
            return Some(Completion::Delivery(delivery));
        }
        let queued = self.raw_completions.pop_front();
        // The dedicated thread drains the PML's queue itself, since its slots complete through it, too.
        let queued = if self.dedicated {
            queued
        } else {
            queued.or_else(|| self.pml.next_completion())
        };
        if let Some(id) = queued {
            let outcome = self.pml.test(id)?;
            return Some(Completion::Request {
                id,
                outcome: outcome.map(Into::into).map_err(|error| self.explained(error)),
            });
        }
        let (_, op, outcome) = self.pml.next_operation()?;
        let operation = self.one_sided.open.remove(&op.0);
        let outcome = outcome.map_err(|error| {
            let (what, peer) =
                operation.map_or(("operation", 0), |operation| (operation.name, operation.peer));
            Error::OneSided {
                what,
                peer,
                reason: text(error),
            }
        });
        Some(Completion::Operation {
            id: op.0 & !FOREIGN,
            outcome,
        })
    }

    /// Exposes memory to rank `to`, or to all ranks for `None`.
    pub(crate) fn expose(
        &mut self,
        memory: Exposure,
        access: Access,
        to: Option<u32>,
    ) -> Result<Window, Error> {
        let paths: Vec<Option<PeerPath>> = match to {
            Some(rank) => self.paths_to(rank)?.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        let mut full = false;
        let rails: Vec<RailId> = self.pml.rails().map(|(id, _)| id).collect();
        for path in paths {
            for id in rails
                .iter()
                .copied()
                .filter(|id| path.is_none_or(|path| path.rail == *id))
            {
                let Some(rail) = self.pml.rail_mut(id) else {
                    continue;
                };
                match rail.expose(memory.clone(), access, path.map(|path| path.peer)) {
                    Ok(remote) => return Ok(Window { rail: id.0, remote }),
                    Err(refused) => full |= refused == Refused::Full,
                }
            }
        }
        if full {
            return Err(Error::Full {
                what: "the rail's table of keys is full".to_owned(),
            });
        }
        Err(Error::Unsupported {
            what: "this kind of one-sided access",
            by: "any rail of this world".to_owned(),
        })
    }

    fn paths_to(&self, peer: u32) -> Result<&[PeerPath], Error> {
        if peer == self.rank {
            return Err(Error::Unsupported {
                what: "a one-sided operation on our own rank",
                by: "rails".to_owned(),
            });
        }
        let paths = self.paths.get(peer as usize).ok_or(Error::NoSuchRank {
            rank: peer,
            size: self.size,
        })?;
        Ok(paths)
    }

    /// Starts a one-sided operation over the rail whose other end is the peer's rail number `other`.
    pub(crate) fn start(
        &mut self,
        name: &'static str,
        peer: u32,
        other: u16,
        post: impl FnOnce(&mut AnyRail, PeerPath, OpId) -> Result<(), Refused>,
    ) -> Result<u64, Error> {
        if self.pml.is_unmet(Rank(peer)) {
            self.pml.want(Rank(peer));
            return Err(Error::Full {
                what: format!(
                    "rank {peer} is being connected for its first use: make progress, and start the {name} again"
                ),
            });
        }
        let path = self
            .paths_to(peer)?
            .iter()
            .copied()
            .find(|path| path.other == other);
        let path = path.ok_or_else(|| Error::NoRail {
            peer,
            reasons: format!("none of ours ends at its rail number {other}, to which the window belongs"),
        })?;
        let number = self.one_sided.last + 1;
        let op = OpId(number | FOREIGN);
        let rail = self.pml.rail_mut(path.rail).ok_or_else(|| Error::NoRail {
            peer,
            reasons: "the rail is gone".to_owned(),
        })?;
        let by = rail.name().to_string();
        match post(rail, path, op) {
            Ok(()) => {
                self.one_sided.last = number;
                self.one_sided.open.insert(op.0, Operation { name, peer });
                Ok(number)
            }
            Err(Refused::Full) => Err(Error::Full {
                what: format!("rail `{by}` has no room for another {name}"),
            }),
            Err(Refused::Unsupported | Refused::TooLong) => Err(Error::Unsupported {
                what: name,
                by: format!("rail `{by}`"),
            }),
            Err(Refused::PeerDown) => Err(Error::PeerLost {
                peer,
                why: format!("rail `{by}` reports it down"),
                what: format!("the {name} was not started"),
                recent: self.recent_of(&[peer]),
                remedy: LostReason::Peer(DownReason::Silent).advice(),
            }),
            Err(Refused::BadMemory) => Err(Error::Layout {
                what: format!("rail `{by}` does not know that memory"),
            }),
        }
    }

    /// Describes a wait for completions.
    pub(crate) fn awaited_completion(&self) -> Awaited {
        match self.one_sided.open.values().next() {
            Some(operation) => Awaited::OneSided {
                peer: operation.peer,
                name: operation.name,
            },
            None => Awaited::Requests {
                count: 1,
                peers: Peers::default(),
            },
        }
    }
}

fn text(error: OpError) -> String {
    match error {
        OpError::Denied => {
            "the target refused: the key is unknown or revoked, or the range or access is not allowed"
                .to_owned()
        }
        OpError::Withdrawn => "the target withdrew the memory meanwhile; the bytes mean nothing".to_owned(),
        OpError::NotDone => "the peer or rail went down before it was done".to_owned(),
        OpError::Indeterminate => {
            "the peer or rail went down, and it is unknown whether it was done".to_owned()
        }
        OpError::System(number) => std::io::Error::from_raw_os_error(number).to_string(),
    }
}
