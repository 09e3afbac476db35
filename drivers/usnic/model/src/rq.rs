//! Receive queues: from a frame on the wire to buffers and completions (8.6).

use crate::cq::Cq;
use crate::desc::{Entry, Received, RqDesc, RqKind, flag};
use crate::fault::{Action, Point};
use crate::io::{Context, Io, Wrong};
use crate::ring::{Ring, Side, status};
use crate::violation::Kind;

/// A frame for a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) frame: &'a [u8],
    /// Type of its completions.
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) vlan: Option<u16>,
    pub(crate) filter: u16,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Taken,
    /// There is no buffer for the frame, or the queue does not run.
    NoBuffer,
    /// Cut short, or the queue was stopped by it.
    Error,
}

/// A receive queue.
#[derive(Debug)]
pub(crate) struct Rq {
    pub(crate) ring: Ring,
}

impl Rq {
    pub(crate) fn new(index: usize, at: usize) -> Self {
        Self {
            ring: Ring::new(Side::Rq, index, at),
        }
    }

    pub(crate) fn reset(&mut self) {
        self.ring.reset();
    }

    /// Takes a frame.
    pub(crate) fn receive(
        &mut self,
        io: &mut Io,
        cqs: &mut [Cq],
        context: &Context,
        arrival: &Arrival<'_>,
    ) -> Outcome {
        if !self.ring.is_running() {
            return Outcome::NoBuffer;
        }
        let cq = self.ring.cq;
        self.ring.doorbell(io, context, |number| cqs[cq].prove(number));
        if !self.ring.is_running() || !cqs[cq].has_room(io) {
            return Outcome::NoBuffer;
        }
        let fault = context.faults.action(Point::Receive, io.index, self.ring.index);
        if let Some(Action::ErrorStatus(code)) = fault {
            self.ring.fail(io, context, code);
            return Outcome::Error;
        }
        let outcome = self.fill(io, cqs, context, arrival, fault == Some(Action::Truncate));
        self.ring.show(io, context);
        outcome
    }

    fn fill(
        &mut self,
        io: &mut Io,
        cqs: &mut [Cq],
        context: &Context,
        arrival: &Arrival<'_>,
        is_cut: bool,
    ) -> Outcome {
        let Some(mut desc) = self.start(io, context) else {
            return if self.ring.is_running() {
                Outcome::NoBuffer
            } else {
                Outcome::Error
            };
        };
        let (mut rest, mut sop) = (arrival.frame, true);
        loop {
            let (now, later) = rest.split_at(rest.len().min(desc.length));
            if !io.write(context, self.ring.who(), desc.address, now) {
                self.ring.fail(io, context, status::DMA);
                return Outcome::Error;
            }
            rest = later;
            let next = match rest.is_empty() || is_cut {
                true => None,
                false => self.continuation(io, context),
            };
            let cut = is_cut || !rest.is_empty() && next.is_none();
            let part = Received {
                kind: arrival.kind,
                index: self.ring.fetch as u16,
                queue: self.ring.index,
                sop,
                eop: next.is_none(),
                bytes: if cut { 0 } else { now.len() as u16 },
                truncated: cut,
                vlan: arrival.vlan,
                filter: arrival.filter,
                flags: if cut {
                    arrival.flags & !flag::FCS_OK
                } else {
                    arrival.flags
                },
            };
            self.report(io, cqs, context, &part);
            match next {
                Some(other) => (desc, sop) = (other, false),
                None => return if cut { Outcome::Error } else { Outcome::Taken },
            }
        }
    }

    fn report(&mut self, io: &mut Io, cqs: &mut [Cq], context: &Context, part: &Received) {
        let slot = self.ring.fetch;
        self.ring.fetched(1);
        // The error bit of a whole frame with a bad FCS accompanies its length.
        let spoilt = part.eop && !part.truncated && part.flags & flag::FCS_OK == 0;
        let part = Received {
            truncated: part.truncated || spoilt,
            ..*part
        };
        let number = cqs[self.ring.cq].write(io, context, Entry::received(&part));
        self.ring.proof(slot, number);
    }

    fn descriptor(&mut self, io: &mut Io, context: &Context) -> Option<RqDesc> {
        if self.ring.available() == 0 {
            return None;
        }
        let bytes = self.ring.first(io, context);
        let Some(bytes) = bytes else {
            self.ring.fail(io, context, status::DMA);
            return None;
        };
        Some(RqDesc::parse(&bytes))
    }

    /// The buffer that a frame starts in. \[I\] Continuation buffers that were not needed are skipped,
    /// without a completion.
    fn start(&mut self, io: &mut Io, context: &Context) -> Option<RqDesc> {
        loop {
            let desc = self.descriptor(io, context)?;
            match desc.kind {
                RqKind::OnlySop => return Some(desc),
                RqKind::NotSop if context.options.behaviour.skip_unused => self.ring.fetched(1),
                _ => {
                    let what = "a receive descriptor of a kind that cannot stand here";
                    let wrong = Wrong::new(Kind::Descriptor, what).values(self.ring.fetch.into(), 0);
                    io.violation(context, Some(self.ring.who()), wrong);
                    self.ring.fail(io, context, status::DESCRIPTOR);
                    return None;
                }
            }
        }
    }

    /// The buffer that a frame goes on in, behind the one that is at fetch.
    fn continuation(&mut self, io: &mut Io, context: &Context) -> Option<RqDesc> {
        if self.ring.available() < 2 {
            return None;
        }
        let bytes = self.ring.descriptor(io, context, self.ring.slot(1))?;
        Some(RqDesc::parse(&bytes)).filter(|desc| desc.kind == RqKind::NotSop)
    }
}
