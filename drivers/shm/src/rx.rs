//! The receiving direction: a peer's lane to us.

use std::os::fd::{AsFd, OwnedFd};

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::{Object, Protection};
use doorbell_ring::lane::{Consumer, Geometry};

use crate::attend::HOT;
use crate::map::{WordsOf, sides};
use crate::tx::{CLOSED, LANE_WORDS, ring};

/// Words in front of the control block: a line whose first word is the farewell.
pub(crate) const CONTROL_WORDS: usize = 8;

/// A peer's lane to us.
pub(crate) struct Rx {
    pub(crate) lane: Consumer,
    /// The words in front of the peer's lane: its leases and its farewell.
    theirs: WordsOf,
    /// The words in front of our control block.
    ours: WordsOf,
    socket: OwnedFd,
    pid: i32,
    /// Attention as last set.
    pub(crate) attention: u64,
    /// Empty polls in a row while hot.
    pub(crate) idle: u32,
    /// The peer ended; what is in the lane is still delivered.
    pub(crate) orphaned: bool,
}

impl Rx {
    /// Maps a lane that a peer passed, and makes the control object for it (to be passed back).
    pub(crate) fn new(
        geometry: Geometry,
        lane: &Object,
        socket: OwnedFd,
        pid: i32,
    ) -> Result<(Self, Object), RailError> {
        let theirs = sides(lane, Protection::ReadOnly, LANE_WORDS)?;
        let control = Object::new(
            "doorbell-control",
            CONTROL_WORDS * 8 + doorbell_ring::lane::CONTROL_BYTES,
        )?;
        let ours = sides(&control, Protection::ReadWrite, CONTROL_WORDS)?;
        control.seal_against_new_writers()?;
        let lane = Consumer::attach(geometry, ours.area, theirs.area).map_err(ring)?;
        let rx = Self {
            lane,
            theirs: theirs.words,
            ours: ours.words,
            socket,
            pid,
            attention: HOT,
            idle: 0,
            orphaned: false,
        };
        Ok((rx, control))
    }

    /// A lease word of the peer.
    pub(crate) fn lease(&self, word: usize) -> u64 {
        self.theirs.load(word)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the peer said goodbye.
    pub(crate) fn closed(&self) -> bool {
        self.theirs.load(CLOSED) != 0
    }

    /// Says goodbye to the sender.
    pub(crate) fn say_closed(&self) {
        self.ours.store(0, 1);
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether the process behind the lane has ended (and its number may belong to another one). A system call.
    pub(crate) fn hung_up(&self) -> bool {
        let mut look = [rustix::event::PollFd::from_borrowed_fd(
            self.socket.as_fd(),
            rustix::event::PollFlags::RDHUP,
        )];
        let none = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match rustix::event::poll(&mut look, Some(&none)) {
            Ok(0) => false,
            Ok(_) => true,
            Err(errno) => errno != rustix::io::Errno::INTR,
        }
    }

    /// Sets the attention word, if it changes.
    pub(crate) fn attend(&mut self, attention: u64) {
        if self.attention != attention {
            self.attention = attention;
            self.lane.set_attention(attention);
        }
    }
}
