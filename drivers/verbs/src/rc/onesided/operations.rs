//! What starts operations and exposures, posts their requests and ends them.

use std::time::{Duration, Instant};

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{
    Access, AtomicOp, Body, Exposure, FenceScope, Landing, OpError, OpId, PeerIndex, Refused, Remote,
    RemoteKey,
};

use super::exposures::{Exposed, Kept, State, next_key};
use super::memory::{Local, Memory};
use super::op::{Kind, Op, Took};
use super::side::{About, Next, Side, Stage, short_round};
use super::{Fence, MOST_FENCES, MOST_OPERATIONS, OneSided};
use crate::rc::core::{self, Core, reason_of};
use crate::rc::link;
use crate::rc::record::Event as Recorded;
use crate::sys::{Domain, Held, Wc, numbers};

/// Completions that are taken off the queue at a time.
const BATCH: usize = 16;
/// How long the end of a key is waited for, and how many looks are taken between two looks at the clock.
const PATIENCE: Duration = Duration::from_millis(5);
const LOOKS: u32 = 64;

/// The memory that a peer's operations use: that of the rail, or its own.
pub(super) fn memory_of<'a>(shared: &'a mut Memory, side: &'a mut Side) -> &'a mut Memory {
    match side.own.as_deref_mut() {
        Some(own) => own,
        None => shared,
    }
}

impl Core {
    /// Whether operations with a peer can be started.
    fn check_peer(&self, peer: PeerIndex) -> Result<u32, Refused> {
        let known = self.peers.get(peer.index()).ok_or(Refused::PeerDown)?;
        if known.stage == core::Stage::Down {
            return Err(Refused::PeerDown);
        }
        let link = known.link.as_ref();
        if link.is_some_and(|link| matches!(link.state, link::State::Ending(..))) {
            return Err(Refused::Full);
        }
        Ok(peer.0)
    }

    // Exposures.

    /// Exposes memory: see [`Message::expose`](doorbell_fabric::message::Message::expose).
    pub(crate) fn expose(
        &mut self,
        memory: Exposure,
        access: Access,
        to: Option<PeerIndex>,
    ) -> Result<Remote, Refused> {
        if self.device.is_none() {
            return Err(Refused::PeerDown);
        }
        if !self.onesided.abilities.gets() && access != Access::Write {
            return Err(Refused::Unsupported);
        }
        let held = match memory {
            Exposure::Region(slice) => Held::Region(slice),
            Exposure::Read(_) if access != Access::Read => return Err(Refused::BadMemory),
            Exposure::Read(loan) => Held::Read(loan),
            Exposure::Write(loan) => Held::Write(loan),
        };
        if !self.sizes.one_sided.pins_loans && !matches!(held, Held::Region(_)) {
            return Err(Refused::Unsupported);
        }
        let to = to.map(|peer| self.check_peer(peer)).transpose()?;
        if self.onesided.exposures.len() >= self.sizes.one_sided.exposures {
            return Err(Refused::Full);
        }
        let (address, length) = (held.address(), held.len() as u64);
        let rights = self.rights(access);
        let name = if length == 0 {
            self.add_exposed(0, to, rights, Kept::Nothing)
        } else {
            match (to, self.onesided.abilities.windows) {
                (Some(peer), true) => self.expose_by_window(peer, held, rights)?,
                (Some(peer), false) => {
                    self.own(peer)?;
                    let side = self.onesided.side(peer);
                    let pinned = memory_of(&mut self.memory, side).pin(held, local(rights) | rights)?;
                    let key = pinned.pinned.remote_key();
                    self.add_exposed(key, to, rights, Kept::Pinned(pinned))
                }
                (None, true) => {
                    let pinned = self.memory.pin(held, local(rights) | rights)?;
                    let key = pinned.pinned.remote_key();
                    self.add_exposed(key, to, rights, Kept::Pinned(pinned))
                }
                (None, false) => self.add_exposed(0, to, rights, Kept::Each(held, Vec::new())),
            }
        };
        Ok(Remote {
            key: name.into(),
            address: address.into(),
            length: length.into(),
        })
    }

    fn rights(&self, access: Access) -> i32 {
        match access {
            Access::Read => numbers::REMOTE_READ,
            Access::Write => numbers::REMOTE_WRITE,
            Access::ReadWrite => {
                let atomics = self.onesided.abilities.atomics;
                let atomic = if atomics { numbers::REMOTE_ATOMIC } else { 0 };
                numbers::REMOTE_READ | numbers::REMOTE_WRITE | atomic
            }
        }
    }

    /// A protection domain of a peer's own, where the device has no windows.
    pub(super) fn own(&mut self, peer: u32) -> Result<(), Refused> {
        if self.onesided.abilities.windows || self.onesided.side(peer).own.is_some() {
            return Ok(());
        }
        let Some(device) = &self.device else {
            return Err(Refused::PeerDown);
        };
        match Domain::new(&device.open) {
            Ok(domain) => {
                let own = Memory::new(&domain, &self.onesided.budget, false);
                self.onesided.side(peer).own = Some(Box::new(own));
                Ok(())
            }
            Err(error) => {
                self.memory.refusal = Some(error.to_string());
                Err(Refused::Full)
            }
        }
    }

    fn add_exposed(&mut self, key: u32, to: Option<u32>, access: i32, kept: Kept) -> u64 {
        let exposures = &mut self.onesided.exposures;
        let name = exposures.name(key, 0);
        let exposed = Exposed {
            window: None,
            kept,
            to,
            access,
            key,
            state: State::Registered,
            is_fresh: false,
            is_looked_up: false,
        };
        exposures.add(name, exposed);
        name
    }

    fn expose_by_window(&mut self, peer: u32, held: Held, access: i32) -> Result<u64, Refused> {
        // Beneath a window whose range the device does not check are exactly its bytes.
        let kept = match held {
            Held::Region(slice) if self.onesided.abilities.checks_range => {
                Kept::Region(self.memory.place(&slice)?)
            }
            held => Kept::Pinned(self.memory.pin(held, local(access) | numbers::MW_BIND)?),
        };
        let window = match self.onesided.exposures.window() {
            Some(window) => window,
            None => self.memory.new_window()?,
        };
        let side = self.onesided.side(peer);
        // The first queue pair, or the one after the last, if there is none now.
        let round = side.round + u32::from(side.stage == Stage::None);
        let key = next_key(&window);
        side.fresh += 1;
        let name = self.onesided.exposures.name(key, short_round(round));
        let exposed = Exposed {
            window: Some(window),
            kept,
            to: Some(peer),
            access,
            key,
            state: State::Unbound,
            is_fresh: true,
            is_looked_up: false,
        };
        self.onesided.exposures.add(name, exposed);
        self.onesided.side(peer).unbound.push(name);
        self.hold(peer);
        self.want(peer);
        self.bind(peer);
        // Mostly it is bound when this returns, and no message waits.
        self.reap_one_sided();
        Ok(name)
    }

    /// Messages to a peer wait for its windows, or go on.
    pub(super) fn hold(&mut self, index: u32) {
        let holds = self.onesided.side(index).fresh > 0;
        let outbox = &mut self.peers[index as usize].outbox;
        if holds || outbox.is_some() {
            let outbox = outbox.get_or_insert_with(|| Box::new(crate::rc::outbox::Outbox::new()));
            let was_held = std::mem::replace(&mut outbox.is_held, holds);
            if was_held && !holds {
                self.mark_dirty(index);
            }
        }
    }

    /// Binds the windows of a peer's exposures that are not bound.
    pub(super) fn bind(&mut self, index: u32) {
        let room = self.onesided.room();
        let OneSided {
            sides,
            exposures,
            under_way,
            stats,
            ..
        } = &mut self.onesided;
        let Some(side) = sides.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        if !side.binds() {
            return;
        }
        let (mut is_broken, mut left) = (false, room);
        while left > 0
            && side.has_room_for_window()
            && let Some(name) = side.unbound.pop()
        {
            let Some(exposed) = exposures.get(name) else {
                continue;
            };
            let id = side.next_id();
            let Some(requests) = &mut side.requests else { break };
            let (Some(window), Some(beneath)) = (&exposed.window, exposed.beneath()) else {
                continue;
            };
            let posted = requests.bind(id, (window, exposed.key), beneath, exposed.access);
            is_broken = !matches!(posted, Ok(1));
            if is_broken {
                side.unbound.push(name);
                break;
            }
            exposed.state = State::Binding;
            if side.under_way.is_empty() {
                side.has_moved = true;
            }
            side.under_way.push_back(About::Bind(name));
            (*under_way, stats.requests) = (*under_way + 1, stats.requests + 1);
            left -= 1;
        }
        let is_left = !side.unbound.is_empty();
        if is_broken {
            self.end(index, DownReason::Resources);
        } else if is_left {
            // The rest follows when requests have ended, of other peers, too.
            self.onesided.mark_active(index);
        }
    }

    /// Withdraws memory: see [`Message::withdraw`](doorbell_fabric::message::Message::withdraw).
    pub(crate) fn withdraw(&mut self, key: RemoteKey) {
        let name = key.0;
        let Some(exposed) = self.onesided.exposures.get(name) else {
            return;
        };
        let (state, to) = (exposed.state, exposed.to);
        if let Some(peer) = to
            && matches!(state, State::Binding | State::Bound)
        {
            self.end_key(peer, name);
        }
        self.onesided.stats.withdrawn += 1;
        self.remove_exposed(name);
    }

    /// Forgets an exposure whose key is not under way; its window is kept if it is not bound.
    pub(super) fn remove_exposed(&mut self, name: u64) {
        let Some(mut exposed) = self.onesided.exposures.remove(name) else {
            return;
        };
        // One that was never bound would be bound under the same key again.
        if let (Some(window), State::Ended) = (exposed.window.take(), exposed.state) {
            self.onesided.exposures.keep(window);
        }
        if let Some(peer) = exposed.to {
            let side = self.onesided.side(peer);
            side.unbound.retain(|other| *other != name);
            side.fresh -= usize::from(exposed.is_fresh);
            self.hold(peer);
            if exposed.is_looked_up {
                self.reply(peer, name);
            }
        }
    }

    /// Ends the key of a window, and waits for it; else the window goes, and its queue pair with it.
    fn end_key(&mut self, peer: u32, name: u64) {
        let is_up = self.is_up(peer);
        let side = self.onesided.side(peer);
        let transfers = side.under_way.iter().any(|about| matches!(about, About::Op(..)));
        if (transfers || !is_up) && self.drop_window(name) {
            return;
        }
        if self.post_invalidation(peer, name) {
            let is_over = |core: &mut Self| {
                core.reap_one_sided();
                let exposed = core.onesided.exposures.get(name);
                exposed.is_none_or(|exposed| exposed.state != State::Ending)
            };
            let start = Instant::now();
            loop {
                if (0..LOOKS).any(|_| is_over(self)) {
                    return;
                }
                if start.elapsed() >= PATIENCE {
                    break;
                }
                std::thread::yield_now();
            }
        }
        if self.drop_window(name) {
            return;
        }
        // Gone at once, whatever its queue pair does.
        if let Some(exposed) = self.onesided.exposures.get(name)
            && exposed.state != State::Ended
        {
            exposed.window = None;
            exposed.state = State::Ended;
            self.renew_pair(peer, None);
        }
    }

    /// Ends a key that no request names by the end of its window: a request would wait behind what is under
    /// way. Whether there is such a key.
    fn drop_window(&mut self, name: u64) -> bool {
        let exposed = self.onesided.exposures.get(name);
        let Some(exposed) = exposed.filter(|exposed| exposed.state == State::Bound) else {
            return false;
        };
        (exposed.window, exposed.state) = (None, State::Ended);
        true
    }

    fn post_invalidation(&mut self, peer: u32, name: u64) -> bool {
        if self.onesided.room() == 0 {
            self.reap_one_sided();
        }
        let has_place = self.onesided.room() > 0;
        let OneSided {
            sides,
            exposures,
            under_way,
            ..
        } = &mut self.onesided;
        let side = sides.get_mut(peer as usize).and_then(Option::as_deref_mut);
        let (Some(side), Some(exposed)) = (side, exposures.get(name)) else {
            return false;
        };
        let id = side.next_id();
        let has_room = has_place && side.has_room_for_window();
        let Some(requests) = side.requests.as_mut().filter(|_| has_room) else {
            return false;
        };
        if requests.invalidate(id, exposed.key).is_err() || requests.post() != 1 {
            return false;
        }
        exposed.state = State::Ending;
        if side.under_way.is_empty() {
            side.has_moved = true;
        }
        side.under_way.push_back(About::Invalidate(name));
        *under_way += 1;
        true
    }

    // Operations.

    /// Starts a get: see [`Message::get`](doorbell_fabric::message::Message::get).
    pub(crate) fn get(
        &mut self,
        peer: PeerIndex,
        op: OpId,
        from: &Remote,
        into: Landing,
    ) -> Result<(), Refused> {
        if !self.onesided.abilities.gets() {
            return Err(Refused::Unsupported);
        }
        let peer = self.check_start(peer, from, into.len())?;
        let memory = memory_of(&mut self.memory, self.onesided.side(peer));
        let (local, copies_out) = memory.of_landing(&into, &self.sizes.one_sided)?;
        self.onesided.stats.gets += 1;
        let mut op = self.new_op((op, peer), Kind::Get, from, local);
        (op.landing, op.copies_out) = (into, copies_out);
        self.start(op);
        Ok(())
    }

    /// Starts a put: see [`Message::put`](doorbell_fabric::message::Message::put).
    pub(crate) fn put(
        &mut self,
        peer: PeerIndex,
        op: OpId,
        from: &Body<'_>,
        to: &Remote,
    ) -> Result<(), Refused> {
        let peer = self.check_start(peer, to, from.len())?;
        let memory = memory_of(&mut self.memory, self.onesided.side(peer));
        let local = memory.of_body(from, &self.sizes.one_sided)?;
        self.onesided.stats.puts += 1;
        let op = self.new_op((op, peer), Kind::Put, to, local);
        self.start(op);
        Ok(())
    }

    /// Starts an atomic: see [`Message::atomic`](doorbell_fabric::message::Message::atomic).
    pub(crate) fn atomic(
        &mut self,
        peer: PeerIndex,
        op: OpId,
        at: &Remote,
        what: AtomicOp,
    ) -> Result<(), Refused> {
        if !self.onesided.abilities.atomics || !self.onesided.abilities.gets() {
            return Err(Refused::Unsupported);
        }
        if !at.address.get().is_multiple_of(8) {
            return Err(Refused::BadMemory);
        }
        let peer = self.check_start(peer, at, 8)?;
        let memory = memory_of(&mut self.memory, self.onesided.side(peer));
        let local = memory.of_atomic(&self.sizes.one_sided)?;
        self.onesided.stats.atomics += 1;
        let op = self.new_op((op, peer), Kind::Atomic(what), at, local);
        self.start(op);
        Ok(())
    }

    fn check_start(&mut self, peer: PeerIndex, far: &Remote, length: usize) -> Result<u32, Refused> {
        if far.length.get() != length as u64 {
            return Err(Refused::BadMemory);
        }
        let peer = self.check_peer(peer)?;
        let is_full = |core: &Self| core.onesided.ops.open + core.onesided.ended.len() >= MOST_OPERATIONS;
        if is_full(self) {
            self.reap_one_sided();
            if is_full(self) {
                return Err(Refused::Full);
            }
        }
        self.own(peer)?;
        Ok(peer)
    }

    fn new_op(&mut self, (id, peer): (OpId, u32), kind: Kind, far: &Remote, local: Local) -> Op {
        self.onesided.ops.started += 1;
        let far = (far.key.get(), far.address.get(), far.length.get() as usize);
        Op::new((id, self.onesided.ops.started, peer), kind, far, local)
    }

    fn start(&mut self, op: Op) {
        let peer = op.peer;
        let at = self.onesided.ops.add(op);
        self.onesided.side(peer).queue.push_back(at);
        self.mark_one_sided(peer);
        self.want(peer);
    }

    pub(super) fn mark_one_sided(&mut self, index: u32) {
        self.onesided.mark_active(index);
        let side = self.onesided.side(index);
        if !std::mem::replace(&mut side.is_dirty, true) {
            self.onesided.dirty.push(index);
        }
    }

    /// A fence: see [`Message::fence`](doorbell_fabric::message::Message::fence).
    pub(crate) fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
        let onesided = &mut self.onesided;
        if onesided.fences.len() == MOST_FENCES || onesided.ended.len() >= 2 * MOST_OPERATIONS {
            return Err(Refused::Full);
        }
        let peer = match scope {
            FenceScope::Peer(peer) => Some(peer.0),
            FenceScope::Rail => None,
        };
        let left = onesided.ops.count(peer);
        if left == 0 {
            onesided.ended.push_back((op, Ok(0)));
            return Ok(());
        }
        onesided.fences.push(Fence {
            op,
            peer,
            before: onesided.ops.started + 1,
            left,
        });
        Ok(())
    }

    /// Posts what waits: one doorbell for each peer.
    #[inline]
    pub(crate) fn flush_one_sided(&mut self) {
        while let Some(index) = self.onesided.dirty.pop() {
            self.onesided.side(index).is_dirty = false;
            self.post_operations(index);
        }
    }

    fn post_operations(&mut self, index: u32) {
        let most = self.onesided.abilities.message.min(self.sizes.one_sided.request);
        let mut left = self.onesided.room();
        let OneSided {
            sides,
            ops,
            stats,
            under_way,
            ..
        } = &mut self.onesided;
        let Some(side) = sides.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        if side.stage != Stage::Up {
            return;
        }
        let own = side.own.take();
        let memory = own.as_deref().unwrap_or(&self.memory);
        let (was_idle, mut is_broken, mut looks_up) = (side.under_way.is_empty(), false, false);
        'operations: while let Some(&at) = side.queue.front() {
            let Some(op) = ops.get(at) else {
                side.queue.pop_front();
                continue;
            };
            let key = if op.length == 0 {
                Some(0)
            } else {
                side.key_of(op.name)
            };
            let Some(key) = key else {
                if !side.look_up(op.name) {
                    break;
                }
                side.queue.pop_front();
                side.keyless.push(at);
                looks_up = true;
                continue;
            };
            while !op.is_requested() {
                let next = if left > 0 {
                    side.prepare(at, op, memory, key, most)
                } else {
                    Next::Full
                };
                match next {
                    Next::Prepared => left -= 1,
                    Next::Full => break 'operations,
                    Next::Broken => {
                        is_broken = true;
                        break 'operations;
                    }
                }
            }
            side.queue.pop_front();
        }
        side.own = own;
        if let Some(requests) = side.requests.as_mut()
            && requests.waiting() > 0
        {
            let waiting = requests.waiting();
            let taken = requests.post();
            if was_idle {
                side.has_moved = true;
            }
            *under_way += taken;
            (stats.requests, stats.doorbells) = (stats.requests + taken as u64, stats.doorbells + 1);
            for _ in taken..waiting {
                is_broken = true;
                if let Some(About::Op(at, length)) = side.take_back()
                    && let Some(op) = ops.get(at)
                {
                    op.requested -= length;
                    op.under_way -= 1;
                    side.reads -= u32::from(op.is_read());
                }
            }
        }
        if looks_up {
            self.mark_dirty(index);
        }
        if is_broken {
            self.end(index, DownReason::Resources);
        }
    }

    // Ends.

    /// Takes the completions of one-sided operations.
    #[inline]
    pub(crate) fn reap_one_sided(&mut self) {
        if self.onesided.under_way + self.onesided.stale == 0 {
            return;
        }
        let mut found = [Wc::zeroed(); BATCH];
        // A queue that is broken ends nothing: time ends its connections.
        while let Some(completions) = &self.onesided.completions
            && let Ok(count) = completions.poll(&mut found)
        {
            for completion in &found[..count] {
                self.complete_one_sided(completion);
            }
            if count < BATCH {
                self.onesided.stale = 0;
                return;
            }
        }
    }

    #[inline]
    fn complete_one_sided(&mut self, completion: &Wc) {
        let Some(&index) = self.onesided.by_pair.get(&completion.qp_num) else {
            self.onesided.stale = self.onesided.stale.saturating_sub(1);
            self.onesided.stats.stale += 1;
            return;
        };
        let side = self.onesided.side(index);
        let Some(about) = side.ended(completion.wr_id) else {
            self.onesided.stats.nonsense += 1;
            return;
        };
        side.has_moved = true;
        self.onesided.under_way -= 1;
        if completion.status == numbers::SUCCESS {
            self.onesided.side(index).breaks = 0;
            self.done(index, about);
            return;
        }
        self.failed_one_sided(index, about, completion.status);
    }

    fn done(&mut self, index: u32, about: About) {
        match about {
            About::Op(at, length) => self.piece_done(index, at, length),
            About::Bind(name) => {
                self.onesided.stats.bound += 1;
                if let Some(exposed) = self.onesided.exposures.get(name) {
                    if let Some(window) = &mut exposed.window {
                        window.was_bound(exposed.key);
                    }
                    if exposed.state == State::Binding {
                        exposed.state = State::Bound;
                    }
                    let was_fresh = std::mem::take(&mut exposed.is_fresh);
                    if std::mem::take(&mut exposed.is_looked_up) {
                        self.reply(index, name);
                    }
                    if was_fresh {
                        self.onesided.side(index).fresh -= 1;
                        self.hold(index);
                    }
                }
                self.bind(index);
            }
            About::Invalidate(name) => {
                if let Some(exposed) = self.onesided.exposures.get(name) {
                    exposed.state = State::Ended;
                }
            }
        }
        let side = self.onesided.side(index);
        if !side.queue.is_empty() {
            self.mark_one_sided(index);
        }
    }

    #[inline]
    fn piece_done(&mut self, index: u32, at: u32, length: usize) {
        let OneSided { sides, ops, .. } = &mut self.onesided;
        let Some(side) = sides[index as usize].as_deref_mut() else {
            return;
        };
        let Some(op) = ops.get(at) else { return };
        op.under_way -= 1;
        op.done += length;
        side.reads -= u32::from(op.is_read());
        if op.under_way > 0 || op.done < op.length {
            return;
        }
        let mut old = 0;
        if let Kind::Atomic(what) = op.kind {
            let memory = side.own.as_deref().unwrap_or(&self.memory);
            old = memory.bytes(&op.local, 8).read(0).map_or(0, u64::from_ne_bytes);
            match op.took(what, old) {
                Took::Done => {}
                Took::Again => return side.queue.push_front(at),
                Took::Rests => return side.resting.push(at),
            }
        }
        self.finish(at, Ok(old));
    }

    /// An operation has ended, and the device does not touch its memory any more.
    pub(super) fn finish(&mut self, at: u32, outcome: Result<u64, OpError>) {
        let onesided = &mut self.onesided;
        if let Some(op) = onesided.ops.get(at).filter(|op| op.written_until.is_some()) {
            // Once its memory is not written any more.
            op.under_way = 0;
            op.outcome.get_or_insert(outcome);
            return;
        }
        let Some(op) = onesided.ops.remove(at) else { return };
        let memory = memory_of(&mut self.memory, onesided.side(op.peer));
        if op.copies_out && outcome.is_ok() {
            op.landing.write_shared(0, memory.bytes(&op.local, op.length));
        }
        memory.give_back(op.local);
        onesided.ended.push_back((op.id, outcome));
        let mut left = 0;
        while let Some(fence) = onesided.fences.get_mut(left) {
            if fence.before > op.serial && fence.peer.is_none_or(|peer| peer == op.peer) {
                fence.left -= 1;
                if fence.left == 0 {
                    let fence = onesided.fences.remove(left);
                    onesided.ended.push_back((fence.op, Ok(0)));
                    continue;
                }
            }
            left += 1;
        }
    }

    /// Goes on with operations whose memory is not written any more: their former queue pair is destroyed.
    pub(crate) fn go_on_with_written(&mut self) {
        let mut next = 0;
        while let Some(&at) = self.onesided.written.get(next) {
            let op = self.onesided.ops.get(at);
            let Some(op) = op.filter(|op| op.is_written()) else {
                self.onesided.written.swap_remove(next);
                self.is_written_no_more(at);
                continue;
            };
            debug_assert_eq!(op.under_way, 0, "it is requested again");
            next += 1;
        }
    }

    fn is_written_no_more(&mut self, at: u32) {
        let Some(op) = self.onesided.ops.get(at) else {
            return;
        };
        let peer = op.peer;
        op.written_until = None;
        match op.outcome.take() {
            Some(outcome) => self.finish(at, outcome),
            None => self.requeue(peer),
        }
    }

    /// A request has failed: a denied one ends its queue pair alone, everything else the connection. A flush
    /// without a cause and an other end that does not answer may come of that end's having taken its queue
    /// pair down: the offer of the next one goes over the queue pair of messages, and finds out about it.
    #[cold]
    fn failed_one_sided(&mut self, index: u32, about: About, status: i32) {
        self.stats.retries += u64::from(status == numbers::RETRY_EXC_ERR);
        // What depends on it is looked at with what is still under way.
        match (status, about) {
            (numbers::REM_ACCESS_ERR | numbers::REM_INV_REQ_ERR, About::Op(at, _)) => {
                self.onesided.stats.denied += 1;
                self.record(Some(index), Recorded::Denied);
                self.renew_pair(index, Some(at));
            }
            (numbers::WR_FLUSH_ERR | numbers::RETRY_EXC_ERR, _) => {
                self.put_back(index, about);
                self.renew_pair(index, None);
            }
            _ => {
                self.put_back(index, about);
                self.end(index, reason_of(status));
            }
        }
    }

    /// A request that was taken off is under way again, for those that look at all.
    fn put_back(&mut self, index: u32, about: About) {
        self.onesided.side(index).under_way.push_front(about);
        self.onesided.under_way += 1;
    }
}

/// The right that the device needs at this end for what peers may do.
fn local(rights: i32) -> i32 {
    if rights & (numbers::REMOTE_WRITE | numbers::REMOTE_ATOMIC) != 0 {
        numbers::LOCAL_WRITE
    } else {
        0
    }
}
