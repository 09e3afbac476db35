//! Hellos of peers that are not open, kept with their lanes until the peer is opened.
//!
//! A hello is sent once, so its sender is reported once; a process that gives its lane up and connects again
//! is reported again. Its messages stay in the lane meanwhile, and its socket reports our end to it as that
//! of any receiver.

use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::message::{Caller, Incarnation};

use crate::connect::ReceivedHello;
use crate::handshake::PENDING_MAX;
use crate::wire::Id;

/// A hello of a peer that is not open.
struct PendingPeer {
    greeting: ReceivedHello,
    socket: CloforkFd,
    reported: bool,
}

impl PendingPeer {
    fn is(&self, id: Id, incarnation: Incarnation) -> bool {
        identity(&self.greeting) == (id, incarnation)
    }
}

/// Hellos of peers that are not open: at most one of each process, and [`PENDING_MAX`] in all.
#[derive(Default)]
pub(crate) struct PendingPeers {
    waiting: Vec<PendingPeer>,
    unreported: usize,
}

impl PendingPeers {
    /// Keeps the newest hello of a process, unless it was given up again. One that is not to be reported is
    /// kept for [`PendingPeers::report`]. Returns how many hellos were dropped for it, itself included.
    pub(crate) fn keep(&mut self, greeting: ReceivedHello, socket: CloforkFd, reported: bool) -> u64 {
        let (id, incarnation) = identity(&greeting);
        let age = |greeting: &ReceivedHello| (greeting.hello.term.get(), greeting.hello.epoch.get());
        let (ours, before) = (age(&greeting), self.waiting.len());
        self.waiting
            .retain(|one| !one.is(id, incarnation) || age(&one.greeting) > ours);
        let newer = self.waiting.iter().any(|one| one.is(id, incarnation));
        if self.waiting.len() >= PENDING_MAX {
            self.waiting.retain(|one| !one.greeting.is_severed());
        }
        let mut refused = (before - self.waiting.len()) as u64;
        let full = self.waiting.len() >= PENDING_MAX;
        if newer || full || greeting.is_severed() {
            refused += 1;
        } else {
            self.waiting.push(PendingPeer {
                greeting,
                socket,
                reported,
            });
        }
        self.count();
        refused
    }

    /// Removes and returns the hello of a peer that has been opened.
    pub(crate) fn take(&mut self, id: Id, incarnation: Incarnation) -> Option<(ReceivedHello, CloforkFd)> {
        let at = self.waiting.iter().position(|one| one.is(id, incarnation))?;
        let PendingPeer { greeting, socket, .. } = self.waiting.remove(at);
        self.count();
        Some((greeting, socket))
    }

    /// The oldest peer that has not been reported yet.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Caller> {
        if self.unreported == 0 {
            return None;
        }
        self.report_next()
    }

    /// Reports a peer that was open until now, if its hello waits.
    pub(crate) fn report(&mut self, id: Id, incarnation: Incarnation) {
        for one in self.waiting.iter_mut().filter(|one| one.is(id, incarnation)) {
            one.reported = false;
        }
        self.count();
    }

    #[cold]
    fn report_next(&mut self) -> Option<Caller> {
        let peer = self.waiting.iter_mut().find(|one| !one.reported)?;
        peer.reported = true;
        self.unreported -= 1;
        let (id, incarnation) = identity(&peer.greeting);
        Some(caller_id(id, incarnation))
    }

    fn count(&mut self) {
        self.unreported = self.waiting.iter().filter(|one| !one.reported).count();
    }

    /// Drops all hellos; their senders find their sockets closed.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
impl PendingPeers {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn identity(greeting: &ReceivedHello) -> (Id, Incarnation) {
    let hello = &greeting.hello;
    (hello.id, Incarnation(hello.incarnation.get()))
}

/// Combines the rail's id and incarnation, both of which are random.
pub(crate) fn caller_id(id: Id, incarnation: Incarnation) -> Caller {
    Caller(u128::from_le_bytes(id) ^ u128::from(incarnation.0))
}
