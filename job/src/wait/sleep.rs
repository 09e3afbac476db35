//! Sleeping on descriptors that are known for one call only: an epoll set keeps them, each for one wake-up.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use doorbell_fabric::poll::timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// The epoll set. A descriptor stays in it once it was watched, and wakes once for each watch.
pub struct Sleeper {
    set: OwnedFd,
    /// Whether all descriptors of this turn are in the set.
    whole: bool,
    any: bool,
}

impl Sleeper {
    /// Makes an empty set.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            set: epoll::create(CreateFlags::CLOEXEC)?,
            whole: true,
            any: false,
        })
    }

    /// Begins a turn, with no descriptor watched yet.
    pub fn begin(&mut self) {
        (self.whole, self.any) = (true, false);
    }

    /// Watches a descriptor for one sleep.
    pub fn watch(&mut self, descriptor: BorrowedFd<'_>) {
        let (data, once) = (EventData::new_u64(0), EventFlags::IN | EventFlags::ONESHOT);
        let added = match epoll::modify(&self.set, descriptor, data, once) {
            Err(Errno::NOENT) => epoll::add(&self.set, descriptor, data, once),
            known => known,
        };
        self.whole &= added.is_ok();
        self.any = true;
    }

    /// Sleeps for at most `longest`; `false` when it could not.
    pub fn sleep(&mut self, longest: Duration) -> bool {
        if !self.whole || !self.any {
            return false;
        }
        let mut woken = [const { MaybeUninit::<Event>::uninit() }; 8];
        // An interrupted sleep is merely shorter.
        let _ = epoll::wait(&self.set, &mut woken, Some(&timespec(longest)));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Instant;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn it_wakes_by_what_is_watched_and_by_nothing_that_was() {
        let [one, two] = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let mut sleeper = Sleeper::new().unwrap();
        sleeper.begin();
        assert!(
            !sleeper.sleep(Duration::from_secs(60)),
            "there is nothing to sleep on"
        );
        sleeper.watch(one.as_fd());
        rustix::io::write(&one, &1_u64.to_ne_bytes()).unwrap();
        let began = Instant::now();
        assert!(sleeper.sleep(Duration::from_secs(60)));
        assert!(began.elapsed() < Duration::from_secs(30));
        // The first one is still readable, but it is not watched now.
        sleeper.begin();
        sleeper.watch(two.as_fd());
        let began = Instant::now();
        assert!(sleeper.sleep(Duration::from_millis(30)));
        assert!(began.elapsed() >= Duration::from_millis(30));
    }
}
