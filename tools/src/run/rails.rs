//! The rails of the ranks of one host, where the job names sets of them: chosen before a rank is started, and
//! passed to each rank by its variable.

use std::ffi::OsString;

use doorbell::{Config, RailSets};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail_set::RailSet;

use crate::error::ToolError;

/// The variable by which a rank has its rails.
pub(super) const VARIABLE: &str = "DOORBELL_RAILS";

/// The variable by which a rank knows that its rails are of sets.
const OF_SETS: &str = "DOORBELL_RAILS_OF_SETS";

/// Which rank of this host has which rails.
#[derive(Clone, Debug)]
pub(crate) struct RailShares {
    sets: RailSets,
    /// Those of each rank, by its number in the job.
    of_ranks: Vec<(u32, Vec<RailName>)>,
}

impl RailShares {
    /// Looks up what the sets among `rails` stand for; `None` where there is none.
    ///
    /// # Errors
    /// A bad setting.
    pub(super) fn look(
        rails: &[RailName],
        settings: &dyn Fn() -> Result<Config, doorbell::Error>,
    ) -> Result<Option<Self>, ToolError> {
        if !rails.iter().any(RailName::is_set) {
            return Ok(None);
        }
        let mut config = settings()?;
        config.set_by("--rail", "rails.list", &written(rails))?;
        let of_ranks = Vec::new();
        Ok(RailSets::of(&config).map(|sets| Self { sets, of_ranks }))
    }

    /// The first set whose rails are on one node, and the node.
    pub(super) fn near(&self) -> Option<(RailName, usize)> {
        let near = |set: &RailSet| Some((set.name.clone(), set.node()?));
        self.sets.sets().iter().find_map(near)
    }

    /// Chooses the rails of the ranks from `first` on, by the nodes of their cores, among those that no rank
    /// has.
    ///
    /// # Errors
    /// A set with fewer rails than there are ranks.
    pub(super) fn choose(&mut self, first: u32, nodes: &[Option<usize>]) -> Result<(), ToolError> {
        let taken = self.of_ranks.iter().flat_map(|(_, rails)| rails);
        let taken: Vec<RailName> = taken.cloned().collect();
        let each = self.sets.shares(nodes, &taken)?;
        self.of_ranks.extend((first..).zip(each));
        Ok(())
    }

    /// Gives back the rails of a rank that has ended.
    pub(super) fn release(&mut self, rank: u32) {
        self.of_ranks.retain(|(number, _)| *number != rank);
    }

    /// The rails of a rank.
    pub(super) fn of(&self, rank: u32) -> &[RailName] {
        let found = self.of_ranks.iter().find(|(number, _)| *number == rank);
        found.map_or(&[], |(_, rails)| rails)
    }

    /// The variables that a rank gets.
    pub(super) fn variables(&self, rank: u32) -> [(String, OsString); 2] {
        [
            (VARIABLE.to_owned(), written(self.of(rank)).into()),
            (OF_SETS.to_owned(), "true".into()),
        ]
    }

    /// What each set stands for.
    pub(super) fn sets(&self) -> &[RailSet] {
        self.sets.sets()
    }

    /// Numbers the ranks from `first` on, not from 0: one host's of a job on several.
    pub(super) fn numbered_from(&mut self, first: u32) {
        self.of_ranks.iter_mut().for_each(|(number, _)| *number += first);
    }
}

/// A list of rails as settings have it.
pub(super) fn written(rails: &[RailName]) -> String {
    let rails: Vec<&str> = rails.iter().map(RailName::as_str).collect();
    rails.join(",")
}

/// Describes what a set stands for, in one line.
pub(crate) fn in_words(set: &RailSet) -> String {
    let member = |member: &doorbell_fabric::rail_set::Member| match member.node {
        Some(node) => format!("{} (node {node})", member.rail),
        None => member.rail.to_string(),
    };
    let members: Vec<String> = set.members.iter().map(member).collect();
    let members = match members.is_empty() {
        true => "no rail that can be used".to_owned(),
        false => members.join(", "),
    };
    let out = set.left_out.iter();
    let out: String = out
        .map(|out| format!("; without {}: {}", out.rail, out.reason))
        .collect();
    format!("{members}{out}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(rails: &[&str]) -> Option<RailShares> {
        let rails: Vec<RailName> = rails.iter().map(|rail| rail.parse().unwrap()).collect();
        RailShares::look(&rails, &|| Ok(Config::default())).unwrap()
    }

    #[test]
    fn ranks_that_come_later_get_what_no_rank_has() {
        assert!(look(&["shm", "udp:lo"]).is_none());
        let mut shares = look(&["shm", "udp:l*o"]).unwrap();
        shares.choose(4, &[None]).unwrap();
        let [(name, value), of_sets] = shares.variables(4);
        assert_eq!(
            (name.as_str(), value.to_str()),
            ("DOORBELL_RAILS", Some("shm,udp:lo"))
        );
        assert_eq!(of_sets, ("DOORBELL_RAILS_OF_SETS".to_owned(), "true".into()));
        let error = shares.choose(5, &[None]).unwrap_err();
        assert_eq!(error.exit().number(), 3);
        assert!(
            error
                .to_string()
                .contains("none of those that it stands for is free"),
            "{error}"
        );
        shares.release(4);
        shares.choose(5, &[Some(0)]).unwrap();
        assert_eq!((shares.of(4).len(), shares.of(5).len()), (0, 2));
    }

    #[test]
    fn a_set_is_described_in_one_line() {
        let shares = look(&["udp:l*o"]).unwrap();
        assert_eq!(in_words(&shares.sets()[0]), "udp:lo");
        let none = look(&["udp:nosuch*"]).unwrap();
        assert_eq!(in_words(&none.sets()[0]), "no rail that can be used");
    }
}
