//! What a rail of connections keeps for the explanation of a failure: its last notable events. Nothing of it
//! happens while messages pass.

use std::fmt;

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::recorder::{self, Recorder};

use super::core::Core;
use crate::cm::{Diagnosis, Refusal};
use crate::sys::numbers;

/// Events that are kept.
pub(crate) const RECORDED: usize = 256;

/// Why a send that arrived is dropped, and its connection ended: a rule of the wire was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Drop {
    /// It is longer than a slot.
    Length,
    /// Its head is none, or has lengths that do not fit.
    Head,
    /// A message of a connection that is not proved.
    Early,
    /// Its sender had no credit for it, or its counters cannot be.
    Credit,
    /// A word about one-sided operations that cannot be.
    Control,
    /// A message in it is cut.
    Message,
    /// Not a send: the counters that the peer has written cannot be.
    Page,
    /// Of a ring, where no such send can be; or behind sends over a ring that there cannot be.
    Ring,
}

/// Reasons to drop a send.
pub(crate) const DROPS: usize = 8;

impl Drop {
    /// The names of the counters, in the order of the reasons.
    pub(crate) const NAMES: [&'static str; DROPS] = [
        "dropped_length",
        "dropped_head",
        "dropped_early",
        "dropped_credit",
        "dropped_control",
        "dropped_message",
        "dropped_page",
        "dropped_ring",
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Length => "it is longer than a slot",
            Self::Head => "its head cannot be",
            Self::Early => "the connection was not proved",
            Self::Credit => "it had no credit, or counters that cannot be",
            Self::Control => "a word about one-sided operations cannot be",
            Self::Message => "a message in it is cut",
            Self::Page => "the counters that it has written cannot be",
            Self::Ring => "its place among those of a ring cannot be",
        }
    }
}

/// A notable event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Queue pairs are made for a connection.
    Making,
    /// They are connected to the peer's, for a path MTU in bytes.
    Connecting(u16),
    /// The path carries less than both ports.
    Narrow(Diagnosis),
    /// No connection is made; whether this end refuses.
    Refused(Refusal, bool),
    /// Requests ended with this status of the device, and its vendor's number.
    Failed { status: i32, vendor: u32 },
    /// An operation was denied, and ends its queue pair alone.
    Denied,
    /// The connection is over.
    Ending(DownReason),
    /// A send was dropped.
    Dropped(Drop),
    /// The device has reported an event of this number.
    Device(i32),
    /// All queues were made again.
    Renewed,
    /// All queues were made again, as too many slots may be missing.
    Exhausted,
    /// An event that was reported to the layer above.
    Told(EventKind),
}

impl recorder::Event for Event {
    fn absorb(&mut self, later: &Self) -> bool {
        let is_repeated = matches!(
            self,
            Self::Failed { .. }
                | Self::Device(_)
                | Self::Denied
                | Self::Making
                | Self::Refused(..)
                | Self::Dropped(_)
        );
        is_repeated && self == later
    }
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Making => out.write_str("a queue pair was made for a connection"),
            Self::Connecting(mtu) => write!(out, "it is connected to the peer's, for packets of {mtu} bytes"),
            Self::Narrow(diagnosis) => diagnosis.fmt(out),
            Self::Refused(refusal, true) => write!(out, "refused here: {refusal}"),
            Self::Refused(refusal, false) => write!(out, "refused by the peer: {refusal}"),
            Self::Failed { status, vendor } => {
                let name = status_name(*status);
                write!(
                    out,
                    "a request failed: {name} (status {status}, vendor's number {vendor:#x})"
                )
            }
            Self::Denied => out.write_str("an operation was denied: its queue pair is made again"),
            Self::Ending(reason) => write!(out, "the connection ends: {}", reason.as_str()),
            Self::Dropped(why) => write!(out, "dropped what came from it: {}", why.as_str()),
            Self::Device(number) => write!(out, "the device reports event {number}"),
            Self::Renewed => out.write_str("a queue had failed: all were made again"),
            Self::Exhausted => out.write_str(
                "connections that broke may have cost too many slots to receive into: all queues were made \
                 again",
            ),
            Self::Told(kind) => out.write_str(kind.as_str()),
        }
    }
}

/// What the device's status of a request means.
fn status_name(status: i32) -> &'static str {
    match status {
        numbers::WR_FLUSH_ERR => "flushed, as its queue pair is in error",
        numbers::RETRY_EXC_ERR => "repeated in vain, nothing was acknowledged",
        numbers::RNR_RETRY_EXC_ERR => "the peer had no slot for it",
        numbers::REM_ACCESS_ERR => "the peer's device denied the access",
        numbers::REM_INV_REQ_ERR => "the peer's device takes no such request",
        numbers::LOC_LEN_ERR => "its length does not fit",
        numbers::LOC_QP_OP_ERR | numbers::LOC_PROT_ERR => "its memory or operation is not allowed here",
        numbers::MW_BIND_ERR => "a memory window was not bound",
        _ => "an error of the device",
    }
}

impl Core {
    /// Records an event about a peer, or about the rail.
    #[cold]
    pub(crate) fn record(&mut self, peer: Option<u32>, event: Event) {
        self.recorder.record(self.now, peer.map(PeerIndex), event);
    }

    /// Counts and records that what came from a peer is dropped; always `false`.
    #[cold]
    pub(crate) fn drop_send(&mut self, peer: u32, why: Drop) -> bool {
        self.stats.dropped[why as usize] += 1;
        self.record(Some(peer), Event::Dropped(why));
        false
    }

    /// The last events about a peer, and about the rail itself, newest last.
    pub(crate) fn recent(&self, peer: PeerIndex, most: usize) -> Vec<String> {
        self.recorder.lines(peer, self.now, most)
    }
}

/// The recorder of a rail.
pub(crate) fn recorder() -> Recorder<Event> {
    Recorder::new(RECORDED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_events_are_one_entry_and_different_ones_are_not() {
        use recorder::Event as _;
        let failed = |status| Event::Failed { status, vendor: 0 };
        assert!(failed(5).absorb(&failed(5)) && !failed(5).absorb(&failed(12)));
        assert!(!Event::Told(EventKind::LinkUp).absorb(&Event::Told(EventKind::LinkUp)));
        assert!(!Event::Ending(DownReason::Abandoned).absorb(&Event::Ending(DownReason::Abandoned)));
    }

    #[test]
    fn every_event_has_its_words() {
        for (event, words) in [
            (Event::Making, "was made"),
            (Event::Connecting(1024), "packets of 1024 bytes"),
            (Event::Refused(Refusal::Gids, true), "refused here: both ends"),
            (Event::Refused(Refusal::Over, false), "refused by the peer: "),
            (
                Event::Failed {
                    status: numbers::RETRY_EXC_ERR,
                    vendor: 0x81,
                },
                "nothing was acknowledged (status 12, vendor's number 0x81)",
            ),
            (Event::Denied, "was denied"),
            (Event::Ending(DownReason::Hostile), "broke the rules"),
            (Event::Dropped(Drop::Early), "not proved"),
            (Event::Device(3), "event 3"),
            (Event::Renewed, "made again"),
            (Event::Exhausted, "may have cost too many slots"),
            (Event::Told(EventKind::LinkDown), "link down"),
        ] {
            assert!(event.to_string().contains(words), "{event}");
        }
    }
}
