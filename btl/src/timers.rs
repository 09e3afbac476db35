//! Timers: one for each peer, for the earliest thing that may be due.
//!
//! Each peer has at most one room in the hotel; a peer that is evicted is handled ([`Core::tick`]), and
//! booked again for what comes next. So sending and being answered in time touch the hotel once per time-out,
//! not once per segment.
//!
//! [`Core::tick`]: crate::core::Core::tick

use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;
use doorbell_hotel::{Hotel, HotelError, Key};

use crate::peer::{Peer, about};
use crate::peer_queue::PeerQueue;
use crate::peers::Peers;

/// A peer's timer.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    key: Option<Key>,
    /// When it goes off (ns), while it has a key.
    at: u64,
}

impl Alarm {
    /// A timer that is not armed.
    pub(crate) const fn new() -> Self {
        Self { key: None, at: 0 }
    }

    /// Whether it does not go off by `deadline` (ns).
    #[inline]
    pub(crate) fn is_later_than(&self, deadline: u64) -> bool {
        self.key.is_none() || self.at > deadline
    }
}

/// The timers of all peers, and the time-outs that wait to be judged.
#[derive(Debug)]
pub(crate) struct Timers {
    hotel: Hotel<PeerIndex>,
    /// Peers whose retransmission time-out has passed, until everything that has arrived was handled.
    timeouts: PeerQueue<{ about::TIMEOUT }>,
}

impl Timers {
    /// Timers of `most` peers.
    ///
    /// # Errors
    /// [`HotelError`] when there is no memory for that many.
    pub(crate) fn new(most: usize) -> Result<Self, HotelError> {
        Ok(Self {
            hotel: Hotel::new(most, 0)?,
            timeouts: PeerQueue::new(),
        })
    }

    /// Reserves room for the time-outs of this many peers.
    pub(crate) fn reserve(&mut self, peers: usize) {
        self.timeouts.reserve(peers);
    }

    /// Returns how many timers are armed.
    pub(crate) fn len(&self) -> usize {
        self.hotel.len()
    }

    /// Returns when the first timer goes off.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.hotel.next_deadline().map(Time::from_nanos)
    }

    /// Sees to it that a peer's timer goes off by `deadline` (ns).
    #[inline]
    pub(crate) fn arm(&mut self, index: PeerIndex, alarm: &mut Alarm, deadline: u64) {
        match alarm.key {
            Some(_) if alarm.at <= deadline => {}
            Some(key) => {
                if self.hotel.re_book(key, deadline).is_ok() {
                    alarm.at = deadline;
                }
            }
            None => {
                // There are as many rooms as there may be peers.
                alarm.key = self.hotel.check_in(index, deadline).ok();
                alarm.at = deadline;
            }
        }
    }

    /// Disarms a peer's timer.
    pub(crate) fn disarm(&mut self, alarm: &mut Alarm) {
        if let Some(key) = alarm.key.take() {
            // The key was good, or the timer would be gone.
            let _ = self.hotel.check_out(key);
        }
    }

    /// The next peer whose timer has gone off by `now` (ns); it is not armed any more.
    pub(crate) fn evict(&mut self, now: u64, peers: &mut Peers) -> Option<PeerIndex> {
        let index = self.hotel.evict(now)?.guest;
        peers[index].alarm.key = None;
        Some(index)
    }

    /// A peer's time-out has passed, and is to be judged when everything that has arrived was handled.
    pub(crate) fn time_out(&mut self, index: PeerIndex, peer: &mut Peer) {
        self.timeouts.push(index, peer);
    }

    /// Returns how many time-outs wait to be judged.
    #[inline]
    pub(crate) fn timeouts(&self) -> usize {
        self.timeouts.len()
    }

    /// The next peer whose time-out is to be judged.
    pub(crate) fn next_timeout(&mut self, peers: &mut Peers) -> Option<PeerIndex> {
        self.timeouts.pop(peers)
    }
}
