//! Spurious retransmissions: whether resends were needed. The peer counts what reached it twice; where that
//! count grows, some of ours were spurious.
//!
//! In vain because of a time-out: the peer was busy elsewhere, and nothing was lost. In vain because later
//! transmissions had arrived first: the network reorders more than we thought, and we are more patient from
//! then on.

/// Most patience with later transmissions.
const PATIENCE: u16 = 512;
/// Most doublings of the wait before a tail is retransmitted.
const DOUBLINGS: u8 = 8;
/// Resends in a row, none of them spurious, after which the wait is shorter.
const USEFUL: u8 = 32;

/// Resends to one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resends {
    /// Made since everything was acknowledged last, and before that: word of those may still be on its way.
    made: u16,
    earlier: u16,
    /// How many of these followed a time-out.
    timed: u16,
    /// Duplicates that the peer has reported so far.
    told: u32,
    useful: u8,
    patience: u16,
    /// How many times the wait before a tail is retransmitted is doubled.
    doublings: u8,
    /// When the first was made since something was answered (the low bits of the ns: idle peers are many), if
    /// any was, and whether that answer took long.
    first: u32,
    open: bool,
    slow: bool,
}

impl Resends {
    pub(crate) const fn new() -> Self {
        Self {
            made: 0,
            earlier: 0,
            timed: 0,
            told: 0,
            useful: 0,
            patience: 1,
            doublings: 0,
            first: 0,
            open: false,
            slow: false,
        }
    }

    /// Later transmissions of the same channel that must have arrived before one is taken for lost.
    #[inline]
    pub(crate) fn patience(&self) -> u64 {
        u64::from(self.patience)
    }

    /// Returns how many times the wait before a tail is retransmitted is doubled.
    #[inline]
    pub(crate) fn doublings(&self) -> u8 {
        self.doublings
    }

    /// A segment is sent again.
    pub(crate) fn made(&mut self, now: u64) {
        self.made = self.made.saturating_add(1);
        if !self.open {
            (self.first, self.open) = (now as u32, true);
        }
    }

    /// Something was answered. A peer that does so at once after a resend was there all the time: something
    /// was lost, and the next tail may wait less.
    #[inline]
    pub(crate) fn answered(&mut self, now: u64, prompt: impl FnOnce() -> u64) {
        if self.open {
            self.open = false;
            self.slow = u64::from((now as u32).wrapping_sub(self.first)) > prompt();
            if !self.slow {
                self.doublings = self.doublings.saturating_sub(1);
            }
        }
    }

    /// A segment will be sent again because nothing was answered in time.
    pub(crate) fn timed_out(&mut self) {
        self.timed = self.timed.saturating_add(1);
    }

    /// Takes the peer's count of duplicates; returns how many of our resends it shows to be spurious. A peer
    /// that was busy meanwhile makes the next tail wait longer.
    #[inline]
    pub(crate) fn told(&mut self, duplicates: u32) -> u32 {
        let more = duplicates.wrapping_sub(self.told) as i32;
        if more <= 0 {
            return 0;
        }
        self.told = duplicates;
        let vain = u32::from(self.made.saturating_add(self.earlier)).min(more as u32) as u16;
        let old = vain.min(self.earlier);
        self.earlier -= old;
        self.made -= vain - old;
        let timed = vain.min(self.timed);
        self.timed -= timed;
        if timed > 0 && self.slow {
            self.doublings = (self.doublings + 1).min(DOUBLINGS);
        }
        if vain > timed {
            self.patience = (self.patience * 2).min(PATIENCE);
            self.useful = 0;
        }
        vain.into()
    }

    /// Everything is acknowledged: what was sent again was needed, unless the peer reports otherwise soon.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.made == 0 {
            return;
        }
        self.useful = self.useful.saturating_add(self.made.min(u8::MAX.into()) as u8);
        (self.earlier, self.made) = (self.made, 0);
        self.timed = self.timed.min(self.earlier);
        if self.useful >= USEFUL && self.patience > 1 {
            self.patience -= 1;
            self.useful = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resends(made: u32, timed: u32) -> Resends {
        let mut resends = Resends::new();
        (0..made).for_each(|_| resends.made(1000));
        (0..timed).for_each(|_| resends.timed_out());
        resends
    }

    #[test]
    fn vain_resends_of_haste_make_patient_and_those_of_timeouts_do_not() {
        let mut hasty = resends(3, 0);
        assert_eq!((hasty.told(2), hasty.patience()), (2, 2));
        assert_eq!((hasty.told(2), hasty.told(1)), (0, 0), "told already");
        let mut timed = resends(1, 1);
        timed.answered(1051, || 50);
        assert_eq!((timed.told(1), timed.patience()), (1, 1));
        assert_eq!(timed.doublings(), 1, "it was busy");
        timed.timed_out();
        timed.made(2000);
        timed.answered(2050, || 50);
        timed.answered(3000, || 50);
        assert_eq!((timed.told(2), timed.doublings()), (1, 0), "its answer was lost");
        assert_eq!(timed.told(3), 0, "no more were made: the network duplicates");
    }

    #[test]
    fn word_may_come_after_the_last_acknowledgement() {
        let mut resends = resends(1, 1);
        resends.settle();
        assert_eq!(resends.told(1), 1);
        assert_eq!(resends.told(2), 0);
    }

    #[test]
    fn useful_resends_take_patience_back() {
        let mut resends = resends(1, 0);
        assert_eq!((resends.told(1), resends.patience()), (1, 2));
        for _ in 0..USEFUL {
            resends.made(1000);
            resends.settle();
        }
        assert_eq!(resends.patience(), 1);
    }
}
