//! The answerer's door: exactly the address that was asked for, and many handshakes at once without a thread.
//!
//! Whoever connects gets one of [`HALF_OPEN_MAX`] places until its handshake is over or late. When all are taken, the
//! oldest has to go: a slow stranger costs itself, not those who come later.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::{Connection, is_loopback, now, prepare, read, wait, write};
use crate::error::OobError;
use crate::session::{Event, Peer, Role, Session, Terms};

/// Handshakes under way, at most.
pub const HALF_OPEN_MAX: usize = 64;
/// Connections that the system keeps for us, at most.
const BACKLOG: i32 = 128;
/// Accepted in one turn: those who are here are heard in between.
const ACCEPT_MAX: usize = 16;
/// How long to leave the door shut when the system has no descriptor for another guest.
const NO_ROOM: Duration = Duration::from_millis(50);

/// What a wait at the door ended with.
#[derive(Debug)]
pub enum Accepted {
    /// Somebody who has the key.
    Guest(Box<Connection>),
    /// Somebody who was turned away, and why.
    TurnedAway(SocketAddr, OobError),
    /// The other descriptor has something.
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
    epoch: Instant,
    half_open: Vec<HalfOpen>,
    /// Not before then is anybody let in again.
    shut_until: Option<Instant>,
}

#[derive(Debug)]
struct HalfOpen {
    socket: TcpStream,
    session: Session,
    address: SocketAddr,
}

/// What became of a handshake in this turn.
enum Turn {
    Goes,
    Ready(Peer),
    Over(OobError),
}

impl Listener {
    /// Listens on `address`, and on nothing else: an IPv6 address does not serve IPv4, and only `0.0.0.0` and `[::]`
    /// stand for all interfaces.
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
            epoch: Instant::now(),
            half_open: Vec::new(),
            shut_until: None,
        })
    }

    /// Where it listens: with the port that the system chose, when none was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many handshakes are under way.
    pub fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// Lets somebody in who proves to have the key; waits until `wake` can be read, or for `limit` (forever without
    /// one). Those who are turned away are told of, one at a time. Handshakes under way go on in the next call.
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

    /// One look at everybody who is shaking hands.
    fn turn(&mut self) -> Option<Accepted> {
        let now = now(self.epoch);
        for at in 0..self.half_open.len() {
            let turn = self.half_open[at].turn(now);
            if matches!(turn, Turn::Goes) {
                continue;
            }
            let half = self.half_open.remove(at);
            return Some(match (turn, half.socket.local_addr()) {
                (Turn::Ready(peer), Ok(local)) => Accepted::Guest(Box::new(Connection {
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

    /// Waits; tells whether somebody is at the door, and whether `wake` has something.
    fn wait(
        &mut self,
        wake: Option<BorrowedFd<'_>>,
        left: Option<Duration>,
    ) -> Result<(bool, bool), OobError> {
        let now = now(self.epoch);
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
        let door = if shut.is_some() {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        let mut fds = vec![PollFd::new(&self.socket, door)];
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
            let session = Session::new(Role::Answerer, &self.terms, now(self.epoch))?;
            // One that is gone already is nobody's fault.
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

    /// What a failed accept means: nothing, a guest that went away again, no room, or the end.
    fn not_in(&mut self, error: io::Error) -> Result<(), OobError> {
        use rustix::io::Errno;
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                // Handshakes that are under way end, and then there is room again.
                self.shut_until = Some(Instant::now() + NO_ROOM);
                Ok(())
            }
            Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => Err(self.failed(error)),
            // accept(2): errors of the network that a guest came over are reported here, and mean that guest only.
            _ => Ok(()),
        }
    }

    fn failed(&self, source: io::Error) -> OobError {
        OobError::Listen {
            address: self.address,
            source,
            remedy: "start it again",
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
        // Also after a failure: the reason goes out, as far as the socket takes it at once.
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

/// A socket that listens on `address` and nothing else, for as many connections that wait as `backlog`. It never waits.
pub(crate) fn open(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Connections of a process that has just ended do not keep its port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, backlog)?;
    Ok(TcpListener::from(socket))
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program has that port: `ss -ltnp` shows which; name another one",
        io::ErrorKind::AddrNotAvailable => "no interface of this host has that address: `ip addr` lists them",
        io::ErrorKind::PermissionDenied => "ports below 1024 are not for everybody: name a higher one",
        _ => "check the address: `ip addr` lists those of this host",
    }
}
