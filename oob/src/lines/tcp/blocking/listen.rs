//! Listening on exactly the address requested, with many handshakes at once and without a thread.
//!
//! Each connection takes one of [`HALF_OPEN_MAX`] slots until its handshake is complete or late. When all are
//! taken, the oldest is dropped: a slow peer delays itself, not those that come later.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{Connection, is_loopback, prepare, read, wait, write};
use crate::error::OobError;
use crate::lines::Clock;
use crate::lines::tcp::socket::{AcceptFailure, NO_ROOM, open};
use crate::session::{Event, Peer, Role, Session, Terms};

/// Maximum number of handshakes at a time.
pub const HALF_OPEN_MAX: usize = 64;
/// Backlog of connections that the kernel holds.
const BACKLOG: i32 = 128;
/// Maximum connections accepted per turn, before the present ones are served.
const ACCEPT_MAX: usize = 16;

/// How a wait for connections ended.
#[derive(Debug)]
pub enum Accepted {
    /// A peer that has the key.
    Connection(Box<Connection>),
    /// A peer that was rejected, and why.
    TurnedAway(SocketAddr, OobError),
    /// The other descriptor is readable.
    Woken,
    /// The limit passed.
    Late,
}

/// Listens for sessions.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    terms: Terms,
    clock: Clock,
    half_open: Vec<HalfOpen>,
    /// No connection is accepted before this time.
    shut_until: Option<Instant>,
}

#[derive(Debug)]
struct HalfOpen {
    socket: TcpStream,
    session: Session,
    address: SocketAddr,
}

/// The state of a handshake after one turn.
enum Turn {
    Goes,
    Ready(Peer),
    Over(OobError),
}

impl Listener {
    /// Listens on `address` only: an IPv6 address does not serve IPv4, and only `0.0.0.0` and `[::]` stand
    /// for all interfaces.
    ///
    /// # Errors
    /// [`OobError::KeyNeeded`] beyond loopback without a key; [`OobError::Listen`].
    pub fn bind(address: SocketAddr, terms: Terms) -> Result<Self, OobError> {
        if terms.key.is_none() && !is_loopback(&address) {
            return Err(OobError::KeyNeeded { address });
        }
        let made = open(address, BACKLOG).and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (address, socket) = made.map_err(|source| OobError::Listen {
            address,
            remedy: remedy(&source),
            source,
        })?;
        Ok(Self {
            socket,
            address,
            terms,
            clock: Clock::start(),
            half_open: Vec::new(),
            shut_until: None,
        })
    }

    /// Returns the address it listens on, with the port that the system chose if none was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of handshakes in progress.
    pub fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// Accepts a peer that proves to have the key; waits until `wake` is readable, or for `limit` (forever
    /// without one). Rejected peers are reported one at a time. Handshakes in progress continue in the next
    /// call.
    ///
    /// # Errors
    /// [`OobError::Listen`] when the socket itself fails.
    pub fn accept(
        &mut self,
        wake: Option<BorrowedFd<'_>>,
        limit: Option<Duration>,
    ) -> Result<Accepted, OobError> {
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            if let Some(done) = self.turn() {
                return Ok(done);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Accepted::Late);
            }
            let (door, woken) = self.wait(wake, left)?;
            if woken {
                return Ok(Accepted::Woken);
            }
            if door && let Some(evicted) = self.let_in()? {
                return Ok(evicted);
            }
        }
    }

    /// Makes one step of all handshakes.
    fn turn(&mut self) -> Option<Accepted> {
        let now = self.clock.now();
        for at in 0..self.half_open.len() {
            let turn = self.half_open[at].turn(now);
            if matches!(turn, Turn::Goes) {
                continue;
            }
            let half = self.half_open.remove(at);
            return Some(match (turn, half.socket.local_addr()) {
                (Turn::Ready(peer), Ok(local)) => Accepted::Connection(Box::new(Connection {
                    socket: half.socket,
                    session: half.session,
                    address: half.address,
                    local,
                    peer,
                })),
                (Turn::Over(error), _) => Accepted::TurnedAway(half.address, error),
                _ => Accepted::TurnedAway(half.address, OobError::Unanswered),
            });
        }
        None
    }

    /// Waits; returns whether a connection is pending, and whether `wake` is readable.
    fn wait(
        &mut self,
        wake: Option<BorrowedFd<'_>>,
        left: Option<Duration>,
    ) -> Result<(bool, bool), OobError> {
        let now = self.clock.now();
        let deadlines = self
            .half_open
            .iter()
            .filter_map(|half| half.session.next_deadline());
        let soonest = deadlines
            .min()
            .map(|deadline| deadline.since(now) + Duration::from_millis(1));
        let shut = self
            .shut_until
            .map(|until| until.saturating_duration_since(Instant::now()));
        let shut = shut.filter(|shut| !shut.is_zero());
        let limit = [left, soonest, shut].into_iter().flatten().min();
        let listener = if shut.is_some() {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        let mut fds = vec![PollFd::new(&self.socket, listener)];
        fds.extend(
            self.half_open
                .iter()
                .map(|half| PollFd::new(&half.socket, half.interest())),
        );
        fds.extend(wake.as_ref().map(|wake| PollFd::new(wake, PollFlags::IN)));
        wait(&mut fds, limit).map_err(|source| self.failed(source))?;
        let ready = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        Ok((ready(fds.first()), wake.is_some() && ready(fds.last())))
    }

    fn let_in(&mut self) -> Result<Option<Accepted>, OobError> {
        for _ in 0..ACCEPT_MAX {
            let (socket, address) = match self.socket.accept() {
                Ok(guest) => guest,
                Err(error) => return self.not_in(error).map(|()| None),
            };
            let session = Session::new(Role::Answerer, &self.terms, self.clock.now())?;
            // The peer may be gone already.
            if prepare(&socket).is_err() {
                continue;
            }
            self.half_open.push(HalfOpen {
                socket,
                session,
                address,
            });
            if self.half_open.len() > HALF_OPEN_MAX {
                let oldest = self.half_open.remove(0);
                let limit = self.terms.handshake;
                return Ok(Some(Accepted::TurnedAway(
                    oldest.address,
                    OobError::HandshakeLate { limit },
                )));
            }
        }
        Ok(None)
    }

    /// Handles a failed accept: ignores it, pauses, or fails.
    fn not_in(&mut self, error: io::Error) -> Result<(), OobError> {
        match AcceptFailure::of(&error) {
            // Handshakes in progress will end, and free their descriptors.
            AcceptFailure::NoRoom => self.shut_until = Some(Instant::now() + NO_ROOM),
            AcceptFailure::Socket => return Err(self.failed(error)),
            AcceptFailure::Guest => {}
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> OobError {
        OobError::Listen {
            address: self.address,
            source,
            remedy: "restart it",
        }
    }
}

impl HalfOpen {
    fn interest(&self) -> PollFlags {
        if self.session.outgoing().is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }

    fn turn(&mut self, now: doorbell_fabric::time::Time) -> Turn {
        let came = match read(&mut self.socket) {
            Ok(Some(bytes)) if bytes.is_empty() => self.session.end(),
            Ok(Some(bytes)) => self.session.receive(&bytes),
            Ok(None) => self.session.tick(now),
            Err(_) => Err(OobError::Unanswered),
        };
        // Also after a failure: send the reason, as far as the socket takes it at once.
        let written = write(&mut self.socket, &mut self.session);
        if let Err(error) = came {
            return Turn::Over(error);
        }
        if written.is_err() {
            return Turn::Over(OobError::Unanswered);
        }
        match self.session.event() {
            Some(Event::Ready(peer)) => Turn::Ready(peer),
            _ => Turn::Goes,
        }
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program has that port: `ss -ltnp` shows which; name another one",
        io::ErrorKind::AddrNotAvailable => "no interface of this host has that address: `ip addr` lists them",
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege: use a higher one",
        _ => "check the address: `ip addr` lists those of this host",
    }
}
