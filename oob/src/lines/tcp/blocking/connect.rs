//! Connecting: name look-up, TCP connect and handshake, with one deadline for all of it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{Connection, Endpoint, is_loopback, prepare, read, wait, write};
use crate::error::OobError;
use crate::lines::Clock;
use crate::session::{Event, Role, Session, Terms};

pub(super) fn connect(to: &Endpoint, terms: &Terms, limit: Duration) -> Result<Connection, OobError> {
    let started = Instant::now();
    let mut failed = None;
    for address in to.resolve(limit)? {
        if terms.key.is_none() && !is_loopback(&address) {
            return Err(OobError::KeyNeeded { address });
        }
        let left = limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            break;
        }
        // A name may have addresses of both families, one of which may be unreachable.
        match reach(address, left) {
            Ok(socket) => {
                let shaken = shake(socket, address, terms, left.min(terms.handshake));
                return shaken.map_err(|error| error.with(address));
            }
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| late(&to.to_string(), limit)))
}

fn late(address: &str, waited: Duration) -> OobError {
    OobError::Late {
        address: address.to_owned(),
        step: "answer",
        waited,
        remedy: "a wrong address, a host that is down, or a firewall that drops: try `ping` and check the port",
    }
}

fn reach(address: SocketAddr, limit: Duration) -> Result<TcpStream, OobError> {
    let socket =
        TcpStream::connect_timeout(&address, limit).and_then(|socket| prepare(&socket).map(|()| socket));
    socket.map_err(|source| {
        let remedy = match source.kind() {
            io::ErrorKind::TimedOut => return late(&address.to_string(), limit),
            io::ErrorKind::ConnectionRefused => {
                "nothing listens there: start the `--serve` side first, and check the port"
            }
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                "there is no route to it: check the address and `ip route`"
            }
            io::ErrorKind::PermissionDenied => "a firewall of this host forbids it",
            _ => "check the address and the network",
        };
        OobError::Connect {
            address,
            source,
            remedy,
        }
    })
}

fn shake(
    mut socket: TcpStream,
    address: SocketAddr,
    terms: &Terms,
    limit: Duration,
) -> Result<Connection, OobError> {
    let (epoch, clock) = (Instant::now(), Clock::start());
    let broken = |step| {
        move |source| OobError::Broken {
            address,
            step,
            source,
        }
    };
    let terms = Terms {
        handshake: limit,
        ..terms.clone()
    };
    let mut session = Session::new(Role::Caller, &terms, clock.now())?;
    loop {
        // It may have refused before it read everything: its reason is still to be read.
        let written = write(&mut socket, &mut session);
        if let Some(Event::Ready(peer)) = session.event() {
            written.map_err(broken("complete the handshake"))?;
            let local = socket.local_addr().map_err(broken("get its address"))?;
            return Ok(Connection {
                socket,
                session,
                address,
                local,
                peer,
            });
        }
        session.tick(clock.now())?;
        let flags = if written.is_ok() && !session.outgoing().is_empty() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        let left = limit.saturating_sub(epoch.elapsed());
        wait(&mut [PollFd::new(&socket, flags)], Some(left)).map_err(broken("complete the handshake"))?;
        match read(&mut socket) {
            Ok(Some(bytes)) if bytes.is_empty() => session.end()?,
            Ok(Some(bytes)) => session.receive(&bytes)?,
            Ok(None) => {}
            Err(error) if super::is_cut(&error) => return Err(OobError::Unanswered),
            Err(error) => return Err(broken("complete the handshake")(error)),
        }
    }
}
