//! What processes on different hosts know of each other: each puts its card among the launcher's values, and reads those of
//! others when it needs one (PMI-1).
//!
//! The program has a conversation of its own over the same descriptor. So every turn here is complete, question and answer,
//! and is taken only inside of a call that the program has made. A program of one thread is then not waiting for an answer of
//! its own. One of several threads has to see to that itself: where a rail leads out of the host, none of them may talk to the
//! launcher while another one is inside of a call to its interfaces. No barrier is ours: a program that names a process of another host has learned its name from the
//! launcher, behind a barrier of its own, and our card was put before that.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use doorbell_oob::Launcher as _;
use doorbell_oob::launch::wire::Wire;
use doorbell_oob::launch::{Kind, LaunchError, Place, Pmi1, Wanted, detect};

use super::card::Card;

/// Under which each rank has its card.
const KEY: &str = "ni";
/// How long the launcher may take for an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// The same at the end.
const LAST: Duration = Duration::from_secs(1);

/// What was opened, for [`finish`].
static OPENED: Mutex<Option<Wire<Pmi1>>> = Mutex::new(None);

/// The launcher's values.
#[derive(Debug)]
pub(super) struct Words {
    door: Option<Wire<Pmi1>>,
    /// The ranks whose cards were not read yet.
    unread: Vec<u32>,
}

impl Words {
    /// Puts our card, over a copy of the launcher's descriptor. `None` without a launcher, or where the job is one process.
    ///
    /// # Errors
    /// What the launcher says, or does not.
    pub(super) fn put(descriptor: OwnedFd, card: &Card) -> Result<Option<Self>, String> {
        let wanted = Wanted {
            kind: Some(Kind::Pmi1),
            ..Wanted::default()
        };
        let Ok(found) = detect(&wanted, &|name| std::env::var(name).ok()) else {
            return Ok(None);
        };
        let Some(size) = found.size.filter(|size| *size > 1) else {
            return Ok(None);
        };
        let place = Place {
            rank: found.rank,
            size,
            local_rank: None,
            local_size: None,
            job: String::new(),
        };
        let said = |error: LaunchError| error.to_string();
        let mut door = Wire::<Pmi1>::over(descriptor, place, LIMIT).map_err(said)?;
        door.put(KEY, &card.written()?, LIMIT).map_err(said)?;
        let unread = (0..size).filter(|rank| *rank != found.rank).collect();
        Ok(Some(Self {
            door: Some(door),
            unread,
        }))
    }

    /// The next card that was not read; `None` when there is none (any more).
    pub(super) fn next(&mut self, ours: &Card) -> Option<Card> {
        let door = self.door.as_mut()?;
        let mut at = 0;
        while let Some(rank) = self.unread.get(at).copied() {
            match door.get(rank, KEY, LIMIT) {
                Ok(text) => {
                    self.unread.remove(at);
                    // One that does not fit is nobody to us.
                    if let Ok(card) = Card::read(&text, ours) {
                        return Some(card);
                    }
                }
                // Not put yet, or not by a program of ours.
                Err(LaunchError::Absent { .. }) => at += 1,
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        *opened = self.door.take();
    }
}

/// At the end of the process, behind all members: takes leave of the launcher, if the program has not. A launcher takes one
/// who has spoken and leaves without a word for one that has failed.
pub fn finish() {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mut door) = opened.take() {
        // Where the program has taken leave itself, nobody listens any more.
        let _ = door.finalize(LAST);
    }
}
