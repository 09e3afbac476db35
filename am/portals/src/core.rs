//! The state of a node, apart from its link: interfaces, peers, operations. Messages come in here.

use std::collections::VecDeque;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Inbound, Message, OpError, OpId};
use doorbell_fabric::ni::{Kind, NiError, Process};

use crate::direct::Guess;
use crate::drops::{Drop, Drops};
use crate::iface::Iface;
use crate::link::{First, Link, PeerId, Upper};
use crate::ops::Ops;
use crate::outbox::Outbox;
use crate::peers::{NONE, Peers};
use crate::placed::Placing;
use crate::pulls::Pulls;
use crate::wire::{Head, VERSION, WINDOW, Words, kind};

/// The number of no interface: of operations whose interface was finished, and that are not over.
pub(crate) const NO_NI: u8 = 4;

/// The state of a node.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) me: Process,
    pub(crate) uid: u32,
    pub(crate) seed: u64,
    /// The interfaces, by the number of their kind; the last place stays empty.
    pub(crate) nis: [Option<Box<Iface>>; 5],
    pub(crate) peers: Peers,
    pub(crate) ops: Ops,
    pub(crate) pulls: Pulls,
    pub(crate) outbox: Outbox,
    /// Operations that have something to send, and have not been able to.
    pub(crate) work: VecDeque<u32>,
    pub(crate) drops: Drops,
    /// Something that needs the rails has fired, and is to be done.
    pub(crate) fired: bool,
    /// Peers that are lost, while gets from them are still under way.
    pub(crate) leaving: Vec<(PeerId, DownReason)>,
    /// Where pieces are gathered.
    pub(crate) scratch: Vec<u8>,
    /// The put that is expected next, and how many were taken as expected since the last waiter looked for
    /// anything else.
    pub(crate) guess: Option<Guess>,
    pub(crate) in_a_row: u32,
    /// Memory of ours that peers place puts in.
    pub(crate) placing: Placing,
}

impl Core {
    pub(crate) fn new(me: Process, uid: u32, seed: u64) -> Self {
        Self {
            me,
            uid,
            seed,
            nis: [const { None }; 5],
            peers: Peers::new(me, uid),
            ops: Ops::new(),
            pulls: Pulls::default(),
            outbox: Outbox::default(),
            work: VecDeque::new(),
            drops: Drops::default(),
            fired: false,
            leaving: Vec::new(),
            scratch: Vec::new(),
            guess: None,
            in_a_row: 0,
            placing: Placing::default(),
        }
    }

    /// The interface of a kind, if it is there.
    #[inline(always)]
    pub(crate) fn present(&mut self, kind: Kind) -> Result<&mut Iface, NiError> {
        match self.nis[kind.number() as usize].as_deref_mut() {
            Some(ni) if ni.users != 0 => Ok(ni),
            _ => Err(NiError::NoInit),
        }
    }

    /// The interface of a kind, if it can be used.
    #[inline(always)]
    pub(crate) fn ready(&mut self, kind: Kind) -> Result<&mut Iface, NiError> {
        match self.nis[kind.number() as usize].as_deref_mut() {
            Some(ni) if ni.ready => Ok(ni),
            _ => Err(NiError::NoInit),
        }
    }

    /// Sends a peer our name and user number, before anything else.
    #[cold]
    #[inline(never)]
    pub(crate) fn greet<M: Message>(&mut self, link: &mut Link<M>, peer: PeerId) -> Result<(), NiError> {
        let mut hello = Head::new(kind::HELLO, 0, VERSION)
            .word(u64::from(self.me.nid) | u64::from(self.me.pid) << 32)
            .word(u64::from(self.uid) | u64::from(WINDOW) << 32);
        use doorbell_fabric::message::{Body, Refused};
        match link.send(peer, hello.as_mut_bytes(), Body::Empty, false) {
            Ok(()) => {}
            // There is no path to it, yet or any more: whatever was to be sent to it reports that.
            Err(Refused::PeerDown) => return Ok(()),
            Err(_) => return Err(NiError::Full),
        }
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.greeted = true;
        }
        Ok(())
    }

    /// Handles a peer's name and user number. The name must be the one that it was connected by.
    #[cold]
    #[inline(never)]
    fn hello(&mut self, peer: PeerId, first: First, inbound: &Inbound<'_>) {
        let mut words = Words::of(inbound);
        let (Some(name), Some(user)) = (words.next(), words.next()) else {
            return self.drops.count(Drop::Short);
        };
        let name = Process::physical(name as u32, (name >> 32) as u32);
        let Some(known) = self.peers.get_mut(peer) else {
            return self.drops.count(Drop::Unknown);
        };
        if first.short.get() != VERSION || name != known.process || known.uid.is_some() || known.lost {
            return self.drops.count(Drop::Hello);
        }
        known.uid = Some(user as u32);
    }

    /// Everything that can be sent now: answers, fragments, pulls, and what was triggered.
    pub(crate) fn pump<M: Message>(&mut self, link: &mut Link<M>) {
        if !self.placing.wanted.is_empty() {
            self.give_rooms(link);
        }
        self.send_answers(link);
        if !self.work.is_empty() {
            self.do_work(link);
        }
        if !self.pulls.withdrawals.is_empty() {
            for (peer, way, key) in self.pulls.withdrawals.drain(..) {
                link.withdraw(peer, way, key);
            }
        }
        if std::mem::take(&mut self.fired) {
            for kind in 0..4 {
                self.run_fired(link, Kind::of_number(kind));
            }
        }
        link.flush();
    }

    #[inline(always)]
    pub(crate) fn send_answers<M: Message>(&mut self, link: &mut Link<M>) {
        if !self.outbox.is_empty() {
            let dropped = self.outbox.send(link);
            self.drops.count_more(Drop::Window, dropped);
        }
    }

    /// Forgets all that waits for the rails: they are another process's.
    #[cold]
    pub(crate) fn drop_work(&mut self) {
        self.outbox = Outbox::default();
        self.work.clear();
        self.pulls.withdrawals.clear();
        self.placing = Placing::default();
        self.fired = false;
    }

    /// Whether anything waits that [`Core::pump`] could do.
    #[inline(always)]
    pub(crate) fn is_restless(&self) -> bool {
        self.fired
            || !self.work.is_empty()
            || !self.outbox.is_empty()
            || !self.pulls.withdrawals.is_empty()
            || !self.placing.wanted.is_empty()
    }

    /// Puts an operation into the queue of work, once.
    pub(crate) fn enqueue(&mut self, op: u32) {
        if let Some(at) = self.ops.at_mut(op)
            && !std::mem::replace(&mut at.queued, true)
        {
            self.work.push_back(op);
        }
    }

    /// The peer and its rank or name of a target.
    #[inline(always)]
    pub(crate) fn route(&self, kind: Kind, process: Process) -> Option<PeerId> {
        if !kind.logical {
            return self.peers.find(process);
        }
        let map = self.nis[kind.number() as usize].as_deref()?.map.as_ref()?;
        let peer = *map.peers.get(process.nid as usize)?;
        (peer != NONE).then_some(PeerId(peer))
    }
}

impl Upper for Core {
    // A part of the poll that shows it, as far as the short way goes.
    #[inline(always)]
    fn message(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>) {
        match first.kind {
            kind::PUT => self.put_arrived(peer, first, inbound),
            _ => self.other_arrived(peer, first, inbound),
        }
    }

    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.got(op, outcome.is_ok());
    }
}

impl Core {
    #[inline(never)]
    fn other_arrived(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>) {
        let inbound = &inbound;
        match first.kind {
            kind::PLACED => self.placed_arrived(peer, first, inbound),
            kind::ACK => self.ack_arrived(peer, first, inbound),
            kind::REPLY => self.reply_arrived(peer, first, inbound),
            kind::HELLO => self.hello(peer, first, inbound),
            kind::RTS => self.rts_arrived(peer, first, inbound),
            kind::GET => self.get_arrived(peer, first, inbound),
            kind::ATOMIC => self.atomic_arrived(peer, first, inbound, false),
            kind::FETCH => self.atomic_arrived(peer, first, inbound, true),
            kind::READY => self.ready_arrived(peer, first, inbound),
            kind::PULL => self.pull_arrived(peer, first, inbound),
            kind::FRAG => self.frag_arrived(peer, first, inbound),
            kind::FIN => self.fin_arrived(peer, first, inbound),
            kind::GONE => self.gone_arrived(peer, first, inbound),
            kind::ROOM => self.room_arrived(peer, first, inbound),
            kind::TAKEN_BACK => self.taken_back_arrived(peer, first, inbound),
            kind::CLOSED => self.closed_arrived(peer, first, inbound),
            _ => self.drops.count(Drop::Kind),
        }
    }
}
