//! Pulling: one-sided reads of a peer's memory, in bounded pieces; and fences, which wait for them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::Object;
use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{OpError, OpId, PeerIndex, Remote};

use crate::lease::Foreign;
use crate::sys;

/// Bytes per poll: long enough that the system call is nothing, short enough that other peers are served.
const PIECE: usize = 256 << 10;

/// What the first contact told about a peer's memory, whichever side made it.
pub(crate) struct Memory {
    leases: Foreign,
    pid: i32,
    readable: bool,
}

impl Memory {
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
    into: MutLoan,
    done: usize,
    number: u64,
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

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.ended.is_empty()
    }

    pub(crate) fn start(&mut self, op: OpId, peer: PeerIndex, from: Remote, into: MutLoan) {
        self.started += 1;
        self.running.push_back(Pull {
            op,
            peer,
            from,
            into,
            done: 0,
            number: self.started,
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
    pub(crate) fn step(&mut self, memory: Option<&Memory>, us: u64, socket: Option<BorrowedFd<'_>>) -> bool {
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
    fn piece(&mut self, memory: &Memory, us: u64, socket: BorrowedFd<'_>) -> Option<Result<u64, OpError>> {
        if !memory.readable {
            return Some(Err(OpError::System(libc::EPERM)));
        }
        if !memory.leases.stands(&self.from, us) {
            return Some(Err(if self.done == 0 {
                OpError::Denied
            } else {
                OpError::Withdrawn
            }));
        }
        let into = self.into.part(self.done, PIECE);
        let address = self.from.address.get().wrapping_add(self.done as u64);
        match sys::read_process(memory.pid, address, &into) {
            Ok(0) if !into.is_empty() => return Some(Err(OpError::System(libc::EFAULT))),
            Ok(read) => self.done += read,
            Err(error) => return Some(Err(OpError::System(error.raw_os_error().unwrap_or(0)))),
        }
        // The read before the second look: a lease that still stands now stood during all of the read.
        fence(Ordering::SeqCst);
        if !memory.leases.stands(&self.from, us) || hung_up(socket) {
            return Some(Err(OpError::Withdrawn));
        }
        (self.done == self.into.len()).then_some(Ok(0))
    }
}

/// Whether the process at the other end has ended (and its number may belong to another one). A system call.
fn hung_up(socket: BorrowedFd<'_>) -> bool {
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
