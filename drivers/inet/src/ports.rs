//! Binds the two consecutive UDP ports of a rail, one for each channel.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::interface::{Interface, system_error};
use crate::sys;

/// Attempts to get two consecutive ports from the kernel.
const PAIR_TRIES: u32 = 64;

/// Binds two sockets to consecutive ports of the interface's address, and returns them with the first port.
/// Tries `pairs` pairs from `port` upwards, or ports that the kernel chooses if `port` is 0.
///
/// # Errors
/// When no pair is free, or the system refuses.
pub fn claim(
    name: &RailName,
    interface: &Interface,
    port: u16,
    pairs: u16,
) -> Result<([OwnedFd; 2], u16), RailError> {
    let tries = if port == 0 { PAIR_TRIES } else { u32::from(pairs) };
    for at in 0..tries {
        let one = u32::from(port) + if port == 0 { 0 } else { 2 * at };
        let Some(one) = u16::try_from(one).ok().filter(|&one| one < u16::MAX) else {
            break;
        };
        match pair(interface, one) {
            Err(Errno::ADDRINUSE) => {}
            Err(errno @ Errno::ACCESS) if u32::from(one) < unprivileged() => {
                return Err(privileged(name, one, errno));
            }
            other => return other.map_err(|errno| system_error(name, "bind a pair of ports", errno.into())),
        }
    }
    let what = if port == 0 {
        "of consecutive ports is free".to_owned()
    } else {
        format!("of ports from {port} on is free ({tries} tried)")
    };
    let address = interface.address;
    Err(RailError::Ports {
        rail: name.to_string(),
        reason: format!("no pair {what} at {address}"),
        source: Errno::ADDRINUSE.into(),
        remedy: "`ss -ulnp` shows which processes use them; set another udp.port, or 0".to_owned(),
    })
}

/// The first port that needs no privilege (ip(7), `ip_unprivileged_port_start`).
fn unprivileged() -> u32 {
    let told = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok();
    told.and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

fn privileged(name: &RailName, port: u16, errno: Errno) -> RailError {
    let first = unprivileged();
    RailError::Ports {
        rail: name.to_string(),
        reason: format!(
            "port {port} is below {first} and needs CAP_NET_BIND_SERVICE, which this process lacks"
        ),
        source: errno.into(),
        remedy: format!("set udp.port to {first} or more, or to 0"),
    }
}

fn pair(interface: &Interface, port: u16) -> Result<([OwnedFd; 2], u16), Errno> {
    let first = bind(interface, port, false)?;
    let port = match port {
        0 => port_of(&first)?,
        port => port,
    };
    let next = port.checked_add(1).ok_or(Errno::ADDRINUSE)?;
    let second = bind(interface, next, false)?;
    Ok(([first, second], port))
}

fn port_of(socket: &OwnedFd) -> Result<u16, Errno> {
    let address: SocketAddr = rustix::net::getsockname(socket)?.try_into()?;
    Ok(address.port())
}

/// Opens a non-blocking UDP socket of one family only.
///
/// # Errors
/// When there are no descriptors or no memory left.
pub fn unbound(four: bool) -> Result<OwnedFd, Errno> {
    let family = if four {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if !four {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

/// Opens a socket bound to `port` of the interface's address and to the interface; `shared`: other sockets of
/// the same user may bind it too.
///
/// # Errors
/// When the port is taken, or the system refuses.
pub fn bind(interface: &Interface, port: u16, shared: bool) -> Result<OwnedFd, Errno> {
    let address = interface.socket_address(port);
    let socket = unbound(address.is_ipv4())?;
    // A rail never uses another interface than the one it is named after, whatever the routing table says.
    // Before Linux 5.7 only root may bind to an interface; the routing table decides then.
    let bound = sys::bind_to_device(socket.as_fd(), &interface.name)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
    bound.or_else(|errno| if errno == Errno::PERM { Ok(()) } else { Err(errno) })?;
    if shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}
