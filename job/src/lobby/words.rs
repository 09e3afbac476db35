//! The cards of processes on other hosts: each process puts its card into the launcher's key-value store
//! (PMI-1), and reads those of others when it needs them.
//!
//! The program exchanges messages with the launcher over the same descriptor. So every exchange here is
//! complete, request and reply, and happens only inside a call of the program: a program of one thread is not
//! waiting for a reply of its own then. A program of several threads has to ensure this itself: where a rail
//! leads out of the host, no thread may use the launcher while another one is inside a call to its
//! interfaces.
//!
//! There is no barrier here: a program that names a process of another host has its name from the launcher,
//! behind a barrier of the program, and our card was put before that barrier.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use doorbell_oob::Launcher as _;
use doorbell_oob::launch::wire::Wire;
use doorbell_oob::launch::{Kind, LaunchError, Place, Pmi1, Wanted, detect};

use super::card::Card;

/// The key of each rank's card in the store.
const KEY: &str = "ni";
/// Limit of an exchange with the launcher.
const LIMIT: Duration = Duration::from_secs(10);
/// Limit of the last exchange, at the end of the process.
const LAST: Duration = Duration::from_secs(1);

/// The open connection, for [`finish`].
static OPENED: Mutex<Option<Wire<Pmi1>>> = Mutex::new(None);

/// The cards in the launcher's key-value store.
#[derive(Debug)]
pub(super) struct Words {
    launcher: Option<Wire<Pmi1>>,
    /// The ranks whose cards have not been read yet.
    unread: Vec<u32>,
}

impl Words {
    /// Puts this process's card, over a copy of the launcher's descriptor. `None` without a launcher, or
    /// where the job is one process.
    ///
    /// # Errors
    /// Errors of the launcher, or a time-out.
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
        let mut launcher = Wire::<Pmi1>::over(descriptor, place, LIMIT).map_err(said)?;
        launcher.put(KEY, &card.written(None, 0)?, LIMIT).map_err(said)?;
        let unread = (0..size).filter(|rank| *rank != found.rank).collect();
        Ok(Some(Self {
            launcher: Some(launcher),
            unread,
        }))
    }

    /// Returns the next card that was not read yet; `None` when there is none, or none any more.
    pub(super) fn next(&mut self, ours: &Card) -> Option<Card> {
        let launcher = self.launcher.as_mut()?;
        let mut at = 0;
        while let Some(rank) = self.unread.get(at).copied() {
            match launcher.get(rank, KEY, LIMIT) {
                Ok(text) => {
                    self.unread.remove(at);
                    // A card that does not match ours is skipped.
                    if let Ok(card) = Card::read(&text, ours) {
                        return Some(card);
                    }
                }
                // The rank has not put its card yet, or runs another program.
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
        *opened = self.launcher.take();
    }
}

/// Disconnects from the launcher at the end of the process, after all members, unless the program has done
/// so. A launcher takes a connection that is used and closed without this for a failed process.
pub fn finish() {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mut launcher) = opened.take() {
        // The program may have disconnected by itself: then there is no answer.
        let _ = launcher.finalize(LAST);
    }
}
