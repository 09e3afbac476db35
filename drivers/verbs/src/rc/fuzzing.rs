//! Entry points for the fuzzers: one end of a connection, as the other end's sends, slots of the ring and
//! counters change it.

use doorbell_fabric::memory::SharedBytes;

use super::head::{self, Counters, HEAD, Head, Known, MOST_CREDITS, PROOF, RETURNS, WANTS_MORE};
use super::ring::layout::{self, LONGEST, SLOT, SLOTS, TAIL, Tail};
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
    rings: Known,
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
        match head.ring_number() {
            0 => messages_of(&head, bytes),
            // What comes before it over the ring is waited for, and never comes here.
            number if number <= SLOTS as u64 => Some(Vec::new()),
            _ => None,
        }
    }

    /// A slot of the ring is looked at in this lap; `None` if it is not whole, or breaks a rule of the wire;
    /// else its messages.
    ///
    /// # Panics
    /// When what is believed is not what was written, or a counter is believed that cannot be.
    pub fn looks(&mut self, slot: &[u8; SLOT], lap: u32) -> Option<Vec<Vec<u8>>> {
        let mut copy = [0; LONGEST];
        let tail = layout::take(SharedBytes::of(slot), lap, &mut copy).filter(|_| !self.is_over)?;
        let send = &copy[..tail.length.get().into()];
        assert_eq!(
            &slot_of(send, tail.queued.get(), lap)[SLOT - TAIL..],
            &slot[SLOT - TAIL..]
        );
        let taken = self.take_slot(send);
        self.is_over = taken.is_none();
        self.check();
        taken
    }

    fn take_slot(&mut self, send: &[u8]) -> Option<Vec<Vec<u8>>> {
        let head = head::check(SharedBytes::of(send)).ok()?;
        if head.flags.get() & !WANTS_MORE != 0 || head.count.get() == 0 {
            return None;
        }
        let known = &mut self.known;
        let news = known.head(&mut self.rings, &head, self.messages, self.sends);
        news.ok()?;
        messages_of(&head, send)
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

/// The messages of a send that are whole.
fn messages_of(head: &Head, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    let mut at = HEAD;
    for left in (1..=head.count.get()).rev() {
        let (message, end) = head::message(SharedBytes::of(bytes), at, left == 1).ok()?;
        assert!(at < end && end <= bytes.len());
        messages.push(message.to_vec());
        at = end;
    }
    assert_eq!(written(head, &messages), bytes);
    Some(messages)
}

/// A slot with this send, of which no more than fits is there.
#[must_use]
pub fn slot_of(send: &[u8], queued: u32, lap: u32) -> [u8; SLOT] {
    let send = &send[..send.len().min(LONGEST)];
    let mut slot = [0; SLOT];
    let at = layout::start(send.len());
    slot[at..at + send.len()].copy_from_slice(send);
    let tail = Tail::of(SharedBytes::of(send), queued, lap);
    slot[SLOT - TAIL..].copy_from_slice(tail.as_bytes());
    slot
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
    fn slots_of_any_bytes_are_read_as_they_are_written_or_refused() {
        let messages = [b"hello".to_vec(), Vec::new(), vec![7; 300]];
        let bytes = send(2, 5, (3, 1), &messages);
        let mut fresh = Counted::default();
        fresh.writes([0, 4, 0]);
        (0..4).for_each(|_| fresh.send(1));
        let slot = slot_of(&bytes, 9, 1);
        assert_eq!(fresh.clone().looks(&slot, 1), Some(messages.to_vec()));
        assert_eq!(fresh.clone().looks(&slot, 2), None);
        for at in 0..SLOT {
            for value in [0, 1, 2, 4, 5, 0x7f, 0x80, 0xff] {
                let mut other = slot;
                other[at] = value;
                let shown = fresh.clone().looks(&other, 1);
                assert!(
                    shown.is_none() || shown == Some(messages.to_vec()),
                    "{value} at {at}"
                );
                if at < bytes.len() {
                    let mut other = bytes.clone();
                    other[at] = value;
                    fresh.clone().looks(&slot_of(&other, 9, 1), 1);
                }
            }
        }
        for length in 0..bytes.len() {
            assert_eq!(fresh.clone().looks(&slot_of(&bytes[..length], 9, 1), 1), None);
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
