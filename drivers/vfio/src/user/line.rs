//! The connection to an emulated device: one request and its reply at a time, each with a deadline.
//!
//! After an error the position in the byte stream is unknown, so the connection is closed, and every later
//! request reports that the device is gone.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::wire::{self, Command, HEADER, Writer};
use crate::error::Error;
use crate::event::poll;

/// Descriptors that one message carries at most.
const DESCRIPTORS: usize = 16;
/// Between two tries to get into a queue of callers that is full.
const AGAIN: Duration = Duration::from_millis(1);

/// One reply of the server.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) payload: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// A connected socket.
#[derive(Debug)]
pub(super) struct Line {
    /// Named in errors.
    name: String,
    /// None once something went wrong.
    socket: Option<OwnedFd>,
    next: u16,
    limit: Duration,
}

/// How an exchange ends badly.
enum Trouble {
    TimedOut,
    Closed(Option<io::Error>),
    Rules(&'static str),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self::Closed(Some(errno.into()))
    }
}

impl Line {
    /// Connects; each request, this one too, may take `limit`.
    pub(super) fn connect(path: &Path, limit: Duration) -> Result<Self, Error> {
        let name = format!("vfio-user:{}", path.display());
        let socket = connect(path, Instant::now() + limit).map_err(|source| Error::Gone {
            device: name.clone(),
            step: "connect",
            source: Some(source),
        })?;
        Ok(Self {
            name,
            socket: Some(socket),
            next: 0,
            limit,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the other end is gone, or something went wrong: a call that does not wait.
    pub(super) fn is_over(&self) -> bool {
        let Some(socket) = &self.socket else { return true };
        // If this cannot be found out now, the next request shows it.
        doorbell_fabric::poll::state(socket, PollFlags::IN)
            .is_ok_and(|state| state.intersects(PollFlags::HUP | PollFlags::ERR))
    }

    /// Sends a request and waits for the reply.
    pub(super) fn ask(
        &mut self,
        command: Command,
        body: Writer,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Answer, Error> {
        let Some(socket) = self.socket.take() else {
            return Err(self.trouble(command, Trouble::Closed(None)));
        };
        let number = self.next;
        self.next = number.wrapping_add(1);
        let end = Instant::now() + self.limit;
        let asked = send(&socket, &body.message(number, command), descriptors, end)
            .and_then(|()| receive(&socket, number, command, end));
        let (refusal, answer) = asked.map_err(|trouble| self.trouble(command, trouble))?;
        // The line is in order: the answer was taken whole.
        self.socket = Some(socket);
        match refusal {
            None => Ok(answer),
            Some(number) => Err(Error::refused(&self.name, command.step(), refused(number))),
        }
    }

    /// Something in an answer is wrong: the end of the line.
    pub(super) fn hostile(&mut self, what: &'static str) -> Error {
        self.socket = None;
        Error::hostile(&self.name, what)
    }

    fn trouble(&self, command: Command, trouble: Trouble) -> Error {
        let (device, step) = (self.name.clone(), command.step());
        match trouble {
            Trouble::TimedOut => Error::Silent {
                device,
                step,
                waited: self.limit,
            },
            Trouble::Closed(source) => Error::Gone { device, step, source },
            Trouble::Rules(what) => Error::Hostile { device, what },
        }
    }
}

/// The error that a refusal names.
fn refused(number: i32) -> io::Error {
    match number {
        0 => io::Error::other("it refused and gives no reason"),
        number => io::Error::from_raw_os_error(number),
    }
}

fn connect(path: &Path, end: Instant) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN) if Instant::now() < end => std::thread::sleep(AGAIN),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits until one may go on; an error when the time is over.
fn wait(socket: &OwnedFd, what: PollFlags, end: Instant) -> Result<(), Trouble> {
    let left = end.saturating_duration_since(Instant::now());
    match poll(socket.as_fd(), what, left) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Trouble::TimedOut),
        Err(source) => Err(Trouble::Closed(Some(source))),
    }
}

fn send(
    socket: &OwnedFd,
    mut bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    end: Instant,
) -> Result<(), Trouble> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Trouble::Rules(
            "accepts fewer descriptors per message than are needed",
        ));
    }
    while !bytes.is_empty() {
        let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
        match sent {
            Ok(count) => {
                bytes = &bytes[count..];
                // They went with the first bytes.
                control = SendAncillaryBuffer::default();
            }
            Err(Errno::AGAIN) => wait(socket, PollFlags::OUT, end)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The answer, and the error's number where it is a refusal.
fn receive(
    socket: &OwnedFd,
    number: u16,
    command: Command,
    end: Instant,
) -> Result<(Option<i32>, Answer), Trouble> {
    let (mut header, mut descriptors) = ([0; HEADER], Vec::new());
    fill(socket, &mut header, &mut descriptors, end)?;
    let reply = wire::reply(&header, number, command).map_err(Trouble::Rules)?;
    let mut payload = vec![0; reply.length];
    fill(socket, &mut payload, &mut descriptors, end)?;
    Ok((reply.refusal, Answer { payload, descriptors }))
}

fn fill(
    socket: &OwnedFd,
    mut room: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    end: Instant,
) -> Result<(), Trouble> {
    while !room.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(room)], &mut control, flags) {
            Ok(message) if message.bytes == 0 => return Err(Trouble::Closed(None)),
            Ok(message) => {
                for passed in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(passed) = passed {
                        descriptors.extend(passed);
                    }
                }
                room = &mut room[message.bytes..];
            }
            Err(Errno::AGAIN) => wait(socket, PollFlags::IN, end)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
