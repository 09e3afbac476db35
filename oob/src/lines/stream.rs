//! The session of a line as bytes in both directions; sans I/O.
//!
//! ```text
//!   orders ─► obey(): sealed, up to a limit ─► next() ─► given() ─► the line ─► taken(): frames sent
//!   events ◄─ event() ◄─ receive(), ended() ◄─ the line
//! ```

use std::collections::VecDeque;
use std::io;

use doorbell_fabric::time::Time;

use crate::connect::HELLO;
use crate::error::OobError;
use crate::session::{Event, Role, Session, Terms};
use crate::transport::{Loss, Refusal};
use crate::wire::Frame;

/// An instruction to a line.
#[derive(Debug)]
pub(super) enum Order {
    /// Send this hello.
    Hello([u8; HELLO]),
    /// Send this frame.
    Frame(Frame),
    /// Send what is queued, and end.
    Leave,
}

/// How a line ended.
#[derive(Debug)]
pub(super) struct End {
    /// The reason, for a connection that was a link.
    pub(super) loss: Loss,
    /// The reason, for a connection that was to become a link.
    pub(super) refusal: Refusal,
    /// The error, if there is more to report.
    pub(super) error: Option<OobError>,
}

impl End {
    /// Builds an end without an error to report.
    pub(super) fn plain(loss: Loss, refusal: Refusal) -> Self {
        Self {
            loss,
            refusal,
            error: None,
        }
    }

    pub(super) fn closed() -> Self {
        Self::plain(Loss::Closed, Refusal::Broken)
    }

    /// Builds the end of an open line that broke.
    pub(super) fn io(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut {
            Self::plain(Loss::Silent, Refusal::TimedOut)
        } else {
            Self::plain(Loss::Broken, Refusal::Broken)
        }
    }

    /// Builds the end of a failed session.
    pub(super) fn of(error: OobError) -> Self {
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

/// The session of a line, what it has sealed, and how much of that was sent.
#[derive(Debug)]
pub(super) struct Stream {
    session: Session,
    /// Sealed bytes, and how many of them the line has.
    out: Vec<u8>,
    at: usize,
    /// Positions in the stream at which frames end that were not taken yet; bytes of the stream that left the
    /// session, and that were taken.
    marks: VecDeque<u64>,
    sealed: u64,
    taken: u64,
    /// Number of frames sent, and reported.
    sent: u64,
    reported: u64,
    /// Whether we are closing: nothing more is sealed.
    leaving: bool,
}

impl Stream {
    pub(super) fn new(role: Role, terms: &Terms, now: Time) -> Result<Self, OobError> {
        Ok(Self {
            session: Session::new(role, terms, now)?,
            out: Vec::new(),
            at: 0,
            marks: VecDeque::new(),
            sealed: 0,
            taken: 0,
            sent: 0,
            reported: 0,
            leaving: false,
        })
    }

    /// Whether we made the call.
    pub(super) fn is_caller(&self) -> bool {
        self.session.role() == Role::Caller
    }

    /// Handles received bytes. [`Stream::event`] returns what they meant, also after an error.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.session.receive(bytes).map_err(End::of)
    }

    pub(super) fn event(&mut self) -> Option<Event> {
        self.session.event()
    }

    /// Handles the end of the peer's stream.
    pub(super) fn ended(&mut self) -> End {
        match self.session.end() {
            Err(error) if !self.leaving => End::of(error),
            _ => End::closed(),
        }
    }

    /// Carries out an instruction: what it sends is sealed.
    pub(super) fn obey(&mut self, order: Order) -> Result<(), End> {
        match order {
            Order::Leave => self.leave(),
            _ if self.leaving => {}
            Order::Hello(bytes) => self.session.send(&bytes).map_err(End::of)?,
            Order::Frame(frame) => {
                let sealed = self.session.send_parts(frame.head(), frame.body());
                sealed.map_err(End::of)?;
                let end = self.sealed + self.session.outgoing().len() as u64;
                self.marks.push_back(end);
            }
        }
        Ok(())
    }

    /// Closes the session: what was sealed is sent, then the record that closes it, and nothing more.
    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.session.close();
        }
    }

    /// Ends the stream: only what is already sealed is sent, such as a refusal.
    pub(super) fn cut(&mut self) {
        self.leaving = true;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Whether the other side has closed the session.
    pub(super) fn is_left(&self) -> bool {
        self.session.is_left()
    }

    /// Returns the number of sealed bytes that the line does not have.
    pub(super) fn backlog(&self) -> usize {
        self.out.len() - self.at + self.session.outgoing().len()
    }

    /// Returns sealed bytes that the line does not have; empty if there are none.
    pub(super) fn next(&mut self) -> &[u8] {
        if self.at == self.out.len() && !self.session.outgoing().is_empty() {
            self.out = self.session.take_outgoing();
            self.sealed += self.out.len() as u64;
            self.at = 0;
        }
        &self.out[self.at..]
    }

    /// Confirms that the line has this many bytes of what [`Stream::next`] returned.
    pub(super) fn given(&mut self, length: usize) {
        self.at += length;
    }

    /// Confirms that this many bytes have left the transport. Returns the number of frames sent so far, if it
    /// has grown.
    pub(super) fn taken(&mut self, length: usize) -> Option<u64> {
        self.taken += length as u64;
        while self.marks.front().is_some_and(|&mark| mark <= self.taken) {
            self.marks.pop_front();
            self.sent += 1;
        }
        let more = self.sent > self.reported;
        self.reported = self.sent;
        more.then_some(self.sent)
    }

    /// Returns the end of a line whose time is over.
    pub(super) fn late(&self, terms: &Terms) -> End {
        if self.leaving {
            return End::closed();
        }
        let limit = terms.handshake;
        End::of(OobError::HandshakeLate { limit })
    }
}
