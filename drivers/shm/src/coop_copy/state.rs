//! Shared state of a cooperative copy, by which both ends of one long read divide it.
//!
//! The kernel copies between two processes on the core of the caller. While the reader pulls, the owner of
//! the memory mostly waits for it, so it takes a part: the reader copies from the front, the owner from the
//! back (`process_vm_writev`), until they meet. An owner that does not poll copies nothing, and the reader
//! copies it all.
//!
//! Each rail has one such state behind its leases, which it alone can write and its peers can read: a
//! *request* (what it reads at present, and how many shares it has begun) and its *progress* as an owner
//! (whose request it serves at present, how many shares it has begun, and how many of those have ended).
//!
//! A read that is alone is divided into halves, of which the first is the reader's from the start. Where
//! several reads of one owner wait, the reader offers the owner a *whole* one and copies another by itself
//! meanwhile: both cores copy, and no read costs two calls.
//!
//! An end that begins a share first publishes that and then reads the other end's count, both sequentially
//! consistent: of two ends that begin the same share at least one sees the other. The owner then steps back;
//! the reader waits until the owner has ended the share or stepped back. For the same reason no share begins
//! after a request was withdrawn: what has begun by then is in the owner's progress, and the reader keeps its
//! memory until that has ended. An owner that has turned to another request does not return to the one
//! before: its progress is lost.

use std::time::Duration;

use crate::map::WordsOf;

/// An end that gave a sign of life this recently is the same process still, since pids are not reused so
/// soon. Beyond this age a system call checks.
pub(crate) const ALIVE: Duration = Duration::from_millis(1);
/// Words of the state: a cache line for the request, one for the owner's progress.
pub(crate) const COOP_WORDS: usize = 16;
/// Shortest read, in bytes, for which the owner's system call pays.
const WORTH: u64 = 8 << 10;
/// Largest share: the same as a piece of a read, so that other peers are served.
const SHARE_MAX: u64 = 256 << 10;
/// Shares end at pages of the read, if possible.
const PAGE: u64 = 4096;

/// The division of a read into shares, computed alike at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    length: u64,
    pub(crate) share: u64,
    /// Number of shares.
    pub(crate) shares: u64,
}

impl Split {
    /// Divides a read of `length` bytes between both ends; `None` if that does not pay. As few shares as
    /// possible: each costs a system call, which takes as long as some 8 KiB of its bytes.
    pub(crate) fn of(length: u64) -> Option<Self> {
        if length < WORTH {
            return None;
        }
        let each = length.div_ceil(2 * SHARE_MAX);
        let share = length.div_ceil(2 * each).next_multiple_of(PAGE);
        Some(Self {
            length,
            share,
            shares: length.div_ceil(share),
        })
    }

    /// A read of `length` bytes that is one share, for either end; `None` if offering it does not pay.
    pub(crate) fn whole(length: u64) -> Option<Self> {
        (WORTH..=SHARE_MAX).contains(&length).then_some(Self {
            length,
            share: length,
            shares: 1,
        })
    }

    /// The division of a request by its length and share; `None` if it is neither of ours.
    pub(crate) fn requested(length: u64, share: u64) -> Option<Self> {
        [Self::of(length), Self::whole(length)]
            .into_iter()
            .flatten()
            .find(|split| split.share == share)
    }

    /// How many shares are the reader's from the start.
    pub(crate) fn reserved(self) -> u64 {
        u64::from(self.shares > 1)
    }

    /// Offset and length of a share; empty beyond the last.
    pub(crate) fn share(&self, index: u64) -> (u64, u64) {
        let at = self.share.saturating_mul(index).min(self.length);
        (at, self.share.min(self.length - at))
    }
}

/// The read for which a rail requests the owner's help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    /// Unique number; zero means no request.
    pub(crate) number: u64,
    /// The owner's id as a lease holder.
    pub(crate) whom: u64,
    /// The lease, and the address from which it is read.
    pub(crate) key: u64,
    pub(crate) from: u64,
    /// Destination address in the reader.
    pub(crate) into: u64,
    pub(crate) length: u64,
    /// Bytes of a share, so that two ends that divide differently do not agree by number alone.
    pub(crate) share: u64,
}

/// The owner's progress with one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerProgress {
    /// Shares begun by the owner, from the back.
    pub(crate) begun: u64,
    /// How many of them have ended.
    pub(crate) ended: u64,
}

impl OwnerProgress {
    /// Whether the owner writes nothing at present.
    pub(crate) fn settled(self) -> bool {
        self.begun == self.ended
    }
}

/// The state of a rail: ours to be written, or a peer's to be read, which is untrusted.
#[derive(Clone, Copy)]
pub(crate) struct CoopState<'a> {
    words: &'a WordsOf,
    at: usize,
}

mod word {
    pub(super) const NUMBER: usize = 0;
    pub(super) const WHOM: usize = 1;
    pub(super) const KEY: usize = 2;
    pub(super) const FROM: usize = 3;
    pub(super) const INTO: usize = 4;
    pub(super) const LENGTH: usize = 5;
    pub(super) const BEGUN: usize = 6;
    pub(super) const SHARE: usize = 7;
    pub(super) const ANSWERED: usize = 8;
    pub(super) const HELPED: usize = 9;
    pub(super) const BACK: usize = 10;
    pub(super) const ENDED: usize = 11;
}

impl<'a> CoopState<'a> {
    /// The state whose first word is word `at`.
    pub(crate) fn new(words: &'a WordsOf, at: usize) -> Self {
        Self { words, at }
    }

    #[inline]
    fn load(&self, word: usize) -> u64 {
        self.words.load(self.at + word)
    }

    /// Stores a word before all later loads of this thread.
    fn store(&self, word: usize, value: u64) {
        self.words.store(self.at + word, value);
    }

    /// Stores a word after all earlier stores of this thread.
    fn put(&self, word: usize, value: u64) {
        self.words.put(self.at + word, value);
    }

    /// Publishes a request of which the reader has begun this many shares. The one before has been withdrawn,
    /// though its owner may still be writing for it.
    pub(crate) fn publish_request(&self, call: &ReadRequest, begun: u64) {
        self.put(word::NUMBER, 0);
        self.put(word::WHOM, call.whom);
        self.put(word::KEY, call.key);
        self.put(word::FROM, call.from);
        self.put(word::INTO, call.into);
        self.put(word::LENGTH, call.length);
        self.put(word::SHARE, call.share);
        self.put(word::BEGUN, begun);
        self.put(word::NUMBER, call.number);
    }

    /// Withdraws the request: no further share begins.
    pub(crate) fn withdraw_request(&self) {
        self.store(word::NUMBER, 0);
    }

    /// Publishes how many shares the reader has begun.
    pub(crate) fn set_reader_begun(&self, shares: u64) {
        self.store(word::BEGUN, shares);
    }

    /// The owner's progress with request `number` of `us`; empty if it serves another request.
    pub(crate) fn owner_progress(&self, us: u64, number: u64, split: &Split) -> OwnerProgress {
        let of_this = || self.load(word::ANSWERED) == number && self.load(word::HELPED) == us;
        if !of_this() {
            return OwnerProgress::default();
        }
        let (ended, begun) = (self.load(word::ENDED), self.load(word::BACK));
        if !of_this() {
            return OwnerProgress::default();
        }
        let begun = begun.min(split.shares);
        OwnerProgress {
            begun,
            ended: ended.min(begun),
        }
    }

    /// The number of the published request, or zero.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.load(word::NUMBER)
    }

    /// Returns how many shares the reader has begun.
    pub(crate) fn reader_begun(&self) -> u64 {
        self.load(word::BEGUN)
    }

    /// The published request, if it is for `us`.
    pub(crate) fn request_for(&self, us: u64) -> Option<ReadRequest> {
        let number = self.number();
        if number == 0 || self.load(word::WHOM) != us {
            return None;
        }
        let call = ReadRequest {
            number,
            whom: us,
            key: self.load(word::KEY),
            from: self.load(word::FROM),
            into: self.load(word::INTO),
            length: self.load(word::LENGTH),
            share: self.load(word::SHARE),
        };
        (self.number() == number).then_some(call)
    }

    /// Starts to serve a request of `whom`, with no share begun. The owner does this once per request.
    pub(crate) fn accept_request(&self, whom: u64, number: u64) {
        self.put(word::ANSWERED, 0);
        self.put(word::HELPED, whom);
        self.put(word::BACK, 0);
        self.put(word::ENDED, 0);
        self.store(word::ANSWERED, number);
    }

    /// Publishes how many shares the owner has begun; a smaller number steps back.
    pub(crate) fn set_owner_begun(&self, shares: u64) {
        self.store(word::BACK, shares);
    }

    /// Publishes how many of the owner's shares have ended.
    pub(crate) fn set_owner_ended(&self, shares: u64) {
        self.put(word::ENDED, shares);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers_once(split: Split, length: u64) {
        let mut at = 0;
        for index in 0..split.shares {
            let (start, share) = split.share(index);
            assert!(start == at && share > 0, "{length}: {index}");
            at += share;
        }
        assert_eq!(at, length);
        assert_eq!(split.share(split.shares).1, 0);
        assert_eq!(split.share(u64::MAX).1, 0);
    }

    #[test]
    fn shares_cover_a_read_once_and_are_worth_it() {
        assert_eq!(Split::of(WORTH - 1), None);
        let odd = [1 << 20, (1 << 20) + 1, 9 << 20, u64::MAX / 2];
        for length in (WORTH..600 << 10).step_by(1021).chain(odd) {
            let split = Split::of(length).unwrap();
            assert!(split.shares >= 2, "{length}");
            let (_, first) = split.share(0);
            assert!(
                (WORTH / 2..=SHARE_MAX).contains(&first) && first % PAGE == 0,
                "{length}"
            );
            if split.shares < 1000 {
                covers_once(split, length);
            }
        }
    }

    #[test]
    fn a_read_is_divided_into_as_few_equal_shares_as_there_can_be() {
        let table = [
            // Bytes, bytes of a share, shares.
            (8 << 10, 4 << 10, 2),
            (16 << 10, 8 << 10, 2),
            (64 << 10, 32 << 10, 2),
            (100_000, 53_248, 2),
            (256 << 10, 128 << 10, 2),
            (512 << 10, 256 << 10, 2),
            ((512 << 10) + 1, 132 << 10, 4),
            (1 << 20, 256 << 10, 4),
            (4 << 20, 256 << 10, 16),
        ];
        for (length, share, shares) in table {
            let split = Split::of(length).unwrap();
            assert_eq!((split.share, split.shares), (share, shares), "{length}");
            assert_eq!(split.reserved(), 1);
        }
    }

    #[test]
    fn only_reads_of_one_piece_are_offered_whole() {
        assert_eq!(Split::whole(WORTH - 1), None);
        assert_eq!(Split::whole(SHARE_MAX + 1), None);
        for length in [WORTH, WORTH + 1, 100_000, SHARE_MAX] {
            let split = Split::whole(length).unwrap();
            assert_eq!((split.shares, split.reserved()), (1, 0));
            covers_once(split, length);
        }
    }

    #[test]
    fn a_request_is_divided_as_its_reader_did_or_refused() {
        for length in [WORTH, 100_000, SHARE_MAX, SHARE_MAX + 1, 1 << 20] {
            let halves = Split::of(length).unwrap();
            assert_eq!(Split::requested(length, halves.share), Some(halves));
            assert_eq!(Split::requested(length, length), Split::whole(length));
            for share in [0, 1, halves.share - 1, halves.share + 1, length + 1, u64::MAX] {
                assert_eq!(Split::requested(length, share), None, "{length}: {share}");
            }
        }
    }
}
