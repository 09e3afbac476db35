//! All unsafe code of this crate: socket options, and batches with segments.
//!
//! Every pointer given to the kernel is made in the function that makes the call, from memory that it borrows
//! or owns; none is kept.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use doorbell_fabric::datagram::Run;

/// Most messages of one `sendmmsg` or `recvmmsg`.
pub(crate) const BATCH_MAX: usize = 64;

/// Most frames of a run that one call sends out of where they are.
const GATHERED_MAX: usize = 256;

/// Sets an option whose value is one `int`.
pub(crate) fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which lives for the call.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Reads an option whose value is one `int`.
pub(crate) fn get_int(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value` and the length to `length`; both live for
    // the call.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if done == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Frames that the kernel dropped at this socket, mostly because its buffer was full; 0 if it does not report
/// them.
pub(crate) fn kernel_drops(fd: BorrowedFd<'_>) -> u64 {
    // SK_MEMINFO_DROPS is the ninth value (linux/sock_diag.h).
    const DROPS: usize = 8;
    let mut values = [0u32; DROPS + 1];
    let mut length = size_of_val(&values) as libc::socklen_t;
    let to = values.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `length` bytes to `values`; both live for the call.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            to,
            &raw mut length,
        )
    };
    let told = done == 0 && length as usize == size_of_val(&values);
    if told { u64::from(values[DROPS]) } else { 0 }
}

/// An error of a sent frame, from ICMP or the local kernel (ip(7), `IP_RECVERR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpError {
    /// The error number.
    pub(crate) errno: i32,
    /// Whether this host's kernel raised it when sending.
    pub(crate) local: bool,
    /// For `EMSGSIZE`: the largest IP packet that passes.
    pub(crate) mtu: usize,
    /// Destination of the frame.
    pub(crate) to: Option<SocketAddr>,
}

impl IcmpError {
    /// Reads one control message: a `cmsghdr`, then a `sock_extended_err` (linux/errqueue.h).
    fn read(control: &[u8], to: Option<SocketAddr>) -> Option<Self> {
        const ORIGIN_LOCAL: u8 = 1;
        let word = |at: usize| control.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes);
        let (level, kind) = (word(8)?, word(12)?);
        let known = [
            (libc::IPPROTO_IP, libc::IP_RECVERR),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        ];
        if !known.contains(&(level, kind)) {
            return None;
        }
        Some(Self {
            errno: word(CONTROL_HEADER)?,
            local: *control.get(CONTROL_HEADER + 4)? == ORIGIN_LOCAL,
            mtu: usize::try_from(word(CONTROL_HEADER + 8)?).unwrap_or(0),
            to,
        })
    }
}

/// Takes the oldest error out of a socket's error queue.
pub(crate) fn icmp_error(fd: BorrowedFd<'_>) -> io::Result<IcmpError> {
    #[repr(C, align(8))]
    struct Room([u8; 128]);
    let (mut room, mut name) = (Room([0; 128]), Name::EMPTY);
    let mut header = no_header().msg_hdr;
    (header.msg_name, header.msg_namelen) = (name.bytes.as_mut_ptr().cast(), name.bytes.len() as u32);
    (header.msg_control, header.msg_controllen) = (room.0.as_mut_ptr().cast(), room.0.len());
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points to a name and to room for control messages, with their sizes; both live for
    // the call. It has no buffer: the frame itself is not needed.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    name.length = header.msg_namelen;
    let control = &room.0[..header.msg_controllen.min(room.0.len())];
    IcmpError::read(control, name.get()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A socket address in the kernel's form: `sockaddr_in`, or `sockaddr_in6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct Name {
    bytes: [u8; size_of::<libc::sockaddr_in6>()],
    length: u32,
}

impl Name {
    const EMPTY: Self = Self {
        bytes: [0; size_of::<libc::sockaddr_in6>()],
        length: 0,
    };

    /// Converts to the kernel's form.
    pub(crate) fn of(address: SocketAddr) -> Self {
        let mut name = Self::EMPTY;
        let family = match address {
            SocketAddr::V4(four) => {
                name.bytes[4..8].copy_from_slice(&four.ip().octets());
                name.length = size_of::<libc::sockaddr_in>() as u32;
                libc::AF_INET
            }
            SocketAddr::V6(six) => {
                name.bytes[8..24].copy_from_slice(&six.ip().octets());
                name.bytes[24..28].copy_from_slice(&six.scope_id().to_ne_bytes());
                name.length = size_of::<libc::sockaddr_in6>() as u32;
                libc::AF_INET6
            }
        };
        name.bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        name.bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        name
    }

    /// Converts to the standard library's form; `None` for another address family.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        let bytes = &self.bytes;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET if self.length >= 8 => {
                let ip: [u8; 4] = bytes[4..8].try_into().ok()?;
                Some(SocketAddr::new(IpAddr::from(ip), port))
            }
            libc::AF_INET6 if self.length >= 28 => {
                let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
                let scope = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
                Some(SocketAddrV6::new(ip.into(), port, 0, scope).into())
            }
            _ => None,
        }
    }
}

/// Room for one control message with a number: the segment size.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    value: [u8; 8],
}

const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(CONTROL_HEADER == 16 && size_of::<Control>() == 24);

impl Control {
    const EMPTY: Self = Self {
        header: libc::cmsghdr {
            cmsg_len: 0,
            cmsg_level: 0,
            cmsg_type: 0,
        },
        value: [0; 8],
    };

    /// A control message that makes the kernel segment a message into `size` bytes each.
    fn segments(size: u16) -> Self {
        let mut value = [0; 8];
        value[..2].copy_from_slice(&size.to_ne_bytes());
        Self {
            header: libc::cmsghdr {
                cmsg_len: (CONTROL_HEADER + 2) as _,
                cmsg_level: libc::SOL_UDP,
                cmsg_type: libc::UDP_SEGMENT,
            },
            value,
        }
    }

    /// The segment size of a merged run, if the first `length` bytes contain one.
    fn merged(&self, length: usize) -> Option<usize> {
        let is = length >= CONTROL_HEADER + 4
            && self.header.cmsg_level == libc::SOL_UDP
            && self.header.cmsg_type == libc::UDP_GRO;
        let size = i32::from_ne_bytes(self.value[..4].try_into().ok()?);
        usize::try_from(size).ok().filter(|&size| is && size > 0)
    }
}

const NO_IOVEC: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

fn no_header() -> libc::mmsghdr {
    // SAFETY: a message header is numbers and pointers, for which zeroes are valid (no padding is read).
    unsafe { std::mem::zeroed() }
}

/// One message to be sent, and how it is segmented into frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outbound<'a> {
    /// The bytes, of several frames in a row if `segment` is not 0.
    pub(crate) bytes: &'a [u8],
    /// The size of each frame but the last; 0: one frame.
    pub(crate) segment: u16,
}

/// Headers for `sendmsg` and `sendmmsg`.
pub(crate) struct Sender {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    /// Two for each frame of a run: its head, and its part of the body.
    gathered: Box<[[libc::iovec; 2]]>,
    controls: Box<[Control]>,
}

// SAFETY: the pointers inside are written before each call and read in it only; between calls they mean
// nothing.
unsafe impl Send for Sender {}

impl Sender {
    pub(crate) fn new() -> Self {
        Self {
            headers: (0..BATCH_MAX).map(|_| no_header()).collect(),
            vectors: vec![NO_IOVEC; BATCH_MAX].into(),
            gathered: vec![[NO_IOVEC; 2]; GATHERED_MAX].into(),
            controls: vec![Control::EMPTY; BATCH_MAX].into(),
        }
    }

    /// Sends the frames of a run out of the memory that they are in, `most` of them in one message, over one
    /// socket, to `to` or to the connected peer. Returns how many frames the kernel took; an error if it took
    /// none.
    pub(crate) fn send_run(
        &mut self,
        fd: BorrowedFd<'_>,
        to: Option<&Name>,
        run: &Run<'_>,
        most: usize,
    ) -> io::Result<usize> {
        let frames = run.len().min(GATHERED_MAX).min(most * BATCH_MAX);
        for (i, vectors) in self.gathered[..frames].iter_mut().enumerate() {
            let (head, body) = run.frame(i);
            *vectors = [(head.as_ptr(), head.len()), (body.as_ptr(), body.len())].map(|(start, length)| {
                libc::iovec {
                    iov_base: start.cast_mut().cast(),
                    iov_len: length,
                }
            });
        }
        let places = self.headers.iter_mut().zip(&mut self.controls);
        let mut n = 0;
        for (frames, (header, control)) in self.gathered[..frames].chunks_mut(most).zip(places) {
            let header = &mut header.msg_hdr;
            header.msg_iov = frames.as_mut_ptr().cast();
            header.msg_iovlen = (2 * frames.len()) as _;
            address(header, to);
            let segment = if frames.len() > 1 { run.size() } else { 0 };
            segment_by(header, control, segment as u16);
            n += 1;
        }
        // What each header points to was written above: iovecs of this sender over what the run borrows, a
        // control message of this sender, and the caller's name.
        let sent = self.call(fd, n)?;
        Ok(frames.min(sent * most))
    }

    /// Sends up to [`BATCH_MAX`] `messages` over one socket, to `to` or to the connected peer. Returns how
    /// many the kernel took; an error if it took none.
    pub(crate) fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        to: Option<&Name>,
        messages: impl Iterator<Item = Outbound<'a>>,
    ) -> io::Result<usize> {
        let mut n = 0;
        let places = self
            .headers
            .iter_mut()
            .zip(&mut self.vectors)
            .zip(&mut self.controls);
        for (((header, vector), control), message) in places.zip(messages) {
            *vector = libc::iovec {
                iov_base: message.bytes.as_ptr().cast_mut().cast(),
                iov_len: message.bytes.len(),
            };
            let header = &mut header.msg_hdr;
            header.msg_iov = ptr::from_mut(vector);
            header.msg_iovlen = 1;
            address(header, to);
            segment_by(header, control, message.segment);
            n += 1;
        }
        self.call(fd, n)
    }

    /// Sends the first `n` messages, whose headers were written by the caller and point to what it borrows.
    /// Returns how many the kernel took.
    fn call(&mut self, fd: BorrowedFd<'_>, n: usize) -> io::Result<usize> {
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        if n == 1 {
            // SAFETY: the first header was written by the caller, a method of this sender; it points to
            // iovecs and a control message of this sender and to bytes and a name that the caller borrows,
            // all of them for the call, and the kernel only reads them.
            let sent = unsafe { libc::sendmsg(fd, &raw const self.headers[0].msg_hdr, flags) };
            return if sent < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(1)
            };
        }
        // SAFETY: as above for the first `n` headers; the kernel writes only their `msg_len`.
        let sent = unsafe { libc::sendmmsg(fd, self.headers.as_mut_ptr(), n as u32, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Writes where a message goes: to `to`, or to the connected peer.
#[inline]
fn address(header: &mut libc::msghdr, to: Option<&Name>) {
    (header.msg_name, header.msg_namelen) = match to {
        Some(name) => (name.bytes.as_ptr().cast_mut().cast(), name.length),
        None => (ptr::null_mut(), 0),
    };
}

/// Writes into how long frames a message is cut; 0: it is one.
#[inline]
fn segment_by(header: &mut libc::msghdr, control: &mut Control, size: u16) {
    (header.msg_control, header.msg_controllen) = if size == 0 {
        (ptr::null_mut(), 0)
    } else {
        *control = Control::segments(size);
        (ptr::from_mut(control).cast(), size_of::<Control>() as _)
    };
}

/// The size, the segmentation and the truncation of one received message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Bytes of the message; more than the buffer holds if it was truncated.
    pub(crate) length: usize,
    /// The size of each frame but the last; 0: one frame.
    pub(crate) segment: usize,
    /// Whether the kernel truncated it.
    pub(crate) cut: bool,
}

/// Headers for `recvmsg` and `recvmmsg`.
pub(crate) struct Receiver {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    controls: Box<[Control]>,
    names: Box<[Name]>,
}

// SAFETY: as for `Sender`.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            headers: (0..BATCH_MAX).map(|_| no_header()).collect(),
            vectors: vec![NO_IOVEC; BATCH_MAX].into(),
            controls: vec![Control::EMPTY; BATCH_MAX].into(),
            names: vec![Name::EMPTY; BATCH_MAX].into(),
        }
    }

    /// Receives one message into each of `buffers`, at most [`BATCH_MAX`], as far as messages are queued, and
    /// returns how many. Also receives the senders if `named`, and the segment sizes if `merged`.
    pub(crate) fn receive<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: impl Iterator<Item = &'a mut [u8]>,
        (named, merged): (bool, bool),
    ) -> io::Result<usize> {
        let mut n = 0;
        let places = self.headers.iter_mut().zip(&mut self.vectors);
        let places = places.zip(&mut self.controls).zip(&mut self.names);
        for ((((header, vector), control), name), buffer) in places.zip(buffers) {
            *vector = libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            };
            let header = &mut header.msg_hdr;
            header.msg_iov = ptr::from_mut(vector);
            header.msg_iovlen = 1;
            (header.msg_name, header.msg_namelen) = if named {
                (name.bytes.as_mut_ptr().cast(), name.bytes.len() as u32)
            } else {
                (ptr::null_mut(), 0)
            };
            (header.msg_control, header.msg_controllen) = if merged {
                (ptr::from_mut(control).cast(), size_of::<Control>() as _)
            } else {
                (ptr::null_mut(), 0)
            };
            header.msg_flags = 0;
            n += 1;
        }
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_TRUNC);
        if n == 1 {
            let header = &raw mut self.headers[0].msg_hdr;
            // SAFETY: the first header was written above. It points to this receiver's own iovec, name and
            // control message, with their sizes, and to a buffer that is borrowed exclusively for longer than
            // this call.
            let got = unsafe { libc::recvmsg(fd, header, flags) };
            let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
            self.headers[0].msg_len = got as u32;
            return Ok(1);
        }
        // SAFETY: as above for the first `n` headers; no two of them share memory.
        let got = unsafe { libc::recvmmsg(fd, self.headers.as_mut_ptr(), n as u32, flags, ptr::null_mut()) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// The `i`th message of the last call.
    pub(crate) fn received(&self, i: usize) -> Received {
        let header = &self.headers[i].msg_hdr;
        let control = header.msg_controllen;
        let merged = (!header.msg_control.is_null()).then(|| self.controls[i].merged(control));
        Received {
            length: self.headers[i].msg_len as usize,
            segment: merged.flatten().unwrap_or(0),
            cut: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        }
    }

    /// The sender of the `i`th message of the last call, if it was requested.
    pub(crate) fn sender(&self, i: usize) -> Option<SocketAddr> {
        let header = &self.headers[i].msg_hdr;
        let name = Name {
            length: header.msg_namelen,
            ..self.names[i]
        };
        name.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn names_go_to_the_kernel_and_back() {
        for text in ["10.1.2.3:56081", "[fe80::1%3]:65535", "[::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Name::of(address).get(), Some(address));
        }
        assert_eq!(Name::EMPTY.get(), None);
    }

    #[test]
    fn batches_come_out_as_they_went_in_with_their_sender() {
        let (a, b) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let to = Name::of(b.local_addr().unwrap());
        let texts = [&b"one"[..], b"twotwo", b"3"];
        let messages = texts.iter().map(|bytes| Outbound { bytes, segment: 0 });
        assert_eq!(Sender::new().send(a.as_fd(), Some(&to), messages).unwrap(), 3);
        let mut receiver = Receiver::new();
        let mut buffers = [[0u8; 4]; 8];
        let slices = buffers.iter_mut().map(|buffer| &mut buffer[..]);
        assert_eq!(receiver.receive(b.as_fd(), slices, (true, true)).unwrap(), 3);
        for (i, text) in texts.iter().enumerate() {
            let one = receiver.received(i);
            assert_eq!(
                (one.length, one.segment, one.cut),
                (text.len(), 0, text.len() > 4)
            );
            assert_eq!(receiver.sender(i), Some(a.local_addr().unwrap()));
            assert_eq!(buffers[i][..text.len().min(4)], text[..text.len().min(4)]);
        }
        let slices = buffers.iter_mut().map(|buffer| &mut buffer[..]);
        let empty = receiver.receive(b.as_fd(), slices, (true, false)).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_refusal_is_in_the_error_queue_with_its_address() {
        let a = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_int(a.as_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, 1).unwrap();
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        a.send_to(b"x", closed).unwrap();
        let start = std::time::Instant::now();
        let answer = loop {
            match icmp_error(a.as_fd()) {
                Ok(answer) => break answer,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            assert!(start.elapsed().as_secs() < 5, "never happened: an answer");
        };
        let expected = IcmpError {
            errno: libc::ECONNREFUSED,
            local: false,
            mtu: 0,
            to: Some(closed),
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn other_control_messages_are_no_answers_and_short_ones_do_no_harm() {
        let mut control = [0; 32];
        control[8..12].copy_from_slice(&libc::IPPROTO_IP.to_ne_bytes());
        control[12..16].copy_from_slice(&libc::IP_RECVERR.to_ne_bytes());
        control[16..20].copy_from_slice(&libc::EMSGSIZE.to_ne_bytes());
        control[20] = 2;
        control[24..28].copy_from_slice(&1280i32.to_ne_bytes());
        let expected = IcmpError {
            errno: libc::EMSGSIZE,
            local: false,
            mtu: 1280,
            to: None,
        };
        assert_eq!(IcmpError::read(&control, None), Some(expected));
        (0..28).for_each(|cut| assert_eq!(IcmpError::read(&control[..cut], None), None));
        control[12] ^= 1;
        assert_eq!(IcmpError::read(&control, None), None);
    }

    #[test]
    fn what_is_sent_as_segments_arrives_as_frames_or_merged() {
        const TEST: &str = "udp::what_is_sent_as_segments_arrives_as_frames_or_merged";
        let (a, b) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        a.connect(b.local_addr().unwrap()).unwrap();
        let bytes: Vec<u8> = (0..250).collect();
        let send = || {
            let one = std::iter::once(Outbound {
                bytes: &bytes,
                segment: 100,
            });
            Sender::new().send(a.as_fd(), None, one)
        };
        if send().is_err() {
            // The driver finds the same when it opens.
            return doorbell_testing::skipped(TEST, "the kernel sends no segments (before Linux 4.18)");
        }
        let mut buffer = [0; 1000];
        let lengths: Vec<usize> = (0..3).map(|_| b.recv(&mut buffer).unwrap()).collect();
        assert_eq!(lengths, [100, 100, 50]);
        if set_int(b.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_err() {
            return doorbell_testing::skipped(TEST, "the kernel merges no frames (before Linux 5.0)");
        }
        send().unwrap();
        let mut receiver = Receiver::new();
        let slices = std::iter::once(&mut buffer[..]);
        assert_eq!(receiver.receive(b.as_fd(), slices, (false, true)).unwrap(), 1);
        let one = receiver.received(0);
        assert_eq!((one.length, one.segment, one.cut), (250, 100, false));
        assert_eq!(buffer[..250], bytes);
        assert_eq!(get_int(b.as_fd(), libc::SOL_UDP, libc::UDP_GRO).unwrap(), 1);
        assert_eq!(kernel_drops(b.as_fd()), 0);
    }
}
