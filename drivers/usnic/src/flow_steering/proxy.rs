//! A physical function that this process drives does it.

use std::os::fd::BorrowedFd;

use doorbell_fabric::ether::Mac;

use super::{OwnFunction, Parent, Request, Steering, Trouble};
use crate::pf::Pf;
use crate::pf_watchdog::{Change, PfWatchdog};

/// Steering by a physical function that this process drives.
pub(crate) struct Proxy {
    watchdog: PfWatchdog,
    index: u32,
    is_asked: bool,
    /// A request that waits for the end of a health check of the physical function.
    wanted: Option<Request>,
    ended: Option<Result<u64, Trouble>>,
    /// The reply that comes next is that of a request that was given up.
    is_stale: bool,
    /// Why it is not there.
    why: String,
}

impl Proxy {
    /// Steers for the function with this index.
    pub(crate) fn new(pf: Pf, index: u32) -> Self {
        Self {
            watchdog: PfWatchdog::new(pf),
            index,
            is_asked: false,
            wanted: None,
            ended: None,
            is_stale: false,
            why: String::new(),
        }
    }

    fn turn(&mut self) {
        if let Some(Change::Lost(why)) = self.watchdog.turn(&mut self.ended) {
            self.why = why;
        }
        if self.is_stale && self.ended.is_some() {
            (self.is_stale, self.ended) = (false, None);
        }
        if let Some(pf) = self.watchdog.pf() {
            if let Some(request) = self.wanted.take_if(|_| pf.is_idle()) {
                self.ended = pf.begin(self.index, request).err().map(Err);
            }
        } else if std::mem::take(&mut self.is_asked) {
            (self.wanted, self.is_stale) = (None, false);
            self.ended = Some(Err(self.trouble()));
        }
    }

    fn trouble(&self) -> Trouble {
        Trouble::agent(
            format!("the physical function is being opened again ({})", self.why),
            "wait; if it stays so, see what `doorbell doctor` reports",
        )
    }
}

impl Steering for Proxy {
    fn begin(&mut self, _: &mut OwnFunction, request: Request) -> Result<(), Trouble> {
        self.turn();
        if !self.watchdog.is_here() {
            return Err(self.trouble());
        }
        self.is_stale |= self.is_asked && self.wanted.is_none() && self.ended.is_none();
        (self.wanted, self.ended, self.is_asked) = (Some(request), None, true);
        Ok(())
    }

    fn poll(&mut self, _: &mut OwnFunction) -> Option<Result<u64, Trouble>> {
        self.turn();
        let ended = self.ended.take()?;
        self.is_asked = false;
        Some(ended)
    }

    fn parent(&mut self) -> Result<Parent, Trouble> {
        // Commands that end here belong to the caller that polls for them.
        self.turn();
        if !self.watchdog.is_here() {
            return Err(self.trouble());
        }
        Ok(Parent {
            news: self.watchdog.news(),
            life: self.watchdog.life(),
        })
    }

    fn mac(&mut self) -> Option<Mac> {
        self.watchdog.info().mac
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn renew(&mut self) -> Result<bool, Trouble> {
        self.turn();
        if self.watchdog.is_here() {
            Ok(true)
        } else {
            Err(self.trouble())
        }
    }

    fn orphan(&mut self) -> Option<u64> {
        let (index, id) = self.watchdog.pf()?.orphan()?;
        (index == self.index).then_some(id)
    }

    fn is_slow_to_go(&self) -> bool {
        // The physical function is closed, or its opening waited for.
        true
    }

    fn how(&self) -> &'static str {
        "filters by its physical function, which this process has"
    }
}
