//! The receiving direction: a peer's lane to us.

use std::sync::Arc;

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::map::{Object, Protection};
use doorbell_ring::lane::{Consumer, Geometry};

use crate::map::{Sides, WordsOf, sides};
use crate::tx::{CLOSE_REASON, FRONT_WORDS, ring};
use crate::wakeup::HOT;

/// A peer's lane to us.
pub(crate) struct Rx {
    pub(crate) lane: Consumer,
    /// The words in front of the peer's lane, with its close reason.
    theirs: WordsOf,
    /// The words in front of our control block.
    ours: WordsOf,
    /// Its own, or that of our lane to the peer (`one_socket`).
    pub(crate) socket: Arc<CloforkFd>,
    /// The one that the peer is about to close.
    pub(crate) parting: Option<Arc<CloforkFd>>,
    /// The attention last set.
    pub(crate) attention: u64,
    /// Empty polls in a row while hot.
    pub(crate) idle: u32,
    /// Messages that had been sent to the peer when its last message was received.
    pub(crate) answered: u64,
    /// The peer has ended; messages in the lane are still delivered.
    pub(crate) orphaned: bool,
}

impl Rx {
    /// Creates the control object of a lane, which is passed back to its sender.
    pub(crate) fn control() -> Result<(Object, Sides), RailError> {
        let control = Object::new(
            "doorbell-control",
            FRONT_WORDS * 8 + doorbell_ring::lane::CONTROL_BYTES,
        )?;
        let ours = sides(&control, Protection::ReadWrite, FRONT_WORDS)?;
        control.seal_against_new_writers()?;
        Ok((control, ours))
    }

    /// Takes a lane that a peer passed, with our control block for it.
    pub(crate) fn new(
        geometry: Geometry,
        theirs: Sides,
        ours: Sides,
        socket: CloforkFd,
    ) -> Result<Self, RailError> {
        let lane = Consumer::attach(geometry, ours.area, theirs.area).map_err(ring)?;
        Ok(Self {
            lane,
            theirs: theirs.words,
            ours: ours.words,
            socket: Arc::new(socket),
            parting: None,
            attention: HOT,
            idle: 0,
            answered: 0,
            orphaned: false,
        })
    }

    /// The peer's close reason, or zero.
    pub(crate) fn close_reason(&self) -> u64 {
        self.theirs.load(CLOSE_REASON)
    }

    /// Writes our close reason for the sender. Only the first one counts.
    pub(crate) fn announce_close(&self, close_reason: u64) {
        if self.ours.load(CLOSE_REASON) == 0 {
            self.ours.store(CLOSE_REASON, close_reason);
        }
    }

    pub(crate) fn socket(&self) -> &CloforkFd {
        &self.socket
    }

    /// Sets the attention word, if it changes.
    pub(crate) fn set_attention(&mut self, attention: u64) {
        if self.attention != attention {
            self.attention = attention;
            self.lane.set_attention(attention);
        }
    }
}

#[cfg(test)]
impl Rx {
    /// Our control object, to be written by a thread.
    pub(crate) fn far(&self) -> WordsOf {
        self.ours.far()
    }

    pub(crate) fn scribble(&self, word: usize, value: u64) {
        self.ours.scribble(word, value);
    }
}
