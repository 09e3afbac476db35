//! System messages: barriers, credits that are taken back, the end of the job (gasnet.md sections 1, 10 and
//! 12).
//!
//! They have no body and take no credits, tickets or chunks. A peer has at most one CREDIT_REVOKE of ours
//! that is not answered, each is answered by one CREDIT_RETURN, and a barrier or an exit sends a peer one
//! message for each of its steps. A peer that sends more makes others lose none: the SYS queue has room for
//! what the rails bring in a poll. Their first argument is the rank that sent them.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::ni::{AckReq, Event, EventKind, Ni, NiFail, Piece, Process, Put, Target};
use doorbell_fabric::time::Time;

use crate::barrier::{self, BarrierName};
use crate::conduit::Conduit;
use crate::config::SYS_INDEX;
use crate::deferred::Then;
use crate::error::{AmError, Fault, Stall};
use crate::exit::{ExitFlag, Leaving};
use crate::match_bits::{Id, SysKind, SysMessage};
use crate::poll::ARRIVALS_MOST;
use crate::request::Wait;

impl<N: Ni> Conduit<N> {
    /// Enters a barrier. [`Self::try_barrier`] returns when all have entered.
    ///
    /// # Errors
    /// [`AmError::Order`]: the previous one was not waited for. [`AmError::PeerLost`].
    pub fn notify_barrier(&mut self, name: BarrierName) -> Result<(), AmError> {
        self.health()?;
        self.not_leaving()?;
        self.complete()?;
        self.begin_barrier(name)
    }

    pub(crate) fn begin_barrier(&mut self, name: BarrierName) -> Result<(), AmError> {
        let mut tell = self.barrier.notify(name)?;
        while let Some(one) = tell {
            self.send_barrier(one);
            tell = self.barrier.next();
        }
        Ok(())
    }

    /// Whether all have entered the barrier that was notified.
    ///
    /// # Errors
    /// [`AmError::BarrierMismatch`]: the barrier is over, and the names do not agree. [`AmError::PeerLost`]:
    /// it cannot end.
    pub fn try_barrier(&mut self, name: BarrierName) -> Result<bool, AmError> {
        let done = self.barrier.try_wait(name)?;
        if !done {
            self.health()?;
            // A rank that requests the end may have left this barrier: then all have entered it, and its
            // barrier messages arrive before its exit requests. A rank that has not entered ends it when the
            // exit is over.
            if !matches!(self.exit.leaving(), Leaving::Underway { .. }) {
                self.not_leaving()?;
                self.not_missed()?;
            }
        }
        Ok(done)
    }

    /// Checks that no rank is lost that the barrier needs: one that exited in order after its part of it is
    /// not missed.
    fn not_missed(&self) -> Result<(), AmError> {
        let missed = |lost: &&(u32, DownReason)| lost.1 != DownReason::Closed || self.barrier.misses(lost.0);
        match self.lost.iter().find(missed) {
            Some(&(rank, reason)) => Err(AmError::PeerLost { rank, reason }),
            None => Ok(()),
        }
    }

    /// Enters a barrier and waits until all have entered.
    ///
    /// # Errors
    /// Those of [`Self::try_barrier`], and [`AmError::Ended`].
    pub fn barrier(&mut self, wait: &mut (impl Wait + ?Sized)) -> Result<(), AmError> {
        self.notify_barrier(BarrierName::Anonymous)?;
        self.until(Stall::Barrier, wait, |conduit| {
            conduit.try_barrier(BarrierName::Anonymous)
        })
    }

    /// Requests the end of the job with this status. Continue with [`Self::step`] until [`Self::leaving`]
    /// returns that it is over.
    pub fn exit(&mut self, code: u8) {
        self.exit.request(code);
    }

    /// Has polls look at this flag from now on, which a signal handler may set.
    pub fn set_exit_flag(&mut self, flag: ExitFlag) {
        self.exit.flag = flag;
    }

    /// Requests the end of the job and waits for it; returns the largest status of all. The settings limit
    /// the wait, whatever `wait` returns.
    ///
    /// # Errors
    /// [`AmError::Unclean`], [`AmError::Ended`], [`AmError::Fault`].
    pub fn leave(&mut self, code: u8, wait: &mut (impl Wait + ?Sized)) -> Result<u8, AmError> {
        self.exit(code);
        loop {
            if let Leaving::Over(how) = self.leaving() {
                return Ok(how?);
            }
            let now = wait.wait(Stall::Exit).ok_or(AmError::Ended(Stall::Exit))?;
            self.wait_step(Stall::Exit, now)?;
        }
    }

    /// Handles all of the SYS queue up to its limit, which always leaves room for the next poll's arrivals.
    pub(crate) fn poll_sys(&mut self, events: usize) -> usize {
        let most = match self.settings.sys_limit {
            0 => usize::MAX,
            limit => events.saturating_sub(ARRIVALS_MOST).max(limit as usize),
        };
        let mut work = 0;
        while work < most {
            let Some(event) = self.event(self.objects.queues.sys, "SYS") else {
                break;
            };
            self.sys_event(&event);
            work += 1;
        }
        work
    }

    #[cold]
    fn sys_event(&mut self, event: &Event) {
        if event.kind == EventKind::PtDisabled {
            return self.fail(Fault::Disabled(event.pt_index));
        }
        if event.kind != EventKind::Put || event.fail != NiFail::Ok {
            return;
        }
        if Id::of(event.match_bits) == Some(Id::Boot) {
            let from = self.ranks.rank(event.initiator);
            let landed =
                from.is_some_and(|from| self.boot.landed(from, event.hdr_data, event.place, event.mlength));
            if !landed {
                self.hostile();
            }
            return;
        }
        let Some(message) = SysMessage::of(event.match_bits, event.hdr_data) else {
            return self.hostile();
        };
        let [from, second, third] = message.args;
        if self.ranks.process(from) != Some(event.initiator) {
            return self.hostile();
        }
        match message.kind {
            SysKind::Barrier => {
                if !self.barrier.message(from, [second, third]) {
                    return self.hostile();
                }
                while let Some(tell) = self.barrier.next() {
                    self.send_barrier(tell);
                }
            }
            SysKind::ShutdownRequest => {
                let known = u8::try_from(third).is_ok_and(|code| self.exit.message(from, second, code));
                if !known {
                    self.hostile();
                }
            }
            // It has at most one that is not answered: so what waits to be sent has a bound.
            SysKind::CreditRevoke if self.owes_return(event.initiator) => self.hostile(),
            SysKind::CreditRevoke => match self.credits.revoked(from, second != 0) {
                Ok(give) => {
                    let args = [self.me, give.give.into(), give.epoch.into()];
                    self.send(from, SysKind::CreditReturn, args);
                }
                Err(_) => self.hostile(),
            },
            SysKind::CreditReturn => {
                let give = u16::try_from(second);
                let known = give.is_ok_and(|give| self.credits.returned(from, give, third != 0).is_ok());
                if !known {
                    self.hostile();
                }
            }
        }
    }

    /// Sends the revocations that the credit state requests.
    #[cold]
    pub(crate) fn revoke(&mut self) {
        while let Some(revoke) = self.credits.next_revoke() {
            if self.lost.iter().any(|(rank, _)| *rank == revoke.to) {
                self.not_returned(revoke.to);
                continue;
            }
            self.send(
                revoke.to,
                SysKind::CreditRevoke,
                [self.me, revoke.epoch.into(), 0],
            );
        }
    }

    /// A lost rank answers no revocation: counts as if it returned nothing.
    pub(crate) fn not_returned(&mut self, rank: u32) {
        if self
            .credits
            .peer(rank)
            .is_some_and(|peer| peer.is_being_revoked())
        {
            let _ = self.credits.returned(rank, 0, false);
        }
    }

    /// Whether the answer to a revocation still waits for room.
    fn owes_return(&self, to: Process) -> bool {
        self.deferred
            .iter()
            .any(|waits| waits.process() == to && waits.is_system(SysKind::CreditReturn))
    }

    /// Continues the exit; returns the work done.
    pub(crate) fn advance_exit(&mut self, now: Time) -> usize {
        if self.exit.is_running() {
            return 0;
        }
        let mut work = 0;
        while let Some(tell) = self.exit.next(now, self.blocked()) {
            work += 1;
            let args = [self.me, tell.step, tell.code.into()];
            self.send(tell.to, SysKind::ShutdownRequest, args);
        }
        // The last message may just have been sent.
        self.exit.next(now, self.blocked());
        for at in 0..self.lost.len() {
            let (rank, reason) = self.lost[at];
            self.exit.lost(rank, reason);
        }
        work
    }

    /// A rank that something waits to be sent to.
    fn blocked(&self) -> Option<u32> {
        self.ranks.rank(self.deferred.front()?.process())
    }

    fn send_barrier(&mut self, tell: barrier::Tell) {
        let [place, id] = tell.args;
        self.send(tell.to, SysKind::Barrier, [self.me, place, id]);
    }

    /// Sends a system message.
    fn send(&mut self, to: u32, kind: SysKind, args: [u32; 3]) {
        let Some(process) = self.ranks.process(to) else {
            return;
        };
        self.stats.system += 1;
        let message = SysMessage { kind, args };
        let put = Put {
            from: Piece {
                md: self.objects.nothing,
                offset: 0,
            },
            length: 0,
            ack: AckReq::None,
            target: Target {
                process,
                pt_index: SYS_INDEX,
                match_bits: message.match_bits(),
                remote_offset: 0,
            },
            user_ptr: Id::Sys as u64,
            hdr_data: message.hdr_data(),
        };
        self.begin_put(&put, Then::Nothing);
    }
}
