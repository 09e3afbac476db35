//! PML and BTL with their driver taken out: two ranks on one thread, over a datagram rail that only copies frames from
//! one array to another. What that rail takes by itself, for the same number of frames of the same length, is measured
//! in turn and subtracted: what is left is fragments, window, acknowledgements and matching, of both ends together.
//!
//! Twice: as a ping-pong of calls that wait, which is what a latency is made of, and as a stream of messages in one
//! direction, each received by a request that is posted, matched, completed and tested.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram, Frame, FrameId, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::{ConstLoan, MutLoan, SharedBytes};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex, Refused};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_pml::{Pml, PmlConfig, Rank, Sent};

use crate::error::BenchError;

/// Messages for one look at the clock: two to four milliseconds.
const MESSAGES: u64 = 20_000;
/// Looks in turn, of which the best counts: where another tenant shares the core, half of them may take twice as long.
const LOOKS: u32 = 30;
const TAG: u64 = 7;
const PAYLOAD: usize = 8;
/// Longest frame.
const MTU: usize = 256;
/// Frames between the two ends.
const ROOM: usize = 256;
/// Time goes on by so much with each message, in nanoseconds, as it would on a busy rail.
const STEP: u64 = 100;
/// Housekeeping after so many messages.
const EVERY: u64 = 64;

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

const fn index(channel: Channel) -> usize {
    match channel {
        Channel::Priority => 0,
        Channel::Data => 1,
    }
}

#[derive(Debug)]
struct Tx {
    wire: Wire,
    posted: [u64; 2],
}

impl Transmit for Tx {
    #[inline]
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        n.min(ROOM - self.wire[index(channel)].borrow().filled)
    }

    #[inline]
    fn post(
        &mut self,
        channel: Channel,
        _: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<FrameId, Refused> {
        let at = index(channel);
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
            // Short messages come in one piece.
            Body::Parts(_) | Body::Shared(_) | Body::Region(_) => return Err(Refused::Unsupported),
        }
        batch.filled += 1;
        self.posted[at] += 1;
        Ok(FrameId(self.posted[at]))
    }

    fn doorbell(&mut self) {}

    #[inline]
    fn reaped(&mut self, channel: Channel) -> FrameId {
        FrameId(self.posted[index(channel)])
    }
}

#[derive(Debug)]
struct Rx {
    wire: Wire,
    own: [Batch; 2],
    at: [usize; 2],
    shown: [usize; 2],
}

impl Receive for Rx {
    type Kept = ();

    #[inline]
    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let i = index(channel);
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
        let at = index(channel);
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
struct End {
    name: RailName,
    can: Capabilities,
    address: RailAddress,
    tx: Tx,
    rx: Rx,
}

impl End {
    fn pair() -> Result<[Self; 2], RailError> {
        let name: RailName = "sim:0".parse()?;
        let (there, back) = (wire(), wire());
        let end = |number: u8, out: &Wire, into: &Wire| Self {
            name: name.clone(),
            can: Capabilities {
                // As the sockets of the kernel have them: no checksum of ours.
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
                    latency_ns: 100,
                    bandwidth: 1 << 30,
                },
            },
            address: RailAddress::native("sim", [number]),
            tx: Tx {
                wire: out.clone(),
                posted: [0; 2],
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
}

impl Rail for End {
    fn name(&self) -> &RailName {
        &self.name
    }
    fn capabilities(&self) -> &Capabilities {
        &self.can
    }
    fn address(&self) -> RailAddress {
        self.address.clone()
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
        None
    }
    fn close(&mut self, _: Time, _: Time) -> bool {
        true
    }
}

impl Datagram for End {
    type Tx = Tx;
    type Rx = Rx;

    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        Ok(PeerIndex(0))
    }

    #[inline]
    fn split(&mut self) -> (&mut Tx, &mut Rx) {
        (&mut self.tx, &mut self.rx)
    }
}

/// What one small message costs, in one of the two ways.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// PML and BTL of both ends, without the driver, in nanoseconds.
    pub nanos: f64,
    /// What the copying rail took, which is not in it.
    pub driver_nanos: f64,
    /// Frames for each message, acknowledgements included.
    pub frames: f64,
}

type Ends = [Pml<Btl<End>>; 2];

/// How messages are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// There and back, by calls that wait.
    Waiting,
    /// One direction, by requests that are posted before and tested after.
    Posted,
}

/// Nanoseconds of PML and BTL for one 8-byte message: sent, received, matched, completed and acknowledged.
///
/// # Errors
/// When either refuses what it must not refuse.
pub fn stack_nanos(clock: &Clock, way: Way) -> Result<Stack, BenchError> {
    // A few bytes per measurement, leaked: a loan without anybody's promise has to live for ever.
    let from = ConstLoan::of_static(&[7; PAYLOAD]);
    let into = MutLoan::of_static(vec![0; PAYLOAD].leak());
    let mut ends = ends().map_err(failed)?;
    let mut now = 0;
    let (mut all, mut driver) = (f64::INFINITY, f64::INFINITY);
    let before = frames(&ends);
    for _ in 0..LOOKS {
        let start = clock.ticks();
        match way {
            Way::Waiting => {
                for _ in 0..MESSAGES / 2 {
                    there_and_back(&mut ends, &mut now, from, into)?;
                }
            }
            Way::Posted => {
                for _ in 0..MESSAGES {
                    exchange(&mut ends, &mut now, from, into)?;
                }
            }
        }
        all = all.min(clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start)) / MESSAGES as f64);
        driver = driver.min(driver_nanos(clock).map_err(failed)?);
    }
    let frames = (frames(&ends) - before) as f64 / (MESSAGES * u64::from(LOOKS)) as f64;
    // The best of each by itself: a slow look at the driver must not be taken from a fast one at all of it.
    let driver_nanos = driver * frames;
    Ok(Stack {
        nanos: all - driver_nanos,
        driver_nanos,
        frames,
    })
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Thread {
        what: "PML and BTL without a driver",
        reason: error.to_string(),
    }
}

/// Both ranks, connected.
fn ends() -> Result<Ends, String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let drivers = End::pair().map_err(|error| said(&error))?;
    let mut made = Vec::with_capacity(2);
    for (rank, driver) in drivers.into_iter().enumerate() {
        let config = BtlConfig {
            connectivity_check: false,
            ..BtlConfig::default()
        };
        let mut btl = Btl::new(driver, config, Incarnation(1)).map_err(|error| said(&error))?;
        btl.set_key(JobKey::from_bytes([7; 32]));
        let config = PmlConfig::new(Rank(rank as u32), 2, 0x5eed);
        let mut pml = Pml::new(config).map_err(|error| said(&error))?;
        let rail = pml.add_rail(btl);
        let peer = 1 - rank as u8;
        let address = RailAddress::native("sim", [peer + 1]);
        pml.connect(Rank(u32::from(peer)), rail, &address, Incarnation(1))
            .map_err(|error| said(&error))?;
        made.push(pml);
    }
    made.try_into().map_err(|_| "there are two ends".to_owned())
}

/// Sends a message from the first rank and receives it at the second one.
#[inline]
fn exchange(ends: &mut Ends, now: &mut u64, from: ConstLoan, into: MutLoan) -> Result<(), BenchError> {
    let [near, far] = ends;
    let request = far
        .recv_loan(Rank(0).into(), 0, TAG, 0, black_box(into))
        .map_err(failed)?;
    let sent = near.send_loan(Rank(1), 0, TAG, black_box(from)).map_err(failed)?;
    near.flush();
    let mut idle = 0;
    while !far.is_done(request) {
        far.poll();
        near.poll();
        idle += 1;
        if idle > EVERY {
            // Nothing moves until time does.
            *now += 1_000 * STEP;
            near.progress(Time::from_nanos(*now));
            far.progress(Time::from_nanos(*now));
        }
        if idle > 100_000 {
            return Err(failed("a message did not arrive"));
        }
    }
    if let Some(ended) = far.test(request) {
        black_box(ended.map_err(failed)?);
    }
    if let Sent::Pending(sent) = sent
        && let Some(ended) = near.test(sent)
    {
        black_box(ended.map_err(failed)?);
    }
    *now += STEP;
    if now.is_multiple_of(EVERY * STEP) {
        near.progress(Time::from_nanos(*now));
        far.progress(Time::from_nanos(*now));
    }
    Ok(())
}

/// A message from the first rank to the second one, and one back.
#[inline]
fn there_and_back(ends: &mut Ends, now: &mut u64, from: ConstLoan, into: MutLoan) -> Result<(), BenchError> {
    let [near, far] = ends;
    hand_over((near, 0), (far, 1), from, into)?;
    hand_over((far, 1), (near, 0), from, into)?;
    *now += 2 * STEP;
    if now.is_multiple_of(EVERY * STEP) {
        near.progress(Time::from_nanos(*now));
        far.progress(Time::from_nanos(*now));
    }
    Ok(())
}

/// Sends and receives as the calls of the library do that wait.
#[inline]
fn hand_over(
    (near, of_near): (&mut Pml<Btl<End>>, u32),
    (far, of_far): (&mut Pml<Btl<End>>, u32),
    from: ConstLoan,
    into: MutLoan,
) -> Result<(), BenchError> {
    if !near.send_at_once(Rank(of_far), 0, TAG, black_box(from)) {
        return Err(failed("a message was not taken at once"));
    }
    for _ in 0..1_000 {
        let looked = far.recv_directly(Rank(of_near), 0, TAG, black_box(into), 64);
        if looked.is_some() {
            return Ok(());
        }
    }
    Err(failed("a message did not arrive"))
}

/// Frames that both ends posted so far.
fn frames(ends: &Ends) -> u64 {
    let posted = |pml: &Pml<Btl<End>>| -> u64 {
        let rails = pml.rails().map(|(_, btl)| btl.driver().tx.posted);
        rails.flatten().sum()
    };
    ends.iter().map(posted).sum()
}

/// What the copying rail takes for one frame by itself, in nanoseconds: posted, shown, and its head copied once.
fn driver_nanos(clock: &Clock) -> Result<f64, RailError> {
    const HEAD: [u8; 48] = [7; 48];
    let [mut near, mut far] = End::pair()?;
    let mut seen = 0u32;
    let start = clock.ticks();
    for _ in 0..MESSAGES {
        let (tx, _) = near.split();
        if tx.reserve(Channel::Priority, 1) == 1 {
            let posted = tx.post(
                Channel::Priority,
                PeerIndex(0),
                black_box(&HEAD),
                Body::Bytes(&[7; PAYLOAD]),
            );
            black_box(posted.is_ok());
        }
        tx.doorbell();
        let (_, rx) = far.split();
        for i in 0..rx.poll(Channel::Priority, 16) {
            if let Some(frame) = rx.frame(Channel::Priority, i) {
                black_box(frame.bytes.len());
                seen += 1;
            }
        }
        black_box(rx.poll(Channel::Data, 16));
    }
    let nanos = clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start));
    Ok(nanos / f64::from(seen.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_sane_and_acknowledgements_are_few() {
        for way in [Way::Waiting, Way::Posted] {
            let stack = stack_nanos(&Clock::start(), way).unwrap();
            assert!(stack.nanos > 1.0 && stack.nanos < 100_000.0, "{way:?}: {stack:?}");
            assert!(stack.driver_nanos > 0.0, "{way:?}: {stack:?}");
            // One frame for each message, and at most an acknowledgement for each second one.
            assert!((1.0..=1.6).contains(&stack.frames), "{way:?}: {stack:?}");
        }
    }
}
