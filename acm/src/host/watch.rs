//! Watches the endpoints of this host for changes.
//!
//! ```text
//!   netlink: link, address, route   ──►  readable  ───┐
//!   a queue pair's port has changed ──►  look_again ──┼──►  scan(): everything again  ──►  reported if it
//!   each 5 s, where RDMA may be     ──────────────────┘                                    differs
//! ```
//!
//! The kernel sends no notification about a port of InfiniBand without an interface over it. So a host that
//! may have such a port, now or after its driver was loaded again, is scanned at intervals, and when a queue
//! pair reports that its port may have changed.
//!
//! The content of a notification is ignored, so that none need be received: after an overflow of the socket
//! (ENOBUFS), the next scan sees everything, as every scan does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use doorbell_inet::NicMonitor;
use tokio::io::unix::AsyncFd;

use super::{HostError, HostInventory, Sources, infiniband, scan};
use crate::register::registered;

/// Notifications come in bursts: delay from the first one to the scan.
const SWARM: Duration = Duration::from_millis(5);
/// Delay before a scan that failed is repeated.
const AGAIN: Duration = Duration::from_millis(200);
/// How often a host that may have ports of InfiniBand is scanned.
const PORTS: Duration = Duration::from_secs(5);

/// Watches the endpoints of this host.
#[derive(Debug)]
pub struct HostWatch {
    news: NicMonitor,
    sources: Sources,
    last: HostInventory,
    /// Whether a scan is due although no notification waits: the last one failed, the sources changed, or the
    /// kernel does not report what may have changed.
    behind: bool,
    /// How often a host that may have ports of InfiniBand is scanned.
    pub(super) pause: Duration,
}

impl HostWatch {
    /// Scans the endpoints, for [`HostWatch::found`], and watches them from now on.
    ///
    /// # Errors
    /// When the kernel does not list its interfaces, or does not report changes.
    pub fn new(sources: Sources) -> Result<Self, HostError> {
        // Open the socket first, so that no change after the scan is missed.
        let news = NicMonitor::new().map_err(HostError::Watch)?;
        let last = scan(&sources)?;
        Ok(Self {
            news,
            sources,
            last,
            behind: false,
            pause: PORTS,
        })
    }

    /// Returns the result of the last scan.
    #[must_use]
    pub fn found(&self) -> &HostInventory {
        &self.last
    }

    /// Replaces the sources, after `ibacm_addr.cfg` changed. The next scan reports a difference as a change.
    pub fn rename(&mut self, sources: Sources) {
        self.sources = sources;
        self.behind = true;
    }

    /// Has the next [`poll`](Self::poll) scan although no notification waits: something may have changed that
    /// the kernel does not report.
    pub fn look_again(&mut self) {
        self.behind = true;
    }

    /// Whether a scan is due although no notification waits.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Scans if a notification has come; returns the new state if it differs. Never blocks.
    ///
    /// # Errors
    /// When the kernel does not list its interfaces; the next call tries again.
    pub fn poll(&mut self) -> Result<Option<&HostInventory>, HostError> {
        if !self.news.drain() && !self.behind {
            return Ok(None);
        }
        self.behind = true;
        let now = scan(&self.sources)?;
        self.behind = false;
        if now == self.last {
            return Ok(None);
        }
        self.last = now;
        Ok(Some(&self.last))
    }

    /// Waits until the endpoints have changed; [`HostWatch::found`] has the new ones.
    ///
    /// # Errors
    /// When the runtime shuts down. A scan that fails is repeated.
    pub async fn changed(watch: &mut AsyncFd<Self>) -> io::Result<()> {
        loop {
            if watch.get_ref().behind {
                tokio::time::sleep(AGAIN).await;
            } else if infiniband::may_have_ports(&watch.get_ref().sources.sys) {
                let pause = watch.get_ref().pause;
                match tokio::time::timeout(pause, watch.readable_mut()).await {
                    Ok(readable) => {
                        readable?.clear_ready();
                        tokio::time::sleep(SWARM).await;
                    }
                    Err(_) => watch.get_mut().look_again(),
                }
            } else {
                watch.readable_mut().await?.clear_ready();
                tokio::time::sleep(SWARM).await;
            }
            if matches!(watch.get_mut().poll(), Ok(Some(_))) {
                return Ok(());
            }
        }
    }

    /// Registers the watch with tokio; call it within a runtime.
    ///
    /// # Errors
    /// When the runtime cannot register the descriptor.
    pub fn registered(self) -> io::Result<AsyncFd<Self>> {
        registered(self)
    }
}

impl AsFd for HostWatch {
    /// Readable when a notification has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

impl AsRawFd for HostWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.news.as_raw_fd()
    }
}
