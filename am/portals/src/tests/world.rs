//! A job of nodes over a simulated network, and short names for what tests do with them.

use std::time::Duration;

use doorbell_fabric::memory::MutLoan;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::*;
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Plane, SimConfig, SimNet, SimRail};

use crate::{Config, Node};

/// A job of nodes over a simulated network.
pub(crate) struct World {
    pub(crate) net: SimNet,
    pub(crate) nodes: Vec<Node<SimRail>>,
    pub(crate) kind: Kind,
}

/// The physical name of a rank.
pub(crate) fn name(rank: usize) -> Process {
    Process::physical(100 + rank as u32, 7)
}

impl World {
    /// A job of `ranks` nodes, connected over `planes` planes, with one interface of a kind each.
    pub(crate) fn new(ranks: usize, planes: usize, kind: Kind, config: SimConfig) -> Self {
        Self::with_limits(ranks, planes, kind, config, NiLimits::default())
    }

    pub(crate) fn with_limits(
        ranks: usize,
        planes: usize,
        kind: Kind,
        config: SimConfig,
        limits: NiLimits,
    ) -> Self {
        let net = SimNet::new(1, config);
        let more = (1..planes).map(|at| net.add_plane(&format!("p{at}")));
        let planes: Vec<Plane> = std::iter::once(Plane::FIRST).chain(more).collect();
        let mut nodes: Vec<Node<SimRail>> = (0..ranks)
            .map(|rank| {
                let mut config = Config::new(name(rank));
                config.uid = rank as u32;
                config.seed = rank as u64 + 1;
                config.patience = Duration::from_millis(5);
                let mut node = Node::new(config);
                for plane in &planes {
                    node.add_rail(net.attach_rank(rank as u32, *plane)).unwrap();
                }
                node
            })
            .collect();
        let addresses: Vec<Vec<_>> = nodes
            .iter()
            .map(|node| {
                node.rails()
                    .map(|(id, rail)| (id, rail.address(), rail.incarnation()))
                    .collect()
            })
            .collect();
        for (me, node) in nodes.iter_mut().enumerate() {
            for (rank, rails) in addresses.iter().enumerate().filter(|(rank, _)| *rank != me) {
                for (id, address, incarnation) in rails {
                    node.connect(name(rank), *id, address, *incarnation).unwrap();
                }
            }
            node.ni_init(kind, Some(&limits)).unwrap();
            if kind.logical {
                let map: Vec<Process> = (0..ranks).map(name).collect();
                node.set_map(kind, &map).unwrap();
            }
        }
        Self { net, nodes, kind }
    }

    /// Two ranks, one plane, match lists, ranks.
    pub(crate) fn pair() -> Self {
        Self::new(2, 1, Kind::MATCHING_LOGICAL, SimConfig::default())
    }

    pub(crate) fn ni(&mut self, rank: usize) -> crate::View<'_, SimRail> {
        self.nodes[rank].ni(self.kind)
    }

    /// Lets everything happen that is under way, for some milliseconds at most.
    pub(crate) fn settle(&mut self) {
        let end = self.net.now() + Duration::from_millis(40);
        while self.net.now() < end {
            let now = self.net.now();
            let mut work = 0;
            for node in &mut self.nodes {
                work += node.progress(now) + node.poll(16);
                node.flush();
            }
            if work == 0 && self.net.advance_to_next_event().is_none() {
                let next = self.nodes.iter().filter_map(Node::next_deadline).min();
                match next.filter(|next| *next < end) {
                    Some(next) => self.net.advance_to(next.max(now + Duration::from_nanos(1))),
                    None => return,
                }
            }
        }
    }

    /// The name of a rank on the interface.
    pub(crate) fn process(&self, rank: usize) -> Process {
        if self.kind.logical {
            Process::rank(rank as u32)
        } else {
            name(rank)
        }
    }

    pub(crate) fn target(&self, rank: usize, pt_index: u32, match_bits: u64, remote_offset: u64) -> Target {
        Target {
            process: self.process(rank),
            pt_index,
            match_bits,
            remote_offset,
        }
    }

    /// All events of a queue, the oldest first.
    pub(crate) fn events(&mut self, rank: usize, eq: EqHandle) -> Vec<Event> {
        let mut ni = self.ni(rank);
        let mut all = Vec::new();
        loop {
            match ni.eq_get(eq).unwrap() {
                EqGet::Empty => return all,
                EqGet::Event(event) | EqGet::Dropped(event) => all.push(event),
            }
        }
    }

    pub(crate) fn kinds(&mut self, rank: usize, eq: EqHandle) -> Vec<(EventKind, NiFail)> {
        self.events(rank, eq)
            .iter()
            .map(|event| (event.kind, event.fail))
            .collect()
    }
}

/// Bytes that are never given back.
pub(crate) fn bytes(length: usize, value: u8) -> MutLoan {
    MutLoan::of_static(vec![value; length].leak())
}

pub(crate) fn memory(loan: MutLoan) -> Memory {
    Memory::One(Landing::Loan(loan))
}

/// Memory with numbered bytes.
pub(crate) fn numbered(length: usize) -> MutLoan {
    MutLoan::of_static(
        (0..length)
            .map(|at| (at * 7 + at / 251) as u8)
            .collect::<Vec<_>>()
            .leak(),
    )
}

pub(crate) fn md(loan: MutLoan, eq: EqHandle) -> Md {
    Md {
        memory: memory(loan),
        options: MdOptions::NONE,
        eq: Some(eq),
        ct: None,
    }
}

/// Both operations, with all events.
pub(crate) const BOTH: EntryOptions = EntryOptions(EntryOptions::OP_PUT.0 | EntryOptions::OP_GET.0);

pub(crate) fn put(md: MdHandle, length: u64, target: Target) -> Put {
    Put {
        from: Piece { md, offset: 0 },
        length,
        ack: AckReq::Full,
        target,
        user_ptr: 11,
        hdr_data: 22,
    }
}

pub(crate) fn get(md: MdHandle, length: u64, target: Target) -> Get {
    Get {
        into: Piece { md, offset: 0 },
        length,
        target,
        user_ptr: 33,
    }
}
