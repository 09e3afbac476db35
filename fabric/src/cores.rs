//! Cores: sets of them, those of a thread, and binding a thread to some.
//!
//! A *core* here is what the kernel numbers: a hardware thread. A *whole core* is the core of the processor,
//! with one or more hardware threads.
//!
//! | module | what it holds |
//! |---|---|
//! | [`topology`] | packages, nodes, caches and hardware threads of the cores that this process may use |
//! | [`place`] | which of them each rank of a host gets, and each of its threads |

pub mod place;
pub mod topology;

use std::collections::BTreeSet;
use std::{fmt, io};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

pub use place::{Pair, TooFew};
pub use topology::{Core, Topology};

/// The highest core number that is accepted: Linux has at most 8,192 cores.
const HIGHEST: usize = 8191;

/// A set of cores, shown in the format of Linux's CPU lists.
///
/// ```
/// use doorbell_fabric::cores::CoreSet;
/// let set = CoreSet::parse("0-2,8").unwrap();
/// assert_eq!((set.len(), set.to_string().as_str()), (4, "0-2,8"));
/// assert!(CoreSet::parse("2-0").is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct CoreSet(BTreeSet<usize>);

impl CoreSet {
    /// Parses a list such as `0-3,8`; `None` for an empty or malformed one.
    pub fn parse(list: &str) -> Option<Self> {
        let mut cores = BTreeSet::new();
        for range in list.split(',') {
            cores.extend(range_of(range)?);
        }
        Some(Self(cores))
    }

    /// Parses a list of the kernel; parts that make no sense are left out.
    pub fn of_kernel(list: &str) -> Self {
        Self(list.split(',').filter_map(range_of).flatten().collect())
    }

    /// Returns the cores in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Returns the cores as a vector, in ascending order.
    pub fn to_vec(&self) -> Vec<usize> {
        self.iter().collect()
    }

    /// Returns the number of cores.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the core is one of them.
    pub fn contains(&self, core: usize) -> bool {
        self.0.contains(&core)
    }

    /// Whether all of them are in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// Whether none of them is in `other`.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.is_disjoint(&other.0)
    }

    /// Returns the cores that both sets have.
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Returns the cores that `other` does not have.
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// Adds the cores of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// Returns the only core, if there is exactly one.
    pub fn only(&self) -> Option<usize> {
        self.0.first().copied().filter(|_| self.0.len() == 1)
    }
}

/// Parses a number, or two with a dash between them.
fn range_of(range: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last && last <= HIGHEST).then_some(first..=last)
}

impl FromIterator<usize> for CoreSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cores: I) -> Self {
        Self(cores.into_iter().collect())
    }
}

impl From<CoreSet> for String {
    fn from(set: CoreSet) -> Self {
        set.to_string()
    }
}

impl From<String> for CoreSet {
    fn from(list: String) -> Self {
        Self::of_kernel(&list)
    }
}

impl fmt::Display for CoreSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for &core in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == core => *last = core,
                _ => ranges.push((core, core)),
            }
        }
        for (at, (first, last)) in ranges.into_iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match first == last {
                true => write!(out, "{comma}{first}")?,
                false => write!(out, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// Returns the cores that the calling thread may use: its affinity mask, which the kernel keeps within the
/// cpuset of its control group. Empty when the system reports none.
pub fn allowed() -> CoreSet {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().map(|core| core.id).collect()
}

/// Binds the calling thread, and the threads that it starts from here on, to these cores.
///
/// # Errors
/// The system's refusal; an empty set, and numbers that the system's sets cannot hold.
pub fn bind(cores: &CoreSet) -> io::Result<()> {
    let mut set = CpuSet::new();
    for core in cores.iter() {
        if core >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(core);
    }
    sched_setaffinity(None, &set).map_err(io::Error::from)
}

/// Returns why this process can bind nothing, as in a container whose profile refuses sched_setaffinity;
/// `None` where it can.
pub fn refusal() -> Option<io::Error> {
    let set = sched_getaffinity(None).ok()?;
    sched_setaffinity(None, &set).err().map(io::Error::from)
}

/// A thread whose cores were narrowed; dropped by the same thread, it has its former cores again.
#[derive(Debug)]
pub struct Narrowed {
    thread: Pid,
    before: CoreSet,
    to: CoreSet,
}

impl Narrowed {
    /// Binds the calling thread to `to`.
    ///
    /// # Errors
    /// Those of [`bind`].
    pub fn bind(to: &CoreSet) -> io::Result<Self> {
        let before = allowed();
        bind(to)?;
        Ok(Self {
            thread: gettid(),
            before,
            to: to.clone(),
        })
    }
}

impl Drop for Narrowed {
    fn drop(&mut self) {
        // Another thread's number may belong to a new thread by now, and a mask that was changed since is
        // not ours to undo.
        if gettid() == self.thread && allowed() == self.to {
            // It has had these cores: where they are gone, the thread keeps those that it has.
            let _ = bind(&self.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_as_they_are_written() {
        for list in ["0", "0-1", "0-3,8,10-11"] {
            assert_eq!(CoreSet::parse(list).unwrap().to_string(), list);
        }
        for none in ["", "a", "3-1", "1-", "0-9999", "0-99999999999", "1,,2"] {
            assert_eq!(CoreSet::parse(none), None, "{none}");
        }
        assert_eq!(CoreSet::of_kernel("0-2,7,9-10\n").to_vec(), [0, 1, 2, 7, 9, 10]);
        assert!(CoreSet::of_kernel("3-1,,x,99999999").is_empty());
        assert!(!allowed().is_empty());
    }

    #[test]
    fn a_narrowed_thread_has_its_cores_back() {
        let before = allowed();
        let last: CoreSet = before.iter().next_back().into_iter().collect();
        std::thread::scope(|s| {
            s.spawn(|| {
                let narrowed = Narrowed::bind(&last).unwrap();
                assert_eq!((allowed(), allowed().only()), (last.clone(), last.only()));
                drop(narrowed);
                assert_eq!(allowed(), before);
            });
        });
        assert!(bind(&CoreSet::default()).is_err());
        assert!(bind(&CoreSet::parse("8000").unwrap()).is_err());
    }

    proptest! {
        #[test]
        fn no_list_panics(text in "[0-9,\\-x ]{0,40}") {
            let set = CoreSet::of_kernel(&text);
            prop_assert_eq!(CoreSet::of_kernel(&set.to_string()), set);
        }
    }
}
