//! Send queues: from a doorbell to a frame on the wire, and its completion (8.5).

use std::collections::VecDeque;

use crate::cq::Cq;
use crate::desc::{Entry, LENGTH, Mode, WqDesc};
use crate::fault::{Action, Point};
use crate::frame::{self, TX_MOST};
use crate::io::{Context, Io, Wrong};
use crate::ring::{Ring, Side, status};
use crate::violation::Kind;

/// A send queue.
#[derive(Debug)]
pub(crate) struct Wq {
    pub(crate) ring: Ring,
    /// The posted index at which a frame had no end yet.
    waits: Option<u32>,
    /// Whether it was reported that the queue pair is not enabled.
    complained: bool,
    /// Whether a filter leads to its pair was looked at since it was enabled.
    pub(crate) checked: bool,
    /// Frames that are looked at again before their completion.
    again: VecDeque<Again>,
}

/// A frame that is looked at again.
#[derive(Clone, Copy, Debug)]
struct Again {
    due: u64,
    first: u32,
    count: u32,
    digest: u64,
    completion: Option<u32>,
}

/// A frame that was fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    /// Bytes of it in the room.
    pub(crate) length: usize,
    /// Whether the frame goes back to its sender.
    pub(crate) loops: bool,
    first: u32,
    count: u32,
    digest: u64,
    /// The slot that requests a completion.
    completion: Option<u32>,
}

/// How a queue is stopped by what it finds.
struct Stop {
    code: u32,
    wrong: Option<Wrong>,
}

/// The frames of one queue pair may be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed(pub(crate) bool);

impl Wq {
    pub(crate) fn new(index: usize, at: usize) -> Self {
        Self {
            ring: Ring::new(Side::Wq, index, at),
            waits: None,
            complained: false,
            checked: false,
            again: VecDeque::with_capacity(64),
        }
    }

    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        self.waits = None;
        self.complained = false;
        self.checked = false;
        self.again.clear();
    }

    /// Whether there is nothing to do.
    #[inline]
    pub(crate) fn is_quiet(&self, io: &Io) -> bool {
        self.again.is_empty() && self.ring.is_quiet(io)
    }

    /// Fetches the next frame into `room`, if one is posted.
    pub(crate) fn next(
        &mut self,
        io: &mut Io,
        cqs: &mut [Cq],
        context: &Context,
        allowed: Allowed,
        room: &mut [u8],
    ) -> Option<Fetched> {
        if !self.ring.is_running() {
            self.checked = false;
            return None;
        }
        let cq = self.ring.cq;
        if self.ring.doorbell(io, context, |number| cqs[cq].prove(number)) {
            self.complained = false;
        }
        if self.ring.available() == 0 || self.waits == Some(self.ring.posted) || !self.ring.is_running() {
            return None;
        }
        if !allowed.0 {
            self.complain(io, context);
            return None;
        }
        // Those that are looked at again keep their descriptors until then.
        if !cqs[cq].has_room(io) || self.again.len() >= self.ring.size as usize {
            return None;
        }
        match self.gather(io, context, room) {
            Ok(Some(_)) if let Some(code) = self.broken(io, context) => {
                self.ring.fail(io, context, code);
                None
            }
            Ok(Some(mut fetched)) => {
                self.ring.fetched(fetched.count);
                fetched.length = frame::pad(room, fetched.length);
                Some(fetched)
            }
            Ok(None) => {
                self.waits = Some(self.ring.posted);
                None
            }
            Err(stop) => {
                if let Some(wrong) = stop.wrong {
                    io.violation(context, Some(self.ring.who()), wrong);
                }
                self.ring.fail(io, context, stop.code);
                None
            }
        }
    }

    /// The error that a fault stops the queue with.
    fn broken(&self, io: &Io, context: &Context) -> Option<u32> {
        match context.faults.action(Point::Transmit, io.index, self.ring.index) {
            Some(Action::ErrorStatus(code)) => Some(code),
            _ => None,
        }
    }

    fn complain(&mut self, io: &Io, context: &Context) {
        if !std::mem::replace(&mut self.complained, true) {
            let wrong = Wrong::new(
                Kind::NoQpEnable,
                "frames are posted, and the queue pair is not enabled",
            );
            io.violation(
                context,
                Some(self.ring.who()),
                wrong.values(self.ring.posted.into(), self.ring.fetch.into()),
            );
        }
    }

    /// Collects descriptors up to the end of a frame; `None` where it is not there yet.
    fn gather(&self, io: &mut Io, context: &Context, room: &mut [u8]) -> Result<Option<Fetched>, Stop> {
        let (mut length, mut digest) = (0, 0);
        let mut first = None;
        for count in 1..=self.ring.available() {
            let slot = self.ring.slot(count - 1);
            let dma = || Stop {
                code: status::DMA,
                wrong: None,
            };
            let bytes = self.ring.descriptor(io, context, slot).ok_or_else(dma)?;
            let desc = WqDesc::parse(&bytes);
            // What is to be done to a frame is in its first descriptor; Linux's enic leaves it out of the
            // others.
            let asked = *first.get_or_insert(desc);
            let size = match usize::from(desc.length) {
                0 if context.options.behaviour.zero_is_16k => 16_384,
                0 => {
                    return Err(stop(
                        status::DESCRIPTOR,
                        Kind::Descriptor,
                        "a descriptor without a length",
                        0,
                        0,
                    ));
                }
                size => size,
            };
            let most = context.options.behaviour.fragments;
            if count as usize > most {
                let what = "a frame has too many descriptors";
                return Err(stop(
                    status::DESCRIPTOR,
                    Kind::Descriptor,
                    what,
                    count.into(),
                    most as u64,
                ));
            }
            if length + size <= TX_MOST {
                let part = &mut room[length..length + size];
                if !io.read(context, self.ring.who(), desc.address, part) {
                    return Err(dma());
                }
                if !context.options.timing.recheck.is_zero() {
                    digest = sum(part, sum(&bytes, digest));
                }
            }
            length += size;
            if desc.eop {
                let desc = WqDesc {
                    eop: true,
                    cq_entry: desc.cq_entry,
                    ..asked
                };
                return self.whole(io, context, &desc, room, (count, length, digest));
            }
        }
        Ok(None)
    }

    /// Handles a frame that is complete.
    fn whole(
        &self,
        io: &Io,
        context: &Context,
        desc: &WqDesc,
        room: &mut [u8],
        (count, mut length, digest): (u32, usize, u64),
    ) -> Result<Option<Fetched>, Stop> {
        let mut fetched = Fetched {
            length: 0,
            loops: desc.loopback && context.options.behaviour.loopback,
            first: self.ring.fetch,
            count,
            digest,
            completion: desc.cq_entry.then(|| self.ring.slot(count - 1)),
        };
        if !(14..=TX_MOST).contains(&length) {
            let what = "a frame has at least its header, and at most 9208 bytes";
            if !context.options.behaviour.silent_drop || length < 14 {
                return Err(stop(
                    status::LENGTH,
                    Kind::FrameLength,
                    what,
                    length as u64,
                    TX_MOST as u64,
                ));
            }
            // The other reaction that is documented: nothing is sent, nothing completes, the queue goes on.
            let wrong = Wrong::new(Kind::FrameLength, what).values(length as u64, TX_MOST as u64);
            io.violation(context, Some(self.ring.who()), wrong);
            fetched.completion = None;
            return Ok(Some(fetched));
        }
        let not_modelled = |what| {
            io.violation(
                context,
                Some(self.ring.who()),
                Wrong::new(Kind::NotModelled, what),
            )
        };
        match desc.mode {
            Mode::Csum if desc.mss & 3 != 0 => {
                frame::make_checksums(&mut room[..length], desc.mss & 1 != 0, desc.mss & 2 != 0);
            }
            Mode::Csum => {}
            Mode::Tso if desc.mss == 0 => {
                return Err(stop(
                    status::DESCRIPTOR,
                    Kind::Descriptor,
                    "segments of no size",
                    0,
                    1,
                ));
            }
            Mode::Tso => {
                let what = "segmentation is not modelled";
                return Err(stop(
                    status::DESCRIPTOR,
                    Kind::NotModelled,
                    what,
                    desc.mss.into(),
                    desc.header_length.into(),
                ));
            }
            Mode::CsumL4 => {
                let (from, field) = (usize::from(desc.header_length), usize::from(desc.mss));
                if !frame::finish_checksum(&mut room[..length], from, field) {
                    let what = "a checksum's field is outside of what it covers";
                    return Err(stop(
                        status::DESCRIPTOR,
                        Kind::Descriptor,
                        what,
                        desc.mss.into(),
                        desc.header_length.into(),
                    ));
                }
            }
            Mode::Reserved => not_modelled("offload mode 1 is reserved; the frame is sent as it is"),
        }
        if desc.fcoe {
            not_modelled("FCoE is not modelled; the frame is sent as it is");
        }
        if let Some(vlan) = desc.vlan {
            length = frame::tag(room, length, vlan);
        }
        fetched.length = length;
        Ok(Some(fetched))
    }

    /// Writes the completion of a frame, at once or after another look.
    pub(crate) fn complete(&mut self, io: &mut Io, cqs: &mut [Cq], context: &Context, fetched: &Fetched) {
        let wait = context.options.timing.recheck;
        if wait.is_zero() {
            if let Some(slot) = fetched.completion {
                self.report(io, cqs, context, slot);
            }
            return;
        }
        self.again.push_back(Again {
            due: context.after(wait),
            first: fetched.first,
            count: fetched.count,
            digest: fetched.digest,
            completion: fetched.completion,
        });
    }

    fn report(&mut self, io: &mut Io, cqs: &mut [Cq], context: &Context, slot: u32) {
        let entry = Entry::sent(slot as u16, self.ring.index);
        let number = cqs[self.ring.cq].write(io, context, entry);
        self.ring.proof(slot, number);
    }

    /// Looks again at what waits for that, and is due.
    pub(crate) fn look_again(&mut self, io: &mut Io, cqs: &mut [Cq], context: &Context, room: &mut [u8]) {
        while let Some(again) = self
            .again
            .front()
            .copied()
            .filter(|again| again.due <= context.now)
        {
            self.again.pop_front();
            let digest = self.digest(io, context, &again, room);
            if digest != Some(again.digest) {
                let what = "descriptors or bytes changed between the doorbell and the completion";
                let wrong = Wrong::new(Kind::ChangedInFlight, what);
                io.violation(
                    context,
                    Some(self.ring.who()),
                    wrong.values(again.first.into(), again.count.into()),
                );
            }
            if let Some(slot) = again.completion {
                self.report(io, cqs, context, slot);
            }
        }
    }

    /// Computes the same sum as when the frame was fetched.
    fn digest(&self, io: &mut Io, context: &Context, again: &Again, room: &mut [u8]) -> Option<u64> {
        let mut digest = 0;
        for count in 0..again.count {
            let slot = (again.first + count) % self.ring.size;
            let bytes: [u8; LENGTH] = self.ring.descriptor(io, context, slot)?;
            let desc = WqDesc::parse(&bytes);
            let part = &mut room[..usize::from(desc.length).min(TX_MOST)];
            if !io.read(context, self.ring.who(), desc.address, part) {
                return None;
            }
            digest = sum(part, sum(&bytes, digest));
        }
        Some(digest)
    }
}

fn stop(code: u32, kind: Kind, what: &'static str, found: u64, against: u64) -> Stop {
    Stop {
        code,
        wrong: Some(Wrong::new(kind, what).values(found, against)),
    }
}

/// FNV-1a, over words where there are any: it detects changes, and need not be hard to forge.
fn sum(bytes: &[u8], begin: u64) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    let mut words = bytes.chunks_exact(8);
    let mut sum = begin ^ 0xcbf2_9ce4_8422_2325;
    for word in &mut words {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        sum = mix(sum, u64::from_le_bytes(bytes));
    }
    words
        .remainder()
        .iter()
        .fold(sum, |sum, byte| mix(sum, u64::from(*byte)))
}
