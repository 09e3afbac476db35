//! Who called and is not open: hellos that wait, with the lanes that they passed, until their peer is opened.
//!
//! A hello is sent once, so the name of its sender is told once; a process that gives its lane up and calls anew is told
//! anew. What it puts into the lane stays there meanwhile, and its socket tells it of our end as that of any receiver.

use std::os::fd::OwnedFd;

use doorbell_fabric::message::{Caller, Incarnation};

use crate::connect::ReceivedHello;
use crate::handshake::PENDING_MAX;
use crate::rx::Rx;
use crate::wire::Id;

/// A hello of a peer that is not open.
struct PendingPeer {
    greeting: ReceivedHello,
    socket: OwnedFd,
    reported: bool,
}

impl PendingPeer {
    fn is(&self, id: Id, incarnation: Incarnation) -> bool {
        identity(&self.greeting) == (id, incarnation)
    }
}

/// Hellos of peers that are not open, of each process at most one, and [`PENDING_MAX`] in all.
#[derive(Default)]
pub(crate) struct PendingPeers {
    waiting: Vec<PendingPeer>,
    unreported: usize,
}

impl PendingPeers {
    /// Keeps a hello: of one process the newest, and none that was given up again. Returns how many hellos were let go
    /// of for it, itself included.
    pub(crate) fn keep(&mut self, greeting: ReceivedHello, socket: OwnedFd) -> u64 {
        let (id, incarnation) = identity(&greeting);
        let life = greeting.hello.epoch.get();
        let before = self.waiting.len();
        self.waiting
            .retain(|one| !one.is(id, incarnation) || one.greeting.hello.epoch.get() > life);
        let newer = self.waiting.iter().any(|one| one.is(id, incarnation));
        if self.waiting.len() >= PENDING_MAX {
            self.waiting.retain(|one| !Rx::is_severed(&one.greeting.lane));
        }
        let mut refused = (before - self.waiting.len()) as u64;
        let full = self.waiting.len() >= PENDING_MAX;
        if newer || full || Rx::is_severed(&greeting.lane) {
            refused += 1;
        } else {
            self.waiting.push(PendingPeer {
                greeting,
                socket,
                reported: false,
            });
        }
        self.count();
        refused
    }

    /// The hello of a peer that is open now.
    pub(crate) fn take(&mut self, id: Id, incarnation: Incarnation) -> Option<(ReceivedHello, OwnedFd)> {
        let at = self.waiting.iter().position(|one| one.is(id, incarnation))?;
        let PendingPeer { greeting, socket, .. } = self.waiting.remove(at);
        self.count();
        Some((greeting, socket))
    }

    /// The next one that was not told yet, oldest first.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Caller> {
        if self.unreported == 0 {
            return None;
        }
        self.emit()
    }

    #[cold]
    fn emit(&mut self) -> Option<Caller> {
        let stranger = self.waiting.iter_mut().find(|one| !one.reported)?;
        stranger.reported = true;
        self.unreported -= 1;
        let (id, incarnation) = identity(&stranger.greeting);
        Some(name(id, incarnation))
    }

    fn count(&mut self) {
        self.unreported = self.waiting.iter().filter(|one| !one.reported).count();
    }

    /// Lets go of all: who waits learns it from its socket.
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

/// Both are random: the one names the rail, the other its life.
pub(crate) fn name(id: Id, incarnation: Incarnation) -> Caller {
    Caller(u128::from_le_bytes(id) ^ u128::from(incarnation.0))
}
