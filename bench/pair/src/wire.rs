//! A datagram rail that only copies frames from one array to another.

use std::cell::RefCell;
use std::rc::Rc;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::datagram::{Channel, Datagram, Frame, FrameId, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex, Refused};
use doorbell_fabric::name::RailName;

/// The longest frame in bytes.
const MTU: usize = 256;
/// Frames between the two ends.
const ROOM: usize = 256;

/// Frames on their way.
#[derive(Debug)]
struct Batch {
    slots: Vec<(usize, [u8; MTU])>,
    filled: usize,
}

impl Batch {
    fn new() -> Self {
        Self {
            slots: vec![(0, [0; MTU]); ROOM],
            filled: 0,
        }
    }
}

type Wire = [Rc<RefCell<Batch>>; 2];

fn wire() -> Wire {
    [(); 2].map(|()| Rc::new(RefCell::new(Batch::new())))
}

/// Frames of one kind: where they went, and how long they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The channel it was posted on.
    pub channel: Channel,
    /// Bytes before the body.
    pub head: usize,
    /// Bytes of the body.
    pub body: usize,
}

/// What an end posts with.
#[derive(Debug)]
pub struct Tx {
    wire: Wire,
    posted: [u64; 2],
    /// The frames posted, one by one, while they are recorded.
    seen: Option<Vec<Shape>>,
}

impl Transmit for Tx {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        n.min(ROOM - self.wire[channel.index()].borrow().filled)
    }

    #[inline]
    fn post(
        &mut self,
        channel: Channel,
        _: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<FrameId, Refused> {
        let at = channel.index();
        let length = head.len() + body.len();
        if length > MTU {
            return Err(Refused::TooLong);
        }
        let mut batch = self.wire[at].borrow_mut();
        let filled = batch.filled;
        let Some((frame, bytes)) = batch.slots.get_mut(filled) else {
            return Err(Refused::Full);
        };
        *frame = length;
        bytes[..head.len()].copy_from_slice(head);
        match body {
            Body::Empty => {}
            Body::Bytes(body) => bytes[head.len()..length].copy_from_slice(body),
            Body::Loan(loan) => {
                loan.copy_to(0, &mut bytes[head.len()..length]);
            }
            Body::Shared(body) => {
                body.copy_to(0, &mut bytes[head.len()..length]);
            }
            // What is sent here comes in one piece.
            Body::Parts(_) | Body::Region(_) => return Err(Refused::Unsupported),
        }
        batch.filled += 1;
        self.posted[at] += 1;
        if let Some(seen) = &mut self.seen {
            seen.push(Shape {
                channel,
                head: head.len(),
                body: body.len(),
            });
        }
        Ok(FrameId(self.posted[at]))
    }

    fn doorbell(&mut self) {}

    #[inline]
    fn reaped(&mut self, channel: Channel) -> FrameId {
        FrameId(self.posted[channel.index()])
    }
}

/// What an end looks for frames with.
#[derive(Debug)]
pub struct Rx {
    wire: Wire,
    own: [Batch; 2],
    at: [usize; 2],
    shown: [usize; 2],
}

impl Receive for Rx {
    type Kept = ();

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let i = channel.index();
        self.at[i] += self.shown[i];
        if self.at[i] >= self.own[i].filled {
            self.own[i].filled = 0;
            self.at[i] = 0;
            std::mem::swap(&mut self.own[i], &mut self.wire[i].borrow_mut());
        }
        self.shown[i] = budget.min(self.own[i].filled - self.at[i]);
        self.shown[i]
    }

    #[inline]
    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let at = channel.index();
        let (length, bytes) = self.own[at]
            .slots
            .get(self.at[at] + i)
            .filter(|_| i < self.shown[at])?;
        Some(Frame {
            from: Some(PeerIndex(0)),
            bytes: SharedBytes::of(&bytes[..*length]),
        })
    }

    fn keep(&mut self, _: Channel, _: usize) -> Result<(), Refused> {
        Err(Refused::Full)
    }
}

/// One end of the wire.
#[derive(Debug)]
pub struct End {
    name: RailName,
    can: Capabilities,
    address: RailAddress,
    /// Peers opened so far: the first one is at the other end, and the others are never written to.
    opened: u32,
    tx: Tx,
    rx: Rx,
}

impl End {
    /// Creates both ends of a wire, with the latency that its rails report.
    pub fn pair(number: usize, latency_ns: u64) -> Result<[Self; 2], RailError> {
        let name: RailName = format!("sim:{number}").parse()?;
        let (there, back) = (wire(), wire());
        let end = |number: u8, out: &Wire, into: &Wire| Self {
            name: name.clone(),
            can: Capabilities {
                // As the sockets of the kernel have them: without our checksum.
                features: Features {
                    checksum: true,
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
                    latency_ns,
                    bandwidth: 1 << 30,
                },
            },
            address: RailAddress::native("sim", u32::from(number).to_be_bytes()),
            opened: 0,
            tx: Tx {
                wire: out.clone(),
                posted: [0; 2],
                seen: None,
            },
            rx: Rx {
                wire: into.clone(),
                own: [Batch::new(), Batch::new()],
                at: [0; 2],
                shown: [0; 2],
            },
        };
        Ok([end(1, &there, &back), end(2, &back, &there)])
    }

    /// Begins to record the frames that are posted.
    pub fn remember(&mut self) {
        self.tx.seen = Some(Vec::new());
    }

    /// Returns what was posted since then, and ends the recording.
    pub fn remembered(&mut self) -> Vec<Shape> {
        self.tx.seen.take().unwrap_or_default()
    }

    /// Frames posted so far.
    pub fn posted(&self) -> u64 {
        self.tx.posted.iter().sum()
    }
}

doorbell_fabric::still_rail!(End, |end| end.address.clone());

impl Datagram for End {
    type Tx = Tx;
    type Rx = Rx;

    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let index = PeerIndex(self.opened);
        self.opened += 1;
        Ok(index)
    }

    #[inline]
    fn split(&mut self) -> (&mut Tx, &mut Rx) {
        (&mut self.tx, &mut self.rx)
    }
}
