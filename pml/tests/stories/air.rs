//! What lies between the rails of all ranks. Nothing in it moves by itself: each frame, each one-sided
//! operation and each completion waits until the script lets it go.
//!
//! It keeps the promises of the `Message` contract, except where a script breaks one on purpose
//! (`duplicate`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use doorbell_fabric::event::{Life, RailEvent};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Access, Exposure, Landing, MsgId, OpError, OpId, Remote};

use crate::frame::Said;

/// One direction of one rail: the rail's number, the rank that speaks, the rank that is spoken to.
pub(crate) type Link = (usize, usize, usize);
/// One rail of one rank.
pub(crate) type End = (usize, usize);

/// Something on its way.
#[derive(Debug)]
pub(crate) struct Flying {
    pub(crate) link: Link,
    pub(crate) what: What,
    /// The name under which a script holds it back.
    pub(crate) held: Option<String>,
    /// The target has it; its completion has not come back.
    pub(crate) arrived: bool,
    /// An end was reported to its initiator already.
    orphan: bool,
}

#[derive(Debug)]
pub(crate) enum What {
    Frame {
        id: MsgId,
        bytes: Vec<u8>,
    },
    Read {
        op: OpId,
        from: Remote,
        into: Landing,
        bytes: Vec<u8>,
        ended: Result<u64, OpError>,
    },
    Write {
        op: OpId,
        to: Remote,
        bytes: Vec<u8>,
        ended: Result<u64, OpError>,
    },
}

impl Flying {
    pub(crate) fn said(&self) -> Said {
        match &self.what {
            What::Frame { bytes, .. } => Said::of(bytes),
            What::Read { from, .. } => Said::operation("READ", from.length.get()),
            What::Write { to, .. } => Said::operation("WRITE", to.length.get()),
        }
    }

    fn is_frame(&self) -> bool {
        matches!(self.what, What::Frame { .. })
    }
}

/// A message that a rail accepted and keeps.
#[derive(Debug)]
struct Kept {
    id: MsgId,
    bytes: Vec<u8>,
    taken: bool,
}

#[derive(Debug, Default)]
struct Sender {
    last: u64,
    watermark: u64,
    kept: VecDeque<Kept>,
}

#[derive(Debug)]
struct Exposed {
    end: End,
    to: Option<usize>,
    access: Access,
    memory: Exposure,
}

/// How an operation that ended comes to its initiator.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) op: OpId,
    pub(crate) outcome: Result<u64, OpError>,
    pub(crate) into: Landing,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct Air {
    pub(crate) flying: Vec<Flying>,
    senders: BTreeMap<Link, Sender>,
    exposed: BTreeMap<u64, Exposed>,
    keys: u64,
    /// Links that the rail of the speaker has given up.
    down: BTreeSet<Link>,
    /// Of these, the ones whose operations end only by a line of the script.
    lingering: BTreeSet<Link>,
    /// How often a rail between two ranks was mended: by its number, and the ranks in order.
    mended: BTreeMap<Link, u32>,
    /// Rails that take nothing now.
    pub(crate) full: BTreeSet<End>,
    /// Rails that keep their events to themselves now.
    pub(crate) mute: BTreeSet<End>,
    /// What the next poll of an end shows.
    pub(crate) inbox: BTreeMap<End, VecDeque<(usize, Vec<u8>)>>,
    pub(crate) ended: BTreeMap<End, VecDeque<Ended>>,
    pub(crate) events: BTreeMap<End, VecDeque<RailEvent>>,
    /// The whole conversation, for a story that goes wrong.
    pub(crate) log: Vec<String>,
}

impl Air {
    pub(crate) fn is_down(&self, link: Link) -> bool {
        self.down.contains(&link)
    }

    fn note(&mut self, (rail, from, to): Link, what: &str, said: &Said) {
        self.log.push(format!("rail {rail} {from}->{to}  {what}  {said}"));
    }

    /// A rail accepts a message.
    pub(crate) fn send(&mut self, link: Link, bytes: Vec<u8>) -> MsgId {
        let sender = self.senders.entry(link).or_default();
        sender.last += 1;
        let id = MsgId(sender.last);
        sender.kept.push_back(Kept {
            id,
            bytes: bytes.clone(),
            taken: false,
        });
        self.fly(link, What::Frame { id, bytes });
        id
    }

    /// A frame or an operation leaves.
    pub(crate) fn fly(&mut self, link: Link, what: What) {
        let flying = Flying {
            link,
            what,
            held: None,
            arrived: false,
            orphan: false,
        };
        self.note(link, "leaves", &flying.said());
        self.flying.push(flying);
    }

    /// Something reaches its target, which is all that happens.
    pub(crate) fn arrive(&mut self, at: usize) {
        let (link, said) = (self.flying[at].link, self.flying[at].said());
        let (rail, from, to) = link;
        if self.down.contains(&(rail, to, from)) && self.flying[at].is_frame() {
            panic!("rail {rail} of rank {to} is down: nothing arrives over it");
        }
        self.note(link, "arrives", &said);
        self.flying[at].arrived = true;
        match &self.flying[at].what {
            What::Frame { bytes, .. } => {
                let bytes = bytes.clone();
                self.inbox.entry((rail, to)).or_default().push_back((from, bytes));
            }
            What::Read { .. } | What::Write { .. } => self.execute(at),
        }
    }

    /// The target's device does what an operation requests, if its key allows it.
    fn execute(&mut self, at: usize) {
        let (rail, from, to) = self.flying[at].link;
        let exposed = &self.exposed;
        let allowed = |remote: &Remote, wanted: Access| {
            let known = exposed.get(&remote.key.get())?;
            let (start, length) = (remote.address.get(), remote.length.get());
            let inside = start.checked_add(length)? <= memory_len(&known.memory) as u64;
            let peer = known.to.is_none_or(|to| to == from);
            (known.end == (rail, to) && peer && inside && known.access.allows(wanted)).then_some(known)
        };
        match &mut self.flying[at].what {
            What::Frame { .. } => {}
            What::Read {
                from, bytes, ended, ..
            } => match allowed(from, Access::Read) {
                Some(known) => *bytes = read(&known.memory, from),
                None => *ended = Err(OpError::Denied),
            },
            What::Write { to, bytes, ended, .. } => match allowed(to, Access::Write) {
                Some(known) => write(&known.memory, to, bytes),
                None => *ended = Err(OpError::Denied),
            },
        }
    }

    /// The completion of something that arrived comes back.
    pub(crate) fn complete(&mut self, at: usize) {
        let flying = self.flying.remove(at);
        let (link, said) = (flying.link, flying.said());
        self.note(link, "is completed", &said);
        match flying.what {
            What::Frame { id, .. } => self.taken(link, id),
            What::Read {
                op,
                into,
                bytes,
                ended,
                ..
            } if !flying.orphan => {
                self.end(link, op, ended, into, bytes);
            }
            What::Write { op, ended, .. } if !flying.orphan => {
                self.end(link, op, ended, Landing::EMPTY, Vec::new());
            }
            What::Read { .. } | What::Write { .. } => {}
        }
    }

    fn end(
        &mut self,
        (rail, from, _): Link,
        op: OpId,
        outcome: Result<u64, OpError>,
        into: Landing,
        bytes: Vec<u8>,
    ) {
        self.ended.entry((rail, from)).or_default().push_back(Ended {
            op,
            outcome,
            into,
            bytes,
        });
    }

    /// An operation ends with an error at its initiator. One that is held goes on at its target.
    pub(crate) fn fail(&mut self, at: usize, error: OpError) {
        let (link, said) = (self.flying[at].link, self.flying[at].said());
        self.note(link, &format!("ends as {error:?}"), &said);
        let flying = &mut self.flying[at];
        let op = match &flying.what {
            What::Read { op, .. } | What::Write { op, .. } => *op,
            What::Frame { .. } => panic!("only operations end with an error"),
        };
        if flying.held.is_some() {
            flying.orphan = true;
        } else {
            self.flying.remove(at);
        }
        self.end(link, op, Err(error), Landing::EMPTY, Vec::new());
    }

    fn taken(&mut self, link: Link, id: MsgId) {
        let sender = self.senders.entry(link).or_default();
        if let Some(kept) = sender.kept.iter_mut().find(|kept| kept.id == id) {
            kept.taken = true;
        }
        // The watermark has no gaps: what was taken ahead of one is above it.
        while sender.kept.front().is_some_and(|kept| kept.taken) {
            sender.watermark = sender.kept.pop_front().map_or(0, |kept| kept.id.0);
        }
    }

    pub(crate) fn handed_over(&self, link: Link) -> MsgId {
        MsgId(self.senders.get(&link).map_or(0, |sender| sender.watermark))
    }

    pub(crate) fn reclaim(&mut self, link: Link) -> Vec<(MsgId, Vec<u8>)> {
        let kept = self
            .senders
            .get_mut(&link)
            .map(|sender| std::mem::take(&mut sender.kept));
        let given: Vec<_> = kept
            .into_iter()
            .flatten()
            .map(|kept| (kept.id, kept.bytes))
            .collect();
        for (_, bytes) in &given {
            self.note(link, "is given back", &Said::of(bytes));
        }
        given
    }

    /// A rank's end of a rail to a peer is down: what the contract promises then, without the event.
    pub(crate) fn break_end(&mut self, rail: usize, at: usize, peer: usize, lingers: bool) {
        let (out, back) = ((rail, at, peer), (rail, peer, at));
        if !self.down.insert(out) {
            return;
        }
        self.log
            .push(format!("rail {rail} of rank {at} to {peer} is down"));
        if lingers {
            self.lingering.insert(out);
        }
        // Frames on the wire are gone, in both directions; what is held is the script's.
        self.flying.retain(|one| {
            let here = one.link == out || one.link == back;
            !here || one.held.is_some() || !one.is_frame()
        });
        self.exposed
            .retain(|_, exposed| exposed.end != (rail, at) || exposed.to != Some(peer));
        self.inbox
            .entry((rail, at))
            .or_default()
            .retain(|(from, _)| *from != peer);
        self.end_operations(out);
    }

    fn end_operations(&mut self, link: Link) {
        if self.lingering.contains(&link) {
            return;
        }
        let of = |one: &Flying| one.link == link && !one.is_frame() && !one.orphan;
        while let Some(at) = self.flying.iter().position(of) {
            self.fail(at, OpError::Indeterminate);
        }
    }

    /// Both ends of a rail are up again, in the life that is answered.
    pub(crate) fn mend(&mut self, rail: usize, a: usize, b: usize) -> Life {
        for link in [(rail, a, b), (rail, b, a)] {
            self.down.remove(&link);
            self.lingering.remove(&link);
        }
        let mended = self.mended.entry((rail, a.min(b), a.max(b))).or_default();
        *mended += 1;
        Life(*mended)
    }

    pub(crate) fn expose(&mut self, end: End, memory: Exposure, access: Access, to: Option<usize>) -> Remote {
        self.keys += 1;
        let length = memory_len(&memory) as u64;
        self.exposed.insert(
            self.keys,
            Exposed {
                end,
                to,
                access,
                memory,
            },
        );
        Remote {
            key: self.keys.into(),
            address: 0.into(),
            length: length.into(),
        }
    }

    pub(crate) fn withdraw(&mut self, key: u64) {
        self.exposed.remove(&key);
    }

    /// Memory that peers can still reach.
    pub(crate) fn exposures(&self) -> usize {
        self.exposed.len()
    }
}

fn memory_len(memory: &Exposure) -> usize {
    match memory {
        Exposure::Region(slice) => slice.len(),
        Exposure::Read(loan) => loan.len(),
        Exposure::Write(loan) => loan.len(),
    }
}

fn read(memory: &Exposure, part: &Remote) -> Vec<u8> {
    let (at, length) = (part.address.get() as usize, part.length.get() as usize);
    let all = match memory {
        Exposure::Region(slice) => slice.as_shared(),
        Exposure::Read(loan) => loan.as_shared(),
        Exposure::Write(loan) => loan.as_shared(),
    };
    all.skip(at).take(length).to_vec()
}

fn write(memory: &Exposure, part: &Remote, bytes: &[u8]) {
    let at = part.address.get() as usize;
    let bytes = SharedBytes::of(bytes);
    match memory {
        Exposure::Region(slice) => slice.write_shared(at, bytes),
        Exposure::Write(loan) => loan.write_shared(at, bytes),
        Exposure::Read(_) => 0,
    };
}
