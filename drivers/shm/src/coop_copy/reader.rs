//! The reader's half of a cooperative copy; see [`crate::coop_copy::state`].

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_fabric::message::{Landing, OpError, OpId, PeerIndex, Remote};
use doorbell_fabric::time::Time;
use rustix::event::PollFlags;
use rustix::process::Signal;

use crate::coop_copy::state::{CoopState, OwnerProgress, ReadRequest, Split};
use crate::lease::Foreign;

/// Polls of the owner's last share before other peers are served: about as long as a share takes.
const LOOKS: u32 = 512;
/// How long an owner may take over a share of an abandoned read before it is sent SIGCONT.
const PATIENCE: Duration = Duration::from_secs(1);
/// The period at which the kernel is queried whether its process has ended.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// Identifies the owner after its connection has been given up.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) leases: Foreign,
    pub(crate) process: Arc<OwnedFd>,
}

/// Most pidfds of owners that are kept.
const OWNERS: usize = 16;

/// The pidfds of those peers that we have copied with most recently, by their ids as holders; none where the
/// system has no pidfds.
#[derive(Default)]
pub(crate) struct Owners {
    recent: Vec<(u64, Option<Arc<OwnedFd>>)>,
}

impl Owners {
    /// Identifies an owner beyond its connection. It is whichever process the pidfd refers to: only one that
    /// answers a later request is waited for.
    pub(crate) fn find(&mut self, holder: u64, pid: i32, leases: &Foreign) -> Option<Owner> {
        let known = self.recent.iter().position(|(known, _)| *known == holder);
        let (_, process) = match known {
            Some(at) => self.recent.remove(at),
            None => {
                let pid = rustix::process::Pid::from_raw(pid)?;
                let opened = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
                (holder, opened.ok().map(Arc::new))
            }
        };
        if self.recent.len() >= OWNERS {
            self.recent.remove(0);
        }
        self.recent.push((holder, process.clone()));
        Some(Owner {
            leases: leases.clone(),
            process: process?,
        })
    }

    /// Closes that of a peer that is gone.
    pub(crate) fn forget(&mut self, holder: u64) {
        self.recent.retain(|(known, _)| *known != holder);
    }
}

/// A read that both ends copy.
pub(crate) struct Shared {
    owner: Owner,
    us: u64,
    number: u64,
    called: Instant,
    split: Split,
    /// Shares we have begun, from the front.
    begun: u64,
    /// The first share was ours from the start, and is still to be copied.
    first: bool,
    /// The owner had begun our last share too: it is the owner's, unless the owner steps back.
    contested: bool,
}

/// The reader's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderStep {
    /// Copy this share, given by offset and length.
    Copy(u64, u64),
    /// Wait for the owner.
    Wait,
    /// Everything has been copied, and the owner writes nothing.
    Done,
}

impl Shared {
    /// Publishes a request for the owner of `from`, divided so.
    pub(crate) fn call(
        coop: CoopState<'_>,
        owner: Owner,
        (us, whom): (u64, u64),
        number: u64,
        (from, into): (&Remote, &Landing),
        split: Split,
    ) -> Self {
        let begun = split.reserved();
        let request = ReadRequest {
            number,
            whom,
            key: from.key.get(),
            from: from.address.get(),
            into: into.as_mut_ptr().addr() as u64,
            length: from.length.get(),
            share: split.share,
        };
        let called = Instant::now();
        coop.publish_request(&request, begun);
        Self {
            owner,
            us,
            number,
            called,
            split,
            begun,
            first: begun == 1,
            contested: false,
        }
    }

    fn answer(&self) -> OwnerProgress {
        self.owner
            .leases
            .coop_state()
            .owner_progress(self.us, self.number, &self.split)
    }

    /// Whether the owner writes nothing at present; final once the request was withdrawn.
    pub(crate) fn settled(&self) -> bool {
        self.answer().settled()
    }

    /// Whether a share is left that neither end has begun.
    pub(crate) fn has_more(&self) -> bool {
        self.begun + self.answer().begun < self.split.shares
    }

    /// When the owner was alive for sure: after it was called, if it has answered.
    pub(crate) fn alive_at(&self) -> Option<Instant> {
        (self.answer().ended != 0).then_some(self.called)
    }

    /// Returns the next step; a share to copy is marked as begun.
    pub(crate) fn step(&mut self, coop: CoopState<'_>) -> ReaderStep {
        if std::mem::take(&mut self.first) {
            return self.last_begun();
        }
        let (answer, shares) = (self.answer(), self.split.shares);
        let taken = self.begun + answer.begun;
        if self.contested && taken <= shares {
            // The owner stepped back.
            self.contested = false;
            return self.last_begun();
        }
        if !self.contested && taken < shares {
            self.begun += 1;
            coop.set_reader_begun(self.begun);
            if self.begun + self.answer().begun <= shares {
                return self.last_begun();
            }
            self.contested = true;
            return ReaderStep::Wait;
        }
        if answer.settled() {
            ReaderStep::Done
        } else {
            ReaderStep::Wait
        }
    }

    /// Like [`Shared::step`], but polls for a while before it returns [`ReaderStep::Wait`].
    pub(crate) fn next(&mut self, coop: CoopState<'_>) -> ReaderStep {
        for _ in 0..LOOKS {
            match self.step(coop) {
                ReaderStep::Wait => std::hint::spin_loop(),
                turn => return turn,
            }
        }
        ReaderStep::Wait
    }

    fn last_begun(&self) -> ReaderStep {
        let (at, length) = self.split.share(self.begun - 1);
        ReaderStep::Copy(at, length)
    }
}

/// A finished read whose owner may still write a share of it; its memory is kept until that has ended.
pub(crate) struct Closing {
    pub(crate) op: OpId,
    pub(crate) peer: PeerIndex,
    pub(crate) number: u64,
    pub(crate) outcome: Result<u64, OpError>,
    /// Kept for as long as the owner may write to it.
    pub(crate) _into: Landing,
    pub(crate) shared: Shared,
    /// When the owner's process is checked next, and when it is sent SIGCONT.
    pub(crate) ask_at: Time,
    pub(crate) urge_at: Option<Time>,
}

impl Closing {
    /// Whether the owner has finished, by its own progress or because its process has ended, which is checked
    /// now and then.
    pub(crate) fn over(&mut self, now: Time) -> bool {
        if self.shared.settled() {
            return true;
        }
        if now < self.ask_at {
            return false;
        }
        self.ask_at = now + ASK_EVERY;
        if ended(&self.shared.owner.process) {
            return true;
        }
        let urge_at = *self.urge_at.get_or_insert(now + PATIENCE);
        if now >= urge_at {
            self.urge_at = Some(now + PATIENCE);
            // A process stopped in the middle of a share would keep this memory for ever. SIGCONT does
            // nothing to a running process; one that a debugger or a freezer holds stays stopped, and so does
            // this read until it is released.
            let _ = rustix::process::pidfd_send_signal(&*self.shared.owner.process, Signal::CONT);
        }
        false
    }
}

/// Whether all threads of a process have ended.
pub(crate) fn ended(process: &OwnedFd) -> bool {
    doorbell_fabric::poll::state(process, PollFlags::IN).is_ok_and(|state| !state.is_empty())
}
