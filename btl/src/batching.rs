//! Doorbell batching: when a short message that was posted rings the doorbell, and when it waits for more of
//! them.
//!
//! A doorbell may be a system call, and costs as much for a batch of frames as for one. The first two
//! messages in a row to one peer are sent at once, so a rank that posts one or two to each of its neighbours
//! and then computes has sent them. Further ones are batched until the batch is full, or until the owner does
//! anything else (a poll, a flush, going to sleep). No clock is involved.
//!
//! ```text
//!   posted   1   2   3   4 … 34   35 … 66   67  poll
//!   leaves   1   2       3 … 34      35 … 66    67
//! ```

use doorbell_fabric::message::PeerIndex;

use crate::core::Core;

/// Messages in a row that are sent one by one.
const ALONE: u32 = 2;
/// Messages of one batch.
const TOGETHER: u32 = 32;
/// Bytes of one batch: what the kernel takes in one piece.
const BYTES: u64 = 64 * 1024;

/// Messages posted in a row.
#[derive(Debug)]
pub(crate) struct Row {
    /// The peer of the last of them, and how many were posted to it in a row.
    peer: PeerIndex,
    count: u32,
    /// How many wait, and the bytes that had been sent when the doorbell rang last.
    waiting: u32,
    bytes: u64,
}

impl Row {
    pub(crate) const fn new() -> Self {
        Self {
            peer: PeerIndex(0),
            count: 0,
            waiting: 0,
            bytes: 0,
        }
    }

    /// The owner did something else.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.count = 0;
    }

    /// One more to `peer`, when `bytes` were sent altogether; whether it waits.
    #[inline]
    fn add(&mut self, peer: PeerIndex, bytes: u64) -> bool {
        if self.peer != peer {
            (self.peer, self.count) = (peer, 0);
        }
        self.count = self.count.saturating_add(1);
        self.waiting += 1;
        let waits = self.count > ALONE && self.waiting < TOGETHER && bytes - self.bytes < BYTES;
        if !waits {
            (self.waiting, self.bytes) = (0, bytes);
        }
        waits
    }
}

impl Core {
    /// Whether the message that was just accepted for `peer` waits for the rest of a batch.
    #[inline]
    pub(crate) fn gathers(&mut self, peer: PeerIndex) -> bool {
        // Waiting for more messages does not help one that waits for the window, or that was cut.
        let state = self.peers.get(peer);
        let alone = self.ready.is_empty() && state.is_some_and(|state| state.send.unsent().is_none());
        if !(self.outbox.has_posted() && alone) {
            self.row.end();
        }
        self.row.add(peer, self.counters.bytes_sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(row: &mut Row, peer: PeerIndex, count: u32, each: u64) -> Vec<u32> {
        let mut bytes = row.bytes;
        let mut leaves = || {
            bytes += each;
            !row.add(peer, bytes)
        };
        (1..=count).filter(|_| leaves()).collect()
    }

    #[test]
    fn a_few_leave_at_once_and_more_leave_together() {
        let mut row = Row::new();
        assert_eq!(left(&mut row, PeerIndex(0), 100, 24), [1, 2, 34, 66, 98]);
        row.end();
        assert_eq!(
            left(&mut row, PeerIndex(0), 3, 24),
            [1, 2],
            "after a poll as at the beginning"
        );
    }

    #[test]
    fn one_to_each_of_many_leaves_at_once() {
        let mut row = Row::new();
        let bytes = 24;
        assert!((0..100).all(|peer| !row.add(PeerIndex(peer % 7), bytes)));
    }

    #[test]
    fn a_piece_of_the_kernels_is_not_waited_beyond() {
        let mut row = Row::new();
        assert_eq!(left(&mut row, PeerIndex(0), 14, 16_000), [1, 2, 7, 12]);
    }
}
