//! The state of the network: which NICs are attached to what, and the dispatch of due events.
//!
//! ```text
//!   life  = one incarnation of one rank (a process), and what it executed for others
//!   nic   = one incarnation's attachment to one plane; a rail or a datagram queue pair is a handle to it
//!   link  = one direction between two ranks on one plane: its faults and its stream of random numbers
//!   conn  = one NIC's view of one opened peer (module `conn`)
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use doorbell_fabric::event::{self, EventKind, RailEvent, Scope};
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::time::Time;

use crate::agenda::{Agenda, Due};
use crate::change::Change;
use crate::config::{Faults, SimConfig};
use crate::conn::{Conn, Msg};
use crate::dump::Dump;
use crate::exposure::{Executed, Exposed};
use crate::fence::Fence;
use crate::frame::{FrameInFlight, Queues};
use crate::onesided::{Completion, Op};
use crate::pipe::Place;
use crate::random::Random;
use crate::slab::Slab;
use crate::stats::Stats;
use crate::stranger::Strangers;
use crate::trace::{Happened, Trace, TraceEvent};

/// Everything, behind the one lock of [`SimNet`](crate::SimNet).
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) seed: u64,
    pub(crate) config: SimConfig,
    pub(crate) now: Time,
    pub(crate) agenda: Agenda,
    /// When ranks have something to do of their own accord.
    pub(crate) alarms: BTreeMap<u32, Time>,
    pub(crate) lives: Vec<Life>,
    /// The current life of each rank.
    pub(crate) ranks: BTreeMap<u32, u32>,
    pub(crate) nics: Vec<Nic>,
    pub(crate) planes: Vec<PlaneState>,
    pub(crate) links: Vec<Link>,
    link_index: BTreeMap<(u32, u32, u32), u32>,
    pub(crate) messages: Slab<Msg>,
    pub(crate) ops: Slab<Op>,
    pub(crate) frames: Slab<FrameInFlight>,
    /// Frames made, copies included.
    pub(crate) frames_made: u64,
    /// The time until which each shared pipe is busy.
    pub(crate) pipes: BTreeMap<Place, Time>,
    /// Ranks whose process is stopped.
    pub(crate) paused: BTreeSet<u32>,
    pub(crate) dump: Option<Dump>,
    pub(crate) script: Vec<Change>,
    pub(crate) trace: Trace,
    /// Keys, incarnations, and what a failure hides from its witnesses.
    pub(crate) random: Random,
    /// Unused byte buffers.
    buffers: Vec<Arc<Vec<u8>>>,
}

/// A life of a rank.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) incarnation: Incarnation,
    pub(crate) alive: bool,
    /// Puts and atomics that this process has executed, by initiator: none is executed twice, over whichever
    /// rail.
    pub(crate) executed: Executed,
}

/// A network that ranks attach to.
#[derive(Debug)]
pub(crate) struct PlaneState {
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) faults: Faults,
    pub(crate) stats: Stats,
}

/// The link from one rank to another on one plane.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) plane: u32,
    /// Faults of its own, instead of the plane's.
    pub(crate) faults: Option<Faults>,
    pub(crate) cut: bool,
    pub(crate) random: Random,
    /// When the last thing that was not held back arrives: jitter alone does not reorder.
    last: Time,
    /// Whether it is in a burst of losses.
    pub(crate) bursting: bool,
    /// Frames that the aim has picked.
    pub(crate) picked: u64,
    /// Frames that wait until others have overtaken them.
    pub(crate) held: Vec<u32>,
}

/// The two contracts' NICs exist on a plane side by side and cannot reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Message,
    Datagram,
}

/// How a NIC ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The rail was closed.
    Closed,
    /// The process of the rail ended.
    Died,
    /// The device is gone; its process lives.
    Gone,
}

/// The attachment of a life to a plane.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) kind: Kind,
    pub(crate) plane: u32,
    pub(crate) rank: u32,
    pub(crate) life: u32,
    pub(crate) ended: Option<Ended>,
    /// Whether its cable is in.
    pub(crate) cable: bool,
    /// The device hangs: it takes no frame out of its send rings.
    pub(crate) stalled: bool,
    /// The state of the link that was last looked at, and the number of changes seen.
    pub(crate) seen_link: bool,
    pub(crate) link_turn: u32,
    /// `LinkDown` was reported and `LinkUp` not yet.
    pub(crate) told_down: bool,
    /// The time until which it serialises what it has.
    pub(crate) busy: Time,
    pub(crate) events: VecDeque<RailEvent>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) peers: BTreeMap<u32, u32>,
    /// Places among `conns` whose peers were forgotten.
    pub(crate) forgotten: Vec<u32>,
    pub(crate) unflushed: Vec<u32>,
    pub(crate) inbox: VecDeque<u32>,
    /// Messages of NICs that this one has not opened yet.
    pub(crate) strangers: VecDeque<u32>,
    /// Senders that have not been opened, to be reported to the owner.
    pub(crate) unknown: Strangers,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) exposed: BTreeMap<u64, Exposed>,
    pub(crate) next_address: u64,
    pub(crate) open_ops: usize,
    /// Numbers operations and messages that refer to regions, so that a fence covers those before it.
    pub(crate) serial: u64,
    /// Messages whose body is still read from a region: serial and conn.
    pub(crate) regions: Vec<(u64, u32)>,
    pub(crate) fences: Vec<Fence>,
    pub(crate) queues: Queues,
}

impl Net {
    /// The next event, or the next alarm that has not passed.
    pub(crate) fn next_event(&self) -> Option<Time> {
        let alarms = self.alarms.values().copied().filter(|at| *at > self.now);
        alarms.chain(self.agenda.next()).min()
    }

    /// The time of the next event, with alarms that have passed.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let alarms = self.alarms.values().map(|at| (*at).max(self.now));
        alarms.chain(self.agenda.next()).min()
    }

    pub(crate) fn new(seed: u64, config: SimConfig) -> Self {
        let mut net = Self {
            seed,
            config,
            now: Time::ZERO,
            agenda: Agenda::default(),
            alarms: BTreeMap::new(),
            lives: Vec::new(),
            ranks: BTreeMap::new(),
            nics: Vec::new(),
            planes: Vec::new(),
            links: Vec::new(),
            link_index: BTreeMap::new(),
            messages: Slab::default(),
            ops: Slab::default(),
            frames: Slab::default(),
            frames_made: 0,
            pipes: BTreeMap::new(),
            paused: BTreeSet::new(),
            dump: None,
            script: Vec::new(),
            trace: Trace::new(config.trace_events),
            random: Random::for_part(seed, &[u64::MAX]),
            buffers: Vec::new(),
        };
        net.add_plane("");
        net
    }

    pub(crate) fn add_plane(&mut self, name: &str) -> u32 {
        self.planes.push(PlaneState {
            name: name.to_owned(),
            up: true,
            faults: self.config.faults,
            stats: Stats::default(),
        });
        self.planes.len() as u32 - 1
    }

    /// The living process of `rank`, which starts now if there is none.
    pub(crate) fn life_of(&mut self, rank: u32) -> u32 {
        if let Some(&life) = self.ranks.get(&rank)
            && self.lives[life as usize].alive
        {
            return life;
        }
        self.lives.push(Life {
            incarnation: Incarnation(self.random.next_u64()),
            alive: true,
            executed: Executed::default(),
        });
        let life = self.lives.len() as u32 - 1;
        self.ranks.insert(rank, life);
        life
    }

    pub(crate) fn attach(&mut self, kind: Kind, rank: u32, plane: u32) -> u32 {
        let life = self.life_of(rank);
        let link_is_up = self.planes[plane as usize].up;
        self.nics.push(Nic {
            kind,
            plane,
            rank,
            life,
            ended: None,
            cable: true,
            stalled: false,
            seen_link: true,
            link_turn: 0,
            told_down: false,
            busy: Time::ZERO,
            events: VecDeque::new(),
            conns: Vec::new(),
            peers: BTreeMap::new(),
            forgotten: Vec::new(),
            unflushed: Vec::new(),
            inbox: VecDeque::new(),
            strangers: VecDeque::new(),
            unknown: Strangers::default(),
            completions: VecDeque::new(),
            exposed: BTreeMap::new(),
            next_address: 1 << 20,
            open_ops: 0,
            serial: 0,
            regions: Vec::new(),
            fences: Vec::new(),
            queues: Queues::new(&self.config),
        });
        let nic = self.nics.len() as u32 - 1;
        let incarnation = self.lives[life as usize].incarnation.0;
        self.note(Happened::Attached, nic, nic, incarnation, 0);
        if !link_is_up {
            self.look_at_link(nic);
        }
        nic
    }

    /// The newest NIC of `rank` on `plane`; of one incarnation only, when `incarnation` is given.
    pub(crate) fn find(
        &self,
        kind: Kind,
        plane: u32,
        rank: u32,
        incarnation: Option<Incarnation>,
    ) -> Option<u32> {
        let found = self.nics.iter().rposition(|nic| {
            let life = self.lives[nic.life as usize].incarnation;
            (nic.kind, nic.plane, nic.rank) == (kind, plane, rank)
                && incarnation.is_none_or(|wanted| wanted == life)
        });
        found.map(|nic| nic as u32)
    }

    pub(crate) fn link(&mut self, plane: u32, from: u32, to: u32) -> u32 {
        if let Some(&link) = self.link_index.get(&(plane, from, to)) {
            return link;
        }
        let words = [u64::from(plane), u64::from(from), u64::from(to)];
        self.links.push(Link {
            plane,
            faults: None,
            cut: false,
            random: Random::for_part(self.seed, &words),
            last: Time::ZERO,
            bursting: false,
            picked: 0,
            held: Vec::new(),
        });
        let link = self.links.len() as u32 - 1;
        self.link_index.insert((plane, from, to), link);
        link
    }

    /// Does everything that is due by `until`, then sets the clock to it.
    pub(crate) fn run_until(&mut self, until: Time) {
        while let Some((at, due)) = self.agenda.pop(until) {
            self.now = self.now.max(at);
            self.happen(due);
        }
        self.now = self.now.max(until);
    }

    /// Does everything that is due now.
    #[inline]
    pub(crate) fn run_due(&mut self) {
        self.run_until(self.now);
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Arrive { message } => self.arrive(message),
            Due::Ack {
                nic,
                conn,
                epoch,
                upto,
            } => self.acked(nic, conn, epoch, upto),
            Due::Request { op } => self.request_arrives(op),
            Due::Finish { op } => self.finish(op),
            Due::Reply { op } => self.reply_arrives(op),
            Due::Depart { frame } => self.depart(frame),
            Due::Frame { frame } => self.frame_arrives(frame),
            Due::Unhold { frame, serial } => self.unhold(frame, serial),
            Due::PeerNotice { nic, conn, turn } => self.notice_peer(nic, conn, turn),
            Due::Revive { nic, conn } => self.revived(nic, conn),
            Due::LinkNotice { nic, turn } => self.notice_link(nic, turn),
            Due::Script { change } => self.change(self.script[change as usize]),
        }
    }

    #[inline]
    pub(crate) fn faults(&self, link: u32) -> Faults {
        let link = &self.links[link as usize];
        link.faults.unwrap_or(self.planes[link.plane as usize].faults)
    }

    /// Returns when something that leaves at `leaves` arrives over `link`.
    pub(crate) fn transit(&mut self, link: u32, leaves: Time) -> Time {
        self.passage(link, leaves).0
    }

    /// Returns the time of [`Net::transit`], and whether the frame is held back.
    pub(crate) fn passage(&mut self, link: u32, leaves: Time) -> (Time, bool) {
        let faults = self.faults(link);
        let state = &mut self.links[link as usize];
        let jitter = state.random.below(nanos(faults.jitter) + 1);
        let straight = leaves + faults.delay + std::time::Duration::from_nanos(jitter);
        if state.random.chance(faults.reorder) {
            let held = 1 + state.random.below(nanos(faults.reorder_window));
            self.planes[state.plane as usize].stats.reordered += 1;
            return (straight + std::time::Duration::from_nanos(held), true);
        }
        state.last = state.last.max(straight);
        (state.last, false)
    }

    /// Bytes that wait for the serialisation of `nic` onto `link`.
    pub(crate) fn backlog(&self, nic: u32, link: u32) -> usize {
        let Some(bandwidth) = self.faults(link).bandwidth else {
            return 0;
        };
        let wait = self.nics[nic as usize].busy.since(self.now).as_nanos();
        usize::try_from(wait * u128::from(bandwidth) / 1_000_000_000).unwrap_or(usize::MAX)
    }

    /// Serialises `length` bytes of `nic` onto `link` after what is queued there; returns when the last byte
    /// is sent.
    pub(crate) fn serialise(&mut self, nic: u32, link: u32, length: usize) -> Time {
        let takes = self.wire_time(link, length as u64);
        let nic = &mut self.nics[nic as usize];
        nic.busy = nic.busy.max(self.now) + takes;
        nic.busy
    }

    /// Returns how long `length` bytes take at the bandwidth of `link`.
    pub(crate) fn wire_time(&self, link: u32, length: u64) -> std::time::Duration {
        let Some(bandwidth) = self.faults(link).bandwidth else {
            return std::time::Duration::ZERO;
        };
        let nanos = u128::from(length) * 1_000_000_000 / u128::from(bandwidth.max(1));
        std::time::Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Whether something sent by `from` reaches `to` over `link` at this moment.
    pub(crate) fn passes(&self, from: u32, to: u32, link: u32) -> bool {
        let (from, to) = (&self.nics[from as usize], &self.nics[to as usize]);
        self.planes[from.plane as usize].up
            && from.cable
            && to.cable
            && to.ended.is_none()
            && !self.links[link as usize].cut
    }

    pub(crate) fn report(&mut self, nic: u32, scope: Scope, kind: EventKind) {
        let what = match kind {
            EventKind::PeerUp | EventKind::PeerRecovered | EventKind::LinkUp => Happened::Up,
            EventKind::PeerDown(_) | EventKind::PeerSuspect | EventKind::LinkDown | EventKind::DeviceGone => {
                Happened::Down
            }
        };
        let to = match scope {
            Scope::Peer(PeerIndex(peer)) => self.nics[nic as usize].conns[peer as usize].nic,
            Scope::Rail => nic,
        };
        self.note(what, nic, to, 0, 0);
        let at = self.now;
        let life = match (scope, kind) {
            (Scope::Peer(peer), EventKind::PeerUp) => self.life_of_conn(nic, peer.0),
            _ => event::Life::FIRST,
        };
        self.nics[nic as usize].events.push_back(RailEvent {
            at,
            scope,
            kind,
            life,
        });
    }

    #[inline]
    pub(crate) fn stats(&mut self, nic: u32) -> &mut Stats {
        let plane = self.nics[nic as usize].plane;
        &mut self.planes[plane as usize].stats
    }

    /// Adds an event between two NICs to the trace.
    #[inline]
    pub(crate) fn note(&mut self, what: Happened, from: u32, to: u32, number: u64, length: usize) {
        let nic = &self.nics[from as usize];
        self.trace.add(TraceEvent {
            at: self.now,
            what,
            plane: nic.plane,
            from: nic.rank,
            to: self.nics[to as usize].rank,
            number,
            length: length as u64,
        });
    }

    /// An empty buffer, used before where possible.
    pub(crate) fn buffer(&mut self) -> Arc<Vec<u8>> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool, unless it is still in use.
    pub(crate) fn recycle(&mut self, mut buffer: Arc<Vec<u8>>) {
        if let Some(bytes) = Arc::get_mut(&mut buffer) {
            bytes.clear();
            self.buffers.push(buffer);
        }
    }
}

/// A duration in whole nanoseconds.
pub(crate) fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1)
}
