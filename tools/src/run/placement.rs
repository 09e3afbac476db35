//! Which cores the ranks of one host get: `--bind`, `--cores-per-rank` and `--show-binding`.
//!
//! | requested | each rank gets | too few cores |
//! |---|---|---|
//! | `--cores-per-rank N` | N whole cores, or hardware threads where there are not enough for all | refused |
//! | nothing, with `progress.mode = dedicated` | two cores, as above | one, as below; its ranks report it |
//! | nothing, with a control plane that spins | one more, unless `control.core` names one | fewer, as below |
//! | nothing | one core | no binding |
//! | `--bind core` | one core | cores are shared |
//! | `--bind none` | no binding | |
//!
//! The order of cores is `doorbell_fabric::cores`': the node of the named rail's device first. Where the job
//! names sets of rails (`doorbell_fabric::rail_set`), each rank then gets those nearest to its cores.

use std::fmt::Write as _;
use std::path::Path;

use doorbell::Config;
use doorbell::config::{Mode, ProgressCore};
use doorbell_bench::pin;
use doorbell_fabric::cores::topology::node_of_rail;
use doorbell_fabric::cores::{CoreSet, Topology};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail_set::RailSet;
use serde::{Deserialize, Serialize};

use super::args::{Bind, RunArgs};
use super::can_bind;
use super::control_plane::{ControlCore, ControlPlane};
use super::rails::{RailShares, in_words, written};
use crate::error::ToolError;

/// What a command line and the settings request for the cores of ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) bind: Bind,
    /// The number of cores that was requested.
    pub(crate) each: Option<u32>,
    /// Whether the settings have a progress thread at each rank.
    pub(crate) dedicated: bool,
    /// Whether that thread is to have a hardware thread of the rank's own core.
    pub(crate) sibling: bool,
    /// The rails that are named.
    pub(crate) rails: Vec<RailName>,
    /// The control plane of the ranks, if they have one.
    pub(crate) control: Option<ControlPlane>,
    /// The core that its thread spins on.
    pub(crate) control_core: Option<ControlCore>,
    /// A core that is no rank's: a daemon's thread spins on it.
    pub(crate) kept: Option<u32>,
}

impl Wanted {
    /// Reads a command line, and the settings of the environment.
    pub(crate) fn of(args: &RunArgs) -> Self {
        // A bad setting is an error of the ranks, which name it.
        let config = Config::from_environment().unwrap_or_default();
        let rails = match args.rails.is_empty() {
            true => config.rails.list.get().0.clone(),
            false => args.rails.clone(),
        };
        Self {
            bind: args.bind,
            each: args.cores_per_rank,
            dedicated: *config.progress.mode.get() == Mode::Dedicated,
            sibling: *config.progress.core.get() == ProgressCore::Sibling,
            rails,
            control: ControlPlane::of(&config),
            control_core: ControlCore::of(&config),
            kept: None,
        }
    }

    /// Whether sets of rails are named.
    pub(crate) fn has_sets(&self) -> bool {
        self.rails.iter().any(RailName::is_set)
    }

    /// Returns how many cores the threads of a rank want.
    fn threads(&self) -> usize {
        let spins = self.control_core == Some(ControlCore::Left);
        1 + usize::from(self.dedicated) + usize::from(spins)
    }

    /// Whether the second thread of each rank is to have a hardware thread of the first one's core.
    fn has_siblings(&self) -> bool {
        match self.dedicated {
            true => self.sibling,
            false => self.control_core == Some(ControlCore::Sibling),
        }
    }

    /// The machine, without what is not for ranks.
    fn topology(&self) -> Topology {
        let all = Topology::read();
        let kept: CoreSet = self.kept.iter().map(|core| *core as usize).collect();
        let others = all.usable().without(&kept);
        match others.is_empty() || kept.is_empty() {
            true => all,
            false => all.within(&others),
        }
    }
}

/// The cores of the ranks of this host.
#[derive(Debug)]
pub(crate) struct Placement {
    topology: Topology,
    /// The named rail whose device has a node, and the node.
    near: Option<(RailName, usize)>,
    /// Whether the settings have a progress thread at each rank.
    dedicated: bool,
    control: Option<ControlPlane>,
    control_core: Option<ControlCore>,
    /// The cores of each rank; none for ranks that are not bound.
    ranks: Vec<Vec<usize>>,
    /// The rails of each rank, where the job names sets.
    rails: Option<RailShares>,
}

impl Placement {
    /// Chooses the cores of `ranks` ranks, and their rails of sets, which are looked up with `settings`.
    ///
    /// # Errors
    /// Fewer cores than were requested; a system that binds nothing, where binding was requested; a set with
    /// fewer rails than ranks.
    pub(crate) fn choose(
        wanted: &Wanted,
        ranks: u32,
        settings: &dyn Fn() -> Result<Config, doorbell::Error>,
    ) -> Result<Self, ToolError> {
        let mut rails = RailShares::look(&wanted.rails, settings)?;
        let on = |rail: &RailName| Some((rail.clone(), node_of_rail(Path::new("/"), rail)?));
        let near = wanted.rails.iter().find_map(on);
        let near = near.or_else(|| rails.as_ref().and_then(RailShares::near));
        let topology = wanted.topology();
        let node = near.as_ref().map(|(_, node)| *node);
        let cores = cores(&topology, wanted, ranks as usize, node)?;
        if let Some(rails) = &mut rails {
            let node = |cores: &Vec<usize>| Some(topology.core(*cores.first()?)?.node);
            rails.choose(0, &cores.iter().map(node).collect::<Vec<_>>())?;
        }
        Ok(Self {
            ranks: cores,
            rails,
            topology,
            near,
            dedicated: wanted.dedicated,
            control: wanted.control.clone(),
            control_core: wanted.control_core.clone(),
        })
    }

    /// Returns the cores of each rank, and their rails.
    pub(crate) fn into_parts(self) -> (Vec<Vec<usize>>, Option<RailShares>) {
        (self.ranks, self.rails)
    }
}

/// Returns the cores of each rank, in the order of its threads.
fn cores(
    topology: &Topology,
    wanted: &Wanted,
    ranks: usize,
    near: Option<usize>,
) -> Result<Vec<Vec<usize>>, ToolError> {
    if let Some(each) = wanted.each {
        return asked(topology, wanted, (ranks, each as usize), near);
    }
    let order = topology.order(near);
    if wanted.bind == Bind::None || order.is_empty() || (wanted.bind == Bind::Auto && !can_bind()) {
        return Ok(vec![Vec::new(); ranks]);
    }
    if wanted.bind == Bind::Auto
        && let Some(placed) = for_threads(topology, wanted, ranks, near)
    {
        return Ok(placed);
    }
    if wanted.bind == Bind::Auto && ranks > order.len() {
        return Ok(vec![Vec::new(); ranks]);
    }
    Ok((0..ranks).map(|rank| vec![order[rank % order.len()]]).collect())
}

/// A core for each thread of each rank, or for as many as there are; `None` where there is but one.
fn for_threads(
    topology: &Topology,
    wanted: &Wanted,
    ranks: usize,
    near: Option<usize>,
) -> Option<Vec<Vec<usize>>> {
    let threads = wanted.threads();
    if wanted.has_siblings() && threads <= 2 {
        let pairs = topology.sibling_pairs(ranks, near).ok()?;
        return Some(pairs.iter().map(|pair| vec![pair.own, pair.progress]).collect());
    }
    let fewer = (2..=threads).rev();
    fewer
        .into_iter()
        .find_map(|each| topology.place(ranks, each, near).ok())
}

/// The cores that were requested, or a refusal.
fn asked(
    topology: &Topology,
    wanted: &Wanted,
    (ranks, each): (usize, usize),
    near: Option<usize>,
) -> Result<Vec<Vec<usize>>, ToolError> {
    if wanted.bind == Bind::None {
        return Err(ToolError::Usage(
            "`--bind none` leaves the ranks to the scheduler, and `--cores-per-rank` binds them: leave one of them out"
                .to_owned(),
        ));
    }
    if let Some(source) = pin::refusal() {
        return Err(ToolError::System {
            what: "bind ranks to cores, as `--cores-per-rank` requests",
            source,
        });
    }
    if each == 1 && wanted.dedicated {
        return Err(ToolError::Usage(
            "`--cores-per-rank 1` leaves no core for the progress threads, and progress.mode is \
             dedicated: use `--cores-per-rank 2`, or set progress.mode = inline"
                .to_owned(),
        ));
    }
    topology.place(ranks, each, near).map_err(|few| {
        ToolError::Usage(format!(
            "too few cores for `--cores-per-rank {each}`: {few}; start fewer ranks, give each fewer \
             cores, or let this process use more (`taskset -cp`, the container's cpuset)"
        ))
    })
}

/// The JSON of `doorbell run --show-binding --json` (`bench/schema/binding-1.schema.json`).
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    version: &'static str,
    /// The cores that may be used, as `0-3,8`.
    usable: CoreSet,
    /// The cores that are online.
    online: CoreSet,
    whole_cores: usize,
    /// Isolated cores that may not be used.
    isolated_elsewhere: CoreSet,
    near: Option<Near>,
    /// The control plane of the ranks, if they have one.
    control: Option<ControlPlane>,
    /// What each set of rails that is named stands for.
    sets: Vec<RailSet>,
    ranks: Vec<RankRow>,
}

#[derive(Debug, Serialize)]
struct Near {
    rail: String,
    node: usize,
}

/// The cores of one rank.
#[derive(Debug, Serialize)]
struct RankRow {
    rank: u32,
    cores: Vec<usize>,
    /// The core of the rank's own thread, where one is meant for it.
    own: Option<usize>,
    /// The core that its progress thread gets, if it has one.
    progress: Option<usize>,
    /// The core that its control plane's thread spins on, if it has one.
    control: Option<usize>,
    package: Option<usize>,
    nodes: Vec<usize>,
    /// The cores that share the last level of cache with the first one.
    cache: Option<usize>,
    isolated: CoreSet,
    /// Whether two of them are hardware threads of one core.
    shares_whole_core: bool,
    /// Its rails, where ranks have different ones.
    rails: Vec<RailName>,
}

impl Placement {
    /// Returns the placement as text for people, or as JSON.
    pub(crate) fn show(&self, as_json: bool) -> Result<String, ToolError> {
        let report = self.report();
        if !as_json {
            return Ok(table(&report));
        }
        let text = serde_json::to_string_pretty(&report).map_err(|error| ToolError::System {
            what: "write the binding as JSON",
            source: error.into(),
        })?;
        Ok(text + "\n")
    }

    fn report(&self) -> Report {
        let near = self.near.as_ref();
        Report {
            schema: "doorbell.binding/1",
            version: env!("CARGO_PKG_VERSION"),
            usable: self.topology.usable(),
            online: self.topology.online().clone(),
            whole_cores: self.topology.whole_cores(),
            isolated_elsewhere: self.topology.isolated_elsewhere(),
            near: near.map(|(rail, node)| Near {
                rail: rail.to_string(),
                node: *node,
            }),
            control: self.control.clone(),
            sets: self
                .rails
                .as_ref()
                .map_or_else(Vec::new, |rails| rails.sets().to_vec()),
            ranks: (0..)
                .zip(&self.ranks)
                .map(|(rank, cores)| self.row(rank, cores))
                .collect(),
        }
    }

    fn row(&self, rank: u32, cores: &[usize]) -> RankRow {
        let own = self.topology.within(&cores.iter().copied().collect());
        // As the rank divides them.
        let of_control = self.control_core.as_ref();
        // A program may have a progress thread by itself.
        let has_progress = self.dedicated || (cores.len() > 1 && of_control.is_none());
        let pairs = own.pairs(1).ok().filter(|_| has_progress);
        let pair = pairs.and_then(|pairs| pairs.first().copied());
        let taken: Vec<usize> = match pair {
            Some(pair) => vec![pair.own, pair.progress],
            None => own.order(None).into_iter().take(1).collect(),
        };
        let first = own
            .cores()
            .iter()
            .find(|core| cores.first() == Some(&core.number));
        let mut nodes: Vec<usize> = own.cores().iter().map(|core| core.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        RankRow {
            rank,
            own: pair.map(|pair| pair.own).or(cores.first().copied()),
            progress: pair.map(|pair| pair.progress),
            control: of_control.and_then(|core| core.of_rank(rank, &own, &taken)),
            package: first.map(|core| core.package),
            nodes,
            cache: first.map(|core| core.cache),
            isolated: own
                .cores()
                .iter()
                .filter(|core| core.isolated)
                .map(|core| core.number)
                .collect(),
            shares_whole_core: own.whole_cores() < cores.len(),
            rails: self
                .rails
                .as_ref()
                .map_or_else(Vec::new, |rails| rails.of(rank).to_vec()),
            cores: cores.to_vec(),
        }
    }
}

/// The report for people.
fn table(report: &Report) -> String {
    let text_of = |number: Option<usize>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let mut text = format!(
        "{} whole cores, {} usable of {}\n",
        report.whole_cores, report.usable, report.online
    );
    // Writing into memory cannot fail.
    if let Some(near) = &report.near {
        let _ = writeln!(text, "node {} first: {} is there", near.node, near.rail);
    }
    if !report.isolated_elsewhere.is_empty() {
        let _ = writeln!(
            text,
            "cores {0} are isolated, and not this process's: `taskset -c {0} doorbell run …` uses them",
            report.isolated_elsewhere
        );
    }
    if let Some(control) = &report.control {
        let _ = writeln!(text, "{control}");
    }
    for set in &report.sets {
        let _ = writeln!(text, "{} stands for {}", set.name, in_words(set));
    }
    // The column of the control plane's threads is there where they spin.
    let spins = report.ranks.iter().any(|row| row.control.is_some());
    let column = |core: &str| {
        if spins {
            format!(" {core:>8}")
        } else {
            String::new()
        }
    };
    let _ = writeln!(
        text,
        "{:>5} {:>5} {:>9}{} {:>8} {:>6}  cores",
        "rank",
        "own",
        "progress",
        column("control"),
        "package",
        "node"
    );
    for row in &report.ranks {
        let nodes: Vec<String> = row.nodes.iter().map(usize::to_string).collect();
        let cores: Vec<String> = row.cores.iter().map(usize::to_string).collect();
        let cores = match (row.cores.is_empty(), row.shares_whole_core) {
            (true, _) => "any: it is not bound".to_owned(),
            (false, true) => format!("{}, hardware threads of one core among them", cores.join(",")),
            (false, false) => cores.join(","),
        };
        let isolated = match row.isolated.is_empty() {
            true => String::new(),
            false => format!(" (isolated: {})", row.isolated),
        };
        let rails = match row.rails.is_empty() {
            true => String::new(),
            false => format!("  rails: {}", written(&row.rails)),
        };
        let _ = writeln!(
            text,
            "{:>5} {:>5} {:>9}{} {:>8} {:>6}  {cores}{isolated}{rails}",
            row.rank,
            text_of(row.own),
            text_of(row.progress),
            column(&text_of(row.control)),
            text_of(row.package),
            nodes.join(","),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(bind: Bind, each: Option<u32>, dedicated: bool) -> Wanted {
        Wanted {
            bind,
            each,
            dedicated,
            sibling: false,
            rails: Vec::new(),
            control: None,
            control_core: None,
            kept: None,
        }
    }

    /// Settings of ranks whose control plane's thread spins.
    fn spinning(settings: &[(&str, &str)]) -> Config {
        let mut config = Config::default();
        let own = [("control.mode", "on"), ("control.wait", "spin")];
        for (name, value) in own.iter().chain(settings) {
            config.set(name, value).unwrap();
        }
        config
    }

    /// A machine with this many cores, each whole.
    fn machine(cores: usize) -> Topology {
        let root = tempfile::tempdir().unwrap();
        Topology::under(root.path(), &(0..cores).collect())
    }

    fn placed(cores_of: usize, wanted: &Wanted, ranks: usize) -> Vec<Vec<usize>> {
        cores(&machine(cores_of), wanted, ranks, None).unwrap()
    }

    #[test]
    fn ranks_are_bound_in_turn_or_not_at_all() {
        let none: Vec<Vec<usize>> = vec![vec![]; 2];
        assert_eq!(placed(2, &wanted(Bind::None, None, false), 2), none);
        assert_eq!(placed(2, &wanted(Bind::Auto, None, false), 1), [[0]]);
        assert!(placed(2, &wanted(Bind::Auto, None, false), 3).concat().is_empty());
        assert_eq!(placed(2, &wanted(Bind::Core, None, false), 3), [[0], [1], [0]]);
    }

    #[test]
    fn with_progress_threads_each_rank_gets_two_cores_where_there_are_enough() {
        assert_eq!(placed(4, &wanted(Bind::Auto, None, true), 2), [[0, 1], [2, 3]]);
        assert_eq!(placed(3, &wanted(Bind::Auto, None, true), 2), [[0], [1]]);
        assert_eq!(placed(4, &wanted(Bind::Core, None, true), 2), [[0], [1]]);
    }

    #[test]
    fn a_control_plane_that_spins_takes_one_more_unless_its_core_is_named() {
        let with = |dedicated, settings: &[(&str, &str)]| Wanted {
            control_core: ControlCore::of(&spinning(settings)),
            ..wanted(Bind::Auto, None, dedicated)
        };
        assert_eq!(placed(4, &with(false, &[]), 2), [[0, 1], [2, 3]]);
        assert_eq!(placed(6, &with(true, &[]), 2), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(placed(4, &with(true, &[]), 2), [[0, 1], [2, 3]]);
        assert_eq!(placed(4, &with(false, &[("control.core", "3")]), 2), [[0], [1]]);
    }

    #[test]
    fn a_daemon_s_core_is_no_rank_s() {
        let all = Topology::read().usable();
        let first = all.iter().next().unwrap();
        let wanted = Wanted {
            kept: Some(first as u32),
            ..wanted(Bind::Auto, None, false)
        };
        let left = wanted.topology().usable();
        assert!(all.len() == 1 || !left.contains(first), "{left}");
    }

    #[test]
    fn what_was_asked_for_is_given_or_refused() {
        assert_eq!(
            placed(6, &wanted(Bind::Auto, Some(3), false), 2),
            [[0, 1, 2], [3, 4, 5]]
        );
        let refused = |wanted: &Wanted, ranks| {
            let error = cores(&machine(2), wanted, ranks, None).unwrap_err();
            assert_eq!(error.exit().number(), 2);
            error.to_string()
        };
        let text = refused(&wanted(Bind::Auto, Some(2), false), 2);
        assert!(
            text.contains("2 ranks with 2 cores each need 4, and 2 are here (cores 0-1)")
                && text.contains("start fewer ranks"),
            "{text}"
        );
        assert!(refused(&wanted(Bind::None, Some(2), false), 1).contains("`--bind none`"));
        assert!(refused(&wanted(Bind::Auto, Some(1), true), 1).contains("--cores-per-rank 2"));
    }

    #[test]
    fn the_table_is_this_one() {
        let placement = Placement {
            topology: machine(4),
            near: Some(("udp:eth0".parse().unwrap(), 0)),
            dedicated: true,
            control: None,
            control_core: None,
            ranks: vec![vec![0, 1], vec![2, 3], vec![]],
            rails: None,
        };
        assert_eq!(
            placement.show(false).unwrap(),
            "4 whole cores, 0-3 usable of 0-3\n\
             node 0 first: udp:eth0 is there\n \
             rank   own  progress  package   node  cores\n    \
                0     0         1        0      0  0,1\n    \
                1     2         3        0      0  2,3\n    \
                2     -         -        -         any: it is not bound\n"
        );
    }

    #[test]
    fn the_table_has_a_control_plane_and_the_cores_that_it_spins_on() {
        let config = spinning(&[("control.transports", "tcp,rail"), ("control.core", "next")]);
        let placement = Placement {
            topology: machine(4),
            near: None,
            dedicated: false,
            control: ControlPlane::of(&config),
            control_core: ControlCore::of(&config),
            ranks: vec![vec![0, 1], vec![2, 3]],
            rails: None,
        };
        assert_eq!(
            placement.show(false).unwrap(),
            "4 whole cores, 0-3 usable of 0-3\n\
             control plane: tcp, rail (shm); along the tree; one thread, which spins\n \
             rank   own  progress  control  package   node  cores\n    \
                0     0         -        1        0      0  0,1\n    \
                1     2         -        3        0      0  2,3\n"
        );
    }

    #[test]
    fn the_json_is_as_its_schema_has_it() {
        let config = spinning(&[("control.core", "1")]);
        let placement = Placement {
            topology: machine(2),
            near: None,
            dedicated: false,
            control: ControlPlane::of(&config),
            control_core: ControlCore::of(&config),
            ranks: vec![vec![0, 1], vec![]],
            rails: None,
        };
        let text = include_str!("../../../bench/schema/binding-1.schema.json");
        let rules = jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&placement.show(true).unwrap()).unwrap();
        let faults: Vec<String> = rules.iter_errors(&json).map(|fault| fault.to_string()).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        assert_eq!(
            (&json["ranks"][0]["own"], &json["ranks"][0]["control"]),
            (&0.into(), &1.into())
        );
        assert!(json["ranks"][1]["own"].is_null());
    }
}
