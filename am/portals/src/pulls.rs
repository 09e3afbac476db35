//! Long transfers: the side where the bytes land pulls them, from memory that the owner has exposed, or in
//! fragments.
//!
//! ```text
//!   put:  initiator (owner)                target (puller)
//!         RTS, with exposed memory ──────►  matched: these bytes are wanted
//!                                ◄───────  one-sided gets …            no such path, or it broke:
//!                                ◄───────  PULL offset, length   FRAG … ──────►
//!                                ◄───────  ACK
//!   get:  initiator (puller)               target (owner)
//!         GET ───────────────────────────►  matched: these bytes are given
//!                                ◄───────  READY, with exposed memory; or REPLY; or READY and FRAG …
//!         one-sided gets …; PULL, FRAG
//!         FIN ───────────────────────────►
//! ```
//!
//! The side that gives a transfer up notifies the other: the puller by its ACK or FIN, the owner by GONE.
//!
//! Bytes that a broken path did not bring are requested in fragments, which are ordinary messages: in order,
//! exactly once, whichever path carries them. What has arrived is counted, and the transfer is over when that
//! is all.

use doorbell_fabric::message::{Inbound, Message, OpId, Refused, Remote};
use doorbell_fabric::ni::NiFail;
use zerocopy::FromBytes;

use crate::answers::Outcome;
use crate::bytes;
use crate::core::Core;
use crate::drops::Drop;
use crate::link::{First, Link, PeerId};
use crate::ops::{Role, SOURCES};
use crate::peers::NONE;
use crate::wire::{Head, Source, Words, kind, list_of};

/// The one-sided gets of one pull that may be under way over one path at a time.
const GETS: u32 = 2;

/// Bytes of one of them, where several ways share the work.
pub(crate) const STRIPE: u64 = 256 << 10;

/// Bytes of one of them at most.
const LONGEST: u64 = 1 << 30;

/// What is being pulled.
#[derive(Debug)]
pub(crate) struct Pull {
    /// The owner's number of the operation.
    far: u64,
    length: u64,
    /// Bytes from here on have not been requested.
    next: u64,
    /// Bytes that have arrived.
    done: u64,
    /// The number of one-sided gets under way.
    gets: u32,
    /// Fragments that were requested and have not come.
    frag: Option<(u64, u64)>,
    /// Parts that a broken path did not bring.
    missed: Vec<(u64, u64)>,
    sources: [Option<(u16, Remote)>; SOURCES],
    /// Gets under way over each.
    busy: [u32; SOURCES],
    /// The operation fails, as soon as nothing is under way any more that writes its memory.
    failing: Option<NiFail>,
    free: bool,
}

/// A one-sided get under way.
#[derive(Debug)]
struct Getting {
    /// The number on the rail; zero when free.
    id: u64,
    pull: u32,
    /// The operation, with its generation.
    op: u64,
    peer: u32,
    source: usize,
    at: u64,
    length: u64,
}

/// All pulls, and the gets that they consist of.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    list: Vec<Pull>,
    free: Vec<u32>,
    gets: Vec<Getting>,
    free_gets: Vec<u32>,
    started: u64,
    /// Exposures that are to be taken back when the rails are free.
    pub(crate) withdrawals: Vec<(PeerId, u16, doorbell_fabric::message::RemoteKey)>,
}

/// Bits of a get's number that are its place.
const PLACE: u32 = 20;

impl Pulls {
    fn open(&mut self, far: u64, length: u64) -> u32 {
        let pull = Pull {
            far,
            length,
            next: 0,
            done: 0,
            gets: 0,
            frag: None,
            missed: Vec::new(),
            sources: [None; SOURCES],
            busy: [0; SOURCES],
            failing: None,
            free: false,
        };
        if let Some(at) = self.free.pop()
            && let Some(old) = self.list.get_mut(at as usize)
        {
            let mut missed = std::mem::take(&mut old.missed);
            missed.clear();
            *old = Pull { missed, ..pull };
            return at;
        }
        self.list.push(pull);
        (self.list.len() - 1) as u32
    }

    fn at_mut(&mut self, at: u32) -> Option<&mut Pull> {
        self.list.get_mut(at as usize).filter(|pull| !pull.free)
    }

    /// The operation has ended, and with it all of its gets.
    pub(crate) fn close(&mut self, at: u32) {
        if let Some(pull) = self.at_mut(at) {
            pull.free = true;
            self.free.push(at);
        }
    }

    /// Whether gets of a pull are under way; then it fails when they have ended.
    pub(crate) fn defers(&mut self, at: u32, fail: NiFail) -> bool {
        let Some(pull) = self.at_mut(at).filter(|pull| pull.gets != 0) else {
            return false;
        };
        pull.failing = pull.failing.or(Some(fail));
        pull.missed.clear();
        (pull.next, pull.frag) = (pull.length, None);
        true
    }

    /// Whether any get is under way.
    pub(crate) fn are_writing(&self) -> bool {
        self.gets.len() != self.free_gets.len()
    }

    /// A place for one more get, if there is one.
    fn open_get(&mut self, get: Getting) -> Option<(u32, u64)> {
        let at = match self.free_gets.pop() {
            Some(at) => at,
            None if self.gets.len() < 1 << PLACE => {
                self.gets.push(Getting {
                    id: 0,
                    pull: NONE,
                    op: 0,
                    peer: NONE,
                    source: 0,
                    at: 0,
                    length: 0,
                });
                (self.gets.len() - 1) as u32
            }
            None => return None,
        };
        self.started += 1;
        let id = self.started << PLACE | u64::from(at);
        self.gets[at as usize] = Getting { id, ..get };
        Some((at, id))
    }

    fn close_get(&mut self, at: u32) {
        if let Some(get) = self.gets.get_mut(at as usize) {
            get.id = 0;
            self.free_gets.push(at);
        }
    }
}

impl Core {
    /// Begins to pull `length` bytes into an operation's memory; the rest of the message names the exposed
    /// memory.
    pub(crate) fn begin_pull(&mut self, op: u32, far: u64, length: u64, inbound: &Inbound<'_>, body: usize) {
        let pull = self.pulls.open(far, length);
        if let Some(at) = self.pulls.at_mut(pull) {
            for (nth, source) in at.sources.iter_mut().enumerate() {
                let Some(bytes) = inbound.read::<{ size_of::<Source>() }>(body + nth * size_of::<Source>())
                else {
                    break;
                };
                let Ok(read) = Source::read_from_bytes(&bytes) else {
                    break;
                };
                // Less than was announced is no source.
                if read.remote.length.get() >= length {
                    *source = Some((read.way.get(), read.remote));
                }
            }
        }
        if let Some(at) = self.ops.at_mut(op) {
            at.pull = pull;
        }
        self.enqueue(op);
    }

    /// A get is answered by bytes that are to be pulled, or that follow in fragments.
    pub(crate) fn ready_arrived(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let (Some(id), Some(far), Some(mlength), Some(offset)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return self.drops.count(Drop::Short);
        };
        let Some(op) = self.answered(peer, id, &[Role::Get]) else {
            // The operation has ended here: the owner need not wait for us.
            return self.outbox.push(peer, fin(far, NiFail::Undeliverable), &[]);
        };
        let body = words.end();
        let Some(at) = self.ops.at_mut(op) else { return };
        if mlength > at.length || mlength == 0 || at.pull != NONE {
            return self.drops.count(Drop::Malformed);
        }
        at.offset = offset;
        at.length = mlength;
        at.far = far;
        at.event.list = list_of(first.flags);
        let pushed = inbound.len() == body;
        self.begin_pull(op, far, mlength, inbound, body);
        if pushed
            && let Some(at) = self.ops.at(op)
            && let Some(pull) = self.pulls.at_mut(at.pull)
        {
            pull.next = mlength;
            pull.frag = Some((0, mlength));
        }
    }

    /// Handles a fragment that has arrived.
    pub(crate) fn frag_arrived(&mut self, peer: PeerId, _first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let (Some(id), Some(offset)) = (words.next(), words.next()) else {
            return self.drops.count(Drop::Short);
        };
        let Some(op) = self.answered(peer, id, &[Role::Landing, Role::Get]) else {
            return;
        };
        let body = words.end();
        let length = (inbound.len() - body) as u64;
        let Some(at) = self.ops.at(op) else { return };
        let (ni, object, ours, base, index) = (usize::from(at.ni), at.object, at.is_ours(), at.at, at.pull);
        let Some(pull) = self.pulls.at_mut(index) else {
            return self.drops.count(Drop::Malformed);
        };
        // In order, and no more than was requested.
        let Some((next, end)) = pull
            .frag
            .filter(|(next, end)| *next == offset && length > 0 && length <= end - next)
        else {
            return self.drops.count(Drop::Malformed);
        };
        pull.frag = (next + length < end).then_some((next + length, end));
        pull.done += length;
        let (all, idle) = (pull.done == pull.length, pull.frag.is_none());
        if let Some(ni) = self.nis[ni].as_deref() {
            let memory = if ours {
                ni.mds.at(object).map(|md| &md.memory)
            } else {
                ni.entries.at(object).map(|entry| &entry.memory)
            };
            if let Some(memory) = memory {
                bytes::land(memory, (base + offset) as usize, *inbound, body, length as usize);
            }
        }
        if all {
            self.landed(op, NiFail::Ok);
        } else if idle {
            self.enqueue(op);
        }
    }

    /// The owner knows nothing of the operation any more: its bytes will not come.
    pub(crate) fn gone_arrived(&mut self, peer: PeerId, _first: First, inbound: &Inbound<'_>) {
        let Some(id) = Words::of(inbound).next() else {
            return self.drops.count(Drop::Short);
        };
        if let Some(op) = self.answered(peer, id, &[Role::Landing, Role::Get]) {
            self.landed(op, NiFail::Undeliverable);
        }
    }

    /// A one-sided get has ended.
    pub(crate) fn got(&mut self, id: OpId, ok: bool) {
        let place = (id.0 & ((1 << PLACE) - 1)) as u32;
        let Some(get) = self
            .pulls
            .gets
            .get(place as usize)
            .filter(|get| get.id == id.0 && id.0 != 0)
        else {
            return self.drops.count(Drop::Unknown);
        };
        let (pull, op, peer, source, at, length) =
            (get.pull, get.op, get.peer, get.source, get.at, get.length);
        self.pulls.close_get(place);
        let Some(pulling) = self.pulls.at_mut(pull) else {
            return;
        };
        pulling.gets -= 1;
        if let Some(busy) = pulling.busy.get_mut(source) {
            *busy -= 1;
        }
        if let Some(fail) = pulling.failing {
            if pulling.gets == 0
                && let Some(op) = self.ops.find(op, peer)
            {
                self.landed(op, fail);
            }
            return;
        }
        if ok {
            pulling.done += length;
        } else {
            if let Some(source) = pulling.sources.get_mut(source) {
                *source = None;
            }
            pulling.missed.push((at, at + length));
        }
        let all = pulling.done == pulling.length;
        let Some(op) = self.ops.find(op, peer) else { return };
        if all {
            self.landed(op, NiFail::Ok);
        } else {
            self.enqueue(op);
        }
    }

    /// All bytes of a pull are there, or they will not come: the operation ends, and its owner is notified.
    pub(crate) fn landed(&mut self, op: u32, fail: NiFail) {
        let Some(at) = self.ops.at(op) else { return };
        let (peer, far, offset, mlength) = (PeerId(at.peer), at.far, at.offset, at.length);
        let list = at.event.list;
        if fail != NiFail::Ok && self.pulls.defers(at.pull, fail) {
            return;
        }
        match at.role {
            Role::Landing => {
                let (managed, silent) = (at.user_ptr != 0, at.silent);
                let mut event = at.event;
                event.fail = fail;
                self.end_target(op, fail);
                let head = crate::target::ack(far, &event, managed.then_some(offset), silent);
                self.outbox.push(peer, head, &[]);
            }
            Role::Get => {
                if at.pull != NONE {
                    self.outbox.push(peer, fin(far, fail), &[]);
                }
                let outcome = match fail {
                    NiFail::Ok => Outcome {
                        fail,
                        mlength,
                        offset: None,
                        list,
                        silent: false,
                    },
                    fail => Outcome::failed(fail),
                };
                self.end_get(op, outcome);
            }
            _ => {}
        }
    }

    /// Ends an operation's place, and what hangs on it.
    #[inline(always)]
    pub(crate) fn close_op(&mut self, op: u32) {
        let Some(at) = self.ops.at(op) else { return };
        let (pull, role) = (at.pull, at.role);
        if pull != NONE {
            self.pulls.close(pull);
        }
        if role == Role::Serve {
            self.unexpose(op);
        }
        self.ops.close(op);
    }

    /// Does what operations wait to do, as far as the rails take it: once around.
    #[inline(never)]
    pub(crate) fn do_work<M: Message>(&mut self, link: &mut Link<M>) {
        for _ in 0..self.work.len() {
            let Some(op) = self.work.pop_front() else { break };
            let Some(at) = self.ops.at_mut(op) else { continue };
            at.queued = false;
            let more = match at.role {
                Role::Rts => self.stream(link, op),
                Role::Serve => self.serve(link, op),
                Role::Landing | Role::Get => self.fetch(link, op),
                Role::Put | Role::Free => false,
            };
            if more {
                self.enqueue(op);
            }
        }
        self.send_answers(link);
    }

    /// Requests bytes that are wanted. Returns whether there is more to request that could not be requested
    /// now.
    fn fetch<M: Message>(&mut self, link: &mut Link<M>, op: u32) -> bool {
        let Some(at) = self.ops.at(op) else { return false };
        let (peer, index) = (PeerId(at.peer), at.pull);
        loop {
            let Some(pull) = self.pulls.at_mut(index) else {
                return false;
            };
            let exposed = pull.sources.iter().flatten().count();
            if let Some((from, to)) = pull.wanted()
                && let Some(nth) = pull.idlest()
            {
                match self.get_part(link, op, index, nth, from, to) {
                    Some(Started::Yes) => continue,
                    Some(Started::Full) => return true,
                    // The way is no good, and is not used again.
                    None => {
                        if let Some(pull) = self.pulls.at_mut(index) {
                            pull.sources[nth] = None;
                        }
                        continue;
                    }
                }
            }
            // Bytes that no path can read are requested in fragments, one range after the other.
            if exposed == 0
                && pull.frag.is_none()
                && let Some((from, to)) = pull.wanted()
            {
                let mut head = Head::new(kind::PULL, 0, 0)
                    .word(pull.far)
                    .word(self.ops.id(op))
                    .word(from)
                    .word(to - from);
                use doorbell_fabric::message::Body;
                match link.send(peer, head.as_mut_bytes(), Body::Empty, true) {
                    Ok(()) => {
                        pull.frag = Some((from, to));
                        pull.requested(to);
                    }
                    Err(refused) => return refused == Refused::Full,
                }
            }
            return false;
        }
    }

    /// Starts the next one-sided get of a pull over one of its ways; `None` when that is no good.
    fn get_part<M: Message>(
        &mut self,
        link: &mut Link<M>,
        op: u32,
        index: u32,
        nth: usize,
        from: u64,
        to: u64,
    ) -> Option<Started> {
        let at = self.ops.at(op)?;
        let (peer, ni, object, base, ours) = (
            PeerId(at.peer),
            usize::from(at.ni),
            at.object,
            at.at,
            at.is_ours(),
        );
        let id = self.ops.id(op);
        let pull = self.pulls.at_mut(index)?;
        let exposed = pull.sources.iter().flatten().count();
        let (way, remote) = pull.sources[nth]?;
        let most = if exposed > 1 { STRIPE } else { LONGEST };
        let wanted = most.min(to - from);
        let ni = self.nis[ni].as_deref()?;
        let memory = if ours {
            &ni.mds.at(object)?.memory
        } else {
            &ni.entries.at(object)?.memory
        };
        let mut landing = None;
        bytes::each_piece(
            memory,
            (base + from) as usize,
            wanted as usize,
            |piece, at, length| {
                if landing.is_none() {
                    landing = Some(piece.part(at, length));
                }
            },
        );
        let landing = landing?;
        let length = landing.len() as u64;
        let part = remote.part(from, length)?;
        let get = Getting {
            id: 0,
            pull: index,
            op: id,
            peer: peer.0,
            source: nth,
            at: from,
            length,
        };
        let Some((place, number)) = self.pulls.open_get(get) else {
            return Some(Started::Full);
        };
        match link.get(peer, way, OpId(number), &part, landing) {
            Ok(()) => {}
            Err(refused) => {
                self.pulls.close_get(place);
                return (refused == Refused::Full).then_some(Started::Full);
            }
        }
        let pull = self.pulls.at_mut(index)?;
        pull.gets += 1;
        pull.busy[nth] += 1;
        pull.requested(from + length);
        Some(Started::Yes)
    }
}

/// The puller is done with what an owner serves.
fn fin(far: u64, fail: NiFail) -> Head {
    Head::new(kind::FIN, fail as u8, 0).word(far)
}

/// What became of a get that was to be started.
enum Started {
    Yes,
    Full,
}

impl Pull {
    /// The next bytes to request: first what a broken path did not bring.
    fn wanted(&self) -> Option<(u64, u64)> {
        let rest = (self.next < self.length).then_some((self.next, self.length));
        self.missed.last().copied().or(rest)
    }

    /// Records that those of them before `until` have been requested.
    fn requested(&mut self, until: u64) {
        match self.missed.pop() {
            Some((_, end)) if until < end => self.missed.push((until, end)),
            Some(_) => {}
            None => self.next = until,
        }
    }

    /// The path over which least is under way, if it may be more: so the paths share the work by their speed.
    fn idlest(&self) -> Option<usize> {
        let ways = (0..SOURCES).filter(|nth| self.sources[*nth].is_some());
        ways.min_by_key(|nth| self.busy[*nth])
            .filter(|nth| self.busy[*nth] < GETS)
    }
}
