//! A driver without a network: two ends pass each other frames in memory, so that what is measured is the
//! BTL. And two BTLs over it.
#![allow(dead_code, unreachable_pub)] // each test uses what it needs

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::datagram::{Channel, Datagram, Frame, FrameId, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Arrivals, Body, Incarnation, Message, PeerIndex, Refused};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::still_rail;
use doorbell_fabric::time::Time;

/// Bytes of the longest frame.
pub const MTU: usize = 1472;
/// Frames that a ring holds.
const PLACES: usize = 512;

/// A frame with its length.
type Slot = (usize, [u8; MTU]);

/// A ring of frames, one direction, one channel.
pub struct Ring {
    frames: Vec<Slot>,
    pub head: usize,
    pub tail: usize,
}

impl Ring {
    fn new() -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            frames: vec![(0, [0; MTU]); PLACES],
            head: 0,
            tail: 0,
        }))
    }

    fn room(&self) -> usize {
        (PLACES / 2).saturating_sub(self.tail - self.head)
    }

    /// Puts a frame in.
    #[inline]
    pub fn push(&mut self, head: &[u8], body: SharedBytes<'_>) {
        let (length, frame) = &mut self.frames[self.tail % PLACES];
        *length = head.len() + body.len();
        frame[..head.len()].copy_from_slice(head);
        body.copy_to(0, &mut frame[head.len()..*length]);
        self.tail += 1;
    }

    /// Takes the oldest frame out.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        (self.head < self.tail).then(|| {
            let (length, frame) = &self.frames[self.head % PLACES];
            self.head += 1;
            frame[..*length].to_vec()
        })
    }
}

/// Two BTLs over a lane, which have opened each other.
pub struct Two<S> {
    pub ends: [Btl<Lane>; 2],
    pub sinks: [S; 2],
    pub to: [PeerIndex; 2],
    pub now: Time,
}

impl<S: Arrivals + Default> Two<S> {
    /// Both ends with the same settings. `checked` is as for [`pair`].
    pub fn new(checked: bool, config: &BtlConfig) -> Self {
        let mut life = 0;
        let mut ends = pair(checked).map(|lane| {
            life += 1;
            let mut btl = Btl::new(lane, config.clone(), Incarnation(life)).expect("the settings are right");
            btl.set_key(JobKey::from_bytes([1; 32]));
            btl
        });
        let addresses = [ends[1].address(), ends[0].address()];
        let to = [0, 1].map(|i: usize| {
            let life = Incarnation(2 - i as u64);
            ends[i].open(&addresses[i], life).expect("it is there")
        });
        Self {
            ends,
            sinks: [S::default(), S::default()],
            to,
            now: Time::ZERO,
        }
    }

    /// One end does what it can at this time.
    pub fn turn_of(&mut self, end: usize) {
        self.ends[end].progress(self.now);
        while self.ends[end].event().is_some() {}
        while self.ends[end].poll(64, &mut self.sinks[end]) > 0 {}
    }

    /// Time goes on by `step`, and each end does what it can.
    pub fn turn(&mut self, step: Duration) {
        self.now += step;
        (0..2).for_each(|end| self.turn_of(end));
    }
}

/// What the BTL did with its end of the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A poll for at most this many frames.
    Polled(Channel, usize),
    /// A frame, with its kind and its number as the header has them.
    Posted(Channel, u8, u32),
}

/// The steps since the last look, of an end that keeps them.
pub type Steps = Rc<RefCell<Option<Vec<Step>>>>;

pub type Rings = [Rc<RefCell<Ring>>; 2];

/// One end of the lane.
pub struct Lane {
    tx: Tx,
    rx: Rx,
    name: RailName,
    can: Capabilities,
    address: u32,
    opened: u32,
    /// The events that it reports next.
    pub events: VecDeque<RailEvent>,
}

pub struct Tx {
    pub rings: Rings,
    posted: [u64; 2],
    reserved: [usize; 2],
    steps: Steps,
}

/// Frames are shown where they lie; the ring is read again only by the next poll.
pub struct Rx {
    pub rings: Rings,
    /// No poll looks at a channel before all are to look everywhere.
    quiet: [bool; 2],
    shown: [Vec<Slot>; 2],
    count: [usize; 2],
    steps: Steps,
}

/// Two ends. `checked` is whether the network checks its bytes.
pub fn pair(checked: bool) -> [Lane; 2] {
    let (there, back): (Rings, Rings) = ([Ring::new(), Ring::new()], [Ring::new(), Ring::new()]);
    [
        Lane::new(1, checked, there.clone(), back.clone()),
        Lane::new(2, checked, back, there),
    ]
}

impl Lane {
    fn new(address: u32, checked: bool, out: Rings, back: Rings) -> Self {
        let steps = Steps::default();
        let shown = || (0..64).map(|_| (0, [0; MTU])).collect();
        Self {
            tx: Tx {
                rings: out,
                posted: [0; 2],
                reserved: [0; 2],
                steps: Rc::clone(&steps),
            },
            rx: Rx {
                rings: back,
                quiet: [false; 2],
                shown: [shown(), shown()],
                count: [0; 2],
                steps,
            },
            name: "sim:1".parse().expect("a name"),
            can: Capabilities {
                features: Features {
                    within_host: false,
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
            events: VecDeque::new(),
        }
    }

    /// The steps since the last call, from the first call on.
    pub fn steps(&self) -> Vec<Step> {
        self.tx.steps.replace(Some(Vec::new())).unwrap_or_default()
    }

    /// Polls find nothing on a channel from now on, until they are to look everywhere.
    pub fn hush(&mut self, channel: Channel) {
        self.rx.quiet[channel.index()] = true;
    }

    /// What is on its way to this end.
    pub fn incoming(&self) -> Rings {
        self.rx.rings.clone()
    }
}

fn note(steps: &Steps, step: Step) {
    if let Some(steps) = &mut *steps.borrow_mut() {
        steps.push(step);
    }
}

still_rail!(
    Lane,
    |lane| RailAddress::native("sim", lane.address.to_le_bytes()),
    |lane| lane.events.pop_front()
);

impl Datagram for Lane {
    type Tx = Tx;
    type Rx = Rx;

    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        self.opened += 1;
        Ok(PeerIndex(self.opened - 1))
    }

    #[inline]
    fn split(&mut self) -> (&mut Tx, &mut Rx) {
        (&mut self.tx, &mut self.rx)
    }
}

impl Transmit for Tx {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        self.reserved[channel.index()] = n.min(self.rings[channel.index()].borrow().room());
        self.reserved[channel.index()]
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
        self.reserved[at] = self.reserved[at].checked_sub(1).ok_or(Refused::Full)?;
        let Some(body) = body.in_one_piece() else {
            return Err(Refused::Unsupported);
        };
        self.rings[at].borrow_mut().push(head, body);
        self.posted[at] += 1;
        let number = [head[8], head[9], head[10], head[11]];
        note(
            &self.steps,
            Step::Posted(channel, head[18], u32::from_le_bytes(number)),
        );
        Ok(FrameId(self.posted[at]))
    }

    fn doorbell(&mut self) {}

    fn reaped(&mut self, channel: Channel) -> FrameId {
        FrameId(self.posted[channel.index()])
    }
}

impl Receive for Rx {
    type Kept = ();

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        note(&self.steps, Step::Polled(channel, budget));
        let at = channel.index();
        let mut ring = self.rings[at].borrow_mut();
        let there = if self.quiet[at] { 0 } else { ring.tail - ring.head };
        let n = budget.min(there).min(self.shown[at].len());
        for place in &mut self.shown[at][..n] {
            let head = ring.head % PLACES;
            let (length, frame) = &ring.frames[head];
            place.0 = *length;
            place.1[..*length].copy_from_slice(&frame[..*length]);
            ring.head += 1;
        }
        self.count[at] = n;
        n
    }

    fn look_everywhere(&mut self) {
        self.quiet = [false; 2];
    }

    #[inline]
    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let at = channel.index();
        let (length, bytes) = self.shown[at][..self.count[at]].get(i)?;
        Some(Frame {
            from: None,
            bytes: SharedBytes::of(&bytes[..*length]),
        })
    }

    fn keep(&mut self, _: Channel, _: usize) -> Result<(), Refused> {
        Err(Refused::Full)
    }
}
