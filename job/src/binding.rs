//! The cores of a rank's own thread and of its progress thread.
//!
//! ```text
//!   what the launcher or the user left to the rank    progress.core
//!              │                                           │
//!              ▼                                           ▼
//!     ranks of this host with the same cores ──► two cores for each, or refused, or shared and reported
//! ```
//!
//! Where the ranks of a host have different cores, each divides its own. Where several have the same ones,
//! as with a launcher that binds nothing, each takes its part by its place among them. The rank's own thread
//! keeps all cores but those of progress threads.

mod control;

use std::io::{self, Write as _};

use doorbell_fabric::cores::{self, CoreSet, Pair, Topology};
use doorbell_oob::launch::{Kind, two_cores};
use serde::Serialize;

use crate::config::{Config, Mode, Origin, ProgressCore, Value as _};
use crate::error::Error;
use crate::launcher::launcher;
use crate::meet::RankInfo;
use crate::ranks::Directory;

pub use control::{ControlCore, check_control, of_control, threads};

/// Where the two threads of a rank run, in dedicated mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// The core that is meant for the rank's own thread, where there is one.
    pub own: Option<usize>,
    /// The cores that the rank's own thread is kept to; `None` where it keeps those that it has.
    pub own_cores: Option<CoreSet>,
    /// The core of the progress thread; `None` where it is not pinned.
    pub progress: Option<usize>,
    /// Why the progress thread shares its core with another one, if it does.
    pub shares: Option<String>,
}

/// This rank among those of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Here {
    /// Its place among all of them.
    place: u32,
    /// How many there are.
    ranks: usize,
    /// Its place among those with the same cores, and how many those are.
    same: (usize, usize),
    /// Whether others are in this process, whose threads are not told apart.
    in_process: bool,
    /// Whether they have more threads than cores.
    crowded: bool,
    /// Whether its place is known.
    is_numbered: bool,
    /// Whether it speaks for those of its host whose progress threads share their cores.
    reports: bool,
}

impl Here {
    /// One rank alone, as far as is known.
    const ALONE: Self = Self {
        place: 0,
        ranks: 1,
        same: (0, 1),
        in_process: false,
        crowded: false,
        is_numbered: true,
        reports: true,
    };

    /// A process that a launcher started, which knows only the number of the others of its host.
    fn numbered(place: Option<u32>, ranks: Option<u32>, topology: &Topology, by: By) -> Self {
        let (Some(place), Some(ranks)) = (place, ranks) else {
            return Self {
                is_numbered: false,
                ..Self::ALONE
            };
        };
        let ranks = ranks.max(place + 1) as usize;
        // Where all ranks can have as many cores as this one, the launcher has bound each to its own ones;
        // else several have these.
        let is_own = by.has_given_own() || topology.usable().len() * ranks <= topology.within_cpuset().len();
        Self {
            place,
            ranks,
            same: if is_own { (0, 1) } else { (place as usize, ranks) },
            reports: place == 0,
            ..Self::ALONE
        }
    }

    fn of(rank: u32, directory: &Directory, crowded: bool, topology: &Topology, by: By) -> Self {
        let Some(own) = directory.rank_info(rank) else {
            return Self::ALONE;
        };
        if directory.is_lazy() {
            let here = Self::numbered(directory.local_rank(), directory.here(), topology, by);
            return Self { crowded, ..here };
        }
        let here = || directory.rank_infos().filter(|info| info.host == own.host);
        let same = || here().filter(|info| info.cores == own.cores);
        let few = |info: &RankInfo| CoreSet::of_kernel(&info.cores).len();
        let before = |info: &&RankInfo| info.rank < rank;
        Self {
            place: here().filter(before).count() as u32,
            ranks: here().count(),
            same: (same().filter(before).count(), same().count()),
            in_process: here().filter(|info| info.pid == own.pid).count() > 1,
            crowded,
            is_numbered: true,
            // Those with few cores share them, and others need not.
            reports: !here().filter(before).any(|info| few(info) <= few(own)),
        }
    }
}

/// The launcher of this process, as far as cores are concerned.
#[derive(Clone, Copy, Debug)]
struct By {
    kind: Kind,
    /// Its option for two cores for each rank.
    option: &'static str,
    /// Whether it is `doorbell run`.
    is_ours: bool,
    /// Whether it reports that it bound this process.
    has_bound: bool,
}

impl By {
    fn of(config: &Config) -> Self {
        let kind = match config.job.rank.origin() {
            Origin::Launcher(name) => Kind::ALL.into_iter().find(|kind| kind.name() == *name),
            _ => config.job.rank.get().map(|_| Kind::Doorbell),
        };
        Self::started_by(kind.unwrap_or(Kind::Singleton), config)
    }

    fn started_by(kind: Kind, config: &Config) -> Self {
        let variables = |name: &str| std::env::var(name).ok();
        let has_root = matches!(config.job.root.origin(), Origin::Environment(_));
        Self {
            kind,
            option: two_cores(kind, &variables),
            is_ours: kind == Kind::Doorbell || (kind == Kind::Pmi1 && has_root),
            has_bound: *config.job.bound.get(),
        }
    }

    /// Whether the cores that this process may use are those of the ranks with the same ones alone.
    fn has_placed(self, topology: &Topology, here: &Here) -> bool {
        let is_launched = self.kind != Kind::Singleton;
        // Where two whole cores for each rank are all that there are, a launcher that binds leaves the mask
        // as it was.
        let fills = is_launched && topology.whole_cores() == 2 * here.ranks;
        // A container's cores are not this rank's own, unless a launcher has placed ranks in it.
        fills || self.has_given_own() || topology.is_bound(is_launched)
    }

    /// Whether it is `doorbell run`, and gave each rank cores of its own.
    fn has_given_own(self) -> bool {
        self.is_ours && self.has_bound
    }

    /// Whether another program has chosen this rank's cores.
    fn is_foreign(self) -> bool {
        !self.is_ours && self.kind != Kind::Singleton
    }
}

/// Refuses a progress thread that cannot have its core whatever the other ranks have, before the ranks meet.
///
/// # Errors
/// [`Error::Core`], [`Error::NoCore`].
pub fn check(config: &Config) -> Result<(), Error> {
    if *config.progress.mode.get() != Mode::Dedicated {
        return Ok(());
    }
    let wanted = match config.progress.core.get() {
        // Which one is this rank's is not known yet.
        ProgressCore::List(_) => return Ok(()),
        wanted => wanted,
    };
    decide(&Topology::read(), wanted, &Here::ALONE, By::of(config)).map(|_| ())
}

/// Returns where the threads of a rank are to run, and reports on stderr, once for each host, when progress
/// threads share their cores. `None` without a progress thread.
///
/// # Errors
/// Those of [`check`]; a list of cores that is too short.
pub fn of(
    config: &Config,
    rank: u32,
    directory: &Directory,
    crowded: bool,
) -> Result<Option<Binding>, Error> {
    if *config.progress.mode.get() != Mode::Dedicated {
        return Ok(None);
    }
    let (topology, by) = (Topology::read(), By::of(config));
    let here = Here::of(rank, directory, crowded, &topology, by);
    let binding = match config.progress.core.get() {
        ProgressCore::Auto if cores::refusal().is_some() => unpinned(&topology, &here, by),
        wanted => decide(&topology, wanted, &here, by)?,
    };
    if let (Some(shares), true) = (&binding.shares, here.reports) {
        report(rank, shares);
    }
    Ok(Some(binding))
}

/// Returns the core of the thread that makes progress between the calls of a C program, whose processes do
/// not meet: `progress.core` names it, and the launcher numbers the processes of a host. The program's own
/// threads keep their cores. Without a core with `auto`.
///
/// # Errors
/// A core that this process may not use; too few cores; a list of cores that is too short; a launcher that
/// numbers nothing.
pub fn of_takeover(config: &Config) -> Result<Binding, Error> {
    let wanted = match config.progress.core.get() {
        ProgressCore::Auto => return Ok(Binding::default()),
        wanted => wanted,
    };
    let (topology, found) = (Topology::read(), launcher(config)?);
    let by = By::started_by(found.kind, config);
    let here = match found.kind {
        Kind::Singleton => Here::ALONE,
        _ => Here::numbered(found.local_rank, found.local_size, &topology, by),
    };
    let binding = decide(&topology, wanted, &here, by)?;
    if let (Some(shares), true) = (&binding.shares, here.reports) {
        let text = format!("doorbell: the thread that makes progress has no core of its own: {shares}\n");
        // If stderr is closed, there is nowhere to report this.
        let _ = io::stderr().write_all(text.as_bytes());
    }
    Ok(binding)
}

/// Reports that a progress thread has no core of its own.
pub fn report(rank: u32, shares: &str) {
    let text = format!("doorbell: the progress thread of rank {rank} has no core of its own: {shares}\n");
    // If stderr is closed, there is nowhere to report this.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn decide(topology: &Topology, wanted: &ProgressCore, here: &Here, by: By) -> Result<Binding, Error> {
    let (_, ranks) = here.same;
    let is_known = match wanted {
        ProgressCore::Number(_) => true,
        ProgressCore::List(_) => here.is_numbered,
        _ => here.is_numbered || by.has_given_own(),
    };
    if !is_known && *wanted != ProgressCore::Auto {
        return Err(no_core(format!(
            "progress.core is {}, and the launcher ({}) does not number the processes of this host: \
             name one core",
            wanted.show(),
            by.kind
        )));
    }
    let pairs = match wanted {
        ProgressCore::Auto => {
            if !is_known || !by.has_placed(topology, here) {
                return Ok(unpinned(topology, here, by));
            }
            match topology.pairs(ranks) {
                Ok(pairs) => pairs,
                Err(few) if by.is_foreign() && topology.usable().len() == 1 => {
                    return Err(one_core(&few.usable, by));
                }
                Err(_) => return Ok(unpinned(topology, here, by)),
            }
        }
        ProgressCore::Next => topology
            .pairs(ranks)
            .map_err(|few| no_core(format!("{few}; use {}, or start fewer ranks", by.option)))?,
        ProgressCore::Sibling => topology.sibling_pairs(ranks, None).map_err(|few| {
            no_core(format!(
                "progress.core is sibling, and of cores {} not enough have a second hardware thread that \
                 this rank may use: set progress.core = next",
                few.usable
            ))
        })?,
        ProgressCore::Number(_) | ProgressCore::List(_) => return named(topology, wanted, here, by),
    };
    Ok(divided(topology, &pairs, here, by))
}

/// The part of this rank in cores that are divided into pairs.
fn divided(topology: &Topology, pairs: &[Pair], here: &Here, by: By) -> Binding {
    let Some(pair) = pairs.get(here.same.0) else {
        return Binding::default();
    };
    let taken = pairs.iter().flat_map(|pair| {
        let siblings = topology.siblings(pair.progress);
        // A hardware thread beside the rank's own one is taken alone.
        match siblings.contains(pair.own) {
            true => vec![pair.progress],
            false => siblings.to_vec(),
        }
    });
    // Where hardware threads count, the one beside a progress thread is another rank's.
    let taken = taken.filter(|core| pairs.iter().all(|pair| pair.own != *core));
    let own = topology.usable().without(&taken.collect());
    Binding {
        own: Some(pair.own),
        own_cores: (!here.in_process).then_some(own),
        progress: Some(pair.progress),
        shares: here
            .crowded
            .then(|| with_remedy(&crowd(topology, here), topology, here, by)),
    }
}

/// Describes ranks that have more threads than cores.
fn crowd(topology: &Topology, here: &Here) -> String {
    let usable = topology.usable();
    format!(
        "{} ranks with two threads each share {} cores ({usable})",
        here.ranks,
        usable.len()
    )
}

/// No core is chosen: the scheduler places both threads, or both are on the only core that there is.
fn unpinned(topology: &Topology, here: &Here, by: By) -> Binding {
    let usable = topology.usable();
    let is_only = usable.only().filter(|_| !here.in_process);
    let why = match is_only {
        Some(core) => Some(format!("it shares core {core} with its rank, which has no other")),
        None => here.crowded.then(|| crowd(topology, here)),
    };
    Binding {
        own: is_only,
        own_cores: None,
        progress: is_only,
        shares: why.map(|why| with_remedy(&why, topology, here, by)),
    }
}

/// Adds what helps: the launcher's option, where the machine has the cores.
fn with_remedy(why: &str, topology: &Topology, here: &Here, by: By) -> String {
    let remedy = match topology.online().len() >= 2 * here.ranks {
        true => format!("{} gives each rank two", by.option),
        false => "start fewer ranks, or set progress.mode = inline".to_owned(),
    };
    format!("{why}: they yield to each other, and messages wait; {remedy}")
}

/// The core that `progress.core` names for this rank.
fn named(topology: &Topology, wanted: &ProgressCore, here: &Here, by: By) -> Result<Binding, Error> {
    let short = |length: usize| {
        no_core(format!(
            "progress.core lists {length} cores, and this is the rank with number {} of its host, counted \
             from 0: list one for each of its {} ranks",
            here.place, here.ranks
        ))
    };
    let core = wanted.named(here.place).map_err(short)?.unwrap_or_default();
    let (number, usable) = (core as usize, topology.usable());
    if !usable.contains(number) {
        return Err(Error::Core {
            core,
            reason: "it is not among the cores that this process may use",
            allowed: usable.to_vec(),
        });
    }
    let whole = topology.siblings(number);
    let listed = match wanted {
        ProgressCore::List(cores) => cores.iter().map(|core| *core as usize).collect(),
        _ => Vec::new(),
    };
    // Those of the other ranks' progress threads are left alone, too, where others are left.
    let all = listed.iter().flat_map(|core| topology.siblings(*core).to_vec());
    let all: CoreSet = all.chain(whole.iter()).collect();
    let others = [all, whole, CoreSet::from_iter([number])]
        .iter()
        .map(|taken| usable.without(taken))
        .find(|left| !left.is_empty())
        .unwrap_or_default();
    let (index, ranks) = here.same;
    let why = match (others.is_empty(), wanted) {
        (true, _) => Some(format!("it shares core {core} with its rank, which has no other")),
        (false, ProgressCore::Number(_)) if ranks > 1 => Some(format!(
            "progress.core names core {core} for each of {ranks} ranks of this host"
        )),
        _ => here.crowded.then(|| crowd(topology, here)),
    };
    let own = match others.is_empty() {
        true => Some(number),
        false => topology
            .within(&others)
            .order(None)
            .get(index)
            .copied()
            .or(others.only()),
    };
    Ok(Binding {
        own,
        own_cores: (!here.in_process && !others.is_empty()).then_some(others),
        progress: Some(number),
        shares: why.map(|why| with_remedy(&why, topology, here, by)),
    })
}

fn one_core(usable: &CoreSet, by: By) -> Error {
    no_core(format!(
        "the launcher ({}) bound this rank to core {usable} alone, and it has two threads: start it with \
         {}, or set progress.core = {usable} to have both on that core",
        by.kind, by.option
    ))
}

fn no_core(reason: String) -> Error {
    Error::NoCore { reason }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A machine of four whole cores, with second hardware threads 4 to 7.
    fn machine(root: &Path) {
        let cpu = root.join("sys/devices/system/cpu");
        for core in 0..8 {
            let folder = cpu.join(format!("cpu{core}/topology"));
            fs::create_dir_all(&folder).unwrap();
            let (first, second) = (core % 4, core % 4 + 4);
            fs::write(folder.join("thread_siblings_list"), format!("{first},{second}\n")).unwrap();
        }
        fs::write(cpu.join("online"), "0-7\n").unwrap();
    }

    pub(super) fn topology(mask: &str) -> Topology {
        let root = tempfile::tempdir().unwrap();
        machine(root.path());
        Topology::under(root.path(), &CoreSet::parse(mask).unwrap())
    }

    pub(super) fn by(kind: Kind) -> By {
        By {
            kind,
            option: two_cores(kind, &|_| None),
            is_ours: kind == Kind::Doorbell,
            has_bound: false,
        }
    }

    fn of(mask: &str, wanted: &ProgressCore, same: (usize, usize), kind: Kind) -> Result<Binding, Error> {
        let here = Here {
            place: same.0 as u32,
            ranks: same.1,
            same,
            ..Here::ALONE
        };
        decide(&topology(mask), wanted, &here, by(kind))
    }

    /// The cores of the rank's own thread, and the core of its progress thread.
    fn cores(binding: Result<Binding, Error>) -> (String, Option<usize>) {
        let binding = binding.unwrap();
        assert_eq!(binding.shares, None);
        (
            binding.own_cores.map_or_else(String::new, |set| set.to_string()),
            binding.progress,
        )
    }

    fn said(binding: Result<Binding, Error>) -> String {
        let error = binding.unwrap_err();
        assert_eq!((error.code(), error.exit_code()), ("progress.core", 2));
        error.to_string()
    }

    #[test]
    fn what_a_launcher_has_bound_is_divided() {
        for kind in [
            Kind::Doorbell,
            Kind::Pmix,
            Kind::Pmi1,
            Kind::Pmi2,
            Kind::Environment,
        ] {
            let auto = of("2-3", &ProgressCore::Auto, (0, 1), kind);
            assert_eq!(cores(auto), ("2".to_owned(), Some(3)), "{kind}");
        }
        // As mpirun binds to whole cores: the thread beside the progress thread stays idle.
        let whole = of("0-1,4-5", &ProgressCore::Auto, (0, 1), Kind::Pmix);
        assert_eq!(cores(whole), ("0,4".to_owned(), Some(1)));
        // One whole core is two hardware threads.
        let one = of("0,4", &ProgressCore::Auto, (0, 1), Kind::Pmix);
        assert_eq!(cores(one), ("0".to_owned(), Some(4)));
        // Two ranks with the same cores have their parts of them, and leave all progress threads alone.
        let second = of("0-3", &ProgressCore::Auto, (1, 2), Kind::Pmix).unwrap();
        assert_eq!((second.own, second.progress), (Some(2), Some(3)));
        assert_eq!(second.own_cores.unwrap().to_string(), "0,2");
    }

    #[test]
    fn a_launcher_that_gives_a_rank_all_cores_has_bound_it_too() {
        let all = topology("0-7");
        let bound = By {
            has_bound: true,
            ..by(Kind::Doorbell)
        };
        let one = decide(&all, &ProgressCore::Auto, &Here::ALONE, bound);
        assert_eq!(cores(one), ("0,2-4,6-7".to_owned(), Some(1)));
        // What another launcher leaves in the environment holds for its own ranks alone.
        let other = By {
            is_ours: false,
            ..bound
        };
        let one = decide(&all, &ProgressCore::Auto, &Here::ALONE, other).unwrap();
        assert_eq!(one, Binding::default());
        // Two ranks, and two whole cores for each: they are all that there are.
        let second = of("0-7", &ProgressCore::Auto, (1, 2), Kind::Pmix);
        assert_eq!(cores(second), ("0,2,4,6".to_owned(), Some(3)));
        let three = of("0-7", &ProgressCore::Auto, (1, 3), Kind::Pmix).unwrap();
        assert_eq!(three, Binding::default());
    }

    /// The binding of a process that knows only the number of the others, on a machine of four whole cores.
    fn numbered(
        mask: &str,
        wanted: &ProgressCore,
        (place, ranks): (Option<u32>, Option<u32>),
    ) -> Result<Binding, Error> {
        let (topology, by) = (topology(mask), by(Kind::Pmix));
        decide(
            &topology,
            wanted,
            &Here::numbered(place, ranks, &topology, by),
            by,
        )
    }

    #[test]
    fn a_mask_that_several_ranks_have_is_divided_by_their_places() {
        // Each of two can have four cores of eight: they are its own.
        let own = numbered("0-1,4-5", &ProgressCore::Next, (Some(1), Some(2)));
        assert_eq!(cores(own), ("0,4".to_owned(), Some(1)));
        // Four cannot: these are the same ones for several.
        let shared = numbered("0-1,4-5", &ProgressCore::Auto, (Some(1), Some(4))).unwrap();
        assert_eq!((shared.own_cores, shared.progress), (None, None));
        let second = numbered("0-7", &ProgressCore::Next, (Some(1), Some(2)));
        assert_eq!(cores(second), ("0,2,4,6".to_owned(), Some(3)));
        // Where a launcher numbers nothing, no process knows its part.
        let unknown = numbered("0-1,4-5", &ProgressCore::Auto, (None, None)).unwrap();
        assert_eq!(unknown.progress, None);
        for wanted in [ProgressCore::Next, ProgressCore::List(vec![2, 3])] {
            let text = said(numbered("0-7", &wanted, (None, Some(2))));
            assert!(text.contains("does not number the processes"), "{text}");
        }
    }

    #[test]
    fn own_threads_keep_their_cores_where_hardware_threads_count() {
        // Cores 1 and 5 are one whole core, and belong to two ranks: three whole ones, and four threads.
        for index in 0..2 {
            let binding = of("0-2,5", &ProgressCore::Next, (index, 2), Kind::Pmix).unwrap();
            let kept = binding.own_cores.unwrap();
            assert!(kept.contains(binding.own.unwrap()), "{kept}");
        }
        // None is left without a core.
        for index in 0..3 {
            let binding = of("0-2,4-6", &ProgressCore::Next, (index, 3), Kind::Pmix).unwrap();
            assert!(binding.own_cores.unwrap().contains(binding.own.unwrap()));
        }
    }

    #[test]
    fn one_core_of_a_launcher_is_refused_with_its_option() {
        for (kind, option) in [
            (Kind::Pmix, "`mpirun --map-by slot:pe=2`"),
            (Kind::Pmi1, "`mpiexec -bind-to core:2`"),
            (Kind::Pmi2, "`srun -c 2`"),
        ] {
            let text = said(of("3", &ProgressCore::Auto, (0, 1), kind));
            assert!(
                text.contains(option) && text.contains("core 3 alone") && text.contains("progress.core = 3"),
                "{text}"
            );
            // By name it may be shared, which is reported.
            let shared = of("3", &ProgressCore::Number(3), (0, 1), kind).unwrap();
            assert_eq!((shared.own, shared.progress), (Some(3), Some(3)));
            assert!(shared.shares.unwrap().contains("shares core 3 with its rank"));
        }
        // `doorbell run` gave what it had.
        let ours = of("3", &ProgressCore::Auto, (0, 1), Kind::Doorbell).unwrap();
        let text = ours.shares.unwrap();
        assert!(text.contains("--cores-per-rank 2"), "{text}");
    }

    #[test]
    fn a_rank_that_nothing_has_bound_keeps_its_cores() {
        assert_eq!(
            of("0-7", &ProgressCore::Auto, (0, 1), Kind::Singleton).unwrap(),
            Binding::default()
        );
        let crowded = Here {
            ranks: 9,
            crowded: true,
            ..Here::ALONE
        };
        let many = decide(
            &topology("0-7"),
            &ProgressCore::Auto,
            &crowded,
            by(Kind::Doorbell),
        )
        .unwrap();
        let text = many.shares.unwrap();
        assert!(
            text.contains("9 ranks with two threads each share 8 cores (0-7)")
                && text.contains("fewer ranks"),
            "{text}"
        );
    }

    #[test]
    fn the_next_core_is_a_whole_one_while_there_is_one() {
        let next = |mask: &str, same| of(mask, &ProgressCore::Next, same, Kind::Doorbell);
        assert_eq!(cores(next("0-7", (0, 1))), ("0,2-4,6-7".to_owned(), Some(1)));
        assert_eq!(next("0-7", (1, 2)).unwrap().progress, Some(3));
        assert_eq!(next("0-7", (3, 4)).unwrap().progress, Some(7));
        let text = said(next("0-7", (4, 5)));
        assert!(
            text.contains("5 ranks with 2 cores each need 10, and 4 are here"),
            "{text}"
        );
        let text = said(next("2", (0, 1)));
        assert!(
            text.contains("1 is here (cores 2 of 0-7)") && text.contains("--cores-per-rank 2"),
            "{text}"
        );
    }

    #[test]
    fn a_sibling_is_a_hardware_thread_of_the_same_core() {
        let sibling = |mask: &str, same| of(mask, &ProgressCore::Sibling, same, Kind::Doorbell);
        assert_eq!(cores(sibling("0-7", (0, 1))), ("0-3,5-7".to_owned(), Some(4)));
        let second = sibling("0-1,4-5", (1, 2)).unwrap();
        assert_eq!((second.own, second.progress), (Some(1), Some(5)));
        assert!(said(sibling("0-3", (0, 1))).contains("second hardware thread"));
    }

    #[test]
    fn named_cores_are_taken_by_place_or_refused() {
        let list = ProgressCore::List(vec![3, 1]);
        let of = |wanted: &ProgressCore, same| of("0-3", wanted, same, Kind::Doorbell);
        assert_eq!(cores(of(&list, (0, 2))), ("0,2".to_owned(), Some(3)));
        // Where the list has all cores, a rank's own thread is kept off its own progress thread alone.
        let full = ProgressCore::List(vec![0, 1, 2, 3]);
        assert_eq!(cores(of(&full, (0, 2))), ("1-3".to_owned(), Some(0)));
        assert_eq!(of(&list, (1, 2)).unwrap().progress, Some(1));
        assert!(said(of(&list, (2, 3))).contains("lists 2 cores"));
        let one = of(&ProgressCore::Number(2), (0, 2)).unwrap();
        assert!(one.shares.unwrap().contains("core 2 for each of 2 ranks"));
        let error = of(&ProgressCore::Number(6), (0, 1)).unwrap_err();
        assert!(matches!(error, Error::Core { core: 6, .. }), "{error}");
    }

    #[test]
    fn ranks_of_one_process_leave_its_threads_where_they_are() {
        let here = Here {
            ranks: 2,
            same: (1, 2),
            in_process: true,
            ..Here::ALONE
        };
        let binding = decide(&topology("0-3"), &ProgressCore::Next, &here, by(Kind::Singleton)).unwrap();
        assert_eq!((binding.own_cores, binding.progress), (None, Some(3)));
    }
}
