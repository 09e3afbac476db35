//! A TCP connection: it is dialled or accepted, performs the handshake, and then carries messages until it
//! ends. It runs as a task of its own, which takes instructions ([`Order`]) and reports events ([`Note`]);
//! its last event is [`Note::Over`].
//!
//! ```text
//!            dial ──┐                            Order::Frame, Hello ─► sealed, at most 256 KiB ─► socket
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

use super::listener::Incoming;
use super::settings::Settings;
use super::socket::{self, Endpoints};
use crate::bytes::Bytes;
use crate::error::OobError;
use crate::lines::Clock;
use crate::lines::connections::LineId;
use crate::lines::stream::{End, Order, Stream};
use crate::session::{Event, Peer, Role, Terms};
use crate::transport::{Loss, Refusal};

/// Maximum sealed bytes that wait for the socket before more is sealed.
const SEALED: usize = 256 << 10;
/// Bytes read at once on a quiet connection, and on a busy one.
const SIP: usize = 4 << 10;
const GULP: usize = 64 << 10;

/// An event of a connection.
#[derive(Debug)]
pub(super) enum Note {
    /// A connection was accepted.
    Incoming(Incoming),
    /// The handshake is complete.
    Ready(LineId, Peer),
    /// A message was received.
    Message(LineId, Bytes),
    /// The number of frames written so far.
    Sent(LineId, u64),
    /// The connection has ended. No further event follows.
    Over(LineId, End),
    /// Interfaces, addresses or routes have changed.
    Changed,
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
    id: LineId,
    begin: Begin,
    shared: Arc<Shared>,
    orders: UnboundedReceiver<Order>,
    notes: Sender<Note>,
) {
    let end = match begin.connect(&shared).await {
        Ok((socket, stream)) => Line::new(id, socket, stream, shared, orders).run(&notes).await,
        Err(end) => end,
    };
    let _ = notes.send(Note::Over(id, end)).await;
}

impl Begin {
    async fn connect(self, shared: &Shared) -> Result<(TcpStream, Stream), End> {
        let settings = &shared.settings;
        let (socket, role) = match self {
            Self::Accepted(socket) => (TcpStream::from_std(socket).map_err(End::io)?, Role::Answerer),
            Self::Dial(endpoints, nic) => {
                let dialled = tokio::time::timeout(settings.dial, socket::dial(&endpoints)).await;
                let timed_out = || filtered(&endpoints, nic.clone(), settings);
                let socket = dialled
                    .map_err(|_| timed_out())?
                    .map_err(|error| match error.kind() {
                        io::ErrorKind::TimedOut => timed_out(),
                        _ => refused(error),
                    })?;
                (socket, Role::Caller)
            }
        };
        settings.keep_alive.set(&socket).map_err(End::io)?;
        let stream = Stream::new(role, &shared.terms, shared.clock.now()).map_err(End::of)?;
        Ok((socket, stream))
    }
}

/// Builds the end of a dial that failed.
fn refused(error: io::Error) -> End {
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
    End::plain(Loss::Broken, refusal)
}

/// Builds the end of a dial that nothing answered.
fn filtered(endpoints: &Endpoints, nic: String, settings: &Settings) -> End {
    let error = OobError::Filtered {
        address: endpoints.to,
        nic,
        waited: settings.dial,
    };
    End {
        error: Some(error),
        ..End::plain(Loss::Broken, Refusal::TimedOut)
    }
}

struct Line {
    id: LineId,
    socket: TcpStream,
    stream: Stream,
    shared: Arc<Shared>,
    orders: UnboundedReceiver<Order>,
    notes: VecDeque<Note>,
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
        id: LineId,
        socket: TcpStream,
        stream: Stream,
        shared: Arc<Shared>,
        orders: UnboundedReceiver<Order>,
    ) -> Self {
        let timer = Some(Box::pin(sleep(shared.terms.handshake)));
        Self {
            id,
            socket,
            stream,
            shared,
            orders,
            notes: VecDeque::new(),
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
            if self.stream.is_leaving() && self.stream.backlog() == 0 {
                let _ = self.shut(cx);
                if self.stream.is_left() {
                    return Poll::Ready(Err(End::closed()));
                }
            }
            if !self.notes.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if let Some(timer) = &mut self.timer
                && timer.as_mut().poll(cx).is_ready()
            {
                return Poll::Ready(Err(self.stream.late(&self.shared.terms)));
            }
            if !(read || ordered || written) {
                return Poll::Pending;
            }
        }
    }

    /// Reads once; ready when something was received.
    fn read(&mut self, cx: &mut Context<'_>) -> Turn {
        let mut sip = [0; SIP];
        let much = !self.gulp.is_empty();
        let mut buffer = ReadBuf::new(if much { &mut self.gulp } else { &mut sip });
        match Pin::new(&mut self.socket).poll_read(cx, &mut buffer) {
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
            return Poll::Ready(Err(self.stream.ended()));
        }
        let result = self.stream.receive(came);
        if full && !much {
            self.gulp = vec![0; GULP];
        }
        self.take_session_events();
        if let Err(end) = result {
            // Send the reason, as far as the socket takes it at once.
            let _ = self.write(cx);
            return Poll::Ready(Err(end));
        }
        Poll::Ready(Ok(()))
    }

    fn take_session_events(&mut self) {
        while let Some(event) = self.stream.event() {
            match event {
                Event::Ready(peer) => {
                    self.timer = None;
                    self.notes.push_back(Note::Ready(self.id, peer));
                }
                Event::Message(bytes) => self.notes.push_back(Note::Message(self.id, bytes.into())),
                Event::Closed => _ = self.obey(Order::Leave),
            }
        }
    }

    /// Takes instructions; ready when there was one.
    fn take_orders(&mut self, cx: &mut Context<'_>) -> Turn {
        let mut any = false;
        while self.stream.backlog() < SEALED {
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
        if matches!(order, Order::Leave) && !self.stream.is_leaving() {
            self.timer = Some(Box::pin(sleep(self.shared.settings.limits.linger)));
        }
        self.stream.obey(order)
    }

    /// Writes sealed bytes; ready when the socket has taken some.
    fn write(&mut self, cx: &mut Context<'_>) -> Turn {
        let mut count = 0;
        while self.stream.backlog() > 0 {
            match Pin::new(&mut self.socket).poll_write(cx, self.stream.next()) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(End::io(error))),
                Poll::Ready(Ok(written)) => {
                    self.stream.given(written);
                    count += written;
                }
            }
        }
        if let Some(frames) = self.stream.taken(count) {
            self.notes.push_back(Note::Sent(self.id, frames));
        }
        if count > 0 {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn shut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !std::mem::replace(&mut self.shut, true) {
            let _ = Pin::new(&mut self.socket).poll_shutdown(cx)?;
        }
        Ok(())
    }
}
