//! Whether a host has enough cores for its ranks to spin.
//!
//! Each rank publishes the cores that it may use, in the format of Linux's CPU lists (`0-3,8`). A rank that a
//! launcher has bound to a core of its own does not count as crowded, although it has one core only.

use std::thread;

use doorbell_fabric::cores::CoreSet;

/// Whether there are fewer cores than threads that want to spin, for the rank that may use the cores `own`.
///
/// `here` has the lists of all ranks of its host, itself included, each with `threads` threads. Compared are
/// all cores that are shared, directly or through other ranks, with the ranks on them, and this rank's cores
/// with the ranks that have no others.
pub fn are_crowded<'a>(own: &str, here: impl Iterator<Item = &'a str> + Clone, threads: usize) -> bool {
    let ranks = here.clone().count();
    let lists: Option<Vec<_>> = here.map(CoreSet::parse).collect();
    let Some((own, lists)) = CoreSet::parse(own).zip(lists) else {
        return thread::available_parallelism().map_or(1, usize::from) < ranks * threads;
    };
    let neighbours = neighbourhood(&own, &lists);
    let want = |cores: &CoreSet| lists.iter().filter(|list| list.is_subset(cores)).count() * threads;
    neighbours.len() < want(&neighbours) || own.len() < want(&own)
}

/// As [`are_crowded`], where only the number of ranks on this host is known: a rank that may not use all
/// cores is taken to be bound to cores of its own.
pub fn are_crowded_among(own: &str, ranks: usize, threads: usize) -> bool {
    let all = std::fs::read_to_string("/sys/devices/system/cpu/online");
    let all = all.ok().and_then(|list| CoreSet::parse(list.trim()));
    match CoreSet::parse(own).zip(all) {
        Some((own, all)) if own.len() < all.len() => own.len() < threads,
        Some((_, all)) => all.len() < ranks * threads,
        None => thread::available_parallelism().map_or(1, usize::from) < ranks * threads,
    }
}

/// Returns the cores of all ranks that share some with `own`, with those that share some with these, and so
/// on.
fn neighbourhood(own: &CoreSet, lists: &[CoreSet]) -> CoreSet {
    let mut all = own.clone();
    loop {
        let before = all.len();
        for list in lists {
            if !list.is_disjoint(&all) {
                all.add(list);
            }
        }
        if all.len() == before {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_with_a_core_of_its_own_is_not_crowded() {
        let crowded = |own: &str, here: &[&str], threads| are_crowded(own, here.iter().copied(), threads);
        assert!(!crowded("0", &["0", "1"], 1), "bound, one core each");
        assert!(
            !crowded("0-1", &["0-1", "0-1"], 1),
            "free, as many cores as ranks"
        );
        assert!(crowded("0-1", &["0-1", "0-1", "0-1"], 1), "one core is missing");
        assert!(
            crowded("0", &["0", "0", "1", "2"], 1),
            "two are bound to the same"
        );
        assert!(!crowded("1", &["0", "0", "1", "2"], 1), "and these two are not");
        assert!(crowded("0", &["0", "1"], 2), "a thread beside each");
        assert!(!crowded("0-1", &["0-1", "2-3"], 2));
        let chain = ["0-1", "1-2", "0,2", "0-1"];
        assert!(crowded("1-2", &chain, 1), "four share three");
        assert!(!crowded("1-2", &chain[..3], 1));
    }

    #[test]
    fn of_ranks_that_are_only_counted_the_bound_ones_have_their_own_cores() {
        let own = doorbell_fabric::cores::allowed();
        let (own, cores) = (own.to_string(), own.len());
        assert!(are_crowded_among(&own, 100_000, 1) || cores > 1);
        assert!(are_crowded_among(&own, 1, 100_000));
        assert!(!are_crowded_among(&own, 1, 1));
        assert!(are_crowded_among("", 100_000, 1) && !are_crowded_among("", 1, 1));
    }

    #[test]
    fn where_nobody_knows_the_machine_is_asked() {
        let cores = thread::available_parallelism().unwrap().get();
        let many = vec![""; cores + 1];
        assert!(are_crowded("", many.iter().copied(), 1));
        assert!(!are_crowded("", many[..cores].iter().copied(), 1));
    }
}
