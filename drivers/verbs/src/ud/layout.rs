//! How a rail's memory is cut up: for each channel its frames to send, and its buffers for received ones.

use crate::source::GRH;

/// Places begin at multiples of this.
const LINE: usize = 64;

/// The places of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Offset of the first frame to send.
    pub(crate) send: usize,
    /// Frames that can be under way: a power of two.
    pub(crate) sends: usize,
    /// Bytes from one of them to the next.
    pub(crate) send_step: usize,
    /// Offset of the first receive buffer.
    pub(crate) receive: usize,
    /// Receive buffers that are posted.
    pub(crate) receives: usize,
    /// Further ones, for frames that are kept.
    pub(crate) spare: usize,
    /// Bytes from one receive buffer to the next.
    pub(crate) receive_step: usize,
}

impl Places {
    /// The places of one channel from an offset on; returns the offset behind them, too.
    pub(crate) fn from(
        start: usize,
        (sends, receives, spare): (usize, usize, usize),
        limit: usize,
    ) -> (Self, usize) {
        let places = Self {
            send: start,
            sends,
            send_step: limit.next_multiple_of(LINE),
            receive: start + sends * limit.next_multiple_of(LINE),
            receives,
            spare,
            receive_step: (GRH + limit).next_multiple_of(LINE),
        };
        let end = places.receive + places.buffers() * places.receive_step;
        (places, end)
    }

    /// The place of a frame to send, by its count.
    #[inline]
    pub(crate) fn frame(&self, count: u64) -> usize {
        self.send + (count as usize & (self.sends - 1)) * self.send_step
    }

    /// The place of a receive buffer.
    #[inline]
    pub(crate) fn buffer(&self, number: u32) -> usize {
        self.receive + number as usize * self.receive_step
    }

    /// The number of receive buffers.
    pub(crate) fn buffers(&self) -> usize {
        self.receives + self.spare
    }

    /// Bytes of a receive that is posted, for frames of up to `limit` bytes.
    pub(crate) fn receive_length(limit: usize) -> usize {
        GRH + limit
    }
}

/// Cuts the memory for frames of up to `limit` bytes up; returns the places of both channels, and how many
/// bytes they need.
pub(crate) fn cut((send, receive, spare): (usize, usize, usize), limit: usize) -> ([Places; 2], usize) {
    let mut end = 0;
    let places = [4, 1].map(|share| {
        let counts = (send / share, receive / share, spare / share);
        let places;
        (places, end) = Places::from(end, counts, limit);
        places
    });
    (places, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_all_is_inside() {
        let (channels, bytes) = cut((256, 1024, 256), 1024);
        let mut taken = vec![false; bytes / LINE];
        let mut take = |at: usize, length: usize| {
            assert_eq!(at % LINE, 0);
            for line in &mut taken[at / LINE..(at + length).div_ceil(LINE)] {
                assert!(!std::mem::replace(line, true), "two places at {at}");
            }
        };
        for places in channels {
            (0..places.sends as u64).for_each(|count| take(places.frame(count), 1024));
            (0..places.buffers() as u32).for_each(|number| take(places.buffer(number), GRH + 1024));
            assert_eq!(places.frame(places.sends as u64), places.frame(0));
        }
        assert!(taken.iter().all(|line| *line), "nothing is left over");
    }
}
