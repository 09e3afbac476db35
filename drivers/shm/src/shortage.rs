//! Descriptors that are lacking: while many processes meet at once, each has some more open for a moment than
//! it needs later, and may reach its limit.
//!
//! Nothing is lost by that. A connection that cannot be accepted stays in the backlog, a message whose
//! descriptors find no room stays in its socket, and a lane that cannot be made or dialled is tried again. A
//! peer for which there were none for [`SHORTAGE_MAX`], while none was met either, is lost.
//!
//! A few descriptors are kept for what a message of the handshake carries, which takes none in the end.
//!
//! If each process gave all its descriptors to lanes that others have to accept, none could accept any. So a
//! lane is made only while enough are left to accept what comes meanwhile.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::message::{PeerIndex, Refused};
use doorbell_fabric::time::Time;
use rustix::event::epoll::{self, EventFlags};
use rustix::process::{Resource, getrlimit};

use crate::connect::is_out_of_files;
use crate::handshake::{LISTENER_FLAGS, Token};
use crate::rail::{Peer, ShmRail};
use crate::tx::Tx;

/// How long descriptors may be lacking before a peer that needs them is lost.
pub(crate) const SHORTAGE_MAX: Duration = Duration::from_secs(10);
/// Pause between attempts that take a descriptor, while there are none.
const PAUSE: Duration = Duration::from_millis(1);

/// Descriptors that are kept: as many as a welcome carries, which carries the most.
const KEPT: usize = 3;
/// Descriptors that a lane leaves: for its own socket, and to accept one, its hello's two or the object that
/// answers it.
const LEFT: u64 = 4;

/// What the rail keeps of a shortage.
#[derive(Default)]
pub(crate) struct Shortage {
    /// No attempt is made before.
    until: Time,
    /// When a peer was met the last time.
    met_at: Time,
    /// The limit of open files when it was last looked up.
    limit: u64,
    /// Descriptors that are kept, of nothing in particular.
    kept: Vec<OwnedFd>,
    /// The listener is muted in the epoll set: callers that cannot be accepted would wake every sleep.
    is_muted: bool,
}

/// A connection whose hello has not been received.
pub(crate) struct AwaitingHello {
    pub(crate) socket: CloforkFd,
    /// Since when there are no descriptors for its hello.
    pub(crate) short_since: Option<Time>,
}

impl ShmRail {
    /// Whether there was no descriptor a moment ago.
    pub(crate) fn is_short(&self) -> bool {
        self.now < self.shortage.until
    }

    /// Keeps descriptors for later, as far as there are any.
    pub(crate) fn keep_files(&mut self) {
        while self.shortage.kept.len() < KEPT
            && let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(&self.epoll, 0)
        {
            self.shortage.kept.push(copy);
        }
    }

    /// Does something that takes descriptors for a moment; if there are none, with those that are kept.
    pub(crate) fn with_kept<T>(
        &mut self,
        work: impl Fn(&Self) -> Result<T, RailError>,
    ) -> Result<T, RailError> {
        let done = work(self);
        if !done.as_ref().is_err_and(is_out_of_files) || self.shortage.kept.is_empty() {
            return done;
        }
        self.shortage.kept.clear();
        let done = work(self);
        self.keep_files();
        done
    }

    /// Whether something waits until there are descriptors.
    pub(crate) fn is_short_of_files(&self) -> bool {
        self.shortage.is_muted
            || !self.deferred.is_empty()
            || self.awaiting_hello.iter().any(|one| one.short_since.is_some())
            || self
                .peers
                .iter()
                .any(|peer| peer.short_since.is_some() && peer.down.is_none())
    }

    /// Notes that there is no descriptor.
    #[cold]
    pub(crate) fn pause(&mut self) {
        self.shortage.until = self.now + PAUSE;
    }

    /// Whether a shortage has lasted too long.
    pub(crate) fn has_lasted(&self, since: Time) -> bool {
        self.now.since(since.max(self.shortage.met_at)) >= SHORTAGE_MAX
    }

    /// Notes that a peer waits for a descriptor; returns whether it has waited too long.
    #[cold]
    pub(crate) fn waits_too_long(&mut self, index: u32) -> bool {
        let since = *self.peers[index as usize].short_since.get_or_insert(self.now);
        let lasting = self.has_lasted(since);
        self.peers[index as usize].out_of_files |= lasting;
        lasting
    }

    /// Notes that a peer has the descriptors that it needs now.
    pub(crate) fn has_files(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        (peer.short_since, peer.out_of_files) = (None, false);
    }

    /// Notes that a lane of a peer is there, so that descriptors get free.
    pub(crate) fn is_met(&mut self, index: u32) {
        self.has_files(index);
        self.shortage.met_at = self.now;
    }

    /// Whether a lane, whose descriptor is the last one that was opened, leaves enough. The system gives out
    /// the lowest free number, so that all below it are in use.
    pub(crate) fn leaves_enough(&mut self, lane: BorrowedFd<'_>) -> bool {
        let under_way = self
            .peers
            .iter_mut()
            .filter_map(Peer::tx_mut)
            .filter(|tx| tx.is_under_way())
            .count() as u64;
        let needed = LEFT + if under_way > 0 { LEFT + under_way } else { 0 };
        let number = lane.as_raw_fd().unsigned_abs().into();
        let has = |limit: u64| limit.saturating_sub(number) > needed;
        if !has(self.shortage.limit) {
            self.shortage.limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        }
        has(self.shortage.limit)
    }

    /// Whether our lane to a peer is made and not accepted yet.
    pub fn is_connecting(&self, peer: PeerIndex) -> bool {
        let tx = self.peers.get(peer.index()).and_then(|peer| peer.tx.as_deref());
        tx.is_some_and(Tx::is_under_way)
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
