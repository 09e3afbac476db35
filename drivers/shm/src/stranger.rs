//! Who called and is not open: hellos that wait, with the lanes that they passed, until their peer is opened.
//!
//! A hello is sent once, so the name of its sender is told once; a process that gives its lane up and calls anew is told
//! anew. What it puts into the lane stays there meanwhile, and its socket tells it of our end as that of any receiver.

use std::os::fd::OwnedFd;

use doorbell_fabric::message::{Caller, Incarnation};

use crate::connect::Greeting;
use crate::contact::MOST_WAITING;
use crate::rx::Rx;
use crate::wire::Id;

/// A hello of a peer that is not open.
struct Stranger {
    greeting: Greeting,
    socket: OwnedFd,
    told: bool,
}

impl Stranger {
    fn is(&self, id: Id, incarnation: Incarnation) -> bool {
        who(&self.greeting) == (id, incarnation)
    }
}

/// Hellos of peers that are not open, of each process at most one, and [`MOST_WAITING`] in all.
#[derive(Default)]
pub(crate) struct Strangers {
    waiting: Vec<Stranger>,
    untold: usize,
}

impl Strangers {
    /// Keeps a hello: of one process the newest, and none that was given up again. Returns how many hellos were let go
    /// of for it, itself included.
    pub(crate) fn keep(&mut self, greeting: Greeting, socket: OwnedFd) -> u64 {
        let (id, incarnation) = who(&greeting);
        let life = greeting.hello.life.get();
        let before = self.waiting.len();
        self.waiting
            .retain(|one| !one.is(id, incarnation) || one.greeting.hello.life.get() > life);
        let newer = self.waiting.iter().any(|one| one.is(id, incarnation));
        if self.waiting.len() >= MOST_WAITING {
            self.waiting.retain(|one| !Rx::is_severed(&one.greeting.lane));
        }
        let mut refused = (before - self.waiting.len()) as u64;
        let full = self.waiting.len() >= MOST_WAITING;
        if newer || full || Rx::is_severed(&greeting.lane) {
            refused += 1;
        } else {
            self.waiting.push(Stranger {
                greeting,
                socket,
                told: false,
            });
        }
        self.count();
        refused
    }

    /// The hello of a peer that is open now.
    pub(crate) fn take(&mut self, id: Id, incarnation: Incarnation) -> Option<(Greeting, OwnedFd)> {
        let at = self.waiting.iter().position(|one| one.is(id, incarnation))?;
        let Stranger { greeting, socket, .. } = self.waiting.remove(at);
        self.count();
        Some((greeting, socket))
    }

    /// The next one that was not told yet, oldest first.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Caller> {
        if self.untold == 0 {
            return None;
        }
        self.tell()
    }

    #[cold]
    fn tell(&mut self) -> Option<Caller> {
        let stranger = self.waiting.iter_mut().find(|one| !one.told)?;
        stranger.told = true;
        self.untold -= 1;
        let (id, incarnation) = who(&stranger.greeting);
        Some(name(id, incarnation))
    }

    fn count(&mut self) {
        self.untold = self.waiting.iter().filter(|one| !one.told).count();
    }

    /// Lets go of all: who waits learns it from its socket.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
impl Strangers {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn who(greeting: &Greeting) -> (Id, Incarnation) {
    let hello = &greeting.hello;
    (hello.id, Incarnation(hello.incarnation.get()))
}

/// Both are random: the one names the rail, the other its life.
pub(crate) fn name(id: Id, incarnation: Incarnation) -> Caller {
    Caller(u128::from_le_bytes(id) ^ u128::from(incarnation.0))
}
