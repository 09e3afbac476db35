//! Completions: a result that can be waited for, polled, or awaited.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    /// Whether a thread waits in [`Completion::wait`]; without one, no wake-up system call is made.
    waits: bool,
}

#[derive(Debug)]
struct Shared<T> {
    slot: Mutex<Slot<T>>,
    there: Condvar,
}

impl<T> Shared<T> {
    /// A panic while the lock was held leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, Slot<T>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, value: T) {
        let (waker, waits) = {
            let mut slot = self.lock();
            slot.value = Some(value);
            (slot.waker.take(), slot.waits)
        };
        if waits {
            self.there.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A result that is yet to come. It is taken once, by [`take`](Completion::take), [`wait`](Completion::wait)
/// or `.await`, whichever is first. Dropping a completion does not cancel the operation.
#[derive(Debug)]
#[must_use = "drop it explicitly if the result does not matter"]
pub struct Completion<T>(Arc<Shared<T>>);

impl<T> Completion<T> {
    /// Returns another handle of the same result, for the thread that is to find it.
    pub(super) fn same(&self) -> Self {
        Self(self.0.clone())
    }

    /// Returns the result, if it is there.
    pub fn take(&self) -> Option<T> {
        self.0.lock().value.take()
    }

    /// Waits for the result, at most this long.
    pub fn wait(&self, limit: Duration) -> Option<T> {
        let until = Instant::now() + limit;
        let mut slot = self.0.lock();
        loop {
            if let Some(value) = slot.value.take() {
                return Some(value);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            slot.waits = true;
            let waited = self.0.there.wait_timeout(slot, left);
            slot = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<T> Future for Completion<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.lock();
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The sender of a result: it is set once, at the latest when this is dropped.
pub(super) struct Answer<T> {
    to: Option<To<T>>,
    ended: fn() -> T,
}

enum To<T> {
    Waits(Arc<Shared<T>>),
    Call(Box<dyn FnOnce(T) + Send>),
}

impl<T> Answer<T> {
    /// Whether this sets the given completion.
    pub(super) fn is_for(&self, completion: &Completion<T>) -> bool {
        matches!(&self.to, Some(To::Waits(shared)) if Arc::ptr_eq(shared, &completion.0))
    }

    /// Creates a sender that calls this function.
    pub(super) fn call(ended: fn() -> T, call: impl FnOnce(T) + Send + 'static) -> Self {
        Self {
            to: Some(To::Call(Box::new(call))),
            ended,
        }
    }

    pub(super) fn give(mut self, value: T) {
        self.settle(|| value);
    }

    fn settle(&mut self, value: impl FnOnce() -> T) {
        match self.to.take() {
            Some(To::Waits(shared)) => shared.put(value()),
            Some(To::Call(call)) => call(value()),
            None => {}
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        let ended = self.ended;
        self.settle(ended);
    }
}

/// Creates both ends, with the result for the case that no other is set.
pub(super) fn promise<T>(ended: fn() -> T) -> (Answer<T>, Completion<T>) {
    let slot = Slot {
        value: None,
        waker: None,
        waits: false,
    };
    let shared = Arc::new(Shared {
        slot: Mutex::new(slot),
        there: Condvar::new(),
    });
    let answer = Answer {
        to: Some(To::Waits(shared.clone())),
        ended,
    };
    (answer, Completion(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_set_once_or_reports_its_end() {
        let (answer, completion) = promise(|| 0);
        assert_eq!(completion.wait(Duration::ZERO), None);
        answer.give(7);
        assert_eq!(completion.wait(Duration::from_secs(60)), Some(7));
        assert_eq!(completion.take(), None);
        let (answer, completion) = promise(|| 9);
        let waiter = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| completion.wait(Duration::from_secs(60)));
            drop(answer);
            waiter.join()
        });
        assert_eq!(waiter.ok().flatten(), Some(9));
    }

    #[test]
    fn a_function_is_called_once_whatever_happens() {
        let (tell, told) = std::sync::mpsc::channel();
        let second = tell.clone();
        Answer::call(|| 3, move |value| tell.send(value).unwrap()).give(1);
        drop(Answer::call(|| 3, move |value| second.send(value).unwrap()));
        assert_eq!(told.iter().collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_task_that_awaits_it_is_woken() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (answer, completion) = promise(|| 0);
        std::thread::scope(|scope| {
            scope.spawn(|| answer.give(5));
            assert_eq!(runtime.block_on(completion), 5);
        });
    }
}
