//! Sockets as this transport wants them: bound to exactly one address, and to the NIC where that is possible.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;

use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};

use super::settings::{Ports, Settings};
use crate::tcp::open;

/// Connections that the system keeps for a door, at most.
const BACKLOG: i32 = 256;

/// Where a connection begins and ends.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// Our address, with any port.
    pub(super) from: SocketAddr,
    /// Theirs.
    pub(super) to: SocketAddr,
    /// The NIC that it has to be bound to, so that it leaves by it.
    pub(super) device: Option<String>,
}

/// Listens on this address, at the first port of the range that is free.
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

/// Connects; the caller sees to it that this ends.
pub(super) async fn dial(path: &Path) -> io::Result<TcpStream> {
    let socket = match path.to {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(device) = &path.device {
        // Who may not (Linux before 5.7, without CAP_NET_RAW) goes where the table leads from this address.
        let _ = socket.bind_device(Some(device.as_bytes()));
    }
    socket.bind(path.from)?;
    socket.connect(path.to).await
}

/// Small messages go at once; a peer that is silent or gone is found out by the kernel (tcp(7)).
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
