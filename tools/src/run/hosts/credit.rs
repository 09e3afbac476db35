//! End-to-end flow control of what ranks write and read, in bytes.
//!
//! ```text
//!   rank ─► daemon: Credit ──── output ────────────► launcher ─► reader
//!                   ◄────── bytes used up ── Returns
//! ```
//!
//! A daemon without credit stops reading from its ranks, so that they block in `write`.
//!
//! The windows of the control plane are no substitute: a peer has one for everything that it sends, and
//! commands, reports and barriers must not wait behind unread output.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use doorbell::oob::bytes::Bytes;
use doorbell::oob::name::{From, Name};
use doorbell::oob::plane::{Busy, Message, Oob};

use super::protocol::USED;
use super::wakeup::Wakeup;
use crate::error::ToolError;

/// Overhead counted per message.
const EACH: usize = 64;
/// Maximum bytes of output in flight from all hosts together.
const OUTPUT_MOST: usize = 16 << 20;
/// Minimum and maximum bytes of output in flight per host.
const OUTPUT_EACH: std::ops::RangeInclusive<usize> = 64 << 10..=1 << 20;
/// A return is sent when this fraction of the credit was used up.
const LOTS: usize = 4;
/// Interval at which a return that found the mailbox full is repeated.
const AGAIN: Duration = Duration::from_millis(5);
/// Time limit of a return: without it, the other side would wait for ever.
const EVER: Duration = Duration::from_secs(30 * 24 * 3600);

/// Returns the bytes of output that one of this many hosts may have in flight.
pub(super) fn of_output(hosts: usize) -> usize {
    (OUTPUT_MOST / hosts.max(1)).clamp(*OUTPUT_EACH.start(), *OUTPUT_EACH.end())
}

/// Bytes of input that may be in flight to rank 0.
pub(super) const OF_INPUT: usize = 256 << 10;

/// Returns what a message of this length counts for.
pub(super) fn cost(bytes: usize) -> usize {
    bytes + EACH
}

/// The remaining credit of a sender. Copies share it.
#[derive(Clone, Debug)]
pub(super) struct Credit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    out: Mutex<usize>,
    freed: Condvar,
    wakeup: Option<Arc<Wakeup>>,
}

impl Credit {
    /// Creates a credit towards `peer`, which returns what it has used up; the bell is rung then.
    pub(super) fn towards(
        oob: &Oob,
        peer: Name,
        most: usize,
        wakeup: Option<Arc<Wakeup>>,
    ) -> Result<Self, ToolError> {
        let credit = Self::new(most, wakeup);
        let own = credit.clone();
        let each = move |message: Message| {
            if let Ok(bytes) = message.body[..].try_into() {
                own.give_back(usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX));
            }
        };
        drop(super::plane::done(oob.receive_each(
            From::only(peer),
            USED,
            each,
        ))?);
        Ok(credit)
    }

    fn new(most: usize, wakeup: Option<Arc<Wakeup>>) -> Self {
        Self(Arc::new(Shared {
            most,
            out: Mutex::new(0),
            freed: Condvar::new(),
            wakeup,
        }))
    }

    /// Returns the remaining credit, which one message may exceed.
    pub(super) fn left(&self) -> usize {
        self.0.most.saturating_sub(*self.lock())
    }

    /// Waits until there is credit, at most this long; returns whether there is.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let is_used_up = |out: &mut usize| *out >= self.0.most;
        let waited = self.0.freed.wait_timeout_while(self.lock(), limit, is_used_up);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Uses up the credit for a message of this length.
    pub(super) fn take(&self, bytes: usize) {
        *self.lock() += cost(bytes);
    }

    fn give_back(&self, used: usize) {
        {
            let mut out = self.lock();
            *out = out.saturating_sub(used);
        }
        self.0.freed.notify_all();
        if let Some(wakeup) = &self.0.wakeup {
            wakeup.notify();
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.0.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The receiver of a [`Credit`]: counts what was used up.
#[derive(Debug)]
pub(super) struct Returns {
    oob: Oob,
    to: Name,
    used: usize,
    lot: usize,
}

impl Returns {
    /// Creates the receiver of a credit of `most` that `to` has.
    pub(super) fn new(oob: &Oob, to: Name, most: usize) -> Self {
        Self {
            oob: oob.clone(),
            to,
            used: 0,
            lot: most / LOTS,
        }
    }

    /// Records a message of this length as used up. Waits if the mailbox is full.
    ///
    /// # Errors
    /// When the control plane has ended.
    pub(super) fn used(&mut self, bytes: usize) -> io::Result<()> {
        self.used += cost(bytes);
        // The part held back is less than the rest of the credit, so no sender waits for it.
        while self.used >= self.lot {
            let body = Bytes::from(&(self.used as u64).to_le_bytes());
            match self.oob.send(self.to, USED, body, Some(EVER)) {
                Ok(_) => self.used = 0,
                Err(Busy::Full) => std::thread::sleep(AGAIN),
                Err(Busy::Ended) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_taken_from_the_credit_until_it_is_given_back() {
        let credit = Credit::new(1000, None);
        assert_eq!(credit.left(), 1000);
        credit.take(500);
        assert!(credit.left() == 436 && credit.wait(Duration::ZERO));
        credit.take(500);
        assert!(credit.left() == 0 && !credit.wait(Duration::ZERO));
        let other = credit.clone();
        let giver = std::thread::spawn(move || other.give_back(cost(500)));
        assert!(credit.wait(Duration::from_secs(60)));
        giver.join().unwrap();
        credit.give_back(usize::MAX);
        assert_eq!(credit.left(), 1000, "and no more than there was");
    }

    #[test]
    fn all_hosts_together_are_bounded() {
        assert_eq!(of_output(1), 1 << 20);
        assert_eq!(of_output(64), 256 << 10);
        assert_eq!(of_output(100_000), 64 << 10);
    }
}
