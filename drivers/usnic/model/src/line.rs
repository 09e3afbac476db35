//! The connection to one client. A thread reads it; the engine writes it, and may itself request memory of
//! the client.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown,
};

use crate::wire::{self, DESCRIPTORS, HEADER, Header, Writer, command};

/// How long a client may take for an answer about its memory, and for reading ours.
const PATIENCE: Duration = Duration::from_millis(500);

/// A message as it came.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) files: Vec<OwnedFd>,
}

/// A connected client.
#[derive(Debug)]
pub(crate) struct Line {
    socket: OwnedFd,
    /// The answer to the one request that may be under way, and the number of that request.
    asked: Mutex<PendingRequest>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct PendingRequest {
    number: u16,
    is_waiting: bool,
    /// Set once no answers come any more.
    is_over: bool,
    answer: Option<Message>,
}

impl Line {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            asked: Mutex::default(),
            answered: Condvar::new(),
        }
    }

    /// Waits for the next message; answers to our own requests go to their callers. `None` at the end.
    pub(crate) fn next(&self) -> Option<Message> {
        loop {
            let message = self.receive();
            let mut asked = self.pending();
            match message {
                Ok(message) if message.header.is_reply => {
                    if asked.is_waiting && asked.number == message.header.number {
                        asked.answer = Some(message);
                        self.answered.notify_one();
                    }
                }
                Ok(message) => return Some(message),
                Err(_) => {
                    asked.is_over = true;
                    self.answered.notify_one();
                    return None;
                }
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, PendingRequest> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(&self) -> io::Result<Message> {
        let (mut header, mut files) = ([0; HEADER], Vec::new());
        self.fill(&mut header, &mut files)?;
        let header = Header::parse(&header).ok_or(io::ErrorKind::InvalidData)?;
        let mut body = vec![0; header.length];
        self.fill(&mut body, &mut files)?;
        Ok(Message { header, body, files })
    }

    fn fill(&self, mut room: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<()> {
        while !room.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = rustix::net::recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(room)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            let count = match received {
                Ok(message) => message.bytes,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            for passed in control.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = passed {
                    files.extend(passed);
                }
            }
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // More than a message may carry is closed again.
            files.truncate(DESCRIPTORS);
            room = &mut room[count..];
        }
        Ok(())
    }

    /// Sends bytes and at most [`DESCRIPTORS`] files; a client that does not read them in time is cut off.
    pub(crate) fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        if self.try_send(bytes, files).is_err() {
            self.close();
        }
    }

    fn try_send(&self, mut bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while !bytes.is_empty() {
            match rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    // They went with the first bytes.
                    control = SendAncillaryBuffer::default();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.writable(end)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn writable(&self, end: Instant) -> io::Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut waits = [PollFd::new(&self.socket, PollFlags::OUT)];
        match rustix::event::poll(&mut waits, Some(&limit)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Ends the line, for the thread that reads it too.
    pub(crate) fn close(&self) {
        // Fails where it is closed already.
        let _ = rustix::net::shutdown(self.socket.as_fd(), Shutdown::Both);
    }

    /// Requests bytes of the client's memory.
    pub(crate) fn dma_read(&self, at: u64, to: &mut [u8]) -> bool {
        let body = Writer::default().u64(at).u64(to.len() as u64);
        let answer = self.request(command::DMA_READ, body);
        match answer.as_deref().and_then(|body| body.get(16..)) {
            Some(bytes) if bytes.len() == to.len() => {
                to.copy_from_slice(bytes);
                true
            }
            _ => false,
        }
    }

    /// Requests the client to put bytes into its memory.
    pub(crate) fn dma_write(&self, at: u64, from: &[u8]) -> bool {
        let body = Writer::default().u64(at).u64(from.len() as u64).bytes(from);
        self.request(command::DMA_WRITE, body).is_some()
    }

    /// Sends one of our requests, from the engine's thread, and waits for the answer: the data path stands
    /// still meanwhile.
    fn request(&self, command: u16, body: Writer) -> Option<Vec<u8>> {
        let mut asked = self.pending();
        asked.number = asked.number.wrapping_add(1);
        asked.is_waiting = true;
        asked.answer = None;
        let number = asked.number;
        drop(asked);
        self.send(&body.question(number, command), &[]);
        let waiting = |asked: &mut PendingRequest| asked.answer.is_none() && !asked.is_over;
        let waited = self
            .answered
            .wait_timeout_while(self.pending(), PATIENCE, waiting);
        let (mut asked, _) = waited.unwrap_or_else(PoisonError::into_inner);
        asked.is_waiting = false;
        let answer = asked.answer.take()?;
        (!answer.header.is_error).then_some(answer.body)
    }

    /// Refuses a client while another one is served: the answer to its first message, if it comes soon.
    pub(crate) fn refuse(&self, error: i32) {
        // Less than a second, within which the model ends when it is stopped.
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 500_000_000,
        };
        let mut waits = [PollFd::new(&self.socket, PollFlags::IN)];
        if rustix::event::poll(&mut waits, Some(&limit)) == Ok(1) {
            let mut header = [0; HEADER];
            let received = rustix::net::recv(&self.socket, &mut header, RecvFlags::DONTWAIT);
            if received.is_ok_and(|(count, _)| count == HEADER)
                && let Some(header) = Header::parse(&header)
            {
                self.send(&wire::refusal(header.number, header.command, error), &[]);
            }
        }
        self.close();
    }
}
