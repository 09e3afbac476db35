//! Rails of every built-in kind behind one type, by static match. How they are found is in `find`, with what
//! settings they are made in `config::drivers`.

mod capture;
mod drill;
mod find;

pub use capture::{Capture, capture_file};

use std::borrow::Cow;

use doorbell_btl::{Btl, BtlError, Diagnosis, JobKey};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::discover::Candidate;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::Room;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Caller, Exposure, FenceScope, Incarnation, Landing, Look, Message,
    MsgId, OpId, PeerIndex, Refused, Remote, RemoteKey, Watch, WayReport,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::pairs::Place;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;
use doorbell_igbvf::IgbvfRail;
use doorbell_shm::ShmRail;
use doorbell_sim::{SimDatagram, SimRail};
use doorbell_udp::UdpRail;
use doorbell_usnic::UsnicRail;
use doorbell_xdp::XdpRail;

use drill::Drill;
pub use find::discover;
pub use find::{open_all, reason_of, way};

use crate::config::Config;
use crate::config::drivers::{btl_config, igbvf_config, shm_config, udp_config, usnic_config, xdp_config};
use crate::error::Error;
use crate::meet::{Key, RailEntry};
use crate::random;

/// A rail of any kind that this build contains. Every call is one predictable branch, never a dynamic call.
// The sizes differ, but there are few of them and they are moved once.
#[allow(clippy::large_enum_variant)]
pub enum AnyRail {
    /// Shared memory of one host.
    Shm(ShmRail),
    /// UDP sockets, made reliable.
    Udp(Btl<UdpRail>),
    /// AF_XDP queues, made reliable.
    Xdp(Btl<XdpRail>),
    /// Rings of a virtual function, made reliable.
    Igbvf(Btl<IgbvfRail>),
    /// Queues of a usNIC function, made reliable.
    Usnic(Btl<UsnicRail>),
    /// A simulated network that carries messages.
    Sim(SimRail),
    /// A simulated network that loses datagrams, made reliable.
    SimBtl(Btl<SimDatagram>),
    /// One of them that breaks when it was told to.
    Drilled(Drill),
}

macro_rules! each {
    ($self:expr, $rail:ident => $do:expr) => {
        match $self {
            AnyRail::Shm($rail) => $do,
            AnyRail::Udp($rail) => $do,
            AnyRail::Xdp($rail) => $do,
            AnyRail::Igbvf($rail) => $do,
            AnyRail::Usnic($rail) => $do,
            AnyRail::Sim($rail) => $do,
            AnyRail::SimBtl($rail) => $do,
            AnyRail::Drilled($rail) => $do,
        }
    };
}

impl AnyRail {
    /// Opens a rail by its name; it is used or refused, never replaced.
    pub fn open(name: &RailName, config: &Config) -> Result<Self, Error> {
        let rail = Self::open_whole(name, config)?;
        Ok(Drill::wrap(rail, &config.fault.inject.get().0))
    }

    fn open_whole(name: &RailName, config: &Config) -> Result<Self, Error> {
        match name.kind() {
            "shm" => Ok(Self::Shm(ShmRail::open(name, &shm_config(config))?)),
            "udp" => {
                let mut driver = UdpRail::open(name, &udp_config(config))?;
                capture::begin(name, config, |writer, clock| driver.set_capture(writer, clock))?;
                let life = Incarnation(random::number()?);
                Ok(Self::Udp(made_reliable(driver, config, life)?))
            }
            "xdp" => {
                let mut driver = XdpRail::open(name, &xdp_config(config))?;
                capture::begin(name, config, |writer, clock| driver.set_capture(writer, clock))?;
                let life = driver.incarnation();
                Ok(Self::Xdp(made_reliable(driver, config, life)?))
            }
            "igbvf" => {
                let mut driver = IgbvfRail::open(name, &igbvf_config(config))?;
                capture::begin(name, config, |writer, clock| driver.set_capture(writer, clock))?;
                let life = driver.incarnation();
                Ok(Self::Igbvf(made_reliable(driver, config, life)?))
            }
            "usnic" => {
                let mut driver = UsnicRail::open(name, &usnic_config(config))?;
                capture::begin(name, config, |writer, clock| driver.set_capture(writer, clock))?;
                let life = driver.incarnation();
                Ok(Self::Usnic(made_reliable(driver, config, life)?))
            }
            // Discovery has judged every name before this is called.
            _ => Err(Error::Rail(RailError::Unusable {
                rail: name.to_string(),
                reason: "this build cannot open it by name".to_owned(),
                remedy: "name another rail, or none to have them chosen".to_owned(),
            })),
        }
    }

    /// A rail of a simulated network that loses datagrams.
    pub fn simulated_datagrams(rail: SimDatagram, config: &Config) -> Result<Self, Error> {
        let life = rail.incarnation();
        Ok(Self::SimBtl(made_reliable(rail, config, life)?))
    }

    /// Gives it the job's key, before any peer is opened.
    pub fn set_key(&mut self, key: &Key) {
        match self {
            // Peers of one host are told apart by their process and user, which the kernel vouches for.
            Self::Shm(_) | Self::Sim(_) => {}
            Self::Udp(rail) => rail.set_key(JobKey::from_bytes(*key.bytes())),
            Self::Xdp(rail) => rail.set_key(JobKey::from_bytes(*key.bytes())),
            Self::Igbvf(rail) => rail.set_key(JobKey::from_bytes(*key.bytes())),
            Self::Usnic(rail) => rail.set_key(JobKey::from_bytes(*key.bytes())),
            Self::SimBtl(rail) => rail.set_key(JobKey::from_bytes(*key.bytes())),
            Self::Drilled(drill) => drill.rail.set_key(key),
        }
    }

    /// What selection judges, for a rail that is open already.
    pub fn candidate(&self) -> Candidate {
        Candidate::usable(self.name().clone(), *self.capabilities())
    }

    /// In which of several ways it was had, where there are several.
    pub fn how(&self) -> Option<String> {
        match self {
            Self::Xdp(rail) => Some(rail.driver().granted().to_string()),
            Self::Igbvf(rail) => Some(rail.driver().how()),
            Self::Usnic(rail) => Some(rail.driver().how()),
            Self::Drilled(drill) => drill.rail.how(),
            Self::Shm(_) | Self::Udp(_) | Self::Sim(_) | Self::SimBtl(_) => None,
        }
    }

    /// Ends its capture, if it has one.
    pub fn end_capture(&mut self, config: &Config) -> Option<Capture> {
        let name = self.name().clone();
        match self {
            Self::Udp(rail) => capture::end(rail.driver_mut().end_capture(), &name, config),
            Self::Xdp(rail) => capture::end(rail.driver_mut().end_capture(), &name, config),
            Self::Igbvf(rail) => capture::end(rail.driver_mut().end_capture(), &name, config),
            Self::Usnic(rail) => capture::end(rail.driver_mut().end_capture(), &name, config),
            Self::Drilled(drill) => drill.rail.end_capture(config),
            Self::Shm(_) | Self::Sim(_) | Self::SimBtl(_) => None,
        }
    }

    /// Longest message, its head included, that goes in one frame, or in one piece where there are no frames.
    pub fn in_one_frame(&self) -> usize {
        match self {
            Self::Shm(_) | Self::Sim(_) => {
                let limits = self.capabilities().limits;
                limits.eager.min(limits.message)
            }
            Self::Udp(rail) => rail.in_one_frame(),
            Self::Xdp(rail) => rail.in_one_frame(),
            Self::Igbvf(rail) => rail.in_one_frame(),
            Self::Usnic(rail) => rail.in_one_frame(),
            Self::SimBtl(rail) => rail.in_one_frame(),
            Self::Drilled(drill) => drill.rail.in_one_frame(),
        }
    }

    /// What it counts, by name: names and order never change.
    pub fn counts(&self, each: &mut dyn FnMut(&str, &'static str, u64)) {
        match self {
            Self::Drilled(drill) => drill.rail.counts(each),
            Self::Shm(rail) => {
                let stats = rail.stats();
                each("sent", "messages", stats.sent);
                each("received", "messages", stats.received);
                each("pulls", "operations", stats.pulls);
                each("refused", "connections", stats.refused);
            }
            Self::Udp(rail) => {
                rail.counters()
                    .named()
                    .for_each(|(name, count)| each(name, unit(name), count));
                rail.driver()
                    .stats()
                    .named()
                    .for_each(|(name, count)| each(name, unit(name), count));
            }
            Self::Xdp(rail) => {
                rail.counters()
                    .named()
                    .for_each(|(name, count)| each(name, unit(name), count));
                rail.driver()
                    .stats()
                    .named()
                    .for_each(|(name, count)| each(name, unit(name), count));
            }
            Self::Igbvf(rail) => {
                rail.counters()
                    .named()
                    .for_each(|(name, count)| each(name, unit(name), count));
                rail.driver()
                    .stats()
                    .named()
                    .for_each(|(name, count)| each(name, unit(name), count));
            }
            Self::Usnic(rail) => {
                rail.counters()
                    .named()
                    .for_each(|(name, count)| each(name, unit(name), count));
                rail.driver()
                    .stats()
                    .named()
                    .for_each(|(name, count)| each(name, unit(name), count));
            }
            // The network counts for all its rails together.
            Self::Sim(_) => {}
            Self::SimBtl(rail) => rail
                .counters()
                .named()
                .for_each(|(name, count)| each(name, "events", count)),
        }
    }

    /// Whether a peer owes it answers.
    pub fn is_suspect(&self, peer: PeerIndex) -> bool {
        match self {
            Self::Shm(_) | Self::Sim(_) => false,
            Self::Udp(rail) => rail.is_suspect(peer),
            Self::Xdp(rail) => rail.is_suspect(peer),
            Self::Igbvf(rail) => rail.is_suspect(peer),
            Self::Usnic(rail) => rail.is_suspect(peer),
            Self::SimBtl(rail) => rail.is_suspect(peer),
            Self::Drilled(drill) => drill.rail.is_suspect(peer),
        }
    }

    /// Whether the probe of two sizes has shown that frames pass both ways, and what else in words, where the rail makes one
    /// and it is over.
    pub fn probed(&self, peer: PeerIndex) -> Option<(bool, &'static str)> {
        let diagnosis = match self {
            Self::Shm(_) | Self::Sim(_) => return None,
            Self::Udp(rail) => rail.diagnosis(peer)?,
            Self::Xdp(rail) => rail.diagnosis(peer)?,
            Self::Igbvf(rail) => rail.diagnosis(peer)?,
            Self::Usnic(rail) => rail.diagnosis(peer)?,
            Self::SimBtl(rail) => rail.diagnosis(peer)?,
            Self::Drilled(drill) => return drill.rail.probed(peer),
        };
        Some(match diagnosis {
            Diagnosis::Works => (true, "small and full frames pass both ways"),
            other => (false, other.advice()),
        })
    }

    /// What it knows of trouble on the way to a peer.
    pub fn trouble(&self, peer: PeerIndex) -> Option<Cow<'static, str>> {
        if let Some(reason) = self.own_reason() {
            return Some(reason.into());
        }
        let (suspect, diagnosis) = match self {
            Self::Shm(_) | Self::Sim(_) => return None,
            Self::Udp(rail) => (rail.is_suspect(peer), rail.diagnosis(peer)),
            Self::Xdp(rail) => (rail.is_suspect(peer), rail.diagnosis(peer)),
            Self::Igbvf(rail) => (rail.is_suspect(peer), rail.diagnosis(peer)),
            Self::Usnic(rail) => (rail.is_suspect(peer), rail.diagnosis(peer)),
            Self::SimBtl(rail) => (rail.is_suspect(peer), rail.diagnosis(peer)),
            Self::Drilled(drill) => return drill.rail.trouble(peer),
        };
        let in_doubt = suspect || !matches!(diagnosis, Some(Diagnosis::Works) | None);
        if let Self::Xdp(rail) = self
            && let Some(trouble) = rail.driver().trouble(in_doubt)
        {
            return Some(trouble.into());
        }
        let advice = match diagnosis {
            Some(Diagnosis::Works) | None if suspect => Some(
                "nothing has been acknowledged for several time-outs: the peer computes without polling, or \
                 frames are dropped on the way (look for a firewall, then the route, at both ends)",
            ),
            Some(Diagnosis::Works) | None => None,
            Some(diagnosis) => Some(diagnosis.advice()),
        };
        // What the kernel refuses need not be all: frames may be lost farther on, too.
        let kernel = match self {
            Self::Udp(rail) => rail.driver().trouble(peer, in_doubt),
            _ => None,
        };
        match (advice, kernel) {
            (Some(advice), Some(kernel)) => Some(format!("{advice}; {kernel}").into()),
            (advice, kernel) => kernel.map(Cow::Owned).or(advice.map(Cow::Borrowed)),
        }
    }

    /// Why it is down and what to do, where its driver knows more of it than that its link is.
    pub fn own_reason(&self) -> Option<String> {
        match self {
            Self::Usnic(rail) => {
                let driver = rail.driver().nic();
                let (reason, remedy) = driver.trouble().zip(driver.remedy())?;
                Some(format!("{reason}; {remedy}"))
            }
            Self::Drilled(drill) => drill.rail.own_reason(),
            _ => None,
        }
    }

    /// A failure for drills: the ways to all peers, or to one, break as if by themselves. A simulated rail tells no event
    /// of it.
    pub fn inject_failure(&mut self, peer: Option<PeerIndex>) {
        match self {
            Self::Shm(rail) => rail.sever(peer),
            Self::Udp(rail) => rail.sever(peer),
            Self::Xdp(rail) => rail.sever(peer),
            Self::Igbvf(rail) => rail.sever(peer),
            Self::Usnic(rail) => rail.sever(peer),
            Self::SimBtl(rail) => rail.sever(peer),
            Self::Sim(rail) => peer.into_iter().for_each(|peer| rail.abandon(peer)),
            Self::Drilled(drill) => drill.rail.inject_failure(peer),
        }
    }

    /// Whether a fault that was asked for has broken it.
    pub fn is_broken_on_purpose(&self) -> bool {
        matches!(self, Self::Drilled(drill) if drill.broken)
    }

    /// The last `most` notable events on the way to a peer, one line each, newest last.
    pub fn recent(&self, peer: PeerIndex, most: usize) -> Vec<String> {
        match self {
            Self::Shm(_) | Self::Sim(_) => Vec::new(),
            Self::Udp(rail) => rail.recent(peer, most),
            Self::Xdp(rail) => rail.recent(peer, most),
            Self::Igbvf(rail) => rail.recent(peer, most),
            Self::Usnic(rail) => rail.recent(peer, most),
            Self::SimBtl(rail) => rail.recent(peer, most),
            Self::Drilled(drill) => drill.rail.recent(peer, most),
        }
    }

    fn incarnation(&self) -> Incarnation {
        match self {
            Self::Shm(rail) => rail.incarnation(),
            Self::Udp(rail) => rail.incarnation(),
            Self::Xdp(rail) => rail.incarnation(),
            Self::Igbvf(rail) => rail.incarnation(),
            Self::Usnic(rail) => rail.incarnation(),
            Self::Sim(rail) => rail.incarnation(),
            Self::SimBtl(rail) => rail.incarnation(),
            Self::Drilled(drill) => drill.rail.incarnation(),
        }
    }

    // What follows is for all rails but shm, and no part of its callers: what they do for 8 bytes over shm takes some 40
    // nanoseconds, and code of others in between costs registers.

    #[inline(never)]
    fn send_farther(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        each!(self, rail => rail.send(peer, head, body))
    }

    #[inline(never)]
    fn poll_farther<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        each!(self, rail => rail.poll(budget, sink))
    }

    /// Where it is, for its peers to judge.
    pub fn place(&self) -> Place {
        match self {
            Self::Shm(_) => Place {
                network: doorbell_inet::network(),
                ..Place::default()
            },
            Self::Udp(rail) => rail.driver().place(),
            Self::Xdp(rail) => rail.driver().place(),
            Self::Igbvf(rail) => rail.driver().place(),
            Self::Usnic(rail) => rail.driver().place(),
            Self::Sim(_) | Self::SimBtl(_) => Place::default(),
            Self::Drilled(drill) => drill.rail.place(),
        }
    }

    /// What is published about it.
    pub fn entry(&self) -> RailEntry {
        let capabilities = self.capabilities();
        let features = [
            ("get", capabilities.features.get),
            ("put", capabilities.features.put),
            ("atomics", capabilities.features.atomics),
        ];
        RailEntry {
            name: self.name().to_string(),
            wire: self.name().wire().to_owned(),
            address: self.address(),
            incarnation: self.incarnation().0,
            features: features
                .iter()
                .filter(|(_, has)| *has)
                .map(|(name, _)| (*name).to_owned())
                .collect(),
            eager: capabilities.limits.eager as u64,
            place: self.place(),
        }
    }
}

/// A driver's datagrams as messages.
fn made_reliable<D: Datagram>(driver: D, config: &Config, life: Incarnation) -> Result<Btl<D>, Error> {
    let name = driver.name().to_string();
    Btl::new(driver, btl_config(config), life).map_err(|error| match error {
        BtlError::Rail(error) => Error::Rail(error),
        error => Error::Rail(RailError::Unusable {
            rail: name,
            reason: error.to_string(),
            remedy: "change the btl.* settings".to_owned(),
        }),
    })
}

impl Rail for AnyRail {
    fn name(&self) -> &RailName {
        each!(self, rail => rail.name())
    }

    #[inline]
    fn capabilities(&self) -> &Capabilities {
        each!(self, rail => rail.capabilities())
    }

    fn address(&self) -> RailAddress {
        each!(self, rail => rail.address())
    }

    #[inline]
    fn progress(&mut self, now: Time) -> Work {
        each!(self, rail => rail.progress(now))
    }

    #[inline]
    fn next_deadline(&self) -> Option<Time> {
        each!(self, rail => rail.next_deadline())
    }

    #[inline]
    fn wants_time(&self) -> bool {
        each!(self, rail => rail.wants_time())
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        each!(self, rail => rail.arm())
    }

    fn disarm(&mut self) {
        each!(self, rail => rail.disarm());
    }

    #[inline]
    fn poll_cost(&self) -> PollCost {
        each!(self, rail => rail.poll_cost())
    }

    #[inline]
    fn event(&mut self) -> Option<RailEvent> {
        each!(self, rail => rail.event())
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        each!(self, rail => Rail::close(rail, now, by))
    }
}

impl Message for AnyRail {
    fn open(&mut self, address: &RailAddress, incarnation: Incarnation) -> Result<PeerIndex, RailError> {
        each!(self, rail => Message::open(rail, address, incarnation))
    }

    #[inline]
    fn stranger(&mut self) -> Option<Caller> {
        each!(self, rail => rail.stranger())
    }

    fn caller(&self, address: &RailAddress, incarnation: Incarnation) -> Option<Caller> {
        each!(self, rail => rail.caller(address, incarnation))
    }

    #[inline(always)]
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: Body<'_>) -> Result<MsgId, Refused> {
        match self {
            Self::Shm(rail) => rail.send(peer, head, body),
            other => other.send_farther(peer, head, body),
        }
    }

    #[inline]
    fn flush(&mut self) {
        each!(self, rail => rail.flush());
    }

    #[inline]
    fn flush_soon(&mut self, peer: PeerIndex) -> bool {
        each!(self, rail => rail.flush_soon(peer))
    }

    #[inline]
    fn flush_for(&mut self, peer: PeerIndex) -> bool {
        each!(self, rail => rail.flush_for(peer))
    }

    #[inline]
    fn holds_back(&mut self, peer: Option<PeerIndex>) -> bool {
        each!(self, rail => rail.holds_back(peer))
    }

    #[inline]
    fn poll<S: Arrivals>(&mut self, budget: usize, sink: &mut S) -> usize {
        match self {
            Self::Shm(rail) => rail.poll(budget, sink),
            other => other.poll_farther(budget, sink),
        }
    }

    #[inline(always)]
    fn look(&mut self, peer: PeerIndex, head: [u64; 2], room: Room<'_>, watch: Watch) -> Look {
        match self {
            Self::Shm(rail) => rail.look(peer, head, room, watch),
            Self::Drilled(drill) => drill.look(peer, head, room, watch),
            // Whatever costs microseconds to look at is looked at by polling.
            _ => Look::Other,
        }
    }

    #[inline(always)]
    fn linger(&mut self, looks: u32) -> bool {
        match self {
            Self::Shm(rail) => rail.linger(looks),
            _ => true,
        }
    }

    #[inline]
    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        each!(self, rail => rail.handed_over(peer))
    }

    fn reclaim(&mut self, peer: PeerIndex, each: &mut dyn FnMut(MsgId, &[u8])) {
        each!(self, rail => rail.reclaim(peer, each));
    }

    fn abandon(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.abandon(peer));
    }

    fn revive(&mut self, peer: PeerIndex) {
        each!(self, rail => rail.revive(peer));
    }

    fn proved_alive(&mut self, peer: PeerIndex) {
        each!(self, rail => Message::proved_alive(rail, peer));
    }

    fn report(&self, peer: PeerIndex) -> WayReport {
        match self {
            // The rail tells of changes; how the link was from the start, its driver knows.
            Self::Udp(rail) => {
                let report = rail.report(peer);
                let link = report.link.or(Some(rail.driver().is_link_up()));
                WayReport { link, ..report }
            }
            Self::Xdp(rail) => {
                let report = rail.report(peer);
                let link = report.link.or(Some(rail.driver().is_link_up()));
                WayReport { link, ..report }
            }
            Self::Igbvf(rail) => {
                let report = rail.report(peer);
                let link = report.link.or(Some(rail.driver().is_link_up()));
                WayReport { link, ..report }
            }
            Self::Usnic(rail) => {
                let report = rail.report(peer);
                let link = report.link.or(Some(rail.driver().is_link_up()));
                WayReport { link, ..report }
            }
            other => each!(other, rail => rail.report(peer)),
        }
    }

    fn expose(&mut self, memory: Exposure, access: Access, to: Option<PeerIndex>) -> Result<Remote, Refused> {
        each!(self, rail => rail.expose(memory, access, to))
    }

    fn withdraw(&mut self, key: RemoteKey) {
        each!(self, rail => rail.withdraw(key));
    }

    fn get(&mut self, peer: PeerIndex, op: OpId, from: &Remote, into: Landing) -> Result<(), Refused> {
        each!(self, rail => rail.get(peer, op, from, into))
    }

    fn put(&mut self, peer: PeerIndex, op: OpId, from: Body<'_>, to: &Remote) -> Result<(), Refused> {
        each!(self, rail => rail.put(peer, op, from, to))
    }

    fn atomic(&mut self, peer: PeerIndex, op: OpId, at: &Remote, what: AtomicOp) -> Result<(), Refused> {
        each!(self, rail => rail.atomic(peer, op, at, what))
    }

    fn fence(&mut self, scope: FenceScope, op: OpId) -> Result<(), Refused> {
        each!(self, rail => rail.fence(scope, op))
    }
}
/// What a counter of a rail counts, by its name.
fn unit(name: &str) -> &'static str {
    if name.starts_with("bytes") {
        "bytes"
    } else {
        "events"
    }
}
