//! The sockets of desks: names in the abstract namespace, and the other end's user.

use std::io;
use std::os::fd::AsFd;

use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::ni::Process;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};

use crate::lobby::address::PeerId;
use crate::lobby::card::Name;
use crate::meet::peer_uid;

/// Backlog of the listener: connections that wait to be accepted. The kernel takes less where
/// `net.core.somaxconn` is lower.
const BACKLOG: i32 = 4096;

/// A name on this host, with the socket that reserves it.
#[derive(Debug)]
pub(in crate::lobby) struct Place {
    pub(super) listener: CloforkFd,
    pub(in crate::lobby) name: Name,
}

impl Place {
    /// Takes a process id of this host; `None` if another process has it.
    ///
    /// # Errors
    /// Errors of the system.
    pub(in crate::lobby) fn of_process(process: Process) -> io::Result<Option<Self>> {
        Self::take(Name::Process(process))
    }

    /// Takes a random name of this host; `None` if another process has it.
    ///
    /// # Errors
    /// Errors of the system.
    pub(in crate::lobby) fn of_peer(peer: PeerId) -> io::Result<Option<Self>> {
        Self::take(Name::Peer(peer))
    }

    fn take(name: Name) -> io::Result<Option<Self>> {
        let listener = seqpacket()?;
        match bind(&listener, &address_of(&name)?) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        listen(&listener, BACKLOG)?;
        Ok(Some(Self { listener, name }))
    }
}

pub(super) fn address_of(name: &Name) -> io::Result<SocketAddrUnix> {
    let text = match name {
        Name::Process(process) => format!("doorbell.ni.{}", process.pid),
        Name::Peer(peer) => format!("doorbell.peer.{:016x}", peer.name()),
    };
    Ok(SocketAddrUnix::new_abstract_name(text.as_bytes())?)
}

pub(super) fn seqpacket() -> io::Result<CloforkFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let make = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    Ok(CloforkFd::open(make)?)
}

/// Accepts the next connection, if there is one.
pub(super) fn accept(listener: &CloforkFd) -> rustix::io::Result<CloforkFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    CloforkFd::open(|| accept_with(listener, flags))
}

/// Connects to a name, without waiting: `AGAIN` while its backlog is full, `CONNREFUSED` when nothing listens
/// there.
pub(super) fn dial(name: &Name) -> io::Result<CloforkFd> {
    let socket = seqpacket()?;
    connect(&socket, &address_of(name)?)?;
    Ok(socket)
}

/// Returns the system's process id of the other end; `None` where that is in another pid namespace.
pub(super) fn system_id(socket: &impl AsFd) -> Option<i32> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    let peer = getsockopt(socket, PeerCredentials).ok()?;
    Some(peer.pid()).filter(|id| *id != 0)
}

/// Whether the other end runs as the same user.
pub(super) fn is_ours(socket: &impl AsFd) -> bool {
    peer_uid(socket).is_ok_and(|uid| uid == rustix::process::geteuid().as_raw())
}
