//! The trace of events, as plain numbers; text is formatted only on request.
//!
//! The hash covers every event since the start, kept or forgotten: two runs of one seed have equal hashes.

use std::collections::VecDeque;
use std::fmt;

use doorbell_fabric::time::Time;

use crate::random::splitmix;

/// What kind of event it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Happened {
    /// A NIC was attached; the number is the process's incarnation.
    Attached,
    /// A message was put on a link; the number is its `MsgId`.
    Sent,
    /// A message or frame reached the receiver's NIC.
    Arrived,
    /// The upper layer took it.
    Delivered,
    /// The sender learned the watermark.
    HandedOver,
    /// A message waits for a closed path.
    Stalled,
    /// A message will never be seen.
    Failed,
    /// A message was given back.
    Reclaimed,
    /// A one-sided operation was posted; the number is its `OpId`.
    Posted,
    /// The target executed it.
    Executed,
    /// An operation ended well.
    Completed,
    /// An operation ended with an error.
    Ended,
    /// Memory was exposed; the number is the key.
    Exposed,
    /// Exposed memory was withdrawn.
    Withdrawn,
    /// A frame was put on a link; the number is its `FrameId`.
    Frame,
    /// A frame reached a receive ring.
    FrameArrived,
    /// A frame was dropped by a fault.
    FrameDropped,
    /// A rail reported a peer or a link going down.
    Down,
    /// A rail reported a peer or a link coming up.
    Up,
    /// The network was changed by a call or a script.
    Changed,
    /// A rank of a job made a step that did something.
    Stepped,
}

/// An event: the rank that did it, the other rank, the plane, and two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// The time of the event.
    pub at: Time,
    /// The kind of event.
    pub what: Happened,
    /// The plane's number.
    pub plane: u32,
    /// The rank that did it or sent it.
    pub from: u32,
    /// The rank that it goes to, or the same.
    pub to: u32,
    /// The number of the message, frame or operation, or the key.
    pub number: u64,
    /// The length in bytes, where it has one.
    pub length: u64,
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, what) = (self.at, self.what);
        write!(
            out,
            "{at} {what:?} {}>{} plane {}",
            self.from, self.to, self.plane
        )?;
        write!(out, " #{:x} {}B", self.number, self.length)
    }
}

#[derive(Debug)]
pub(crate) struct Trace {
    events: VecDeque<TraceEvent>,
    keep: usize,
    hash: u64,
    count: u64,
}

impl Trace {
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            events: VecDeque::with_capacity(keep),
            keep,
            hash: 0,
            count: 0,
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, event: TraceEvent) {
        let places = u64::from(event.from) << 32 | u64::from(event.to);
        let kind = u64::from(event.what as u8) << 32 | u64::from(event.plane);
        for word in [event.at.nanos(), kind, places, event.number, event.length] {
            let mut mixed = self.hash ^ word;
            self.hash = splitmix(&mut mixed);
        }
        self.count += 1;
        if self.keep == 0 {
            return;
        }
        if self.events.len() == self.keep {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = &TraceEvent> {
        self.events.iter()
    }
}
