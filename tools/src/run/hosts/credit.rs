//! How far one side may run ahead of the other with what ranks write and read: in bytes, from one end to the
//! other.
//!
//! ```text
//!   rank ─► daemon: Credit ──── output ────────────► launcher ─► reader
//!                   ◄────── bytes used up ── Returns
//! ```
//!
//! A daemon without credit reads no more of its ranks, so that they wait in their `write`.
//!
//! The windows of the control plane are no substitute: a peer has one for all that it sends, and orders, news
//! and barriers must not wait behind output that is not read.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use doorbell::oob::bytes::Bytes;
use doorbell::oob::name::{From, Name};
use doorbell::oob::plane::{Busy, Message, Oob};

use super::bell::Bell;
use super::words::USED;
use crate::error::ToolError;

/// What a message counts for beside its bytes.
const EACH: usize = 64;
/// Bytes of output that all hosts together may have on the way to a reader.
const OUTPUT_MOST: usize = 16 << 20;
/// What each of them may have at least, and at most.
const OUTPUT_EACH: std::ops::RangeInclusive<usize> = 64 << 10..=1 << 20;
/// Returns are sent when this part of the credit was used up.
const LOTS: usize = 4;
/// How often a return is tried again that found the mailbox full.
const AGAIN: Duration = Duration::from_millis(5);
/// A return may take this long: without it, the other side waits for good.
const EVER: Duration = Duration::from_secs(30 * 24 * 3600);

/// Bytes of output that one of so many hosts may have on the way.
pub(super) fn of_output(hosts: usize) -> usize {
    (OUTPUT_MOST / hosts.max(1)).clamp(*OUTPUT_EACH.start(), *OUTPUT_EACH.end())
}

/// Bytes of input that may be on the way to rank 0.
pub(super) const OF_INPUT: usize = 256 << 10;

/// What a message of so many bytes counts for.
pub(super) fn cost(bytes: usize) -> usize {
    bytes + EACH
}

/// What may still be sent. Copies are the same.
#[derive(Clone, Debug)]
pub(super) struct Credit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    out: Mutex<usize>,
    freed: Condvar,
    bell: Option<Arc<Bell>>,
}

impl Credit {
    /// So much towards `peer`, which returns what it has used up; the bell rings then.
    pub(super) fn towards(
        oob: &Oob,
        peer: Name,
        most: usize,
        bell: Option<Arc<Bell>>,
    ) -> Result<Self, ToolError> {
        let credit = Self::new(most, bell);
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

    fn new(most: usize, bell: Option<Arc<Bell>>) -> Self {
        Self(Arc::new(Shared {
            most,
            out: Mutex::new(0),
            freed: Condvar::new(),
            bell,
        }))
    }

    /// What may be sent now. What is sent may exceed it by one message.
    pub(super) fn left(&self) -> usize {
        self.0.most.saturating_sub(*self.lock())
    }

    /// Waits until something may be sent, for this long at most; whether it may.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let is_used_up = |out: &mut usize| *out >= self.0.most;
        let waited = self.0.freed.wait_timeout_while(self.lock(), limit, is_used_up);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// A message of so many bytes is sent.
    pub(super) fn take(&self, bytes: usize) {
        *self.lock() += cost(bytes);
    }

    fn give_back(&self, used: usize) {
        {
            let mut out = self.lock();
            *out = out.saturating_sub(used);
        }
        self.0.freed.notify_all();
        if let Some(bell) = &self.0.bell {
            bell.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.0.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The other end of a [`Credit`]: counts what was used up.
#[derive(Debug)]
pub(super) struct Returns {
    oob: Oob,
    to: Name,
    used: usize,
    lot: usize,
}

impl Returns {
    /// Of a credit of `most` that `to` has.
    pub(super) fn new(oob: &Oob, to: Name, most: usize) -> Self {
        Self {
            oob: oob.clone(),
            to,
            used: 0,
            lot: most / LOTS,
        }
    }

    /// A message of so many bytes was used up. Waits for a mailbox that is full.
    ///
    /// # Errors
    /// When the control plane has ended.
    pub(super) fn used(&mut self, bytes: usize) -> io::Result<()> {
        self.used += cost(bytes);
        // What is kept back is less than the rest of the credit: no sender waits for it.
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
