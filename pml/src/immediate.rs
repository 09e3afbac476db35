//! Immediate data: a number that a message brings beside its bytes and its tag (`FI_REMOTE_CQ_DATA`).
//!
//! ```text
//!   sender    set_immediate(7), send, send, set_immediate(9), send
//!   sequence  n: data 7   n+1: MATCH   n+2: MATCH   n+3: data 9   n+4: MATCH
//! ```
//!
//! What travels is the change: a MATCH header with the flag IMMEDIATE, which has a number of its own in the
//! peer's sequence. It takes effect at its turn, however the rails order it, and each message takes the data
//! that hold at its own turn. So messages with the same data as the one before cost nothing on the wire,
//! and a peer that never sends any costs nothing at all: its messages are looked at no closer.

use doorbell_fabric::message::{Body, Message};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::credit::ENVELOPE;
use crate::error::PmlError;
use crate::hot::about;
use crate::launch::Launch;
use crate::pml::Pml;
use crate::rank::Rank;
use crate::wire::MatchHeader;

/// The immediate data to and from one peer.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    sent: Option<u64>,
    received: Option<u64>,
}

/// The immediate data to and from each peer. Has no rows where there never were any.
#[derive(Debug, Default)]
pub(crate) struct Immediate(Vec<Row>);

impl Immediate {
    /// Makes rows for this many ranks, unless there are.
    pub(crate) fn open(&mut self, ranks: u32) {
        if self.0.len() < ranks as usize {
            self.0.resize(ranks as usize, Row::default());
        }
    }

    /// Forgets the data of a rank, whose number another peer is to have.
    pub(crate) fn forget(&mut self, rank: Rank) {
        if let Some(row) = self.0.get_mut(rank.index()) {
            *row = Row::default();
        }
    }

    /// The data that hold for the next message of a rank.
    #[inline]
    pub(crate) fn received(&self, rank: Rank) -> Option<u64> {
        self.0.get(rank.index())?.received
    }

    /// Whether messages to a rank have these data.
    #[inline]
    fn is_sent(&self, rank: Rank, data: Option<u64>) -> bool {
        self.0.get(rank.index()).is_some_and(|row| row.sent == data)
    }

    fn set_sent(&mut self, rank: Rank, data: Option<u64>) {
        if let Some(row) = self.0.get_mut(rank.index()) {
            row.sent = data;
        }
    }

    fn set_received(&mut self, rank: Rank, data: Option<u64>) {
        if let Some(row) = self.0.get_mut(rank.index()) {
            row.received = data;
        }
    }
}

impl<M: Message> Pml<M> {
    /// Sets the immediate data of messages to a rank from now on, which the receiver finds in
    /// [`Status::data`](crate::Status::data); there are none at first. To be called before a send whose data
    /// differ from those of the one before. Costs a comparison when they do not, and otherwise a message of
    /// 16 bytes, which waits in order with the sends where no rail takes it.
    ///
    /// # Errors
    /// [`PmlError::NoSuchRank`], [`PmlError::NoRail`], [`PmlError::PeerLost`].
    #[inline]
    pub fn set_immediate(&mut self, to: Rank, data: Option<u64>) -> Result<(), PmlError> {
        if self.core.immediate.is_sent(to, data) {
            return Ok(());
        }
        self.change_immediate(to, data)
    }

    #[inline(never)]
    fn change_immediate(&mut self, to: Rank, data: Option<u64>) -> Result<(), PmlError> {
        let ranks = self.core.hot.len();
        let Some(hot) = self.core.hot.get_mut(to) else {
            return Err(self.no_such_rank(to));
        };
        self.core.immediate.open(ranks);
        if hot.is(about::SELF) {
            hot.set(about::DATA);
            self.core.immediate.set_sent(to, data);
            self.core.immediate.set_received(to, data);
            return Ok(());
        }
        self.reachable(to)?;
        if self.core.immediate.is_sent(to, data) {
            return Ok(()); // none at first
        }
        self.send_data(to, data)?;
        self.core.immediate.set_sent(to, data);
        Ok(())
    }

    fn send_data(&mut self, to: Rank, data: Option<u64>) -> Result<(), PmlError> {
        if !self.core.peers[to].backlog.has_sends() {
            match self.launch_data(to, data) {
                Launch::Complete | Launch::Announced | Launch::Requested => return Ok(()),
                Launch::Full => self.core.list(to),
                Launch::NoCredit => {}
            }
            if self.core.hot[to].is(about::LOST) {
                return self.reachable(to);
            }
        }
        self.core.peers[to].backlog.push_data(data);
        self.core.hot[to].close_fast_path();
        Ok(())
    }

    /// Sends the word that changes the immediate data of the messages behind it. It counts against the window
    /// as an announcement without bytes does.
    pub(crate) fn launch_data(&mut self, to: Rank, data: Option<u64>) -> Launch {
        let Some(at) = self.core.next_path(to) else {
            return Launch::Full;
        };
        if !self.core.may_announce(to) {
            return Launch::NoCredit;
        }
        let seq = self.core.hot[to].next_seq();
        let head = MatchHeader::immediate(seq.0, data);
        let (rail, peer) = self.core.peers[to].paths[at].route();
        let sent = self.rails[rail].send(peer, head.as_bytes(), Body::Empty);
        match self.first_sent(to, at, sent.map(|_| 0)) {
            Ok(()) => Launch::Complete,
            Err(launch) => launch,
        }
    }
}

impl Core {
    /// It is the turn of a word that changes the data of the messages behind it.
    pub(crate) fn data_changes(&mut self, rank: Rank, data: Option<u64>) {
        self.immediate.set_received(rank, data);
        self.consume(rank, ENVELOPE);
    }
}
