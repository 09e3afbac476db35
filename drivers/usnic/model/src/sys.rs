//! Unsafe room: system calls that `rustix` has no safe form of: an interface's raw frames (AF_PACKET,
//! packet(7)), and a tap (linux/if_tun.h).
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void};

/// A frame that an interface received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedFrame {
    pub(crate) length: usize,
    /// Whether the sender left the checksum of UDP or TCP to a device.
    pub(crate) is_unfinished: bool,
    /// The tag that the kernel took off.
    pub(crate) vlan: Option<u16>,
}

/// `PACKET_IGNORE_OUTGOING` (linux/if_packet.h): what is sent here is not received again.
const IGNORE_OUTGOING: c_int = 23;

fn done(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn option<T>(socket: &OwnedFd, name: c_int, value: &T) -> io::Result<()> {
    let value: *const T = value;
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes at `value`, which is as long.
    done(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            value.cast::<c_void>(),
            length,
        )
    })
    .map(drop)
}

/// Opens an interface for all frames that it receives, also those for others, and for sending.
pub(crate) fn packet(interface: &str) -> io::Result<OwnedFd> {
    let index = {
        let any = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            None,
        )?;
        rustix::net::netdevice::name_to_index(&any, interface)?
    };
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers. Protocol 0: nothing is received before the socket is bound to its interface.
    let socket = done(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: a new descriptor, which no other code has.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let one: c_int = 1;
    option(&socket, IGNORE_OUTGOING, &one)?;
    // What the kernel's default holds is a few frames of 9000 bytes. Without the right to have more, it is
    // what it is.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, HEARD)
        .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&socket, HEARD));
    option(&socket, libc::PACKET_AUXDATA, &one)?;
    // SAFETY: plain numbers and bytes, for which zero is a value.
    let mut all: libc::packet_mreq = unsafe { zeroed() };
    all.mr_ifindex = index as c_int;
    all.mr_type = libc::PACKET_MR_PROMISC as u16;
    option(&socket, libc::PACKET_ADD_MEMBERSHIP, &all)?;
    // SAFETY: plain numbers and bytes, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as c_int;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let at: *const libc::sockaddr_ll = &address;
    // SAFETY: the kernel reads `length` bytes at `address`, which is as long.
    done(unsafe { libc::bind(socket.as_raw_fd(), at.cast(), length) })?;
    Ok(socket)
}

/// Bytes that may wait to be received: some hundred of the longest frames, as the kernel counts them.
const HEARD: usize = 8 << 20;

/// Takes the next frame that an interface received; `None` where there is none now.
pub(crate) fn receive(socket: &OwnedFd, room: &mut [u8]) -> Option<ReceivedFrame> {
    let mut part = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    let mut control = [0u64; 16];
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<[u64; 16]>();
    // SAFETY: the message names `room` and `control`, which outlive the call, with their lengths.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(count)
        .ok()
        .filter(|_| message.msg_flags & libc::MSG_TRUNC == 0)?;
    let told = auxiliary(&message);
    let status = told.map_or(0, |told| told.tp_status);
    Some(ReceivedFrame {
        length,
        is_unfinished: status & libc::TP_STATUS_CSUMNOTREADY != 0,
        vlan: told
            .filter(|_| status & libc::TP_STATUS_VLAN_VALID != 0)
            .map(|told| told.tp_vlan_tci),
    })
}

/// The kernel's data beside a frame.
fn auxiliary(message: &libc::msghdr) -> Option<libc::tpacket_auxdata> {
    // SAFETY: the kernel filled the message, and its control part is still there.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a header inside of the control part, which is aligned for it.
    let header = unsafe { header.as_ref() }?;
    let is_told = (header.cmsg_level, header.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA);
    let wanted = size_of::<libc::tpacket_auxdata>();
    // SAFETY: arithmetic alone.
    let least = unsafe { libc::CMSG_LEN(wanted as u32) } as usize;
    if !is_told || header.cmsg_len < least {
        return None;
    }
    // SAFETY: by the header's length the data follows it, inside of the control part.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: as many bytes as the structure has, which is plain numbers; its place need not be aligned.
    Some(unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() })
}

/// Makes a tap of this name, or opens one that is there: whole frames, nothing before them. It goes with its
/// last descriptor.
pub(crate) fn tap(name: &str) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open("/dev/net/tun", flags, rustix::fs::Mode::empty())?;
    // SAFETY: plain numbers and bytes, for which zero is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() || name.bytes().any(|byte| byte == 0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a name has at most 15 bytes",
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    let at: *mut libc::ifreq = &mut request;
    // SAFETY: the kernel reads and writes one `ifreq` there.
    done(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, at) })?;
    Ok(file)
}
