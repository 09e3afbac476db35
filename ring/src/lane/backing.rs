//! Lanes whose memory grows with their use: what there is memory for, and what the next message needs.
//!
//! Only the sender's limits depend on it. They are what it compares with anyway before each message, so a
//! lane that grows costs a message nothing; where the memory ends the lane looks full, which is out of the
//! way. For the receiver nothing changes.

use super::{CACHE_LINE, Producer, RingError, WHAT, place};

/// How much of a lane has memory: the first cells, and the first bytes of the data area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// Cells, at least two, or all.
    pub cells: usize,
    /// Bytes of the data area; whole cache lines.
    pub data: usize,
}

impl Producer {
    /// What there is memory for.
    #[must_use]
    pub fn backed(&self) -> Backing {
        self.backed
    }

    /// There is memory for this much now; less than before changes nothing.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] for less than two cells, [`RingError::NoMemory`].
    pub fn extend(&mut self, backed: Backing) -> Result<(), RingError> {
        let cells = backed.cells.clamp(self.backed.cells, self.geometry.cells);
        if cells < 2 {
            return Err(RingError::TooSmall {
                what: "message lane, cells with memory",
                needed: 2,
                got: cells,
            });
        }
        let data = backed.data.clamp(self.backed.data, self.geometry.data);
        if data != 0 {
            more_rests(&mut self.rests, cells)?;
        }
        self.backed = Backing {
            cells,
            data: data - data % CACHE_LINE,
        };
        self.set_limits();
        Ok(())
    }

    /// Returns the memory that a message of `len` bytes needs beyond what there is, if the lane looks full
    /// for want of it: at least this has to be backed before the message can be taken. `None` if the lane is
    /// full because the consumer is behind.
    #[must_use]
    pub fn wants(&self, len: usize) -> Option<Backing> {
        let place = place(self.geometry.data, self.data_tail, len);
        let (cells, data) = (self.geometry.cells as u64, self.geometry.data as u64);
        let count = self.cells_for(len) as u64;
        if self.tail + count - self.seen > cells || (place.len != 0 && place.end - self.data_seen > data) {
            return None;
        }
        // Short of all, both areas are in their first lap.
        let needed = Backing {
            cells: (self.tail + count + 1).min(cells) as usize,
            data: if place.len == 0 {
                0
            } else {
                place.end.min(data) as usize
            },
        };
        (needed.cells > self.backed.cells || needed.data > self.backed.data).then_some(needed)
    }

    /// Messages and data may go as far as the consumer allows, in the first lap no farther than there is
    /// memory.
    pub(super) fn set_limits(&mut self) {
        let (cells, data) = (self.geometry.cells, self.geometry.data);
        self.limit = self.seen + cells as u64;
        if self.backed.cells < cells {
            self.limit = self.limit.min(self.backed.cells as u64 - 1);
        }
        self.data_limit = self.data_seen + data as u64;
        if self.backed.data < data {
            self.data_limit = self.data_limit.min(self.backed.data as u64);
        }
    }
}

fn more_rests(rests: &mut Vec<u32>, cells: usize) -> Result<(), RingError> {
    let more = cells.saturating_sub(rests.len());
    rests.try_reserve_exact(more).map_err(|_| RingError::NoMemory {
        what: WHAT,
        bytes: cells * size_of::<u32>(),
    })?;
    rests.resize(rests.len() + more, 0);
    Ok(())
}
