//! One descriptor for foreign event loops (FI_WAIT_FD): readable when a rail, or the dedicated thread, has
//! something.
//!
//! ```text
//!   loop:  next_completion ─► something: handle it, again
//!                          └► nothing: arm ─► Some(longest): poll(descriptor, longest), disarm
//!                                         └─► None: something came in between, again
//! ```

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use doorbell_fabric::rail::{Armed, Rail};
use doorbell_job::error::Error;
use doorbell_job::wait::turns::Clock;
use rustix::event::epoll;
use rustix::io::Errno;

use super::core::Core;
use super::{Completion, Engine, ThreadHandle};

/// The descriptor set of a core that can be armed.
#[derive(Default)]
pub(crate) struct Watch {
    set: Option<OwnedFd>,
    /// The descriptors of rails that are in the set.
    members: Vec<RawFd>,
    /// A completion that arming has found, to be returned next.
    pub(crate) found: Option<Completion>,
}

impl Watch {
    fn set(&mut self) -> Result<&OwnedFd, Error> {
        if self.set.is_none() {
            self.set = Some(
                epoll::create(epoll::CreateFlags::CLOEXEC)
                    .map_err(|error| failed("make an epoll set", error))?,
            );
        }
        self.set.as_ref().ok_or(Error::Busy)
    }
}

fn failed(step: &'static str, error: Errno) -> Error {
    Error::io(
        step,
        "the descriptor of completions",
        error.into(),
        "check `ulimit -n`",
    )
}

impl Core {
    fn descriptor(&mut self) -> Result<OwnedFd, Error> {
        self.watch.set()?.try_clone().map_err(|source| {
            Error::io(
                "copy a descriptor",
                "the descriptor of completions",
                source,
                "check `ulimit -n`",
            )
        })
    }

    /// Whether the raw interface has a completion, which is kept for the next call.
    fn look(&mut self) -> bool {
        if self.watch.found.is_none() {
            self.poll_or_progress();
            self.watch.found = self.next_completion();
        }
        self.watch.found.is_some()
    }

    /// Returns the longest sleep; `None`: do not sleep.
    fn may_sleep(&mut self) -> Option<Duration> {
        if self.look() || self.pml.must_poll() || matches!(self.clock, Clock::Virtual(_)) {
            return None;
        }
        let now = self.clock.now();
        Some(
            self.pml
                .next_deadline()
                .map_or(Duration::MAX, |due| due.since(now)),
        )
    }

    fn arm(&mut self) -> Result<Option<Duration>, Error> {
        let Some(longest) = self.may_sleep() else {
            return Ok(None);
        };
        self.watch.set()?;
        let (watch, pml) = (&mut self.watch, &mut self.pml);
        let Some(set) = &watch.set else { return Ok(None) };
        let mut sleeps = true;
        for (_, rail) in pml.rails_mut() {
            let Ok(Armed::Sleep(fd)) = rail.arm() else {
                sleeps = false;
                break;
            };
            if !watch.members.contains(&fd.as_raw_fd()) {
                let data = epoll::EventData::new_u64(0);
                epoll::add(set, fd, data, epoll::EventFlags::IN)
                    .map_err(|error| failed("watch a rail's descriptor", error))?;
                watch.members.push(fd.as_raw_fd());
            }
        }
        if !sleeps {
            self.disarm();
        }
        Ok(sleeps.then_some(longest))
    }

    fn disarm(&mut self) {
        self.pml.rails_mut().for_each(|(_, rail)| rail.disarm());
    }
}

impl Engine {
    /// Returns the descriptor for a foreign event loop: always the same one.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Error> {
        match self {
            Self::Inline(core) => core.hold()?.descriptor(),
            Self::Dedicated(link) => link.descriptor(),
        }
    }

    /// Prepares a sleep on the descriptor, of the returned length at most; `None`: there is a completion to
    /// take.
    pub(crate) fn arm(&self) -> Result<Option<Duration>, Error> {
        match self {
            Self::Inline(core) => core.hold()?.arm(),
            Self::Dedicated(link) => arm_link(link),
        }
    }

    /// Ends the sleep that [`Engine::arm`] prepared.
    pub(crate) fn disarm(&self) {
        match self {
            Self::Inline(core) => {
                if let Ok(mut core) = core.hold() {
                    core.disarm();
                }
            }
            Self::Dedicated(link) => {
                link.bell().finish();
                let _ = link.call(|desk| desk.tell = false);
            }
        }
    }
}

/// Arms the thread's bell. While `tell` is set, the thread rings for every pass that found work; the check
/// comes after the bell was prepared, so that no wake-up is lost.
fn arm_link(link: &ThreadHandle) -> Result<Option<Duration>, Error> {
    link.bell().prepare();
    let found = link.call(|desk| {
        desk.tell = true;
        desk.core.look()
    });
    match found {
        Ok(false) => Ok(Some(Duration::MAX)),
        Ok(true) => {
            link.bell().finish();
            link.call(|desk| desk.tell = false).map(|()| None)
        }
        Err(error) => {
            link.bell().finish();
            Err(error)
        }
    }
}
