//! Unsafe room: what the kernel tells of interfaces and has no safe wrapper.
//!
//! Every pointer given to the kernel is made within the function that makes the call, from memory that it borrows or
//! owns; none is kept.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::details::Channels;

/// What the kernel says of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `IFF_…` flags.
    pub flags: u32,
    /// In bytes, of an IP packet.
    pub mtu: usize,
}

/// Asks for the flags and the MTU of the interface `name`, in the network namespace of the socket.
pub(crate) fn interface(fd: BorrowedFd<'_>, name: &str) -> io::Result<Seen> {
    let mut request = named_request(name)?;
    ask(fd, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the call succeeded, so the kernel filled in this member of the union; any bits are a `c_short`.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    ask(fd, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: as above, for a `c_int`.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(Seen {
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

fn ask(fd: BorrowedFd<'_>, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: both requests asked here read and write one `ifreq`, which is borrowed for the call.
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
struct Told {
    command: u32,
    most: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

/// The queues of the interface `name`.
pub(crate) fn channels(name: &str) -> io::Result<Channels> {
    /// ETHTOOL_GCHANNELS.
    const GET: u32 = 0x3c;
    let socket = crate::interface::probe_socket()?;
    let mut channels = Told {
        command: GET,
        ..Told::default()
    };
    let mut request = named_request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: SIOCETHTOOL with this command reads and writes one `ethtool_channels`, to which the request points; both
    // live for the call.
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

/// `struct ethtool_drvinfo` (linux/ethtool.h), as far as it is read.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}
const _: () = assert!(size_of::<DriverInfo>() == 196);

/// The name of the driver behind the interface `name`.
pub(crate) fn driver(name: &str) -> io::Result<String> {
    /// ETHTOOL_GDRVINFO.
    const GET: u32 = 0x3;
    let socket = crate::interface::probe_socket()?;
    let mut info = DriverInfo {
        command: GET,
        driver: [0; 32],
        rest: [0; 160],
    };
    let mut request = named_request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: SIOCETHTOOL with this command reads and writes one `ethtool_drvinfo`, to which the request points; both live
    // for the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let text = info.driver.split(|byte| *byte == 0).next().unwrap_or(&[]);
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The interface.
    pub interface: String,
    /// Its address; `None` for the line that only says that the interface exists.
    pub address: Option<IpAddr>,
    /// How many of its first bits it shares with all of its network; 0 without an address.
    pub prefix: u8,
}

/// Every interface of this network namespace with its addresses, in the kernel's order.
pub fn assigned() -> io::Result<Vec<Assigned>> {
    let mut list = ptr::null_mut();
    // SAFETY: `list` is where the function puts the head of a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is a node of the list, which is not freed yet.
        let node = unsafe { *next };
        // SAFETY: the name of a node is a C string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(node.ifa_name) };
        found.push(Assigned {
            interface: name.to_string_lossy().into_owned(),
            address: inet_of(node.ifa_addr),
            prefix: inet_of(node.ifa_netmask).map_or(0, ones),
        });
        next = node.ifa_next;
    }
    // SAFETY: the list came from `getifaddrs`; nothing of it is used any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

fn ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(four) => four.to_bits().leading_ones(),
        IpAddr::V6(six) => six.to_bits().leading_ones(),
    };
    ones as u8
}

/// The address of a node of the list of `getifaddrs`, when it is an internet address.
fn inet_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so `getifaddrs` made it point to an address, which begins with its family; it may be unaligned.
    let family = unsafe { ptr::read_unaligned(address.cast::<libc::sa_family_t>()) };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a `sockaddr_in`.
            let four = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_in>()) };
            Some(IpAddr::V4(Ipv4Addr::from(four.sin_addr.s_addr.to_ne_bytes())))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a `sockaddr_in6`.
            let six = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_in6>()) };
            Some(IpAddr::V6(Ipv6Addr::from(six.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

/// Frames of this socket go out by `interface` and no other, and only what comes in by it is for this socket.
///
/// # Errors
/// When there is no such interface; before Linux 5.7, also for everybody but root.
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
        let all = assigned().unwrap();
        let lo = |ip: &str| Assigned {
            interface: "lo".to_owned(),
            address: Some(ip.parse().unwrap()),
            prefix: 8,
        };
        assert!(all.contains(&lo("127.0.0.1")), "{all:?}");
    }
}
