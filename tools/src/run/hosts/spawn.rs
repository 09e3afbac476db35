//! The launcher's view of spawned groups on several hosts: their placement, their requesters, and their
//! barriers, whose values it collects from their hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::place::spread;
use super::protocol::{GroupPlan, SpawnRequest};
use crate::run::pmi_groups::FIRST;

/// Maximum number of ranks of a job over time: numbers are not reused.
const MOST: u32 = 1 << 30;

/// The requester of a PMI group: the rank of its daemon in the control plane, its group, its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Requester {
    pub(super) host: u32,
    pub(super) pmi_group: u32,
    pub(super) rank: u32,
}

#[derive(Debug)]
struct SpawnedGroup {
    requester: Requester,
    token: Option<String>,
    numbers: Range<u32>,
    /// The daemons that have some of its ranks, and how many.
    hosts: BTreeMap<u32, u32>,
    /// The daemons that have not reported whether their part is started.
    starting: BTreeSet<u32>,
    /// Whether the requester has been answered.
    is_answered: bool,
    fence: u32,
    words: BTreeMap<u32, Vec<u8>>,
    has_joined: bool,
    alive: u32,
}

/// A message to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// To the requester: the outcome of its request.
    Answer(Requester, Option<String>, Result<(), String>),
    /// To the requester: the group will not start.
    Fate(Requester, String, String),
    /// To these hosts: end the group.
    End(u32, Vec<u32>),
    /// To these hosts: its barrier is complete.
    Fenced(u32, Vec<u32>, u32, Vec<Vec<u8>>),
}

#[derive(Debug)]
pub(super) struct SpawnedGroups {
    name: String,
    pmi_groups: BTreeMap<u32, SpawnedGroup>,
    /// The numbers of the next group, and of its first rank.
    next: (u32, u32),
}

impl SpawnedGroups {
    /// Creates the state of a job called `name`, which begins with this many ranks.
    pub(super) fn begin(name: String, ranks: u32) -> Self {
        Self {
            name,
            pmi_groups: BTreeMap::new(),
            next: (FIRST + 1, ranks),
        }
    }

    /// Places a PMI group on hosts with this many ranks each (`None`: lost): returns the command for each
    /// daemon that gets some.
    pub(super) fn place(
        &mut self,
        requester: Requester,
        request: SpawnRequest,
        alive: &[Option<u32>],
    ) -> Result<Vec<(u32, GroupPlan)>, String> {
        let ((pmi_group, first), size) = (self.next, request.ranks);
        if first.saturating_add(size) > MOST {
            return Err(format!("this job has had {first} ranks, and {MOST} are the most"));
        }
        let parts = spread(alive, size).ok_or("no host is left that could take them")?;
        let blocks: Vec<(u32, u32, u32)> = (0..)
            .zip(parts.iter().filter(|part| **part > 0))
            .map(|(at, part)| (at, 1, *part))
            .collect();
        let (mut plans, mut begin) = (Vec::new(), 0);
        for (daemon, part) in (1..).zip(parts).filter(|(_, part)| *part > 0) {
            plans.push((
                daemon,
                GroupPlan {
                    pmi_group,
                    name: format!("{}-{pmi_group}", self.name),
                    first,
                    size,
                    part: (begin, part),
                    blocks: blocks.clone(),
                    program: request.program.clone(),
                    args: request.args.clone(),
                    folder: request.folder.clone(),
                    values: request.values.clone(),
                },
            ));
            begin += part;
        }
        let hosts: BTreeMap<u32, u32> = plans
            .iter()
            .map(|(daemon, plan)| (*daemon, plan.part.1))
            .collect();
        self.pmi_groups.insert(
            pmi_group,
            SpawnedGroup {
                requester,
                token: request.token,
                numbers: first..first + size,
                starting: hosts.keys().copied().collect(),
                is_answered: false,
                hosts,
                fence: 0,
                words: BTreeMap::new(),
                has_joined: false,
                alive: size,
            },
        );
        self.next = (pmi_group + 1, first + size);
        Ok(plans)
    }

    /// Handles a host's report that it has started its part.
    pub(super) fn group_started(
        &mut self,
        daemon: u32,
        pmi_group: u32,
        result: Result<(), String>,
    ) -> Vec<Notice> {
        let Some(known) = self.pmi_groups.get_mut(&pmi_group) else {
            return Vec::new();
        };
        if !known.starting.remove(&daemon) {
            return Vec::new();
        }
        match result {
            Ok(()) if known.starting.is_empty() => {
                known.is_answered = true;
                vec![Notice::Answer(known.requester, known.token.clone(), Ok(()))]
            }
            Ok(()) => Vec::new(),
            Err(why) => self.lost(pmi_group, &why),
        }
    }

    /// Fails a PMI group: informs the requester and ends the rest of it. Does nothing for one that has
    /// joined, or has failed already.
    pub(super) fn lost(&mut self, pmi_group: u32, why: &str) -> Vec<Notice> {
        let Some(known) = self
            .pmi_groups
            .get(&pmi_group)
            .filter(|pmi_group| !pmi_group.has_joined)
        else {
            return Vec::new();
        };
        let hosts = known.hosts.keys().copied().collect();
        let mut notices = vec![Notice::End(pmi_group, hosts)];
        if !known.is_answered {
            notices.push(Notice::Answer(
                known.requester,
                known.token.clone(),
                Err(why.to_owned()),
            ));
        } else if let Some(token) = &known.token {
            notices.push(Notice::Fate(known.requester, token.clone(), why.to_owned()));
        }
        self.pmi_groups.remove(&pmi_group);
        notices
    }

    /// Cancels the wait for the group of this token.
    pub(super) fn abandoned(&mut self, token: &str) -> Vec<Notice> {
        let mut pmi_groups = self.pmi_groups.iter();
        match pmi_groups.find(|(_, pmi_group)| pmi_group.token.as_deref() == Some(token)) {
            Some((pmi_group, _)) => self.lost(*pmi_group, "no rank waits for it any more"),
            None => Vec::new(),
        }
    }

    /// Handles a barrier that the ranks of a PMI group on one host have reached.
    pub(super) fn fence(&mut self, daemon: u32, pmi_group: u32, number: u32, words: Vec<u8>) -> Vec<Notice> {
        let Some(known) = self.pmi_groups.get_mut(&pmi_group) else {
            return Vec::new();
        };
        if number != known.fence || !known.hosts.contains_key(&daemon) {
            return Vec::new();
        }
        known.words.insert(daemon, words);
        if known.words.len() < known.hosts.len() {
            return Vec::new();
        }
        (known.fence, known.has_joined) = (number + 1, true);
        let words = std::mem::take(&mut known.words).into_values().collect();
        vec![Notice::Fenced(
            pmi_group,
            known.hosts.keys().copied().collect(),
            number,
            words,
        )]
    }

    /// Handles the end of a rank; removes groups without ranks.
    pub(super) fn ended(&mut self, number: u32) {
        self.pmi_groups.retain(|_, pmi_group| {
            pmi_group.alive -= u32::from(pmi_group.numbers.contains(&number));
            pmi_group.alive > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTER: Requester = Requester {
        host: 1,
        pmi_group: FIRST,
        rank: 0,
    };

    fn request(ranks: u32) -> SpawnRequest {
        SpawnRequest {
            program: "p".to_owned(),
            args: Vec::new(),
            ranks,
            host: None,
            folder: None,
            token: Some("t".to_owned()),
            values: Vec::new(),
        }
    }

    fn two() -> SpawnedGroups {
        let mut spawned = SpawnedGroups::begin("job".to_owned(), 3);
        let plans = spawned.place(REQUESTER, request(3), &[Some(2), Some(1)]).unwrap();
        let parts: Vec<_> = plans
            .iter()
            .map(|(daemon, plan)| (*daemon, plan.first, plan.part))
            .collect();
        assert_eq!(parts, [(1, 3, (0, 1)), (2, 3, (1, 2))]);
        assert_eq!(plans[1].1.blocks, [(0, 1, 1), (1, 1, 2)]);
        spawned
    }

    #[test]
    fn a_requester_is_answered_when_all_are_started_and_barriers_end_when_all_are_there() {
        let mut spawned = two();
        assert_eq!(spawned.group_started(2, 1, Ok(())), []);
        assert_eq!(spawned.group_started(2, 1, Ok(())), []);
        assert_eq!(
            spawned.group_started(1, 1, Ok(())),
            [Notice::Answer(REQUESTER, Some("t".to_owned()), Ok(()))]
        );
        assert_eq!(spawned.fence(2, 1, 0, vec![2]), []);
        assert_eq!(
            spawned.fence(2, 1, 1, vec![2]),
            [],
            "it is at none before the first is over"
        );
        assert_eq!(spawned.fence(3, 1, 0, vec![3]), []);
        let over = Notice::Fenced(1, vec![1, 2], 0, vec![vec![1], vec![2]]);
        assert_eq!(spawned.fence(1, 1, 0, vec![1]), [over]);
        assert_eq!(spawned.lost(1, "it has joined"), []);
        (3..6).for_each(|number| spawned.ended(number));
        assert_eq!(spawned.fence(1, 1, 1, vec![1]), [], "forgotten");
        let plans = spawned.place(REQUESTER, request(1), &[None, Some(7)]).unwrap();
        assert_eq!((plans[0].0, plans[0].1.pmi_group, plans[0].1.first), (2, 2, 6));
        assert!(
            spawned
                .place(REQUESTER, request(1), &[None])
                .unwrap_err()
                .contains("no host is left")
        );
    }

    #[test]
    fn one_that_fails_is_ended_everywhere_and_reported_once() {
        let token = || "t".to_owned();
        let end = || Notice::End(1, vec![1, 2]);
        let answer = || Notice::Answer(REQUESTER, Some(token()), Err("no".to_owned()));
        // The first host that reports, and the last one.
        for begin in [&[][..], &[1]] {
            let mut spawned = two();
            for daemon in begin {
                assert_eq!(spawned.group_started(*daemon, 1, Ok(())), []);
            }
            assert_eq!(
                spawned.group_started(2, 1, Err("no".to_owned())),
                [end(), answer()]
            );
            assert_eq!(spawned.group_started(1, 1, Ok(())), []);
        }
        // A rank that ends while others are being started.
        let mut spawned = two();
        assert_eq!(spawned.group_started(1, 1, Ok(())), []);
        assert_eq!(spawned.lost(1, "no"), [end(), answer()]);
        let mut spawned = two();
        (1..3).for_each(|daemon| drop(spawned.group_started(daemon, 1, Ok(()))));
        assert_eq!(
            spawned.lost(1, "why"),
            [end(), Notice::Fate(REQUESTER, token(), "why".to_owned())]
        );
        assert_eq!(spawned.lost(1, "why"), []);
        let mut spawned = two();
        (1..3).for_each(|daemon| drop(spawned.group_started(daemon, 1, Ok(()))));
        assert_eq!(spawned.abandoned("other"), []);
        assert_eq!(spawned.abandoned("t")[0], end());
    }
}
