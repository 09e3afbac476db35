//! Listening sockets, and the connections they accept: Unix and TCP behind one interface.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::error::ServeError;
use super::files::{self, CreatedFiles};
use super::settings::{Settings, Tcp};
use crate::stream::Stream;

/// Backlog of connections that the kernel holds.
pub(super) const BACKLOG: i32 = 4096;

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A listening socket registered with the runtime.
pub(super) enum Registered {
    Unix(tokio::net::UnixListener),
    Tcp(tokio::net::TcpListener),
}

impl Listener {
    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    pub(super) fn register(self) -> Result<Registered, ServeError> {
        match self {
            Self::Unix(socket) => socket
                .set_nonblocking(true)
                .and_then(|()| tokio::net::UnixListener::from_std(socket))
                .map(Registered::Unix),
            Self::Tcp(socket) => socket
                .set_nonblocking(true)
                .and_then(|()| tokio::net::TcpListener::from_std(socket))
                .map(Registered::Tcp),
        }
        .map_err(ServeError::Watch)
    }

    /// Classifies a descriptor that was passed; `None` for one that the service needs only with InfiniBand's
    /// kernel module.
    fn given(fd: OwnedFd) -> Option<Result<Self, OwnedFd>> {
        let listens = sockopt::socket_type(&fd) == Ok(SocketType::STREAM)
            && sockopt::socket_acceptconn(&fd) == Ok(true);
        match sockopt::socket_domain(&fd) {
            Ok(AddressFamily::NETLINK) => None,
            Ok(AddressFamily::UNIX) if listens => Some(Ok(Self::Unix(fd.into()))),
            Ok(AddressFamily::INET | AddressFamily::INET6) if listens => Some(Ok(Self::Tcp(fd.into()))),
            _ => Some(Err(fd)),
        }
    }
}

/// Opens all listeners that the settings call for, and writes their files.
pub(super) fn open_all(
    settings: &Settings,
    given: Vec<OwnedFd>,
    made: &mut CreatedFiles,
) -> Result<Vec<Listener>, ServeError> {
    let mut listeners = Vec::new();
    for (at, fd) in given.into_iter().enumerate() {
        match Listener::given(fd) {
            Some(Ok(listener)) => listeners.push(listener),
            Some(Err(_)) => return Err(ServeError::Given { at }),
            None => {}
        }
    }
    let has = |listeners: &[Listener], unix| {
        listeners
            .iter()
            .any(|listener| matches!(listener, Listener::Unix(_)) == unix)
    };
    // The process that opened the Unix socket also made its link, and keeps both when the service ends.
    if settings.unix && !has(&listeners, true) {
        let places = &settings.places;
        let socket = files::socket(&places.socket, settings.mode, made)?;
        listeners.push(Listener::Unix(socket));
        if settings.librdmacm {
            files::alias(&places.socket_alias, &places.socket, made)?;
        }
    }
    if let Some(tcp) = settings.tcp
        && !has(&listeners, false)
    {
        listeners.push(Listener::Tcp(tcp_listener(tcp)?));
    }
    announce(settings, &listeners, made)?;
    Ok(listeners)
}

fn tcp_listener(tcp: Tcp) -> Result<TcpListener, ServeError> {
    let ip = if tcp.open {
        Ipv4Addr::UNSPECIFIED
    } else {
        Ipv4Addr::LOCALHOST
    };
    let address = SocketAddr::from((ip, tcp.port));
    let open = || {
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        rustix::io::Result::Ok(socket)
    };
    match open() {
        Ok(socket) => Ok(socket.into()),
        Err(error) => Err(ServeError::Listen {
            address,
            source: error.into(),
        }),
    }
}

/// Writes the port file, by which clients find a TCP socket.
fn announce(settings: &Settings, listeners: &[Listener], made: &mut CreatedFiles) -> Result<(), ServeError> {
    let places = &settings.places;
    let Some(address) = listeners.iter().find_map(Listener::tcp_address) else {
        // librdmacm prefers a port file to the socket.
        files::forget_port(&places.port, &places.port_alias);
        return Ok(());
    };
    files::port(&places.port, address.port(), made)?;
    if settings.librdmacm {
        files::alias(&places.port_alias, &places.port, made)?;
    }
    Ok(())
}

impl Registered {
    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(socket) => Ok(Stream::Unix(socket.accept().await?.0)),
            Self::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                // An answer is one write; send it without delay.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
        }
    }
}
