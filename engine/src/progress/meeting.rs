//! Connecting peers at their first use: what the owner of the rails does about it, in its housekeeping.
//!
//! ```text
//!   the PML wants 7 ──────────────────┐                          known: opened at once
//!                                     ├─► directory.ask / search ──► news ──► connected, or it cannot be
//!   a rail: a stranger calls, "#a4" ──┘        "#a4" is the name of 7 there ───► connected
//! ```
//!
//! A rail identifies an unknown caller by a name that only both ends can compute, from their addresses and
//! the job's key. The rank behind a name is found by reading the records that other ranks have published, so
//! a call from a stranger makes this rank read records until one matches: the nearest ranks first, and each
//! record once per job.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use doorbell_fabric::discover::Candidate;
use doorbell_fabric::message::{Caller, Message as _};
use doorbell_fabric::rail::Work;
use doorbell_job::config::Config;
use doorbell_job::connect::{connect, give_paths};
use doorbell_job::error::Error;
use doorbell_job::ranks::{Directory, News};
use doorbell_pml::{PmlError, RailId, Rank};

use super::core::Core;

/// Most names of unmatched strangers that are kept for each rail: as many as shared memory keeps, where each
/// stranger calls only once.
const CALLING: usize = 4096;

/// What it takes to connect a peer in the middle of a job.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) directory: Directory,
    config: Config,
    candidates: Vec<Candidate>,
    /// The names that known ranks without a connection would have on our rails.
    names: HashMap<(RailId, Caller), u32>,
    /// The ranks whose names are in `names`.
    named: BTreeSet<u32>,
    /// Callers that no known rank matches yet.
    calling: HashSet<(RailId, Caller)>,
    /// The reason for each rank that cannot be connected.
    troubles: BTreeMap<u32, String>,
}

impl Meeting {
    pub(crate) fn new(directory: Directory, config: Config, candidates: Vec<Candidate>) -> Self {
        Self {
            directory,
            config,
            candidates,
            names: HashMap::new(),
            named: BTreeSet::new(),
            calling: HashSet::new(),
            troubles: BTreeMap::new(),
        }
    }
}

impl Core {
    /// Connects the peers that are wanted and those that call, as far as their ranks are known.
    #[inline]
    pub(super) fn meet_peers(&mut self) -> Work {
        match self.meeting.take() {
            Some(meeting) => self.meet_with(meeting),
            None => 0,
        }
    }

    #[cold]
    fn meet_with(&mut self, mut meeting: Box<Meeting>) -> Work {
        let mut work = 0;
        while let Some(rank) = self.pml.wanted() {
            self.meet_wanted(&mut meeting, rank.0);
            work += 1;
        }
        work += self.on_callers(&mut meeting);
        if meeting.directory.any() {
            work += 1;
            for news in meeting.directory.take() {
                self.on_news(&mut meeting, news);
            }
            if meeting.calling.is_empty() {
                meeting.directory.found();
            }
            meeting.directory.seen();
        }
        self.meeting = Some(meeting);
        work
    }

    /// Marks a rank as wanted; returns whether it is connected.
    pub(crate) fn meet(&mut self, rank: u32) -> Result<bool, Error> {
        if rank >= self.size {
            let size = self.size;
            return Err(Error::NoSuchRank { rank, size });
        }
        self.pml.want(Rank(rank));
        self.progress();
        match self.pml.lost(Rank(rank)) {
            Some(reason) => Err(self.explained(PmlError::PeerLost {
                rank: Rank(rank),
                reason,
            })),
            None => Ok(!self.pml.is_unmet(Rank(rank))),
        }
    }

    /// Returns why a rank cannot be connected, if that was tried.
    pub(super) fn trouble_of_meeting(&self, rank: u32) -> Option<&str> {
        let meeting = self.meeting.as_ref()?;
        meeting.troubles.get(&rank).map(String::as_str)
    }

    fn meet_wanted(&mut self, meeting: &mut Meeting, rank: u32) {
        if let Some(trouble) = meeting.troubles.get(&rank) {
            let trouble = trouble.clone();
            return self.cannot_meet(meeting, rank, trouble);
        }
        if meeting.directory.rank_info(rank).is_some() {
            return self.open(meeting, rank);
        }
        if let Err(trouble) = meeting.directory.ask(rank) {
            self.cannot_meet(meeting, rank, trouble);
        }
    }

    fn on_news(&mut self, meeting: &mut Meeting, News { rank, trouble }: News) {
        match trouble {
            Some(trouble) if self.pml.is_wanted(Rank(rank)) => self.cannot_meet(meeting, rank, trouble),
            // A rank that exchanges no messages with it may never need to know.
            Some(trouble) => drop(meeting.troubles.insert(rank, trouble)),
            None if self.pml.is_wanted(Rank(rank)) => self.open(meeting, rank),
            None => self.name_rank(meeting, rank),
        }
        if meeting.directory.is_whole() {
            // The callers that are left are no ranks of this job, or belong to an earlier incarnation.
            meeting.calling.clear();
        }
    }

    /// Records the names with which a rank would call before it is connected, and connects it if it has
    /// called.
    fn name_rank(&mut self, meeting: &mut Meeting, rank: u32) {
        let Some(info) = meeting.directory.rank_info(rank) else {
            return;
        };
        let mut names = Vec::new();
        for (id, rail) in self.pml.rails() {
            for entry in &info.rails {
                let name = rail.caller(&entry.address, entry.life());
                names.extend(name.map(|name| (id, name)));
            }
        }
        if names.iter().any(|name| meeting.calling.contains(name)) {
            return self.open(meeting, rank);
        }
        meeting.named.insert(rank);
        meeting.names.extend(names.into_iter().map(|name| (name, rank)));
    }

    fn on_callers(&mut self, meeting: &mut Meeting) -> Work {
        let mut callers = Vec::new();
        for (id, rail) in self.pml.rails_mut() {
            while let Some(caller) = rail.stranger() {
                callers.push((id, caller));
            }
        }
        let count = callers.len();
        for stranger in callers {
            self.on_caller(meeting, stranger);
        }
        count
    }

    fn on_caller(&mut self, meeting: &mut Meeting, stranger: (RailId, Caller)) {
        if let Some(rank) = meeting.names.get(&stranger).copied() {
            return self.open(meeting, rank);
        }
        let same = meeting.calling.iter().filter(|(rail, _)| *rail == stranger.0);
        if same.count() >= CALLING || !meeting.calling.insert(stranger) {
            return;
        }
        // Ranks that are known already may match: rank 0, or one that was looked up and is not connected.
        let known: Vec<u32> = meeting.directory.rank_infos().map(|info| info.rank).collect();
        for rank in known {
            if self.pml.is_unmet(Rank(rank)) && !meeting.named.contains(&rank) {
                self.name_rank(meeting, rank);
            }
        }
        if meeting.directory.is_whole() {
            meeting.calling.clear();
        } else if meeting.calling.contains(&stranger) {
            // If the search fails, the stranger calls until it gives up, and reports that itself.
            let _ = meeting.directory.search(self.rank);
        }
    }

    fn open(&mut self, meeting: &mut Meeting, rank: u32) {
        if !self.pml.is_unmet(Rank(rank)) {
            return;
        }
        let infos = (
            meeting.directory.rank_info(self.rank),
            meeting.directory.rank_info(rank),
        );
        let (Some(own), Some(peer)) = infos else { return };
        give_paths(&mut self.pml, &meeting.directory.paths_to(rank));
        match connect(&mut self.pml, &meeting.config, &meeting.candidates, own, peer) {
            Ok((selection, paths)) => {
                self.paths[rank as usize] = paths;
                meeting.directory.choose(rank, selection);
                meeting.names.retain(|_, other| *other != rank);
                self.forget_callers(meeting, rank);
            }
            Err(error) => self.cannot_meet(meeting, rank, error.to_string()),
        }
    }

    /// Forgets the calls of a rank that is connected now.
    fn forget_callers(&self, meeting: &mut Meeting, rank: u32) {
        let Some(info) = meeting.directory.rank_info(rank) else {
            return;
        };
        for (id, rail) in self.pml.rails() {
            for entry in &info.rails {
                if let Some(name) = rail.caller(&entry.address, entry.life()) {
                    meeting.calling.remove(&(id, name));
                }
            }
        }
    }

    fn cannot_meet(&mut self, meeting: &mut Meeting, rank: u32, trouble: String) {
        meeting.troubles.insert(rank, trouble);
        self.pml.not_met(Rank(rank));
    }
}
