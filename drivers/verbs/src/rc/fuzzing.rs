//! Entry points for the fuzzers: one end of a connection, as the other end's sends and counters change it.

use doorbell_fabric::memory::SharedBytes;

use super::head::{self, Counters, HEAD, Head, Known, MOST_CREDITS, PROOF, RETURNS};
use zerocopy::IntoBytes;

/// Our end: what it has sent and granted, and what the peer has reported.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    messages: u64,
    sends: u64,
    granted: u64,
    received: u64,
    known: Known,
    heads: Known,
    pages: Known,
    is_over: bool,
}

impl Counted {
    /// Sends messages in one send, if there is a credit.
    pub fn send(&mut self, messages: u16) {
        if !self.is_over && self.sends < self.known.granted {
            self.sends += 1;
            self.messages += u64::from(messages);
        }
    }

    /// Grants this many credits to the peer, beyond those that it has.
    pub fn grant(&mut self, credits: u16) {
        self.granted += u64::from(credits);
    }

    /// A send of the peer arrives; returns its messages, or `None` if it breaks a rule of the wire.
    ///
    /// # Panics
    /// When what is accepted is not written as it was read, or a counter is believed that cannot be.
    pub fn arrives(&mut self, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        if self.is_over {
            return None;
        }
        let taken = self.take(bytes);
        self.is_over = taken.is_none();
        self.check();
        taken
    }

    fn take(&mut self, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        let shared = SharedBytes::of(bytes);
        let head = head::check(shared).ok()?;
        if self.received == self.granted {
            return None;
        }
        self.received += 1;
        let (flags, count) = (head.flags.get(), head.count.get());
        if flags == PROOF {
            return Some(Vec::new());
        }
        if flags == RETURNS {
            let back = u64::from(count);
            if back > self.granted - self.received {
                return None;
            }
            self.received += back;
        }
        let before = self.known;
        let news = self.known.head(&mut self.heads, &head, self.messages, self.sends);
        assert_eq!(news == Ok(true), self.known != before);
        news.ok()?;
        if flags == RETURNS {
            return Some(Vec::new());
        }
        let mut messages = Vec::new();
        let mut at = HEAD;
        for left in (1..=count).rev() {
            let (message, end) = head::message(shared, at, left == 1).ok()?;
            assert!(at < end && end <= bytes.len());
            messages.push(message.to_vec());
            at = end;
        }
        assert_eq!(written(&head, &messages), bytes);
        Some(messages)
    }

    /// The peer writes to our counter page; `false` if it breaks a rule of the wire.
    ///
    /// # Panics
    /// When a counter is believed that cannot be.
    pub fn writes(&mut self, [consumed, granted, recalls]: [u64; 3]) -> bool {
        let page = Counters {
            consumed: consumed.into(),
            granted: granted.into(),
            recalls: recalls.into(),
        };
        let taken = self.known.page(&mut self.pages, page, self.messages, self.sends);
        self.is_over |= taken.is_err();
        self.check();
        taken.is_ok()
    }

    fn check(&self) {
        assert!(self.known.consumed <= self.messages);
        assert!(self.known.granted <= self.sends + MOST_CREDITS);
        assert!(self.received <= self.granted);
    }

    /// What the peer was granted and has not used, what it was sent, and what it has reported: messages that
    /// it has taken, and credits that are left.
    pub fn numbers(&self) -> [u64; 4] {
        let left = self.known.granted.saturating_sub(self.sends);
        [
            self.granted - self.received,
            self.messages,
            self.known.consumed,
            left,
        ]
    }
}

/// The bytes of a send of these messages.
fn written(head: &Head, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = head.as_bytes().to_vec();
    for message in messages {
        bytes.extend((message.len() as u16).to_le_bytes());
        bytes.extend(message);
    }
    bytes
}

/// A send with these numbers and messages.
#[must_use]
pub fn send(consumed: u64, granted: u32, (count, flags): (u16, u16), messages: &[Vec<u8>]) -> Vec<u8> {
    let head = Head {
        consumed: consumed.into(),
        granted: granted.into(),
        count: count.into(),
        flags: flags.into(),
    };
    written(&head, messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_of_any_bytes_are_read_as_they_are_written_or_refused() {
        let messages = [b"hello".to_vec(), Vec::new(), vec![7; 300]];
        let bytes = send(2, 5, (3, 1), &messages);
        let mut fresh = Counted::default();
        fresh.writes([0, 4, 0]);
        (0..4).for_each(|_| fresh.send(1));
        fresh.grant(8);
        assert_eq!(fresh.clone().arrives(&bytes), Some(messages.to_vec()));
        for at in 0..bytes.len() {
            assert_eq!(fresh.clone().arrives(&bytes[..at]), None, "cut at {at}");
            for value in [0, 1, 2, 4, 5, 0x7f, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] = value;
                fresh.clone().arrives(&other);
            }
        }
    }

    #[test]
    fn what_was_never_granted_is_refused() {
        let mut end = Counted::default();
        let bytes = send(0, 0, (0, 0), &[]);
        assert_eq!(end.clone().arrives(&bytes), None);
        end.grant(3);
        let back = |count| send(0, 0, (count, RETURNS), &[]);
        assert_eq!(end.clone().arrives(&back(3)), None);
        assert_eq!(end.arrives(&back(2)), Some(Vec::new()));
        assert_eq!(end.numbers()[0], 0);
        assert_eq!(end.arrives(&bytes), None);
    }
}
