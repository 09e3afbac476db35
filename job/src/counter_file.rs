//! Publishes the counters of a rank, or of a member, to other processes while it runs: its counter file.
//!
//! The PML and the rails count in their own memory. Housekeeping, which has read the clock anyway, stores the
//! totals into the words of the file from time to time: relaxed stores by the one thread that counts. So a
//! file is at most a millisecond and sixty-four calls behind a rank that makes calls, exact while a rank
//! sleeps and after its end, and a message costs nothing for being counted.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use doorbell_fabric::counters::{Counter, CounterFile, Gauge, NAME_MAX, Place, Plan};
use doorbell_fabric::message::Message as _;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::select::Choice;
use doorbell_fabric::time::Time;
use doorbell_pml::{Counters, Drops, PathState, Pml, Rank};

use crate::config::CounterPlace;
use crate::connect::{PeerPath, gids};
use crate::error::Error;
use crate::path_report;
use crate::rails::{AnyRail, Manage as _};
use crate::ranks::Directory;

/// Interval between two updates.
const EVERY: Duration = Duration::from_millis(1);

/// A value of the PML: its name, its unit, its value.
type Named = (&'static str, &'static str, u64);

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
    pml: Vec<Counter>,
    live: Gauge,
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
    /// Creates the file of `rank`, unless the setting is off.
    ///
    /// # Errors
    /// When the system is out of memory or descriptors.
    pub fn create(
        place: CounterPlace,
        rank: u32,
        pml: &Pml<AnyRail>,
        ways: &[(u32, PeerPath, String)],
        directory: &Directory,
    ) -> Result<Option<Self>, Error> {
        let mut texts: Vec<_> = unchosen(directory).take(WAYS).collect();
        texts.extend(gid_rows(rank, pml, ways, directory));
        let ways = ways
            .iter()
            .map(|(peer, way, rails)| (Rank(*peer), *way, way_row(peer, rails)));
        Self::publish(place, rank, pml, ways, &texts)
    }

    /// Creates the file of a process with these paths, and with texts, each with its name.
    ///
    /// # Errors
    /// Those of [`CounterPublisher::create`].
    pub(crate) fn publish(
        place: CounterPlace,
        rank: u32,
        pml: &Pml<AnyRail>,
        ways: impl Iterator<Item = NamedPath>,
        texts: &[(String, String)],
    ) -> Result<Option<Self>, Error> {
        if place == CounterPlace::Off {
            return Ok(None);
        }
        let named = named(&Counters::default());
        let mut plan = named
            .iter()
            .fold(Plan::new(), |plan, (name, unit, _)| plan.counter(name, unit));
        plan = plan.gauge("pml.live_requests", "requests");
        let mut counted = Vec::new();
        for (_, rail) in pml.rails() {
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
            pml: named
                .iter()
                .map(|(name, ..)| file.counter(name))
                .collect::<Result<_, _>>()?,
            live: file.gauge("pml.live_requests")?,
            rails: counted
                .iter()
                .map(|(name, _)| file.counter(name))
                .collect::<Result<_, _>>()?,
            ways: named_ways.iter().map(row).collect::<Result<_, _>>()?,
            file,
            next: Time::ZERO,
        }))
    }

    /// Returns the file's path, by which other processes open it.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Stores the totals, once per interval.
    #[inline]
    pub fn update(&mut self, now: Time, pml: &Pml<AnyRail>) {
        if now >= self.next {
            self.next = now + EVERY;
            self.store(pml);
        }
    }

    /// Stores the totals into the file.
    #[cold]
    pub fn store(&self, pml: &Pml<AnyRail>) {
        for (word, (.., total)) in self.pml.iter().zip(named(pml.counters())) {
            word.set(total);
        }
        self.live.set(pml.live_requests() as u64);
        let mut words = self.rails.iter();
        for (_, rail) in pml.rails() {
            rail.counts(&mut |_, _, total| {
                if let Some(word) = words.next() {
                    word.set(total);
                }
            });
        }
        self.ways.iter().for_each(|row| row.store(pml));
    }
}

impl Row {
    fn store(&self, pml: &Pml<AnyRail>) {
        let Some(rail) = pml.rail(self.way.rail) else {
            return;
        };
        let report = rail.report(self.way.peer);
        self.round_trip.set(path_report::round_trip(&report).unwrap_or(0));
        self.unacknowledged.set(report.unacknowledged);
        let (mut state, latency) = pml
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
    pml: &Pml<AnyRail>,
    ways: &[(u32, PeerPath, String)],
    directory: &Directory,
) -> Vec<(String, String)> {
    let of_path = |(peer, way, rails): &(u32, PeerPath, String)| {
        let rail = pml.rail(way.rail)?;
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

/// Returns every value of the PML with its name. A new counter of the PML does not compile before it is
/// listed here.
fn named(counters: &Counters) -> [Named; 45] {
    let Counters {
        sent_eager,
        sent_rndv,
        sent_rget,
        taken_in_place,
        sent_self,
        sent_operations,
        operations_refused,
        sends_queued,
        arrived,
        matched,
        unexpected,
        held,
        frags_sent,
        frags_received,
        gets,
        puts,
        fallbacks,
        window_full,
        credits_sent,
        credits_received,
        packed_bytes,
        resent,
        restarts,
        resumed_bytes,
        checked,
        corrupt,
        paths_down,
        paths_returned,
        calls,
        probes,
        peers_lost,
        drops,
    } = *counters;
    let Drops {
        runt,
        unknown_kind,
        unknown_peer,
        duplicate,
        too_far_ahead,
        stale_request,
        wrong_peer,
        wrong_state,
        wrong_identity,
        bad_range,
        repeated_bytes,
        late_word,
        lost_peer,
        unknown_operation,
    } = drops;
    [
        ("pml.sent_eager", "messages", sent_eager),
        ("pml.sent_rndv", "messages", sent_rndv),
        ("pml.sent_rget", "messages", sent_rget),
        ("pml.taken_in_place", "messages", taken_in_place),
        ("pml.sent_self", "messages", sent_self),
        ("pml.sent_operations", "operations", sent_operations),
        ("pml.operations_refused", "operations", operations_refused),
        ("pml.sends_queued", "messages", sends_queued),
        ("pml.arrived", "messages", arrived),
        ("pml.matched", "messages", matched),
        ("pml.unexpected", "messages", unexpected),
        ("pml.held", "messages", held),
        ("pml.frags_sent", "fragments", frags_sent),
        ("pml.frags_received", "fragments", frags_received),
        ("pml.gets", "operations", gets),
        ("pml.puts", "operations", puts),
        ("pml.fallbacks", "transfers", fallbacks),
        ("pml.window_full", "messages", window_full),
        ("pml.credits_sent", "reports", credits_sent),
        ("pml.credits_received", "reports", credits_received),
        ("pml.packed_bytes", "bytes", packed_bytes),
        ("pml.resent", "messages", resent),
        ("pml.restarts", "messages", restarts),
        ("pml.resumed_bytes", "bytes", resumed_bytes),
        ("pml.checked", "messages", checked),
        ("pml.corrupt", "messages", corrupt),
        ("pml.paths_down", "paths", paths_down),
        ("pml.paths_returned", "paths", paths_returned),
        ("pml.calls", "calls", calls),
        ("pml.probes", "probes", probes),
        ("pml.peers_lost", "peers", peers_lost),
        ("pml.drop.runt", "arrivals", runt),
        ("pml.drop.unknown_kind", "arrivals", unknown_kind),
        ("pml.drop.unknown_peer", "arrivals", unknown_peer),
        ("pml.drop.duplicate", "arrivals", duplicate),
        ("pml.drop.too_far_ahead", "arrivals", too_far_ahead),
        ("pml.drop.stale_request", "arrivals", stale_request),
        ("pml.drop.wrong_peer", "arrivals", wrong_peer),
        ("pml.drop.wrong_state", "arrivals", wrong_state),
        ("pml.drop.wrong_identity", "arrivals", wrong_identity),
        ("pml.drop.bad_range", "arrivals", bad_range),
        ("pml.drop.repeated_bytes", "bytes", repeated_bytes),
        ("pml.drop.late_word", "arrivals", late_word),
        ("pml.drop.lost_peer", "arrivals", lost_peer),
        ("pml.drop.unknown_operation", "arrivals", unknown_operation),
    ]
}
