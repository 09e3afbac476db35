//! What only transfers, layouts and waiting sends need of a request.

use doorbell_matching::UnexpectedHandle;

use crate::checksum::Checksums;
use crate::request::{Memory, Multi, OneSided, Pipeline, Progress};
use crate::restart::Handshake;

/// The longer part of a request, beside its slot.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) memory: Memory,
    pub(crate) progress: Progress,
    pub(crate) one_sided: OneSided,
    pub(crate) multi: Multi,
    pub(crate) checksums: Checksums,
    pub(crate) handshake: Handshake,
    pub(crate) pipeline: Pipeline,
    /// The request at the other side.
    remote_request: u64,
    /// Receive: the immediate data of the message, where its slot notes that it has some.
    pub(super) data: u64,
    /// Sequence number of the message.
    seq: u32,
    /// Send: it was counted as one for which the peer's window was full.
    held_back: bool,
    /// Send to ourselves that waits: its place in matching.
    kept: Option<UnexpectedHandle>,
}

impl Record {
    /// Makes it ready for the next request; keeps the memory of lists.
    pub(super) fn reset(&mut self) {
        self.progress.reset();
        self.handshake.reset();
        *self = Self {
            progress: std::mem::take(&mut self.progress),
            handshake: std::mem::take(&mut self.handshake),
            ..Self::default()
        };
    }

    /// The request at the other side; zero while it is not known.
    pub(crate) fn remote_request(&self) -> u64 {
        self.remote_request
    }

    /// Notes the request at the other side.
    pub(crate) fn set_remote_request(&mut self, request: u64) {
        self.remote_request = request;
    }

    /// Sequence number of the message.
    pub(crate) fn seq(&self) -> u32 {
        self.seq
    }

    /// Notes the sequence number of the message.
    pub(crate) fn set_seq(&mut self, seq: u32) {
        self.seq = seq;
    }

    /// The window is full for this send. Returns whether that is counted already.
    pub(crate) fn hold_back(&mut self) -> bool {
        std::mem::replace(&mut self.held_back, true)
    }

    /// Notes the place in matching of a send to ourselves that waits.
    pub(crate) fn keep(&mut self, place: UnexpectedHandle) {
        self.kept = Some(place);
    }

    /// Takes the place in matching of a send to ourselves that waits.
    pub(crate) fn take_kept(&mut self) -> Option<UnexpectedHandle> {
        self.kept.take()
    }
}
