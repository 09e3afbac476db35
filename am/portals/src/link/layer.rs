//! The link as a layer over several rails ([`doorbell_paths`]): what it sends, takes back, and ends.

use doorbell_fabric::event::{DownReason, Life, RailEvent, Scope};
use doorbell_fabric::message::{Body, Message};
use doorbell_paths::{Count, Layer, PathState, PeerPaths, Reason, Timers, Word, given_back, on_event};

use super::waiting::seq_of;
use super::{Core, FIRST_LEN, First, Kept, Link, NO_PEER, PeerId, kind};

impl Core {
    /// The paths of a peer, and the timers; `None` for a peer that is lost.
    pub(super) fn paths_of(&mut self, peer: u32) -> Option<(&mut PeerPaths, &mut Timers)> {
        let known = &mut self.peers[peer as usize];
        (!known.lost).then_some((&mut known.states, &mut self.timers))
    }
}

impl<M: Message> Layer for Link<M> {
    fn paths(&mut self, peer: u32) -> Option<(&mut PeerPaths, &mut Timers)> {
        self.core.paths_of(peer)
    }

    fn timers(&mut self) -> &mut Timers {
        &mut self.core.timers
    }

    fn send_word(&mut self, peer: u32, at: usize, word: Word) -> bool {
        let path = &self.core.peers[peer as usize].paths[at];
        let rail = &mut self.rails[usize::from(path.rail)].rail;
        let bytes: [u8; FIRST_LEN] = zerocopy::transmute!(First::of(word));
        let sent = rail.send(path.index, &bytes, Body::Empty).is_ok();
        if sent {
            rail.flush();
            // The answer is waited for.
            self.paces.expect(usize::from(path.rail));
        }
        sent
    }

    fn revive(&mut self, peer: u32, at: usize) {
        let path = &self.core.peers[peer as usize].paths[at];
        self.rails[usize::from(path.rail)].rail.revive(path.index);
    }

    fn abandon(&mut self, peer: u32, at: usize) {
        let path = &self.core.peers[peer as usize].paths[at];
        self.rails[usize::from(path.rail)].rail.abandon(path.index);
    }

    fn proved_alive(&mut self, peer: u32, at: usize) {
        let path = &self.core.peers[peer as usize].paths[at];
        self.rails[usize::from(path.rail)].rail.proved_alive(path.index);
    }

    fn is_within_host(&self, peer: u32, at: usize) -> bool {
        let path = &self.core.peers[peer as usize].paths[at];
        self.rails[usize::from(path.rail)].can.features.within_host
    }

    fn loses(&mut self, peer: u32, at: usize) -> bool {
        self.core.settle(peer);
        let path = &mut self.core.peers[peer as usize].paths[at];
        let slot = &mut self.rails[usize::from(path.rail)];
        let watermark = || slot.rail.handed_over(path.index);
        !slot.can.features.reclaim && path.flight.oldest_over(watermark).is_some()
    }

    /// Queues for another path what the rail had accepted and the peer has not taken, the oldest first.
    fn take_back(&mut self, peer: u32, at: usize) {
        let core = &mut self.core;
        let path = &mut core.peers[peer as usize].paths[at];
        path.flight.clear();
        let (rail, index) = (usize::from(path.rail), path.index);
        let mut words = Vec::new();
        self.rails[rail].rail.reclaim(index, &mut |_, bytes| {
            let Some(first) = bytes.first_chunk::<FIRST_LEN>() else {
                return;
            };
            let first: First = zerocopy::transmute!(*first);
            if first.is_own() {
                words.extend(first.word());
            } else {
                let kept = core.buffers.copy(bytes);
                core.peers[peer as usize].again.push_back(kept);
            }
        });
        for word in words {
            given_back(self, peer, word);
        }
        let next = self.core.hot[peer as usize].next;
        let age = |kept: &Kept| std::cmp::Reverse(next.wrapping_sub(seq_of(kept)));
        let again = &mut self.core.peers[peer as usize].again;
        again.make_contiguous().sort_by_key(age);
        if self.core.peers[peer as usize].waits() {
            self.core.list(peer);
        }
    }

    fn moved(&mut self, _peer: u32, _at: usize, _state: PathState) {}

    fn choose(&mut self, peer: u32) {
        self.refresh(peer);
    }

    fn wants_room(&mut self, peer: u32) {
        self.core.list(peer);
    }

    /// Loses a peer: nothing more goes to it, and nothing that comes is shown. Its paths are given up: a rail
    /// that goes on would send again what will not be answered, and keep it for ever.
    #[cold]
    fn lose(&mut self, peer: u32, reason: Reason) {
        if std::mem::replace(&mut self.core.peers[peer as usize].lost, true) {
            return;
        }
        for path in &mut self.core.peers[peer as usize].paths {
            path.flight.clear();
            let slot = &mut self.rails[usize::from(path.rail)];
            slot.names[path.index.index()] = NO_PEER;
            slot.rail.abandon(path.index);
            slot.rail.reclaim(path.index, &mut |_, _| {});
        }
        self.core.forget(peer);
        self.core.stats.lost += 1;
        self.core.gone.push_back((PeerId(peer), down_reason(reason)));
    }

    fn count(&mut self, what: Count) {
        let stats = &mut self.core.stats;
        *match what {
            Count::Down => &mut stats.paths_down,
            Count::Returned => &mut stats.paths_returned,
            Count::Call => &mut stats.calls,
            Count::Probe => &mut stats.probes,
            Count::Late => &mut stats.late_words,
        } += 1;
    }
}

/// The reason that the layer above gets. What is this process's own fault is as if given up: both processes
/// live.
fn down_reason(reason: Reason) -> DownReason {
    match reason {
        Reason::Peer(reason) => reason,
        Reason::Link | Reason::Device | Reason::NotReclaimable => DownReason::Abandoned,
    }
}

impl First {
    /// The link's own word about a path.
    fn of(word: Word) -> Self {
        let (kind, number) = match word {
            Word::Broken { life, .. } => (kind::BROKEN, life.0),
            Word::Probe { number, .. } => (kind::PROBE, number),
            Word::Echo { number, .. } => (kind::ECHO, number),
        };
        Self {
            kind,
            flags: 0,
            short: word.path().into(),
            seq: number.into(),
        }
    }

    /// The word that this is, if its kind is known.
    pub(super) fn word(self) -> Option<Word> {
        let (path, number) = (self.short.get(), self.seq.get());
        match self.kind {
            kind::BROKEN => Some(Word::Broken {
                path,
                life: Life(number),
            }),
            kind::PROBE => Some(Word::Probe { path, number }),
            kind::ECHO => Some(Word::Echo { path, number }),
            _ => None,
        }
    }
}

impl<M: Message> Link<M> {
    /// Acts on an event of a rail.
    #[cold]
    pub(super) fn on_event(&mut self, rail: usize, event: RailEvent) {
        let now = self.core.now;
        let names = &self.rails[rail].names;
        let about = match event.scope {
            Scope::Peer(peer) => names.get(peer.index()).map(std::slice::from_ref),
            Scope::Rail => Some(&names[..]),
        };
        let about: Vec<u32> = about
            .unwrap_or_default()
            .iter()
            .copied()
            .filter(|name| *name != NO_PEER)
            .collect();
        for peer in about {
            for at in 0..self.core.peers[peer as usize].paths.len() {
                let path = &self.core.peers[peer as usize].paths[at];
                let is_meant = match event.scope {
                    Scope::Peer(index) => index == path.index,
                    Scope::Rail => true,
                };
                if usize::from(path.rail) == rail && is_meant {
                    on_event(self, now, peer, at, event.kind, event.life);
                }
            }
        }
    }

    /// The process of a peer has ended, which is known from elsewhere than its rails.
    pub(crate) fn ended(&mut self, peer: PeerId, reason: DownReason) {
        if peer != PeerId::SELF && peer.index() < self.core.peers.len() {
            self.lose(peer.0, Reason::Peer(reason));
        }
    }
}

impl Core {
    /// Everything that waits for a peer, or of it, is over.
    fn forget(&mut self, peer: u32) {
        let hot = &mut self.hot[peer as usize];
        (hot.limit, hot.held) = (0, false);
        let known = &mut self.peers[peer as usize];
        known.states.clear();
        self.buffers.give_all(&mut known.again);
        self.buffers.give_all(&mut known.fresh);
        known.fresh_bytes = 0;
        for kept in known.held.take() {
            self.buffers.give(kept);
        }
        known.held_charge = 0;
    }
}
