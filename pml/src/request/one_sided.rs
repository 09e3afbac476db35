//! One-sided access in a transfer: exposed memory, and the operation under way.

use doorbell_fabric::message::{OpId, Remote, RemoteKey};

use crate::rails::RailId;
use crate::request::Outcome;

/// One-sided access in a transfer.
#[derive(Debug)]
pub(crate) struct OneSided {
    /// The rail that it uses; none, when the announcement of exposed memory was given back.
    rail: RailId,
    /// The sender's or receiver's exposed memory, starting at `remote_at`.
    remote: Option<Remote>,
    remote_at: u64,
    /// Receive: the sender was invited to write.
    invited: bool,
    /// Our own exposed memory.
    exposed: Option<RemoteKey>,
    /// The operation under way, and its bytes.
    operation: Option<OpId>,
    bytes: u64,
    /// How the request is to end when the operation has ended.
    doomed: Option<Outcome>,
}

impl Default for OneSided {
    fn default() -> Self {
        Self {
            rail: RailId::NONE,
            remote: None,
            remote_at: 0,
            invited: false,
            exposed: None,
            operation: None,
            bytes: 0,
            doomed: None,
        }
    }
}

impl OneSided {
    /// The rail that is used.
    pub(crate) fn rail(&self) -> RailId {
        self.rail
    }

    /// Notes the rail that is used, or [`RailId::NONE`].
    pub(crate) fn set_rail(&mut self, rail: RailId) {
        self.rail = rail;
    }

    // Our own memory.

    /// Whether our memory is exposed.
    pub(crate) fn is_exposed(&self) -> bool {
        self.exposed.is_some()
    }

    /// Our memory is exposed over a rail.
    pub(crate) fn expose(&mut self, rail: RailId, remote: Remote) {
        self.exposed = Some(RemoteKey(remote.key.get()));
        self.remote = Some(remote);
        self.rail = rail;
    }

    /// Takes the key of our exposed memory, which is to be revoked.
    pub(crate) fn withdraw(&mut self) -> Option<(RailId, RemoteKey)> {
        self.exposed.take().map(|key| (self.rail, key))
    }

    /// Notes that the sender is invited to write what starts at this byte of the message.
    pub(crate) fn start_at(&mut self, at: u64) {
        self.remote_at = at;
    }

    /// The invitation to write has been sent, or, with `false`, does not hold any more.
    pub(crate) fn set_invited(&mut self, invited: bool) {
        self.invited = invited;
    }

    /// Whether the sender was invited to write.
    pub(crate) fn has_invited(&self) -> bool {
        self.invited
    }

    // Exposed memory, ours or the peer's.

    /// The exposed memory.
    pub(crate) fn remote(&self) -> Option<Remote> {
        self.remote
    }

    /// Notes the peer's exposed memory, or that there is none any more.
    pub(crate) fn set_remote(&mut self, remote: Option<Remote>) {
        self.remote = remote;
    }

    /// We are invited to write into the peer's memory, which is for the message from this byte on.
    pub(crate) fn invite(&mut self, rail: RailId, remote: Remote, at: u64) {
        self.rail = rail;
        self.remote = Some(remote);
        self.remote_at = at;
    }

    /// Forgets the peer's memory. Returns the byte of the message that it was for first.
    pub(crate) fn refuse(&mut self) -> u64 {
        self.remote = None;
        self.remote_at
    }

    /// The part of the peer's memory that `length` bytes of the message from `at` on are written to.
    pub(crate) fn part(&self, at: u64, length: u64) -> Option<Remote> {
        self.remote?.part(at - self.remote_at, length)
    }

    // Operations.

    /// An operation begins.
    pub(crate) fn begin(&mut self, operation: OpId, bytes: u64) {
        self.operation = Some(operation);
        self.bytes = bytes;
    }

    /// Whether an operation is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.operation.is_some()
    }

    /// The operation has ended. Returns its bytes.
    pub(crate) fn end(&mut self) -> u64 {
        self.operation = None;
        self.bytes
    }

    /// The request is to end in this way when the operation has ended.
    pub(crate) fn doom(&mut self, outcome: Outcome) {
        self.doomed = Some(outcome);
    }

    /// Returns how the request is to end, now that the operation has ended; `None`: it goes on.
    pub(crate) fn doomed(&self) -> Option<Outcome> {
        self.doomed
    }
}
