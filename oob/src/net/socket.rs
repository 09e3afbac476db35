//! Sockets of this transport: bound to exactly one address, and to the NIC where necessary.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;

use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};

use super::settings::{Ports, Settings};
use crate::tcp::open;

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

/// Sends small messages at once, and lets the kernel detect a dead peer (tcp(7)).
pub(super) fn tune(socket: impl AsFd, settings: &Settings) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, settings.idle)?;
    sockopt::set_tcp_keepintvl(socket, settings.interval)?;
    sockopt::set_tcp_keepcnt(socket, settings.probes.max(1))?;
    let millis = u32::try_from(settings.unacknowledged.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, millis)?;
    Ok(())
}
