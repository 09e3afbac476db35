//! All unsafe code of this crate: interface queries without safe wrappers.
//!
//! Every pointer given to the kernel is made in the function that makes the call, from memory that it borrows
//! or owns; none is kept.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::details::Channels;

/// Flags and MTU of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// The interface's `IFF_…` flags.
    pub flags: u32,
    /// Largest IP packet in bytes.
    pub mtu: usize,
}

/// Queries flags and MTU of the interface `name` in the network namespace of the socket.
pub(crate) fn interface(fd: BorrowedFd<'_>, name: &str) -> io::Result<InterfaceState> {
    let mut request = named_request(name)?;
    ioctl_ifreq(fd, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the call succeeded, so the kernel filled in this member of the union; any bits are a `c_short`.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    ioctl_ifreq(fd, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: as above, for a `c_int`.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(InterfaceState {
        flags: u32::from(flags as u16),
        mtu: usize::try_from(mtu).unwrap_or(0),
    })
}

fn named_request(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (to, byte) in ifr_name.iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    let ifr_ifru = libc::__c_anonymous_ifr_ifru {
        ifru_map: libc::__c_anonymous_ifru_map {
            mem_start: 0,
            mem_end: 0,
            base_addr: 0,
            irq: 0,
            dma: 0,
            port: 0,
        },
    };
    Ok(libc::ifreq { ifr_name, ifr_ifru })
}

fn ioctl_ifreq(fd: BorrowedFd<'_>, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: both requests passed here read and write one `ifreq`, which is borrowed for the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), what, ptr::from_mut(request)) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `struct ethtool_channels` (linux/ethtool.h).
#[derive(Default)]
#[repr(C)]
struct EthtoolChannels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

/// Queries the queues of the interface `name`.
pub(crate) fn channels(name: &str) -> io::Result<Channels> {
    /// The command ETHTOOL_GCHANNELS.
    const GET: u32 = 0x3c;
    let socket = crate::interface::probe_socket()?;
    let mut channels = EthtoolChannels {
        command: GET,
        ..EthtoolChannels::default()
    };
    let mut request = named_request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: SIOCETHTOOL with this command reads and writes one `ethtool_channels`, to which the request
    // points; both live for the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let with = |own: u32| own.saturating_add(channels.combined);
    Ok(Channels {
        receive: with(channels.receive),
        send: with(channels.send),
    })
}

/// `struct ethtool_rxnfc` (linux/ethtool.h): the command, 180 bytes of a rule, and the number of rules, with
/// room behind it.
#[repr(C)]
struct EthtoolRules {
    command: u32,
    rest: [u32; 63],
}
/// What the kernel reads and writes of it.
const RULES: usize = 192;
const _: () = assert!(size_of::<EthtoolRules>() >= RULES);

/// Queries the driver of the interface `name` for the number of its receive rules: whether it has any.
pub(crate) fn has_rules(name: &str) -> io::Result<bool> {
    /// The command ETHTOOL_GRXCLSRLCNT.
    const COUNT: u32 = 0x2e;
    let socket = crate::interface::probe_socket()?;
    let mut rules = EthtoolRules {
        command: COUNT,
        rest: [0; 63],
    };
    let mut request = named_request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut rules).cast();
    // SAFETY: SIOCETHTOOL with this command reads and writes one `ethtool_rxnfc`, which is shorter than the
    // structure that the request points to; both live for the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    match io::Error::last_os_error() {
        _ if done == 0 => Ok(true),
        error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        error => Err(error),
    }
}

/// The beginning of `struct ethtool_drvinfo` (linux/ethtool.h).
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}
const _: () = assert!(size_of::<DriverInfo>() == 196);

/// Queries the name of the driver of the interface `name`.
pub(crate) fn driver(name: &str) -> io::Result<String> {
    /// The command ETHTOOL_GDRVINFO.
    const GET: u32 = 0x3;
    let socket = crate::interface::probe_socket()?;
    let mut info = DriverInfo {
        command: GET,
        driver: [0; 32],
        rest: [0; 160],
    };
    let mut request = named_request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: SIOCETHTOOL with this command reads and writes one `ethtool_drvinfo`, to which the request
    // points; both live for the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let text = info.driver.split(|byte| *byte == 0).next().unwrap_or(&[]);
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Binds a socket to an interface (`SO_BINDTODEVICE`) for both directions.
///
/// # Errors
/// When there is no such interface; before Linux 5.7, also without root.
pub fn bind_to_device(fd: BorrowedFd<'_>, interface: &str) -> io::Result<()> {
    let (name, length) = (interface.as_ptr().cast(), interface.len() as libc::socklen_t);
    // SAFETY: the kernel reads `length` bytes of the name, which is borrowed for the call.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name,
            length,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn the_loopback_is_there_and_what_is_not_is_said() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let lo = interface(socket.as_fd(), "lo").unwrap();
        assert!(
            lo.mtu >= 1500 && lo.flags & libc::IFF_LOOPBACK as u32 != 0,
            "{lo:?}"
        );
        for name in ["", "nosuch0", "a-name-that-is-too-long", "l\0o"] {
            let error = interface(socket.as_fd(), name).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name:?}");
        }
    }
}
