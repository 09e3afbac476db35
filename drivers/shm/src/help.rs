//! The owner's half of a read that both ends copy: see [`crate::board`].

use std::time::Instant;

use doorbell_fabric::message::{PeerIndex, Remote};

use crate::board::{ALIVE, Call, Cut};
use crate::lease::{Leases, holder};
use crate::pull::{Memory, hung_up};
use crate::rail::ShmRail;
use crate::sys;

/// The call that our answer is about, and what we have done for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Helping {
    /// The reader's name among the holders of leases, and the number of its call.
    call: (u64, u64),
    /// Shares begun, all of which have ended, and when the last one did: the reader was there then.
    begun: u64,
    last: Option<Instant>,
    /// Shares copied for peers so far.
    pub(crate) shares: u64,
}

impl ShmRail {
    /// Copies one share of what a peer reads of us at present, if one is left. Returns how many were copied.
    #[inline(never)]
    pub(crate) fn help(&mut self) -> usize {
        for at in 0..self.leases.borrowers().len() {
            let (peer, _) = self.leases.borrowers()[at];
            if self.help_one(peer) {
                self.helping.shares += 1;
                return 1;
            }
        }
        0
    }

    fn help_one(&mut self, peer: PeerIndex) -> bool {
        let Self {
            peers,
            leases,
            helping,
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
        let number = memory.leases().board().number();
        if number == 0 || number == memory.helped || memory.unwritable || !memory.readable() {
            return false;
        }
        let current = helping.call == (reader, number);
        if memory.answered == number && !current {
            // We turned to another one meanwhile.
            memory.helped = number;
            return false;
        }
        let Some(call) = memory.leases().board().call_to(*us) else {
            return false;
        };
        // The number of a process that has ended may be somebody else's by now.
        let sign = if current {
            helping.last
        } else {
            leases.lent_at(call.key)
        };
        let alive = sign.is_some_and(|at| at.elapsed() < ALIVE);
        if (!alive && hung_up(socket)) || !helping.share(memory, leases, reader, &call) {
            memory.helped = number;
            return false;
        }
        true
    }
}

impl Helping {
    /// Copies one share; `false` when there is none left, or none that may be copied, for good.
    fn share(&mut self, memory: &mut Memory, leases: &Leases, reader: u64, call: &Call) -> bool {
        let lent = Remote {
            key: call.key.into(),
            address: call.from.into(),
            length: call.length.into(),
        };
        let cut = Cut::of(call.length).filter(|cut| cut.share == call.share && leases.lent(&lent, reader));
        let Some(cut) = cut else {
            return false;
        };
        let ours = leases.board();
        if self.call != (reader, call.number) {
            memory.answered = call.number;
            ours.answer(reader, call.number);
            (self.call, self.begun, self.last) = ((reader, call.number), 0, None);
        }
        let mine = self.begun + 1;
        let theirs = memory.leases().board();
        // Whatever the reader says, the first share is its own.
        let free = || theirs.begun().max(1).saturating_add(mine) <= cut.shares;
        if !free() {
            return false;
        }
        ours.begin_back(mine);
        // Only now: see the board's rule. The number last: what the next call says of its beginning comes after its end.
        if free() && theirs.number() == call.number {
            let (at, length) = cut.share(cut.shares - mine);
            match write(memory.process(), call, at, length) {
                Ok(()) => {
                    ours.end_back(mine);
                    (self.begun, self.last) = (mine, Some(Instant::now()));
                    return true;
                }
                Err(refused) => memory.unwritable = refused,
            }
        }
        ours.begin_back(self.begun);
        false
    }
}

/// Writes all of a share; an error tells whether the system will refuse all others too.
fn write(pid: i32, call: &Call, at: u64, length: u64) -> Result<(), bool> {
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
