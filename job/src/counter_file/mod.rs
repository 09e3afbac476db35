//! Publishes the counters of a rank, or of a member, to other processes while it runs: its counter file.
//!
//! A layer ([`Counted`]) and its rails count in their own memory. Housekeeping, which has read the clock
//! anyway, stores the totals into the words of the file from time to time: relaxed stores by the one thread
//! that counts. So a file is at most a millisecond and some calls (64 of tagged messages, 128 waits of other
//! layers) behind a rank that makes calls, exact while a rank sleeps and after its end, and a message costs
//! nothing for being counted.

mod pml;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use doorbell_fabric::cores::{self, CoreSet};
use doorbell_fabric::counters::{Counter, CounterFile, Gauge, NAME_MAX, Place, Plan};
use doorbell_fabric::message::Message as _;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::select::Choice;
use doorbell_fabric::time::Time;
use doorbell_pml::{PathState, RailId, Rank};

use crate::binding::Binding;
use crate::config::CounterPlace;
use crate::connect::{PeerPath, gids};
use crate::error::Error;
use crate::path_report;
use crate::rails::{AnyRail, Manage as _};
use crate::ranks::Directory;

/// Interval between two updates.
const EVERY: Duration = Duration::from_millis(1);

/// A layer above rails whose counters are published: tagged messages, Portals, active messages.
pub trait Counted {
    /// Passes each total that the layer counts itself: its name, its unit, and the total. The names are the
    /// same ones in the same order each time.
    fn totals(&self, each: &mut dyn FnMut(&'static str, &'static str, u64));

    /// Passes each value that goes up and down, likewise.
    fn levels(&self, each: &mut dyn FnMut(&'static str, &'static str, u64));

    /// Returns its rails, in the order of their numbers.
    fn rails(&self) -> impl Iterator<Item = &AnyRail>;

    /// Returns a rail by its number.
    fn rail(&self, rail: RailId) -> Option<&AnyRail>;

    /// Returns how a rail to a rank is, and half of the round trip of its probes in nanoseconds, once it was
    /// measured. `None` for a rail that does not lead there.
    fn path(&self, rank: Rank, rail: RailId) -> Option<(PathState, Option<u64>)>;
}

/// The rows about cores: those that the thread which built the rank may use, that of the progress thread, and
/// why that one shares its core, if it does.
pub const CORE_ROWS: [&str; 3] = ["cores.own", "cores.progress", "cores.shared"];

/// Most paths (a rail to a peer) with rows of their own; further ones have none.
const WAYS: usize = 256;

/// Most rows of one path about GIDs: the pair that is used, and why others are not.
pub const GID_ROWS: usize = 7;

/// A path with the beginning of the names of its rows: `way.PEER.OUR_RAIL`.
pub(crate) type NamedPath = (Rank, PeerPath, String);

/// The rows of a path: `way.RANK.OUR_RAIL/THEIR_RAIL.state` ([`PathState::number`]), `.latency` (half of the
/// round trip of its probes), `.round_trip` (of acknowledgements, with their delay), `.unacknowledged`,
/// `.failures`. Storing them costs one branch for a rail that keeps no report.
///
/// A path over RDMA ports has rows `.gids.0`, `.gids.1` … with texts about its pair of GIDs.
///
/// A candidate that is not chosen has one row, such as `way.RANK.OUR_RAIL.not_named`: the ending names the
/// case ([`Unchosen::name`]), and the value is the reason as a text.
struct Row {
    rank: Rank,
    way: PeerPath,
    state: Gauge,
    latency: Gauge,
    round_trip: Gauge,
    unacknowledged: Gauge,
    failures: Counter,
}

/// The file, and its words in the order of the plan.
pub struct CounterPublisher {
    file: CounterFile,
    /// The layer's totals, and its values that go up and down.
    totals: Vec<Counter>,
    levels: Vec<Gauge>,
    /// Counters of all rails, one after the other.
    rails: Vec<Counter>,
    ways: Vec<Row>,
    next: Time,
}

/// Replaces the characters of a rail's name that a counter's name may not have: scoped addresses contain `%`,
/// and names of interfaces other marks.
fn counted_as(rail: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:/".contains(c);
    rail.chars().map(|c| if plain(c) { c } else { '_' }).collect()
}

impl CounterPublisher {
    /// Creates the file of `rank`, unless the setting is off. `paths` are those to each rank.
    ///
    /// # Errors
    /// When the system is out of memory or descriptors.
    pub fn create(
        place: CounterPlace,
        rank: u32,
        layer: &impl Counted,
        paths: &[Vec<PeerPath>],
        directory: &Directory,
    ) -> Result<Option<Self>, Error> {
        if place == CounterPlace::Off {
            return Ok(None);
        }
        let ways = &named_paths(layer, paths, directory);
        let cores = [cores::allowed().to_string(), String::new(), String::new()];
        let mut texts: Vec<_> = CORE_ROWS.map(str::to_owned).into_iter().zip(cores).collect();
        texts.extend(unchosen(directory).take(WAYS));
        texts.extend(gid_rows(rank, layer, ways, directory));
        let ways = ways
            .iter()
            .map(|(peer, way, rails)| (Rank(*peer), *way, way_row(peer, rails)));
        Self::publish(place, rank, layer, ways, &texts)
    }

    /// Creates the file of a process with these paths, and with texts, each with its name.
    ///
    /// # Errors
    /// Those of [`CounterPublisher::create`].
    pub(crate) fn publish(
        place: CounterPlace,
        rank: u32,
        layer: &impl Counted,
        ways: impl Iterator<Item = NamedPath>,
        texts: &[(String, String)],
    ) -> Result<Option<Self>, Error> {
        if place == CounterPlace::Off {
            return Ok(None);
        }
        let (mut totals, mut levels) = (Vec::new(), Vec::new());
        layer.totals(&mut |name, unit, _| totals.push((name, unit)));
        layer.levels(&mut |name, unit, _| levels.push((name, unit)));
        let mut plan = Plan::new();
        for (name, unit) in &totals {
            plan = plan.counter(name, unit);
        }
        for (name, unit) in &levels {
            plan = plan.gauge(name, unit);
        }
        let mut counted = Vec::new();
        for rail in layer.rails() {
            let of = counted_as(Rail::name(rail).as_str());
            rail.counts(&mut |name, unit, _| counted.push((format!("{of}.{name}"), unit)));
        }
        for (name, unit) in &counted {
            plan = plan.counter(name, unit);
        }
        let mut named_ways: Vec<_> = ways.take(WAYS).collect();
        // Names that were cut to the longest length may have become equal.
        let mut seen = std::collections::HashSet::new();
        named_ways.retain(|(_, _, name)| seen.insert(name.clone()));
        for (_, _, of) in &named_ways {
            plan = plan
                .gauge(&format!("{of}.state"), "")
                .gauge(&format!("{of}.latency"), "ns")
                .gauge(&format!("{of}.round_trip"), "ns")
                .gauge(&format!("{of}.unacknowledged"), "frames")
                .counter(&format!("{of}.failures"), "times");
        }
        let others = texts.iter().filter(|(name, _)| seen.insert(name.clone()));
        let others: Vec<_> = others.collect();
        for (name, _) in &others {
            plan = plan.text(name);
        }
        let file = CounterFile::create(&Place::Memory, rank, &plan)?;
        for (name, text) in others {
            file.text(name)?.set(text);
        }
        let row = |(rank, way, of): &NamedPath| {
            Ok::<_, Error>(Row {
                rank: *rank,
                way: *way,
                state: file.gauge(&format!("{of}.state"))?,
                latency: file.gauge(&format!("{of}.latency"))?,
                round_trip: file.gauge(&format!("{of}.round_trip"))?,
                unacknowledged: file.gauge(&format!("{of}.unacknowledged"))?,
                failures: file.counter(&format!("{of}.failures"))?,
            })
        };
        Ok(Some(Self {
            totals: totals
                .iter()
                .map(|(name, _)| file.counter(name))
                .collect::<Result<_, _>>()?,
            levels: levels
                .iter()
                .map(|(name, _)| file.gauge(name))
                .collect::<Result<_, _>>()?,
            rails: counted
                .iter()
                .map(|(name, _)| file.counter(name))
                .collect::<Result<_, _>>()?,
            ways: named_ways.iter().map(row).collect::<Result<_, _>>()?,
            file,
            next: Time::ZERO,
        }))
    }

    /// Shows where the two threads of a rank run, in dedicated mode.
    ///
    /// # Errors
    /// None: the file has these rows.
    pub fn show_binding(&self, binding: &Binding) -> Result<(), Error> {
        let one = |core: usize| core.to_string();
        let own = binding.own_cores.as_ref().map(CoreSet::to_string);
        let texts = [
            own.or(binding.own.map(one)),
            binding.progress.map(one),
            binding.shares.clone(),
        ];
        for (name, text) in CORE_ROWS.into_iter().zip(texts) {
            // Where a thread keeps the cores that it has, they are shown already.
            if let Some(text) = text {
                self.file.text(name)?.set(&text);
            }
        }
        Ok(())
    }

    /// Returns the file's path, by which other processes open it.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Stores the totals, once per interval.
    #[inline]
    pub fn update(&mut self, now: Time, layer: &impl Counted) {
        if self.is_due(now) {
            self.store(layer);
        }
    }

    /// Whether the totals are to be stored now; counts as done. For an owner that is the layer itself.
    #[inline]
    pub fn is_due(&mut self, now: Time) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + EVERY;
        }
        is_due
    }

    /// Stores the totals into the file.
    #[cold]
    pub fn store(&self, layer: &impl Counted) {
        let mut words = self.totals.iter();
        layer.totals(&mut |_, _, total| {
            if let Some(word) = words.next() {
                word.set(total);
            }
        });
        let mut words = self.levels.iter();
        layer.levels(&mut |_, _, value| {
            if let Some(word) = words.next() {
                word.set(value);
            }
        });
        let mut words = self.rails.iter();
        for rail in layer.rails() {
            rail.counts(&mut |_, _, total| {
                if let Some(word) = words.next() {
                    word.set(total);
                }
            });
        }
        self.ways.iter().for_each(|row| row.store(layer));
    }
}

impl Row {
    fn store(&self, layer: &impl Counted) {
        let Some(rail) = layer.rail(self.way.rail) else {
            return;
        };
        let report = rail.report(self.way.peer);
        self.round_trip.set(path_report::round_trip(&report).unwrap_or(0));
        self.unacknowledged.set(report.unacknowledged);
        let (mut state, latency) = layer
            .path(self.rank, self.way.rail)
            .unwrap_or((PathState::Down, None));
        if state == PathState::Up && rail.is_suspect(self.way.peer) {
            state = PathState::Suspect;
        }
        let before = PathState::from_number(self.state.get()).unwrap_or_default();
        if before.has_failed(state) {
            self.failures.add(1);
        }
        self.latency.set(latency.unwrap_or(0));
        self.state.set(state.number());
    }
}

/// Returns each path with the rank that it leads to and the names of the rails at both ends.
fn named_paths(
    layer: &impl Counted,
    paths: &[Vec<PeerPath>],
    directory: &Directory,
) -> Vec<(u32, PeerPath, String)> {
    let named = |(rank, paths): (u32, &Vec<PeerPath>)| {
        let name = |path: &PeerPath| {
            let ours = layer.rail(path.rail)?.name();
            let theirs = &directory
                .rank_info(rank)?
                .rails
                .get(usize::from(path.other))?
                .name;
            Some((rank, *path, format!("{ours}/{theirs}")))
        };
        paths.iter().filter_map(name).collect::<Vec<_>>()
    };
    (0..).zip(paths).flat_map(named).collect()
}

/// Returns a row for each candidate that is not chosen: its name and the reason.
fn unchosen(directory: &Directory) -> impl Iterator<Item = (String, String)> {
    let selection = |rank| Some((rank, directory.selection(rank)?));
    let ranked = (0..directory.size()).filter_map(selection);
    ranked.flat_map(|(rank, selection)| {
        selection
            .rails
            .iter()
            .filter_map(move |judged| match &judged.choice {
                Choice::Lost { reason } => {
                    let ending = reason.unchosen().name();
                    let mut name = format!("way.{rank}.{}", counted_as(judged.rail.as_str()));
                    name.truncate(NAME_MAX - 1 - ending.len());
                    Some((format!("{name}.{ending}"), reason.to_string()))
                }
                Choice::Chosen { .. } => None,
            })
    })
}

/// Returns the rows of paths over RDMA ports: `way.RANK.OURS/THEIRS.gids.0` is the pair of GIDs that is used,
/// those behind it state why pairs that come before it are not. The pairs of all paths come first.
fn gid_rows(
    own: u32,
    layer: &impl Counted,
    ways: &[(u32, PeerPath, String)],
    directory: &Directory,
) -> Vec<(String, String)> {
    let of_path = |(peer, way, rails): &(u32, PeerPath, String)| {
        let rail = layer.rail(way.rail)?;
        let lines = gids(directory, own, (*peer, way.other), Rail::name(rail).as_str());
        Some((way_row(peer, rails), lines))
    };
    let all: Vec<(String, Vec<String>)> = ways.iter().take(WAYS).filter_map(of_path).collect();
    let row = |at: usize| {
        let of_one = move |(name, lines): &(String, Vec<String>)| {
            Some((format!("{name}.gids.{at}"), lines.get(at)?.clone()))
        };
        all.iter().filter_map(of_one)
    };
    (0..GID_ROWS).flat_map(row).take(WAYS).collect()
}

/// Returns the beginning of the row names of a path to a peer, a rank or the name of a member's address, cut
/// so that the longest ending fits.
pub(crate) fn way_row(peer: impl fmt::Display, rails: &str) -> String {
    const LONGEST_ENDING: usize = ".unacknowledged".len();
    let mut name = format!("way.{peer}.{}", counted_as(rails));
    name.truncate(NAME_MAX - LONGEST_ENDING);
    name
}
