//! Pulling: one-sided reads of a peer's memory, in bounded pieces.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::{OpError, OpId, PeerIndex, Remote};

use crate::lease::word_of;
use crate::rx::Rx;
use crate::sys;

/// Bytes per poll: long enough that the system call is nothing, short enough that other peers are served.
const PIECE: usize = 256 << 10;

/// A read under way.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) op: OpId,
    pub(crate) peer: PeerIndex,
    pub(crate) from: Remote,
    pub(crate) into: MutLoan,
    done: usize,
}

/// Reads under way and outcomes not told yet.
#[derive(Debug)]
pub(crate) struct Pulls {
    running: VecDeque<Pull>,
    ended: VecDeque<(OpId, Result<u64, OpError>)>,
}

/// Most reads and fences under way at a time.
const MOST: usize = 1024;

impl Pulls {
    pub(crate) fn new() -> Self {
        Self {
            running: VecDeque::with_capacity(MOST),
            ended: VecDeque::with_capacity(MOST),
        }
    }

    /// Whether another one can be started.
    pub(crate) fn has_room(&self) -> bool {
        self.running.len() + self.ended.len() < MOST
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.ended.is_empty()
    }

    pub(crate) fn start(&mut self, op: OpId, peer: PeerIndex, from: Remote, into: MutLoan) {
        self.running.push_back(Pull {
            op,
            peer,
            from,
            into,
            done: 0,
        });
    }

    /// Ends an operation that needs no pulling: a fence, for instance.
    pub(crate) fn end(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.ended.push_back((op, outcome));
    }

    /// The peer whose memory the oldest read wants.
    pub(crate) fn next_peer(&self) -> Option<PeerIndex> {
        self.running.front().map(|pull| pull.peer)
    }

    /// One piece of the oldest read, from the peer's lane given (none when it is gone). The oldest goes to the
    /// back of the queue afterwards, so that a long read does not hold up a short one.
    pub(crate) fn step(&mut self, rx: Option<&Rx>) {
        let Some(mut pull) = self.running.pop_front() else {
            return;
        };
        let outcome = match rx {
            Some(rx) => pull.piece(rx),
            None => Some(Err(OpError::NotDone)),
        };
        match outcome {
            Some(outcome) => self.ended.push_back((pull.op, outcome)),
            None => self.running.push_back(pull),
        }
    }

    pub(crate) fn ended(&mut self) -> Option<(OpId, Result<u64, OpError>)> {
        self.ended.pop_front()
    }

    /// The peer is gone: its reads end. None of them touches memory any more, because reads happen inside `step`.
    pub(crate) fn fail(&mut self, peer: PeerIndex) {
        for _ in 0..self.running.len() {
            let Some(pull) = self.running.pop_front() else {
                return;
            };
            if pull.peer == peer {
                self.ended.push_back((pull.op, Err(OpError::NotDone)));
            } else {
                self.running.push_back(pull);
            }
        }
    }

    /// Whether reads of `peer` (or of anybody) are under way.
    pub(crate) fn busy(&self, peer: Option<PeerIndex>) -> bool {
        self.running
            .iter()
            .any(|pull| peer.is_none_or(|peer| pull.peer == peer))
    }
}

impl Pull {
    /// Reads the next piece; the outcome when that was the last one.
    fn piece(&mut self, rx: &Rx) -> Option<Result<u64, OpError>> {
        let key = self.from.key.get();
        if rx.lease(word_of(key)) != key {
            return Some(Err(if self.done == 0 {
                OpError::Denied
            } else {
                OpError::Withdrawn
            }));
        }
        let into = self.into.part(self.done, PIECE);
        let address = self.from.address.get().wrapping_add(self.done as u64);
        match sys::read_process(rx.pid(), address, &into) {
            Ok(0) if !into.is_empty() => return Some(Err(OpError::System(libc::EFAULT))),
            Ok(read) => self.done += read,
            Err(error) => return Some(Err(OpError::System(error.raw_os_error().unwrap_or(0)))),
        }
        // The read before the second look: a lease that still stands now stood during all of the read.
        fence(Ordering::SeqCst);
        if rx.lease(word_of(key)) != key || rx.hung_up() {
            return Some(Err(OpError::Withdrawn));
        }
        (self.done == self.into.len()).then_some(Ok(0))
    }
}
