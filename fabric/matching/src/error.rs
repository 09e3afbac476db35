//! The one error of this crate.

use crate::{EntryHandle, UnexpectedHandle};

/// Why a call was refused. The matcher is unchanged in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatchError {
    /// The entry is no longer posted: an arrival took it, it ran out of room, or it was cancelled before.
    #[error(
        "{0} is no longer posted: it was matched, used up or cancelled before; its completion has been or will \
         be reported, so treat the cancel as too late"
    )]
    StaleEntry(EntryHandle),
    /// The message is no longer kept: a receive, a claim or a drain took it.
    #[error(
        "{0} is no longer kept: a receive, a claim or a drain took it; look again with a new peek instead of \
         an old handle"
    )]
    StaleUnexpected(UnexpectedHandle),
}
