//! A connection: it is dialled or accepted, performs the handshake, and then carries messages until it ends.
//! It runs as a task of its own, which takes instructions ([`Order`]) and reports events ([`Note`]); its last
//! event is [`Note::Over`].
//!
//! ```text
//!            dial ──┐                              Order::Frame, Say ─► sealed, at most 256 KiB ─► socket
//!                   ├─► handshake ─────► open ─┬── Note::Message     ◄─ opened                  ◄─ socket
//!    accepted ──────┘         │                └── Order::Leave, or the other side closes ─► closing ─► over
//!                             └── refused, late: over
//! ```

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::TcpStream as Accepted;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Sender, UnboundedReceiver};
use tokio::time::{Sleep, sleep};

use super::clock::Clock;
use super::listener::Incoming;
use super::settings::Settings;
use super::socket::{self, Endpoints};
use crate::bytes::Bytes;
use crate::connect::HELLO;
use crate::error::OobError;
use crate::session::{Event, Peer, Role, Session, Terms};
use crate::transport::{Loss, Refusal};
use crate::wire::Frame;

/// Maximum sealed bytes that wait for the socket before more is sealed.
const SEALED: u64 = 256 << 10;
/// Bytes read at once on a quiet connection, and on a busy one.
const SIP: usize = 4 << 10;
const GULP: usize = 64 << 10;

/// Numbers a connection within the transport, before its peer is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Io(pub(super) u64);

/// An instruction to a connection, independent of what it runs over.
#[derive(Debug)]
pub(crate) enum Order {
    /// Send this hello.
    Hello([u8; HELLO]),
    /// Send this frame.
    Frame(Frame),
    /// Write what is queued, and end.
    Leave,
}

/// An event of a connection.
#[derive(Debug)]
pub(super) enum Note {
    /// A connection was accepted.
    Incoming(Incoming),
    /// The handshake is complete.
    Ready(Io, Peer),
    /// A message was received.
    Message(Io, Bytes),
    /// The number of frames written so far.
    Sent(Io, u64),
    /// The connection has ended. No further event follows.
    Over(Io, End),
    /// Interfaces, addresses or routes have changed.
    Changed,
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct End {
    /// The reason, for a connection that was a link.
    pub(crate) loss: Loss,
    /// The reason, for a connection that was to become a link.
    pub(crate) refusal: Refusal,
    /// The error, if there is more to report.
    pub(crate) error: Option<OobError>,
}

/// What all connections of a transport share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) terms: Terms,
    pub(super) clock: Clock,
}

/// How a connection begins.
#[derive(Debug)]
pub(super) enum Begin {
    /// Dial from this address to that one.
    Dial(Endpoints, String),
    /// Take over an accepted connection.
    Accepted(Accepted),
}

/// Runs a connection from its beginning to its end.
pub(super) async fn live(
    io: Io,
    begin: Begin,
    shared: Arc<Shared>,
    orders: UnboundedReceiver<Order>,
    notes: Sender<Note>,
) {
    let end = match begin.connect(&shared).await {
        Ok((stream, session)) => Line::new(io, stream, session, shared, orders).run(&notes).await,
        Err(end) => end,
    };
    let _ = notes.send(Note::Over(io, end)).await;
}

impl Begin {
    async fn connect(self, shared: &Shared) -> Result<(TcpStream, Session), End> {
        let settings = &shared.settings;
        let (stream, role) = match self {
            Self::Accepted(stream) => (TcpStream::from_std(stream).map_err(End::io)?, Role::Answerer),
            Self::Dial(endpoints, nic) => {
                let dialled = tokio::time::timeout(settings.dial, socket::dial(&endpoints)).await;
                let timed_out = || End::filtered(&endpoints, nic.clone(), settings);
                let stream = dialled
                    .map_err(|_| timed_out())?
                    .map_err(|error| match error.kind() {
                        io::ErrorKind::TimedOut => timed_out(),
                        _ => End::dial(error),
                    })?;
                (stream, Role::Caller)
            }
        };
        socket::tune(&stream, settings).map_err(End::io)?;
        let session = Session::new(role, &shared.terms, shared.clock.now()).map_err(End::of)?;
        Ok((stream, session))
    }
}

struct Line {
    io: Io,
    stream: TcpStream,
    session: Session,
    shared: Arc<Shared>,
    orders: UnboundedReceiver<Order>,
    notes: VecDeque<Note>,
    /// Sealed bytes, and how many of them are written.
    wire: Vec<u8>,
    at: usize,
    /// Positions in the stream at which the frames end that are not written yet.
    marks: VecDeque<u64>,
    /// Bytes of the stream that are sealed, and written.
    sealed: u64,
    written: u64,
    /// Number of frames written, and reported.
    sent: u64,
    sent_told: u64,
    /// Whether we are closing: nothing more is sealed.
    leaving: bool,
    /// Whether our end of the stream was sent.
    shut: bool,
    timer: Option<Pin<Box<Sleep>>>,
    /// The buffer of a busy connection.
    gulp: Vec<u8>,
}

/// The result of one step of a connection.
type Turn = Poll<Result<(), End>>;

impl Line {
    fn new(
        io: Io,
        stream: TcpStream,
        session: Session,
        shared: Arc<Shared>,
        orders: UnboundedReceiver<Order>,
    ) -> Self {
        let timer = Some(Box::pin(sleep(shared.settings.handshake)));
        Self {
            io,
            stream,
            session,
            shared,
            orders,
            notes: VecDeque::new(),
            wire: Vec::new(),
            at: 0,
            marks: VecDeque::new(),
            sealed: 0,
            written: 0,
            sent: 0,
            sent_told: 0,
            leaving: false,
            shut: false,
            timer,
            gulp: Vec::new(),
        }
    }

    async fn run(mut self, notes: &Sender<Note>) -> End {
        loop {
            let turn = poll_fn(|cx| self.turn(cx)).await;
            // Back-pressure: nothing is read while an event cannot be delivered.
            for note in self.notes.drain(..) {
                let _ = notes.send(note).await;
            }
            if let Err(end) = turn {
                return end;
            }
        }
    }

    /// Makes as much progress as possible; ready when there are events to report.
    fn turn(&mut self, cx: &mut Context<'_>) -> Turn {
        loop {
            let read = self.read(cx)?.is_ready();
            let ordered = self.take_orders(cx)?.is_ready();
            let written = self.write(cx)?.is_ready();
            self.note_sent();
            if self.leaving && self.is_written() {
                let _ = self.shut(cx);
                if self.session.is_left() {
                    return Poll::Ready(Err(End::closed()));
                }
            }
            if !self.notes.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if let Some(timer) = &mut self.timer
                && timer.as_mut().poll(cx).is_ready()
            {
                return Poll::Ready(Err(self.late()));
            }
            if !(read || ordered || written) {
                return Poll::Pending;
            }
        }
    }

    fn late(&self) -> End {
        if self.leaving {
            return End::closed();
        }
        End::of(OobError::HandshakeLate {
            limit: self.shared.settings.handshake,
        })
    }

    /// Reads once; ready when something was received.
    fn read(&mut self, cx: &mut Context<'_>) -> Turn {
        let mut sip = [0; SIP];
        let much = !self.gulp.is_empty();
        let mut buffer = ReadBuf::new(if much { &mut self.gulp } else { &mut sip });
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Pending => {
                // Free the large buffer once the connection is quiet again.
                self.gulp = Vec::new();
                return Poll::Pending;
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(End::io(error))),
            Poll::Ready(Ok(())) => {}
        }
        let full = buffer.remaining() == 0;
        let came = buffer.filled();
        if came.is_empty() {
            return Poll::Ready(Err(self.ended()));
        }
        let result = self.session.receive(came);
        if full && !much {
            self.gulp = vec![0; GULP];
        }
        self.take_session_events();
        if let Err(error) = result {
            // Send the reason, as far as the socket takes it at once.
            let _ = self.write(cx);
            return Poll::Ready(Err(End::of(error)));
        }
        Poll::Ready(Ok(()))
    }

    /// Handles the end of the peer's stream.
    fn ended(&mut self) -> End {
        match self.session.end() {
            Ok(()) => End::closed(),
            Err(_) if self.shut => End::closed(),
            Err(error) => End::of(error),
        }
    }

    fn take_session_events(&mut self) {
        while let Some(event) = self.session.event() {
            match event {
                Event::Ready(peer) => {
                    self.timer = None;
                    self.notes.push_back(Note::Ready(self.io, peer));
                }
                Event::Message(bytes) => self.notes.push_back(Note::Message(self.io, bytes.into())),
                Event::Closed => self.leave(),
            }
        }
    }

    fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.session.close();
            self.timer = Some(Box::pin(sleep(self.shared.settings.linger)));
        }
    }

    /// Takes instructions; ready when there was one.
    fn take_orders(&mut self, cx: &mut Context<'_>) -> Turn {
        let mut any = false;
        while self.sealed + self.session.outgoing().len() as u64 - self.written < SEALED {
            let Poll::Ready(order) = self.orders.poll_recv(cx) else {
                break;
            };
            any = true;
            // The transport is gone, and so is this connection.
            let Some(order) = order else {
                return Poll::Ready(Err(End::closed()));
            };
            self.obey(order)?;
        }
        if any { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn obey(&mut self, order: Order) -> Result<(), End> {
        match order {
            Order::Leave => self.leave(),
            _ if self.leaving => {}
            Order::Hello(bytes) => self.session.send(&bytes).map_err(End::of)?,
            Order::Frame(frame) => {
                let sent = self.session.send_parts(frame.head(), frame.body());
                sent.map_err(End::of)?;
                let end = self.sealed + self.session.outgoing().len() as u64;
                self.marks.push_back(end);
            }
        }
        Ok(())
    }

    fn is_written(&self) -> bool {
        self.at == self.wire.len() && self.session.outgoing().is_empty()
    }

    /// Writes sealed bytes; ready when the socket has taken some.
    fn write(&mut self, cx: &mut Context<'_>) -> Turn {
        let mut any = false;
        while !self.is_written() {
            if self.at == self.wire.len() {
                self.wire = self.session.take_outgoing();
                self.sealed += self.wire.len() as u64;
                self.at = 0;
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.wire[self.at..]) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(End::io(error))),
                Poll::Ready(Ok(count)) => {
                    any = true;
                    self.at += count;
                    self.written += count as u64;
                }
            }
        }
        if any { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn note_sent(&mut self) {
        while self.marks.front().is_some_and(|&mark| mark <= self.written) {
            self.marks.pop_front();
            self.sent += 1;
        }
        if self.sent > self.sent_told {
            self.sent_told = self.sent;
            self.notes.push_back(Note::Sent(self.io, self.sent));
        }
    }

    fn shut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !std::mem::replace(&mut self.shut, true) {
            let _ = Pin::new(&mut self.stream).poll_shutdown(cx)?;
        }
        Ok(())
    }
}

impl End {
    pub(crate) fn closed() -> Self {
        Self {
            loss: Loss::Closed,
            refusal: Refusal::Broken,
            error: None,
        }
    }

    /// Builds the end of an open connection that broke.
    fn io(error: io::Error) -> Self {
        let silent = error.kind() == io::ErrorKind::TimedOut;
        Self {
            loss: if silent { Loss::Silent } else { Loss::Broken },
            refusal: if silent {
                Refusal::TimedOut
            } else {
                Refusal::Broken
            },
            error: None,
        }
    }

    /// Builds the end of a dial that failed.
    fn dial(error: io::Error) -> Self {
        let refusal = match Errno::from_io_error(&error) {
            Some(Errno::CONNREFUSED) => Refusal::NotListening,
            Some(
                Errno::NETUNREACH
                | Errno::HOSTUNREACH
                | Errno::NETDOWN
                | Errno::NODEV
                | Errno::ADDRNOTAVAIL
                | Errno::ACCESS
                | Errno::PERM,
            ) => Refusal::NoRoute,
            _ => Refusal::Broken,
        };
        Self {
            loss: Loss::Broken,
            refusal,
            error: None,
        }
    }

    fn filtered(endpoints: &Endpoints, nic: String, settings: &Settings) -> Self {
        Self {
            loss: Loss::Broken,
            refusal: Refusal::TimedOut,
            error: Some(OobError::Filtered {
                address: endpoints.to,
                nic,
                waited: settings.dial,
            }),
        }
    }

    /// Builds the end of a failed session.
    pub(crate) fn of(error: OobError) -> Self {
        let refusal = match error {
            OobError::WrongKey | OobError::KeyMissing { .. } => Refusal::WrongKey,
            OobError::Version { .. } => Refusal::WrongVersion,
            OobError::Purpose { .. } | OobError::Stranger { .. } => Refusal::WrongName,
            OobError::HandshakeLate { .. } => Refusal::TimedOut,
            _ => Refusal::Broken,
        };
        let loss = match error {
            OobError::Forged { .. } | OobError::TooLong { .. } => Loss::Protocol,
            _ => Loss::Broken,
        };
        Self {
            loss,
            refusal,
            error: Some(error),
        }
    }
}
