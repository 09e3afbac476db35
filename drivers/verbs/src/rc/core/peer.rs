//! What the rail keeps of a peer.

use doorbell_fabric::event::Life;

use crate::cm::Size;
use crate::rc::link::Link;
use crate::rc::outbox::Outbox;

/// How far a peer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There was no connection yet, or one is being made.
    Fresh,
    /// There is one.
    Open,
    /// It is down.
    Down,
}

/// How a connection that is being made has come further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something has come over it: the other end is connected.
    Established,
    /// What proves that this size passes was acknowledged.
    Passed(Size),
    /// A message of the layer above has come: the other end is up.
    Heard,
}

/// What the rail keeps of a peer.
pub(crate) struct Peer {
    pub(crate) outbox: Option<Box<Outbox>>,
    pub(crate) link: Option<Box<Link>>,
    pub(crate) stage: Stage,
    /// Messages accepted for former connections, and the last that is known to be taken.
    pub(super) base: u64,
    pub(super) passed: u64,
    pub(crate) life: Life,
    pub(super) is_dirty: bool,
    pub(super) is_active: bool,
    pub(crate) is_owed: bool,
    pub(crate) is_wanted: bool,
    /// Whether the lists have room for it.
    pub(super) is_met: bool,
    /// Its number is free.
    pub(super) is_forgotten: bool,
    pub(crate) is_busy: bool,
    /// Its place among the connections that are up.
    pub(super) live_at: u32,
}

impl Peer {
    pub(super) fn new() -> Self {
        Self {
            outbox: None,
            link: None,
            stage: Stage::Fresh,
            base: 0,
            passed: 0,
            life: Life::FIRST,
            is_dirty: false,
            is_active: false,
            is_owed: false,
            is_wanted: false,
            is_met: false,
            is_forgotten: false,
            is_busy: false,
            live_at: u32::MAX,
        }
    }

    /// Whether something that was accepted for it was not posted.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.outbox.as_ref().is_some_and(|outbox| outbox.waits())
    }

    /// The numbers of the messages accepted over the present connection.
    #[inline]
    pub(crate) fn accepted(&self) -> u64 {
        self.outbox.as_ref().map_or(0, |outbox| outbox.accepted)
    }
}
