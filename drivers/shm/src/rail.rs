//! The shm rail: its parts, how it is opened, and the contract common to all rails.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::{RailError, check_file_size};
use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::map::Object;
use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_ring::lane::Geometry;
use rustix::event::epoll;

use crate::config::ShmConfig;
use crate::connect::{self, ReceivedHello, system};
use crate::coop_copy::owner::CoopOwner;
use crate::forget::Places;
use crate::handshake::Token;
use crate::lease::{Leases, holder};
use crate::pace;
use crate::pending_peers::PendingPeers;
use crate::pull::{Memory, Pulls};
use crate::ready::{READY_BYTES, Ready};
use crate::reconnect::Attempt;
use crate::rooms::Given;
use crate::rx::Rx;
use crate::shortage::{AwaitingHello, Shortage};
use crate::stats::ShmStats;
use crate::sys;
use crate::tx::{CLOSED, FRONT_WORDS, Handshake, SEVERED, Tx};
use crate::wakeup::{ASLEEP, Barrier, COLD, HOT};
use crate::wire::Id;

/// Interval of socket polls while a handshake is likely.
const POLL_SOCKETS_OFTEN: Duration = Duration::from_micros(50);
/// Interval otherwise: a twentieth of the time within which the death of a peer has to be noticed.
const POLL_SOCKETS_SELDOM: Duration = Duration::from_millis(5);
/// How long a handshake is likely after a peer was opened or a lane created.
const HANDSHAKE_LIKELY: Duration = Duration::from_secs(1);

/// The state of one peer.
pub(crate) struct Peer {
    pub(crate) id: Id,
    pub(crate) incarnation: Incarnation,
    pub(crate) tx: Option<Box<Tx>>,
    pub(crate) rx: Option<Box<Rx>>,
    /// Its memory, from the handshake.
    pub(crate) memory: Option<Memory>,
    /// Whether it proved that it can read our memory; unknown before its welcome.
    pub(crate) can_read_us: Option<bool>,
    /// Set from the reported end of the connection until it is up again.
    pub(crate) down: Option<DownReason>,
    /// It can never reconnect.
    pub(crate) over: bool,
    /// Our former lanes, oldest first, kept for `reclaim`.
    pub(crate) retired: Vec<Tx>,
    /// Messages sent over former lanes, and the last watermark of the dropped ones.
    pub(crate) base: u64,
    pub(crate) passed: u64,
    /// The current epochs of the connection: our end's, and the peer's as far as known.
    pub(crate) epochs: [u32; 2],
    /// The acquaintance's number at our end, and at the peer's; zero: not known (`forget`).
    pub(crate) terms: [u32; 2],
    /// The lanes of a reconnect attempt.
    pub(crate) attempt: Option<Box<Attempt>>,
    /// Its end was noticed; it is reported once its lane is empty.
    pub(crate) ending: Option<DownReason>,
    /// Since when there are no descriptors for it.
    pub(crate) short_since: Option<Time>,
    /// It was lost for that.
    pub(crate) out_of_files: bool,
}

impl Peer {
    pub(crate) fn new(id: Id, incarnation: Incarnation, term: u32) -> Self {
        Self {
            id,
            incarnation,
            terms: [term, 0],
            tx: None,
            rx: None,
            memory: None,
            can_read_us: None,
            down: None,
            over: false,
            retired: Vec::new(),
            base: 0,
            passed: 0,
            epochs: [0; 2],
            attempt: None,
            ending: None,
            short_since: None,
            out_of_files: false,
        }
    }

    /// Returns what a read of its memory needs: the memory, and a socket that the kernel closes when its
    /// process ends.
    pub(crate) fn memory_and_socket(&mut self) -> (Option<&mut Memory>, Option<BorrowedFd<'_>>) {
        let theirs = self.rx.as_ref().map(|rx| rx.socket());
        let socket = theirs.or_else(|| self.tx.as_ref().and_then(|tx| tx.socket()));
        (self.memory.as_mut(), socket.map(AsFd::as_fd))
    }
}

/// A rail between the processes of one host; see the crate's documentation.
pub struct ShmRail {
    name: RailName,
    pub(crate) capabilities: Capabilities,
    pub(crate) geometry: Geometry,
    pub(crate) most_peers: usize,
    pub(crate) id: Id,
    pub(crate) incarnation: Incarnation,
    pub(crate) listener: CloforkFd,
    pub(crate) epoll: OwnedFd,
    pub(crate) ready: Ready,
    pub(crate) ready_object: Object,
    pub(crate) barrier: Barrier,
    pub(crate) nonce: Box<[u8; 16]>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) places: Places,
    /// Peers whose lanes every poll visits.
    pub(crate) hot: Vec<u32>,
    /// Peers whose lanes are polled when their ready bit is set or the sweep reaches them.
    pub(crate) cold: Vec<u32>,
    pub(crate) sweep: usize,
    /// The hot lane that the next poll starts with.
    pub(crate) first: usize,
    /// Empty polls in a row.
    pub(crate) idle: u32,
    pub(crate) pulls: Pulls,
    pub(crate) leases: Leases,
    /// Memory of ours that peers place bytes in.
    pub(crate) given: Vec<Given>,
    /// Whether owners and readers copy together, and our work as an owner.
    pub(crate) copies_together: bool,
    pub(crate) coop_owner: CoopOwner,
    /// Our id as a lease holder.
    pub(crate) holder: u64,
    /// Connections that have not sent their hello.
    pub(crate) awaiting_hello: Vec<AwaitingHello>,
    /// Hellos that there was no descriptor to answer.
    pub(crate) deferred: Vec<(ReceivedHello, CloforkFd)>,
    pub(crate) shortage: Shortage,
    /// Hellos of peers that are not open.
    pub(crate) pending_peers: PendingPeers,
    pub(crate) events: VecDeque<RailEvent>,
    pub(crate) now: Time,
    next_socket_poll: Time,
    likely_until: Time,
    /// The owner sleeps on the sockets.
    is_armed: bool,
    pub(crate) refused: u64,
    /// Counters of dropped lanes.
    pub(crate) past: ShmStats,
    pub(crate) closed: bool,
}

impl ShmRail {
    /// Opens the rail: a socket with a random name and a page of ready bits.
    ///
    /// # Errors
    /// When the settings are inconsistent, or the system refuses sockets or shared memory.
    pub fn open(name: &RailName, config: &ShmConfig) -> Result<Self, RailError> {
        if name.kind() != "shm" || !name.object().is_empty() {
            return Err(RailError::Unusable {
                rail: name.to_string(),
                reason: "the shm rail takes no object after its name".to_owned(),
                remedy: "write `shm`".to_owned(),
            });
        }
        let geometry = config.geometry()?;
        // Checked now, not when the first peer connects.
        let lane = FRONT_WORDS * 8 + geometry.bytes();
        check_file_size(lane as u64).map_err(|source| {
            RailError::memory(
                "create shared memory objects for lanes",
                name.as_str(),
                lane,
                source,
            )
        })?;
        let (mut id, mut nonce, mut incarnation) = ([0; 16], Box::new([0; 16]), [0; 8]);
        for bytes in [&mut id[..], &mut nonce[..], &mut incarnation[..]] {
            getrandom::fill(bytes).map_err(|error| RailError::System {
                rail: name.to_string(),
                step: "get random bytes for a name",
                source: error.into(),
                remedy: "check that getrandom(2) is allowed in this container",
            })?;
        }
        let listener = connect::listen(&id)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| system("create an epoll instance", errno))?;
        let ready_object = Object::new("doorbell-ready", READY_BYTES)?;
        let ready = Ready::map(&ready_object)?;
        let cma = config.cma && own_memory_is_readable(&nonce);
        let mut rail = Self {
            name: name.clone(),
            capabilities: config.capabilities(geometry, cma),
            geometry,
            most_peers: config.peers,
            id,
            incarnation: Incarnation(u64::from_ne_bytes(incarnation)),
            listener,
            epoll,
            ready,
            ready_object,
            barrier: Barrier::register(),
            nonce,
            peers: Vec::new(),
            places: Places::default(),
            hot: Vec::new(),
            cold: Vec::new(),
            sweep: 0,
            first: 0,
            idle: 0,
            pulls: Pulls::new(),
            leases: Leases::new()?,
            given: Vec::new(),
            copies_together: config.help,
            coop_owner: CoopOwner::default(),
            holder: holder(&id),
            awaiting_hello: Vec::new(),
            deferred: Vec::new(),
            shortage: Shortage::default(),
            pending_peers: PendingPeers::default(),
            events: VecDeque::new(),
            now: Time::ZERO,
            next_socket_poll: Time::ZERO,
            is_armed: false,
            likely_until: Time::ZERO + HANDSHAKE_LIKELY,
            refused: 0,
            past: ShmStats::default(),
            closed: false,
        };
        rail.watch(&rail.listener, Token::Listener)?;
        rail.keep_files();
        Ok(rail)
    }

    /// Returns the incarnation of this rail, which is published with its address.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns this rail's nonce and its address. Peers read it to prove that they can;
    /// [`try_read`](crate::try_read) does the same alone.
    pub fn nonce_place(&self) -> (u64, [u8; 16]) {
        (self.nonce.as_ptr().addr() as u64, *self.nonce)
    }

    /// Returns the shortest and the longest message about which the measured pace of copies decides whether
    /// it is sent at once or read.
    pub fn measured_lengths() -> (usize, usize) {
        pace::LENGTHS
    }

    /// Returns the number of refused connections: other users, other versions, invalid messages.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether `peer` pulls long messages from us; otherwise they are copied in fragments.
    pub fn pulls_from_us(&self, peer: PeerIndex) -> bool {
        self.peers
            .get(peer.index())
            .is_some_and(|peer| peer.can_read_us == Some(true))
    }

    /// Whether a lane to or from a peer is established, so that the kernel reports the end of its process.
    pub fn is_connected(&self, peer: PeerIndex) -> bool {
        let welcomed = |tx: &Tx| matches!(tx.handshake, Handshake::Up(_));
        self.peers
            .get(peer.index())
            .is_some_and(|peer| peer.rx.is_some() || peer.tx.as_deref().is_some_and(welcomed))
    }

    /// Polls the sockets often for a while, because a handshake is likely.
    pub(crate) fn expect_handshake(&mut self) {
        self.likely_until = self.now + HANDSHAKE_LIKELY;
        self.next_socket_poll = self.next_socket_poll.min(self.now + POLL_SOCKETS_OFTEN);
    }

    pub(crate) fn emit(&mut self, peer: u32, kind: EventKind) {
        let life = match (kind, self.peers.get(peer as usize)) {
            // Both ends accepted lanes for these two epochs.
            (EventKind::PeerUp, Some(peer)) => Life::of(peer.epochs[0], peer.epochs[1]),
            _ => Life::FIRST,
        };
        self.events.push_back(RailEvent {
            at: self.now,
            scope: Scope::Peer(PeerIndex(peer)),
            kind,
            life,
        });
    }

    /// Reports the end of every peer that has ended and whose lane is empty. Returns how many.
    fn retire_ended(&mut self) -> Work {
        let mut retired = 0;
        for index in 0..self.peers.len() {
            let peer = &self.peers[index];
            let drained = peer.rx.as_ref().is_none_or(|rx| !rx.lane.is_ready());
            if let (Some(reason), None, true) = (peer.ending, peer.down, drained) {
                self.end(index as u32, reason);
                retired += 1;
            }
        }
        retired
    }

    /// Ends a peer's connection and reports it.
    pub(crate) fn end(&mut self, index: u32, reason: DownReason) {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return;
        };
        if peer.down.is_some() {
            peer.over |= reason == DownReason::Hostile;
            return self.end_attempt(index);
        }
        self.retire_lanes(index, reason);
        self.emit(index, EventKind::PeerDown(reason));
    }

    /// Ends a peer's connection without an event.
    pub(crate) fn retire_lanes(&mut self, index: u32, reason: DownReason) {
        let peer = &mut self.peers[index as usize];
        peer.down = Some(reason);
        (peer.ending, peer.short_since) = (None, None);
        self.past.add(peer);
        if let Some(mut tx) = peer.tx.take() {
            peer.base = tx.last();
            tx.retire();
            peer.retired.push(*tx);
        }
        if let Some(mut rx) = peer.rx.take() {
            rx.lane.publish();
            rx.announce_close(SEVERED);
        }
        (peer.memory, peer.can_read_us) = (None, None);
        peer.next_epoch();
        self.hot.retain(|&hot| hot != index);
        self.cold.retain(|&cold| cold != index);
        self.pulls.requests.owners.forget(holder(&peer.id));
        self.pulls.fail(PeerIndex(index), self.leases.coop_state());
        self.leases.forget(PeerIndex(index));
    }

    /// Whether something goes on that no socket reports: a lane that is to be dialled again, a lack of
    /// descriptors, memory of ours that a peer reads and may want our help with.
    fn has_work_without_events(&self) -> bool {
        let lanes = |peer: &Peer| {
            let attempted = peer.attempt.as_ref().and_then(|attempt| attempt.tx.as_deref());
            let tx = peer.tx.as_deref().or(attempted);
            tx.is_some_and(|tx| matches!(tx.handshake, Handshake::Connecting))
        };
        let is_helping = self.copies_together && !self.leases.borrowers().is_empty();
        is_helping || self.is_short_of_files() || self.peers.iter().any(lanes)
    }

    /// Sets the attention of every lane to hot or cold, by the list that it is in.
    fn restore_attention(&mut self) {
        for (list, attention) in [(&self.hot, HOT), (&self.cold, COLD)] {
            for &index in list {
                if let Some(rx) = &mut self.peers[index as usize].rx {
                    rx.set_attention(attention);
                }
            }
        }
    }
}

/// Whether the kernel and the container allow reading by `process_vm_readv` at all.
fn own_memory_is_readable(nonce: &[u8; 16]) -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    sys::read_nonce(pid, nonce.as_ptr().addr() as u64).is_some_and(|read| read == *nonce)
}

impl Rail for ShmRail {
    fn name(&self) -> &RailName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn address(&self) -> RailAddress {
        RailAddress::native("shm", self.id)
    }

    fn progress(&mut self, now: Time) -> Work {
        self.now = now;
        self.pulls.close(now);
        if now < self.next_socket_poll {
            return 0;
        }
        let work = self.poll_sockets() + self.retire_ended();
        self.next_socket_poll = now
            + if now < self.likely_until {
                POLL_SOCKETS_OFTEN
            } else {
                POLL_SOCKETS_SELDOM
            };
        work
    }

    /// While the owner sleeps on the sockets, they wake it: then only what shows at no socket is due.
    fn next_deadline(&self) -> Option<Time> {
        (!self.is_armed || self.has_work_without_events()).then_some(self.next_socket_poll)
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        for peer in &mut self.peers {
            if let Some(rx) = &mut peer.rx {
                rx.lane.publish();
                rx.set_attention(ASLEEP);
            }
        }
        self.barrier.pass();
        let waiting = self.peers.iter().any(|peer| {
            peer.rx.as_ref().is_some_and(|rx| rx.lane.is_ready())
                || (peer.ending.is_some() && peer.down.is_none())
        });
        if waiting || !self.pulls.is_idle() || !self.events.is_empty() {
            self.is_armed = false;
            self.restore_attention();
            return Ok(Armed::Ready);
        }
        self.is_armed = true;
        Ok(Armed::Sleep(self.epoll.as_fd()))
    }

    fn disarm(&mut self) {
        self.is_armed = false;
        self.restore_attention();
        self.poll_sockets();
        // During the sleep only hot lanes were polled; the next polls visit all lanes.
        for index in std::mem::take(&mut self.cold) {
            self.hot.push(index);
            if let Some(rx) = &mut self.peers[index as usize].rx {
                rx.set_attention(HOT);
            }
        }
    }

    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.events.pop_front()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.now = now;
        self.poll_sockets();
        for index in 0..self.peers.len() as u32 {
            self.end_attempt(index);
        }
        let connecting = self.peers.iter().any(|peer| {
            peer.tx
                .as_ref()
                .is_some_and(|tx| matches!(tx.handshake, Handshake::Connecting))
        });
        if connecting && now < by {
            return false;
        }
        self.close_lanes();
        self.pulls.close(now);
        !self.pulls.is_written_to() || now >= by
    }
}

impl ShmRail {
    /// Closes all lanes. Messages in them stay readable for receivers, which have them mapped or find them
    /// with the hello in their socket, so there is nothing to wait for.
    fn close_lanes(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        self.pulls.fail_all(self.leases.coop_state());
        for peer in &mut self.peers {
            if let Some(mut rx) = peer.rx.take() {
                rx.lane.publish();
                rx.announce_close(CLOSED);
            }
            if let Some(tx) = peer.tx.take() {
                tx.announce_close(CLOSED);
            }
            peer.down.get_or_insert(DownReason::Closed);
            peer.over = true;
        }
        self.hot.clear();
        self.cold.clear();
        // A process that is about to connect finds its socket closed.
        self.awaiting_hello.clear();
        self.deferred.clear();
        self.pending_peers.clear();
    }
}

impl Drop for ShmRail {
    /// Memory that a peer writes to cannot be freed before that has ended: microseconds, unless its process
    /// is stopped.
    fn drop(&mut self) {
        self.close_lanes();
        let start = std::time::Instant::now();
        loop {
            self.pulls.close(self.now + start.elapsed());
            if !self.pulls.is_written_to() {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
