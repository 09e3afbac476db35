//! What is known of one peer. Everything that only some peers need at a time (segments, gaps, reassemblies, streams) is
//! in slabs that all share, so that an idle peer takes a few hundred bytes.

use doorbell_fabric::message::PeerIndex;
use doorbell_hotel::Key;

use crate::congestion::Congestion;
use crate::connectivity::Check;
use crate::key::{FrameMac, Link};
use crate::pool::Id;
use crate::pooled_list::List;
use crate::reassembly::Partial;
use crate::recv_window::Arrived;
use crate::resends::Resends;
use crate::rtt::Rtt;
use crate::segment::Segment;
use crate::seq::Seq;
use crate::serve::Inflow;
use crate::stream::Stream;

/// Facts about a peer, in [`Peer::flags`].
pub(crate) mod about {
    /// Segments may be sent: the connectivity check has passed, or is off.
    pub(crate) const UP: u32 = 1;
    /// It is down: for good, or until a new life of the link is up.
    pub(crate) const DOWN: u32 = 1 << 1;
    /// It said goodbye: what it sends again is acknowledged, nothing else.
    pub(crate) const CLOSED: u32 = 1 << 2;
    /// Something of it has arrived, and was told.
    pub(crate) const GREETED: u32 = 1 << 3;
    /// In the list of peers that have something to send, and may.
    pub(crate) const READY: u32 = 1 << 4;
    /// An acknowledgement is due, now or later.
    pub(crate) const ACK: u32 = 1 << 5;
    /// In the list of acknowledgements that go out at the end of this pass.
    pub(crate) const ACK_NOW: u32 = 1 << 6;
    /// In the list of those that wait for a frame to ride on.
    pub(crate) const ACK_LATER: u32 = 1 << 7;
    /// In the list of time-outs to be judged when what has arrived has been looked at.
    pub(crate) const TIMEOUT: u32 = 1 << 8;
    /// Several time-outs in a row.
    pub(crate) const SUSPECT: u32 = 1 << 9;
    /// Probes are under way.
    pub(crate) const PROBING: u32 = 1 << 10;
    /// In the list of peers to be probed.
    pub(crate) const PROBE: u32 = 1 << 11;
    /// The acknowledgement that is due says more than a number, so it needs a frame of its own.
    pub(crate) const EXPLICIT: u32 = 1 << 13;
    /// The driver says that its process has ended, which may be a lie of the network.
    pub(crate) const REFUSED: u32 = 1 << 14;
    /// Our goodbye is among its segments.
    pub(crate) const BYE: u32 = 1 << 12;
    /// It is down, and frames of a new connection are taken, which is being checked.
    pub(crate) const COMING: u32 = 1 << 15;
    /// It has proved alive elsewhere twice, far enough apart, since it owes answers.
    pub(crate) const PROVED: u32 = 1 << 16;
}

/// One life of one peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) flags: u32,
    /// Its number at the driver.
    pub(crate) driver: PeerIndex,

    // What we send.
    pub(crate) out: u64,
    /// The list of its segments: the oldest that is kept, the oldest not acknowledged, the oldest not sent, the last.
    pub(crate) head: Id<Segment>,
    pub(crate) una: Id<Segment>,
    pub(crate) unsent: Id<Segment>,
    pub(crate) tail: Id<Segment>,
    /// Length of the list.
    pub(crate) listed: u32,
    /// Segments under way: posted, and neither acknowledged nor taken for lost.
    pub(crate) flight: u32,
    /// Number of the next segment that is made; of the oldest not acknowledged; of the oldest not sent.
    pub(crate) next: Seq,
    pub(crate) una_seq: Seq,
    pub(crate) unsent_seq: Seq,
    /// The last segment that asked for an answer at once.
    pub(crate) urgent: Seq,
    /// Messages accepted; and all up to here were taken by the peer's upper layer.
    pub(crate) last: u64,
    pub(crate) watermark: u64,
    /// Messages up to here were given back.
    pub(crate) given: u64,
    /// Transmissions per channel: made, and the latest of which we know that it arrived.
    pub(crate) made: [u64; 2],
    pub(crate) seen: [u64; 2],
    /// When the latest transmission per channel was made of which we know that it arrived (ns).
    pub(crate) newest: [u64; 2],
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    pub(crate) resends: Resends,
    /// Since when something is due and nothing new was acknowledged (attended ns).
    pub(crate) waiting: u64,
    /// When something new was acknowledged last (ns): time-outs count from there, too (RFC 6298, section 5.3).
    pub(crate) progressed: u64,
    /// One-sided operations that are cut into segments as the window allows.
    pub(crate) streams: List<Stream>,

    // What it sends.
    pub(crate) arrived: Arrived,
    /// Segments since the last acknowledgement; when the waiting one is due (ns); duplicates.
    pub(crate) unacked: u32,
    pub(crate) duplicates: u32,
    pub(crate) ack_at: u64,
    pub(crate) partial: Partial,
    /// Puts of which not everything has arrived.
    pub(crate) inflows: List<Inflow>,
    pub(crate) bye: Option<Seq>,

    // Both.
    /// When something of it arrived here last, and elsewhere for the first time since (attended ns).
    pub(crate) heard: u64,
    pub(crate) alive: u64,
    pub(crate) timer: Option<Key>,
    pub(crate) booked: u64,
    pub(crate) check: Check,
    /// Another life at the same address.
    pub(crate) older: Option<PeerIndex>,
    /// Ours, and theirs.
    pub(crate) macs: Option<Box<[FrameMac; 2]>>,
}

impl Peer {
    pub(crate) fn new(driver: PeerIndex, out: Link, from: Link, initial: u32, first: Option<u32>) -> Self {
        let (ours, theirs) = (first.map_or(out.first, Seq), first.map_or(from.first, Seq));
        Self {
            flags: 0,
            driver,
            out: out.connection,
            head: Id::NONE,
            una: Id::NONE,
            unsent: Id::NONE,
            tail: Id::NONE,
            listed: 0,
            flight: 0,
            next: ours,
            una_seq: ours,
            unsent_seq: ours,
            urgent: ours.previous(),
            last: 0,
            watermark: 0,
            given: 0,
            made: [0; 2],
            seen: [0; 2],
            newest: [0; 2],
            rtt: Rtt::new(),
            congestion: Congestion::new(initial),
            resends: Resends::new(),
            waiting: 0,
            progressed: 0,
            streams: List::new(),
            arrived: Arrived::new(theirs),
            unacked: 0,
            duplicates: 0,
            ack_at: 0,
            partial: Partial::new(),
            inflows: List::new(),
            bye: None,
            heard: 0,
            alive: 0,
            timer: None,
            booked: 0,
            check: Check::new(out.connection as u32),
            older: None,
            macs: None,
        }
    }

    #[inline]
    pub(crate) fn is(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    /// Whether something waits to be sent.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.unsent != Id::NONE || !self.streams.is_empty()
    }

    /// Whether another segment may be sent now.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.flags & (about::UP | about::DOWN) == about::UP && self.flight < self.congestion.window()
    }
}

const _: () = assert!(size_of::<Peer>() <= 512, "idle peers are many");
