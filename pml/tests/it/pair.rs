//! Two PMLs joined by the smallest rail there is: queues in one thread, no clock, buffers used again.
//!
//! Used where the rail itself must cost next to nothing: the counting allocator and the benchmarks.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::{ConstLoan, MutLoan, SharedBytes};
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, FenceScope, Inbound, Incarnation, Landing, Message, MsgId,
    OpError, OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::still_rail;
use doorbell_pml::{Pml, PmlConfig, Rank};

/// What both ends share.
#[derive(Default)]
struct Wire {
    frames: [VecDeque<Vec<u8>>; 2],
    spare: Vec<Vec<u8>>,
    readable: Vec<(u64, ConstLoan)>,
    writable: Vec<(u64, MutLoan)>,
    keys: u64,
}

/// One end of a pair.
pub(crate) struct PairRail {
    name: RailName,
    can: Capabilities,
    side: usize,
    wire: Rc<RefCell<Wire>>,
    ended: VecDeque<(OpId, Result<u64, OpError>)>,
    accepted: u64,
}

/// Both PMLs: `a` is rank 0, `b` rank 1.
pub(crate) struct Pair {
    pub(crate) a: Pml<PairRail>,
    pub(crate) b: Pml<PairRail>,
}

impl Pair {
    pub(crate) fn new(features: Features, configure: impl Fn(&mut PmlConfig)) -> Self {
        let wire = Rc::new(RefCell::new(Wire::default()));
        let make = |side: usize| {
            let mut config = PmlConfig::new(Rank(side as u32), 2, 1);
            configure(&mut config);
            let mut pml = Pml::new(config).unwrap();
            let rail = pml
                .add_rail(PairRail::new(side, features, Rc::clone(&wire)))
                .unwrap();
            let other = Rank(1 - side as u32);
            pml.connect(other, rail, &RailAddress::native("sim", [0]), Incarnation(1))
                .unwrap();
            pml
        };
        Self {
            a: make(0),
            b: make(1),
        }
    }

    /// Polls until nothing moves.
    pub(crate) fn settle(&mut self) {
        while self.a.poll() + self.b.poll() > 0 {}
    }
}

impl PairRail {
    fn new(side: usize, features: Features, wire: Rc<RefCell<Wire>>) -> Self {
        Self {
            name: "sim:0".parse().unwrap(),
            can: Capabilities {
                features,
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
                    latency_ns: 100,
                    bandwidth: 1 << 30,
                },
            },
            side,
            wire,
            ended: VecDeque::new(),
            accepted: 0,
        }
    }
}

still_rail!(PairRail, |_| RailAddress::native("sim", [0]));

impl Message for PairRail {
    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        Ok(PeerIndex(0))
    }

    fn send(&mut self, _: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        let mut wire = self.wire.borrow_mut();
        let mut frame = wire.spare.pop().unwrap_or_else(|| Vec::with_capacity(16 << 10));
        frame.clear();
        frame.extend_from_slice(head);
        let at = frame.len();
        frame.resize(at + body.len(), 0);
        body.copy_to(&mut frame[at..]);
        wire.frames[1 - self.side].push_back(frame);
        self.accepted += 1;
        Ok(MsgId(self.accepted))
    }

    fn flush(&mut self) {}

    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        let mut work = 0;
        while let Some((op, outcome)) = self.ended.pop_front() {
            sink.completed(op, outcome);
            work += 1;
        }
        while work < budget {
            let Some(frame) = self.wire.borrow_mut().frames[self.side].pop_front() else {
                break;
            };
            sink.message(PeerIndex(0), Inbound::whole(SharedBytes::of(&frame)));
            self.wire.borrow_mut().spare.push(frame);
            work += 1;
        }
        work
    }

    fn handed_over(&mut self, _: PeerIndex) -> MsgId {
        let waiting = self.wire.borrow().frames[1 - self.side].len() as u64;
        MsgId(self.accepted - waiting)
    }

    fn reclaim(&mut self, _: PeerIndex, _: &mut dyn FnMut(MsgId, &[u8])) {}
    fn abandon(&mut self, _: PeerIndex) {}
    fn revive(&mut self, _: PeerIndex) {}

    fn expose(&mut self, memory: Exposure, _: Access, _: Option<PeerIndex>) -> Result<Remote, Refused> {
        let mut wire = self.wire.borrow_mut();
        wire.keys += 1;
        let key = wire.keys;
        let length = match memory {
            Exposure::Read(loan) => {
                wire.readable.push((key, loan));
                loan.len()
            }
            Exposure::Write(loan) => {
                wire.writable.push((key, loan));
                loan.len()
            }
            Exposure::Region(_) => return Err(Refused::Unsupported),
        };
        Ok(Remote {
            key: key.into(),
            address: 0.into(),
            length: (length as u64).into(),
        })
    }

    fn withdraw(&mut self, key: RemoteKey) {
        let mut wire = self.wire.borrow_mut();
        wire.readable.retain(|(known, _)| *known != key.0);
        wire.writable.retain(|(known, _)| *known != key.0);
    }

    fn get(&mut self, _: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
        let wire = self.wire.borrow();
        let found = wire.readable.iter().find(|(key, _)| *key == from.key.get());
        let outcome = match found {
            Some((_, loan)) => Ok(into.write_shared(0, loan.as_shared()) as u64),
            None => Err(OpError::Denied),
        };
        self.ended.push_back((op, outcome));
        Ok(())
    }

    fn put(&mut self, _: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
        let wire = self.wire.borrow();
        let found = wire.writable.iter().find(|(key, _)| *key == to.key.get());
        let outcome = match (found, from) {
            (Some((_, room)), Body::Loan(loan)) => Ok(room.write_shared(0, loan.as_shared()) as u64),
            _ => Err(OpError::Denied),
        };
        self.ended.push_back((op, outcome));
        Ok(())
    }

    fn atomic(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: AtomicOp) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    fn fence(&mut self, _: FenceScope, op: OpId) -> Result<(), Refused> {
        self.ended.push_back((op, Ok(0)));
        Ok(())
    }
}
