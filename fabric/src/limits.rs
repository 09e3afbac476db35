//! Limits of this process (`ulimit`).
//!
//! A container may refuse even the query. Then the limit is unknown, which counts as no limit.

use std::io;

use nix::sys::resource::{RLIM_INFINITY, getrlimit, setrlimit};

pub use nix::sys::resource::Resource;

/// A limit, in the unit of its resource; `None` is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// The limit that is in force.
    pub soft: Option<u64>,
    /// How far it can be raised.
    pub hard: Option<u64>,
}

impl Limit {
    /// The limit of this process.
    pub fn of(resource: Resource) -> Self {
        let known = |limit: u64| (limit != RLIM_INFINITY).then_some(limit);
        getrlimit(resource).map_or_else(
            |_| Self::default(),
            |(soft, hard)| Self {
                soft: known(soft),
                hard: known(hard),
            },
        )
    }

    /// Makes it the limit of this process.
    ///
    /// # Errors
    /// When the system refuses, as it does for a higher hard limit.
    pub fn set(self, resource: Resource) -> io::Result<()> {
        let number = |limit: Option<u64>| limit.unwrap_or(RLIM_INFINITY);
        setrlimit(resource, number(self.soft), number(self.hard)).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_one_that_was_set() {
        let limit = Limit::of(Resource::RLIMIT_CORE);
        assert_eq!(limit.set(Resource::RLIMIT_CORE).ok(), Some(()));
        assert_eq!(Limit::of(Resource::RLIMIT_CORE), limit);
    }
}
