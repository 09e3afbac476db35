//! The launcher's view of spawned crews on several hosts: their placement, their requesters, and their
//! barriers, whose values it collects from their hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::place::spread;
use super::protocol::{Muster, Wanted};
use crate::run::pmi_groups::FIRST;

/// Maximum number of ranks of a job over time: numbers are not reused.
const MOST: u32 = 1 << 30;

/// The requester of a crew: the rank of its daemon in the control plane, its crew, its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) host: u32,
    pub(super) crew: u32,
    pub(super) rank: u32,
}

#[derive(Debug)]
struct Crew {
    asker: Asker,
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
pub(super) enum Tell {
    /// To the requester: the outcome of its request.
    Answer(Asker, Option<String>, Result<(), String>),
    /// To the requester: the crew will not start.
    Fate(Asker, String, String),
    /// To these hosts: end the crew.
    End(u32, Vec<u32>),
    /// To these hosts: its barrier is complete.
    Fenced(u32, Vec<u32>, u32, Vec<Vec<u8>>),
}

#[derive(Debug)]
pub(super) struct Grown {
    name: String,
    crews: BTreeMap<u32, Crew>,
    /// The numbers of the next crew, and of its first rank.
    next: (u32, u32),
}

impl Grown {
    /// Creates the state of a job called `name`, which begins with this many ranks.
    pub(super) fn begin(name: String, ranks: u32) -> Self {
        Self {
            name,
            crews: BTreeMap::new(),
            next: (FIRST + 1, ranks),
        }
    }

    /// Places a crew on hosts with this many ranks each (`None`: lost): returns the command for each daemon
    /// that gets some.
    pub(super) fn ask(
        &mut self,
        asker: Asker,
        wanted: Wanted,
        alive: &[Option<u32>],
    ) -> Result<Vec<(u32, Muster)>, String> {
        let ((crew, first), size) = (self.next, wanted.ranks);
        if first.saturating_add(size) > MOST {
            return Err(format!("this job has had {first} ranks, and {MOST} are the most"));
        }
        let parts = spread(alive, size).ok_or("no host is left that could take them")?;
        let blocks: Vec<(u32, u32, u32)> = (0..)
            .zip(parts.iter().filter(|part| **part > 0))
            .map(|(at, part)| (at, 1, *part))
            .collect();
        let (mut musters, mut begin) = (Vec::new(), 0);
        for (daemon, part) in (1..).zip(parts).filter(|(_, part)| *part > 0) {
            musters.push((
                daemon,
                Muster {
                    crew,
                    name: format!("{}-{crew}", self.name),
                    first,
                    size,
                    part: (begin, part),
                    blocks: blocks.clone(),
                    program: wanted.program.clone(),
                    args: wanted.args.clone(),
                    folder: wanted.folder.clone(),
                    values: wanted.values.clone(),
                },
            ));
            begin += part;
        }
        let hosts: BTreeMap<u32, u32> = musters
            .iter()
            .map(|(daemon, muster)| (*daemon, muster.part.1))
            .collect();
        self.crews.insert(
            crew,
            Crew {
                asker,
                token: wanted.token,
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
        self.next = (crew + 1, first + size);
        Ok(musters)
    }

    /// Handles a host's report that it has started its part.
    pub(super) fn manned(&mut self, daemon: u32, crew: u32, result: Result<(), String>) -> Vec<Tell> {
        let Some(known) = self.crews.get_mut(&crew) else {
            return Vec::new();
        };
        if !known.starting.remove(&daemon) {
            return Vec::new();
        }
        match result {
            Ok(()) if known.starting.is_empty() => {
                known.is_answered = true;
                vec![Tell::Answer(known.asker, known.token.clone(), Ok(()))]
            }
            Ok(()) => Vec::new(),
            Err(why) => self.lost(crew, &why),
        }
    }

    /// Fails a crew: informs the requester and ends the rest of it. Does nothing for one that has joined, or
    /// has failed already.
    pub(super) fn lost(&mut self, crew: u32, why: &str) -> Vec<Tell> {
        let Some(known) = self.crews.get(&crew).filter(|crew| !crew.has_joined) else {
            return Vec::new();
        };
        let hosts = known.hosts.keys().copied().collect();
        let mut tell = vec![Tell::End(crew, hosts)];
        if !known.is_answered {
            tell.push(Tell::Answer(
                known.asker,
                known.token.clone(),
                Err(why.to_owned()),
            ));
        } else if let Some(token) = &known.token {
            tell.push(Tell::Fate(known.asker, token.clone(), why.to_owned()));
        }
        self.crews.remove(&crew);
        tell
    }

    /// Cancels the wait for the crew of this token.
    pub(super) fn abandoned(&mut self, token: &str) -> Vec<Tell> {
        let mut crews = self.crews.iter();
        match crews.find(|(_, crew)| crew.token.as_deref() == Some(token)) {
            Some((crew, _)) => self.lost(*crew, "no rank waits for it any more"),
            None => Vec::new(),
        }
    }

    /// Handles a barrier that the ranks of a crew on one host have reached.
    pub(super) fn fence(&mut self, daemon: u32, crew: u32, number: u32, words: Vec<u8>) -> Vec<Tell> {
        let Some(known) = self.crews.get_mut(&crew) else {
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
        vec![Tell::Fenced(
            crew,
            known.hosts.keys().copied().collect(),
            number,
            words,
        )]
    }

    /// Handles the end of a rank; removes crews without ranks.
    pub(super) fn ended(&mut self, number: u32) {
        self.crews.retain(|_, crew| {
            crew.alive -= u32::from(crew.numbers.contains(&number));
            crew.alive > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKER: Asker = Asker {
        host: 1,
        crew: FIRST,
        rank: 0,
    };

    fn wanted(ranks: u32) -> Wanted {
        Wanted {
            program: "p".to_owned(),
            args: Vec::new(),
            ranks,
            host: None,
            folder: None,
            token: Some("t".to_owned()),
            values: Vec::new(),
        }
    }

    fn two() -> Grown {
        let mut grown = Grown::begin("job".to_owned(), 3);
        let musters = grown.ask(ASKER, wanted(3), &[Some(2), Some(1)]).unwrap();
        let parts: Vec<_> = musters
            .iter()
            .map(|(daemon, muster)| (*daemon, muster.first, muster.part))
            .collect();
        assert_eq!(parts, [(1, 3, (0, 1)), (2, 3, (1, 2))]);
        assert_eq!(musters[1].1.blocks, [(0, 1, 1), (1, 1, 2)]);
        grown
    }

    #[test]
    fn who_asks_is_answered_when_all_are_started_and_barriers_end_when_all_are_there() {
        let mut grown = two();
        assert_eq!(grown.manned(2, 1, Ok(())), []);
        assert_eq!(grown.manned(2, 1, Ok(())), []);
        assert_eq!(
            grown.manned(1, 1, Ok(())),
            [Tell::Answer(ASKER, Some("t".to_owned()), Ok(()))]
        );
        assert_eq!(grown.fence(2, 1, 0, vec![2]), []);
        assert_eq!(
            grown.fence(2, 1, 1, vec![2]),
            [],
            "it is at none before the first is over"
        );
        assert_eq!(grown.fence(3, 1, 0, vec![3]), []);
        let over = Tell::Fenced(1, vec![1, 2], 0, vec![vec![1], vec![2]]);
        assert_eq!(grown.fence(1, 1, 0, vec![1]), [over]);
        assert_eq!(grown.lost(1, "it has joined"), []);
        (3..6).for_each(|number| grown.ended(number));
        assert_eq!(grown.fence(1, 1, 1, vec![1]), [], "forgotten");
        let musters = grown.ask(ASKER, wanted(1), &[None, Some(7)]).unwrap();
        assert_eq!((musters[0].0, musters[0].1.crew, musters[0].1.first), (2, 2, 6));
        assert!(
            grown
                .ask(ASKER, wanted(1), &[None])
                .unwrap_err()
                .contains("no host is left")
        );
    }

    #[test]
    fn one_that_fails_is_ended_everywhere_and_told_once() {
        let token = || "t".to_owned();
        let end = || Tell::End(1, vec![1, 2]);
        let answer = || Tell::Answer(ASKER, Some(token()), Err("no".to_owned()));
        // The first host that reports, and the last one.
        for begin in [&[][..], &[1]] {
            let mut grown = two();
            for daemon in begin {
                assert_eq!(grown.manned(*daemon, 1, Ok(())), []);
            }
            assert_eq!(grown.manned(2, 1, Err("no".to_owned())), [end(), answer()]);
            assert_eq!(grown.manned(1, 1, Ok(())), []);
        }
        // A rank that ends while others are being started.
        let mut grown = two();
        assert_eq!(grown.manned(1, 1, Ok(())), []);
        assert_eq!(grown.lost(1, "no"), [end(), answer()]);
        let mut grown = two();
        (1..3).for_each(|daemon| drop(grown.manned(daemon, 1, Ok(()))));
        assert_eq!(
            grown.lost(1, "why"),
            [end(), Tell::Fate(ASKER, token(), "why".to_owned())]
        );
        assert_eq!(grown.lost(1, "why"), []);
        let mut grown = two();
        (1..3).for_each(|daemon| drop(grown.manned(daemon, 1, Ok(()))));
        assert_eq!(grown.abandoned("other"), []);
        assert_eq!(grown.abandoned("t")[0], end());
    }
}
