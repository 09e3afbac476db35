//! The member of a domain: its rails, its PML and its listener.

use std::num::NonZeroU16;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use doorbell_fabric::event::DownReason;
use doorbell_fabric::rail::Rail as _;
use doorbell_job::Config;
use doorbell_job::error::Error;
use doorbell_job::lobby::{Address, MeetingKey, MemberCounters, PeerId, PmlMember};
use doorbell_job::rails::{AnyRail, Manage as _};
use doorbell_pml::{LostReason, LostSends, Pml, Rank};
use doorbell_sim::SimNet;
use libfabric_sys::FI_LOG_CORE;

use crate::info::names::is_over_ipv6;

/// The owner of the rails.
#[derive(Debug)]
pub(crate) struct Member {
    inner: PmlMember,
    counters: MemberCounters,
    key: Option<MeetingKey>,
    is_over_ipv6: bool,
}

impl Member {
    /// Opens the rails that the settings name, under a random name. By `key` it names members of other hosts.
    ///
    /// # Errors
    /// A rail that cannot be used; errors of the system.
    pub(crate) fn enter(config: Config, key: Option<MeetingKey>) -> Result<Self, Error> {
        let counters = MemberCounters::new(*config.counters.place.get());
        Ok(Self {
            is_over_ipv6: is_over_ipv6(&config),
            inner: PmlMember::enter(config)?,
            key,
            counters,
        })
    }

    /// Does the same at a port of this host, or at any that is free.
    ///
    /// # Errors
    /// Those of [`Member::enter`]; `EADDRINUSE` where another member has the port.
    pub(crate) fn enter_at(
        config: Config,
        port: Option<NonZeroU16>,
        key: Option<MeetingKey>,
    ) -> Result<Self, Error> {
        let counters = MemberCounters::new(*config.counters.place.get());
        Ok(Self {
            is_over_ipv6: is_over_ipv6(&config),
            inner: PmlMember::enter_at(config, port, key.as_ref())?,
            key,
            counters,
        })
    }

    /// Takes rails of a simulated network, and its time.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn enter_simulated(
        config: Config,
        rails: Vec<AnyRail>,
        net: &SimNet,
        number: u64,
    ) -> Result<Self, Error> {
        let counters = MemberCounters::new(*config.counters.place.get());
        Ok(Self {
            is_over_ipv6: is_over_ipv6(&config),
            inner: PmlMember::enter_simulated(config, rails, net, number)?,
            counters,
            key: None,
        })
    }

    /// The PML, for operations. The fence has kept calls of a child out.
    #[inline(always)]
    pub(crate) fn pml(&mut self) -> &mut Pml<AnyRail> {
        self.inner.own_pml()
    }

    /// The PML, to be looked at.
    pub(crate) fn pml_ref(&self) -> &Pml<AnyRail> {
        self.inner.counted()
    }

    /// Delivers some arrivals; reads no clock. Returns the work done.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> usize {
        self.pml().poll()
    }

    /// Does what depends on the clock: the listener, peers that are to be met, ends, the counter file.
    /// Returns whether there is more to do soon: something was done, or sends wait for peers that are to be
    /// met.
    #[cold]
    pub(crate) fn keep(&mut self) -> bool {
        let work = self.inner.progress();
        if let Some(shortage) = self.inner.take_shortage() {
            crate::log::warn(
                FI_LOG_CORE,
                &format!("other processes wait to be met: {shortage}"),
            );
        }
        // Their requests have ended, and were reported.
        while let Some((rank, reason)) = self.inner.lost() {
            if self.counters.is_on() {
                let sentence = self.loss(rank, reason);
                self.counters.note_loss(sentence);
            }
        }
        self.counters.update(&self.inner);
        work > 0 || self.pml().has_unmet_sends()
    }

    /// Returns the next messages that were lost after they had been reported as sent.
    pub(crate) fn lost_sends(&mut self) -> Option<LostSends> {
        self.pml().next_lost_sends()
    }

    /// Returns the next peer that has contacted this process first, or again.
    pub(crate) fn appeared(&mut self) -> Option<(Rank, PeerId)> {
        loop {
            let rank = self.inner.appeared()?;
            if let Some(peer) = self.peer(rank) {
                return Some((rank, peer));
            }
        }
    }

    /// An address vector has the number of a peer that was not looked up.
    #[cold]
    pub(crate) fn own(&mut self, rank: Rank) {
        self.inner.own(rank);
    }

    /// Returns the address of a peer's endpoint.
    #[cold]
    pub(crate) fn address_of(&self, rank: Rank, endpoint: u8) -> Option<Address> {
        self.inner.address_of(rank, endpoint)
    }

    /// Returns the number that a peer has now.
    pub(crate) fn known(&self, peer: &PeerId) -> Option<Rank> {
        self.inner.known(peer)
    }

    /// No address vector has a number any more: the peer is forgotten when it has ended.
    #[cold]
    pub(crate) fn disown(&mut self, rank: Rank) {
        self.inner.disown(rank);
    }

    /// How long the next call of [`Member::keep`] can wait.
    pub(crate) fn idle(&self) -> Option<Duration> {
        self.inner.idle()
    }

    /// Prepares a sleep on the descriptors that are passed to `each`. Returns whether there is work first.
    pub(crate) fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.inner.arm(each)
    }

    /// Ends what [`Member::arm`] has prepared.
    pub(crate) fn disarm(&mut self) {
        self.inner.disarm();
    }

    /// Returns the number of the peer that an address is of: another one where it is lost, since it may have
    /// come back. No contact is made.
    ///
    /// # Errors
    /// An address of another host.
    pub(crate) fn resolve(&mut self, to: &Address) -> Result<Rank, Error> {
        self.inner.resolve_again(to)
    }

    /// Returns the length of the longest message that is one frame on every rail: no bound within a host,
    /// where a message lies in the peer's memory once it is taken.
    pub(crate) fn one_frame(&self) -> usize {
        /// More than the header of a message.
        const FRONT: usize = 64;
        let rails = self.inner.counted().rails();
        let far = rails.filter(|(_, rail)| !rail.capabilities().features.within_host);
        let room = far.map(|(_, rail)| rail.in_one_frame().saturating_sub(FRONT));
        room.min().unwrap_or(usize::MAX)
    }

    /// Reports to a peer all that was taken of its messages. The fence has kept calls of a child out.
    #[cold]
    pub(crate) fn acknowledge(&mut self, rank: Rank) {
        self.inner.acknowledge(rank);
    }

    /// Returns the key by which a node and a service name members of other hosts, if there is one.
    pub(crate) fn key(&self) -> Option<&MeetingKey> {
        self.key.as_ref()
    }

    /// Whether the rails to other hosts have addresses of IPv6, by the settings.
    pub(crate) fn is_over_ipv6(&self) -> bool {
        self.is_over_ipv6
    }

    /// Whether the member of an address can be met.
    pub(crate) fn reaches(&self, to: &Address) -> bool {
        self.inner.reaches(to)
    }

    /// Returns which member has a number.
    pub(crate) fn peer(&self, rank: Rank) -> Option<PeerId> {
        self.inner.peer(rank).copied()
    }

    /// The address of an endpoint, as its name.
    pub(crate) fn address(&self, endpoint: u8) -> Address {
        self.inner.address(endpoint)
    }

    /// Whether something that was accepted has not left yet: a send is under way, held back by a rail, or
    /// waits for its peer to be met or for a path to it; or a message that an endpoint has injected waits for
    /// its peer's window.
    pub(crate) fn has_unsent(&mut self, endpoint: u8) -> bool {
        let pml = self.inner.pml();
        pml.must_poll()
            || pml.holds_back(None)
            || pml.has_unmet_sends()
            || pml.waits_for_a_path()
            || pml.has_promised(endpoint)
    }

    /// Sends what was accepted, for at most `limit`.
    pub(crate) fn close(&mut self, limit: Duration) {
        self.inner.close(limit);
    }

    /// Does a part of that. Returns whether it is done, or the time is over; then the rails are closed.
    pub(crate) fn close_pass(&mut self, until: Instant) -> bool {
        self.inner.close_pass(until)
    }

    /// A peer in words.
    #[cold]
    pub(crate) fn name_of(&self, rank: Rank) -> String {
        match self.inner.peer_text(rank) {
            Some(peer) => format!("peer {peer}"),
            None => "a peer that is forgotten".to_owned(),
        }
    }

    /// Describes the loss of a peer in one sentence.
    #[cold]
    pub(crate) fn loss(&mut self, rank: Rank, reason: LostReason) -> String {
        let name = self.name_of(rank);
        let rails: Vec<String> = self
            .inner
            .pml()
            .peer(rank)
            .map_or_else(Vec::new, |peer| peer.paths.iter().map(|path| path.rail).collect())
            .into_iter()
            .filter_map(|rail| {
                let rail = self.inner.pml().rail(rail)?;
                Some(doorbell_fabric::rail::Rail::name(rail).to_string())
            })
            .collect();
        let over = match rails.len() {
            0 => String::new(),
            _ => format!(" over {}", rails.join(", ")),
        };
        // The line of a process that has ended is closed at the desk.
        let is_ended = matches!(reason, LostReason::Peer(DownReason::Control | DownReason::Died));
        let (why, next) = match (reason, self.inner.trouble(rank)) {
            (LostReason::Unmet | LostReason::Peer(DownReason::Resources), Some(trouble)) => {
                (trouble, reason.advice())
            }
            _ if is_ended => (
                "its process or its domain has ended",
                "see its last output, and with which status it ended",
            ),
            _ => (reason.as_str(), reason.advice()),
        };
        format!("{name}{over} is lost: {why}; {next}")
    }
}
