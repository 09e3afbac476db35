//! Queries to a subnet administrator (SA) for paths, and its answers.
//!
//! The resolver only emits the queries ([`Action::QuerySa`](crate::resolver::Action::QuerySa)). An
//! [`Administration`] answers them at once from a file of routes; [`Subnets`] sends them to the administrator
//! of the endpoint's InfiniBand subnet, and keeps the memberships in its multicast groups.
//!
//! reference: acm, section 10 (SA Get PathRecord).

mod subnets;

pub use subnets::{Line, SubnetEvent, Subnets};

use crate::endpoint::Endpoint;
use crate::path::Path;

/// The number of a query, for [`Resolver::sa`](crate::resolver::Resolver::sa).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// Why there is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoPath {
    /// The subnet has no path that matches the query.
    #[error("the subnet administrator knows no such path")]
    Unknown,
    /// The subnet administrator did not answer.
    #[error("the subnet administrator did not answer in time")]
    Silent,
    /// The endpoint has no subnet administrator.
    #[error("this endpoint has no subnet administrator")]
    NoAdministrator,
}

/// Answers queries for paths at once.
pub trait Administration {
    /// Returns the path that matches a query; zero fields of the query are open.
    ///
    /// # Errors
    /// [`NoPath`], with the reason.
    fn path(&self, question: &Path) -> Answer;
}

/// The answer of a subnet administrator.
pub type Answer = Result<Path, NoPath>;

/// Returns the query for a path from this endpoint; zero fields are open.
#[must_use]
pub fn question(from: &Endpoint, to: &Path) -> Path {
    Path {
        sgid: if to.sgid.is_none() { from.gid } else { to.sgid },
        slid: if to.slid == 0 { from.lid } else { to.slid },
        pkey: if to.pkey == 0 { from.pkey } else { to.pkey },
        reversible: true,
        num_path: 1,
        ..to.clone()
    }
}

/// Whether a path answers a query: the destinations match, and the sources if it has one.
#[must_use]
pub fn fits(answer: &Path, question: &Path) -> bool {
    let gid = question.dgid.is_none() || answer.dgid == question.dgid;
    let lid = question.dlid == 0 || answer.dlid == question.dlid;
    let from = answer.sgid.is_none() || question.sgid.is_none() || answer.sgid == question.sgid;
    gid && lid && from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_to_its_question() {
        let question = Path {
            dgid: "fe80::2".parse().unwrap(),
            sgid: "fe80::1".parse().unwrap(),
            ..Path::default()
        };
        let answer = Path {
            dlid: 7,
            slid: 8,
            ..question.clone()
        };
        assert!(fits(&answer, &question));
        let wrong = |change: fn(&mut Path)| {
            let mut other = answer.clone();
            change(&mut other);
            !fits(&other, &question)
        };
        assert!(wrong(|path| path.dgid.0[15] = 3));
        assert!(wrong(|path| path.sgid.0[15] = 3));
        assert!(!fits(&answer, &Path { dlid: 9, ..question }));
    }
}
