//! How both ends agree on a queue pair of one-sided operations, break it, and replace it.
//!
//! ```text
//!   made ── OFFER ──► made, connected
//!   connected ◄── OFFER (connected) ──
//!   up  ── OFFER (connected) ──► up
//! ```
//!
//! Both may begin at once. All of it goes in the order of messages, so both ends count the same rounds.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::OpError;

use super::OneSided;
use super::exposures::{Kept, State, next_key};
use super::op::Kind;
use super::side::{DEPTH, Side, Stage};
use super::wire::{CONTROL, Control, Offer, Verdict};
use crate::error::VerbsError;
use crate::rc::core::{self, Core};
use crate::rc::destroyer::{Destroyed, Over};
use crate::rc::hello::Route;
use crate::rc::link::Retries;
use crate::rc::outbox::Outbox;
use crate::sys::{Event, QpAttr, ReliablePair, ReliableSizes, Requests, Window, numbers};

/// Queue pairs that may end without a reason, one after the other, before the connection does.
const MOST_BREAKS: u32 = 3;

/// A number of a first packet.
fn first_packet() -> u32 {
    let mut bytes = [0; 4];
    // Without random numbers, late packets are distinguished by the queue pair's number alone.
    let _ = getrandom::fill(&mut bytes);
    u32::from_ne_bytes(bytes) >> 8
}

/// Moves a queue pair to INIT.
pub(super) fn begin_pair(pair: &ReliablePair, port: (u8, u16), atomics: bool) -> Result<(), VerbsError> {
    let mut attributes = QpAttr::zeroed();
    attributes.qp_state = numbers::INIT;
    (attributes.pkey_index, attributes.port_num) = (port.1, port.0);
    let atomic = if atomics { numbers::REMOTE_ATOMIC } else { 0 };
    attributes.qp_access_flags = (numbers::REMOTE_WRITE | numbers::REMOTE_READ | atomic) as u32;
    let mask = numbers::HAS_PKEY_INDEX | numbers::HAS_PORT | numbers::HAS_ACCESS_FLAGS;
    pair.modify(attributes, numbers::HAS_STATE | mask)
}

/// Moves a queue pair to RTS.
pub(super) fn connect_pair(
    pair: &ReliablePair,
    route: &Route,
    (other, expects, sends): (u32, u32, u32),
    (starts, answers): (u32, u32),
    retries: Retries,
) -> Result<(), VerbsError> {
    let mut attributes = QpAttr::zeroed();
    attributes.qp_state = numbers::RTR;
    attributes.path_mtu = route.mtu.into();
    attributes.ah_attr = route.to;
    (attributes.dest_qp_num, attributes.rq_psn) = (other, expects);
    (attributes.max_dest_rd_atomic, attributes.min_rnr_timer) = (answers as u8, 12);
    let mask = numbers::HAS_AV
        | numbers::HAS_PATH_MTU
        | numbers::HAS_DEST_QPN
        | numbers::HAS_RQ_PSN
        | numbers::HAS_MAX_DEST_RD_ATOMIC
        | numbers::HAS_MIN_RNR_TIMER;
    pair.modify(attributes, numbers::HAS_STATE | mask)?;
    let mut attributes = QpAttr::zeroed();
    attributes.qp_state = numbers::RTS;
    (attributes.sq_psn, attributes.max_rd_atomic) = (sends, starts as u8);
    (attributes.timeout, attributes.retry_cnt, attributes.rnr_retry) = (retries.timeout, retries.count, 1);
    let mask = numbers::HAS_SQ_PSN
        | numbers::HAS_MAX_QP_RD_ATOMIC
        | numbers::HAS_TIMEOUT
        | numbers::HAS_RETRY_CNT
        | numbers::HAS_RNR_RETRY;
    pair.modify(attributes, numbers::HAS_STATE | mask)
}

impl Side {
    /// What is offered to the other end.
    fn offer(&self, pair: u32, reads: u32) -> Control {
        Control::Offer(Offer {
            round: self.round,
            pair,
            sequence: self.sequence,
            reads,
            is_connected: self.stage != Stage::Made,
            was_refused: self.was_refused,
        })
    }
}

impl OneSided {
    /// Reads of a peer are under way over a queue pair that is about to be destroyed: until it is, a device
    /// may write where they land.
    fn wait_for(&mut self, index: u32, destroyed: &Destroyed) {
        for at in self.ops.of_peer(index) {
            if let Some(op) = self.ops.get(at)
                && op.is_read()
                && op.under_way > 0
            {
                op.written_until = Some(destroyed.clone());
                self.written.push(at);
            }
        }
    }
}

impl Core {
    /// A peer is needed for operations, or for exposures alone.
    pub(super) fn want(&mut self, index: u32) {
        self.begin_with(index);
        if self.is_up(index) {
            if self.onesided.side(index).stage == Stage::None {
                self.offer_pair(index);
            }
            return;
        }
        let has_operations = !self.onesided.side(index).queue.is_empty();
        let peer = &mut self.peers[index as usize];
        if has_operations && peer.stage == core::Stage::Fresh && !std::mem::replace(&mut peer.is_wanted, true)
        {
            self.wanted.push_back(index);
        }
    }

    /// Messages to a peer may go: what waits needs a queue pair.
    pub(crate) fn one_sided_up(&mut self, index: u32) {
        let side = self.onesided.known(index);
        if side.is_some_and(|side| !side.queue.is_empty() || !side.unbound.is_empty()) {
            self.want(index);
        }
    }

    /// Makes our end of the next queue pair, and offers it; whether that was possible.
    fn offer_pair(&mut self, index: u32) -> bool {
        // What the queue pair reads and writes here is of the peer's own domain, whichever end offers first.
        let made = match self.own(index) {
            Ok(()) => self.make_pair(index),
            Err(_) => {
                self.end(index, DownReason::Resources);
                return false;
            }
        };
        let Ok((requests, sequence)) = made else {
            self.end(index, DownReason::Resources);
            return false;
        };
        let number = requests.pair().number();
        let reads = self.onesided.abilities.reads.1;
        self.onesided.by_pair.insert(number, index);
        self.onesided.stats.rounds += 1;
        let side = self.onesided.side(index);
        (side.requests, side.stage, side.sequence) = (Some(requests), Stage::Made, sequence);
        side.round = side.round.wrapping_add(1).max(1);
        let offer = side.offer(number, reads);
        self.send_control(index, offer);
        true
    }

    fn make_pair(&mut self, index: u32) -> Result<(Requests, u32), VerbsError> {
        let sizes = ReliableSizes {
            sends: DEPTH,
            inline: self.sizes.one_sided.inline.min(self.sizes.inline),
            pieces: 1,
        };
        let port = (self.port.0, self.port.1);
        let OneSided {
            sides,
            completions,
            abilities,
            ..
        } = &mut self.onesided;
        let own = sides
            .get(index as usize)
            .and_then(|side| side.as_ref()?.own.as_ref());
        let domain = own.map_or(&self.memory.domain, |own| &own.domain).as_ref();
        let (Some(domain), Some(completions)) = (domain, completions) else {
            return Err(VerbsError::Nonsense {
                device: "the device".to_owned(),
                what: "a connection although it is gone".to_owned(),
            });
        };
        let pair = ReliablePair::one_sided(domain, completions, sizes)?;
        begin_pair(&pair, port, abilities.atomics)?;
        Ok((Requests::new(pair, DEPTH), first_packet()))
    }

    pub(crate) fn send_control(&mut self, index: u32, control: Control) {
        if !self.onesided.side(index).send(control) {
            self.end(index, DownReason::Hostile);
        }
        self.onesided.mark_active(index);
        self.mark_dirty(index);
    }

    /// Has what waits to be sent in band leave before messages.
    #[inline]
    pub(crate) fn post_controls(&mut self, index: u32) {
        let side = self
            .onesided
            .sides
            .get_mut(index as usize)
            .and_then(Option::as_deref_mut);
        let Some(side) = side.filter(|side| !side.controls.is_empty()) else {
            return;
        };
        let outbox = self.peers[index as usize]
            .outbox
            .get_or_insert_with(|| Box::new(Outbox::new()));
        while let Some(control) = side.controls.front() {
            let bytes: [u8; CONTROL] = control.write();
            if !outbox.control(&mut self.pool, &bytes) {
                return;
            }
            side.controls.pop_front();
        }
    }

    /// Reads what the other end has sent in band; `false` if no peer can have sent it.
    pub(crate) fn control(&mut self, index: u32, control: &Control) -> bool {
        match *control {
            Control::Offer(offer) => self.offered(index, &offer),
            Control::Lookup(name) => {
                self.reply(index, name);
                true
            }
            Control::Reply(name, round, verdict) => {
                self.on_reply(index, name, round, verdict);
                true
            }
            Control::Ring(word) => self.ring_word(index, word),
        }
    }

    fn offered(&mut self, index: u32, theirs: &Offer) -> bool {
        // What ended before is honoured.
        self.reap_one_sided();
        let side = self.onesided.side(index);
        if theirs.round < side.round {
            return true;
        }
        if theirs.round > side.round {
            if theirs.round != side.round + 1 {
                return false;
            }
            if side.stage != Stage::None {
                side.was_refused = false;
                self.take_down(index, None);
            }
            if !self.offer_pair(index) {
                return true;
            }
            self.answer_lost(index);
        }
        if self.onesided.side(index).stage == Stage::Made && !self.connect_one_sided(index, theirs) {
            return true;
        }
        let side = self.onesided.side(index);
        if theirs.was_refused {
            // That was the reason.
            side.breaks = 0;
        }
        if side.stage == Stage::Connected && theirs.is_connected {
            side.stage = Stage::Up;
            self.requeue(index);
        }
        self.bind(index);
        true
    }

    fn connect_one_sided(&mut self, index: u32, theirs: &Offer) -> bool {
        let abilities = self.onesided.abilities;
        let starts = abilities.reads.0.min(theirs.reads);
        let retries = self.sizes.retries;
        let route = self.peers[index as usize]
            .link
            .as_ref()
            .and_then(|link| link.route);
        let side = self.onesided.side(index);
        let (Some(requests), Some(route)) = (&side.requests, route) else {
            return false;
        };
        let numbers = (theirs.pair, theirs.sequence, side.sequence);
        let reads = (starts, abilities.reads.1);
        if connect_pair(requests.pair(), &route, numbers, reads, retries).is_err() {
            self.end(index, DownReason::Resources);
            return false;
        }
        let number = requests.pair().number();
        (side.stage, side.reads_most) = (Stage::Connected, starts);
        let offer = side.offer(number, abilities.reads.1);
        self.send_control(index, offer);
        true
    }

    /// All operations that do not wait for a word wait to be requested, in their order.
    pub(super) fn requeue(&mut self, index: u32) {
        let OneSided { sides, ops, .. } = &mut self.onesided;
        let Some(side) = sides[index as usize].as_deref_mut() else {
            return;
        };
        side.queue.clear();
        for at in ops.of_peer(index) {
            let is_elsewhere = side.keyless.contains(&at) || side.resting.contains(&at);
            let waits = |op: &mut super::op::Op| !op.is_requested() && op.written_until.is_none();
            if !is_elsewhere && ops.get(at).is_some_and(waits) {
                side.queue.push_back(at);
            }
        }
        self.mark_one_sided(index);
    }

    /// The device reports that a queue pair of this kind has failed; whether it is one.
    pub(crate) fn on_one_sided_event(&mut self, event: &Event) -> bool {
        let is_meant = |side: &Side| {
            let requests = side.requests.as_ref();
            requests.is_some_and(|requests| requests.pair().is_meant(event))
        };
        let mut sides = self.onesided.sides.iter();
        let found = sides.position(|side| side.as_deref().is_some_and(is_meant));
        let Some(index) = found else { return false };
        // What has ended before may have found it out already.
        self.reap_one_sided();
        let is_still = self
            .onesided
            .known(index as u32)
            .is_some_and(|side| is_meant(side));
        if is_still {
            self.renew_pair(index as u32, None);
        }
        true
    }

    /// A queue pair is broken: a denied operation alone is at fault, or nothing that is known. The next one
    /// is made.
    pub(super) fn renew_pair(&mut self, index: u32, denied: Option<u32>) {
        if !self.is_up(index) {
            // The end of the connection ends everything; what follows here is of no account.
            if let Some(requests) = &self.onesided.side(index).requests {
                let number = requests.pair().number();
                self.onesided.by_pair.remove(&number);
            }
            return;
        }
        self.take_down(index, denied);
        let side = self.onesided.side(index);
        side.was_refused = denied.is_some();
        side.breaks = if denied.is_some() { 0 } else { side.breaks + 1 };
        if side.breaks > MOST_BREAKS {
            return self.end(index, DownReason::Abandoned);
        }
        if self.offer_pair(index) {
            self.answer_lost(index);
        }
    }

    /// Answers a peer that waits for the keys of exposures whose windows went with the last queue pair, and
    /// for which there were no others. Behind the offer of the next one.
    fn answer_lost(&mut self, index: u32) {
        for name in self.onesided.exposures.of_peer(index) {
            if let Some(exposed) = self.onesided.exposures.get(name)
                && exposed.state == State::Ended
                && std::mem::take(&mut exposed.is_looked_up)
            {
                self.reply(index, name);
            }
        }
    }

    /// Takes a queue pair down: windows, then the queue pair; what was under way is requested again, if it
    /// cannot have been executed or does no harm twice.
    fn take_down(&mut self, index: u32, denied: Option<u32>) {
        let names = self.onesided.exposures.of_peer(index);
        for name in &names {
            if let Some(exposed) = self.onesided.exposures.get(*name) {
                match exposed.state {
                    State::Binding | State::Bound => {
                        exposed.window = None;
                        exposed.state = State::Unbound;
                    }
                    State::Ending => {
                        exposed.window = None;
                        exposed.state = State::Ended;
                    }
                    State::Registered | State::Unbound | State::Ended => {}
                }
            }
        }
        self.drop_pair(index);
        for name in names {
            self.find_window(index, name);
        }
        for at in self.onesided.ops.of_peer(index) {
            let Some(op) = self.onesided.ops.get(at) else {
                continue;
            };
            if Some(at) == denied {
                (op.is_refused, op.under_way) = (true, 0);
                let name = op.name;
                let side = self.onesided.side(index);
                side.keyless.push(at);
                // One more than others may look up at a time.
                if !side.look_up(name) {
                    side.force_look_up(name);
                }
                self.mark_dirty(index);
            } else if op.under_way > 0 {
                if denied.is_none() && op.kind != Kind::Get {
                    // Its place is another operation's next.
                    self.onesided.side(index).keyless.retain(|other| *other != at);
                    self.finish(at, Err(OpError::Indeterminate));
                } else {
                    op.roll_back();
                }
            }
        }
        self.requeue(index);
    }

    /// A fresh window for an exposure whose window went with its queue pair.
    fn find_window(&mut self, index: u32, name: u64) {
        let exposures = &mut self.onesided.exposures;
        let is_without = |exposed: &mut super::exposures::Exposed| {
            exposed.state == State::Unbound && exposed.window.is_none()
        };
        if !exposures.get(name).is_some_and(is_without) {
            return;
        }
        let window = exposures
            .window()
            .or_else(|| Window::new(self.memory.domain.as_ref()?).ok());
        let Some(exposed) = exposures.get(name) else {
            return;
        };
        match window {
            Some(window) => {
                exposed.key = next_key(&window);
                exposed.window = Some(window);
                self.onesided.side(index).unbound.push(name);
            }
            // No peer reaches it any more.
            None => {
                exposed.state = State::Ended;
                if std::mem::take(&mut exposed.is_fresh) {
                    self.onesided.side(index).fresh -= 1;
                    self.hold(index);
                }
            }
        }
    }

    /// Destroys a queue pair, over which no window is bound any more.
    fn drop_pair(&mut self, index: u32) {
        // What it sent before may not be repeated from memory that is another's by then.
        self.one_sided_failed(index);
        let side = self.onesided.side(index);
        let requests = side.requests.take();
        let writes_here = side.reads > 0;
        let destroyed = Destroyed::default();
        side.stage = Stage::None;
        side.keys.clear();
        let count = side.forget_requests();
        self.onesided.under_way -= count;
        self.onesided.stale += count;
        if let Some(requests) = requests {
            self.onesided.by_pair.remove(&requests.pair().number());
            if writes_here {
                self.onesided.wait_for(index, &destroyed);
            }
            self.destroyer.take(Over::OneSided(requests, destroyed.mark()));
        }
    }

    /// Answers by which key the device knows an exposure, as soon as it does.
    pub(super) fn reply(&mut self, index: u32, name: u64) {
        let is_each = |exposed: &mut super::exposures::Exposed| matches!(exposed.kept, Kept::Each(..));
        if self.onesided.exposures.get(name).is_some_and(is_each) {
            self.share(index, name);
        }
        let exposures = &mut self.onesided.exposures;
        let verdict = match exposures.get(name) {
            Some(exposed) if exposed.to.is_none_or(|to| to == index) => {
                match (&exposed.kept, exposed.state) {
                    (Kept::Each(_, shares), _) => {
                        let share = shares.iter().find(|(of, _)| *of == index);
                        share.map_or(Verdict::Unknown, |(_, pinned)| {
                            Verdict::Good(pinned.pinned.remote_key())
                        })
                    }
                    (_, State::Registered | State::Bound) => Verdict::Good(exposed.key),
                    (_, State::Unbound | State::Binding) => {
                        exposed.is_looked_up = true;
                        return;
                    }
                    (_, State::Ending | State::Ended) => Verdict::Withdrawn,
                }
            }
            _ => exposures.verdict(name, index),
        };
        let round = self.onesided.side(index).round;
        self.send_control(index, Control::Reply(name, round, verdict));
    }

    /// Registers an exposure to all for one peer, where each has a protection domain of its own.
    fn share(&mut self, index: u32, name: u64) {
        let OneSided { sides, exposures, .. } = &mut self.onesided;
        let side = sides.get_mut(index as usize).and_then(Option::as_deref_mut);
        let (Some(own), Some(exposed)) = (side.and_then(|side| side.own.as_mut()), exposures.get(name))
        else {
            return;
        };
        let access = exposed.access;
        if let Kept::Each(held, shares) = &mut exposed.kept
            && !shares.iter().any(|(of, _)| *of == index)
        {
            let writes = access & (numbers::REMOTE_WRITE | numbers::REMOTE_ATOMIC) != 0;
            let local = if writes { numbers::LOCAL_WRITE } else { 0 };
            if let Ok(pinned) = own.pin(held.clone(), access | local) {
                shares.push((index, pinned));
            }
        }
    }

    fn on_reply(&mut self, index: u32, name: u64, round: u32, verdict: Verdict) {
        let side = self.onesided.side(index);
        side.lookups.retain(|other| *other != name);
        let waiting = std::mem::take(&mut side.keyless);
        let is_present = round == side.round;
        let mut looks_up_again = false;
        for at in waiting {
            let Some(op) = self.onesided.ops.get(at) else {
                continue;
            };
            if op.name != name {
                self.onesided.side(index).keyless.push(at);
                continue;
            }
            match (verdict, op.is_refused) {
                (Verdict::Withdrawn, _) => self.finish(at, Err(OpError::Withdrawn)),
                (Verdict::Unknown, _) | (Verdict::Good(_), true) => self.finish(at, Err(OpError::Denied)),
                (Verdict::Good(key), false) if is_present => self.onesided.side(index).learn(name, key),
                (Verdict::Good(_), false) => {
                    // It is of a queue pair that is gone.
                    self.onesided.side(index).keyless.push(at);
                    looks_up_again = true;
                }
            }
        }
        if looks_up_again {
            let side = self.onesided.side(index);
            if !side.look_up(name) {
                side.force_look_up(name);
            }
            self.mark_dirty(index);
        }
        self.requeue(index);
    }

    /// The connection to a peer is broken: so is its queue pair of one-sided operations.
    pub(crate) fn one_sided_failed(&mut self, index: u32) {
        if let Some(side) = self.onesided.known(index)
            && let Some(requests) = &side.requests
        {
            let mut attributes = QpAttr::zeroed();
            attributes.qp_state = numbers::ERR;
            // A refusal, of a device that is gone, changes nothing: the end of the connection destroys it.
            let _ = requests.pair().modify(attributes, numbers::HAS_STATE);
        }
    }

    /// The connection to a peer is over: its operations end, and what was exposed to it alone is withdrawn.
    pub(crate) fn one_sided_over(&mut self, index: u32) {
        self.reap_one_sided();
        if self.onesided.known(index).is_none() {
            return;
        }
        let names = self.onesided.exposures.of_peer(index);
        for name in &names {
            if let Some(exposed) = self.onesided.exposures.get(*name)
                && matches!(exposed.state, State::Binding | State::Bound | State::Ending)
            {
                exposed.window = None;
                exposed.state = State::Ended;
            }
        }
        let under_way: Vec<u32> = self.onesided.ops.of_peer(index);
        let outcome = |op: &super::op::Op| match op.is_refused {
            true => OpError::Denied,
            false if op.may_have_changed() => OpError::Indeterminate,
            false => OpError::NotDone,
        };
        self.drop_pair(index);
        for at in under_way {
            if let Some(op) = self.onesided.ops.get(at) {
                let error = outcome(op);
                self.finish(at, Err(error));
            }
        }
        let side = self.onesided.side(index);
        side.queue.clear();
        side.keyless.clear();
        side.lookups.clear();
        side.resting.clear();
        for name in names {
            if let Some(exposed) = self.onesided.exposures.get(name) {
                exposed.is_looked_up = false;
            }
            self.remove_exposed(name);
        }
        self.onesided.exposures.drop_shares(index);
        let side = self.onesided.side(index);
        side.controls.clear();
        side.unbound.clear();
        (side.round, side.fresh, side.breaks, side.was_refused) = (0, 0, 0, false);
        self.hold(index);
    }

    /// Looks after the queue pairs of one-sided operations with something under way.
    pub(crate) fn progress_one_sided(&mut self) {
        self.reap_one_sided();
        if !self.onesided.written.is_empty() {
            self.go_on_with_written();
        }
        let mut at = 0;
        while let Some(&index) = self.onesided.active.get(at) {
            self.look_after(index);
            let Some(side) = self.onesided.known(index) else {
                return;
            };
            if side.has_work() {
                at += 1;
            } else {
                side.is_active = false;
                self.onesided.active.swap_remove(at);
            }
        }
    }

    fn look_after(&mut self, index: u32) {
        let (now, bound) = (self.now, self.bound());
        let side = self.onesided.side(index);
        // Counted from the look that saw it: the owner may have been away before.
        if std::mem::take(&mut side.has_moved) {
            side.moved_at = now;
        }
        if !side.under_way.is_empty() && now >= side.moved_at + bound {
            return self.end(index, DownReason::Silent);
        }
        let (rests, waits) = (!side.resting.is_empty(), !side.controls.is_empty());
        side.resting.clear();
        if rests {
            self.requeue(index);
        } else if !side.queue.is_empty() {
            self.mark_one_sided(index);
        }
        if waits {
            self.mark_dirty(index);
        }
        self.bind(index);
    }
}

#[cfg(test)]
impl Core {
    pub(crate) fn one_sided_pair(&mut self, index: u32) -> Option<u32> {
        let requests = self.onesided.known(index)?.requests.as_ref()?;
        Some(requests.pair().number())
    }
}
