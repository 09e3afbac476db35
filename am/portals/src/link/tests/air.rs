//! A rail between two ends that does what a story describes: it holds messages back, refuses them, reports
//! events.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, FenceScope, Inbound, Incarnation, Landing, Message, MsgId,
    OpError, OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;

use crate::link::buffers::Buffers;

/// What a rail of these can do.
pub(crate) const CAN: Capabilities = Capabilities {
    features: Features {
        get: false,
        put: false,
        atomics: false,
        gather: false,
        reclaim: true,
        within_host: false,
        checksum: true,
        port: 0,
    },
    limits: Limits {
        head: 64,
        message: 65_536,
        inline: 64,
        eager: 8192,
        fragment: 16_384,
        get_from: 0,
        parts: 0,
        one_sided: 0,
    },
    estimate: Estimate {
        latency_ns: 1000,
        bandwidth: 1_000_000_000,
    },
};

/// One end, as the story sees it.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// What was accepted and not taken by the other side yet, and the number of the last.
    pub(crate) under_way: VecDeque<(u64, Vec<u8>)>,
    pub(crate) accepted: u64,
    /// Nothing gets through; there is no room; the peer is down.
    pub(crate) silent: bool,
    pub(crate) full: bool,
    pub(crate) down: bool,
    pub(crate) events: VecDeque<RailEvent>,
    pub(crate) operations: Vec<OpId>,
    pub(crate) proved: u32,
    pub(crate) abandoned: u32,
    pub(crate) revived: u32,
    pub(crate) exposed: Vec<u64>,
    /// Bytes accepted, ever.
    pub(crate) bytes: usize,
}

/// Both ends of the rail.
pub(crate) type Ends = Rc<RefCell<[End; 2]>>;

/// The rail at one end.
#[derive(Debug)]
pub(crate) struct Air {
    name: RailName,
    can: Capabilities,
    pub(crate) ends: Ends,
    side: usize,
}

/// Both ends of a rail.
pub(crate) fn pair(can: Capabilities) -> [Air; 2] {
    let ends = Ends::default();
    [0, 1].map(|side| Air {
        name: "sim:1".parse().expect("a name"),
        can,
        ends: ends.clone(),
        side,
    })
}

/// Reports an event of the one peer at one end.
pub(crate) fn tell(ends: &Ends, side: usize, kind: EventKind, life: u32) {
    ends.borrow_mut()[side].events.push_back(RailEvent {
        at: Time::ZERO,
        scope: Scope::Peer(PeerIndex(0)),
        kind,
        life: Life(life),
    });
}

impl Rail for Air {
    fn name(&self) -> &RailName {
        &self.name
    }
    fn capabilities(&self) -> &Capabilities {
        &self.can
    }
    fn address(&self) -> RailAddress {
        RailAddress::native("sim", vec![self.side as u8])
    }
    fn progress(&mut self, _: Time) -> Work {
        0
    }
    fn next_deadline(&self) -> Option<Time> {
        None
    }
    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        Ok(Armed::Ready)
    }
    fn disarm(&mut self) {}
    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }
    fn event(&mut self) -> Option<RailEvent> {
        self.ends.borrow_mut()[self.side].events.pop_front()
    }
    fn close(&mut self, now: Time, by: Time) -> bool {
        now >= by || self.ends.borrow()[self.side].under_way.is_empty()
    }
}

impl Message for Air {
    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        Ok(PeerIndex(0))
    }
    fn send(&mut self, _: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        let end = &mut self.ends.borrow_mut()[self.side];
        if end.down {
            return Err(Refused::PeerDown);
        }
        if matches!(body, Body::Parts(_)) {
            return Err(Refused::Unsupported);
        }
        if end.full {
            return Err(Refused::Full);
        }
        let bytes = Buffers::default().gather(head, &body).bytes().to_vec();
        if bytes.len() > self.can.limits.message || head.len() > self.can.limits.head {
            return Err(Refused::TooLong);
        }
        end.bytes += bytes.len();
        end.accepted += 1;
        end.under_way.push_back((end.accepted, bytes));
        Ok(MsgId(end.accepted))
    }
    fn flush(&mut self) {}
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let ended = std::mem::take(&mut self.ends.borrow_mut()[self.side].operations);
        let mut shown = ended.len();
        ended
            .into_iter()
            .for_each(|op| sink.completed(op, Err(OpError::Indeterminate)));
        while shown < budget {
            let end = &mut self.ends.borrow_mut()[1 - self.side];
            if end.silent {
                break;
            }
            let Some((_, bytes)) = end.under_way.pop_front() else {
                break;
            };
            sink.message(PeerIndex(0), Inbound::whole(SharedBytes::of(&bytes)));
            shown += 1;
        }
        shown
    }
    fn handed_over(&mut self, _: PeerIndex) -> MsgId {
        let end = &self.ends.borrow()[self.side];
        MsgId(end.under_way.front().map_or(end.accepted, |(id, _)| id - 1))
    }
    fn reclaim(&mut self, _: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        let given = std::mem::take(&mut self.ends.borrow_mut()[self.side].under_way);
        given.iter().for_each(|(id, bytes)| each(MsgId(*id), bytes));
    }
    fn abandon(&mut self, _: PeerIndex) {
        let end = &mut self.ends.borrow_mut()[self.side];
        end.abandoned += 1;
        end.down = true;
    }
    fn revive(&mut self, _: PeerIndex) {
        self.ends.borrow_mut()[self.side].revived += 1;
    }
    fn proved_alive(&mut self, _: PeerIndex) {
        self.ends.borrow_mut()[self.side].proved += 1;
    }
    fn expose(&mut self, memory: Exposure, _: Access, _: Option<PeerIndex>) -> Result<Remote, Refused> {
        let Exposure::Read(loan) = memory else {
            return Err(Refused::Unsupported);
        };
        let end = &mut self.ends.borrow_mut()[self.side];
        if end.full {
            return Err(Refused::Full);
        }
        end.exposed.push(7);
        Ok(Remote {
            key: 7.into(),
            address: 0.into(),
            length: (loan.len() as u64).into(),
        })
    }
    fn withdraw(&mut self, key: RemoteKey) {
        self.ends.borrow_mut()[self.side]
            .exposed
            .retain(|known| *known != key.0);
    }
    fn get(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: Landing) -> Result<(), Refused> {
        Ok(())
    }
    fn put(&mut self, _: PeerIndex, _: OpId, _: Body<'_>, _: &Remote) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }
    fn atomic(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: AtomicOp) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }
    fn fence(&mut self, _: FenceScope, _: OpId) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }
}
