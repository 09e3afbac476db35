//! Invalid messages of peers, by reason: dropped and counted.

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Drop {
    /// The message's kind does not exist.
    Kind,
    /// The message ends before its head does.
    Short,
    /// A flag, a length or a number in it cannot be.
    Malformed,
    /// The message comes before its sender has sent its name.
    Early,
    /// The sender's name is not the one it was connected by, or comes twice.
    Hello,
    /// The message answers, pulls or ends an operation that does not exist, or belongs to another peer.
    Unknown,
    /// The sender has more operations open here than the window allows, or does not take its answers.
    Window,
}

const REASONS: usize = Drop::Window as usize + 1;

/// How many messages were dropped for each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; REASONS]);

impl Drops {
    pub(crate) fn count_more(&mut self, reason: Drop, more: u64) {
        if let Some(count) = self.0.get_mut(reason as usize) {
            *count += more;
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn count(&mut self, reason: Drop) {
        if let Some(count) = self.0.get_mut(reason as usize) {
            *count += 1;
        }
    }

    /// Messages dropped for this reason.
    #[must_use]
    pub fn of(&self, reason: Drop) -> u64 {
        self.0[reason as usize]
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
