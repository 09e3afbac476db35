//! The thread that reads other ranks' entries from the launcher.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::{News, Shared};
use crate::acm;
use crate::config::Config;
use crate::launcher::LauncherHandle;
use crate::meet::{RankInfo, pmi};

/// The source of other ranks' entries.
#[derive(Clone, Debug)]
pub struct Source {
    /// The launcher, which has the values that its ranks published.
    pub launcher: LauncherHandle,
    /// This rank's place among those of its host, and how many those are, where the launcher reports them.
    pub local: (Option<u32>, Option<u32>),
    /// The configuration: whether, and how, addresses are resolved.
    pub config: Config,
}

impl Source {
    pub(super) fn here(&self) -> Option<u32> {
        self.local.1
    }

    pub(super) fn local_rank(&self) -> Option<u32> {
        self.local.0
    }
}

#[derive(Debug, Default)]
struct Orders {
    /// Ranks that are needed.
    ranks: VecDeque<u32>,
    /// Ranks that a search goes through.
    around: VecDeque<u32>,
    /// Whether the owner has not handled the last result of the search yet.
    unseen: bool,
    /// Whether each rank's entry was ever requested.
    asked: Vec<bool>,
    started: bool,
    closed: bool,
}

#[derive(Debug)]
struct Inner {
    orders: Mutex<Orders>,
    more: Condvar,
}

#[derive(Debug)]
pub(super) struct Reader {
    inner: Arc<Inner>,
    source: Source,
    own: RankInfo,
    zero: RankInfo,
    shared: Weak<Shared>,
}

impl Reader {
    pub(super) fn new(source: Source, own: RankInfo, zero: RankInfo, shared: Weak<Shared>) -> Self {
        let mut asked = vec![false; own.size as usize];
        for known in [own.rank, zero.rank] {
            asked[known as usize] = true;
        }
        let orders = Orders {
            asked,
            ..Orders::default()
        };
        Self {
            inner: Arc::new(Inner {
                orders: Mutex::new(orders),
                more: Condvar::new(),
            }),
            source,
            own,
            zero,
            shared,
        }
    }

    /// Requests a rank's entry, unless it was requested before; the first request starts the thread.
    pub(super) fn ask(&self, rank: u32) -> Result<(), String> {
        let mut orders = self.inner.lock();
        if let Some(asked) = orders.asked.get_mut(rank as usize).filter(|asked| !**asked) {
            *asked = true;
            orders.ranks.push_back(rank);
        }
        self.wake(orders)
    }

    /// Requests entries in this order, each after the owner has handled the one before, until
    /// [`Reader::found`].
    pub(super) fn search(&self, around: impl IntoIterator<Item = u32>) -> Result<(), String> {
        let mut orders = self.inner.lock();
        if orders.around.is_empty() {
            orders.around.extend(around);
        }
        self.wake(orders)
    }

    /// Ends the search.
    pub(super) fn found(&self) {
        self.inner.lock().around.clear();
    }

    /// Lets the search go on to the next rank.
    pub(super) fn seen(&self) {
        self.inner.lock().unseen = false;
        self.inner.more.notify_one();
    }

    fn wake(&self, mut orders: MutexGuard<'_, Orders>) -> Result<(), String> {
        let wanted = !orders.ranks.is_empty() || !orders.around.is_empty();
        if wanted && !orders.started {
            self.start()?;
            orders.started = true;
        }
        self.inner.more.notify_one();
        Ok(())
    }

    fn start(&self) -> Result<(), String> {
        let work = Work {
            inner: Arc::clone(&self.inner),
            source: self.source.clone(),
            own: self.own.clone(),
            zero: self.zero.clone(),
            shared: Weak::clone(&self.shared),
        };
        let thread = thread::Builder::new().name("doorbell-names".to_owned());
        let started = thread.spawn(move || work.run());
        started.map(drop).map_err(|error| {
            let remedy = doorbell_fabric::error::advice(&error);
            let remedy = remedy.unwrap_or("check `ulimit -u` and the container's limit of threads");
            format!("the thread that looks it up cannot start ({error}); {remedy}")
        })
    }

    pub(super) fn close(&self) {
        let mut orders = self.inner.lock();
        orders.closed = true;
        orders.ranks.clear();
        orders.around.clear();
        self.inner.more.notify_one();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next rank to read; `None` at the end.
    fn next(&self) -> Option<u32> {
        let mut orders = self.lock();
        loop {
            if orders.closed {
                return None;
            }
            if let Some(rank) = orders.ranks.pop_front().or_else(|| orders.next_around()) {
                return Some(rank);
            }
            orders = self.more.wait(orders).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Orders {
    /// Takes the next rank of the search, unless the owner has yet to handle the last one.
    fn next_around(&mut self) -> Option<u32> {
        if self.unseen {
            return None;
        }
        loop {
            let rank = self.around.pop_front()?;
            if let Some(asked) = self.asked.get_mut(rank as usize).filter(|asked| !**asked) {
                *asked = true;
                self.unseen = true;
                return Some(rank);
            }
        }
    }
}

/// The state of the thread.
struct Work {
    inner: Arc<Inner>,
    source: Source,
    own: RankInfo,
    zero: RankInfo,
    shared: Weak<Shared>,
}

impl Work {
    fn run(self) {
        while let Some(rank) = self.inner.next() {
            let read = self.read(rank);
            // The table is gone, and with it the owner of the rails.
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            let trouble = match read {
                Ok(info) => {
                    shared.resolved(self.resolve(&info));
                    shared.learn(info);
                    None
                }
                Err(trouble) => Some(trouble),
            };
            shared.news.send([News { rank, trouble }]);
        }
    }

    /// Reads what a rank has published, and checks that its job and settings match ours.
    fn read(&self, rank: u32) -> Result<RankInfo, String> {
        let limit: Duration = *self.source.config.job.timeout.get();
        let mut launcher = self
            .source
            .launcher
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let info = pmi::read(&mut **launcher, rank, &self.own, limit).map_err(|error| error.to_string())?;
        drop(launcher);
        info.check(&self.zero)?;
        Ok(info)
    }

    fn resolve(&self, info: &RankInfo) -> Vec<acm::Resolution> {
        let found = acm::consult(&self.source.config, &self.own, [info]);
        acm::report_fallback(self.own.rank, &found);
        found
    }
}
