//! Peers that are met when they are needed: what the owner of the rails does about it, in its housekeeping.
//!
//! ```text
//!   the PML wants 7 ──────────────────┐                          known: opened at once
//!                                     ├─► directory.ask / search ──► news ──► opened, or it cannot be met
//!   a rail: a stranger calls, "#a4" ──┘        "#a4" is what 7 is called there ──► opened
//! ```
//!
//! A rail knows who calls by a name that only both ends can make, of their addresses and the job's key. Whose name it is,
//! one finds out by reading what the others have published, so a stranger's call has words read until it is found whose it
//! is: the nearest ranks first, and each word once in the life of the job.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use doorbell_fabric::discover::Candidate;
use doorbell_fabric::message::{Caller, Incarnation, Message as _};
use doorbell_fabric::rail::Work;
use doorbell_job::config::Config;
use doorbell_job::connect::connect;
use doorbell_job::error::Error;
use doorbell_job::ranks::{Directory, News};
use doorbell_pml::{PmlError, RailId, Rank};

use super::core::Core;

/// Most names of strangers that are kept for each rail until somebody is found whose they are: as many as shared memory keeps,
/// where nobody calls twice.
const CALLING: usize = 4096;

/// What it takes to open a peer in the middle of a job.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) directory: Directory,
    config: Config,
    candidates: Vec<Candidate>,
    /// What ranks that are known and not open would be called by our rails.
    names: HashMap<(RailId, Caller), u32>,
    /// Whose names these are.
    named: BTreeSet<u32>,
    /// Who has called, and nobody knows who it is.
    calling: HashSet<(RailId, Caller)>,
    /// Why ranks cannot be met.
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
    /// Opens who is wanted and who calls, as far as it is known who that is.
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
        work += self.hear_strangers(&mut meeting);
        if meeting.directory.any() {
            work += 1;
            for news in meeting.directory.take() {
                self.heard_of_rank(&mut meeting, news);
            }
            if meeting.calling.is_empty() {
                meeting.directory.found();
            }
            meeting.directory.seen();
        }
        self.meeting = Some(meeting);
        work
    }

    /// Whether a rank was met; it is wanted from now on.
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

    /// Why a rank cannot be met, if that was tried.
    pub(super) fn trouble_of_meeting(&self, rank: u32) -> Option<&str> {
        let meeting = self.meeting.as_ref()?;
        meeting.troubles.get(&rank).map(String::as_str)
    }

    fn meet_wanted(&mut self, meeting: &mut Meeting, rank: u32) {
        if let Some(trouble) = meeting.troubles.get(&rank) {
            let trouble = trouble.clone();
            return self.cannot_meet(meeting, rank, trouble);
        }
        if meeting.directory.hello(rank).is_some() {
            return self.open(meeting, rank);
        }
        if let Err(trouble) = meeting.directory.ask(rank) {
            self.cannot_meet(meeting, rank, trouble);
        }
    }

    fn heard_of_rank(&mut self, meeting: &mut Meeting, News { rank, trouble }: News) {
        match trouble {
            Some(trouble) if self.pml.is_wanted(Rank(rank)) => self.cannot_meet(meeting, rank, trouble),
            // Who has nothing to say to it may never need to know.
            Some(trouble) => drop(meeting.troubles.insert(rank, trouble)),
            None if self.pml.is_wanted(Rank(rank)) => self.open(meeting, rank),
            None => self.name_rank(meeting, rank),
        }
        if meeting.directory.is_whole() {
            // They are nobody of this job, or of a life that is over.
            meeting.calling.clear();
        }
    }

    /// Notes how a rank would be called that calls before it is open, and opens it if it has.
    fn name_rank(&mut self, meeting: &mut Meeting, rank: u32) {
        let Some(hello) = meeting.directory.hello(rank) else {
            return;
        };
        let mut names = Vec::new();
        for (id, rail) in self.pml.rails() {
            for entry in &hello.rails {
                let name = rail.caller(&entry.address, Incarnation(entry.incarnation));
                names.extend(name.map(|name| (id, name)));
            }
        }
        if names.iter().any(|name| meeting.calling.contains(name)) {
            return self.open(meeting, rank);
        }
        meeting.named.insert(rank);
        meeting.names.extend(names.into_iter().map(|name| (name, rank)));
    }

    fn hear_strangers(&mut self, meeting: &mut Meeting) -> Work {
        let mut heard = Vec::new();
        for (id, rail) in self.pml.rails_mut() {
            while let Some(caller) = rail.stranger() {
                heard.push((id, caller));
            }
        }
        let count = heard.len();
        for stranger in heard {
            self.hear_stranger(meeting, stranger);
        }
        count
    }

    fn hear_stranger(&mut self, meeting: &mut Meeting, stranger: (RailId, Caller)) {
        if let Some(rank) = meeting.names.get(&stranger).copied() {
            return self.open(meeting, rank);
        }
        let same = meeting.calling.iter().filter(|(rail, _)| *rail == stranger.0);
        if same.count() >= CALLING || !meeting.calling.insert(stranger) {
            return;
        }
        // Those who are known already may be it: rank 0, or one that was asked for and is not open.
        let known: Vec<u32> = meeting.directory.hellos().map(|hello| hello.rank).collect();
        for rank in known {
            if self.pml.is_unmet(Rank(rank)) && !meeting.named.contains(&rank) {
                self.name_rank(meeting, rank);
            }
        }
        if meeting.directory.is_whole() {
            meeting.calling.clear();
        } else if meeting.calling.contains(&stranger) {
            // Where nobody can be asked, it calls until it gives up, and says so.
            let _ = meeting.directory.search(self.rank);
        }
    }

    fn open(&mut self, meeting: &mut Meeting, rank: u32) {
        if !self.pml.is_unmet(Rank(rank)) {
            return;
        }
        let hellos = (meeting.directory.hello(self.rank), meeting.directory.hello(rank));
        let (Some(own), Some(peer)) = hellos else { return };
        match connect(&mut self.pml, &meeting.config, &meeting.candidates, own, peer) {
            Ok((selection, ways)) => {
                self.ways[rank as usize] = ways;
                meeting.directory.choose(rank, selection);
                meeting.names.retain(|_, other| *other != rank);
                self.forget_callers(meeting, rank);
            }
            Err(error) => self.cannot_meet(meeting, rank, error.to_string()),
        }
    }

    /// Who called is open now.
    fn forget_callers(&self, meeting: &mut Meeting, rank: u32) {
        let Some(hello) = meeting.directory.hello(rank) else {
            return;
        };
        for (id, rail) in self.pml.rails() {
            for entry in &hello.rails {
                if let Some(name) = rail.caller(&entry.address, Incarnation(entry.incarnation)) {
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
