//! Who somebody is: the name of a process, and which of its lives is meant.
//!
//! A [`Name`] stays the same when a process is started again in the place of one that died; its [`Epoch`] does not. All
//! that the control plane says is between two names *and* two epochs, so that nothing that was meant for a process, or
//! said by one, is ever taken for its successor's.

use std::fmt;

/// A process: its job, and its rank in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The job. Ranks of one job have the same; a job that was spawned by another has one of its own.
    pub job: u64,
    /// The rank, from 0.
    pub rank: u32,
}

impl Name {
    /// A process of a job.
    #[must_use]
    pub const fn new(job: u64, rank: u32) -> Self {
        Self { job, rank }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.job, self.rank)
    }
}

/// Which life of a process: each one has a higher number than those before it (for example the time of its start in
/// nanoseconds). Zero is no life at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// It is not known which.
    pub const UNKNOWN: Self = Self(0);

    /// Whether it says which life.
    #[must_use]
    pub const fn is_known(self) -> bool {
        self.0 != 0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// Names that a receive takes messages from: exactly one, all of a job, one rank of any job, or everybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct From {
    /// The job; without one, every job.
    pub job: Option<u64>,
    /// The rank; without one, every rank.
    pub rank: Option<u32>,
}

impl From {
    /// Everybody.
    pub const ANYBODY: Self = Self {
        job: None,
        rank: None,
    };

    /// This process only.
    #[must_use]
    pub const fn only(name: Name) -> Self {
        Self {
            job: Some(name.job),
            rank: Some(name.rank),
        }
    }

    /// Every rank of a job.
    #[must_use]
    pub const fn job(job: u64) -> Self {
        Self {
            job: Some(job),
            rank: None,
        }
    }

    /// Whether `name` is one of them.
    #[must_use]
    pub fn matches(self, name: Name) -> bool {
        self.job.is_none_or(|job| job == name.job) && self.rank.is_none_or(|rank| rank == name.rank)
    }
}

impl fmt::Display for From {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job {
            Some(job) => write!(out, "{job}.")?,
            None => write!(out, "*.")?,
        }
        match self.rank {
            Some(rank) => write!(out, "{rank}"),
            None => write!(out, "*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_what_they_say() {
        let name = Name::new(7, 3);
        let rank = From {
            job: None,
            rank: Some(3),
        };
        for from in [From::ANYBODY, From::only(name), From::job(7), rank] {
            assert!(from.matches(name), "{from}");
        }
        for from in [From::only(Name::new(7, 4)), From::job(8)] {
            assert!(!from.matches(name), "{from}");
        }
        assert!(!rank.matches(Name::new(7, 4)));
        assert_eq!(From::job(7).to_string(), "7.*");
        assert_eq!(rank.to_string(), "*.3");
        assert_eq!(name.to_string(), "7.3");
    }
}
