//! One rail of one rank, as the PML sees it: everything goes into the air, and comes out of it.

use std::cell::RefCell;
use std::rc::Rc;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, FenceScope, Inbound, Incarnation, Landing, Message, MsgId,
    OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::still_rail;

use crate::air::{Air, Link, What};

pub(crate) struct StoryRail {
    name: RailName,
    can: Capabilities,
    number: usize,
    rank: usize,
    /// The rank of each peer.
    peers: Vec<usize>,
    air: Rc<RefCell<Air>>,
}

/// What the rails of a story can do. The first is the quickest and the widest, by far, so that the order in
/// which they are used is that of their numbers.
pub(crate) fn capabilities(number: usize) -> Capabilities {
    let slower = 1000_u64.pow(number.min(4) as u32);
    Capabilities {
        features: Features {
            get: true,
            put: true,
            gather: true,
            reclaim: true,
            ..Features::default()
        },
        limits: Limits {
            head: 64,
            message: 16 << 10,
            inline: 64,
            eager: 4096,
            fragment: 8192,
            get_from: 8192,
            parts: 16,
            one_sided: 1 << 30,
        },
        estimate: Estimate {
            latency_ns: 100 * slower,
            bandwidth: (1 << 50) / slower,
        },
    }
}

impl StoryRail {
    pub(crate) fn new(number: usize, rank: usize, can: Capabilities, air: &Rc<RefCell<Air>>) -> Self {
        Self {
            name: format!("sim:{number}").parse().unwrap(),
            can,
            number,
            rank,
            peers: Vec::new(),
            air: Rc::clone(air),
        }
    }

    fn link(&self, peer: PeerIndex) -> Link {
        (self.number, self.rank, self.peers[peer.index()])
    }

    fn open_link(&self, peer: PeerIndex) -> Result<Link, Refused> {
        let link = self.link(peer);
        if self.air.borrow().is_down(link) {
            return Err(Refused::PeerDown);
        }
        if self.air.borrow().full.contains(&(self.number, self.rank)) {
            return Err(Refused::Full);
        }
        Ok(link)
    }
}

still_rail!(StoryRail, |rail| address(rail.rank), |rail| {
    let mut air = rail.air.borrow_mut();
    let end = (rail.number, rail.rank);
    if air.mute.contains(&end) {
        return None;
    }
    air.events.get_mut(&end)?.pop_front()
});

/// The address of a rank's rails.
pub(crate) fn address(rank: usize) -> RailAddress {
    RailAddress::native("sim", (rank as u32).to_le_bytes())
}

impl Message for StoryRail {
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        // Ranks are opened in order, without our own.
        let rank = self.peers.len() + usize::from(self.peers.len() >= self.rank);
        assert_eq!(*address, crate::rail::address(rank));
        self.peers.push(rank);
        Ok(PeerIndex(self.peers.len() as u32 - 1))
    }

    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        let link = self.open_link(peer)?;
        if head.len() + body.len() > self.can.limits.message {
            return Err(Refused::TooLong);
        }
        let bytes = [head, &body.to_vec()].concat();
        Ok(self.air.borrow_mut().send(link, bytes))
    }

    fn flush(&mut self) {}

    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let end = (self.number, self.rank);
        let mut work = 0;
        loop {
            let ended = self.air.borrow_mut().ended.entry(end).or_default().pop_front();
            let Some(ended) = ended else { break };
            ended.into.write(0, &ended.bytes);
            sink.completed(ended.op, ended.outcome);
            work += 1;
        }
        while work < budget {
            let frame = self.air.borrow_mut().inbox.entry(end).or_default().pop_front();
            let Some((from, bytes)) = frame else { break };
            let peer = self.peers.iter().position(|rank| *rank == from).unwrap();
            let inbound = Inbound::whole(SharedBytes::of(&bytes));
            sink.message(PeerIndex(peer as u32), inbound);
            work += 1;
        }
        work
    }

    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        self.air.borrow().handed_over(self.link(peer))
    }

    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        let given = self.air.borrow_mut().reclaim(self.link(peer));
        for (id, bytes) in given {
            each(id, &bytes);
        }
    }

    fn abandon(&mut self, peer: PeerIndex) {
        let (rail, rank, peer) = self.link(peer);
        self.air.borrow_mut().break_end(rail, rank, peer, false);
    }

    fn revive(&mut self, _: PeerIndex) {}

    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused> {
        let to = to.map(|peer| self.peers[peer.index()]);
        let end = (self.number, self.rank);
        Ok(self.air.borrow_mut().expose(end, memory, access, to))
    }

    fn withdraw(&mut self, key: RemoteKey) {
        self.air.borrow_mut().withdraw(key.0);
    }

    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
        let link = self.open_link(peer)?;
        let what = What::Read {
            op,
            from: *from,
            into,
            bytes: Vec::new(),
            ended: Ok(0),
        };
        self.air.borrow_mut().fly(link, what);
        Ok(())
    }

    fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
        let link = self.open_link(peer)?;
        let what = What::Write {
            op,
            to: *to,
            bytes: from.to_vec(),
            ended: Ok(0),
        };
        self.air.borrow_mut().fly(link, what);
        Ok(())
    }

    fn atomic(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: AtomicOp) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    fn fence(&mut self, _: FenceScope, _: OpId) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }
}
