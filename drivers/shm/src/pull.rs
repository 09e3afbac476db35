//! Pulling: one-sided reads of a peer's memory, in bounded pieces; and fences, which wait for them.
//!
//! Memory of a region is copied out of a map of its object, without the kernel; everything else, and a region that
//! cannot be opened or of which too little is read to make a map worth while, by `process_vm_readv`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::{Object, Protection};
use doorbell_fabric::message::{Landing, OpError, OpId, PeerIndex, Remote};

use crate::lease::{Foreign, Place, serial};
use crate::map::Window;
use crate::sys;

/// Bytes per poll: long enough that the system call is nothing, short enough that other peers are served.
const PIECE: usize = 256 << 10;

/// What the first contact told about a peer's memory, whichever side made it.
pub(crate) struct Memory {
    leases: Foreign,
    pid: i32,
    readable: bool,
    /// Regions of the peer, the one used last at the end.
    windows: Vec<Slot>,
    /// [`WORTH`], but in tests.
    pub(crate) worth: u64,
    #[cfg(test)]
    pub(crate) mapped: usize,
}

/// Regions known per peer.
pub(crate) const MOST_WINDOWS: usize = 16;
/// Bytes mapped per peer, unless one region alone is longer: a map keeps the memory of a region that its owner has
/// dropped.
const MOST_MAPPED: usize = 256 << 20;
/// A map is made when the object has been read as often as this, counted in bytes: with 4 KiB pages it costs 0.22 ns a
/// byte, and a byte read from it comes 0.06 ns sooner than by the kernel. Memory that is used once is never mapped.
const WORTH: u64 = 4;

/// What is known of one region.
struct Slot {
    descriptor: i32,
    serial: u64,
    /// Bytes asked for so far.
    asked: u64,
    window: Opened,
}

enum Opened {
    NotYet,
    Refused,
    Yes(Window),
}

impl Memory {
    /// The map of a region of which `length` bytes are wanted, when it is worth while and possible.
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

    fn mapped_bytes(&self) -> usize {
        let bytes = |slot: &Slot| match &slot.window {
            Opened::Yes(window) => window.len(),
            Opened::NotYet | Opened::Refused => 0,
        };
        self.windows.iter().map(bytes).sum()
    }

    /// Not there, not ours to open, not sealed, or no longer the object of the lease: then it is read otherwise.
    #[cold]
    fn open(&self, place: &Place) -> Option<Window> {
        let process = u32::try_from(self.pid).ok()?;
        let least = usize::try_from(place.length).ok()?;
        let object = Object::open_of(process, place.descriptor, least, Protection::ReadOnly).ok()?;
        if object.len() != least || serial(&object) != Some(place.serial) {
            return None;
        }
        Window::of(&object).ok()
    }

    /// Maps the peer's leases and proves, by its nonce, that its memory can be read.
    pub(crate) fn prove(
        leases: &Object,
        pid: i32,
        nonce: (u64, [u8; 16]),
        wanted: bool,
    ) -> Result<Self, RailError> {
        let readable = wanted && sys::read_nonce(pid, nonce.0) == Some(nonce.1);
        Ok(Self {
            leases: Foreign::map(leases)?,
            pid,
            readable,
            windows: Vec::new(),
            worth: WORTH,
            #[cfg(test)]
            mapped: 0,
        })
    }

    pub(crate) fn readable(&self) -> bool {
        self.readable
    }
}

/// A read under way.
#[derive(Debug)]
struct Pull {
    op: OpId,
    peer: PeerIndex,
    from: Remote,
    into: Landing,
    done: usize,
    number: u64,
    /// Decided at the first piece, so that many reads at a time do not throw out each other's maps.
    way: Option<Way>,
}

/// How a read is done.
#[derive(Clone, Debug)]
enum Way {
    Kernel,
    /// From this offset of the map.
    Map(Window, u64),
}

#[derive(Debug)]
struct Fence {
    op: OpId,
    peer: Option<PeerIndex>,
    /// Reads with smaller numbers were posted before.
    before: u64,
}

/// Reads under way, fences, and outcomes not told yet.
#[derive(Debug)]
pub(crate) struct Pulls {
    running: VecDeque<Pull>,
    fences: Vec<Fence>,
    ended: VecDeque<(OpId, Result<u64, OpError>)>,
    started: u64,
}

/// Most reads and fences under way at a time.
const MOST: usize = 1024;

impl Pulls {
    pub(crate) fn new() -> Self {
        Self {
            running: VecDeque::with_capacity(MOST),
            fences: Vec::new(),
            ended: VecDeque::with_capacity(MOST),
            started: 0,
        }
    }

    /// Whether another one can be started.
    pub(crate) fn has_room(&self) -> bool {
        self.running.len() + self.ended.len() + self.fences.len() < MOST
    }

    /// Reads started so far.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.ended.is_empty()
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

    /// A fence: done when everything started before it, in its scope, has ended.
    pub(crate) fn fence(&mut self, op: OpId, peer: Option<PeerIndex>) {
        self.fences.push(Fence {
            op,
            peer,
            before: self.started + 1,
        });
        self.settle();
    }

    /// The peer whose memory the oldest read wants.
    pub(crate) fn next_peer(&self) -> Option<PeerIndex> {
        self.running.front().map(|pull| pull.peer)
    }

    /// One piece of the oldest read, from the memory given; `None` while contact is being made. The oldest goes to
    /// the back of the queue afterwards, so that a long read does not hold up a short one. Returns whether
    /// something was done.
    pub(crate) fn step(
        &mut self,
        memory: Option<&mut Memory>,
        us: u64,
        socket: Option<BorrowedFd<'_>>,
    ) -> bool {
        let Some(mut pull) = self.running.pop_front() else {
            return false;
        };
        let Some((memory, socket)) = memory.zip(socket) else {
            self.running.push_back(pull);
            return false;
        };
        match pull.piece(memory, us, socket) {
            Some(outcome) => {
                self.ended.push_back((pull.op, outcome));
                self.settle();
            }
            None => self.running.push_back(pull),
        }
        true
    }

    pub(crate) fn ended(&mut self) -> Option<(OpId, Result<u64, OpError>)> {
        self.ended.pop_front()
    }

    /// The peer is gone: its reads end. None of them touches memory any more, because reads happen inside `step`.
    pub(crate) fn fail(&mut self, peer: PeerIndex) {
        for _ in 0..self.running.len() {
            let Some(pull) = self.running.pop_front() else {
                break;
            };
            if pull.peer == peer {
                self.ended.push_back((pull.op, Err(OpError::NotDone)));
            } else {
                self.running.push_back(pull);
            }
        }
        self.settle();
    }

    /// Ends the fences that have nothing left to wait for.
    fn settle(&mut self) {
        let Self {
            running,
            fences,
            ended,
            ..
        } = self;
        fences.retain(|fence| {
            let open = running
                .iter()
                .any(|pull| pull.number < fence.before && fence.peer.is_none_or(|peer| pull.peer == peer));
            if !open {
                ended.push_back((fence.op, Ok(0)));
            }
            open
        });
    }
}

impl Pull {
    /// Reads the next piece; the outcome when that was the last one.
    fn piece(
        &mut self,
        memory: &mut Memory,
        us: u64,
        socket: BorrowedFd<'_>,
    ) -> Option<Result<u64, OpError>> {
        if !memory.leases.stands(&self.from, us) {
            return Some(Err(if self.done == 0 {
                OpError::Denied
            } else {
                OpError::Withdrawn
            }));
        }
        let into = self.into.part(self.done, PIECE);
        let from = &self.from;
        let way = self.way.get_or_insert_with(|| {
            let place = memory.leases.place(from);
            let window =
                place.and_then(|place| Some((memory.window(&place, from.length.get())?, place.offset)));
            window.map_or(Way::Kernel, |(window, offset)| Way::Map(window, offset))
        });
        match way {
            Way::Map(window, offset) => {
                let at = offset.checked_add(self.done as u64);
                let Some(bytes) = at.and_then(|at| window.bytes(at, into.len())) else {
                    return Some(Err(OpError::Denied));
                };
                self.done += into.write_shared(0, bytes);
                #[cfg(test)]
                {
                    memory.mapped += 1;
                }
            }
            Way::Kernel if !memory.readable => return Some(Err(OpError::System(libc::EPERM))),
            Way::Kernel => {
                let address = from.address.get().wrapping_add(self.done as u64);
                match sys::read_process(memory.pid, address, &into) {
                    Ok(0) if !into.is_empty() => return Some(Err(OpError::System(libc::EFAULT))),
                    Ok(read) => self.done += read,
                    Err(error) => return Some(Err(OpError::System(error.raw_os_error().unwrap_or(0)))),
                }
            }
        }
        let finished = self.done == self.into.len();
        // A map stays what it is when its owner ends; a process number may become somebody else's.
        let ask = finished || matches!(way, Way::Kernel);
        // The read before the second look: a lease that still stands now stood during all of the read.
        fence(Ordering::SeqCst);
        if !memory.leases.stands(&self.from, us) || (ask && hung_up(socket)) {
            return Some(Err(OpError::Withdrawn));
        }
        finished.then_some(Ok(0))
    }
}

/// Whether the process at the other end has ended (and its number may belong to another one). A system call.
pub(crate) fn hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut look = [rustix::event::PollFd::from_borrowed_fd(
        socket.as_fd(),
        rustix::event::PollFlags::RDHUP,
    )];
    let none = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match rustix::event::poll(&mut look, Some(&none)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => false,
        Ok(_) => look[0].revents().intersects(
            rustix::event::PollFlags::RDHUP | rustix::event::PollFlags::HUP | rustix::event::PollFlags::ERR,
        ),
        Err(_) => true,
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
