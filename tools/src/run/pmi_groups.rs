//! All PMI groups of a job on one host: the first one, and those that its ranks have spawned.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use doorbell::oob::launch::Program;
use doorbell::oob::serve::token_of;

use super::pmi_group::{GroupRequest, PmiGroup, Trial};
use crate::error::ToolError;

/// The number of the first group.
pub(super) const FIRST: u32 = 0;
/// Maximum number of ranks of a job over time: numbers are not reused.
const MOST: u32 = 1 << 30;

/// The requester of a PMI group.
#[derive(Debug)]
struct Requester {
    pmi_group: u32,
    token: Option<String>,
}

#[derive(Debug)]
pub(super) struct PmiGroups {
    name: String,
    all: BTreeMap<u32, PmiGroup>,
    requesters: BTreeMap<u32, Requester>,
    /// The numbers of the next group, and of its first rank.
    next: (u32, u32),
    pending: Vec<(u32, GroupRequest)>,
}

impl PmiGroups {
    /// Creates the group of the first ranks.
    pub(super) fn begin(name: &str, ranks: u32) -> Self {
        let first = PmiGroup::of_job(name, ranks, 0..ranks, &[(0, 1, ranks)]);
        Self {
            name: name.to_owned(),
            all: BTreeMap::from([(FIRST, first)]),
            requesters: BTreeMap::new(),
            next: (FIRST + 1, ranks),
            pending: Vec::new(),
        }
    }

    /// Creates a PMI group that a rank has requested; returns its number. Its ranks are still to be started.
    pub(super) fn request(&mut self, by: u32, number: u32, program: &Program) -> Result<u32, String> {
        let (pmi_group, first) = self.next;
        let ranks = program.ranks;
        if first.saturating_add(ranks) > MOST {
            return Err(format!(
                "this job has had {first} ranks, and {MOST} is the maximum"
            ));
        }
        let name = format!("{}-{pmi_group}", self.name);
        let made = PmiGroup::spawned(&name, (first, ranks), 0..ranks, &[(0, 1, ranks)], &program.values);
        let made = made.map_err(|why| format!("rank {number} gives an invalid value: {why}"))?;
        self.all.insert(pmi_group, made);
        let token = token_of(program).map(str::to_owned);
        self.requesters
            .insert(pmi_group, Requester { pmi_group: by, token });
        self.next = (pmi_group + 1, first + ranks);
        Ok(pmi_group)
    }

    pub(super) fn numbers(&self, pmi_group: u32) -> Range<u32> {
        self.all.get(&pmi_group).map_or(0..0, PmiGroup::numbers)
    }

    pub(super) fn line(
        &mut self,
        pmi_group: u32,
        rank: u32,
    ) -> Result<(OwnedFd, Vec<(String, OsString)>), ToolError> {
        let made = match self.all.get_mut(&pmi_group) {
            Some(pmi_group) => pmi_group.line(rank),
            None => Err(std::io::ErrorKind::NotFound.into()),
        };
        made.map_err(|source| ToolError::Start {
            rank,
            what: "create its PMI line",
            source,
        })
    }

    pub(super) fn watched(&self) -> impl Iterator<Item = (u32, u32, BorrowedFd<'_>)> {
        self.all
            .iter()
            .map(|(id, pmi_group)| (*id, pmi_group))
            .flat_map(|(id, pmi_group)| pmi_group.watched().map(move |(number, line)| (id, number, line)))
    }

    pub(super) fn receive(&mut self, pmi_group: u32, number: u32) {
        if let Some(pmi_group) = self.all.get_mut(&pmi_group) {
            pmi_group.receive(number);
        }
    }

    /// Returns the next request of a rank.
    pub(super) fn next_request(&mut self) -> Option<(u32, GroupRequest)> {
        if self.pending.is_empty() {
            for (id, pmi_group) in &mut self.all {
                self.pending
                    .extend(pmi_group.requests().into_iter().map(|request| (*id, request)));
            }
            self.pending.reverse();
        }
        self.pending.pop()
    }

    pub(super) fn fenced(&mut self, pmi_group: u32, number: u32, words: &[u8]) -> Result<(), String> {
        let pmi_group = self.all.get_mut(&pmi_group);
        pmi_group.map_or(Ok(()), |pmi_group| pmi_group.fenced(number, [words]))
    }

    pub(super) fn answer(&mut self, pmi_group: u32, number: u32, result: Result<(), &str>) {
        if let Some(pmi_group) = self.all.get_mut(&pmi_group) {
            pmi_group.answer(number, result);
        }
    }

    /// Records that the group of `token` will not start.
    pub(super) fn spawn_failed(&mut self, pmi_group: u32, token: &str, why: &str) {
        if let Some(pmi_group) = self.all.get_mut(&pmi_group) {
            pmi_group.spawn_failed(token, why);
        }
    }

    pub(super) fn has_finalized(&self, pmi_group: u32, number: u32) -> bool {
        self.all
            .get(&pmi_group)
            .is_some_and(|pmi_group| pmi_group.has_finalized(number))
    }

    pub(super) fn deserted(&mut self, pmi_group: u32, number: u32) -> Option<String> {
        self.all.get_mut(&pmi_group)?.deserted(number)
    }

    /// Returns the group on trial with this token.
    pub(super) fn by_token(&self, token: &str) -> Option<u32> {
        let mut requesters = self.requesters.iter();
        let (pmi_group, _) = requesters.find(|(_, requester)| requester.token.as_deref() == Some(token))?;
        Some(*pmi_group)
    }

    /// Fails a PMI group: if it was on trial, the requester is informed.
    pub(super) fn fail(&mut self, pmi_group: u32, how: &str) -> bool {
        let Some(failed) = self
            .all
            .get_mut(&pmi_group)
            .filter(|pmi_group| pmi_group.trial == Trial::Under)
        else {
            return false;
        };
        failed.trial = Trial::Failed;
        if let Some(Requester {
            pmi_group,
            token: Some(token),
        }) = self.requesters.get(&pmi_group)
        {
            let (pmi_group, token) = (*pmi_group, token.clone());
            self.spawn_failed(pmi_group, &token, how);
        }
        true
    }

    /// Whether it has failed on trial, so that the ends of its ranks do not matter.
    pub(super) fn has_failed(&self, pmi_group: u32) -> bool {
        self.all
            .get(&pmi_group)
            .is_some_and(|pmi_group| pmi_group.trial == Trial::Failed)
    }

    /// Removes the groups without ranks.
    pub(super) fn retain(&mut self, has_ranks: impl Fn(u32) -> bool) {
        self.all.retain(|id, _| *id == FIRST || has_ranks(*id));
        let all = &self.all;
        self.requesters.retain(|id, _| all.contains_key(id));
    }
}
