//! The connectivity check: probes of two sizes, small and a full frame, that the peer sends back (as they are, or as long
//! as its own frames get), so that both directions are tried with both sizes before a rail is used (reference: vic, section 6.8); again when a peer
//! that is used becomes suspect; when a peer was idle for long, to see whether it is still there; and before a new
//! connection to one that was down is used.

use doorbell_fabric::datagram::{Channel, Transmit};
use doorbell_fabric::memory::SharedBytes;

use crate::core::{BASIC, Core};
use crate::peer::about;
use crate::record::Event;
use crate::wire::{Kind, Ping};

/// First time between two probes (ns): it doubles.
const FIRST: u64 = 1_000_000;
/// Bytes of a small probe: as much as a small message.
const SMALL: usize = 64;
/// Probes after which one size that came back and one that did not say enough, if the peer goes before the check ends: a
/// quarter of a second of them.
const TELLING: u32 = 8;
/// For how long nothing may come of a peer of which nothing ever came until that is said (attended ns).
const NOTHING: u64 = 1_000_000_000;
/// Answers to probes that may wait; more are dropped, and asked for again.
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
    /// Nothing comes back: no route, a firewall, or nobody there.
    Nothing,
}

impl Diagnosis {
    /// What to do about it, as a sentence.
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

/// What the BTL found out about a peer, with more of the reason than an event of the contract has: for logs, and for
/// `doorbell why`. A suspicion and its end are events as well.
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
    /// What it says, in a few words.
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
    /// After several time-outs.
    Suspect,
    /// Nothing came of it for long.
    Idle,
    /// A new connection began after it was down.
    Back,
}

impl Why {
    /// As the end of a sentence.
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
    pub(crate) at: u64,
    pub(crate) since: u64,
    /// Something of the peer was heard since: it polls, so probes without an answer count from here on.
    heard: bool,
    small: bool,
    large: bool,
    pub(crate) result: Option<Diagnosis>,
}

impl Check {
    pub(crate) fn new(token: u32) -> Self {
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

    /// Begins again with the quick probes: there is news of the link.
    pub(crate) fn hurry(&mut self, now: u64) {
        (self.probes, self.at) = (0, now);
    }
}

impl Core {
    /// Begins to probe a peer. The first probes go out in this pass.
    #[cold]
    pub(crate) fn start_check(&mut self, peer: PeerIndex, why: Why) {
        let (now, attended) = (self.now, self.attended);
        let state = self.peer(peer);
        if state.is(about::PROBING) || (why == Why::First && state.is(about::UP)) {
            return;
        }
        state.flags |= about::PROBING;
        self.record(peer, Event::Probing(why));
        let state = self.peer(peer);
        state.check = Check {
            at: now,
            since: attended,
            result: state.check.result,
            ..Check::new(state.check.token)
        };
        if !state.is(about::PROBE) {
            state.flags |= about::PROBE;
            self.probes.push_back(peer);
        }
    }

    /// When the next probe of a peer is due (ns); one that is due now goes out in this pass.
    pub(crate) fn next_probe(&mut self, peer: PeerIndex) -> u64 {
        let now = self.now;
        let state = self.peer(peer);
        if state.check.at > now {
            return state.check.at;
        }
        if !state.is(about::PROBE) {
            state.flags |= about::PROBE;
            self.probes.push_back(peer);
        }
        u64::MAX
    }

    /// Sends probes that are due, and answers those of others.
    #[cold]
    pub(crate) fn send_probes<T: Transmit>(&mut self, tx: &mut T) {
        for _ in 0..self.probes.len() {
            let Some(peer) = self.probes.pop_front() else {
                break;
            };
            self.peer(peer).flags &= !about::PROBE;
            let flags = self.peer(peer).flags;
            let lives = flags & (about::DOWN | about::COMING) != about::DOWN;
            if flags & about::PROBING != 0 && lives && !self.has_failed(peer) {
                self.probe(tx, peer);
            }
        }
        while let Some((peer, token, size)) = self.pongs.pop_front() {
            if self.post_probe(tx, peer, Kind::Pong, token, size as usize) {
                self.counters.pongs_sent += 1;
            }
        }
    }

    /// Whether the check has come to a bad end, which is told.
    fn has_failed(&mut self, peer: PeerIndex) -> bool {
        let state = &mut self.peers[peer];
        if !state.check.heard && state.heard > state.check.since {
            (state.check.heard, state.check.probes) = (true, 0);
        }
        let state = &self.peers[peer];
        let check = state.check;
        let result = match (check.small, check.large) {
            (true, false) => Diagnosis::OnlySmall,
            (false, true) => Diagnosis::OnlyLarge,
            _ => Diagnosis::Nothing,
        };
        let tried = check.heard && check.probes >= self.config.connectivity_error_num_retries;
        let silent = self.attended - check.since.max(state.heard);
        let coming = state.is(about::COMING);
        // Nobody waits for one that is down, and it can be called again.
        let most = if coming {
            self.config.silence
        } else {
            self.config.give_up
        };
        let over = silent >= most.as_nanos() as u64 || self.is_alive_elsewhere(peer);
        let failed = match result {
            // Who was there before has all of its time: what is cut off comes back, in one direction or in both.
            Diagnosis::Nothing => over || (tried && !state.is(about::UP)),
            _ => tried,
        };
        if failed {
            self.conclude(peer, result);
            if coming {
                self.end_attempt(peer);
            } else {
                self.fail_silent(peer);
            }
        }
        failed
    }

    /// Whether nothing has come of a peer since its check began, nor ever before: it may still be late, so
    /// that the check goes on.
    pub(crate) fn is_silent_so_far(&self, peer: PeerIndex) -> bool {
        let Some(state) = self.peers.get(peer) else {
            return false;
        };
        let silent = self.attended.saturating_sub(state.check.since);
        state.is(about::PROBING)
            && !state.is(about::GREETED)
            && !self.past.contains_key(&peer)
            && state.check.probes >= TELLING
            && silent >= NOTHING
    }

    /// What a check that goes on has shown so far, if that is trouble with one of the two sizes. Both ends find it at about
    /// the same time; the one whose peer is quicker to end would have nothing to say otherwise.
    pub(crate) fn found_so_far(&self, peer: PeerIndex) -> Option<Diagnosis> {
        let state = &self.peers[peer];
        if !state.is(about::PROBING) || state.check.probes < TELLING {
            return None;
        }
        match (state.check.small, state.check.large) {
            (true, false) => Some(Diagnosis::OnlySmall),
            (false, true) => Some(Diagnosis::OnlyLarge),
            _ => None,
        }
    }

    pub(crate) fn conclude(&mut self, peer: PeerIndex, result: Diagnosis) {
        let before = self.peer(peer).check.result.replace(result);
        if before != Some(result) {
            self.notice(peer, Notice::Checked(result));
        }
    }

    fn probe<T: Transmit>(&mut self, tx: &mut T, peer: PeerIndex) {
        let (now, most) = (self.now, self.most_between_probes());
        let check = &mut self.peer(peer).check;
        check.probes += 1;
        check.token = check.token.wrapping_add(1);
        check.at = now.saturating_add(check.wait(most));
        let Check {
            token,
            small,
            large,
            at,
            ..
        } = *check;
        self.arm(peer, at);
        let sizes = [(small, self.small_probe()), (large, self.mtu)];
        for (answered, size) in sizes {
            if !answered && self.post_probe(tx, peer, Kind::Ping, token, size) {
                self.counters.pings_sent += 1;
            }
        }
    }

    fn most_between_probes(&self) -> u64 {
        self.config.connectivity_ack_timeout.as_nanos() as u64
    }

    /// Bytes of a small probe's frame.
    fn small_probe(&self) -> usize {
        SMALL.min(self.mtu)
    }

    /// Posts a probe or an answer, small ones as small messages go. `false` without room: it will be asked for again.
    fn post_probe<T: Transmit>(
        &mut self,
        tx: &mut T,
        peer: PeerIndex,
        kind: Kind,
        token: u32,
        size: usize,
    ) -> bool {
        let channel = if size <= self.config.priority_limit {
            Channel::Priority
        } else {
            Channel::Data
        };
        if !self.has_credit(tx, channel) {
            return false;
        }
        let ping = Ping {
            token: token.into(),
            size: (size as u32).into(),
        };
        let length = size.min(self.mtu) - BASIC - self.mac();
        let bytes: [u8; 8] = zerocopy::transmute!(ping);
        self.plain.fill(0);
        self.plain[BASIC..BASIC + 8].copy_from_slice(&bytes);
        self.post_plain(tx, channel, peer, kind, 0, length);
        true
    }

    /// A probe of a peer, or the answer to one of ours.
    #[cold]
    pub(crate) fn on_probe(&mut self, peer: PeerIndex, kind: Kind, payload: &SharedBytes<'_>) {
        let Some(ping) = payload
            .read::<8>(0)
            .map(|bytes| -> Ping { zerocopy::transmute!(bytes) })
        else {
            return;
        };
        let (token, size) = (ping.token.get(), ping.size.get() as usize);
        // Who answers a frame that is longer than its own ones does it with the longest that it has.
        let length = BASIC + payload.len() + self.mac();
        if length > size || (length < size && kind == Kind::Ping) {
            return self.drop_frame(crate::counters::Drop::Malformed);
        }
        if kind == Kind::Ping {
            // One answer for all of a size that piled up.
            let size = size as u32;
            let mut waiting = self.pongs.iter_mut();
            if let Some(pong) = waiting.find(|pong| (pong.0, pong.2) == (peer, size)) {
                pong.1 = token;
            } else if self.pongs.len() < PONGS {
                self.pongs.push_back((peer, token, size));
            }
            return;
        }
        let (small, large) = (size == self.small_probe(), size == self.mtu);
        let (now, most) = (self.now, self.most_between_probes());
        let state = self.peer(peer);
        if !state.is(about::PROBING) || !state.check.has_sent(token) {
            return;
        }
        if small && token == state.check.token {
            let sent = state.check.at.saturating_sub(state.check.wait(most));
            state.rtt.shortest(now.saturating_sub(sent));
        }
        state.check.small |= small;
        state.check.large |= large;
        if state.check.small && state.check.large {
            state.flags &= !about::PROBING;
            state.flags |= about::UP;
            let coming = state.is(about::COMING);
            self.conclude(peer, Diagnosis::Works);
            if coming {
                self.come_up(peer);
            }
            self.make_ready(peer);
        }
    }
}
