//! A rail without a network: it hands prepared frames to every poll, and swallows what is sent.

use std::collections::VecDeque;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, FenceScope, Inbound, Incarnation, Landing, Message, MsgId,
    OpError, OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::still_rail;

#[derive(Debug)]
pub(crate) struct FeedRail {
    name: RailName,
    can: Capabilities,
    pub(crate) frames: VecDeque<(PeerIndex, Vec<u8>)>,
    pub(crate) ended: VecDeque<(OpId, Result<u64, OpError>)>,
    /// Heads and bodies that were sent, when they are kept.
    pub(crate) sent: Vec<Vec<u8>>,
    pub(crate) keep: bool,
    pub(crate) full: bool,
    /// Reads and writes that do not end yet.
    pub(crate) holds: bool,
    pub(crate) held: VecDeque<(OpId, Result<u64, OpError>)>,
    peers: u32,
    accepted: u64,
    keys: u64,
}

impl FeedRail {
    pub(crate) fn new(features: Features) -> Self {
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
            frames: VecDeque::new(),
            ended: VecDeque::new(),
            sent: Vec::new(),
            keep: false,
            full: false,
            holds: false,
            held: VecDeque::new(),
            peers: 0,
            accepted: 0,
            keys: 0,
        }
    }

    fn under_way(&mut self) -> &mut VecDeque<(OpId, Result<u64, OpError>)> {
        if self.holds {
            &mut self.held
        } else {
            &mut self.ended
        }
    }
}

still_rail!(FeedRail, |_| RailAddress::native("sim", [0]));

impl Message for FeedRail {
    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        self.peers += 1;
        Ok(PeerIndex(self.peers - 1))
    }

    fn send(&mut self, _: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        if self.full {
            return Err(Refused::Full);
        }
        if self.keep {
            let bytes = [head, &body.to_vec()].concat();
            self.sent.push(bytes);
        }
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
        for _ in 0..budget {
            let Some((peer, frame)) = self.frames.pop_front() else {
                break;
            };
            // In two pieces now and then, as a ring's end would give it.
            let cut = if frame.len() > 3 && frame[1] & 1 == 1 {
                frame.len() / 2
            } else {
                frame.len()
            };
            let (first, rest) = frame.split_at(cut);
            sink.message(
                peer,
                Inbound::split(SharedBytes::of(first), SharedBytes::of(rest)),
            );
            work += 1;
        }
        work
    }

    fn handed_over(&mut self, _: PeerIndex) -> MsgId {
        MsgId(self.accepted)
    }

    fn reclaim(&mut self, _: PeerIndex, _: &mut dyn FnMut(MsgId, &[u8])) {}
    fn abandon(&mut self, _: PeerIndex) {}
    fn revive(&mut self, _: PeerIndex) {}

    fn expose(&mut self, memory: Exposure, _: Access, _: Option<PeerIndex>) -> Result<Remote, Refused> {
        self.keys += 1;
        let length = match memory {
            Exposure::Region(slice) => slice.len(),
            Exposure::Read(loan) => loan.len(),
            Exposure::Write(loan) => loan.len(),
        };
        Ok(Remote {
            key: self.keys.into(),
            address: 0.into(),
            length: (length as u64).into(),
        })
    }

    fn withdraw(&mut self, _: RemoteKey) {}

    fn get(&mut self, _: PeerIndex, op: OpId, _: &Remote, _: Landing) -> Result<(), Refused> {
        let outcome = if op.0.is_multiple_of(2) {
            Ok(0)
        } else {
            Err(OpError::Denied)
        };
        self.under_way().push_back((op, outcome));
        Ok(())
    }

    fn put(&mut self, _: PeerIndex, op: OpId, _: Body<'_>, _: &Remote) -> Result<(), Refused> {
        let outcome = if op.0.is_multiple_of(2) {
            Ok(0)
        } else {
            Err(OpError::Withdrawn)
        };
        self.under_way().push_back((op, outcome));
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
