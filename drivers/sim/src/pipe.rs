//! Bandwidths that several flows share: a trunk that directions name by a number, and the port before a
//! receiver.

use doorbell_fabric::time::Time;

use crate::fault::Pipe;
use crate::state::{Net, nanos};

/// A shared pipe of a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// The trunk of this number.
    Trunk(u32, u32),
    /// The switch's port to this rank.
    Port(u32, u32),
}

impl Net {
    /// Puts `length` bytes into a pipe now; returns when the last of them has left it, or `None` when it is
    /// full.
    pub(crate) fn enter(&mut self, place: Place, pipe: Pipe, length: usize) -> Option<Time> {
        let now = self.now;
        let busy = self.pipes.entry(place).or_insert(Time::ZERO);
        let bandwidth = u128::from(pipe.bandwidth.max(1));
        let waiting = u128::from(nanos(busy.since(now))) * bandwidth / 1_000_000_000;
        if waiting > 0 && waiting + length as u128 > pipe.queue as u128 {
            return None;
        }
        let takes = (length as u128 * 1_000_000_000).div_ceil(bandwidth);
        let takes = u64::try_from(takes).unwrap_or(u64::MAX);
        *busy = (*busy).max(now) + std::time::Duration::from_nanos(takes);
        Some(*busy)
    }
}
