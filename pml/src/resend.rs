//! What waits for a rail is sent; what a rail gives back is sent over another.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Body, Message, PeerIndex, Refused, Remote};
use doorbell_fabric::time::Time;
use doorbell_paths::send_news;
use zerocopy::IntoBytes;

use crate::backlog::Control;
use crate::convertor::Origin;
use crate::error::LostReason;
use crate::hot::about;
use crate::pml::Pml;
use crate::pool::Buffer;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::rendezvous::receiver::ack;
use crate::request::{Event, RequestId, mark};
use crate::wire::{
    self, AnswerHeader, CHECKED_LEN, CheckedHeader, FRAG_LEN, FragHeader, Head, MATCH_LEN, MatchHeader,
    PUT_LEN, PutHeader, REMOTE_LEN, RNDV_LEN, RndvHeader, flag, head_len, kind,
};
use crate::withdrawals::Withdrawal;

/// Passes for the last messages of a peer that has ended: more than its window holds, and an end to a flood
/// of others.
const LAST_PASSES: u32 = 10_000;

impl<M: Message> Pml<M> {
    /// The process of a peer has ended, which is known from elsewhere than its rails: all of them end with
    /// it. What it had sent before, and what is here, is delivered first. Without effect for a rank that is
    /// lost, or is not there.
    #[cold]
    pub fn peer_ended(&mut self, now: Time, rank: Rank, reason: DownReason) {
        for _ in 0..LAST_PASSES {
            self.rails.expect_all();
            // With the housekeeping: the rail may not even have noticed a peer that came, sent and went.
            if self.progress(now) == 0 {
                break;
            }
        }
        if self.core.hot.get(rank).is_some() && rank != self.core.config.rank {
            self.core.fail_peer(rank, LostReason::Peer(reason));
            self.apply_withdrawals();
        }
    }

    /// Takes everything that has arrived.
    #[cold]
    pub(crate) fn read_last_words(&mut self) {
        for _ in 0..LAST_PASSES {
            self.rails.expect_all();
            if self.poll() == 0 {
                break;
            }
        }
    }

    /// Sends what waits in the queue of a peer's own messages; `false` when a rail is full.
    pub(crate) fn send_control(&mut self, rank: Rank) -> bool {
        if self.core.peers[rank].paths.has_news() && !send_news(self, rank.0) {
            return false;
        }
        while let Some(mut control) = self.core.peers[rank].backlog.pop_control() {
            let sent = match &mut control {
                Control::Head(head) => self.send_over(rank, head.as_bytes(), &[]).map(|()| false),
                Control::Long(bytes) => self.send_long(rank, bytes).map(|()| false),
                Control::Again(bytes) => self.send_again(rank, bytes),
                Control::Answer(head, charge) => self.send_answer(rank, head, *charge).map(|()| false),
            };
            match sent {
                Ok(again) => self.core.counters.resent += u64::from(again),
                Err(_) => {
                    if !self.core.hot[rank].is(about::LOST) {
                        self.core.peers[rank].backlog.put_back(control);
                    }
                    return false;
                }
            }
        }
        true
    }

    /// The answer to an operation, which counts no more once it has left.
    pub(crate) fn send_answer(
        &mut self,
        rank: Rank,
        head: &AnswerHeader,
        charge: u64,
    ) -> Result<(), Refused> {
        self.send_over(rank, head.as_bytes(), &[])?;
        self.core.settle_operation(rank, charge);
        Ok(())
    }

    /// A header of the PML's own, and what follows it.
    fn send_long(&mut self, rank: Rank, bytes: &[u8]) -> Result<(), Refused> {
        let split = bytes
            .first()
            .and_then(|kind| head_len(*kind))
            .unwrap_or(bytes.len());
        let (head, rest) = bytes.split_at(split.min(bytes.len()));
        self.send_over(rank, head, rest)
    }

    fn send_over(&mut self, rank: Rank, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        let at = self.core.next_path(rank).ok_or(Refused::Full)?;
        let (rail, peer) = self.core.peers[rank].paths[at].route();
        let rail = &mut self.rails[rail];
        let body = if body.is_empty() {
            Body::Empty
        } else {
            Body::Bytes(body)
        };
        match rail.send(peer, head, body) {
            Ok(_) => Ok(()),
            Err(Refused::Full) => Err(Refused::Full),
            Err(_) => {
                self.path_refused(rank, at);
                Err(Refused::PeerDown)
            }
        }
    }

    /// Sends a message that another rail gave back. What names memory of that rail becomes a plain request
    /// for fragments; what is too long for this rail is cut. Whether anything was sent: what a restart brings
    /// again is not.
    fn send_again(&mut self, rank: Rank, bytes: &mut Vec<u8>) -> Result<bool, Refused> {
        let at = self.core.next_path(rank).ok_or(Refused::Full)?;
        let room = self.core.peers[rank].paths[at].can().limits.message;
        let Some(split) = bytes
            .first()
            .and_then(|kind| head_len(*kind))
            .filter(|n| *n <= bytes.len())
        else {
            return Ok(false); // not one of ours: a rail gives back what it was given, so this does not happen
        };
        let (head, body) = bytes.split_at(split);
        let sent = match head[0] {
            kind::RGET => {
                let behind = body.get(REMOTE_LEN..).unwrap_or(&[]);
                self.send_over(rank, as_announcement(head).as_bytes(), behind)
            }
            kind::PUT => return self.put_again(rank, head, body),
            kind::FRAG if self.core.config.handshake => return Ok(false),
            // The receiver's answer contains where to go on, so the first part may be shorter than it was.
            kind::RNDV => {
                let body = &body[..body.len().min(room.saturating_sub(RNDV_LEN))];
                self.send_over(rank, head, body)
            }
            kind::FRAG if bytes.len() > room => self.send_cut(rank, bytes, room),
            kind::MATCH | kind::CHECKED if bytes.len() > room => self.announce_again(rank, head, body),
            _ => self.send_over(rank, head, body),
        };
        sent.map(|()| true)
    }

    /// The memory that a PUT named is withdrawn: its receive has requested a restart, or was given up, and
    /// then its sender is to send nothing.
    fn put_again(&mut self, rank: Rank, head: &[u8], body: &[u8]) -> Result<bool, Refused> {
        let (Some(head), Some(remote)) = (head.first_chunk::<PUT_LEN>(), body.first_chunk::<REMOTE_LEN>())
        else {
            return Ok(false);
        };
        let (header, remote): (PutHeader, Remote) = (wire::parse(*head), wire::parse(*remote));
        let receive = RequestId::from_bits(header.receiver.get());
        if self.core.requests.get(receive).is_some() {
            return Ok(false);
        }
        let matching = header.matching;
        let identity = (matching.context.get(), matching.tag.get(), matching.seq.get());
        let end = header.offset.get() + remote.length.get();
        let ack = ack(
            identity,
            header.sender.get(),
            RequestId::NONE,
            end..end,
            header.restart.get(),
            0, // who may write brings no bytes with the announcement
        );
        self.send_over(rank, ack.as_bytes(), &[]).map(|()| true)
    }

    /// A fragment that is too long for the new rail, in several. When the rail fills up in the middle, the
    /// rest is what is sent later: over whichever rail, no byte goes twice.
    fn send_cut(&mut self, rank: Rank, bytes: &mut Vec<u8>, room: usize) -> Result<(), Refused> {
        let Some((head, body)) = bytes.split_first_chunk::<FRAG_LEN>() else {
            return Ok(());
        };
        let mut header: FragHeader = wire::parse(*head);
        let (mut left, mut outcome) = (body, Ok(()));
        while !left.is_empty() {
            let (part, rest) = left.split_at(room.saturating_sub(FRAG_LEN).clamp(1, left.len()));
            outcome = self.send_over(rank, header.as_bytes(), part);
            if outcome.is_err() {
                break;
            }
            header.offset += part.len() as u64;
            left = rest;
        }
        *bytes = [header.as_bytes(), left].concat();
        outcome
    }

    /// A whole message that is too long for the new rail: announced, its bytes kept in a request of our own.
    fn announce_again(&mut self, rank: Rank, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        let Some(header) = head
            .first_chunk::<MATCH_LEN>()
            .map(|bytes| wire::parse::<MatchHeader, _>(*bytes))
        else {
            return Ok(());
        };
        let checked = head
            .first_chunk::<CHECKED_LEN>()
            .map(|bytes| wire::parse::<CheckedHeader, _>(*bytes).checksum.get());
        // A reply counts with its operation.
        let counted = if header.flags & flag::REPLY == 0 {
            body.len()
        } else {
            0
        };
        let mut buffer = self.core.pool.hold(rank, body.len());
        buffer.bytes_mut()[..body.len()].copy_from_slice(body);
        self.announce_whole(rank, header, checked, (buffer, body.len()), counted)
    }

    /// Announces a whole message, whose bytes are kept in a request of our own; this many were counted. The
    /// buffer is one for bytes to that rank.
    pub(crate) fn announce_whole(
        &mut self,
        rank: Rank,
        header: MatchHeader,
        checked: Option<u32>,
        (buffer, length): (Buffer, usize),
        counted: usize,
    ) -> Result<(), Refused> {
        let (id, slot) = self.core.requests.take();
        let identity = (header.context.get(), header.tag.get());
        slot.send(
            Event::Announced,
            mark::DETACHED | mark::RECORD,
            rank,
            identity,
            length as u64,
        );
        self.core
            .requests
            .record(id.index())
            .memory
            .set_origin(Origin::Own(buffer, length));
        let announcement = RndvHeader {
            matching: MatchHeader {
                kind: kind::RNDV,
                flags: flag::AGAIN | header.flags & (flag::OPERATION | flag::REPLY),
                ..header
            },
            length: (length as u64).into(),
            sender: id.to_bits().into(),
            receiver: 0.into(),
            restart: 0.into(),
            checksum: 0.into(),
        }
        .with_checksum(checked);
        let sent = self.send_over(rank, announcement.as_bytes(), &[]);
        if sent.is_err() {
            if self.core.requests.get(id).is_some() {
                self.core.free(id.index());
            }
            return sent;
        }
        let record = self.core.requests.record(id.index());
        record.set_seq(header.seq.get());
        record.progress.set_counted(counted as u64);
        record.checksums.set_announced(checked);
        self.core.hand_overs.note_announced(rank, id);
        Ok(())
    }

    /// Revokes the keys that the last arrivals made useless, and gives up the paths to peers that are lost.
    #[inline]
    pub(crate) fn apply_withdrawals(&mut self) {
        while let Some(withdrawal) = self.core.withdrawals.pop() {
            match withdrawal {
                Withdrawal::Key(rail, key) => self.rails[rail].withdraw(key),
                Withdrawal::Peer(rail, peer) => self.let_go(rail, peer),
            }
        }
    }

    /// A rail that is not notified of the loss would go on to send again what will not be answered, and keep
    /// it for ever.
    #[cold]
    fn let_go(&mut self, rail: RailId, peer: PeerIndex) {
        let rail = &mut self.rails[rail];
        rail.abandon(peer);
        rail.reclaim(peer, &mut |_, _| {});
    }
}

/// An RGET whose memory cannot be reached over the new rail, as RNDV without bytes.
fn as_announcement(head: &[u8]) -> Head {
    let mut bytes = [0; RNDV_LEN];
    bytes.copy_from_slice(&head[..RNDV_LEN]);
    let header: RndvHeader = wire::parse(bytes);
    Head::new(&RndvHeader {
        matching: MatchHeader {
            kind: kind::RNDV,
            flags: header.matching.flags & (flag::RESTART | flag::CHECKED | flag::OPERATION | flag::REPLY),
            ..header.matching
        },
        ..header
    })
}
