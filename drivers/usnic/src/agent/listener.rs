//! The agent's listening socket, which only its own user and root may use, and a group where one is given.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use crate::flow_steering::Trouble;

/// Processes that may connect to a socket wait here.
const BACKLOG: i32 = 128;
/// The most connections that are accepted in one turn.
const AT_A_TURN: usize = 16;

/// The process at the other end, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) user: u32,
    /// 0: of another pid namespace, which has no number here.
    pub(super) process: u32,
    /// Root, or the agent's own user: there is room kept for them.
    pub(super) is_own: bool,
}

/// A listening socket. Its file is removed when it is dropped, where it still is its own.
pub(super) struct Listener {
    listener: OwnedFd,
    path: PathBuf,
    /// The socket's file, by device and number.
    made: (u64, u64),
    user: u32,
    has_group: bool,
}

impl Listener {
    /// Listens at `path`. A socket on which no process listens any more is replaced.
    pub(super) fn new(path: &Path, group: Option<u32>) -> Result<Self, Trouble> {
        let failed = |errno: Errno| {
            Trouble::agent(
                format!("the agent cannot listen at {}: {errno}", path.display()),
                "name another socket with --socket, in a folder that is yours",
            )
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        replace(path, &address, failed)?;
        let listener = new_socket().map_err(failed)?;
        // The mode is set on the socket itself, not by the name of its file, which another user may have
        // replaced by then.
        rustix::fs::fchmod(&listener, Mode::from_raw_mode(0o600))
            .and_then(|()| bind(&listener, &address))
            .map_err(failed)?;
        let there = rustix::fs::lstat(path).map_err(failed)?;
        let this = Self {
            listener,
            path: path.to_owned(),
            made: (there.st_dev, there.st_ino),
            user: rustix::process::geteuid().as_raw(),
            has_group: group.is_some(),
        };
        if let Some(group) = group {
            this.give(group)?;
        }
        // No process can connect before this.
        listen(&this.listener, BACKLOG).map_err(failed)?;
        Ok(this)
    }

    /// Gives the file to a group, and lets it write. The mask of this process may have kept the group out.
    fn give(&self, group: u32) -> Result<(), Trouble> {
        let given = || -> Result<(), Errno> {
            // By a handle of the file itself: what has its name may be another one by now.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
            let found = rustix::fs::fstat(&file)?;
            if (found.st_dev, found.st_ino) != self.made {
                return Err(Errno::STALE);
            }
            rustix::fs::chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
            let name = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::chmod(name, Mode::from_raw_mode(0o660))
        };
        given().map_err(|errno| {
            Trouble::agent(
                format!(
                    "the agent cannot give its socket {} to group {group}: {errno}",
                    self.path.display()
                ),
                "name a group that this user is in, or start the agent as root",
            )
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts the processes that have connected and may: a few at a time.
    pub(super) fn accept(&self) -> Vec<(OwnedFd, Peer)> {
        let mut come = Vec::new();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..AT_A_TURN {
            let Ok(socket) = accept_with(&self.listener, flags) else {
                break;
            };
            let Ok(peer) = getsockopt(&socket, PeerCredentials) else {
                continue;
            };
            let user = peer.uid();
            // The mode of the file keeps out all who are not members of the group.
            let is_own = user == self.user || user == 0;
            if is_own || self.has_group {
                let process = peer.pid().unsigned_abs();
                let peer = Peer {
                    user,
                    process,
                    is_own,
                };
                come.push((socket, peer));
            }
        }
        come
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Removes a socket that no process serves any more, and nothing else.
fn replace(path: &Path, address: &SocketAddrUnix, failed: impl Fn(Errno) -> Trouble) -> Result<(), Trouble> {
    let Ok(there) = rustix::fs::lstat(path) else {
        return Ok(());
    };
    let is_socket = FileType::from_raw_mode(there.st_mode) == FileType::Socket;
    let refused = rustix::net::connect(new_socket().map_err(&failed)?, address).err();
    if is_socket && refused == Some(Errno::CONNREFUSED) {
        return rustix::fs::unlink(path).map_err(failed);
    }
    let what = if is_socket {
        "a process listens at"
    } else {
        "there is a file that is no socket:"
    };
    Err(Trouble::agent(
        format!("{what} {}", path.display()),
        "end the process that has it, or name another socket with --socket",
    ))
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another process may have put its own file there by now.
        if rustix::fs::lstat(&self.path).is_ok_and(|there| (there.st_dev, there.st_ino) == self.made) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}
