//! The core of the control plane's thread, where it spins (`control.core`).
//!
//! ```text
//!   cores of ranks with the same ones ─► own threads, progress threads ─► the rest: control planes
//! ```

use std::io::{self, Write as _};
use std::path::Path;

use doorbell_fabric::cores::{self, CoreSet, Pair, Topology};

use super::{By, Here};
use crate::config::{Config, ControlWait, Mode, ProgressCore};
use crate::error::Error;
use crate::ranks::Directory;

/// Where the control plane's thread of a rank spins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlCore {
    /// The number of the core.
    pub core: usize,
    /// Whether the rank's own thread is to be kept off it.
    pub is_alone: bool,
}

/// Whether the ranks have a control plane whose thread spins.
fn spins(config: &Config) -> bool {
    *config.control.mode.get() && *config.control.wait.get() == ControlWait::Spin
}

/// Returns how many threads of a rank want to spin.
pub fn threads(config: &Config) -> usize {
    let dedicated = *config.progress.mode.get() == Mode::Dedicated;
    1 + usize::from(dedicated) + usize::from(spins(config))
}

/// Refuses a core of the control plane that is not available whatever the other ranks have, before the ranks
/// meet.
///
/// # Errors
/// [`Error::BadValue`] with the remedy.
pub fn check_control(config: &Config) -> Result<(), Error> {
    // Which one of a list is this rank's is not known yet.
    if !spins(config) || matches!(config.control.core.get(), ProgressCore::List(_)) {
        return Ok(());
    }
    choose(config, &Topology::read(), &Here::ALONE, By::of(config)).map(|_| ())
}

/// Returns where the control plane's thread of this rank is to spin, and reports on stderr, once for each
/// host, when such threads share a core. `None` where it does not spin, or no core is named for it.
///
/// # Errors
/// Those of [`check_control`]; a list of cores that is too short.
pub fn of_control(config: &Config, rank: u32, directory: &Directory) -> Result<Option<ControlCore>, Error> {
    if !spins(config) {
        return Ok(None);
    }
    // The rank's own thread may have fewer cores by now than it had before its progress thread was bound.
    let published = directory
        .rank_info(rank)
        .map(|info| CoreSet::of_kernel(&info.cores));
    let topology = match published.filter(|cores| !cores.is_empty()) {
        Some(cores) => Topology::under(Path::new("/"), &cores),
        None => Topology::read(),
    };
    let by = By::of(config);
    let here = Here::of(rank, directory, false, &topology, by);
    let is_auto = *config.control.core.get() == ProgressCore::Auto;
    if is_auto && cores::refusal().is_some() {
        return Ok(None);
    }
    let core = choose(config, &topology, &here, by)?;
    if let Some(shares) = shared(config, &topology, &here).filter(|_| here.reports) {
        let text = format!(
            "doorbell: the thread of the control plane of rank {rank} has no core of its own: {shares}\n"
        );
        // If stderr is closed, there is nowhere to report this.
        let _ = io::stderr().write_all(text.as_bytes());
    }
    let is_only = topology.usable().only().is_some();
    Ok(core.map(|core| ControlCore {
        core,
        is_alone: !here.in_process && !is_only,
    }))
}

/// The core of the thread, for the rank `here`.
fn choose(config: &Config, topology: &Topology, here: &Here, by: By) -> Result<Option<usize>, Error> {
    let wanted = config.control.core.get();
    let is_known = here.is_numbered || by.has_given_own();
    match wanted {
        ProgressCore::Number(_) | ProgressCore::List(_) => named(config, topology, here, by).map(Some),
        ProgressCore::Auto if !is_known || !by.has_placed(topology, here) => Ok(None),
        ProgressCore::Auto => Ok(next(config, topology, here)),
        ProgressCore::Next | ProgressCore::Sibling if !is_known => Err(unfit(config, &unnumbered(by))),
        ProgressCore::Next => match next(config, topology, here) {
            Some(core) => Ok(Some(core)),
            None => Err(unfit(config, &too_few(config, topology, here, by))),
        },
        ProgressCore::Sibling => match sibling(config, topology, here) {
            Some(core) => Ok(Some(core)),
            None => Err(unfit(
                config,
                &format!(
                    "another one: of cores {} this rank's own has no second hardware thread that is left; \
                     set control.core = next",
                    topology.usable()
                ),
            )),
        },
    }
}

/// The core that is left for this rank's, where enough are left for the ranks with the same cores.
fn next(config: &Config, topology: &Topology, here: &Here) -> Option<usize> {
    let (index, ranks) = here.same;
    let left = topology.left(&taken(config, topology, here).concat());
    left.get(index).copied().filter(|_| left.len() >= ranks)
}

/// A hardware thread beside that of the rank's own thread.
fn sibling(config: &Config, topology: &Topology, here: &Here) -> Option<usize> {
    let taken = taken(config, topology, here);
    let own = *taken.get(here.same.0)?.first()?;
    let all = taken.concat();
    topology.siblings(own).iter().find(|core| !all.contains(core))
}

/// The cores of the own thread, and of the progress thread, of each rank with the same cores.
fn taken(config: &Config, topology: &Topology, here: &Here) -> Vec<Vec<usize>> {
    let (_, ranks) = here.same;
    let of_pair = |pair: Pair| vec![pair.own, pair.progress];
    let pairs = match (config.progress.mode.get(), config.progress.core.get()) {
        (Mode::Inline, _) => {
            return topology
                .order(None)
                .into_iter()
                .take(ranks)
                .map(|own| vec![own])
                .collect();
        }
        (Mode::Dedicated, ProgressCore::Sibling) => topology.sibling_pairs(ranks, None),
        (Mode::Dedicated, ProgressCore::Auto | ProgressCore::Next) => topology.pairs(ranks),
        (Mode::Dedicated, ProgressCore::Number(core)) => return beside(topology, &[*core], ranks),
        (Mode::Dedicated, ProgressCore::List(cores)) => return beside(topology, cores, ranks),
    };
    match pairs {
        Ok(pairs) => pairs.into_iter().map(of_pair).collect(),
        // There are too few for the progress threads already: none is left.
        Err(_) => topology.order(None).into_iter().map(|own| vec![own]).collect(),
    }
}

/// The cores of own threads beside progress threads that are named.
fn beside(topology: &Topology, progress: &[u32], ranks: usize) -> Vec<Vec<usize>> {
    let progress: Vec<usize> = progress.iter().map(|core| *core as usize).collect();
    let owns = topology.left(&progress).into_iter().take(ranks);
    owns.map(|own| [&[own][..], &progress].concat()).collect()
}

/// The core that `control.core` names for this rank.
fn named(config: &Config, topology: &Topology, here: &Here, by: By) -> Result<usize, Error> {
    let wanted = config.control.core.get();
    if matches!(wanted, ProgressCore::List(_)) && !here.is_numbered {
        return Err(unfit(config, &unnumbered(by)));
    }
    let short = |length: usize| {
        let text = format!(
            "a core for each of the {} ranks of this host, and not {length}: this rank has the number {} \
             among them, counted from 0",
            here.ranks, here.place
        );
        unfit(config, &text)
    };
    let core = wanted.named(here.place).map_err(short)?.unwrap_or_default();
    let usable = topology.usable();
    if !usable.contains(core as usize) {
        let text = format!("one of the cores {usable}, which this process may use (`taskset -p` shows them)");
        return Err(unfit(config, &text));
    }
    let dedicated = *config.progress.mode.get() == Mode::Dedicated;
    let progress = config.progress.core.get().named(here.place);
    if dedicated && progress == Ok(Some(core)) {
        let text = "another core than that of the progress thread (progress.core): both threads spin";
        return Err(unfit(config, text));
    }
    Ok(core as usize)
}

/// Why the thread shares its core with another one that spins, if it does.
fn shared(config: &Config, topology: &Topology, here: &Here) -> Option<String> {
    let ProgressCore::Number(core) = config.control.core.get() else {
        return None;
    };
    if topology.usable().only().is_some() {
        return Some(format!(
            "it shares core {core} with its rank, which has no other: set control.wait = block, or give each \
             rank more cores"
        ));
    }
    (here.ranks > 1).then(|| {
        format!(
            "control.core names core {core} for each of {} ranks of this host: list one for each, as in \
             `{core},{}`",
            here.ranks,
            core + 1
        )
    })
}

fn unnumbered(by: By) -> String {
    format!(
        "a core by its number: the launcher ({}) does not number the processes of this host",
        by.kind
    )
}

fn too_few(config: &Config, topology: &Topology, here: &Here, by: By) -> String {
    let (_, ranks) = here.same;
    let threads = threads(config);
    format!(
        "a setting that fits the cores {}: {ranks} with {threads} threads each that spin need {}; give each \
         rank {threads} cores (two: {}), or set control.wait = block",
        topology.usable(),
        ranks * threads,
        by.option
    )
}

fn unfit(config: &Config, expected: &str) -> Error {
    let error = config.unfit("control.core", expected);
    error.unwrap_or_else(|| super::no_core(expected.to_owned()))
}

#[cfg(test)]
mod tests {
    use doorbell_oob::launch::Kind;

    use super::super::tests::{by, topology};
    use super::*;

    fn config(settings: &[(&str, &str)]) -> Config {
        let mut config = Config::default();
        let own = [("control.mode", "on"), ("control.wait", "spin")];
        for (name, value) in own.iter().chain(settings) {
            config.set(name, value).unwrap();
        }
        config
    }

    /// The cores of ranks with the same ones, of a machine of four whole cores with second hardware threads 4
    /// to 7.
    fn all(mask: &str, ranks: usize, settings: &[(&str, &str)]) -> Result<Vec<Option<usize>>, String> {
        let config = config(settings);
        let each = |rank: usize| {
            let here = Here {
                place: rank as u32,
                ranks,
                same: (rank, ranks),
                ..Here::ALONE
            };
            choose(&config, &topology(mask), &here, by(Kind::Doorbell)).map_err(|error| error.to_string())
        };
        (0..ranks).map(each).collect()
    }

    #[test]
    fn next_is_what_the_other_threads_have_left() {
        let next = ("control.core", "next");
        let dedicated = ("progress.mode", "dedicated");
        assert_eq!(all("0-7", 1, &[next]), Ok(vec![Some(1)]));
        assert_eq!(all("0-7", 2, &[next]), Ok(vec![Some(2), Some(3)]));
        assert_eq!(all("0-7", 1, &[next, dedicated]), Ok(vec![Some(2)]));
        let named = ("progress.core", "0");
        assert_eq!(all("0-3", 1, &[next, dedicated, named]), Ok(vec![Some(2)]));
        let error = all("0-1", 1, &[next, dedicated]).unwrap_err();
        assert!(
            error.contains("control.core")
                && error.contains("need 3")
                && error.contains("control.wait = block"),
            "{error}"
        );
        assert_eq!(all("0", 1, &[]), Ok(vec![None]), "auto takes what there is");
    }

    #[test]
    fn a_sibling_is_beside_the_ranks_own_thread() {
        let sibling = ("control.core", "sibling");
        assert_eq!(all("0-7", 2, &[sibling]), Ok(vec![Some(4), Some(5)]));
        let error = all("0-3", 1, &[sibling]).unwrap_err();
        assert!(error.contains("control.core = next"), "{error}");
    }

    #[test]
    fn numbers_are_taken_or_refused_by_name() {
        assert_eq!(all("0-3", 2, &[("control.core", "3")]), Ok(vec![Some(3); 2]));
        assert_eq!(
            all("0-3", 2, &[("control.core", "3,1")]),
            Ok(vec![Some(3), Some(1)])
        );
        for (settings, part) in [
            (&[("control.core", "9")][..], "one of the cores 0-3"),
            (&[("control.core", "1,2")], "not 2"),
            (
                &[
                    ("control.core", "1"),
                    ("progress.mode", "dedicated"),
                    ("progress.core", "1"),
                ],
                "progress.core",
            ),
        ] {
            let error = all("0-3", 3, settings).unwrap_err();
            assert!(error.contains("control.core") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_thread_that_sleeps_has_no_core() {
        let mut config = config(&[]);
        assert_eq!(threads(&config), 2);
        config.set("control.wait", "block").unwrap();
        assert_eq!((threads(&config), check_control(&config).is_ok()), (1, true));
    }
}
