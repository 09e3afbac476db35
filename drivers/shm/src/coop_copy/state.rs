//! The board: how both ends of one long read copy it together.
//!
//! The kernel copies between two processes on whichever core asks it to. While the reader pulls, the owner of the memory
//! mostly waits for the end of it, so it takes a share: the reader copies from the front, the owner from the back
//! (`process_vm_writev`), until they meet. Who does not look takes no share, and the reader does it all.
//!
//! Each rail has one board behind its leases, which it alone can write and its peers can read: a *call* (what it reads at
//! present, and how many shares it has begun) and an *answer* (whom it helps at present, how many shares it has begun and
//! how many of those have ended).
//!
//! The first share is the reader's. Who begins another one says so first and looks at the other's count then, both in the
//! one order of sequentially consistent stores: of two that begin the same share at least one sees the other. The owner
//! then steps back; the reader waits until the owner has ended it or stepped back. For the same reason no share begins
//! after a call was taken down: what has begun by then is in the answer, and the reader keeps its memory until it has ended.
//! An owner that has turned to another call does not come back to the one before: what it said of that one is gone.

use std::time::Duration;

use crate::map::WordsOf;

/// Who gave a sign of life so lately is the same process still: the numbers of all processes do not come round so soon.
/// What is older is asked for by a system call.
pub(crate) const ALIVE: Duration = Duration::from_millis(1);
/// Words of a board: a line for the call, a line for the answer.
pub(crate) const COOP_WORDS: usize = 16;
/// From this length on, in bytes, what the owner copies is worth the second system call.
const WORTH: u64 = 32 << 10;
/// The least a share is where there are more than two.
const SHARE: u64 = 32 << 10;
/// The most: as one piece of a read, so that others are served.
const SHARE_MAX: u64 = 256 << 10;
/// Shares end at pages of the read, where that is possible.
const PAGE: u64 = 4096;

/// How a read is cut: the same sum at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    length: u64,
    pub(crate) share: u64,
    /// How many shares.
    pub(crate) shares: u64,
}

impl Split {
    /// `None` for a read that is not worth it.
    pub(crate) fn of(length: u64) -> Option<Self> {
        if length < WORTH {
            return None;
        }
        let share = if length <= 2 * SHARE {
            // The owner has to hear of the call before it begins: the reader takes the longer one of two.
            (length * 9 / 16).next_multiple_of(PAGE)
        } else {
            (length / 8).next_multiple_of(PAGE).clamp(SHARE, SHARE_MAX)
        };
        Some(Self {
            length,
            share,
            shares: length.div_ceil(share),
        })
    }

    /// Offset and length of a share; nothing behind the last.
    pub(crate) fn share(&self, index: u64) -> (u64, u64) {
        let at = self.share.saturating_mul(index).min(self.length);
        (at, self.share.min(self.length - at))
    }
}

/// What a rail reads at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    /// Never the same again; zero is no call.
    pub(crate) number: u64,
    /// The owner's name among the holders of leases.
    pub(crate) whom: u64,
    /// The lease, and the address from which on it is read.
    pub(crate) key: u64,
    pub(crate) from: u64,
    /// Where to, in the reader.
    pub(crate) into: u64,
    pub(crate) length: u64,
    /// Bytes of a share, so that two ends that cut differently do not agree on numbers only.
    pub(crate) share: u64,
}

/// What an owner says of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerProgress {
    /// Shares begun, from the back.
    pub(crate) begun: u64,
    /// How many of them have ended.
    pub(crate) ended: u64,
}

impl OwnerProgress {
    /// Whether nothing is being written.
    pub(crate) fn settled(self) -> bool {
        self.begun == self.ended
    }
}

/// A board: ours to be written, or a peer's to be read, in which case anything may stand in it.
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
    /// The board whose first word is word `at`.
    pub(crate) fn new(words: &'a WordsOf, at: usize) -> Self {
        Self { words, at }
    }

    #[inline]
    fn load(&self, word: usize) -> u64 {
        self.words.load(self.at + word)
    }

    /// Seen by the other end before this end looks at anything else.
    fn store(&self, word: usize, value: u64) {
        self.words.store(self.at + word, value);
    }

    /// Seen by the other end in the order of this end's stores.
    fn put(&self, word: usize, value: u64) {
        self.words.put(self.at + word, value);
    }

    /// Puts a call up. There is none, or the one before has been taken down, though its owner may still be writing for it.
    pub(crate) fn publish_request(&self, call: &ReadRequest) {
        self.put(word::NUMBER, 0);
        self.put(word::WHOM, call.whom);
        self.put(word::KEY, call.key);
        self.put(word::FROM, call.from);
        self.put(word::INTO, call.into);
        self.put(word::LENGTH, call.length);
        self.put(word::SHARE, call.share);
        self.put(word::BEGUN, 1);
        self.put(word::NUMBER, call.number);
    }

    /// Takes the call down: no share begins any more.
    pub(crate) fn withdraw_request(&self) {
        self.store(word::NUMBER, 0);
    }

    /// The reader has begun so many shares.
    pub(crate) fn set_reader_begun(&self, shares: u64) {
        self.store(word::BEGUN, shares);
    }

    /// What the owner says of a call of `us`; of another's, it has nothing to do with this one any more.
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

    /// The number of the call that is up; zero for none.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.load(word::NUMBER)
    }

    /// How many shares the reader has begun.
    pub(crate) fn reader_begun(&self) -> u64 {
        self.load(word::BEGUN)
    }

    /// The call that is up, if it is for `us`.
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

    /// The owner turns to a call of `whom`, for the first and only time: nothing of it is begun.
    pub(crate) fn accept_request(&self, whom: u64, number: u64) {
        self.put(word::ANSWERED, 0);
        self.put(word::HELPED, whom);
        self.put(word::BACK, 0);
        self.put(word::ENDED, 0);
        self.store(word::ANSWERED, number);
    }

    /// The owner has begun so many shares, or steps back to so many.
    pub(crate) fn set_owner_begun(&self, shares: u64) {
        self.store(word::BACK, shares);
    }

    /// So many of the owner's shares have ended.
    pub(crate) fn set_owner_ended(&self, shares: u64) {
        self.put(word::ENDED, shares);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_a_read_once_and_are_worth_it() {
        assert_eq!(Split::of(WORTH - 1), None);
        let odd = [1 << 20, (1 << 20) + 1, 9 << 20, u64::MAX];
        for length in (WORTH..300 << 10).step_by(1021).chain(odd) {
            let split = Split::of(length).unwrap();
            assert!(split.shares >= 2, "{length}");
            let (_, first) = split.share(0);
            assert!(
                first > WORTH / 2 && first <= SHARE_MAX && first % PAGE == 0,
                "{length}"
            );
            if split.shares < 1000 {
                let mut at = 0;
                for index in 0..split.shares {
                    let (start, share) = split.share(index);
                    assert!(start == at && share > 0, "{length}: {index}");
                    at += share;
                }
                assert_eq!(at, length);
            }
            assert_eq!(split.share(split.shares).1, 0);
            assert_eq!(split.share(u64::MAX).1, 0);
        }
        assert_eq!(Split::of(64 << 10).unwrap().shares, 2);
        assert_eq!(Split::of(1 << 20).unwrap().shares, 8);
    }
}
