//! The PML as a layer over several rails ([`doorbell_paths`]): what it sends, takes back, and ends.

use doorbell_fabric::event::{EventKind, Life, RailEvent};
use doorbell_fabric::message::{Body, Message};
use doorbell_paths::{
    Count, Layer, PathState, PeerPaths, Reason, Timers, Word, broken, given_back, on_event,
};
use zerocopy::IntoBytes;

use crate::backlog::Control;
use crate::core::Core;
use crate::hot::about;
use crate::pml::Pml;
use crate::rails::RailId;
use crate::rank::Rank;
use crate::wire::{self, PATH_LEN, PathHeader, RNDV_LEN, RndvHeader, kind};

impl Core {
    /// The paths of a peer, which are watched from now on, and the timers; `None` for a peer that is lost.
    pub(crate) fn paths_of(&mut self, rank: Rank) -> Option<(&mut PeerPaths, &mut Timers)> {
        if self.hot[rank].is(about::LOST) {
            return None;
        }
        let states = self.peers[rank].paths.states();
        Some((states, &mut self.timers))
    }
}

impl<M: Message> Layer for Pml<M> {
    fn paths(&mut self, peer: u32) -> Option<(&mut PeerPaths, &mut Timers)> {
        self.core.paths_of(Rank(peer))
    }

    fn timers(&mut self) -> &mut Timers {
        &mut self.core.timers
    }

    fn send_word(&mut self, peer: u32, at: usize, word: Word) -> bool {
        let path = &self.core.peers[Rank(peer)].paths[at];
        let (id, index) = path.route();
        let rail = &mut self.rails[id];
        let sent = rail
            .send(index, PathHeader::of(word).as_bytes(), Body::Empty)
            .is_ok();
        if sent {
            rail.flush();
            // The time of the answer is what is to be measured, not that until the next poll.
            self.rails.expect(id);
        }
        sent
    }

    fn revive(&mut self, peer: u32, at: usize) {
        let path = &self.core.peers[Rank(peer)].paths[at];
        let (rail, index) = path.route();
        self.rails[rail].revive(index);
    }

    fn abandon(&mut self, peer: u32, at: usize) {
        let path = &self.core.peers[Rank(peer)].paths[at];
        let (rail, index) = path.route();
        self.rails[rail].abandon(index);
    }

    fn proved_alive(&mut self, peer: u32, at: usize) {
        let path = &self.core.peers[Rank(peer)].paths[at];
        let (rail, index) = path.route();
        self.rails[rail].proved_alive(index);
    }

    fn is_within_host(&self, peer: u32, at: usize) -> bool {
        let path = &self.core.peers[Rank(peer)].paths[at];
        path.can().features.within_host
    }

    fn loses(&mut self, peer: u32, at: usize) -> bool {
        let path = &self.core.peers[Rank(peer)].paths[at];
        !path.can().features.reclaim
    }

    /// Queues for another path what the rail had accepted and the peer has not taken, and begins again what
    /// named memory of this one.
    fn take_back(&mut self, peer: u32, at: usize) {
        let (rail_of, index) = self.core.peers[Rank(peer)].paths[at].route();
        let rail = &mut self.rails[rail_of];
        let taken = rail.handed_over(index);
        let backlog = &mut self.core.peers[Rank(peer)].backlog;
        let (mut announced, mut words) = (Vec::new(), Vec::new());
        rail.reclaim(index, &mut |_, bytes| match path_word(bytes) {
            Some(word) => words.push(word),
            None => {
                announced.extend(announcer(bytes));
                backlog.push_control(Control::Again(bytes.to_vec()));
            }
        });
        for word in words {
            given_back(self, peer, word);
        }
        self.core.hand_overs.note_break(Rank(peer), rail_of, taken);
        self.break_transfers(Rank(peer), at, &announced, taken);
        self.core.list(Rank(peer));
    }

    fn moved(&mut self, peer: u32, at: usize, state: PathState) {
        let paths = &mut self.core.peers[Rank(peer)].paths;
        paths.set_up(at, state.is_used());
        match state {
            // Messages that waited for a path go on.
            PathState::Up => self.core.list(Rank(peer)),
            PathState::Down => paths.forget_fragments(at),
            PathState::Suspect | PathState::Probing | PathState::Returning => {}
        }
    }

    fn choose(&mut self, peer: u32) {
        self.core.refresh(Rank(peer));
    }

    fn wants_room(&mut self, peer: u32) {
        self.core.list(Rank(peer));
    }

    fn lose(&mut self, peer: u32, reason: Reason) {
        self.core.fail_peer(Rank(peer), reason.into());
        self.apply_withdrawals();
    }

    fn count(&mut self, what: Count) {
        let counters = &mut self.core.counters;
        *match what {
            Count::Down => &mut counters.paths_down,
            Count::Returned => &mut counters.paths_returned,
            Count::Call => &mut counters.calls,
            Count::Probe => &mut counters.probes,
            Count::Late => &mut counters.drops.late_word,
        } += 1;
    }

    fn traffic(&self, peer: u32) -> Option<u64> {
        Some(self.core.hot[Rank(peer)].traffic())
    }

    fn last_words(&mut self) {
        self.read_last_words();
    }
}

impl<M: Message> Pml<M> {
    /// Acts on an event of a rail.
    #[cold]
    pub(crate) fn on_event(&mut self, rail: RailId, event: RailEvent) {
        let now = self.core.clock.now();
        match event.kind {
            EventKind::LinkDown | EventKind::DeviceGone => self.rails.set_down(rail, true),
            EventKind::LinkUp => self.rails.set_down(rail, false),
            _ => {}
        }
        for rank in self.rails.ranks_of(rail, event.scope) {
            let peer = &self.core.peers[rank];
            let Some(at) = peer.paths.over(rail) else {
                continue;
            };
            // The only path of a peer, which never failed, has nothing to come back from.
            let good = matches!(
                event.kind,
                EventKind::PeerUp | EventKind::PeerRecovered | EventKind::LinkUp
            );
            if peer.paths.is_watched() || !good {
                on_event(self, now, rank.0, at, event.kind, event.life);
            }
        }
    }

    /// Handles paths that were made over rails whose links were down already: no event will report that.
    #[cold]
    pub(crate) fn break_late_paths(&mut self) {
        let now = self.core.clock.now();
        for (rank, rail) in std::mem::take(&mut self.late_paths) {
            let Some(at) = self.core.peers.get(rank).and_then(|peer| peer.paths.over(rail)) else {
                continue;
            };
            if self.rails.is_down(rail) {
                on_event(self, now, rank.0, at, EventKind::LinkDown, Life::FIRST);
            }
        }
    }

    /// A rail refused a message for good. If that was the end of the peer, the rail will report it.
    #[cold]
    pub(crate) fn path_refused(&mut self, rank: Rank, at: usize) {
        let now = self.core.clock.now();
        broken(self, now, rank.0, at, Reason::Link);
    }
}

/// The word about paths that a message is, if it is one.
fn path_word(bytes: &[u8]) -> Option<Word> {
    let head = bytes.first_chunk::<PATH_LEN>()?;
    wire::parse::<PathHeader, _>(*head).word()
}

/// The request that an RGET belongs to.
fn announcer(bytes: &[u8]) -> Option<u64> {
    let head = bytes.first_chunk::<RNDV_LEN>()?;
    (head[0] == kind::RGET).then(|| wire::parse::<RndvHeader, _>(*head).sender.get())
}
