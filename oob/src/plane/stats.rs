//! Statistics of the transports, published for other threads.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use doorbell_fabric::time::Time;

use crate::error::OobError;
use crate::lines::rail::{self, Rails};
use crate::lines::tcp::Tcp;
use crate::lines::{self, TROUBLES};
use crate::runner::Carrier;
use crate::transport::{Command, Event, ModuleId};

/// What a transport has carried so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carriage {
    /// Its name in contacts.
    pub name: Arc<str>,
    /// Number of modules that are up.
    pub modules: usize,
    /// Number of links that are up.
    pub links: usize,
    /// Number of links that were lost.
    pub lost: u64,
    /// Frames given to links, and their bytes.
    pub frames_sent: u64,
    /// The bytes of those frames.
    pub bytes_sent: u64,
    /// Frames received over links.
    pub frames_received: u64,
    /// The bytes of those frames.
    pub bytes_received: u64,
    /// The transport's own counters.
    pub counted: Counted,
}

/// The own counters of a transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// It has no counters.
    #[default]
    Nothing,
    /// The counters of the transport `tcp`.
    Tcp(lines::Counters),
    /// The counters of a transport `rail`.
    Rail(rail::Counters),
}

/// A transport with counters and problem reports.
pub(super) trait Counts: Carrier {
    fn counted(&self) -> Counted;
    fn trouble(&mut self) -> Option<OobError>;
}

impl Counts for Tcp {
    fn counted(&self) -> Counted {
        Counted::Tcp(self.counters())
    }

    fn trouble(&mut self) -> Option<OobError> {
        self.trouble()
    }
}

impl Counts for Rails {
    fn counted(&self) -> Counted {
        Counted::Rail(self.counters())
    }

    fn trouble(&mut self) -> Option<OobError> {
        self.trouble()
    }
}

/// What the progress thread publishes about its transports.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) carriages: Vec<Carriage>,
    pub(super) troubles: VecDeque<OobError>,
}

impl Shown {
    /// Returns the counters of `tcp`.
    pub(super) fn tcp(&self) -> lines::Counters {
        let mut all = self.carriages.iter();
        let found = all.find_map(|carriage| match carriage.counted {
            Counted::Tcp(counters) => Some(counters),
            _ => None,
        });
        found.unwrap_or_default()
    }
}

/// The shared place where it is published.
pub(super) type Board = Arc<Mutex<Shown>>;

/// Locks the published statistics.
pub(super) fn look(board: &Board) -> MutexGuard<'_, Shown> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A transport whose statistics are published.
pub(super) struct Watched<C> {
    carrier: C,
    board: Board,
    /// Its position among the transports.
    at: usize,
    up: BTreeSet<ModuleId>,
    carriage: Carriage,
}

impl<C: Counts> Watched<C> {
    pub(super) fn new(carrier: C, board: Board, at: usize, name: Arc<str>) -> Self {
        let carriage = Carriage {
            name,
            ..Carriage::default()
        };
        Self {
            carrier,
            board,
            at,
            up: BTreeSet::new(),
            carriage,
        }
    }

    fn count(&mut self, event: &Event) {
        let carriage = &mut self.carriage;
        match event {
            Event::ModuleUp { module, .. } => _ = self.up.insert(*module),
            Event::ModuleDown { module } => _ = self.up.remove(module),
            Event::Connected { .. } => carriage.links += 1,
            Event::Lost { .. } => {
                carriage.links = carriage.links.saturating_sub(1);
                carriage.lost += 1;
            }
            Event::Received { frame, .. } => {
                carriage.frames_received += 1;
                carriage.bytes_received += frame.len() as u64;
            }
            Event::Paths { .. } | Event::Refused { .. } | Event::Sent { .. } => {}
        }
        carriage.modules = self.up.len();
    }
}

impl<C: Counts> Carrier for Watched<C> {
    fn command(&mut self, now: Time, command: Command) {
        if let Command::Send { frame, .. } = &command {
            self.carriage.frames_sent += 1;
            self.carriage.bytes_sent += frame.length() as u64;
        }
        self.carrier.command(now, command);
    }

    fn event(&mut self) -> Option<Event> {
        let event = self.carrier.event()?;
        self.count(&event);
        Some(event)
    }

    fn poll(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<()> {
        self.carrier.poll(cx, now)
    }

    fn tick(&mut self, now: Time) {
        self.carrier.tick(now);
        // If a reader holds the lock, publish in the next turn.
        if let Ok(mut shown) = self.board.try_lock() {
            self.carriage.counted = self.carrier.counted();
            if let Some(place) = shown.carriages.get_mut(self.at) {
                place.clone_from(&self.carriage);
            }
            while let Some(trouble) = self.carrier.trouble() {
                if shown.troubles.len() == TROUBLES {
                    shown.troubles.pop_front();
                }
                shown.troubles.push_back(trouble);
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        self.carrier.next_deadline()
    }

    fn leave(&mut self, now: Time) {
        self.carrier.leave(now);
    }

    fn is_quiet(&self) -> bool {
        self.carrier.is_quiet()
    }
}
