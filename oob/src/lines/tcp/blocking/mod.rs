//! Blocking sessions over TCP: addresses, sockets, deadlines, limits. Every call has a limit; no thread is
//! left behind.
//!
//! * [`Endpoint`]: an address in text form.
//! * [`Listener`]: listens on exactly one address, with many handshakes at once.
//! * [`Connection`]: an open session and its socket.
//!
//! Sockets send small messages at once (TCP_NODELAY) and detect a dead host within about [`DEAD_AFTER`]
//! (keepalive, and TCP_USER_TIMEOUT for sent data).

mod connect;
mod endpoint;
mod listen;

#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use doorbell_fabric::poll::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use super::KeepAlive;
use crate::error::OobError;
use crate::session::{Event, Peer, Role, Session, Terms};

pub use endpoint::{Endpoint, PORT, is_loopback};
pub use listen::{Accepted, HALF_OPEN_MAX, Listener};

/// Time after which a host that vanished silently is detected.
pub const DEAD_AFTER: Duration = Duration::from_secs(15);
const KEEP_ALIVE: KeepAlive = KeepAlive {
    idle: Duration::from_secs(5),
    probes: 5,
    interval: Duration::from_secs(2),
    unacknowledged: DEAD_AFTER,
};
/// Bytes read at once.
const CHUNK: usize = 16 << 10;

/// How a wait for the other side ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A message was received.
    Message(Vec<u8>),
    /// The other side has closed the session.
    Closed,
    /// The other descriptor is readable.
    Woken,
    /// The limit passed.
    Late,
}

/// An open session over TCP.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    session: Session,
    address: SocketAddr,
    local: SocketAddr,
    peer: Peer,
}

impl Connection {
    /// Connects to `to` and performs the handshake, all within `limit`.
    ///
    /// # Errors
    /// [`OobError::KeyNeeded`] without a key beyond loopback; [`OobError::Connect`], [`OobError::Late`], and
    /// the errors of the handshake.
    pub fn connect(to: &Endpoint, terms: &Terms, limit: Duration) -> Result<Self, OobError> {
        connect::connect(to, terms, limit)
    }

    /// Returns the address of the other side.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns our own address of this connection.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Returns the identity of the other side.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns the role of this side.
    pub fn role(&self) -> Role {
        self.session.role()
    }

    /// Returns a handle that ends the connection from another thread.
    ///
    /// # Errors
    /// [`OobError::Broken`] when no descriptor is left.
    pub fn canceller(&self) -> Result<Canceller, OobError> {
        let socket = self.socket.try_clone().map_err(self.broken("duplicate it"))?;
        Ok(Canceller(socket))
    }

    /// Returns the hash of the handshake, like [`Session::binding`].
    pub fn binding(&self) -> [u8; 32] {
        self.session.binding()
    }

    /// Sends a message; returns when the kernel has it.
    ///
    /// # Errors
    /// [`OobError::Late`]; [`OobError::Broken`]; the errors of [`Session::send`].
    pub fn send(&mut self, message: &[u8], limit: Duration) -> Result<(), OobError> {
        self.session.send(message)?;
        self.flush(limit)
    }

    /// Waits for a message, or until `wake` is readable, or for `limit` (forever without one).
    ///
    /// # Errors
    /// [`OobError::Truncated`] when the other side ended without closing the session; [`OobError::Broken`];
    /// the errors of [`Session::receive`].
    pub fn receive_or_wake(
        &mut self,
        wake: Option<BorrowedFd<'_>>,
        limit: Option<Duration>,
    ) -> Result<Incoming, OobError> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut late = false;
        loop {
            match self.session.event() {
                Some(Event::Message(message)) => return Ok(Incoming::Message(message)),
                Some(Event::Closed) => return Ok(Incoming::Closed),
                Some(Event::Ready(_)) => continue,
                // Report it to every further call: nothing else will come.
                None if self.session.is_left() => return Ok(Incoming::Closed),
                None if late => return Ok(Incoming::Late),
                None => {}
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let mut fds = vec![PollFd::new(&self.socket, PollFlags::IN)];
            fds.extend(wake.as_ref().map(|wake| PollFd::new(wake, PollFlags::IN)));
            wait(&mut fds, left).map_err(|error| self.broken("wait for it")(error))?;
            let [mine, other] = [0, 1].map(|at| fds.get(at).is_some_and(|fd| !fd.revents().is_empty()));
            if mine {
                self.read()?;
            } else if other {
                return Ok(Incoming::Woken);
            }
            // Messages that arrived by then are still returned.
            late = left.is_some_and(|left| left.is_zero());
        }
    }

    /// Waits for a message like [`Connection::receive_or_wake`], where one has to come.
    ///
    /// # Errors
    /// Also [`OobError::Late`], and [`OobError::Truncated`] when the other side closed the session instead.
    pub fn receive(&mut self, limit: Duration) -> Result<Vec<u8>, OobError> {
        match self.receive_or_wake(None, Some(limit))? {
            Incoming::Message(message) => Ok(message),
            Incoming::Closed => Err(OobError::Truncated),
            Incoming::Woken | Incoming::Late => Err(OobError::Late {
                address: self.address.to_string(),
                step: "answer",
                waited: limit,
                remedy: "check it: is it stopped, or busy?",
            }),
        }
    }

    /// Closes the session, so that the other side knows that nothing was cut off.
    ///
    /// # Errors
    /// The errors of [`Connection::send`].
    pub fn close(mut self, limit: Duration) -> Result<(), OobError> {
        self.session.close();
        let flushed = self.flush(limit);
        // Shut down only our direction, so that unread input does not cause a reset.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let _ = self.receive_or_wake(None, Some(limit.min(Duration::from_millis(200))));
        flushed
    }

    fn read(&mut self) -> Result<(), OobError> {
        match read(&mut self.socket) {
            Ok(Some(bytes)) if bytes.is_empty() => self.session.end(),
            Ok(Some(bytes)) => self.session.receive(&bytes),
            Ok(None) => Ok(()),
            Err(error) if is_cut(&error) => Err(OobError::Truncated),
            Err(error) => Err(self.broken("read from it")(error)),
        }
    }

    fn flush(&mut self, limit: Duration) -> Result<(), OobError> {
        let until = Instant::now() + limit;
        loop {
            write(&mut self.socket, &mut self.session).map_err(|error| self.broken("write to it")(error))?;
            if self.session.outgoing().is_empty() {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(OobError::Late {
                    address: self.address.to_string(),
                    step: "take our message",
                    waited: limit,
                    remedy: "check it: is it stopped, or busy?",
                });
            }
            wait(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(left))
                .map_err(|error| self.broken("wait for it")(error))?;
        }
    }

    fn broken(&self, step: &'static str) -> impl FnOnce(io::Error) -> OobError + use<> {
        let address = self.address;
        move |source| OobError::Broken {
            address,
            step,
            source,
        }
    }
}

/// Ends a [`Connection`] of another thread: on both sides, pending calls fail as truncated.
#[derive(Debug)]
pub struct Canceller(TcpStream);

impl Canceller {
    /// Ends the connection without closing the session. Without effect after its end.
    pub fn cancel(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Makes a socket non-blocking, without delay of small messages, and with detection of a dead host.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    KEEP_ALIVE.set(socket)
}

/// Reads a limited amount of what is there; empty at the end of the stream, `None` when there is nothing now.
fn read(socket: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; CHUNK];
    loop {
        match socket.read(&mut bytes) {
            Ok(count) => {
                bytes.truncate(count);
                return Ok(Some(bytes));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Writes what the session has to send, as far as the socket takes it. (SIGPIPE: Rust ignores it, and std
/// avoids it.)
fn write(socket: &mut TcpStream, session: &mut Session) -> io::Result<()> {
    while !session.outgoing().is_empty() {
        match socket.write(session.outgoing()) {
            Ok(count) => session.sent(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether an error only means that the other side is gone.
fn is_cut(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}

/// Waits for one of `fds`; a signal ends the wait early, as the limit does.
fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.map(timespec);
    match poll(fds, limit.as_ref()) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INTR) => {
            fds.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
