//! A wire between two ends, as a driver of datagrams: what is on its way lies in queues that the script
//! reaches into.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::datagram::{Channel, Datagram, Frame, FrameId, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex, Refused};
use doorbell_fabric::name::RailName;
use doorbell_fabric::still_rail;

/// The longest frame, in bytes.
pub(crate) const MTU: usize = 512;
/// Frames that a queue takes of its owner.
const ROOM: usize = 256;

/// Frames on their way to one end over one channel.
pub(crate) type Queue = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// One end of the wire.
pub(crate) struct Wire {
    tx: Tx,
    rx: Rx,
    name: RailName,
    can: Capabilities,
    address: u32,
    opened: u32,
}

pub(crate) struct Tx {
    to: [Queue; 2],
    posted: [u64; 2],
}

pub(crate) struct Rx {
    from: [Queue; 2],
    shown: [Vec<Vec<u8>>; 2],
}

/// Makes two ends. `checked` is whether the network declares that it checks its bytes.
pub(crate) fn pair(checked: bool) -> [Wire; 2] {
    let queues = || [Queue::default(), Queue::default()];
    let (there, back) = (queues(), queues());
    [
        Wire::new(1, checked, there.clone(), back.clone()),
        Wire::new(2, checked, back, there),
    ]
}

impl Wire {
    fn new(address: u32, checked: bool, to: [Queue; 2], from: [Queue; 2]) -> Self {
        Self {
            tx: Tx { to, posted: [0; 2] },
            rx: Rx {
                from,
                shown: [Vec::new(), Vec::new()],
            },
            name: "sim:1".parse().expect("a name"),
            can: Capabilities {
                features: Features {
                    checksum: checked,
                    ..Features::default()
                },
                limits: Limits {
                    head: 64,
                    message: MTU,
                    inline: 64,
                    eager: MTU,
                    fragment: MTU,
                    get_from: MTU,
                    parts: 1,
                    one_sided: 0,
                },
                estimate: Estimate {
                    latency_ns: 100,
                    bandwidth: 1_000_000_000,
                },
            },
            address,
            opened: 0,
        }
    }

    /// What is on its way to this end: priority, data.
    pub(crate) fn incoming(&self) -> [Queue; 2] {
        self.rx.from.clone()
    }
}

still_rail!(Wire, |wire| RailAddress::native(
    "sim",
    wire.address.to_le_bytes()
));

impl Datagram for Wire {
    type Tx = Tx;
    type Rx = Rx;

    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        self.opened += 1;
        Ok(PeerIndex(self.opened - 1))
    }

    fn split(&mut self) -> (&mut Tx, &mut Rx) {
        (&mut self.tx, &mut self.rx)
    }
}

impl Transmit for Tx {
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        n.min(ROOM.saturating_sub(self.to[channel.index()].borrow().len()))
    }

    fn post(
        &mut self,
        channel: Channel,
        _: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<FrameId, Refused> {
        let Some(body) = body.in_one_piece() else {
            return Err(Refused::Unsupported);
        };
        let frame = [head, &body.to_vec()].concat();
        assert!(frame.len() <= MTU, "a frame of {} bytes", frame.len());
        self.to[channel.index()].borrow_mut().push_back(frame);
        self.posted[channel.index()] += 1;
        Ok(FrameId(self.posted[channel.index()]))
    }

    fn doorbell(&mut self) {}

    fn reaped(&mut self, channel: Channel) -> FrameId {
        FrameId(self.posted[channel.index()])
    }
}

impl Receive for Rx {
    type Kept = ();

    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let (queue, shown) = (&self.from[channel.index()], &mut self.shown[channel.index()]);
        let mut queue = queue.borrow_mut();
        let n = budget.min(queue.len());
        shown.clear();
        shown.extend(queue.drain(..n));
        n
    }

    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let bytes = self.shown[channel.index()].get(i)?;
        Some(Frame {
            from: None,
            bytes: SharedBytes::of(bytes),
        })
    }

    fn keep(&mut self, _: Channel, _: usize) -> Result<(), Refused> {
        Err(Refused::Full)
    }
}
