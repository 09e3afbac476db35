//! Everything of a BTL but its driver: the state that all rooms of the crate work on, and the small steps that several
//! of them need.

use std::collections::{HashMap, VecDeque};

use doorbell_fabric::domain::KeyTable;
use doorbell_fabric::event::{EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::{MsgId, OpError, OpId, PeerIndex};
use doorbell_fabric::recorder::Recorder;
use doorbell_fabric::time::Time;
use doorbell_hotel::Hotel;

use crate::batching::Row;
use crate::config::BtlConfig;
use crate::connectivity::Notice;
use crate::counters::Counters;
use crate::key::JobKey;
use crate::onesided::Operations;
use crate::peer::{Peer, about};
use crate::peers::Peers;
use crate::pool::Id;
use crate::pooled_list::PooledLists;
use crate::reassembly::Reassemblies;
use crate::reconnect::Lives;
use crate::record::Event;
use crate::recv_window::Spare;
use crate::report::Past;
use crate::rtt::Bounds;
use crate::segment::{Segment, Segments};
use crate::serve::Inflow;
use crate::strangers::Strangers;
use crate::stream::Stream;
use crate::wire::MAC;

/// Bytes of the basic header.
pub(crate) const BASIC: usize = 24;

/// Segments that are kept for answers to peers.
pub(crate) const RESERVE: usize = 16;

/// So many short segments count as one long one for acknowledgements: each costs a frame of its own on the way back,
/// and what it lets go of is little.
pub(crate) const LIGHT: u32 = 4;

/// Notices that nobody asked for are forgotten beyond so many.
const NOTICES: usize = 256;

/// How long the owner may be late for a deadline before its absence is not counted as the peer's silence (ns).
const LATE: u64 = 10_000_000;

/// Messages that a peer that is down did not take, for `reclaim`.
pub(crate) type Left = Vec<(MsgId, Vec<u8>)>;

/// The state of a BTL.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: BtlConfig,
    pub(crate) bounds: Bounds,
    /// How long an acknowledgement waits (ns).
    pub(crate) ack_delay: u64,
    pub(crate) counters: Counters,
    pub(crate) key: Option<JobKey>,
    /// Longest frame, and bytes of a segment after the basic header, own header included.
    pub(crate) mtu: usize,
    pub(crate) room: usize,
    /// Longest message that we send.
    pub(crate) longest: usize,
    /// Whether frames carry a CRC, and must.
    pub(crate) crc: bool,

    pub(crate) peers: Peers,
    /// Connections that somebody calls on and nobody has here.
    pub(crate) strangers: Strangers,

    pub(crate) segments: Segments,
    pub(crate) spare: Spare,
    pub(crate) reassemblies: Reassemblies,
    pub(crate) streams: PooledLists<Stream>,
    pub(crate) inflows: PooledLists<Inflow>,
    pub(crate) operations: Operations,
    pub(crate) exposures: KeyTable,
    pub(crate) left: HashMap<PeerIndex, Left>,
    /// Lives of the links to peers that were down.
    pub(crate) lives: HashMap<PeerIndex, Lives>,
    /// What was known of connections that have ended, for explanations.
    pub(crate) past: HashMap<PeerIndex, Past>,
    /// Whether the driver's link is up, as far as it has told.
    pub(crate) link: Option<bool>,

    /// The time of the last `progress` (ns), and the time that the owner has attended to this rail, which is what
    /// silence of a peer is measured by.
    pub(crate) now: u64,
    pub(crate) attended: u64,
    pub(crate) timers: Hotel<PeerIndex>,
    /// Frames sent and received since the last `progress`, and what its empty passes cost, in frames; and one of those.
    pub(crate) moved: u32,
    pub(crate) pass_weight: u32,
    /// Segments posted since the last `progress`: when that was, it will know better.
    pub(crate) unstamped: Vec<Id<Segment>>,

    /// Peers with something to send; segments to be sent again; peers to be acknowledged at the end of the pass, and
    /// later; time-outs to be judged; peers to be probed; probes to be answered; peers to be called.
    pub(crate) ready: VecDeque<PeerIndex>,
    pub(crate) resends: VecDeque<Id<Segment>>,
    pub(crate) acks_now: VecDeque<PeerIndex>,
    pub(crate) acks_later: Vec<PeerIndex>,
    pub(crate) timeouts: VecDeque<PeerIndex>,
    pub(crate) probes: VecDeque<PeerIndex>,
    pub(crate) pongs: VecDeque<(PeerIndex, u32, u32)>,
    pub(crate) calls: VecDeque<PeerIndex>,

    /// Frames that may be posted on each channel without asking; whether the doorbell is to be rung.
    pub(crate) credit: [usize; 2],
    pub(crate) posted: bool,
    /// A message was accepted and not posted, since this was looked at last.
    pub(crate) waiting: bool,
    /// Messages may wait for the check, the window or the device; and the peer of the first that was found.
    pub(crate) held: bool,
    pub(crate) held_at: PeerIndex,
    /// Messages that were posted in a row.
    pub(crate) row: Row,
    /// The last pass took the short way.
    pub(crate) short: bool,
    /// The data channel comes first in the next pass; passes in a row that showed all they might.
    pub(crate) data_first: bool,
    pub(crate) crowded: u32,

    pub(crate) completions: VecDeque<(OpId, Result<u64, OpError>)>,
    pub(crate) events: VecDeque<RailEvent>,
    pub(crate) notices: VecDeque<(PeerIndex, Notice)>,
    /// The last notable events, for the explanation of a failure.
    pub(crate) recorder: Recorder<Event>,

    /// A frame that was received, copied once: what a CRC or MAC is checked over is what is used.
    pub(crate) private: Vec<u8>,
    /// A frame that is not a segment, on its way out.
    pub(crate) plain: Vec<u8>,
    pub(crate) closing: bool,
    pub(crate) closed: bool,
}

impl Core {
    /// Takes the time. Absence of the owner is no silence of its peers.
    pub(crate) fn attend(&mut self, now: Time, expected: Option<u64>) {
        let now = now.nanos().max(self.now);
        let passed = now - self.now;
        let in_time = match expected {
            Some(wake) => wake.saturating_sub(self.now).saturating_add(LATE),
            None => u64::MAX,
        };
        self.attended += passed.min(in_time);
        self.moved = 0;
        if passed > 0 {
            self.stamp(now);
            self.now = now;
        }
    }

    /// What was posted since the last `progress` was posted by now at the latest.
    fn stamp(&mut self, now: u64) {
        let before = self.now;
        while let Some(index) = self.unstamped.pop() {
            let segment = &mut self.segments[index];
            if segment.sent_at == before {
                segment.sent_at = now;
            }
        }
    }

    #[inline]
    pub(crate) fn peer(&mut self, peer: PeerIndex) -> &mut Peer {
        &mut self.peers[peer]
    }

    /// Sees to it that the peer is looked at by `deadline` (ns).
    #[inline]
    pub(crate) fn arm(&mut self, peer: PeerIndex, deadline: u64) {
        let state = &mut self.peers[peer];
        match state.timer {
            Some(_) if state.booked <= deadline => {}
            Some(key) => {
                if self.timers.re_book(key, deadline).is_ok() {
                    state.booked = deadline;
                }
            }
            None => {
                // There are as many rooms as there may be peers.
                state.timer = self.timers.check_in(peer, deadline).ok();
                state.booked = deadline;
            }
        }
    }

    /// Puts a peer that can send into the list of those that do.
    #[inline]
    pub(crate) fn make_ready(&mut self, peer: PeerIndex) {
        let state = &mut self.peers[peer];
        if state.has_work() && !state.is(about::READY) && state.may_send() {
            state.flags |= about::READY;
            self.ready.push_back(peer);
        }
    }

    /// An acknowledgement goes out at the end of this pass.
    #[inline]
    pub(crate) fn ack_now(&mut self, peer: PeerIndex) {
        let state = &mut self.peers[peer];
        state.flags |= about::ACK;
        if !state.is(about::ACK_NOW) {
            state.flags |= about::ACK_NOW;
            self.acks_now.push_back(peer);
        }
    }

    /// An acknowledgement goes out after a while, unless a frame takes it along before.
    #[inline]
    pub(crate) fn ack_later(&mut self, peer: PeerIndex) {
        let at = self.now.saturating_add(self.ack_delay);
        let state = &mut self.peers[peer];
        if state.is(about::ACK) {
            return;
        }
        state.flags |= about::ACK;
        state.ack_at = at;
        if !state.is(about::ACK_LATER) {
            state.flags |= about::ACK_LATER;
            self.acks_later.push(peer);
        }
        if state.timer.is_none() || state.booked > at {
            self.arm(peer, at);
        }
    }

    /// All acknowledgements go out at the end of this pass: the owner is going to sleep, or ends.
    pub(crate) fn ack_everybody(&mut self) {
        while let Some(peer) = self.acks_later.pop() {
            self.peer(peer).flags &= !about::ACK_LATER;
            if self.peer(peer).is(about::ACK) {
                self.ack_now(peer);
            }
        }
    }

    /// Something of the peer has arrived, and it was what it should be.
    #[inline]
    pub(crate) fn mark_alive(&mut self, peer: PeerIndex) {
        let attended = self.attended;
        let state = self.peer(peer);
        state.heard = attended;
        if !state.is(about::GREETED) {
            self.greet(peer);
        }
    }

    #[cold]
    fn greet(&mut self, peer: PeerIndex) {
        self.peer(peer).flags |= about::GREETED;
        self.tell(Scope::Peer(peer), EventKind::PeerUp);
        self.replace(peer);
        let keep_alive = self.now.saturating_add(self.config.keep_alive.as_nanos() as u64);
        self.arm(peer, keep_alive);
    }

    #[cold]
    pub(crate) fn tell(&mut self, scope: Scope, kind: EventKind) {
        let at = Time::from_nanos(self.now);
        let life = match (scope, kind) {
            (Scope::Peer(peer), EventKind::PeerUp) => self.life(peer),
            _ => Life::FIRST,
        };
        self.events.push_back(RailEvent {
            at,
            scope,
            kind,
            life,
        });
        let peer = match scope {
            Scope::Peer(peer) => Some(peer),
            Scope::Rail => None,
        };
        self.record(peer, Event::Told(kind));
    }

    #[cold]
    pub(crate) fn notice(&mut self, peer: PeerIndex, what: Notice) {
        if self.notices.len() == NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back((peer, what));
        self.record(peer, Event::Noticed(what));
    }

    /// Bytes of a frame's MAC.
    #[inline]
    pub(crate) fn mac(&self) -> usize {
        if self.config.frame_mac { MAC } else { 0 }
    }
}
