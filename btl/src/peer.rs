//! One peer and its connection. Everything that only some peers need at a time (segments, gaps, reassemblies,
//! streams) is in pools that all share, so that an idle peer takes a few hundred bytes.

use doorbell_fabric::message::PeerIndex;

use crate::congestion::Congestion;
use crate::connectivity::Check;
use crate::key::{FrameMac, Link};
use crate::liveness::Liveness;
use crate::pooled_list::List;
use crate::reassembly::Partial;
use crate::recv_window::RecvWindow;
use crate::resends::Resends;
use crate::rtt::Rtt;
use crate::send_window::SendWindow;
use crate::seq::Seq;
use crate::serve::Inflow;
use crate::stream::Stream;
use crate::timers::Alarm;

/// Facts about a peer; see [`Peer::is`].
pub(crate) mod about {
    /// Segments may be sent: the connectivity check has passed, or is off.
    pub(crate) const UP: u32 = 1;
    /// It is down: for good, or until a new connection is up.
    pub(crate) const DOWN: u32 = 1 << 1;
    /// It has closed the connection: what it sends again is acknowledged, nothing else.
    pub(crate) const CLOSED: u32 = 1 << 2;
    /// A frame of it has arrived, and its `PeerUp` was reported.
    pub(crate) const GREETED: u32 = 1 << 3;
    /// The peer is in the queue of peers that have something to send, and may.
    pub(crate) const READY: u32 = 1 << 4;
    /// An acknowledgement is due, now or later.
    pub(crate) const ACK: u32 = 1 << 5;
    /// The peer is in the queue of acknowledgements that go out at the end of this pass.
    pub(crate) const ACK_NOW: u32 = 1 << 6;
    /// The peer is in the queue of acknowledgements that wait for a frame to ride on.
    pub(crate) const ACK_LATER: u32 = 1 << 7;
    /// The peer is in the queue of time-outs, which are judged after arrivals were handled.
    pub(crate) const TIMEOUT: u32 = 1 << 8;
    /// Several time-outs in a row.
    pub(crate) const SUSPECT: u32 = 1 << 9;
    /// Probes are under way.
    pub(crate) const PROBING: u32 = 1 << 10;
    /// The peer is in the queue of peers to be probed.
    pub(crate) const PROBE: u32 = 1 << 11;
    /// Our BYE is among its segments.
    pub(crate) const BYE: u32 = 1 << 12;
    /// The acknowledgement that is due carries more than a number, so it needs a frame of its own.
    pub(crate) const EXPLICIT: u32 = 1 << 13;
    /// The driver reports that its process has ended, which the network may have forged.
    pub(crate) const REFUSED: u32 = 1 << 14;
    /// It is down, and frames of a new connection are taken, which is being checked.
    pub(crate) const COMING: u32 = 1 << 15;
    /// It has proved alive elsewhere twice, far enough apart, since it owes answers.
    pub(crate) const PROVED: u32 = 1 << 16;

    /// Its owner has forgotten it: our BYE goes out, and then it is taken out.
    pub(crate) const LEAVING: u32 = 1 << 17;

    /// Nothing is accepted for it, and what comes of it is not taken as of a peer that is up.
    pub(crate) const GONE: u32 = DOWN | LEAVING;

    /// Membership in queues, which outlives a connection.
    pub(crate) const QUEUED: u32 = READY | ACK_NOW | ACK_LATER | TIMEOUT | PROBE;
}

/// The peer index that means none: half as long as an option, since idle peers are many.
const NO_PEER: PeerIndex = PeerIndex(u32::MAX);

/// One peer, and its present connection.
#[derive(Debug)]
pub(crate) struct Peer {
    flags: u32,
    /// Its number at the driver.
    driver: PeerIndex,
    /// The connection id of the frames that we send.
    connection: u64,
    /// Frame MACs: ours, and theirs.
    macs: Option<Box<[FrameMac; 2]>>,
    /// A peer opened before at the same address, or [`NO_PEER`]: an earlier life of the process there.
    older: PeerIndex,

    pub(crate) send: SendWindow,
    pub(crate) recv: RecvWindow,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    pub(crate) resends: Resends,
    pub(crate) liveness: Liveness,
    pub(crate) check: Check,
    pub(crate) alarm: Alarm,
    /// One-sided transfers to it, which are cut into segments as the window allows.
    pub(crate) streams: List<Stream>,
    /// Its puts of which not everything has arrived.
    pub(crate) inflows: List<Inflow>,
    /// Its messages of which not everything has arrived.
    pub(crate) partial: Partial,
}

/// What a connection to a peer is made of: for each direction, its id and its first sequence number.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Ours to the peer, and the peer's to us.
    pub(crate) out: Link,
    pub(crate) from: Link,
    /// Frame MACs: ours, and theirs.
    pub(crate) macs: Option<Box<[FrameMac; 2]>>,
    /// Segments that may be under way at the beginning.
    pub(crate) initial_window: u32,
    /// The first sequence number of both directions, instead of those of the links.
    pub(crate) first: Option<u32>,
}

impl Peer {
    /// A peer that the driver numbers so, with its first connection, at this attended time (ns).
    pub(crate) fn new(driver: PeerIndex, connection: Connection, attended: u64) -> Self {
        let Connection { out, from, .. } = connection;
        let (ours, theirs) = connection
            .first
            .map_or((out.first, from.first), |first| (Seq(first), Seq(first)));
        Self {
            flags: 0,
            driver,
            connection: out.connection,
            macs: connection.macs,
            older: NO_PEER,
            send: SendWindow::new(ours),
            recv: RecvWindow::new(theirs),
            rtt: Rtt::new(),
            congestion: Congestion::new(connection.initial_window),
            resends: Resends::new(),
            liveness: Liveness::new(attended),
            check: Check::new(out.connection as u32),
            alarm: Alarm::new(),
            streams: List::new(),
            inflows: List::new(),
            partial: Partial::new(),
        }
    }

    /// Begins another connection, while it is down. It stays in the queues that it is in, and its messages
    /// are counted on. Returns the frame MACs of the connection before.
    pub(crate) fn reconnect(&mut self, connection: Connection, attended: u64) -> Option<Box<[FrameMac; 2]>> {
        let mut fresh = Self::new(self.driver, connection, attended);
        fresh.flags = self.flags & about::QUEUED | about::DOWN | about::COMING;
        fresh.older = self.older;
        fresh.send = self.send.of_next_connection(fresh.send.next_seq());
        fresh.check.keep_result_of(&self.check);
        fresh.alarm = std::mem::take(&mut self.alarm);
        std::mem::replace(self, fresh).macs
    }

    /// The place of a peer that was taken out, with the queues that `peer` is in.
    pub(crate) fn vacant(peer: &Self) -> Self {
        let link = || Link {
            connection: 0,
            first: Seq(0),
        };
        let connection = Connection {
            out: link(),
            from: link(),
            macs: None,
            initial_window: 1,
            first: None,
        };
        let mut vacant = Self::new(NO_PEER, connection, 0);
        vacant.flags = about::DOWN | about::CLOSED;
        vacant.inherit_queues(peer);
        vacant
    }

    /// The peer is in the queues that `before` is in, which has the same index.
    pub(crate) fn inherit_queues(&mut self, before: &Self) {
        self.flags |= before.flags & about::QUEUED;
    }

    /// Whether this is its number at the driver.
    pub(crate) fn has_driver(&self, driver: PeerIndex) -> bool {
        self.driver == driver
    }

    /// Whether one of these facts holds, of [`about`].
    #[inline]
    pub(crate) fn is(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    /// These facts hold from now on.
    #[inline]
    pub(crate) fn set(&mut self, flags: u32) {
        self.flags |= flags;
    }

    /// These facts do not hold any more.
    #[inline]
    pub(crate) fn clear(&mut self, flags: u32) {
        self.flags &= !flags;
    }

    /// No facts hold any more but, of those that do, these.
    pub(crate) fn keep(&mut self, flags: u32) {
        self.flags &= flags;
    }

    /// Its number at the driver.
    #[inline]
    pub(crate) fn driver(&self) -> PeerIndex {
        self.driver
    }

    /// The connection id of the frames that we send.
    #[inline]
    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }

    /// Frame MACs, ours and theirs, where frames have them.
    #[inline]
    pub(crate) fn macs(&self) -> Option<&[FrameMac; 2]> {
        self.macs.as_deref()
    }

    /// The peer that was opened before at the same address.
    pub(crate) fn older(&self) -> Option<PeerIndex> {
        (self.older != NO_PEER).then_some(self.older)
    }

    /// Notes the peer that was opened before at the same address.
    pub(crate) fn set_older(&mut self, older: Option<PeerIndex>) {
        self.older = older.unwrap_or(NO_PEER);
    }

    /// Whether something waits to be sent.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.send.unsent().is_some() || !self.streams.is_empty()
    }

    /// Whether another segment may be sent now.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.flags & (about::UP | about::DOWN) == about::UP && self.send.flight() < self.congestion.window()
    }

    /// Takes an acknowledgement along with a segment, if one is due that is a number alone.
    #[inline]
    pub(crate) fn carry_ack(&mut self) -> bool {
        let carried = self.flags & (about::ACK | about::EXPLICIT) == about::ACK;
        if carried {
            self.flags &= !about::ACK;
            self.recv.acknowledged();
        }
        carried
    }
}

const _: () = assert!(size_of::<Peer>() <= 512, "idle peers are many");
