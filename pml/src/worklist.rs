//! The list of peers with something for a rail to take.

use crate::by_rank::ByRank;
use crate::hot::{Hot, about};
use crate::rails::NO_RANK;
use crate::rank::Rank;

/// Peers with work, each at most once, which a flag of the peer records.
#[derive(Debug)]
pub(crate) struct Worklist {
    listed: Vec<Rank>,
    /// Those that the current pass looks at, and how many of them it has looked at.
    in_pass: Vec<Rank>,
    done: usize,
}

impl Worklist {
    /// An empty list, with room for all ranks of a job of this size.
    pub(crate) fn new(size: u32) -> Self {
        Self {
            listed: Vec::with_capacity(size as usize + 1),
            in_pass: Vec::with_capacity(size as usize + 1),
            done: 0,
        }
    }

    /// Makes room for all ranks of a job of this size.
    pub(crate) fn grow(&mut self, size: u32) {
        for list in [&mut self.listed, &mut self.in_pass] {
            list.reserve((size as usize + 1).saturating_sub(list.len()));
        }
    }

    /// Takes a peer out.
    pub(crate) fn remove(&mut self, rank: Rank, hot: &mut Hot) {
        if hot.is(about::LISTED) {
            hot.clear(about::LISTED);
            self.listed.retain(|listed| *listed != rank);
        }
    }

    /// Whether no peer has work.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Adds a peer, unless it is there already or is lost.
    #[inline]
    pub(crate) fn add(&mut self, rank: Rank, hot: &mut Hot) {
        if !hot.is(about::LISTED | about::LOST) {
            hot.set(about::LISTED);
            self.listed.push(rank);
        }
    }

    /// Has a pass begin although no peer has work: answers wait.
    #[inline]
    pub(crate) fn wake(&mut self) {
        self.listed.push(NO_RANK);
    }

    /// Begins a pass over the peers that are there. Those that are added meanwhile are for the next one.
    pub(crate) fn begin_pass(&mut self) {
        std::mem::swap(&mut self.listed, &mut self.in_pass);
        self.done = 0;
    }

    /// Takes out the next peer of the pass; `None` at its end.
    pub(crate) fn next_in_pass(&mut self, hot: &mut ByRank<Hot>) -> Option<Rank> {
        let rank = loop {
            let Some(rank) = self.in_pass.get(self.done).copied() else {
                self.in_pass.clear();
                return None;
            };
            self.done += 1;
            if rank != NO_RANK {
                break rank;
            }
        };
        hot[rank].clear(about::LISTED);
        Some(rank)
    }
}
