//! The handle of a simulated network.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_fabric::message::Incarnation;
use doorbell_fabric::time::Time;

use crate::agenda::Due;
use crate::change::Change;
use crate::config::SimConfig;
use crate::datagram::SimDatagram;
use crate::rail::SimRail;
use crate::state::{Kind, Net};
use crate::stats::Stats;
use crate::trace::TraceEvent;

/// A network of the simulation that ranks attach to, one NIC per plane. Made by [`SimNet::add_plane`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plane(pub(crate) u32);

impl Plane {
    /// The plane that every network has; its rails are called `sim:<seed>`.
    pub const FIRST: Self = Self(0);
}

/// A seeded network on a virtual clock: a handle, cheap to clone.
///
/// Nothing happens by itself: the clock stops until [`SimNet::advance_to`],
/// [`SimNet::advance_to_next_event`] or a rail's `progress(now)` moves it. All of it is one state behind one
/// uncontended lock, so that rails stay `Send` (an engine's world is); use from one thread is what makes a
/// run repeatable.
///
/// ```
/// use doorbell_fabric::message::{Body, Message};
/// use doorbell_fabric::rail::Rail;
/// use doorbell_sim::{SimConfig, SimNet};
///
/// let net = SimNet::new(42, SimConfig::default());
/// let (mut a, mut b) = (net.attach(), net.attach());
/// let to_b = a.open(&b.address(), b.incarnation())?;
/// let to_a = b.open(&a.address(), a.incarnation())?;
/// let id = a.send(to_b, b"head", Body::Bytes(b"body")).unwrap();
/// a.flush();
/// net.advance_to_next_event();
///
/// struct Print;
/// impl doorbell_fabric::message::Arrivals for Print {
///     fn message(
///         &mut self,
///         _: doorbell_fabric::message::PeerIndex,
///         m: doorbell_fabric::message::Inbound<'_>,
///     ) {
///         assert_eq!(m.read(4), Some(*b"body"));
///     }
///     fn completed(
///         &mut self,
///         _: doorbell_fabric::message::OpId,
///         _: Result<u64, doorbell_fabric::message::OpError>,
///     ) {
///     }
/// }
/// assert_eq!(b.poll(16, &mut Print), 1);
/// net.advance_to_next_event();
/// assert_eq!(a.handed_over(to_b), id);
/// # let _ = to_a;
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
#[derive(Clone)]
pub struct SimNet {
    state: Arc<Mutex<Net>>,
}

impl SimNet {
    /// A network without ranks, with one plane. Equal seeds and equal calls give equal runs.
    pub fn new(seed: u64, config: SimConfig) -> Self {
        Self {
            state: Arc::new(Mutex::new(Net::new(seed, config))),
        }
    }

    /// A panic in a sink leaves no half-made state (the lock is not held there), so a poisoned lock is
    /// usable.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Net> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The seed of the network.
    pub fn seed(&self) -> u64 {
        self.lock().seed
    }

    /// The settings it was made with.
    pub fn config(&self) -> SimConfig {
        self.lock().config
    }

    /// Adds a plane: a network of its own, with faults of its own. Its rails are called `sim:<seed>:<name>`.
    pub fn add_plane(&self, name: &str) -> Plane {
        Plane(self.lock().add_plane(name))
    }

    /// A message rail of a new rank (the lowest number not used yet) on the first plane.
    pub fn attach(&self) -> SimRail {
        self.attach_rank(self.next_rank(), Plane::FIRST)
    }

    /// A message rail of `rank` on `plane`. A rank that is dead (or was never seen) starts a new life by
    /// this, with a new incarnation; an older rail of the same life on the same plane is left without
    /// traffic.
    pub fn attach_rank(&self, rank: u32, plane: Plane) -> SimRail {
        let plane = self.existing(plane);
        let nic = self.lock().attach(Kind::Message, rank, plane);
        SimRail::new(self.clone(), nic)
    }

    /// A datagram queue pair of a new rank on the first plane.
    pub fn attach_datagram(&self) -> SimDatagram {
        self.attach_datagram_rank(self.next_rank(), Plane::FIRST)
    }

    /// A datagram queue pair of `rank` on `plane`.
    pub fn attach_datagram_rank(&self, rank: u32, plane: Plane) -> SimDatagram {
        let plane = self.existing(plane);
        let nic = self.lock().attach(Kind::Datagram, rank, plane);
        SimDatagram::new(self.clone(), nic)
    }

    /// A plane of another network is taken for the first one.
    fn existing(&self, plane: Plane) -> u32 {
        if (plane.0 as usize) < self.lock().planes.len() {
            plane.0
        } else {
            0
        }
    }

    fn next_rank(&self) -> u32 {
        self.lock()
            .ranks
            .last_key_value()
            .map_or(0, |(&rank, _)| rank + 1)
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.lock().now
    }

    /// Does everything that is due by `time` and sets the clock to it; a time that has passed changes
    /// nothing.
    pub fn advance_to(&self, time: Time) {
        self.lock().run_until(time);
    }

    /// The time of the next event in the network, or of an alarm.
    pub fn next_event(&self) -> Option<Time> {
        self.lock().next_event()
    }

    /// Like [`next_event`](Self::next_event), but an alarm that has passed and that its rank has neither
    /// handled nor reset is due now. For owners that advance the clock while ranks are stepped in turn, who
    /// would otherwise skip late alarms.
    pub fn next_due(&self) -> Option<Time> {
        self.lock().next_due()
    }

    /// Sets the time at which a rank's own timers are due; `None` for none. The clock stops there once when
    /// it advances; a rank that does not act by then is late.
    pub fn set_alarm(&self, rank: u32, at: Option<Time>) {
        let mut net = self.lock();
        match at {
            Some(at) => _ = net.alarms.insert(rank, at),
            None => _ = net.alarms.remove(&rank),
        }
    }

    /// Moves the clock to the next event and does everything that is due then; `None` when nothing ever will
    /// be.
    pub fn advance_to_next_event(&self) -> Option<Time> {
        let mut net = self.lock();
        let next = net.next_event()?;
        net.run_until(next);
        Some(net.now)
    }

    /// Changes the network now.
    pub fn change(&self, change: Change) {
        let mut net = self.lock();
        net.run_due();
        net.change(change);
    }

    /// Changes the network at `time`; now, when that has passed.
    pub fn at(&self, time: Time, change: Change) {
        let mut net = self.lock();
        net.script.push(change);
        let number = net.script.len() as u32 - 1;
        let time = time.max(net.now);
        net.agenda.push(time, Due::Script { change: number });
    }

    /// Ends the current incarnation of `rank` and starts the next: rails attached from now on belong to it.
    pub fn restart(&self, rank: u32) -> Incarnation {
        let mut net = self.lock();
        net.change(Change::RankDeath(rank));
        let life = net.life_of(rank);
        net.lives[life as usize].incarnation
    }

    /// Whether `rank` has a living process.
    pub fn is_alive(&self, rank: u32) -> bool {
        let net = self.lock();
        net.ranks
            .get(&rank)
            .is_some_and(|&life| net.lives[life as usize].alive)
    }

    /// Whether the last life of `rank` has ended; false for a rank that never attached anything.
    pub(crate) fn was_killed(&self, rank: u32) -> bool {
        let net = self.lock();
        net.ranks
            .get(&rank)
            .is_some_and(|&life| !net.lives[life as usize].alive)
    }

    /// Whether the process of `rank` is stopped.
    pub fn is_paused(&self, rank: u32) -> bool {
        self.lock().paused.contains(&rank)
    }

    /// Counts of one plane.
    pub fn stats(&self, plane: Plane) -> Stats {
        self.lock()
            .planes
            .get(plane.0 as usize)
            .map(|plane| plane.stats)
            .unwrap_or_default()
    }

    /// Counts of all planes together.
    pub fn total(&self) -> Stats {
        let net = self.lock();
        let mut total = Stats::default();
        net.planes.iter().for_each(|plane| total += plane.stats);
        total
    }

    /// Messages, operations and frames that the network holds now: zero when a job has left nothing behind.
    pub fn held(&self) -> usize {
        let net = self.lock();
        net.messages.len() + net.ops.len() + net.frames.len()
    }

    /// A number that covers every event since the start: equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace.hash()
    }

    /// Events since the start.
    pub fn trace_count(&self) -> u64 {
        self.lock().trace.count()
    }

    /// The last events, at most [`SimConfig::trace_events`].
    pub fn trace(&self) -> Vec<TraceEvent> {
        self.lock().trace.events().copied().collect()
    }

    /// The last events as text, one a line: to be printed with a failing seed.
    pub fn trace_text(&self) -> String {
        let mut text = format!("seed {}\n", self.seed());
        for event in self.trace() {
            text.push_str(&event.to_string());
            text.push('\n');
        }
        text
    }
}

impl fmt::Debug for SimNet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let net = self.lock();
        write!(
            out,
            "SimNet {{ seed: {}, now: {}, nics: {} }}",
            net.seed,
            net.now,
            net.nics.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::SimConfig;

    /// A clock that passes one rank's alarm must not advance to another rank's next one.
    #[test]
    fn an_alarm_that_has_passed_is_due_until_its_rank_acts() {
        let net = SimNet::new(1, SimConfig::default());
        let at = |micros| Time::ZERO + Duration::from_micros(micros);
        net.set_alarm(0, Some(at(5)));
        net.set_alarm(1, Some(at(9_000_000)));
        net.advance_to(at(7));
        assert_eq!(net.next_event(), Some(at(9_000_000)));
        assert_eq!(net.next_due(), Some(at(7)));
        net.set_alarm(0, Some(at(8)));
        assert_eq!(net.next_due(), Some(at(8)));
        net.set_alarm(0, None);
        assert_eq!(net.next_due(), net.next_event());
    }
}
