//! Links: peers over all the rails that lead to them, in order, exactly once, whichever rail fails.

use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{
    Access, Arrivals, Body, Exposure, Inbound, Incarnation, Landing, Message, OpError, OpId, PeerIndex,
    Refused, Remote, RemoteKey,
};
use doorbell_fabric::rail::Armed;
use doorbell_fabric::time::Time;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian};

/// A peer of this link: dense, from zero, in the order of `add_peer`. The first one is this process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PeerId(pub(crate) u32);

impl PeerId {
    /// This process itself: what is sent to it is queued, and shown by [`Link::poll`].
    pub(crate) const SELF: Self = Self(0);

    /// As an index into a table of peers.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A rail of a node: its number in the order of `add_rail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RailId(pub u16);

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct First {
    /// What it is: below 0x80 the layer above says what, from there on it is the link's own.
    pub(crate) kind: u8,
    /// The layer above's.
    pub(crate) flags: u8,
    /// The layer above's.
    pub(crate) short: little_endian::U16,
    /// The link's: the number among the messages to this peer.
    pub(crate) seq: little_endian::U32,
}
const _: () = assert!(size_of::<First>() == FIRST_LEN);

/// Bytes of [`First`].
pub(crate) const FIRST_LEN: usize = 8;
/// The kinds from here on are the link's own.
pub(crate) const OWN_KINDS: u8 = 0x80;
/// Longest head of a message.
pub(crate) const HEAD_MOST: usize = 64;

/// Where a link delivers.
pub(crate) trait Upper {
    /// A message of `peer`, in order and exactly once. The first eight bytes of `inbound` are `first`.
    fn message(&mut self, peer: PeerId, first: First, inbound: Inbound<'_>);

    /// A one-sided operation that [`Link::get`] started has ended.
    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>);
}

/// Settings of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkConfig {
    /// How long a peer without a way is waited for; zero: not at all.
    pub(crate) patience: Duration,
    /// Bytes of urgent messages that may wait for one peer's ways, and of messages to this process itself.
    pub(crate) backlog: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(10),
            backlog: 4 << 20,
        }
    }
}

/// The rails of a node, and its peers.
#[derive(Debug)]
pub(crate) struct Link<M> {
    config: LinkConfig,
    rails: Vec<Slot<M>>,
    peers: Vec<Peer>,
    own: std::collections::VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct Slot<M> {
    rail: M,
    names: Vec<u32>,
}

#[derive(Debug, Default)]
struct Peer {
    ways: Vec<(RailId, PeerIndex)>,
    next: u32,
    expected: u32,
}

impl<M: Message> Link<M> {
    pub(crate) fn new(config: LinkConfig) -> Self {
        Self {
            config,
            rails: Vec::new(),
            peers: vec![Peer::default()],
            own: Default::default(),
        }
    }

    /// Adds a rail.
    pub(crate) fn add_rail(&mut self, rail: M) -> RailId {
        self.rails.push(Slot {
            rail,
            names: Vec::new(),
        });
        RailId((self.rails.len() - 1) as u16)
    }

    pub(crate) fn rail(&self, rail: RailId) -> Option<&M> {
        self.rails.get(usize::from(rail.0)).map(|slot| &slot.rail)
    }

    pub(crate) fn rail_mut(&mut self, rail: RailId) -> Option<&mut M> {
        self.rails.get_mut(usize::from(rail.0)).map(|slot| &mut slot.rail)
    }

    pub(crate) fn rails(&self) -> impl Iterator<Item = (RailId, &M)> {
        (0..).map(RailId).zip(self.rails.iter().map(|slot| &slot.rail))
    }

    /// Adds a peer, without a way yet.
    pub(crate) fn add_peer(&mut self) -> PeerId {
        self.peers.push(Peer::default());
        PeerId((self.peers.len() - 1) as u32)
    }

    /// One more way to a peer: the n-th is way n, which is to be so at both ends.
    pub(crate) fn connect(
        &mut self,
        peer: PeerId,
        rail: RailId,
        address: &RailAddress,
        incarnation: Incarnation,
    ) -> Result<(), RailError> {
        let slot = &mut self.rails[usize::from(rail.0)];
        let index = slot.rail.open(address, incarnation)?;
        if slot.names.len() <= index.index() {
            slot.names.resize(index.index() + 1, u32::MAX);
        }
        slot.names[index.index()] = peer.0;
        self.peers[peer.index()].ways.push((rail, index));
        Ok(())
    }

    /// Sends `head`, which begins with [`First`], and `body`. Its number is filled in here.
    pub(crate) fn send(
        &mut self,
        peer: PeerId,
        head: &mut [u8],
        body: Body<'_>,
        urgent: bool,
    ) -> Result<(), Refused> {
        let _ = urgent;
        let at = self.peers.get_mut(peer.index()).ok_or(Refused::PeerDown)?;
        if let Some(seq) = head.get_mut(4..8) {
            seq.copy_from_slice(&at.next.to_le_bytes());
        }
        if peer == PeerId::SELF {
            let mut bytes = head.to_vec();
            match body {
                Body::Empty => {}
                Body::Bytes(more) => bytes.extend_from_slice(more),
                Body::Loan(loan) => bytes.extend(loan.as_shared().to_vec()),
                Body::Parts(parts) => parts
                    .iter()
                    .for_each(|loan| bytes.extend(loan.as_shared().to_vec())),
                Body::Shared(more) => bytes.extend(more.to_vec()),
                Body::Region(slice) => bytes.extend(slice.as_shared().to_vec()),
            }
            self.own.push_back(bytes);
            at.next = at.next.wrapping_add(1);
            return Ok(());
        }
        let &(rail, index) = at.ways.first().ok_or(Refused::PeerDown)?;
        self.rails[usize::from(rail.0)].rail.send(index, head, body)?;
        at.next = at.next.wrapping_add(1);
        Ok(())
    }

    /// Whether a message that is not urgent would probably be taken now.
    pub(crate) fn room(&self, peer: PeerId) -> bool {
        self.peers.get(peer.index()).is_some()
    }

    /// Shows up to `budget` arrivals and completions.
    pub(crate) fn poll<U: Upper>(&mut self, budget: usize, upper: &mut U) -> usize {
        let mut shown = 0;
        while let Some(bytes) = self.own.pop_front().filter(|_| shown < budget) {
            if let Some(head) = bytes.first_chunk::<FIRST_LEN>() {
                let first = zerocopy::transmute!(*head);
                upper.message(
                    PeerId::SELF,
                    first,
                    Inbound::whole(doorbell_fabric::memory::SharedBytes::of(&bytes)),
                );
            }
            shown += 1;
        }
        for slot in &mut self.rails {
            let mut sink = Sink {
                names: &slot.names,
                peers: &mut self.peers,
                upper,
            };
            shown += slot.rail.poll(budget.saturating_sub(shown), &mut sink);
        }
        shown
    }

    /// Housekeeping that needs the time.
    pub(crate) fn progress(&mut self, now: Time) -> usize {
        self.rails.iter_mut().map(|slot| slot.rail.progress(now)).sum()
    }

    /// When [`Link::progress`] has something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.rails
            .iter()
            .filter_map(|slot| slot.rail.next_deadline())
            .min()
    }

    /// Prepares to sleep: `each` is told of every rail how. Whether one of them has work already.
    pub(crate) fn arm(&mut self, each: &mut dyn FnMut(RailId, Armed<'_>)) -> Result<(), RailError> {
        for (at, slot) in (0..).zip(&mut self.rails) {
            each(RailId(at), slot.rail.arm()?);
        }
        Ok(())
    }

    /// Ends the sleep.
    pub(crate) fn disarm(&mut self) {
        self.rails.iter_mut().for_each(|slot| slot.rail.disarm());
    }

    /// Pushes out everything that was accepted.
    pub(crate) fn flush(&mut self) {
        self.rails.iter_mut().for_each(|slot| slot.rail.flush());
    }

    /// Orderly end; to be called with a fresh `now` until it answers `true`, at `by` at the latest.
    pub(crate) fn close(&mut self, now: Time, by: Time) -> bool {
        let mut done = true;
        for slot in &mut self.rails {
            done &= slot.rail.close(now, by);
        }
        done
    }

    /// Exposes memory to a peer over a way that can; `None` where there is none. The way's number is the same at the
    /// peer.
    pub(crate) fn expose(&mut self, peer: PeerId, what: Exposure, access: Access) -> Option<(u16, Remote)> {
        let (at, &(rail, index)) = (0..).zip(&self.peers.get(peer.index())?.ways).next()?;
        let rail = &mut self.rails[usize::from(rail.0)].rail;
        rail.expose(what, access, Some(index))
            .ok()
            .map(|remote| (at, remote))
    }

    /// Revokes what was exposed.
    pub(crate) fn withdraw(&mut self, peer: PeerId, way: u16, key: RemoteKey) {
        let ways = self.peers.get(peer.index()).map(|peer| &peer.ways[..]);
        if let Some(&(rail, _)) = ways.unwrap_or_default().get(usize::from(way)) {
            self.rails[usize::from(rail.0)].rail.withdraw(key);
        }
    }

    /// Reads the peer's memory over one way. Ends in [`Upper::completed`], with an error also when the way breaks; until
    /// then `into` is kept.
    pub(crate) fn get(
        &mut self,
        peer: PeerId,
        way: u16,
        op: OpId,
        from: &Remote,
        into: Landing,
    ) -> Result<(), Refused> {
        let ways = self.peers.get(peer.index()).map(|peer| &peer.ways[..]);
        let &(rail, index) = ways
            .unwrap_or_default()
            .get(usize::from(way))
            .ok_or(Refused::PeerDown)?;
        self.rails[usize::from(rail.0)].rail.get(index, op, from, into)
    }

    /// Sizes for messages to this peer.
    pub(crate) fn sizes(&self, peer: PeerId) -> Sizes {
        let ways = self.peers.get(peer.index()).map(|peer| &peer.ways[..]);
        let Some(&(rail, _)) = ways.unwrap_or_default().first() else {
            return Sizes::OWN;
        };
        let can = self.rails[usize::from(rail.0)].rail.capabilities();
        Sizes {
            message: can.limits.message,
            eager: can.limits.eager,
            fragment: can.limits.fragment,
            get_from: can.features.get.then_some(can.limits.get_from),
        }
    }

    /// The next peer that is lost: all of its ways are gone for good, or patience with them is over.
    pub(crate) fn lost(&mut self) -> Option<(PeerId, DownReason)> {
        None
    }
}

/// What sizes suit the ways of a peer, in bytes, head and body together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Longest message: a longer one is refused.
    pub(crate) message: usize,
    /// Largest message that is better sent at once than announced.
    pub(crate) eager: usize,
    /// Best size of a fragment.
    pub(crate) fragment: usize,
    /// From here on a get is better than fragments; `None` where no way offers it.
    pub(crate) get_from: Option<usize>,
}

impl Sizes {
    /// Those of messages to this process itself, and to a peer without ways.
    const OWN: Self = Self {
        message: 128 << 10,
        eager: 16 << 10,
        fragment: 64 << 10,
        get_from: None,
    };
}

struct Sink<'a, U> {
    names: &'a [u32],
    peers: &'a mut [Peer],
    upper: &'a mut U,
}

impl<U: Upper> Arrivals for Sink<'_, U> {
    #[inline]
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let (Some(head), Some(&name)) = (inbound.read::<FIRST_LEN>(0), self.names.get(peer.index())) else {
            return;
        };
        let first: First = zerocopy::transmute!(head);
        let Some(peer) = self.peers.get_mut(name as usize) else {
            return;
        };
        if first.seq.get() == peer.expected {
            peer.expected = peer.expected.wrapping_add(1);
            self.upper.message(PeerId(name), first, inbound);
        }
    }

    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.upper.completed(op, outcome);
    }
}
