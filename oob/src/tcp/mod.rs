//! Sessions over TCP: addresses, sockets, deadlines, limits. Calls block, every one with a limit; no thread is left
//! behind.
//!
//! * [`Endpoint`]: an address as people write it.
//! * [`Listener`]: listens on exactly the address that was asked for, and shakes hands with many strangers at once.
//! * [`Connection`]: an open session and its socket.
//!
//! Sockets do not delay small messages (TCP_NODELAY) and notice within about [`DEAD_AFTER`] that the other host is gone
//! (keepalive, and TCP_USER_TIMEOUT for what was sent).

mod connect;
mod endpoint;
mod listen;

#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use doorbell_fabric::time::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::error::OobError;
use crate::session::{Event, Peer, Role, Session, Terms};

pub use endpoint::{Endpoint, PORT, is_loopback};
pub(crate) use listen::open;
pub use listen::{Accepted, HALF_OPEN_MAX, Listener};

/// After about this time, a host that has vanished without a word is noticed.
pub const DEAD_AFTER: Duration = Duration::from_secs(15);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_STEP: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 5;
/// Read at once.
const CHUNK: usize = 16 << 10;

/// What a wait for the other side ended with.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A message.
    Message(Vec<u8>),
    /// The other side took leave.
    Closed,
    /// The other descriptor has something.
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
    /// Connects to `to` and shakes hands, all within `limit`.
    ///
    /// # Errors
    /// [`OobError::KeyNeeded`] without a key beyond loopback; [`OobError::Connect`], [`OobError::Late`], and what the
    /// handshake has to say.
    pub fn connect(to: &Endpoint, terms: &Terms, limit: Duration) -> Result<Self, OobError> {
        connect::connect(to, terms, limit)
    }

    /// The other side's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Our own address on this connection.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Who the other side is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Which side of it we are.
    pub fn role(&self) -> Role {
        self.session.role()
    }

    /// A way to end it from another thread.
    ///
    /// # Errors
    /// [`OobError::Broken`] when there is no descriptor left.
    pub fn canceller(&self) -> Result<Canceller, OobError> {
        let socket = self.socket.try_clone().map_err(self.broken("share it"))?;
        Ok(Canceller(socket))
    }

    /// As [`Session::binding`].
    pub fn binding(&self) -> [u8; 32] {
        self.session.binding()
    }

    /// Sends a message; returns when the system has it.
    ///
    /// # Errors
    /// [`OobError::Late`]; [`OobError::Broken`]; as [`Session::send`].
    pub fn send(&mut self, message: &[u8], limit: Duration) -> Result<(), OobError> {
        self.session.send(message)?;
        self.flush(limit)
    }

    /// Waits for a message, or until `wake` can be read, or for `limit` (forever without one).
    ///
    /// # Errors
    /// [`OobError::Truncated`] when the other side went away without taking leave; [`OobError::Broken`]; as
    /// [`Session::receive`].
    pub fn hear(&mut self, wake: Option<BorrowedFd<'_>>, limit: Option<Duration>) -> Result<Heard, OobError> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut late = false;
        loop {
            match self.session.event() {
                Some(Event::Message(message)) => return Ok(Heard::Message(message)),
                Some(Event::Closed) => return Ok(Heard::Closed),
                Some(Event::Ready(_)) => continue,
                // Told again to everybody who asks: nothing else will come.
                None if self.session.is_left() => return Ok(Heard::Closed),
                None if late => return Ok(Heard::Late),
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
                return Ok(Heard::Woken);
            }
            // What had come by then is still told.
            late = left.is_some_and(|left| left.is_zero());
        }
    }

    /// As [`Connection::hear`] for a message that has to come.
    ///
    /// # Errors
    /// Also [`OobError::Late`], and [`OobError::Truncated`] when the other side took leave instead.
    pub fn receive(&mut self, limit: Duration) -> Result<Vec<u8>, OobError> {
        match self.hear(None, Some(limit))? {
            Heard::Message(message) => Ok(message),
            Heard::Closed => Err(OobError::Truncated),
            Heard::Woken | Heard::Late => Err(OobError::Late {
                address: self.address.to_string(),
                step: "answer",
                waited: limit,
                remedy: "look at what it does: is it stopped, or busy?",
            }),
        }
    }

    /// Takes leave, so that the other side knows that nothing was cut off.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn close(mut self, limit: Duration) -> Result<(), OobError> {
        self.session.close();
        let flushed = self.flush(limit);
        // Our words first, then the end; what is still to be read does not turn them into a reset.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let _ = self.hear(None, Some(limit.min(Duration::from_millis(200))));
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
                    remedy: "look at what it does: is it stopped, or busy?",
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

/// Ends a [`Connection`] that another thread has: on both sides, what waits for it hears that it was cut.
#[derive(Debug)]
pub struct Canceller(TcpStream);

impl Canceller {
    /// Ends it, without taking leave. Without effect when it has ended.
    pub fn cancel(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The time that a session is told: since `epoch`, which is that socket's own.
fn now(epoch: Instant) -> Time {
    Time::ZERO + epoch.elapsed()
}

/// What every socket of ours is: not waiting, not collecting small messages, watching the other host.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_STEP)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, DEAD_AFTER.as_millis() as u32)?;
    Ok(())
}

/// Reads what is there, a limited amount; empty at the end of the stream, `None` when there is nothing now.
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

/// Writes what the session has to say, as far as the socket takes it. (Rust ignores SIGPIPE, and std asks for none.)
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

/// Waits for one of `fds`; a signal ends the wait early, as time does.
fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    match poll(fds, limit.as_ref()) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INTR) => {
            fds.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
