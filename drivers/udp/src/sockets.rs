//! Opens sockets: a pair for the rail, and a connected one for each channel of an active peer.
//!
//! ```text
//!   10.0.0.1:56080  priority ─┬─ the rail's own: all senders without another socket
//!                            ├─ connected to 10.0.0.2:56080
//!                            └─ connected to 10.0.0.3:5000
//!   10.0.0.1:56081  data ─────┴─ the same again
//! ```
//!
//! The kernel delivers a frame to the most specific socket: the one connected to its sender, else the rail's
//! own. All sockets of one port share it by `SO_REUSEPORT`, which the kernel allows to sockets of one user
//! only. The rail's own is bound *before* it gets that option, so that a port in use is an error and not
//! shared.
//!
//! Between its `bind` and its `connect`, a new socket is unconnected, and the kernel may deliver frames of
//! any sender to it. They are discarded after `connect`: frames may be lost, but not attributed to the wrong
//! peer.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, sockopt};

use doorbell_inet::{Interface, bind, claim, system_error, unbound};

use crate::config::UdpConfig;
use crate::sys::{get_int, set_int};

/// The options that the kernel granted, for the rail's report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Runs of frames are sent in one piece.
    pub gso: bool,
    /// Runs of frames are received in one piece.
    pub gro: bool,
    /// Bytes of each socket's receive buffer by the kernel's own count (it doubles what it grants).
    pub receive_buffer: usize,
    /// Bytes of each socket's send buffer, counted likewise.
    pub send_buffer: usize,
    /// Options that were not granted, each with what to do.
    pub notes: Vec<String>,
}

impl Granted {
    /// Names the offloads.
    #[must_use]
    pub fn offloads(&self) -> &'static str {
        match (self.gso, self.gro) {
            (true, true) => "UDP_SEGMENT, UDP_GRO",
            (true, false) => "UDP_SEGMENT",
            (false, true) => "UDP_GRO",
            (false, false) => "none: one frame a piece",
        }
    }
}

/// The rail's own two sockets.
pub(crate) struct OwnSockets {
    pub(crate) sockets: [OwnedFd; 2],
    pub(crate) port: u16,
    pub(crate) granted: Granted,
}

/// Binds the rail's own two sockets to consecutive ports.
pub(crate) fn own(
    name: &RailName,
    interface: &Interface,
    config: &UdpConfig,
) -> Result<OwnSockets, RailError> {
    let (sockets, port) = claim(name, interface, config.port, config.pairs)?;
    finish(name, sockets, port, config)
}

/// Queries what a data channel's socket at `interface` would be granted, with a socket that is never bound.
pub(crate) fn offered(interface: &Interface, config: &UdpConfig) -> io::Result<Granted> {
    let mut granted = Granted::default();
    set_up(
        unbound(interface.address.is_ipv4())?.as_fd(),
        1,
        config,
        &mut granted,
    )?;
    Ok(granted)
}

fn finish(
    name: &RailName,
    sockets: [OwnedFd; 2],
    port: u16,
    config: &UdpConfig,
) -> Result<OwnSockets, RailError> {
    let mut granted = Granted::default();
    for (channel, socket) in sockets.iter().enumerate() {
        sockopt::set_socket_reuseport(socket, true)
            .map_err(|errno| system_error(name, "share a port among own sockets", errno.into()))?;
        set_up(socket.as_fd(), channel, config, &mut granted)
            .and_then(|()| receive_icmp_errors(socket.as_fd()))
            .map_err(|error| system_error(name, "set up a socket", error))?;
    }
    granted.notes.dedup();
    Ok(OwnSockets {
        sockets,
        port,
        granted,
    })
}

/// Sets the options that every socket of the rail has; what was granted goes to `granted`.
fn set_up(
    socket: BorrowedFd<'_>,
    channel: usize,
    config: &UdpConfig,
    granted: &mut Granted,
) -> io::Result<()> {
    never_fragment(socket)?;
    // The kernel also counts its own bookkeeping, doubles the request, and caps it without CAP_NET_ADMIN.
    if sockopt::set_socket_recv_buffer_size_force(socket, config.receive_buffer).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, config.receive_buffer)?;
    }
    if sockopt::set_socket_send_buffer_size_force(socket, config.send_buffer).is_err() {
        sockopt::set_socket_send_buffer_size(socket, config.send_buffer)?;
    }
    granted.receive_buffer = sockopt::socket_recv_buffer_size(socket)?;
    granted.send_buffer = sockopt::socket_send_buffer_size(socket)?;
    let mut capped = |what: &str, asked: usize, got: usize, limit: &str| {
        if got < 2 * asked {
            granted.notes.push(format!(
                "the kernel caps the {what} buffer at {} of {asked} bytes; raise net.core.{limit}",
                got / 2
            ));
        }
    };
    capped(
        "receive",
        config.receive_buffer,
        granted.receive_buffer,
        "rmem_max",
    );
    capped("send", config.send_buffer, granted.send_buffer, "wmem_max");
    if let Some(time) = config.busy_poll {
        let time = i32::try_from(time).unwrap_or(i32::MAX);
        if let Err(error) = set_int(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, time) {
            granted
                .notes
                .push(format!("no busy polling ({error}); it needs CAP_NET_ADMIN"));
        }
    }
    // Setting a size of 0 changes nothing and shows whether the kernel knows the option.
    granted.gso = config.gso && set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
    granted.gro = config.gro && set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
    for (wanted, has, what) in [
        (config.gso, granted.gso, "UDP_SEGMENT"),
        (config.gro, granted.gro, "UDP_GRO"),
    ] {
        if wanted && !has && channel == 1 {
            granted.notes.push(format!(
                "the kernel has no {what}: frames go one by one; use 5.0 or later"
            ));
        }
    }
    Ok(())
}

/// Makes the kernel refuse frames that are too long for the path instead of fragmenting them.
fn never_fragment(socket: BorrowedFd<'_>) -> io::Result<()> {
    if sockopt::socket_domain(socket)? == AddressFamily::INET {
        return set_int(
            socket,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        );
    }
    set_int(
        socket,
        libc::IPPROTO_IPV6,
        libc::IPV6_MTU_DISCOVER,
        libc::IPV6_PMTUDISC_DO,
    )?;
    set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)
}

/// Queues ICMP errors of an unconnected socket in its error queue.
fn receive_icmp_errors(socket: BorrowedFd<'_>) -> io::Result<()> {
    if sockopt::socket_domain(socket)? == AddressFamily::INET {
        return set_int(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1);
    }
    set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)
}

/// Opens a socket at `port` connected to `peer`. Adds the frames that it had to discard to `strays`.
pub(crate) fn connected(
    interface: &Interface,
    port: u16,
    peer: SocketAddr,
    channel: usize,
    config: &UdpConfig,
    strays: &mut u64,
) -> io::Result<OwnedFd> {
    let socket = bind(interface, port, true)?;
    set_up(socket.as_fd(), channel, config, &mut Granted::default())?;
    rustix::net::connect(&socket, &peer)?;
    // Bounded: from here on only the peer's frames arrive, and at full speed they might never end.
    for _ in 0..1024 {
        match rustix::net::recv(&socket, &mut [0u8; 1], RecvFlags::TRUNC) {
            Ok(_) => *strays += 1,
            Err(Errno::AGAIN) => break,
            Err(_) => {}
        }
    }
    Ok(socket)
}

/// The path MTU in bytes that the kernel has for the peer of a connected socket.
pub(crate) fn path_mtu(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let (level, option) = if sockopt::socket_domain(socket)? == AddressFamily::INET {
        (libc::IPPROTO_IP, libc::IP_MTU)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    };
    Ok(usize::try_from(get_int(socket, level, option)?).unwrap_or(0))
}
