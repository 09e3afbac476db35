//! What waits while a path is closed, what continues when it opens, and what a failure leaves of the rest.

use crate::agenda::Due;
use crate::state::Net;
use crate::trace::Happened;

impl Net {
    pub(crate) fn stall(&mut self, nic: u32, conn: u32, due: Due) {
        let to = self.conn(nic, conn).nic;
        self.stats(nic).stalled += 1;
        self.note(Happened::Stalled, nic, to, 0, 0);
        self.conn_mut(nic, conn).stalled.push(due);
    }

    /// Ends everything in flight from `nic` to a peer. What has reached the peer's inbox may still be seen.
    pub(crate) fn fail_conn(&mut self, nic: u32, conn: u32) {
        let state = self.conn_mut(nic, conn);
        state.epoch += 1;
        let peer = state.nic;
        for due in std::mem::take(&mut state.stalled) {
            self.forget(due);
        }
        let unflushed = std::mem::take(&mut self.nics[nic as usize].unflushed);
        let (gone, kept): (Vec<u32>, Vec<u32>) = unflushed
            .into_iter()
            .partition(|&message| self.messages[message].conn == conn);
        self.nics[nic as usize].unflushed = kept;
        gone.into_iter().for_each(|message| self.lose(message));
        self.thin_out(peer, nic);
        self.fail_ops(nic, conn);
    }

    /// Decides by coin for each message of `from` that `to` has not polled yet whether it is lost or seen.
    fn thin_out(&mut self, to: u32, from: u32) {
        self.sift(to, |net, sender| sender == from && net.random.chance(0.5));
    }

    /// Drops everything that waits for a poll of `nic`; only what `from` sent, when given.
    pub(crate) fn purge(&mut self, nic: u32, from: Option<u32>) {
        self.sift(nic, |_, sender| from.is_none_or(|from| from == sender));
    }

    /// Drops the messages waiting at `nic` whose sender `lost` selects.
    fn sift(&mut self, nic: u32, lost: impl Fn(&mut Self, u32) -> bool) {
        let state = &mut self.nics[nic as usize];
        let waiting: Vec<u32> = state.inbox.drain(..).chain(state.strangers.drain(..)).collect();
        for message in waiting {
            let sender = self.messages[message].from;
            if lost(self, sender) {
                self.lose(message);
            } else {
                self.queue(nic, message);
            }
        }
    }

    fn forget(&mut self, due: Due) {
        match due {
            Due::Arrive { message } => self.lose(message),
            Due::Request { op } | Due::Reply { op } => self.forget_op(op),
            _ => {}
        }
    }

    /// Resumes what waited for the path; it waits again if the path is still closed.
    pub(crate) fn resume(&mut self, nic: u32, conn: u32) {
        let state = self.conn_mut(nic, conn);
        if state.stalled.is_empty() {
            return;
        }
        let (out, back) = (state.link_out, state.link_back);
        for due in std::mem::take(&mut state.stalled) {
            let link = match due {
                Due::Arrive { .. } | Due::Request { .. } => out,
                _ => back,
            };
            let at = self.transit(link, self.now);
            self.agenda.push(at, due);
        }
    }
}
