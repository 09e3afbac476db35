//! The start-up of a conduit: its objects first, then the exchange between the processes (gasnet.md section
//! 11; the order is in `boot`).

use doorbell_fabric::ni::{AckReq, Ni, Piece, Put, Target};
use doorbell_fabric::time::Time;

use crate::barrier::BarrierName;
use crate::boot::{External, Phase};
use crate::conduit::Conduit;
use crate::config::{Config, SYS_INDEX};
use crate::deferred::Then;
use crate::error::{AmError, BootError, WaitsFor};
use crate::handler::Handlers;
use crate::match_bits::Id;

/// A conduit that is being made.
#[derive(Debug)]
pub struct Attaching<N> {
    conduit: Conduit<N>,
}

impl<N: Ni> Attaching<N> {
    /// Creates all queues, descriptors and entries. The conduit owns the interface from now on; the rank map
    /// of a logical one has to be set.
    ///
    /// # Errors
    /// [`AmError`]: inconsistent settings, an interface that is too small, or memory that cannot be allocated
    /// or pinned.
    pub fn new(ni: N, config: Config, handlers: Handlers) -> Result<Self, AmError> {
        let patience = config.patience;
        let mut conduit = Conduit::new(ni, config, handlers)?;
        conduit.boot.patience = patience;
        Ok(Self { conduit })
    }

    /// Continues the start-up; returns whether the conduit is ready ([`Self::finish`]). To be called until it
    /// is.
    ///
    /// # Errors
    /// [`AmError::Boot`], which names the rank that is lost or does not respond.
    pub fn step(&mut self, now: Time, external: &mut (impl External + ?Sized)) -> Result<bool, AmError> {
        let conduit = &mut self.conduit;
        conduit.step(now)?;
        if let Some(&(rank, reason)) = conduit.lost.first() {
            // A rank that found a disagreement has left: what it sent before is the reason.
            conduit.boot.agree(&conduit.boot_table)?;
            return Err(BootError::Lost { rank, reason }.into());
        }
        let began = *conduit.boot.began.get_or_insert(now);
        loop {
            let phase = self.conduit.boot.phase;
            if !self.advance(external)? || phase == Phase::Ready {
                break;
            }
        }
        self.conduit.flush();
        if self.conduit.boot.phase == Phase::Ready {
            return Ok(true);
        }
        let waited = now.since(began);
        if waited >= self.conduit.boot.patience {
            return Err(self.silent(waited.as_secs()).into());
        }
        Ok(false)
    }

    /// Returns the conduit, once [`Self::step`] has returned that it is ready.
    ///
    /// # Errors
    /// [`AmError::Order`] before.
    pub fn finish(self) -> Result<Conduit<N>, AmError> {
        if self.conduit.boot.phase != Phase::Ready {
            return Err(AmError::Order("the start-up of the job has not completed yet"));
        }
        Ok(self.conduit)
    }

    /// The underlying interface, during the start-up.
    pub const fn ni(&self) -> &N {
        &self.conduit.ni
    }

    /// The underlying interface, mutable: for its rails, during the start-up.
    pub const fn ni_mut(&mut self) -> &mut N {
        &mut self.conduit.ni
    }

    /// Makes a step, if that is possible.
    fn advance(&mut self, external: &mut (impl External + ?Sized)) -> Result<bool, AmError> {
        let conduit = &mut self.conduit;
        match conduit.boot.phase {
            Phase::External => {
                let come = external.barrier().map_err(|error| BootError::External {
                    rank: error.rank,
                    reason: error.reason,
                })?;
                if come {
                    conduit.boot.phase = Phase::Exchange { step: 0 };
                    conduit.exchange(0);
                }
                Ok(come)
            }
            Phase::Exchange { step } if conduit.boot.waits_for(step).is_none() => {
                conduit.boot.agree(&conduit.boot_table)?;
                conduit.remotes = conduit.boot.segments(&conduit.boot_table);
                conduit.boot.phase = Phase::Barrier;
                conduit.begin_barrier(BarrierName::Anonymous)?;
                Ok(true)
            }
            Phase::Exchange { step } => {
                let has = conduit.boot.has(step);
                if has {
                    conduit.boot.phase = Phase::Exchange { step: step + 1 };
                    conduit.exchange(step + 1);
                }
                Ok(has)
            }
            Phase::Barrier => {
                let come = conduit.barrier.try_wait(BarrierName::Anonymous)?;
                if come {
                    conduit.boot.phase = Phase::Ready;
                }
                Ok(come)
            }
            Phase::Ready => Ok(true),
        }
    }

    fn silent(&self, seconds: u64) -> BootError {
        let boot = &self.conduit.boot;
        let (rank, step) = match boot.phase {
            Phase::External => (None, "waiting for all to create their objects"),
            Phase::Exchange { step } => (boot.waits_for(step), "exchanging segments"),
            Phase::Barrier | Phase::Ready => (
                self.conduit.barrier.waits_for(),
                "waiting for all to have all segments",
            ),
        };
        BootError::Silent {
            waits_for: rank.map_or(WaitsFor::Launcher, WaitsFor::Rank),
            step,
            seconds,
        }
    }
}

impl<N: Ni> Conduit<N> {
    /// Sends a step's piece of the table.
    fn exchange(&mut self, step: u32) {
        let Some(piece) = self.boot.piece(step) else {
            return;
        };
        let Some(process) = self.ranks.process(piece.to) else {
            return;
        };
        let put = Put {
            from: Piece {
                md: self.objects.boot,
                offset: 0,
            },
            length: piece.length,
            ack: AckReq::None,
            target: Target {
                process,
                pt_index: SYS_INDEX,
                match_bits: Id::Boot as u64,
                remote_offset: piece.offset,
            },
            user_ptr: Id::Boot as u64,
            hdr_data: piece.step.into(),
        };
        self.begin_put(&put, Then::Nothing);
    }
}
