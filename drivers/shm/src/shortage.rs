//! Descriptors that are lacking: while many processes meet at once, each has some more open for a moment than
//! it needs later, and may reach its limit.
//!
//! Nothing is lost by that. A connection that cannot be accepted stays in the backlog, a message whose
//! descriptors find no room stays in its socket, and a lane that cannot be made or dialled is tried again. A
//! peer for which there were none for [`SHORTAGE_MAX`] is lost.

use std::os::fd::AsFd as _;
use std::time::Duration;

use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_fabric::time::Time;
use rustix::event::epoll::{self, EventFlags};

use crate::handshake::{LISTENER_FLAGS, Token};
use crate::rail::ShmRail;

/// How long descriptors may be lacking before a peer that needs them is lost.
pub(crate) const SHORTAGE_MAX: Duration = Duration::from_secs(10);
/// Pause between attempts that take a descriptor, while there are none.
const PAUSE: Duration = Duration::from_millis(1);

/// What the rail keeps of a shortage.
#[derive(Default)]
pub(crate) struct Shortage {
    /// No attempt is made before.
    until: Time,
    /// The listener is muted in the epoll set: callers that cannot be accepted would wake every sleep.
    is_muted: bool,
}

/// A connection whose hello has not been received.
pub(crate) struct AwaitingHello {
    pub(crate) socket: CloforkFd,
    /// Since when there are no descriptors for its hello.
    pub(crate) short_since: Option<Time>,
}

/// Notes a shortage; returns whether it has lasted too long.
pub(crate) fn has_lasted(since: &mut Option<Time>, now: Time) -> bool {
    now.since(*since.get_or_insert(now)) >= SHORTAGE_MAX
}

impl ShmRail {
    /// Whether there was no descriptor a moment ago.
    pub(crate) fn is_short(&self) -> bool {
        self.now < self.shortage.until
    }

    /// Notes that there is no descriptor.
    #[cold]
    pub(crate) fn pause(&mut self) {
        self.shortage.until = self.now + PAUSE;
    }

    /// Notes that a peer waits for a descriptor; returns whether it has waited too long.
    #[cold]
    pub(crate) fn waits_too_long(&mut self, index: u32) -> bool {
        let peer = &mut self.peers[index as usize];
        let lasting = has_lasted(&mut peer.short_since, self.now);
        peer.out_of_files |= lasting;
        lasting
    }

    /// A lane cannot be made at the moment; `None` if that has lasted too long.
    #[cold]
    pub(crate) fn try_later(&mut self, index: u32) -> Option<Refused> {
        (!self.waits_too_long(index)).then_some(Refused::Full)
    }

    /// Notes that a caller cannot be accepted.
    #[cold]
    pub(crate) fn mute_listener(&mut self) {
        self.pause();
        let data = Token::Listener.data();
        let muted = epoll::modify(&self.epoll, self.listener.as_fd(), data, EventFlags::empty());
        self.shortage.is_muted |= muted.is_ok();
    }

    /// Accepts callers again, when that is due.
    pub(crate) fn unmute_listener(&mut self) {
        if self.shortage.is_muted && !self.is_short() {
            let data = Token::Listener.data();
            let heard = epoll::modify(&self.epoll, self.listener.as_fd(), data, LISTENER_FLAGS);
            self.shortage.is_muted = heard.is_err();
        }
    }

    /// Whether the last peer of this number was lost because this process had no descriptor left for it.
    pub fn was_out_of_files(&self, peer: PeerIndex) -> bool {
        self.peers.get(peer.index()).is_some_and(|peer| peer.out_of_files)
    }

    /// Returns how many peers are open that have no connection: each of them will take descriptors.
    pub fn unconnected(&self) -> usize {
        let index = |at| PeerIndex(at as u32);
        (0..self.peers.len())
            .filter(|&at| !self.is_connected(index(at)) && !self.peers[at].is_over())
            .count()
    }
}
