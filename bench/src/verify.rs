//! Stamps on messages: a sequence number and a CRC-32C, by which the receiver can check for every message
//! whether it is the one that was sent, whole, once and in its turn.
//!
//! ```text
//!   bytes of the message    sequence   checksum (both little endian, at the front; the rest is the pattern)
//!   12 and more             64 bits    32 bits    CRC-32C, Castagnoli: RFC 3720, appendix B.4
//!    8 … 11                 32 bits    32 bits
//!    4 …  7                 16 bits    16 bits    the low half of the CRC
//!    2 …  3                  8 bits     8 bits    its lowest byte
//!    1                       4 bits     4 bits    its lowest nibble, above the sequence
//! ```
//!
//! The checksum covers the sequence number and the rest of the message, and begins with the sender's rank and
//! the length, so that a message of another rank or of another length does not pass for this one.
//!
//! What is found, by size: damage with 32 bits of checksum always when it lies within 32 bits in a row,
//! otherwise all but one case in 4·10⁹; with 16 bits all but one in 65,536, with 8 all but one in 256, with 4
//! all but one in 16 (of a single flipped bit none is missed at any size). A lost message is missed by no
//! size, as both sides count. A message that is delivered again or out of its turn is identified by its
//! number as long as it is less than half the numbers away: 2⁶³, 2³¹, 32,768, 128 or 8 messages.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The counts of messages of one side of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Number of messages that it sent.
    pub sent: u64,
    /// Number of messages that reached it, of any kind.
    pub received: u64,
    /// Number of different ones among them that were whole.
    pub distinct: u64,
    /// Number of whole ones that had been there before.
    pub duplicated: u64,
    /// Number of whole ones behind a later one.
    pub misordered: u64,
    /// Number of messages whose length or checksum was wrong.
    pub corrupt: u64,
    /// The longest time that it waited for the next one, in nanoseconds.
    #[serde(default)]
    pub longest_gap_ns: u64,
}

/// The verdict on all messages of a result, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// Messages that were sent and are accounted for here.
    pub messages: u64,
    /// Sent, and never received, neither whole nor damaged.
    pub lost: u64,
    /// Number of messages received more than once.
    pub duplicated: u64,
    /// Number of messages received behind a later one.
    pub misordered: u64,
    /// Number of messages received with a wrong length or checksum.
    pub corrupt: u64,
    /// The longest time from one message to the next at a receiver, in nanoseconds: a stall, where it is much
    /// longer than messages take. Of a stream, messages are looked at a window at a time.
    #[serde(default)]
    pub longest_gap_ns: u64,
    /// What stamping and checking one message of this size costs, in nanoseconds; both are inside the
    /// figures.
    pub cost_ns: f64,
}

impl Verified {
    /// Computes the result from what both sides counted.
    pub fn of(near: &Tally, far: &Tally, cost_ns: f64) -> Self {
        let lost = |from: &Tally, to: &Tally| from.sent.saturating_sub(to.distinct + to.corrupt);
        Self {
            messages: near.sent + far.sent,
            lost: lost(near, far) + lost(far, near),
            duplicated: near.duplicated + far.duplicated,
            misordered: near.misordered + far.misordered,
            corrupt: near.corrupt + far.corrupt,
            longest_gap_ns: near.longest_gap_ns.max(far.longest_gap_ns),
            cost_ns,
        }
    }

    /// Whether every message arrived whole, once and in order.
    pub fn is_clean(&self) -> bool {
        (self.lost, self.duplicated, self.misordered, self.corrupt) == (0, 0, 0, 0)
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            messages,
            lost,
            duplicated,
            misordered,
            corrupt,
            ..
        } = self;
        write!(
            out,
            "of {messages} messages {lost} lost, {duplicated} duplicated, {misordered} misordered, {corrupt} corrupt"
        )
    }
}

/// Bits of the sequence number and of the checksum that fit into `bytes` bytes.
pub const fn fitting(bytes: usize) -> (u32, u32) {
    match bytes {
        0 => (0, 0),
        1 => (4, 4),
        2..=3 => (8, 8),
        4..=7 => (16, 16),
        8..=11 => (32, 32),
        _ => (64, 32),
    }
}

/// Returns the value with which the checksum of rank `from` begins for messages of `bytes` bytes.
fn seed(from: u32, bytes: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&from.to_le_bytes()), &(bytes as u64).to_le_bytes())
}

/// The checksum of a message: the sequence number as it is in the message, and what is behind the stamp.
#[inline]
fn checksum(seed: u32, sequence: &[u8], rest: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, sequence), rest)
}

/// Puts stamps on the messages of one rank.
#[derive(Clone, Debug)]
pub struct Stamper {
    from: u32,
    next: u64,
    seed: (usize, u32),
    spoil: Option<u64>,
    sent: u64,
}

impl Stamper {
    /// Creates the stamper for the messages of rank `from`. With `spoil`, one bit of every that many-th
    /// message is flipped after its checksum is computed, to see that it is found.
    pub fn new(from: u32, spoil: Option<u64>) -> Self {
        Self {
            from,
            next: 0,
            seed: (0, seed(from, 0)),
            spoil,
            sent: 0,
        }
    }

    /// Sets the number of the next message.
    pub fn begin(&mut self, first: u64) {
        self.next = first;
    }

    /// Stamps the next message.
    #[inline]
    pub fn stamp(&mut self, body: &mut [u8]) {
        if self.seed.0 != body.len() {
            self.seed = (body.len(), seed(self.from, body.len()));
        }
        write(self.seed.1, self.next, body);
        self.next += 1;
        self.sent += 1;
        if let Some(every) = self.spoil
            && self.sent.is_multiple_of(every)
            && let Some(last) = body.last_mut()
        {
            *last ^= 0x10;
        }
    }

    /// Takes back the message stamped last, which did not leave.
    pub fn take_back(&mut self) {
        self.sent = self.sent.saturating_sub(1);
    }

    /// Returns how many were stamped since the last call.
    pub fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent)
    }

    /// Undoes what [`Stamper::stamp`] may have spoilt, so that the buffer can be stamped again.
    #[inline]
    pub fn restore(&self, body: &mut [u8], pattern: &[u8]) {
        if self.spoil.is_some() {
            body.copy_from_slice(pattern);
        }
    }
}

fn write(seed: u32, sequence: u64, body: &mut [u8]) {
    match fitting(body.len()) {
        (64, _) => {
            let (stamp, rest) = body.split_at_mut(12);
            stamp[..8].copy_from_slice(&sequence.to_le_bytes());
            let sum = checksum(seed, &stamp[..8], rest);
            stamp[8..].copy_from_slice(&sum.to_le_bytes());
        }
        (32, _) => {
            let (stamp, rest) = body.split_at_mut(8);
            stamp[..4].copy_from_slice(&(sequence as u32).to_le_bytes());
            let sum = checksum(seed, &stamp[..4], rest);
            stamp[4..].copy_from_slice(&sum.to_le_bytes());
        }
        (16, _) => {
            let (stamp, rest) = body.split_at_mut(4);
            stamp[..2].copy_from_slice(&(sequence as u16).to_le_bytes());
            let sum = checksum(seed, &stamp[..2], rest) as u16;
            stamp[2..].copy_from_slice(&sum.to_le_bytes());
        }
        (8, _) => {
            let (stamp, rest) = body.split_at_mut(2);
            stamp[0] = sequence as u8;
            stamp[1] = checksum(seed, &stamp[..1], rest) as u8;
        }
        (4, _) => {
            let low = sequence as u8 & 0xf;
            body[0] = low | (checksum(seed, &[low], &[]) as u8) << 4;
        }
        _ => {}
    }
}

/// The sequence number of a message whose checksum is right.
fn read(seed: u32, body: &[u8]) -> Option<u64> {
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let (sequence, sum) = fitting(body.len());
    if sum == 4 {
        let low = body[0] & 0xf;
        let right = (checksum(seed, &[low], &[]) as u8) << 4 == body[0] & 0xf0;
        return right.then_some(u64::from(low));
    }
    let (sequence, sum) = (sequence as usize / 8, sum as usize / 8);
    let (stamp, rest) = body.split_at(sequence + sum);
    let (sequence, found) = stamp.split_at(sequence);
    let right = number(&checksum(seed, sequence, rest).to_le_bytes()[..sum]);
    (sum > 0 && number(found) == right).then(|| number(sequence))
}

/// Number of the latest sequence numbers that are remembered one by one.
const REMEMBERED: u64 = 4096;
const WORDS: usize = REMEMBERED as usize / 64;

/// Looks at the messages of one rank as they arrive. Of fixed size, whatever arrives.
#[derive(Clone, Debug)]
pub struct Checker {
    from: u32,
    seed: (usize, u32),
    /// The number after the highest that was received.
    next: u64,
    /// Which of the [`REMEMBERED`] numbers below `next` were seen, a bit each.
    seen: [u64; WORDS],
    tally: Tally,
}

impl Checker {
    /// Creates the checker for the messages of rank `from`.
    pub fn new(from: u32) -> Self {
        Self {
            from,
            seed: (0, seed(from, 0)),
            next: 0,
            seen: [0; WORDS],
            tally: Tally::default(),
        }
    }

    /// The messages from number `first` on come next; earlier ones that are still to come are late.
    pub fn begin(&mut self, first: u64) {
        if first > self.next {
            self.advance(first);
        }
    }

    /// A message arrived that should have `bytes` bytes.
    #[inline]
    pub fn look(&mut self, body: &[u8], bytes: usize) {
        if self.seed.0 != bytes {
            self.seed = (bytes, seed(self.from, bytes));
        }
        self.tally.received += 1;
        let number = (body.len() == bytes).then(|| read(self.seed.1, body)).flatten();
        match number {
            Some(low) => self.whole(low, fitting(bytes).0),
            None => self.tally.corrupt += 1,
        }
    }

    fn whole(&mut self, low: u64, bits: u32) {
        // The number nearest to the expected one that ends in these bits.
        let away = low.wrapping_sub(self.next) << (64 - bits);
        let away = (away as i64) >> (64 - bits);
        let number = self.next.wrapping_add_signed(away);
        if away >= 0 {
            self.advance(number + 1);
            self.mark(number);
            self.tally.distinct += 1;
        } else if away.unsigned_abs() > REMEMBERED || self.is_marked(number) {
            // Too long ago to remember: counted as a second copy, and the first one's loss stays counted.
            self.tally.duplicated += 1;
        } else {
            self.mark(number);
            self.tally.distinct += 1;
            self.tally.misordered += 1;
        }
    }

    fn advance(&mut self, next: u64) {
        if next - self.next >= REMEMBERED {
            self.seen = [0; WORDS];
        } else {
            (self.next..next).for_each(|number| self.seen[Self::word(number)] &= !Self::bit(number));
        }
        self.next = next;
    }

    fn word(number: u64) -> usize {
        (number / 64) as usize % WORDS
    }

    fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }

    fn mark(&mut self, number: u64) {
        self.seen[Self::word(number)] |= Self::bit(number);
    }

    fn is_marked(&self, number: u64) -> bool {
        self.seen[Self::word(number)] & Self::bit(number) != 0
    }

    /// Returns what was counted since the last call; `sent` is the caller's own number.
    pub fn take(&mut self, sent: u64) -> Tally {
        Tally {
            sent,
            ..std::mem::take(&mut self.tally)
        }
    }
}

/// Both halves of one rank's side of a pair.
#[derive(Clone, Debug)]
pub struct Verifier {
    /// The stamper for what it sends.
    pub stamper: Stamper,
    /// The checker for what it receives.
    pub checker: Checker,
    /// How long it waited for that.
    pub gaps: Gaps,
}

/// The longest time between two messages, in ticks of a clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gaps {
    last: u64,
    longest: u64,
}

impl Gaps {
    /// Begins to wait for a message.
    pub fn begin(&mut self, now: u64) {
        self.last = now;
    }

    /// Records that a message has come.
    #[inline]
    pub fn came(&mut self, now: u64) {
        self.longest = self.longest.max(now.saturating_sub(self.last));
        self.last = now;
    }

    /// Returns the longest since the last call.
    pub fn take(&mut self) -> u64 {
        std::mem::take(&mut self.longest)
    }
}

impl Verifier {
    /// Creates both halves for rank `own`, which exchanges messages with rank `peer`.
    pub fn new(own: u32, peer: u32, spoil: Option<u64>) -> Self {
        Self {
            stamper: Stamper::new(own, spoil),
            checker: Checker::new(peer),
            gaps: Gaps::default(),
        }
    }

    /// The numbers of both directions go on at `first`.
    pub fn begin(&mut self, first: u64) {
        self.stamper.begin(first);
        self.checker.begin(first);
    }

    /// Returns what was counted since the last call.
    pub fn take(&mut self) -> Tally {
        let sent = self.stamper.take_sent();
        self.checker.take(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::pattern;
    use proptest::prelude::*;

    /// Makes messages 0 to `count`, as rank 3 sends them.
    fn messages(bytes: usize, count: u64) -> Vec<Vec<u8>> {
        let mut stamper = Stamper::new(3, None);
        let mut body = pattern(3, bytes).unwrap();
        (0..count)
            .map(|_| {
                stamper.stamp(&mut body);
                body.clone()
            })
            .collect()
    }

    fn verdict(all: &[Vec<u8>], order: &[usize], bytes: usize) -> Tally {
        let mut checker = Checker::new(3);
        order.iter().for_each(|at| checker.look(&all[*at], bytes));
        checker.take(0)
    }

    #[test]
    fn whole_messages_in_order_are_clean_at_every_size() {
        for bytes in 1..=70 {
            // More than the short numbers can count.
            let all = messages(bytes, 700);
            let order: Vec<usize> = (0..700).collect();
            let tally = verdict(&all, &order, bytes);
            assert_eq!((tally.received, tally.distinct), (700, 700), "{bytes} B");
            assert_eq!(
                (tally.duplicated, tally.misordered, tally.corrupt),
                (0, 0, 0),
                "{bytes} B"
            );
        }
    }

    #[test]
    fn every_single_flipped_bit_is_found_at_every_size() {
        for bytes in 1..=70 {
            let all = messages(bytes, 20);
            for bit in 0..bytes * 8 {
                let mut body = all[19].clone();
                body[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(read(seed(3, bytes), &body), None, "bit {bit} of {bytes} B");
            }
        }
    }

    #[test]
    fn a_message_of_another_rank_or_length_is_not_taken() {
        for bytes in [2, 8, 12, 64] {
            let body = &messages(bytes, 1)[0];
            let mut other = Checker::new(4);
            other.look(body, bytes);
            assert_eq!(other.take(0).corrupt, 1, "{bytes} B of rank 3 as if of 4");
            let mut longer = Checker::new(3);
            longer.look(&body[..bytes - 1], bytes);
            longer.look(&[&body[..], &[0]].concat(), bytes);
            assert_eq!(longer.take(0).corrupt, 2);
        }
    }

    #[test]
    fn loss_duplicates_and_wrong_order_are_counted_apart() {
        for bytes in [1, 2, 4, 8, 12, 100] {
            let all = messages(bytes, 12);
            let of = |order: &[usize]| {
                let mut far = verdict(&all, order, bytes);
                far.sent = 0;
                let near = Tally {
                    sent: 12,
                    ..Tally::default()
                };
                let v = Verified::of(&near, &far, 0.0);
                (v.lost, v.duplicated, v.misordered, v.corrupt)
            };
            assert_eq!(
                of(&[0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]),
                (1, 0, 0, 0),
                "{bytes} B"
            );
            assert_eq!(
                of(&[0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11]),
                (0, 1, 0, 0),
                "{bytes} B"
            );
            assert_eq!(
                of(&[0, 1, 2, 4, 3, 5, 6, 7, 8, 9, 10, 11]),
                (0, 0, 1, 0),
                "{bytes} B"
            );
            assert_eq!(
                of(&[0, 1, 2, 4, 5, 6, 6, 3, 8, 9, 10, 11]),
                (1, 1, 1, 0),
                "{bytes} B"
            );
            assert_eq!(
                of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
                (1, 0, 0, 0),
                "{bytes} B: the last"
            );
        }
    }

    #[test]
    fn a_spoilt_message_is_corrupt_and_not_lost_as_well() {
        let mut near = Verifier::new(0, 1, Some(10));
        let mut far = Verifier::new(1, 0, None);
        let pattern = pattern(0, 64).unwrap();
        let mut body = pattern.clone();
        for _ in 0..100 {
            near.stamper.restore(&mut body, &pattern);
            near.stamper.stamp(&mut body);
            far.checker.look(&body, 64);
        }
        let verified = Verified::of(&near.take(), &far.take(), 0.0);
        assert_eq!((verified.messages, verified.corrupt, verified.lost), (100, 10, 0));
        assert!(!verified.is_clean());
    }

    #[test]
    fn numbers_go_on_where_an_order_begins_and_late_ones_are_late() {
        let all = messages(16, 40);
        let mut checker = Checker::new(3);
        checker.look(&all[0], 16);
        checker.begin(20);
        checker.look(&all[20], 16);
        checker.look(&all[1], 16);
        checker.look(&all[1], 16);
        let tally = checker.take(0);
        assert_eq!((tally.distinct, tally.misordered, tally.duplicated), (3, 1, 1));
    }

    proptest! {
        #[test]
        fn strange_bytes_never_upset_it(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..60)) {
            let mut checker = Checker::new(0);
            for body in &bodies {
                checker.look(body, body.len());
            }
            let tally = checker.take(0);
            prop_assert_eq!(tally.received, tally.distinct + tally.duplicated + tally.corrupt);
        }

        #[test]
        fn any_order_is_accounted_for(order in prop::collection::vec(0usize..200, 0..300)) {
            let all = messages(24, 200);
            let tally = verdict(&all, &order, 24);
            let mut distinct = order.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(tally.distinct, distinct.len() as u64);
            prop_assert_eq!(tally.duplicated, (order.len() - distinct.len()) as u64);
            prop_assert_eq!(tally.corrupt, 0);
        }
    }
}
