//! Fences: proof that nothing posted before touches memory any more.

use std::sync::Arc;

use doorbell_fabric::message::{FenceScope, Landing, OpError, OpId, Refused};

use crate::onesided::{Completion, Op, Phase};
use crate::state::Net;
use crate::trace::Happened;

#[derive(Debug)]
pub(crate) struct Fence {
    id: OpId,
    serial: u64,
    /// The peer that it fences; `None` for the whole rail.
    conn: Option<u32>,
    hurt: bool,
}

impl Net {
    pub(crate) fn fence(&mut self, nic: u32, scope: FenceScope, id: OpId) -> Result<(), Refused> {
        let conn = match scope {
            FenceScope::Peer(peer) => {
                self.check_peer(nic, peer)?;
                Some(peer.0)
            }
            FenceScope::Rail => None,
        };
        let state = &mut self.nics[nic as usize];
        if state.ended.is_some() {
            return Err(Refused::PeerDown);
        }
        if state.open_ops >= self.config.operations {
            return Err(Refused::Full);
        }
        state.open_ops += 1;
        state.serial += 1;
        let serial = state.serial;
        state.fences.push(Fence {
            id,
            serial,
            conn,
            hurt: false,
        });
        self.check_fences(nic);
        Ok(())
    }

    /// Completes the fences of `nic` that wait for nothing any more.
    pub(crate) fn check_fences(&mut self, nic: u32) {
        if self.nics[nic as usize].fences.is_empty() {
            return;
        }
        let mut fences = std::mem::take(&mut self.nics[nic as usize].fences);
        let ended = fences.extract_if(.., |fence| fence.hurt || !self.fence_waits(nic, fence));
        let ended: Vec<Fence> = ended.collect();
        self.nics[nic as usize].fences = fences;
        for fence in ended {
            let outcome = if fence.hurt {
                Err(OpError::Indeterminate)
            } else {
                Ok(0)
            };
            let what = if fence.hurt {
                Happened::Ended
            } else {
                Happened::Completed
            };
            self.note(what, nic, nic, fence.id.0, 0);
            self.nics[nic as usize].completions.push_back(Completion {
                id: fence.id,
                outcome,
                into: Landing::EMPTY,
                data: Arc::default(),
            });
        }
    }

    /// The path to `conn` failed, with operations from serial `first` on still open: fences that cover them
    /// prove nothing.
    pub(crate) fn hurt_fences(&mut self, nic: u32, conn: u32, first: u64) {
        for fence in &mut self.nics[nic as usize].fences {
            fence.hurt |= fence.conn == Some(conn) || (fence.conn.is_none() && first < fence.serial);
        }
        self.check_fences(nic);
    }

    /// Whether something posted before the fence, in its scope, may still touch memory.
    fn fence_waits(&self, nic: u32, fence: &Fence) -> bool {
        let covered =
            |serial: u64, conn: u32| serial < fence.serial && fence.conn.is_none_or(|only| only == conn);
        let touches = |op: &Op| !op.orphan || op.phase == Phase::Executing;
        let op = |(_, op): (u32, &Op)| op.nic == nic && covered(op.serial, op.conn) && touches(op);
        self.ops.iter().any(op)
            || self.nics[nic as usize]
                .regions
                .iter()
                .any(|&(serial, conn)| covered(serial, conn))
    }
}
