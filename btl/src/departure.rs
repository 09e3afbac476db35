//! Forgetting a peer, for an owner whose peers come and go.
//!
//! ```text
//!   forget ─► nothing is accepted or shown any more ─► our BYE, behind what was accepted before
//!                 ├ it is acknowledged, the peer closes as well, or a second is over ─► taken out
//!                 └ the peer is down, or nothing of it ever came ─► taken out at once
//! ```
//!
//! Taken out means: connection ids, keys, window, messages, history and timer are gone, and the index may be
//! given out again. The driver forgets the address as well, when no other peer and no hello needs it. Frames
//! of the connection that come later have an unknown id. So what is kept does not grow with the number of
//! peers that were ever opened.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::PeerIndex;

use crate::btl::Btl;
use crate::core::Core;
use crate::counters::Drop;
use crate::peer::about;
use crate::teardown::Phase;
use crate::wire::{Kind, Parsed};

/// How long a peer that was forgotten is waited for (ns).
const LINGER: u64 = Duration::from_secs(1).as_nanos() as u64;
/// How often such a peer is looked at (ns).
const LOOK: u64 = Duration::from_millis(5).as_nanos() as u64;
/// Peers that are waited for at a time; for one more the oldest is not waited for any longer.
const MOST: usize = 64;

/// Peers that were forgotten and are waited for.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// The oldest first, and until when (ns).
    waiting: VecDeque<(PeerIndex, u64)>,
    /// Numbers that the driver is to forget, if nothing needs them.
    pub(crate) unused: Vec<PeerIndex>,
}

impl Core {
    /// Forgets a peer that has a key of its own; gives up any other.
    #[cold]
    fn forget(&mut self, index: PeerIndex) {
        if self.peers[index].is(about::LEAVING) {
            return;
        }
        if !self.peer_keys.has(index) {
            return self.abandon(index);
        }
        self.peer_keys.forget(index);
        self.journal.forget_events(index);
        self.journal.forget_notices(index);
        let peer = &self.peers[index];
        let answers = peer.is(about::GREETED) && !peer.is(about::DOWN);
        if !answers || self.phase != Phase::Open {
            return self.take_out(index);
        }
        self.fail_operations(index);
        self.drop_inflows(index);
        self.exposures.withdraw_peer(index);
        let peer = &mut self.peers[index];
        self.reassemblies.clear(&mut peer.partial);
        peer.clear(about::GREETED | about::PROBING | about::SUSPECT | about::PROVED);
        // What was accepted leaves without a check.
        peer.set(about::LEAVING | about::UP);
        let until = self.clock.after(LINGER);
        self.departures.waiting.push_back((index, until));
        if self.departures.waiting.len() > MOST
            && let Some((oldest, _)) = self.departures.waiting.pop_front()
        {
            self.take_out(oldest);
        }
        self.say_bye(index);
        self.make_ready(index);
        self.arm(index, self.clock.after(LOOK));
    }

    /// Puts our BYE behind what was accepted for the peer, unless it is there, or there is no room yet.
    fn say_bye(&mut self, index: PeerIndex) {
        if !self.peers[index].is(about::BYE) && self.header(index, Kind::Bye, &[]).is_some() {
            self.peers[index].set(about::BYE);
        }
    }

    /// Does what is due for a peer that was forgotten. Returns when it is to be looked at again (ns), if it
    /// is still waited for.
    #[cold]
    pub(crate) fn look_at_leaving(&mut self, index: PeerIndex) -> Option<u64> {
        self.say_bye(index);
        let peer = &self.peers[index];
        let acknowledged = peer.is(about::BYE) && peer.send.len() == 0;
        let mut waiting = self.departures.waiting.iter();
        let until = waiting
            .find(|(of, _)| *of == index)
            .map_or(0, |(_, until)| *until);
        if acknowledged || peer.is(about::CLOSED) || until <= self.clock.now() {
            self.take_out(index);
            return None;
        }
        self.make_ready(index);
        Some(self.clock.after(LOOK))
    }

    /// Handles a frame of a peer that was forgotten: acknowledgements, and the peer's BYE.
    ///
    /// # Errors
    /// [`Drop`], for all others.
    #[cold]
    pub(crate) fn on_frame_while_leaving(
        &mut self,
        index: PeerIndex,
        parsed: &Parsed,
        payload: &SharedBytes<'_>,
    ) -> Result<(), Drop> {
        self.peers[index].liveness.hear(self.clock.attended());
        match (parsed.kind, parsed.ack) {
            (Kind::Ack, Some(ack)) => {
                self.on_explicit_ack(index, ack, parsed.sequence.0, *payload);
                return Ok(());
            }
            (kind, Some(ack)) if kind.is_segment() => self.on_ack(index, ack),
            _ => {}
        }
        if parsed.kind != Kind::Bye {
            return Err(Drop::Down);
        }
        let peer = &mut self.peers[index];
        peer.recv.check(parsed.sequence, self.config.window)?;
        peer.recv.take(parsed.sequence, &mut self.bitmaps);
        peer.set(about::EXPLICIT | about::CLOSED);
        self.ack_now(index);
        Ok(())
    }

    /// Takes a peer out, with everything that is kept of it.
    #[cold]
    pub(crate) fn take_out(&mut self, index: PeerIndex) {
        if !self.peers[index].is(about::DOWN) {
            self.end_connection(index, DownReason::Closed);
        }
        self.departures.waiting.retain(|(of, _)| *of != index);
        let peer = &mut self.peers[index];
        self.timers.disarm(&mut peer.alarm);
        peer.recv.clear(&mut self.bitmaps);
        self.unclaimed.forget(index);
        self.reconnects.forget(index);
        self.probing.forget(index);
        self.history.forget(index);
        self.peer_keys.forget(index);
        self.journal.forget_events(index);
        let driver = self.peers.forget(index).driver();
        self.departures.unused.push(driver);
    }
}

impl<D: Datagram> Btl<D> {
    /// Forgets a peer; the implementation of [`Message::forget`](doorbell_fabric::message::Message::forget).
    pub(crate) fn forget_peer(&mut self, peer: PeerIndex) {
        if self.core.peers.get(peer).is_none() || self.core.phase == Phase::Closed {
            return;
        }
        // Acknowledgements of its own BYE among them.
        let (tx, _) = self.driver.split();
        self.core.service(tx);
        self.core.forget(peer);
        let (tx, _) = self.driver.split();
        self.core.service(tx);
        self.forget_unused();
    }

    /// Has the driver forget the addresses that nothing needs any more.
    #[inline]
    pub(crate) fn forget_unused(&mut self) {
        while let Some(driver) = self.core.departures.unused.pop() {
            if !self.core.peers.uses(driver) && !self.core.hellos.uses(driver) {
                self.driver.forget(driver);
            }
        }
    }
}
