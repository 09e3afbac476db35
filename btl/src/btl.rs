//! The BTL as its owner holds it: made of a driver, given the job's key, asked what it knows.

use std::collections::{HashMap, VecDeque};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::domain::KeyTable;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::{Caller, Incarnation, PeerIndex};
use doorbell_fabric::recorder::Recorder;
use doorbell_fabric::time::Time;
use doorbell_hotel::Hotel;

use crate::batching::Row;
use crate::config::BtlConfig;
use crate::connectivity::{Diagnosis, Notice};
use crate::core::{BASIC, Core, RESERVE};
use crate::counters::Counters;
use crate::error::BtlError;
use crate::key::{End, JobKey};
use crate::onesided::{LONGEST, Operations};
use crate::peer::{Peer, about};
use crate::peers::Peers;
use crate::pooled_list::PooledLists;
use crate::reassembly::Reassemblies;
use crate::record::Event;
use crate::recv_window::Spare;
use crate::report::InUse;
use crate::rtt::Bounds;
use crate::segment::Segments;
use crate::send::{HEAD, PARTS};
use crate::strangers::{self, Strangers};
use crate::wire::{Kind, MAC};

/// Least MTU: the longest header and something behind it.
const LEAST_MTU: usize = 256;

/// Longest frame whose length fits the header's 16 bits.
const MOST_MTU: usize = 65_535;

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
    /// Makes a BTL over `driver`, for this life of this process. Before the first peer is opened, it needs the job's
    /// key ([`Btl::set_key`]); its address can be published before.
    ///
    /// # Errors
    /// [`BtlError`], when a setting is out of its bounds, the rail's frames are too short, or memory or random numbers
    /// cannot be had.
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
        let mac = if config.frame_mac { MAC } else { 0 };
        let room = mtu - BASIC - mac;
        let chunk = room - Kind::Chunk.header();
        let most = (config.window as usize).min(config.segments) / 2 - RESERVE;
        let longest = config.eager_limit.min(most * chunk);
        let capabilities = capabilities(&theirs, &config, longest);
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let core = Core {
            bounds: Bounds {
                first: nanos(config.retrans_timeout),
                tail: nanos(config.retrans_tail),
                least: nanos(config.retrans_least),
                most: nanos(config.retrans_most),
            },
            ack_delay: nanos(config.ack_delay),
            counters: Counters::default(),
            key: None,
            mtu,
            room,
            longest,
            crc: !theirs.features.checksum && !config.frame_mac,
            peers: Peers::new(),
            strangers: Strangers::new(),
            segments: Segments::new(config.segments, mtu),
            spare: Spare::default(),
            reassemblies: Reassemblies::new(config.max_reassemblies, config.eager_limit),
            streams: PooledLists::new(2 * config.operations),
            // Bounded for each peer.
            inflows: PooledLists::new(usize::MAX),
            operations: Operations::new(config.operations)?,
            exposures: KeyTable::new(config.exposures)?,
            left: HashMap::new(),
            lives: HashMap::new(),
            past: HashMap::new(),
            link: None,
            now: 0,
            attended: 0,
            timers: Hotel::new(config.max_peers, 0)?,
            moved: 0,
            pass_weight: crate::rail::weight(driver.poll_cost()),
            unstamped: Vec::with_capacity(256),
            ready: VecDeque::new(),
            resends: VecDeque::new(),
            acks_now: VecDeque::new(),
            acks_later: Vec::new(),
            timeouts: VecDeque::new(),
            probes: VecDeque::new(),
            pongs: VecDeque::new(),
            calls: VecDeque::new(),
            credit: [0; 2],
            posted: false,
            waiting: false,
            held: false,
            held_at: PeerIndex(0),
            row: Row::new(),
            short: false,
            data_first: false,
            crowded: 0,
            completions: VecDeque::new(),
            events: VecDeque::new(),
            notices: VecDeque::new(),
            recorder: Recorder::new(config.recorder),
            // The other end's frames may be longer than ours.
            private: vec![0; MOST_MTU],
            plain: vec![0; mtu],
            closing: false,
            closed: false,
            config,
        };
        Ok(Self {
            driver,
            core,
            capabilities,
            incarnation,
            finished: false,
        })
    }

    /// Sets the job's key, from which every connection id is derived. To be called once, before the first peer is
    /// opened; peers that are open keep what was derived for them.
    pub fn set_key(&mut self, key: JobKey) {
        self.core.key = Some(key);
    }

    /// Which life of this process the rail belongs to: published with the address.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Longest message, its head included, that goes in one frame of the rail of datagrams, in bytes. Longer ones are cut into
    /// chunks.
    pub fn in_one_frame(&self) -> usize {
        self.core.room.min(self.core.longest)
    }

    /// The rail of datagrams.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The rail of datagrams, for settings of its own. Frames that are sent or received here are the BTL's loss.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// The settings it was made with.
    pub fn config(&self) -> &BtlConfig {
        &self.core.config
    }

    /// As if the way to a peer, or to all, had broken: down as [`Silent`](DownReason::Silent), and told so. For tests and
    /// drills; the owner may revive it whenever it likes.
    pub fn sever(&mut self, peer: Option<PeerIndex>) {
        for index in self.core.peers.indices() {
            if peer.is_none_or(|peer| peer == index) {
                self.core.fail_peer(index, DownReason::Silent);
            }
        }
    }

    /// Whether several time-outs in a row have passed without an answer of this peer, or it has never
    /// answered the probes before its first use: it may be gone, computing without polling, or behind a
    /// firewall.
    pub fn is_suspect(&self, peer: PeerIndex) -> bool {
        let state = self.core.peers.get(peer);
        state.is_some_and(|state| state.is(about::SUSPECT)) || self.core.is_silent_so_far(peer)
    }

    /// What the connectivity check has found out about a peer: its last result, or, while one goes on, that only one of
    /// the two sizes came back so far, or nothing for a second. `None` before it came to a result.
    pub fn diagnosis(&self, peer: PeerIndex) -> Option<Diagnosis> {
        let last = self.core.peers.get(peer)?.check.result;
        let silent = || self.core.is_silent_so_far(peer).then_some(Diagnosis::Nothing);
        self.core.found_so_far(peer).or_else(silent).or(last)
    }

    /// The smoothed round-trip time to a peer, in nanoseconds; `None` before it was measured.
    pub fn round_trip(&self, peer: PeerIndex) -> Option<u64> {
        self.core.peers.get(peer)?.rtt.smooth()
    }

    /// The next notice, oldest first, of those that nobody has asked for. The last 256 are kept. Who follows the events
    /// ([`Rail::event`](doorbell_fabric::rail::Rail::event)) needs none of them: they say the same, or why.
    pub fn notice(&mut self) -> Option<(PeerIndex, Notice)> {
        self.core.notices.pop_front()
    }

    /// What is taken of everything that peers share.
    pub fn in_use(&self) -> InUse {
        self.core.in_use()
    }

    /// The last notable events, as many as [`BtlConfig::recorder`] says.
    pub fn recorder(&self) -> &Recorder<Event> {
        &self.core.recorder
    }

    /// The last `most` notable events about a peer and about the rail, one line each, newest last. Their times are those
    /// before the last call of `progress`.
    pub fn recent(&self, peer: PeerIndex, most: usize) -> Vec<String> {
        let now = Time::from_nanos(self.core.now);
        self.core.recorder.lines(peer, now, most)
    }

    /// The name by which a peer would call: the connection of what it sends to us.
    pub(crate) fn name_of(&self, address: &RailAddress, life: Incarnation) -> Option<Caller> {
        let (key, ours) = (self.core.key.as_ref()?, self.driver.address());
        if address.kind != ours.kind {
            return None;
        }
        let link = key.link(&End(address, life), &End(&ours, self.incarnation));
        Some(strangers::name(link.connection))
    }

    /// Makes a peer known; see [`Message::open`](doorbell_fabric::message::Message::open).
    pub(crate) fn open_peer(
        &mut self,
        address: &RailAddress,
        life: Incarnation,
    ) -> Result<PeerIndex, RailError> {
        let ours = self.driver.address();
        let (us, them) = (End(&ours, self.incarnation), End(address, life));
        let Some(key) = &self.core.key else {
            return Err(RailError::misuse(
                "btl",
                &self.driver.name().to_string(),
                "has no job key yet: call `set_key` before the first `open`",
            ));
        };
        let (out, from, place) = (key.link(&us, &them), key.link(&them, &us), key.place(address));
        if let Some(known) = self.core.peers.of_connection(from.connection) {
            return Ok(known);
        }
        let macs = self
            .core
            .config
            .frame_mac
            .then(|| Box::new([key.mac(&us, &them), key.mac(&them, &us)]));
        if self.core.peers.len() >= self.core.config.max_peers {
            return Err(RailError::Unusable {
                rail: self.driver.name().to_string(),
                reason: format!(
                    "{} peers are open, as many as there may be",
                    self.core.peers.len()
                ),
                remedy: "raise the setting `max_peers` of the BTL".to_owned(),
            });
        }
        let driver = self.driver.open(address, life)?;
        let core = &mut self.core;
        let connection = from.connection;
        let mut peer = Peer::new(
            driver,
            out,
            from,
            core.config.initial_window,
            core.config.first_sequence,
        );
        peer.macs = macs;
        (peer.heard, peer.waiting) = (core.attended, core.attended);
        if !core.config.connectivity_check {
            peer.flags |= about::UP;
        }
        core.strangers.forget(connection);
        let index = core.peers.open(connection, place, peer);
        core.grow(core.peers.len());
        core.record(index, Event::Opened);
        Ok(index)
    }
}

impl Core {
    /// Each peer is in each of these lists at most once: with room for all, none of them allocates later.
    fn grow(&mut self, peers: usize) {
        let lists = [
            &mut self.ready,
            &mut self.acks_now,
            &mut self.timeouts,
            &mut self.probes,
        ];
        for list in lists {
            list.reserve(peers.saturating_sub(list.len()));
        }
        self.acks_later
            .reserve(peers.saturating_sub(self.acks_later.len()));
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
