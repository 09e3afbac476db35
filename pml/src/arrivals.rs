//! Arrivals: every byte that arrives comes in here, is copied once, and is parsed once.

use doorbell_fabric::message::{Arrivals, Inbound, OpError, OpId, PeerIndex, Remote};
use doorbell_paths::{Arrival, on_word};

use crate::blocking_recv::BlockingRecv;
use crate::core::Core;
use crate::hot::about;
use crate::rails::{NO_RANK, RailId};
use crate::rank::Rank;
use crate::rma::lead::LEAD_MOST;
use crate::unexpected::Envelope;
use crate::wire::{
    self, AnswerHeader, CHECKED_LEN, CheckedHeader, FinHeader, MATCH_LEN, MatchHeader, PathHeader,
    REMOTE_LEN, RNDV_LEN, RestartHeader, RndvHeader, flag, head_len, kind,
};

/// What a rail's poll delivers to.
#[derive(Debug)]
pub(crate) struct ArrivalHandler<'a> {
    core: &'a mut Core,
    waiting: &'a mut BlockingRecv,
    /// The rank of each peer of this rail.
    ranks: &'a [Rank],
    rail: RailId,
}

impl<'a> ArrivalHandler<'a> {
    /// Handles what arrives over a rail, whose peers have these ranks.
    #[inline(always)]
    pub(crate) fn new(
        core: &'a mut Core,
        waiting: &'a mut BlockingRecv,
        ranks: &'a [Rank],
        rail: RailId,
    ) -> Self {
        Self {
            core,
            waiting,
            ranks,
            rail,
        }
    }
}

impl Arrivals for ArrivalHandler<'_> {
    #[inline]
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let Some(head) = inbound.read::<MATCH_LEN>(0) else {
            self.core.counters.drops.runt += 1;
            return;
        };
        let [first, tag]: [[u8; 8]; 2] = zerocopy::transmute!(head);
        let (first, tag) = (u64::from_le_bytes(first), u64::from_le_bytes(tag));
        let rank = self.ranks.get(peer.index()).copied().unwrap_or(NO_RANK);
        match self.core.hot.get_mut(rank) {
            Some(hot) if hot.expects(first) => {
                hot.advance();
                let context = (first >> 16) as u16;
                if hot.is(about::UNUSUAL) {
                    self.core
                        .unusual(self.waiting, rank, self.rail, (context, tag), inbound);
                    return;
                }
                if self.waiting.take(self.core, (rank, context, tag), &inbound) {
                    return;
                }
                self.core
                    .on_eager::<false>(rank, self.rail, context, tag, &inbound);
            }
            Some(_) => self.core.other(rank, self.rail, head, &inbound),
            None => self.core.counters.drops.unknown_peer += 1,
        }
    }

    #[inline]
    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        match self.core.operations.end(op) {
            Some(id) => self.core.operation_ended(id, outcome),
            None => self.core.counters.drops.unknown_operation += 1,
        }
    }
}

impl Core {
    /// The expected message, of a sender that has endpoints or immediate data, or one of whose messages is
    /// held. By value: what is in registers in a poll need not lie in memory for its sake.
    #[inline(never)]
    fn unusual(
        &mut self,
        waiting: &mut BlockingRecv,
        rank: Rank,
        rail: RailId,
        (context, tag): (u16, u64),
        inbound: Inbound<'_>,
    ) {
        let hot = &self.hot[rank];
        let (plain, held) = (!hot.is(about::DATA | about::ENDPOINTS), hot.is(about::HELD));
        if !(plain && waiting.take(self, (rank, context, tag), &inbound)) {
            self.on_eager::<true>(rank, rail, context, tag, &inbound);
        }
        if held {
            self.release_held(rank);
        }
    }

    /// Everything but the expected MATCH.
    fn other(&mut self, rank: Rank, rail: RailId, head: [u8; MATCH_LEN], inbound: &Inbound<'_>) {
        if self.hot[rank].is(about::LOST | about::SELF) {
            self.counters.drops.lost_peer += 1;
            return;
        }
        let header: MatchHeader = wire::parse(head);
        match head_len(header.kind) {
            None => {
                self.counters.drops.unknown_kind += 1;
                return;
            }
            Some(length) if inbound.len() < length => {
                self.counters.drops.runt += 1;
                return;
            }
            Some(_) => {}
        }
        match header.kind {
            kind::MATCH if header.flags & flag::IMMEDIATE != 0 => {
                self.on_immediate(rank, rail, &header, inbound);
            }
            kind::MATCH
                if header.flags == flag::OPERATION && self.hot[rank].is_plainly_next(header.seq.get()) =>
            {
                self.operation_at_once(rank, &header, inbound);
            }
            kind::MATCH => self.on_match(rank, rail, &header, inbound, MATCH_LEN, None),
            kind::CHECKED => self.on_checked(rank, rail, inbound),
            kind::RNDV | kind::RGET => self.on_announcement(rank, rail, inbound),
            kind::FRAG => self.on_frag(rank, inbound),
            kind::CREDIT => self.on_credit(rank, head),
            kind::ACK => match inbound.read(0) {
                Some(bytes) => self.on_ack(rank, bytes, inbound),
                None => self.counters.drops.runt += 1,
            },
            kind::PUT => match inbound.read(0) {
                Some(bytes) => self.on_put(rank, rail, bytes, inbound),
                None => self.counters.drops.runt += 1,
            },
            kind::FIN | kind::NACK => match inbound.read::<{ size_of::<FinHeader>() }>(0) {
                Some(bytes) => self.on_word(rank, &wire::parse(bytes)),
                None => self.counters.drops.runt += 1,
            },
            kind::ANSWER => match inbound.read::<{ size_of::<AnswerHeader>() }>(0) {
                Some(bytes) => self.on_answer(rank, &wire::parse(bytes)),
                None => self.counters.drops.runt += 1,
            },
            kind::PROBE | kind::ECHO | kind::BROKEN => self.on_path_word(rank, rail, &wire::parse(head)),
            kind::RESTART_NOTIFY | kind::RESTART_ACK | kind::RESTART_NACK | kind::RESTART_ERROR => {
                match inbound.read::<{ size_of::<RestartHeader>() }>(0) {
                    Some(bytes) => self.on_restart(rank, &wire::parse(bytes)),
                    None => self.counters.drops.runt += 1,
                }
            }
            _ => self.counters.drops.unknown_kind += 1,
        }
    }

    fn on_checked(&mut self, rank: Rank, rail: RailId, inbound: &Inbound<'_>) {
        let Some(bytes) = inbound.read::<CHECKED_LEN>(0) else {
            self.counters.drops.runt += 1;
            return;
        };
        let header: CheckedHeader = wire::parse(bytes);
        let checksum = Some(header.checksum.get());
        self.on_match(rank, rail, &header.matching, inbound, CHECKED_LEN, checksum);
    }

    /// A MATCH that is not the expected one, that has flags, or that has a checksum. Its bytes start at `at`.
    fn on_match(
        &mut self,
        rank: Rank,
        rail: RailId,
        header: &MatchHeader,
        inbound: &Inbound<'_>,
        at: usize,
        checksum: Option<u32>,
    ) {
        let body = inbound.len() - at;
        let envelope = Envelope {
            rank,
            rail,
            kind: kind::MATCH,
            flags: header.flags & (flag::OPERATION | flag::REPLY),
            context: header.context.get(),
            seq: header.seq.get(),
            tag: header.tag.get(),
            length: body as u64,
            sender: 0,
            body,
            remote: None,
            restart: 0,
            checksum,
            data: None,
            lead: 0,
        };
        self.sequence(&envelope, inbound, at);
    }

    /// The immediate data of the messages behind this word.
    #[cold]
    fn on_immediate(&mut self, rank: Rank, rail: RailId, header: &MatchHeader, inbound: &Inbound<'_>) {
        if inbound.len() != MATCH_LEN {
            self.counters.drops.bad_range += 1;
            return;
        }
        // From here on each message looks which data hold at its turn.
        self.immediate.open(self.hot.len());
        self.hot[rank].set(about::DATA);
        let envelope = Envelope {
            rank,
            rail,
            kind: kind::MATCH,
            flags: header.flags & (flag::IMMEDIATE | flag::NO_DATA),
            context: 0,
            seq: header.seq.get(),
            tag: header.tag.get(),
            length: 0,
            sender: 0,
            body: 0,
            remote: None,
            restart: 0,
            checksum: None,
            data: None,
            lead: 0,
        };
        self.sequence(&envelope, inbound, MATCH_LEN);
    }

    fn on_announcement(&mut self, rank: Rank, rail: RailId, inbound: &Inbound<'_>) {
        let Some(bytes) = inbound.read::<RNDV_LEN>(0) else {
            self.counters.drops.runt += 1;
            return;
        };
        let header: RndvHeader = wire::parse(bytes);
        let matching = header.matching;
        let length = header.length.get();
        let mut body = inbound.len() - RNDV_LEN;
        let (mut remote, mut at) = (None, RNDV_LEN);
        if matching.kind == kind::RGET {
            let named = inbound.read::<REMOTE_LEN>(RNDV_LEN).map(wire::parse::<Remote, _>);
            remote = named.filter(|remote| remote.length.get() == length);
            if remote.is_none() {
                self.counters.drops.bad_range += 1;
                return;
            }
            // What follows it is of an operation.
            (at, body) = (at + REMOTE_LEN, body - REMOTE_LEN);
        }
        let operates = matching.flags & flag::OPERATION != 0;
        let leads = operates && matching.flags & flag::AGAIN == 0;
        let lead = if leads { std::mem::take(&mut body) } else { 0 };
        if lead > LEAD_MOST || body > 0 && (operates || matching.kind == kind::RGET) {
            self.counters.drops.bad_range += 1;
            return;
        }
        let (again, restart) = (matching.flags & flag::RESTART != 0, header.restart.get());
        if body as u64 > length || !is_attempt(again, restart) {
            self.counters.drops.bad_range += 1;
            return;
        }
        let envelope = Envelope {
            rank,
            rail,
            kind: matching.kind,
            flags: matching.flags,
            context: matching.context.get(),
            seq: matching.seq.get(),
            tag: matching.tag.get(),
            length,
            sender: header.sender.get(),
            body,
            remote,
            restart,
            checksum: header.checksum(),
            data: None,
            lead,
        };
        if again {
            self.restarted(&envelope, header.receiver.get(), inbound, at);
        } else {
            self.sequence(&envelope, inbound, at);
        }
    }

    /// A word about the paths themselves; housekeeping acts on it, which can send and has a clock.
    fn on_path_word(&mut self, rank: Rank, rail: RailId, header: &PathHeader) {
        let over = self.peers[rank].paths.over(rail);
        let Some((word, (states, timers))) = header.word().zip(self.paths_of(rank)) else {
            return;
        };
        match on_word(timers, states, rank.0, over, word) {
            Arrival::Taken => {}
            Arrival::Late => self.counters.drops.late_word += 1,
            Arrival::Bad => self.counters.drops.bad_range += 1,
        }
    }

    fn on_restart(&mut self, rank: Rank, header: &RestartHeader) {
        match header.matching.kind {
            // NOTIFY opens a cycle: its number is odd, and that of the announcement which closes it even.
            kind::RESTART_NOTIFY if header.restart.get().is_multiple_of(2) => {
                self.counters.drops.bad_range += 1;
            }
            kind::RESTART_NOTIFY => self.on_restart_notify(rank, header),
            kind::RESTART_ERROR => self.on_restart_error(rank, header),
            _ => self.on_restart_answer(rank, header),
        }
    }

    fn on_word(&mut self, rank: Rank, header: &FinHeader) {
        if header.matching.flags & flag::TO_RECEIVER != 0 {
            self.on_sender_word(rank, header);
        } else {
            self.on_receiver_word(rank, header);
        }
    }
}

/// Whether an announcement may have this number: the first one of a message has none, those that begin
/// it again even ones.
fn is_attempt(again: bool, restart: u32) -> bool {
    if again {
        restart != 0 && restart.is_multiple_of(2)
    } else {
        restart == 0
    }
}
