//! Reports to ranks that wait for others: which ranks have ended with exit status 0, and so will not join.
//!
//! Ranks connect during the start, and read the numbers, one per line (`bootstrap::ended` of the library is
//! the other side). Every other end fails the job, and needs no report.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    recv, send, socket_with,
};

/// Suffix of the root's abstract name.
const SUFFIX: &str = "-ended";
/// Backlog of connections.
const BACKLOG: i32 = 1024;

/// The ranks that have ended, and the connections to report them to.
#[derive(Debug)]
pub(super) struct Ends {
    listener: OwnedFd,
    readers: Vec<OwnedFd>,
    ended: Vec<u32>,
    /// Whether the last accept failed, for lack of descriptors: the listener would stay readable.
    is_full: bool,
}

impl Ends {
    /// Listens for the job whose ranks meet at `root` (`@name`).
    pub(super) fn listen(root: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let name = format!("{}{SUFFIX}", root.trim_start_matches('@'));
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&listener, BACKLOG)?;
        Ok(Self {
            listener,
            readers: Vec::new(),
            ended: Vec::new(),
            is_full: false,
        })
    }

    /// Returns the descriptors to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = Some(&self.listener).filter(|_| !self.is_full);
        listener.into_iter().chain(&self.readers).map(AsFd::as_fd)
    }

    /// Handles a descriptor that is ready.
    pub(super) fn look(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while !self.is_full {
            match accept_with(&self.listener, flags) {
                Ok(reader) => {
                    if is_ours(&reader) && self.ended.iter().all(|rank| report(&reader, *rank)) {
                        self.readers.push(reader);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.is_full = true,
            }
        }
        // Readers write nothing: a readable one has disconnected.
        let stays = |reader: &OwnedFd| {
            let read = recv(reader, &mut [0; 1], RecvFlags::DONTWAIT);
            matches!(read, Err(Errno::AGAIN | Errno::INTR))
        };
        let before = self.readers.len();
        self.readers.retain(stays);
        // Their descriptors may be used for others.
        self.is_full &= self.readers.len() == before;
    }

    /// Records a rank that ended with exit status 0.
    pub(super) fn ended(&mut self, rank: u32) {
        self.ended.push(rank);
        // Its descriptors are free.
        self.is_full = false;
        self.readers.retain(|reader| report(reader, rank));
    }
}

/// Whether the other end is of this user: an abstract name has no permissions.
fn is_ours(reader: &OwnedFd) -> bool {
    let peer = getsockopt(reader, PeerCredentials);
    peer.is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw())
}

/// Sends a report; returns whether it was accepted.
fn report(reader: &OwnedFd, rank: u32) -> bool {
    let line = format!("{rank}\n");
    let sent = send(reader, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    sent == Ok(line.len())
}
