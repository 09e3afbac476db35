//! Pulls: one-sided reads of a peer's memory in bounded pieces, and fences, which wait for them.
//!
//! Memory of a region is copied out of a map of its object, without the kernel; everything else is read by
//! `process_vm_readv`, as is a region that cannot be opened or is read too little for a map to pay.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use doorbell_fabric::map::{Object, Protection};
use doorbell_fabric::memory::{Room, SharedBytes, View};
use doorbell_fabric::message::{Landing, OpError, OpId, PeerIndex, Remote};
use doorbell_fabric::time::Time;
use rustix::event::PollFlags;

use crate::coop_copy::reader::{Closing, Owners, ReaderStep, Shared};
use crate::coop_copy::state::{ALIVE, CoopState, Split};
use crate::lease::{Foreign, Leases, Place};
use crate::map::Window;
use crate::rooms::Rooms;
use crate::sys;

/// Bytes per poll: long enough to make the system call negligible, short enough that other peers are served.
const PIECE: usize = 256 << 10;

/// A peer's memory, as the handshake described it.
pub(crate) struct Memory {
    leases: Foreign,
    pid: i32,
    readable: bool,
    /// Regions of the peer, the most recently used at the end.
    windows: Vec<Slot>,
    /// [`WORTH`], except in tests.
    pub(crate) worth: u64,
    /// Numbers of its last request that we served, and of its last one for which no share is left.
    pub(crate) answered: u64,
    pub(crate) helped: u64,
    /// The system does not let us write to its memory.
    pub(crate) unwritable: bool,
    /// A moment at which its process was alive.
    alive_at: Option<Instant>,
    /// Regions of the peer that we write.
    pub(crate) rooms: Rooms,
    #[cfg(test)]
    pub(crate) mapped: usize,
}

/// Regions known per peer.
pub(crate) const MOST_WINDOWS: usize = 64;
/// Most bytes mapped per peer, unless one region alone is longer: a map keeps the memory of a region that its
/// owner has dropped.
pub(crate) const MOST_MAPPED: usize = 256 << 20;
/// Reads of an object, counted in bytes, after which it is mapped: with 4 KiB pages the map costs 0.22 ns a
/// byte, and saves 0.06 ns for each byte read. Memory that is used once is never mapped.
const WORTH: u64 = 4;

/// One region of the peer.
struct Slot {
    descriptor: i32,
    serial: u64,
    /// Bytes read so far.
    asked: u64,
    window: Opened,
}

enum Opened {
    NotYet,
    Refused,
    Yes(Window),
}

impl Memory {
    /// The map of a region from which `length` bytes are to be read, if one pays and is possible.
    fn window(&mut self, place: &Place, length: u64) -> Option<Window> {
        let known = self
            .windows
            .iter()
            .position(|slot| (slot.serial, slot.descriptor) == (place.serial, place.descriptor));
        let mut slot = match known {
            Some(at) => self.windows.remove(at),
            None => Slot {
                descriptor: place.descriptor,
                serial: place.serial,
                asked: 0,
                window: Opened::NotYet,
            },
        };
        slot.asked = slot.asked.saturating_add(length);
        let worth = slot.asked >= place.length.saturating_mul(self.worth) || !self.readable;
        if matches!(slot.window, Opened::NotYet) && worth {
            slot.window = self.open(place).map_or(Opened::Refused, Opened::Yes);
        }
        let window = match &slot.window {
            Opened::Yes(window) => Some(window.clone()),
            Opened::NotYet | Opened::Refused => None,
        };
        self.windows.push(slot);
        while self.windows.len() > MOST_WINDOWS
            || (self.windows.len() > 1 && self.mapped_bytes() > MOST_MAPPED)
        {
            self.windows.remove(0);
        }
        window
    }

    /// Shows a region's memory that is leased to us, where it lies. It is mapped at its first use; that the
    /// map cannot be made is remembered.
    pub(crate) fn view(&mut self, of: &Remote, us: u64) -> Option<View> {
        if !self.leases.stands(of, us) {
            return None;
        }
        let place = self.leases.place(of)?;
        let view = self
            .window(&place, u64::MAX)?
            .view(place.offset, of.length.get())?;
        // After the map was made: a lease that is valid now is that of the region that was mapped.
        fence(Ordering::SeqCst);
        self.leases.stands(of, us).then_some(view)
    }

    /// Writes bytes into memory that is leased to us for that; returns whether they are there.
    pub(crate) fn place(&mut self, bytes: SharedBytes<'_>, to: &Remote, us: u64, ours: &Leases) -> bool {
        self.rooms.place((&self.leases, self.pid), bytes, to, us, ours)
    }

    /// Reads such memory; returns whether its bytes are there.
    pub(crate) fn fetch(&mut self, from: &Remote, us: u64, into: Room<'_>) -> bool {
        self.rooms.fetch((&self.leases, self.pid), from, us, into)
    }

    fn mapped_bytes(&self) -> usize {
        let bytes = |slot: &Slot| match &slot.window {
            Opened::Yes(window) => window.len(),
            Opened::NotYet | Opened::Refused => 0,
        };
        self.windows.iter().map(bytes).sum()
    }

    /// Opens a region's object. Fails if it is gone, not accessible, not sealed, or not the lease's any
    /// longer.
    #[cold]
    fn open(&self, place: &Place) -> Option<Window> {
        let process = u32::try_from(self.pid).ok()?;
        let least = usize::try_from(place.length).ok()?;
        let object = Object::open_of(process, place.descriptor, least, Protection::ReadOnly).ok()?;
        if object.len() != least || object.serial() != Some(place.serial) {
            return None;
        }
        Window::of(&object).ok()
    }

    /// Checks by a peer's nonce that its memory can be read.
    pub(crate) fn prove(leases: Foreign, pid: i32, nonce: (u64, [u8; 16]), wanted: bool) -> Self {
        let readable = wanted && sys::read_nonce(pid, nonce.0) == Some(nonce.1);
        Self {
            leases,
            pid,
            readable,
            windows: Vec::new(),
            worth: WORTH,
            answered: 0,
            helped: 0,
            unwritable: false,
            alive_at: None,
            rooms: Rooms::default(),
            #[cfg(test)]
            mapped: 0,
        }
    }

    pub(crate) fn readable(&self) -> bool {
        self.readable
    }

    pub(crate) fn leases(&self) -> &Foreign {
        &self.leases
    }

    pub(crate) fn process(&self) -> i32 {
        self.pid
    }

    /// Whether its process was alive so recently that its pid refers to it still.
    fn was_alive(&self) -> bool {
        self.alive_at.is_some_and(|at| at.elapsed() < ALIVE)
    }
}

/// A read in progress.
struct Pull {
    op: OpId,
    peer: PeerIndex,
    from: Remote,
    into: Landing,
    done: usize,
    number: u64,
    /// Chosen at the first piece, so that concurrent reads do not evict each other's maps.
    way: Option<Way>,
}

/// How a read is performed.
enum Way {
    Kernel,
    /// From a map, starting at this offset.
    Map(Window, u64),
    /// By the kernel, on both ends' cores.
    Both(Shared),
}

/// The result of one piece.
enum Piece {
    More,
    /// It waits for the owner.
    Waits,
    Ended(Result<u64, OpError>),
}

/// What a piece is read with.
pub(crate) struct PullContext<'a> {
    pub(crate) memory: Option<&'a mut Memory>,
    /// The peer's socket, which the kernel closes when its process ends.
    pub(crate) socket: Option<BorrowedFd<'a>>,
    pub(crate) coop: CoopContext<'a>,
}

/// What a cooperative copy is requested with.
#[derive(Clone, Copy)]
pub(crate) struct CoopContext<'a> {
    /// Our id as a lease holder, and the peer's.
    pub(crate) names: (u64, u64),
    pub(crate) state: CoopState<'a>,
    /// Whether owners are requested to copy.
    pub(crate) help: bool,
}

/// Our requests to owners, of which one is published at a time.
#[derive(Default)]
pub(crate) struct Requests {
    /// The number of the last one, and whether it is published.
    last: u64,
    open: bool,
    pub(crate) owners: Owners,
}

impl Requests {
    /// Requests the owner's help with a read, divided so; `None` where that is not possible now.
    fn publish(
        &mut self,
        pull: &Pull,
        split: Split,
        memory: &Memory,
        coop: CoopContext<'_>,
    ) -> Option<Shared> {
        if self.open || !coop.help || !memory.readable {
            return None;
        }
        let owner = self.owners.find(coop.names.1, memory.pid, &memory.leases)?;
        (self.last, self.open) = (self.last + 1, true);
        let ends = (&pull.from, &pull.into);
        Some(Shared::call(
            coop.state, owner, coop.names, self.last, ends, split,
        ))
    }

    fn withdraw(&mut self, coop: CoopState<'_>) {
        self.open = false;
        coop.withdraw_request();
    }
}

#[derive(Debug)]
struct Fence {
    op: OpId,
    peer: Option<PeerIndex>,
    /// It waits for reads with smaller numbers.
    before: u64,
}

/// Reads in progress, fences, and unreported outcomes.
pub(crate) struct Pulls {
    running: VecDeque<Pull>,
    /// Finished reads whose owner still writes.
    closing: Vec<Closing>,
    pub(crate) requests: Requests,
    fences: Vec<Fence>,
    ended: VecDeque<(OpId, Result<u64, OpError>)>,
    started: u64,
}

/// Most reads and fences in progress.
const MOST: usize = 1024;
/// Reads among which the next one for an owner is searched.
const AHEAD: usize = 16;

impl Pulls {
    pub(crate) fn new() -> Self {
        Self {
            running: VecDeque::with_capacity(MOST),
            closing: Vec::new(),
            requests: Requests::default(),
            fences: Vec::new(),
            ended: VecDeque::with_capacity(MOST),
            started: 0,
        }
    }

    /// Whether another operation can be started.
    pub(crate) fn has_room(&self) -> bool {
        self.running.len() + self.closing.len() + self.ended.len() + self.fences.len() < MOST
    }

    /// Reads started so far.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.ended.is_empty() && self.closing.is_empty()
    }

    pub(crate) fn start(&mut self, op: OpId, peer: PeerIndex, from: Remote, into: Landing) {
        self.started += 1;
        self.running.push_back(Pull {
            op,
            peer,
            from,
            into,
            done: 0,
            number: self.started,
            way: None,
        });
    }

    /// Starts a fence, which is complete when all earlier operations in its scope have ended.
    pub(crate) fn fence(&mut self, op: OpId, peer: Option<PeerIndex>) {
        self.fences.push(Fence {
            op,
            peer,
            before: self.started + 1,
        });
        self.settle();
    }

    /// The peer whose memory the oldest read needs.
    pub(crate) fn next_peer(&self) -> Option<PeerIndex> {
        self.running.front().map(|pull| pull.peer)
    }

    /// Reads one piece of the oldest read; does nothing while the handshake is in progress. The read goes to
    /// the back of the queue afterwards, so that a long one does not delay a short one. Returns whether
    /// something was done.
    pub(crate) fn step(&mut self, context: PullContext<'_>) -> bool {
        let Some(mut pull) = self.running.pop_front() else {
            return false;
        };
        let PullContext { memory, socket, coop } = context;
        let (Some(memory), Some(socket)) = (memory, socket) else {
            self.running.push_back(pull);
            return false;
        };
        if pull.way.is_none() && memory.leases.stands(&pull.from, coop.names.0) {
            pull.way = Some(self.choose(&pull, memory, coop));
        }
        match pull.piece(memory, coop.names.0, socket, coop.state) {
            Piece::Ended(outcome) => {
                let (peer, shared) = (pull.peer, matches!(pull.way, Some(Way::Both(_))));
                self.end(pull, outcome, coop.state);
                // At once, so that the owner copies on while we do what follows this one.
                if shared {
                    self.offer(peer, 1, memory, coop);
                }
            }
            Piece::More => self.running.push_back(pull),
            Piece::Waits => {
                // Behind the next one, not behind all: its end is what the owner's next request waits for.
                let at = self.running.len().min(1);
                self.running.insert(at, pull);
                return false;
            }
        }
        true
    }

    /// Chooses how to perform a read. Where the next one waits, its owner copies that one and we this one; a
    /// read that is alone is divided between both ends.
    fn choose(&mut self, pull: &Pull, memory: &mut Memory, coop: CoopContext<'_>) -> Way {
        if let Some(map) = pull.map(memory) {
            return map;
        }
        let length = pull.from.length.get();
        if Split::whole(length).is_some() && self.offer(pull.peer, 0, memory, coop) {
            return Way::Kernel;
        }
        let shared = Split::of(length).and_then(|split| self.requests.publish(pull, split, memory, coop));
        shared.map_or(Way::Kernel, Way::Both)
    }

    /// Offers a whole read to its owner: the first of this peer that waits, beyond as many as we keep for
    /// ourselves. Returns whether there was one.
    fn offer(&mut self, peer: PeerIndex, keep: usize, memory: &mut Memory, coop: CoopContext<'_>) -> bool {
        let Self {
            running, requests, ..
        } = self;
        if requests.open || !coop.help {
            return false;
        }
        let waits = |pull: &&mut Pull| pull.peer == peer && pull.way.is_none();
        let Some(next) = running.iter_mut().take(AHEAD).filter(waits).nth(keep) else {
            return false;
        };
        let Some(split) = Split::whole(next.from.length.get()) else {
            return false;
        };
        if !memory.leases.stands(&next.from, coop.names.0) {
            return false;
        }
        next.way = next
            .map(memory)
            .or_else(|| requests.publish(next, split, memory, coop).map(Way::Both));
        matches!(next.way, Some(Way::Both(_)))
    }

    /// Ends a read, or keeps it as closing while its owner still writes to it.
    fn end(&mut self, pull: Pull, outcome: Result<u64, OpError>, coop: CoopState<'_>) {
        if let Some(Way::Both(shared)) = pull.way {
            self.requests.withdraw(coop);
            if !shared.settled() {
                self.closing.push(Closing {
                    op: pull.op,
                    peer: pull.peer,
                    number: pull.number,
                    outcome,
                    _into: pull.into,
                    shared,
                    ask_at: Time::ZERO,
                    urge_at: None,
                });
                return;
            }
        }
        self.ended.push_back((pull.op, outcome));
        self.settle();
    }

    /// Ends all reads; none is started any more.
    pub(crate) fn fail_all(&mut self, coop: CoopState<'_>) {
        while let Some(pull) = self.running.pop_front() {
            self.end(pull, Err(OpError::NotDone), coop);
        }
        self.settle();
    }

    /// Whether peers still write to our memory.
    pub(crate) fn is_written_to(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Ends abandoned reads that no owner writes to any more.
    pub(crate) fn close(&mut self, now: Time) {
        if self.closing.is_empty() {
            return;
        }
        let Self { closing, ended, .. } = self;
        closing.retain_mut(|closing| {
            let over = closing.over(now);
            if over {
                ended.push_back((closing.op, closing.outcome));
            }
            !over
        });
        self.settle();
    }

    pub(crate) fn ended(&mut self) -> Option<(OpId, Result<u64, OpError>)> {
        self.ended.pop_front()
    }

    /// Ends the reads of a peer that is down. They touch no memory any more, because reads happen inside
    /// `step`, except those that the owner is writing to: these end when that has.
    pub(crate) fn fail(&mut self, peer: PeerIndex, coop: CoopState<'_>) {
        for _ in 0..self.running.len() {
            let Some(pull) = self.running.pop_front() else {
                break;
            };
            if pull.peer == peer {
                self.end(pull, Err(OpError::NotDone), coop);
            } else {
                self.running.push_back(pull);
            }
        }
        self.settle();
    }

    /// Whether a read or a fence is still about this peer.
    pub(crate) fn refers_to(&self, peer: PeerIndex) -> bool {
        self.running.iter().any(|pull| pull.peer == peer)
            || self.closing.iter().any(|closing| closing.peer == peer)
            || self.fences.iter().any(|fence| fence.peer == Some(peer))
    }

    /// Completes the fences that have nothing left to wait for.
    fn settle(&mut self) {
        let Self {
            running,
            closing,
            fences,
            ended,
            ..
        } = self;
        fences.retain(|fence| {
            let before = |number: u64, of: PeerIndex| {
                number < fence.before && fence.peer.is_none_or(|peer| of == peer)
            };
            let open = running.iter().any(|pull| before(pull.number, pull.peer))
                || closing.iter().any(|closing| before(closing.number, closing.peer));
            if !open {
                ended.push_back((fence.op, Ok(0)));
            }
            open
        });
    }
}

impl Pull {
    /// The map to read from, if one pays and is possible.
    fn map(&self, memory: &mut Memory) -> Option<Way> {
        let place = memory.leases.place(&self.from)?;
        let window = memory.window(&place, self.from.length.get())?;
        Some(Way::Map(window, place.offset))
    }

    /// Reads the next piece.
    fn piece(&mut self, memory: &mut Memory, us: u64, socket: BorrowedFd<'_>, coop: CoopState<'_>) -> Piece {
        if !memory.leases.stands(&self.from, us) {
            return Piece::Ended(Err(if self.done == 0 {
                OpError::Denied
            } else {
                OpError::Withdrawn
            }));
        }
        let piece = match &mut self.way {
            Some(Way::Map(window, offset)) => {
                let into = self.into.part(self.done, PIECE);
                let at = offset.checked_add(self.done as u64);
                match at.and_then(|at| window.bytes(at, into.len())) {
                    None => Piece::Ended(Err(OpError::Denied)),
                    Some(bytes) => {
                        self.done += into.write_shared(0, bytes);
                        #[cfg(test)]
                        {
                            memory.mapped += 1;
                        }
                        self.more()
                    }
                }
            }
            Some(Way::Both(_)) => self.shares(memory.pid, coop),
            _ if !memory.readable => Piece::Ended(Err(OpError::System(libc::EPERM))),
            _ => self.by_kernel(memory.pid),
        };
        // A map stays valid when its owner ends; a pid may be reused.
        let finished = matches!(piece, Piece::Ended(Ok(_)));
        if matches!(piece, Piece::Ended(Err(_)) | Piece::Waits) {
            return piece;
        }
        if let Some(Way::Both(shared)) = &self.way {
            memory.alive_at = shared.alive_at().or(memory.alive_at);
        }
        let ask = match &self.way {
            Some(Way::Map(..)) => finished,
            _ => !memory.was_alive(),
        };
        // The read before the second check: a lease that is valid now was valid during all of the read.
        fence(Ordering::SeqCst);
        let asked_at = ask.then(Instant::now);
        if !memory.leases.stands(&self.from, us) || (ask && hung_up(socket)) {
            return Piece::Ended(Err(OpError::Withdrawn));
        }
        memory.alive_at = asked_at.or(memory.alive_at);
        piece
    }

    fn more(&self) -> Piece {
        if self.done == self.into.len() {
            Piece::Ended(Ok(0))
        } else {
            Piece::More
        }
    }

    fn by_kernel(&mut self, pid: i32) -> Piece {
        let into = self.into.part(self.done, PIECE);
        let address = self.from.address.get().wrapping_add(self.done as u64);
        match sys::read_process(pid, address, &into) {
            Ok(0) if !into.is_empty() => return Piece::Ended(Err(OpError::System(libc::EFAULT))),
            Ok(read) => self.done += read,
            Err(error) => return Piece::Ended(Err(OpError::System(error.raw_os_error().unwrap_or(0)))),
        }
        self.more()
    }

    /// Copies shares of a cooperative copy, until a piece is full.
    fn shares(&mut self, pid: i32, coop: CoopState<'_>) -> Piece {
        let Some(Way::Both(shared)) = &mut self.way else {
            return Piece::More;
        };
        let mut read = 0;
        loop {
            let (at, length) = match shared.next(coop) {
                ReaderStep::Copy(at, length) => (at as usize, length as usize),
                ReaderStep::Wait => return Piece::Waits,
                ReaderStep::Done => return Piece::Ended(Ok(0)),
            };
            let mut done = 0;
            while done < length {
                let into = self.into.part(at + done, length - done);
                let address = self.from.address.get().wrapping_add((at + done) as u64);
                match sys::read_process(pid, address, &into) {
                    Ok(0) => return Piece::Ended(Err(OpError::System(libc::EFAULT))),
                    Ok(some) => done += some,
                    Err(error) => {
                        return Piece::Ended(Err(OpError::System(error.raw_os_error().unwrap_or(0))));
                    }
                }
            }
            read += length;
            self.done += length;
            if read >= PIECE && shared.has_more() {
                return Piece::More;
            }
        }
    }
}

/// Whether the process at the other end has ended (its pid may be reused). One system call.
pub(crate) fn hung_up(socket: BorrowedFd<'_>) -> bool {
    match doorbell_fabric::poll::state(socket, PollFlags::RDHUP) {
        Ok(state) => state.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR),
        Err(error) => error != rustix::io::Errno::INTR,
    }
}

#[cfg(test)]
impl Memory {
    pub(crate) fn windows(&self) -> usize {
        self.windows.len()
    }

    pub(crate) fn forget(&mut self) {
        self.windows.clear();
    }
}
