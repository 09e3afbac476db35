//! A rail that costs nothing, so that what is left is the PML: what is sent is swallowed, and each armed poll
//! returns one prepared frame, its sequence number going up.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, FenceScope, Inbound, Incarnation, Landing, Message, MsgId,
    OpId, PeerIndex, Refused, Remote, RemoteKey,
};
use doorbell_fabric::name::RailName;

/// The rail; see the documentation of the module.
#[derive(Debug)]
pub struct NullRail {
    name: RailName,
    can: Capabilities,
    /// The frame: a MATCH header (kind 1, context 0, sequence at 4, tag at 8) and a payload.
    frame: [u8; 16 + 64],
    length: usize,
    seq: u32,
    /// Whether the next poll returns the frame.
    pub ready: bool,
    accepted: u64,
    /// Where sends are swallowed.
    cell: [u8; 16 + 64],
}

impl NullRail {
    /// Creates a rail whose frame has this tag and this many bytes of payload, at most 64.
    ///
    /// # Panics
    /// Never: its name is a constant that is valid.
    pub fn new(tag: u64, payload: usize) -> Self {
        let mut frame = [7; 80];
        frame[..8].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        frame[8..16].copy_from_slice(&tag.to_le_bytes());
        Self {
            name: "sim:0".parse().expect("a good name"),
            can: Capabilities {
                features: Features::default(),
                limits: Limits {
                    head: 64,
                    message: 16 << 10,
                    inline: 64,
                    eager: 4096,
                    fragment: 8192,
                    get_from: 8192,
                    parts: 16,
                    one_sided: 0,
                },
                estimate: Estimate {
                    latency_ns: 100,
                    bandwidth: 1 << 30,
                },
            },
            frame,
            length: 16 + payload,
            seq: 0,
            ready: false,
            accepted: 0,
            cell: [0; 80],
        }
    }
}

doorbell_fabric::still_rail!(NullRail, |_| RailAddress::native("sim", [0]));

impl Message for NullRail {
    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        Ok(PeerIndex(0))
    }

    #[inline]
    fn send(&mut self, _: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        self.cell[..head.len()].copy_from_slice(head);
        if let Body::Loan(loan) = body {
            loan.copy_to(0, &mut self.cell[16..]);
        }
        self.accepted += 1;
        Ok(MsgId(self.accepted))
    }

    fn flush(&mut self) {}

    #[inline]
    fn poll<S: Arrivals>(&mut self, _: usize, sink: &mut S) -> usize {
        if !self.ready {
            return 0;
        }
        self.ready = false;
        self.frame[4..8].copy_from_slice(&self.seq.to_le_bytes());
        self.seq = self.seq.wrapping_add(1);
        sink.message(
            PeerIndex(0),
            Inbound::whole(SharedBytes::of(&self.frame[..self.length])),
        );
        1
    }

    fn handed_over(&mut self, _: PeerIndex) -> MsgId {
        MsgId(self.accepted)
    }
    fn reclaim(&mut self, _: PeerIndex, _: &mut dyn FnMut(MsgId, &[u8])) {}
    fn abandon(&mut self, _: PeerIndex) {}
    fn revive(&mut self, _: PeerIndex) {}
    fn expose(&mut self, _: Exposure, _: Access, _: Option<PeerIndex>) -> Result<Remote, Refused> {
        Err(Refused::Unsupported)
    }
    fn withdraw(&mut self, _: RemoteKey) {}
    fn get(&mut self, _: PeerIndex, _: OpId, _: &Remote, _: Landing) -> Result<(), Refused> {
        Err(Refused::Unsupported)
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
