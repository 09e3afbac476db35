//! Links: peers over all the rails that lead to them. Messages arrive in order and exactly once, whichever
//! rail fails.
//!
//! ```text
//!   send ─► number ─► the path of now ─► rail  ···  rail ─► expected number? ─► Upper::message
//!             │   └ long ones: several paths            │ ahead: held        └ then what was held
//!             └ no room: refused, or (urgent) waits    └ behind: here already, dropped
//!   a path breaks: what its rail gives back goes over the others, in order; the peer is notified
//! ```
//!
//! | file | job |
//! |---|---|
//! | `send`, `choose` | numbers, how much may be under way; the path that a message takes |
//! | `waiting`, `loopback` | what waits for room; messages to this process itself |
//! | `arrive` | order: what is expected, held, or here already |
//! | `in_flight` | which numbers are under way over which path, and how many may be |
//! | `layer` | what [`doorbell_paths`] needs of the link when a path breaks, returns, or is probed |
//! | `onesided` | memory for a peer's gets and places, and gets and places of ours |
//! | `types`, `peer`, `path`, `buffers`, `stats` | the nouns |
//!
//! The paths of a peer are numbered in the order of `connect`, which is to be the same at both ends: so each
//! can notify the other which one is broken.

mod arrive;
mod buffers;
mod choose;
mod held;
mod in_flight;
mod layer;
mod loopback;
mod onesided;
mod path;
mod peer;
mod send;
mod stats;
#[cfg(test)]
mod tests;
mod types;
mod waiting;

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::memory::Room;
use doorbell_fabric::message::{Between, Incarnation, Look, Message, PeerIndex, Watch};
use doorbell_fabric::pace::Paces;
use doorbell_fabric::rail::{Armed, PollCost};
use doorbell_fabric::time::Time;
use doorbell_paths::{PATHS_MAX, PathState, Policy, Timers, act_on_words, extend_waits, tick};

use buffers::{Buffers, Kept};
use held::HeldBack;
use path::Path;
use peer::{Hot, NO_RUN, Peer};
pub use stats::LinkStats;
pub use types::RailId;
use types::kind;
pub(crate) use types::{FIRST_LEN, First, HEAD_MOST, LinkConfig, PeerId, Sizes, Upper};

/// The name of a rail's peer that is none of ours.
const NO_PEER: u32 = u32::MAX;
/// A path that has been suspect for this time, while the peer answered over another one, is given up: not
/// every rail does that.
const SILENCE: Duration = Duration::from_secs(1);
/// Longer than that without a look, and every rail is polled again.
const PAUSE: Duration = Duration::from_micros(100);

/// A rail, and what is kept with it.
#[derive(Debug)]
struct Slot<M> {
    rail: M,
    can: Capabilities,
    /// Which peer each of its peers is.
    names: Vec<u32>,
}

/// Everything but the rails.
#[derive(Debug)]
struct Core {
    config: LinkConfig,
    now: Time,
    /// There may be something to do after a poll: a doorbell, a message to this process itself, a peer on a
    /// list.
    busy: bool,
    hot: Vec<Hot>,
    peers: Vec<Peer>,
    buffers: Buffers,
    /// Messages to this process itself, and their bytes.
    own: VecDeque<Kept>,
    own_bytes: usize,
    /// Peers with something that waits.
    waiting: Vec<u32>,
    /// When which peer's paths are looked at.
    timers: Timers,
    gone: VecDeque<(PeerId, DownReason)>,
    stats: LinkStats,
}

/// The rails of a node, and its peers.
#[derive(Debug)]
pub(crate) struct Link<M> {
    rails: Vec<Slot<M>>,
    paces: Paces,
    core: Core,
    /// A doorbell waits for the next flush or poll.
    gathers: bool,
    /// Paths on which messages of the current call are held back.
    held: HeldBack,
    /// Whether there is one rail, and a poll of it costs no system call.
    plain: bool,
    /// Rails that are closed, as a set.
    closed: u64,
}

impl<M: Message> Link<M> {
    /// A link without rails, and with this process itself as its only peer.
    pub(crate) fn new(config: LinkConfig) -> Self {
        let mut link = Self {
            rails: Vec::new(),
            paces: Paces::default(),
            core: Core {
                config,
                now: Time::ZERO,
                busy: false,
                hot: Vec::new(),
                peers: Vec::new(),
                buffers: Buffers::default(),
                own: VecDeque::new(),
                own_bytes: 0,
                waiting: Vec::new(),
                timers: Timers::new(Policy {
                    patience: config.patience,
                    silence: Some(SILENCE),
                    waits_for_only_path: true,
                }),
                gone: VecDeque::new(),
                stats: LinkStats::default(),
            },
            gathers: false,
            held: HeldBack::default(),
            plain: false,
            closed: 0,
        };
        link.add_peer();
        link
    }

    /// Adds a rail; `None` when there are as many as a link can have (64).
    pub(crate) fn add_rail(&mut self, rail: M) -> Option<RailId> {
        if !self.paces.add(rail.poll_cost()) {
            return None;
        }
        self.plain = self.rails.is_empty() && rail.poll_cost() == PollCost::Memory;
        self.rails.push(Slot {
            can: *rail.capabilities(),
            rail,
            names: Vec::new(),
        });
        Some(RailId((self.rails.len() - 1) as u16))
    }

    /// Returns the rail with this number.
    pub(crate) fn rail(&self, rail: RailId) -> Option<&M> {
        self.rails.get(rail.index()).map(|slot| &slot.rail)
    }

    /// Returns how the path of a peer over a rail is, and half of the round trip of its probes, once it was
    /// measured (ns).
    pub(crate) fn path(&self, peer: PeerId, rail: RailId) -> Option<(PathState, Option<u64>)> {
        let peer = self.core.peers.get(peer.index())?;
        let over = |path: &Path| usize::from(path.rail) == rail.index();
        let at = peer.paths.iter().position(over)?;
        Some((peer.states.state(at), peer.states.latency(at)))
    }

    /// Returns the rail with this number, to be changed.
    pub(crate) fn rail_mut(&mut self, rail: RailId) -> Option<&mut M> {
        self.rails.get_mut(rail.index()).map(|slot| &mut slot.rail)
    }

    /// All of them.
    pub(crate) fn rails(&self) -> impl Iterator<Item = (RailId, &M)> {
        (0..).map(RailId).zip(self.rails.iter().map(|slot| &slot.rail))
    }

    /// Adds a peer, without a path yet.
    pub(crate) fn add_peer(&mut self) -> PeerId {
        self.core.hot.push(Hot {
            run: NO_RUN,
            charged: 0,
            check: 0,
            next: 0,
            limit: 0,
            index: PeerIndex(0),
            expected: 0,
            rail: 0,
            held: false,
        });
        self.core.peers.push(Peer::default());
        PeerId((self.core.peers.len() - 1) as u32)
    }

    /// Adds a path to a peer: the n-th is path n, which is to be so at both ends. Over a rail that leads
    /// there already, nothing changes.
    ///
    /// # Errors
    /// Those of [`Message::open`]; [`RailError::Unreachable`] for a rail or peer that is not here, or more
    /// paths than 64.
    pub(crate) fn connect(
        &mut self,
        peer: PeerId,
        rail: RailId,
        address: &RailAddress,
        incarnation: Incarnation,
    ) -> Result<(), RailError> {
        let unreachable = |reason: &str| RailError::Unreachable {
            rail: format!("rail {}", rail.0),
            peer: address.to_string(),
            reason: reason.to_owned(),
            remedy: "connect peers that were added, over rails that were added",
        };
        let slot = self
            .rails
            .get_mut(rail.index())
            .ok_or_else(|| unreachable("there is no such rail"))?;
        let known = self
            .core
            .peers
            .get_mut(peer.index())
            .filter(|known| !known.lost && peer != PeerId::SELF);
        let known = known.ok_or_else(|| unreachable("there is no such peer, or it is lost"))?;
        let index = slot.rail.open(address, incarnation)?;
        if known
            .paths
            .iter()
            .any(|path| (path.rail, path.index) == (rail.0, index))
        {
            return Ok(());
        }
        if known.paths.len() == PATHS_MAX {
            return Err(unreachable("it has 64 paths already"));
        }
        if slot.names.len() <= index.index() {
            slot.names.resize(index.index() + 1, NO_PEER);
        }
        if slot.names[index.index()] != NO_PEER {
            return Err(unreachable("this address is another peer's"));
        }
        slot.names[index.index()] = peer.0;
        known.paths.push(Path::new(rail.0, index));
        known.states.grow(known.paths.len());
        if known.paths.len() > 1 && known.introduced {
            self.core.watch(peer.0);
        }
        self.refresh(peer.0);
        Ok(())
    }

    /// Leaves the rails alone from here on, without dropping them.
    pub(crate) fn disown(&mut self) {
        std::mem::forget(std::mem::take(&mut self.rails));
        self.plain = false;
    }

    /// Shows what has arrived, and operations that ended, up to `budget` of each rail; returns how many.
    /// Reads no clock.
    #[inline]
    pub(crate) fn poll<U: Upper>(&mut self, budget: usize, upper: &mut U) -> usize {
        // One rail that costs little is what counts most, and needs no turns.
        let mut shown = if self.plain {
            self.poll_rail(0, budget, upper)
        } else {
            self.poll_due(budget, upper)
        };
        if self.core.busy {
            shown += self.core.show_own(budget, upper) + self.afterwards();
        }
        shown
    }

    /// Looks up to `looks` times whether anything has arrived; `false` when nothing did. A poll is to follow.
    #[inline(always)]
    pub(crate) fn linger(&mut self, looks: u32) -> bool {
        match &mut self.rails[..] {
            [slot] if self.plain && !self.core.busy => slot.rail.linger(looks),
            _ => true,
        }
    }

    /// Looks for the next message of a peer, if it begins with its number and these two words (in memory
    /// order, the number left out), and takes what follows into `room`. `None`: this way is closed.
    #[inline(always)]
    pub(crate) fn look(
        &mut self,
        peer: PeerId,
        [first, second]: [u64; 2],
        room: Room<'_>,
        looks: u32,
    ) -> Option<Look> {
        let hot = self.core.hot.get_mut(peer.index()).filter(|hot| !hot.held)?;
        let slot = self.rails.first_mut()?;
        if !self.plain || self.core.busy || slot.names.get(hot.index.index()) != Some(&peer.0) {
            return None;
        }
        let number = (u64::from(hot.expected) << 32).to_le();
        let watch = Watch {
            looks,
            between: Between::Pauses(1),
            answer: true,
        };
        let look = slot.rail.look(hot.index, [first | number, second], room, watch);
        if let Look::Taken(_) = look {
            hot.expected = hot.expected.wrapping_add(1);
        }
        Some(look)
    }

    /// Polls the rails whose turn it is.
    #[inline(never)]
    fn poll_due<U: Upper>(&mut self, budget: usize, upper: &mut U) -> usize {
        let mut shown = 0;
        for at in self.paces.begin() {
            let work = self.poll_rail(at, budget, upper);
            self.paces.polled(at, work);
            shown += work;
        }
        shown
    }

    #[inline(always)]
    fn poll_rail<U: Upper>(&mut self, at: usize, budget: usize, upper: &mut U) -> usize {
        let Some(slot) = self.rails.get_mut(at) else {
            return 0;
        };
        let mut sink = arrive::Sink {
            rail: at as u16,
            names: &slot.names,
            core: &mut self.core,
            upper,
        };
        slot.rail.poll(budget, &mut sink)
    }

    /// Handles what arrived about paths, sends what waits for room, and rings the doorbells.
    #[cold]
    #[inline(never)]
    fn afterwards(&mut self) -> usize {
        let now = self.core.now;
        let work = act_on_words(self, now) + self.drain();
        self.flush();
        let core = &mut self.core;
        core.busy = !(core.own.is_empty() && core.waiting.is_empty()) || core.timers.has_words();
        work
    }

    /// Housekeeping that needs the time: that of the rails, their events, and that of paths. Returns the work
    /// done.
    pub(crate) fn progress(&mut self, now: Time) -> usize {
        let mut work = 0;
        if now.since(self.core.now) > PAUSE {
            self.paces.expect_all();
        }
        let before = self.core.now;
        extend_waits(self, before, now);
        self.core.now = now;
        for at in 0..self.rails.len() {
            work += self.rails[at].rail.progress(now);
            while let Some(event) = self.rails[at].rail.event() {
                self.on_event(at, event);
                work += 1;
            }
        }
        if self.core.busy {
            work += self.afterwards();
        }
        if self.core.timers.is_due(now) {
            tick(self, now);
        }
        work
    }

    /// Whether a rail finds the time of the last [`Link::progress`] old.
    pub(crate) fn wants_time(&self) -> bool {
        self.rails.iter().any(|slot| slot.rail.wants_time())
    }

    /// The next time at which [`Link::progress`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let own = self.core.timers.next_deadline(self.core.now);
        let rails = self.rails.iter().filter_map(|slot| slot.rail.next_deadline());
        rails.chain(own).min()
    }

    /// Whether there is work that only polling moves on: who sleeps on the rails would delay it.
    pub(crate) fn must_poll(&self) -> bool {
        self.core.busy
    }

    /// Whether anything that was accepted waits here: for room, or for a path that may come back. Not for the
    /// data path.
    pub(crate) fn waits(&self) -> bool {
        self.core.peers.iter().any(|peer| !peer.lost && peer.waits())
    }

    /// Prepares to sleep: `each` is called for every rail, with how it sleeps.
    ///
    /// # Errors
    /// Those of [`Rail::arm`](doorbell_fabric::rail::Rail::arm); the rails before it are armed.
    pub(crate) fn arm(&mut self, each: &mut dyn FnMut(RailId, Armed<'_>)) -> Result<(), RailError> {
        self.flush();
        self.paces.expect_all();
        for (at, slot) in (0..).zip(&mut self.rails) {
            each(RailId(at), slot.rail.arm()?);
        }
        Ok(())
    }

    /// Ends the sleep.
    pub(crate) fn disarm(&mut self) {
        self.rails.iter_mut().for_each(|slot| slot.rail.disarm());
    }

    /// Rings the doorbells that wait. A poll does it, too.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.gathers) {
            self.rails.iter_mut().for_each(|slot| slot.rail.flush());
        }
    }

    /// Orderly end: pushes out what waits, also for a path that may come back, then closes the rails. To be
    /// called with a fresh `now`, and polls in between, until it answers `true`, which it does at `by` at the
    /// latest.
    pub(crate) fn close(&mut self, now: Time, by: Time) -> bool {
        self.progress(now);
        if now < by && self.waits() {
            return false;
        }
        for (at, slot) in self.rails.iter_mut().enumerate() {
            if self.closed & 1 << at == 0 && slot.rail.close(now, by) {
                self.closed |= 1 << at;
            }
        }
        self.closed.count_ones() as usize == self.rails.len()
    }

    /// The sizes that suit the paths of a peer that are used now.
    pub(crate) fn sizes(&self, peer: PeerId) -> Sizes {
        let known = self.core.peers.get(peer.index());
        known.and_then(|known| known.sizes).unwrap_or(Sizes::OWN)
    }

    /// The next peer that is lost: all of its paths are gone for good, or patience with them is over.
    pub(crate) fn lost(&mut self) -> Option<(PeerId, DownReason)> {
        self.core.gone.pop_front()
    }

    /// The number of the next message to a peer.
    #[inline]
    pub(crate) fn next_number(&self, peer: PeerId) -> u32 {
        self.core.hot.get(peer.index()).map_or(0, |hot| hot.next)
    }

    /// The number of the oldest message to a peer that it may not have taken yet.
    pub(crate) fn oldest_under_way(&mut self, peer: PeerId) -> Option<u32> {
        self.oldest(peer.0)
    }

    /// The counters of this link.
    pub(crate) fn stats(&self) -> &LinkStats {
        &self.core.stats
    }
}

#[cfg(test)]
impl<M: Message> Link<M> {
    /// Sets the numbers as if `start` messages had gone each way already.
    fn start_numbers_at(&mut self, peer: PeerId, start: u32) {
        let hot = &mut self.core.hot[peer.index()];
        (hot.next, hot.expected) = (start, start);
    }

    /// Returns what the paths of each peer are, and what waits.
    fn explain(&self) -> Vec<String> {
        let peers = self.core.peers.iter().zip(&self.core.hot);
        peers
            .map(|(peer, hot)| {
                format!(
                    "{:?} again {} fresh {} held {} hot {hot:?}",
                    peer.states,
                    peer.again.len(),
                    peer.fresh.len(),
                    peer.held.count()
                )
            })
            .collect()
    }
}

impl Core {
    /// Watches a peer from now on.
    fn watch(&mut self, peer: u32) {
        if let Some((states, timers)) = self.paths_of(peer) {
            timers.watch(peer, states);
        }
    }

    /// Something of a peer waits for room.
    fn list(&mut self, peer: u32) {
        self.hot[peer as usize].limit = 0;
        if !std::mem::replace(&mut self.peers[peer as usize].is_waiting, true) {
            self.busy = true;
            self.waiting.push(peer);
        }
    }
}
