//! Names of processes, and epochs, which distinguish a process from its restarted successor.
//!
//! A [`Name`] stays the same when a process is restarted; its [`Epoch`] does not. All traffic of the control
//! plane is between two names *and* two epochs, so that nothing meant for a process, or sent by one, is ever
//! attributed to its successor.

use std::fmt;

/// A process: its job, and its rank in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The job. A job that was spawned by another has a number of its own.
    pub job: u64,
    /// The rank, from 0.
    pub rank: u32,
}

impl Name {
    /// Creates the name of a process.
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

/// The epoch of a process: higher for each restart (for example its start time in nanoseconds). Zero is not
/// an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch is not known.
    pub const UNKNOWN: Self = Self(0);

    /// Whether the epoch is known.
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

/// The senders that a receive accepts: one process, a whole job, one rank of any job, or all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct From {
    /// The job; `None` for every job.
    pub job: Option<u64>,
    /// The rank; `None` for every rank.
    pub rank: Option<u32>,
}

impl From {
    /// Accepts messages from every process.
    pub const ANYBODY: Self = Self {
        job: None,
        rank: None,
    };

    /// Accepts messages from this process only.
    #[must_use]
    pub const fn only(name: Name) -> Self {
        Self {
            job: Some(name.job),
            rank: Some(name.rank),
        }
    }

    /// Accepts messages from every rank of a job.
    #[must_use]
    pub const fn job(job: u64) -> Self {
        Self {
            job: Some(job),
            rank: None,
        }
    }

    /// Whether `name` is accepted.
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
    fn wildcards_match_what_they_name() {
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
