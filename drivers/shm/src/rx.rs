//! The receiving direction: a peer's lane to us.

use std::sync::Arc;

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::map::{Object, Protection};
use doorbell_ring::lane::{Consumer, Geometry};

use crate::map::{WordsOf, sides, words};
use crate::tx::{CLOSE_REASON, FRONT_WORDS, SEVERED, ring};
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
    /// Maps a lane that a peer passed, and creates the control object that is passed back.
    pub(crate) fn new(
        geometry: Geometry,
        lane: &Object,
        socket: CloforkFd,
    ) -> Result<(Self, Object), RailError> {
        let theirs = sides(lane, Protection::ReadOnly, FRONT_WORDS)?;
        let control = Object::new(
            "doorbell-control",
            FRONT_WORDS * 8 + doorbell_ring::lane::CONTROL_BYTES,
        )?;
        let ours = sides(&control, Protection::ReadWrite, FRONT_WORDS)?;
        control.seal_against_new_writers()?;
        let lane = Consumer::attach(geometry, ours.area, theirs.area).map_err(ring)?;
        let rx = Self {
            lane,
            theirs: theirs.words,
            ours: ours.words,
            socket: Arc::new(socket),
            parting: None,
            attention: HOT,
            idle: 0,
            answered: 0,
            orphaned: false,
        };
        Ok((rx, control))
    }

    /// Whether a lane was given up before it was accepted; one that cannot be mapped counts as such.
    pub(crate) fn is_severed(lane: &Object) -> bool {
        words(lane, Protection::ReadOnly, FRONT_WORDS)
            .map_or(true, |words| words.load(CLOSE_REASON) == SEVERED)
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
