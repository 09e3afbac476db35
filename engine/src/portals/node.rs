//! The node of this rank, and the map between ranks and processes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use doorbell_am_portals as ni;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::Message as _;
use doorbell_fabric::ni::{Kind, Ni, NiError, NiLimits, Process};
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;
use doorbell_job::binding::Binding;
use doorbell_job::connect::{self, PeerPath, RailOwner};
use doorbell_job::counter_file::CounterPublisher;
use doorbell_job::error::Error;
use doorbell_job::handle::Job;
use doorbell_job::meet::{RailEntry, RankInfo};
use doorbell_job::path_report;
use doorbell_job::rails::{AnyRail, Manage as _};
use doorbell_job::ranks::Directory;
use doorbell_job::wait::PollableNode;
use doorbell_pml::RailId;
use rustix::fd::BorrowedFd;

use super::collect::{AboveNode, INTERNAL, refused};
use crate::shared_node::{Beside, Hold, Turns};

/// Arrivals handled in one pass, at most.
const BUDGET: usize = 64;
/// Recorded events shown of one rank, at most.
const RECORDED: usize = 32;
/// Peers named in one explanation, at most.
const EXPLAINED: usize = 8;

/// A node, its ranks, and the paths to them.
pub(crate) struct PortalsNode {
    pub(crate) node: ni::Node<AnyRail>,
    pub(crate) ranks: Arc<Ranks>,
    /// The paths to each rank, in order of preference.
    pub(crate) paths: Vec<Vec<PeerPath>>,
    /// The counter file, for other programs.
    pub(crate) seen: Option<CounterPublisher>,
}

/// The process of each rank: its node is the number of its host, in the order in which the ranks first name
/// the hosts, and its process id its index among the ranks of that host.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    pub(crate) table: Vec<Process>,
    numbers: HashMap<Process, u32>,
    /// What the ranks have published, and which of them this one is.
    published: Option<(Directory, u32)>,
}

impl Ranks {
    pub(crate) fn of<'a>(infos: impl Iterator<Item = &'a RankInfo>) -> Self {
        let mut hosts: HashMap<&str, (u32, u32)> = HashMap::new();
        let table = infos.map(|info| {
            let next = hosts.len() as u32;
            let (node, there) = hosts.entry(info.host.as_str()).or_insert((next, 0));
            let process = Process::physical(*node, *there);
            *there += 1;
            process
        });
        let table: Vec<Process> = table.collect();
        let numbers = table.iter().copied().zip(0..).collect();
        Self {
            table,
            numbers,
            published: None,
        }
    }

    /// The ranks of a job, of which this process is rank `own`.
    pub(crate) fn of_job(directory: &Directory, own: u32) -> Self {
        Self {
            published: Some((directory.clone(), own)),
            ..Self::of(directory.rank_infos())
        }
    }

    /// Both tables of GIDs, where a rail refuses a rank because both ends choose different pairs.
    fn gid_tables(&self, rank: u32, path: &PeerPath, rail: &AnyRail) -> Option<String> {
        let (directory, own) = self.published.as_ref().filter(|_| rail.refuses_gids(path.peer))?;
        connect::gid_tables(directory, *own, (rank, path.other), rail.name().as_str())
    }

    pub(crate) fn process(&self, rank: u32) -> Option<Process> {
        self.table.get(rank as usize).copied()
    }

    pub(crate) fn rank(&self, process: Process) -> Option<u32> {
        self.numbers.get(&process).copied()
    }
}

/// Converts an error of the node.
pub(crate) fn node_error(error: ni::NodeError) -> Error {
    match error {
        ni::NodeError::Rail(error) => Error::Rail(error),
        error => Error::Interface {
            what: "the node of this process",
            reason: error.to_string(),
        },
    }
}

impl RailOwner for PortalsNode {
    fn each_rail(&self) -> impl Iterator<Item = (RailId, &AnyRail)> {
        self.node.rails().map(|(id, rail)| (RailId(id.0), rail))
    }

    fn add_rail(&mut self, rail: AnyRail) -> Result<(), Error> {
        self.node.add_rail(rail).map(drop).map_err(node_error)
    }

    fn rail_mut(&mut self, rail: RailId) -> Option<&mut AnyRail> {
        self.node.rail_mut(ni::RailId(rail.0))
    }

    fn open(&mut self, rank: u32, rail: RailId, to: &RailEntry) -> Result<(), Error> {
        let size = self.ranks.table.len() as u32;
        let process = self.ranks.process(rank).ok_or(Error::NoSuchRank { rank, size })?;
        let rail = ni::RailId(rail.0);
        self.node
            .connect(process, rail, &to.address, to.life())
            .map_err(node_error)
    }
}

impl AboveNode for PortalsNode {
    fn node(&mut self) -> impl DerefMut<Target = ni::Node<AnyRail>> + '_ {
        &mut self.node
    }

    fn process(&self, rank: u32) -> Option<Process> {
        self.ranks.process(rank)
    }
}

impl Beside for PortalsNode {}

/// During a wait of the owner of a node that has a progress thread.
impl AboveNode for Turns<'_, PortalsNode> {
    fn node(&mut self) -> impl DerefMut<Target = ni::Node<AnyRail>> + '_ {
        NodeHold(self.hold())
    }

    fn process(&self, rank: u32) -> Option<Process> {
        self.hold().ranks.process(rank)
    }
}

/// The node itself, held for one call.
pub(crate) struct NodeHold<'a>(pub(crate) Hold<'a, PortalsNode>);

impl Deref for NodeHold<'_> {
    type Target = ni::Node<AnyRail>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0.node
    }
}

impl DerefMut for NodeHold<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0.node
    }
}

impl PollableNode for PortalsNode {
    #[inline]
    fn poll(&mut self) -> usize {
        self.node.poll(BUDGET)
    }

    #[inline]
    fn linger(&mut self, looks: u32) -> bool {
        self.node.linger(looks)
    }

    fn progress(&mut self, now: Time) -> usize {
        if self.seen.as_mut().is_some_and(|seen| seen.is_due(now)) {
            self.show();
        }
        self.node.progress(now)
    }

    #[inline]
    fn wants_time(&self) -> bool {
        self.node.wants_time()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.node.next_deadline()
    }

    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.show();
        self.node.arm(each)
    }

    fn disarm(&mut self) {
        self.node.disarm();
    }

    fn lost(&mut self) -> Option<(u32, DownReason)> {
        let lost = self.node.ni(INTERNAL).lost()?;
        Some((self.ranks.rank(lost.process)?, lost.reason))
    }

    fn ended(&mut self, rank: u32, reason: DownReason) {
        if let Some(process) = self.ranks.process(rank) {
            self.node.ended(process, reason);
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.node.flush();
    }

    #[inline]
    fn forget_held(&mut self) {
        self.node.forget_held();
    }

    fn give_up_held(&mut self) {
        self.node.give_up_held();
    }

    #[inline]
    fn holds_back(&mut self) -> bool {
        self.node.holds_back()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        let closed = self.node.close(now, by);
        self.show();
        closed
    }

    fn troubles(&self) -> Vec<String> {
        troubles(&self.node, &self.paths, &self.ranks)
    }

    fn is_cut_off(&self) -> bool {
        is_cut_off(&self.node, &self.paths)
    }

    fn recorded(&self, rank: u32) -> Vec<String> {
        recorded(&self.node, &self.paths, rank)
    }
}

impl PortalsNode {
    /// A node without rails and interfaces, for a child of `fork`: every call fails as if none had been
    /// initialised.
    pub(crate) fn orphan() -> Self {
        Self {
            node: ni::Node::new(ni::Config::new(Process::physical(0, 0))),
            ranks: Arc::new(Ranks::of(std::iter::empty())),
            paths: Vec::new(),
            seen: None,
        }
    }

    /// Creates the counter file, unless the settings have none, and returns its place.
    pub(crate) fn publish(&mut self, job: &Job, binding: Option<&Binding>) -> Result<Option<PathBuf>, Error> {
        let place = *job.config().counters.place.get();
        self.seen = CounterPublisher::create(place, job.rank(), self, &self.paths, job.directory())?;
        if let (Some(seen), Some(binding)) = (&self.seen, binding) {
            seen.show_binding(binding)?;
        }
        Ok(self.seen.as_ref().map(|seen| seen.path().to_owned()))
    }

    /// Stores the totals into the counter file.
    fn show(&self) {
        if let Some(seen) = &self.seen {
            seen.store(self);
        }
    }

    /// Initialises an interface; a logically addressed one gets the map of ranks.
    pub(crate) fn init(&mut self, kind: Kind, desired: Option<&NiLimits>) -> Result<NiLimits, Error> {
        let what = "the initialisation of an interface";
        let limits = self.node.ni_init(kind, desired).map_err(refused(what))?;
        if kind.logical {
            match self.node.set_map(kind, &self.ranks.table) {
                // `Ignored`: it was initialised before.
                Ok(()) | Err(NiError::Ignored) => {}
                Err(error) => return Err(refused(what)(error)),
            }
        }
        Ok(limits)
    }

    /// The interface of a kind, for the next call.
    #[inline]
    pub(crate) fn ni(&mut self, kind: Kind) -> impl Ni + '_ {
        self.node.ni(kind)
    }
}

/// Describes the peers whose rails have trouble.
pub(crate) fn troubles(node: &ni::Node<AnyRail>, paths: &[Vec<PeerPath>], ranks: &Ranks) -> Vec<String> {
    let each = (0..).zip(paths);
    each.filter_map(|(rank, paths)| trouble(node, (rank, ranks), paths))
        .take(EXPLAINED)
        .collect()
}

/// Whether the probes of all rails to some rank have found that frames do not pass.
pub(crate) fn is_cut_off(node: &ni::Node<AnyRail>, paths: &[Vec<PeerPath>]) -> bool {
    let is_shut = |path: &PeerPath| {
        let rail = node.rail(ni::RailId(path.rail.0));
        let probed = rail.and_then(|rail| rail.probed(path.peer));
        probed.is_some_and(|(passes, _)| !passes)
    };
    paths
        .iter()
        .any(|paths| !paths.is_empty() && paths.iter().all(is_shut))
}

/// Describes trouble that the rails to a rank report.
fn trouble(node: &ni::Node<AnyRail>, (rank, ranks): (u32, &Ranks), paths: &[PeerPath]) -> Option<String> {
    let lines = paths.iter().filter_map(|path| {
        let rail = node.rail(ni::RailId(path.rail.0))?;
        let report = rail.report(path.peer);
        let trouble = rail.trouble(path.peer).map(Cow::into_owned);
        let down = report.link == Some(false) || rail.is_suspect(path.peer);
        let facts = (down || trouble.is_some())
            .then(|| path_report::facts(&report))
            .flatten();
        let tables = ranks.gid_tables(rank, path, rail);
        let words: Vec<String> = facts.into_iter().chain(trouble).chain(tables).collect();
        (!words.is_empty()).then(|| format!("{}: {}", rail.name(), words.join("; ")))
    });
    let lines: Vec<String> = lines.collect();
    (!lines.is_empty()).then(|| format!("rank {rank} over {}", lines.join("; ")))
}

/// Returns the latest recorded events of the rails to a rank: for each a heading, then one line per event,
/// newest last.
pub(crate) fn recorded(node: &ni::Node<AnyRail>, paths: &[Vec<PeerPath>], rank: u32) -> Vec<String> {
    let paths = paths.get(rank as usize).map_or(&[][..], Vec::as_slice);
    let most = RECORDED / paths.len().max(1);
    connect::recorded(|id| node.rail(ni::RailId(id.0)), paths, rank, most)
}

/// Returns the counters of a node's rails, by name.
pub(crate) fn rail_counts(node: &ni::Node<AnyRail>) -> Vec<(String, u64)> {
    let mut counts = Vec::new();
    for (_, rail) in node.rails() {
        let name = rail.name();
        rail.counts(&mut |what, _, count| counts.push((format!("{name}.{what}"), count)));
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn processes_are_numbered_by_host_and_index() {
        let info = |(rank, host): (u32, &&str)| RankInfo {
            host: (*host).to_owned(),
            ..RankInfo::of_this_process(rank, 5, BTreeMap::new(), Vec::new()).unwrap()
        };
        let infos: Vec<RankInfo> = (0..).zip(&["a", "b", "a", "c", "b"]).map(info).collect();
        let ranks = Ranks::of(infos.iter());
        let plain: Vec<(u32, u32)> = ranks.table.iter().map(|of| (of.nid, of.pid)).collect();
        assert_eq!(plain, [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1)]);
        for (rank, process) in (0..).zip(&ranks.table) {
            assert_eq!(ranks.rank(*process), Some(rank));
        }
        assert_eq!(ranks.rank(Process::physical(0, 2)), None);
    }
}
