//! The connectivity check: probes of two sizes, small and a full frame, that the peer sends back (as they
//! are, or as long as its own frames get). Both directions are tried with both sizes before a peer is used
//! (reference: vic, section 6.8), again when it becomes suspect or was idle for long, and before a new
//! connection to a peer that was down is used.

use std::collections::VecDeque;

use doorbell_fabric::datagram::{Channel, Transmit};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::PeerIndex;

use crate::core::Core;
use crate::peer::{Peer, about};
use crate::peer_queue::PeerQueue;
use crate::record::Event;
use crate::wire::{BASIC, Kind, Ping};

/// First time between two probes (ns): it doubles.
const FIRST: u64 = 1_000_000;
/// Bytes of a small probe: as much as a small message.
const SMALL: usize = 64;
/// Probes after which it is a result that one size came back and the other did not, if the peer goes down
/// before the check ends: a quarter of a second of them.
const TELLING: u32 = 8;
/// How long a peer may stay silent, from which nothing has ever come, until that is reported (attended ns).
const NOTHING: u64 = 1_000_000_000;
/// Answers to probes that may wait; more are dropped, and the peer probes again.
const PONGS: usize = 64;

/// What the check has found out about the way to a peer and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diagnosis {
    /// Frames of both sizes come back.
    Works,
    /// Only small frames come back: a link on the way has a smaller MTU than the two ends.
    OnlySmall,
    /// Only large frames come back: something on the way filters by size or kind.
    OnlyLarge,
    /// Nothing comes back: no route, a firewall, or no process there.
    Nothing,
}

impl Diagnosis {
    /// Returns what to do about it, as a sentence.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Works => "frames of both sizes pass in both directions",
            Self::OnlySmall => {
                "small frames pass and full ones do not: make the MTU of all links on the way equal, or lower the \
                 rail's MTU"
            }
            Self::OnlyLarge => {
                "full frames pass and small ones do not: look for a firewall or a rate limit that treats small \
                 packets differently"
            }
            Self::Nothing => {
                "nothing comes back: no frame passes in one direction at least; look for a firewall, then \
                 the route, at both ends, and whether the peer's process runs and polls"
            }
        }
    }
}

/// What the BTL found out about a peer, with more of the reason than an event of the contract has: for logs,
/// and for `doorbell why`. A suspicion and its end are events as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Several time-outs in a row. The peer may be computing without polling.
    Suspect,
    /// It answers again.
    Recovered,
    /// The connectivity check came to a result.
    Checked(Diagnosis),
}

impl Notice {
    /// The notice as a short text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Suspect => "suspect: several time-outs in a row",
            Self::Recovered => "recovered: it answers again",
            Self::Checked(diagnosis) => diagnosis.advice(),
        }
    }
}

/// Why a peer is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Before its first use.
    First,
    /// Several time-outs in a row.
    Suspect,
    /// Nothing came of it for long.
    Idle,
    /// A new connection began after it was down.
    Back,
}

impl Why {
    /// Returns it as the end of a sentence.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::First => "before its first use",
            Self::Suspect => "being suspect",
            Self::Idle => "being idle",
            Self::Back => "being called back",
        }
    }
}

/// Probes of one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    /// The number of the last probe: each has one of its own.
    token: u32,
    probes: u32,
    /// When the next probe is due (ns), and since when we probe (attended ns).
    at: u64,
    since: u64,
    /// Something of the peer has arrived since: it polls, so probes without an answer count from here on.
    heard: bool,
    small: bool,
    large: bool,
    result: Option<Diagnosis>,
}

impl Check {
    pub(crate) const fn new(token: u32) -> Self {
        Self {
            token,
            probes: 0,
            at: 0,
            since: 0,
            heard: false,
            small: false,
            large: false,
            result: None,
        }
    }

    /// Restarts the check, with the previous numbers and result.
    fn restart(&mut self, now: u64, attended: u64) {
        *self = Self {
            at: now,
            since: attended,
            result: self.result,
            ..Self::new(self.token)
        };
    }

    /// Since when the peer is probed (attended ns).
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    /// The result of the last check that came to one.
    pub(crate) fn result(&self) -> Option<Diagnosis> {
        self.result
    }

    /// Takes over the result of the check of an earlier connection.
    pub(crate) fn keep_result_of(&mut self, earlier: &Self) {
        self.result = earlier.result;
    }

    /// Whether a probe has come back.
    pub(crate) fn has_answers(&self) -> bool {
        self.small || self.large
    }

    /// Whether a probe of this check, or since the link came back, has this number.
    fn has_sent(&self, token: u32) -> bool {
        self.token.wrapping_sub(token) < self.probes
    }

    /// The time between the last probe and the next (ns).
    fn wait(&self, most: u64) -> u64 {
        FIRST.saturating_mul(1 << (self.probes - 1).min(30)).min(most)
    }
}

/// The answer to a probe, which waits to be sent.
#[derive(Clone, Copy, Debug)]
struct Pong {
    peer: PeerIndex,
    token: u32,
    size: u32,
}

/// Probes and answers to probes that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Probing {
    due: PeerQueue<{ about::PROBE }>,
    pongs: VecDeque<Pong>,
}

impl Probing {
    /// Reserves room for this many peers.
    pub(crate) fn reserve(&mut self, peers: usize) {
        self.due.reserve(peers);
    }

    /// Whether peers are to be probed.
    #[inline]
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Returns how many peers are to be probed or answered; not exact, but zero only if there are none.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.due.len() | self.pongs.len()
    }

    /// Restarts the quick probes of a peer that is being probed, after a change of the link.
    pub(crate) fn restart(&mut self, index: PeerIndex, peer: &mut Peer, now: u64) {
        (peer.check.probes, peer.check.at) = (0, now);
        self.due.push(index, peer);
    }

    /// Drops the answers to a peer's probes: they were of a connection that has ended.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        self.pongs.retain(|pong| pong.peer != peer);
    }

    /// A peer is to be answered: once for all of a size that piled up.
    fn answer(&mut self, pong: Pong) {
        let mut waiting = self.pongs.iter_mut();
        let same = waiting.find(|other| (other.peer, other.size) == (pong.peer, pong.size));
        if let Some(same) = same {
            same.token = pong.token;
        } else if self.pongs.len() < PONGS {
            self.pongs.push_back(pong);
        }
    }
}

impl Core {
    /// Begins to probe a peer. The first probes go out in this pass.
    #[cold]
    pub(crate) fn start_check(&mut self, index: PeerIndex, why: Why) {
        let peer = &mut self.peers[index];
        if peer.is(about::PROBING) || (why == Why::First && peer.is(about::UP)) {
            return;
        }
        peer.set(about::PROBING);
        peer.check.restart(self.clock.now(), self.clock.attended());
        self.probing.due.push(index, peer);
        self.record(index, Event::Probing(why));
    }

    /// Returns when the next probe of a peer is due (ns); one that is due now goes out in this pass.
    pub(crate) fn next_probe(&mut self, index: PeerIndex) -> u64 {
        let peer = &mut self.peers[index];
        if peer.check.at > self.clock.now() {
            return peer.check.at;
        }
        self.probing.due.push(index, peer);
        u64::MAX
    }

    /// Sends probes that are due, and answers those of others.
    #[cold]
    pub(crate) fn send_probes<T: Transmit>(&mut self, tx: &mut T) {
        for _ in 0..self.probing.due.len() {
            let Some(index) = self.probing.due.pop(&mut self.peers) else {
                break;
            };
            let peer = &self.peers[index];
            let is_alive = !peer.is(about::DOWN) || peer.is(about::COMING);
            if peer.is(about::PROBING) && is_alive && !self.has_failed(index) {
                self.probe(tx, index);
            }
        }
        while let Some(Pong { peer, token, size }) = self.probing.pongs.pop_front() {
            if self.post_probe(tx, peer, Kind::Pong, token, size as usize) {
                self.counters.pongs_sent += 1;
            }
        }
    }

    /// Whether the check has failed, in which case the peer is brought down.
    fn has_failed(&mut self, index: PeerIndex) -> bool {
        let peer = &mut self.peers[index];
        let heard = peer.liveness.heard();
        // An answer may come at the very moment that the check began.
        if !peer.check.heard && (heard > peer.check.since || peer.check.has_answers()) {
            (peer.check.heard, peer.check.probes) = (true, 0);
        }
        let peer = &self.peers[index];
        let check = peer.check;
        let result = match (check.small, check.large) {
            (true, false) => Diagnosis::OnlySmall,
            (false, true) => Diagnosis::OnlyLarge,
            _ => Diagnosis::Nothing,
        };
        let tried = check.heard && check.probes >= self.config.connectivity_error_num_retries;
        let silent = self.clock.attended() - check.since.max(heard);
        let coming = peer.is(about::COMING);
        // No one waits for one that is down, and it can be called again.
        let most = if coming {
            self.config.silence
        } else {
            self.config.give_up
        };
        let over = silent >= most.as_nanos() as u64 || self.is_alive_elsewhere(index);
        let failed = match result {
            // A peer that was up has all of its time: a broken path comes back, in one direction or in both.
            Diagnosis::Nothing => over || (tried && !peer.is(about::UP)),
            _ => tried,
        };
        if failed {
            self.conclude(index, result);
            if coming {
                self.end_attempt(index);
            } else {
                self.fail_silent(index);
            }
        }
        failed
    }

    /// Whether nothing has come of a peer since its check began, nor ever before: it may still be late, so
    /// that the check goes on.
    pub(crate) fn is_silent_so_far(&self, index: PeerIndex) -> bool {
        let Some(peer) = self.peers.get(index) else {
            return false;
        };
        let silent = self.clock.attended().saturating_sub(peer.check.since);
        peer.is(about::PROBING)
            && !peer.is(about::GREETED)
            && !self.history.has(index)
            && peer.check.probes >= TELLING
            && silent >= NOTHING
    }

    /// Returns what a check that goes on has shown so far, if that is trouble with one of the two sizes. Both
    /// ends find it at about the same time; the one whose peer is quicker to end would have nothing to report
    /// otherwise.
    pub(crate) fn found_so_far(&self, index: PeerIndex) -> Option<Diagnosis> {
        let peer = &self.peers[index];
        if !peer.is(about::PROBING) || peer.check.probes < TELLING {
            return None;
        }
        match (peer.check.small, peer.check.large) {
            (true, false) => Some(Diagnosis::OnlySmall),
            (false, true) => Some(Diagnosis::OnlyLarge),
            _ => None,
        }
    }

    /// Keeps the result of a check, and notes it if it is another than before.
    pub(crate) fn conclude(&mut self, index: PeerIndex, result: Diagnosis) {
        let before = self.peers[index].check.result.replace(result);
        if before != Some(result) {
            self.notice(index, Notice::Checked(result));
        }
    }

    fn probe<T: Transmit>(&mut self, tx: &mut T, index: PeerIndex) {
        let most = self.most_between_probes();
        let check = &mut self.peers[index].check;
        check.probes += 1;
        check.token = check.token.wrapping_add(1);
        check.at = self.clock.after(check.wait(most));
        let Check {
            token,
            small,
            large,
            at,
            ..
        } = *check;
        self.arm(index, at);
        let sizes = [(small, self.small_probe()), (large, self.framing.mtu())];
        for (answered, size) in sizes {
            if !answered && self.post_probe(tx, index, Kind::Ping, token, size) {
                self.counters.pings_sent += 1;
            }
        }
    }

    fn most_between_probes(&self) -> u64 {
        self.config.connectivity_ack_timeout.as_nanos() as u64
    }

    /// Bytes of a small probe's frame.
    fn small_probe(&self) -> usize {
        SMALL.min(self.framing.mtu())
    }

    /// Posts a probe or an answer, small ones as small messages go. `false` without room: the probe
    /// will be repeated.
    fn post_probe<T: Transmit>(
        &mut self,
        tx: &mut T,
        index: PeerIndex,
        kind: Kind,
        token: u32,
        size: usize,
    ) -> bool {
        let channel = if size <= self.config.priority_limit {
            Channel::Priority
        } else {
            Channel::Data
        };
        if !self.outbox.has_credit(tx, channel) {
            return false;
        }
        let ping = Ping {
            token: token.into(),
            size: (size as u32).into(),
        };
        let length = size.min(self.framing.mtu()) - BASIC - self.framing.mac();
        let bytes: [u8; 8] = zerocopy::transmute!(ping);
        let (first, rest) = self.framing.payload(length).split_at_mut(bytes.len());
        first.copy_from_slice(&bytes);
        rest.fill(0);
        self.post_plain(tx, channel, index, kind, 0, length);
        true
    }

    /// Handles a probe of a peer, or the answer to one of ours.
    #[cold]
    pub(crate) fn on_probe(&mut self, index: PeerIndex, kind: Kind, payload: &SharedBytes<'_>) {
        let Some(ping) = payload
            .read::<8>(0)
            .map(|bytes| -> Ping { zerocopy::transmute!(bytes) })
        else {
            return;
        };
        let (token, size) = (ping.token.get(), ping.size.get() as usize);
        // An answer may be shorter than the probe: the peer's longest frame, where that is shorter than ours.
        let length = BASIC + payload.len() + self.framing.mac();
        if length > size || (length < size && kind == Kind::Ping) {
            return self.drop_frame(crate::counters::Drop::Malformed);
        }
        if kind == Kind::Ping {
            return self.probing.answer(Pong {
                peer: index,
                token,
                size: size as u32,
            });
        }
        let (small, large) = (size == self.small_probe(), size == self.framing.mtu());
        let most = self.most_between_probes();
        let peer = &mut self.peers[index];
        if !peer.is(about::PROBING) || !peer.check.has_sent(token) {
            return;
        }
        if small && token == peer.check.token {
            let sent = peer.check.at.saturating_sub(peer.check.wait(most));
            peer.rtt.shortest(self.clock.now().saturating_sub(sent));
        }
        peer.check.small |= small;
        peer.check.large |= large;
        if peer.check.small && peer.check.large {
            peer.clear(about::PROBING);
            peer.set(about::UP);
            let coming = peer.is(about::COMING);
            self.conclude(index, Diagnosis::Works);
            if coming {
                self.come_up(index);
            }
            self.make_ready(index);
        }
    }
}
