//! The thread that asks the launcher who a rank is.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::{News, Shared};
use crate::acm;
use crate::config::Config;
use crate::launcher::Door;
use crate::meet::{Hello, launched};

/// Where ranks are asked for.
#[derive(Clone, Debug)]
pub struct Source {
    /// The launcher. What its ranks have put is there.
    pub door: Door,
    /// How many ranks are on this host, where it says so.
    pub local_size: Option<u32>,
    /// Whether, and how, addresses are resolved.
    pub config: Config,
}

impl Source {
    pub(super) fn here(&self) -> Option<u32> {
        self.local_size
    }
}

#[derive(Debug, Default)]
struct Orders {
    /// Those that are needed.
    ranks: VecDeque<u32>,
    /// Those of whom one is looked for.
    around: VecDeque<u32>,
    /// The last of them was read, and nobody has looked whether it is the one.
    unseen: bool,
    /// Those that were ever asked for.
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
    own: Hello,
    zero: Hello,
    shared: Weak<Shared>,
}

impl Reader {
    pub(super) fn new(source: Source, own: Hello, zero: Hello, shared: Weak<Shared>) -> Self {
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

    /// Asks for a rank, if it was not asked for; the thread begins with the first.
    pub(super) fn ask(&self, rank: u32) -> Result<(), String> {
        let mut orders = self.inner.lock();
        if let Some(asked) = orders.asked.get_mut(rank as usize).filter(|asked| !**asked) {
            *asked = true;
            orders.ranks.push_back(rank);
        }
        self.wake(orders)
    }

    /// Asks for ranks in this order, one by one, each after it was looked at what the last one is, until one of them was
    /// found.
    pub(super) fn search(&self, around: impl IntoIterator<Item = u32>) -> Result<(), String> {
        let mut orders = self.inner.lock();
        if orders.around.is_empty() {
            orders.around.extend(around);
        }
        self.wake(orders)
    }

    /// It was found.
    pub(super) fn found(&self) {
        self.inner.lock().around.clear();
    }

    /// It was looked at what was told.
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
            format!("the thread that asks for it cannot start ({error}); {remedy}")
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

    /// The next rank that is asked for; `None` at the end.
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
    /// The next one of those among whom one is looked for, when it is time for it.
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

/// What the thread has.
struct Work {
    inner: Arc<Inner>,
    source: Source,
    own: Hello,
    zero: Hello,
    shared: Weak<Shared>,
}

impl Work {
    fn run(self) {
        while let Some(rank) = self.inner.next() {
            let read = self.read(rank);
            // Nobody is left who would want to know.
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            let trouble = match read {
                Ok(hello) => {
                    shared.resolved(self.resolve(&hello));
                    shared.learn(hello);
                    None
                }
                Err(trouble) => Some(trouble),
            };
            shared.tell(News { rank, trouble });
        }
    }

    /// What a rank has put, if it fits to us.
    fn read(&self, rank: u32) -> Result<Hello, String> {
        let limit: Duration = *self.source.config.job.timeout.get();
        let mut door = self.source.door.lock().unwrap_or_else(PoisonError::into_inner);
        let hello = launched::read(&mut **door, rank, &self.own, limit).map_err(|error| error.to_string())?;
        drop(door);
        hello.check(&self.zero)?;
        Ok(hello)
    }

    fn resolve(&self, hello: &Hello) -> Vec<acm::Resolution> {
        let found = acm::consult(&self.source.config, &self.own, [hello]);
        acm::tell(self.own.rank, &found);
        found
    }
}
