//! The owner's half of a cooperative copy; see [`crate::coop_copy::state`].

use std::time::Instant;

use doorbell_fabric::message::{PeerIndex, Remote};

use crate::coop_copy::state::{ALIVE, ReadRequest, Split};
use crate::lease::{Leases, holder};
use crate::pull::{Memory, hung_up};
use crate::rail::ShmRail;
use crate::sys;

/// The request that we serve, and our work for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoopOwner {
    /// The reader's id as a lease holder, and the number of its request.
    call: (u64, u64),
    /// Finished shares, and when the last one ended: the reader was alive then.
    begun: u64,
    last: Option<Instant>,
    /// Shares copied for peers so far.
    pub(crate) shares: u64,
}

impl ShmRail {
    /// Copies one share of what a peer reads from us at present, if one is left. Returns how many were
    /// copied.
    #[inline(never)]
    pub(crate) fn copy_share(&mut self) -> usize {
        for at in 0..self.leases.borrowers().len() {
            let (peer, _) = self.leases.borrowers()[at];
            if self.copy_share_for(peer) {
                self.coop_owner.shares += 1;
                return 1;
            }
        }
        0
    }

    fn copy_share_for(&mut self, peer: PeerIndex) -> bool {
        let Self {
            peers,
            leases,
            coop_owner,
            holder: us,
            ..
        } = self;
        let Some(known) = peers.get_mut(peer.index()) else {
            return false;
        };
        let reader = holder(&known.id);
        let (Some(memory), Some(socket)) = known.memory_and_socket() else {
            return false;
        };
        let number = memory.leases().coop_state().number();
        if number == 0 || number == memory.helped || memory.unwritable || !memory.readable() {
            return false;
        }
        let current = coop_owner.call == (reader, number);
        if memory.answered == number && !current {
            // We have turned to another request meanwhile.
            memory.helped = number;
            return false;
        }
        let Some(call) = memory.leases().coop_state().request_for(*us) else {
            return false;
        };
        // The pid of an ended process may have been reused.
        let sign = if current {
            coop_owner.last
        } else {
            leases.lent_at(call.key)
        };
        let alive = sign.is_some_and(|at| at.elapsed() < ALIVE);
        if (!alive && hung_up(socket)) || !coop_owner.share(memory, leases, reader, &call) {
            memory.helped = number;
            return false;
        }
        true
    }
}

impl CoopOwner {
    /// Copies one share; `false` if none is left for us, which is final.
    fn share(&mut self, memory: &mut Memory, leases: &Leases, reader: u64, call: &ReadRequest) -> bool {
        let lent = Remote {
            key: call.key.into(),
            address: call.from.into(),
            length: call.length.into(),
        };
        let split = Split::requested(call.length, call.share).filter(|_| leases.lent(&lent, reader));
        let Some(split) = split else {
            return false;
        };
        let ours = leases.coop_state();
        if self.call != (reader, call.number) {
            memory.answered = call.number;
            ours.accept_request(reader, call.number);
            (self.call, self.begun, self.last) = ((reader, call.number), 0, None);
        }
        let mine = self.begun + 1;
        let theirs = memory.leases().coop_state();
        // The first of several is always the reader's own, whatever it publishes.
        let free = || theirs.reader_begun().max(split.reserved()).saturating_add(mine) <= split.shares;
        if !free() {
            return false;
        }
        ours.set_owner_begun(mine);
        // Only now, by the protocol. The number is read last: the count of a later request is published after
        // this one's end.
        if free() && theirs.number() == call.number {
            let (at, length) = split.share(split.shares - mine);
            match write(memory.process(), call, at, length) {
                Ok(()) => {
                    ours.set_owner_ended(mine);
                    (self.begun, self.last) = (mine, Some(Instant::now()));
                    return true;
                }
                Err(refused) => memory.unwritable = refused,
            }
        }
        ours.set_owner_begun(self.begun);
        false
    }
}

/// Writes a whole share; an error contains whether the system would refuse all others too.
fn write(pid: i32, call: &ReadRequest, at: u64, length: u64) -> Result<(), bool> {
    let mut done = 0;
    while done < length {
        let from = call.from.wrapping_add(at + done);
        let into = call.into.wrapping_add(at + done);
        match sys::write_process(pid, from, into, (length - done) as usize) {
            Ok(0) => return Err(false),
            Ok(written) => done += written as u64,
            Err(error) => return Err(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))),
        }
    }
    Ok(())
}
