//! Publishes what a member counts, as ranks do: a counter file with rows for each path to a peer that was
//! met, by the name in the peer's address.
//!
//! The table of a file is fixed, and a member's peers come and go. So another file is made when they have
//! changed: at once for the first [`AT_ONCE`] times, then at most every [`REMAKE`]. Readers look the files up
//! each time.

use std::fmt;
use std::time::Duration;

use doorbell_fabric::counters::NO_RANK;
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;

use super::pml::PmlMember;
use crate::config::CounterPlace;
use crate::counter_file::{CounterPublisher, way_row};

/// Files that are made without an interval: most members meet a few peers at their start, and a file that is
/// made later would allocate while they are measured.
const AT_ONCE: u32 = 16;
/// Interval between two files.
const REMAKE: Duration = Duration::from_millis(100);

/// The counter file of a member.
pub struct MemberCounters {
    place: CounterPlace,
    file: Option<CounterPublisher>,
    /// The count of changes of the peers when the file was made, if one was.
    changes: Option<u64>,
    made: u32,
    next: Time,
    /// Why the last peer was lost, in one sentence; empty where none was.
    last_loss: String,
}

impl fmt::Debug for MemberCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberCounters")
            .field("path", &self.file.as_ref().map(CounterPublisher::path))
            .finish_non_exhaustive()
    }
}

impl MemberCounters {
    /// Returns the counters of a member whose settings have this place, without a file yet.
    #[must_use]
    pub fn new(place: CounterPlace) -> Self {
        Self {
            place,
            file: None,
            changes: None,
            made: 0,
            next: Time::ZERO,
            last_loss: String::new(),
        }
    }

    /// Whether there is to be a file.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.place != CounterPlace::Off
    }

    /// Notes why a peer was lost.
    pub fn note_loss(&mut self, sentence: String) {
        self.last_loss = sentence;
        self.changes = None;
    }

    /// Stores the totals, and makes a file for peers that were met since. To be called where the member reads
    /// the clock: nothing is done more often than it needs. Without descriptors or memory there is no file.
    pub fn update(&mut self, member: &PmlMember) {
        if !self.is_on() || member.here().is_err() {
            return;
        }
        let now = member.clock.now();
        let changes = member.changes();
        if self.changes != Some(changes) && (self.made < AT_ONCE || now >= self.next) {
            self.made = self.made.saturating_add(1);
            self.next = now + REMAKE;
            self.changes = Some(changes);
            self.file = self.make(member);
        }
        if let Some(file) = &mut self.file {
            file.update(now, member.counted());
        }
    }

    fn make(&self, member: &PmlMember) -> Option<CounterPublisher> {
        let pml = member.counted();
        let ways = member.met().flat_map(|(rank, peer, paths)| {
            // Peers of several hosts that are known by a key have one name, where they have one port.
            let door = member
                .keyed_door(rank)
                .map_or_else(String::new, |door| format!(".{door}"));
            let name = format!("{:016x}{door}", peer.name());
            paths.iter().filter_map(move |path| {
                let rail = pml.rail(path.rail)?.name().to_string();
                Some((rank, *path, way_row(&name, &rail)))
            })
        });
        let texts = [
            ("member.address".to_owned(), member.address(0).peer().to_string()),
            ("member.last_loss".to_owned(), self.last_loss.clone()),
        ];
        CounterPublisher::publish(self.place, NO_RANK, pml, ways, &texts).ok()?
    }
}
