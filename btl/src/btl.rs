//! [`Btl`] itself: construction over a driver, the job's key, settings, diagnostics.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Caller, Incarnation, PeerIndex};
use doorbell_fabric::recorder::Recorder;

use crate::config::BtlConfig;
use crate::connectivity::{Diagnosis, Notice, Why};
use crate::core::Core;
use crate::counters::Counters;
use crate::error::BtlError;
use crate::framing::{Framing, MOST_MTU};
use crate::key::{End, JobKey};
use crate::onesided::LONGEST;
use crate::peer::{Connection, Peer, about};
use crate::record::Event;
use crate::report::InUse;
use crate::send::{HEAD, PARTS, RESERVE};
use crate::wire::{BASIC, Kind};

/// Least MTU: the longest header and something behind it.
const LEAST_MTU: usize = 256;

/// What a small message costs here, on top of its driver (ns).
const OWN_LATENCY: u64 = 50;

/// Messages over a rail of datagrams. See the crate's documentation.
#[derive(Debug)]
pub struct Btl<D> {
    pub(crate) driver: D,
    pub(crate) core: Core,
    pub(crate) capabilities: Capabilities,
    pub(crate) incarnation: Incarnation,
    pub(crate) finished: bool,
}

impl<D: Datagram> Btl<D> {
    /// Makes a BTL over `driver`, for this life of this process. Before the first peer is opened, it needs
    /// the job's key ([`Btl::set_key`]); its address can be published before.
    ///
    /// # Errors
    /// [`BtlError`], when a setting is out of its bounds, the rail's frames are too short, or memory or
    /// random numbers are not available.
    pub fn new(driver: D, config: BtlConfig, incarnation: Incarnation) -> Result<Self, BtlError> {
        config.validate()?;
        let theirs = *driver.capabilities();
        let mtu = theirs.limits.message.min(MOST_MTU);
        if mtu < LEAST_MTU {
            return Err(BtlError::Mtu {
                rail: driver.name().to_string(),
                mtu,
                least: LEAST_MTU,
            });
        }
        let crc = !theirs.features.checksum && !config.frame_mac;
        let framing = Framing::new(mtu, crc, config.frame_mac);
        let chunk = framing.room() - Kind::Chunk.header();
        let most = (config.window as usize).min(config.segments) / 2 - RESERVE;
        let longest = config.eager_limit.min(most * chunk);
        let capabilities = capabilities(&theirs, &config, longest);
        let core = Core::new(config, framing, longest, driver.poll_cost())?;
        Ok(Self {
            driver,
            core,
            capabilities,
            incarnation,
            finished: false,
        })
    }

    /// Sets the job's key, from which every connection id is derived. To be called once, before the first
    /// peer is opened; peers that are open keep what was derived for them.
    pub fn set_key(&mut self, key: JobKey) {
        self.core.key = Some(key);
    }

    /// Sets the key of the peer at this address, in this life, which holds for the connection to it instead
    /// of the job's: both ends need the same one. To be called before the peer is opened; one that is open
    /// keeps its key. Keys that wait for their peers to be opened are as many as there may be peers, at most;
    /// the oldest is dropped for one more.
    pub fn set_key_of(&mut self, address: &RailAddress, life: Incarnation, key: JobKey) {
        let name = (self.core.peers.place(address), life.0);
        self.core.peer_keys.set(name, key);
    }

    /// Returns the rail's incarnation, which is published with the address.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Longest message, its head included, that goes in one frame of the rail of datagrams, in bytes. Longer
    /// ones are cut into chunks.
    pub fn in_one_frame(&self) -> usize {
        self.core.framing.room().min(self.core.longest())
    }

    /// The rail of datagrams.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The rail of datagrams, for settings of its own. Frames that are sent or received here are the BTL's
    /// loss.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Returns the counters since the BTL was made.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// The settings it was made with.
    pub fn config(&self) -> &BtlConfig {
        &self.core.config
    }

    /// Simulates a broken path to a peer, or to all: each goes down as [`Silent`](DownReason::Silent), with
    /// its event. For fault injection; the owner may revive them.
    pub fn sever(&mut self, peer: Option<PeerIndex>) {
        for index in self.core.peers.indices() {
            if peer.is_none_or(|peer| peer == index) {
                self.core.fail_peer(index, DownReason::Silent);
            }
        }
    }

    /// Acknowledges at once what has come from a peer, if an acknowledgement is due to go later: for an owner
    /// that may not call again for long, while the peer waits for it.
    pub fn acknowledge(&mut self, peer: PeerIndex) {
        let is_owed = |peer: &Peer| peer.is(about::ACK);
        if self.core.peers.get(peer).is_some_and(is_owed) {
            self.core.ack_now(peer);
            let (tx, _) = self.driver.split();
            self.core.service(tx);
        }
    }

    /// Whether several time-outs in a row have passed without an answer of this peer, or it has never
    /// answered the probes before its first use: it may be gone, computing without polling, or behind a
    /// firewall.
    pub fn is_suspect(&self, peer: PeerIndex) -> bool {
        let state = self.core.peers.get(peer);
        state.is_some_and(|state| state.is(about::SUSPECT)) || self.core.is_silent_so_far(peer)
    }

    /// Returns what the connectivity check has found out about a peer: its last result, or, while one goes
    /// on, that only one of the two sizes came back so far, or nothing for a second. `None` before it came to
    /// a result.
    pub fn diagnosis(&self, peer: PeerIndex) -> Option<Diagnosis> {
        let last = self.core.peers.get(peer)?.check.result();
        let silent = || self.core.is_silent_so_far(peer).then_some(Diagnosis::Nothing);
        self.core.found_so_far(peer).or_else(silent).or(last)
    }

    /// The smoothed round-trip time to a peer, in nanoseconds; `None` before it was measured.
    pub fn round_trip(&self, peer: PeerIndex) -> Option<u64> {
        self.core.peers.get(peer)?.rtt.smooth()
    }

    /// Returns the oldest notice that was not returned yet; the last 256 are kept. A caller that reads the
    /// events ([`Rail::event`](doorbell_fabric::rail::Rail::event)) does not need notices: they repeat the
    /// events, or give the reason.
    pub fn notice(&mut self) -> Option<(PeerIndex, Notice)> {
        self.core.journal.next_notice()
    }

    /// Returns how much is in use of everything that peers share.
    pub fn in_use(&self) -> InUse {
        self.core.in_use()
    }

    /// The flight recorder: the last notable events, at most [`BtlConfig::recorder`].
    pub fn recorder(&self) -> &Recorder<Event> {
        self.core.journal.recorder()
    }

    /// The last `most` notable events about a peer and about the rail, one line each, newest last. Their
    /// times are those before the last call of `progress`.
    pub fn recent(&self, peer: PeerIndex, most: usize) -> Vec<String> {
        let now = self.core.clock.time();
        self.core.journal.recorder().lines(peer, now, most)
    }

    /// The id under which [`Btl::next_stranger`] reports this peer: that of the connection on which it sends
    /// to us.
    pub(crate) fn name_of(&self, address: &RailAddress, life: Incarnation) -> Option<Caller> {
        let name = (self.core.peers.place(address), life.0);
        let (key, ours) = (self.core.key_of(name)?, self.driver.address());
        if address.kind != ours.kind {
            return None;
        }
        let link = key.link(&End(address, life), &End(&ours, self.incarnation));
        Some(doorbell_fabric::strangers::name(link.connection))
    }

    /// Makes a peer known; see [`Message::open`](doorbell_fabric::message::Message::open).
    pub(crate) fn open_peer(
        &mut self,
        address: &RailAddress,
        life: Incarnation,
    ) -> Result<PeerIndex, RailError> {
        let ours = self.driver.address();
        let (us, them) = (End(&ours, self.incarnation), End(address, life));
        let place = self.core.peers.place(address);
        let name = (place, life.0);
        let Some(key) = self.core.key_of(name) else {
            return Err(RailError::misuse(
                "btl",
                &self.driver.name().to_string(),
                "has no key for this peer yet: call `set_key`, or `set_key_of`, before `open`",
            ));
        };
        let (out, from) = (key.link(&us, &them), key.link(&them, &us));
        let known = self.core.peers.of_connection(from.connection);
        if let Some(known) = known.filter(|known| !self.core.peers[*known].is(about::LEAVING)) {
            return Ok(known);
        }
        let macs = self
            .core
            .config
            .frame_mac
            .then(|| Box::new([key.mac(&us, &them), key.mac(&them, &us)]));
        if let Some(left) = known {
            // Forgotten, and opened again under the same key.
            self.core.take_out(left);
        }
        if self.core.peers.count() >= self.core.config.max_peers {
            return Err(RailError::Unusable {
                rail: self.driver.name().to_string(),
                reason: format!(
                    "{} peers are open, as many as there may be",
                    self.core.peers.count()
                ),
                remedy: "raise the setting `max_peers` of the BTL".to_owned(),
            });
        }
        let driver = self.driver.open(address, life)?;
        let core = &mut self.core;
        let id = from.connection;
        let connection = Connection {
            out,
            from,
            macs,
            initial_window: core.config.initial_window,
            first: core.config.first_sequence,
        };
        let mut peer = Peer::new(driver, connection, core.clock.attended());
        if !core.config.connectivity_check {
            peer.set(about::UP);
        }
        core.strangers.forget(id);
        let index = core.peers.open(id, place, peer);
        core.peer_keys.opened(name, index);
        core.hellos.forget_contact(driver);
        core.make_room();
        core.record(index, Event::Opened);
        if core.peer_keys.has(index) {
            // Such a peer may have gone since it sent its key, and nothing else looks for it.
            core.start_check(index, Why::First);
        }
        Ok(index)
    }
}

fn capabilities(theirs: &Capabilities, config: &BtlConfig, longest: usize) -> Capabilities {
    Capabilities {
        features: Features {
            get: true,
            put: true,
            atomics: true,
            gather: true,
            reclaim: true,
            within_host: false,
            checksum: true,
            port: theirs.features.port,
        },
        limits: Limits {
            head: HEAD,
            message: longest,
            inline: theirs
                .limits
                .inline
                .saturating_sub(BASIC)
                .clamp(64, config.priority_limit.max(64)),
            eager: longest,
            fragment: longest,
            get_from: longest + 1,
            parts: PARTS,
            one_sided: LONGEST,
        },
        estimate: Estimate {
            latency_ns: theirs.estimate.latency_ns + OWN_LATENCY,
            ..theirs.estimate
        },
    }
}
