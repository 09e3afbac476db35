//! All crews of a job on one host: the first one, and those that its ranks have spawned.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use doorbell::oob::launch::Program;
use doorbell::oob::serve::token_of;

use super::pmi_group::{Crew, Trial, Wish};
use crate::error::ToolError;

/// The number of the first crew.
pub(super) const FIRST: u32 = 0;
/// Maximum number of ranks of a job over time: numbers are not reused.
const MOST: u32 = 1 << 30;

/// The requester of a crew.
#[derive(Debug)]
struct Order {
    crew: u32,
    token: Option<String>,
}

#[derive(Debug)]
pub(super) struct Crews {
    name: String,
    all: BTreeMap<u32, Crew>,
    orders: BTreeMap<u32, Order>,
    /// The numbers of the next crew, and of its first rank.
    next: (u32, u32),
    wishes: Vec<(u32, Wish)>,
}

impl Crews {
    /// Creates the crew of the first ranks.
    pub(super) fn begin(name: &str, ranks: u32) -> Self {
        let first = Crew::of_job(name, ranks, 0..ranks, &[(0, 1, ranks)]);
        Self {
            name: name.to_owned(),
            all: BTreeMap::from([(FIRST, first)]),
            orders: BTreeMap::new(),
            next: (FIRST + 1, ranks),
            wishes: Vec::new(),
        }
    }

    /// Creates a crew that a rank has requested; returns its number. Its ranks are still to be started.
    pub(super) fn ask(&mut self, by: u32, number: u32, program: &Program) -> Result<u32, String> {
        let (crew, first) = self.next;
        let ranks = program.ranks;
        if first.saturating_add(ranks) > MOST {
            return Err(format!(
                "this job has had {first} ranks, and {MOST} is the maximum"
            ));
        }
        let name = format!("{}-{crew}", self.name);
        let made = Crew::spawned(&name, (first, ranks), 0..ranks, &[(0, 1, ranks)], &program.values);
        let made = made.map_err(|why| format!("rank {number} gives an invalid value: {why}"))?;
        self.all.insert(crew, made);
        let token = token_of(program).map(str::to_owned);
        self.orders.insert(crew, Order { crew: by, token });
        self.next = (crew + 1, first + ranks);
        Ok(crew)
    }

    pub(super) fn numbers(&self, crew: u32) -> Range<u32> {
        self.all.get(&crew).map_or(0..0, Crew::numbers)
    }

    pub(super) fn line(
        &mut self,
        crew: u32,
        rank: u32,
    ) -> Result<(OwnedFd, Vec<(String, OsString)>), ToolError> {
        let made = match self.all.get_mut(&crew) {
            Some(crew) => crew.line(rank),
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
            .map(|(id, crew)| (*id, crew))
            .flat_map(|(id, crew)| crew.watched().map(move |(number, line)| (id, number, line)))
    }

    pub(super) fn hear(&mut self, crew: u32, number: u32) {
        if let Some(crew) = self.all.get_mut(&crew) {
            crew.hear(number);
        }
    }

    /// Returns the next request of a rank.
    pub(super) fn wish(&mut self) -> Option<(u32, Wish)> {
        if self.wishes.is_empty() {
            for (id, crew) in &mut self.all {
                self.wishes
                    .extend(crew.wishes().into_iter().map(|wish| (*id, wish)));
            }
            self.wishes.reverse();
        }
        self.wishes.pop()
    }

    pub(super) fn fenced(&mut self, crew: u32, number: u32, words: &[u8]) -> Result<(), String> {
        let crew = self.all.get_mut(&crew);
        crew.map_or(Ok(()), |crew| crew.fenced(number, [words]))
    }

    pub(super) fn answer(&mut self, crew: u32, number: u32, result: Result<(), &str>) {
        if let Some(crew) = self.all.get_mut(&crew) {
            crew.answer(number, result);
        }
    }

    /// Records that the crew of `token` will not start.
    pub(super) fn tell(&mut self, crew: u32, token: &str, why: &str) {
        if let Some(crew) = self.all.get_mut(&crew) {
            crew.tell(token, why);
        }
    }

    pub(super) fn took_leave(&self, crew: u32, number: u32) -> bool {
        self.all.get(&crew).is_some_and(|crew| crew.took_leave(number))
    }

    pub(super) fn deserted(&mut self, crew: u32, number: u32) -> Option<String> {
        self.all.get_mut(&crew)?.deserted(number)
    }

    /// Returns the crew on trial with this token.
    pub(super) fn by_token(&self, token: &str) -> Option<u32> {
        let mut orders = self.orders.iter();
        let (crew, _) = orders.find(|(_, order)| order.token.as_deref() == Some(token))?;
        Some(*crew)
    }

    /// Fails a crew: if it was on trial, the requester is informed.
    pub(super) fn fail(&mut self, crew: u32, how: &str) -> bool {
        let Some(failed) = self.all.get_mut(&crew).filter(|crew| crew.trial == Trial::Under) else {
            return false;
        };
        failed.trial = Trial::Failed;
        if let Some(Order {
            crew,
            token: Some(token),
        }) = self.orders.get(&crew)
        {
            let (crew, token) = (*crew, token.clone());
            self.tell(crew, &token, how);
        }
        true
    }

    /// Whether it has failed on trial, so that the ends of its ranks do not matter.
    pub(super) fn has_failed(&self, crew: u32) -> bool {
        self.all
            .get(&crew)
            .is_some_and(|crew| crew.trial == Trial::Failed)
    }

    /// Removes the crews without ranks.
    pub(super) fn retain(&mut self, has_ranks: impl Fn(u32) -> bool) {
        self.all.retain(|id, _| *id == FIRST || has_ranks(*id));
        let all = &self.all;
        self.orders.retain(|id, _| all.contains_key(id));
    }
}
