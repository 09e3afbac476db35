//! What a user may choose.

use std::time::Duration;

use crate::connect;
use crate::wire;

/// The settings of a `rail` transport.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Longest message, in bytes.
    pub longest: usize,
    /// Bytes of a piece beside its head, at most: what a rail carries less of is cut smaller.
    pub piece: usize,
    /// Limits of those who have the key.
    pub meeting: connect::Limits,
    /// How long a handshake may take. A peer that is not there does not answer; then the core tries another way.
    pub handshake: Duration,
    /// How long a line that is closed may take to say the rest.
    pub linger: Duration,
    /// After so long without a word, a peer to which there is a link is asked whether it is there.
    pub idle: Duration,
    /// After so long without a word, it is given up over this rail. More than `idle`.
    pub silence: Duration,
    /// How long after its end a peer is called for the first time,
    pub revive: Duration,
    /// and the longest wait between two calls: it doubles from one to the next.
    pub revive_max: Duration,
    /// How many handshakes may be under way with those who call; the oldest one goes when there are more.
    pub guests: usize,
    /// The same, of one peer.
    pub guests_each: usize,
    /// How many handshakes that one peer has begun may fail in a row.
    pub failures: u32,
    /// How long until one failure is forgotten; a peer that has too many is turned away unheard.
    pub forgive: Duration,
    /// Peers that a rail may have, at most.
    pub peers: usize,
    /// How often a rail is looked at that has no descriptor to sleep on, or whose peer has not taken what was sent, while
    /// something happens: timers have a resolution of a millisecond.
    pub look: Duration,
    /// The same, when nothing does: the interval doubles from one to the other.
    pub look_max: Duration,
    /// How often the rail's own housekeeping is looked after while it sleeps, and nothing is under way. It wakes us for
    /// whatever arrives; less often is less work for a process that has nothing to say.
    pub housekeeping: Duration,
    /// Every rail is looked at in every turn, and none is slept on: for a thread that spins
    /// ([`Progress::Spin`](crate::runner::Progress::Spin)), which sets this by itself where a handle starts it.
    pub spin: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            longest: 16 << 20,
            piece: 16 << 10,
            meeting: connect::Limits {
                tries: 1,
                ..connect::Limits::default()
            },
            handshake: Duration::from_secs(2),
            linger: Duration::from_secs(1),
            idle: Duration::from_secs(2),
            silence: Duration::from_secs(10),
            revive: Duration::from_millis(50),
            revive_max: Duration::from_secs(1),
            guests: 64,
            guests_each: 4,
            failures: 64,
            forgive: Duration::from_millis(250),
            peers: 4096,
            look: Duration::from_millis(1),
            look_max: Duration::from_millis(20),
            housekeeping: Duration::from_millis(100),
            spin: false,
        }
    }
}

impl Settings {
    /// Longest frame, in bytes.
    pub(super) fn frame(&self) -> usize {
        self.longest.saturating_add(wire::HEAD_MAX)
    }
}
