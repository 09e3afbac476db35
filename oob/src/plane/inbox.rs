//! Bounded inboxes for messages and events.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::core::Request;
use super::results::NotReceived;
use crate::name::From;
use crate::runner::{Mailbox, Refused};

/// Interval at which a request that found the mailbox full is repeated.
const AGAIN: Duration = Duration::from_millis(5);

/// The one to be informed when there is room again.
pub(super) enum Wants {
    /// None: without room, items are dropped.
    Nothing,
    /// The plane: it has cancelled the receive, and posts it again.
    More(Mailbox<Request>, From, u32),
}

/// The outcome of adding an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It was added, or counted as missed.
    Goes,
    /// It was added, and the inbox is full now: the next item has to wait with its sender.
    Full,
    /// All handles for taking items were dropped.
    Deserted,
}

struct Kept<T> {
    /// The items, with their weight: bytes, for messages.
    queue: VecDeque<(usize, T)>,
    /// The sum of the weights.
    weight: usize,
    wakers: Vec<Waker>,
    /// Number of threads in [`Inbox::wait`]; without one, no wake-up system call is made.
    waiting: usize,
    missed: u64,
    /// Whether the receive was cancelled because the inbox was full.
    paused: bool,
    ended: Option<NotReceived>,
    /// Number of handles of users.
    users: usize,
}

struct Shared<T> {
    kept: Mutex<Kept<T>>,
    there: Condvar,
    room: usize,
    wants: Wants,
}

/// Items in order of arrival. Copies are the same inbox: each item is taken once.
pub struct Inbox<T> {
    shared: Arc<Shared<T>>,
    /// Whether this is the progress thread's handle.
    inner: bool,
}

impl<T> Inbox<T> {
    pub(super) fn new(room: usize, wants: Wants) -> Self {
        let kept = Kept {
            queue: VecDeque::new(),
            weight: 0,
            wakers: Vec::new(),
            waiting: 0,
            missed: 0,
            paused: false,
            ended: None,
            users: 1,
        };
        let shared = Shared {
            kept: Mutex::new(kept),
            there: Condvar::new(),
            room: room.max(1),
            wants,
        };
        Self {
            shared: Arc::new(shared),
            inner: false,
        }
    }

    /// Returns the next item, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        let mut kept = self.lock();
        let taken = self.next_of(&mut kept);
        let again = self.wants_more(&mut kept);
        drop(kept);
        self.request_resume(again);
        taken
    }

    /// Waits for the next item, at most this long. Returns `None` also when no more will come.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<T> {
        let until = Instant::now() + limit;
        loop {
            if let Some(taken) = self.take() {
                return Some(taken);
            }
            let mut kept = self.lock();
            if !kept.queue.is_empty() {
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if kept.ended.is_some() || left.is_zero() {
                return None;
            }
            // The mailbox was full when room was to be reported: try again.
            let left = if kept.paused { left.min(AGAIN) } else { left };
            kept.waiting += 1;
            let waited = self.shared.there.wait_timeout(kept, left);
            waited.unwrap_or_else(PoisonError::into_inner).0.waiting -= 1;
        }
    }

    /// Awaits the next item. Returns `None` when no more will come.
    pub async fn next(&self) -> Option<T> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(taken) = self.take() {
            return Poll::Ready(Some(taken));
        }
        let mut kept = self.lock();
        if !kept.queue.is_empty() || kept.paused && kept.ended.is_none() {
            // An item has just come, or the mailbox was full when room was to be reported.
            cx.waker().wake_by_ref();
        } else if kept.ended.is_some() {
            return Poll::Ready(None);
        } else if !kept.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            kept.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Returns the number of items that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    /// Returns the number of items dropped for lack of room.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.lock().missed
    }

    /// Returns why no more items will come after those that wait; `None` as long as more may come.
    #[must_use]
    pub fn ended(&self) -> Option<NotReceived> {
        self.lock().ended
    }

    fn lock(&self) -> MutexGuard<'_, Kept<T>> {
        // A panic while the lock was held leaves nothing half done.
        self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_of(&self, kept: &mut Kept<T>) -> Option<T> {
        let (weight, taken) = kept.queue.pop_front()?;
        kept.weight -= weight;
        Some(taken)
    }

    /// Whether there is room to post the receive again; marks it as requested then.
    fn wants_more(&self, kept: &mut Kept<T>) -> bool {
        let wants = kept.paused && kept.ended.is_none() && kept.weight <= self.shared.room / 2;
        kept.paused &= !wants;
        wants
    }

    fn request_resume(&self, again: bool) {
        if again
            && let Wants::More(mailbox, from, tag) = &self.shared.wants
            && let Err(Refused::Full(_)) = mailbox.put(Request::Resume(*from, *tag))
        {
            // The next caller tries again.
            self.lock().paused = true;
        }
    }
}

/// The progress thread's side.
impl<T> Inbox<T> {
    /// Returns the handle of the thread that fills it.
    pub(super) fn inner(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            inner: true,
        }
    }

    pub(super) fn put(&self, thing: T, weight: usize) -> Put {
        let mut kept = self.lock();
        let gives_way = matches!(self.shared.wants, Wants::More(..));
        if gives_way && kept.users == 0 {
            return Put::Deserted;
        }
        let fits = kept.weight == 0 || kept.weight.saturating_add(weight) <= self.shared.room;
        if !gives_way && !fits {
            kept.missed += 1;
            return Put::Goes;
        }
        kept.queue.push_back((weight, thing));
        kept.weight += weight;
        let fills = gives_way && !kept.paused && kept.weight >= self.shared.room;
        kept.paused |= fills;
        let wakers = std::mem::take(&mut kept.wakers);
        let waiting = kept.waiting > 0;
        drop(kept);
        if waiting {
            self.shared.there.notify_one();
        }
        wakers.into_iter().for_each(Waker::wake);
        if fills { Put::Full } else { Put::Goes }
    }

    /// Ends the inbox: no more items will come.
    pub(super) fn end(&self, why: NotReceived) {
        let mut kept = self.lock();
        kept.ended.get_or_insert(why);
        let wakers = std::mem::take(&mut kept.wakers);
        drop(kept);
        self.shared.there.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether it waits for room, and has not reported any yet.
    pub(super) fn is_paused(&self) -> bool {
        self.lock().paused
    }

    /// Whether all handles for taking items were dropped.
    pub(super) fn is_deserted(&self) -> bool {
        self.lock().users == 0
    }
}

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        if !self.inner {
            self.lock().users += 1;
        }
        Self {
            shared: self.shared.clone(),
            inner: self.inner,
        }
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        if self.inner {
            return;
        }
        let mut kept = self.lock();
        kept.users -= 1;
        let last = kept.users == 0 && kept.ended.is_none();
        drop(kept);
        if last && let Wants::More(mailbox, from, tag) = &self.shared.wants {
            // If the mailbox is full, this is noticed when the next message comes, or another receive needs
            // the key.
            let _ = mailbox.put(Request::Sweep(*from, *tag));
        }
    }
}

impl<T> std::fmt::Debug for Inbox<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Inbox({} waiting)", self.waiting())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted_and_one_thing_always_fits() {
        let inbox = Inbox::new(10, Wants::Nothing);
        let filler = inbox.inner();
        for (thing, weight) in [(1, 6), (2, 5), (3, 4)] {
            assert_eq!(filler.put(thing, weight), Put::Goes);
        }
        assert_eq!(
            (inbox.missed(), inbox.waiting()),
            (1, 2),
            "the second was too much"
        );
        assert_eq!(
            [inbox.take(), inbox.take(), inbox.take()],
            [Some(1), Some(3), None]
        );
        assert_eq!((filler.put(4, 1000), inbox.take()), (Put::Goes, Some(4)));
    }

    #[test]
    fn the_end_comes_after_what_is_there_and_wakes_all_waiters() {
        let inbox = Inbox::new(10, Wants::Nothing);
        let filler = inbox.inner();
        let limit = Duration::from_secs(60);
        let taken = std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| inbox.wait(limit))).collect();
            filler.put(7, 1);
            filler.end(NotReceived::Ended);
            waiters
                .into_iter()
                .filter_map(|waiter| waiter.join().unwrap())
                .count()
        });
        assert_eq!((taken, inbox.ended()), (1, Some(NotReceived::Ended)));
        filler.end(NotReceived::Cancelled);
        assert_eq!(inbox.ended(), Some(NotReceived::Ended), "the first reason");
    }

    #[test]
    fn all_waiting_tasks_are_woken() {
        let inbox = Inbox::new(10, Wants::Nothing);
        let filler = inbox.inner();
        let awaits = || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(inbox.next())
        };
        let taken = std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..2).map(|_| scope.spawn(awaits)).collect();
            filler.put(7, 1);
            filler.end(NotReceived::Ended);
            waiters
                .into_iter()
                .filter_map(|waiter| waiter.join().unwrap())
                .count()
        });
        assert_eq!(taken, 1);
    }
}
