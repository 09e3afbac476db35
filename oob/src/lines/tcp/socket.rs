//! TCP sockets: bound to exactly one address, and to the NIC where necessary.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tokio::net::{TcpSocket, TcpStream};

use super::settings::Ports;

/// Pause of accepting when no descriptor is left for another connection.
pub(super) const NO_ROOM: Duration = Duration::from_millis(50);
/// Backlog of connections that the kernel holds for a listener.
const BACKLOG: i32 = 256;

/// The end points of a connection.
#[derive(Clone, Debug)]
pub(super) struct Endpoints {
    /// Our address, with any port.
    pub(super) from: SocketAddr,
    /// The peer's address.
    pub(super) to: SocketAddr,
    /// The NIC that the socket is bound to, if traffic has to leave by it.
    pub(super) device: Option<String>,
}

/// Listens on this address, at the first free port of the range.
pub(super) fn door(address: impl Fn(u16) -> SocketAddr, ports: Ports) -> io::Result<(TcpListener, u16)> {
    let mut last = io::Error::other("the range is empty");
    for port in ports.each() {
        match open(address(port), BACKLOG).and_then(|socket| Ok((socket.local_addr()?.port(), socket))) {
            Ok((port, socket)) => return Ok((socket, port)),
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects; the caller limits the time.
pub(super) async fn dial(endpoints: &Endpoints) -> io::Result<TcpStream> {
    let socket = match endpoints.to {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(device) = &endpoints.device {
        // Without permission (Linux before 5.7, without CAP_NET_RAW) the route of this source address
        // applies.
        let _ = socket.bind_device(Some(device.as_bytes()));
    }
    socket.bind(endpoints.from)?;
    socket.connect(endpoints.to).await
}

/// Opens a non-blocking socket that listens on `address` only, with this backlog.
pub(super) fn open(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Connections of an earlier process in TIME_WAIT must not block the port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, backlog)?;
    Ok(TcpListener::from(socket))
}

/// What a failed accept means for the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptFailure {
    /// No descriptor is left for another connection: accept again after [`NO_ROOM`].
    NoRoom,
    /// The listening socket itself has failed.
    Socket,
    /// Only the new connection is concerned: accept(2) also reports its network errors.
    Guest,
}

impl AcceptFailure {
    pub(super) fn of(error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Self::NoRoom,
            Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => Self::Socket,
            _ => Self::Guest,
        }
    }
}

/// How the kernel detects that a peer is gone (tcp(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Idle time before probes are sent.
    pub idle: Duration,
    /// Maximum number of probes.
    pub probes: u32,
    /// Time between probes; when none of them is answered, the connection is lost.
    pub interval: Duration,
    /// How long sent data may stay unacknowledged by the peer's kernel before the connection is lost.
    pub unacknowledged: Duration,
}

impl KeepAlive {
    /// Sets it on a socket, which also sends small messages at once from now on.
    pub(super) fn set(&self, socket: impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd();
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, self.idle)?;
        sockopt::set_tcp_keepintvl(socket, self.interval)?;
        sockopt::set_tcp_keepcnt(socket, self.probes.max(1))?;
        let millis = u32::try_from(self.unacknowledged.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(socket, millis)?;
        Ok(())
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(5),
            probes: 5,
            interval: Duration::from_secs(1),
            unacknowledged: Duration::from_secs(10),
        }
    }
}
