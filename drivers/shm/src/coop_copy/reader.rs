//! The reader's half of a read that both ends copy: see [`crate::coop_copy::state`].

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_fabric::message::{Landing, OpError, OpId, PeerIndex, Remote};
use doorbell_fabric::time::Time;
use rustix::process::Signal;

use crate::coop_copy::state::{ALIVE, CoopState, OwnerProgress, ReadRequest, Split};
use crate::lease::Foreign;

/// Looks at the owner's last share before others get their turn: as long as a share takes, about.
const LOOKS: u32 = 512;
/// How long an owner may take over a share of a read that has been given up before it is told to go on.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the system is asked whether it has ended.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// What the owner is known by after the way to it has been given up.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) leases: Foreign,
    pub(crate) process: Arc<OwnedFd>,
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
    /// The first share, which is ours in any case, is still to be copied.
    first: bool,
    /// The owner had begun the last of them too: it is the owner's, unless it steps back.
    contested: bool,
}

/// What the reader does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderStep {
    /// Copies this share: offset and length.
    Copy(u64, u64),
    /// Waits for the owner.
    Wait,
    /// Nothing: everything has been copied, and nobody writes any more.
    Done,
}

impl Shared {
    /// Calls the owner of `from`; `None` when the read is not worth it.
    pub(crate) fn call(
        coop: CoopState<'_>,
        owner: Owner,
        (us, whom): (u64, u64),
        number: u64,
        from: &Remote,
        into: &Landing,
    ) -> Option<Self> {
        let split = Split::of(from.length.get())?;
        coop.publish_request(&ReadRequest {
            number,
            whom,
            key: from.key.get(),
            from: from.address.get(),
            into: into.as_mut_ptr().addr() as u64,
            length: from.length.get(),
            share: split.share,
        });
        Some(Self {
            owner,
            us,
            number,
            called: Instant::now(),
            split,
            begun: 1,
            first: true,
            contested: false,
        })
    }

    fn answer(&self) -> OwnerProgress {
        self.owner
            .leases
            .coop_state()
            .owner_progress(self.us, self.number, &self.split)
    }

    /// Whether the owner writes nothing at present. After the call was taken down it stays so.
    pub(crate) fn settled(&self) -> bool {
        self.answer().settled()
    }

    /// Whether the owner has answered, and not long ago: then its process was there after all that we have read but the
    /// last moments.
    pub(crate) fn alive(&self) -> bool {
        self.answer().ended != 0 && self.called.elapsed() < ALIVE
    }

    /// What is next; what it says to copy is begun.
    pub(crate) fn step(&mut self, coop: CoopState<'_>) -> ReaderStep {
        if std::mem::take(&mut self.first) {
            return self.last_begun();
        }
        let (answer, shares) = (self.answer(), self.split.shares);
        let taken = self.begun + answer.begun;
        if self.contested && taken <= shares {
            // It stepped back.
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

    /// As [`Shared::step`], but looks for a while before it says that there is something to wait for.
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

/// A read that is over while its owner may still write a share of it: its memory is not given back before that has ended
/// too.
pub(crate) struct Closing {
    pub(crate) op: OpId,
    pub(crate) peer: PeerIndex,
    pub(crate) number: u64,
    pub(crate) outcome: Result<u64, OpError>,
    /// Kept for as long as it may be written to.
    pub(crate) _into: Landing,
    pub(crate) shared: Shared,
    /// When the system is asked about the owner's process next, and when that is told to go on.
    pub(crate) ask_at: Time,
    pub(crate) urge_at: Option<Time>,
}

impl Closing {
    /// Whether the owner is out of it, by its word, or because its process has ended: the system is asked now and then.
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
            // Stopped in the middle of a share it would hold this memory for ever. Nothing happens to a process that
            // runs; one that a debugger or a freezer holds stays where it is, and this lasts until they let go.
            let _ = rustix::process::pidfd_send_signal(&*self.shared.owner.process, Signal::CONT);
        }
        false
    }
}

/// Whether a process has ended, all threads of it.
fn ended(process: &OwnedFd) -> bool {
    let mut look = [rustix::event::PollFd::from_borrowed_fd(
        process.as_fd(),
        rustix::event::PollFlags::IN,
    )];
    let none = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut look, Some(&none)), Ok(1))
}
