//! What a subnet's administration is asked about paths, and what it says.
//!
//! The resolver only names its questions ([`Act::AskSa`](crate::resolver::Act::AskSa)); who answers them, an
//! InfiniBand subnet's administrator or a file of routes, is not its business: whoever is an [`Administration`].
//!
//! reference: acm, section 10 (SA Get PathRecord).

use crate::endpoint::Endpoint;
use crate::path::Path;

/// A question's number: [`Resolver::sa`](crate::resolver::Resolver::sa) brings it back with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// Why there is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoPath {
    /// The subnet has none that fits the question.
    #[error("the subnet's administration knows no such path")]
    Unknown,
    /// It did not answer.
    #[error("the subnet's administration did not answer in time")]
    Silent,
    /// There is nobody to ask.
    #[error("no subnet's administration can be asked from this endpoint")]
    Nobody,
}

/// Who is asked for paths. It answers at once: one that has to be waited for keeps the number, and tells the resolver later.
pub trait Administration {
    /// The path that fits a question: what is zero in it is open.
    ///
    /// # Errors
    /// [`NoPath`].
    fn path(&self, question: &Path) -> Answer;
}

/// An answer.
pub type Answer = Result<Path, NoPath>;

/// The question for a path from this endpoint: what is zero in it is open.
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

/// Whether a path answers a question: it ends where it was asked to, and begins there if it says where it begins.
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
