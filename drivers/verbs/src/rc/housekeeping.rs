//! What is done for connections from time to time: those that owe completions are watched, idle ones are
//! tried, unused credits are requested back. The cost follows from what is under way, and from a few
//! connections each time, not from how many peers there are.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Life};
use doorbell_fabric::time::Time;

use super::core::Core;
use super::link::{FIRST_CREDITS, State};

/// How often connections are looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
/// Connections that are looked at each time, in turn.
const AT_A_TIME: usize = 64;
/// How soon what peers write to counters is looked at while messages wait for it: it raises no event.
const SOON: Duration = Duration::from_millis(2);
/// How soon peers learn what was taken of theirs, if nothing goes to them and they do not wait for credits.
const AT_LEISURE: Duration = Duration::from_micros(200);
/// A request that has not ended after this time never will, if the device's own bound has passed twice, too.
const STALLED: Duration = Duration::from_secs(1);
/// A peer that owes completions for this long is a suspect.
const SUSPECT: Duration = Duration::from_millis(100);
/// A suspect whose process answers over another path is not reached over this one after this time. The
/// device acknowledges for a process that computes, so completions wait for no process.
const CERTAIN: Duration = Duration::from_millis(500);

impl Core {
    /// Looks after connections, if it is time to.
    pub(crate) fn progress(&mut self, now: Time) {
        self.now = now;
        self.reap();
        self.read_pages();
        self.progress_one_sided();
        while let Some(index) = self.rings.wanted.pop() {
            self.offer_ring(index);
        }
        if now >= self.next_told && self.owes() {
            self.next_told = now + AT_LEISURE;
            self.tell(false);
        }
        self.flush();
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        self.memory.regions.sweep();
        // What its queue pairs have received is taken before.
        if self.slots.is_replaceable() && !self.is_renewing() && !self.has_arrivals() {
            self.slots.replace_queue();
        }
        self.look_at_busy();
        self.look_at_some();
        self.look_at_rings(LOOK + LOOK);
    }

    /// The next time at which there is something to do.
    pub(crate) fn next_deadline(&self) -> Time {
        let is_quiet = self.active.is_empty() && self.onesided.is_quiet() && !self.rings.are_watched();
        let look = if is_quiet {
            self.next_look
        } else {
            self.next_look.min(self.now + SOON)
        };
        if self.owes() {
            look.min(self.next_told)
        } else {
            look
        }
    }

    /// Looks at each connection with requests under way: one that does not end ends the connection.
    fn look_at_busy(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.busy.get(at) {
            if self.is_busy(index) {
                at += 1;
            } else {
                self.busy.swap_remove(at);
                self.peers[index as usize].is_busy = false;
            }
        }
    }

    fn is_busy(&mut self, index: u32) -> bool {
        let (now, longest) = (self.now, self.bound());
        let Some(link) = &mut self.peers[index as usize].link else {
            return false;
        };
        if link.state != State::Up {
            return false;
        }
        let age = link.age(now);
        let bound = if link.answers_elsewhere { CERTAIN } else { longest };
        let was_suspect = link.is_suspect;
        link.is_suspect = age.is_some_and(|age| age >= SUSPECT);
        link.answers_elsewhere &= link.is_suspect;
        let is_suspect = link.is_suspect;
        if age.is_some_and(|age| age >= bound) {
            self.end(index, DownReason::Silent);
            return false;
        }
        if is_suspect != was_suspect {
            let kind = if is_suspect {
                EventKind::PeerSuspect
            } else {
                EventKind::PeerRecovered
            };
            self.report(index, kind, Life::FIRST);
        }
        age.is_some()
    }

    /// A request that has not ended after this time never will.
    pub(crate) fn bound(&self) -> Duration {
        STALLED.max(2 * self.sizes.retries.bound())
    }

    /// The process of a peer answers over another path: if it is a suspect here, this path is at fault.
    pub(crate) fn on_proof(&mut self, index: u32) {
        let peer = self.peers.get_mut(index as usize);
        if let Some(link) = peer.and_then(|peer| peer.link.as_mut()) {
            link.answers_elsewhere |= link.is_suspect;
        }
    }

    /// Looks at some of the connections, in turn.
    fn look_at_some(&mut self) {
        let is_short = self.slots.unpromised() <= FIRST_CREDITS && !self.slots.can_grow();
        for _ in 0..self.live.len().min(AT_A_TIME) {
            // One that ends is not in the list any more.
            let Some(&index) = self.live.get(self.turn).or(self.live.first()) else {
                return;
            };
            self.turn = if self.turn < self.live.len() {
                self.turn + 1
            } else {
                1
            };
            self.read_page(index);
            self.look_at_one(index, is_short);
        }
    }

    fn look_at_one(&mut self, index: u32, is_short: bool) {
        let (now, keep_alive) = (self.now, self.sizes.keep_alive);
        let peer = &mut self.peers[index as usize];
        let waits = peer.outbox.as_ref().is_some_and(|outbox| outbox.waits());
        let Some(link) = peer.link.as_mut().filter(|link| link.state == State::Up) else {
            return;
        };
        if link.consumed >= self.rings.sizes.after && !link.was_tried {
            // It has waited for one of another peer.
            self.rings.wanted.push(index);
        }
        if !waits {
            let posted = link.return_credits(now);
            self.stats.returned += posted.requests as u64;
            self.book(index, posted);
        }
        let Some(link) = &mut self.peers[index as usize].link else {
            return;
        };
        if link.has_idle_credits() && is_short {
            link.ask_back();
            self.stats.recalled += 1;
            self.mark_owed(index);
        }
        let Some(link) = &mut self.peers[index as usize].link else {
            return;
        };
        if link.is_idle_since(now, keep_alive) {
            let posted = link.probe(now);
            self.stats.probes += posted.requests as u64;
            self.book(index, posted);
        }
    }

    /// Shows that everything of connections has ended, or cannot be waited for any more: of those whose sends
    /// are all among the first `fetched` of the queue.
    pub(crate) fn finish_ending(&mut self, fetched: u64) {
        let mut at = 0;
        while let Some(&index) = self.ending.get(at) {
            let link = &self.peers[index as usize].link;
            let ending = link.as_ref().map(|link| (link.state, link.under_way()));
            match ending {
                Some(_) if link.as_ref().is_some_and(|link| link.last_send > fetched) => at += 1,
                Some((State::Ending(_, since), left)) if left > 0 && self.now < since + STALLED => at += 1,
                // It leaves the list.
                Some((State::Ending(reason, _), _)) => {
                    self.bury(index);
                    self.report(index, EventKind::PeerDown(reason), Life::FIRST);
                    self.ended.push_back((index, reason));
                }
                _ => {
                    self.ending.swap_remove(at);
                }
            }
        }
    }
}
