//! Which cores each rank of a host gets, and each of a rank's two threads.
//!
//! ```text
//!   ranks × cores ──► whole cores, while there are enough; hardware threads otherwise; refused below that
//!                       order: the preferred node first, then by distance; isolated cores first in a node
//!                       a rank's cores: within one cache, else within one node, else as they come
//! ```

use std::fmt;

use super::CoreSet;
use super::topology::{Core, Topology};

/// The cores of a rank's own thread and of its progress thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The core of the rank's own thread.
    pub own: usize,
    /// The core of its progress thread.
    pub progress: usize,
}

/// Fewer cores than ranks need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooFew {
    /// The number of ranks.
    pub ranks: usize,
    /// The number of cores that each is to have.
    pub each: usize,
    /// The whole cores that may be used.
    pub whole: usize,
    /// The cores that may be used.
    pub usable: CoreSet,
    /// The cores that are online.
    pub online: CoreSet,
    /// Isolated cores that may not be used.
    pub isolated: CoreSet,
}

impl fmt::Display for TooFew {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |number: usize, one: &str| match number {
            1 => format!("1 {one}"),
            number => format!("{number} {one}s"),
        };
        let need = self.ranks * self.each;
        write!(
            out,
            "{} with {} each {} {need}, and {} {} here (cores {}",
            count(self.ranks, "rank"),
            count(self.each, "core"),
            if self.ranks == 1 { "needs" } else { "need" },
            self.whole,
            if self.whole == 1 { "is" } else { "are" },
            self.usable
        )?;
        if self.usable.len() > self.whole {
            write!(out, ", with {} hardware threads", self.usable.len())?;
        }
        if !self.online.is_subset(&self.usable) {
            write!(out, " of {}", self.online)?;
        }
        out.write_str(")")?;
        if !self.isolated.is_empty() {
            write!(
                out,
                "; cores {} are isolated, and left out unless `taskset -c` names them",
                self.isolated
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for TooFew {}

impl Topology {
    /// Returns all usable cores in the order in which ranks take them: one hardware thread of each whole core
    /// before the second ones, the cores of node `near` first, isolated ones first within a node.
    pub fn order(&self, near: Option<usize>) -> Vec<usize> {
        let mut cores = self.cores().to_vec();
        cores.sort_by_cached_key(|core| (self.turn(core), self.key(near, core)));
        cores.into_iter().map(|core| core.number).collect()
    }

    /// Gives each of `ranks` ranks `each` cores, as the head of this file describes. Hardware threads of
    /// one whole core count as two only when there are too few whole cores.
    ///
    /// # Errors
    /// [`TooFew`].
    pub fn place(&self, ranks: usize, each: usize, near: Option<usize>) -> Result<Vec<Vec<usize>>, TooFew> {
        let need = ranks.saturating_mul(each);
        let mut free: Vec<Core> = match self.whole_cores() >= need {
            true => self
                .cores()
                .iter()
                .filter(|core| self.turn(core) == 0)
                .copied()
                .collect(),
            false if self.cores().len() >= need => self.cores().to_vec(),
            false => return Err(self.too_few(ranks, each)),
        };
        free.sort_by_cached_key(|core| self.key(near, core));
        Ok((0..ranks).map(|_| take(&mut free, each)).collect())
    }

    /// Returns the cores of the two threads of each of `ranks` ranks that share these cores.
    ///
    /// # Errors
    /// [`TooFew`].
    pub fn pairs(&self, ranks: usize) -> Result<Vec<Pair>, TooFew> {
        let placed = self.place(ranks, 2, None)?;
        let pair = |cores: Vec<usize>| match cores[..] {
            [own, progress, ..] => Some(Pair { own, progress }),
            _ => None,
        };
        Ok(placed.into_iter().filter_map(pair).collect())
    }

    /// Returns pairs of hardware threads of one whole core, one pair for each of `ranks` ranks.
    ///
    /// # Errors
    /// [`TooFew`], in which only whole cores with two usable hardware threads count.
    pub fn sibling_pairs(&self, ranks: usize, near: Option<usize>) -> Result<Vec<Pair>, TooFew> {
        let pair = |own: usize| {
            let progress = self.siblings(own).iter().find(|other| *other > own)?;
            Some(Pair { own, progress })
        };
        let whole = self.order(near).into_iter().take(self.whole_cores());
        let mut pairs: Vec<Pair> = whole.filter_map(pair).collect();
        if pairs.len() < ranks {
            return Err(TooFew {
                whole: 2 * pairs.len(),
                ..self.too_few(ranks, 2)
            });
        }
        pairs.truncate(ranks);
        Ok(pairs)
    }

    /// Returns the usable cores for further threads of ranks that share these cores and have `taken` some, in
    /// the order in which ranks take them.
    #[must_use]
    pub fn left(&self, taken: &[usize]) -> Vec<usize> {
        let mut order = self.order(None);
        order.retain(|core| !taken.contains(core));
        order
    }

    fn too_few(&self, ranks: usize, each: usize) -> TooFew {
        TooFew {
            ranks,
            each,
            whole: self.whole_cores(),
            usable: self.usable(),
            online: self.online().clone(),
            isolated: self.isolated_elsewhere(),
        }
    }

    /// The order of cores: by node, isolated ones first, then by cache, so that neighbours lie together.
    fn key(&self, near: Option<usize>, core: &Core) -> impl Ord + use<> {
        let node = self.rank_of_node(near, core.node);
        (node, !core.isolated, core.cache, core.whole, core.number)
    }
}

/// Takes the cores of one rank: the first that lie within one cache, else within one node, else the first.
fn take(free: &mut Vec<Core>, each: usize) -> Vec<usize> {
    let alike = |one: &Core, other: &Core, by_cache: bool| {
        one.node == other.node && (!by_cache || one.cache == other.cache)
    };
    let leader = [true, false].into_iter().find_map(|by_cache| {
        let has_room = |one: &&Core| {
            let room = free.iter().filter(|other| alike(one, other, by_cache)).count();
            room >= each
        };
        free.iter().find(has_room).map(|one| (*one, by_cache))
    });
    let mut taken = Vec::with_capacity(each);
    free.retain(|core| {
        let fits = leader.is_none_or(|(one, by_cache)| alike(&one, core, by_cache));
        let is_taken = fits && taken.len() < each;
        if is_taken {
            taken.push(core.number);
        }
        !is_taken
    });
    taken
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::Machine;
    use super::*;

    fn pair(own: usize, progress: usize) -> Pair {
        Pair { own, progress }
    }

    #[test]
    fn hardware_threads_of_one_core_are_taken_last() {
        let machine = Machine::of(1, 3, 2);
        assert_eq!(machine.read("0-5").order(None), [0, 1, 2, 3, 4, 5]);
        // The other thread is not allowed here: this one is alone.
        assert_eq!(machine.read("0,3-4").order(None), [0, 4, 3]);
        let bare = Machine::bare();
        for (core, list) in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3"), (4, "4,9")] {
            bare.file(
                &format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"),
                list,
            );
        }
        assert_eq!(bare.read("0-5").order(None), [0, 2, 4, 5, 1, 3]);
    }

    #[test]
    fn ranks_get_whole_cores_while_there_are_enough() {
        let machine = Machine::of(1, 4, 2);
        let topology = machine.read("0-7");
        assert_eq!(topology.place(2, 2, None).unwrap(), [[0, 1], [2, 3]]);
        // Four ranks need eight cores, and there are four: each gets one, with both hardware threads.
        assert_eq!(
            topology.place(4, 2, None).unwrap(),
            [[0, 4], [1, 5], [2, 6], [3, 7]]
        );
        let few = topology.place(5, 2, None).unwrap_err();
        assert_eq!(
            few.to_string(),
            "5 ranks with 2 cores each need 10, and 4 are here (cores 0-7, with 8 hardware threads)"
        );
        assert_eq!(topology.sibling_pairs(2, None).unwrap(), [pair(0, 4), pair(1, 5)]);
        let few = Machine::of(1, 2, 1)
            .read("0-1")
            .sibling_pairs(1, None)
            .unwrap_err();
        assert_eq!(few.whole, 0);
    }

    #[test]
    fn the_node_of_the_nic_comes_first_and_no_rank_is_split_between_nodes() {
        let topology = Machine::of(2, 3, 1).read("0-5");
        assert_eq!(topology.order(Some(1)), [3, 4, 5, 0, 1, 2]);
        assert_eq!(topology.place(2, 2, Some(1)).unwrap(), [[3, 4], [0, 1]]);
        // The third has to take what is left of both.
        assert_eq!(topology.place(3, 2, Some(1)).unwrap(), [[3, 4], [0, 1], [5, 2]]);
        assert_eq!(topology.pairs(2).unwrap(), [pair(0, 1), pair(3, 4)]);
    }

    #[test]
    fn nodes_are_taken_by_their_distance() {
        let machine = Machine::of(3, 1, 1);
        machine.file("sys/devices/system/node/node2/distance", "32 21 10");
        assert_eq!(machine.read("0-2").order(Some(2)), [2, 1, 0]);
        // A node that has no cores has a distance all the same.
        machine.file("sys/devices/system/node/node3/distance", "40 30 20 10");
        machine.file("sys/devices/system/node/node3/cpulist", "");
        assert_eq!(machine.read("0-2").order(Some(3)), [2, 1, 0]);
    }

    #[test]
    fn ranks_keep_to_one_cache() {
        let machine = Machine::of(1, 6, 1);
        for core in 0..6 {
            let sharers = if core < 3 { "0-2" } else { "3-5" };
            machine.file(
                &format!("sys/devices/system/cpu/cpu{core}/cache/index3/shared_cpu_list"),
                sharers,
            );
        }
        assert_eq!(
            machine.read("0-5").place(3, 2, None).unwrap(),
            [[0, 1], [3, 4], [2, 5]]
        );
    }

    #[test]
    fn isolated_cores_come_first() {
        let machine = Machine::of(1, 6, 1);
        machine.file("sys/devices/system/cpu/isolated", "4-5");
        assert_eq!(machine.read("0-5").place(2, 2, None).unwrap(), [[4, 5], [0, 1]]);
        // They are not in the mask of processes by default.
        let few = machine.read("0-3").place(3, 2, None).unwrap_err().to_string();
        assert!(
            few.contains("3 ranks with 2 cores each need 6, and 4 are here (cores 0-3 of 0-5)")
                && few.contains("cores 4-5 are isolated")
                && few.contains("taskset -c"),
            "{few}"
        );
    }

    #[test]
    fn a_smaller_cpuset_and_cores_that_are_offline_are_obeyed() {
        let machine = Machine::of(2, 4, 1);
        machine.file("sys/devices/system/cpu/online", "0-6");
        machine.file("proc/self/cgroup", "0::/box");
        machine.file("sys/fs/cgroup/box/cpuset.cpus.effective", "2-7");
        let topology = machine.read("0-7");
        assert_eq!(topology.place(2, 2, None).unwrap(), [[2, 3], [4, 5]]);
        let few = topology.place(3, 2, None).unwrap_err();
        assert_eq!((few.whole, few.usable.to_string()), (5, "2-6".to_owned()));
        let few = machine.read("3").place(1, 2, None).unwrap_err().to_string();
        assert!(
            few.starts_with("1 rank with 2 cores each needs 2, and 1 is here (cores 3"),
            "{few}"
        );
    }
}
