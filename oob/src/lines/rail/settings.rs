//! The settings of the transport `rail`.

use std::time::Duration;

use crate::connect;
use crate::lines::Limits;

/// The settings of a `rail` transport.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The limits of its connections.
    pub limits: Limits,
    /// Maximum bytes of a segment without its header; a rail with shorter messages uses shorter segments.
    pub piece: usize,
    /// Idle time after which a peer with a link is probed.
    pub idle: Duration,
    /// Idle time after which it is given up over this rail. More than `idle`.
    pub silence: Duration,
    /// How long after its failure a peer is called for the first time,
    pub revive: Duration,
    /// and the maximum wait between two calls, which doubles each time.
    pub revive_max: Duration,
    /// Maximum number of peers of a rail.
    pub peers: usize,
    /// Polling interval of a rail without a descriptor to sleep on, or whose peer has not taken what was
    /// sent, while there is traffic: timers have a resolution of a millisecond.
    pub look: Duration,
    /// Polling interval without traffic: it doubles from one to the other.
    pub look_max: Duration,
    /// Interval of the rail's own housekeeping while it sleeps and nothing is in flight. Arrivals wake it
    /// anyway; a longer interval is less work for an idle process.
    pub housekeeping: Duration,
    /// Whether every rail is polled in every turn, and none is slept on: for a thread that spins
    /// ([`Progress::Spin`](crate::runner::Progress::Spin)), which sets this by itself where a handle starts
    /// it.
    pub spin: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits {
                meeting: connect::Limits {
                    tries: 1,
                    ..connect::Limits::default()
                },
                handshake: Duration::from_secs(2),
                guests_each: 4,
                ..Limits::default()
            },
            piece: 16 << 10,
            idle: Duration::from_secs(2),
            silence: Duration::from_secs(10),
            revive: Duration::from_millis(50),
            revive_max: Duration::from_secs(1),
            peers: 4096,
            look: Duration::from_millis(1),
            look_max: Duration::from_millis(20),
            housekeeping: Duration::from_millis(100),
            spin: false,
        }
    }
}
