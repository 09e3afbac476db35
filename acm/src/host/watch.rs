//! What this host has, followed while it changes.
//!
//! ```text
//!   netlink: link, address or route  ──►  readable  ──►  look(): everything once more  ──►  told when it is not the same
//! ```
//!
//! What a change was is never looked at, so that nothing depends on having heard all of them: after a flood that the socket
//! could not hold (ENOBUFS), the next look sees everything, as every other look does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use doorbell_inet::NicMonitor;
use tokio::io::unix::AsyncFd;

use super::{Found, HostError, Sources, look};
use crate::waiting::registered;

/// Changes come in swarms: so long after the first of them is looked.
const SWARM: Duration = Duration::from_millis(5);
/// After a look that failed, the next one.
const AGAIN: Duration = Duration::from_millis(200);

/// Follows what this host has.
#[derive(Debug)]
pub struct HostWatch {
    news: NicMonitor,
    sources: Sources,
    last: Found,
    /// The last look failed: what it did not see is still to be looked at.
    behind: bool,
}

impl HostWatch {
    /// What there is now is [`HostWatch::found`]; changes are heard from now on.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn new(sources: Sources) -> Result<Self, HostError> {
        // First the socket: what changes after the look is told.
        let news = NicMonitor::new().map_err(HostError::Watch)?;
        let last = look(&sources)?;
        Ok(Self {
            news,
            sources,
            last,
            behind: false,
        })
    }

    /// What was found by the last look.
    #[must_use]
    pub fn found(&self) -> &Found {
        &self.last
    }

    /// Other names from now on: `ibacm_addr.cfg` has changed. The next look is told as a change if it is one.
    pub fn rename(&mut self, sources: Sources) {
        self.sources = sources;
        self.behind = true;
    }

    /// Whether there is something to look at without anything having been told.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Looks if anything has been told; what it found, if that is not what it was. Never waits.
    ///
    /// # Errors
    /// When the kernel cannot be asked: it is asked again by the next call.
    pub fn look(&mut self) -> Result<Option<&Found>, HostError> {
        if !self.news.drain() && !self.behind {
            return Ok(None);
        }
        self.behind = true;
        let now = look(&self.sources)?;
        self.behind = false;
        if now == self.last {
            return Ok(None);
        }
        self.last = now;
        Ok(Some(&self.last))
    }

    /// Waits until what this host has is not what it was; [`HostWatch::found`] is the new.
    ///
    /// # Errors
    /// When the runtime ends. A look that fails is made again.
    pub async fn changed(watch: &mut AsyncFd<Self>) -> io::Result<()> {
        loop {
            if watch.get_ref().behind {
                tokio::time::sleep(AGAIN).await;
            } else {
                watch.readable_mut().await?.clear_ready();
                tokio::time::sleep(SWARM).await;
            }
            if matches!(watch.get_mut().look(), Ok(Some(_))) {
                return Ok(());
            }
        }
    }

    /// The same, for tokio to wait for; called in a runtime.
    ///
    /// # Errors
    /// When the runtime cannot.
    pub fn registered(self) -> io::Result<AsyncFd<Self>> {
        registered(self)
    }
}

impl AsFd for HostWatch {
    /// Readable when there is something to look at.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

impl AsRawFd for HostWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.news.as_raw_fd()
    }
}
