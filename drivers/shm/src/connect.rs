//! Handshake sockets: Unix sockets between processes of one user, each with two handshake messages and then
//! wake-up bytes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use doorbell_fabric::error::{RailError, advice};
use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::map::{Object, Protection};
use doorbell_ring::lane::Geometry;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use zerocopy::IntoBytes;

use crate::lease::{Foreign, LEASE_BYTES};
use crate::map::{Sides, sides};
use crate::tx::{CLOSE_REASON, FRONT_WORDS, SEVERED};
use crate::wire::{Hello, Id, Welcome};

/// The result of a connection attempt.
pub(crate) enum DialOutcome {
    /// Connected, to the process of this pid; the hello has been sent.
    HelloSent(CloforkFd, i32),
    /// The peer's backlog is full: try again.
    Later,
    /// No socket listens there any longer.
    Gone,
}

/// The result of receiving a handshake message.
pub(crate) enum Received<T> {
    /// It has not arrived yet.
    Pending,
    /// It has arrived.
    Message(T),
    /// The other end has closed the connection without sending it.
    Closed,
    /// The other end has forgotten us, and answered that.
    Forgotten,
}

/// A received and validated hello, with the pid of its sender. Its objects are mapped, and their descriptors
/// closed: one that waits takes the descriptor of its socket alone.
pub(crate) struct ReceivedHello {
    pub(crate) hello: Hello,
    pub(crate) geometry: Geometry,
    pub(crate) lane: Sides,
    /// `None` where the sender's were known.
    pub(crate) leases: Option<Foreign>,
    pub(crate) pid: i32,
}

impl ReceivedHello {
    /// Whether the lane was given up before it was accepted.
    pub(crate) fn is_severed(&self) -> bool {
        self.lane.words.load(CLOSE_REASON) == SEVERED
    }
}

/// A received and validated welcome.
pub(crate) struct ReceivedWelcome {
    pub(crate) welcome: Welcome,
    pub(crate) control: Object,
    pub(crate) ready: Object,
    pub(crate) leases: Object,
}

pub(crate) fn system(step: &'static str, errno: Errno) -> RailError {
    let source: std::io::Error = errno.into();
    let remedy = advice(&source);
    RailError::System {
        rail: "shm".to_owned(),
        step,
        source,
        remedy: remedy.unwrap_or("check `ulimit -n`, and that Unix sockets are allowed in this container"),
    }
}

/// Whether an error means that this process, or the system, has no descriptor left at the moment.
pub(crate) fn is_out_of_files(error: &RailError) -> bool {
    let (RailError::System { source, .. } | RailError::Memory { source, .. }) = error else {
        return false;
    };
    matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn name_of(id: &Id) -> Result<SocketAddrUnix, RailError> {
    let mut name = b"doorbell-shm-".to_vec();
    for byte in id {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    SocketAddrUnix::new_abstract_name(&name).map_err(|errno| system("name a socket", errno))
}

fn socket() -> Result<CloforkFd, RailError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    CloforkFd::open(|| rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None))
        .map_err(|errno| system("create a Unix socket", errno))
}

/// Listens on the rail's random abstract name.
pub(crate) fn listen(id: &Id) -> Result<CloforkFd, RailError> {
    let listener = socket()?;
    rustix::net::bind(&listener, &name_of(id)?).map_err(|errno| system("bind a Unix socket", errno))?;
    rustix::net::listen(&listener, 4096).map_err(|errno| system("listen on a Unix socket", errno))?;
    Ok(listener)
}

/// Accepts the next connection, if there is one.
pub(crate) fn accept(listener: &CloforkFd) -> Result<Option<CloforkFd>, RailError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match CloforkFd::open(|| rustix::net::accept_with(listener, flags)) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(system("accept a connection", errno)),
    }
}

/// Returns the pid of the other end if it belongs to our user; 0 if it is in a pid namespace that we cannot
/// see.
fn peer_pid(socket: &CloforkFd) -> Result<i32, RailError> {
    let credentials = getsockopt(socket, PeerCredentials).map_err(|errno| {
        system(
            "query the credentials of a connection",
            Errno::from_raw_os_error(errno as i32),
        )
    })?;
    if credentials.uid() != rustix::process::geteuid().as_raw() {
        return Err(RailError::hostile("belongs to another user"));
    }
    Ok(credentials.pid())
}

/// Whether a socket listens on a rail's name; then its process is alive, unless it is just exiting.
///
/// # Errors
/// When that cannot be determined for lack of descriptors or memory.
pub(crate) fn is_listening(id: &Id) -> Result<bool, RailError> {
    let socket = socket()?;
    match rustix::net::connect(&socket, &name_of(id)?) {
        // A full backlog belongs to a listening socket.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(errno) => Err(system("check whether a rank on this host is alive", errno)),
    }
}

/// Connects to a peer and sends the hello with the lane.
pub(crate) fn dial(id: &Id, hello: &Hello, lane: &Object, leases: &Object) -> Result<DialOutcome, RailError> {
    let socket = socket()?;
    match rustix::net::connect(&socket, &name_of(id)?) {
        Ok(()) => {}
        Err(Errno::AGAIN | Errno::INTR) => return Ok(DialOutcome::Later),
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(DialOutcome::Gone),
        Err(errno) => return Err(system("connect to a rank on this host", errno)),
    }
    let pid = peer_pid(&socket)?;
    match send(&socket, hello.as_bytes(), &[lane.as_fd(), leases.as_fd()]) {
        Ok(()) => Ok(DialOutcome::HelloSent(socket, pid)),
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(DialOutcome::Gone),
        Err(errno) => Err(system("pass a lane to a rank on this host", errno)),
    }
}

/// Answers a hello with a welcome.
pub(crate) fn send_welcome(
    socket: &CloforkFd,
    welcome: &Welcome,
    control: &Object,
    ready: &Object,
    leases: &Object,
) -> Result<(), RailError> {
    send(
        socket,
        welcome.as_bytes(),
        &[control.as_fd(), ready.as_fd(), leases.as_fd()],
    )
    .map_err(|errno| system("answer a rank on this host", errno))
}

/// Answers a hello of an acquaintance that has ended here.
pub(crate) fn send_forgotten(socket: &CloforkFd, incarnation: u64) {
    // A sender that has exited meanwhile needs no answer.
    let _ = rustix::net::send(
        socket,
        Welcome::forgotten(incarnation).as_bytes(),
        SendFlags::NOSIGNAL,
    );
}

fn send(socket: &CloforkFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::MSGSIZE);
    }
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(Errno::MSGSIZE)
    }
}

/// Receives the hello of a connection, if it has arrived. Without descriptors for what it carries it stays
/// where it is, and the error is one of [`is_out_of_files`].
///
/// The leases are mapped unless `are_leases_known`.
pub(crate) fn receive_hello(
    socket: &CloforkFd,
    are_leases_known: impl Fn(&Hello) -> bool,
) -> Result<Received<ReceivedHello>, RailError> {
    let pid = peer_pid(socket)?;
    let (bytes, descriptors) = match receive::<{ size_of::<Hello>() }>(socket)? {
        Received::Message(message) => message,
        Received::Pending => return Ok(Received::Pending),
        Received::Closed | Received::Forgotten => return Ok(Received::Closed),
    };
    let (hello, geometry) = Hello::parse(&bytes).map_err(RailError::hostile)?;
    let [lane, leases] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|_| RailError::hostile("passed the wrong number of descriptors"))?;
    let lane = Object::received_growing(lane, FRONT_WORDS * 8 + geometry.bytes())?;
    let leases = Object::received(leases, LEASE_BYTES)?;
    Ok(Received::Message(ReceivedHello {
        geometry,
        lane: sides(&lane, Protection::ReadOnly, FRONT_WORDS)?,
        leases: if are_leases_known(&hello) {
            None
        } else {
            Some(Foreign::map(&leases)?)
        },
        hello,
        pid,
    }))
}

/// Receives the welcome of a receiver, if it has arrived; without descriptors as [`receive_hello`].
pub(crate) fn receive_welcome(socket: &CloforkFd) -> Result<Received<ReceivedWelcome>, RailError> {
    let (bytes, descriptors) = match receive::<{ size_of::<Welcome>() }>(socket)? {
        Received::Message(message) => message,
        Received::Pending => return Ok(Received::Pending),
        Received::Closed | Received::Forgotten => return Ok(Received::Closed),
    };
    let welcome = Welcome::parse(&bytes).map_err(RailError::hostile)?;
    if welcome.is_forgotten() {
        return Ok(Received::Forgotten);
    }
    let [control, ready, leases] = <[OwnedFd; 3]>::try_from(descriptors)
        .map_err(|_| RailError::hostile("passed the wrong number of descriptors"))?;
    let least = FRONT_WORDS * 8 + doorbell_ring::lane::CONTROL_BYTES;
    Ok(Received::Message(ReceivedWelcome {
        welcome,
        control: Object::received(control, least)?,
        ready: Object::received(ready, crate::ready::READY_BYTES)?,
        leases: Object::received(leases, LEASE_BYTES)?,
    }))
}

type RawMessage = (Vec<u8>, Vec<OwnedFd>);

/// Most descriptors accepted with one message, more than any of ours carries.
const DESCRIPTORS_MAX: usize = 8;

/// Receives one message of at most `N` bytes with its descriptors; a longer one is an error.
///
/// The kernel drops descriptors for which it finds no room in this process, and the message with them. So it
/// is looked at first, which brings the descriptors too, and taken once they are here: one that comes while
/// there are none left is received later.
fn receive<const N: usize>(socket: &CloforkFd) -> Result<Received<RawMessage>, RailError> {
    let mut bytes = [0; N];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK,
    );
    let received = match received {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Pending),
        // A process that exits before it accepted the connection or read its data resets it.
        Err(Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN) => return Ok(Received::Closed),
        Err(errno) => return Err(system("read a rank's first message", errno)),
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.bytes == 0 {
        return Ok(Received::Closed);
    }
    // If the buffer had room for more descriptors, the kernel failed to install those that were passed.
    if received.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() < DESCRIPTORS_MAX {
        return Err(system(
            "receive descriptors from a rank on this host",
            Errno::MFILE,
        ));
    }
    // What it carries is here: the rest of this message goes.
    let _ = rustix::net::recv(socket, &mut [0; 1][..], RecvFlags::DONTWAIT);
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(RailError::hostile("sent a first message that is too long"));
    }
    Ok(Received::Message((bytes[..received.bytes].to_vec(), descriptors)))
}

/// The byte that wakes a sleeper.
const WAKE: u8 = 1;
/// The byte that begins the use of one socket for both directions (`one_socket`).
const MERGE: u8 = 2;

/// Wakes a sleeping receiver. Never blocks; a full or closed socket is not the sender's concern.
pub(crate) fn signal(socket: &CloforkFd) {
    let _ = rustix::net::send(socket, &[WAKE], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Requests the use of one socket; returns whether the request has left.
pub(crate) fn send_merge(socket: &CloforkFd) -> bool {
    rustix::net::send(socket, &[MERGE], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
}

/// What came over a socket after the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// The other end has hung up.
    pub(crate) hung_up: bool,
    /// It uses one socket from now on.
    pub(crate) merge: bool,
}

/// Reads a bounded number of bytes.
pub(crate) fn drain(socket: &CloforkFd) -> Drained {
    let (mut bytes, mut drained) = ([0; 64], Drained::default());
    for _ in 0..64 {
        match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                drained.hung_up = true;
                break;
            }
            Ok((length, _)) => drained.merge |= bytes[..length.min(64)].contains(&MERGE),
            Err(Errno::AGAIN | Errno::INTR) => break,
            Err(_) => {
                drained.hung_up = true;
                break;
            }
        }
    }
    drained
}
