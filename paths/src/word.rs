//! The words that two ends exchange about their paths. Their layout on the wire is that of the layer above.

use doorbell_fabric::event::Life;

use crate::peer::PeerPaths;
use crate::timers::Timers;

/// A word about a path, sent over a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// This connection of the path is given up. Sent over the other paths.
    Broken {
        /// The number of the path, which is the same at both ends.
        path: u16,
        /// The connection, as the path's rail numbers them.
        life: Life,
    },
    /// Requests an answer over the same path.
    Probe {
        /// The number of the path, which is the same at both ends.
        path: u16,
        /// The number of the request.
        number: u32,
    },
    /// Answers a probe, over the same path.
    Echo {
        /// The number of the path, which is the same at both ends.
        path: u16,
        /// The number of the request.
        number: u32,
    },
}

impl Word {
    /// Returns the path that the word is about.
    #[must_use]
    pub const fn path(self) -> u16 {
        match self {
            Self::Broken { path, .. } | Self::Probe { path, .. } | Self::Echo { path, .. } => path,
        }
    }
}

/// What became of a word that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is acted upon by the next [`act_on_words`](crate::act_on_words).
    Taken,
    /// It is about a connection that has been replaced since: dropped.
    Late,
    /// It names a path that does not exist, or came over one that it cannot have come over: dropped.
    Bad,
}

/// Takes a word of `peer` that arrived over the path `over`. Sends nothing, and needs no clock: for use
/// within a poll.
pub fn on_word(
    timers: &mut Timers,
    paths: &mut PeerPaths,
    peer: u32,
    over: Option<usize>,
    word: Word,
) -> Arrival {
    let named = usize::from(word.path());
    let Some(path) = paths.get_mut(named) else {
        return Arrival::Bad;
    };
    match word {
        Word::Broken { life, .. } if over != Some(named) => {
            if !path.note_given_up(life) {
                return Arrival::Late;
            }
        }
        Word::Probe { number, .. } if over == Some(named) => path.probes.question(number),
        Word::Echo { number, .. } if over == Some(named) => path.probes.answer(number),
        _ => return Arrival::Bad,
    }
    timers.note_arrival(peer, paths);
    Arrival::Taken
}
