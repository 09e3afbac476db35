//! Dissemination barriers over system messages: in step k each rank notifies the one 2^k above it, and waits
//! for the one as far below (gasnet.md section 11).
//!
//! They are split-phase: [`notify`](Barrier::notify) and [`try_wait`](Barrier::try_wait). A named barrier
//! carries its id; when two different ids meet, or any rank reports a mismatch, all end with a mismatch.

use crate::error::AmError;
use crate::exit::{above, distance};

const STEPS: usize = 32;

/// The name of the barrier that a rank enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BarrierName {
    /// A barrier without a name, which matches any.
    Anonymous,
    /// The one with this id.
    Named(u32),
    /// Reports a mismatch to all ranks.
    Mismatch,
}

impl BarrierName {
    /// Returns what two that meet agree on.
    const fn meet(self, other: Self) -> Self {
        match (self, other) {
            (Self::Anonymous, name) | (name, Self::Anonymous) => name,
            (Self::Named(one), Self::Named(two)) if one == two => self,
            _ => Self::Mismatch,
        }
    }

    /// Flags and id, as a message carries them.
    const fn wire(self) -> (u8, u32) {
        match self {
            Self::Named(id) => (0, id),
            Self::Anonymous => (1, 0),
            Self::Mismatch => (2, 0),
        }
    }

    const fn of_wire(flags: u8, id: u32) -> Option<Self> {
        Some(match flags {
            0 => Self::Named(id),
            1 => Self::Anonymous,
            2 => Self::Mismatch,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The barrier was not notified yet.
    Idle,
    /// Notified; waits for the message of this step.
    Waiting { step: u32 },
    /// All have entered.
    Complete,
}

/// The barriers of one rank, one after the other.
#[derive(Debug)]
pub(crate) struct Barrier {
    me: u32,
    nodes: u32,
    /// The present one, or the next, modulo 2^16.
    generation: u16,
    state: State,
    name: BarrierName,
    /// What this rank called it.
    mine: BarrierName,
    /// Messages of the current barrier and of the next: no rank can be further.
    arrived: [[Option<BarrierName>; STEPS]; 2],
}

/// A BARRIER to be sent: its destination, and its second and third arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tell {
    pub(crate) to: u32,
    pub(crate) args: [u32; 2],
}

impl Barrier {
    pub(crate) const fn new(me: u32, nodes: u32) -> Self {
        Self {
            me,
            nodes,
            generation: 0,
            state: State::Idle,
            name: BarrierName::Anonymous,
            mine: BarrierName::Anonymous,
            arrived: [[None; STEPS]; 2],
        }
    }

    /// Enters the barrier. The result is to be sent; then [`Barrier::next`] continues.
    pub(crate) fn notify(&mut self, name: BarrierName) -> Result<Option<Tell>, AmError> {
        if self.state != State::Idle {
            return Err(AmError::Order("the previous barrier has not been waited for"));
        }
        self.name = name;
        self.mine = name;
        Ok(self.enter(0))
    }

    /// Continues with what has arrived; the result is to be sent, and the call repeated until `None`.
    pub(crate) fn next(&mut self) -> Option<Tell> {
        let State::Waiting { step } = self.state else {
            return None;
        };
        let name = self.arrived[usize::from(self.generation & 1)]
            .get_mut(step as usize)?
            .take()?;
        self.name = self.name.meet(name);
        self.enter(step + 1)
    }

    /// Handles a message; returns whether it is valid.
    #[must_use]
    pub(crate) fn message(&mut self, from: u32, [place, id]: [u32; 2]) -> bool {
        let (generation, step, flags) = ((place >> 16) as u16, place >> 8 & 0xFF, place as u8);
        let ahead = generation.wrapping_sub(self.generation);
        if ahead > 1 || self.awaited(step) != Some(from) {
            return false;
        }
        let slot = self.arrived[usize::from(generation & 1)].get_mut(step as usize);
        let (Some(name), Some(slot)) = (BarrierName::of_wire(flags, id), slot) else {
            return false;
        };
        if slot.is_some() {
            return false;
        }
        *slot = Some(name);
        true
    }

    /// Whether all have entered: the barrier is over then, and the next one can start.
    pub(crate) fn try_wait(&mut self, name: BarrierName) -> Result<bool, AmError> {
        match self.state {
            State::Idle => Err(AmError::Order("no barrier was notified")),
            State::Waiting { .. } => Ok(false),
            State::Complete => {
                self.state = State::Idle;
                self.generation = self.generation.wrapping_add(1);
                if self.name == BarrierName::Mismatch || name != self.mine {
                    return Err(AmError::BarrierMismatch);
                }
                Ok(true)
            }
        }
    }

    /// The rank that it waits for now.
    pub(crate) fn waits_for(&self) -> Option<u32> {
        match self.state {
            State::Waiting { step } => self.awaited(step),
            _ => None,
        }
    }

    /// Whether a message of this rank is still outstanding: a rank that exited in order after its last
    /// message is not missed.
    pub(crate) fn misses(&self, rank: u32) -> bool {
        let State::Waiting { step } = self.state else {
            return false;
        };
        let arrived = &self.arrived[usize::from(self.generation & 1)];
        (step..)
            .zip(arrived.iter().skip(step as usize))
            .any(|(step, name)| name.is_none() && self.awaited(step) == Some(rank))
    }

    fn awaited(&self, step: u32) -> Option<u32> {
        let distance = distance(step, self.nodes)?;
        Some(above(self.me, self.nodes - distance, self.nodes))
    }

    fn enter(&mut self, step: u32) -> Option<Tell> {
        let Some(distance) = distance(step, self.nodes) else {
            self.state = State::Complete;
            return None;
        };
        self.state = State::Waiting { step };
        let (flags, id) = self.name.wire();
        Some(Tell {
            to: above(self.me, distance, self.nodes),
            args: [
                u32::from(self.generation) << 16 | step << 8 | u32::from(flags),
                id,
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(nodes: u32) -> Vec<Barrier> {
        (0..nodes).map(|me| Barrier::new(me, nodes)).collect()
    }

    fn deliver(ranks: &mut [Barrier], from: u32, tell: Option<Tell>) {
        let mut tell = tell;
        while let Some(one) = tell {
            assert!(ranks[one.to as usize].message(from, one.args));
            tell = ranks[from as usize].next();
        }
    }

    fn settle(ranks: &mut [Barrier]) {
        for _ in 0..64 {
            for me in 0..ranks.len() as u32 {
                let tell = ranks[me as usize].next();
                deliver(ranks, me, tell);
            }
        }
    }

    #[test]
    fn no_rank_leaves_before_the_last_has_entered() -> Result<(), AmError> {
        for nodes in 1..=17 {
            let mut ranks = ranks(nodes);
            for round in 0..70_000 / nodes.pow(2).max(60) {
                for late in 0..nodes {
                    let rank = (late + round) % nodes;
                    let tell = ranks[rank as usize].notify(BarrierName::Anonymous)?;
                    deliver(&mut ranks, rank, tell);
                    settle_once(&mut ranks);
                    for other in 0..nodes {
                        if late + 1 < nodes && ranks[other as usize].state != State::Idle {
                            assert!(
                                !ranks[other as usize].try_wait(BarrierName::Anonymous)?,
                                "{nodes} ranks"
                            );
                        }
                    }
                }
                settle(&mut ranks);
                for rank in &mut ranks {
                    assert!(rank.try_wait(BarrierName::Anonymous)?);
                }
            }
        }
        Ok(())
    }

    fn settle_once(ranks: &mut [Barrier]) {
        for me in 0..ranks.len() as u32 {
            let tell = ranks[me as usize].next();
            deliver(ranks, me, tell);
        }
    }

    #[test]
    fn names_must_agree() -> Result<(), AmError> {
        use BarrierName::{Anonymous, Mismatch, Named};
        for (names, agree) in [
            ([Named(5), Anonymous, Named(5)], true),
            ([Named(5), Named(6), Anonymous], false),
            ([Anonymous, Mismatch, Anonymous], false),
        ] {
            let mut ranks = ranks(3);
            for (rank, name) in names.iter().enumerate() {
                let tell = ranks[rank].notify(*name)?;
                deliver(&mut ranks, rank as u32, tell);
            }
            settle(&mut ranks);
            for (rank, name) in names.iter().enumerate() {
                assert_eq!(ranks[rank].try_wait(*name).is_ok(), agree, "{names:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_rank_that_has_sent_all_may_leave() -> Result<(), AmError> {
        let mut ranks = ranks(4);
        let barrier = &mut ranks[0];
        assert!(!barrier.misses(3), "no barrier was notified");
        barrier.notify(BarrierName::Anonymous)?;
        assert!(barrier.misses(3) && barrier.misses(2) && !barrier.misses(1));
        assert!(
            barrier.message(2, [1 << 8 | 1, 0]),
            "a message from rank 2 arrives in step 1"
        );
        assert!(!barrier.misses(2) && barrier.misses(3));
        assert!(barrier.message(3, [1, 0]));
        while barrier.next().is_some() {}
        assert!(!barrier.misses(3));
        assert!(barrier.try_wait(BarrierName::Anonymous)?);
        Ok(())
    }

    #[test]
    fn what_cannot_be_is_refused() -> Result<(), AmError> {
        let mut ranks = ranks(4);
        let barrier = &mut ranks[0];
        assert!(barrier.try_wait(BarrierName::Anonymous).is_err(), "not notified");
        let place = |generation: u32, step: u32, flags: u32| [generation << 16 | step << 8 | flags, 0];
        assert!(!barrier.message(2, place(0, 0, 1)), "in step 0 it is rank 3");
        assert!(!barrier.message(3, place(2, 0, 1)), "two ahead");
        assert!(!barrier.message(3, place(0, 0, 3)), "no such name");
        assert!(!barrier.message(3, place(0, 2, 1)), "no such step among four");
        assert!(barrier.message(3, place(0, 0, 1)));
        assert!(!barrier.message(3, place(0, 0, 1)), "once");
        assert!(barrier.message(3, place(1, 0, 1)), "it may be one ahead");
        assert!(barrier.notify(BarrierName::Anonymous)?.is_some());
        assert!(
            barrier.notify(BarrierName::Anonymous).is_err(),
            "before it was waited for"
        );
        Ok(())
    }
}
