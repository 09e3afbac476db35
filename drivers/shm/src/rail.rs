//! The shm rail: its parts, how it is opened, and the contract common to all rails.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::{RailError, check_file_size};
use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::map::Object;
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_ring::lane::Geometry;
use rustix::event::epoll;

use crate::again::Attempt;
use crate::attend::{ASLEEP, Barrier, COLD, HOT};
use crate::config::ShmConfig;
use crate::connect::{self, system};
use crate::contact::Token;
use crate::help::Helping;
use crate::lease::{Leases, holder};
use crate::pull::{Memory, Pulls};
use crate::ready::{READY_BYTES, Ready};
use crate::rx::Rx;
use crate::stranger::Strangers;
use crate::sys;
use crate::tally::Tally;
use crate::tx::{CLOSED, Contact, FRONT_WORDS, SEVERED, Tx};
use crate::wire::Id;

/// How often the sockets are looked at while first contact is likely.
const LOOK_OFTEN: Duration = Duration::from_micros(50);
/// How often otherwise: a twentieth of the bound within which the death of a peer is to be noticed.
const LOOK_SELDOM: Duration = Duration::from_millis(5);
/// For how long after a peer was opened, or a lane made, first contact is likely.
const LIKELY: Duration = Duration::from_secs(1);

/// What the rail knows of one peer.
pub(crate) struct Peer {
    pub(crate) id: Id,
    pub(crate) incarnation: Incarnation,
    pub(crate) tx: Option<Box<Tx>>,
    pub(crate) rx: Option<Box<Rx>>,
    /// What first contact told about its memory.
    pub(crate) memory: Option<Memory>,
    /// Whether it proved that it can read ours; unknown before it welcomed us.
    pub(crate) reads_us: Option<bool>,
    /// Set when the peer's end has been told, until it is up anew.
    pub(crate) down: Option<DownReason>,
    /// Nothing comes after this.
    pub(crate) over: bool,
    /// Our former lanes, oldest first, for `reclaim`.
    pub(crate) buried: Vec<Tx>,
    /// Messages that went into them, and the last watermark of those that are gone.
    pub(crate) base: u64,
    pub(crate) passed: u64,
    /// The present lives of the way: of our end, and of the peer's as far as we heard.
    pub(crate) lives: [u32; 2],
    /// Lanes of a peer that is down.
    pub(crate) attempt: Option<Box<Attempt>>,
    /// Its end was noticed; it is told when its lane is empty.
    pub(crate) ending: Option<DownReason>,
}

impl Peer {
    pub(crate) fn new(id: Id, incarnation: Incarnation) -> Self {
        Self {
            id,
            incarnation,
            tx: None,
            rx: None,
            memory: None,
            reads_us: None,
            down: None,
            over: false,
            buried: Vec::new(),
            base: 0,
            passed: 0,
            lives: [0; 2],
            attempt: None,
            ending: None,
        }
    }

    /// What a read of its memory needs: the memory, and a socket that breaks when its process ends.
    pub(crate) fn memory_and_socket(&mut self) -> (Option<&mut Memory>, Option<BorrowedFd<'_>>) {
        let theirs = self.rx.as_ref().map(|rx| rx.socket());
        let socket = theirs.or_else(|| self.tx.as_ref().and_then(|tx| tx.socket()));
        (self.memory.as_mut(), socket.map(AsFd::as_fd))
    }
}

/// Messages between the processes of one host. See the crate's documentation.
pub struct ShmRail {
    name: RailName,
    pub(crate) capabilities: Capabilities,
    pub(crate) geometry: Geometry,
    pub(crate) most_peers: usize,
    pub(crate) id: Id,
    pub(crate) incarnation: Incarnation,
    pub(crate) listener: OwnedFd,
    pub(crate) epoll: OwnedFd,
    pub(crate) ready: Ready,
    pub(crate) ready_object: Object,
    pub(crate) barrier: Barrier,
    pub(crate) nonce: Box<[u8; 16]>,
    pub(crate) peers: Vec<Peer>,
    /// Peers whose lanes are looked at in every poll.
    pub(crate) hot: Vec<u32>,
    /// Peers with lanes that are looked at when their ready bit is set, or the sweep comes by.
    pub(crate) cold: Vec<u32>,
    pub(crate) sweep: usize,
    /// Which hot lane the next poll begins with.
    pub(crate) first: usize,
    /// Empty polls in a row.
    pub(crate) idle: u32,
    pub(crate) pulls: Pulls,
    pub(crate) leases: Leases,
    /// Whether owners and readers copy together, and what we have done of it.
    pub(crate) helps: bool,
    pub(crate) helping: Helping,
    /// Our name in the leases of others.
    pub(crate) holder: u64,
    /// Connections whose hello has not come.
    pub(crate) unheard: Vec<OwnedFd>,
    /// Hellos of peers that were not opened yet.
    pub(crate) strangers: Strangers,
    pub(crate) events: VecDeque<RailEvent>,
    pub(crate) now: Time,
    next_look: Time,
    likely_until: Time,
    pub(crate) refused: u64,
    /// What went through lanes that are gone.
    pub(crate) past: Tally,
    pub(crate) closed: bool,
}

impl ShmRail {
    /// Opens the rail: a socket under a random name, a page of ready bits, nothing else.
    ///
    /// # Errors
    /// When the settings do not fit each other, or the system refuses sockets or shared memory.
    pub fn open(name: &RailName, config: &ShmConfig) -> Result<Self, RailError> {
        if name.kind() != "shm" || !name.object().is_empty() {
            return Err(RailError::Unusable {
                rail: name.to_string(),
                reason: "the shm rail takes no object after its name".to_owned(),
                remedy: "write `shm`".to_owned(),
            });
        }
        let geometry = config.geometry()?;
        // Now, and not when the first peer comes.
        let lane = FRONT_WORDS * 8 + geometry.bytes();
        check_file_size(lane as u64).map_err(|source| {
            RailError::memory(
                "make shared memory objects for lanes",
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
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| system("make an epoll set", errno))?;
        let ready_object = Object::new("doorbell-ready", READY_BYTES)?;
        let ready = Ready::map(&ready_object)?;
        let cma = config.cma && own_memory_is_readable(&nonce);
        let rail = Self {
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
            hot: Vec::new(),
            cold: Vec::new(),
            sweep: 0,
            first: 0,
            idle: 0,
            pulls: Pulls::new(),
            leases: Leases::new()?,
            helps: config.help,
            helping: Helping::default(),
            holder: holder(&id),
            unheard: Vec::new(),
            strangers: Strangers::default(),
            events: VecDeque::new(),
            now: Time::ZERO,
            next_look: Time::ZERO,
            likely_until: Time::ZERO + LIKELY,
            refused: 0,
            past: Tally::default(),
            closed: false,
        };
        rail.watch(&rail.listener, Token::Listener)?;
        Ok(rail)
    }

    /// Which life of this process the rail belongs to: published with the address.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Where peers read this rail's nonce, by which they prove that they can, and the nonce: for who wants to try it alone
    /// ([`try_read`](crate::try_read)).
    pub fn nonce_place(&self) -> (u64, [u8; 16]) {
        (self.nonce.as_ptr().addr() as u64, *self.nonce)
    }

    /// Connections refused so far: other users, other versions, nonsense.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// How long messages reach `peer` at present: pulled by it, or copied in fragments.
    pub fn pulls_from_us(&self, peer: PeerIndex) -> bool {
        self.peers
            .get(peer.index())
            .is_some_and(|peer| peer.reads_us == Some(true))
    }

    /// First contact is likely for a while.
    pub(crate) fn expect_contact(&mut self) {
        self.likely_until = self.now + LIKELY;
        self.next_look = self.next_look.min(self.now + LOOK_OFTEN);
    }

    pub(crate) fn tell(&mut self, peer: u32, kind: EventKind) {
        let life = match (kind, self.peers.get(peer as usize)) {
            // Its lanes were taken for these two, at both ends.
            (EventKind::PeerUp, Some(peer)) => Life::of(peer.lives[0], peer.lives[1]),
            _ => Life::FIRST,
        };
        self.events.push_back(RailEvent {
            at: self.now,
            scope: Scope::Peer(PeerIndex(peer)),
            kind,
            life,
        });
    }

    /// Tells the end of every peer that has ended and whose lane is empty. Returns how many.
    fn bury(&mut self) -> Work {
        let mut buried = 0;
        for index in 0..self.peers.len() {
            let peer = &self.peers[index];
            let drained = peer.rx.as_ref().is_none_or(|rx| !rx.lane.is_ready());
            if let (Some(reason), None, true) = (peer.ending, peer.down, drained) {
                self.end(index as u32, reason);
                buried += 1;
            }
        }
        buried
    }

    /// The peer is down: it is told.
    pub(crate) fn end(&mut self, index: u32, reason: DownReason) {
        let Some(peer) = self.peers.get_mut(index as usize) else {
            return;
        };
        if peer.down.is_some() {
            peer.over |= reason == DownReason::Hostile;
            return self.end_attempt(index);
        }
        self.bury_lanes(index, reason);
        self.tell(index, EventKind::PeerDown(reason));
    }

    /// Everything that comes with the end of a peer but the event.
    pub(crate) fn bury_lanes(&mut self, index: u32, reason: DownReason) {
        let peer = &mut self.peers[index as usize];
        peer.down = Some(reason);
        peer.ending = None;
        self.past.add(peer);
        if let Some(mut tx) = peer.tx.take() {
            peer.base = tx.last();
            tx.bury();
            peer.buried.push(*tx);
        }
        if let Some(mut rx) = peer.rx.take() {
            rx.lane.publish();
            rx.say(SEVERED);
        }
        (peer.memory, peer.reads_us) = (None, None);
        peer.next_life();
        self.hot.retain(|&hot| hot != index);
        self.cold.retain(|&cold| cold != index);
        self.pulls.fail(PeerIndex(index), self.leases.board());
        self.leases.forget(PeerIndex(index));
    }

    /// Attention of every lane according to its list.
    fn attend_awake(&mut self) {
        for (list, attention) in [(&self.hot, HOT), (&self.cold, COLD)] {
            for &index in list {
                if let Some(rx) = &mut self.peers[index as usize].rx {
                    rx.attend(attention);
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
        if now < self.next_look {
            return 0;
        }
        let work = self.look() + self.bury();
        self.next_look = now
            + if now < self.likely_until {
                LOOK_OFTEN
            } else {
                LOOK_SELDOM
            };
        work
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(self.next_look)
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        for peer in &mut self.peers {
            if let Some(rx) = &mut peer.rx {
                rx.lane.publish();
                rx.attend(ASLEEP);
            }
        }
        self.barrier.pass();
        let waiting = self.peers.iter().any(|peer| {
            peer.rx.as_ref().is_some_and(|rx| rx.lane.is_ready())
                || (peer.ending.is_some() && peer.down.is_none())
        });
        if waiting || !self.pulls.is_idle() || !self.events.is_empty() {
            self.attend_awake();
            return Ok(Armed::Ready);
        }
        Ok(Armed::Sleep(self.epoll.as_fd()))
    }

    fn disarm(&mut self) {
        self.attend_awake();
        self.look();
        // Whatever came while nobody looked at hot lanes only: the next polls look at all of them.
        for index in std::mem::take(&mut self.cold) {
            self.hot.push(index);
            if let Some(rx) = &mut self.peers[index as usize].rx {
                rx.attend(HOT);
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
        self.look();
        for index in 0..self.peers.len() as u32 {
            self.end_attempt(index);
        }
        let dialling = self.peers.iter().any(|peer| {
            peer.tx
                .as_ref()
                .is_some_and(|tx| matches!(tx.contact, Contact::Dialling))
        });
        if dialling && now < by {
            return false;
        }
        self.farewell();
        self.pulls.close(now);
        !self.pulls.is_written_to() || now >= by
    }
}

impl ShmRail {
    /// Messages in our lanes stay readable for their receivers, who have them mapped or find them, with the hello,
    /// in their socket: nobody has to be waited for.
    fn farewell(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        self.pulls.fail_all(self.leases.board());
        for peer in &mut self.peers {
            if let Some(mut rx) = peer.rx.take() {
                rx.lane.publish();
                rx.say(CLOSED);
            }
            if let Some(tx) = peer.tx.take() {
                tx.say(CLOSED);
            }
            peer.down.get_or_insert(DownReason::Closed);
            peer.over = true;
        }
        self.hot.clear();
        self.cold.clear();
        // Who is about to call learns from its socket that nobody answers.
        self.unheard.clear();
        self.strangers.clear();
    }
}

impl Drop for ShmRail {
    /// Memory that a peer writes to cannot be given back before it has ended: microseconds, unless its process was stopped.
    fn drop(&mut self) {
        self.farewell();
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
