//! Processes whose last connection has ended, so that they may have ended as well: their desks are looked at
//! until one is gone, or long enough there.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::place::{dial, system_id};
use crate::lobby::card::Name;

/// The first pause between checks of a process whose connection has ended; it may still be exiting. Each
/// pause doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause; after that, the rails have to notice the process's end.
const LAST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Suspect {
    name: Name,
    /// The system's id of the process, where it is known.
    system_id: Option<i32>,
    /// When it is checked next, and the pause after that.
    next: Instant,
    pause: Duration,
}

impl Suspect {
    /// Whether no process listens at its name any more, or another one does.
    fn is_gone(&self) -> bool {
        match dial(&self.name) {
            Ok(socket) => system_id(&socket)
                .zip(self.system_id)
                .is_some_and(|(now, before)| now != before),
            Err(error) => Errno::from_io_error(&error) == Some(Errno::CONNREFUSED),
        }
    }
}

/// The processes to be checked.
#[derive(Debug, Default)]
pub(super) struct Suspects(Vec<Suspect>);

impl Suspects {
    /// Adds a process, to be checked at once.
    pub(super) fn add(&mut self, name: Name, system_id: Option<i32>) {
        self.remove(&name);
        self.0.push(Suspect {
            name,
            system_id,
            next: Instant::now(),
            pause: FIRST_PAUSE,
        });
    }

    /// Removes a process: there is a connection to it again, or it does not matter any more.
    pub(super) fn remove(&mut self, name: &Name) {
        self.0.retain(|suspect| suspect.name != *name);
    }

    /// Checks those that are due, and returns those that have ended.
    #[cold]
    pub(super) fn look(&mut self) -> Vec<Name> {
        let now = Instant::now();
        let mut gone = Vec::new();
        self.0.retain_mut(|suspect| {
            if suspect.next > now {
                return true;
            }
            if suspect.is_gone() {
                gone.push(suspect.name);
                return false;
            }
            suspect.next = now + suspect.pause;
            suspect.pause *= 2;
            suspect.pause <= LAST_PAUSE
        });
        gone
    }

    /// Whether a process is to be checked.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.0.iter().any(|suspect| suspect.name == *name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns when the next one is to be checked.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|suspect| suspect.next).min()
    }
}
