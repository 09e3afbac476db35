//! The bytes of one send: a head, then messages one after the other, each behind its length.
//!
//! ```text
//!   ┌──────── Head, 16 bytes ────────┬ 2 ┬───────────┬ 2 ┬──────────────┐
//!   │ consumed  granted  count flags │ n │ n bytes   │ m │ m bytes      │
//!   └────────────────────────────────┴───┴───────────┴───┴──────────────┘
//! ```
//!
//! Little endian. A message is what the layer above has sent as head and body. A send that gives credits back
//! is nothing but its head. All checks of what a peer sends are here.

use doorbell_fabric::memory::SharedBytes;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a head.
pub(crate) const HEAD: usize = size_of::<Head>();
/// Bytes in front of each message.
pub(crate) const LENGTH: usize = 2;
/// Flag: the sender has more to send than it has credits.
pub(crate) const WANTS_MORE: u16 = 1;
/// Flag: no messages follow, but a word about one-sided operations.
pub(crate) const CONTROLS: u16 = 1 << 15;
/// Flag: the send proves that its length passes. It has no messages, and its numbers mean nothing.
pub(crate) const PROOF: u16 = 2;
/// Flag: no message follows, and the count is of credits that are given back.
pub(crate) const RETURNS: u16 = 4;
/// Between the flags: how many sends went over the ring before, modulo [`RING_NUMBERS`].
const RING_MASK: u16 = 0x7ff8;
const RING_SHIFT: u32 = RING_MASK.trailing_zeros();
pub(crate) const RING_NUMBERS: u64 = (RING_MASK >> RING_SHIFT) as u64 + 1;

/// The number of sends over the ring, as flags have it.
#[inline]
pub(crate) fn ring_flags(sends: u64) -> u16 {
    ((sends % RING_NUMBERS) as u16) << RING_SHIFT
}

/// What every send begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    /// Messages that the writer's upper layer has taken from the reader, over this connection.
    pub(crate) consumed: U64,
    /// Sends that the reader may have made in all, modulo 2^32.
    pub(crate) granted: U32,
    /// Messages that follow, or credits that are given back.
    pub(crate) count: U16,
    /// [`WANTS_MORE`], [`PROOF`] or [`RETURNS`], [`CONTROLS`], or nothing; and the number of sends over the
    /// ring, but in a proof, in what gives credits back, and in the ring.
    pub(crate) flags: U16,
}
const _: () = assert!(size_of::<Head>() == 16);

impl Head {
    /// Whether it is more than the head of messages.
    #[inline(always)]
    pub(crate) fn is_special(&self) -> bool {
        self.flags.get() & !RING_MASK != 0
    }

    /// Whether it has messages, or a word about one-sided operations.
    #[inline]
    pub(crate) fn is_word(&self) -> bool {
        self.count.get() > 0 || self.flags.get() & CONTROLS != 0
    }

    /// How many sends went over the ring before, modulo [`RING_NUMBERS`].
    #[inline]
    pub(crate) fn ring_number(&self) -> u64 {
        ((self.flags.get() & RING_MASK) >> RING_SHIFT).into()
    }
}

/// What the other end has taken and granted, by a head or in our counter page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Counters {
    /// As in [`Head`].
    pub(crate) consumed: U64,
    /// As in [`Head`], but in 64 bits, so that each number is one word.
    pub(crate) granted: U64,
    /// How often the writer has requested credits that are not used.
    pub(crate) recalls: U64,
}
const _: () = assert!(size_of::<Counters>() == 24);

/// A rule of the wire was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Impossible;

/// Reads the head of a send of this many bytes, once, and checks it and the lengths of its messages.
#[inline(always)]
pub(crate) fn check(bytes: SharedBytes<'_>) -> Result<Head, Impossible> {
    let head = Head::read_from_bytes(&bytes.read::<HEAD>(0).ok_or(Impossible)?).map_err(|_| Impossible)?;
    let count = usize::from(head.count.get());
    let is_possible = if head.is_special() || count == 0 {
        is_possible(&head, bytes.len())
    } else {
        bytes.len() >= HEAD + count * LENGTH
    };
    if is_possible { Ok(head) } else { Err(Impossible) }
}

/// Bytes in front of the message of a send that has no other.
pub(crate) const SINGLE: usize = HEAD + LENGTH;

/// Reads the head of a send that is one message and nothing else: most are. `None` for any other, be it
/// possible or not.
#[inline(always)]
pub(crate) fn single(bytes: SharedBytes<'_>) -> Option<Head> {
    let head = Head::read_from_bytes(&bytes.read::<HEAD>(0)?).ok()?;
    let length = u16::from_le_bytes(bytes.read(HEAD)?);
    let is_single = head.count.get() == 1 && head.flags.get() == 0;
    (is_single && bytes.len() == SINGLE + usize::from(length)).then_some(head)
}

/// Whether a send of this length can have a head that is more than that of messages, or has none.
#[cold]
fn is_possible(head: &Head, length: usize) -> bool {
    let (flags, count) = (head.flags.get(), head.count.get());
    let least = HEAD + usize::from(count) * LENGTH;
    match flags {
        PROOF => count == 0,
        RETURNS => count > 0 && length == HEAD,
        // Its length is checked where it is read.
        _ if flags & !(WANTS_MORE | RING_MASK) == CONTROLS => count == 0,
        _ if flags & !(WANTS_MORE | RING_MASK) != 0 => false,
        _ if count == 0 => length == HEAD,
        _ => length >= least,
    }
}

/// The message at an offset, and the offset behind it. The last one ends where the send does.
#[inline]
pub(crate) fn message(
    bytes: SharedBytes<'_>,
    at: usize,
    is_last: bool,
) -> Result<(SharedBytes<'_>, usize), Impossible> {
    let length = u16::from_le_bytes(bytes.read(at).ok_or(Impossible)?);
    let start = at + LENGTH;
    let end = start + usize::from(length);
    let is_possible = if is_last {
        end == bytes.len()
    } else {
        end + LENGTH <= bytes.len()
    };
    if !is_possible {
        return Err(Impossible);
    }
    Ok((bytes.skip(start).take(length.into()), end))
}

/// What is known of the other end: both numbers only grow, and neither runs ahead of what can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Of the messages that were sent, those that were taken.
    pub(crate) consumed: u64,
    /// Sends that may be made in all.
    pub(crate) granted: u64,
    /// Requests for credits that are not used: by the page alone.
    pub(crate) recalls: u64,
}

/// The most sends that are granted beyond those that were made.
pub(crate) const MOST_CREDITS: u64 = 1 << 14;

impl Known {
    /// Takes what a counter page has, all zero until it is first written; `last` is what it had before.
    pub(crate) fn page(
        &mut self,
        last: &mut Self,
        page: Counters,
        messages: u64,
        sends: u64,
    ) -> Result<bool, Impossible> {
        let now = Self {
            consumed: page.consumed.get(),
            granted: page.granted.get(),
            recalls: page.recalls.get(),
        };
        self.take(last, now, messages, sends)
    }

    /// Takes what a head has; `last` is what the head before it had.
    #[inline]
    pub(crate) fn head(
        &mut self,
        last: &mut Self,
        head: &Head,
        messages: u64,
        sends: u64,
    ) -> Result<bool, Impossible> {
        let step = head.granted.get().wrapping_sub(last.granted as u32);
        let now = Self {
            consumed: head.consumed.get(),
            granted: last.granted + u64::from(step),
            recalls: last.recalls,
        };
        self.take(last, now, messages, sends)
    }

    /// Heads over the queue, heads over the ring, and the page are ways, each in order: on one, a number
    /// never shrinks. Whether there is news.
    #[inline(always)]
    fn take(&mut self, last: &mut Self, now: Self, messages: u64, sends: u64) -> Result<bool, Impossible> {
        let shrinks =
            now.consumed < last.consumed || now.granted < last.granted || now.recalls < last.recalls;
        if shrinks || now.consumed > messages || now.granted > sends + MOST_CREDITS {
            return Err(Impossible);
        }
        *last = now;
        let is_news = now.consumed > self.consumed || now.granted > self.granted;
        self.consumed = self.consumed.max(now.consumed);
        self.granted = self.granted.max(now.granted);
        self.recalls = self.recalls.max(now.recalls);
        Ok(is_news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_head_and_messages() {
        let head = Head {
            consumed: 0x0102_0304_0506_0708.into(),
            granted: 0x0a0b_0c0d.into(),
            count: 2.into(),
            flags: WANTS_MORE.into(),
        };
        let mut golden = vec![8, 7, 6, 5, 4, 3, 2, 1, 0x0d, 0x0c, 0x0b, 0x0a, 2, 0, 1, 0];
        assert_eq!(head.as_bytes(), golden);
        golden.extend(b"\x05\0hello\0\0");
        let bytes = SharedBytes::of(&golden);
        assert_eq!(check(bytes), Ok(head));
        let (first, at) = message(bytes, HEAD, false).unwrap();
        assert_eq!((first.to_vec(), at), (b"hello".to_vec(), 23));
        let (second, at) = message(bytes, at, true).unwrap();
        assert_eq!((second.len(), at), (0, golden.len()));
    }

    #[test]
    fn what_is_cut_or_longer_than_sent_is_impossible() {
        let mut bytes = Head {
            consumed: 0.into(),
            granted: 0.into(),
            count: 1.into(),
            flags: 0.into(),
        }
        .as_bytes()
        .to_vec();
        assert_eq!(
            check(SharedBytes::of(&bytes)),
            Err(Impossible),
            "no room for its message"
        );
        assert_eq!(check(SharedBytes::of(&bytes[..15])), Err(Impossible));
        bytes.extend(b"\x03\0abc");
        assert!(check(SharedBytes::of(&bytes)).is_ok());
        assert!(message(SharedBytes::of(&bytes), HEAD, true).is_ok());
        assert!(message(SharedBytes::of(&bytes[..20]), HEAD, true).is_err());
        assert!(
            message(SharedBytes::of(&bytes), HEAD, false).is_err(),
            "none follows"
        );
        bytes.push(0);
        assert!(
            message(SharedBytes::of(&bytes), HEAD, true).is_err(),
            "more follows"
        );
        for (flags, why) in [
            (2, "a proof with messages"),
            (3, "a proof that wants"),
            (4, "credits with messages"),
            (5, "credits given back and wanted"),
            (2 | 8, "a proof behind the ring"),
            (4 | 8, "credits given back behind the ring"),
            (2 | 4, "both"),
        ] {
            bytes[14] = flags;
            assert_eq!(check(SharedBytes::of(&bytes)), Err(Impossible), "{why}");
        }
    }

    #[test]
    fn the_number_of_sends_over_the_ring_stands_between_the_flags() {
        let mut head = Head {
            consumed: 0.into(),
            granted: 0.into(),
            count: 0.into(),
            flags: (ring_flags(4096 + 0x0abc) | WANTS_MORE).into(),
        };
        assert_eq!(head.flags.get(), 0x0abc << 3 | 1);
        assert_eq!(head.ring_number(), 0x0abc);
        assert!(check(SharedBytes::of(head.as_bytes())).is_ok());
        head.flags = (ring_flags(4095) | CONTROLS).into();
        assert_eq!((head.flags.get(), head.ring_number()), (0xfff8, 4095));
        assert!(check(SharedBytes::of(head.as_bytes())).is_ok());
    }

    #[test]
    fn a_proof_has_any_length_and_no_messages() {
        let mut bytes = Head {
            consumed: 9.into(),
            granted: 9.into(),
            count: 0.into(),
            flags: PROOF.into(),
        }
        .as_bytes()
        .to_vec();
        for length in [HEAD, HEAD + 1, 4096] {
            bytes.resize(length, 0);
            assert!(check(SharedBytes::of(&bytes)).is_ok(), "{length} bytes");
        }
    }

    #[test]
    fn credits_are_given_back_by_a_head_alone() {
        let head = |count: u16| Head {
            consumed: 0.into(),
            granted: 0.into(),
            count: count.into(),
            flags: RETURNS.into(),
        };
        let mut bytes = head(7).as_bytes().to_vec();
        assert_eq!(check(SharedBytes::of(&bytes)), Ok(head(7)));
        bytes.extend([0, 0]);
        assert_eq!(
            check(SharedBytes::of(&bytes)),
            Err(Impossible),
            "a message follows"
        );
        assert_eq!(check(SharedBytes::of(head(0).as_bytes())), Err(Impossible));
    }

    #[test]
    fn numbers_that_shrink_or_run_ahead_are_impossible() {
        let (mut known, mut heads, mut pages) = (Known::default(), Known::default(), Known::default());
        let head = |consumed: u64, granted: u32| Head {
            consumed: consumed.into(),
            granted: granted.into(),
            count: 0.into(),
            flags: 0.into(),
        };
        assert_eq!(known.head(&mut heads, &head(3, 8), 5, 4), Ok(true));
        assert_eq!(known.head(&mut heads, &head(2, 8), 5, 4), Err(Impossible));
        assert_eq!(known.head(&mut heads, &head(6, 8), 5, 4), Err(Impossible));
        assert_eq!(
            known.head(&mut heads, &head(3, 7), 5, 4),
            Err(Impossible),
            "granted shrinks"
        );
        let recalls = std::cell::Cell::new(2);
        let page = |consumed: u64, granted: u64| Counters {
            consumed: consumed.into(),
            granted: granted.into(),
            recalls: recalls.get().into(),
        };
        assert_eq!(
            known.page(&mut pages, page(2, 8), 5, 4),
            Ok(false),
            "older than a head's"
        );
        assert_eq!(known.page(&mut pages, page(1, 8), 5, 4), Err(Impossible));
        assert_eq!(
            known.page(&mut pages, page(5, MOST_CREDITS + 5), 5, 4),
            Err(Impossible)
        );
        recalls.set(1);
        assert_eq!(known.page(&mut pages, page(2, 8), 5, 4), Err(Impossible));
        assert_eq!(
            known,
            Known {
                consumed: 3,
                granted: 8,
                recalls: 2
            }
        );
    }
}
