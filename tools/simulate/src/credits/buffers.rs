//! The receive buffers of one node (gasnet.md section 4): a chain of them, each unlinked when less than a
//! chunk is left and attached again when its last request was handled. A request that finds none hits the
//! catch basin, which ends a job.

use std::collections::VecDeque;

use doorbell_am::credit::{CreditConfig, Shares};

#[derive(Clone, Copy, Debug, Default)]
struct Buffer {
    used: u32,
    pending: u32,
    unlinked: bool,
}

#[derive(Debug)]
pub(super) struct Buffers {
    each: Vec<Buffer>,
    chain: VecDeque<u16>,
    bytes: u32,
    chunk: u32,
    /// Fewest that were attached at any time.
    pub(super) fewest: usize,
}

impl Buffers {
    pub(super) fn new(config: &CreditConfig, shares: &Shares) -> Self {
        let count = shares.buffers as usize;
        Self {
            each: vec![Buffer::default(); count],
            chain: (0..count as u16).collect(),
            bytes: shares.buffer_bytes as u32,
            chunk: config.chunk.bytes() as u32,
            fewest: count,
        }
    }

    /// A request lands: in which buffer, or `None` for the catch basin.
    #[inline]
    pub(super) fn land(&mut self, length: u32) -> Option<u16> {
        let at = *self.chain.front()?;
        let buffer = &mut self.each[at as usize];
        buffer.used += length;
        buffer.pending += 1;
        if self.bytes - buffer.used < self.chunk {
            buffer.unlinked = true;
            self.chain.pop_front();
            self.fewest = self.fewest.min(self.chain.len());
        }
        Some(at)
    }

    /// Its handler has run.
    #[inline]
    pub(super) fn handled(&mut self, at: u16) {
        let buffer = &mut self.each[at as usize];
        buffer.pending -= 1;
        if buffer.unlinked && buffer.pending == 0 {
            *buffer = Buffer::default();
            self.chain.push_back(at);
        }
    }
}
